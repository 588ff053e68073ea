"""What is reported of records: the data set's, those drawn after the proof, and regions around single ones."""

from __future__ import annotations

import random

import pandas as pd
import pytest
import torch

import neuronfair as nf
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule
from neuronfair.domain.schema.toml import allowed_codes, parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset, read_table
from neuronfair.errors import DomainError
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import wrap_model
from neuronfair.proof import records as module
from neuronfair.proof.certificate import DataSetClaims, RecordShare
from neuronfair.proof.problem import build_problem, describe_box, locate_rows
from neuronfair.proof.prove import prove
from neuronfair.proof.records import Evidence, ProofRecords
from neuronfair.proof.regions import RegionGrower, find_largest_regions, find_region
from neuronfair.proof.session import certify
from neuronfair.searches.evaluate import evaluate
from tests.domain.schema.test_toml import DOMAIN as WORDED
from tests.proof.enumerable import DECISIONS, RULES, domain_of, network_of
from tests.proof.test_state import every_row


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
    problem = build_problem(network, domain, condition=where)
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
    found, expected = records.find_claims(evidence), int(flips[chosen].sum())
    assert found.of == len(chosen)
    assert found.certified_discriminatory.count == expected > 10
    assert found.certified_fair.count == len(chosen) - expected
    assert found.undecided.count == 0
    assert found.certified_fair.share == pytest.approx(1 - expected / len(chosen))


def test_rows_whose_flip_the_model_shows_are_not_undecided():
    """A proof that ends at once leaves nearly all open; the model then shows each flip, and none that is not there."""
    rows = every_row(domain_of(*RULES))[::3]
    records, evidence, flips = proved(rows, seconds=0.0)
    network, before = network_of(records.problem.domain, 2), records.find_claims(evidence)
    after = records.find_claims(evidence, network)
    assert before.certified_discriminatory.count < after.certified_discriminatory.count == int(flips[::3].sum())
    assert after.certified_fair == before.certified_fair
    assert after.undecided.count == len(rows) - after.certified_fair.count - after.certified_discriminatory.count


def test_rows_without_a_twin_are_counted_apart():
    """Of 100 rows 54 are certified, 44 of them because they have no twin: that leaves 10 of 56."""
    parts = [RecordShare.of(count, 100) for count in (54, 1, 45)]
    assert DataSetClaims(100, *parts, without_twin=44, outside_domain=3).with_twin == RecordShare(10, 10 / 56)


def test_rows_outside_the_region_do_not_count():
    rows = every_row(domain_of(*RULES))
    records, evidence, flips = proved(rows, where="a0 >= 5 and s == 1")
    inside = (rows[:, 0] >= 5) & (rows[:, 1] == 1)
    found = records.find_claims(evidence)
    assert (found.of, found.certified_discriminatory.count) == (int(inside.sum()), int(flips[inside].sum()))
    fresh = records.find_fresh_claims(evidence)
    assert (
        fresh.certified_discriminatory.low < float(flips[inside].double().mean()) < fresh.certified_discriminatory.high
    )


def test_rows_that_no_record_of_the_domain_is_are_undecided():
    """A row that breaks a rule, and one with a code that the domain does not have: nothing is proved of either."""
    rows = every_row(domain_of(*RULES))[:50]
    broken, strange = torch.tensor([[0, 0, 3, 0, 0]]), torch.tensor([[0, 9, 0, 0, 0]])
    records, evidence, _ = proved(torch.cat([rows, broken, strange]))
    assert records.find_claims(evidence).of == 52
    assert records.find_claims(evidence).undecided.count == records.find_claims(evidence).outside_domain == 2


def test_fresh_intervals_cover_the_planted_share(monkeypatch):
    """95 of 100 intervals hold the share of a complete proof; of many seeds hardly one in ten misses it."""
    monkeypatch.setattr(module, "FRESH_RECORDS", 400)
    records, evidence, flips = proved(every_row(domain_of(*RULES))[:30])
    true, held = float(flips.double().mean()), 0
    for seed in range(60):
        monkeypatch.setattr(module, "FRESH_SEED", 1 << 40 | seed << 20)
        share = records.find_fresh_claims(evidence).certified_discriminatory
        held += share.low <= true <= share.high
    assert held >= 54


def test_fresh_records_of_an_unfinished_proof_are_rightly_decided(monkeypatch):
    records, evidence, flips = proved(every_row(domain_of(*RULES))[:30], seconds=0.02)
    fresh = records.find_fresh_claims(evidence)
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


@pytest.mark.parametrize("name", DECISIONS)
def test_a_region_holds_its_record_and_nobody_of_another_kind(name):
    outputs, decision = DECISIONS[name]
    domain = domain_of(*RULES)
    network = network_of(domain, outputs)
    problem = build_problem(network, domain, decision=decision)
    rows = every_row(domain)
    places = locate_rows(problem, rows)
    flips = evaluate(network.double(), domain, rows, decision).discriminates
    grower, grown = RegionGrower(problem, places), 0
    for row in range(0, len(rows), 97):
        for fair in (True, False):
            box = grower.grow(places[row], fair=fair)
            if box is None:
                continue
            inside = box.contain(places)[:, 0]
            assert inside[row]
            assert (flips[inside] == (not fair)).all()
            assert fair == (not flips[row])
            assert bool(grower.find_proved(box, fair=fair))
            grown += int(inside.sum()) > 1
    assert grown > 5


