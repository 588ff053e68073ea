"""The table that is audited, from whatever a user gives: rows and domain, with the columns that the model reads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from neuronfair.domain.schema.column_types import LeftOut
from neuronfair.domain.schema.infer import draft_domain
from neuronfair.domain.schema.rule_mining import TakeRules
from neuronfair.domain.schema.toml import format_domain, parse_domain, quoted, read_domain, with_favourable
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import UNKNOWN, Data, limited, read_table
from neuronfair.domain.tables.files import JoinedColumns, Sheet, read_sheet
from neuronfair.domain.tables.sensitive_join import attached
from neuronfair.errors import DataError, DomainError, ModelError, did_you_mean
from neuronfair.formatting import listed
from neuronfair.model.decision import Decision
from neuronfair.model.open import Opened
from neuronfair.model.open.columns import feature_names, matched, source_of
from neuronfair.model.open.functions import by_groups

DRAWN = 1000  # people, where no table is given
_RAW = 'encode = "raw"  # the model has no names for its inputs: it is given the numbers of the table'
UNREAD = "the model does not read it"
Matched = Callable[..., tuple[str, ...] | None]  # which columns of these the model reads
_READ_CELLS = ("scikit-learn", "XGBoost", "LightGBM", "CatBoost", "Python function")  # and no encoded numbers


@dataclass(frozen=True)
class Given:
    """A table with the attributes that the model reads, and the sensitive ones."""

    data: Data
    text: str | None = None  # of the domain file, comments included; None: as the domain is
    inferred: bool = False
    reads: tuple[str, ...] | None = None  # the columns that the model reads; None: it does not say
    left_out: tuple[LeftOut, ...] = ()
    remarks: tuple[str, ...] = ()  # about the table, and how it was read
    beside: JoinedColumns | None = None  # where columns come from that no model is given

    def with_favourable(self, favourable: str | None) -> Given:
        """Return the table with this class of the target as the favourable outcome; None: as its domain says."""
        domain = self.data.domain
        if favourable is None or favourable == domain.favourable:
            return self
        if domain.favourable is not None:
            raise DataError(f"--favourable {favourable}: the domain of {domain.name} says '{domain.favourable}'")
        domain = replace(domain, favourable=favourable)
        text = None if self.text is None else with_favourable(self.text, favourable)
        return replace(self, data=replace(self.data, domain=domain), text=text)

    @property
    def outside(self) -> tuple[str, ...]:
        """The attributes that the model is not given."""
        return tuple(attribute.name for attribute in self.data.domain.attributes if not attribute.given)


class Inferring(TypedDict, total=False):
    """What matters where a domain is inferred only."""

    decision: Decision | None  # a tolerance is for quantities, so a target has no classes then
    opens: Callable[[Data], Opened] | None  # the model, if it may read an empty cell among numbers, as trees do
    take_rules: TakeRules  # that the table suggests


def given(
    table: Any,
    *,
    model: Any = None,
    domain: TableDomain | str | Path | None = None,
    sensitive: Any = None,
    target: Any = None,
    columns: Sequence[Any] | None = None,
    trust_pickle: bool = False,
    **inferring: Unpack[Inferring],
) -> Given:
    """Return a table ready for an audit: `Data`, a file, a DataFrame, or a mapping of columns.

    Without a domain one is inferred, by the sensitive attributes and the target. The model, whatever `open_model`
    takes, says which columns exist: no others are looked at, and one that is missing is reported before any work is
    done. Without a model all columns are taken. `sensitive` are names, or the columns themselves, which
    no model is given then. `columns` are the inputs, in their order, of a model that has no names for them.
    """
    target = None if target is None else str(target)  # a column may be called by a number
    names = None if model is None else feature_names(model, trust_pickle=trust_pickle)
    table, chosen = attached(table, sensitive)
    if names is not None and by_groups(model):
        names = tuple(dict.fromkeys((*names, *chosen)))
    if isinstance(table, Data) and (domain is not None or target is not None):
        raise DataError(f"{table.name}: this table has its own domain and target. Leave out others")
    if domain is not None and target is not None:
        raise DataError(f"target '{target}': the domain names the target. Leave one of the two out")
    order = None if columns is None else tuple(map(str, columns))
    if order is not None:
        _check_order(order, names, declared=isinstance(table, Data) or domain is not None)
    fits = partial(matched, model, order or names)
    if not isinstance(table, Data) and domain is None:
        if order is not None:
            table = _in_order(read_sheet(table), order)
        find = partial(_inferred, table, fits, chosen, target, inferring)
    else:
        if (take := inferring.get("take_rules", "none")) != "none":
            raise DataError(
                f"take rules '{take}': for domains read off a table; this one is given. Write its rules there"
            )
        find = partial(_declared, table, fits, *_described(table.domain if isinstance(table, Data) else domain, chosen))
    found = find(() if order is None else tuple(name for name in chosen if name not in order))
    if order is not None:
        found = replace(found, data=replace(found.data, ordered=True))
    for name in set(found.reads or ()) & set(found.outside):
        raise ModelError(
            f"{source_of(model)}: reads '{name}', which is not given to a model: {_why(found, name)}. Put it among the "
            "inputs, or name the model that does without it"
        )
    if found.reads is not None and target in found.reads:
        raise ModelError(f"{source_of(model)}: reads the target '{target}' itself. Name the column that it decides")
    opens = inferring.get("opens")
    if opens is not None and _by_width(model) and found.reads is None and not found.outside:
        found = _fitting(find, found, opens)
    if opens is not None and _by_width(model) and found.inferred and names is None:
        found = _as_cells(found, opens)
    if found.reads is None and found.outside:
        found = replace(found, reads=tuple(name for name in found.data.domain.names if name not in found.outside))
    return found


def drawn_from(domain: TableDomain, seed: int = 0) -> Data:
    """Return people drawn from a domain, without labels, where there is no table."""
    rows = domain.sample(DRAWN, torch.Generator().manual_seed(seed))
    return Data(domain.name, domain, rows, torch.full((len(rows),), UNKNOWN))


def _inferred(
    table: Any,
    matched: Matched,
    sensitive: Sequence[str],
    target: str | None,
    inferring: Inferring,
    outside: Sequence[str],
) -> Given:
    """Return a table with a domain that is read off it."""
    if not sensitive:
        raise DataError("name a domain, or the sensitive attributes (and the target) so that one can be inferred")
    decision, opens = inferring.get("decision"), inferring.get("opens")
    sheet = read_sheet(table)
    reads = matched(tuple(sheet.columns))

    def found(keep_missing: bool) -> Given:
        draft = draft_domain(
            sheet,
            sensitive=sensitive,
            target=target,
            columns=reads,
            regression=decision is not None and decision.kind == "tolerance",
            keep_missing=keep_missing,
            take_rules=inferring.get("take_rules", "none"),
            outside=outside,
        )
        data = replace(read_table(sheet, parse_domain(draft.text, default_name=sheet.path.stem)), inferred=True)
        return Given(data, draft.text, True, reads, draft.left_out, draft.remarks, sheet.beside)

    kept = found(opens is not None)
    if opens is not None and any(a.empty is not None for a in kept.data.domain.attributes):
        filled = found(False)
        return kept if _reads_empty_cells(opens, kept.data, filled.data) else filled
    return kept


def _check_order(order: Sequence[str], names: Sequence[str] | None, *, declared: bool) -> None:
    """Refuse an order of inputs where something else says it."""
    text = ",".join(order)
    if declared:
        raise DataError(f"--columns {text}: the domain says the order of the inputs. Order its attributes, or leave it")
    if names is not None:
        raise DataError(f"--columns {text}: the model names its inputs itself ({', '.join(names)}). Leave it out")


def _in_order(sheet: Sheet, order: Sequence[str]) -> Sheet:
    """Return a table with the columns of a model's inputs first, in their order."""
    missing = next((name for name in order if name not in sheet.columns), None)
    if missing is not None:
        raise DataError(f"--columns: {sheet.path} has no column '{missing}'. {did_you_mean(missing, sheet.columns)}")
    return replace(sheet, columns={name: sheet.columns[name] for name in dict.fromkeys((*order, *sheet.columns))})


