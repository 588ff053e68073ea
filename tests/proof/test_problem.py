"""Which models a proof takes, and why others are refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError, Unprovable
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.proof import problem as module
from neuronfair.proof.problem import build_problem, build_rows
from neuronfair.proof.prove import prove
from neuronfair.searches.evaluate import evaluate
from tests.planted import networks
from tests.proof import worlds


class _Product(nn.Module):
    """No chain: one input times another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return torch.relu(self.layer(x[:, :2])) * x[:, 2:3]


def test_a_network_is_bounded():
    domain = networks.domain()
    problem = build_problem(Network(networks.one_biased_neuron(), domain), domain)
    assert problem.method == "bounds of a network"
    assert problem.count == domain.count
    assert problem.decision == Decision()
    assert problem.device.type == "cpu"


def test_a_model_that_was_opened_brings_its_decision():
    domain = networks.domain()
    network = Network(networks.biased_score(), domain)
    opened = wrap_model(network, domain, domain.sample(9, torch.Generator()), decision=Decision("tolerance", 0.2))
    assert build_problem(opened, domain).decision == Decision("tolerance", 0.2)
    assert build_problem(opened, domain, decision=Decision("threshold", 1.0)).decision == Decision("threshold", 1.0)


def test_a_black_box_is_enumerated_or_too_large(monkeypatch):
    domain = networks.domain(attributes=2, high=9)
    box = BlackBox(lambda rows: rows[:, 0].double(), domain)
    decision = Decision("threshold", 4.5)
    assert build_problem(box, domain, decision=decision).method == "enumeration"
    monkeypatch.setattr(module, "MAX_ENUMERATED_RECORDS", 199)
    with pytest.raises(Unprovable) as caught:
        build_problem(box, domain, decision=decision)
    assert str(caught.value) == (
        "nothing can be proved about this model: its inside is not known; and its 200 people are more than can be "
        "enumerated (199). Name a region with --where"
    )
    assert build_problem(box, domain, decision=decision, condition="a0 < 9").count == 180


def test_a_network_that_is_no_chain_is_enumerated_and_the_reason_is_said(monkeypatch):
    domain = networks.domain(attributes=2, high=9)
    network = Network(_Product(), domain)
    decision = Decision("threshold", 1.0)
    problem = build_problem(network, domain, decision=decision)
    assert problem.method == "enumeration"
    monkeypatch.setattr(module, "MAX_ENUMERATED_RECORDS", 5)
    with pytest.raises(
        Unprovable, match=r"nothing can be proved about this model: .*multiplies numbers of a row.*; and its 200"
    ):
        build_problem(network, domain, decision=decision)


def test_a_probability_among_several_is_asked():
    domain = networks.domain(attributes=2, high=4)
    last = networks.linear([[0.0], [0.5], [1.0]], [0.0, 0.0, -3.0])
    layers = nn.Sequential(networks.linear([[1.0, 1.0, 2.0]], [0.0]), nn.ReLU(), last, nn.Softmax(-1))
    network, decision = Network(layers, domain), Decision("threshold", 0.4)
    problem = build_problem(network, domain, decision=decision)
    assert problem.method == "enumeration"
    everybody = torch.cartesian_prod(torch.arange(5), torch.arange(5), torch.arange(2))
    flips = int(evaluate(network.double(), domain, everybody, decision).discriminates.sum())
    proof = prove(problem)
    assert (proof.fair, proof.discriminatory) == (50 - flips, flips)
    assert 0 < flips < 50


def test_an_attribute_of_too_many_values_is_refused():
    wide = Attribute("income", "ordinal", low=0, high=20_000_000)
    domain = TableDomain("wide", (wide, Attribute("sex", "flag")), ("sex",))
    with pytest.raises(Unprovable, match=r"attribute 'income' has more than 10,000,000 values\. Use a larger step"):
        build_problem(BlackBox(lambda rows: rows[:, 1].double(), domain), domain)


def test_a_region_without_anybody_is_refused():
    domain = networks.domain()
    with pytest.raises(DomainError):
        build_problem(Network(networks.one_biased_neuron(), domain), domain, condition="a0 < 0")


def test_a_domain_of_sensitive_attributes_alone_is_refused():
    domain = TableDomain("alone", (Attribute("sex", "flag"), Attribute("old", "flag")), ("sex", "old"))
    box = BlackBox(lambda rows: rows[:, 0].double(), domain)
    with pytest.raises(Unprovable, match="all attributes are sensitive"):
        build_problem(box, domain, decision=Decision("threshold", 0.5))


def test_rows_at_places_have_every_sensitive_value():
    domain = worlds.people()
    space = worlds.plain_space(domain)
    rows = build_rows(domain, space, torch.tensor([[4, 0], [0, 2]]))
    assert rows.shape == (2, 6, 4)
    assert (rows[:, :, 0] == torch.tensor([[4], [0]])).all()
    assert (rows[:, :, 2] == torch.tensor([[2], [0]])).all()  # labels stand in reverse order
    assert torch.equal(rows[0][:, [1, 3]], domain.sensitive_values)
    assert domain.valid(rows.flatten(0, 1)).all()


@pytest.mark.parametrize("kind", ["network", "trees", "function"])
def test_what_a_model_is_not_given_is_proved_at_once(kind):
    attributes = [Attribute(f"x{i}", "ordinal", high=99) for i in range(6)]  # 10^12 people, of both sexes
    sex = Attribute("sex", "flag", values=("f", "m"), encode="none")
    domain = TableDomain("many", (*attributes, sex), ("sex",))
    rows = domain.sample(50, torch.Generator().manual_seed(0))
    if kind == "network":
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    elif kind == "trees":
        tree = pytest.importorskip("sklearn.tree")
        model = tree.DecisionTreeClassifier(max_depth=4).fit(rows[:, :6].numpy(), (rows[:, 0] > rows[:, 1]).numpy())
    else:
        model = lambda table: (table.x0 * table.x1 > table.x2).to_numpy(dtype=float)  # noqa: E731
    problem = build_problem(wrap_model(model, domain, rows), domain)
    proof = prove(problem, seconds=60)
    assert (proof.record_count, proof.fair, proof.boxes) == (2 * 10**12, 2 * 10**12, 0)


def test_what_a_network_has_no_weight_for_is_proved_at_once():
    attributes = [Attribute(f"x{i}", "ordinal", high=99) for i in range(6)]
    domain = TableDomain(
        "many", (*attributes, Attribute("sex", "nominal", values=("f", "m"), encode="onehot")), ("sex",)
    )
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        module[0].weight[:, 6:] = 0
    proof = prove(build_problem(Network(module, domain), domain), seconds=60)
    assert (proof.fair, proof.boxes) == (2 * 10**12, 1)
    with torch.no_grad():
        module[0].weight[3, 6] = 1e-12  # which may be enough for somebody
    assert not build_problem(Network(module, domain), domain).bounder.ignores_sensitive
