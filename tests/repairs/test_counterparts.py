"""Repair by counterparts: what is learned, and what it does to a model that decides by a proxy."""

from __future__ import annotations

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from neuronfair import BlackBox, Dataset, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.counterfactuals import fit_counterfactuals
from neuronfair.domain.table import Target
from neuronfair.errors import NeuronFairError
from neuronfair.model.decision import Decision
from neuronfair.model.open.opened import Opened
from neuronfair.repairs.counterfactual_pairs import (
    counterfactual_lessons,
    counterfactual_pairs,
    draw_counterfactuals,
    held_out_effect,
)
from neuronfair.repairs.retrain import OWN, RepairSettings, retrain_with_counterfactuals

DOMAIN = TableDomain(
    "people",
    (
        Attribute("group", "nominal", values=("a", "b")),
        Attribute("proxy", "nominal", values=("p", "q")),
        Attribute("merit", "ordinal", low=0, high=9),
    ),
    ("group",),
    target=Target("hired", ("no", "yes")),
    favourable="yes",
)
GROUP, PROXY, MERIT = range(3)


def hiring(n: int = 1000) -> Dataset:
    """Merit decides, and people of b, whom the proxy names, were hired with three points less."""
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(n) % 2
    merit = torch.randint(10, (n,), generator=generator)
    rows = torch.stack([group, group, merit], 1)
    return Dataset("hiring", DOMAIN, rows, (merit + 3 * group >= 6).long())


def opened(data: Dataset) -> Opened:
    """A logistic regression of proxy and merit, which can be fitted again."""

    def fit(rows: torch.Tensor, labels: torch.Tensor, seed: int) -> Opened:
        model = LogisticRegression().fit(rows[:, 1:].numpy(), labels.numpy())
        box = BlackBox(lambda some: model.predict_proba(some[:, 1:].numpy())[:, 1], DOMAIN)
        return Opened(box, Decision("threshold", 0.5), "memory", "test", "", "", None, refit=fit)

    return fit(data.rows, data.labels, 0)


@pytest.fixture(scope="module")
def repaired():
    data = hiring()
    model = opened(data)
    return data, model, retrain_with_counterfactuals(model, data.split(0), RepairSettings(repeats=2, max_loss=0.3))


def test_a_model_that_goes_by_a_proxy_forgets_it_and_the_control_does_not(repaired):
    """Of merits 3, 4 and 5 only those with the proxy were hired: 30% flip, before and without counterparts."""
    data, model, work = repaired
    assert work.before.rate == pytest.approx(0.3, abs=0.06)
    assert work.without.rate == pytest.approx(work.before.rate, abs=0.02)
    assert work.after.rate == 0
    # Half of those of merits 3, 4 and 5 are now decided otherwise than they were labelled, whatever is learned.
    assert work.after.accuracy == pytest.approx(0.85, abs=0.07)
    assert (work.label, work.pairs, work.anew) == (OWN, 700, True)
    parts = data.split(0)
    before, after, without = (
        held_out_effect(one.model, parts, model.decision, placebos=2) for one in (model, work.kept, work.control)
    )
    assert before.effect.rate == pytest.approx(0.3, abs=0.06)
    assert without.effect.rate == pytest.approx(before.effect.rate, abs=0.02)
    assert after.rate.rate < 0.02  # what is left is chance
    assert not after.claimed
    assert not after.claimed
    assert before.of == len(parts.test)  # nobody whom the model has learned from


def test_an_accuracy_that_may_not_be_lost_refuses_the_repair():
    data = hiring()
    with pytest.raises(NeuronFairError, match="no repeat keeps the accuracy"):
        retrain_with_counterfactuals(opened(data), data.split(0), RepairSettings(repeats=1, max_loss=0.01))


def test_rows_without_labels():
    data = hiring(100)
    bare = Dataset("bare", DOMAIN, data.rows, torch.full_like(data.labels, -1))
    with pytest.raises(NeuronFairError, match="no labels"):
        retrain_with_counterfactuals(opened(data), bare.split(0))


def test_what_each_repeat_learns():
    data = hiring(400)
    parts = data.split(0)
    lessons = counterfactual_lessons(parts, 2, torch.Generator().manual_seed(0))
    (rows, labels), lines, (held, held_labels) = lessons.alike.learned, lessons.alike.lines, lessons.alike.held
    n = len(parts.train)
    for line in lines:
        own, other = rows[line[:n]], rows[line[n:]]
        assert torch.equal(own, parts.train.rows)
        assert torch.equal(other[:, GROUP], 1 - own[:, GROUP])
        assert (other[:, PROXY] != own[:, PROXY]).double().mean() > 0.95  # nothing is certain by 280 rows
        assert torch.equal(labels[line], parts.train.labels.repeat(2))
    assert not torch.equal(lines[0], lines[1])
    assert torch.equal(held[: len(parts.validation)], parts.validation.rows)
    assert torch.equal(held_labels, parts.validation.labels.repeat(2))
    assert torch.equal(lessons.plain.learned[0][lessons.plain.lines[0]], parts.train.rows)


def test_pairs_for_other_programs_have_the_persons_label():
    data = hiring(200)
    pairs, labels = counterfactual_pairs(data, 0)
    assert torch.equal(pairs[:, 0], data.rows)
    assert (pairs[:, 1, PROXY] != data.rows[:, PROXY]).double().mean() > 0.95
    assert torch.equal(labels, data.labels)


def test_groups_are_drawn_by_their_size_and_a_small_one_keeps_its_people():
    """Of c there are 20 people: too few for counterparts, so they stay who they are and nobody becomes one of them."""
    groups = Attribute("group", "nominal", values=("a", "b", "c", "d"))
    domain = TableDomain("people", (groups, *DOMAIN.attributes[1:]), ("group",))
    group = torch.tensor([0] * 100 + [1] * 300 + [2] * 20 + [3] * 600)
    merit = torch.arange(len(group)) % 10
    data = Dataset("people", domain, torch.stack([group, group.clamp(max=1), merit], 1), group * 0)
    drawn = draw_counterfactuals(data, fit_counterfactuals(domain, data.rows), torch.Generator().manual_seed(0))
    small = group == 2
    assert torch.equal(drawn[small], data.rows[small])
    assert not bool((drawn[~small, GROUP] == 2).any())
    assert not bool((drawn[~small, GROUP] == group[~small]).any())
    to_d = (drawn[group == 0, GROUP] == 3).double().mean()
    assert to_d == pytest.approx(2 / 3, abs=0.15)  # 600 of 900 others
