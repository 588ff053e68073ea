"""Lines below and above networks, held against every person."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.errors import Unprovable
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.operators import read_chain
from neuronfair.proof.bounds import crown
from neuronfair.proof.bounds.crown import STRATEGIES, Crown, build_crown
from neuronfair.proof.bounds.margins import build_margins
from neuronfair.proof.problem import build_problem, build_rows
from tests.proof import worlds

CURVES = (nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus)
ATTRIBUTES = (
    Attribute("age", "ordinal", low=20, high=27, encode="scaled", center=24, scale=2),
    Attribute("sex", "flag"),
    Attribute("job", "nominal", values=("a", "b", "c", "d"), encode="onehot"),
    Attribute("town", "nominal", values=("p", "q", "r"), encode="raw"),
    Attribute("own", "flag"),
    Attribute("race", "nominal", values=("x", "y", "z"), encode="onehot"),
    Attribute("pay", "continuous", low=0, high=1, step=0.25, encode="scaled", center=0.4, scale=0.3, missing="keep"),
    Attribute("unread", "ordinal", low=0, high=4),
)
WIDTH, UNREAD, JOB = 13, 12, 2  # inputs, the last of which nothing depends on; the first of the block of jobs


def _domain(*rules: Rule) -> TableDomain:
    return TableDomain("small", ATTRIBUTES, ("sex", "race"), rules)


def _module(curve, layers: tuple[int, ...], outputs: int, seed: int, end: nn.Module | None = None) -> nn.Sequential:
    """A network that does not read one attribute and does not tell jobs a and c apart."""
    generator = torch.Generator().manual_seed(seed)
    widths = [WIDTH, *layers, outputs]
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b).double(), curve()]
        with torch.no_grad():
            parts[-2].weight.copy_(torch.randn(b, a, generator=generator) / a**0.5 * 1.5)
            parts[-2].bias.copy_(torch.randn(b, generator=generator) * 0.5)
    first = parts[0]
    with torch.no_grad():
        first.weight[:, UNREAD] = 0.0
        first.weight[:, JOB + 2] = first.weight[:, JOB]
    parts[-1] = end or nn.Identity()
    return nn.Sequential(*parts).eval()


def _crown(module: nn.Module, domain: TableDomain, decision: Decision | None = None) -> tuple[Network, Crown]:
    network = Network(module, domain, layers=None if len(module) > 2 else ())
    problem = build_problem(network, domain, decision=decision)
    assert isinstance(problem.bounder, Crown)
    return network, problem.bounder


def _expected(network: Network, domain: TableDomain, bounder: Crown, decision: Decision, places: Tensor) -> Tensor:
    """The margins by the network's own scores."""
    rows = build_rows(domain, bounder.space, places)
    scores = network.double().scores(rows.flatten(0, 1)).view(*rows.shape[:2], -1)
    if decision.kind == "argmax":
        pairs = [(a, b) for a in range(scores.shape[-1]) for b in range(a + 1, scores.shape[-1])]
        sign = -1.0 if scores.shape[-1] == 2 else 1.0  # of two classes the second one's lead
        return torch.stack([sign * (scores[..., a] - scores[..., b]) for a, b in pairs], -1)
    return scores[..., -1:] - (decision.value if decision.kind == "threshold" else 0.0)


CASES = [
    (CURVES[0], (6, 5), 2, Decision(), None),
    (CURVES[1], (6,), 3, Decision(), None),
    (CURVES[2], (5, 4, 4), 1, Decision("threshold", 0.2), None),
    (CURVES[3], (6, 4), 1, Decision("tolerance", 0.2), nn.Sigmoid()),
    (CURVES[4], (6, 4), 2, Decision(), None),
    (CURVES[5], (6, 4), 1, Decision("tolerance", 0.2), None),
    (CURVES[6], (6, 4), 2, Decision(), None),
    (CURVES[7], (5, 4), 3, Decision(), None),
]


@pytest.fixture(scope="module", params=CASES, ids=[case[0].__name__ for case in CASES])
def case(request):
    curve, layers, outputs, decision, end = request.param
    domain = _domain()
    network, bounder = _crown(_module(curve, layers, outputs, len(layers) + outputs, end), domain, decision)
    return network, bounder, domain, decision


