"""Whole audits by counterfactuals: a copy of the attribute speaks for it, chance does not; impossible ones are said."""

from __future__ import annotations

import select
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from neuronfair import Dataset, TableDomain
from neuronfair.api import Audit, audit
from neuronfair.audits import pytest_check
from neuronfair.audits import run as run_stage
from neuronfair.audits.provenance import Provenance
from neuronfair.audits.pytest_check import CheckSettings, Fairness
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages import attributes
from neuronfair.audits.stages import counterfactual as stage
from neuronfair.audits.stages.case import AttributeCase
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.errors import DomainError, NeuronFairError
from neuronfair.measure.counterfactual_effect import CounterfactualSettings
from neuronfair.model.open import wrap_model
from neuronfair.scale.tasks import Tasks

SMALL = AuditSettings(seeds=5, steps=3, samples=500, methods=("frontier",), prove=0, permutations=4)
DOMAIN = TableDomain(
    "people",
    (
        Attribute("group", "nominal", values=("a", "b")),
        Attribute("copy", "flag", low=0, high=1),
        Attribute("score", "ordinal", low=0, high=9),
        Attribute("noise", "ordinal", low=0, high=9),
    ),
    ("group",),
    target=Target("hired", ("no", "yes")),
    favourable="yes",
)
GROUP, COPY, SCORE, NOISE = range(4)


def people(small: int = 200, n: int = 400, domain: TableDomain = DOMAIN) -> Dataset:
    """People of a and of b, `small` of them: a copy of the group, a score that is higher in b, and noise."""
    generator = torch.Generator().manual_seed(0)
    group = (torch.arange(n) < small).long()
    score, noise = (torch.randint(size, (n,), generator=generator) for size in (6, 10))
    rows = torch.stack([group, group, score + 4 * group, noise], 1)
    return Dataset("people", domain, rows, torch.full((n,), -1))


def reads(column: int, least: float = 0.5) -> nn.Module:
    """A network that says yes where a column has so high a code."""
    module = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 2))
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        module[0].weight[0, column] = 1
        module[0].bias[1] = least
        module[2].weight[1] = torch.tensor([1.0, -1.0])
    return module


@pytest.fixture(scope="module")
def compared():
    """Let the audits of this module compare people with counterfactuals."""

    def thorough(settings: AuditSettings, samples: int, *, leads: bool) -> CounterfactualSettings:
        return CounterfactualSettings(6 if leads else 3, settings.permutations, samples)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AuditSettings, "choose_counterfactual_settings", thorough)
        yield


@pytest.fixture(scope="module")
def copied(compared, tmp_path_factory) -> Audit:
    return audit(reads(COPY), people(), settings=SMALL, folder=tmp_path_factory.mktemp("audit") / "run")


def test_a_copy_of_the_group_leads_with_counterfactuals(copied):
    """Everybody's counterfactual has the other copy, and so the other decision; flips are empty, and said to be."""
    (one,) = copied.report.attributes
    found = one.counterfactual
    assert found.rate > 0.98
    assert (found.of, found.claimed) == (400, True)
    assert found.permutation_baseline.rate < 0.1
    assert found.mediators[0].attributes == ("copy",)
    assert found.mediators[0].share > 0.9
    assert found.auc == 1
    lost, gained = ({move.own: getattr(move, what) for move in found.moves} for what in ("lost", "gained"))
    assert (lost["a"], gained["b"]) == (0, 0)
    assert min(gained["a"], lost["b"]) > 0.97
    assert one.rates.largest == 0
    assert one.leads_with_counterfactuals
    assert (copied.report.verdict.level, copied.report.verdict.tone) == ("proxy evidence", "neutral")
    assert "No score in the data set changes with group." in copied.verdict
    assert "counterfactual twins (same place in the other group's distribution) " in copied.verdict
    assert "Disadvantaged group: a. With group " in copied.verdict
    assert "Holding copy fixed removes all of the excess." in copied.verdict
    assert "causal assumptions that the data cannot test" in copied.verdict
    assert "4 shuffles only" in copied.verdict
    assert copied.report.seconds.counterfactuals > 0


def test_searches_go_by_counterfactuals_there_and_their_runs_can_be_seen_again(copied, run):
    (one,) = copied.report.attributes
    assert one.search_twins == "counterfactual"
    assert all(search.findings for search in one.searches)
    for outcome in copied.outcomes.values():
        assert outcome.config.twins == "counterfactual"
    worst = one.worst[0]
    assert {change.attribute for change in worst.changed} >= {"group", "copy"}
    assert {worst.decision, worst.twin_decision} == {"no", "yes"}
    assert "the counterfactual twin" in worst.sentence
    report = copied.report
    assert type(report).from_json(report.to_json()) == report


def test_chance_claims_nothing(compared):
    """The noise says nothing of the group: people are found by counterfactuals as they would be with any groups."""
    told = audit(reads(NOISE, 4.5), people(), settings=SMALL)
    (one,) = told.report.attributes
    assert not one.counterfactual.claimed
    assert (one.counterfactual.disadvantaged, one.counterfactual.mediators_text) == ("", "")
    assert told.report.verdict.level == "no dependence found"
    assert "No excess is claimed" in told.verdict


