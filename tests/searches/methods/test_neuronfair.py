from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from neuronfair import Decision, Network, NeuronFairError, evaluate, interpret, load_dataset
from neuronfair.audits.settings import AuditSettings
from neuronfair.domain.draws import Draws
from neuronfair.model.encoding import cluster_seeds
from neuronfair.model.profile import BiasProfile, LayerBias
from neuronfair.model.weights import load_weights
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import Budget, PhaseRecording, run_phase
from neuronfair.searches.method import SearchContext, State
from neuronfair.searches.methods import METHODS
from neuronfair.searches.methods.neuronfair import NeuronFair
from tests.planted import networks

DOMAIN = networks.domain(attributes=2)
# Three inputs (a0, a1, s) and four neurons, all of them active on the rows below.
WEIGHTS = [[1.0, -0.5, 2.0], [0.25, 0.75, -1.5], [-0.5, 1.0, 0.5], [0.5, 0.25, 0.0]]
BIASES = [3.0, 2.0, 6.0, 1.0]
BIASED = (0, 1)


def module() -> nn.Sequential:
    second = networks.linear([[1.0, 0.5, -0.5, 0.25], [-0.5, 1.0, 0.75, 0.0]], [0.0, 0.5])
    return nn.Sequential(networks.linear(WEIGHTS, BIASES), nn.ReLU(), second).double()


def profile(neurons: int = 4, biased: tuple[int, ...] = BIASED, name: str = "1") -> BiasProfile:
    act_diff = torch.zeros(neurons, dtype=torch.float64)
    act_diff[list(biased)] = 1.0
    return BiasProfile((LayerBias(name, act_diff),), 1)


def context(**options) -> SearchContext:
    return networks.context(module(), DOMAIN, **({"profile": profile()} | options))


def begin(method: NeuronFair, context: SearchContext, rows: Tensor) -> State:
    number = torch.arange(len(rows))
    return method.start(context, {"origin": number, "rows": rows, "found": torch.zeros_like(number)})


def told(method: NeuronFair, context: SearchContext, state: State, rows: Tensor, t: int) -> State:
    return method.tell(context, state, rows, evaluate(context.network, context.domain, rows), t)


def f(x: Tensor) -> Tensor:
    return torch.relu(x @ torch.tensor(WEIGHTS, dtype=torch.float64).T + torch.tensor(BIASES, dtype=torch.float64))


def slope_by_differences(x: Tensor, twin: Tensor) -> Tensor:
    """The gradient by x of J = -Σ p f(x') log f(x), with f(x') held, by central differences."""
    counted = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return -(counted * f(twin) * torch.log(f(x))).sum()

    steps = 1e-6 * torch.eye(3, dtype=torch.float64)
    return torch.stack([(loss(x + step) - loss(x - step)) / 2e-6 for step in steps])


ROWS = torch.tensor([[4, 3, 0], [2, 5, 1], [6, 2, 0]])


def test_the_dynamic_loss_and_its_swapped_roles():
    method, here = NeuronFair(), context()
    state = told(method, here, begin(method, here, ROWS), ROWS, 0)
    twins = ROWS.clone()
    twins[:, 2] = 1 - twins[:, 2]
    for i in range(len(ROWS)):
        x, twin = ROWS[i].double(), twins[i].double()
        g, g_twin = slope_by_differences(x, twin), slope_by_differences(twin, x)
        assert torch.allclose(state["g"][i], g, atol=1e-6)
        assert torch.allclose(state["g_twin"][i], g_twin, atol=1e-6)
        step = (g + g_twin).sign().long()
        step[2] = 0  # the sensitive value stays
        assert state["rows"][i].tolist() == (ROWS[i] + step).tolist()
        assert step[:2].abs().sum() == 2


