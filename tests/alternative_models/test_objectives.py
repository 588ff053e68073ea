"""Quality and measures by hand, and intervals that hold what they promise."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

from neuronfair.alternative_models import AlternativesSettings
from neuronfair.alternative_models.objectives import ModelAnswers, PartEvaluator
from neuronfair.alternative_models.parts import SearchTable, prepare_search_table
from neuronfair.audits.inputs import ModelSource, read_input
from neuronfair.errors import ModelError, NeuronFairError


def table(n: int = 400) -> SearchTable:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"sex": np.where(np.arange(n) % 2, "m", "f"), "x": draw.integers(0, 5, n)})
    frame["hired"] = np.where(draw.random(n) < 0.5, "yes", "no")
    found = read_input(frame, ModelSource(), sensitive="sex", target="hired").with_favourable("yes")
    return prepare_search_table(found.data, 0)


def evaluator(quality: str = "accuracy", measure: str | None = None) -> PartEvaluator:
    return PartEvaluator.of(table(), "test", AlternativesSettings(quality=quality, measure=measure), None)


def no_flips(n: int) -> dict[str, np.ndarray]:
    return {"flip_rate": np.zeros((2, n))}


def answers(one: PartEvaluator, decided: np.ndarray, chance: np.ndarray | None = None) -> ModelAnswers:
    chance = decided.astype(float) if chance is None else chance
    return ModelAnswers(decided, np.stack([1 - chance, chance], 1), no_flips(len(decided)))


def test_parts_share_no_record_and_hold_as_many_of_each_label_and_group() -> None:
    one = table(1000)
    parts = [one.fit, one.choose, one.test]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    assert [len(part) for part in parts] == [600, 200, 200]
    for part in parts:
        for label, group in itertools.product((0, 1), (0, 1)):
            inside = (one.labels == label) & (one.group == group)
            assert inside[part].mean() == pytest.approx(inside.mean(), abs=0.01)
    assert not np.array_equal(one.test, prepare_search_table(one.data, 1).test)


def test_measures_by_hand() -> None:
    one = evaluator()
    group, labels = one.table.group[one.rows], one.labels
    men = group == one.table.groups.index("m")
    decided = np.where(men, 1, 0)  # all men and no women are selected
    every = one.compute_measures(answers(one, decided))
    assert every == {"disparate_impact": 1.0, "selection_gap": 1.0, "error_rates": 1.0, "flip_rate": 0.0}
    alike = one.compute_measures(answers(one, labels * 0 + 1))
    assert set(alike.values()) == {0.0}
    half = decided.copy()
    half[np.flatnonzero(men)[: men.sum() // 2]] = 0
    half[np.flatnonzero(~men)[: (~men).sum() // 4]] = 1
    rates = [half[men].mean(), half[~men].mean()]
    assert one.compute_measures(answers(one, half))["disparate_impact"] == pytest.approx(1 - min(rates) / max(rates))
    assert one.compute_measures(answers(one, half))["selection_gap"] == pytest.approx(max(rates) - min(rates))


@pytest.mark.parametrize(
    ("quality", "expected"),
    [
        ("accuracy", lambda y, p: np.mean((p > 0.5) == y)),
        ("balanced_accuracy", lambda y, p: balanced_accuracy_score(y, p > 0.5)),
        ("roc_auc", roc_auc_score),
        ("log_loss", lambda y, p: -log_loss(y, p)),
    ],
)
def test_qualities_are_those_of_scikit_learn_and_their_intervals_cover(quality, expected) -> None:
    one, draw, covered = evaluator(quality), np.random.default_rng(1), 0
    true = None
    for _ in range(60):
        labels = draw.integers(0, 2, len(one.rows))
        chance = np.clip(draw.normal(0.5 + 0.2 * (labels - 0.5), 0.2), 0.01, 0.99)
        object.__setattr__(one, "labels", labels)
        given = answers(one, (chance > 0.5).astype(int), chance)
        assert one.quality_of(given) == pytest.approx(expected(labels, chance), abs=1e-9)
        span = one.quality_span(given, 0.9)
        if true is None:
            big = draw.integers(0, 2, 200_000)
            true = expected(big, np.clip(draw.normal(0.5 + 0.2 * (big - 0.5), 0.2), 0.01, 0.99))
        covered += span.low <= true <= span.high
    assert covered >= 46  # of 60, where 54 are expected


def test_claims_of_less_discrimination_are_seldom_wrong() -> None:
    """Two models that select alike, but not the same records: a lower measure is claimed in 1 of 20 samples or less."""
    one, draw, claims = evaluator(measure="selection_gap"), np.random.default_rng(2), 0
    men = one.table.group[one.rows] == one.table.groups.index("m")
    for _ in range(200):
        both = [(draw.random(len(men)) < np.where(men, 0.7, 0.3)).astype(int) for _ in range(2)]
        gain = one.measure_gain(answers(one, both[0]), answers(one, both[1]), 0.95, 300)
        claims += gain.low > 0
    assert claims <= 20
    better = (draw.random(len(men)) < 0.5).astype(int)
    assert one.measure_gain(answers(one, better), answers(one, men.astype(int)), 0.95).low > 0.5


def test_a_pair_of_groups_is_compared_with_every_pair_of_the_other_model() -> None:
    one = evaluator(measure="selection_gap")
    men = one.table.group[one.rows] == one.table.groups.index("m")
    place = np.where(men, men.cumsum(), (~men).cumsum()) % 10  # in each group
    baseline = (place < np.where(men, 8, 3)).astype(int)
    model = (place < np.where(men, 3, 8)).astype(int)  # as far apart, the other way round
    pair = one.find_pair(answers(one, baseline))
    assert [one.table.groups[i] for i in pair[1:]] == ["m", "f"]
    gain = one.measure_gain(answers(one, model), answers(one, baseline), 0.95, pair=pair)
    assert gain.value == pytest.approx(0, abs=0.05)
    assert gain.low < -0.1
    alike = answers(one, (place < 5).astype(int))
    assert one.measure_gain(alike, answers(one, baseline), 0.95, pair=pair).low > 0.1
    assert evaluator(measure="flip_rate").find_pair(answers(one, baseline)) is None


def test_five_small_groups_that_are_selected_less_often_are_seldom_called_fairer() -> None:
    """Noise makes the gap of five groups larger, and more so where half of them are selected than a twentieth."""
    draw = np.random.default_rng(3)
    group = np.repeat(np.arange(5), 40)
    labels = draw.integers(0, 2, len(group))
    domain = SimpleNamespace(domain=SimpleNamespace(favourable="yes"))
    people = SimpleNamespace(group=group, groups="abcde", positive=1, labels=labels, data=domain)
    one = PartEvaluator(people, np.arange(len(group)), "accuracy", "selection_gap")
    claims = np.zeros(2)
    for _ in range(100):
        baseline, other = (answers(one, (draw.random(len(group)) < 0.5).astype(int)) for _ in range(2))
        model = answers(one, (draw.random(len(group)) < 0.05).astype(int))
        with_pair = one.measure_gain(model, baseline, 0.95, 300, one.find_pair(other))
        claims += [with_pair.low > 0, one.measure_gain(model, baseline, 0.95, 300).low > 0]
    assert claims[0] <= 8  # 5 are allowed
    assert claims[1] > 30  # what the bootstrap of the gap itself says


def test_the_excess_of_flips_by_hand() -> None:
    one = evaluator(measure="counterfactual_excess")
    n = len(one.rows)

    def flips(share: float, chance: float) -> ModelAnswers:
        twins = np.stack([np.arange(n) < share * n, np.arange(n) < chance * n]).astype(float)
        twins[:, -4:] = np.nan  # without a twin
        return ModelAnswers(np.zeros(n, dtype=int), None, {"counterfactual_excess": twins})

    counted = n - 4
    assert one.measure_model(flips(0.25, 0.0)) == pytest.approx(0.25 * n / counted)
    assert one.measure_model(flips(0.1, 0.2)) == 0  # no more than shuffled groups give
    assert 0.2 * n / counted < one.measure_model(flips(0.3, 0.1)) < 0.3 * n / counted
    gain = one.measure_gain(flips(0.0, 0.0), flips(0.25, 0.0), 0.95, pair=one.find_pair(flips(0, 0)))
    assert gain.value == pytest.approx(0.25 * n / counted)
    assert 0.1 < gain.low < gain.value
    low, high = 0.25 - 1.96 * np.sqrt(0.25 * 0.75 / counted), 0.25 + 1.96 * np.sqrt(0.25 * 0.75 / counted)
    span = one.measure_span(flips(0.25 * counted / n, 0.0), 0.95)
    assert (span.low, span.high) == (pytest.approx(low, abs=0.03), pytest.approx(high, abs=0.03))


def test_a_quality_that_needs_probabilities() -> None:
    one = evaluator("roc_auc")
    with pytest.raises(NeuronFairError, match="needs probabilities"):
        one.quality_of(ModelAnswers(one.labels, None, no_flips(len(one.labels))))
    with pytest.raises(NeuronFairError, match="quality 'beauty'"):
        AlternativesSettings(quality="beauty")
    with pytest.raises(NeuronFairError, match="families 'magic'"):
        AlternativesSettings(families=("magic",))


def test_a_model_that_selects_hardly_anyone_or_nearly_all_is_refused() -> None:
    one = evaluator()
    n = len(one.rows)
    decided = np.zeros(n, dtype=int)
    decided[:9] = 1
    with pytest.raises(ModelError, match=f"selects 9 of {n} records"):
        one.refuse_one_decision(answers(one, decided))
    with pytest.raises(ModelError, match=f"selects {n - 9} of {n} records"):
        one.refuse_one_decision(answers(one, 1 - decided))
    decided[9] = 1
    one.refuse_one_decision(answers(one, decided))