def test_a_model_that_reads_the_attribute_is_judged_by_both(compared, monkeypatch):
    told = audit(reads(GROUP), people(), settings=SMALL)
    (one,) = told.report.attributes
    assert one.rates.table.rate == 1
    assert (one.search_twins, one.leads_with_counterfactuals) == ("flip", False)
    assert one.counterfactual.claimed
    assert one.counterfactual.draws == 3  # fewer than where they lead
    assert told.verdict.startswith("Decisions depend on group for 100% of people")
    assert "of counterfactual twins (same place in" in told.verdict
    monkeypatch.setattr(stage, "MAX_LEARNED_RECORDS", 100)
    (one,) = audit(reads(GROUP), people(), settings=replace(SMALL, twins="counterfactual")).report.attributes
    assert one.search_twins == "counterfactual"
    assert (one.counterfactual.draws, one.counterfactual.of) == (6, 100)  # of a large table some people
    told = audit(reads(GROUP), people(), settings=SMALL, twins="flip")
    assert told.report.attributes[0].counterfactual is None


def kept(**what: bool) -> TableDomain:
    return replace(DOMAIN, attributes=(DOMAIN.attributes[0], *(replace(a, **what) for a in DOMAIN.attributes[1:])))


@pytest.mark.parametrize(
    ("data", "seen"),
    [
        (people(small=5), "two groups of at least 30 records"),
        (people(domain=kept(legitimate=True)), "every attribute is fixed or legitimate"),
    ],
    ids=["five people", "all legitimate"],
)
def test_where_counterfactuals_are_impossible_an_audit_says_why_and_goes_on(compared, data, seen, tmp_path):
    told = audit(reads(COPY), data, settings=SMALL)
    (one,) = told.report.attributes
    (note,) = [note for note in one.health if note.name == "no-counterfactuals"]
    assert seen in note.seen
    assert (one.counterfactual, one.search_twins) == (None, "flip")
    assert told.report.verdict.level == "no dependence found"
    assert "Without a counterfactual test nothing is known about proxies." in told.verdict
    with pytest.raises(DomainError, match=seen):
        audit(reads(COPY), data, settings=SMALL, twins="counterfactual", folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_what_is_there(compared, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(AttributeCase, "counterfactual_test", stop)
    told = audit(reads(COPY), people(), settings=SMALL)
    (one,) = told.report.attributes
    assert told.interrupted
    assert one.rates.table is not None
    assert (one.counterfactual, one.searches) == (None, ())


@pytest.mark.skipif(sys.platform != "linux", reason="processes fork on Linux only")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_ctrl_c_in_a_search_keeps_what_other_processes_have_finished(compared, copied, monkeypatch, error):
    begun: list[Tasks] = []
    monkeypatch.setattr(Tasks, "__enter__", lambda tasks: begun.append(tasks) or tasks)
    monkeypatch.setattr(run_stage, "count_usable_cores", lambda: 3)

    def stop(*_, **__):
        for pipe in begun[-1]._forks.values():
            select.select([pipe], [], [], 60)  # until its results are there
        raise error("in the search")

    def describe(*_):
        assert error is KeyboardInterrupt, "this could replace the error"

    monkeypatch.setattr(attributes, "search", stop)
    monkeypatch.setattr(attributes, "describe_findings", describe)
    data = people()
    opened, provenance = wrap_model(reads(COPY), data.domain, data), Provenance(processes=3)
    settings = replace(SMALL, prove=60.0)
    if error is ValueError:
        with pytest.raises(ValueError, match="in the search"):
            run_stage.run(opened, data, settings=settings, provenance=provenance)
        return
    report = run_stage.run(opened, data, settings=settings, provenance=provenance).report
    (one,), (whole,) = report.attributes, copied.report.attributes
    assert report.reproduction.interrupted
    assert one.counterfactual == whole.counterfactual
    assert one.proved.complete


def test_a_test_judges_the_effect_of_counterfactuals(tmp_path, monkeypatch):
    monkeypatch.setattr(pytest_check, "CounterfactualSettings", lambda records: CounterfactualSettings(4, 4, records))
    fairness, quick = Fairness(tmp_path), CheckSettings(samples=300, seeds=5, steps=3)
    with pytest.raises(AssertionError) as failed:
        fairness.check(reads(COPY), people(), settings=quick, twins="counterfactual")
    told = str(failed.value)
    assert "Its upper end must be at most 1." in told
    assert "Holding copy fixed removes" in told
    assert "the counterfactual twin with group" in told
    assert "flips" not in told
    passed = fairness.check(reads(COPY), people(), max_rate=0.02, settings=quick)  # by flips
    assert passed.counterfactual is None
    passed = fairness.check(reads(NOISE, 4.5), people(), max_rate=0.5, settings=quick, twins="counterfactual")
    assert passed.counterfactual.effect.high < 0.5
    with pytest.raises(NeuronFairError, match="needs a data set"):
        fairness.check(reads(COPY), DOMAIN, twins="counterfactual")
    with pytest.raises(NeuronFairError, match="twins must be flip or counterfactual, got 'twin'"):
        fairness.check(reads(COPY), people(), twins="twin")
