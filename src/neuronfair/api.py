"""Audits, certificates and flip rates in Python: one call for any model and any data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Required, TypedDict, Unpack, cast, overload

from torch import Tensor

from neuronfair.audits.gate.checks import Checks
from neuronfair.audits.inputs import ModelSource, drawn_from, prepare
from neuronfair.audits.provenance import ParallelAudit
from neuronfair.audits.report import Report
from neuronfair.audits.run import run
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.wording.summary import NOT_MEASURED, metrics, status
from neuronfair.domain.population.model import fit_population, read_people
from neuronfair.domain.schema.rule_mining import TakeRules
from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.tables.files import with_columns
from neuronfair.errors import DataError, EncodingError, NeuronFairError, refuse_unknown
from neuronfair.formatting import SHARE_OF, TwinKind, printable
from neuronfair.measure.rate import Rate, Until, flip_rate
from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel
from neuronfair.parameters import Values, find_parameters, values_of, with_current_names
from neuronfair.plots import new_axes
from neuronfair.progress import Progress, show_nothing
from neuronfair.proof.records import Order, ProofRecords
from neuronfair.proof.report import ProofReport
from neuronfair.proof.session import certify as certify_problem
from neuronfair.proof.session import problem_where
from neuronfair.render.export import findings_frame, groups_frame, rates_frame, save_as
from neuronfair.render.page import audit_page, verdict_card
from neuronfair.render.tables import markdown
from neuronfair.render.terminal import stage_progress
from neuronfair.scale.pool import Pool
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.forked import default_workers
from neuronfair.text.audit import TextAudit, TextOptions, TextSettings, audit_texts
from neuronfair.text.domain import read_texts

_FORMS: dict[str, Callable[[Report], str]] = {".html": audit_page, ".json": Report.to_json, ".md": markdown}
LINES = 10  # in the repr of an audit
_OPENING = {field.name for field in fields(ModelSource)} - {"model"}  # the options of `audit` that open the model


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of an audit; notebooks display its verdict.

    `report` holds all metrics, `outcomes` the findings of each search by attribute and method.
    """

    report: Report
    outcomes: Mapping[tuple[str, str], SearchResult]
    folder: Path | None = None
    remarks: tuple[str, ...] = ()  # on how the data set was read

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
        """All discriminatory instances as a pandas DataFrame, one row each."""
        return findings_frame(self.outcomes)

    @property
    def groups(self) -> Any:
        """The metrics of demographic groups and of subgroups as a pandas DataFrame."""
        return groups_frame(self.report)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML document."""
        return audit_page(self.report)

    def to_frame(self) -> Any:
        """Return the flip rates with their confidence intervals as a pandas DataFrame."""
        return rates_frame(self.report)

    def plot(self, axes: Any = None) -> Any:
        """Draw the flip rates with their confidence intervals; returns the matplotlib axes."""
        axes = new_axes() if axes is None else axes
        rates = [(one.name, rate) for one in self.report.attributes for rate in one.rates.measured]
        places, shares = range(len(rates)), [100 * rate.rate for _, rate in rates]
        below, above = ([100 * abs(getattr(rate, end) - rate.rate) for _, rate in rates] for end in ("low", "high"))
        axes.barh(places, shares, xerr=[below, above], capsize=3)
        axes.set_yticks(
            places, [printable(f"{name}, {SHARE_OF[rate.population]}") for name, rate in rates], parse_math=False
        )
        axes.invert_yaxis()
        axes.set_xlabel("flip rate in %")
        return axes

    def save(self, path: str | Path) -> Path:
        """Write the report (.html), all metrics (.json) or a summary (.md); returns the path."""
        return save_as(path, {ending: partial(form, self.report) for ending, form in _FORMS.items()})

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
        lines += [] if self.folder is None else [f"  folder: {self.folder}"]
        if len(lines) > LINES:
            lines = [*lines[: LINES - 1], f"  … {len(lines) - LINES + 1} more lines: see the report and the folder"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return verdict_card(self.report, self.folder)


class ModelKeywords(TypedDict, total=False):
    """Options that open a model, and the names that scikit-learn users know."""

    preprocess: Callable[[Any], Any] | str | None  # from a DataFrame to the inputs of a torch or Keras model
    decision: Decision | None  # what counts as a different decision; default: chosen from the outputs
    columns: Sequence[Any] | None  # the inputs in order, for a model that does not name them
    weights: Path | None  # a safetensors file for `package.module:name`
    trust_pickle: bool  # open pickle files, which can run any code
    device: str
    sensitive_features: Any  # the same as `sensitive`


class AuditOptions(ModelKeywords, total=False):
    """Keyword options of `audit`."""

    sensitive: Any  # names of the sensitive attributes, or their values: see `audit`
    target: Any  # the column that the model predicts
    domain: TableDomain | str | Path | None  # input schema or its TOML file; default: inferred from the data
    settings: AuditSettings | None
    folder: str | Path | None  # to make or to resume in
    progress: Progress | bool | None  # False for none; default: a progress bar
    favourable: str | None  # favourable outcome, a class of the target; default: that of the domain
    checks: Checks | None  # thresholds, a regression set and an earlier audit to compare with
    take_rules: TakeRules  # rules suggested by the data to adopt: "none", "free" (of sensitive attributes) or "all"
    prove: float  # time limit of proofs in seconds, 0 for none; default: that of the settings
    population: Any  # realistic records from your own sampler: a table, or a function of their number
    plausible: float  # minimum likelihood percentile of generated records; default: that of the settings
    twins: TwinKind | None  # only the attribute-flip test ("flip"), or only the counterfactual test ("counterfactual")
    pool: Pool | None  # workers that audit several attributes in parallel
    random_state: int | None  # the same as the seed


class TextKeywords(TextOptions, total=False):
    """Keyword options of `audit` for a model of texts."""

    sensitive: Required[Any]  # a lexicon of identity terms, or its CSV file
    target: Any  # the column of labels
    folder: str | Path | None  # to make or to resume in
    progress: Progress | bool | None  # False for none; default: a progress bar
    settings: Any  # `neuronfair.TextSettings`
    random_state: int | None  # the seed


@overload
def audit(model: Any, data: Any, *, text: str, **options: Unpack[TextKeywords]) -> TextAudit: ...


@overload
def audit(model: Any, data: Dataset | Any, **options: Unpack[AuditOptions]) -> Audit: ...


def audit(model: Any, data: Any, *, text: str | None = None, **options: Any) -> Audit | TextAudit:
    """Test whether the decisions of a model depend on a sensitive attribute, how often and for whom.

    `model` is anything that `wrap_model` opens: a fitted estimator, a torch module, a function, a file. `data` is a
    DataFrame (pandas, Polars), an Arrow table, a mapping of columns, a file or a `Dataset`. Name the sensitive
    attributes and the target column; the input schema is inferred from the data unless you pass a `domain`. Columns
    that the model does not use are left out. Without a target there are no accuracy or error rates, and no check of
    the input encoding.

    If the sensitive attributes are not in `data`, pass their values instead of their names, for example
    `sensitive=df2["sex"]`: a Series, a DataFrame, an array or a mapping with one value per record. Pandas objects are
    matched by index if both have the same index.

    The audit tests each sensitive attribute alone, then all of them together. `checks` adds thresholds, a regression
    set and a comparison with an earlier audit. `folder` stores all findings and audit.json; the same call resumes an
    interrupted audit. `progress` is a function, or False for none; the default is a progress bar in terminals and
    notebooks. `options` are those of `AuditOptions`, and the parameters of `AuditSettings` by their names.

    Note: on a busy machine, audits of networks are faster with the environment variable `OMP_WAIT_POLICY=PASSIVE`.
    Importing neuronfair before torch sets it.

    With `text`, the name of a column of texts, the model is one of texts and `sensitive` is a lexicon of identity terms
    ("gender", "religion", …, or a CSV file): see `TextAudit`. A torch module needs its tokenizer as `preprocess`.

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
    if text is not None:
        return _audit_text(model, data, text, **options)
    return _audit_table(model, data, **options)