def test_margins_are_those_of_the_scores(case):
    network, bounder, domain, decision = case
    places = worlds.places_of(bounder.space.full_box())
    margins = bounder.compute_margins(places)
    expected = _expected(network, domain, bounder, decision, places)
    assert ((margins - expected).abs() <= bounder.slack).all()
    assert bounder.slack.max() < 1e-9


@pytest.mark.parametrize("strategy", range(len(STRATEGIES)))
def test_lines_hold_for_everybody_in_a_box(case, strategy):
    _, bounder, _, _ = case
    space = bounder.space
    boxes = worlds.random_boxes(space, 16, seed=strategy)
    boxes.low[0], boxes.high[0] = space.full_box().low[0], space.full_box().high[0]
    lines = bounder.find_lines(boxes, None, strategy)
    for n in range(len(boxes)):
        places = worlds.places_of(boxes, n)
        features, margins = worlds.features_of(space, places), bounder.compute_margins(places)
        for slopes, at, sign in ((lines.low_slope, lines.low_offset, 1), (lines.high_slope, lines.high_offset, -1)):
            own = slopes[n].expand(len(at[n]), -1, -1)
            line = torch.einsum("pf,vqf->pvq", features, own) + at[n]
            assert (sign * (margins - line) >= 0).all()
    single = (boxes.low == boxes.high).all(1)
    gap = (lines.high_offset - lines.low_offset).amax((1, 2))
    assert not single.any() or gap[single].max() < 1e-3


def test_what_is_known_of_a_box_tightens_its_halves(case):
    _, bounder, _, _ = case
    space, strategy = bounder.space, len(STRATEGIES) - 1
    whole = space.full_box()
    told = bounder.find_lines(whole, None, strategy).inner
    axis = torch.tensor([0])
    halves = space.split(whole, axis, space.find_middle(whole, axis))
    alone, helped = (bounder.find_lines(halves, known, strategy) for known in (None, told.repeat(2, 1, 1)))
    assert (helped.inner[..., 0] >= alone.inner[..., 0]).all()
    assert (helped.inner[..., 1] <= alone.inner[..., 1]).all()
    places = [worlds.places_of(halves, n) for n in range(2)]
    for n, some in enumerate(places):
        line = torch.einsum("pf,vqf->pvq", worlds.features_of(space, some), helped.low_slope[n].expand(6, -1, -1))
        assert (bounder.compute_margins(some) >= line + helped.low_offset[n]).all()


def test_axes_are_what_the_network_tells_apart():
    _, bounder = _crown(_module(nn.ReLU, (6, 5), 2, 0), _domain())
    space = bounder.space
    by_name = {ATTRIBUTES[axis.column].name: axis for axis in space.axes}
    assert list(by_name) == ["age", "job", "town", "own", "pay", "unread"]
    assert {name for name, axis in by_name.items() if axis.linear} == {"age", "town", "own"}
    assert (len(by_name["unread"]), by_name["unread"].count.tolist()) == (1, [5])
    job = by_name["job"]
    assert sorted(job.count.tolist()) == [1, 1, 2]
    assert job.position_of_code[0] == job.position_of_code[2]
    assert job.count[job.position_of_code[0]] == 2
    assert len(by_name["pay"]) == 6  # the empty cell is at the center, 0.4, which no code is
    for axis in space.axes:
        assert torch.equal(axis.position_of_code[axis.codes], torch.arange(len(axis)))
        assert torch.equal(torch.bincount(axis.position_of_code, minlength=len(axis)), axis.count)


def test_rules_and_regions_refine_the_axes():
    domain = _domain(Rule("r", {"unread": Span(3, 4)}, {"job": ("a", "b")}))
    network = Network(_module(nn.ReLU, (6, 5), 2, 0), domain)
    space = build_problem(network, domain, condition="age in [21, 22, 25] and town in [q, r]").space
    by_name = {ATTRIBUTES[axis.column].name: axis for axis in space.axes}
    assert sorted(by_name["unread"].count.tolist()) == [2, 3]
    assert sorted(by_name["job"].count.tolist()) == [1, 1, 1, 1]  # a and c are the same to the network, not to the rule
    job = by_name["job"].position_of_code
    assert {int(job[0]), int(job[1])} in ({0, 1}, {2, 3})  # side by side
    assert not by_name["age"].linear  # a gap
    assert by_name["age"].position_of_code.tolist().count(-1) == 5
    assert by_name["town"].linear
    assert by_name["town"].position_of_code.tolist() == [-1, 0, 1]


