"""A search for alternatives from table and estimator to the verdict, and the files that it leaves."""

from __future__ import annotations

import pickle
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from neuronfair import __version__
from neuronfair.alternative_models import AlternativesSettings, Measure, estimators
from neuronfair.alternative_models.candidates import CandidateFitter, FittedCandidate, TwinGuide, learn_hints
from neuronfair.alternative_models.estimators import NetworkClassifier
from neuronfair.alternative_models.objectives import MEASURES, QualityFunction
from neuronfair.alternative_models.parts import SearchTable, prepare_search_table
from neuronfair.alternative_models.search import (
    BASELINE,
    FILE,
    GainChance,
    SearchConclusion,
    SearchedFits,
    SearchFile,
    ShownFit,
    bound_chance,
    choose_fits,
    evaluate_fits,
    find_best,
    find_front,
    measure_candidate,
    run_search,
)
from neuronfair.atomic import write_text
from neuronfair.audits.inputs import ModelSource, read_input
from neuronfair.audits.report import Report, format_json
from neuronfair.audits.run import run
from neuronfair.audits.settings import AuditSettings
from neuronfair.domain.schema.toml import format_domain
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError, RunError, require
from neuronfair.model.formats import REFITTED
from neuronfair.model.open import OpenedModel, feature_names, wrap_model
from neuronfair.plots import new_axes
from neuronfair.progress import Progress, show_nothing
from neuronfair.proof.certificate import ProofReport
from neuronfair.proof.problem import build_problem
from neuronfair.proof.records import ProofRecords
from neuronfair.proof.session import ProofRequest, ProofRun, certify
from neuronfair.scale.pool import Processes, Serial
from neuronfair.store.files import Lock
from neuronfair.store.ledger import rows_digest

RESULT = "alternatives.json"
PROOF_SECONDS = 20.0  # time limit of a certificate
#: What a search leaves in its folder when it ends.
RESULTS = re.compile(
    r"(model|baseline|(candidate|control)-\d+)\.\w+|alternatives\.json|domain\.toml|(report|before|after)\.html|"
    r"regulator\.md|(before|after)-certificate"
)


@dataclass(frozen=True)
class AlternativesReport:
    """What a search for alternatives found. The comments behind the fields are their documentation."""

    neuronfair: str  # version
    data: str  # name of the data set
    sensitive: tuple[str, ...]  # sensitive attributes
    groups: tuple[str, ...]  # groups that are compared
    left_out: Mapping[str, int]  # groups that are too small to be compared, or excluded by a rule, and their records
    target: str  # column to predict
    selected: str  # the class that counts as selected
    rows: Mapping[str, int]  # records by part: fit, choose, test
    estimator: str  # what is fitted
    baseline_reads: tuple[str, ...]  # sensitive attributes that the baseline reads at decision time
    settings: AlternativesSettings  # what was looked for, and for how long
    quality: str  # what the model is good for
    measure: Measure  # what is to become less
    proxies: tuple[str, ...]  # attributes that candidates leave out, in this order
    mediated: tuple[float, ...]  # share of the effect of the sensitive attribute that the first proxies mediate
    hyper: Mapping[str, float]  # hyper-parameters of the baseline that candidates vary
    searched: SearchedFits  # all fits, on the choose part
    front: tuple[str, ...]  # candidates that no other beats in both quality and measure, on the choose part
    shown: tuple[ShownFit, ...]  # on the test part, the baseline first; empty after an interruption
    conclusion: SearchConclusion  # whether an alternative was found
    chosen: str | None  # the model that is proposed
    chance: GainChance  # for how many more candidates would bring
    notes: tuple[str, ...] = ()
    earlier: int = 0  # searches in the same folder that used other test parts before
    files: Mapping[str, str] = field(default_factory=dict)  # models by their names

    @property
    def failed(self) -> int:
        """How many candidates could not be fitted."""
        return sum(fit.error is not None for fit in self.searched.candidates)

    @property
    def winner(self) -> ShownFit | None:
        """The model that is proposed, on the test part."""
        return next((fit for fit in self.shown if fit.candidate.name == self.chosen), None)

    def to_json(self) -> str:
        """Return the content of alternatives.json."""
        return format_json(self)

    @staticmethod
    def from_json(text: str | bytes) -> AlternativesReport:
        """Read the content of an alternatives.json."""
        return msgspec.json.decode(text, type=AlternativesReport)


