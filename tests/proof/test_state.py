"""The queue of boxes, guides, and whole numbers of records from shares and counts."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from neuronfair.model.decision import Decision
from neuronfair.proof import problem as problems
from neuronfair.proof import prove as proving
from neuronfair.proof.bounds.margins import build_margins
from neuronfair.proof.bounds.space import Axis, Boxes, CutTree, Space, can_enumerate, count_points
from neuronfair.proof.problem import build_problem, enumerate_records, locate_rows
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.proof.records import Evidence
from neuronfair.proof.state import (
    DEPENDS,
    FAIR,
    LEVELS_PER_OCTAVE,
    SHARE_BITS,
    UNDECIDED,
    BoxQueue,
    Guides,
    GuideSource,
    ProofState,
    build_certified_boxes,
    make_certified_columns,
    make_enumerated_columns,
    make_undecided_columns,
    sum_proved,
)
from neuronfair.searches.evaluate import evaluate
from tests.proof import worlds
from tests.proof.bounds.test_space import CPU, held_by, places
from tests.proof.enumerable import DECISIONS, RULES, domain_of, figures, network_of, tiles, truth


def _columns(ids, fair=0.0, flips=0.0):
    n = len(ids)
    made = {"id": torch.tensor(ids, dtype=torch.int32)}
    return made | {name: torch.full((n,), v, dtype=torch.float64) for name, v in (("fair", fair), ("flips", flips))}


def _queue():
    return BoxQueue({name: column[:0] for name, column in _columns([0]).items()})


def test_the_most_open_come_first():
    queue = _queue()
    share = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64)
    columns = _columns([1, 2, 3, 4])
    columns["fair"][1] = 0.9  # 0.04 of all are open in it
    queue.put(columns, share)
    assert queue.proved_shares.tolist() == pytest.approx([0.36, 0.0])
    assert sorted(queue.take(2)["id"].tolist()) == [3, 4]
    assert len(queue) == 2
    assert sorted(queue.collect_columns()["id"].tolist()) == [1, 2]
    assert queue.take(1)["id"].tolist() == [1]
    assert queue.take(9)["id"].tolist() == [2]
    assert len(queue) == 0
    assert queue.proved_shares.tolist() == [0.0, 0.0]


def test_a_box_of_which_nothing_is_open_is_not_forgotten():
    queue = _queue()
    queue.put(_columns([1], fair=0.75, flips=0.25), torch.tensor([1.0], dtype=torch.float64))
    assert queue.take(5)["id"].tolist() == [1]


def test_boxes_are_kept_whatever_is_taken_and_put():
    draw, queue, held, following = random.Random(0), _queue(), {}, 0
    for _ in range(60):
        if draw.random() < 0.5:
            taken = queue.take(draw.randint(0, 9))
            for number in taken["id"].tolist():
                del held[number]
        else:
            ids = list(range(following, following := following + draw.randint(0, 12)))
            share = torch.tensor([draw.random() for _ in ids], dtype=torch.float64)
            fair, flips = draw.random() / 2, draw.random() / 2
            queue.put(_columns(ids, fair, flips), share)
            held |= {number: (s * fair, s * flips) for number, s in zip(ids, share.tolist(), strict=True)}
        assert len(queue) == len(held)
        assert sorted(queue.collect_columns()["id"].tolist()) == sorted(held)
        sums = [sum(pair[i] for pair in held.values()) for i in (0, 1)]
        assert queue.proved_shares.tolist() == pytest.approx(sums)


def test_bounds_that_only_some_boxes_have():
    """Boxes with and without bounds lie in one queue; where they are taken together nothing is known of the others."""
    queue, one = _queue(), torch.ones(2, dtype=torch.float64)
    inner = {"inner": torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])}
    queue.put(_columns([1, 2]) | inner, one)
    queue.put(_columns([3, 4]), one)
    queue.put(_columns([5, 6]) | inner, one)
    assert "inner" not in queue.collect_columns()
    taken = queue.take(6)
    bounds = dict(zip(taken["id"].tolist(), taken["inner"][:, 0].tolist(), strict=True))
    nothing = [-torch.inf, torch.inf]
    assert bounds == {1: [1, 2], 2: [3, 4], 3: nothing, 4: nothing, 5: [1, 2], 6: [3, 4]}
    queue.put(_columns([7, 8]), one)
    assert "inner" not in queue.take(2)


def test_no_box_waits_for_one_of_a_lower_level():
    """The boxes that are taken have the highest priorities, up to the width of a level."""
    draw, queue, held, following = random.Random(1), _queue(), dict[int, float](), 0
    for _ in range(200):
        ids = list(range(following, following := following + draw.randint(0, 40)))
        share = [draw.random() ** 3 for _ in ids]
        queue.put(_columns(ids), torch.tensor(share, dtype=torch.float64))
        held |= dict(zip(ids, share, strict=True))
        taken = queue.take(draw.randint(1, 25))["id"].tolist()
        least = min((held.pop(number) for number in taken), default=1.0)
        assert least * 2 ** (1 / LEVELS_PER_OCTAVE) >= max(held.values(), default=0.0)
        assert len(queue) == len(held)
        assert queue.proved_shares.tolist() == pytest.approx([0.0, 0.0])


def test_a_level_is_a_few_lists():
    queue = _queue()
    for number in range(1000):
        queue.put(_columns([number]), torch.tensor([0.5], dtype=torch.float64))
    (lists,) = queue._levels.values()
    assert len(lists) <= 11
    assert sorted(queue.take(1000)["id"].tolist()) == list(range(1000))


SPACE = worlds.space_of(40, [1, 2, 3, 1], 25)


def every_row(domain):
    rows = torch.tensor(list(product(*(range(a.size) for a in domain.attributes))))
    return rows[domain.valid(rows)]


@pytest.mark.parametrize("seed", range(4))
def test_guides_are_parted_as_brute_force_parts_them(seed):
    torch.manual_seed(seed)
    draw = random.Random(seed)
    rows, drawn = places(700), places(500)
    guides, tree, boxes = Guides.from_points(rows, drawn), CutTree.of_roots(1, CPU), SPACE.full_box()
    assert (int(guides.row_counts.sum()), int(guides.drawn_counts.sum())) == (700, 500)
    assert len(guides) == len(torch.unique(torch.cat([rows, drawn]), dim=0))
    segments = guides.find_segments(torch.tensor([0]), tree)
    for _ in range(8):
        axis = torch.tensor([draw.randrange(3) for _ in range(len(boxes))])
        some = (boxes.high.gather(1, axis[:, None]) > boxes.low.gather(1, axis[:, None]))[:, 0].nonzero()[:, 0]
        some = some[torch.randperm(len(some))]  # boxes that are not cut are forgotten here
        axis = axis[some]
        last = SPACE.find_middle(boxes[some], axis)
        halves = SPACE.split(boxes[some], axis, last)
        segments, boxes = guides.cut(segments[some], axis, last, tree), halves
        decided = torch.rand(len(guides)) < 0.05
        guides.decide(decided.nonzero()[:, 0], torch.ones(int(decided.sum()), dtype=torch.bool), ~decided[decided])
        segments = guides.undecided(segments)
        owner, guide = guides.of(segments)
        held = ((guides.points[:, None] >= boxes.low) & (guides.points[:, None] <= boxes.high)).all(2)
        held &= (guides.status == UNDECIDED)[:, None]
        assert sorted(map(list, zip(guide.tolist(), owner.tolist(), strict=True))) == sorted(held.nonzero().tolist())
        weights = (held * guides.weight[:, None]).sum(0)
        assert guides.sum_weights(segments).tolist() == pytest.approx(weights.tolist())


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("step", [1, 3, 8, 10_000])
def test_what_is_proved_of_guides_is_the_truth(monkeypatch, name, step):
    """Rows of every kind, a proof that is stopped anywhere: no guide is proved to be what it is not."""
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 4)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 16)
    outputs, decision = DECISIONS[name]
    domain = domain_of(*RULES)
    network = network_of(domain, outputs)
    problem = build_problem(network, domain, decision=decision)
    rows = every_row(domain)
    flips = evaluate(network.double(), domain, rows, decision).discriminates
    source, left = GuideSource(locate_rows(problem, rows)), step

    def stop(_: ProofProgress) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    proof = prove(problem, seconds=60, guides=source, progress=stop)
    assert tiles(problem, proof)
    status = Evidence(problem, proof.state).find_status(locate_rows(problem, rows))
    assert not (flips & (status == FAIR)).any()
    assert not (~flips & (status == DEPENDS)).any()
    guides = Guides(proof.state.guides)
    assert sum(guides.count_rows(each) for each in (UNDECIDED, FAIR, DEPENDS)) == len(rows)
    if step == 10_000:
        people, fair, discriminatory = truth(network, domain, decision)
        assert figures(proof) == (people, fair, discriminatory)
        assert (guides.count_rows(FAIR), guides.count_rows(DEPENDS)) == (fair, discriminatory)
        assert (status == FAIR).sum() == fair


def test_boxes_with_guides_come_first(monkeypatch):
    """Two guides in a corner: what is proved is there, and not where most volume is."""
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 1)
    monkeypatch.setattr(proving, "BOXES_OF_FIRST_STEP", 1)
    domain = domain_of()
    problem = build_problem(network_of(domain, 2), domain)
    corner = torch.tensor([[9, 0, 0, 9, 1], [9, 1, 0, 9, 1]])
    seen, source = list[float](), GuideSource(locate_rows(problem, corner))
    prove(problem, seconds=60, guides=source, progress=lambda now: seen.append(now.rows))
    first = seen.index(1.0)
    others = list[int]()
    prove(problem, seconds=60, progress=lambda now: others.append(now.boxes))
    assert first < len(others) / 4
    assert seen[-1] == 1.0


@pytest.mark.parametrize("name", DECISIONS)
def test_by_volume_guides_change_nothing(monkeypatch, name):
    """The order by volume claims the same, box by box, whoever rides along."""
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 4)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 16)
    outputs, decision = DECISIONS[name]
    domain = domain_of(*RULES)
    problem = build_problem(network_of(domain, outputs), domain, decision=decision)
    rows = locate_rows(problem, every_row(domain)[::7])
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
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 2)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 8)
    monkeypatch.setitem(proving.DRAWN_GUIDES, "cpu", 40)
    monkeypatch.setattr(proving, "MAX_DRAWING_TIME", 1e9)
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = build_problem(network, domain)
    rows, drawn = every_row(domain), list[int]()

    def draw(count: int, seed: int) -> torch.Tensor:
        drawn.append(seed)
        return locate_rows(
            problem, rows[torch.randint(len(rows), (count,), generator=torch.Generator().manual_seed(seed))]
        )

    kept = list[ProofState]()
    monkeypatch.setattr(proving, "MIN_SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(proving, "MIN_KEEPING_INTERVALS", 0)
    proof = prove(problem, seconds=60, guides=GuideSource(locate_rows(problem, rows[:50]), draw), keep=kept.append)
    assert figures(proof) == truth(network, domain, problem.decision)
    assert len(drawn) > 3
    assert len(set(drawn)) == len(drawn)
    for state in kept:
        leaf = CutTree(state.cuts).find_leaves(state.guides["places"])
        node = torch.cat([state.finished["node"], state.undecided["node"]])
        low, high = (torch.cat([state.finished[end], state.undecided[end]]) for end in ("low", "high"))
        boxes = Boxes(low, high)
        assert node[held_by(boxes, state.guides["places"])].tolist() == leaf.tolist()
        assert int(state.guides["rows"].sum()) == 50


def test_pieces_decide_the_guides_of_their_boxes(monkeypatch):
    """A state that is dealt and put together again has every guide once, with what the pieces have proved of it."""
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 4)
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 8)
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = build_problem(network, domain)
    rows, left = every_row(domain), 4

    def stop(_: ProofProgress) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    begun = prove(problem, seconds=60, guides=GuideSource(locate_rows(problem, rows)), progress=stop).state
    assert begun.undecided_count > 3
    parts = [prove(problem, seconds=60, state=begun.deal_piece(piece, 3)).state for piece in range(3)]
    held = [int(begun.deal_piece(piece, 3).guides["rows"].sum()) for piece in range(3)]
    assert all(held)
    joined = begun.merge_pieces(parts, 1.0)
    proof = proving.build_proof(problem, joined, interrupted=False)
    assert figures(proof) == truth(network, domain, problem.decision)
    guides = Guides(joined.guides)
    assert (guides.count_rows(FAIR), guides.count_rows(DEPENDS)) == figures(proof)[1:]


def _problem(space, inside=((True, True),), **others):
    """People of a space of which `inside` says who belongs to the region, by pattern."""
    inside = torch.tensor(inside)
    whole = space.full_box()
    people = worlds.records_in(whole, torch.ones_like(inside), inside)
    count = people.count(space, whole, people.pattern)[0]
    return SimpleNamespace(space=space, valid_records=people, count=count, device=space.device, **others)


def _two(space):
    """Everything, cut in the middle of the first axis."""
    axis = torch.tensor([0])
    whole = space.full_box()
    return space.split(whole, axis, space.find_middle(whole, axis)), torch.tensor([0, 0])


def _numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_shares_are_rounded_down():
    problem = _problem(worlds.space_of(10, [1, 2]))  # 5 · 3 · 2 = 30 people in each half
    boxes, pattern = _two(problem.space)
    leaves = build_certified_boxes(
        problem, [make_undecided_columns(boxes, pattern, _numbers(0.5, 0.1), _numbers(0.49, 1 / 30))]
    )
    assert leaves.low.tolist() == [[0, 0], [5, 0]]
    assert leaves.high.tolist() == [[4, 1], [9, 1]]
    assert leaves.fair == [15, 2]  # 0.1 is cut to 30 bits, so that it is a little less than 3
    assert leaves.discriminatory == [14, 0]


@pytest.mark.parametrize("size", [7, 10**6, 2**31 - 1, 10**9])
def test_no_more_is_claimed_than_the_share_and_little_less(size):
    """By fractions, on both sides of what int64 holds."""
    problem = _problem(worlds.space_of([size, size], [size], 4))
    boxes, pattern = _two(problem.space)
    share = _numbers(0.123456789, 1 - 1e-10)
    leaves = build_certified_boxes(problem, [make_undecided_columns(boxes, pattern, share, 1 - share)])
    whole = size * size * 4 * 2
    parts = [*share.tolist(), *(1 - share).tolist()]
    for claimed, part in zip([*leaves.fair, *leaves.discriminatory], parts, strict=True):
        exact = Fraction(part) * whole
        assert exact - Fraction(whole, 2**SHARE_BITS) - 1 < claimed <= exact
        assert isinstance(claimed, int)
    assert all(a + b <= whole for a, b in zip(leaves.fair, leaves.discriminatory, strict=True))


@pytest.mark.parametrize("size", [5, 10**10])
def test_what_is_decided_as_a_whole_is_exact(size):
    problem = _problem(worlds.space_of([size, size], [size]), inside=((True, False, True),))
    boxes, pattern = _two(problem.space)
    leaves = build_certified_boxes(problem, [make_certified_columns(boxes, pattern, torch.tensor([True, False]))])
    assert leaves.fair == [2 * size**2, 0]
    assert leaves.discriminatory == [0, 2 * size**2]


@pytest.mark.parametrize("size", [3, 10**10])
def test_counts_are_exact_and_multiply_by_axes_of_one_place(size):
    problem = _problem(worlds.space_of([1, 3], [size], [size]), inside=((True, True, False),))
    boxes, pattern = problem.space.full_box(), torch.tensor([0])
    columns = make_enumerated_columns(problem, boxes, pattern, (torch.tensor([3]), torch.tensor([1])))
    assert columns["fair"].tolist() == [0.75]
    assert columns["flips"].tolist() == [0.25]
    leaves = build_certified_boxes(problem, [columns])
    assert leaves.fair == [3 * size**2 * 2]
    assert leaves.discriminatory == [size**2 * 2]
    assert sum_proved(problem, columns).tolist() == pytest.approx([0.75 * 2 / 3, 0.25 * 2 / 3])


def test_several_lists_of_boxes_become_one():
    problem = _problem(worlds.space_of(4))
    boxes, pattern = _two(problem.space)
    parts = [
        make_certified_columns(boxes[:1], pattern[:1], torch.tensor([True])),
        make_undecided_columns(boxes[1:], pattern[1:], _numbers(0.0), _numbers(0.5)),
    ]
    leaves = build_certified_boxes(problem, parts)
    assert (leaves.fair, leaves.discriminatory, len(leaves)) == ([4, 0], [0, 2], 2)


def _margins(space, generator_seed=0):
    """Margins that are any function of the place, and its table."""
    shape = [len(axis) for axis in space.axes]
    table = torch.randn(*shape, 3, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(generator_seed))
    return lambda places: table[tuple(places.T)]


@pytest.mark.parametrize("rows", [1, 30, 1 << 18])
def test_everybody_is_asked_and_counted_by_codes(monkeypatch, rows):
    monkeypatch.setattr(problems, "MEMBERS_PER_PASS", rows)  # in groups of any size
    space = worlds.space_of([1, 4, 2], 5, [3, 1], [6])
    question = build_margins(Decision(), 2, "none")
    margins = _margins(space)
    slack = torch.tensor([0.2], dtype=torch.float64)
    problem = _problem(space, ((True,) * 3, (True,) * 3), margins=question, compute_margins=margins, slack=slack)
    problem.valid_records.valid[1, 0] = False
    boxes = worlds.random_boxes(space, 25)
    pattern = torch.arange(25) % 2
    fair, flips = enumerate_records(problem, boxes, pattern)
    for n in range(25):
        places = worlds.places_of(boxes, n)
        valid = problem.valid_records.valid[pattern[n]].expand(len(places), -1)
        alike, split = question.decide(margins(places), slack, valid)
        weight = worlds.weights_of(space, places)
        once = boxes.low[n] == boxes.high[n]
        one = torch.stack([axis.count[boxes.low[n, i]] for i, axis in enumerate(space.axes)])[once].prod()
        assert (fair[n] * one, flips[n] * one) == (weight[alike].sum(), weight[split].sum())
        assert count_points(boxes)[n] == len(places)
    assert (fair > 0).any()
    assert (flips > 0).any()
    assert (fair + flips < space.count_codes(boxes).prod(1)).any()  # those within the slack are neither


def test_nobody_is_asked_of_no_box():
    problem = _problem(worlds.space_of(3))
    none = space = problem.space.full_box()[:0]
    assert [len(part) for part in enumerate_records(problem, none, torch.zeros(0, dtype=torch.int64))] == [0, 0]
    assert len(space) == 0


def test_boxes_of_more_codes_than_int64_counts_are_not_asked():
    """A few places may stand for very many codes: 2^4 combinations here for 2^68."""
    space = worlds.space_of(*[[2**16, 2**16]] * 4)
    whole = space.full_box()
    assert count_points(whole).tolist() == [16]
    part = Boxes(whole.low, torch.tensor([[1, 1, 1, 0]]))
    assert can_enumerate(space, Boxes.concatenate([whole, part]), 512).tolist() == [False, True]
    assert can_enumerate(space, Boxes.concatenate([whole, part]), 7).tolist() == [False, False]


def test_boxes_of_more_people_than_64_bits_count_are_cut_instead() -> None:
    places, many = torch.arange(2), torch.tensor([1 << 40, 1 << 40])
    space = Space(tuple(Axis(column, places, places, many, False) for column in range(2)))
    boxes = Boxes(torch.zeros(3, 2, dtype=torch.int64), torch.tensor([[1, 1], [1, 0], [0, 0]]))
    assert can_enumerate(space, boxes, max_combinations=4).tolist() == [False, True, True]
    assert can_enumerate(space, boxes, max_combinations=1).tolist() == [False, False, True]
