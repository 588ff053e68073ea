"""An attribute of a table: its values, their codes, and its parents in the causal graph."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from neuronfair.domain.cells import (
    DECIMAL_MARKS,
    cell_text,
    format_day,
    is_date_form,
    is_day,
    is_missing,
    parse_days,
    parse_number,
    plain_float,
)
from neuronfair.domain.tables import Cells
from neuronfair.errors import CellError, DomainError, did_you_mean, find_repeated

AttributeKind = Literal["ordinal", "nominal", "flag", "continuous"]
EncodingKind = Literal["raw", "scaled", "onehot", "none"]
Outside = Literal["error", "keep"]
Outliers = Literal["clip"]

MISSING = "missing"  # the name of an empty cell
EMPTY_CELL_ERROR = "the cell is empty. Fill it, or declare what an empty cell means: missing = …"
MAX_VALUES = 2**53  # beyond this a code is no longer exact as a float64
MAX_ONEHOT = 1_000_000  # values of an attribute that becomes one model input per value
KEEP = "keep"  # the `missing` of a number whose empty cell is a value of its own
GRID_TOLERANCE = 1e-6  # of a step: how far an ordinal number may lie from its grid point


@dataclass(frozen=True)
class Attribute:
    """One attribute: its kind, its values, and how a model sees it.

    A value has a code 0, 1, …, size - 1. Numbers have `low`, `high` and `step`: code c means low + step · c. Labels
    have `values`: a code is a position in them. A code outside this range can occur (published data contain such cells)
    but is not valid. `missing` is the value of an empty cell; with "keep" an empty cell among numbers is a value of its
    own, with the last code and no neighbours. With encode "none" the attribute is no input of the model; it may still
    be sensitive and have rules.

    The following settings of reading a cell are not part of the fingerprint: `date`, a form in which dates become days
    since 1970-01-01; `decimal`, the decimal mark; `other`, the value of labels that are not in `values`; outliers
    "clip" moves a number beyond the bounds to the nearest one. For a sensitive attribute, `bands` are the numbers at
    which a new band begins: records of one band are compared with the `band_values` of the others (by default their
    medians in the data set). Three settings are for counterfactual twins: the group does not influence the attribute
    (`fixed`), its differences between groups are justified (`legitimate`), and its parents in the causal graph
    (`causes`).

    >>> Attribute("age", "ordinal", low=17, high=90).codes(["17", 39])
    array([ 0, 22])
    >>> Attribute("sex", "nominal", values=("Female", "Male")).value(1)
    'Male'
    """

    name: str
    kind: AttributeKind
    low: float = 0
    high: float = 1
    step: float = 1
    values: tuple[str, ...] = ()
    encode: EncodingKind = "raw"
    center: float = 0.0
    scale: float = 1.0
    missing: str | float | None = None
    extra: Mapping[str, int] = field(default_factory=dict)
    decimal: str = field(default=".", repr=False)
    date: str | None = field(default=None, repr=False)
    other: str | None = field(default=None, repr=False)
    outliers: Outliers | None = field(default=None, repr=False)
    bands: tuple[float, ...] = field(default=(), repr=False)
    band_values: tuple[float, ...] = field(default=(), repr=False)
    fixed: bool = field(default=False, repr=False)
    legitimate: bool = field(default=False, repr=False)
    causes: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for problem in self._find_problems():
            raise self._error(problem)
        if self.missing is not None and self.empty is None:
            self._missing_code()

    def _find_problems(self) -> Iterator[str]:
        """Yield what is wrong; each check may rely on those before it."""
        for key, allowed_values in (("kind", get_args(AttributeKind)), ("encode", get_args(EncodingKind))):
            if (value := getattr(self, key)) not in allowed_values:
                yield f"{key} {value!r} is unknown. {did_you_mean(value, allowed_values)}"
        if self.kind == "nominal" and not self.values:
            yield "a nominal attribute needs values = [...]"
        if (repeated_value := find_repeated(self.values)) is not None:
            yield f"value {repeated_value!r} is listed twice"
        if not self.values:
            if not all(map(_is_finite, (self.low, self.high, self.step))) or self.step <= 0 or self.high < self.low:
                grid_text = f"low={self.low}, high={self.high}, step={self.step}"
                yield f"needs finite low <= high and step > 0, has {grid_text}"
            if not (float(self.high) - float(self.low)) / float(self.step) < MAX_VALUES:
                yield f"{self.low:g} to {self.high:g} in steps of {self.step:g} are too many values"
        if self.kind == "flag" and self.size != 2:
            yield f"a flag has exactly two values, this has {self.size}"
        if self.encode == "onehot" and self.size > MAX_ONEHOT:
            yield f"{self.size:,} values are too many for a one-hot block. Use a larger step or 'scaled'"
        if not (_is_finite(self.center) and _is_finite(self.scale) and self.scale > 0):
            yield f"needs a finite center and a scale > 0, has center={self.center}, scale={self.scale}"
        if self.decimal not in DECIMAL_MARKS:
            yield f'decimal must be "." or ",", is {self.decimal!r}'
        if self.other is not None and self.other not in self.values:
            yield f"other = {self.other!r} is not one of its values. {did_you_mean(self.other, self.values)}"
        if self.outliers is not None and (self.outliers not in get_args(Outliers) or self.values):
            yield f'outliers must be "clip", and is for numbers only; it is {self.outliers!r}'
        if self.fixed and self.legitimate:
            yield "is fixed and legitimate: set one of the two"
        if self.date is not None and (self.values or not is_date_form(str(self.date))):
            yield f'date = {self.date!r}: expected "iso" or a form such as "%d.%m.%Y", and no values'
        if self.date is not None and not (is_day(self.low) and is_day(self.high) and float(self.step).is_integer()):
            yield "needs dates as low and high, and a step of whole days"
        if self.bands or self.band_values:
            yield from self._find_band_problems()

    def _find_band_problems(self) -> Iterator[str]:
        cuts, count = (self.low, *self.bands, self.high), len(self.bands) + 1
        if self.values or self.empty is not None or count == 1 or list(cuts) != sorted({*cuts}):
            yield (
                "bands are for numbers whose empty cell is no value of its own, and ascend above low and below high; "
                f"they are {list(self.bands)}"
            )
        if self.band_values and [*map(self.band, self.band_codes)] != list(range(count)):
            yield f"band_values needs one number of each of the {count} bands, has {list(self.band_values)}"

    @cached_property
    def band_starts(self) -> tuple[int, ...]:
        """The first code of each band."""
        return (0, *(math.ceil((cut - self.low) / self.step - GRID_TOLERANCE) for cut in self.bands))

    def band(self, code: int) -> int:
        """Return the number of the band that a code lies in."""
        return bisect_right(self.band_starts, code) - 1

    @cached_property
    def band_codes(self) -> tuple[int, ...]:
        """The code that represents each band: that of its value, or of its middle."""
        if self.band_values:
            return tuple(self._number_code(value, "error") for value in self.band_values)
        return tuple((first + end - 1) // 2 for first, end in pairwise((*self.band_starts, self.grid_size)))

    def group_name(self, code: int) -> str:
        """Return the name of a demographic group: a value, or a band of numbers."""
        if not self.bands:
            return str(self.value(code))
        cuts, band = [self.value(start) for start in self.band_starts], self.band(code)
        if band == 0:
            return f"below {cuts[1]}"
        return f"{cuts[band]} or more" if band == len(self.bands) else f"{cuts[band]} to below {cuts[band + 1]}"

    def _error(self, problem: str) -> DomainError:
        return DomainError(f"attribute '{self.name}': {problem}")

    @cached_property
    def size(self) -> int:
        """How many values the attribute has."""
        return self.grid_size + (self.missing == KEEP and not self.values)

    @cached_property
    def grid_size(self) -> int:
        """How many values are labels or numbers: all except an empty cell as a value of its own."""
        if self.values:
            return len(self.values)
        return int(np.floor((self.high - self.low) / self.step + GRID_TOLERANCE)) + 1

    @property
    def empty(self) -> int | None:
        """The code of an empty cell as a value of its own; None where it has another meaning, or is refused."""
        return self.grid_size if self.grid_size < self.size else None

    @property
    def is_input(self) -> bool:
        """Whether it is an input of the model."""
        return self.encode != "none"

    @property
    def is_ordered(self) -> bool:
        """Whether its codes have an order: true for all kinds but nominal."""
        return self.kind != "nominal"

    def value(self, code: int) -> str | int | float:
        """Return the value of a code: a label, or a number."""
        if self.values:
            if 0 <= code < self.size:
                return self.values[code]
            if self.missing == code:
                return "missing"
            return next((label for label, extra in self.extra.items() if extra == code), f"code {code}")
        if code == self.empty:
            return MISSING
        if self.date is not None and is_day(self.low + self.step * code):
            return format_day(self.low + self.step * code, self.date)
        number = round(self.low + self.step * code, self._decimals)
        return int(number) if float(number).is_integer() else number

    @cached_property
    def _decimals(self) -> int:
        """The number of decimals that hides the rounding of low + step * code (0.1 * 3) and separates grid points."""
        largest = max(abs(self.low), abs(self.high), self.step)
        return max(14 - math.floor(math.log10(largest)), 1 - math.floor(math.log10(self.step)))

    def codes(self, cells: Sequence[Any] | npt.NDArray[Any], *, outside: Outside = "error") -> npt.NDArray[np.int64]:
        """Turn cells of a table (labels or numbers, as text or not) into codes.

        Raises a `CellError` with the position of the first bad cell; with `outside="keep"` numbers beyond the bounds
        become codes that are not valid.
        """
        if isinstance(cells, Cells):
            return self._encode_texts(cells.texts, outside, cells.first)[cells.numbers]
        texts = [cell if isinstance(cell, str) else cell_text(cell) for cell in cells]
        distinct = list(dict.fromkeys(texts))  # in order of appearance: far fewer than the cells
        codes = self._encode_texts(distinct, outside, lambda index: texts.index(distinct[index]))
        code_by_text = dict(zip(distinct, codes.tolist(), strict=True))
        return np.fromiter(map(code_by_text.__getitem__, texts), dtype=np.int64, count=len(texts))

    def _encode_texts(
        self, texts: Sequence[str], outside: Outside, row_of: Callable[[int], int]
    ) -> npt.NDArray[np.int64]:
        """Return the codes of different texts; `row_of` gives the row of a text from its position, for an error."""
        if not self.values:
            codes, fits = self._grid_codes(self._parse_numbers(texts), outside)
            if not fits.all():
                index = int(fits.argmin())
                raise CellError(row_of(index), str(self._make_misfit_error(texts[index].strip())))
            return codes
        codes = np.empty(len(texts), dtype=np.int64)
        for index, text in enumerate(texts):
            try:
                codes[index] = self._label_code(text)
            except DomainError as error:
                raise CellError(row_of(index), str(error)) from None
        return codes

    def _label_code(self, text: str) -> int:
        code = self._label_codes.get(text)  # a label may have blanks at its ends; anything else is read without them
        code = self._label_codes.get(text.strip()) if code is None else code
        if code is not None:
            return code
        if is_missing(text.strip()):
            if self.missing is None:
                raise self._error(EMPTY_CELL_ERROR)
            return self._missing_code()
        if self.other is not None:
            return self._label_codes[self.other]
        raise self._error(f"unknown value {text.strip()!r}. {did_you_mean(text.strip(), self.values)}")

    def _parse_numbers(self, texts: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return texts as numbers: NaN for an empty cell, infinity for one that is no number."""
        if self.date is None and self.decimal == ".":
            with suppress(ValueError):
                return np.array([plain_float(text) if text else np.nan for text in texts])
        stripped = map(str.strip, texts)
        return np.array([np.nan if self._is_empty(text) else self._number_or_infinity(text) for text in stripped])

    def _is_empty(self, text: str) -> bool:
        return is_missing(text) or (self.empty is not None and text == MISSING)

    def _number_or_infinity(self, value: str | float) -> float:
        number = self.number(value) if isinstance(value, str) else float(value)
        return np.inf if number is None or math.isnan(number) else number

    def _grid_codes(
        self, numbers: npt.NDArray[np.float64], outside: Outside
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the codes of numbers, NaN for an empty cell, and which of them fit the grid."""
        empty = np.isnan(numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # such numbers do not fit
            position = np.where(empty, 0.0, (numbers - self.low) / self.step)
            fits = np.isfinite(position)
            if self.outliers == "clip":
                position = position.clip(0, self.grid_size - 1)
            nearest = np.round(position)
            fits &= np.abs(position) < MAX_VALUES
            if self.kind != "continuous":
                fits &= np.abs(position - nearest) <= GRID_TOLERANCE
        if outside == "error":
            fits &= nearest >= 0
        if outside == "error" or self.empty is not None:  # then such a code is taken
            fits &= nearest < self.grid_size
        codes = np.where(fits, nearest, 0).astype(np.int64)
        if empty.any():
            if self.empty is None and self.missing is None:
                fits &= ~empty
            else:
                codes[empty] = self._missing_code() if self.empty is None else self.empty
        return codes, fits

    def _number_code(self, value: str | float, outside: Outside) -> int:
        """Return the code of a number that the domain file names."""
        codes, fits = self._grid_codes(np.array([self._number_or_infinity(value)]), outside)
        if not fits[0]:
            raise self._make_misfit_error(value)
        return int(codes[0])

    def _make_misfit_error(self, value: str | float) -> DomainError:
        """Return the error of a number, a text or an empty cell that does not fit the grid."""
        if isinstance(value, str) and self._is_empty(value):
            return self._error(EMPTY_CELL_ERROR)
        number = self.number(value) if isinstance(value, str) else float(value)
        if number is None:
            expected = "a number" if self.date is None else f"a date such as {self.value(0)}"
            return self._error(f"expected {expected}, got {value!r}")
        if not math.isfinite(number):
            return self._error(f"expected a finite number, got {value!r}")
        position = (number - self.low) / self.step
        if not abs(position) < MAX_VALUES:
            return self._error(f"{value} is far outside {self.low:g} to {self.high:g}. Correct the cell")
        if self.kind != "continuous" and abs(position - round(position)) > GRID_TOLERANCE:
            return self._error(f"{value} is not on the grid {self.low:g}, {self.low + self.step:g}, …")
        return self._error(f"{value} is outside {self.low:g} to {self.high:g}. Widen low/high or correct the cell")

    @cached_property
    def _label_codes(self) -> dict[str, int]:
        return {label: code for code, label in enumerate(self.values)} | dict(self.extra)

    def number(self, text: str) -> float | None:
        """Return the number in a text, for a date its days since 1970-01-01; None if there is none."""
        if self.date is not None:
            return parse_days(text, self.date)
        truth = {"true": 1.0, "false": 0.0}.get(text.casefold())
        return parse_number(text, self.decimal) if truth is None else truth

    def _missing_code(self) -> int:
        if self.values:
            if isinstance(self.missing, str):
                if self.missing not in self._label_codes:
                    suggestion = did_you_mean(self.missing, self.values)
                    raise self._error(f"missing = {self.missing!r} is not one of its values. {suggestion}")
                return self._label_codes[self.missing]
            if not float(self.missing or 0).is_integer() or abs(self.missing or 0) >= MAX_VALUES:
                raise self._error(f"missing = {self.missing} is neither one of its values nor a code")
            return int(self.missing or 0)
        return self._number_code(self.missing or 0, "keep")


def _is_finite(number: float) -> bool:
    try:
        return bool(np.isfinite(float(number)))
    except OverflowError:  # a whole number beyond every float
        return False


def check_graph(attributes: Sequence[Attribute]) -> None:
    """Refuse parents that are no attributes, and cycles in the causal graph."""
    names = [attribute.name for attribute in attributes]
    for attribute in attributes:
        for name in attribute.causes or ():
            if name not in names:
                raise DomainError(
                    f"attribute '{attribute.name}': causes names '{name}', which is no attribute. "
                    f"{did_you_mean(name, names)}"
                )
    try:
        list(TopologicalSorter({a.name: a.causes or () for a in attributes}).static_order())
    except CycleError as error:
        cycle = " -> ".join(f"'{name}'" for name in error.args[1])
        raise DomainError(f"causes go round in a circle: {cycle}. Remove one of them") from None


def find_parents(attributes: Sequence[Attribute]) -> Mapping[int, Sequence[int]] | None:
    """Return the parents of each column in the causal graph; None where no attribute declares any.

    An attribute without `causes` has no parents if others declare some.
    """
    if all(attribute.causes is None for attribute in attributes):
        return None
    check_graph(attributes)
    column = {attribute.name: i for i, attribute in enumerate(attributes)}
    return {i: [column[name] for name in a.causes or ()] for i, a in enumerate(attributes)}


def select_attributes(attributes: Sequence[Attribute], names: Collection[str]) -> tuple[Attribute, ...]:
    """Return the attributes of some names; parents that are left out are replaced by their own parents."""
    remaining = tuple(attribute for attribute in attributes if attribute.name in names)
    causes = {attribute.name: attribute.causes or () for attribute in attributes}
    if all(attribute.causes is None for attribute in attributes):
        return remaining
    parents: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(causes).static_order():
        ancestor_lists = [(cause,) if cause in names else parents[cause] for cause in causes[name]]
        parents[name] = tuple(dict.fromkeys(cause for ancestors in ancestor_lists for cause in ancestors))
    return tuple(replace(attribute, causes=parents[attribute.name]) for attribute in remaining)
