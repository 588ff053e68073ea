"""The table that is audited, from whatever a user gives: rows and domain, with the columns that the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuronfair.domain.column import LeftOut
from neuronfair.domain.data import Data, limited, read_table
from neuronfair.domain.files import read_sheet
from neuronfair.domain.infer import infer_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.toml import format_domain, parse_domain, quoted, read_domain
from neuronfair.errors import DataError, ModelError
from neuronfair.model.open.columns import feature_names, matched, source_of

NOT_READ = "the model does not read it"


@dataclass(frozen=True)
class Given:
    """A table with the attributes that the model reads, and the sensitive ones."""

    data: Data
    text: str | None = None  # of the domain file, comments included; None: as the domain is
    inferred: bool = False
    reads: tuple[str, ...] | None = None  # the columns that the model reads; None: it does not say
    left_out: tuple[LeftOut, ...] = ()


def given(
    table: Any,
    *,
    model: Any = None,
    domain: TableDomain | str | Path | None = None,
    sensitive: str | Sequence[str] | None = None,
    target: str | None = None,
    trust_pickle: bool = False,
) -> Given:
    """Return a table ready for an audit: `Data`, a file, a DataFrame, or a mapping of columns.

    Without a domain one is inferred, by the sensitive attributes and the target. The model, whatever `open_model`
    takes, says which columns exist: no others are looked at, and one that is missing is reported before any work is
    done. Without a model all columns are taken.
    """
    names = None if model is None else feature_names(model, trust_pickle=trust_pickle)
    chosen = (sensitive,) if isinstance(sensitive, str) else tuple(sensitive or ())
    if isinstance(table, Data) and (domain is not None or target is not None):
        raise DataError(f"{table.name}: this table has its own domain and target. Leave out others")
    if domain is not None and target is not None:
        raise DataError(f"target '{target}': the domain names the target. Leave one of the two out")
    if not isinstance(table, Data) and domain is None:
        return _inferred(table, model, names, chosen, target)
    whole, text = _described(table.domain if isinstance(table, Data) else domain, chosen)
    reads = matched(model, names, whole.names, "domain")
    kept = limited(whole, whole.names if reads is None else {*reads, *whole.sensitive})
    left_out = tuple(LeftOut(name, NOT_READ) for name in whole.names if name not in kept.names)
    if left_out and text is not None:
        text = f"# Without {', '.join(quoted(one.column) for one in left_out)}: {NOT_READ}.\n{format_domain(kept)}"
    data = replace(table.only(kept.names), domain=kept) if isinstance(table, Data) else read_table(table, kept)
    return Given(data, text, reads=reads, left_out=left_out)


def _inferred(
    table: Any, model: Any, names: Sequence[str] | None, sensitive: Sequence[str], target: str | None
) -> Given:
    if target is None or not sensitive:
        raise DataError("name a domain, or both the sensitive attributes and the target so that one can be inferred")
    sheet = read_sheet(table)
    reads = matched(model, names, tuple(sheet.columns))
    if reads is not None and target in reads:
        raise ModelError(f"{source_of(model)}: reads the target '{target}' itself. Name the column that it decides")
    text = infer_domain(sheet, sensitive=sensitive, target=target, columns=reads)
    domain = parse_domain(text, default_name=sheet.path.stem)
    others = [name for name in sheet.columns if reads is not None and name not in (*domain.names, target)]
    left_out = tuple(LeftOut(name, NOT_READ) for name in others)
    return Given(read_table(sheet, domain), text, inferred=True, reads=reads, left_out=left_out)


def _described(domain: TableDomain | str | Path | None, sensitive: Sequence[str]) -> tuple[TableDomain, str | None]:
    """Return a domain, and the text of its file if it has one."""
    text = None
    if not isinstance(domain, TableDomain):
        path = Path(str(domain))
        domain, text = read_domain(path), path.read_text(encoding="utf-8")
    return domain.with_sensitive(*sensitive) if sensitive else domain, text
