"""What was audited: the entries of an audit about the data, the model, and how to do it again."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neuronfair.audits.folder import WEIGHTS
from neuronfair.audits.report import DataReport, DecisionReport, ModelReport, Reproduction
from neuronfair.audits.settings import AuditSettings
from neuronfair.domain.schema.column_types import ExcludedColumn
from neuronfair.domain.tables.dataset import DATASETS, Dataset
from neuronfair.model.blackbox import score_in_batches
from neuronfair.model.decision import Scale, infer_scale
from neuronfair.model.formats import PICKLE_SUFFIXES, REFITTED
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel
from neuronfair.model.records import prepare_records
from neuronfair.model.weights import Card
from neuronfair.scale.pool import Pool
from neuronfair.store.ledger import DOMAIN, rows_digest, versions

MAX_SCALE_RECORDS = 256  # records, and as many drawn ones, whose scores tell what scores are


@dataclass(frozen=True)
class ParallelAudit:
    """Who audits by several choices of sensitive attributes side by side, and how the model is opened there."""

    pool: Pool
    opens: Callable[[Dataset], OpenedModel]


@dataclass(frozen=True)
class Provenance:
    """Where model and table came from, for the page and for doing it again."""

    command: str = ""
    card: Card | None = None  # of a network trained on this table: its seed tells which rows it has not seen
    trained_here: bool = False
    weights: Path | None = None  # of a module that Python code makes
    trust_pickle: bool = False  # the user has said that the model may be opened although it can run a program
    # The user's function that makes the model's inputs of a table; a command can only be told its name.
    preprocess: Callable[[Any], Any] | str | None = None
    table: str | None = None  # the file, if it is a table of the user's own
    join_options: tuple[str, ...] = ()  # the options that name the separate file of sensitive columns, if any
    domain_text: str | None = None  # as the domain file is to be written, comments included
    inferred: bool = False
    reads: tuple[str, ...] | None = None  # the columns that the model reads, where it says so
    left_out: tuple[ExcludedColumn, ...] = ()
    parallel: ParallelAudit | None = None  # workers that audit by several choices of sensitive attributes
    processes: int | None = None  # in which stages run side by side, at most; None: where no thread is unknown


def report_data(data: Dataset, sensitive: Sequence[str], provenance: Provenance) -> DataReport:
    """Return the report on the data set."""
    target = data.domain.target
    return DataReport(
        name=data.name,
        rows=len(data),
        attributes=len(data.domain.attributes),
        sensitive=tuple(sensitive),
        target=target.column if target is not None else None,
        classes=tuple(target.classes) if target is not None else (),
        favourable=data.domain.favourable,
        domain_inferred=provenance.inferred,
        left_out=provenance.left_out,
    )


def report_model(opened_model: OpenedModel, data: Dataset, provenance: Provenance) -> ModelReport:
    """Return the report on the model; accuracy is by parts only where the training rows are known."""
    parts = {"table": data} if provenance.card is None else data.split(provenance.card.seed)._asdict()
    shares = {name: _measure_accuracy(opened_model, part) for name, part in parts.items()}
    accuracies = {name: share for name, share in shares.items() if share is not None}
    return ModelReport(
        source=f"trained on {data.name}" if provenance.trained_here else opened_model.source,
        kind=opened_model.kind,
        white_box=opened_model.white_box,
        note=opened_model.note,
        fingerprint=opened_model.fingerprint,
        outputs=opened_model.model.outputs,
        layers=dict(opened_model.model.neurons) if isinstance(opened_model.model, Network) else {},
        accuracy=accuracies if len(accuracies) == len(shares) else None,
        trained_here=provenance.trained_here,
    )


def report_decision(opened_model: OpenedModel, data: Dataset) -> DecisionReport:
    """Return the report on the decision rule."""
    return DecisionReport(opened_model.decision.kind, opened_model.decision.value, find_score_scale(opened_model, data))


def find_score_scale(opened_model: OpenedModel, data: Dataset) -> Scale:
    """Return what the scores of a model are; where its kind does not tell, by those of some records."""
    if opened_model.scale is not None:
        return opened_model.scale
    indices = torch.linspace(0, len(data) - 1, min(MAX_SCALE_RECORDS, len(data))).long()
    sampled_rows = data.domain.sample(MAX_SCALE_RECORDS, torch.Generator().manual_seed(0))
    scores = opened_model.model.scores(torch.cat([data.rows[indices.to(data.rows.device)], sampled_rows]))
    return infer_scale(opened_model.decision, scores)


def _measure_accuracy(opened_model: OpenedModel, data: Dataset) -> float | None:
    """Return the accuracy; None where labels and outputs do not go together."""
    target, decision = data.domain.target, opened_model.decision
    if target is None or not len(data) or not data.labelled:
        return None
    if len(target.classes) != decision.classes(opened_model.model.outputs):
        return None
    records = prepare_records(opened_model, data)
    decisions = decision.decide(score_in_batches(records.model, records.data.rows))
    return int((decisions == data.labels.to(decisions.device)).sum()) / len(data)


def list_replay_options(opened_model: OpenedModel, provenance: Provenance) -> tuple[str, ...] | None:
    """Return the options with which `neuronfair show` opens the model again; None for one that is only in memory."""
    if provenance.trained_here:
        return ()
    if callable(provenance.preprocess):
        return None
    preprocess_options = () if provenance.preprocess is None else ("--preprocess", provenance.preprocess)
    if Path(opened_model.source).is_file():
        is_pickle = provenance.trust_pickle or Path(opened_model.source).suffix.lower() in PICKLE_SUFFIXES
        model_options = (
            "--model",
            opened_model.source,
            *(["--trust-pickle"] if is_pickle else []),
            *preprocess_options,
        )
        return model_options if is_pickle or preprocess_options else ()
    if ":" not in opened_model.source:
        return None
    weights = () if provenance.weights is None else ("--weights", str(provenance.weights))
    return ("--model", opened_model.source, *weights, *preprocess_options)


def format_alternatives_command(
    opened_model: OpenedModel, data: Dataset, provenance: Provenance, folder: Path | None
) -> str | None:
    """Return the command that searches for a less discriminatory model; None without a file, a folder or classes.

    A model that cannot be fitted again from its file is left to a kind of estimator that always can.
    """
    domain = data.domain
    is_catalog = provenance.table is None and data.name in DATASETS
    if (
        folder is None
        or not (is_catalog or provenance.table)
        or provenance.join_options
        or not data.labelled
        or domain.target is None
    ):
        return None
    words = ["neuronfair", "alternatives", data.name if is_catalog else str(provenance.table)]
    words += ["--sensitive", ",".join(domain.sensitive)] if is_catalog else ["--domain", str(folder / DOMAIN)]
    source = folder / WEIGHTS if provenance.trained_here else Path(opened_model.source)
    if source.suffix.lower() in REFITTED and provenance.weights is None:
        words += ["--model", str(source), *(["--trust-pickle"] if provenance.trust_pickle else [])]
    else:
        words += ["--estimator", "boosting"]
    return shlex.join([*words, "--out", f"{folder}-alternatives"])


def report_reproduction(
    opened_model: OpenedModel,
    data: Dataset,
    settings: AuditSettings,
    provenance: Provenance,
    interrupted: bool,
    folder: Path | None,
) -> Reproduction:
    """Return how to repeat an audit, and how to export its findings."""
    environment = versions()
    return Reproduction(
        command=provenance.command,
        seed=settings.seed,
        created=environment["created"],
        python=environment["python"],
        torch=environment["torch"],
        numpy=environment["numpy"],
        platform=platform.platform(),
        domain=data.domain.fingerprint,
        rows=rows_digest(data.rows),
        model=opened_model.fingerprint,
        interrupted=interrupted,
        reduced=settings.reduced,
        export=None if folder is None else shlex.join(["neuronfair", "show", str(folder), "--out", "findings.xlsx"]),
        alternatives=format_alternatives_command(opened_model, data, provenance, folder),
    )