def test_the_gradient_by_a_pencil():
    # One chain at (4, 3, 0): f = (5.5, 5.25, 7, 3.75), its twin f' = (7.5, 3.75, 7.5, 3.75).
    # dJ/da0 = -(7.5 * 1 / 5.5 + 3.75 * 0.25 / 5.25), dJ/da1 = -(7.5 * -0.5 / 5.5 + 3.75 * 0.75 / 5.25).
    method, here = NeuronFair(), context()
    state = told(method, here, begin(method, here, ROWS[:1]), ROWS[:1], 0)
    expected = [-(7.5 / 5.5 + 3.75 * 0.25 / 5.25), 7.5 * 0.5 / 5.5 - 3.75 * 0.75 / 5.25]
    assert state["g"][0, :2].tolist() == pytest.approx(expected)


def test_momentum_over_two_steps():
    method, here = NeuronFair(momentum=0.3), context()
    forgetful = NeuronFair(momentum=0.0)
    first = told(method, here, begin(method, here, ROWS), ROWS, 0)
    second = told(method, here, first, first["rows"], 1)
    fresh_1 = told(forgetful, here, begin(forgetful, here, ROWS), ROWS, 0)
    fresh_2 = told(forgetful, here, begin(forgetful, here, first["rows"]), first["rows"], 1)
    for name in ("g", "g_twin"):
        assert torch.allclose(first[name], fresh_1[name])
        assert torch.allclose(second[name], 0.3 * fresh_1[name] + fresh_2[name])
    step = (second["g"] + second["g_twin"]).sign().long()
    assert torch.equal(second["rows"], DOMAIN.move(first["rows"], first["rows"] + step))


def test_extra_neurons_are_a_share_of_the_layer_for_a_while():
    method, here = NeuronFair(refresh=10, extra_share=0.05), context()
    state = {"origin": torch.arange(500)}
    chosen = [method._draw_extra(here, state, 70, t) for t in range(25)]
    assert all((c.sum(1) == 3).all() for c in chosen)  # INT(70 * 0.05)
    for t in range(25):
        same = torch.equal(chosen[t], chosen[t - t % 10])
        assert same
    assert not torch.equal(chosen[9], chosen[10])
    assert not torch.equal(chosen[19], chosen[20])
    assert not torch.equal(chosen[0][0], chosen[0][1])  # each chain draws its own
    # Every neuron has the same chance: 500 chains, 3 of 70.
    count = torch.cat([method._draw_extra(here, state, 70, 10 * r) for r in range(40)]).sum(0)
    expected = 40 * 500 * 3 / 70
    assert (count - expected).abs().max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_extra_neurons_are_those_that_rank_first(share):
    method, here, state = NeuronFair(extra_share=share), context(), {"origin": torch.arange(200)}
    rank = here.draws.uniform(20, state["origin"], 32, use="extra").argsort(1).argsort(1)
    assert torch.equal(method._draw_extra(here, state, 32, 27), rank < int(32 * share))


def test_what_counts_is_kept_until_it_is_drawn_anew():
    method, here = NeuronFair(refresh=3, extra_share=0.5), context()
    state, kept = begin(method, here, ROWS), []
    for t in range(7):
        state = told(method, here, state, ROWS, t)
        kept.append(state["counted"])
        fresh = told(method, here, {name: x for name, x in state.items() if name != "counted"}, ROWS, t)
        assert torch.equal(fresh["counted"], state["counted"])  # as where a chain was away in between
        assert state["counted"][:, list(BIASED)].all()
    assert torch.equal(kept[0], kept[2])
    assert not torch.equal(kept[0], kept[3])


def test_extra_neurons_count_in_the_loss():
    method = NeuronFair(extra_share=0.25)  # one of the four neurons
    alone = NeuronFair(extra_share=0.0)
    many = ROWS[:1].repeat(64, 1)
    here = context()
    with_extra = told(method, here, begin(method, here, many), many, 0)["g"]
    without = told(alone, here, begin(alone, here, many), many, 0)["g"]
    same = torch.isclose(with_extra, without).all(1)
    extra = method._draw_extra(here, {"origin": torch.arange(64)}, 4, 0)
    assert torch.equal(same, extra[:, list(BIASED)].any(1))  # a biased neuron as the extra one adds nothing
    assert 0 < same.sum() < 64


# The local phase


