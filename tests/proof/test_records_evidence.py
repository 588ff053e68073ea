"""A proof that the model contradicts is void."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

import neuronfair as nf
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import Contradiction
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.model.operators import read_chain
from neuronfair.proof import problem
from neuronfair.proof import records as contradictions
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import prove
from neuronfair.proof.records import EvaluatedRecords, check_against_model
from tests.proof.made import domain_of as small_domain
from tests.proof.made import network_of
from tests.proof.test_misread import Clamped, Loan, Overridden, domain_of, everybody


def proof_about(module, seconds=20.0):
    domain = domain_of()
    opened = wrap_model(module, domain, everybody(domain)[::7])
    asked = build_problem(opened, domain)
    return asked, prove(asked, seconds=seconds), opened


@pytest.mark.parametrize("kind", [Loan, Clamped, Overridden])
def test_a_right_proof_is_not_contradicted(kind):
    asked, proof, opened = proof_about(kind())
    check_against_model(asked, proof, opened, [EvaluatedRecords("a row", everybody(asked.domain))])


def test_nor_is_one_of_half_spaces_with_rules():
    from tests.proof.made import DOMAIN, RULES

    domain = small_domain(DOMAIN + RULES)
    network = network_of(domain)
    asked = build_problem(network, domain)
    proof = prove(asked, seconds=0.05)
    rows = torch.tensor(list(itertools.product(*(range(a.size) for a in domain.attributes))))
    check_against_model(asked, proof, network, [EvaluatedRecords("a row", rows[domain.valid(rows)])])


def test_a_proof_about_another_model_is_void_and_both_statements_are_named():
    asked, proof, opened = proof_about(Loan())
    other = replace(opened, model=Network(Overridden(), opened.model.encoding, layers=()))
    with pytest.raises(Contradiction) as error:
        check_against_model(asked, proof, other, [EvaluatedRecords("found by frontier", everybody(asked.domain))])
    text = str(error.value)
    assert "nobody's decision flips" in text or "everybody's decision flips" in text
    assert "Proved: where income" in text
    assert "found by frontier" in text
    assert "sex" in text
    assert "void" in text
    assert error.value.status == 3


def test_people_drawn_from_the_boxes_are_enough():
    asked, proof, opened = proof_about(Loan())
    other = replace(opened, model=Network(Overridden(), opened.model.encoding, layers=()))
    with pytest.raises(Contradiction, match="drawn at random"):
        check_against_model(asked, proof, other)


def test_the_source_of_a_rebuilt_model_is_asked_too():
    asked, proof, opened = proof_about(Loan())
    source = Network(Overridden(), opened.model.encoding, layers=())
    with pytest.raises(Contradiction):
        check_against_model(asked, proof, replace(opened, original=source.scores))


def test_rounding_at_the_boundary_is_no_contradiction():
    asked, proof, opened = proof_about(Loan())

    def nearly(rows):
        return opened.model.scores(rows) + 1e-6 * torch.randn(len(rows), 2)

    check_against_model(
        asked, proof, replace(opened, original=nearly), [EvaluatedRecords("a row", everybody(asked.domain))]
    )


def misread(monkeypatch):
    """Let the prover read another network than it is given."""
    honest = read_chain

    def other(network, rows):
        return honest(Network(Loan(), network.encoding), rows)

    monkeypatch.setattr(problem, "read_chain", other)


def loans():
    domain = domain_of()
    rows = everybody(domain)
    labels = torch.zeros(len(rows), dtype=torch.int64)
    return Dataset("loans", domain, rows, labels)


def test_an_audit_whose_findings_contradict_its_proof_ends_in_an_error(monkeypatch, tmp_path):
    misread(monkeypatch)
    monkeypatch.setattr(contradictions, "MAX_EVALUATED", 3_000)
    data = loans()
    settings = nf.AuditSettings.quick(seeds=5, steps=20, prove=5.0)
    with pytest.raises(Contradiction, match="contradict each other"):
        nf.audit(Overridden(), data, settings=settings, folder=tmp_path / "audit")
    assert not (tmp_path / "audit" / "audit.json").exists()


def test_no_proof_that_is_contradicted_is_returned(monkeypatch):
    misread(monkeypatch)
    with pytest.raises(Contradiction, match="contradict each other"):
        nf.certify(Overridden(), loans(), seconds=5)
