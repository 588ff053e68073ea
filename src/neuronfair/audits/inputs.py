"""From a table and a model to a test: the columns that the model reads, their domain, and the opened model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from neuronfair.audits.provenance import Provenance
from neuronfair.domain.schema.column_types import ExcludedColumn
from neuronfair.domain.schema.infer import InferenceSettings, draft_domain
from neuronfair.domain.schema.rule_mining import TakeRules
from neuronfair.domain.schema.toml import format_domain, quote, read_domain, with_favourable
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import JoinedColumns, Sheet
from neuronfair.domain.tables.dataset import UNKNOWN, Dataset, limit_domain, read_table
from neuronfair.domain.tables.files import read_sheet, with_columns
from neuronfair.errors import DataError, DomainError, ModelError, did_you_mean
from neuronfair.formatting import join_words
from neuronfair.model.decision import Decision
from neuronfair.model.open import OpenedModel, feature_names, wrap_model
from neuronfair.model.open.estimators import takes_sensitive_features
from neuronfair.model.open.names import match_columns, source_of

DRAWN_RECORDS = 1000  # where no table is given
_RAW_ENCODING = 'encode = "raw"  # the model has no names for its inputs: it gets the numbers of the table'
UNREAD = "the model does not read it"
_READ_CELLS = ("scikit-learn", "XGBoost", "LightGBM", "CatBoost", "Python function")  # not encoded numbers


@dataclass(frozen=True)
class ModelSource:
    """A model, and how it is opened. It can be sent to another process if the model can."""

    model: Any = None  # whatever `wrap_model` takes; None: there is none yet
    weights: Path | None = None  # a safetensors file for `package.module:name`
    trust_pickle: bool = False  # open files that can run a program
    decision: Decision | None = None  # what counts as another decision; by default as the outputs suggest
    device: str | None = None  # by default that of a model in memory, or else that of the table
    preprocess: Callable[[Any], Any] | str | None = None  # from a table to the inputs of a torch or Keras model
    columns: Sequence[Any] | None = None  # the inputs, in their order, of a model that has no names for them

    @property
    def reads_columns(self) -> bool:
        """Whether there is a model whose inputs are columns of the table, and not what a function makes of them."""
        return self.model is not None and self.preprocess is None

    @property
    def is_fitted_by_width(self) -> bool:
        """Whether the number of its inputs tells which columns it reads; a function takes a whole table."""
        return self.reads_columns and not inspect.isroutine(self.model)

    def column_names(self) -> tuple[str, ...] | None:
        """Return the columns that the model says it reads; None if it does not say."""
        return feature_names(self.model, trust_pickle=self.trust_pickle) if self.reads_columns else None

    def open(self, data: Dataset) -> OpenedModel:
        """Open the model for a data set."""
        device = getattr(self.model, "device", None)
        return wrap_model(
            self.model,
            data.domain,
            data,
            weights=self.weights,
            trust_pickle=self.trust_pickle,
            device=self.device or str(device if isinstance(device, torch.device) else data.domain.device),
            decision=self.decision,
            preprocess=self.preprocess,
        )


@dataclass(frozen=True)
class AuditInput:
    """A table and a model that are ready for a test: the attributes that the model reads, and the sensitive ones."""

    data: Dataset
    domain_text: str | None = None  # of the domain file, comments included; None: as the domain is
    inferred: bool = False  # whether the domain was read off the table
    reads: tuple[str, ...] | None = None  # the columns that the model reads; None: it does not say
    left_out: tuple[ExcludedColumn, ...] = ()
    remarks: tuple[str, ...] = ()  # about the table, and how it was read
    joined: JoinedColumns | None = None  # sensitive columns from another table, no inputs of a model
    source: ModelSource = ModelSource()
    model: OpenedModel | None = None  # None: it was not opened, could not be, or there is none yet
    refusal: ModelError | None = None  # why the model cannot be opened for this table

    @property
    def opened_model(self) -> OpenedModel:
        """The model; one that is not there is an error of the program."""
        assert self.model is not None, "the model was not opened"
        return self.model

    @property
    def not_inputs(self) -> tuple[str, ...]:
        """The attributes that are no inputs of the model."""
        return tuple(attribute.name for attribute in self.data.domain.attributes if not attribute.is_input)

    @property
    def provenance(self) -> Provenance:
        """Where model and table came from, as far as it is known here."""
        return Provenance(
            weights=self.source.weights,
            trust_pickle=self.source.trust_pickle,
            preprocess=self.source.preprocess,
            domain_text=self.domain_text,
            inferred=self.inferred,
            reads=self.reads,
            left_out=self.left_out,
        )

    def with_favourable(self, favourable: str | None) -> AuditInput:
        """Return the table with this class of the target as the favourable outcome; None: as its domain says."""
        domain = self.data.domain
        if favourable is None or favourable == domain.favourable:
            return self
        if domain.favourable is not None:
            raise DataError(f"--favourable {favourable}: the domain of {domain.name} says '{domain.favourable}'")
        domain = replace(domain, favourable=favourable)
        text = None if self.domain_text is None else with_favourable(self.domain_text, favourable)
        return replace(self.with_domain(domain), domain_text=text)

    def with_domain(self, domain: TableDomain) -> AuditInput:
        """Return the table with another domain, for which the model is to be opened anew."""
        return replace(self, data=replace(self.data, domain=domain), model=None, refusal=None)

    def with_model(self) -> AuditInput:
        """Return the table with its model opened, or with the refusal of a model that does not fit it."""
        if self.source.model is None or self.model is not None or self.refusal is not None:
            return self
        try:
            return replace(self, model=self.source.open(self.data))
        except ModelError as error:
            return replace(self, refusal=error)


def prepare(
    table: Any,
    source: ModelSource | None = None,
    *,
    domain: TableDomain | str | Path | None = None,
    sensitive: Any = None,
    target: Any = None,
    favourable: str | None = None,
    take_rules: TakeRules = "none",
) -> AuditInput:
    """Return a table and a model ready for a test. The table is a `Dataset`, a file, a DataFrame or a mapping.

    Without a domain one is inferred, by the sensitive attributes and the target. The model says which columns exist: no
    others are looked at, and one that is missing is reported before any work is done. Without a model all columns are
    taken. `sensitive` are names, or the columns themselves, which are then no inputs of the model. `take_rules` says
    which of the rules that the table suggests an inferred domain has.
    """
    source = source or ModelSource()
    audit_input = read_input(table, source, domain=domain, sensitive=sensitive, target=target, take_rules=take_rules)
    audit_input = audit_input.with_favourable(favourable).with_model()
    if audit_input.refusal is not None:
        raise audit_input.refusal
    return audit_input


def read_input(
    table: Any,
    source: ModelSource,
    *,
    domain: TableDomain | str | Path | None = None,
    sensitive: Any = None,
    target: Any = None,
    take_rules: TakeRules = "none",
) -> AuditInput:
    """Return a table with the columns that a model reads, as `prepare` does; the model is opened only where it must."""
    target = None if target is None else str(target)  # a column may be called by a number
    names = source.column_names()
    table, sensitive_names = with_columns(table, sensitive)
    if names is not None and takes_sensitive_features(source.model):
        names = tuple(dict.fromkeys((*names, *sensitive_names)))
    is_declared = _check_domain(table, domain, target, take_rules)
    order = None if source.columns is None else tuple(map(str, source.columns))
    if order is not None:
        _check_order(order, names, is_declared=is_declared)
    match = partial(match_columns, source.model if source.reads_columns else None, order or names)
    if is_declared:
        domain, text = _read_domain(table.domain if isinstance(table, Dataset) else domain, sensitive_names)
        read = partial(_read_with_domain, table, source, match, domain, text)
    else:
        if order is not None:
            table = _order_columns(read_sheet(table), order)
        read = partial(_read_and_infer, table, source, match, sensitive_names, target, take_rules)
    audit_input = read(() if order is None else tuple(name for name in sensitive_names if name not in order))
    if order is not None:
        audit_input = replace(audit_input, data=replace(audit_input.data, inputs_in_order=True))
    _check_reads(audit_input, target)
    if source.is_fitted_by_width and audit_input.reads is None and not audit_input.not_inputs:
        audit_input = _fit_width(read, audit_input)
    if source.is_fitted_by_width and audit_input.inferred and names is None:
        audit_input = _declare_raw_numbers(audit_input)
    if audit_input.reads is None and audit_input.not_inputs:
        names = audit_input.data.domain.names
        reads = tuple(name for name in names if name not in audit_input.not_inputs)
        audit_input = replace(audit_input, reads=reads)
    return audit_input


def _check_domain(table: Any, domain: object, target: str | None, take_rules: TakeRules) -> bool:
    """Return whether the domain is declared, not inferred; refuse what contradicts it."""
    if isinstance(table, Dataset) and (domain is not None or target is not None):
        raise DataError(f"{table.name}: this table has its own domain and target. Leave out others")
    if domain is not None and target is not None:
        raise DataError(f"target '{target}': the domain names the target. Leave one of the two out")
    is_declared = isinstance(table, Dataset) or domain is not None
    if is_declared and take_rules != "none":
        raise DataError(f"take rules '{take_rules}': only for an inferred domain. Write the rules into the domain file")
    return is_declared


def _check_reads(audit_input: AuditInput, target: str | None) -> None:
    """Refuse a model that reads a column that is no input, or the target."""
    model = source_of(audit_input.source.model)
    for name in set(audit_input.reads or ()) & set(audit_input.not_inputs):
        raise ModelError(
            f"{model}: reads '{name}', which is no input: {_explain_no_input(audit_input, name)}. Add it to the "
            "inputs, or use a model without it"
        )
    if audit_input.reads is not None and target in audit_input.reads:
        raise ModelError(f"{model}: reads the target '{target}' itself. Name the column that it predicts")


def draw_records(domain: TableDomain, seed: int = 0) -> Dataset:
    """Return records drawn from a domain, without labels, where there is no table."""
    rows = domain.sample(DRAWN_RECORDS, torch.Generator().manual_seed(seed))
    return Dataset(domain.name, domain, rows, torch.full((len(rows),), UNKNOWN))


def _read_and_infer(
    table: Any,
    source: ModelSource,
    match: Callable[..., tuple[str, ...] | None],
    sensitive: Sequence[str],
    target: str | None,
    take_rules: TakeRules,
    not_inputs: Sequence[str],
) -> AuditInput:
    """Return a table with a domain that is read off it.

    A tolerance is for quantities, so a target has no classes then. A model that reads an empty cell among numbers, as
    trees do, is given empty cells and not the median.
    """
    if not sensitive:
        raise DataError("name a domain, or the sensitive attributes (and the target) so that one can be inferred")
    sheet = read_sheet(table)
    reads = match(tuple(sheet.columns))

    def infer(keep_missing: bool) -> AuditInput:
        regression = source.decision is not None and source.decision.kind == "tolerance"
        inference = InferenceSettings(reads, regression, keep_missing, take_rules, not_inputs)
        draft = draft_domain(sheet, sensitive=sensitive, target=target, settings=inference)
        data = replace(read_table(sheet, draft.domain), inferred=True)
        return AuditInput(data, draft.text, True, reads, draft.left_out, draft.remarks, sheet.joined, source)

    with_empty = infer(source.model is not None)
    if source.model is None or all(attribute.empty is None for attribute in with_empty.data.domain.attributes):
        return with_empty
    with_empty, filled = with_empty.with_model(), infer(False).with_model()
    reads_empty = with_empty.model is not None and with_empty.model.kind in _READ_CELLS
    has_network = filled.model is None or filled.model.white_box  # or it is refused later
    return with_empty if reads_empty and not has_network else filled


def _check_order(order: Sequence[str], names: Sequence[str] | None, *, is_declared: bool) -> None:
    """Refuse an order of inputs where something else says it."""
    text = ",".join(order)
    if is_declared:
        raise DataError(
            f"--columns {text}: the domain sets the order of the inputs. Change it there, or leave out --columns"
        )
    if names is not None:
        raise DataError(
            f"--columns {text}: the model names its inputs itself ({', '.join(names)}). Leave out --columns"
        )


def _order_columns(sheet: Sheet, order: Sequence[str]) -> Sheet:
    """Return a table with the columns of a model's inputs first, in their order."""
    missing = next((name for name in order if name not in sheet.columns), None)
    if missing is not None:
        raise DataError(f"--columns: {sheet.path} has no column '{missing}'. {did_you_mean(missing, sheet.columns)}")
    return replace(sheet, columns={name: sheet.columns[name] for name in dict.fromkeys((*order, *sheet.columns))})


