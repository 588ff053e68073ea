"""Audits and proofs in Python: any model and any table in one call, and a result that shows itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from neuronfair.atomic import write_text
from neuronfair.audits.gate.checks import Checks
from neuronfair.audits.inputs import ModelSource, drawn_from, prepare
from neuronfair.audits.provenance import ParallelAudit
from neuronfair.audits.report.report import Report
from neuronfair.audits.run import run
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.wording.summary import NOT_MEASURED, metrics, status
from neuronfair.domain.population.model import read_people
from neuronfair.domain.schema.rule_mining import TakeRules
from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.twins import TwinKind
from neuronfair.errors import DataError, EncodingError
from neuronfair.model.decision import Decision
from neuronfair.progress import Progress, silent
from neuronfair.proof.report import ProofReport
from neuronfair.proof.session import certify as certify_problem
from neuronfair.proof.session import problem_where
from neuronfair.render.export import findings_frame, groups_frame
from neuronfair.render.markdown import markdown
from neuronfair.render.page import audit_page, verdict_card
from neuronfair.render.terminal import progress_bar
from neuronfair.scale.pool import Pool
from neuronfair.searches.config import SearchResult

_FORMS: dict[str, Callable[[Report], str]] = {".html": audit_page, ".json": Report.to_json, ".md": markdown}
_OPENING = {field.name for field in fields(ModelSource)} - {"model"}  # the options of `audit` that open the model


@dataclass(frozen=True, repr=False)
class Audit:
    """What an audit came to; a notebook shows its verdict.

    `report` holds all figures, `outcomes` what each search found, by attribute and method.
    """

    report: Report
    outcomes: Mapping[tuple[str, str], SearchResult]
    folder: Path | None = None
    remarks: tuple[str, ...] = ()  # about the table, and how it was read

    @property
    def verdict(self) -> str:
        """The verdict in a sentence or two."""
        return self.report.verdict.text

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the audit early."""
        return self.report.reproduction.interrupted

    @property
    def findings(self) -> Any:
        """Everybody whose decision flips, a line each, as a DataFrame of pandas."""
        return findings_frame(self.outcomes)

    @property
    def groups(self) -> Any:
        """How groups fare, as a DataFrame of pandas: those of the table, and those in whom flips are frequent."""
        return groups_frame(self.report)

    def save(self, path: str | Path) -> Path:
        """Write the audit and return where: as a page (.html), all figures (.json), or a summary (.md)."""
        path = Path(path)
        form = _FORMS.get(path.suffix.lower())
        if form is None:
            raise DataError(f"{path}: expected a name that ends in {', '.join(_FORMS)}")
        try:
            write_text(path.resolve(), form(self.report))
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
        return path

    def __repr__(self) -> str:
        data = self.report.data
        lines = [
            f"Audit of {data.name} by {', '.join(data.sensitive)}",
            self.report.verdict.headline,
            status(self.report),
        ]
        for one in self.report.attributes:
            known = [f"{m.name} {m.with_range}" for m in metrics(one) if m.value != NOT_MEASURED]
            lines.append(f"  {one.name}: {', '.join(known) or 'not measured'}")
        lines += [f"  data set: {remark}" for remark in self.remarks]
        return "\n".join([*lines, *([] if self.folder is None else [f"  folder: {self.folder}"])])

    def _repr_html_(self) -> str:
        return verdict_card(self.report, self.folder)


class AuditOptions(TypedDict, total=False):
    """What `audit` is seldom told: how to open the model, and what the audit is judged by."""

    preprocess: Callable[[Any], Any] | str | None  # from a table to the inputs of a torch or Keras model
    decision: Decision | None  # what counts as another decision; by default as the outputs suggest
    columns: Sequence[Any] | None  # the inputs, in their order, of a model that has no names for them
    weights: Path | None  # a safetensors file for `package.module:name`
    trust_pickle: bool  # open files that can run a program
    device: str
    favourable: str | None  # the favourable outcome, a class of the target; by default as the domain says
    checks: Checks | None  # limits, past counterexamples and an earlier audit
    take_rules: TakeRules  # that the table suggests: "free" of sensitive attributes, or "all"
    prove: float  # seconds in which all proofs are tried; by default as the settings say; 0: none
    population: Any  # people of your own sampler: a table of them, or a function that draws so many as it is told
    plausible: float  # least plausibility of the people searched among; by default as the settings say
    twins: TwinKind | None  # "flip" or "counterpart": whom people are compared with; by default as the settings say
    pool: Pool | None  # who audits by several attributes side by side; by default they come one after the other


