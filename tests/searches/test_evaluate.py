"""Families of people: who is compared with whom, and in passes of what size."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn

from neuronfair import BlackBox, Decision, evaluate
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.counterfactuals import fit_counterfactuals, with_counterfactuals
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.decision import compute_margins
from neuronfair.searches import evaluate as judging
from tests.planted import networks
from tests.planted.proxies import moved_domain, moved_rows


class Counted(nn.Module):
    """A module that remembers how many rows it was given at a time."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.batches = module, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        return self.module(x)


def test_rows_and_twins_are_judged_in_passes_that_fit(monkeypatch):
    domain = networks.sex_and_race()  # families of ten
    module = Counted(networks.random_module(domain).double())
    network, rows = networks.network(module.double(), domain), networks.uniform_rows(domain, 50)
    module.batches.clear()
    whole = evaluate(network, domain, rows)
    assert module.batches == [500]
    monkeypatch.setattr(judging, "ROWS_PER_PASS", 128)
    module.batches.clear()
    parts = evaluate(network, domain, rows)
    assert module.batches == [120, 120, 120, 120, 20]
    assert torch.allclose(whole.twin_scores, parts.twin_scores, rtol=1e-12)
    for name in ("twin_explains_finding", "partner", "twin", "twins"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))
    monkeypatch.setattr(judging, "ROWS_PER_PASS", 1 << 15)
    monkeypatch.setattr(judging, "MAX_NUMBERS_PER_PASS", 40 * network.encoding.width)  # of wide rows few make a pass
    module.batches.clear()
    evaluate(network, domain, rows)
    assert set(module.batches) == {40, 20}


def test_a_judgement_does_not_hold_the_rows_of_all_twins():
    columns = [Attribute(f"a{i}", "ordinal", low=0, high=9) for i in range(40)]
    domain = TableDomain("many", (*columns, Attribute("s", "ordinal", low=0, high=99)), ("s",))
    network = networks.network(networks.random_module(domain), domain)
    found = evaluate(network, domain, networks.uniform_rows(domain, 30))
    kept = [value for value in (getattr(found, f.name) for f in fields(found)) if isinstance(value, Tensor)]
    assert max(tensor.numel() for tensor in kept) == 30 * 100 * 2  # the scores
    every = torch.arange(30)
    assert torch.equal(found.twin, found.twins[every, found.partner])
    assert torch.equal(found[every[:3]].twin, found.twin[:3])


@pytest.mark.parametrize("decision", [Decision(), Decision("threshold", 0.1), Decision("tolerance", 5.0)])
def test_the_farthest_twin_that_is_decided_otherwise_is_the_partner(decision):
    domain = networks.sex_and_race()
    network = networks.network(networks.random_module(domain), domain)
    found = evaluate(network, domain, networks.uniform_rows(domain, 200), decision)
    assert 0 < int(found.discriminates.sum()) < 200
    for i in range(200):
        gaps = decision.gap(found.scores[i], found.twin_scores[i])
        chosen = (
            found.twin_explains_finding[i] if found.twin_explains_finding[i].any() else torch.ones(9, dtype=torch.bool)
        )
        assert gaps[found.partner[i]] == gaps[chosen].max()
        assert chosen[found.partner[i]]


def rounded(domain: TableDomain, outputs: int) -> nn.Module:
    """A network whose sums are exact, so that passes of any size give the same scores, bit for bit."""
    module = networks.random_module(domain, outputs)
    for weights in module.parameters():
        weights.data = (weights.data * 8).round() / 8
    return module


def tied() -> TableDomain:
    """Two sensitive attributes; a rule makes some of the twins impossible."""
    rule = Rule("no race E above 5", {"a0": Span(low=5)}, {"race": ("A", "B", "C", "D")})
    return replace(networks.sex_and_race(), rules=(rule,))


def beside() -> TableDomain:
    """Three groups, and counterfactuals who are not each other's."""
    return with_counterfactuals(moved_domain(3), fit_counterfactuals(moved_domain(3), moved_rows(3)))


FIGURES = (
    "family",
    "valid",
    "twin_differs",
    "discriminates",
    "gaps",
    "twin_explains_finding",
    "partner",
    "twin",
    "twins",
    "finite",
)


@pytest.mark.parametrize("where", [networks.domain, networks.sex_and_race, tied, beside])
@pytest.mark.parametrize(
    ("decision", "outputs"),
    [(Decision(), 2), (Decision(), 3), (Decision("threshold", 0.25), 1), (Decision("tolerance", 3.0), 1)],
)
def test_one_pass_and_many_give_the_same_judgement(where, decision, outputs, monkeypatch):
    domain = where()
    network, rows = networks.network(rounded(domain, outputs), domain), networks.uniform_rows(domain, 40)
    whole = evaluate(network, domain, rows, decision)
    assert (~whole.valid).any() == (where is tied)
    assert whole.discriminates.any()
    monkeypatch.setattr(judging, "ROWS_PER_PASS", 3 * len(domain.sensitive_values))
    parts = evaluate(network, domain, rows, decision)
    assert (whole.single_twins is None, parts.single_twins is None) == (len(domain.sensitive_values) > 2,) * 2
    for name in FIGURES:
        assert torch.equal(getattr(whole, name), getattr(parts, name)), name
    for both in ((whole.pair, parts.pair), (whole.pairs(), parts.pairs()), (whole.ends, parts.ends)):
        assert all(map(torch.equal, *both))
    some = torch.tensor([7, 3, 31])
    assert all(torch.equal(a, b[some]) for a, b in zip(whole[some].pairs(), whole.pairs(), strict=True))
    assert torch.equal(whole[some].twin, whole.twins[some, whole.partner[some]])