@dataclass(frozen=True, repr=False)
class Alternatives:
    """The result of a search for alternatives; `make` gives any of its models again."""

    report: AlternativesReport
    fitter: CandidateFitter
    file: SearchFile

    def make(self, name: str) -> Any:
        """Return a candidate or a control by its name, fitted: the same as in the search."""
        return self.find_model(name).estimator

    @property
    def model(self) -> Any:
        """The model that is proposed, fitted; None where none was found."""
        return None if self.report.chosen is None else self.make(self.report.chosen)

    def to_html(self) -> str:
        """Return the report as one self-contained HTML document."""
        from neuronfair.alternative_models.report import alternatives_page

        return alternatives_page(self.report)

    def to_frame(self) -> Any:
        """Return the models that were measured on the test part as a pandas DataFrame, with confidence intervals."""
        spans = [f"{name}{end}" for name in ("quality", "measure") for end in ("", "_low", "_high")]
        columns = ["model", *spans, "better"]
        lines = [[fit.candidate.name, *fit.quality, *fit.measure, fit.better] for fit in self.report.shown]
        return require("pandas", "sklearn", "a DataFrame", RunError).DataFrame(lines, columns=columns)

    def plot(self, axes: Any = None) -> Any:
        """Draw quality against discrimination of all fits on the choose part; returns the matplotlib axes."""
        axes = new_axes((7, 5)) if axes is None else axes
        fits, report = self.report.searched, self.report
        front = [fit for fit in fits.candidates if fit.candidate.name in report.front]
        series = (
            ("candidates", fits.candidates, {"marker": ".", "color": "0.7"}),
            ("controls (other seeds)", fits.controls, {"marker": "x", "color": "0.5"}),
            ("front", front, {"marker": "o", "color": "#3b6ea8"}),
            ("baseline", [fits.baseline], {"marker": "s", "color": "#c0392b"}),
        )
        for label, group, style in series:
            measured = [fit for fit in group if fit.error is None]
            axes.scatter([fit.measure for fit in measured], [fit.quality for fit in measured], label=label, **style)
        axes.set(xlabel=f"{MEASURES[report.measure]} (less is better)", ylabel=report.quality.replace("_", " "))
        axes.legend(frameon=False)
        return axes

    def __repr__(self) -> str:
        from neuronfair.alternative_models.report import write_headline

        name, report = MEASURES[self.report.measure], self.report
        lines = [write_headline(report)]
        for fit in report.shown:
            quality, measure = ("{:.3f} ({:.3f}–{:.3f})".format(*value) for value in (fit.quality, fit.measure))
            lines.append(f"  {fit.candidate.name}: {report.quality} {quality}, {name} {measure}")
        return "\n".join([*lines[:9], *([f"  … {len(lines) - 9} more models"] if len(lines) > 9 else [])])

    def audit(self, name: str, progress: Progress = show_nothing) -> Report:
        """Return a short audit of one of the models, by the records of the test part."""
        table, settings = self.fitter.table, AuditSettings.quick(seed=self.report.settings.seed)
        data = table.data.take(torch.from_numpy(table.test))
        return run(open_model(table, self.find_model(name)), data, settings=settings, progress=progress).report

    def certify(self, name: str, out: Path, progress: Progress = show_nothing) -> ProofReport:
        """Prove for how many test records the decision of a written model does not depend on the sensitive attribute.

        `out` is a folder next to the model's file; it gets the certificate. A proof that was interrupted resumes.
        """
        model, table = self.find_model(name).estimator, self.fitter.table
        domain = model.domain_ if isinstance(model, NetworkClassifier) else table.data.domain
        data = replace(table.data.take(torch.from_numpy(table.test)), domain=domain)
        file = str((out.parent / self.report.files[name]).absolute())
        opened_model = ModelSource(file, trust_pickle=True).open(data)  # the file was written here
        described = {"model": file, "weights": opened_model.fingerprint, "outputs": opened_model.model.outputs}
        proof_run = ProofRun.create_or_open(out, data, ProofRequest(opened_model.decision), **described)
        if (report := proof_run.find_report(PROOF_SECONDS)) is not None:
            return report
        problem = build_problem(opened_model, domain)
        records = ProofRecords.of(problem, data, order="records", model=opened_model)
        return certify(problem, opened_model, records, PROOF_SECONDS, show=progress, run=proof_run)[0]

    def find_model(self, name: str) -> FittedCandidate:
        """Return a fit by its name, with the columns that it is given."""
        line = self.file.fits.get(name)
        if line is None or line.error is not None:
            raise RunError(f"there is no {name} that could be fitted")
        return self.fitter.make(line.candidate)

    def write(self, out: Path) -> Alternatives:
        """Write the models that were shown, the domain and the report into a folder; return the result with the names.

        The models are in the format of the estimator they came from.
        """
        files = {}
        for fit in self.report.shown:
            name = fit.candidate.name
            path = out / f"{'model' if name == self.report.chosen else name}{self.fitter.recipe.suffix}"
            estimators.write_model(self.make(name), path, fit.quality.value)
            files[name] = path.name
        result = replace(self, report=replace(self.report, files=files))
        write_text(out / "domain.toml", format_domain(self.fitter.table.data.domain))
        write_text(out / RESULT, result.report.to_json())
        return result


