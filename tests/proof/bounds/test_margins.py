"""What a decision asks of sums, and what lines say about it."""

from __future__ import annotations

import math

import pytest
import torch

from neuronfair.errors import Unprovable
from neuronfair.model.decision import Decision
from neuronfair.proof.bounds.margins import Lines, build_margins, decide_boxes, decide_records
from tests.proof import worlds

ENDS = {"none": lambda z: z, "sigmoid": torch.sigmoid, "softmax": lambda z: z.softmax(-1)}
NO = torch.zeros(9, dtype=torch.float64)
DECISIONS = [
    (Decision(), 2, "none"),
    (Decision(), 2, "softmax"),
    (Decision(), 3, "none"),
    (Decision(), 4, "softmax"),
    (Decision("threshold", 0.3), 1, "none"),
    (Decision("threshold", 0.0), 2, "none"),
    (Decision("threshold", 0.3), 1, "sigmoid"),
    (Decision("threshold", 0.3), 2, "softmax"),
    (Decision("threshold", 0.0), 1, "sigmoid"),
    (Decision("threshold", 1.5), 2, "softmax"),
    (Decision("tolerance", 0.7), 1, "none"),
    (Decision("tolerance", 0.7), 3, "none"),
]


def _families(outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """300 families of 4, near each other, of which one to four exist."""
    generator = torch.Generator().manual_seed(outputs)
    centre = torch.randn(300, 1, outputs, dtype=torch.float64, generator=generator)
    sums = centre + 0.5 * torch.randn(300, 4, outputs, dtype=torch.float64, generator=generator)
    valid = torch.rand(300, 4, generator=generator) < 0.7
    valid[torch.arange(300), torch.randint(4, (300,), generator=generator)] = True
    return sums, valid


def _truth(decision: Decision, end: str, sums: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Which families are split, one pair after the other."""
    scores = ENDS[end](sums)
    split = torch.zeros(len(sums), dtype=torch.bool)
    for v in range(sums.shape[1]):
        for w in range(sums.shape[1]):
            split |= decision.differ(scores[:, v], scores[:, w]) & valid[:, v] & valid[:, w]
    return split


@pytest.mark.parametrize(("decision", "outputs", "end"), DECISIONS)
def test_margins_decide_as_the_decision_does(decision, outputs, end):
    question = build_margins(decision, outputs, end)
    sums, valid = _families(outputs)
    margins = question.compute(sums)
    fair, unfair = question.decide(margins, NO[: margins.shape[-1]], valid)
    split = _truth(decision, end, sums, valid)
    assert torch.equal(unfair, split)
    assert torch.equal(fair, ~split)
    assert not question.squash
    if len(question.classes):
        opposite = question.negate(question.classes)
        assert torch.equal(question.negate(opposite), question.classes)
        assert ((opposite - question.classes).abs() == len(question.matrix)).all()


@pytest.mark.parametrize(("decision", "outputs", "end"), DECISIONS)
def test_what_is_within_the_slack_is_neither(decision, outputs, end):
    question = build_margins(decision, outputs, end)
    sums, valid = _families(outputs)
    margins = question.compute(sums)
    slack = torch.full((margins.shape[-1],), 0.05, dtype=torch.float64)
    fair, unfair = question.decide(margins, slack, valid)
    for seed in range(4):  # whatever the margins really are
        noise = torch.rand(margins.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 0.5
        really = question.decide(margins + 0.0999 * noise, 0 * slack, valid)
        assert not (fair & ~really[0]).any()
        assert not (unfair & ~really[1]).any()
    assert not (fair & unfair).any()


def test_a_limit_before_a_sigmoid_is_its_logit():
    question = build_margins(Decision("threshold", 0.3), 1, "sigmoid")
    assert float(question.offset) == pytest.approx(-math.log(0.3 / 0.7))
    assert build_margins(Decision("threshold", 0.3), 1, "none").offset.tolist() == [-0.3]
    assert build_margins(Decision("threshold", 0.5), 2, "softmax").matrix.tolist() == [[-1.0, 1.0]]
    assert build_margins(Decision("threshold", 0.5), 2, "none").matrix.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize(("limit", "sign"), [(0.0, 1.0), (-2.0, 1.0), (1.5, -1.0)])
def test_a_limit_that_no_probability_reaches_puts_everybody_on_one_side(limit, sign):
    question = build_margins(Decision("threshold", limit), 1, "sigmoid")
    assert question.compute(torch.tensor([[5.0], [-5.0]]).double()).tolist() == [[sign], [sign]]


def test_a_tolerance_of_probabilities_squashes():
    assert build_margins(Decision("tolerance", 0.1), 1, "sigmoid").squash
    softmax = build_margins(Decision("tolerance", 0.1), 2, "softmax")
    assert softmax.squash
    assert softmax.matrix.tolist() == [[-1.0, 1.0]]
    assert len(softmax.classes) == 0


@pytest.mark.parametrize("kind", ["threshold", "tolerance"])
def test_one_of_several_probabilities_is_refused(kind):
    with pytest.raises(Unprovable, match="several probabilities"):
        build_margins(Decision(kind, 0.3), 3, "softmax")


@pytest.mark.parametrize("limit", [1.0, 1 - 2**-53])
def test_a_threshold_that_only_rounding_reaches_is_refused(limit):
    """The sigmoid of 40 is 1 in float64."""
    with pytest.raises(Unprovable, match="rounding decides who reaches it"):
        build_margins(Decision("threshold", limit), 1, "sigmoid")
    assert build_margins(Decision("threshold", limit), 1, "none").offset.tolist() == [-limit]


@pytest.mark.parametrize("outputs", [2, 3])
def test_a_choice_among_sigmoids_is_refused(outputs):
    """Those of 40 and 50 are the same in float64, and the first is chosen."""
    with pytest.raises(Unprovable, match="chooses among sigmoids"):
        build_margins(Decision(), outputs, "sigmoid")


# Lines over one axis of places 0 … 3. Values and margins in the order (value, margin).


def _look(question, low, high, valid=None, slope=0.0, shared=False):
    """Look at lines with constants (values, margins) and one slope."""
    space = worlds.space_of(4)
    low, high = (torch.tensor(part, dtype=torch.float64)[None] for part in (low, high))
    shape = (1, 1 if shared else low.shape[1], low.shape[2], 1)
    slopes = torch.full(shape, slope, dtype=torch.float64)
    valid = torch.ones(1, low.shape[1], dtype=torch.bool) if valid is None else torch.tensor([valid])
    return decide_boxes(question, space, space.full_box(), Lines(slopes, low, slopes, high), valid)


def _says(seen):
    return bool(seen.fair), bool(seen.unfair)


TWO = build_margins(Decision(), 2, "none")


@pytest.mark.parametrize("shared", [False, True])
def test_lines_on_one_side_are_fair_and_on_both_are_not(shared):
    assert _says(_look(TWO, [[0.1], [2.0]], [[1.0], [3.0]], shared=shared)) == (True, False)
    assert _says(_look(TWO, [[-2.0], [-1.0]], [[-1.0], [-0.5]], shared=shared)) == (True, False)
    assert _says(_look(TWO, [[0.1], [-2.0]], [[1.0], [-1.0]], shared=shared)) == (False, True)
    open_box = _look(TWO, [[0.1], [-2.0]], [[1.0], [1.0]], shared=shared)
    assert _says(open_box) == (False, False)
    assert open_box.undecided.tolist() == [[[False], [True]]]


def test_values_that_nobody_has_do_not_count():
    assert _says(_look(TWO, [[0.1], [-2.0]], [[1.0], [-1.0]], valid=[True, False])) == (True, False)
    assert _says(_look(TWO, [[0.1], [-2.0], [-3.0]], [[1.0], [9.0], [-1.0]], valid=[True, False, True])) == (
        False,
        True,
    )


def test_the_slope_counts_to_both_ends():
    assert _says(_look(TWO, [[0.1], [0.1]], [[1.0], [1.0]], slope=1.0)) == (True, False)
    assert _says(_look(TWO, [[2.9], [2.9]], [[4.0], [4.0]], slope=-1.0)) == (False, False)
    assert _says(_look(TWO, [[3.1], [3.1]], [[4.0], [4.0]], slope=-1.0)) == (True, False)
    assert _says(_look(TWO, [[-9.0], [-9.0]], [[-3.1], [-3.1]], slope=1.0)) == (True, False)
    assert _says(_look(TWO, [[-9.0], [-9.0]], [[-2.9], [-3.1]], slope=1.0)) == (False, False)


def test_three_classes():
    question = build_margins(Decision(), 3, "none")  # margins 0-1, 0-2, 1-2
    zero, one = [1.0, 1.0, -5.0], [-2.0, -5.0, 1.0]  # class 0 and class 1, by the least values of margins
    high = {0: [2.0, 2.0, 5.0], 1: [-1.0, 5.0, 2.0]}
    assert _says(_look(question, [zero, zero], [high[0], high[0]])) == (True, False)
    assert _says(_look(question, [zero, one], [high[0], high[1]])) == (False, True)
    neither = [-5.0, -5.0, -5.0]  # 0 loses to 1, but what wins is not known: not class 0 is enough
    assert _says(_look(question, [zero, neither], [high[0], [-1.0, 5.0, 5.0]])) == (False, True)
    assert _says(_look(question, [neither, neither], [[-1.0, 5.0, 5.0]] * 2)) == (False, False)


def test_tolerance():
    question = build_margins(Decision("tolerance", 1.0), 1, "none")
    assert _says(_look(question, [[0.0], [0.5]], [[0.4], [0.9]])) == (True, False)  # 0.9 apart at most
    assert _says(_look(question, [[0.0], [0.5]], [[0.4], [1.1]])) == (False, False)  # 0.1 to 1.1 apart
    assert _says(_look(question, [[0.0], [1.5]], [[0.4], [1.9]])) == (False, True)  # 1.1 apart at least
    assert _says(_look(question, [[0.0], [1.5]], [[0.4], [1.9]], valid=[False, True])) == (True, False)
    assert _says(_look(question, [[0.0], [0.5]], [[0.4], [0.9]], slope=9.0)) == (True, False)  # it is the same for both


@pytest.mark.parametrize("outputs", [2, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_half_spaces_hold_what_they_say(outputs, shared):
    """Above common lines everybody is of one class; above the lines of a flip two values differ: person by person."""
    question = build_margins(Decision(), outputs, "none")
    _half_spaces(question, shared)


@pytest.mark.parametrize("shared", [False, True])
def test_half_spaces_of_a_tolerance(shared):
    _half_spaces(build_margins(Decision("tolerance", 1.0), 1, "none"), shared)


def _half_spaces(question, shared):
    space = worlds.space_of([1, 2, 1], 5)
    boxes = worlds.random_boxes(space, 40, seed=2)
    generator = torch.Generator().manual_seed(3)
    k, q = 3, len(question.matrix)
    own = torch.randn(40, 1 if shared else k, q, space.features, dtype=torch.float64, generator=generator)
    slopes = own[:, :1] + 0.2 * own
    at = torch.randn(40, k, q, dtype=torch.float64, generator=generator)
    at = 2 * at[:, :1] + 0.5 * at
    width = 0.2 * torch.rand(40, k, q, dtype=torch.float64, generator=generator)
    valid = torch.rand(40, k, generator=generator) < 0.8
    valid[:, 1] = True
    seen = decide_boxes(question, space, boxes, Lines(slopes, at - width, slopes, at + width), valid)
    alike_seen = flips_seen = 0
    for n in range(40):
        features = worlds.features_of(space, worlds.places_of(boxes, n))
        for sign in (-1, 1):  # the margins may lie anywhere between the lines
            margins = torch.einsum("pf,vqf->pvq", features, slopes[n].expand(k, -1, -1)) + at[n] + sign * width[n]
            fair, unfair = question.decide(margins, NO[:q], valid[n].expand(len(features), -1))
            alike = features @ seen.fair_spaces.slopes[n].T + seen.fair_spaces.offsets[n] > 1e-12
            known = alike[:, question.classes].all(-1).any(-1) if len(question.classes) else alike[:, 0]
            flips = (features @ seen.flip_spaces.slopes[n].T + seen.flip_spaces.offsets[n] > 1e-12).all(-1)
            assert not (known & ~fair).any()
            assert not (flips & ~unfair).any()
            assert not seen.fair[n] or fair.all()
            assert not seen.unfair[n] or unfair.all()
            alike_seen += int(known.sum())
            flips_seen += int(flips.sum())
    assert alike_seen > 20
    assert flips_seen > 20


@pytest.mark.parametrize("decision", [Decision(), Decision("tolerance", 0.4)])
@pytest.mark.parametrize("shared", [True, False])
def test_records_are_decided_by_the_lines_of_all_their_values(decision, shared):
    """By brute force: the lines of each valid value at each place; joint slopes come to the same as single ones."""
    space = worlds.space_of(6, [1, 2, 1])
    generator = torch.Generator().manual_seed(3)
    margins = build_margins(decision, 2 if decision.kind == "argmax" else 1, "none")
    slopes = torch.randn(7, 1 if shared else 5, 1, space.features, generator=generator, dtype=torch.float64) / 9
    at = torch.randn(7, 5, 1, generator=generator, dtype=torch.float64) / 5
    gap = torch.rand(7, 5, 1, generator=generator, dtype=torch.float64) / 16
    lines = Lines(slopes, at, slopes, at + gap)
    valid = torch.rand(7, 5, generator=generator) < 0.7
    valid[:, 0] = True
    box = torch.arange(7).repeat_interleave(9)
    places = torch.stack([torch.randint(0, n, (63,), generator=generator) for n in (6, 3)], 1)
    fair, flips = decide_records(margins, space, lines, box, places, valid)
    features = worlds.features_of(space, places)
    for i, (b, x) in enumerate(zip(box.tolist(), features, strict=True)):
        low = (slopes[b, :, 0] @ x).expand(5)[valid[b]] + at[b, valid[b], 0]
        high = low + gap[b, valid[b], 0]
        if decision.kind == "argmax":
            expected = bool((low > 0).all() or (high < 0).all()), bool((low > 0).any() and (high < 0).any())
        else:
            expected = bool(high.max() - low.min() <= 0.4), bool(low.max() - high.min() > 0.4)
        assert (bool(fair[i]), bool(flips[i])) == expected
    assert fair.any()
    assert flips.any()