def test_a_pair_keeps_no_family_alive():
    domain = networks.sex_and_race()
    network = networks.network(networks.random_module(domain), domain)
    for decision in (Decision(), Decision("tolerance", 5.0)):
        pair = evaluate(network, domain, networks.uniform_rows(domain, 20), decision).pair
        for scores in (pair.scores, pair.twin_scores):
            assert scores.untyped_storage().nbytes() == 20 * 2 * 4


@pytest.mark.parametrize("score", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_one_score_that_is_no_number_is_noticed(score):
    domain, rows = networks.sex_and_race(), networks.uniform_rows(networks.sex_and_race(), 5)
    model = BlackBox(lambda x: torch.where(x[:, 4] == 1, score, -3e38), domain)
    found = evaluate(model, domain, rows, Decision("threshold", 0.0), checked=False)
    assert bool(found.finite) == (score == 3e38)
    if not found.finite:
        with pytest.raises(ModelError, match="NaN or infinite scores"):
            evaluate(model, domain, rows, Decision("threshold", 0.0))


def test_a_family_leans_from_its_class_to_the_strongest_rival():
    scores = torch.tensor([[[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]], [[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]]])
    exists = torch.tensor([[True, True], [True, False]])
    weights = Decision().find_margin_weights(scores, exists)
    assert weights.tolist() == [[-1, 0, 1], [-1, 1, 0]]
    assert compute_margins(scores, weights).tolist() == [[-2, 3], [-1, 1]]
    two = scores[..., :2]
    weights = Decision().find_margin_weights(two, exists)
    assert weights.tolist() == [[-1, 1], [-1, 1]]  # there is no other
    assert compute_margins(two, weights).tolist() == [[-1, 1], [-1, 1]]
    assert Decision().find_margin_weights(two.flip(2), exists).tolist() == [[1, -1], [1, -1]]


def three_scores() -> tuple[TableDomain, nn.Module]:
    """A score of 0.5 for each step of `s`, which has three values: 0, 0.5 and 1."""
    domain = TableDomain(
        "three", (Attribute("a", "ordinal", low=0, high=9), Attribute("s", "ordinal", low=0, high=2)), ("s",)
    )
    return domain, nn.Sequential(networks.linear([[0.0, 0.5]], [0.0]), nn.ReLU(), networks.linear([[1.0]], [0.0]))


def test_a_family_is_discriminated_whichever_of_its_members_is_met():
    domain, module = three_scores()
    network, tolerance = networks.network(module, domain), Decision("tolerance", 0.6)
    found = evaluate(network, domain, torch.tensor([[4, 0], [4, 1], [4, 2]]), tolerance)
    assert found.twin_explains_finding.sum(1).tolist() == [
        1,
        0,
        1,
    ]  # the middle one lies 0.5 from both others, and they lie 1 apart
    assert found.discriminates.tolist() == [True, True, True]
    pairs = found.pairs()
    assert pairs.rows.tolist() == [[4, 0], [4, 2], [4, 2]]
    assert pairs.twins.tolist() == [[4, 2], [4, 0], [4, 0]]
    assert (pairs.scores[:, 0].tolist(), pairs.twin_scores[:, 0].tolist()) == ([0, 1, 1], [1, 0, 0])
    assert evaluate(network, domain, found.rows, Decision("tolerance", 1.0)).discriminates.tolist() == [False] * 3


def test_members_that_do_not_exist_make_nobody_discriminated():
    domain, module = three_scores()
    domain = replace(domain, rules=(Rule("no third value above 5", {"s": Span(low=2)}, {"a": Span(high=5)}),))
    network, tolerance = networks.network(module, domain), Decision("tolerance", 0.6)
    found = evaluate(network, domain, torch.tensor([[5, 0], [5, 1], [6, 0], [6, 1]]), tolerance)
    assert found.discriminates.tolist() == [True, True, False, False]


@pytest.mark.parametrize("decision", [Decision(), Decision("threshold", 0.1), Decision("tolerance", 5.0)])
def test_all_members_of_a_family_are_judged_alike(decision):
    domain = networks.sex_and_race()
    network = networks.network(networks.random_module(domain).double(), domain)
    rows = networks.uniform_rows(domain, 100)
    family = torch.cat([rows[:, None], domain.twins(rows).rows], 1)
    found = evaluate(network, domain, family.flatten(0, 1), decision).discriminates.view(100, 10)
    assert torch.equal(found, found[:, :1].expand(-1, 10))
    assert 0 < int(found[:, 0].sum()) < 100
    if decision.kind != "tolerance":  # Definition 1 to the letter: some twin of the row is decided otherwise
        one = evaluate(network, domain, rows, decision)
        assert torch.equal(one.discriminates, one.twin_explains_finding.any(1))
        assert torch.equal(one.pairs().rows, rows)
        assert torch.equal(one.pairs().twins, one.twin)
