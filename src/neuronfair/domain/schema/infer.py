"""Inference of a domain from a table, as a commented TOML file to be edited."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from neuronfair.domain.attribute import KEEP, MISSING
from neuronfair.domain.cells import is_missing, parse_number, size_sort_key
from neuronfair.domain.rules import Rule
from neuronfair.domain.schema.column_types import ColumnEntry, ExcludedColumn, find_decimal_marks, infer_column
from neuronfair.domain.schema.rule_mining import MAX_LEVELS, MIN_RECORDS, TakeRules, check_take, format_rule, propose
from neuronfair.domain.schema.toml import build_domain, make_target_entry, quote, toml_value
from neuronfair.domain.table import TableDomain, Target
from neuronfair.domain.tables import Cells, Sheet
from neuronfair.domain.tables.files import read_sheet
from neuronfair.errors import DataError, DomainError, did_you_mean
from neuronfair.formatting import join_words, pluralise, printable

MAX_CLASSES = 50  # a target of more different numbers is a quantity
# Below both, a demographic group is too small for twins.
SMALL_GROUP_RECORDS, SMALL_GROUP_SHARE = 30, 0.1
MAX_GROUPS = 5  # small groups that a remark names

_HEAD_TEMPLATE = """\
# A first draft, read off {file} ({rows:,} rows). Please check every line:
# - kind: ordinal (order matters, whole steps), nominal (no order), flag (two values), continuous (a grid of numbers)
# - low / high: widen them where the table happens not to reach the real limits
# - step: a number between two steps is refused, so make it smaller where there are such; decimals are rounded to it in
#   generated records, and the metrics of the data set use the cells themselves
# - bands = [25, 40, 60] for a sensitive number, such as age: people are compared with other bands
# - encode: raw, scaled (with center and scale), onehot, or none: no model is given it, as where the law forbids it
# - for counterfactual twins (the record in another group): fixed = true for what no group changes, such as age;
#   legitimate = true for what may differ between groups and may count, say why in a comment; causes = ["age", …] for
#   what an attribute depends on. Without causes anywhere, a graph is learned from the table
# - rules at the end: combinations that no real person has; nothing is tested that breaks one
{remarks}name = {name}
sensitive = {sensitive}
{target}[attributes]
"""

_SMALL_GROUPS_COMMENT = "\n# Groups that are too small to compare people with; delete a rule to include one."

_TAIL_COMMENT = """
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
    """The domain that was inferred from a table, the columns that it leaves out, and remarks."""

    domain: TableDomain
    left_out: tuple[ExcludedColumn, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The domain as a commented TOML file."""
        return self.domain.draft


@dataclass(frozen=True)
class InferenceSettings:
    """What is known of a table before its domain is inferred."""

    columns: Sequence[str] | None = None  # inputs of the model; None: all columns
    regression: bool = False  # whether the target is a quantity
    keep_missing: bool = False  # whether an empty cell among numbers is a value of its own
    take_rules: TakeRules = "none"  # suggested rules to adopt
    non_inputs: Sequence[str] = ()  # columns that are no inputs of the model


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

    Its `to_toml()` is a commented file to be corrected and read with `read_domain`. `columns` are the inputs of the
    model: only they and the sensitive columns are kept. Without a target the rows have no labels. With `regression`,
    or with more than 50 different numbers, the target is a quantity and has no classes. With `keep_missing` an empty
    cell among numbers is a value of its own, for models that read it so, instead of the median. Rules that the table
    suggests are comments at the end of the file; `take_rules` adopts them: "free" those that name no sensitive
    attribute, or "all".
    """
    settings = InferenceSettings(columns, regression, keep_missing, take_rules)
    return draft_domain(path, sensitive=sensitive, target=target, settings=settings).domain


def draft_domain(
    path: str | Path | Sheet | Any,
    *,
    sensitive: Sequence[str],
    target: str | None = None,
    settings: InferenceSettings | None = None,
) -> Draft:
    """Return the domain of `infer_domain` with the columns that it leaves out and remarks.

    Columns joined from a second file are no inputs of the model.
    """
    settings = settings or InferenceSettings()
    take_rules = settings.take_rules
    check_take(take_rules)
    sheet = read_sheet(path)
    _check_columns(sheet, sensitive, target)
    aim_target = None if target is None else _infer_target(target, sheet, settings.regression)
    entries = _infer_entries(sheet, sensitive, target, settings.columns)
    left_out = tuple(e for e in entries if isinstance(e, ExcludedColumn))
    drafts = [e for e in entries if isinstance(e, ColumnEntry)]
    added = () if sheet.joined is None else sheet.joined.names
    remarks = dict[str, list[str]]()
    for entry in drafts:
        if settings.keep_missing and "missing" in entry.parts and "values" not in entry.parts:
            entry.parts["missing"] = KEEP
        if entry.column in (*settings.non_inputs, *added):
            entry.parts["encode"] = "none"
        for remark in entry.remarks:
            remarks.setdefault(remark, []).append(entry.column)
    described_by = {"attributes": {entry.column: entry.parts for entry in drafts}, "sensitive": list(sensitive)}
    domain = replace(build_domain({"name": sheet.path.stem, **described_by}), target=aim_target)
    small, small_remarks = _exclude_small_groups(domain, sheet.columns)
    proposals = propose(domain, sheet.columns)
    head = _HEAD_TEMPLATE.format(
        file=printable(sheet.path.name),
        rows=len(sheet.lines),
        remarks="".join(f"# - {printable(remark)}\n" for remark in sheet.remarks),
        name=quote(domain.name),
        sensitive=toml_value(sensitive),
        target="" if aim_target is None else _format_target(aim_target),
    )
    lines = [
        f"# {quote(e.column)}: left out, {printable(e.reason)}" if isinstance(e, ExcludedColumn) else str(e)
        for e in entries
    ]
    groups = [line for rule in small for line in format_rule(rule, {a.name: a for a in domain.attributes})]
    note = "\n".join([_SMALL_GROUPS_COMMENT, *groups, ""]) if groups else ""
    text = head + "\n".join(lines) + "\n" + note + proposals.text(take_rules, domain.attributes) + _TAIL_COMMENT
    all_remarks = (
        *sheet.remarks,
        *(f"{', '.join(names)}: {remark}" for remark, names in remarks.items()),
        *_find_copies(domain, sheet.columns),
        *small_remarks,
        *proposals.remarks(take_rules),
    )
    domain = replace(domain, rules=(*small, *proposals.rules(take_rules)), draft=text)
    return Draft(domain, left_out, all_remarks)


def _check_columns(sheet: Sheet, sensitive: Sequence[str], target: str | None) -> None:
    """Refuse sensitive attributes and a target that do not exist, are the same, or are ambiguous."""
    used = [*sensitive, *([target] if target is not None else ())]
    for name in used:
        if name not in sheet.columns:
            raise DataError(f"{sheet.path}: no column '{name}'. {did_you_mean(name, sheet.columns)}")
    if target in sensitive:
        raise DomainError(f"{sheet.path}: '{target}' cannot be both the target and sensitive")
    sheet.check_clear(used)
    for name in sensitive:
        texts = sheet.columns[name].texts
        if len(texts) == 1:
            raise DataError(
                f"{sheet.path}: the sensitive attribute '{name}' is {texts[0]!r} in every row. To compare people, a "
                "second value is needed: use more rows, or write the domain file by hand"
            )


def _infer_entries(
    sheet: Sheet, sensitive: Sequence[str], target: str | None, columns: Sequence[str] | None
) -> list[ColumnEntry | ExcludedColumn]:
    """Return the entry of each column, or why it is left out; inputs of the model and sensitive columns are kept."""
    inputs, key = {*sensitive, *(columns or ())}, None if sheet.joined is None else sheet.joined.key
    decimals = find_decimal_marks(list(sheet.columns.values()))
    entries = list[ColumnEntry | ExcludedColumn]()
    for name, cells in sheet.columns.items():
        copied, reason = sheet.copies.get(name), None
        if name not in inputs and name == key:
            reason = "the key"
        elif name not in inputs and columns is not None:
            reason = "the model does not read it"
        elif name not in inputs and copied is not None and sheet.columns[copied] == cells:
            reason = f"a copy of '{copied}'"
        if name != target:
            entries.append(
                ExcludedColumn(name, reason) if reason else infer_column(name, cells, decimals, keep=name in inputs)
            )
    return entries


def _find_copies(domain: TableDomain, columns: Mapping[str, Cells]) -> list[str]:
    """Return remarks on columns that repeat another one value by value, where no rule can say so.

    Such are copies of a sensitive column, and copies with many values.
    """
    first, remarks = dict[bytes, str](), list[str]()
    for name in (*domain.sensitive, *(name for name in domain.names if name not in domain.sensitive)):
        cells = columns[name]
        if len(cells) < MIN_RECORDS or not 2 <= len(cells.texts) <= len(cells) / 2:
            continue  # any two columns of nearly unique cells would match
        # Texts are numbered in the order of their first row, so that copies have the same numbers.
        original = first.setdefault(cells.numbers.tobytes(), name)
        if original in domain.sensitive and name != original:
            remarks.append(
                f"{name}: is a copy of the sensitive attribute {original}. Twins keep its value: leave it out, or name "
                "both as sensitive"
            )
        elif name != original and len(cells.texts) > MAX_LEVELS:
            remarks.append(f"{name}: is a copy of {original}; no rules tie their many values. Leave one of them out")
    return remarks


def _exclude_small_groups(domain: TableDomain, columns: Mapping[str, Cells]) -> tuple[list[Rule], list[str]]:
    """Return rules that exclude small demographic groups and records of unknown group from the twins, and remarks.

    The two largest groups of an attribute always stay.
    """
    rules, remarks = list[Rule](), list[str]()
    for attribute in (domain.attributes[column] for column in domain.sensitive_columns):
        if not attribute.values:
            continue
        counts = np.bincount(attribute.codes(columns[attribute.name]), minlength=attribute.size)
        largest = np.argsort(-counts, kind="stable")
        is_small = (counts < SMALL_GROUP_RECORDS) & (counts < SMALL_GROUP_SHARE * counts.sum())
        is_small |= np.array([label == MISSING == attribute.missing for label in attribute.values])
        large = [code for code in largest if not is_small[code]]
        keep = {*large, *[code for code in largest if code not in large][: max(0, 2 - len(large))]}
        out = {attribute.values[c]: pluralise(int(counts[c]), "record") for c in range(attribute.size) if c not in keep}
        for label, count in out.items():
            name = f"too few to compare with: {attribute.name} {label}, {count}"
            rules.append(Rule(name, {attribute.name: (label,)}, {}))
        if out:
            texts = [f"{label} ({count})" for label, count in out.items()]
            texts[MAX_GROUPS:] = [f"{len(texts) - MAX_GROUPS} more"] if len(texts) > MAX_GROUPS else []
            remarks.append(
                f"{attribute.name}: {join_words(texts)} left out of the twins; delete the rule to include it"
            )
    return rules, remarks


def _infer_target(name: str, sheet: Sheet, regression: bool) -> Target:
    cells = sheet.columns[name]
    for index, text in enumerate(cells.texts):
        problem = "is empty. Remove such rows or fill the cell" if is_missing(text) else None
        if problem is None and regression and parse_number(text) is None and parse_number(text, ",") is None:
            problem = f"is {text!r}; a number is expected"
        if problem is not None:
            raise DataError(f"{sheet.path}: {sheet.where(cells.first(index))}: the target '{name}' {problem}")
    classes = sorted(cells.texts, key=size_sort_key)
    if regression or (len(classes) > MAX_CLASSES and all(parse_number(text) is not None for text in classes)):
        return Target(name, ())
    if not 2 <= len(classes) <= MAX_CLASSES:
        raise DataError(
            f"{sheet.path}: the target '{name}' has {pluralise(len(classes), 'value')}; 2 to {MAX_CLASSES} classes are "
            "expected, or numbers"
        )
    return Target(name, tuple(classes))


def _format_target(target: Target) -> str:
    """Return the target in a domain file, and a comment that suggests its favourable class."""
    line = f"target = {toml_value(make_target_entry(target))}\n"
    if not target.classes:
        return line
    guess, _ = guess_favourable(target.column, target.classes)
    return f"{line}# favourable = {quote(guess)}  # the favourable outcome: needed for disparate impact\n"


# Pairs of words for a favourable and an unfavourable class. Yes and no depend on the column's name: see `_GOOD_NAME`.
_YES_NO_WORDS = ({"yes", "y", "true", "t"}, {"no", "n", "false", "f"})
_OPPOSITE_WORDS = (
    ({"good"}, {"bad"}),
    (
        {"approve", "approved", "accept", "accepted", "grant", "granted", "admit", "admitted", "hire", "hired"}
        | {"offer", "offered", "select", "selected", "invite", "invited"},
        {"deny", "denied", "reject", "rejected", "decline", "declined", "refuse", "refused"},
    ),
    ({"paid", "repaid", "fully paid", "paid off"}, {"default", "defaulted", "unpaid", "charged off", "not repaid"}),
    ({"pass", "passed"}, {"fail", "failed"}),
    ({"eligible"}, {"ineligible"}),
    ({"qualified"}, {"unqualified", "disqualified"}),
    ({"success", "successful"}, {"failure", "unsuccessful"}),
)
# Names of columns whose "yes" is favourable, unless a word of harm is in the name as well.
_GOOD_NAME = re.compile(
    r"\b(?:accept(?:ed|ance)?|admit(?:ted)?|admission|approv(?:e|ed|al)|award(?:ed)?|benefits?|eligible|grant(?:ed)?|hired?|"
    r"invit(?:e|ed)|offer(?:ed)?|pass(?:ed)?|promot(?:ed|ion)|qualified|repaid|selected|shortlisted|success|"
    r"successful)\b"
)
# Names of columns whose "yes" is harmful: short beginnings of words, and longer parts anywhere ("loandefault").
_HARMFUL_NAME = re.compile(
    r"\b(?:bad|ban|claim|dead|death|debt|deni|deny|die|fail|fine|fire|flag|icu|ill|jail|late|left|leav|loss|lost|miss|not|"
    r"no|quit|sick|sue)|default|fraud|risk|churn|arrest|reject|recid|delinq|crim|offen|violat|violen|bankrupt|mortal|"
    r"diseas|cancer|diabet|stroke|attack|readmi|readmit|terminat|layoff|attrition|lapse|cancel|dropout|drop.out|"
    r"suspen|expel|expul|evict|penal|guilt|convict|complain|hazard|injur|accident|abus|spam|unpaid|charge|foreclos|"
    r"delay|declin|refus|block|suspic|detain|detent|prison|hospital|problem|overdue|arrear|warn|threat|stop|search|withdr|revok|rescin|away|"
    r"sanction|infect|malign|exited"
)


def suggest_favourable(column: str, classes: Sequence[str]) -> str | None:
    """Return the class whose words say that it is the favourable outcome; None where that is not clear.

    >>> suggest_favourable("loan", ["denied", "approved"]), suggest_favourable("two_year_recid", ["no", "yes"])
    ('approved', None)
    """
    guess, sure = guess_favourable(column, classes)
    return guess if sure else None


def guess_favourable(column: str, classes: Sequence[str]) -> tuple[str, bool]:
    """Return a class that may be favourable, and whether the words make that clear."""
    for candidate, other in (classes, classes[::-1]) if len(classes) == 2 else ():
        first, second = _split_words(candidate), _split_words(other)
        if first in _YES_NO_WORDS[0] and second in _YES_NO_WORDS[1]:
            harmful = _HARMFUL_NAME.search(_split_words(column)) is not None
            return (other, False) if harmful else (candidate, _GOOD_NAME.search(_split_words(column)) is not None)
        for positive, negative in _OPPOSITE_WORDS:
            if first in positive and (second in negative or re.fullmatch(rf"(?:not|no|non|un) ?{first}", second)):
                return candidate, True
    return classes[-1], False


def _split_words(text: str) -> str:
    """Return a name as lower-case words: "LoanDefault" and "loan_default" are "loan default"."""
    return " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).casefold().split())