def _read_with_domain(
    table: Any,
    source: ModelSource,
    match: Callable[..., tuple[str, ...] | None],
    declared: TableDomain,
    text: str | None,
    not_inputs: Sequence[str],
) -> AuditInput:
    """Return a table whose domain is given."""
    reads = match(declared.names, "domain")
    domain = limit_domain(declared, declared.names if reads is None else {*reads, *declared.sensitive})
    left_out = tuple(ExcludedColumn(name, UNREAD) for name in declared.names if name not in domain.names)
    if not_inputs:
        attributes = tuple(replace(a, encode="none") if a.name in not_inputs else a for a in domain.attributes)
        domain = replace(domain, attributes=attributes)
    if left_out and text is not None:
        text = f"# Without {', '.join(quote(column.column) for column in left_out)}: {UNREAD}.\n{format_domain(domain)}"
    elif not_inputs and text is not None:
        text = format_domain(domain)
    if isinstance(table, Dataset):
        data = replace(table.only(domain.names), domain=domain)
        return AuditInput(data, text, reads=reads, left_out=left_out, source=source)
    sheet = read_sheet(table)
    for name in sheet.joined.names if sheet.joined is not None else ():
        if name in domain.names and domain.attributes[domain.column(name)].is_input:
            raise DomainError(
                f"{domain.name}: '{name}' is in a separate table, so it is no input of a model. Write "
                'encode = "none" for it in the domain file'
            )
    return AuditInput(read_table(sheet, domain), text, False, reads, left_out, sheet.remarks, sheet.joined, source)


