"""Guides: each goes with its half, none is lost, and what is proved of each is the truth."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from neuronfair.proof import prove as proving
from neuronfair.proof.bounds.space import Boxes, CutTree
from neuronfair.proof.evidence import Evidence
from neuronfair.proof.problem import places_of, problem_of
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.proof.state import FAIR, FLIPS, UNDECIDED, Guides, GuideSource, ProofState
from neuronfair.searches.evaluate import evaluate
from tests.proof import worlds
from tests.proof.enumerable import DECISIONS, RULES, domain_of, figures, network_of, tiles, truth
from tests.proof.test_cuts import CPU, held_by, places

SPACE = worlds.space_of(40, [1, 2, 3, 1], 25)


def every_row(domain):
    rows = torch.tensor(list(product(*(range(a.size) for a in domain.attributes))))
    return rows[domain.valid(rows)]


@pytest.mark.parametrize("seed", range(4))
def test_guides_are_parted_as_brute_force_parts_them(seed):
    torch.manual_seed(seed)
    draw = random.Random(seed)
    rows, drawn = places(700), places(500)
    guides, tree, boxes = Guides.at(rows, drawn), CutTree.of_roots(1, CPU), SPACE.everything()
    assert (int(guides.rows.sum()), int(guides.drawn.sum())) == (700, 500)
    assert len(guides) == len(torch.unique(torch.cat([rows, drawn]), dim=0))
    seats = guides.seated(torch.tensor([0]), tree)
    for _ in range(8):
        axis = torch.tensor([draw.randrange(3) for _ in range(len(boxes))])
        some = (boxes.high.gather(1, axis[:, None]) > boxes.low.gather(1, axis[:, None]))[:, 0].nonzero()[:, 0]
        some = some[torch.randperm(len(some))]  # boxes that are not cut are forgotten here
        axis = axis[some]
        last = SPACE.middle(boxes[some], axis)
        halves = SPACE.halves(boxes[some], axis, last)
        seats, boxes = guides.cut(seats[some], axis, last, tree), halves
        decided = torch.rand(len(guides)) < 0.05
        guides.decide(decided.nonzero()[:, 0], torch.ones(int(decided.sum()), dtype=torch.bool), ~decided[decided])
        seats = guides.undecided(seats)
        owner, guide = guides.of(seats)
        held = ((guides.places[:, None] >= boxes.low) & (guides.places[:, None] <= boxes.high)).all(2)
        held &= (guides.status == UNDECIDED)[:, None]
        assert sorted(map(list, zip(guide.tolist(), owner.tolist(), strict=True))) == sorted(held.nonzero().tolist())
        weights = (held * guides.weight[:, None]).sum(0)
        assert guides.weights(seats).tolist() == pytest.approx(weights.tolist())


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("step", [1, 3, 8, 10_000])
def test_what_is_proved_of_guides_is_the_truth(monkeypatch, name, step):
    """Rows of every kind, a proof that is stopped anywhere: no guide is proved to be what it is not."""
    monkeypatch.setattr(proving, "SMALL", 4)
    monkeypatch.setitem(proving.BATCH, "cpu", 16)
    outputs, decision = DECISIONS[name]
    domain = domain_of(*RULES)
    network = network_of(domain, outputs)
    problem = problem_of(network, domain, decision=decision)
    rows = every_row(domain)
    flips = evaluate(network.double(), domain, rows, decision).discriminates
    source, left = GuideSource(places_of(problem, rows)), step

    def stop(_: ProofProgress) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    proof = prove(problem, seconds=60, guides=source, progress=stop)
    assert tiles(problem, proof)
    status = Evidence(problem, proof.state).status_of(places_of(problem, rows))
    assert not (flips & (status == FAIR)).any()
    assert not (~flips & (status == FLIPS)).any()
    guides = Guides(proof.state.guides)
    assert sum(guides.rows_with(each) for each in (UNDECIDED, FAIR, FLIPS)) == len(rows)
    if step == 10_000:
        people, fair, discriminatory = truth(network, domain, decision)
        assert figures(proof) == (people, fair, discriminatory)
        assert (guides.rows_with(FAIR), guides.rows_with(FLIPS)) == (fair, discriminatory)
        assert (status == FAIR).sum() == fair


def test_boxes_with_guides_come_first(monkeypatch):
    """Two guides in a corner: what is proved is there, and not where most volume is."""
    monkeypatch.setattr(proving, "SMALL", 1)
    monkeypatch.setattr(proving, "FIRST", 1)
    domain = domain_of()
    problem = problem_of(network_of(domain, 2), domain)
    corner = torch.tensor([[9, 0, 0, 9, 1], [9, 1, 0, 9, 1]])
    seen = list[float]()
    prove(
        problem, seconds=60, guides=GuideSource(places_of(problem, corner)), progress=lambda now: seen.append(now.rows)
    )
    first = seen.index(1.0)
    others = list[int]()
    prove(problem, seconds=60, progress=lambda now: others.append(now.boxes))
    assert first < len(others) / 4
    assert seen[-1] == 1.0


@pytest.mark.parametrize("name", DECISIONS)
def test_by_volume_guides_change_nothing(monkeypatch, name):
    """The order by volume claims the same, box by box, whoever rides along."""
    monkeypatch.setattr(proving, "SMALL", 4)
    monkeypatch.setitem(proving.BATCH, "cpu", 16)
    outputs, decision = DECISIONS[name]
    domain = domain_of(*RULES)
    problem = problem_of(network_of(domain, outputs), domain, decision=decision)
    rows = places_of(problem, every_row(domain)[::7])
    proofs = []
    for source in (None, GuideSource(rows, leads=False)):
        left = 12

        def stop(_: ProofProgress) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt

        proofs.append(prove(problem, seconds=600, guides=source, progress=stop))
    one, other = (proof.certified for proof in proofs)
    assert (one.low == other.low).all()
    assert (one.high == other.high).all()
    assert (one.fair, one.discriminatory) == (other.fair, other.discriminatory)


def test_guides_are_drawn_while_few_are_undecided(monkeypatch):
    """Drawn guides are those that nothing is proved of yet; they find their boxes, and the proof stays the truth."""
    monkeypatch.setattr(proving, "SMALL", 2)
    monkeypatch.setitem(proving.BATCH, "cpu", 8)
    monkeypatch.setitem(proving.DRAWN, "cpu", 40)
    monkeypatch.setattr(proving, "DRAWING", 1e9)
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = problem_of(network, domain)
    rows, drawn = every_row(domain), list[int]()

    def draw(count: int, seed: int) -> torch.Tensor:
        drawn.append(seed)
        return places_of(
            problem, rows[torch.randint(len(rows), (count,), generator=torch.Generator().manual_seed(seed))]
        )

    kept = list[ProofState]()
    monkeypatch.setattr(proving, "KEEP", -1.0)
    monkeypatch.setattr(proving, "SELDOM", 0)
    proof = prove(problem, seconds=60, guides=GuideSource(places_of(problem, rows[:50]), draw), keep=kept.append)
    assert figures(proof) == truth(network, domain, problem.decision)
    assert len(drawn) > 3
    assert len(set(drawn)) == len(drawn)
    for state in kept:
        leaf = CutTree(state.cuts).leaves(state.guides["places"])
        node = torch.cat([state.done["node"], state.undecided["node"]])
        low, high = (torch.cat([state.done[end], state.undecided[end]]) for end in ("low", "high"))
        boxes = Boxes(low, high)
        assert node[held_by(boxes, state.guides["places"])].tolist() == leaf.tolist()
        assert int(state.guides["rows"].sum()) == 50


def test_pieces_decide_the_guides_of_their_boxes(monkeypatch):
    """A state that is dealt and put together again has every guide once, with what the pieces have proved of it."""
    monkeypatch.setattr(proving, "SMALL", 4)
    monkeypatch.setitem(proving.BATCH, "cpu", 8)
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = problem_of(network, domain)
    rows, left = every_row(domain), 4

    def stop(_: ProofProgress) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    begun = prove(problem, seconds=60, guides=GuideSource(places_of(problem, rows)), progress=stop).state
    assert begun.left > 3
    parts = [prove(problem, seconds=60, state=begun.part(piece, 3)).state for piece in range(3)]
    held = [int(begun.part(piece, 3).guides["rows"].sum()) for piece in range(3)]
    assert all(held)
    joined = begun.joined(parts, 1.0)
    proof = proving.proof_of(problem, joined, interrupted=False)
    assert figures(proof) == truth(network, domain, problem.decision)
    guides = Guides(joined.guides)
    assert (guides.rows_with(FAIR), guides.rows_with(FLIPS)) == figures(proof)[1:]