def moves(method: NeuronFair, slopes: list[float], twin_slopes: list[float], chains: int = 20_000) -> Tensor:
    """How often each attribute of many equal chains is moved."""
    domain = networks.domain()
    here = networks.context(networks.one_biased_neuron(), domain, profile=profile(8, (3,), "0"))
    base = torch.full((chains, 5), 4)
    base[:, 4] = 0
    slope = torch.tensor([*slopes, 9.0]).repeat(chains, 1)
    twin = torch.tensor([*twin_slopes, 9.0]).repeat(chains, 1)
    state = {"origin": torch.arange(chains), "base": base, "g": slope, "g_twin": twin}
    codes = method._local_step(here, state, 3)
    assert ((codes - base).abs() <= 1).all()
    assert (codes[:, 4] == 0).all()
    return (codes != base).double().mean(0)[:4]


def near(shares: Tensor, expected: list[float]) -> bool:
    return torch.allclose(shares, torch.tensor(expected, dtype=torch.float64), atol=4 * 0.5 / math.sqrt(20_000))


def test_softmax_of_the_inverse_moves_every_attribute_for_itself():
    method = NeuronFair(local=True, sign="random")
    # |g + g'| = 1, 2, 0.5, 4: the inverse is 1, 0.5, 2, 0.25.
    inverse = torch.tensor([1.0, 0.5, 2.0, 0.25])
    shares = moves(method, [0.5, -1.0, 1.5, 2.0], [0.5, -1.0, -1.0, 2.0])
    assert near(shares, inverse.softmax(0).tolist())


def test_the_inverse_moves_one_attribute():
    method = NeuronFair(local=True, sign="random", choice="inverse")
    # |g| + |g'| = 1, 2, 2.5, 4.
    inverse = torch.tensor([1.0, 0.5, 0.4, 0.25])
    shares = moves(method, [0.5, -1.0, 1.5, 2.0], [0.5, -1.0, -1.0, 2.0])
    assert near(shares, (inverse / inverse.sum()).tolist())
    assert float(shares.sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("choice", ["softmax", "inverse"])
def test_attributes_without_influence_share_the_probability(choice):
    method = NeuronFair(local=True, sign="random", choice=choice)
    assert near(moves(method, [0.0] * 4, [0.0] * 4), [0.25] * 4)
    assert near(moves(method, [1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0]), [0.0, 0.5, 0.5, 0.0])


def test_the_sign_is_that_of_the_gradient_or_random():
    domain = networks.domain()
    here = networks.context(networks.one_biased_neuron(), domain, profile=profile(8, (3,), "0"))
    base = torch.full((4000, 5), 4)
    slope = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]).repeat(4000, 1)
    state = {"origin": torch.arange(4000), "base": base, "g": slope, "g_twin": slope}
    by_gradient = NeuronFair(local=True)._local_step(here, state, 0) - base
    assert set(by_gradient[:, 0].tolist()) == {0, 1}
    assert set(by_gradient[:, 1].tolist()) == {0, -1}
    at_random = NeuronFair(local=True, sign="random")._local_step(here, state, 0) - base
    assert (at_random[:, 0] == 1).sum() == pytest.approx((at_random[:, 0] == -1).sum(), abs=150)


# What happens after a miss, on the planted network: split where the digits add up to 19 or 20

PLANTED = networks.domain()
HIT, MISS, OTHER_MISS = [5, 5, 5, 4, 0], [5, 5, 5, 6, 0], [1, 1, 1, 1, 0]


def bases(after_miss: str, *visited: list[int], chains: int = 1) -> Tensor:
    """Where many equal chains go on from after these rows."""
    here = networks.context(networks.one_biased_neuron(), PLANTED, profile=profile(8, (3,), "0"))
    method = NeuronFair(local=True, after_miss=after_miss)
    state = begin(method, here, torch.tensor(visited[0]).repeat(chains, 1))
    for t, row in enumerate(visited):
        state = told(method, here, state, torch.tensor(row).repeat(chains, 1), t)
    return state["base"]


def test_walk_goes_on_from_the_miss():
    assert bases("walk", HIT, MISS).tolist() == [MISS]


