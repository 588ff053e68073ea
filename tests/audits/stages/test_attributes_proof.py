"""The third leg of an audit: what is proved about planted networks, and what is said where nothing is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from neuronfair import BlackBox, Dataset, NeuronFairError
from neuronfair.api import audit
from neuronfair.audits.pytest_check import CheckSettings, Fairness
from neuronfair.audits.report import Report
from neuronfair.audits.report.attribute import RowShare
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages import attributes
from neuronfair.errors import Unprovable
from neuronfair.proof import prove as proving
from neuronfair.proof import session
from neuronfair.proof.certificate import Proof
from neuronfair.proof.prove import prove
from tests.planted import networks

TINY = AuditSettings(seeds=5, steps=5, samples=2_000, prove=600.0, twins="flip")
DOMAIN = networks.domain()
BIASED, FAIR = networks.one_biased_neuron(), networks.one_biased_neuron(weight=0.0)


def table() -> Dataset:
    return Dataset("planted", DOMAIN, networks.uniform_rows(DOMAIN, 100), torch.full((100,), -1))


def stopped_proof(problem, **options) -> Proof:
    """A proof that Ctrl-C ends at its third step."""
    steps = iter(range(3))

    def stop(_) -> None:
        if next(steps) == 2:
            raise KeyboardInterrupt

    return prove(problem, **{**options, "progress": stop})


def test_an_audit_proves_what_was_planted():
    """Who has a sum of 19 or 20 is decided by the flag: 1,293 of 10,000 sums, for both values of it."""
    seen = []
    report = audit(BIASED, table(), settings=TINY, progress=lambda what, *_: seen.append(what)).report
    (entry,) = report.attributes
    proved = entry.proved
    assert (proved.people, proved.proved_fair.count, proved.proved_discriminatory.count) == ("20000", "17414", "2586")
    assert (proved.undecided, proved.complete, proved.method) == (RowShare("0", 0.0), True, "bounds of a network")
    assert entry.rates.domain.of == TINY.samples  # the rate of the domain is sampled as ever
    assert entry.rates.domain.low < 0.1293 < entry.rates.domain.high
    assert proved.sentence in report.verdict.text
    assert "Proving" in seen
    assert report.seconds.proof > 0
    assert Report.from_json(report.to_json()) == report


def test_ctrl_c_keeps_what_is_proved(monkeypatch):
    monkeypatch.setitem(proving.BOXES_PER_STEP, "cpu", 8)
    monkeypatch.setattr(session, "prove", stopped_proof)
    report = audit(BIASED, table(), settings=TINY).report
    assert report.reproduction.interrupted
    (entry,) = report.attributes
    assert 0 < int(entry.proved.proved_fair.count) < 17_414
    assert not entry.proved.complete


def test_an_audit_counts_the_rows_of_the_data_set_first():
    data = table()
    (entry,) = audit(BIASED, data, settings=TINY).report.attributes
    flips = int(((data.rows[:, :4].sum(1) >= 19) & (data.rows[:, :4].sum(1) <= 20)).sum())
    rows, drawn = entry.proved.data_set, entry.proved.fresh
    assert (rows.of, rows.certified_fair.count, rows.certified_discriminatory.count) == (100, 100 - flips, flips)
    assert (rows.undecided.count, rows.without_twin, rows.outside_domain) == (0, 0, 0)
    assert drawn.certified_fair.share + drawn.certified_discriminatory.share == pytest.approx(1)
    assert f"for {100 - flips}% of 100 records in the data set" in entry.proved.sentence


def test_the_seconds_are_shared_and_0_is_none(monkeypatch):
    given = []

    def refuse(*_, seconds, **__):
        given.append(seconds)
        raise Unprovable("not today")

    monkeypatch.setattr(session, "prove", refuse)
    domain = networks.sex_and_race()
    data = Dataset("planted", domain, networks.uniform_rows(domain, 60), torch.full((60,), -1))
    few = replace(TINY, seeds=2, steps=0, samples=100)
    for seconds, shared in ((9.0, [3.0, 3.0, 3.0]), (0, [])):  # of sex, of race, of both
        given.clear()
        report = audit(networks.one_biased_pair(), data, settings=few, prove=seconds).report
        assert given == shared
        assert [one.proved is None for one in report.attributes] == [not shared] * 3


def test_what_cannot_be_proved_says_why_and_the_rest_stays(monkeypatch):
    def refuse(*_, **__):
        raise Unprovable("it shows nothing of itself")

    monkeypatch.setattr(attributes, "build_problem", refuse)
    (entry,) = audit(BIASED, table(), settings=TINY).report.attributes
    assert (entry.proved.reason, entry.proved.people) == ("it shows nothing of itself", "20000")
    assert entry.rates.domain.of == 2_000


def test_everybody_of_a_small_domain_is_asked():
    def predict(x: np.ndarray) -> np.ndarray:
        return np.stack([np.full(len(x), 0.5), (x[:, 0] >= 8) * x[:, 4]], 1)

    (entry,) = audit(BlackBox.of_inputs(predict, DOMAIN), table(), settings=TINY).report.attributes
    assert (entry.proved.method, entry.proved.complete) == ("enumeration", True)
    assert entry.proved.proved_discriminatory == RowShare("4000", 0.2)


def test_a_check_may_demand_a_proof(tmp_path):
    fairness = Fairness(tmp_path)
    checked = fairness.check(FAIR, DOMAIN, proved=1.0)
    assert checked.proved.proved_fair.count == "20000"
    assert fairness.check(FAIR, DOMAIN).proved is None
    assert fairness.check(BIASED, DOMAIN, max_rate=0.2, proved=0.87).proved.complete
    with pytest.raises(AssertionError) as failure:
        fairness.check(BIASED, DOMAIN, max_rate=0.2, proved=0.9)
    assert str(failure.value) == (
        "Decisions are certified not to depend on s for 87.1% of the declared input space, and to depend on it for "
        "12.9%. At least 90% must be certified."
    )
    for share in (0.0, 1.5, -1.0):
        with pytest.raises(NeuronFairError, match="proved must be a share above 0"):
            fairness.check(FAIR, DOMAIN, proved=share)


def test_a_check_of_what_cannot_be_proved_fails_with_the_reason(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise Unprovable("it shows nothing of itself")

    monkeypatch.setattr(attributes, "build_problem", refuse)
    with pytest.raises(AssertionError, match=r"No proof: it shows nothing of itself\. At least 50% must be certified"):
        Fairness(tmp_path).check(FAIR, DOMAIN, proved=0.5, settings=CheckSettings(samples=500))


def test_a_quick_audit_proves_for_less_long():
    assert AuditSettings.quick().prove < AuditSettings().prove < 10
