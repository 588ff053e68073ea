from __future__ import annotations

import pytest
import torch
from torch import nn

from neuronfair import Decision, SearchConfig, interpret, search
from neuronfair.model.profile import BiasProfile, LayerBias
from neuronfair.render.search import compose_search
from neuronfair.render.terminal import make_console
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchCounts
from neuronfair.searches.health import HealthNote, check_health, find_weak_guidance
from tests.planted import networks

DOMAIN = networks.domain()
ROWS = networks.uniform_rows(DOMAIN, 300)


def names(module: nn.Module, *, rows: torch.Tensor = ROWS, seeds: torch.Tensor | None = None, **kw) -> set[str]:
    context = networks.context(module, DOMAIN, **kw)
    return {note.name for note in check_health(context, rows[:100] if seeds is None else seeds, rows)}


def note(module: nn.Module, name: str, **kw) -> HealthNote:
    notes = check_health(networks.context(module, DOMAIN, **kw), ROWS[:100], ROWS)
    return next(n for n in notes if n.name == name)


def test_a_healthy_search_has_no_notes():
    module = networks.one_biased_neuron()
    profile = interpret(networks.network(module, DOMAIN), DOMAIN, ROWS)
    assert names(module, profile=profile) == set()


def test_constant_decision():
    module = networks.one_biased_neuron(boundary=1000.0)
    assert names(module) == {"constant-decision"}
    assert "All 2,200 records" in note(module, "constant-decision").observation


@pytest.mark.parametrize(
    ("decision", "constant"),
    [
        (Decision("threshold", 3.0), False),
        (Decision("threshold", 100.0), True),
        (Decision("tolerance", 1.5), False),
        (Decision("tolerance", 100.0), True),
    ],
)
def test_a_constant_decision_about_a_score(decision, constant):
    assert ("constant-decision" in names(networks.biased_score(), decision=decision)) == constant


def test_zero_gradient():
    # A saturated sigmoid: float32 gives exactly 0 or 1, and a slope of exactly 0.
    first = networks.linear([[1e6, 1e6, 1e6, 1e6, 0.0]], [-18.5e6])
    module = nn.Sequential(first, nn.Sigmoid(), networks.linear([[0.0], [1.0]], [0.5, 0.0]))
    assert names(module) == {"zero-gradient"}
    assert "100 of 100 seeds" in note(module, "zero-gradient").observation


def test_half_of_the_seeds_may_be_flat():
    # relu(a0 - 4.5): flat for a0 below 5.
    first = networks.linear([[1.0, 0.0, 0.0, 0.0, 0.0]], [-4.5])
    module = nn.Sequential(first, nn.ReLU(), networks.linear([[0.0], [1.0]], [2.0, 0.0]))
    flat, steep = torch.tensor([2, 1, 1, 1, 0]), torch.tensor([7, 1, 1, 1, 0])
    assert "zero-gradient" not in names(module, seeds=torch.stack([flat, steep]))
    assert "zero-gradient" in names(module, seeds=torch.stack([flat, steep, flat]))


def test_dead_biased_neurons():
    module = networks.one_biased_neuron(biased=3)
    act_diff = torch.tensor([0, 0, 0, 2.0, 0, 0, 0, 2.0])  # neuron 7 reads nothing, and is 0 for everybody
    profile = BiasProfile((LayerBias("0", act_diff),), 1)
    assert names(module, profile=profile) == {"dead-biased-neurons"}
    assert note(module, "dead-biased-neurons", profile=profile).observation.startswith(
        "1 of 2 biased neurons of layer '0'"
    )


def test_train_mode():
    context = networks.context(networks.one_biased_neuron(), DOMAIN)
    context.network.module.train()
    assert [n.name for n in check_health(context, ROWS, ROWS)] == ["train-mode"]
    assert context.network.module.training  # it is the user's: only looked at


def test_one_sensitive_value():
    rows = ROWS.clone()
    rows[:, 4] = 1
    module = networks.one_biased_neuron()
    assert names(module, rows=rows) == {"one-sensitive-value"}
    (only,) = check_health(networks.context(module, DOMAIN), rows[:50], rows)
    assert "'s' (1 in all 300 rows)" in only.observation


def test_seeds_already_discriminating():
    inside, outside = torch.tensor([5, 5, 5, 4, 0]), torch.tensor([0, 0, 0, 0, 0])
    module = networks.one_biased_neuron()
    assert names(module, seeds=torch.stack([inside, outside])) == set()
    assert names(module, seeds=torch.stack([inside, outside, inside])) == {"seeds-already-discriminating"}