def test_reset_returns_to_the_last_finding():
    assert bases("reset", HIT, MISS, OTHER_MISS).tolist() == [HIT]
    assert bases("reset", MISS, HIT).tolist() == [HIT]
    assert bases("reset", MISS, OTHER_MISS).tolist() == [MISS]  # no finding yet: back to the seed


def test_metropolis_leaves_a_finding_with_the_chance_of_its_temperature():
    after = bases("metropolis", HIT, MISS, chains=20_000)
    left = (after == torch.tensor(MISS)).all(1).double().mean()
    assert float(left) == pytest.approx(math.exp(-1), abs=4 * 0.5 / math.sqrt(20_000))
    assert ((after == torch.tensor(MISS)).all(1) | (after == torch.tensor(HIT)).all(1)).all()
    assert bases("metropolis", MISS, OTHER_MISS).tolist() == [OTHER_MISS]  # from a miss nothing is lost
    assert bases("metropolis", HIT, [5, 5, 5, 5, 0]).tolist() == [[5, 5, 5, 5, 0]]


# Where things go wrong


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("choice", ["softmax", "inverse"])
def test_a_dead_layer_never_gives_nan(local, choice):
    dead = networks.one_biased_neuron()
    with torch.no_grad():
        dead[0][0].bias.fill_(-1000.0)
    here = networks.context(dead, PLANTED, profile=profile(8, (3,), "0"))
    saved: list[State] = []
    seeds = networks.uniform_rows(PLANTED, 20)
    method = NeuronFair(local=local, choice=choice)
    result = run_phase(
        here, method, seeds, budget=Budget(steps=20), recording=PhaseRecording(lambda c: saved.append(c.state))
    )
    assert len(result.findings) == 0
    assert (saved[-1]["g"] == 0).all()
    assert (saved[-1]["g_twin"] == 0).all()
    assert PLANTED.valid(saved[-1]["rows"]).all()


def test_a_neuron_at_zero_has_no_slope_but_a_finite_loss():
    # The planted neuron is 0 for s = 0: the floor of the logarithm, and no slope through it.
    here = networks.context(networks.one_biased_neuron(), PLANTED, profile=profile(8, (0, 3), "0"))
    method = NeuronFair()
    rows = torch.tensor([[0, 4, 4, 4, 0], [3, 4, 4, 4, 1]])
    state = told(method, here, begin(method, here, rows), rows, 0)
    assert torch.isfinite(state["g"]).all()
    assert state["g"][0].tolist() == [0.0] * 5
    assert state["g"][1, 0] == pytest.approx(-1.0)  # -f'/f = -3/3


def test_the_profile_is_needed():
    with pytest.raises(NeuronFairError, match=r"interpret\(\)"):
        run_phase(context(profile=None), NeuronFair(), ROWS, budget=Budget())


def test_the_blind_control_uses_no_gradient():
    here = replace(context(), blind=True)
    before = here.network.rows_backward
    run_phase(here, NeuronFair(local=True), ROWS, budget=Budget(steps=5))
    assert here.network.rows_backward == before


def test_the_printed_algorithm_on_the_published_classifier(shared_models):
    data = load_dataset("adult", "paper", sensitive=["sex"])
    weights, _ = load_weights(shared_models / "neuronfair" / "census.npz")
    network = Network(weights, data.domain)
    bias = interpret(network, data.domain, data.rows[:2000])
    here = SearchContext(network, data.domain, Decision(), Draws(0, "global"), profile=bias)
    seeds = cluster_seeds(network.encoding, data.rows[:5000], 200)
    first = run_phase(here, NeuronFair(), seeds, budget=Budget(steps=40, findings_per_seed=1)).findings
    assert len(first) > 20
    here = replace(here, draws=Draws(0, "local"))
    local = NeuronFair(local=True, momentum=0.05, refresh=50)
    found = run_phase(here, local, first.rows, budget=Budget(steps=100)).findings
    assert len(found) > len(first)
    for rows in (first.rows, found.rows, found.misses.long()):
        assert ((rows >= 0) & (rows < data.domain.sizes)).all()


