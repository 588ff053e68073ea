"""One audit from its words: what it is told, what it reads and writes, and the whole of it in one call."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from neuronfair.cli import options, tables
from neuronfair.errors import DataError
from neuronfair.formatting import visible

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.gate.checks import LoadedChecks
    from neuronfair.audits.report.report import Report
    from neuronfair.audits.run import Result
    from neuronfair.audits.settings import AuditSettings
    from neuronfair.audits.stages.playground import Playground
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import Opened
    from neuronfair.model.training_loop import TrainingSettings
    from neuronfair.model.weights import Card
    from neuronfair.scale.pool import Pool

LARGE = 10_000  # rows from which on large steps cost a classifier no accuracy


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one audit is told: options of `neuronfair audit`, and keys of the file of `neuronfair audit-all`."""

    data: str = "adult"
    model: str | None = None
    weights: Path | None = None
    preprocess: str | None = None
    trust_pickle: bool = False
    decision: str | None = None
    domain: Path | None = None
    target: str | None = None
    favourable: str | None = None
    columns: str | None = None
    attributes_file: Path | None = None
    key: str | None = None
    sensitive: str | None = None
    take_rules: Literal["none", "free", "all"] = "none"
    encoding: str = "default"
    interactive: bool = False
    quick: bool = False
    seeds: int | None = None
    steps: int | None = None
    seconds: float | None = None
    samples: int | None = None
    prove: float | None = None
    twins: Literal["flip", "counterpart"] | None = None
    plausible: float = 0.0
    population: Path | None = None
    repair: bool | None = None
    fail_if: tuple[str, ...] = ()
    trust_feeding: bool = False
    corpus: Path | None = None
    corpus_add: bool = True
    baseline: Path | None = None
    device: str = "cpu"
    seed: int = 0

    @property
    def source(self) -> options.ModelOptions:
        """The model; one that no reader takes is refused."""
        said = (self.weights, self.trust_pickle, self.decision, self.device, self.preprocess, self.columns)
        return options.ModelOptions(self.model, *said)

    @property
    def settings(self) -> AuditSettings:
        """How thorough it is."""
        from neuronfair.audits.settings import AuditSettings

        settings = AuditSettings.quick() if self.quick else AuditSettings()
        said = {field.name: getattr(self, field.name, None) for field in fields(AuditSettings)}
        return replace(settings, **{name: value for name, value in said.items() if value is not None})

    @property
    def reads(self) -> tuple[Path, ...]:
        """The files that it reads and may not write: a corpus is read and added to, a baseline may be replaced."""
        from neuronfair.domain.tables.files import table_file

        data = table_file(self.data)[0] if self.data else None
        named = (data, self.model, self.weights, self.domain, self.attributes_file, self.population)
        return tuple(Path(name) for name in (*named, None if self.corpus_add else self.corpus) if name is not None)


def carry_out(
    order: Order,
    outputs: Outputs,
    console: Console,
    *,
    command: str,
    force: bool = False,
    pool: Pool | None = None,
) -> Result:
    """Do an audit, write its files, and return what came of it; `failure` says why checks could not be judged."""
    source = order.source
    from neuronfair.audits.folder import WEIGHTS, check_audit_folder, check_writable, own_weights
    from neuronfair.audits.gate.checks import Checks
    from neuronfair.audits.provenance import Apart
    from neuronfair.audits.run import run
    from neuronfair.audits.stages.playground import playground
    from neuronfair.domain.population.model import read_people
    from neuronfair.domain.tables.dataset import DATASETS
    from neuronfair.render.terminal import progress_bar
    from neuronfair.store.ledger import check_discardable, discard

    out = outputs.folder
    if force:
        check_writable(out)
        check_discardable(out, (*order.reads, order.corpus, order.baseline))
    else:
        check_audit_folder(out)
    outputs.check(order)
    options.check_device(order.device)
    options.read_decision(order.decision)
    settings = order.settings
    beside = tables.JoinOptions.of(order.attributes_file, order.key)
    described = (order.encoding, order.domain, order.sensitive, order.target)
    found = tables.load_data(order.data, *described, source, order.take_rules, beside)
    found = found.with_favourable(order.favourable)
    table = found.data
    people = None if order.population is None else read_people(order.population, table.domain)
    for remark in found.remarks:
        console.print(f"Table: {remark}")
    checks = Checks(order.fail_if, order.corpus, order.corpus_add, order.baseline, order.trust_feeding)
    ready = checks.read(table.domain)
    own = own_weights(out) if order.model is None and not force else None
    opened, card = _open_or_train(source, table, own, ready, settings, _training(table, order.quick), console)
    game = playground(opened, table) if order.interactive else None
    again = replace(found.source, model=order.model or str(out / WEIGHTS))  # one that is trained now is kept first
    origin = replace(
        found.origin,
        command=command,
        card=card,
        trained_here=order.model is None,
        table=None if order.data in DATASETS else order.data,
        beside=() if beside is None else beside.words,
        apart=None if pool is None else Apart(pool, again.open),
    )
    if force:  # not before all that can be wrong was read
        discard(out)
    with progress_bar("Auditing", quiet=console.quiet) as show:
        result = run(
            opened,
            table,
            settings=settings,
            ready=ready,
            origin=origin,
            folder=out,
            progress=lambda what, done, total, note="": show(done, total, note, what=what),
            people=people,
        )
    outputs.write(result.report, game)
    if result.failure is None:
        ready.extend(result.report)
    return result


