"""Inference of the type of a column: numbers, dates, labels, an identifier, or free text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.attribute import GRID_TOLERANCE, MISSING
from neuronfair.domain.cells import (
    DECIMAL_MARKS,
    ISO,
    find_date_forms,
    format_day,
    is_missing,
    parse_days,
    parse_number,
    plain_float,
    size_sort_key,
)
from neuronfair.domain.schema.toml import quote, toml_value
from neuronfair.domain.tables import Cells
from neuronfair.formatting import printable

MAX_LABELS = 100  # in a column with more, the most frequent ones are kept and all others are "other"
MAX_DECIMALS = 10_000  # points of the grid proposed for a column of decimal numbers, unless outliers stretch it
MAX_STEPS = 100_000  # points of any proposed grid: outliers beyond them are clipped
BULK_QUANTILES, MIN_BULK_STEPS = (0.25, 0.75), 100  # quantiles between which a grid has this many steps at least
MAX_CELL_SHARE = 0.05  # the share of the cells that one number counts for at most there, such as a zero in most rows
MIN_STEP_VALUES = 5  # fewer different numbers may have a common step by chance
MIN_UNIQUE_CELLS = 20  # in a shorter column all cells may be different by chance
OTHER_LABEL = "other"  # the label of all rare values
EMPTY_SHARE = 0.9  # a column with this share of empty cells gets a remark
MAX_NUMBER = 1e100  # numbers beyond it are labels: squares would overflow
UNIQUE_SHARE = 0.9  # a column with this share of different texts is taken for names
MIN_TIES = 10  # pairs of equal whole numbers expected by chance; with ten times fewer, a column is an identifier
_IDENTIFIER_NAME = re.compile(r"(?:^|[\W_])(?i:id|uuid|guid|key|index|nr|no|number|ref)$|[a-z](?:Id|ID|Number|No)$")
_ZERO_PADDED = re.compile(r"0\d+")  # a postcode keeps its zeros
_UNITS = "$€£¥₹%"

Floats = npt.NDArray[np.float64]
Entry = dict[str, Any]  # an attribute of a domain file, as values of TOML


@dataclass(frozen=True)
class ExcludedColumn:
    """A column of the table that the domain leaves out."""

    column: str  # its name
    reason: str  # why it is left out


@dataclass(frozen=True)
class ColumnEntry:
    """The line of a column in a domain file: its entry, a comment, and remarks."""

    column: str
    parts: Entry
    comment: str
    remarks: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = ", ".join(f"{key} = {toml_value(value)}" for key, value in self.parts.items())
        return f"{quote(self.column)} = {{ {parts} }}  # {printable('; '.join([self.comment, *self.remarks]))}"


def infer_column(name: str, column: Cells, decimals: Sequence[str], *, keep: bool) -> ColumnEntry | ExcludedColumn:
    """Return the entry of a column; unless `keep` is set, identifiers and constants are left out."""
    words, texts, counts = _split_empty(column)
    empty = sum(words.values())
    if not texts and not (keep and empty):
        return ExcludedColumn(name, "every cell is empty")
    if len(texts) == 1 and not empty and not keep:
        return ExcludedColumn(name, f"constant: {texts[0][:40]} in every row")
    numbers = _NumberColumn.of(texts, decimals)
    forms = find_date_forms(texts) if numbers is None else []
    reason = None if keep or forms else _identifier_reason(name, len(column) - empty, texts, numbers)
    if reason is not None:
        return ExcludedColumn(name, reason)
    comment = f"{len(texts):,} different" + (f", {empty:,} empty" if empty else "")
    comment += "".join(f"; {n:,} of them say {quote(word)}: an answer?" for word, n in words.items() if word)
    remarks = [f"{empty / len(column):.0%} of the cells are empty"] if empty >= EMPTY_SHARE * len(column) else []
    if numbers is None and (huge := _find_huge(texts)) is not None:
        remarks.append(f"has numbers such as {huge}, so each number is a label: replace them, or leave them empty")
    if forms:
        parts = _date_entry(texts, counts, forms, empty, remarks)
    elif numbers is None or (len(texts) <= 2 and (empty or numbers.is_zero_one)):
        parts = _label_entry(texts, counts, empty, remarks)
    elif len(texts) == 2:
        parts = _flag_entry(numbers.low, float(numbers.values.max())) | numbers.parts(remarks)
    else:
        parts = _grid_entry(numbers.values, counts, empty) | numbers.parts(remarks)
        low, high, step = (float(parts.get(key, 1)) for key in ("low", "high", "step"))
        steps = (numbers.values - low) / step
        if np.abs(steps - np.round(steps)).max() > GRID_TOLERANCE:
            remarks.append(f"in generated records rounded to steps of {step:.12g}")
        if "outliers" in parts:
            beyond = (numbers.values < low) | (numbers.values > high)
            share = f"{counts[beyond].sum():,} of {counts.sum():,} cells"
            remarks.append(f"{share} are outside {low:.12g} to {high:.12g}; generated records stay within")
        if numbers.is_whole and MIN_UNIQUE_CELLS < len(texts) >= UNIQUE_SHARE * counts.sum():
            remarks.append("almost every cell is different: leave it out if it only numbers people")
    return ColumnEntry(name, parts, comment, remarks)


def _split_empty(column: Cells) -> tuple[dict[str, int], list[str], npt.NDArray[np.int64]]:
    """Return the counts of the words for an empty cell, and the other texts with their counts."""
    texts, counts = column.texts, column.counts
    empty = [index for index, text in enumerate(texts) if is_missing(text)]
    if not empty:
        return {}, texts, counts
    words = {texts[index]: int(counts[index]) for index in empty}
    return words, [text for text in texts if text not in words], np.delete(counts, empty)


def _find_huge(texts: Sequence[str]) -> str | None:
    """Return an infinite or too large number of a column that has nothing but numbers."""
    values = [parse_number(text) for text in texts]
    if None in values:
        return None
    return next((text for text, value in zip(texts, values, strict=True) if not abs(value or 0) < MAX_NUMBER), None)


def find_decimal_marks(columns: Sequence[Cells]) -> Sequence[str]:
    """Return the decimal marks of a table, the likelier one first where both are possible, as in 1.234."""
    certain = set()
    for column in columns:
        texts = [text for text in column.texts[:1000] if not is_missing(text)]
        if any("," in text for text in texts) or ("," in certain and any("." in text for text in texts)):
            marks = [mark for mark in DECIMAL_MARKS if all(parse_number(text, mark) is not None for text in texts)]
            certain |= {*marks} if len(marks) == 1 else set()
    return DECIMAL_MARKS[::-1] if certain == {","} else DECIMAL_MARKS


@dataclass(frozen=True)
class _NumberColumn:
    """A column whose texts are all numbers, and how they are written."""

    values: Floats
    decimal: str
    example: str | None  # a text that is not a plain number

    @classmethod
    def of(cls, texts: Sequence[str], decimals: Sequence[str]) -> _NumberColumn | None:
        """Return the numbers of a column; None where a text is no number, or has leading zeros as a postcode has."""
        if any(_ZERO_PADDED.fullmatch(text) for text in texts if text.startswith("0")):
            return None
        if decimals[0] == ".":
            with suppress(ValueError):
                return cls._from_values(np.array([plain_float(text) for text in texts]), ".", None)
        units = {sign for sign in _UNITS if any(sign in text for text in texts)}
        if len(units) > 1 or ("%" in units and not all("%" in text for text in texts)):
            return None
        for decimal in decimals:
            numbers = [parse_number(text, decimal) for text in texts]
            if None not in numbers:
                examples = (text for text, value in zip(texts, numbers, strict=True) if not _is_plain(text, value))
                return cls._from_values(np.array(numbers, dtype=np.float64), decimal, next(examples, None))
        return None

    @classmethod
    def _from_values(cls, values: Floats, decimal: str, example: str | None) -> _NumberColumn | None:
        sizes = np.abs(values[values != 0])
        sound = bool(((sizes > 1 / MAX_NUMBER) & (sizes < MAX_NUMBER)).all())
        return cls(values, decimal, example) if sound else None

    @property
    def low(self) -> float:
        return float(self.values.min())

    @property
    def is_whole(self) -> bool:
        return bool((self.values == np.round(self.values)).all())

    @property
    def is_zero_one(self) -> bool:
        """Whether the two values are 0 and 1, or one number spelled in two ways."""
        return sorted({*self.values.tolist()}) in ([0, 1], [self.low]) and len(self.values) == 2

    def parts(self, remarks: list[str]) -> Entry:
        """Return the entry of the decimal mark where it is needed, and add a remark on how numbers were read."""
        if self.example is None:
            return {}
        remarks.append(f"{self.example[:40]} is read as {parse_number(self.example, self.decimal):.12g}")
        return {"decimal": self.decimal} if self.decimal != "." else {}


def _is_plain(text: str, value: float | None) -> bool:
    try:
        return plain_float(text) == value
    except ValueError:
        return False


def _identifier_reason(name: str, rows: int, texts: Sequence[str], numbers: _NumberColumn | None) -> str | None:
    """Return why a column is taken for an identifier or free text; None if it may be a measurement."""
    if re.fullmatch(r"__index_level_\d+__", name):
        return "the index of a pandas table"
    if rows <= MIN_UNIQUE_CELLS or len(texts) < UNIQUE_SHARE * rows:
        is_text = numbers is None and len(texts) > max(MAX_LABELS, rows / 2)
        return f"names or free text: {len(texts):,} different texts" if is_text else None
    if numbers is None and (huge := _find_huge(texts)) is not None:
        return f"has numbers such as {huge}: replace them, or leave them empty"
    description = f"{'every cell is' if len(texts) == rows else 'almost all cells are'} different"
    if numbers is None:
        return f"names or free text: {description}"
    distinct_numbers = np.unique(numbers.values)
    # The expected number of equal pairs if the numbers were uniform between the smallest and the largest.
    expected = rows**2 / 2 / (float(distinct_numbers[-1] - distinct_numbers[0]) + 1)
    unlikely = expected >= MIN_TIES and rows - len(texts) <= expected / MIN_TIES
    steps = np.diff(numbers.values)  # from row to row, if every cell is different
    rising = len(texts) == rows and bool((steps > 0).all()) and float(steps.min()) == 1
    if numbers.is_whole and (unlikely or rising or _IDENTIFIER_NAME.search(name)):
        return f"an identifier: {description}"
    return None


def _date_entry(
    texts: Sequence[str], counts: npt.NDArray[np.int64], forms: Sequence[str], empty: int, remarks: list[str]
) -> Entry:
    form = forms[0]
    numbers = np.array([parse_days(text, form) for text in texts], dtype=np.float64)
    entry = _grid_entry(numbers, counts, empty)
    entry["kind"] = "ordinal"
    entry |= {key: date.fromisoformat(format_day(entry[key], ISO)) for key in ("low", "high")}
    entry |= {"missing": format_day(entry["missing"], form)} if empty else {}
    remarks.append("dates, read as days since 1970-01-01")
    if len(forms) > 1:
        remarks.append(f"day and month may be the other way round: date = {quote(forms[1])}")
    return entry | {"date": form}


def _label_entry(texts: Sequence[str], counts: npt.NDArray[np.int64], empty: int, remarks: list[str]) -> Entry:
    entry, frequent, pooled = Entry(), list(texts), list[str]()
    if len(texts) > MAX_LABELS:
        by_count = np.argsort(-counts, kind="stable")
        frequent, pooled = ([texts[i] for i in part] for part in (by_count[:MAX_LABELS], by_count[MAX_LABELS:]))
        share = float(counts[by_count[:MAX_LABELS]].sum() / counts.sum())
        remarks.append(
            f"the {MAX_LABELS} most frequent ({share:.0%} of the cells) are kept, the others are '{OTHER_LABEL}'"
        )
        entry["other"] = OTHER_LABEL
    further = [MISSING] if empty and MISSING not in frequent else []
    if pooled and OTHER_LABEL not in frequent:
        further.append(OTHER_LABEL)
        if OTHER_LABEL not in pooled:  # the label that a model gets for it
            entry["extra"] = {pooled[0]: len(frequent) + len(further) - 1}
    labels = sorted(frequent, key=size_sort_key) + further
    kind = "flag" if len(labels) == 2 else "nominal"
    entry = {"kind": kind, "values": labels} | entry
    return entry | ({"missing": MISSING} if empty else {})


def _flag_entry(low: float, high: float) -> Entry:
    """Return a flag that keeps the numbers of the table as inputs."""
    step = {} if high - low == 1 else {"step": _shorten_number(high - low)}
    return {"kind": "flag", "low": _shorten_number(low), "high": _shorten_number(high)} | step


def _shorten_number(number: float) -> float:
    return int(number) if number.is_integer() else number


def _round(number: float, digits: int = 12) -> float:
    text = f"{number:.{digits}g}"
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _grid_entry(numbers: Floats, counts: npt.NDArray[np.int64], empty: int) -> Entry:
    is_whole = bool((numbers == np.round(numbers)).all())
    low, high = float(numbers.min()), float(numbers.max())
    step = _find_common_step(numbers) if is_whole else 0.0
    exact = is_whole and (high - low) / step < MAX_STEPS
    clipped = False
    if not exact:
        step = _choose_step(numbers, counts, step)
        low, high = _find_reach(numbers, counts, step)
        low, high = np.floor(low / step) * step, np.ceil(high / step) * step
        clipped = bool(low > numbers.min() or high < numbers.max())
    mean = float(np.average(numbers, weights=counts))
    spread = float(np.sqrt(np.average((numbers - mean) ** 2, weights=counts)))
    entry: Entry = {"kind": "ordinal" if exact else "continuous", "low": _round(low), "high": _round(high)}
    if step != 1:
        entry["step"] = _round(step)
    if clipped:
        entry["outliers"] = "clip"
    entry |= {"center": _round(mean, 4), "scale": _round(spread or 1.0, 4)}
    if empty:
        by_size = np.argsort(numbers)
        middle = np.searchsorted(np.cumsum(counts[by_size]), counts.sum() // 2, side="right")
        entry["missing"] = _round(float(numbers[by_size[middle]]))
    return entry


def _choose_step(numbers: Floats, counts: npt.NDArray[np.int64], min_step: float) -> float:
    """Return the step of a grid for numbers that are too many to have one code each; it is at least `min_step`.

    It is the finest power of ten that keeps the whole range within its number of points. Where outliers stretch the
    range so that the bulk of the data would have fewer than MIN_BULK_STEPS steps, the step follows the bulk alone.
    """
    unit, max_points = (min_step, MAX_STEPS) if min_step else (1.0, MAX_DECIMALS)
    step = unit * 10.0 ** np.ceil(np.log10(float(np.ptp(numbers)) / unit / max_points))
    first, last = _find_bulk(numbers, counts)
    if (last - first) / step < MIN_BULK_STEPS:
        step = unit * 10.0 ** np.floor(np.log10((last - first) / unit / MIN_BULK_STEPS))
    return max(float(step), min_step)


def _find_bulk(numbers: Floats, counts: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return the numbers between which the bulk of a column lies; a single frequent number counts little."""
    by_size = np.argsort(numbers)
    weights = np.minimum(counts, MAX_CELL_SHARE * counts.sum())[by_size]
    index = np.searchsorted(np.cumsum(weights), np.array(BULK_QUANTILES) * weights.sum())
    first, last = numbers[by_size][index].tolist()
    return (first, last) if last > first else (float(numbers.min()), float(numbers.max()))


def _find_reach(numbers: Floats, counts: npt.NDArray[np.int64], step: float) -> tuple[float, float]:
    """Return the ends of a grid with this step: those of the numbers, or as far around the bulk as MAX_STEPS allow."""
    low, high = float(numbers.min()), float(numbers.max())
    first, last = _find_bulk(numbers, counts)
    spare = MAX_STEPS * step - (last - first)
    if high - low > MAX_STEPS * step:
        below, above = min(first - low, spare / 2), min(high - last, spare / 2)
        # Points that one side does not need go to the other.
        low, high = max(low, first - (spare - above)), min(high, last + (spare - below))
    return low, high


def _find_common_step(numbers: Floats) -> float:
    """Return the largest step of a grid on which whole numbers lie: 12 for months that are all whole years.

    With fewer than `MIN_STEP_VALUES` numbers it is 1, since few may have a common step by chance.
    """
    numbers = np.unique(numbers)  # 1 and 1.0 are one
    if len(numbers) < MIN_STEP_VALUES or float(np.abs(numbers).max()) > 2**53:
        return 1.0
    return float(np.gcd.reduce((numbers - numbers[0]).astype(np.int64)))
