"""Audits in which the widest gaps are those of people whom nobody will ever meet."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from neuronfair import BlackBox, Dataset, Decision, TableDomain
from neuronfair.api import Audit, audit
from neuronfair.audits.report import Report
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages import case as stage
from neuronfair.audits.stages.rates import fit_audit_population, fit_population_if_plausible, report_population
from neuronfair.audits.stages.run_searches import MAX_WORST_FINDINGS, MAX_WORST_RECORDS
from neuronfair.domain.attribute import Attribute
from neuronfair.errors import DataError, RunError
from tests.conftest import FLIPS

SMALL = AuditSettings(seeds=40, steps=20, samples=4_000, **FLIPS)
RICH, MOST = 50_000, 3_000  # from where on decisions flip for the young, and the largest gain of the table


def domain() -> TableDomain:
    ages = Attribute("age", "ordinal", low=20, high=69)
    gain = Attribute("gain", "continuous", low=0, high=100_000, step=100)
    return TableDomain(
        "people", (ages, gain, Attribute("hours", "ordinal", low=1, high=60), Attribute("s", "flag")), ("s",)
    )


def people(n: int = 400) -> Dataset:
    """Nine of ten have no gain, the others one of three, and nobody one above 3,000."""
    dice = np.random.default_rng(0)
    gain = np.where(dice.random(n) < 0.9, 0, dice.choice([10, 20, MOST // 100], n))
    columns = (dice.integers(0, 50, n), gain, dice.integers(0, 60, n), dice.integers(0, 2, n))
    return Dataset("people", domain(), torch.from_numpy(np.stack(columns, 1)), torch.full((n,), -1))


def model(old: bool = True) -> BlackBox:
    """Whoever is 60 or more is decided by `s`, by a little; the others are so from 50,000 on, and by very much."""

    def ask(rows: torch.Tensor) -> np.ndarray:
        age, gain, _, s = rows.cpu().numpy().T
        little = (age >= 40) & (100 * gain < RICH) & old
        score = np.where(100 * gain >= RICH, 3 + gain / 1000, np.where(little, 0.6, 0.0))
        return np.stack([np.full(len(s), 0.5), score * s], 1)

    return BlackBox(ask, domain())


@pytest.fixture(scope="module")
def seen() -> Audit:
    return audit(model(), people(), settings=replace(SMALL, methods=("aequitas", "uniform")))


def test_nobody_with_an_implausible_gain_is_among_the_worst(seen):
    """Aequitas draws its people, and nearly all are rich: rows of the table make up for those whom it lacks."""
    (entry,) = seen.report.attributes
    assert len(entry.worst) == 10
    for finding in entry.worst:
        assert finding.row["gain"] <= MOST
        assert finding.row["age"] >= 60
        assert 0.01 <= finding.plausibility <= 1
    assert entry.severity.max > 3 > max(finding.gap for finding in entry.worst)
    first = next(finding for finding in entry.worst if finding.method == "table")
    assert first.source_text == f"record {first.number + 1} of the data set"
    assert domain().to_table(people().rows[first.number][None]) == {name: [cell] for name, cell in first.row.items()}


def test_plausible_people_to_be_brought_near_to_may_all_come_late_in_the_table(monkeypatch):
    monkeypatch.setattr(stage, "MAX_NEAR_RECORDS", 3)  # fewer than a search needs to start from
    data = people()
    case = stage.AttributeCase(model(), data, Decision(), 10, population=fit_population_if_plausible(data, 0))
    inside, near = case.plausible_records
    assert len(near) == 3
    assert inside.valid(near).all()


def test_a_few_rows_of_the_table_come_first_then_plausible_findings():
    """SymbGen starts from the table, so it finds some who are old and some who are rich."""
    (entry,) = audit(model(), people(), settings=replace(SMALL, methods=("symbgen", "uniform"))).report.attributes
    assert all(finding.is_plausible for finding in entry.worst)
    assert [finding.is_real for finding in entry.worst] == [True] * MAX_WORST_RECORDS + [False] * (
        MAX_WORST_FINDINGS - MAX_WORST_RECORDS
    )
    order = people().domain.to_table(people().rows)
    for finding in entry.worst[:MAX_WORST_RECORDS]:
        assert finding.row == {name: values[finding.number] for name, values in order.items()}
    order = [finding.is_plausible for finding in entry.findings]
    assert order == sorted(order, reverse=True)
    assert 0 < sum(order) < len(order)
    shares = [search.plausible_share for search in entry.searches]
    assert shares[0] > shares[1]


def test_four_rates_beside_each_other(seen):
    """One in five is old; of the domain half is rich."""
    (entry,) = seen.report.attributes
    pairs, table, plausible, drawn = entry.rates.available
    assert [rate.population for rate in entry.rates.available] == ["pairs", "table", "plausible", "domain"]
    assert (pairs.rate, pairs.of, pairs.left_out, pairs.alone) == (
        table.rate,
        400,
        0,
        0,
    )  # nothing is tied to s
    old = float((people().rows[:, 0] >= 40).double().mean())
    assert table.rate == old
    assert plausible.low <= table.low < old < table.high <= plausible.high
    assert drawn.low < 1 - 0.8 * 500 / 1001 < drawn.high
    assert " of realistic synthetic records" in seen.report.verdict.text
    assert Report.from_json(seen.report.to_json()) == seen.report
    about = seen.report.data.population
    assert (about.kind, about.rows) == ("table", 400)
    assert 0.3 < about.auc < 0.7  # its columns have nothing to do with each other, as those that are drawn
    assert f"with an AUC of {about.auc:.2f} (0.5: not at all)." in about.text


def test_groups_are_looked_for_where_people_live(seen):
    """In the domain the rich are hit most often by far; but nobody is rich."""
    (entry,) = seen.report.attributes
    assert [group.text for group in entry.subgroups] == ["age at least 60"]
    (group,) = entry.subgroups
    assert (group.rate.rate, group.rate.population) == (1.0, "plausible")
    assert group.people == pytest.approx(entry.rates.plausible.rate, abs=0.03)


def test_the_share_of_findings_that_are_plausible(seen):
    (entry,) = seen.report.attributes
    for search in entry.searches:
        rows = seen.outcomes["s", search.method].findings.rows
        usual = fit_population_if_plausible(people(), 0).plausibility(rows) >= 0.01
        assert search.plausible_share == float(usual.double().mean())


def test_others_are_shown_last_and_marked():
    """Nobody plausible is hit: those who are shown are rich, and it is said that nobody is like them."""
    (entry,) = audit(model(old=False), people(), settings=SMALL).report.attributes
    assert entry.worst
    for finding in entry.worst:
        assert finding.row["gain"] >= RICH
        assert finding.plausibility_text.startswith("Not realistic: below the 1st likelihood percentile.")
    assert entry.rates.table.rate == 0
    assert entry.rates.plausible.rate < 0.01 < 0.4 < entry.rates.domain.rate


def test_a_search_that_keeps_to_plausible_people():
    result = audit(model(), people(), settings=SMALL, plausible=0.05)
    (entry,) = result.report.attributes
    assert all(search.plausible_share == 1 for search in entry.searches)
    assert all(finding.plausibility >= 0.05 for finding in entry.findings)
    assert result.report.data.population.least == 0.05
    assert (
        "The searches kept to records at or above the 5% likelihood percentile." in result.report.data.population.text
    )


def test_a_population_of_the_users_own(tmp_path):
    """Half of the people are said to be rich."""
    rows = people().rows.clone()
    rows[::2, 1] = 900
    table = domain().to_table(rows)
    asked = []

    def sampler(n: int) -> dict[str, list]:
        asked.append(n)
        return table

    result = audit(model(), people(), settings=SMALL, population=sampler, folder=tmp_path / "a")
    (entry,) = result.report.attributes
    assert len(asked) == 1
    assert result.report.data.population.kind == "own"
    hit = float(((rows[:, 0] >= 40) | (rows[:, 1] == 900)).double().mean())
    assert entry.rates.plausible.low < hit < entry.rates.plausible.high
    with pytest.raises(RunError, match="started with another --population"):
        audit(model(), people(), settings=SMALL, folder=tmp_path / "a")


def test_a_population_that_cannot_be_read():
    def broken(n: int) -> None:
        raise ValueError(f"no {n}")

    with pytest.raises(
        DataError, match=re.escape("population: the sampler failed when asked for 50,000 people: no 50000")
    ):
        audit(model(), people(), settings=SMALL, population=broken)
    with pytest.raises(DataError, match="column 'gain' is missing"):
        audit(model(), people(), settings=SMALL, population={"age": [20]})


def test_of_a_few_rows_nobody_is_called_plausible():
    few = people(4)
    population, why = fit_audit_population(few, None, 0, 0.0)
    told = report_population(population, why, len(few), 0.0, lambda: None)
    assert population is fit_population_if_plausible(few, 0) is None
    assert told.kind == "none"
    assert told.text.startswith("There are no realistic synthetic records. people: ")
    (entry,) = audit(model(), few, settings=SMALL).report.attributes
    assert entry.rates.plausible is None
    assert {finding.plausibility for finding in (*entry.worst, *entry.findings)} == {None}
    assert {group.rate.population for group in entry.subgroups} <= {"domain"}


def test_an_impossible_twin_counts_second():
    """Whoever is 60 or more gets another decision with another s; but all who are 65 or more have s."""
    data = people(2000)
    rows = data.rows.clone()
    rows[:, 3] = torch.where(rows[:, 0] >= 45, 1, rows[:, 3])
    report = audit(model(), replace(data, rows=rows), settings=SMALL).report
    (entry,) = report.attributes
    pairs, table = entry.rates.pairs, entry.rates.table
    assert pairs.left_out + pairs.discriminated == table.discriminated
    assert pairs.left_out > 20
    assert pairs.alone + pairs.of == 2000
    assert entry.rates.available[0] is pairs
    assert f"Left out because the twin is not plausible: {pairs.left_out} flips." in pairs.omission
    order = [finding.is_plausible for finding in entry.worst]
    assert order == sorted(order, reverse=True)
    for finding in entry.worst:
        if finding.is_plausible:
            assert 60 <= finding.row["age"] < 65
            assert finding.twin_is_plausible
    assert Report.from_json(report.to_json()) == report