@dataclass(frozen=True)
class Outputs:
    """The files that an audit writes besides its runs."""

    folder: Path
    html: Path
    json: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def check(self, order: Order) -> None:
        """Refuse files that cannot be written, that the audit reads, or that it writes as something else."""
        from neuronfair.audits.folder import FIGURES, WEIGHTS
        from neuronfair.store.manifest import DOMAIN, MANIFEST

        own = {name: self.folder / name for name in (MANIFEST, DOMAIN, WEIGHTS, "model.json", FIGURES)}
        for place in own.values():
            if place.exists():
                options.check_out(place)
        taken = {realpath(path): f"{name} of the audit in {self.folder}" for name, path in own.items()}
        corpus = order.corpus if order.corpus_add else None  # which is written
        taken |= {realpath(path): "read by this audit" for path in order.reads}
        named = {"--html": self.html, "--json": self.json, "--junit": self.junit, "--markdown": self.markdown}
        for option, path in {**named, "--corpus": corpus}.items():
            if path is None or (
                option == "--json" and (options.is_stdout(path) or realpath(path) == realpath(own[FIGURES]))
            ):
                continue
            if realpath(path) in taken:
                raise DataError(f"{option} {path}: is {taken[realpath(path)]}. Choose another name")
            taken[realpath(path)] = f"also named by {option}"
            if self.folder.exists() or path.absolute().parent != self.folder.absolute():  # which is made later
                options.check_out(path)

    def write(self, report: Report, game: Playground | None) -> None:
        """Write them all but audit.json, which the audit has written."""
        from neuronfair.audits.folder import FIGURES
        from neuronfair.render.junit import junit
        from neuronfair.render.markdown import markdown
        from neuronfair.render.page import audit_page

        options.write_file(self.html, audit_page(report, game))
        if self.junit is not None:
            options.write_file(self.junit, junit(report))
        if self.markdown is not None:
            options.write_file(self.markdown, markdown(report))
        if self.json is not None and options.is_stdout(self.json):
            sys.stdout.write(visible(report.to_json(), keep="\n"))
        elif self.json is not None and realpath(self.json) != realpath(self.folder / FIGURES):
            options.write_file(self.json, report.to_json())


def _open_or_train(
    source: options.ModelOptions,
    table: Dataset,
    own: Path | None,
    ready: LoadedChecks,
    settings: AuditSettings,
    training: TrainingSettings,
    console: Console,
) -> tuple[Opened, Card | None]:
    """Return the model and the card of one of our own; without a --model, `own` or one that is trained now."""
    from neuronfair.audits.folder import check_same
    from neuronfair.audits.settings import WHITE
    from neuronfair.model.weights import load
    from neuronfair.store.manifest import rows_digest

    if source.model is None and own is None:
        ready.refuse(table.domain.sensitive, settings.methods or WHITE, settings.twins)
        return source.train(table, console, settings.seed, training)
    if own is not None:  # the classifier of that audit is right for the same table only
        check_same(own.parent, {"domain": table.domain.fingerprint, "rows": rows_digest(table.rows)})
    path = source.model or str(own)
    opened = replace(source, model=path).open(table)
    ready.refuse(table.domain.sensitive, settings.methods_for(opened), settings.twins)
    return opened, load(path)[1] if opened.kind == "neuronfair" else None


def _training(table: Dataset, quick: bool) -> TrainingSettings:
    """Return how to train a classifier on the spot: in seconds rather than minutes on a large table."""
    from neuronfair.model.training_loop import TrainingSettings

    if len(table) < LARGE:
        return TrainingSettings(restarts=1) if quick else TrainingSettings()
    return TrainingSettings(restarts=1, batch=512, lr=0.003, patience=2 if quick else 5, epochs=10 if quick else 100)