def _declared(table: Any, matched: Matched, whole: TableDomain, text: str | None, outside: Sequence[str]) -> Given:
    """Return a table whose domain is given."""
    reads = matched(whole.names, "domain")
    kept = limited(whole, whole.names if reads is None else {*reads, *whole.sensitive})
    left_out = tuple(LeftOut(name, UNREAD) for name in whole.names if name not in kept.names)
    if outside:
        kept = replace(
            kept, attributes=tuple(replace(a, encode="none") if a.name in outside else a for a in kept.attributes)
        )
    if left_out and text is not None:
        text = f"# Without {', '.join(quoted(one.column) for one in left_out)}: {UNREAD}.\n{format_domain(kept)}"
    elif outside and text is not None:
        text = format_domain(kept)
    if isinstance(table, Data):
        return Given(replace(table.only(kept.names), domain=kept), text, reads=reads, left_out=left_out)
    sheet = read_sheet(table)
    for name in sheet.beside.names if sheet.beside is not None else ():
        if name in kept.names and kept.attributes[kept.column(name)].given:
            raise DomainError(
                f"{kept.name}: '{name}' stands beside the table, so no model is given it. Write encode = \"none\" for "
                "it in the domain file"
            )
    return Given(read_table(sheet, kept), text, False, reads, left_out, sheet.remarks, sheet.beside)


