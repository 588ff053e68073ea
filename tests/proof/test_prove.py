"""Whole proofs about small domains: what is proved is the truth, and nothing gets lost on the way."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import catalog_domain
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.weights import fully_connected
from neuronfair.proof import prove as proving
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.proof.state import ProofState
from neuronfair.scale.tasks import Threads
from tests.planted import networks
from tests.proof import worlds
from tests.proof.enumerable import DECISIONS, RULES, domain_of, figures, network_of, tiles, truth


@pytest.mark.parametrize("small", [1, 8, 512])
@pytest.mark.parametrize("name", DECISIONS)
def test_a_complete_proof_is_the_truth(monkeypatch, name, small):
    monkeypatch.setattr(proving, "MAX_ENUMERATED", small)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 64)
    outputs, decision = DECISIONS[name]
    domain = domain_of(*RULES)
    network = network_of(domain, outputs)
    true = truth(network, domain, decision)
    assert true[0] == domain.count
    assert min(true) > 20
    problem = build_problem(network, domain, decision=decision)
    shown = list[ProofProgress]()
    proof = prove(problem, seconds=60, progress=shown.append)
    assert figures(proof) == true
    assert proof.complete
    assert proof.undecided == 0
    assert not proof.interrupted
    assert tiles(problem, proof)
    assert len(proof.certified) == len(proof.certified.fair) == len(proof.certified.discriminatory)
    assert (shown[-1].fair, shown[-1].discriminatory) == pytest.approx((true[1] / true[0], true[2] / true[0]))
    assert shown[-1].undecided == pytest.approx(0, abs=1e-9)
    assert shown[-1].boxes == proof.boxes


@pytest.mark.parametrize("step", [1, 6])
def test_a_proof_that_is_stopped_and_goes_on(monkeypatch, step):
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 4)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 16)
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    people, fair, flips = truth(network, domain, Decision())
    problem = build_problem(network, domain)
    kept, steps = list[ProofState](), 0

    def stop(progress: ProofProgress) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            raise KeyboardInterrupt

    part = prove(problem, seconds=60, progress=stop, keep=kept.append)
    assert part.interrupted
    assert not part.complete
    assert steps == step
    assert tiles(problem, part)
    assert part.record_count == people
    assert part.fair <= fair
    assert part.discriminatory <= flips
    assert part.undecided == people - part.fair - part.discriminatory
    state = kept[-1]
    assert "told" not in state.undecided
    again = ProofState.of({name: tensor.clone() for name, tensor in state.tensors.items()}, state.boxes, 3.0)
    whole = prove(problem, seconds=60, state=again, keep=kept.append)
    assert figures(whole) == (people, fair, flips)
    assert whole.boxes > part.boxes
    assert whole.seconds >= 3.0
    assert len(kept[-1].undecided["low"]) == 0
    again = prove(problem, seconds=60, state=kept[-1])
    assert figures(again) == (people, fair, flips)
    assert again.boxes == whole.boxes


def test_ctrl_c_ends_a_proof_with_what_is_there(monkeypatch):
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 1)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 16)
    domain = domain_of(*RULES)
    problem = build_problem(network_of(domain, 2), domain)
    shown = list[ProofProgress]()

    def press(progress: ProofProgress) -> None:
        shown.append(progress)
        if len(shown) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    proof = prove(problem, seconds=60, progress=press)
    assert proof.interrupted
    assert len(shown) == 3
    assert tiles(problem, proof)


def test_a_state_is_kept_now_and_then(monkeypatch):
    monkeypatch.setattr(proving, "MIN_SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(proving, "MIN_KEEPING_INTERVALS", 0)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 16)
    domain = domain_of(*RULES)
    problem = build_problem(network_of(domain, 2), domain)
    kept, shown = list[ProofState](), list[ProofProgress]()
    prove(problem, seconds=60, progress=shown.append, keep=kept.append)
    assert len(kept) == len(shown) + 1  # after every step, and at the end
    boxes = [state.boxes for state in kept]
    assert boxes == sorted(boxes)
    assert boxes[:-1] == [progress.boxes for progress in shown]


def test_without_time_nothing_is_proved():
    domain = domain_of(*RULES)
    problem = build_problem(network_of(domain, 2), domain)
    proof = prove(problem, seconds=0)
    assert (proof.boxes, proof.discriminatory) == (0, 0)
    assert proof.record_count == domain.count
    assert proof.fair == 0
    assert tiles(problem, proof)


def test_steps_that_take_long_become_smaller():
    search = proving.BranchAndBound(build_problem(network_of(domain_of(), 2), domain_of()), None, Threads(1, None))
    batch = search.batch.boxes
    for step, wanted, factor in ((0.1, 0.2, 1), (0.3, 0.2, 0.5), (0.1, 0.2, 0.5), (0.01, 0.2, 1), (0.15, 0.1, 1)):
        search.adapt_batch(step, wanted)
        assert search.batch.boxes == batch * factor
    search._steps = proving.FIRST_TRIAL_STEP + 1  # strategies were compared, which takes its time
    search.adapt_batch(9.0, 3.0)
    assert search.batch.boxes == batch
    search._steps = 0
    for _ in range(20):
        search.adapt_batch(9.0, 3.0)
    assert search.batch.boxes == 16


def test_who_has_no_twin_is_treated_like_all_of_them():
    rules = (Rule("from 5 on s is 0", {"a0": Span(5, 9)}, {"s": (0,)}),)
    domain = domain_of(*rules)
    network = network_of(domain, 2)
    before = prove(build_problem(network, domain), seconds=0)
    assert figures(before) == (domain.count, 5 * 4 * 10 * 2, 0)
    assert figures(prove(build_problem(network, domain))) == truth(network, domain, Decision())


@pytest.mark.parametrize(
    ("where", "met"),
    [
        ("a0 >= 3 and job in [a, d]", lambda r: (r[:, 0] >= 3) & ((r[:, 2] == 0) | (r[:, 2] == 3))),
        ("s in [0, 2] and a1 < 8", lambda r: (r[:, 1] != 1) & (r[:, 3] < 8)),
        ("s == 1", lambda r: r[:, 1] == 1),
        (
            "a0 == 4 and s == 0 and job == c and a1 == 5 and unread == 1",
            lambda r: (r == torch.tensor([4, 0, 2, 5, 1])).all(1),
        ),
    ],
)
def test_a_region_is_proved_with_twins_outside(where, met):
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = build_problem(network, domain, condition=where)
    proof = prove(problem)
    assert figures(proof) == truth(network, domain, Decision(), met)
    assert tiles(problem, proof)


@pytest.mark.parametrize("bias", [1.0, -1.0])
def test_a_constant_model_is_fair(bias):
    domain = domain_of()
    module = nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        module[2].bias.fill_(bias)
    proof = prove(build_problem(Network(module, domain), domain, decision=Decision("threshold", 0.0)))
    assert figures(proof) == (domain.count, domain.count, 0)
    assert proof.boxes == 1


def test_more_people_than_int64_holds_are_proved_exactly():
    """Nine attributes of a thousand values each, of which one decides: half of all are decided by the bit."""
    numbers = [Attribute(f"a{i}", "ordinal", low=0, high=999) for i in range(9)]
    domain = TableDomain("large", (*numbers, Attribute("s", "flag")), ("s",))
    module = nn.Sequential(nn.Linear(10, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        z = torch.tensor([1.0, *[0.0] * 8, 500.0])
        module[0].weight.copy_(torch.stack([z, -z]))
        module[0].bias.copy_(torch.tensor([-999.5, 999.5]))
        module[2].weight.copy_(torch.tensor([[1.0, -1.0]]))
    proof = prove(build_problem(Network(module, domain), domain, decision=Decision("threshold", 0.0)))
    assert figures(proof) == (2 * 10**27, 10**27, 10**27)


def test_places_that_stand_for_very_many_codes_are_counted_exactly():
    """64 combinations of places for 10^25 of codes, with margins that nothing bounds."""
    space = worlds.space_of(*[[10_001, 4_999]] * 6)
    table = torch.randn(64, 2, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bits = 2 ** torch.arange(6)
    everybody, both = space.full_box(), torch.ones(1, 2, dtype=torch.bool)
    problem = replace(
        build_problem(network_of(domain_of(), 2), domain_of()),
        space=space,
        valid_records=worlds.records_in(everybody, both, both),
        compute_margins=lambda points: table[(points * bits).sum(1)],
        slack=torch.zeros(1, dtype=torch.float64),
        bounder=None,
    )
    fair = 0
    for places in worlds.places_of(everybody):
        first, second = table[int((places * bits).sum()), :, 0].tolist()
        alike = (first > 0) == (second > 0)
        fair += 2 * alike * math.prod([10_001, 4_999][place] for place in places.tolist())
    assert figures(prove(problem)) == (2 * 15_000**6, fair, 2 * 15_000**6 - fair)


def test_a_black_box_is_asked_ties_and_all():
    domain = networks.domain(attributes=2, high=3)

    def ask(rows):
        return torch.stack([rows[:, 0], rows[:, 1] + rows[:, 2] * (rows[:, 0] > 1)], 1).double()  # often a tie

    box = BlackBox(ask, domain)
    problem = build_problem(box, domain)
    assert problem.bounder is None
    proof = prove(problem)
    assert figures(proof) == truth(box, domain, Decision())
    assert proof.discriminatory > 0
    assert tiles(problem, proof)


@pytest.mark.parametrize(
    "decision", [Decision("threshold", 2.0), Decision("tolerance", 0.0), Decision("tolerance", 1.0)]
)
def test_scores_of_a_black_box_on_the_limit(decision):
    domain = networks.domain(attributes=2, high=3)
    box = BlackBox(lambda rows: (rows[:, 0] + rows[:, 2] * (rows[:, 1] - 1)).double(), domain)
    proof = prove(build_problem(box, domain, decision=decision))
    assert figures(proof) == truth(box, domain, decision)
    assert 0 < proof.discriminatory < proof.record_count


def test_a_black_box_of_many_places_is_cut_before_it_is_asked(monkeypatch):
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 5)
    domain = replace(networks.domain(attributes=2, high=9), rules=(Rule("r", {"a0": (1, 5)}, {"a1": Span(0, 3)}),))
    box = BlackBox(lambda rows: (rows[:, 0] * 2 + rows[:, 1] + 3 * rows[:, 2] - 12.5).double(), domain)
    decision = Decision("threshold", 0.0)
    problem = build_problem(box, domain, decision=decision, condition="a1 in [0, 1, 2, 6, 7]")
    met = torch.isin(torch.arange(10), torch.tensor([0, 1, 2, 6, 7]))
    proof = prove(problem)
    assert figures(proof) == truth(box, domain, decision, lambda rows: met[rows[:, 1]])
    assert tiles(problem, proof)


def test_threads_work_side_by_side_and_prove_the_same(monkeypatch):
    """Each has its own boxes; the number that torch had is restored."""
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 4)
    domain = catalog_domain("adult", "paper")
    torch.manual_seed(0)
    network = Network(fully_connected(13, (8, 4)), domain)
    before = torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            proof = prove(build_problem(network, domain), seconds=1e9, progress=_until(4000))
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(before)
        found.append((proof.boxes, proof.fair, proof.discriminatory))
    assert found[0][1] > 0
    assert found[0] == found[1]


def _until(boxes):
    def stop(progress):
        if progress.boxes > boxes:
            raise KeyboardInterrupt

    return stop


def test_one_layer_is_bounded_in_one_way_however_long_it_takes(monkeypatch) -> None:
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 1)
    domain = networks.domain(attributes=3)
    layer = networks.linear([[1.0, 1.0, 1.0, -2.0]], [-14.5])
    network = Network(torch.nn.Sequential(layer).eval(), domain, layers=())
    proof = prove(build_problem(network, domain, decision=Decision("threshold", 0.0)), seconds=60)
    sums = [sum(map(int, f"{number:03}")) for number in range(1_000)]
    assert proof.complete
    assert proof.discriminatory == 2 * sum(14.5 < total < 16.5 for total in sums)
