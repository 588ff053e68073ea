"""The rate of a domain of which a part is proved: people whose truth is known by asking all of them."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import binom

from neuronfair import evaluate
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.measure.rate import Rate
from neuronfair.proof.decide.half_spaces import HalfSpaces
from neuronfair.proof.decide.prove import prove
from neuronfair.proof.decide.strata import Rest, StrataRate, strata_rate
from neuronfair.proof.problem import problem_of
from neuronfair.proof.result import Leaves, Proof
from tests.planted import networks

# An age, a block of cities, and a rule by which nobody of 3 or 4 has the second of three sexes.
RULED = """
name = "ruled"
sensitive = ["sex"]
[attributes]
age = { kind = "ordinal", low = 0, high = 4 }
city = { kind = "nominal", values = ["p", "q", "r"], encode = "onehot" }
sex = { kind = "nominal", values = ["a", "b", "c"], encode = "onehot" }
[[rules]]
if = { age = { min = 3 } }
then = { sex = ["a", "c"] }
"""


def half_proved(subject, below: int) -> Proof:
    """All people of the planted domain whose a0 is below a number are proved; of the others a few."""
    sums = np.array([sum(row) for row in itertools.product(range(10), repeat=4)])
    flips = np.isin(sums, (19, 20))
    first = np.arange(10_000) // 1000 < below
    known = [2 * int((first & ~flips).sum()), 2 * int((first & flips).sum())]
    high = np.array([[below - 1, 9, 9, 9], [9, 9, 9, 9]], dtype=np.int32)
    low = np.array([[0, 0, 0, 0], [below, 0, 0, 0]], dtype=np.int32)
    fair, unfair = [known[0], 300], [known[1], 40]
    return Proof(subject.count, sum(fair), sum(unfair), 2, 0.1, Leaves(low, high, fair, unfair))


@pytest.fixture(scope="module")
def planted():
    """Whose sum is 19 or 20 is decided by `s`: 1,293 of 10,000, each of them twice."""
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    return network, problem_of(network, domain)


def test_an_interval_is_that_of_the_sample_and_what_is_proved():
    sample = Rate(10, 50, "domain")
    made = StrataRate(people=1000, fair=850, discriminatory=25, settled=20, left=100, sample=sample)
    assert made.rate == pytest.approx(0.04)  # 20, and a fifth of 100
    low, high = sample.interval
    assert made.interval == pytest.approx((0.02 + 0.1 * low, 0.02 + 0.1 * high))
    assert made.error == pytest.approx(0.1 * sample.error)
    # What is proved within the boxes that are left is certain: at least 35 and at most 50 people.
    bounded = StrataRate(1000, fair=950, discriminatory=35, settled=20, left=100, sample=sample)
    assert bounded.interval == (0.035, 0.05)
    assert StrataRate(1000, 985, 15, settled=5, left=10, sample=Rate(50, 50, "domain")).interval == (0.015, 0.015)


def test_both_steps_of_a_sample_count():
    """A tenth of 100 people had to be judged, and a fifth of those is discriminatory: 2 of the 100 people left."""
    judged, sample = Rate(30, 300, "domain", looks=2), Rate(6, 30, "domain", looks=2)
    made = StrataRate(people=1000, fair=850, discriminatory=5, settled=5, left=100, sample=sample, judged=judged)
    assert (made.rate, made.part) == (pytest.approx(0.007), 0.1)
    ends = [0.005 + 0.1 * p * r for p, r in zip(judged.interval, sample.interval, strict=True)]
    assert made.interval == pytest.approx(ends)
    nobody = StrataRate(1000, 850, 5, 5, 100, sample=None, judged=Rate(0, 300, "domain", looks=2))
    assert (nobody.rate, nobody.interval[0]) == (0.005, 0.005)
    assert nobody.interval[1] == pytest.approx(0.005 + 0.1 * nobody.judged.interval[1])


def test_only_the_slab_between_the_lines_is_judged(planted):
    """The planted network is linear here, so its lines leave exactly those who are discriminated: sums of 19 and 20."""
    network, subject = planted
    low, high = np.zeros((1, 4), dtype=np.int32), np.full((1, 4), 9, dtype=np.int32)
    proof = Proof(subject.count, 17_000, 0, 1, 0.1, Leaves(low, high, [17_000], [0]))
    made = strata_rate(network, subject, proof, samples=300, seed=4)
    assert (made.judged.sampled, made.sample.sampled) == (6 * 300, made.judged.found)  # 20,000 / 3,000 times as many
    assert made.sample.rate == 1
    assert made.rate == pytest.approx(made.judged.rate)
    assert made.interval[0] < 0.1293 < made.interval[1]
    assert made.interval[1] == 0.15  # 17,000 people are proved to be fair


@pytest.mark.parametrize("outputs", [2, 3])
def test_whom_the_lines_decide_is_decided_alike(outputs):
    """A domain with a block and a rule, cut by age, and a network that is not linear."""
    domain = parse_domain(RULED)
    module = networks.random_module(domain, outputs, seed=2)
    module[0].weight.data[:, -3:] *= 0.1  # or everybody would be discriminated by sex
    network = networks.network(module, domain)
    subject = problem_of(network, domain)
    age = [axis.column for axis in subject.space.axes].index(0)
    low, high = np.zeros((5, 2), dtype=np.int32), np.full((5, 2), 2, dtype=np.int32)
    low[:, age] = high[:, age] = range(5)
    rest = Rest.of(subject, Leaves(low, high, [0] * 5, [0] * 5))
    slabs = HalfSpaces.of(subject, rest.boxes, rest.valid, torch.arange(5))
    boxes, rows = rest.drawn(seed=0)(400)
    decided = slabs.decided(boxes, rows)
    assert 0 < int(decided.sum()) < 400
    assert not bool(evaluate(network, domain, rows[decided]).discriminates.any())
    none = HalfSpaces.of(subject, rest.boxes, rest.valid, torch.arange(2))
    assert not bool(none.decided(boxes, rows)[boxes >= 2].any())
    assert torch.equal(none.decided(boxes, rows)[boxes < 2], decided[boxes < 2])


def test_nothing_is_sampled_where_all_is_proved(planted):
    network, subject = planted
    proof = prove(subject, seconds=600)
    assert (proof.people, proof.complete) == (20_000, True)
    made = strata_rate(network, subject, proof)
    assert (made.sample, made.left, made.interval) == (None, 0, (0.1293, 0.1293))


@pytest.mark.parametrize("below", [2, 7])
def test_only_people_of_boxes_that_are_not_decided_are_judged(planted, below):
    network, subject = planted
    proof = half_proved(subject, below)
    seen = []
    made = strata_rate(network, subject, proof, samples=3000, seed=1, progress=lambda *now: seen.append(now))
    assert (made.left, made.settled) == (2000 * (10 - below), proof.leaves.discriminatory[0])
    rows = Rest.of(subject, proof.leaves).drawn(seed=1)(3000)[1]
    assert int(rows[:, 0].min()) == below
    assert made.sample.found == int(evaluate(network, subject.domain, rows).discriminates.sum())
    assert seen[-1] == (3000, 3000)
    low, high = made.interval
    assert low < 0.1293 < high


@pytest.mark.parametrize("below", [1, 5, 9])
@pytest.mark.parametrize("samples", [5, 50, 400])
def test_the_interval_holds_the_truth_with_its_confidence(planted, below, samples):
    """How many are found is binomial, so the coverage is a sum: no luck is needed, and none helps."""
    proof = half_proved(planted[1], below)
    left = 2000 * (10 - below)
    settled = proof.leaves.discriminatory[0]
    q = (2586 - settled) / left
    held = 0.0
    for found in range(samples + 1):
        made = StrataRate(20_000, proof.fair, proof.discriminatory, settled, left, Rate(found, samples, "domain", 0.9))
        low, high = made.interval
        held += binom.pmf(found, samples, q) * (low <= 0.1293 <= high)
    assert held >= 0.9


def test_people_are_drawn_uniformly_from_what_is_left():
    """Boxes over a block, a number and a rule: everybody in them is drawn about equally often, and nobody else."""
    domain = parse_domain(RULED)
    network = networks.network(networks.random_module(domain), domain)
    subject = problem_of(network, domain)
    assert subject.count == 3 * (3 * 3 + 2 * 2)
    places = {axis.column: number for number, axis in enumerate(subject.space.axes)}
    low, high = np.zeros((3, 2), dtype=np.int32), np.full((3, 2), 2, dtype=np.int32)
    age = places[0]
    low[:, age], high[:, age] = (0, 2, 3), (1, 2, 4)  # the rule cuts between 2 and 3
    leaves = Leaves(low, high, [9, 6, 12], [8, 3, 0])  # of 18, 9 and 12 people: only the first box is left
    rest = Rest.of(subject, leaves)
    assert (rest.people, rest.count, rest.settled) == (18, [18], 3)
    whole = Rest.of(subject, Leaves(low, high, [0, 0, 0], [0, 0, 0]))
    assert whole.count == [18, 9, 12]
    _, rows = whole.drawn(seed=3)(39_000)
    assert bool(domain.valid(rows).all())
    counts = Counter(map(tuple, rows.tolist()))
    assert len(counts) == 39
    assert all(abs(count - 1000) < 5 * 1000**0.5 for count in counts.values())


def test_a_region_has_its_own_people():
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    subject = problem_of(network, domain, where="s == 1 and a0 >= 8")
    leaves = Leaves(np.zeros((1, 4), dtype=np.int32), np.array([[1, 9, 9, 9]], dtype=np.int32), [0], [0])
    _, rows = Rest.of(subject, leaves).drawn(seed=0)(500)
    assert (set(rows[:, 0].tolist()), set(rows[:, 4].tolist())) == ({8, 9}, {1})
    proof = prove(subject, seconds=600)
    flips = sum(sum(row) in (19, 20) for row in itertools.product((8, 9), range(10), range(10), range(10)))
    assert strata_rate(network, subject, proof).interval == (flips / 2000, flips / 2000)


def test_lines_decide_for_twins_outside_the_region_too():
    """Everybody asked about has one sensitive value, but may be decided otherwise with the other one."""
    domain = networks.domain()
    network = networks.network(networks.one_biased_neuron(), domain)
    subject = problem_of(network, domain, where="s == 1")
    leaves = Leaves(np.zeros((1, 4), dtype=np.int32), np.full((1, 4), 9, dtype=np.int32), [6_000], [0])
    rate = strata_rate(network, subject, Proof(10_000, 6_000, 0, 1, 0.1, leaves), samples=2_000)
    assert rate.judged is not None
    low, high = rate.interval
    assert low <= 0.1293 <= high


def test_more_people_than_a_machine_word_holds():
    """100^12 people for each of two values: they are counted as whole numbers of Python."""
    domain = networks.domain(attributes=12, high=99)
    subject = problem_of(networks.network(networks.random_module(domain), domain), domain)
    low = np.zeros((2, 12), dtype=np.int32)
    high = np.full((2, 12), 99, dtype=np.int32)
    high[0, 0], low[1, 0] = 49, 50
    rest = Rest.of(subject, Leaves(low, high, [100**12, 0], [0, 5]))
    assert (rest.people, rest.settled) == (100**12, 0)
    assert int(rest.drawn(seed=0)(100)[1][:, 0].min()) >= 50