def next_rows(method: NeuronFair, slope: list[float], last: list[int], chains: int = 20_000) -> Tensor:
    """The rows after a global step from (4, 3, 0), with this gradient and this row before."""
    here = context()
    state = begin(method, here, torch.tensor([[4, 3, 0]]).repeat(chains, 1))
    g = torch.tensor([slope], dtype=torch.float64).repeat(chains, 1)
    state |= {"g": g, "g_twin": 0 * g, "last": torch.tensor([last]).repeat(chains, 1)}
    return here.domain.move(state["base"], method._global_step(here, state, 1))


@pytest.mark.parametrize(
    ("slope", "last"), [([0.0, 0.0, 0.0], [3, 3, 0]), ([0.0, 0.0, 5.0], [3, 3, 0]), ([1.0, -1.0, 0.0], [5, 2, 0])]
)
def test_a_kick_where_the_gradient_leads_nowhere_or_back(slope, last):
    stays = torch.tensor([5, 2, 0]) if slope[0] else torch.tensor([4, 3, 0])
    assert (next_rows(NeuronFair(), slope, last) == stays).all()
    kicked = next_rows(NeuronFair(kick=True), slope, last)
    assert (kicked[:, 2] == 0).all()
    steps = (kicked - torch.tensor([4, 3, 0]))[:, :2]
    for way, share in ((-1, 1 / 3), (0, 1 / 3), (1, 1 / 3)):
        assert near((steps == way).double().mean(0), [share, share])


def test_no_kick_while_the_gradient_leads_on():
    assert (next_rows(NeuronFair(kick=True), [1.0, -1.0, 0.0], [3, 4, 0]) == torch.tensor([5, 2, 0])).all()


def test_the_decision_through_the_biased_neurons_by_a_pencil():
    # At (4, 3, 0) f = (5.5, 5.25, 7, 3.75): scores (5.5 + 2.625 - 3.5 + 0.9375, -2.75 + 5.25 + 5.25 + 0.5), class 1.
    # Through the neurons 0 and 1 its lead z1 - z0 = -1.5 f0 + 0.5 f1 + … has the slope -1.5 w0 + 0.5 w1.
    here = context()
    for local, sign in ((True, 1), (False, -1)):  # globally a pair heads for the boundary
        method = NeuronFair(local=local, loss="decision", extra_share=0.0)
        state = told(method, here, begin(method, here, ROWS[:1]), ROWS[:1], 0)
        slope = [-1.5 * a + 0.5 * b for a, b in zip(WEIGHTS[0], WEIGHTS[1], strict=True)]
        assert state["g"][0].tolist() == pytest.approx([sign * x for x in slope])
        lead = 8.25 - 5.5625
        assert state["room"][0, 0] == pytest.approx(lead)
    everything = NeuronFair(local=True, loss="decision", extra_share=1.0)
    state = told(everything, here, begin(everything, here, ROWS[:1]), ROWS[:1], 0)
    full = here.network.gradient(ROWS[:1], lambda s: s[:, 1] - s[:, 0])
    assert torch.allclose(state["g"], full)


def test_the_difference_of_activations_by_a_pencil():
    # f - f' = (-2, 1.5, …): |f0 - f0'| falls with f0, |f1 - f1'| rises with f1.
    method, here = NeuronFair(loss="difference", extra_share=0.0), context()
    state = told(method, here, begin(method, here, ROWS[:1]), ROWS[:1], 0)
    slope = [-a + b for a, b in zip(WEIGHTS[0], WEIGHTS[1], strict=True)]
    assert state["g"][0].tolist() == pytest.approx(slope)


def test_a_tolerance_is_reached_by_widening_the_gap():
    here = networks.context(module()[:2].append(networks.linear([[1.0, 0.5, -0.5, 0.25]], [0.0]).double()), DOMAIN)
    here = replace(here, decision=Decision("tolerance", 1.0), profile=profile())
    method = NeuronFair(loss="decision", extra_share=1.0, momentum=0.0)
    start = begin(method, here, ROWS[:1])
    state = method.tell(here, start, ROWS[:1], evaluate(here.network, DOMAIN, ROWS[:1], here.decision), 0)
    gaps = [float(evaluate(here.network, DOMAIN, rows, here.decision).gaps[0, 0]) for rows in (ROWS[:1], state["rows"])]
    assert gaps[1] >= gaps[0]
    assert state["room"][0].tolist() == pytest.approx([gaps[0] - 1.0] * 2)


