"""The checker: a right certificate passes, a wrong one is refused, and nothing is proved that is not true."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.forest import FittedTrees, Tree, build_forest
from neuronfair.model.network import Network
from neuronfair.proof.certificate import AxisCodes, CertificateError
from neuronfair.proof.checker import check as check_claims
from neuronfair.proof.checker.check import _build_bounds, check, prove_claims
from neuronfair.proof.checker.region import FeatureLayout, build_checked_region, build_margins
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import prove
from tests.proof.made import DOMAIN, RULES, axes_of, certificate_of, domain_of, network_of, with_boxes, written


@pytest.fixture(scope="module")
def ruled():
    """A domain with rules, one of which names the sensitive attribute, a network and all that is true of it."""
    domain = domain_of(DOMAIN + RULES)
    network = network_of(domain, seed=5)
    return network, certificate_of(network, domain)


@pytest.fixture
def by_bounds(monkeypatch):
    """Let nobody be asked but in boxes of one: all else is proved by lines."""
    monkeypatch.setattr(check_claims, "MAX_ENUMERATED_AT_ONCE", 1)
    monkeypatch.setattr(check_claims, "MAX_ENUMERATED", 1)


def stumps(domain, seed=0, link="sigmoid", outputs=1):
    """Random trees of depth 3 over codes."""
    draw = np.random.default_rng(seed)
    trees = []
    for _ in range(12):
        feature = np.array([*draw.integers(0, len(domain.attributes), 7), *[-1] * 8])
        at = np.array([draw.uniform(0, domain.attributes[f].size - 1) if f >= 0 else 0.0 for f in feature])
        left, right = (np.array([2 * i + side if i < 7 else i for i in range(15)]) for side in (1, 2))
        value = np.where(feature[:, None] < 0, draw.normal(size=(15, outputs)), 0.0)
        trees.append(Tree(feature, left, right, value, lambda node, x, at=at: x <= at[node]))
    fitted = FittedTrees(trees, [0.1] * outputs, link)
    return build_forest(fitted, lambda rows: rows.double().numpy(), domain, torch.zeros(4).long())


def test_a_right_certificate_passes(ruled, tmp_path):
    network, certificate = ruled
    told = []
    checked = check(written(tmp_path, certificate), network, progress=lambda done, of: told.append((done, of)))
    proof = certificate.proof
    assert (checked.boxes, checked.record_count) == (12, certificate.domain.count)
    assert (checked.fair, checked.discriminatory) == (proof.fair, proof.discriminatory)
    assert proof.discriminatory > 0
    assert told == [(12, 12)]


@pytest.mark.usefixtures("by_bounds")
def test_a_claim_too_large_for_a_float_is_refused(ruled, tmp_path):
    network, certificate = ruled
    boxes = certificate.proof.certified
    box = int(np.flatnonzero((boxes.high > boxes.low).any(1) & (np.array(boxes.fair) > 0))[0])
    fair = [10**400 if number == box else claim for number, claim in enumerate(boxes.fair)]
    with pytest.raises(CertificateError, match="could be verified"):
        check(written(tmp_path, with_boxes(certificate, fair=fair)), network)


def test_two_values_of_a_block_may_stand_on_a_line(tmp_path):
    domain = domain_of(DOMAIN.replace('["a", "b", "c", "d"]', '["a", "b"]'))
    network = network_of(domain, seed=5)
    problem = build_problem(network, domain)
    axes = tuple(AxisCodes.of(axis, domain.names[axis.column]) for axis in problem.space.axes)
    assert [axis.linear for axis in axes] == [True, True, True]
    made = replace(certificate_of(network, domain), axes=axes, proof=prove(problem, seconds=60))
    assert check(written(tmp_path, made), network).record_count == domain.count == 480


def test_a_certificate_that_claims_less_passes(ruled, tmp_path):
    network, certificate = ruled
    boxes = certificate.proof.certified
    less = with_boxes(certificate, fair=[n // 2 for n in boxes.fair], discriminatory=[0] * len(boxes))
    assert check(written(tmp_path, less), network).discriminatory == 0


def changed(boxes, end, box, axis, by):
    places = getattr(boxes, end).copy()
    places[box, axis] += by
    return {end: places}


def find(boxes, end, axis, by, sizes):
    """Return a box one end of which can be moved."""
    for box in range(len(boxes)):
        place = getattr(boxes, end)[box, axis] + by
        if 0 <= place < sizes[axis] and (
            place <= boxes.high[box, axis] if end == "low" else place >= boxes.low[box, axis]
        ):
            return box
    raise AssertionError


SIZES = (10, 4, 12)
LESS = (DOMAIN + RULES).replace("high = 29", "high = 24").replace("low = 0, high = 11", "low = 7, high = 11")


@pytest.mark.parametrize(("end", "axis", "by"), [("high", 0, 1), ("low", 1, -1), ("high", 2, -1), ("low", 0, 1)])
def test_a_box_that_was_changed_is_refused(ruled, tmp_path, end, axis, by):
    network, certificate = ruled
    boxes = certificate.proof.certified
    box = find(boxes, end, axis, by, SIZES)
    with pytest.raises(CertificateError, match="exactly once"):
        check(written(tmp_path, with_boxes(certificate, **changed(boxes, end, box, axis, by))), network)


def test_boxes_whose_sizes_add_up_but_that_overlap_are_refused(tmp_path):
    domain = domain_of()
    network = network_of(domain)
    certificate = certificate_of(network, domain, pieces=1)
    quarters = [(0, 4), (5, 9)], [(0, 5), (6, 11)]
    boxes = [(a, b) for a in quarters[0] for b in quarters[1]]
    low = np.array([[a[0], 0, b[0]] for a, b in boxes], np.int32)
    high = np.array([[a[1], 3, b[1]] for a, b in boxes], np.int32)
    nothing = {"fair": [0] * 4, "discriminatory": [0] * 4}
    check(written(tmp_path, with_boxes(certificate, low=low, high=high, **nothing)), network)
    low[3, 2], high[0, 2] = 7, 6  # one grows by what another, which does not touch it, loses
    assert (high - low + 1).prod(1).sum() == np.prod(SIZES)
    with pytest.raises(CertificateError, match="exactly once"):
        check(written(tmp_path, with_boxes(certificate, low=low, high=high, **nothing)), network)


def test_a_missing_and_a_doubled_box_are_refused(ruled, tmp_path):
    network, certificate = ruled
    boxes = certificate.proof.certified
    for rows in ([*range(11)], [*range(12), 3]):
        other = with_boxes(
            certificate,
            low=boxes.low[rows],
            high=boxes.high[rows],
            fair=[boxes.fair[i] for i in rows],
            discriminatory=[boxes.discriminatory[i] for i in rows],
        )
        with pytest.raises(CertificateError, match="exactly once"):
            check(written(tmp_path, other), network)


@pytest.mark.parametrize("name", ["fair", "discriminatory"])
def test_a_claim_beyond_the_truth_is_refused_with_its_box_in_words(ruled, tmp_path, name):
    network, certificate = ruled
    claims = list(getattr(certificate.proof.certified, name))
    box = next(i for i, n in enumerate(certificate.proof.certified.discriminatory) if n)
    claims[box] += 1
    with pytest.raises(
        CertificateError, match=rf"box {box + 1} claims .* could be verified. It holds: (age|job|hours) "
    ):
        check(written(tmp_path, with_boxes(certificate, **{name: claims})), network)


@pytest.mark.parametrize("name", ["record_count", "fair", "discriminatory"])
def test_other_totals_are_refused(ruled, tmp_path, name):
    network, certificate = ruled
    proof = replace(certificate.proof, **{name: getattr(certificate.proof, name) - 1})
    with pytest.raises(CertificateError, match="in all; its boxes have"):
        check(written(tmp_path, replace(certificate, proof=proof)), network)


def test_another_model_domain_or_decision_is_refused(ruled, tmp_path):
    network, certificate = ruled
    path = written(tmp_path, certificate)
    with pytest.raises(CertificateError, match="other weights"):
        check(path, network_of(certificate.domain, seed=6))
    with pytest.raises(CertificateError, match="another domain, other rules"):
        check(path, network, domain=domain_of(DOMAIN))
    with pytest.raises(CertificateError, match=r"another decision: argmax, not threshold 0\.5"):
        check(path, network, decision=Decision("threshold", 0.5))
    with pytest.raises(CertificateError, match="neither"):
        check(path, BlackBox(lambda rows: rows[:, 0].numpy(), certificate.domain))
    wider = domain_of(DOMAIN.replace("high = 29", "high = 30"))
    with pytest.raises(CertificateError, match="does not read rows"):
        check(path, network_of(wider))
    with pytest.raises(CertificateError, match="does not read rows"):
        check(path, stumps(wider))
    # The file's own rules are those that are counted: without them there are more people.
    with pytest.raises(CertificateError, match=r"could be verified|in all"):
        check(written(tmp_path, replace(certificate, domain=domain_of(DOMAIN))), network)
    with pytest.raises(CertificateError, match="could be verified"):
        check(written(tmp_path, replace(certificate, decision=Decision("threshold", 0.0))), network)


def axes(**other):
    """The usual axes, some in another way: runs of codes for each place."""
    usual = {axis.column: axis for axis in axes_of(domain_of())}
    for name, runs in other.items():
        usual[name] = AxisCodes(name, False, tuple(tuple(map(tuple, place)) for place in runs))
    return tuple(usual.values())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (axes(job=[[(0, 1)], [(2, 3)]]), "'job' holds values that a rule tells apart"),
        (axes(hours=[[(0, 8)], [(9, 11)]]), "'hours' holds values that a rule tells apart"),
        (axes(age=[[(0, 2)], [(3, 9)]]), "'age' holds values that the network tells apart"),
        (axes(job=[[(0, 0)], [(1, 1)], [(2, 2)]]), "'job' do not hold just the values"),
        (axes()[:2], "its axes are age, job"),
        ((*axes()[:1], AxisCodes("job", True, (((0, 3),),)), *axes()[2:]), "does not read 'job' as a number"),
    ],
)
def test_axes_that_are_not_what_they_seem_are_refused(ruled, tmp_path, wrong, why):
    network, certificate = ruled
    box = np.zeros((1, len(wrong)), np.int32)
    whole = with_boxes(
        replace(certificate, axes=wrong),
        low=box,
        high=box + [len(axis) - 1 for axis in wrong],
        fair=[0],
        discriminatory=[0],
    )
    with pytest.raises(CertificateError, match=why):
        check(written(tmp_path, whole), network)


def test_values_that_nobody_tells_apart_may_share_a_place(tmp_path, by_bounds):
    domain = domain_of()
    network = network_of(domain)
    with torch.no_grad():
        network.module[0].weight[:, 3:7] = network.module[0].weight[:, 3:4]  # all jobs but d are the same to it
        network.module[0].weight[:, 6] += 1
    shared = axes(job=[[(0, 2)], [(3, 3)]])
    certificate = certificate_of(network, domain, axes=shared, pieces=4)
    assert check(written(tmp_path, certificate), network).record_count == 960


def test_a_region_counts_its_people_and_their_twins_outside_it(tmp_path):
    domain = domain_of(DOMAIN + RULES)
    network = network_of(domain, seed=5)
    from tests.proof.made import cut_up, truth

    region = tuple(replace(axis, runs=(((2, 5),),)) if axis.column == "age" else axis for axis in axes_of(domain))
    alike, flips = truth(network, domain, Decision(), region, {"age": {2, 3, 4, 5}, "sex": {1}})
    low, high = cut_up([4, 4, 12], 6)
    boxes = [tuple(slice(a, b + 1) for a, b in zip(*ends, strict=True)) for ends in zip(low, high, strict=True)]
    told = replace(certificate_of(network, domain), axes=region, where="age in [22 to 25] and sex == M")
    claims = {"fair": [int(alike[b].sum()) for b in boxes], "discriminatory": [int(flips[b].sum()) for b in boxes]}
    told = with_boxes(told, low=low, high=high, **claims)
    told = replace(told, proof=replace(told.proof, record_count=int(alike.sum() + flips.sum())))
    assert check(written(tmp_path, told), network).record_count == told.proof.record_count
    with pytest.raises(CertificateError, match="'age' do not hold just the values"):
        check(written(tmp_path, replace(told, where="age in [21 to 25] and sex == M")), network)
    with pytest.raises(CertificateError, match=r"could be verified|in all"):
        check(written(tmp_path, replace(told, where="age in [22 to 25]")), network)


CURVES = [nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus]
DECISIONS = [(2, Decision()), (3, Decision()), (1, Decision("threshold", 0.3)), (1, Decision("tolerance", 0.8))]


@pytest.mark.parametrize(
    ("curve", "outputs", "decision"),
    [
        (curve, *DECISIONS[i])
        for number, curve in enumerate(CURVES)
        for i in (number % 4, (number + 1 + number // 4) % 4)
    ],
    ids=lambda it: getattr(it, "__name__", None) or getattr(it, "kind", it),
)
def test_bounds_prove_the_truth_and_no_more(curve, outputs, decision, by_bounds):
    domain = domain_of(LESS)
    network = network_of(domain, curve(), outputs, seed=11)
    exactly_proved(network, network, certificate_of(network, domain, decision, pieces=5))


@pytest.mark.parametrize("end", [nn.Sigmoid, nn.Softmax])
@pytest.mark.parametrize(
    "decision", [Decision("threshold", 0.4), Decision("tolerance", 0.2), Decision("threshold", 1.5)]
)
def test_ends_are_seen_through(end, decision, by_bounds):
    domain = domain_of()
    inner = network_of(domain, outputs=1 if end is nn.Sigmoid else 2).module
    inner.append(end() if end is nn.Sigmoid else end(1))
    network = Network(inner, domain)
    exactly_proved(network, network, certificate_of(network, domain, decision, pieces=5))


def test_a_linear_model_and_one_that_bends_down_are_proved(by_bounds):
    domain = domain_of(LESS)
    network = network_of(domain, seed=2)
    one = Network(network.module[:1].append(nn.Linear(8, 2)), domain, layers=())
    exactly_proved(one, one, certificate_of(one, domain, pieces=5))
    for slope in (1.7, -0.4):
        network.module[1], network.module[3] = nn.LeakyReLU(slope), nn.LeakyReLU(slope)
        other = Network(network.module, domain)
        exactly_proved(other, other, certificate_of(other, domain, pieces=3))


def test_scores_that_depend_on_each_other_are_refused(tmp_path):
    domain = domain_of()
    network = Network(network_of(domain, outputs=3).module.append(nn.Softmax(1)), domain)
    certificate = certificate_of(network, domain, Decision("threshold", 0.4), pieces=2)
    with pytest.raises(CertificateError, match="one of several probabilities"):
        check(written(tmp_path, certificate), network)


@pytest.mark.parametrize(("outputs", "link"), [(1, "sigmoid"), (3, "softmax"), (1, "none")])
def test_trees_are_proved_by_their_leaves(outputs, link, by_bounds):
    domain = domain_of(LESS)
    trees = stumps(domain, link=link, outputs=outputs)
    decision = {"sigmoid": Decision("threshold", 0.6), "softmax": Decision(), "none": Decision("tolerance", 0.7)}[link]
    model = BlackBox(lambda rows: trees.scores(rows).numpy(), domain)
    certificate = certificate_of(model, domain, decision, axes_of(domain, linear=False), 5, numbers=trees)
    exactly_proved(model, trees, certificate)


def exactly_proved(model, numbers, certificate):
    """By cutting down to single people all is proved that is true, and a wish for more is not granted."""
    bounds = _build_bounds(certificate, numbers, build_checked_region(certificate))
    boxes = certificate.proof.certified
    assert certificate.proof.fair
    ends = boxes.low.astype(np.int64), boxes.high.astype(np.int64)
    assert prove_claims(bounds, *ends, boxes.fair, boxes.discriminatory).refused is None
    more = [[n + 1 for n in claim] for claim in (boxes.fair, boxes.discriminatory)]
    found = prove_claims(bounds, *ends, *more)
    assert found.refused is not None  # the first that is found out
    assert (found.fair <= boxes.fair).all()
    assert (found.discriminatory <= boxes.discriminatory).all()


def test_trees_whose_places_are_not_their_cells_are_refused(tmp_path):
    domain = domain_of()
    trees = stumps(domain)
    model = BlackBox(lambda rows: trees.scores(rows).numpy(), domain)
    decision = Decision("threshold", 0.6)
    for wrong, why in (
        (axes_of(domain), "do not read 'age' as a number"),
        (axes(age=[[(0, 9)]], hours=[[(i, i)] for i in range(12)]), "'age' holds values that a tree tells apart"),
    ):
        certificate = certificate_of(model, domain, decision, wrong, 1, numbers=trees)
        with pytest.raises(CertificateError, match=why):
            check(written(tmp_path, certificate), trees)


def test_shares_above_a_line_are_counted_from_below():
    domain = domain_of()
    region = build_checked_region(certificate_of(network_of(domain), domain, pieces=1))
    layout = FeatureLayout(region)
    draw = np.random.default_rng(1)
    n = 200
    low = np.stack([draw.integers(0, size, n) for size in SIZES], 1)
    high = np.stack([draw.integers(low[:, i], size) for i, size in enumerate(SIZES)], 1)
    slopes = draw.normal(size=(n, layout.features)) * 10.0 ** draw.integers(-3, 3, (n, 1))
    at = -layout.mean(low, high, slopes[:, None])[:, 0] * draw.uniform(0.5, 1.5, n)
    share = layout.bound_share(low, high, slopes, at, waves=4096)  # few people: each of them is a step
    exact = np.zeros(n)
    for i in range(n):
        values = at[i] + slopes[i, 0] * np.arange(low[i, 0], high[i, 0] + 1)[:, None, None]
        values = values + slopes[i, 1:5][low[i, 1] : high[i, 1] + 1][:, None]
        values = values + slopes[i, 5] * np.arange(low[i, 2], high[i, 2] + 1)
        exact[i] = (values > 0).mean()
    assert (share <= exact).all()
    assert (exact - share).mean() < 0.02
    assert ((share == 1) == (exact == 1)).all()


@pytest.mark.parametrize(("decision", "outputs"), [(Decision(), 2), (Decision("threshold", 1.0), 1)])
def test_what_rounding_decides_is_refused(decision, outputs):
    with pytest.raises(CertificateError, match="rounding"):
        build_margins(decision, outputs, "sigmoid")