def test_a_linear_model_is_exact():
    domain, module = _domain(), _module(nn.ReLU, (), 2, 4)
    network, bounder = _crown(module, domain)
    boxes = worlds.random_boxes(bounder.space, 6)
    lines = bounder.find_lines(boxes)
    assert lines.low_slope.shape[1] == 1
    for n in range(6):
        places = worlds.places_of(boxes, n)
        line = torch.einsum("pf,qf->pq", worlds.features_of(bounder.space, places), lines.low_slope[n, 0])[:, None]
        margins = _expected(network, domain, bounder, Decision(), places)
        assert (margins >= line + lines.low_offset[n]).all()
        assert (margins <= line + lines.high_offset[n]).all()
    assert (lines.high_offset - lines.low_offset).max() < 1e-10


def test_many_sensitive_values():
    attributes = (
        Attribute("age", "ordinal", low=0, high=5),
        Attribute("s", "ordinal", low=0, high=249, encode="scaled", center=100, scale=50),
    )
    domain = TableDomain("many", attributes, ("s",))
    module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
    _, bounder = _crown(module, domain)
    boxes = worlds.random_boxes(bounder.space, 4)
    places = torch.arange(6)[:, None]
    margins = bounder.compute_margins(places)
    assert margins.shape == (6, 250, 1)
    for strategy in range(bounder.strategy_count):
        lines = bounder.find_lines(boxes, None, strategy)
        for n in range(4):
            some = slice(int(boxes.low[n]), int(boxes.high[n]) + 1)
            low = places[some, :, None].double() * lines.low_slope[n, :, :, 0] + lines.low_offset[n]
            high = places[some, :, None].double() * lines.high_slope[n, :, :, 0] + lines.high_offset[n]
            assert ((low <= margins[some]) & (margins[some] <= high)).all()


@pytest.mark.parametrize("strategy", [0, 1, 5])
def test_in_pieces_and_step_by_step_the_lines_are_the_same(monkeypatch, strategy):
    module, domain = _module(nn.ReLU, (6, 5), 3, 2), _domain()
    _, whole = _crown(module, domain)
    boxes = worlds.random_boxes(whole.space, 40)
    known = whole.find_lines(whole.space.full_box(), None, strategy).inner.repeat(40, 1, 1)
    at_once = whole.find_lines(boxes, known, strategy)
    monkeypatch.setitem(crown.NUMBERS_PER_PASS, "cpu", 1)  # 16 boxes at a time
    monkeypatch.setattr(crown, "MAX_PRODUCT_NUMBERS", 0)  # no matrix of the first step
    other = _crown(module, domain)[1].find_lines(boxes, known, strategy)
    for name in ("low_slope", "low_offset", "high_slope", "high_offset", "inner"):
        assert torch.allclose(getattr(at_once, name), getattr(other, name), atol=1e-11)


def test_what_is_shared_costs_less():
    _, bounder = _crown(_module(nn.ReLU, (6, 5), 2, 0), _domain())
    costs = [bounder.estimate_cost(strategy) for strategy in range(bounder.strategy_count)]
    assert costs[0] < costs[1] < costs[2] < costs[5]
    assert costs[0] < costs[3]


def test_a_number_of_many_values_that_the_network_does_not_read(monkeypatch):
    monkeypatch.setattr(crown, "MAX_LISTED_CODES", 3)
    domain = _domain()
    network = Network(_module(nn.ReLU, (4,), 2, 0), domain)
    with pytest.raises(Unprovable, match="6 values that it reads one by one; 3 at most"):
        _asked_for(network, domain, "pay")  # the empty cell is no number
    with pytest.raises(Unprovable, match="4 values that it reads one by one"):
        _asked_for(network, domain, "job")
    assert _asked_for(network, domain, "unread").axis.count.tolist() == [5]
    assert _asked_for(network, domain, "age").axis.linear


def test_a_block_of_which_the_ends_are_alike_is_not_taken_for_one_value(monkeypatch):
    """Of a long block the first, the middle and the last value may have the same weights, and others not."""
    monkeypatch.setattr(crown, "MAX_LISTED_CODES", 3)
    domain, module = _domain(), _module(nn.ReLU, (4,), 2, 0)
    with torch.no_grad():
        module[0].weight[:, JOB : JOB + 4] = module[0].weight[:, JOB : JOB + 1]
        module[0].weight[:, JOB + 1] += 1.0
    with pytest.raises(Unprovable, match="4 values that it reads one by one"):
        _asked_for(Network(module, domain), domain, "job")