@pytest.mark.parametrize("classes", [2, 3])
def test_softmax_twice(classes):
    logits = networks.random_module(DOMAIN, classes, seed=3)
    once = nn.Sequential(*logits, nn.Softmax(1))
    assert "softmax-twice" not in names(logits)
    assert "softmax-twice" not in names(once)
    assert "softmax-twice" in names(nn.Sequential(*once, nn.Softmax(1)))


def test_probabilities_near_one_half_are_no_softmax_twice():
    """There lie those of a softmax that is applied twice, and those of a weak logistic regression."""
    first = networks.linear([[0.0] * 5, [0.05, -0.05, 0.02, 0.03, 0.1]], [0.0, 0.0])
    weak = nn.Sequential(first, nn.ReLU(), networks.linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]), nn.Softmax(1))
    assert "softmax-twice" not in names(weak)
    assert "softmax-twice" in names(nn.Sequential(*weak, nn.Unflatten(1, (1, 2)), nn.Flatten(), nn.Softmax(1)))


def test_constant_scores_are_no_softmax_twice():
    first = networks.linear([[1.0] * 5], [0.0])
    module = nn.Sequential(first, nn.ReLU(), networks.linear([[0.0], [0.0]], [0.0, 0.2]), nn.Softmax(1))
    assert "softmax-twice" not in names(module)
    assert "constant-decision" in names(module)


def test_no_seeds_and_no_table():
    nobody = ROWS[:0]
    module = networks.one_biased_neuron()
    profile = interpret(networks.network(module, DOMAIN), DOMAIN, ROWS)
    assert check_health(networks.context(module, DOMAIN, profile=profile), nobody, nobody) == ()


def test_many_twins_keep_the_look_small():
    domain = networks.sex_and_race()
    context = networks.context(networks.one_biased_pair(), domain)
    rows = networks.uniform_rows(domain, 5000)
    assert check_health(context, rows, rows) == ()
    assert context.network.rows_forward <= 2 * 1000 * 10


@pytest.mark.parametrize(
    ("own", "blind", "said"),
    [
        ((90, 1000), (200, 1000), "less often than the same method in random directions: its gradients did not help"),
        ((0, 1000), (200, 1000), "less often than the same method in random directions: its gradients did not help"),
        (
            (210_000, 1_000_000),
            (200_000, 1_000_000),
            "only 1.05 times as often as the same method in random directions",
        ),
        ((21, 100), (20, 100), "not measurably more often than the same method in random directions"),
        ((18, 100), (20, 100), "not measurably more often than the same method in random directions"),
    ],
)
def test_that_gradients_did_not_help_is_said_only_where_the_intervals_are_apart(own, blind, said):
    found = find_weak_guidance("adf", ("sex", "race"), own, blind)
    assert found.name == "weak-guidance"
    assert found.observation.startswith(f"adf (sex and race) succeeded {said}")


def test_the_intervals_of_success_rates_are_those_of_wilson():
    """By hand: 20 of 100 gives 13.3 to 28.9%, 0 of 100 at most 3.7%."""
    assert "20% of 100 (13.3% to 28.9%)" in find_weak_guidance("adf", ("sex",), (0, 100), (20, 100)).observation
    assert "0% of 100 records (0% to 3.7%)" in find_weak_guidance("adf", ("sex",), (0, 100), (20, 100)).observation


@pytest.mark.parametrize(("own", "blind"), [((221, 1000), (200, 1000)), ((5, 10), (0, 10)), ((0, 10), (0, 10))])
def test_a_guided_search_does_not(own, blind):
    assert find_weak_guidance("adf", ("sex",), own, blind) is None


@pytest.mark.parametrize(("found", "said"), [(1_000, True), (0, False)])
def test_the_note_is_in_the_figures_and_on_the_terminal(monkeypatch, tmp_path, found, said):
    network = networks.network(networks.one_biased_neuron(), DOMAIN)
    monkeypatch.setattr(campaign._PhaseSequence, "random_directions", lambda *_: SearchCounts(1_000, found, 1_000))
    outcome = search(network, DOMAIN, ROWS, SearchConfig(seeds=5, steps=5))
    noted = [note["name"] for note in outcome.summary()["health"]]
    assert ("weak-guidance" in noted) is said
    console = make_console()
    with console.capture() as text:
        console.print(compose_search(outcome, network, tmp_path))
    told = text.get()
    assert ("\nfrontier (s) succeeded" in told) is said  # in the place of a verdict, not among the health checks
    assert "Health check weak-guidance" not in told