def alternatives(
    estimator: Any,
    data: Any,
    *,
    sensitive: str | Sequence[str] | None = None,
    target: str | None = None,
    domain: TableDomain | str | Path | None = None,
    favourable: str | None = None,
    settings: AlternativesSettings | None = None,
    **options: Any,
) -> Alternatives:
    """Search for a model that is as good for its purpose and less discriminatory.

    The estimator follows the interface of scikit-learn (or is a function that makes one, a name such as "lightgbm", or
    a fitted model, which is cloned with its parameters). The table is cut into three parts: candidates are fitted to
    one, chosen by the next, and only a few are measured on the last, once. A candidate is called better only if the
    test part shows that its quality is not worse than the tolerance and that its measure is lower.

    Options: `out`, a folder that keeps the search, which then survives a kill; `force`, to begin anew there; `quality`,
    your own function of labels and decisions; `progress`; `trust_pickle`; and the settings by name (`budget`, …).
    Candidates are never given the sensitive attribute at decision time, and no threshold differs by group, unless
    `allow_disparate_treatment` is set, which allows the first.
    """
    out, quality, begin_anew = options.pop("out", None), options.pop("quality", None), options.pop("force", False)
    progress, trust = options.pop("progress", show_nothing), options.pop("trust_pickle", False)
    settings = replace(settings or AlternativesSettings(), **options)
    if isinstance(quality, str):
        settings, quality = replace(settings, quality=quality), None
    described: Any = {"sensitive": sensitive, "target": target, "domain": domain}
    described |= {"favourable": favourable, "trust_pickle": trust}
    fitter, notes = prepare_fitter(estimator, data, settings, quality=quality, **described)
    if out is None:
        return run_alternatives(fitter, notes, SearchFile(None, {}), progress)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    lock = Lock.of(folder)
    file = SearchFile(folder / FILE, describe_search(fitter), anew=begin_anew)
    for path in folder.iterdir() if begin_anew else ():
        if RESULTS.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    result = run_alternatives(fitter, notes, file, progress).write(folder)
    del lock  # other processes may write to the folder again
    return result


