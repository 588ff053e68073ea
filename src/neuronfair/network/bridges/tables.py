"""Rows as the table that a pipeline was trained on: a pandas DataFrame of labels and numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from neuronfair.domain.attribute import MISSING_CELLS, Attribute
from neuronfair.domain.infer import MISSING
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, did_you_mean
from neuronfair.limits import check_size
from neuronfair.network.bridges.opened import needs

_TRUTH = {"True": True, "False": False}


class Frames:
    """Turns codes, or encoded rows, into DataFrames with the cells that the table itself held.

    Labels that are numbers become numbers, as they do when a CSV file is read, and an empty cell becomes empty again.
    `columns` chooses and orders the columns. `known` are the categories of fitted encoders by column: they tell how the
    labels were spelled when they were fitted, if otherwise than in the domain. `categorical` gives text as categories.
    """

    def __init__(
        self,
        domain: TableDomain,
        columns: Sequence[str] | None = None,
        known: Mapping[str, Collection[Any]] | None = None,
        *,
        categorical: bool = False,
    ) -> None:
        self._pandas = needs("pandas", "sklearn")
        self._domain = domain.to("cpu")
        self.columns = tuple(domain.names if columns is None else columns)
        own = set(domain.names)
        for name in self.columns:
            if name not in own:
                raise ModelError(
                    f"the model reads a column '{name}', which the domain does not have. Add it to the domain file. "
                    f"{did_you_mean(name, domain.names)}"
                )
        self._cells = []
        for name in self.columns:
            place = domain.column(name)
            lookup = self._pandas.Series(cells(domain.attributes[place], (known or {}).get(name, ())))
            is_text = lookup.dtype.kind not in "iufb"
            self._cells.append((place, lookup.astype("category").array if categorical and is_text else lookup.array))

    def of_rows(self, rows: Tensor) -> Any:
        """Return rows of codes as a table; a code that stands for nothing becomes an empty cell."""
        codes = rows.cpu().numpy()
        table = {}
        for name, (place, lookup) in zip(self.columns, self._cells, strict=True):
            code = codes[:, place]
            inside = (code >= 0) & (code < len(lookup))
            table[name] = lookup.take(np.where(inside, code, -1), allow_fill=not inside.all())
        return self._pandas.DataFrame(table, columns=list(self.columns))


def cells(attribute: Attribute, known: Collection[Any] = ()) -> list[Any]:
    """Return what stands in a table for each code of an attribute.

    >>> cells(Attribute("smokes", "nominal", values=("0", "1", "missing"), missing="missing"))
    [0, 1, nan]
    """
    if not attribute.values:
        check_size(attribute.size, f"attribute '{attribute.name}', which has {attribute.size:,} values,", times=100)
        return [attribute.value(code) for code in range(attribute.size)]
    spelled: dict[str, Any] = {text.strip(): text for text in known if isinstance(text, str)}
    labels: list[Any] = list(attribute.values)
    empty = attribute.missing if isinstance(attribute.missing, str) else None
    present = [label for label in labels if label != empty]
    if not any(label in spelled for label in labels):
        if all(label in _TRUTH for label in present):
            spelled |= _TRUTH
        else:
            spelled |= _as_numbers(present)
    if empty is not None and empty not in spelled:
        mark = next((spelled[text] for text in spelled if text.casefold() in MISSING_CELLS), np.nan)
        if known or empty == MISSING:
            spelled[empty] = mark
    return [spelled.get(label, label) for label in labels]


def _as_numbers(labels: Sequence[str]) -> dict[str, int | float]:
    """Return the labels as numbers, or nothing if one of them is none."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return {}
    return {label: int(n) if n.is_integer() and "." not in label else n for label, n in numbers.items()}
