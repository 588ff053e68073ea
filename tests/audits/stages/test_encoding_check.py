"""A planted table whose rule is known: the model of that rule, fed rightly and wrongly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neuronfair import AuditSettings, BlackBox, Checks, Dataset, Decision, NeuronFairError, TableDomain, audit
from neuronfair.audits.pytest_check import CheckSettings, Fairness
from neuronfair.audits.report import EncodingCheckReport, Report
from neuronfair.audits.stages import encoding_check
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.audits.wording.verdict import conclude
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.model.open import wrap_model
from neuronfair.render.export import write_junit
from neuronfair.render.page import render_audit
from neuronfair.render.tables import write_markdown
from tests.conftest import FLIPS

N = 2_000
HIGHS = (9, 9, 4, 30, 1)
NAMES = ("d", "a", "c", "b", "s")
WEIGHTS = np.array([0.8, -0.5, 0.9, -0.15, 0.6])
BIAS = -1.1
TINY = AuditSettings(seeds=5, steps=5, samples=500, **FLIPS)


def domain(**change) -> TableDomain:
    kinds = ("ordinal", "ordinal", "ordinal", "ordinal", "flag")
    attributes = (
        replace(Attribute(name, kind, high=high), **change)
        for name, kind, high in zip(NAMES, kinds, HIGHS, strict=True)
    )
    return TableDomain("planted", tuple(attributes), ("s",), target=Target("y", ("no", "yes")))


@pytest.fixture(scope="module")
def people() -> Dataset:
    """People whose class is drawn with the probability that the planted model says."""
    draw = np.random.default_rng(1)
    rows = np.stack([draw.integers(0, high + 1, N) for high in HIGHS], 1)
    chance = 1 / (1 + np.exp(-(rows @ WEIGHTS + BIAS)))
    return Dataset("planted", domain(), torch.tensor(rows), torch.tensor(draw.random(N) < chance).long())


@pytest.fixture(autouse=True, scope="module")
def small_forest():
    """A forest that is grown faster, and knows enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_check, "FOREST_TREES", 20)
        yield


