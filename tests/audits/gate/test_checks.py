"""Limits, past counterexamples and an earlier audit, as `neuronfair.audit` takes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair import AuditSettings, Checks, NeuronFairError, audit
from neuronfair.audits.gate.checks import list_attribute_sets
from neuronfair.domain.table import Target
from tests.audits.test_run import table
from tests.conftest import FLIPS
from tests.planted import networks

TINY = AuditSettings(seeds=8, steps=8, samples=1_000, **FLIPS)
MODULE, DATA = networks.one_biased_neuron(), table(networks.domain())


def test_an_audit_in_python_is_judged_as_by_the_command(tmp_path):
    regression_set, folder = tmp_path / "past.jsonl", tmp_path / "run"
    first = audit(MODULE, DATA, settings=TINY, folder=folder, checks=Checks(["rate > 50%"], regression_set)).report
    assert first.gate.passed
    worst = first.attributes[0].worst
    synthetic = [one for one in worst if not one.is_real]  # records of people are not written
    assert first.regression_set.added == len(synthetic) == len(regression_set.read_text().splitlines()) > 0
    assert len(synthetic) < len(worst)
    checks = Checks(
        ["regression_set.still_flips > 0", "rate.change > 0"], regression_set, add=False, baseline=folder / "audit.json"
    )
    second = audit(MODULE, DATA, settings=TINY, checks=checks).report
    assert (second.regression_set.still_flips, second.regression_set.added) == (first.regression_set.added, 0)
    assert [check.fired for check in second.gate.checks] == [True, False]
    assert second.baseline.text == "No rate changed significantly."


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        (Checks(["rat > 1%"]), "Did you mean 'rate'"),
        (Checks(["regression_set.fixed < 1"]), "needs --regression-set"),
        (Checks(["rate.change > 0"]), "needs --baseline"),
        (Checks(["error_rate.difference > 5%"]), "needs labels. Name the target"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_any_work(tmp_path, checks, says):
    with pytest.raises(NeuronFairError, match=says):
        audit(MODULE, DATA, settings=TINY, folder=tmp_path / "run", checks=checks)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("classes", "limit", "says"),
    [
        (("no", "yes"), "disparate_impact < 0.8", "Set --favourable, .* to one of 'no' and 'yes'; probably 'yes'"),
        (("a", "b", "c"), "selection_rate.difference > 5%", "Set --favourable, .* to one of 'a', 'b' and 'c'$"),
        ((), "disparate_impact < 0.8", "no target with classes"),
    ],
)
def test_a_metric_that_needs_the_favourable_outcome_is_refused_without_it(classes, limit, says):
    domain = replace(DATA.domain, target=Target("hired", classes) if classes else None)
    with pytest.raises(NeuronFairError, match=says):
        Checks([limit]).read(domain).refuse(domain.sensitive, ["neuronfair"])
    if classes:
        domain = replace(domain, favourable=classes[0])
        Checks([limit]).read(domain).refuse(domain.sensitive, ["neuronfair"])


def test_a_difference_of_two_classes_needs_no_favourable_outcome():
    domain = replace(DATA.domain, target=Target("hired", ("no", "yes")))
    Checks(["selection_rate.difference > 5%"]).read(domain).refuse(domain.sensitive, ["neuronfair"])


def test_a_quantity_is_no_label():
    domain = replace(DATA.domain, target=Target("income", ()))
    with pytest.raises(NeuronFairError, match="needs labels"):
        Checks(["error_rate.difference > 5%"]).read(domain).refuse(domain.sensitive, ["neuronfair"])


def test_a_figure_that_turns_out_unknown_is_an_error_but_the_figures_are_kept(tmp_path):
    with pytest.raises(NeuronFairError, match="accuracy was not measured"):
        audit(MODULE, DATA, settings=TINY, folder=tmp_path, checks=Checks(["accuracy < 0.5"]))
    assert (tmp_path / "audit.json").exists()


def test_an_audit_of_another_domain_is_no_baseline(tmp_path):
    audit(networks.one_biased_pair(), table(networks.sex_and_race()), settings=TINY, folder=tmp_path / "other")
    with pytest.raises(NeuronFairError, match="another domain"):
        audit(MODULE, DATA, settings=TINY, checks=Checks(baseline=tmp_path / "other" / "audit.json"))


def test_each_attribute_alone_then_all_together():
    assert list_attribute_sets(["sex", "race", "sex"]) == [("sex",), ("race",), ("sex", "race")]
    assert list_attribute_sets(["sex"]) == [("sex",)]
