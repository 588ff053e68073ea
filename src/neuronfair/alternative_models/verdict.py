"""The verdict: which candidates are measured on the test part, once, and which of them are better than the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scipy.stats import beta, norm

from neuronfair.alternative_models.candidates import Candidate, Workshop
from neuronfair.alternative_models.objectives import Gain, MeasuredValue, ModelAnswers, Yardstick
from neuronfair.alternative_models.search import BASELINE, FitLine, Searched
from neuronfair.alternative_models.settings import Measure

SearchConclusion = Literal["better", "none found", "interrupted"]


@dataclass(frozen=True)
class Shown:
    """A model on the test part. All intervals hold together, at the confidence of the search."""

    candidate: Candidate
    reads: tuple[str, ...]  # the sensitive attributes that it reads at decision time
    quality: MeasuredValue
    measure: MeasuredValue
    measures: Mapping[Measure, float]  # all that are known
    quality_gain: Gain | None = None  # against the baseline; None: it is the baseline
    measure_gain: Gain | None = None
    better: bool = False


@dataclass(frozen=True)
class Chance:
    """How likely the next candidate at random is to be better on the choose part, as far as those tried tell."""

    better: int
    of: int
    high: float  # upper confidence bound (Clopper and Pearson)


def front(fits: Sequence[FitLine]) -> list[FitLine]:
    """Return the fits that no other beats in both quality and measure, the best quality first."""
    found: list[FitLine] = []
    for one in sorted((f for f in fits if f.error is None), key=lambda f: (-f.quality, f.measure, f.candidate.number)):
        if not found or one.measure < found[-1].measure:
            found.append(one)
    return found


def evidence(one: FitLine, tolerance: float) -> float:
    """Return by how many standard errors a fit is better: the smaller of its quality's margin and its measure's gain.

    >>> gains = {"quality_error": 0.0025, "measure_gain": 0.1, "measure_error": 0.02}
    >>> evidence(FitLine(Candidate("candidate", 0, 0, {}), **gains), 0.005)
    2.0
    """
    quality = _ratio(one.quality_gain + tolerance, one.quality_error)
    return min(quality, _ratio(one.measure_gain, one.measure_error))


def _ratio(value: float, error: float) -> float:
    return value / error if error > 0 else math.copysign(math.inf, value) if value else 0.0


def chosen(searched: Searched, tolerance: float, most: int, confidence: float) -> list[FitLine]:
    """Return what is measured on the test part: a few candidates of the front, and the best control.

    First the candidate with the most evidence, then the least discriminatory one whose quality is kept, then others of
    the front by their evidence. A candidate without any gain is not worth a look.
    """
    z = float(norm.ppf(confidence))
    usable = [f for f in searched.candidates if f.error is None and f.measure_gain > 0 and f.quality_gain > -tolerance]
    by_evidence = sorted(usable, key=lambda f: -evidence(f, tolerance))
    sure = [f for f in usable if _ratio(f.quality_gain + tolerance, f.quality_error) >= z]
    best = front(usable)
    wanted = [
        *by_evidence[:1],
        *sorted(sure, key=lambda f: f.measure)[:1],
        *(f for f in by_evidence if f in best),
        *by_evidence,
    ]
    found = list({(f.quality, f.measure): f for f in reversed(wanted)}.values())  # of fits that answer alike, the first
    controls = [f for f in searched.controls if f.error is None and f.measure_gain > 0]
    best_control = sorted(controls, key=lambda f: -evidence(f, tolerance))[:1]
    return [*sorted(found, key=wanted.index)[:most], *best_control]


def chance(searched: Searched, tolerance: float, confidence: float) -> Chance:
    """Return how likely one more candidate at random would be better on the choose part, with an upper bound.

    Only candidates that were drawn at random tell that: those that Optuna proposed depend on earlier ones.
    """
    drawn = [f for f in searched.candidates if f.candidate.drawn]
    z = float(norm.ppf(confidence))
    better = sum(f.error is None and evidence(f, tolerance) >= z for f in drawn)
    if not drawn or better == len(drawn):
        return Chance(better, len(drawn), 1.0)
    return Chance(better, len(drawn), float(beta.ppf(confidence, better + 1, len(drawn) - better)))


def evaluated(workshop: Workshop, some: Sequence[FitLine], yardstick: Yardstick) -> list[Shown]:
    """Fit the baseline and some fits again, and measure them on the part of a yardstick, the baseline first.

    Each of the fits is compared with the baseline at a confidence divided among them (Bonferroni), so that all claims
    hold together. Better means: the quality is not worse than the tolerance, and the measure is lower.
    """
    settings, results = workshop.settings, list[Shown]()
    each = 1 - (1 - settings.confidence) / max(1, len(some))
    both = 1 - (1 - settings.confidence) / (2 * len(some) + 2)  # two intervals for each model
    first: ModelAnswers | None = None
    for candidate in (BASELINE, *(one.candidate for one in some)):
        made = workshop.make(candidate)
        answers = workshop.ask(made, yardstick.rows)
        spans = yardstick.quality_span(answers, both), yardstick.measure_span(answers, both)
        shown = Shown(candidate, made.reads, *spans, yardstick.every(answers))
        if first is None:
            first = answers
        else:
            quality = yardstick.quality_gain(answers, first, each)
            less = yardstick.measure_gain(answers, first, each)
            better = quality.low > -settings.tolerance and less.low > 0
            shown = replace(shown, quality_gain=quality, measure_gain=less, better=better)
        results.append(shown)
    return results


def best_of(shown: Sequence[Shown]) -> Shown | None:
    """Return the least discriminatory of those that are better; None if there is none."""
    better = [one for one in shown if one.better]
    return min(better, key=lambda one: (one.measure.value, -one.quality.value)) if better else None
