"""What a proof is reported about: the rows of a data set, and fresh records."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import neuronfair as nf
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.proof import records as module
from neuronfair.proof.evidence import Evidence
from neuronfair.proof.problem import problem_of
from neuronfair.proof.prove import prove
from neuronfair.proof.records import ProofRecords
from neuronfair.searches.evaluate import evaluate
from tests.proof.enumerable import RULES, domain_of, network_of
from tests.proof.test_guides import every_row


class Uniform:
    """A population of all valid records alike."""

    draws_per_row = 1

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def sample(self, n: int, generator: torch.Generator) -> torch.Tensor:
        return self.rows[torch.randint(len(self.rows), (n,), generator=generator)]


def proved(rows: torch.Tensor, where: str = "", seconds: float = 60.0):
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = problem_of(network, domain, where=where)
    data = Dataset("small", domain, rows, torch.full((len(rows),), -1))
    records = ProofRecords.of(problem, data, Uniform(every_row(domain)))
    proof = prove(problem, seconds=seconds, guides=records.guides)
    flips = evaluate(network.double(), domain, every_row(domain), problem.decision).discriminates
    return records, Evidence(problem, proof.state), flips


def test_counts_of_a_data_set_are_those_of_enumeration():
    """Every second record, some of them twice."""
    rows = every_row(domain_of(*RULES))
    chosen = torch.cat([torch.arange(0, len(rows), 2), torch.arange(0, 400, 4)])
    records, evidence, flips = proved(rows[chosen])
    found, expected = records.data_set(evidence), int(flips[chosen].sum())
    assert found.of == len(chosen)
    assert found.certified_discriminatory.count == expected > 10
    assert found.certified_fair.count == len(chosen) - expected
    assert found.undecided.count == 0
    assert found.certified_fair.share == pytest.approx(1 - expected / len(chosen))


def test_rows_outside_the_region_do_not_count():
    rows = every_row(domain_of(*RULES))
    records, evidence, flips = proved(rows, where="a0 >= 5 and s == 1")
    inside = (rows[:, 0] >= 5) & (rows[:, 1] == 1)
    found = records.data_set(evidence)
    assert (found.of, found.certified_discriminatory.count) == (int(inside.sum()), int(flips[inside].sum()))
    fresh = records.fresh(evidence)
    assert (
        fresh.certified_discriminatory.low < float(flips[inside].double().mean()) < fresh.certified_discriminatory.high
    )


def test_rows_that_no_record_of_the_domain_is_are_undecided():
    """A row that breaks a rule, and one with a code that the domain does not have: nothing is proved of either."""
    rows = every_row(domain_of(*RULES))[:50]
    broken, strange = torch.tensor([[0, 0, 3, 0, 0]]), torch.tensor([[0, 9, 0, 0, 0]])
    records, evidence, _ = proved(torch.cat([rows, broken, strange]))
    assert records.data_set(evidence).of == 52
    assert records.data_set(evidence).undecided.count == records.data_set(evidence).outside_domain == 2


def test_fresh_intervals_cover_the_planted_share(monkeypatch):
    """95 of 100 intervals hold the share of a complete proof; of many seeds hardly one in ten misses it."""
    monkeypatch.setattr(module, "FRESH", 400)
    records, evidence, flips = proved(every_row(domain_of(*RULES))[:30])
    true, held = float(flips.double().mean()), 0
    for seed in range(60):
        monkeypatch.setattr(module, "FRESH_SEED", 1 << 40 | seed << 20)
        share = records.fresh(evidence).certified_discriminatory
        held += share.low <= true <= share.high
    assert held >= 54


def test_fresh_records_of_an_unfinished_proof_are_rightly_decided(monkeypatch):
    records, evidence, flips = proved(every_row(domain_of(*RULES))[:30], seconds=0.02)
    fresh = records.fresh(evidence)
    assert fresh.certified_discriminatory.low <= float(flips.double().mean())
    assert fresh.certified_fair.low <= 1 - float(flips.double().mean())
    total = sum(part.share for part in (fresh.certified_fair, fresh.certified_discriminatory, fresh.undecided))
    assert total == pytest.approx(1)


def test_rows_between_the_values_of_the_domain_are_not_certified():
    """Cells that no value of the domain is: the model is proved about the grid only."""
    people = pd.DataFrame({"pay": [10.0, 20.0, 20.5, 30.0] * 9, "sex": ["f", "m", "m", "f"] * 9})
    domain = nf.parse_domain(
        'name = "d"\nsensitive = ["sex"]\n[attributes]\npay = { kind = "continuous", low = 10, high = 30, step = 10 }\n'
        'sex = { kind = "nominal", values = ["f", "m"] }'
    )
    report = nf.certify(lambda table: table.pay > 15, nf.read_table(people, domain), seconds=5)
    assert report.data_set.of == 36
    assert report.data_set.outside_domain == 9
    assert (report.data_set.certified_fair.count, report.data_set.undecided.count) == (27, 9)
    assert report.to_json() == type(report).from_json(report.to_json()).to_json()
    assert type(report).from_json(report.to_json()) == report