def planted(weights=WEIGHTS, bias: float = BIAS, sign: float = 1.0) -> nn.Module:
    """A linear model of two scores behind an activation that changes nothing for numbers of either sign."""
    first, last = nn.Linear(5, 2), nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(torch.tensor(np.stack([weights, -np.asarray(weights)])))
        first.bias.copy_(torch.tensor([bias, -bias]))
        last.weight.copy_(sign * torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        last.bias.zero_()
    return nn.Sequential(first, nn.ReLU(), last)


def check(model, data):
    return check_encoding(wrap_model(model, data.domain, data.rows), data)


@pytest.fixture(scope="module")
def right(people) -> EncodingCheckReport:
    return check(planted(), people)


def test_the_right_model_is_fed_rightly_and_its_figures_are_right(people, right):
    found = right
    lean = people.rows.numpy() @ WEIGHTS + BIAS
    assert (found.level, found.constant, found.rows) == ("ok", False, N)
    assert found.accuracy == pytest.approx(((lean > 0) == people.labels.numpy()).mean(), abs=5e-3)
    assert found.low < found.accuracy < found.high
    assert found.majority == pytest.approx(
        max(people.labels.double().mean().item(), 1 - people.labels.double().mean().item())
    )
    assert found.decided[1] == pytest.approx((lean > 0).mean(), abs=5e-3)
    assert found.confidence == pytest.approx((1 / (1 + np.exp(-abs(lean)))).mean(), abs=1e-3)
    assert found.calibration < 0.03
    assert found.auc_low < found.auc < found.auc_high
    assert found.attainable < found.auc  # nothing beats the rule itself
    assert "no encoding mismatch" in found.text


def test_the_check_leaves_no_trace(people):
    opened = wrap_model(planted(), people.domain, people.rows)
    opened.model.rows_forward = 7
    assert check_encoding(opened, people) == check_encoding(opened, people)
    assert opened.model.rows_forward == 7


def test_classes_the_other_way_round(people, right):
    found = check(planted(sign=-1.0), people)
    assert found.level == "wrong"
    assert found.accuracy == pytest.approx(1 - right.accuracy, abs=1e-3)


def test_two_exchanged_columns_are_noticed(people, right):
    found = check(planted(WEIGHTS[[3, 1, 2, 0, 4]]), people)
    assert found.level == "wrong"
    assert found.auc < right.auc


def by_last_column(data: Dataset) -> nn.Module:
    """A model that reads the last column only, and says the share of the class for each of its values."""
    shares = np.array([data.labels[data.rows[:, 4] == s].double().mean().item() for s in (0, 1)])
    logits = np.log(shares) - np.log1p(-shares)
    return planted([0, 0, 0, 0, logits[1] - logits[0]], logits[0])


def test_a_weak_model_that_keeps_its_promises_is_no_worse_for_it(people):
    found = check(by_last_column(people), people)
    assert found.level == "ok"
    assert found.auc < found.attainable - 0.2


def test_nothing_that_was_tried_fits(people):
    """It looks for what is not there, and is sure of itself."""

    def ask(rows):
        return 4 * torch.sin(37.0 * rows.double() @ torch.arange(1.0, 6.0, dtype=torch.float64))

    found = check_encoding(wrap_model(BlackBox(ask, people.domain), people.domain, people.rows), people)
    assert found.level == "wrong"
    assert f"Its AUC is {found.auc:.2f}" in found.text


def test_classes_in_the_other_order_are_named_as_the_reason(people):
    swapped = replace(people, labels=1 - people.labels)
    found = check(planted(), swapped)
    assert found.level == "wrong"
    assert "the classes may be swapped" in found.text
    assert "swapped" not in check(planted(), people).text


def test_without_labels_only_the_scores_are_looked_at(people, right):
    bare = replace(people, labels=torch.full((N,), -1))
    found = check(planted(), bare)
    assert (found.level, found.accuracy, found.auc) == ("not assessable", None, None)
    assert "input encoding are not assessable: the table has no labels" in found.text
    assert found.decided == right.decided
    assert len(found.probabilities) == 5
    constant = check(planted(bias=1e3), bare)
    assert (constant.level, constant.constant, constant.saturated) == ("suspicious", True, 1.0)
    assert "gives all 2,000 rows looked at the same decision" in constant.text


def test_few_labels_and_tolerances_conclude_nothing(people):
    assert check(planted(), people.take(torch.arange(12))).accuracy is None
    opened = wrap_model(planted(), people.domain, people.rows, decision=Decision("tolerance", 0.1))
    found = check_encoding(opened, people)
    assert (found.accuracy, found.decided, found.level) == (None, (), "not assessable")


def test_a_constant_that_hardly_tells_people_apart_is_suspicious(people):
    """Most say no; it says so to all, and how likely that is for the values of the last column."""
    few = people.take(((people.labels == 0) | (torch.arange(N) % 3 == 0)).nonzero()[:, 0])
    found = check(by_last_column(few), few)
    assert (found.level, found.constant) == ("suspicious", True)
    assert found.accuracy == found.majority
    assert "This model gives every record the same decision, " in found.text


def test_a_gate_does_not_judge_a_wrongly_fed_model(people, tmp_path):
    data = people.take(torch.arange(500))
    with pytest.raises(NeuronFairError, match=r"--fail-if 'rate > 99%': not evaluated\. This model is .* right"):
        audit(planted(sign=-1.0), data, settings=TINY, checks=Checks(["rate > 99%"]), folder=tmp_path / "run")
    report = Report.from_json((tmp_path / "run" / "audit.json").read_text())
    assert report.gate is None
    assert (report.verdict.level, report.verdict.thresholds) == ("not assessable", "not evaluated")
    assert report.verdict.headline == f"The input encoding check failed. {report.encoding_check.text}"
    for shown in (write_markdown(report), render_audit(report), write_junit(report)):
        assert "the encoding is probably wrong" in shown
    assert 'failures="0" errors="1"' in write_junit(report)
    trusted, failure = Checks(["rate > 99%"], skip_encoding_check=True).read(data.domain).evaluate(report, None)
    assert failure is None
    assert trusted.gate.passed
    assert conclude(trusted, thresholds_set=True).verdict.level == "dependence found"


def test_the_fixture_fails_for_a_wrongly_fed_model(people, tmp_path):
    Fairness(tmp_path).check(planted(), people, max_rate=0.9)
    with pytest.raises(AssertionError, match="the encoding is probably wrong"):
        Fairness(tmp_path).check(planted(sign=-1.0), people, max_rate=0.9)
    trusting = CheckSettings(skip_encoding_check=True)
    assert Fairness(tmp_path).check(planted(sign=-1.0), people, max_rate=0.9, settings=trusting).rate.rate < 0.9


def test_the_fixture_prepares_tables_as_it_is_told(people, tmp_path):
    def negative(table):
        return torch.tensor(-table.to_numpy(dtype=np.float32))

    weights = CheckSettings(preprocess=negative)
    Fairness(tmp_path).check(planted(-WEIGHTS), people, max_rate=0.9, settings=weights)  # else wrongly fed
