"""Audits, certificates and flip rates in Python: one call for any model and any data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, get_overloads, overload

from torch import Tensor

from neuronfair.audits.gate.checks import Checks
from neuronfair.audits.inputs import ModelSource, draw_records, prepare
from neuronfair.audits.provenance import ParallelAudit
from neuronfair.audits.ray_data import DECISION, FLIPS, BatchTest, flag_records, is_ray_dataset, measure_rate
from neuronfair.audits.report import Report
from neuronfair.audits.run import run
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.wording.summary import NOT_MEASURED, metrics, status
from neuronfair.domain.population.counterfactuals import CounterfactualTwins
from neuronfair.domain.population.model import PopulationModel, fit_population, read_records
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
from neuronfair.model.profile import BiasProfile
from neuronfair.parameters import Values, named_options, values_of
from neuronfair.plots import new_axes
from neuronfair.progress import Progress, show_nothing
from neuronfair.proof.certificate import ProofReport
from neuronfair.proof.records import Order, ProofRecords
from neuronfair.proof.session import build_region_problem
from neuronfair.proof.session import certify as certify_problem
from neuronfair.render.export import make_findings_frame, make_groups_frame, make_rates_frame, save_as
from neuronfair.render.page import render_audit, render_verdict
from neuronfair.render.tables import write_markdown
from neuronfair.render.terminal import stage_progress
from neuronfair.scale.pool import Pool
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.forked import default_workers
from neuronfair.text.audit import TextAudit, TextSettings, audit_texts
from neuronfair.text.domain import read_texts

_FORMATS: dict[str, Callable[[Report], str]] = {".html": render_audit, ".json": Report.to_json, ".md": write_markdown}
HEAD_RECORDS = 10_000  # of a ray.data.Dataset, by which its domain is inferred
MAX_REPR_LINES = 10  # of an audit
_SOURCE_OPTIONS = {field.name for field in fields(ModelSource)} - {"model"}


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
        return make_findings_frame(self.outcomes)

    @property
    def groups(self) -> Any:
        """The metrics of demographic groups and of subgroups as a pandas DataFrame."""
        return make_groups_frame(self.report)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML document."""
        return render_audit(self.report)

    def to_frame(self) -> Any:
        """Return the flip rates with their confidence intervals as a pandas DataFrame."""
        return make_rates_frame(self.report)

    def plot(self, axes: Any = None) -> Any:
        """Draw the flip rates with their confidence intervals; returns the matplotlib axes."""
        axes = new_axes() if axes is None else axes
        rates = [(attribute.name, rate) for attribute in self.report.attributes for rate in attribute.rates.available]
        heights, shares = range(len(rates)), [100 * rate.rate for _, rate in rates]
        below, above = ([100 * abs(getattr(rate, end) - rate.rate) for _, rate in rates] for end in ("low", "high"))
        axes.barh(heights, shares, xerr=[below, above], capsize=3)
        axes.set_yticks(
            heights, [printable(f"{name}, {SHARE_OF[rate.population]}") for name, rate in rates], parse_math=False
        )
        axes.invert_yaxis()
        axes.set_xlabel("flip rate in %")
        return axes

    def save(self, path: str | Path) -> Path:
        """Write the report (.html), all metrics (.json) or a summary (.md); returns the path."""
        return save_as(path, {ending: partial(form, self.report) for ending, form in _FORMATS.items()})

    def __repr__(self) -> str:
        data = self.report.data
        lines = [
            f"Audit of {data.name} by {', '.join(data.sensitive)}",
            self.report.verdict.headline,
            status(self.report),
        ]
        for attribute in self.report.attributes:
            measured = [f"{m.name} {m.with_range}" for m in metrics(attribute) if m.value != NOT_MEASURED]
            lines.append(f"  {attribute.name}: {', '.join(measured) or 'not measured'}")
        lines += [f"  data set: {remark}" for remark in self.remarks]
        lines += [] if self.folder is None else [f"  folder: {self.folder}"]
        if len(lines) > MAX_REPR_LINES:
            remaining = len(lines) - MAX_REPR_LINES + 1
            lines[-remaining:] = [f"  … {remaining} more lines: see the report and the folder"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return render_verdict(self.report, self.folder)


@overload
def audit(
    model: Any,
    data: Any,
    *,
    text: str,
    sensitive: Any,
    target: Any = None,
    favourable: str | None = None,
    fail_if: Sequence[str] = (),  # of texts: thresholds on flip_rate and findings
    replacements: str | Path | None = None,  # of texts: CSV file of words that searches may replace
    name: str = "texts",  # of the table of texts
    preprocess: Callable[[list[str]], Any] | str | None = None,
    decision: Decision | None = None,
    trust_pickle: bool = False,
    settings: TextSettings | None = None,
    random_state: int | None = None,
    folder: str | Path | None = None,
    progress: Progress | bool | None = None,
) -> TextAudit: ...


@overload
def audit(
    model: Any,
    data: Any,
    *,
    text: None = None,  # the column of texts, for a model of texts
    sensitive: Any = None,  # names of the sensitive attributes, or their values; of texts: a lexicon or its CSV file
    sensitive_features: Any = None,  # the same as `sensitive`
    target: Any = None,  # the column that the model predicts
    favourable: str | None = None,  # favourable outcome, a class of the target; default: that of the domain
    domain: TableDomain | str | Path | None = None,  # input schema or its TOML file; default: inferred from the data
    take_rules: TakeRules = "none",  # rules suggested by the data to adopt: "free" (of sensitive attributes) or "all"
    population: Any = None,  # realistic records from your own sampler: a table, or a function of their number
    columns: Sequence[Any] | None = None,  # the inputs in order, for a model that does not name them
    preprocess: Callable[[Any], Any] | str | None = None,  # makes the inputs of a model from a table, or token ids
    decision: Decision | None = None,  # what counts as a different decision; default: chosen from the outputs
    weights: Path | None = None,  # a safetensors file for `package.module:name`
    trust_pickle: bool = False,  # open pickle files, which can run any code
    device: str | None = None,  # cpu or cuda; default: where the model is
    checks: Checks | None = None,  # thresholds, a regression set and an earlier audit to compare with
    settings: AuditSettings | None = None,  # how thorough the audit is; the next eight options change single settings
    seeds: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    samples: int | None = None,
    prove: float | None = None,
    seed: int | None = None,
    plausible: float | None = None,
    twins: TwinKind | None = None,
    random_state: int | None = None,  # the same as `seed`
    folder: str | Path | None = None,  # to make or to resume in
    progress: Progress | bool | None = None,  # False for none; default: a progress bar
    pool: Pool | None = None,  # workers that audit several attributes in parallel
) -> Audit: ...


@named_options()
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
    notebooks. Options such as `steps` or `prove` change single settings; None keeps what `settings` says.

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
    for_texts, for_tables = (signature(kind).parameters for kind in get_overloads(audit))
    refuse_unknown(options, for_tables if text is None else for_texts)
    return _audit_table(model, data, options) if text is None else _audit_texts(model, data, text, options)


def _audit_table(model: Any, data: Any, options: Values) -> Audit:
    """Audit a model with a table of records."""
    source = ModelSource(model, **{name: options[name] for name in _SOURCE_OPTIONS & options.keys()})
    audit_input = prepare(
        data,
        source,
        domain=options.get("domain"),
        sensitive=_name_sensitive(data, options.get("sensitive"), options.get("sensitive_features")),
        target=options.get("target"),
        favourable=options.get("favourable"),
        take_rules=options.get("take_rules", "none"),
    )
    checks = options.get("checks") or Checks()
    table, opened_model, folder = audit_input.data, audit_input.opened_model, options.get("folder")
    settings = _change_settings(options.get("settings") or AuditSettings(), options)
    ready = checks.read(table.domain)
    population = options.get("population")
    own_records = None if population is None else read_records(population, table.domain)
    ready.refuse(table.domain.sensitive, settings.choose_methods(opened_model), settings.twins)
    pool = options.get("pool")
    provenance = replace(
        audit_input.provenance,
        table=str(data) if isinstance(data, (str, Path)) and audit_input.joined is None else None,
        parallel=None if pool is None else ParallelAudit(pool, source.open),
    )
    with _open_progress(options.get("progress")) as show:
        result = run(
            opened_model,
            table,
            settings=settings,
            checks=ready,
            provenance=provenance,
            folder=folder,
            progress=show,
            own_records=own_records,
        )
    if result.failure is not None and (checks.fail_if or not isinstance(result.failure, EncodingError)):
        raise result.failure  # without thresholds, the report says that there is no verdict
    ready.extend(result.report)
    return Audit(result.report, result.outcomes, None if folder is None else Path(folder), audit_input.remarks)


def _name_sensitive(data: Any, sensitive: Any, features: Any) -> Any:
    """Return the sensitive attributes; values passed as `sensitive_features` by name if the data has these columns."""
    if features is None:
        return sensitive
    if sensitive is not None:
        raise DataError("sensitive and sensitive_features are the same. Leave one of the two out")
    if not hasattr(features, "equals") or not hasattr(data, "columns"):
        return features
    names = [features.name] if hasattr(features, "name") else list(features.columns)
    columns = [features] if hasattr(features, "name") else [features[name] for name in names]
    are_columns = all(
        name in data.columns and data[name].equals(column) for name, column in zip(names, columns, strict=True)
    )
    return names if are_columns else features


def _read_seed(seed: int | None, default: int = 0) -> int:
    """Return the seed; None, as scikit-learn users write it, is the default seed, so that results repeat."""
    if seed is None:
        return default
    if not isinstance(seed, int):
        raise NeuronFairError(f"random_state: expected a whole number, got {type(seed).__name__}")
    return seed


def _change_settings(settings: AuditSettings, options: Values) -> AuditSettings:
    """Return the settings with the changes of a call; None changes nothing."""
    changes = {name: options[name] for name in values_of(settings) if options.get(name) is not None}
    changes["seed"] = _read_seed(options.get("random_state"), changes.get("seed", settings.seed))
    return replace(settings, **changes)


def _audit_texts(model: Any, data: Any, text: str, options: Values) -> TextAudit:
    """Audit a model with a column of texts."""
    sensitive, target, seed, progress = (
        options.pop(name, None) for name in ("sensitive", "target", "random_state", "progress")
    )
    if sensitive is None:
        raise DataError("sensitive: name a lexicon of identity terms, such as gender, or a CSV file with them")
    texts, labels = read_texts(data, text, target)
    settings = options.pop("settings", None) or TextSettings()
    settings = replace(settings, seed=_read_seed(seed, settings.seed))
    with _open_progress(progress) as show:
        result = audit_texts(
            model, texts, sensitive, labels=labels, settings=settings, progress=show, column=text, **options
        )
    if result.failure is not None:
        raise result.failure
    return result


@contextmanager
def _open_progress(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yield the progress function of the user, a progress bar, or one that shows nothing."""
    if callable(progress):
        yield progress
    elif progress is False:
        yield show_nothing
    else:
        with stage_progress("Auditing") as bar:
            yield bar


@named_options()
def certify(
    model: Any,
    data: Dataset | TableDomain | Any,
    *,
    sensitive: Any = None,  # names of the sensitive attributes, or their values
    sensitive_features: Any = None,  # the same as `sensitive`
    target: str | None = None,  # the column that the model predicts
    where: str = "",  # condition of the records that the proof is about; default: all
    seconds: float = 60.0,  # time limit of the proof
    order: Order = "records",  # boxes with many records first; "volume": those with the largest undecided volume
    columns: Sequence[Any] | None = None,
    preprocess: Callable[[Any], Any] | str | None = None,
    decision: Decision | None = None,
    weights: Path | None = None,
    trust_pickle: bool = False,
    device: str = "cpu",  # where the proof computes
    pool: Pool | None = None,  # workers that prove together
) -> ProofReport:
    """Certify for how many records the decision does not depend on the sensitive attribute.

    `model`, `data` and options are as in `audit`; a domain, or its TOML file, works without data. `where` restricts
    the proof to records that meet a condition, such as "age >= 30". The report counts the records of the data set,
    realistic synthetic records, and the whole input space. Records that could not be proved either way within
    `seconds` are undecided. Ctrl-C stops early and keeps what is proved. `neuronfair certify` does the same in a folder
    that can be resumed, and writes a certificate.

    >>> people = {"age": [20, 30, 40, 50] * 9, "sex": ["f", "m", "m"] * 12, "hired": ["no", "yes", "no", "yes"] * 9}
    >>> def model(table):
    ...     return (table.age > 45) | ((table.age > 25) & (table.sex == "m"))
    >>> report = certify(model, people, sensitive="sex", target="hired")
    >>> report.complete, report.proved_discriminatory
    (True, RowShare(count='40', share=0.6451612903225806))
    """
    source = ModelSource(
        model,
        weights=weights,
        trust_pickle=trust_pickle,
        decision=decision,
        device="cpu",
        preprocess=preprocess,
        columns=columns,
    )
    if isinstance(data, (str, Path)) and Path(data).suffix.lower() == ".toml":
        data = read_domain(data)
    has_table = not isinstance(data, TableDomain)
    if isinstance(data, TableDomain):
        data = draw_records(data)
    audit_input = prepare(data, source, sensitive=_name_sensitive(data, sensitive, sensitive_features), target=target)
    table, opened_model = audit_input.data, audit_input.opened_model
    problem = build_region_problem(opened_model, table.domain, where, device)
    if has_table:
        records = ProofRecords.of(problem, table, order=order, model=opened_model)
    else:
        records = ProofRecords.none(problem, table.name)
    with stage_progress("Proving") as bar:
        return certify_problem(problem, opened_model, records, seconds, show=bar, pool=pool)[0]


@named_options()
def rate(
    model: Any,
    data: Dataset | TableDomain | Any,
    *,
    sensitive: Any = None,  # names of the sensitive attributes, or their values
    sensitive_features: Any = None,  # the same as `sensitive`
    target: str | None = None,  # the column that the model predicts
    domain: TableDomain | str | Path | None = None,  # input schema or its TOML file; default: inferred from the data
    population: Any = None,  # whose flip rate; default: "table" with data, or else "domain"
    samples: int | Until | None = None,  # records to draw, at most; default: 10,000
    confidence: float = 0.95,  # of the interval
    columns: Sequence[Any] | None = None,
    preprocess: Callable[[Any], Any] | str | None = None,
    decision: Decision | None = None,
    weights: Path | None = None,
    trust_pickle: bool = False,
    device: str | None = None,
    seed: int = 0,
    random_state: int | None = None,  # the same as `seed`
    progress: Callable[[int, int], None] | None = None,
) -> Rate:
    """Estimate the flip rate: how often the decision changes when only the sensitive attribute does (Themis).

    `model`, `data` and options are as in `audit`; a domain works without data. `population` is "table" (all records,
    the default with data), "domain" (drawn uniformly from the input schema, the default without), "plausible" (drawn
    from a model of the data) or "combinations" (drawn uniformly, ignoring the rules). The result has `rate` and
    `interval`. With `samples=Until(error, samples)`, sampling stops as soon as the interval is narrow enough.

    Of a `ray.data.Dataset`, which may be larger than any machine, all records are counted, batch by batch on the whole
    cluster. Pass its `domain`: one that is inferred knows the first records only.

    >>> people = {"age": [20, 30, 40, 50] * 9, "sex": ["f", "m", "m"] * 12}
    >>> flips = rate(lambda table: (table.age > 25) & (table.sex == "m"), people, sensitive="sex")
    >>> flips.rate, [round(end, 2) for end in flips.interval]
    (0.75, [0.58, 0.88])
    """
    source = ModelSource(
        model,
        weights=weights,
        trust_pickle=trust_pickle,
        decision=decision,
        device=device,
        preprocess=preprocess,
        columns=columns,
    )
    if is_ray_dataset(data):
        if samples is not None or population not in (None, "table"):
            raise DataError("of a ray.data.Dataset all records are counted. Leave out samples and population")
        sensitive = _name_sensitive(data, sensitive, sensitive_features)
        return measure_rate(_batch_test(data, source, domain, sensitive, target), data, confidence, progress)
    wrapped: Any = model
    records = draw_records(data) if isinstance(data, TableDomain) else data
    sensitive = _name_sensitive(records, sensitive, sensitive_features)
    if isinstance(data, TableDomain) and domain is not None:
        raise DataError("the data is a domain itself. Leave out the other domain")
    if isinstance(data, TableDomain) and isinstance(model, OpenedModel | Network | BlackBox):
        names, table = with_columns(records, sensitive)[1], None
        domain = data.with_sensitive(*names) if names else data
    else:
        audit_input = prepare(records, source, domain=domain, sensitive=sensitive, target=target)
        wrapped, domain = audit_input.opened_model, audit_input.data.domain
        table = None if isinstance(data, TableDomain) else audit_input.data
    if population is None or isinstance(population, str):
        population = population or ("domain" if table is None else "table")
        if table is not None and population == "table":
            population = table
        elif table is not None and population == "plausible":
            population = fit_population(domain, table.rows)
    return flip_rate(
        wrapped,
        domain,
        population=population,
        samples=10_000 if samples is None else samples,
        confidence=confidence,
        decision=decision or (wrapped.decision if isinstance(wrapped, OpenedModel) else None),
        seed=_read_seed(random_state, seed),
        progress=progress,
    )


def flag_flips(
    model: Any,
    data: Any,
    *,
    sensitive: Any = None,  # names of the sensitive attributes
    target: str | None = None,  # the column that the model predicts
    domain: TableDomain | str | Path | None = None,  # input schema or its TOML file; default: inferred from the data
    columns: Sequence[Any] | None = None,
    preprocess: Callable[[Any], Any] | str | None = None,
    decision: Decision | None = None,
    weights: Path | None = None,
    trust_pickle: bool = False,
    device: str | None = None,
) -> Any:
    """Return the data with two more columns: the decision for each record, and whether it flips.

    A decision `flips` if it changes when only the sensitive attribute does. `data` is a pandas DataFrame, or a
    `ray.data.Dataset`, of which nothing is computed before it is used. Options are as in `rate`.

    >>> import pandas as pd
    >>> people = pd.DataFrame({"age": [20, 30, 40], "sex": ["f", "m", "m"]})
    >>> flag_flips(lambda table: (table.age > 25) & (table.sex == "m"), people, sensitive="sex").flips.tolist()
    [False, True, True]
    """
    is_ray = is_ray_dataset(data)
    if not is_ray and not hasattr(data, "assign"):
        raise DataError(f"flag_flips takes a pandas DataFrame or a ray.data.Dataset, got {type(data).__name__}")
    taken_names = {DECISION, FLIPS} & set(data.columns() if is_ray else data.columns)
    if taken_names:
        raise DataError(f"the data has a column '{min(taken_names)}' already. Rename it: the result is written there")
    source = ModelSource(
        model,
        weights=weights,
        trust_pickle=trust_pickle,
        decision=decision,
        device=device,
        preprocess=preprocess,
        columns=columns,
    )
    test = _batch_test(data, source, domain, sensitive, target)
    return flag_records(test, data) if is_ray else test.flag(data)


def _batch_test(data: Any, source: ModelSource, domain: Any, sensitive: Any, target: str | None) -> BatchTest:
    """Return the test of a table that is read in batches; without a domain, its first records say what it holds."""
    head = data.limit(HEAD_RECORDS).to_pandas() if is_ray_dataset(data) else data
    if not len(head):
        raise DataError("the data set has no records")
    audit_input = prepare(head, source, domain=domain, sensitive=sensitive, target=target)
    return BatchTest(source, head, audit_input.data.domain)


@named_options({"counterparts": "counterfactuals", "network": "model"})
def search(
    model: Model,
    domain: TableDomain,
    rows: Tensor,
    config: SearchConfig | None = None,
    *,
    seeds: Tensor | None = None,  # the rows to start from
    profile: BiasProfile | None = None,  # of the model and these rows, from `interpret`
    population: PopulationModel | None = None,  # of these rows, from `fit_population`, or one of your own
    counterfactuals: CounterfactualTwins | None = None,  # of these rows, from `fit_counterfactuals`
    recorder: campaign.Recorder | None = None,  # saves the findings
    progress: Progress | None = None,
    workers: int | None = None,  # processes; default: one for each core
) -> SearchResult:
    """Search a model for discriminatory instances, starting from the rows of a data set, on all cores.

    By default the search takes its `seeds` in turn from the k-means clusters of the rows, and fits a bias `profile`, a
    `population` and, for `config.twins`, `counterfactuals`; you can pass your own. With a `recorder`, such as a `Run`,
    it can be killed at any time and resumes when it is run again.

    Search chains are dealt to `workers` processes, by default one for each core; the findings do not depend on it. One
    process does all where it cannot be forked safely: in a notebook or another program with threads, on a GPU, on
    systems other than Linux, for functions as models, and for short searches.
    """
    return campaign.search(
        model,
        domain,
        rows,
        config,
        seeds=seeds,
        recorder=recorder,
        progress=progress,
        runner=partial(campaign.in_one_piece, workers=workers or default_workers()),
        profile=profile,
        population=population,
        counterfactuals=counterfactuals,
    )
