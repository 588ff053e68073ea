"""A first draft of a domain, read off a user's table and written as TOML to be edited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.attribute import KEEP, MISSING, MISSING_CELLS
from neuronfair.domain.favourable import favourable_line
from neuronfair.domain.files import Sheet, read_sheet
from neuronfair.domain.toml import quoted
from neuronfair.errors import DataError, DomainError, did_you_mean
from neuronfair.shown import visible

MAX_LABELS = 500  # a text column with more different cells is taken for names or free text
MAX_GRID = 10_000  # points of the grid proposed for a column of decimal numbers
FEW = 5  # fewer different numbers may have a common step by chance
MAX_CLASSES = 50  # a target of more different numbers is a quantity

_HEAD = """\
# A first draft, read off {file} ({rows:,} rows). Please check every line:
# - kind: ordinal (order matters, whole steps), nominal (no order), flag (two values), continuous (a grid of numbers)
# - low / high: widen them where the table happens not to reach the real limits
# - step: a number between two steps is refused, so make it smaller where there are such
# - rules at the end: combinations that no real person has; nothing is tested that breaks one
name = {name}
sensitive = {sensitive}
target = {{ column = {target}{classes} }}
{favourable}

[attributes]
"""

_TAIL = """
# Rules, if there are any. Examples:
# [[rules]]
# name = "a husband or wife is married"
# if = { relationship = ["Husband", "Wife"] }
# then = { marital_status = ["Married"] }
# [[rules]]
# name = "capital gain and capital loss are not both positive"
# forbid = { capital_gain = { min = 1 }, capital_loss = { min = 1 } }
"""


def infer_domain(
    path: str | Path | Sheet | Any,
    *,
    sensitive: Sequence[str],
    target: str,
    columns: Sequence[str] | None = None,
    regression: bool = False,
    keep_missing: bool = False,
) -> str:
    """Return the text of a commented TOML file that describes a table: a CSV or Parquet file, or a DataFrame.

    Pass it to `parse_domain`, or write it to a file, correct it and use `read_domain`. `columns` are those that a model
    reads: none of them is left out, and all others but the sensitive ones are. With `regression` the target is
    a quantity and has no classes, as it is anyway with more than 50 different numbers. With `keep_missing` an empty
    cell among numbers is a value of its own, for models that read it as such, and not the median.
    """
    sheet = read_sheet(path)
    needed = set(sheet.columns if columns is None else (*columns, *sensitive, target))
    path, read = sheet.path, columns is not None
    table = {name: cells for name, cells in sheet.columns.items() if name in needed}
    for name in (*sensitive, target):
        if name not in table:
            raise DataError(f"{path}: no column '{name}'. {did_you_mean(name, sheet.columns)}")
    if target in sensitive:
        raise DomainError(f"{path}: '{target}' cannot be both the target and sensitive")
    classes = sorted(set(table[target]) - {c for c in table[target] if _is_missing(c)}, key=_order)
    if any(_is_missing(cell) for cell in table[target]):
        where = sheet.where(next(i for i, cell in enumerate(table[target]) if _is_missing(cell)))
        raise DataError(f"{path}: {where}: the target '{target}' is empty. Remove such rows or fill the cell")
    if _numbers(dict.fromkeys(classes, 1)) is not None and (regression or len(classes) > MAX_CLASSES):
        classes = []
    elif not 2 <= len(classes) <= MAX_CLASSES:
        raise DataError(
            f"{path}: the target '{target}' has {len(classes)} different values; 2 to {MAX_CLASSES} classes are "
            "expected, or numbers"
        )
    for name in sensitive:
        if len(set(table[name])) == 1:
            raise DataError(
                f"{path}: the sensitive attribute '{name}' is {table[name][0]!r} in every row. To compare people, a "
                "second value is needed: use more rows, or write the domain file by hand"
            )
    lines = [
        _line(name, cells, read or name in sensitive, keep_missing) for name, cells in table.items() if name != target
    ]
    head = _HEAD.format(
        file=visible(path.name),
        rows=len(table[target]),
        name=quoted(path.stem),
        sensitive=_quotes(sensitive),
        target=quoted(target),
        classes=f", classes = {_quotes(classes)}" if classes else "",
        favourable=favourable_line(target, classes) if classes else "",
    )
    return head + "\n".join(lines) + "\n" + _TAIL


def _line(name: str, cells: Sequence[str], keep: bool, keep_missing: bool) -> str:
    present = [cell for cell in cells if not _is_missing(cell)]
    counts = Counter(present)
    empty = len(cells) - len(present)
    comment = f"{len(counts):,} different" + (f", {empty:,} empty" if empty else "")
    words = Counter(cell for cell in cells if cell and _is_missing(cell))
    comment += "".join(f"; {n:,} of them say {quoted(word)}: an answer?" for word, n in words.items())
    if not counts:
        return f"# {quoted(name)}: left out, every cell is empty"
    numbers = _numbers(counts)
    if numbers is None and all(map(_is_date, counts)):
        comment += "; dates? As labels they have no order: turn them into numbers (days, years) first"
    unique = len(counts) == len(cells) > 20
    if not keep and unique and (numbers is None or bool((np.diff(np.unique(numbers)) == 1).all())):
        return f"# {quoted(name)}: left out, every cell is different: a name or a running number?"
    two = sorted({*numbers.tolist()}) if numbers is not None and not empty else []
    entry: dict[str, str] | None
    if len(two) == 2 == len(counts) and two != [0, 1]:  # as labels they would become 0 and 1
        entry = _two(*two)
    elif numbers is None or len(counts) == 2 or (len(counts) == 1 and not keep):
        entry = _labels(counts, empty, keep)
    else:
        entry = _grid(numbers, np.asarray(list(counts.values())), empty)
        if empty and keep_missing:
            entry["missing"] = quoted(KEEP)
    if entry is None:
        return f"# {quoted(name)}: left out, {len(counts):,} different texts: names or free text?"
    parts = ", ".join(f"{key} = {value}" for key, value in entry.items())
    return f"{quoted(name)} = {{ {parts} }}  # {comment}"


def _labels(counts: Mapping[str, int], empty: int, keep: bool) -> dict[str, str] | None:
    if len(counts) > MAX_LABELS and not keep:
        return None
    labels = sorted(counts, key=_order) + ([MISSING] if empty else [])
    kind = "flag" if len(labels) == 2 else "nominal"
    return {"kind": quoted(kind), "values": _quotes(labels)} | ({"missing": quoted(MISSING)} if empty else {})


def _two(low: float, high: float) -> dict[str, str]:
    """Return a flag that the network sees as the numbers of the table."""
    step = {} if high - low == 1 else {"step": _exactly(high - low)}
    return {"kind": quoted("flag"), "low": _exactly(low), "high": _exactly(high)} | step


def _exactly(number: float) -> str:
    return str(int(number) if number.is_integer() else number)


def _grid(numbers: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], empty: int) -> dict[str, str]:
    low, high = float(numbers.min()), float(numbers.max())
    whole = bool((numbers == np.round(numbers)).all())
    step = _common_step(numbers) if whole else 1.0
    if not whole:
        # The finest power of ten that keeps the grid within its size.
        step = 10.0 ** np.ceil(np.log10((high - low) / MAX_GRID))
        low, high = np.floor(low / step) * step, np.ceil(high / step) * step
    mean = float(np.average(numbers, weights=counts))
    spread = float(np.sqrt(np.average((numbers - mean) ** 2, weights=counts)))
    entry = {"kind": quoted("ordinal" if whole else "continuous"), "low": f"{low:.12g}", "high": f"{high:.12g}"}
    if step != 1:
        entry["step"] = f"{step:.12g}"
    entry |= {"center": f"{mean:.4g}", "scale": f"{spread or 1.0:.4g}"}
    if empty:
        middle = np.repeat(numbers, counts)
        entry["missing"] = f"{float(np.sort(middle)[len(middle) // 2]):.12g}"
    return entry


def _common_step(numbers: npt.NDArray[np.float64]) -> float:
    """Return the largest step of a grid on which whole numbers lie: 12 for months that are all whole years.

    Few numbers may have one by chance, so for fewer than `FEW` it is 1.
    """
    numbers = np.unique(numbers)  # 1 and 1.0 are one
    if len(numbers) < FEW or float(np.abs(numbers).max()) > 2**53:
        return 1.0
    return float(np.gcd.reduce((numbers - numbers[0]).astype(np.int64)))


def _is_date(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _numbers(counts: Mapping[str, int]) -> npt.NDArray[np.float64] | None:
    try:
        numbers = np.asarray([float(cell) for cell in counts])
    except ValueError:
        return None
    sizes = np.abs(numbers[numbers != 0])
    # Beyond these nothing is counted or measured, and squares would overflow: such cells are labels.
    return numbers if bool(((sizes > 1e-100) & (sizes < 1e100)).all()) else None


def _order(text: str) -> tuple[bool, float, str]:
    """Sort numbers by value before all other texts."""
    try:
        return (False, float(text), text)
    except ValueError:
        return (True, 0.0, text)


def _is_missing(cell: str) -> bool:
    return cell.casefold() in MISSING_CELLS


def _quotes(texts: Sequence[str]) -> str:
    return "[" + ", ".join(quoted(t) for t in texts) + "]"
