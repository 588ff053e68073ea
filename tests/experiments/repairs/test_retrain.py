"""Retraining with findings: what joins, what is kept, and what it does to a planted bias."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.repairs import retrain as stage
from experiments.repairs.evaluate import RepairOutcome
from experiments.repairs.labels import Ensemble, from_training_rows
from experiments.repairs.retrain import RepairSettings, Retraining, retrain, without_findings
from neuronfair import Dataset, SearchConfig, search
from neuronfair.domain.table import Target
from neuronfair.errors import NeuronFairError
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.searches.campaign import SearchResult as Search
from tests.planted.networks import domain, network, one_biased_neuron, uniform_rows

QUICK = TrainingSettings(epochs=40, batch=64, lr=0.01)


def people(rows: int = 800) -> Dataset:
    """Labelled by the sum of a0 … a3 below 18.5, whatever s is."""
    space = replace(domain(), target=Target("y", ("no", "yes")))
    codes = uniform_rows(space, rows)
    return Dataset("planted", space, codes, (codes[:, :4].sum(1) < 18.5).long())


@pytest.fixture(scope="module")
def case() -> tuple[nn.Sequential, Dataset, Search]:
    """A network that shifts its boundary by 4 for s = 1, and people it discriminates."""
    data = people()
    module = one_biased_neuron(weight=4.0)
    config = SearchConfig("uniform", seeds=50, steps=20, controls=False)
    return module, data, search(network(module, data.domain), data.domain, data.rows, config)


def mend(case: tuple[nn.Sequential, Dataset, Search], **options: object) -> Retraining:
    module, data, search = case
    options = {"share": 1.0, "repeats": 2, "max_loss": 0.2, "training": QUICK, **options}
    return retrain(module, data.split(0), search.findings, search.seeds, RepairSettings(**options))


def test_a_planted_bias_becomes_less(case) -> None:
    weights = [p.detach().clone() for p in case[0].parameters()]
    work = mend(case)
    assert work.before.rate > 0.1
    assert work.after.rate < work.before.rate / 2
    assert work.after == work.repeats[work.chosen]
    assert len(work.repeats) == 2
    assert work.repeats[0] != work.repeats[1]
    # Training rows alone say nothing about pairs; they help less than the findings do.
    assert work.without.rate > work.after.rate
    assert work.ensemble > 0.9
    assert all(torch.equal(a, b) for a, b in zip(weights, case[0].parameters(), strict=True))


def test_a_retraining_without_findings_that_is_at_hand_is_taken(case, monkeypatch) -> None:
    """For another method's findings, say: nothing of the result changes."""
    module, data, search = case
    parts, voters = data.split(0), Ensemble(data.split(0))
    settings = RepairSettings(1.0, repeats=2, max_loss=0.2, training=QUICK)
    control, lessons = without_findings(module, parts, settings), []
    learn = stage._trained
    monkeypatch.setattr(stage, "_trained", lambda *given: lessons.append(given[2]) or learn(*given))
    alone, given = (
        retrain(module, parts, search.findings, search.seeds, settings, ensemble=voters, control=some)
        for some in (None, control)
    )
    assert len(lessons) == 3
    assert (given.without, given.repeats, given.before) == (alone.without, alone.repeats, alone.before)


def test_nothing_is_learned_from_findings_that_were_reached_from_held_out_rows(case, monkeypatch) -> None:
    module, data, search = case
    parts = data.split(0)

    def only(part: Dataset) -> torch.Tensor:
        """The rows of one part that no other part has."""
        others = [one.rows for one in parts if one is not part]
        return torch.stack([row for row in part.rows if not any((row == rows).all(1).any() for rows in others)])

    seeds = torch.cat([only(part)[:1] for part in parts])  # a training, a validation and a test row
    held = torch.cat([parts.validation.rows, parts.test.rows])
    pairs = torch.stack([search.findings.rows, search.findings.twins(data.domain)], 1)
    met = (pairs[:, :, None] == held).all(-1).flatten(1).any(1)  # a record of the pair is a held-out row
    assert met.any()
    found = search.findings[~met][:8]
    found = replace(found, origin=torch.tensor([0, 1, 2, -1, 0, 2, 1, 0]))
    kept = from_training_rows(parts, found, seeds)
    assert kept.origin.tolist() == [0, -1, 0, 0]
    learned: list[torch.Tensor] = []
    lesson = stage._lesson
    monkeypatch.setattr(stage, "_lesson", lambda *given: learned.append(given[1]) or lesson(*given))
    retrain(module, parts, found, seeds, RepairSettings(1.0, repeats=1, max_loss=math.inf, training=QUICK))
    assert torch.equal(learned[0][:, 0], kept.rows)
    walked = replace(search.findings, origin=search.findings.origin * 0 - 1)  # of unknown origin
    unknown = ~torch.isin(torch.arange(len(walked)), torch.nonzero(met).flatten())
    left = from_training_rows(parts, walked, seeds)
    assert torch.equal(left.rows, walked[unknown].rows)
    with pytest.raises(NeuronFairError, match="every finding was reached from a validation or test row"):
        from_training_rows(parts, replace(found, origin=found.origin * 0 + 2), seeds)
    shared = torch.cat([parts.train.rows[:1]])  # a row that is in the training part may be in another, too
    both = parts._replace(test=replace(parts.test, rows=torch.cat([shared, parts.test.rows[1:]])))
    assert len(from_training_rows(both, replace(found, origin=found.origin * 0), shared)) == len(found)