def _audit_table(model: Any, data: Dataset | Any, **options: Unpack[AuditOptions]) -> Audit:
    """Audit a model with a table of records."""
    options = cast(AuditOptions, with_current_names(options))
    source = ModelSource(model, **_opening(options, (*AuditOptions.__annotations__, *find_parameters(AuditSettings))))
    case = prepare(
        data,
        source,
        domain=options.get("domain"),
        sensitive=_sensitive(data, options.get("sensitive"), options),
        target=options.get("target"),
        favourable=options.get("favourable"),
        take_rules=options.get("take_rules", "none"),
    )
    checks = options.get("checks") or Checks()
    table, opened, folder = case.data, case.opened, options.get("folder")
    settings = _changed(options.get("settings") or AuditSettings(), options)
    ready = checks.read(table.domain)
    population = options.get("population")
    people = None if population is None else read_people(population, table.domain)
    ready.refuse(table.domain.sensitive, settings.methods_for(opened), settings.twins)
    pool = options.get("pool")
    origin = replace(
        case.origin,
        table=str(data) if isinstance(data, (str, Path)) and case.joined is None else None,
        parallel=None if pool is None else ParallelAudit(pool, source.open),
    )
    with _shown(options.get("progress")) as show:
        result = run(
            opened, table, settings=settings, ready=ready, origin=origin, folder=folder, progress=show, people=people
        )
    if result.failure is not None and (checks.fail_if or not isinstance(result.failure, EncodingError)):
        raise result.failure  # without thresholds, the report says that there is no verdict
    ready.extend(result.report)
    return Audit(result.report, result.outcomes, None if folder is None else Path(folder), case.remarks)