def _by_width(model: Any) -> bool:
    """Return whether it is a matter of width what a model can be given; a function is given a table, and not tried."""
    return model is not None and not inspect.isroutine(model)


def _fitting(find: Callable[[Sequence[str]], Given], found: Given, opens: Callable[[Data], Opened]) -> Given:
    """Return a table as a model without names for its inputs can be given it: with the sensitive columns, or without.

    One that can be given neither is opened, and refused, later.
    """
    sensitive = found.data.domain.sensitive
    if len(sensitive) == len(found.data.domain.attributes):
        return found
    try:
        opens(found.data)
        return found
    except ModelError:
        without = find(sensitive)
    try:
        opens(without.data)
    except ModelError:
        return found
    remark = f"{listed(sensitive)}: the inputs of the model fit the other columns only, so it is not given it"
    return replace(without, remarks=(*without.remarks, remark))


def _as_cells(found: Given, opens: Callable[[Data], Opened]) -> Given:
    """Return a table whose domain declares its own numbers, if a model of arrays is given these.

    Else the model would be given other numbers with the domain file that is written now.
    """
    text, domain = found.text or "", found.data.domain
    if any(attribute.values and attribute.values != ("0", "1") for attribute in domain.attributes):
        return found
    try:
        opened = opens(found.data)
    except ModelError:  # which will be raised again
        return found
    if not opened.by_position or opened.inputs is not None or opened.kind not in _READ_CELLS:
        return found
    text = text.replace("\n[attributes]\n", f"\n{_RAW}\n[attributes]\n", 1)
    outside = set(found.outside)
    raw = (a if a.name in outside else replace(a, encode="raw") for a in domain.attributes)
    return replace(found, text=text, data=replace(found.data, domain=replace(domain, attributes=tuple(raw))))


def _why(found: Given, name: str) -> str:
    file = None if found.beside is None or name not in found.beside.names else found.beside.sheet.path
    return f"it stands in {file}, beside the table" if file is not None else 'the domain says encode = "none"'


def _reads_empty_cells(opens: Callable[[Data], Opened], data: Data, filled: Data) -> bool:
    """Return whether the model reads cells, also empty ones, and is no white box either if these are filled."""
    try:
        return opens(data).kind in _READ_CELLS and not opens(filled).white_box
    except ModelError:  # which will be raised again, if that was not the reason
        return False


def _described(domain: TableDomain | str | Path | None, sensitive: Sequence[str]) -> tuple[TableDomain, str | None]:
    """Return a domain, and the text of its file if it has one."""
    text = None
    if not isinstance(domain, TableDomain):
        path = Path(str(domain))
        domain, text = read_domain(path), path.read_text(encoding="utf-8")
    return domain.with_sensitive(*sensitive) if sensitive else domain, text