def prepare_fitter(
    estimator: Any,
    data: Any,
    settings: AlternativesSettings,
    *,
    quality: QualityFunction | None = None,
    trust_pickle: bool = False,
    favourable: str | None = None,
    **described: Any,  # options of read_input by their names
) -> tuple[CandidateFitter, list[str]]:
    """Return what makes candidates, and notes for the report."""
    is_fitted = _is_fitted(estimator)
    names = feature_names(estimator, trust_pickle=trust_pickle) if is_fitted else None
    source = ModelSource(estimator if names is not None else None, trust_pickle=trust_pickle)
    audit_input = read_input(data, source, **described).with_favourable(favourable)
    table = prepare_search_table(audit_input.data, settings.seed)
    inputs = [a.name for a in table.data.domain.attributes if a.is_input and a.name in table.frame]
    columns = [name for name in inputs if audit_input.reads is None or name in audit_input.reads]
    hides_sensitive = not is_fitted and not settings.allow_disparate_treatment
    if hides_sensitive:
        columns = [name for name in columns if name not in table.sensitive]
    network = str(estimator) == "network" or Path(str(estimator)).suffix.lower() in estimators.NETWORK_SUFFIXES
    # Our networks are given whole records.
    estimator_recipe = estimators.make_recipe(
        estimator, table, inputs if network else columns, trust_pickle=trust_pickle
    )
    if hides_sensitive:
        estimators.drop_columns(estimator_recipe.estimator, table.sensitive)
    notes = [*audit_input.remarks, *table.notes]
    if (reads := estimator_recipe.reads(table.sensitive)) and not settings.allow_disparate_treatment:
        notes.append(
            f"The given model reads {', '.join(reads)}. The candidates do not, so they may lose what it gained by that."
        )
    fitter = CandidateFitter(table, estimator_recipe, settings, own=quality)
    if settings.workers > 1:
        pickle.dumps(fitter)  # refuses now what other processes cannot load
    return fitter, notes


def _is_fitted(estimator: Any) -> bool:
    """Return whether an estimator is a fitted model, or the file of one, and not something that makes models."""
    if isinstance(estimator, (str, Path)):
        return str(estimator) not in estimators.ESTIMATOR_NAMES and Path(estimator).suffix.lower() in REFITTED
    return any(name.endswith("_") and not name.startswith("_") for name in vars(estimators.find_last_step(estimator)))


def run_alternatives(fitter: CandidateFitter, notes: Sequence[str], file: SearchFile, show: Progress) -> Alternatives:
    """Fit baseline, candidates and controls, choose among them, and measure a few on the test part."""
    table, settings, evaluator = fitter.table, fitter.settings, fitter.evaluator("choose")
    show("Fitting the baseline", 0, None)
    fitter = replace(fitter, guide=TwinGuide.learn(table, evaluator.measure))
    baseline = fitter.make(BASELINE)
    answers = fitter.answer(baseline, evaluator.rows)
    if BASELINE.name not in file.fits:
        line = measure_candidate(fitter, BASELINE, None)
        if line.error is not None:
            raise NeuronFairError(f"the baseline cannot be used: {line.error}")
        file.add(line)
    show("Learning from the fit part", 0, None)
    try:
        opened_model = open_model(table, baseline)
    except NeuronFairError as error:
        opened_model, notes = None, [*notes, f"The baseline cannot be searched: {error}."]
    hints = learn_hints(table, baseline.columns, opened_model, settings)
    fitter = replace(fitter, hints=hints)
    pool = Serial() if settings.workers == 1 else Processes(settings.workers)
    all_fits = run_search(fitter, answers, file, pool, show)
    shown_fits, failures = list[ShownFit](), list[str]()
    if not all_fits.interrupted:
        show("Measuring on the test part", 0, None)
        chosen_fits = choose_fits(all_fits, settings.tolerance, settings.shown, settings.confidence)
        file.touch_test((BASELINE.name, *(fit.candidate.name for fit in chosen_fits)))
        shown_fits, failures = evaluate_fits(fitter, chosen_fits, fitter.evaluator("test"))
    report = compose_report(fitter, all_fits, shown_fits, (*notes, *hints.notes, *failures), file.earlier)
    return Alternatives(report, fitter, file)


