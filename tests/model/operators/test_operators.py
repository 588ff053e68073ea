from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair import Network
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.operators import Curve, read_chain


class Written(nn.Module):
    """A network in its own words: functions, a reshape, a batch normalisation, and a leak."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.norm.running_mean, self.norm.running_var = torch.arange(5.0), torch.arange(1.0, 6.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.leaky_relu(self.norm(self.first(x)), 0.2).unsqueeze(1).squeeze(1))


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.act(self.first(x)))


class Clamping(nn.Module):
    """Affine for small numbers only; a part of it is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last, self.unused = nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 2), nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x.clamp(-10, 10))))


@pytest.fixture
def raw(people):
    from neuronfair.domain.schema.toml import parse_domain
    from tests.conftest import PEOPLE

    return parse_domain('encode = "raw"\n' + PEOPLE)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(7, 3), nn.GELU(), nn.Linear(3, 2), nn.Softmax(dim=1)),
        nn.Sequential(nn.Linear(7, 3), nn.SiLU(), nn.Linear(3, 1), nn.Sigmoid()),
        nn.Sequential(nn.Linear(7, 3), nn.Sigmoid(), nn.Linear(3, 1), nn.Sigmoid()),
        Written(),
    ],
)
def test_a_chain_gives_the_scores_of_its_network(raw, module):
    network = Network(module, raw)
    rows = raw.sample(50, torch.Generator().manual_seed(1))
    chain = read_chain(network, rows)
    x = network.encoding.encode(rows, torch.float64)
    torch.testing.assert_close(chain.scores(x), network.double().scores(rows), rtol=1e-9, atol=1e-9)
    assert sum(p.grad is not None for p in module.parameters()) == 0
    assert not any(part._forward_hooks for part in module.modules())


def test_a_chain_knows_its_curves_and_matrices(raw):
    chain = read_chain(Network(Written(), raw), raw.sample(9, torch.Generator()))
    assert len(chain.curves) == 1
    assert chain.curves[0].name == "leaky_relu"
    assert chain.curves[0].leak == pytest.approx(0.2)
    module = nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 2), nn.Softmax(dim=1))
    chain = read_chain(Network(module, raw), raw.sample(9, torch.Generator()))
    torch.testing.assert_close(chain.affines[1].weight, module[2].weight.detach().double())
    assert chain.curves == (Curve("relu"),)
    assert chain.end == "softmax"


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Skipping(), "adds layer 0 and layer 1, which are not one after the other"),
        (Clamping(), "its operator aten.clamp.default is not one that bounds are known for"),
        (nn.Sequential(nn.Linear(7, 3), nn.ReLU6(), nn.Linear(3, 2)), "its operator aten.hardtanh"),
        (nn.Sequential(nn.Linear(7, 3), nn.Mish(), nn.Linear(3, 2)), "its operator aten.mish"),
        (
            nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.LayerNorm(3), nn.Linear(3, 2)),
            "its operator aten.native_layer_norm",
        ),
    ],
)
def test_what_is_no_chain_is_refused(raw, module, why):
    with pytest.raises(ModelError, match=why):
        read_chain(Network(module, raw), raw.sample(99, torch.Generator()))


def test_a_weight_is_read_exactly_beside_a_large_bias(raw):
    module = nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with torch.no_grad():
        module[0].bias.fill_(1e10)  # which leaves 5 digits of a weight of 1 that is added to it
    chain = read_chain(Network(module, raw), raw.sample(9, torch.Generator()))
    assert torch.equal(chain.affines[0].weight, module[0].weight)
    assert torch.equal(chain.affines[1].weight, module[2].weight)


class Capped(nn.Module):
    """Affine after its activation, but for people whom no sample shows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)).clamp(max=1e6))


def test_a_cap_that_no_row_reaches_is_seen(raw):
    with pytest.raises(ModelError, match=r"aten\.clamp"):
        read_chain(Network(Capped(), raw), raw.sample(9, torch.Generator()))


def test_a_very_wide_network_is_refused_before_it_is_tried():
    values = tuple(f"v{number}" for number in range(10_001))
    attributes = (Attribute("a", "nominal", values=values, encode="onehot"), Attribute("s", "flag"))
    domain = TableDomain("wide", attributes, ("s",))
    network = Network(nn.Linear(10_002, 2), domain, layers=())
    with pytest.raises(ModelError, match="more than 10,000 numbers"):
        read_chain(network, domain.sample(4, torch.Generator()))


def layers(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(7, 6), nn.ReLU())
    return nn.Sequential(inner, nn.Linear(6, 4, bias=False), nn.ReLU(inplace=True), nn.Linear(4, 2), *more)


def test_layers_are_read_as_their_graph_is(raw):
    # An Identity is not read as a layer, so the second network goes through the graph of its operators.
    rows = raw.sample(9, torch.Generator())
    read, traced = (read_chain(Network(layers(*more), raw), rows) for more in ((), (nn.Identity(),)))
    assert (read.curves, read.end) == (traced.curves, traced.end)
    for ours, theirs in zip((*read.affines, *read.sizes), (*traced.affines, *traced.sizes), strict=True):
        assert torch.equal(ours.weight, theirs.weight)
        assert torch.equal(ours.bias, theirs.bias)


def test_layers_with_other_code_are_not_read_as_layers(raw):
    hooked, replaced = layers(), layers()
    hooked[1].register_forward_hook(lambda module, args, result: result.sin())
    replaced[2].forward = torch.sin
    for module in (hooked, replaced):
        with pytest.raises(ModelError, match="sin"):
            read_chain(Network(module, raw), raw.sample(9, torch.Generator()))