def _opening(options: ModelKeywords, known: Collection[str]) -> Values:
    """Return the options that open a model; refuse names that are not known."""
    refuse_unknown(options, known)
    return {name: value for name, value in options.items() if name in _OPENING}


def _sensitive(data: Any, sensitive: Any, options: ModelKeywords) -> Any:
    """Return the sensitive attributes; values passed as `sensitive_features` by name if the data has these columns."""
    features = options.get("sensitive_features")
    if features is None:
        return sensitive
    if sensitive is not None:
        raise DataError("sensitive and sensitive_features are the same. Leave one of the two out")
    if not hasattr(features, "equals") or not hasattr(data, "columns"):
        return features
    names = [features.name] if hasattr(features, "name") else list(features.columns)
    columns = [features] if hasattr(features, "name") else [features[name] for name in names]
    same = all(name in data.columns and data[name].equals(one) for name, one in zip(names, columns, strict=True))
    return names if same else features


def _seed(seed: int | None, default: int = 0) -> int:
    """Return the seed; None, as scikit-learn users write it, is the default seed, so that results repeat."""
    if seed is None:
        return default
    if not isinstance(seed, int):
        raise NeuronFairError(f"random_state: expected a whole number, got {type(seed).__name__}")
    return seed


def _changed(settings: AuditSettings, options: AuditOptions) -> AuditSettings:
    """Return the settings with the changes of a call."""
    changes: Values = {name: value for name, value in options.items() if name in values_of(settings)}
    changes["seed"] = _seed(options.get("random_state"), changes.get("seed", settings.seed))
    return replace(settings, **changes)


def _audit_text(model: Any, data: Any, text: str, **options: Unpack[TextKeywords]) -> TextAudit:
    """Audit a model with a column of texts."""
    refuse_unknown(options, TextKeywords.__annotations__)
    if options.get("sensitive") is None:
        raise DataError("sensitive: name a lexicon of identity terms, such as gender, or a CSV file with them")
    texts, labels = read_texts(data, text, options.get("target"))
    settings = options.get("settings") or TextSettings()
    settings = replace(settings, seed=_seed(options.get("random_state"), settings.seed))
    others: Any = {name: value for name, value in options.items() if name in TextOptions.__annotations__}
    others |= {"labels": labels, "settings": settings, "folder": options.get("folder"), "column": text}
    with _shown(options.get("progress")) as show:
        result = audit_texts(model, texts, options.get("sensitive"), progress=show, **others)
    if result.failure is not None:
        raise result.failure
    return result