def compose_report(
    fitter: CandidateFitter,
    all_fits: SearchedFits,
    shown_fits: Sequence[ShownFit],
    notes: tuple[str, ...],
    earlier: int,
) -> AlternativesReport:
    """Return the report of a search, given all fits and those that were measured on the test part."""
    table, settings, hints, target = fitter.table, fitter.settings, fitter.hints, fitter.table.data.domain.target
    best = find_best(shown_fits, settings.allow_disparate_treatment)
    assert target is not None
    assert hints is not None
    return AlternativesReport(
        neuronfair=__version__,
        data=table.data.name,
        sensitive=table.sensitive,
        groups=table.groups,
        left_out=table.left_out,
        target=target.column,
        selected=target.classes[table.positive],
        rows={name: len(table.part(name)) for name in ("fit", "choose", "test")},
        estimator=fitter.recipe.name,
        baseline_reads=fitter.recipe.reads(table.sensitive),
        settings=settings,
        quality=settings.quality if fitter.own is None else str(getattr(fitter.own, "__name__", fitter.own)),
        measure=fitter.evaluator("choose").measure,
        proxies=hints.proxies,
        mediated=hints.mediated,
        hyper={dimension.name: dimension.default for dimension in fitter.hyper},
        searched=all_fits,
        front=tuple(fit.candidate.name for fit in find_front(all_fits.candidates)),
        shown=tuple(shown_fits),
        conclusion="interrupted" if all_fits.interrupted else "none found" if best is None else "better",
        chosen=None if best is None else best.candidate.name,
        chance=bound_chance(all_fits, settings.tolerance, settings.confidence),
        notes=notes,
        earlier=earlier,
    )


def open_model(table: SearchTable, model: FittedCandidate) -> OpenedModel:
    """Return a fitted model ready for an audit, by the records of the fit part."""
    data = table.data.take(torch.from_numpy(table.fit))
    if isinstance(model.estimator, NetworkClassifier):
        return wrap_model(model.estimator.module_, model.estimator.domain_, data.rows)
    return wrap_model(model.estimator, data.domain, data)


def describe_search(fitter: CandidateFitter) -> dict[str, str]:
    """Return what must be the same when a search resumes."""
    table, recipe, settings = fitter.table, fitter.recipe, fitter.settings
    quality = "" if fitter.own is None else describe_value(fitter.own)
    cells = require("pandas", "sklearn").util.hash_pandas_object(table.frame, index=False).to_numpy().view(np.int64)
    fixed_settings = replace(settings, budget=1, seconds=None, workers=1, shown=1)
    return {
        **list_versions(recipe.estimator),
        "estimator": f"{recipe.name}: {describe_value(recipe.estimator)} of {', '.join(recipe.columns)}",
        "domain": table.data.domain.fingerprint,
        "table": rows_digest(torch.from_numpy(np.column_stack([cells, table.labels]))),
        "seed": str(settings.seed),
        "setting": f"{fixed_settings} {quality}",
    }


def list_versions(estimator: Any) -> dict[str, str]:
    """Return the versions on which the fits of a search depend, by what they are of."""
    packages = {"neuronfair": __version__}
    packages |= {package: import_module(package).__version__ for package in ("numpy", "optuna", "sklearn", "torch")}
    for part in (estimator, *estimator.get_params(deep=True).values()):
        package = type(part).__module__.partition(".")[0]
        if hasattr(part, "fit") and (version := getattr(sys.modules[package], "__version__", None)) is not None:
            packages[package] = version
    return {f"version of {package}": version for package, version in packages.items()}


def describe_value(value: Any) -> str:
    """Return a value of the user's code in words that are the same in another process: no addresses, nothing cut."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(describe_value, value))}]"
    if hasattr(value, "get_params") and not isinstance(value, type):
        parameters = value.get_params(deep=False)
        return f"{type(value).__name__}({', '.join(f'{k}={describe_value(v)}' for k, v in sorted(parameters.items()))})"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