def test_the_report_has_the_region_of_a_row_and_the_largest_ones():
    domain = domain_of(*RULES)
    network = network_of(domain, 2)
    problem = build_problem(network, domain)
    rows = every_row(domain)
    data = Dataset(
        "small", domain, torch.cat([rows, torch.tensor([[0, 0, 3, 0, 0]])]), torch.full((len(rows) + 1,), -1)
    )
    records = ProofRecords.of(problem, data, Uniform(rows))
    proof = prove(problem, seconds=60, guides=records.guides)
    flips = evaluate(network.double(), domain, rows, problem.decision).discriminates
    for row in (0, 17, int(flips.nonzero()[0, 0])):
        region = find_region(records, row + 1)
        assert region.depends == bool(flips[row])
        met = torch.stack([ok[rows[:, i]] for i, ok in enumerate(allowed_codes(domain, region.rule))]).all(0)
        assert met[row]
        assert (flips[met] == region.depends).all()
        assert int(region.size.count) == int(met.sum())  # every record of the domain is a row
        assert region.rows.count == int(met.sum())
        assert region.fresh.low <= float(met.double().mean()) <= region.fresh.high
    found = find_largest_regions(records, Evidence(problem, proof.state))
    assert 0 < len(found) <= 3
    assert [r.rows.count for r in found] == sorted((r.rows.count for r in found), reverse=True)
    assert not any(region.depends for region in found)
    with pytest.raises(DomainError, match="its rows are 1 to"):
        find_region(records, 0)
    with pytest.raises(DomainError, match="is no record of the region"):
        find_region(records, len(rows) + 1)


def test_a_region_of_a_proof_about_one_group_names_the_group():
    """The rule of "no 1 among b" leaves records of b a twin, which are in the region only with s != 1."""
    domain = domain_of(*RULES)
    problem = build_problem(network_of(domain, 2), domain, condition="s == 1")
    rows = every_row(domain)
    records = ProofRecords.of(problem, Dataset("small", domain, rows, torch.full((len(rows),), -1)), Uniform(rows))
    flips = evaluate(network_of(domain, 2).double(), domain, rows, problem.decision).discriminates
    for row in range(0, len(rows), 41):
        if rows[row, 1] != 1 or (region := find_region(records, row + 1)) is None:
            continue
        met = torch.stack([ok[rows[:, i]] for i, ok in enumerate(allowed_codes(domain, region.rule))]).all(0)
        assert "s == 1" in region.rule
        assert (flips[met] == region.depends).all()
        assert int(region.size.count) == int(met.sum())


def test_a_row_without_a_twin_has_a_region_in_trees():
    ensemble = pytest.importorskip("sklearn.ensemble")
    alone = Rule("b is only 2", {"job": ("b",)}, {"s": (2,)})
    domain = domain_of(alone)
    rows = every_row(domain)
    x = TableEncoding.of(domain).encode(rows).numpy()
    model = ensemble.RandomForestClassifier(n_estimators=3, max_depth=3, random_state=0)
    opened = wrap_model(model.fit(x, rows[:, 0] + rows[:, 1] > 5), domain, rows)
    problem = build_problem(opened, domain)
    records = ProofRecords.of(problem, Dataset("small", domain, rows, torch.full((len(rows),), -1)), Uniform(rows))
    row = int((rows[:, 2] == 1).nonzero()[0, 0])
    assert not find_region(records, row + 1).depends


def test_a_rule_means_its_box():
    """Random boxes over names and values that need quotes, empty cells, dates and commas: the rule means the same."""
    attributes = (Attribute("to", "nominal", values=("a b", "and", "c,d", "[e]", "50", "to")), *WORDED.attributes)
    domain = TableDomain("d", attributes, ("sex",), ())
    problem = build_problem(network_like(domain), domain)
    draw = random.Random(0)
    for _ in range(200):
        ends = [sorted((draw.randrange(len(axis)), draw.randrange(len(axis)))) for axis in problem.space.axes]
        low, high = (torch.tensor([pair[i] for pair in ends]) for i in (0, 1))
        rule = describe_box(problem, low, high)
        codes = allowed_codes(domain, rule) if rule else [torch.ones(a.size, dtype=torch.bool) for a in attributes]
        for number, axis in enumerate(problem.space.axes):
            inside = (axis.position_of_code >= low[number]) & (axis.position_of_code <= high[number])
            assert codes[axis.column].tolist() == inside.tolist()


def network_like(domain):
    from torch import nn

    from neuronfair.model.network import Network

    torch.manual_seed(0)
    width = TableEncoding.of(domain).width
    return Network(nn.Sequential(nn.Linear(width, 3), nn.ReLU(), nn.Linear(3, 2)).double().eval(), domain)


@pytest.mark.parametrize(("missing", "certified", "flipping"), [("5", 2, 0), ('"keep"', 2, 2)])
def test_rows_whose_empty_cell_the_model_reads_are_not_certified_as_the_declared_number(missing, certified, flipping):
    domain = parse_domain(f"""
        name = "empty"
        sensitive = ["sex"]
        target = {{ column = "hired", classes = ["no", "yes"] }}
        [attributes]
        sex = {{ kind = "flag" }}
        wage = {{ kind = "ordinal", low = 0, high = 9, missing = {missing} }}
    """)
    table = pd.DataFrame({"sex": [0, 1, 0, 1], "wage": [3.0, 8.0, None, None], "hired": ["no"] * 4})

    def model(people):  # without a wage the sex decides
        return people.wage.fillna(people.sex * 9) > 4

    opened = wrap_model(model, domain, data := read_table(table, domain))
    problem = build_problem(opened, domain)
    records = ProofRecords.of(problem, data, model=opened)
    claims = certify(problem, opened, records, 5.0, show=lambda *_: None)[0].data_set
    assert (claims.certified_fair.count, claims.certified_discriminatory.count) == (certified, flipping)
    assert claims.outside_domain == 2 - flipping
