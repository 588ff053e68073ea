"""Proofs about models of which everybody is asked: no box may claim more than the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.truth.certified_boxes import truth_of
from benchmarks.truth.claims import held
from benchmarks.truth.everybody import everybody
from benchmarks.truth.planted import KINDS, planted
from neuronfair.domain.rules import Rule
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel
from neuronfair.model.weights import fingerprint
from neuronfair.proof.bounds import margins
from neuronfair.proof.certificate import AxisCodes, Certificate, CertificateError, CertifiedBoxes, fingerprint_model
from neuronfair.proof.checker.check import check
from neuronfair.proof.problem import build_problem, locate_rows
from neuronfair.proof.prove import prove
from neuronfair.proof.records import Evidence
from neuronfair.proof.state import DEPENDS, FAIR
from neuronfair.searches.evaluate import evaluate
from tests.planted import networks
from tests.proof.made import written


@pytest.fixture(scope="module")
def biased():
    """The sum of four digits decides: below 18.5, or 20.5 with the sensitive bit."""
    domain = networks.domain()
    network = Network(networks.one_biased_neuron().eval(), domain)
    return network, everybody(network.double(), domain, Decision())


def test_everybody_is_counted(biased):
    _, truth = biased
    sums = [sum(map(int, f"{number:04}")) for number in range(10_000)]
    assert truth.people == 20_000
    assert truth.families == sum(18.5 < total < 20.5 for total in sums)
    assert truth.discriminatory == 2 * truth.families
    first = {0: torch.arange(10) == 9}  # those whose first digit is 9
    assert truth.total(truth.flips, first) == sum(18.5 < t < 20.5 for n, t in enumerate(sums) if n >= 9_000)


def test_rules_leave_people_out_and_without_twins():
    rule = Rule("nobody with a9 and the bit", {"a0": (9.0,)}, {"s": (0.0,)})
    domain = replace(networks.domain(), rules=(rule,))
    truth = everybody(Network(networks.one_biased_neuron().eval(), domain).double(), domain, Decision())
    assert truth.people == domain.count == 19_000
    assert not truth.flips[9_000:].any()
    assert truth.members[9_000:].eq(1).all()


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_the_truth_is_what_the_judge_says(seed):
    case = planted(seed, people=3_000)
    truth = everybody(case.asked, case.domain, case.decision, doubt=case.doubt)
    rows = networks.uniform_rows(case.domain, 500, seed=seed)
    sure = ~truth.close[truth.place(rows)]
    model = case.model.model if isinstance(case.model, OpenedModel) else case.model
    said = evaluate(model.double(), case.domain, rows, case.decision).discriminates
    assert torch.equal(said[sure], truth.flips[truth.place(rows)][sure])


def test_a_wrong_claim_is_seen(biased):
    network, truth = biased
    problem = build_problem(network, truth.domain)
    proof = prove(problem, seconds=30)
    leaves = proof.certified
    told = truth_of(leaves, problem.space, truth)
    assert told.covered
    assert len(told.wrong(leaves)) == 0
    assert sum(told.fair) == truth.people - truth.discriminatory
    assert sum(told.discriminatory) == truth.discriminatory
    one = int(np.flatnonzero(told.fair)[0])
    more = [count + (number == one) * (int(told.fair[one]) - count + 1) for number, count in enumerate(leaves.fair)]
    assert told.wrong(replace(leaves, fair=more)).tolist() == [one]


def test_boxes_that_overlap_or_leave_out_are_seen(biased):
    network, truth = biased
    space = build_problem(network, truth.domain).space
    whole = np.array([[9, 9, 9, 9]], dtype=np.int32)
    for low, high in (([[0, 0, 0, 1]], whole), ([[0, 0, 0, 0]] * 2, whole.repeat(2, 0))):
        leaves = CertifiedBoxes(np.array(low, dtype=np.int32), high, [0] * len(low), [0] * len(low))
        assert not truth_of(leaves, space, truth).covered


@pytest.mark.parametrize("seed", range(3 * len(KINDS)))
def test_no_box_claims_more_than_the_truth(seed):
    assert held(seed, people=4_000, steps=8).wrong == ()


def test_a_linear_model_can_be_cut_for_long():
    assert held(300064).wrong == ()


def test_a_tie_goes_to_the_class_that_the_decision_says():
    domain = networks.domain(attributes=1, high=3)
    layer = networks.linear([[1.0, -1.0]], [-1.0])  # a0 - s - 1: 0 for (1, 0) and (2, 1)
    network = Network(nn.Sequential(layer).eval(), domain, layers=())
    decision = Decision("threshold", 0.0)
    truth = everybody(network.double(), domain, decision)
    assert truth.flips.tolist() == [False, True, False, False]  # at 1 the bit leads from 0, which is enough, to -1
    problem = build_problem(network, domain, decision=decision)
    leaves = prove(problem, seconds=5).certified
    assert len(truth_of(leaves, problem.space, truth).wrong(leaves)) == 0


def near_boundary(kind: str) -> tuple[Network, Decision]:
    """A network whose scores get so near to each other, or to a threshold, that rounding of the end decides."""
    domain = networks.domain(attributes=1, high=40)
    if kind == "threshold":
        layer = networks.linear([[1.0, -1.0]], [0.0])  # from 18 on, as the score at 18 is the threshold
        network = Network(nn.Sequential(layer, nn.Sigmoid()).double().eval(), domain, layers=())
        return network, Decision("threshold", float(torch.tensor(18.0, dtype=torch.float64).sigmoid()))
    layer = networks.linear([[0.0, 0.0], [1e-17, -2e-16]], [0.0, 0.0])  # both probabilities are 0.5
    return Network(nn.Sequential(layer, nn.Softmax(1)).double().eval(), domain, layers=()), Decision()


@pytest.mark.parametrize("kind", ["threshold", "softmax"])
def test_rounding_of_probabilities_is_no_proof(kind, monkeypatch, tmp_path):
    monkeypatch.setattr("neuronfair.proof.prove.MAX_ENUMERATED", 1)
    network, decision = near_boundary(kind)
    domain = networks.domain(attributes=1, high=40)
    rows = torch.cartesian_prod(torch.arange(41), torch.arange(2))
    flips = evaluate(network.double(), domain, rows, decision).discriminates
    problem = build_problem(network, domain, decision=decision)
    status = Evidence(problem, prove(problem, seconds=5).state).find_status(locate_rows(problem, rows))
    assert not (((status == FAIR) & flips) | ((status == DEPENDS) & ~flips)).any()
    monkeypatch.setattr(margins, "bound_end_error", lambda *_: 0.0)
    careless = build_problem(network, domain, decision=decision)
    proof = prove(careless, seconds=5)
    axes = (AxisCodes.of(careless.space.axes[0], "a0"),)
    known = fingerprint_model(fingerprint(network.module), network.module)
    with pytest.raises(CertificateError, match="could be verified"):
        check(written(tmp_path, Certificate(domain, decision, "", known, axes, proof)), network)