def test_too_many_places_are_refused(monkeypatch):
    monkeypatch.setattr(crown, "MAX_POSITIONS", 2)
    domain = _domain()
    with pytest.raises(Unprovable, match="3 values that it reads one by one; 2 at most"):
        _asked_for(Network(_module(nn.ReLU, (4,), 2, 0), domain), domain, "job")


def _asked_for(network: Network, domain: TableDomain, name: str, encoding=None):
    chain = read_chain(network, domain.sample(9, torch.Generator()))
    column = domain.column(name)
    classes = torch.zeros(domain.attributes[column].size, dtype=torch.int64)
    base = torch.zeros(len(domain.attributes), dtype=torch.int64)
    slope = torch.ones(len(chain.affines[0].bias), dtype=torch.float64)
    inputs = crown._AttributeInputs(encoding or network.encoding, base, column, chain.affines[0].weight)
    return crown._read_attribute(inputs, classes, slope)


class _Bent(TableEncoding):
    """One attribute on a curve, the others as they are: no longer known to be straight."""

    def encode(self, rows, dtype=torch.float32):
        x = super().encode(rows, dtype)
        x[..., UNREAD] = x[..., UNREAD].square()
        return x


class _Other:
    """The same numbers, from an encoding of which nothing is known."""

    def __init__(self, inner):
        self._inner = inner
        self.device, self.shape, self.example = inner.device, inner.shape, inner.example
        self.rows_per_pass = inner.rows_per_pass

    def encode(self, rows, dtype=torch.float32):
        return self._inner.encode(rows, dtype)


def test_another_encoding_is_looked_at_code_by_code(monkeypatch):
    domain, module = _domain(), _module(nn.ReLU, (4,), 2, 0)
    with torch.no_grad():
        module[0].weight[:, UNREAD] = 1.0
    network = Network(module, domain)
    straight = _Other(network.encoding)
    bent = _Other(_Bent(domain.attributes))
    assert _asked_for(network, domain, "unread", straight).axis.linear
    read = _asked_for(network, domain, "unread", bent)
    assert not read.axis.linear
    assert (read.effects[read.axis.position_of_code] - read.effects[read.axis.position_of_code[0]]).T.tolist() == [
        [0, 1, 4, 9, 16]
    ] * 4
    monkeypatch.setattr(crown, "MAX_LISTED_CODES", 4)
    with pytest.raises(Unprovable, match="5 values"):
        _asked_for(network, domain, "unread", straight)


def test_a_squashed_score_is_bounded_as_a_layer():
    domain, module = _domain(), _module(nn.ReLU, (4,), 1, 0, nn.Sigmoid())
    network = Network(module, domain)
    chain = read_chain(network, domain.sample(9, torch.Generator()))
    question = build_margins(Decision("tolerance", 0.1), 1, chain.end)
    classes = [torch.zeros(a.size, dtype=torch.int64) for a in domain.attributes]
    bounder = build_crown(chain, network.encoding, domain, classes, question, torch.device("cpu"))
    assert [curve.name for curve in bounder.curves] == ["relu", "sigmoid"]
    assert len(bounder.rounding) == len(bounder.affines) == 3


def test_many_combinations_of_sensitive_values_take_memory_that_is_bounded():
    """Sex, race and age of Adult are 740: lines and margins are computed for so many boxes at a time as fit."""
    attributes = (
        Attribute("hours", "ordinal", low=0, high=99, encode="scaled", center=50, scale=20),
        Attribute("gain", "ordinal", low=0, high=999, encode="scaled", center=500, scale=200),
        Attribute("age", "ordinal", low=17, high=90, encode="scaled", center=50, scale=20),
        Attribute("race", "nominal", values=tuple("abcde"), encode="onehot"),
        Attribute("sex", "flag", values=("F", "M")),
    )
    domain = TableDomain("many", attributes, ("age", "race", "sex"))
    module = nn.Sequential(nn.Linear(9, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)).double()
    _, bounder = _crown(module, domain)
    assert len(bounder.value_offsets) == 740
    largest = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest.append(result.numel())
            return result

    boxes = worlds.random_boxes(bounder.space, 300)
    with Counting():
        for strategy in range(bounder.strategy_count):
            bounder.find_lines(boxes, None, strategy)
        bounder.compute_margins(boxes.low)
    assert max(largest) <= 1 << 24