def _fit_width(read: Callable[[Sequence[str]], AuditInput], audit_input: AuditInput) -> AuditInput:
    """Return a table that fits a model without names for its inputs: with the sensitive columns, or without them.

    If neither fits, the model is refused later.
    """
    sensitive = audit_input.data.domain.sensitive
    if len(sensitive) == len(audit_input.data.domain.attributes):
        return audit_input
    audit_input = audit_input.with_model()
    if audit_input.refusal is None:
        return audit_input
    narrow = read(sensitive).with_model()
    remark = f"{join_words(sensitive)}: no input of the model, which fits the other columns only"
    return audit_input if narrow.refusal is not None else replace(narrow, remarks=(*narrow.remarks, remark))


def _declare_raw_numbers(audit_input: AuditInput) -> AuditInput:
    """Return a table whose domain declares its own numbers, if a model of arrays reads these.

    Else the model would read other numbers with the domain file that is written now.
    """
    text, domain = audit_input.domain_text or "", audit_input.data.domain
    if any(attribute.values and attribute.values != ("0", "1") for attribute in domain.attributes):
        return audit_input
    audit_input = audit_input.with_model()
    model = audit_input.model
    if model is None or not model.by_position or model.declared or model.kind not in _READ_CELLS:
        return audit_input
    text = text.replace("\n[attributes]\n", f"\n{_RAW_ENCODING}\n[attributes]\n", 1)
    raw = tuple(a if a.name in audit_input.not_inputs else replace(a, encode="raw") for a in domain.attributes)
    return replace(audit_input.with_domain(replace(domain, attributes=raw)), domain_text=text)


def _explain_no_input(audit_input: AuditInput, name: str) -> str:
    """Return why a column is no input of a model."""
    file = None if audit_input.joined is None or name not in audit_input.joined.names else audit_input.joined.sheet.path
    return f"it is in {file}, a separate table" if file is not None else 'the domain says encode = "none"'


def _read_domain(domain: TableDomain | str | Path | None, sensitive: Sequence[str]) -> tuple[TableDomain, str | None]:
    """Return a domain, and the text of its file if it has one."""
    text = None
    if not isinstance(domain, TableDomain):
        path = Path(str(domain))
        domain, text = read_domain(path), path.read_text(encoding="utf-8")
    return domain.with_sensitive(*sensitive) if sensitive else domain, text
