"""Quality and discrimination of a model's answers on a part, and how sure their change against a baseline is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import norm
from scipy.stats import t as student

from neuronfair.alternative_models import AlternativesSettings, Measure
from neuronfair.alternative_models.parts import MIN_IN_PART, Integers, SearchTable
from neuronfair.errors import DataError, ModelError, NeuronFairError, one_line
from neuronfair.measure.stats import Estimate, Fit, excess
from neuronfair.model.decision import Decision
from neuronfair.model.formats import ModelFile
from neuronfair.model.open.user_code import import_object

Floats = npt.NDArray[np.float64]
QualityFunction = Callable[[Any, Any], float]
DRAWS = 2_000  # of the bootstrap that gives the intervals of a measure
CHOICE_DRAWS = 200  # of the bootstrap by which candidates are chosen
OWN_DRAWS = 200  # of the bootstrap of a quality function of the user's, which may be slow
TINY = 1e-12
ADDED = 0.25  # records to each count of a table from which bounds are drawn
GROUP_MEASURES: tuple[Measure, ...] = ("disparate_impact", "selection_gap", "error_rates")
#: What each measure says, in words.
MEASURES: dict[Measure, str] = {
    "disparate_impact": "disparate impact (1 − ratio)",
    "selection_gap": "selection-rate difference",
    "error_rates": "equalized odds difference",
    "flip_rate": "flip rate",
    "plausible_flip_rate": "flip rate of plausible pairs",
    "counterfactual_excess": "counterfactual excess",
}


@dataclass(frozen=True)
class ModelAnswers:
    """What a model answers for the records of a part.

    `scores` are the probabilities of the classes, None for a model that gives none. `flips` are by measure the share of
    each record's twins with another decision, and the same with shuffled groups: (2, n), NaN for a record without twin.
    """

    decided: Integers
    scores: Floats | None
    flips: Mapping[Measure, Floats]


class GroupPair(NamedTuple):
    """Two groups of which one is selected more often, for error rates among the records of a label."""

    label: int
    ahead: int
    behind: int


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
    def of(
        table: SearchTable, part: str, settings: AlternativesSettings, quality_function: QualityFunction | None
    ) -> PartEvaluator:
        """Return what measures answers for a part; `quality_function` is one of the user's own."""
        default: Measure = "selection_gap" if table.data.domain.favourable is None else "disparate_impact"
        if settings.measure == "disparate_impact" and default != settings.measure:
            raise DataError("the disparate-impact ratio needs the favourable outcome. Name it: --favourable CLASS")
        quality = quality_function if quality_function is not None else settings.quality
        if isinstance(quality, str) and ":" in quality:
            quality = import_object(ModelFile(quality), quality)
        return PartEvaluator(table, table.part(part), quality, settings.measure or default)

    @cached_property
    def labels(self) -> Integers:
        """The number of the class of each record."""
        return self.table.labels[self.rows]

    # Quality

    def quality_of(self, answers: ModelAnswers) -> float:
        """Return the quality of a model; more is better."""
        if callable(self.quality):
            return self._evaluate_own(answers, np.arange(len(self.rows)))
        return self._estimate_quality(answers, None)[0]

    def quality_gain(self, answers: ModelAnswers, baseline: ModelAnswers, confidence: float) -> Gain:
        """Return the change of quality against a baseline, with a one-sided lower bound."""
        value, error = self._estimate_quality(answers, baseline)
        return Gain(value, error, value - float(student.ppf(confidence, len(self.rows) - 1)) * error)

    def quality_span(self, answers: ModelAnswers, confidence: float) -> Estimate:
        """Return the quality with its confidence interval."""
        value, error = self._estimate_quality(answers, None)
        half = float(norm.isf((1 - confidence) / 2)) * error
        return Estimate(value, value - half, value + half)

    def _estimate_quality(self, answers: ModelAnswers, baseline: ModelAnswers | None) -> tuple[float, float]:
        """Return the quality, or how much more it is than a baseline's, and its standard error."""
        if self.quality == "roc_auc":
            return self._score_fit(answers).auc(None if baseline is None else self._score_fit(baseline))
        n = len(self.rows)
        if not callable(self.quality):
            gains = self._quality_by_record(answers) - (0.0 if baseline is None else self._quality_by_record(baseline))
            return float(gains.mean()), float(gains.std(ddof=1) / math.sqrt(n))

        def value(records: Integers) -> float:
            return self._evaluate_own(answers, records) - (
                0.0 if baseline is None else self._evaluate_own(baseline, records)
            )

        random = np.random.default_rng(n)
        return value(np.arange(n)), float(np.std([value(random.integers(n, size=n)) for _ in range(OWN_DRAWS)], ddof=1))

    def _quality_by_record(self, answers: ModelAnswers) -> Floats:
        """Return what each record adds to the quality, whose mean it is."""
        right = (answers.decided == self.labels).astype(np.float64)
        if self.quality == "accuracy":
            return np.asarray(right)
        if self.quality == "balanced_accuracy":
            classes, class_index = np.unique(self.labels, return_inverse=True)
            return np.asarray(right * (len(right) / (len(classes) * np.bincount(class_index)))[class_index])
        own_scores = self._scores(answers)[np.arange(len(right)), self.labels]
        return np.asarray(np.log(own_scores.clip(TINY, 1.0)))

    def _score_fit(self, answers: ModelAnswers) -> Fit:
        return Fit.of(self._scores(answers), self.labels, Decision())

    def _scores(self, answers: ModelAnswers) -> Floats:
        if answers.scores is None:
            raise ModelError(f"the quality {self.quality} needs probabilities, and the model gives none")
        return answers.scores

    def _evaluate_own(self, answers: ModelAnswers, records: Integers) -> float:
        assert callable(self.quality)
        values = np.array(self.table.values)
        try:
            value = float(self.quality(values[self.labels[records]], values[answers.decided[records]]))
        except Exception as error:  # the user's own code
            raise NeuronFairError(f"the quality function failed ({type(error).__name__}: {one_line(error)})") from error
        if not math.isfinite(value):
            raise NeuronFairError(f"the quality function gave {value}, and a finite number is needed")
        return value

    # Discrimination

    def measure_model(self, answers: ModelAnswers) -> float:
        """Return how discriminatory a model is; 0 is best."""
        return self.compute_measures(answers)[self.measure]

    def refuse_one_decision(self, answers: ModelAnswers) -> None:
        """Refuse a model that decides (nearly) alike for all: where hardly anyone is selected, no group is behind."""
        selected = answers.decided[self._compared] == self.table.positive
        if min(selected.sum(), (~selected).sum()) < MIN_IN_PART:
            raise ModelError(
                f"it selects {selected.sum():,} of {len(selected):,} records, and groups are compared only where at "
                f"least {MIN_IN_PART} are selected and {MIN_IN_PART} are not"
            )

    def compute_measures(self, answers: ModelAnswers) -> dict[Measure, float]:
        """Return the measures of a model that are known: those of groups, and of twins as far as it answered them."""
        counts = self.count_answers(answers, answers)[None].astype(np.float64).sum(-1)  # (1, groups, labels, decisions)
        favourable = self.table.data.domain.favourable is not None
        names = [name for name in GROUP_MEASURES if favourable or name != "disparate_impact"]
        measures = {name: float(_measure_groups(name, counts)[0]) for name in names}
        for name, flips in answers.flips.items():
            measures[name] = excess(*np.nanmean(flips[:, self._compared], axis=1).tolist())
        return measures

    def measure_gain(
        self,
        answers: ModelAnswers,
        baseline: ModelAnswers,
        confidence: float,
        draws: int = DRAWS,
        pair: GroupPair | None = None,
    ) -> Gain:
        """Return by how much the measure is lower than a baseline's, with a one-sided lower bound (bootstrap).

        A measure of groups needs a `pair` that other records have named; without it, the bound claims too much.
        """
        value = self.measure_model(baseline) - self.measure_model(answers)
        measures = self._draw_measures(answers, baseline, draws)
        change = measures[1] - measures[0]
        low = float(np.quantile(change, 1 - confidence))
        if pair is not None:
            low = min(value, self._bound_gain(answers, baseline, confidence, pair))
        return Gain(value, float(change.std(ddof=1)), low)

    def find_pair(self, answers: ModelAnswers) -> GroupPair | None:
        """Return the two groups that a model keeps furthest apart; None for a measure that compares no groups."""
        if self.measure not in GROUP_MEASURES:
            return None
        rates = _rates(self.measure, self.count_answers(answers, answers)[None].astype(np.float64).sum(-1))[0]
        pairs = [GroupPair(i, int(np.nanargmax(row)), int(np.nanargmin(row))) for i, row in enumerate(rates)]
        return max(pairs, key=lambda pair: float(_distance(self.measure, rates[pair[:2]], rates[pair[::2]])))

    def _bound_gain(self, answers: ModelAnswers, baseline: ModelAnswers, confidence: float, pair: GroupPair) -> float:
        """Return a lower bound for how much closer together a model brings the groups than a baseline (bootstrap).

        The measure is the distance of the groups that are furthest apart, which noise makes larger. But if one pair is
        further apart under the baseline than *each* pair under the model, the measure is lower; and each of these
        comparisons may be made at the full confidence (intersection-union test: Berger 1982), since the pair of the
        baseline was named by other records. A quarter of a record is added to each count, or else a rate of 0 or 1
        would be known without error.
        """
        tables = self._draw_counts(answers, baseline, DRAWS, ADDED)
        model_rates, base_rates = (_rates(self.measure, tables.sum(axis)) for axis in (4, 3))  # (draws, labels, groups)
        distances = _distance(
            self.measure, base_rates[:, pair.label, pair.ahead], base_rates[:, pair.label, pair.behind]
        )
        bounds = [
            np.quantile(
                distances[:, None] - _distance(self.measure, ahead[:, None], rates), 1 - confidence, axis=0
            ).min()
            for rates in model_rates.transpose(1, 0, 2)
            for ahead in rates.T
        ]
        return float(min(bounds))

    def measure_span(self, answers: ModelAnswers, confidence: float) -> Estimate:
        """Return the measure with its confidence interval (bootstrap)."""
        measures = self._draw_measures(answers, answers, DRAWS)[0]
        low, high = np.quantile(measures, [(1 - confidence) / 2, (1 + confidence) / 2])
        value = self.measure_model(answers)
        return Estimate(value, min(value, float(low)), max(value, float(high)))

    @cached_property
    def _compared(self) -> npt.NDArray[np.bool_]:
        """Which records belong to a group that is compared."""
        return self.table.group[self.rows] >= 0

    def _draw_measures(self, answers: ModelAnswers, baseline: ModelAnswers, draws: int) -> Floats:
        """Return the measure of a model and of the baseline in tables drawn with replacement: (2, draws)."""
        if self.measure in GROUP_MEASURES:
            tables = self._draw_counts(answers, baseline, draws)
            return np.stack([_measure_groups(self.measure, tables.sum(axis)) for axis in (4, 3)])
        random = np.random.default_rng([draws, len(self.rows)])
        flips = np.concatenate([answers.flips[self.measure], baseline.flips[self.measure]]).T[self._compared]
        values, count = np.unique(flips[~np.isnan(flips).any(1)], axis=0, return_counts=True)  # records that are alike
        means = random.multinomial(count.sum(), count / count.sum(), size=draws) @ values / count.sum()  # (draws, 4)
        return np.array([[excess(*pair) for pair in means[:, start : start + 2].tolist()] for start in (0, 2)])

    def _draw_counts(self, answers: ModelAnswers, baseline: ModelAnswers, draws: int, added: float = 0.0) -> Floats:
        """Return counts of tables drawn with replacement within each group, in the shape of `count_answers`.

        Only counts matter: records of a group with the same label and the same two answers are alike.
        """
        random, counts = np.random.default_rng([draws, len(self.rows)]), self.count_answers(answers, baseline)
        flat = counts.reshape(len(counts), -1)
        shares = (flat + added) / (flat + added).sum(1, keepdims=True)
        sizes = flat.sum(1)
        tables = [random.multinomial(size, share, size=draws) for size, share in zip(sizes, shares, strict=True)]
        return np.stack(tables, 1).reshape(draws, *counts.shape).astype(np.float64)

    def count_answers(self, answers: ModelAnswers, baseline: ModelAnswers) -> Integers:
        """Return how many records there are by group, label, and both decisions, each positive or not."""
        positive, compared = self.table.positive, self._compared
        group, groups = self.table.group[self.rows][compared], len(self.table.groups)
        classes = (self.labels, answers.decided, baseline.decided)
        label, decided, before = ((codes[compared] == positive).astype(np.int64) for codes in classes)
        cells = ((group * 2 + label) * 2 + decided) * 2 + before
        return np.bincount(cells, minlength=groups * 8).reshape(groups, 2, 2, 2)


def _rates(name: Measure, counts: Floats) -> Floats:
    """Return how often each group is selected, for error rates by label: (draws, groups, 2, 2) -> (draws, 1|2, groups).

    `counts` are records by group, label and decision. The rate of a label that a group does not have is NaN.
    """
    if name == "error_rates":
        sizes = counts.sum(3)
        return np.where(sizes > 0, counts[..., 1] / sizes.clip(1), np.nan).transpose(0, 2, 1)
    return np.asarray(counts[..., 1].sum(2) / counts.sum((2, 3)).clip(1))[:, None]


def _distance(name: Measure, ahead: Floats, behind: Floats) -> Floats:
    """Return how far a rate is behind another one."""
    if name == "disparate_impact":
        return np.asarray(np.where(ahead > 0, 1 - behind / ahead.clip(TINY), 0.0))
    return np.asarray(np.nan_to_num(ahead - behind))


def _measure_groups(name: Measure, counts: Floats) -> Floats:
    """Return a measure of tables, given records by group, label and decision: (draws, groups, 2, 2) -> (draws,)."""
    rates = _rates(name, counts)
    return np.asarray(_distance(name, np.fmax.reduce(rates, 2), np.fmin.reduce(rates, 2)).max(1))
