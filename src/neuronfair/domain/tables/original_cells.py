"""The cells of a data set as they came, before they were moved to the values of the domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.attribute import MISSING_CELLS, Attribute
from neuronfair.domain.tables.cells import Cells

if TYPE_CHECKING:
    from neuronfair.domain.table import TableDomain

EXACT = 1e-9  # of a step: how far a number may lie from what its code stands for, such as 0.1 * 3 for 0.3


@dataclass(frozen=True)
class Original:
    """The original cells of a data set: columns of text and, where there was one, the DataFrame they were read from.

    `rows` are those of the columns that the data set holds, in its order.
    """

    columns: Mapping[str, Sequence[str]]
    rows: npt.NDArray[np.int64]
    frame: Any = None

    @staticmethod
    def of(columns: Mapping[str, Sequence[str]], frame: Any = None) -> Original:
        """Return all rows of a table."""
        return Original(columns, np.arange(len(next(iter(columns.values())))), frame)

    def take(self, index: npt.NDArray[np.int64]) -> Original:
        """Return some of the rows."""
        return replace(self, rows=self.rows[index])

    def numbers(self, attribute: Attribute) -> npt.NDArray[np.float64]:
        """Return the numbers of a column, NaN for an empty cell: (n,)."""
        cells = Cells.of(self.columns[attribute.name])
        found = [None if _is_empty(text) else attribute.number(text) for text in cells.texts]
        return np.array([np.nan if one is None else one for one in found])[cells.numbers[self.rows]]

    def texts(self, attribute: Attribute) -> npt.NDArray[np.object_]:
        """Return the texts of a column, None for an empty cell: (n,)."""
        cells = Cells.of(self.columns[attribute.name])
        found = [None if _is_empty(text) and text not in attribute.values else text for text in cells.texts]
        return np.array(found, dtype=object)[cells.numbers[self.rows]]

    def off_grid(self, domain: TableDomain, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which cells are no value of the domain, so that their codes stand for another: bool, (n, d)."""
        parts = [self._off_grid(a, codes[:, place]) for place, a in enumerate(domain.attributes)]
        return np.stack(parts, 1)

    def _off_grid(self, attribute: Attribute, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        if attribute.values:
            known = {*attribute.values, *attribute.extra} - ({*attribute.extra} if attribute.other else set())
            cells = Cells.of(self.columns[attribute.name])
            beyond = np.array([text not in known and not _is_empty(text) for text in cells.texts])
            return beyond[cells.numbers[self.rows]]
        numbers, step = self.numbers(attribute), float(attribute.step)
        close = EXACT * step + 4 * np.finfo(np.float64).eps * np.abs(numbers)
        return ~(np.isnan(numbers) | (np.abs(attribute.low + step * codes - numbers) <= close))


def _is_empty(text: str) -> bool:
    return text.casefold() in MISSING_CELLS