@contextmanager
def _shown(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yield the progress function of the user, a progress bar, or one that shows nothing."""
    if callable(progress):
        yield progress
    elif progress is False:
        yield show_nothing
    else:
        with stage_progress("Auditing") as bar:
            yield bar


class CertifyOptions(ModelKeywords, total=False):
    """Keyword options of `certify`."""

    pool: Pool | None  # workers that prove together
    order: Order  # "records": boxes with many records come first; "volume": those with the largest undecided volume


def certify(
    model: Any,
    data: Dataset | TableDomain | Any,
    *,
    sensitive: str | Sequence[str] | Any | None = None,
    where: str = "",
    seconds: float = 60.0,
    target: str | None = None,
    **options: Unpack[CertifyOptions],
) -> ProofReport:
    """Certify for how many records the decision does not depend on the sensitive attribute.

    `model` and `data` are as in `audit`; a domain, or its TOML file, works without data. `where` restricts the proof to
    records that meet a condition, such as "age >= 30". The report counts the records of the data set, realistic
    synthetic records, and the whole input space. Records that could not be proved either way within `seconds` are
    undecided. Ctrl-C stops early and keeps what is proved. `neuronfair certify` does the same in a folder that can be
    resumed, and writes a certificate.

    >>> people = {"age": [20, 30, 40, 50] * 9, "sex": ["f", "m", "m"] * 12, "hired": ["no", "yes", "no", "yes"] * 9}
    >>> def model(table):
    ...     return (table.age > 45) | ((table.age > 25) & (table.sex == "m"))
    >>> report = certify(model, people, sensitive="sex", target="hired")
    >>> report.complete, report.proved_discriminatory
    (True, Part(count='40', share=0.6451612903225806))
    """
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".toml":
        data = read_domain(data)
    has_table = not isinstance(data, TableDomain)
    if isinstance(data, TableDomain):
        data = drawn_from(data)
    source = ModelSource(model, **{**_opening(options, CertifyOptions.__annotations__), "device": "cpu"})
    case = prepare(data, source, sensitive=_sensitive(data, sensitive, options), target=target)
    table, opened = case.data, case.opened
    problem = problem_where(opened, table.domain, where, options.get("device", "cpu"))
    if has_table:
        records = ProofRecords.of(problem, table, order=options.get("order", "records"), model=opened)
    else:
        records = ProofRecords.none(problem, table.name)
    with stage_progress("Proving") as bar:
        return certify_problem(problem, opened, records, seconds, show=bar, pool=options.get("pool"))[0]


class RateOptions(ModelKeywords, total=False):
    """Keyword options of `rate`."""

    target: str | None  # the column that the model predicts
    seed: int
    random_state: int | None  # the same as the seed
    progress: Callable[[int, int], None] | None


def rate(
    model: Any,
    data: Dataset | TableDomain | Any,
    *,
    sensitive: Any = None,
    population: Any = None,
    samples: int | Until = 10_000,
    confidence: float = 0.95,
    **options: Unpack[RateOptions],
) -> Rate:
    """Estimate the flip rate: how often the decision changes when only the sensitive attribute does (Themis).

    `model` and `data` are as in `audit`; a domain works without data. `population` is "table" (all records, the default
    with data), "domain" (drawn uniformly from the input schema, the default without), "plausible" (drawn from a model
    of the data) or "combinations" (drawn uniformly, ignoring the rules). The result has `rate` and `interval`. With
    `samples=Until(error, samples)`, sampling stops as soon as the interval is narrow enough.

    >>> people = {"age": [20, 30, 40, 50] * 9, "sex": ["f", "m", "m"] * 12}
    >>> found = rate(lambda table: (table.age > 25) & (table.sex == "m"), people, sensitive="sex")
    >>> found.rate, [round(end, 2) for end in found.interval]
    (0.75, [0.58, 0.88])
    """
    opened: Any = model
    drawn = drawn_from(data) if isinstance(data, TableDomain) else data
    source = ModelSource(model, **_opening(options, RateOptions.__annotations__))
    chosen = _sensitive(drawn, sensitive, options)
    if isinstance(data, TableDomain) and isinstance(model, OpenedModel | Network | BlackBox):
        names, table = with_columns(drawn, chosen)[1], None
        domain = data.with_sensitive(*names) if names else data
    else:
        case = prepare(drawn, source, sensitive=chosen, target=options.get("target"))
        opened, domain = case.opened, case.data.domain
        table = None if isinstance(data, TableDomain) else case.data
    if population is None or isinstance(population, str):
        population = population or ("domain" if table is None else "table")
        if table is not None and population == "table":
            population = table
        elif table is not None and population == "plausible":
            population = fit_population(domain, table.rows)
    decision = options.get("decision") or (opened.decision if isinstance(opened, OpenedModel) else None)
    return flip_rate(
        opened,
        domain,
        population=population,
        samples=samples,
        confidence=confidence,
        decision=decision,
        seed=_seed(options.get("random_state"), options.get("seed", 0)),
        progress=options.get("progress"),
    )


class SearchKeywords(campaign.Fitted, total=False):
    """Keyword options of `search`."""

    seeds: Tensor | None  # the rows to start from
    recorder: campaign.Recorder | None  # saves what is found
    progress: Progress | None


def search(
    network: Model,
    domain: TableDomain,
    rows: Tensor,
    config: SearchConfig | None = None,
    *,
    workers: int | None = None,
    **options: Unpack[SearchKeywords],
) -> SearchResult:
    """Search a model for discriminatory instances, starting from the rows of a data set, on all cores.

    By default the search takes its `seeds` in turn from the k-means clusters of the rows, and fits a bias `profile`, a
    `population` and, for `config.twins`, `counterfactuals`; you can pass your own. With a `recorder`, such as a `Run`,
    it can be killed at any time and resumes when it is run again.

    Search chains are dealt to `workers` processes, by default one for each core; the findings do not depend on it. One
    process does all where it cannot be forked safely: in a notebook or another program with threads, on a GPU, on
    systems other than Linux, for functions as models, and for short searches.
    """
    given: Any = with_current_names(options, {"counterparts": "counterfactuals"})
    runner = partial(campaign.in_one_piece, workers=workers or default_workers())
    return campaign.search(network, domain, rows, config, runner=runner, **given)
