"""The table that is audited, from whatever a user gives: rows and domain, with the columns that the model reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch

from neuronfair.domain.column import LeftOut
from neuronfair.domain.data import UNKNOWN, Data, limited, read_table
from neuronfair.domain.files import read_sheet
from neuronfair.domain.infer import draft_domain
from neuronfair.domain.proposals import TakeRules
from neuronfair.domain.table import TableDomain
from neuronfair.domain.toml import format_domain, parse_domain, quoted, read_domain
from neuronfair.errors import DataError, ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.open import Opened
from neuronfair.model.open.columns import feature_names, matched, source_of

DRAWN = 1000  # people, where no table is given
UNREAD = "the model does not read it"
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
    sensitive: str | Sequence[str] | None = None,
    target: str | None = None,
    trust_pickle: bool = False,
    **inferring: Unpack[Inferring],
) -> Given:
    """Return a table ready for an audit: `Data`, a file, a DataFrame, or a mapping of columns.

    Without a domain one is inferred, by the sensitive attributes and the target. The model, whatever `open_model`
    takes, says which columns exist: no others are looked at, and one that is missing is reported before any work is
    done. Without a model all columns are taken.
    """
    decision, opens = inferring.get("decision"), inferring.get("opens")
    take: TakeRules = inferring.get("take_rules", "none")
    names = None if model is None else feature_names(model, trust_pickle=trust_pickle)
    chosen = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive or ())
    if isinstance(table, Data) and (domain is not None or target is not None):
        raise DataError(f"{table.name}: this table has its own domain and target. Leave out others")
    if domain is not None and target is not None:
        raise DataError(f"target '{target}': the domain names the target. Leave one of the two out")
    if not isinstance(table, Data) and domain is None:
        fits = partial(matched, model, names)
        how: dict[str, Any] = {"regression": decision is not None and decision.kind == "tolerance", "take_rules": take}
        found = _inferred(table, fits, chosen, target, **how, keep_missing=opens is not None)
        if opens is not None and any(a.empty is not None for a in found.data.domain.attributes):
            filled = _inferred(table, fits, chosen, target, **how)
            found = found if _reads_empty_cells(opens, found.data, filled.data) else filled
        if found.reads is not None and target in found.reads:
            raise ModelError(f"{source_of(model)}: reads the target '{target}' itself. Name the column that it decides")
        return found
    if take != "none":
        raise DataError(f"take rules '{take}': for domains read off a table; this one is given. Write its rules there")
    whole, text = _described(table.domain if isinstance(table, Data) else domain, chosen)
    reads = matched(model, names, whole.names, "domain")
    kept = limited(whole, whole.names if reads is None else {*reads, *whole.sensitive})
    left_out = tuple(LeftOut(name, UNREAD) for name in whole.names if name not in kept.names)
    if left_out and text is not None:
        text = f"# Without {', '.join(quoted(one.column) for one in left_out)}: {UNREAD}.\n{format_domain(kept)}"
    if isinstance(table, Data):
        return Given(replace(table.only(kept.names), domain=kept), text, reads=reads, left_out=left_out)
    sheet = read_sheet(table)
    return Given(read_table(sheet, kept), text, reads=reads, left_out=left_out, remarks=sheet.remarks)


def drawn_from(domain: TableDomain, seed: int = 0) -> Data:
    """Return people drawn from a domain, without labels, where there is no table."""
    rows = domain.sample(DRAWN, torch.Generator().manual_seed(seed))
    return Data(domain.name, domain, rows, torch.full((len(rows),), UNKNOWN))


def _inferred(
    table: Any,
    matched: Callable[[Sequence[str]], tuple[str, ...] | None],
    sensitive: Sequence[str],
    target: str | None,
    **how: Any,
) -> Given:
    if target is None or not sensitive:
        raise DataError("name a domain, or both the sensitive attributes and the target so that one can be inferred")
    sheet = read_sheet(table)
    reads = matched(tuple(sheet.columns))
    draft = draft_domain(sheet, sensitive=sensitive, target=target, columns=reads, **how)
    data = read_table(sheet, parse_domain(draft.text, default_name=sheet.path.stem))
    return Given(data, draft.text, inferred=True, reads=reads, left_out=draft.left_out, remarks=draft.remarks)


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
