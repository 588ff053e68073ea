"""Quality and discrimination of a model's answers on a part, and how sure their change against a baseline is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm
from scipy.stats import t as student

from neuronfair.alternative_models import AlternativesSettings, Measure
from neuronfair.alternative_models.parts import LEAST, Integers, SearchTable
from neuronfair.errors import DataError, ModelError, NeuronFairError, one_line
from neuronfair.measure.stats import Estimate, Fit
from neuronfair.model.decision import Decision
from neuronfair.model.formats import ModelFile
from neuronfair.model.open.user_code import import_object

Floats = npt.NDArray[np.float64]
QualityFunction = Callable[[Any, Any], float]
DRAWS = 2_000  # of the bootstrap that gives the intervals of a measure
CHOICE_DRAWS = 200  # of the bootstrap by which candidates are chosen
OWN_DRAWS = 200  # of the bootstrap of a quality function of the user's, which may be slow
TINY = 1e-12
#: What each measure says, in words.
MEASURES: dict[Measure, str] = {
    "disparate_impact": "disparate impact (1 − ratio)",
    "selection_gap": "selection-rate difference",
    "error_rates": "equalized odds difference",
    "flip_rate": "flip rate",
}


@dataclass(frozen=True)
class ModelAnswers:
    """What a model answers for the records of a part.

    `scores` are the probabilities of the classes, None for a model that gives none. `flips` says whose decision depends
    on the sensitive attribute.
    """

    decided: Integers
    scores: Floats | None
    flips: npt.NDArray[np.bool_]


class Gain(NamedTuple):
    """How much better than the baseline a model is, the standard error of that, and a lower confidence bound."""

    value: float
    error: float
    low: float


@dataclass(frozen=True)
class PartEvaluator:
    """Measures the answers of models for the records of one part."""

    table: SearchTable
    rows: Integers
    quality: str | QualityFunction
    measure: Measure

    @staticmethod
    def of(table: SearchTable, part: str, settings: AlternativesSettings, own: QualityFunction | None) -> PartEvaluator:
        """Return what measures answers for a part; `own` is a quality function of the user's."""
        known: Measure = "selection_gap" if table.data.domain.favourable is None else "disparate_impact"
        if settings.measure == "disparate_impact" and known != settings.measure:
            raise DataError("the disparate-impact ratio needs the favourable outcome. Name it: --favourable CLASS")
        quality = own if own is not None else settings.quality
        if isinstance(quality, str) and ":" in quality:
            quality = import_object(ModelFile(quality), quality)
        return PartEvaluator(table, table.part(part), quality, settings.measure or known)

    @cached_property
    def labels(self) -> Integers:
        """The number of the class of each record."""
        return self.table.labels[self.rows]

    # Quality

    def quality_of(self, answers: ModelAnswers) -> float:
        """Return the quality of a model; more is better."""
        if callable(self.quality):
            return self._own(answers, np.arange(len(self.rows)))
        return self._compared_quality(answers, None)[0]

    def quality_gain(self, answers: ModelAnswers, baseline: ModelAnswers, confidence: float) -> Gain:
        """Return the change of quality against a baseline, with a one-sided lower bound."""
        value, error = self._compared_quality(answers, baseline)
        return Gain(value, error, value - float(student.ppf(confidence, len(self.rows) - 1)) * error)

    def quality_span(self, answers: ModelAnswers, confidence: float) -> Estimate:
        """Return the quality with its confidence interval."""
        value, error = self._compared_quality(answers, None)
        half = float(norm.isf((1 - confidence) / 2)) * error
        return Estimate(value, value - half, value + half)

    def _compared_quality(self, answers: ModelAnswers, baseline: ModelAnswers | None) -> tuple[float, float]:
        """Return the quality, or how much more it is than a baseline's, and its standard error."""
        if self.quality == "roc_auc":
            return self._fit(answers).auc(None if baseline is None else self._fit(baseline))
        n = len(self.rows)
        if not callable(self.quality):
            gains = self._gains(answers) - (0.0 if baseline is None else self._gains(baseline))
            return float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(n))

        def value(some: Integers) -> float:
            return self._own(answers, some) - (0.0 if baseline is None else self._own(baseline, some))

        random = np.random.default_rng(n)
        return value(np.arange(n)), float(np.std([value(random.integers(n, size=n)) for _ in range(OWN_DRAWS)], ddof=1))

    def _gains(self, answers: ModelAnswers) -> Floats:
        """Return what each record adds to the quality, whose mean it is."""
        right = (answers.decided == self.labels).astype(np.float64)
        if self.quality == "accuracy":
            return np.asarray(right)
        if self.quality == "balanced_accuracy":
            classes, place = np.unique(self.labels, return_inverse=True)
            return np.asarray(right * (len(right) / (len(classes) * np.bincount(place)))[place])
        own = self._scores(answers)[np.arange(len(right)), self.labels]
        return np.asarray(np.log(own.clip(TINY, 1.0)))

    def _fit(self, answers: ModelAnswers) -> Fit:
        return Fit.of(self._scores(answers), self.labels, Decision())

    def _scores(self, answers: ModelAnswers) -> Floats:
        if answers.scores is None:
            raise ModelError(f"the quality {self.quality} needs probabilities, and the model gives none")
        return answers.scores

    def _own(self, answers: ModelAnswers, some: Integers) -> float:
        assert callable(self.quality)
        values = np.array(self.table.values)
        try:
            found = float(self.quality(values[self.labels[some]], values[answers.decided[some]]))
        except Exception as error:  # the user's own code
            raise NeuronFairError(f"the quality function failed ({type(error).__name__}: {one_line(error)})") from error
        if not math.isfinite(found):
            raise NeuronFairError(f"the quality function gave {found}, and a finite number is needed")
        return found

    # Discrimination

    def measured(self, answers: ModelAnswers) -> float:
        """Return how discriminatory a model is; 0 is best."""
        return self.every(answers)[self.measure]

    def refuse_one_decision(self, answers: ModelAnswers) -> None:
        """Refuse a model that decides (nearly) alike for all: where hardly anyone is selected, no group is behind."""
        chosen = answers.decided[self._compared] == self.table.positive
        if min(chosen.sum(), (~chosen).sum()) < LEAST:
            raise ModelError(
                f"it selects {chosen.sum():,} of {len(chosen):,} records, and groups are compared only where at least "
                f"{LEAST} are selected and {LEAST} are not"
            )

    def every(self, answers: ModelAnswers) -> dict[Measure, float]:
        """Return all measures of a model; the disparate-impact ratio only where the favourable outcome is known."""
        counts = self.count_answers(answers, answers)[None].astype(np.float64).sum(-1)  # (1, groups, labels, decisions)
        found: dict[Measure, float] = {}
        for name in MEASURES:
            if name == "flip_rate":
                found[name] = float(answers.flips[self._compared].mean())
            elif name != "disparate_impact" or self.table.data.domain.favourable is not None:
                found[name] = float(_measure(name, counts)[0])
        return found

    def measure_gain(
        self, answers: ModelAnswers, baseline: ModelAnswers, confidence: float, draws: int = DRAWS
    ) -> Gain:
        """Return by how much the measure is lower than a baseline's, with a one-sided lower bound (bootstrap)."""
        value = self.measured(baseline) - self.measured(answers)
        drawn = self._drawn(answers, baseline, draws)
        change = drawn[1] - drawn[0]
        return Gain(value, float(change.std(ddof=1)), float(np.quantile(change, 1 - confidence)))

    def measure_span(self, answers: ModelAnswers, confidence: float) -> Estimate:
        """Return the measure with its confidence interval (bootstrap)."""
        drawn = self._drawn(answers, answers, DRAWS)[0]
        low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
        value = self.measured(answers)
        return Estimate(value, min(value, float(low)), max(value, float(high)))

    @cached_property
    def _compared(self) -> npt.NDArray[np.bool_]:
        """Which records belong to a group that is compared."""
        return self.table.group[self.rows] >= 0

    def _drawn(self, answers: ModelAnswers, baseline: ModelAnswers, draws: int) -> Floats:
        """Return the measure of a model and of the baseline in tables drawn with replacement: (2, draws).

        Only counts matter: records of a group with the same label and the same two answers are alike.
        """
        random = np.random.default_rng([draws, len(self.rows)])
        if self.measure == "flip_rate":
            cells = 2 * answers.flips[self._compared] + baseline.flips[self._compared]
            shares = np.bincount(cells, minlength=4) / len(cells)
            drawn = random.multinomial(len(cells), shares, size=draws) / len(cells)
            return np.stack([drawn[:, 2] + drawn[:, 3], drawn[:, 1] + drawn[:, 3]])
        counts = self.count_answers(answers, baseline)  # (groups, labels, decided, decided by the baseline)
        flat = counts.reshape(len(counts), -1)
        drawn = np.stack([random.multinomial(one.sum(), one / one.sum(), size=draws) for one in flat], 1)
        whole = drawn.reshape(draws, *counts.shape).astype(np.float64)
        return np.stack([_measure(self.measure, whole.sum(4)), _measure(self.measure, whole.sum(3))])

    def count_answers(self, answers: ModelAnswers, baseline: ModelAnswers) -> Integers:
        """Return how many records there are by group, label, and both decisions, each positive or not."""
        positive, kept = self.table.positive, self._compared
        group, groups = self.table.group[self.rows][kept], len(self.table.groups)
        sides = [(one[kept] == positive).astype(np.int64) for one in (self.labels, answers.decided, baseline.decided)]
        place = ((group * 2 + sides[0]) * 2 + sides[1]) * 2 + sides[2]
        return np.bincount(place, minlength=groups * 8).reshape(groups, 2, 2, 2)


def _measure(name: Measure, counts: Floats) -> Floats:
    """Return a measure of tables, given records by group, label and decision: (draws, groups, 2, 2) -> (draws,)."""
    if name == "error_rates":
        of = counts.sum(3)
        rates = np.where(of > 0, counts[..., 1] / of.clip(1), np.nan)  # (draws, groups, labels)
        spread = np.nan_to_num(np.fmax.reduce(rates, 1) - np.fmin.reduce(rates, 1))
        return np.asarray(spread.max(1))
    selected = counts[..., 1].sum(2) / counts.sum((2, 3)).clip(1)
    most, least = selected.max(1), selected.min(1)
    if name == "selection_gap":
        return np.asarray(most - least)
    return np.asarray(np.where(most > 0, 1 - least / most.clip(TINY), 0.0))