def test_what_each_repeat_learns_from() -> None:
    data = people(20)
    parts = data.split(0)  # 14, 2 and 4 rows
    rows = uniform_rows(data.domain, 6, seed=3)
    twins = rows.clone()
    twins[:, 4] = 1 - twins[:, 4]
    pairs, labels = torch.stack([rows, twins], 1), torch.tensor([0, 1, 0, 1, 0, 1])
    chosen = [torch.tensor([5, 2]), torch.tensor([2, 0])]
    lesson = stage._lesson(parts, pairs, labels, chosen, torch.tensor([3]))
    (x, y), lines, (held_x, held_y) = lesson.learned, lesson.lines, lesson.held
    assert len(x) == 14 + 2 * 3  # pair 2 is there once
    for line, own in zip(lines, chosen, strict=True):
        assert line[:14].tolist() == list(range(14))
        learned = {tuple(row) for row in x[line[14:]].tolist()}
        assert learned == {tuple(row) for row in pairs[own].flatten(0, 1).tolist()}
        assert sorted(y[line[14:]].tolist()) == sorted(labels[own].tolist() * 2)
    assert torch.equal(held_x, torch.cat([parts.validation.rows, rows[3:4], twins[3:4]]))
    assert held_y.tolist() == [*parts.validation.labels.tolist(), 1, 1]


def test_a_share_and_the_most_that_join(case, monkeypatch) -> None:
    count = len(from_training_rows(case[1].split(0), case[2].findings, case[2].seeds))
    short = TrainingSettings(epochs=2, lr=0.01)
    assert mend(case, share=0.25, training=short, max_loss=1.0).pairs == round(0.25 * count)
    monkeypatch.setattr(stage, "MAX_PAIRS", 7)
    assert mend(case, share=0.25, training=short, max_loss=1.0).pairs == 7


def test_the_same_seed_gives_the_same_repair(case) -> None:
    one, two, other = (mend(case, seed=seed) for seed in (1, 1, 2))
    assert (one.repeats, one.chosen) == (two.repeats, two.chosen)
    assert one.repeats != other.repeats


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([RepairOutcome(0.01, 0.80), RepairOutcome(0.03, 0.89)], 1),  # the fairer one costs too much
        ([RepairOutcome(0.03, 0.90), RepairOutcome(0.01, 0.891)], 1),
        ([RepairOutcome(0.01, 0.80)], "no repeat keeps the accuracy: .* from 90% to 80% at best"),
        ([RepairOutcome(0.06, 0.90)], "has fewer flips than before"),
    ],
)
def test_the_choice(results: list[RepairOutcome], expected: int | str) -> None:
    start = RepairOutcome(0.05, 0.90)
    if isinstance(expected, int):
        assert stage._choose(start, results, 0.011) == expected
    else:
        with pytest.raises(NeuronFairError, match=expected):
            stage._choose(start, results, 0.011)


def test_the_fairest_is_chosen_whatever_it_costs_and_even_if_it_does_not_help() -> None:
    assert stage._choose(RepairOutcome(0.05, 0.90), [RepairOutcome(0.07, 0.9), RepairOutcome(0.06, 0.1)], math.inf) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0.0}, "above 0"),
        ({"share": 1.5}, "at most 1"),
        ({"repeats": 0}, "at least one repeat"),
    ],
)
def test_wrong_options(case, options: dict[str, object], message: str) -> None:
    with pytest.raises(NeuronFairError, match=message):
        mend(case, **options)


def test_rows_without_labels(case) -> None:
    module, data, search = case
    bare = replace(data, labels=torch.full_like(data.labels, -1))
    with pytest.raises(NeuronFairError, match="no labels"):
        retrain(module, bare.split(0), search.findings, search.seeds)
