"""Regions: what is grown is proved, holds its record, and is written as a rule that means the same."""

from __future__ import annotations

import random

import pytest
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import allowed_codes
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import DomainError
from neuronfair.proof.evidence import Evidence
from neuronfair.proof.problem import places_of, problem_of
from neuronfair.proof.prove import prove
from neuronfair.proof.records import Grower, ProofRecords, rule_of
from neuronfair.searches.evaluate import evaluate
from tests.domain.schema.test_toml import DOMAIN as WORDED
from tests.proof.enumerable import DECISIONS, RULES, domain_of, network_of
from tests.proof.test_guides import every_row
from tests.proof.test_records import Uniform


@pytest.mark.parametrize("name", DECISIONS)
def test_a_region_holds_its_record_and_nobody_of_another_kind(name):
    outputs, decision = DECISIONS[name]
    domain = domain_of(*RULES)
    network = network_of(domain, outputs)
    problem = problem_of(network, domain, decision=decision)
    rows = every_row(domain)
    places = places_of(problem, rows)
    flips = evaluate(network.double(), domain, rows, decision).discriminates
    grower, grown = Grower(problem, places), 0
    for row in range(0, len(rows), 97):
        for fair in (True, False):
            box = grower.grown(places[row], fair=fair)
            if box is None:
                continue
            inside = box.hold(places)[:, 0]
            assert inside[row]
            assert (flips[inside] == (not fair)).all()
            assert fair == (not flips[row])
            assert bool(grower.proved(box, fair=fair))
            grown += int(inside.sum()) > 1
    assert grown > 5


def test_the_report_has_the_region_of_a_row_and_the_largest_ones():
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = problem_of(network, domain)
    rows = every_row(domain)
    data = Dataset(
        "small", domain, torch.cat([rows, torch.tensor([[0, 0, 3, 0, 0]])]), torch.full((len(rows) + 1,), -1)
    )
    records = ProofRecords.of(problem, data, Uniform(rows))
    proof = prove(problem, seconds=60, guides=records.guides)
    flips = evaluate(network.double(), domain, rows, problem.decision).discriminates
    for row in (0, 17, int(flips.nonzero()[0, 0])):
        region = records.region_of(row + 1)
        assert region.depends == bool(flips[row])
        met = torch.stack([ok[rows[:, i]] for i, ok in enumerate(allowed_codes(domain, region.rule))]).all(0)
        assert met[row]
        assert (flips[met] == region.depends).all()
        assert int(region.size.count) == int(met.sum())  # every record of the domain is a row
        assert region.rows.count == int(met.sum())
        assert region.fresh.low <= float(met.double().mean()) <= region.fresh.high
    found = records.regions(Evidence(problem, proof.state))
    assert 0 < len(found) <= 3
    assert [r.rows.count for r in found] == sorted((r.rows.count for r in found), reverse=True)
    assert not any(region.depends for region in found)
    with pytest.raises(DomainError, match="its rows are 1 to"):
        records.region_of(0)
    with pytest.raises(DomainError, match="is no record of the region"):
        records.region_of(len(rows) + 1)


def test_a_rule_means_its_box():
    """Random boxes over names and values that need quotes, empty cells, dates and commas: the rule means the same."""
    attributes = (Attribute("to", "nominal", values=("a b", "and", "c,d", "[e]", "50", "to")), *WORDED.attributes)
    domain = TableDomain("d", attributes, ("sex",), ())
    problem = problem_of(network_like(domain), domain)
    draw = random.Random(0)
    for _ in range(200):
        ends = [sorted((draw.randrange(len(axis)), draw.randrange(len(axis)))) for axis in problem.space.axes]
        low, high = (torch.tensor([pair[i] for pair in ends]) for i in (0, 1))
        rule = rule_of(problem, low, high)
        codes = allowed_codes(domain, rule) if rule else [torch.ones(a.size, dtype=torch.bool) for a in attributes]
        for number, axis in enumerate(problem.space.axes):
            inside = (axis.place >= low[number]) & (axis.place <= high[number])
            assert codes[axis.column].tolist() == inside.tolist()


def network_like(domain):
    from torch import nn

    from neuronfair.model.encoding import TableEncoding
    from neuronfair.model.network import Network

    torch.manual_seed(0)
    width = TableEncoding.of(domain).width
    return Network(nn.Sequential(nn.Linear(width, 3), nn.ReLU(), nn.Linear(3, 2)).double().eval(), domain)