def audit(
    model: Any,
    data: Dataset | Any,
    *,
    sensitive: Any = None,
    target: Any = None,
    domain: TableDomain | str | Path | None = None,
    settings: AuditSettings | None = None,
    folder: str | Path | None = None,
    progress: Progress | bool | None = None,
    **seldom: Unpack[AuditOptions],
) -> Audit:
    """Audit a model with a table of people: how often, where and for whom a sensitive attribute flips the decision.

    The model is whatever `open_model` takes, and so are `decision`, `preprocess` and the other options. The table is a
    DataFrame (pandas, Polars), an Arrow table, a mapping of columns, a file, or `Dataset`. What a person may be is read
    off it, by the names of the sensitive attributes and of the target, unless a `domain` says it; columns that the
    model does not read are left out. Without a target, nothing is said about accuracy and error rates, and the input
    encoding cannot be checked. Where the model is not given the sensitive attributes and the table does not have them,
    give their columns instead of their names (`sensitive=df2["sex"]`; a Series, a DataFrame, an array or a mapping):
    they belong to the table row by row, those of pandas by their index where both have the same.

    Each of the sensitive attributes is looked at alone, then all together. `checks` are limits, past counterexamples
    and an earlier audit that it is judged by. Who is plausible says a model of the table, unless a `population` does.
    With a folder, every search is a run in it that survives a kill (the same audit goes on from there), and the figures
    are left in its audit.json.

    `progress` is a function, or False for none; by default a bar is shown on terminals and in notebooks.

    >>> people = {"age": [20, 30, 40, 50] * 9, "sex": ["f", "m", "m"] * 12, "hired": ["no", "yes", "no", "yes"] * 9}
    >>> def model(table):
    ...     return (table.age > 45) | ((table.age > 25) & (table.sex == "m"))
    >>> small = AuditSettings.quick(seeds=5, steps=5)
    >>> audit(model, people, sensitive="sex", target="hired", settings=small).report.attributes[0].rates.table.rate
    0.5
    >>> sexes = people.pop("sex")
    >>> blind = audit(lambda table: table.age > 25, people, sensitive={"sex": sexes}, target="hired", settings=small)
    >>> blind.report.attributes[0].rates.table.rate
    0.0
    """
    opening: Mapping[str, Any] = {name: value for name, value in seldom.items() if name in _OPENING}
    source = ModelSource(model, **opening)
    case = prepare(
        data,
        source,
        domain=domain,
        sensitive=sensitive,
        target=target,
        favourable=seldom.get("favourable"),
        take_rules=seldom.get("take_rules", "none"),
    )
    checks = seldom.get("checks") or Checks()
    table, opened, settings = case.data, case.opened, settings or AuditSettings()
    ready = checks.read(table.domain)
    settings = replace(
        settings,
        prove=seldom.get("prove", settings.prove),
        plausible=seldom.get("plausible", settings.plausible),
        twins=seldom.get("twins", settings.twins),
    )
    population = seldom.get("population")
    people = None if population is None else read_people(population, table.domain)
    ready.refuse(table.domain.sensitive, settings.methods_for(opened), settings.twins)
    pool = seldom.get("pool")
    origin = replace(
        case.origin,
        table=str(data) if isinstance(data, (str, Path)) and case.joined is None else None,
        parallel=None if pool is None else ParallelAudit(pool, source.open),
    )
    with _shown(progress) as show:
        result = run(
            opened, table, settings=settings, ready=ready, origin=origin, folder=folder, progress=show, people=people
        )
    if result.failure is not None and (checks.fail_if or not isinstance(result.failure, EncodingError)):
        raise result.failure  # without limits the report says that there is no verdict
    ready.extend(result.report)
    return Audit(result.report, result.outcomes, None if folder is None else Path(folder), case.remarks)


@contextmanager
def _shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """Give what shows how far an audit is: what the user has given, a bar where somebody looks, or nothing."""
    if callable(progress):
        yield progress
    elif progress is False:
        yield silent
    else:
        with progress_bar("Auditing") as bar:
            yield lambda what, done, total, note="": bar(done, total, note, what=what)


class ProofOptions(TypedDict, total=False):
    """What `prove` is seldom told: how to open the model, and who proves."""

    preprocess: Callable[[Any], Any] | str | None  # from a table to the inputs of a torch or Keras model
    decision: Decision | None  # what counts as another decision; by default as the outputs suggest
    weights: Path | None  # a safetensors file for `package.module:name`
    trust_pickle: bool  # open files that can run a program
    pool: Pool | None  # workers that prove together


def prove(
    model: Any,
    data: Dataset | TableDomain | Any,
    *,
    sensitive: str | Sequence[str] | Any | None = None,
    where: str = "",
    seconds: float = 60.0,
    target: str | None = None,
    device: str = "cpu",
    **seldom: Unpack[ProofOptions],
) -> ProofReport:
    """Prove for how many people the decision cannot flip when only a sensitive attribute changes.

    Model and table are whatever `audit` takes; a domain, or its TOML file, does without a table. `where` asks about
    some people only. What is neither proved fair nor proved discriminatory is undecided. Ctrl-C ends it with what is
    proved. The workers of a `pool` prove together. `neuronfair certify` does the same in a folder that
    survives a kill, with a certificate.

    >>> people = {"age": [20, 30, 40, 50] * 9, "sex": ["f", "m", "m"] * 12, "hired": ["no", "yes", "no", "yes"] * 9}
    >>> def model(table):
    ...     return (table.age > 45) | ((table.age > 25) & (table.sex == "m"))
    >>> report = prove(model, people, sensitive="sex", target="hired")
    >>> report.complete, report.proved_discriminatory
    (True, Part(count='40', share=0.6451612903225806))
    """
    opening: Mapping[str, Any] = {name: value for name, value in seldom.items() if name != "pool"}
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".toml":
        data = read_domain(data)
    if isinstance(data, TableDomain):
        data = drawn_from(data)
    case = prepare(data, ModelSource(model, device="cpu", **opening), sensitive=sensitive, target=target)
    table, opened = case.data, case.opened
    problem = problem_where(opened, table.domain, where, device)
    with progress_bar("Proving") as bar:
        return certify_problem(
            problem,
            opened,
            table,
            seconds,
            show=lambda what, *rest: bar(*rest, what=what),
            pool=seldom.get("pool"),
        )
