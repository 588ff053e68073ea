"""The search: a baseline, candidates and controls, the file that keeps every fit, and the fits shown to be better."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from scipy.stats import norm

from neuronfair.alternative_models import Measure, estimators
from neuronfair.alternative_models.candidates import Candidate, CandidateFitter, Value
from neuronfair.alternative_models.estimators import Dimension
from neuronfair.alternative_models.objectives import CHOICE_DRAWS, Gain, ModelAnswers, PartEvaluator
from neuronfair.errors import NeuronFairError, RunError, one_line, require
from neuronfair.limits import TEXT_FACTOR, read_bytes
from neuronfair.measure.stats import Estimate, clopper_pearson
from neuronfair.progress import PieceProgress, Progress
from neuronfair.scale.pool import Pool

FILE = "search.jsonl"


@dataclass(frozen=True)
class FitLine:
    """One fit, and how it does on the choose part against the baseline."""

    candidate: Candidate
    seconds: float = 0.0
    error: str | None = None  # why it could not be fitted, or gave no answers
    quality: float = 0.0
    measure: float = 0.0
    quality_gain: float = 0.0
    quality_error: float = 0.0  # standard error of the gain
    measure_gain: float = 0.0
    measure_error: float = 0.0


@dataclass(frozen=True)
class _Line:
    begun_with: Mapping[str, str] = field(default_factory=dict)
    earlier: int = 0  # searches in the folder that were begun anew after they had used their test parts
    fit: FitLine | None = None
    tested: tuple[str, ...] = ()  # fits that the test part was used for


class SearchFile:
    """The lines of a search so far. A last line that a kill has cut off is written again.

    With `anew`, an earlier search is forgotten, unless its test part would be used a second time.
    """

    def __init__(self, path: Path | None, begun_with: Mapping[str, str], *, anew: bool = False) -> None:
        self.path, self.fits, self.tested = path, dict[str, FitLine](), tuple[str, ...]()
        self.earlier, self._size, lines = 0, 0, list[_Line]()
        if path is not None and path.exists():
            content = read_bytes(path, times=TEXT_FACTOR)
            self._size = content.rfind(b"\n") + 1
            lines = [
                _read_line(path, number, line) for number, line in enumerate(content[: self._size].splitlines(), 1)
            ]
        for line in lines:
            if line.fit is not None:
                self.fits[line.fit.candidate.name] = line.fit
            self.tested = line.tested or self.tested
            self.earlier += line.earlier
        before = lines[0].begun_with if lines else begun_with
        differing = [name for name, value in begun_with.items() if before.get(name, value) != value]
        if anew and self.tested and not {*differing} & {"table", "seed"}:
            raise self.used_up()
        if differing and not anew:
            choose = "Choose another --out, or --force to begin anew"
            values = (
                f" ({before[differing[0]]}, now {begun_with[differing[0]]})"
                if differing[0].startswith("version")
                else ""
            )
            raise RunError(f"{path}: this search was begun with another {differing[0]}{values}. {choose}")
        if anew:
            self.earlier += bool(self.tested)
            self.fits, self.tested, self._size = {}, (), 0
        if anew or not lines:
            self._append(_Line(begun_with, self.earlier))

    def used_up(self) -> RunError:
        """Return the error of a second look at the test part."""
        return RunError(
            f"{self.path}: the test part was already used for other candidates, and a second look would make its "
            "intervals wrong. Choose another --seed, which draws other parts, and another --out or --force"
        )

    def add(self, fit: FitLine) -> None:
        """Keep a fit."""
        self.fits[fit.candidate.name] = fit
        self._append(_Line(fit=fit))

    def touch_test(self, names: tuple[str, ...]) -> None:
        """Keep for which fits the test part is used; others are refused afterwards."""
        if self.tested and self.tested != names:
            raise self.used_up()
        if not self.tested:
            self.tested = names
            self._append(_Line(tested=names))

    def _append(self, line: _Line) -> None:
        """Write a line and wait until the disk has it."""
        if self.path is None:
            return
        entry = {name: value for name, value in asdict(line).items() if value}
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.seek(self._size)
            file.truncate()
            file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
            self._size = file.tell()
            file.flush()
            os.fsync(file.fileno())


def _read_line(path: Path, number: int, line: bytes) -> _Line:
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError as error:
        raise RunError(f"{path}: line {number} is damaged ({error}). Nothing was changed") from None


CANDIDATES_PER_ROUND = (
    10  # candidates that are proposed before any of them is measured, whatever the number of processes
)
RANDOM_CANDIDATES = 20  # candidates after the planned ones whose parameters are drawn at random
KEEP_CHANCE = (
    2 / 3
)  # chance that such a candidate has a parameter as the baseline has it: many changes at once cost quality
MAX_TOLERANCES = 2.0  # tolerances of quality that may be lost by fits near which Optuna looks for better ones
QUALITY_LOST = "quality lost"  # what a trial of Optuna keeps
BASELINE = Candidate("baseline", 0, 0, {})


@dataclass(frozen=True)
class SearchedFits:
    """Everything that was fitted, and whether Ctrl-C ended it early."""

    baseline: FitLine
    candidates: tuple[FitLine, ...]
    controls: tuple[FitLine, ...]
    interrupted: bool = False


def measure_candidate(fitter: CandidateFitter, candidate: Candidate, baseline: ModelAnswers | None) -> FitLine:
    """Fit one candidate and measure it on the choose part; a failure is a result, too."""
    start = time.perf_counter()
    try:
        evaluator = fitter.evaluator("choose")
        answers = fitter.answer(fitter.make(candidate), evaluator.rows)
        evaluator.refuse_one_decision(answers)
        values = evaluator.quality_of(answers), evaluator.measure_model(answers)
        gains = (0.0, 0.0, 0.0, 0.0)
        if baseline is not None:
            gain = evaluator.quality_gain(answers, baseline, fitter.settings.confidence)
            less = evaluator.measure_gain(answers, baseline, fitter.settings.confidence, CHOICE_DRAWS)
            gains = gain.value, gain.error, less.value, less.error
    except NeuronFairError as error:
        return FitLine(candidate, time.perf_counter() - start, one_line(error))
    return FitLine(candidate, time.perf_counter() - start, None, *values, *gains)


def _fit_piece(shared: tuple[CandidateFitter, ModelAnswers], candidate: Candidate, note: PieceProgress) -> FitLine:
    note(0, 1, 0)
    return measure_candidate(shared[0], candidate, shared[1])


def run_search(
    fitter: CandidateFitter, baseline: ModelAnswers, file: SearchFile, pool: Pool, show: Progress
) -> SearchedFits:
    """Fit candidates and as many controls, in turn, until the budget or the time is used up.

    A fit that the file has already is not made again. The same budget gives the same candidates, however often the
    search is killed and however many processes fit them.
    """
    settings, start, proposals = fitter.settings, time.perf_counter(), OptunaProposals(fitter)
    candidates, controls, interrupted = list[FitLine](), list[FitLine](), False
    budget = settings.budget
    if file.tested and (count := sum(fit.candidate.kind == "candidate" for fit in file.fits.values())) < budget:
        if settings.seconds is None:
            raise file.used_up()
        budget = count  # the time was up when the test part was used

    def fits(proposed: Sequence[Candidate], into: list[FitLine]) -> None:
        unfitted = [candidate for candidate in proposed if candidate.name not in file.fits]
        lines = iter(pool.map(_fit_piece, (fitter, baseline), unfitted)) if unfitted else iter(())
        for candidate in proposed:
            if candidate.name not in file.fits:
                file.add(next(lines))
            into.append(file.fits[candidate.name])
            if into[-1].candidate != candidate:
                raise NeuronFairError(f"{file.path}: its {candidate.name} has other parameters than are proposed now")
            failed = sum(line.error is not None for line in candidates)
            note = f"{failed} failed" if failed else ""
            show(f"Fitting {candidate.kind}s", len(candidates) + len(controls), 2 * budget, note)

    try:
        while (completed := len(candidates)) < budget:
            if settings.seconds is not None and completed and time.perf_counter() - start > settings.seconds:
                break
            numbers = range(completed, min(completed + CANDIDATES_PER_ROUND, budget))
            fits(proposals.ask(numbers), candidates)
            proposals.tell(candidates[completed:])
            fits([Candidate.of(settings.seed, "control", number, {}) for number in numbers], controls)
    except KeyboardInterrupt:
        interrupted = True
    return SearchedFits(file.fits[BASELINE.name], tuple(candidates), tuple(controls), interrupted)


class OptunaProposals:
    """Which parameters are tried: some planned ones, some drawn at random, then those that Optuna proposes."""

    def __init__(self, fitter: CandidateFitter) -> None:
        optuna = require("optuna", "alternatives", "a search for alternatives")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._failed = optuna.trial.TrialState.FAIL
        self._space = list_dimensions(fitter)
        settings = fitter.settings
        planned, generator = plan_candidates(self._space), np.random.default_rng(settings.seed)
        random_candidates = [
            {dimension.name: dimension.random(generator, KEEP_CHANCE) for dimension in self._space}
            for _ in range(RANDOM_CANDIDATES)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constraints are called experimental
            sampler = optuna.samplers.TPESampler(
                n_startup_trials=len(planned) + RANDOM_CANDIDATES,
                seed=settings.seed,
                constraints_func=lambda trial: (
                    trial.user_attrs.get(QUALITY_LOST, 0.0) - MAX_TOLERANCES * settings.tolerance,
                ),
            )
        self._study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        for parameters in (*planned, *random_candidates):
            self._study.enqueue_trial(parameters)
        self._drawn, self._seed = range(len(planned), len(planned) + RANDOM_CANDIDATES), settings.seed
        self._trials: list[Any] = []

    def ask(self, numbers: Sequence[int]) -> list[Candidate]:
        """Return the candidates with these numbers, which come after those that were told."""
        self._trials = [self._study.ask() for _ in numbers]
        proposals = [{dimension.name: dimension.drawn(trial) for dimension in self._space} for trial in self._trials]
        return [
            Candidate.of(self._seed, "candidate", number, parameters, number in self._drawn)
            for number, parameters in zip(numbers, proposals, strict=True)
        ]

    def tell(self, results: Sequence[FitLine]) -> None:
        """Report how those that were asked for last did."""
        for trial, line in zip(self._trials, results, strict=True):
            if line.error is not None:
                self._study.tell(trial, state=self._failed)
            else:
                trial.set_user_attr(QUALITY_LOST, -line.quality_gain)
                self._study.tell(trial, [line.quality, line.measure])


def list_dimensions(fitter: CandidateFitter) -> list[Dimension]:
    """Return everything that candidates may differ in."""
    settings, hints, recipe = fitter.settings, fitter.hints, fitter.recipe
    assert hints is not None
    last, proxies, tries = estimators.find_last_step(recipe.estimator), len(hints.proxies), settings.tries
    hidden, network = len(getattr(last, "hidden", ())), tries("neurons") and recipe.is_network
    threshold = tries("threshold") and len(fitter.table.values) == 2 and hasattr(last, "predict_proba")
    constrained = bool(hints.signs and {*last.get_params(deep=False)} & {*estimators.CONSTRAINTS})
    optional = [
        (True, Dimension("rows", 0.8, 1.0, 1.0, step=0.1)),
        (tries("leave-out") and proxies > 0, Dimension("leave_out", 0, proxies, 0, step=1, planned=(1, 2, 3))),
        (tries("coarsen") and len(fitter.banded) > 0, Dimension("bands", 0, 8, 0, step=2, planned=(4,))),
        (tries("reweight"), Dimension("reweight", 0.0, 1.5, 0.0, step=0.25, planned=(0.25, 0.5, 0.75, 1.0))),
        (hints.twins is not None, Dimension("twins", 0.0, 1.0, 0.0, step=0.25, planned=(0.25, 1.0))),
        (hints.pairs is not None, Dimension("pairs", 0.0, 1.0, 0.0, step=0.5, planned=(1.0,))),
        (tries("monotone") and constrained, Dimension("monotone", 0, 1, 0, step=1, planned=(1,))),
        (network, Dimension("silenced_share", 0.0, 0.5, 0.0, step=0.25, planned=(0.25,))),
        (network and hidden > 1, Dimension("layer", 0, hidden - 1, 0, step=1)),
        (threshold, Dimension("threshold", 0.3, 0.7, 0.5, step=0.02)),
    ]
    return [*fitter.hyper, *(dimension for included, dimension in optional if included)]


def plan_candidates(dimensions: Sequence[Dimension]) -> list[dict[str, Value]]:
    """Return the candidates that are tried first: the baseline without the attribute, then one change at a time."""
    default: dict[str, Value] = {
        dimension.name: int(dimension.default) if dimension.is_integer else dimension.default
        for dimension in dimensions
    }
    changes = [
        {dimension.name: value} for dimension in dimensions for value in dimension.planned if value <= dimension.high
    ]
    return [default, *({**default, **change} for change in changes)]


SearchConclusion = Literal["better", "none found", "interrupted"]


@dataclass(frozen=True)
class ShownFit:
    """A model on the test part. All intervals hold together at the confidence of the search, and so do all claims."""

    candidate: Candidate
    reads: tuple[str, ...]  # the sensitive attributes that it reads at decision time
    quality: Estimate
    measure: Estimate
    measures: Mapping[Measure, float]  # all that are known
    quality_gain: Gain | None = None  # against the baseline; None: it is the baseline
    measure_gain: Gain | None = None
    better: bool = False
    selected: float | None = None  # share of records with the class that counts as selected


@dataclass(frozen=True)
class GainChance:
    """How likely the next candidate at random is to be better on the choose part, as far as those tried tell."""

    better: int
    of: int
    high: float  # upper confidence bound (Clopper and Pearson)


def find_front(fits: Sequence[FitLine]) -> list[FitLine]:
    """Return the fits that no other beats in both quality and measure, the best quality first."""
    best: list[FitLine] = []
    for fit in sorted((f for f in fits if f.error is None), key=lambda f: (-f.quality, f.measure, f.candidate.number)):
        if not best or fit.measure < best[-1].measure:
            best.append(fit)
    return best


def weigh_evidence(fit: FitLine, tolerance: float) -> float:
    """Return by how many standard errors a fit is better: the smaller of its quality's margin and its measure's gain.

    >>> gains = {"quality_error": 0.0025, "measure_gain": 0.1, "measure_error": 0.02}
    >>> weigh_evidence(FitLine(Candidate("candidate", 0, 0, {}), **gains), 0.005)
    2.0
    """
    quality = _standardise(fit.quality_gain + tolerance, fit.quality_error)
    return min(quality, _standardise(fit.measure_gain, fit.measure_error))


def _standardise(value: float, error: float) -> float:
    return value / error if error > 0 else math.copysign(math.inf, value) if value else 0.0


def choose_fits(fits: SearchedFits, tolerance: float, limit: int, confidence: float) -> list[FitLine]:
    """Return what is measured on the test part: a few candidates of the front, and the best control.

    First the candidate with the most evidence, then the least discriminatory one whose quality is kept, then others of
    the front by their evidence. A candidate without any gain is not worth a look.
    """
    z = float(norm.ppf(confidence))
    usable = [f for f in fits.candidates if f.error is None and f.measure_gain > 0 and f.quality_gain > -tolerance]
    by_evidence = sorted(usable, key=lambda f: -weigh_evidence(f, tolerance))
    sure = [f for f in usable if _standardise(f.quality_gain + tolerance, f.quality_error) >= z]
    best = find_front(usable)
    ordered = [
        *by_evidence[:1],
        *sorted(sure, key=lambda f: f.measure)[:1],
        *(f for f in by_evidence if f in best),
        *by_evidence,
    ]
    distinct = list(
        {(f.quality, f.measure): f for f in reversed(ordered)}.values()
    )  # the first of the fits that answer alike
    controls = [f for f in fits.controls if f.error is None and f.measure_gain > 0]
    best_control = sorted(controls, key=lambda f: -weigh_evidence(f, tolerance))[:1]
    return [*sorted(distinct, key=ordered.index)[:limit], *best_control]


def bound_chance(fits: SearchedFits, tolerance: float, confidence: float) -> GainChance:
    """Return how likely one more candidate at random would be better on the choose part, with an upper bound.

    Only candidates that were drawn at random tell that: those that Optuna proposed depend on earlier ones.
    """
    random_fits = [f for f in fits.candidates if f.candidate.drawn]
    z = float(norm.ppf(confidence))
    better = sum(f.error is None and weigh_evidence(f, tolerance) >= z for f in random_fits)
    high = clopper_pearson(better, len(random_fits), 2 * confidence - 1).high if random_fits else 1.0  # one-sided
    return GainChance(better, len(random_fits), high)


def evaluate_fits(
    fitter: CandidateFitter, fits: Sequence[FitLine], evaluator: PartEvaluator
) -> tuple[list[ShownFit], list[str]]:
    """Fit the baseline and some fits again, and measure them on the part of an evaluator; the baseline is first.

    Also returns why others could not be measured there. Each of the fits is compared with the baseline at a confidence
    divided among them (Bonferroni), so that all claims hold together. Better means: the quality is not worse than the
    tolerance, and the measure is lower. The other parts say by which two groups of the baseline that is decided.
    """
    settings, table, results, failures = fitter.settings, fitter.table, list[ShownFit](), list[str]()
    claim_level = 1 - (1 - settings.confidence) / max(1, len(fits))
    span_level = 1 - (1 - settings.confidence) / (2 * len(fits) + 2)  # two intervals for each model
    model = fitter.make(BASELINE)
    baseline, other_rows = fitter.answer(model, evaluator.rows), np.concatenate([table.fit, table.choose])
    pair = replace(evaluator, rows=other_rows).find_pair(fitter.answer(model, other_rows))
    for candidate in (BASELINE, *(fit.candidate for fit in fits)):
        try:
            model = model if candidate is BASELINE else fitter.make(candidate)
            answers = fitter.answer(model, evaluator.rows)
            spans = evaluator.quality_span(answers, span_level), evaluator.measure_span(answers, span_level)
            selected = float((answers.decided == table.positive).mean())
            result = ShownFit(candidate, model.reads, *spans, evaluator.compute_measures(answers), selected=selected)
            if candidate is not BASELINE:
                evaluator.refuse_one_decision(answers)
                quality = evaluator.quality_gain(answers, baseline, claim_level)
                less = evaluator.measure_gain(answers, baseline, claim_level, pair=pair)
                better = quality.low > -settings.tolerance and less.low > 0
                result = replace(result, quality_gain=quality, measure_gain=less, better=better)
        except NeuronFairError as error:
            if candidate is BASELINE:
                raise
            failures.append(f"{candidate.name.capitalize()} could not be measured on the test part: {one_line(error)}.")
        else:
            results.append(result)
    return results, failures


def find_best(fits: Sequence[ShownFit], allow_disparate_treatment: bool) -> ShownFit | None:
    """Return the least discriminatory of those that are better and may be proposed; None if there is none.

    A control may be better and still read the sensitive attribute, as the baseline does.
    """
    better = [fit for fit in fits if fit.better and (allow_disparate_treatment or not fit.reads)]
    return min(better, key=lambda fit: (fit.measure.value, -fit.quality.value)) if better else None