def test_other_layers_can_guide():
    deep = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    layers = (profile(name="1").layers[0], profile(biased=(2,), name="3").layers[0])
    here = networks.context(deep, DOMAIN, profile=BiasProfile(layers, 1))
    for name, expected in (("first", "1"), ("last", "3"), ("worst", max(layers, key=lambda one: one.auc).name)):
        seen = []
        spy = replace(here)
        object.__setattr__(spy, "gradient", lambda rows, *_, layer, seen=seen: seen.append(layer) or torch.zeros(2, 3))
        method = NeuronFair(layer=name)
        told(method, spy, begin(method, spy, ROWS[:1]), ROWS[:1], 0)
        assert seen == [expected]


def test_a_global_step_moves_a_log_uniform_number_of_attributes():
    domain = networks.domain(attributes=8)
    here = networks.context(networks.random_module(domain), domain)
    method, many = NeuronFair(moved_attributes="some"), 4000
    base = torch.full((many, 9), 4)
    codes = base + 1
    codes[:, 0] = 10  # out of its bounds: no move
    some = method._keep_some(here, {"origin": torch.arange(many), "base": base}, codes, 3)
    moved = some != base
    assert not moved[:, [0, 8]].any()  # nor what is sensitive
    counts = moved.sum(1)
    assert (counts.min(), counts.max()) == (1, 7)
    shares = torch.bincount(counts, minlength=8)[1:] / many
    assert shares.tolist() == pytest.approx([math.log(1 + 1 / k, 8) for k in range(1, 8)], abs=0.03)


def test_uniform_and_harm_choose_one_attribute():
    here = context()
    rows = ROWS[:1].repeat(3000, 1)
    for choice in ("uniform", "margin_loss", "inverse"):
        method = NeuronFair(local=True, loss="decision", sign="random", choice=choice)
        moved = told(method, here, begin(method, here, rows), rows, 0)["rows"] - rows
        assert (moved.abs().sum(1) == 1).all()
        if choice == "uniform":
            assert (moved != 0).double().mean(0).tolist() == pytest.approx([0.5, 0.5, 0.0], abs=0.03)


# What the three rungs found when version 0.2 called them neuronfair-paper and neuronfair, and 0.1 the middle one so.
GOLDEN = {
    "neuronfair-printed": (8, "e8b72a3c49fe2ec5"),
    "neuronfair": (601, "c775742cf000f0a1"),
    "neuronfair-plus": (404, "68fdb2aecd60c505"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_rungs_find_what_they_always_found(name):
    domain = networks.domain()
    network, rows = networks.network(networks.one_biased_neuron(), domain), networks.uniform_rows(domain, 2000)
    found = search(network, domain, rows, SearchConfig(name, seeds=60, steps=40, controls=False)).findings
    assert (len(found), hashlib.sha256(found.packed.numpy().tobytes()).hexdigest()[:16]) == GOLDEN[name]


def test_the_middle_rung_is_the_algorithm_of_the_paper():
    first, local, _ = METHODS["neuronfair"].make(None)
    for phase, momentum in ((first, 0.1), (local, 0.05)):
        assert (phase.loss, phase.layer, phase.momentum) == ("dynamic", "worst", momentum)
        assert (phase.extra_share, phase.moved_attributes) == (0.05, "all")
    printed = METHODS["neuronfair-printed"].make(None)
    assert first == replace(printed.global_phase, kick=True)
    assert local == replace(printed.local_phase, after_miss="reset", sign="random", choice="inverse")


def test_the_old_name_works_and_says_so():
    with pytest.warns(FutureWarning, match="'neuronfair-paper' is now 'neuronfair-printed'"):
        assert SearchConfig("neuronfair-paper").method == "neuronfair-printed"
    with pytest.warns(FutureWarning, match="The old name goes with the next version"):
        assert AuditSettings(methods=("frontier", "neuronfair-paper")).methods == ("frontier", "neuronfair-printed")
