"""A first draft of a domain, read off a user's table and written as TOML to be edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neuronfair.domain.attribute import KEEP, MISSING, number
from neuronfair.domain.rules import Rule
from neuronfair.domain.schema.column_types import ColumnEntry, LeftOut, decimal_marks, described, is_missing, order
from neuronfair.domain.schema.rule_mining import CLASSES, MIN_RECORDS, TakeRules, check_take, propose, rule_lines
from neuronfair.domain.schema.toml import domain_of, favourable_line, quoted, toml_value
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.cells import Cells
from neuronfair.domain.tables.files import Sheet, read_sheet
from neuronfair.errors import DataError, DomainError, did_you_mean
from neuronfair.formatting import listed, plural, visible

MAX_CLASSES = 50  # a target of more different numbers is a quantity
# Below both, a demographic group is too small for twins.
SMALL_GROUP_RECORDS, SMALL_GROUP_SHARE = 30, 0.1

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

_SMALL = "\n# Groups that are too small to compare people with; delete a rule to include one."

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
    """The domain that was read off a table, the columns that are not in it and why, and what else one should know."""

    domain: TableDomain
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The domain as a commented TOML file."""
        return self.domain.draft


def infer_domain(
    path: str | Path | Sheet | Any,
    *,
    sensitive: Sequence[str],
    target: str | None = None,
    columns: Sequence[str] | None = None,
    regression: bool = False,
    keep_missing: bool = False,
    take_rules: TakeRules = "none",
) -> TableDomain:
    """Return the domain of a table: CSV, Parquet, Feather, or a DataFrame.

    Its `to_toml()` is a commented file to be corrected and read with `read_domain`. `columns` are those that the model
    reads: they are never left out, and all others but the sensitive ones are. Without a target the rows have no
    labels. With `regression` the target is a quantity and has no classes, as it is anyway with more than 50 different
    numbers. With `keep_missing` an empty cell among numbers is a value of its own, for models that read it as such, and
    not the median. Rules that the table suggests are comments at the end; `take_rules` makes rules of them: "free" of
    those that name no sensitive attribute, or "all".
    """
    how: dict[str, Any] = {"regression": regression, "keep_missing": keep_missing, "take_rules": take_rules}
    return draft_domain(path, sensitive=sensitive, target=target, columns=columns, **how).domain


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

    The columns that are `outside`, and those that a file next to the table has added, are no inputs of the model.
    """
    check_take(take_rules)
    sheet = read_sheet(path)
    _check_columns(sheet, sensitive, target)
    aim = None if target is None else _target(target, sheet, regression)
    entries = _entries(sheet, sensitive, target, columns)
    left_out = tuple(one for one in entries if isinstance(one, LeftOut))
    known = [one for one in entries if isinstance(one, ColumnEntry)]
    added = () if sheet.beside is None else sheet.beside.names
    remarks = dict[str, list[str]]()
    for entry in known:
        if keep_missing and "missing" in entry.parts and "values" not in entry.parts:
            entry.parts["missing"] = KEEP
        if entry.column in (*outside, *added):
            entry.parts["encode"] = "none"
        for remark in entry.remarks:
            remarks.setdefault(remark, []).append(entry.column)
    described_by = {"attributes": {entry.column: entry.parts for entry in known}, "sensitive": list(sensitive)}
    domain = domain_of({"name": sheet.path.stem, **described_by} | ({} if aim is None else {"target": aim}))
    small, small_remarks = _small_groups(domain, sheet.columns)
    proposals = propose(domain, sheet.columns)
    head = _HEAD.format(
        file=visible(sheet.path.name),
        rows=len(sheet.lines),
        remarks="".join(f"# - {visible(remark)}\n" for remark in sheet.remarks),
        name=quoted(domain.name),
        sensitive=toml_value(sensitive),
        target="" if aim is None else _target_lines(aim),
    )
    lines = [
        f"# {quoted(one.column)}: left out, {visible(one.reason)}" if isinstance(one, LeftOut) else str(one)
        for one in entries
    ]
    groups = [line for rule in small for line in rule_lines(rule, {a.name: a for a in domain.attributes})]
    few = "\n".join([_SMALL, *groups, ""]) if groups else ""
    text = head + "\n".join(lines) + "\n" + few + proposals.text(take_rules, domain.attributes) + _TAIL
    told = (
        *sheet.remarks,
        *(f"{', '.join(names)}: {remark}" for remark, names in remarks.items()),
        *_copies(domain, sheet.columns),
        *small_remarks,
        *proposals.remarks(take_rules),
    )
    domain = replace(domain, rules=(*small, *proposals.rules(take_rules)), draft=text)
    return Draft(domain, left_out, told)


def _check_columns(sheet: Sheet, sensitive: Sequence[str], target: str | None) -> None:
    """Refuse sensitive attributes and a target that are not there, are one and the same, or say nothing."""
    used = [*sensitive, *([target] if target is not None else ())]
    for name in used:
        if name not in sheet.columns:
            raise DataError(f"{sheet.path}: no column '{name}'. {did_you_mean(name, sheet.columns)}")
    if target in sensitive:
        raise DomainError(f"{sheet.path}: '{target}' cannot be both the target and sensitive")
    sheet.check_clear(used)


def _check_groups(sheet: Sheet, sensitive: Sequence[str]) -> None:
    for name in sensitive:
        texts = sheet.columns[name].texts
        if len(texts) == 1:
            raise DataError(
                f"{sheet.path}: the sensitive attribute '{name}' is {texts[0]!r} in every row. To compare people, a "
                "second value is needed: use more rows, or write the domain file by hand"
            )


def _entries(
    sheet: Sheet, sensitive: Sequence[str], target: str | None, columns: Sequence[str] | None
) -> list[ColumnEntry | LeftOut]:
    """Return what each column is, or why it is left out; those that the model reads, and sensitive ones, are kept."""
    _check_groups(sheet, sensitive)
    kept, key = {*sensitive, *(columns or ())}, None if sheet.beside is None else sheet.beside.key
    decimals = decimal_marks(list(sheet.columns.values()))
    entries = list[ColumnEntry | LeftOut]()
    for name, cells in sheet.columns.items():
        copied, reason = sheet.copies.get(name), None
        if name not in kept and name == key:
            reason = "the key"
        elif name not in kept and columns is not None:
            reason = "the model does not read it"
        elif name not in kept and copied is not None and sheet.columns[copied] == cells:
            reason = f"a copy of '{copied}'"
        if name != target:
            entries.append(LeftOut(name, reason) if reason else described(name, cells, decimals, keep=name in kept))
    return entries


def _copies(domain: TableDomain, every: Mapping[str, Cells]) -> list[str]:
    """Return which columns are others in other words, where no rule ties them: of a sensitive one, or of many values.

    Equal cells of one are equal in the other, in every row.
    """
    first, remarks = dict[bytes, str](), list[str]()
    for name in (*domain.sensitive, *(name for name in domain.names if name not in domain.sensitive)):
        cells = every[name]
        if len(cells) < MIN_RECORDS or not 2 <= len(cells.texts) <= len(cells) / 2:
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


def _small_groups(domain: TableDomain, every: Mapping[str, Cells]) -> tuple[list[Rule], list[str]]:
    """Return rules that leave small demographic groups, and records of unknown group, out of the twins, and remarks.

    At least two groups of an attribute stay, the largest.
    """
    rules, remarks = list[Rule](), list[str]()
    for attribute in (domain.attributes[column] for column in domain.sensitive_columns):
        if not attribute.values:
            continue
        counts = np.bincount(attribute.codes(every[attribute.name]), minlength=attribute.size)
        largest = np.argsort(-counts, kind="stable")
        small = (counts < SMALL_GROUP_RECORDS) & (counts < SMALL_GROUP_SHARE * counts.sum())
        small |= np.array([label == MISSING == attribute.missing for label in attribute.values])
        known = [code for code in largest if not small[code]]
        keep = {*known, *[code for code in largest if code not in known][: max(0, 2 - len(known))]}
        out = {attribute.values[c]: plural(int(counts[c]), "record") for c in range(attribute.size) if c not in keep}
        for label, count in out.items():
            name = f"too few to compare with: {attribute.name} {label}, {count}"
            rules.append(Rule(name, {attribute.name: (label,)}, {}))
        if out:
            shown = listed([f"{label} ({count})" for label, count in out.items()])
            remarks.append(f"{attribute.name}: {shown} left out of the twins; delete the rule to include it")
    return rules, remarks


def _target(name: str, sheet: Sheet, regression: bool) -> dict[str, Any]:
    """Return the entry of the target: its column and, unless it is a quantity, its classes."""
    cells = sheet.columns[name]
    for place, text in enumerate(cells.texts):
        wrong = "is empty. Remove such rows or fill the cell" if is_missing(text) else None
        if wrong is None and regression and number(text) is None and number(text, ",") is None:
            wrong = f"is {text!r}; a number is expected"
        if wrong is not None:
            raise DataError(f"{sheet.path}: {sheet.where(cells.first(place))}: the target '{name}' {wrong}")
    classes = sorted(cells.texts, key=order)
    if regression or (len(classes) > MAX_CLASSES and all(number(text) is not None for text in classes)):
        return {"column": name}
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise DataError(
            f"{sheet.path}: the target '{name}' has {plural(len(classes), 'value')}; 2 to {MAX_CLASSES} classes are "
            "expected, or numbers"
        )
    return {"column": name, "classes": classes}


def _target_lines(target: Mapping[str, Any]) -> str:
    """Return the target in a domain file, and a comment that suggests its favourable class."""
    line = "target = { " + ", ".join(f"{key} = {toml_value(value)}" for key, value in target.items()) + " }\n"
    return line + (f"{favourable_line(target['column'], target['classes'])}\n" if "classes" in target else "")
