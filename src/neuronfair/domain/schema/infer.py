"""A first draft of a domain, read off a user's table and written as TOML to be edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuronfair.domain.attribute import KEEP, MISSING, number
from neuronfair.domain.schema.column_types import LeftOut, decimal_marks, described, is_missing, order, quotes
from neuronfair.domain.schema.rule_mining import CLASSES, PEOPLE, TakeRules, check_take, propose
from neuronfair.domain.schema.toml import favourable_line, parse_domain, quoted
from neuronfair.domain.tables.cells import Cells
from neuronfair.domain.tables.files import Sheet, read_sheet
from neuronfair.errors import DataError, DomainError, did_you_mean
from neuronfair.formatting import listed, plural, visible

MAX_CLASSES = 50  # a target of more different numbers is a quantity
SMALL, SHARE = 30, 0.1  # records, and share of all, below both of which a demographic group is too small for twins

_HEAD = """\
# A first draft, read off {file} ({rows:,} rows). Please check every line:
# - kind: ordinal (order matters, whole steps), nominal (no order), flag (two values), continuous (a grid of numbers)
# - low / high: widen them where the table happens not to reach the real limits
# - step: a number between two steps is refused, so make it smaller where there are such; decimals are rounded to it in
#   generated records, and the metrics of the data set use the cells themselves
# - bands = [25, 40, 60] for a sensitive number, such as age: people are compared with other bands
# - encode: raw, scaled (with center and scale), onehot, or none: no model is given it, as where the law forbids it
# - for counterparts (what if this person were of another group?): fixed = true for what no group changes, such as age;
#   legitimate = true for what may differ between groups and may count, say why in a comment; causes = ["age", …] for
#   what an attribute depends on. Without causes anywhere, a graph is learned from the table
# - rules at the end: combinations that no real person has; nothing is tested that breaks one
{remarks}name = {name}
sensitive = {sensitive}
{target}[attributes]
"""

_TAIL = """
# Further rules, if there are any. Examples:
# [[rules]]
# name = "a husband or wife is married"
# if = { relationship = ["Husband", "Wife"] }
# then = { marital_status = ["Married"] }
# [[rules]]
# name = "capital gain and capital loss are not both positive"
# forbid = { capital_gain = { min = 1 }, capital_loss = { min = 1 } }
"""


@dataclass(frozen=True)
class Draft:
    """The text of a domain file, the columns that are not in it and why, and what else the user should know."""

    text: str
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()


def infer_domain(
    path: str | Path | Sheet | Any,
    *,
    sensitive: Sequence[str],
    target: str | None = None,
    columns: Sequence[str] | None = None,
    regression: bool = False,
    keep_missing: bool = False,
    take_rules: TakeRules = "none",
) -> str:
    """Return the text of a commented TOML file that describes a table: CSV, Parquet, Feather, or a DataFrame.

    Pass it to `parse_domain`, or write it to a file, correct it and use `read_domain`. `columns` are those that the
    model reads: they are never left out, and all others but the sensitive ones are. Without a target the rows have no
    labels. With `regression` the target is a quantity and has no classes, as it is anyway with more than 50 different
    numbers. With `keep_missing` an empty cell among numbers is a value of its own, for models that read it as such, and
    not the median. Rules that the table suggests are comments at the end; `take_rules` makes rules of them: "free" of
    those that name no sensitive attribute, or "all".
    """
    how: dict[str, Any] = {"regression": regression, "keep_missing": keep_missing, "take_rules": take_rules}
    return draft_domain(path, sensitive=sensitive, target=target, columns=columns, **how).text


def draft_domain(
    path: str | Path | Sheet | Any,
    *,
    sensitive: Sequence[str],
    target: str | None = None,
    columns: Sequence[str] | None = None,
    regression: bool = False,
    keep_missing: bool = False,
    take_rules: TakeRules = "none",
    outside: Sequence[str] = (),
) -> Draft:
    """Return what `infer_domain` does, with what was left out and remarks.

    The model is not given the columns that are `outside`, nor those that a file beside the table has added.
    """
    check_take(take_rules)
    sheet = read_sheet(path)
    for name in (*sensitive, *([target] if target is not None else ())):
        if name not in sheet.columns:
            raise DataError(f"{sheet.path}: no column '{name}'. {did_you_mean(name, sheet.columns)}")
    if target in sensitive:
        raise DomainError(f"{sheet.path}: '{target}' cannot be both the target and sensitive")
    sheet.check_clear([*sensitive, *([target] if target is not None else ())])
    every = sheet.columns
    aim = "" if target is None else f"target = {_target(target, every[target], sheet, regression)}"
    for name in sensitive:
        if len(every[name].texts) == 1:
            raise DataError(
                f"{sheet.path}: the sensitive attribute '{name}' is {every[name].texts[0]!r} in every row. To compare "
                "people, a second value is needed: use more rows, or write the domain file by hand"
            )
    kept = {*sensitive, *(columns or ())}
    key, outside = (None, outside) if sheet.beside is None else (sheet.beside.key, (*outside, *sheet.beside.names))
    decimals = decimal_marks(list(every.values()))
    left_out, remarks, lines = list[LeftOut](), dict[str, list[str]](), list[str]()
    for name, cells in every.items():
        if name == target:
            continue
        found = _known(name, sheet, every) if name not in kept else None
        if columns is not None and name not in kept:
            found = LeftOut(name, "the model does not read it")
        if name == key and name not in kept:
            found = LeftOut(name, "the key")
        entry = found or described(name, cells, decimals, keep=name in kept)
        if isinstance(entry, LeftOut):
            left_out.append(entry)
            lines.append(f"# {quoted(name)}: left out, {visible(entry.reason)}")
        else:
            if keep_missing and "missing" in entry.parts and "values" not in entry.parts:
                entry.parts["missing"] = quoted(KEEP)
            if name in outside:
                entry.parts["encode"] = quoted("none")
            for remark in entry.remarks:
                remarks.setdefault(remark, []).append(name)
            lines.append(str(entry))
    head = _HEAD.format(
        file=visible(sheet.path.name),
        rows=len(sheet.lines),
        remarks="".join(f"# - {visible(remark)}\n" for remark in sheet.remarks),
        name=quoted(sheet.path.stem),
        sensitive=quotes(sensitive),
        target=aim,
    )
    said = [f"{', '.join(names)}: {remark}" for remark, names in remarks.items()]
    text = head + "\n".join(lines) + "\n"
    rules, proposed = _rules(text, every, take_rules)
    few, small = _small_groups(text, every)
    told = (*sheet.remarks, *said, *_copies(text, every), *small, *proposed)
    return Draft(text + few + rules + _TAIL, tuple(left_out), told)


def _copies(text: str, every: Mapping[str, Cells]) -> list[str]:
    """Return which columns are others in other words, where no rule ties them: of a sensitive one, or of many values.

    Equal cells of one are equal in the other, in every row.
    """
    try:
        domain = parse_domain(text)
    except DomainError:  # which is for the user to correct first
        return []
    first, remarks = dict[bytes, str](), list[str]()
    for name in (*domain.sensitive, *(name for name in domain.names if name not in domain.sensitive)):
        cells = every[name]
        if len(cells) < PEOPLE or not 2 <= len(cells.texts) <= len(cells) / 2:
            continue  # two columns of different cells throughout say the same of nothing
        # Texts are numbered as they come, so that copies have the same numbers.
        known = first.setdefault(cells.numbers.tobytes(), name)
        if known in domain.sensitive and name != known:
            remarks.append(
                f"{name}: says the same as {known}, which is sensitive. A twin keeps it: leave it out, or name both as "
                "sensitive"
            )
        elif name != known and len(cells.texts) > CLASSES:
            remarks.append(f"{name}: says the same as {known}; no rules tie their many values. Leave one of them out")
    return remarks


def _small_groups(text: str, every: Mapping[str, Cells]) -> tuple[str, list[str]]:
    """Return rules that leave small demographic groups, and records of unknown group, out of the twins, and remarks.

    At least two groups of an attribute stay, the largest.
    """
    try:
        domain = parse_domain(text)
    except DomainError:  # which is for the user to correct first
        return "", []
    lines, remarks = list[str](), list[str]()
    for attribute in (domain.attributes[column] for column in domain.sensitive_columns):
        if not attribute.values:
            continue
        counts = np.bincount(attribute.codes(every[attribute.name]), minlength=attribute.size)
        largest = np.argsort(-counts, kind="stable")
        small = (counts < SMALL) & (counts < SHARE * counts.sum())
        small |= np.array([label == MISSING == attribute.missing for label in attribute.values])
        known = [code for code in largest if not small[code]]
        keep = {*known, *[code for code in largest if code not in known][: max(0, 2 - len(known))]}
        out = [code for code in range(attribute.size) if code not in keep]
        for code in out:
            label, count = attribute.values[code], plural(int(counts[code]), "record")
            name = f"too few to compare with: {attribute.name} {label}, {count}"
            forbid = f"forbid = {{ {quoted(attribute.name)} = {quotes([label])} }}"
            lines += ["[[rules]]", f"name = {quoted(name)}", forbid]
        if out:
            shown = listed([f"{attribute.values[code]} ({plural(int(counts[code]), 'record')})" for code in out])
            remarks.append(f"{attribute.name}: {shown} left out of the twins; delete the rule to include it")
    head = "\n# Groups that are too small to compare people with; delete a rule to include one.\n"
    return head + "\n".join(lines) + "\n" if lines else "", remarks


def _rules(text: str, every: Mapping[str, Cells], take: TakeRules) -> tuple[str, list[str]]:
    """Return the rules that a table suggests for the domain of a text, to be added to it, and a remark on them."""
    try:
        domain = parse_domain(text)
    except DomainError:  # which is for the user to correct first
        return "", []
    found = propose(domain, every)
    return found.text(take, domain.attributes), found.remarks(take)


def _known(name: str, sheet: Sheet, every: Mapping[str, Cells]) -> LeftOut | None:
    """Return why a column is left out that is in the table once more."""
    copied = sheet.copies.get(name)
    same = copied is not None and every[copied] == every[name]
    return LeftOut(name, f"a copy of '{copied}'") if same else None


def _target(name: str, cells: Cells, sheet: Sheet, regression: bool) -> str:
    """Return the entry of the target: its column and, unless it is a quantity, its classes and which is hoped for."""
    for place, text in enumerate(cells.texts):
        wrong = "is empty. Remove such rows or fill the cell" if is_missing(text) else None
        if wrong is None and regression and number(text) is None and number(text, ",") is None:
            wrong = f"is {text!r}; a number is expected"
        if wrong is not None:
            raise DataError(f"{sheet.path}: {sheet.where(cells.first(place))}: the target '{name}' {wrong}")
    classes = sorted(cells.texts, key=order)
    if regression or (len(classes) > MAX_CLASSES and all(number(text) is not None for text in classes)):
        return f"{{ column = {quoted(name)} }}\n"
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise DataError(
            f"{sheet.path}: the target '{name}' has {plural(len(classes), 'value')}; 2 to {MAX_CLASSES} classes are "
            "expected, or numbers"
        )
    return f"{{ column = {quoted(name)}, classes = {quotes(classes)} }}\n{favourable_line(name, classes)}\n"
