"""Models fitted to arrays: columns are matched by position, and the labels or the user must confirm the order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from neuronfair import AuditSettings, Checks, NeuronFairError, audit
from neuronfair.audits.inputs import ModelSource, read_input
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.errors import DataError

pd = pytest.importorskip("pandas", reason="the package pandas is not installed")
linear = pytest.importorskip("sklearn.linear_model", reason="the package scikit-learn is not installed")

from neuronfair.model.open import wrap_model  # noqa: E402


def read(table, *, model=None, columns=None, **how):
    """Read a table for a model."""
    return read_input(table, ModelSource(model, columns=columns), **how)


TINY = AuditSettings(seeds=5, steps=5, samples=2000, prove=0.0, twins="flip")
NAMES = ["age", "income", "sex", "married", "job"]
WRONG = [
    ["income", "age", "sex", "married", "job"],
    ["age", "income", "married", "sex", "job"],
    ["sex", "age", "income", "married", "job"],
    ["job", "income", "sex", "married", "age"],
    ["married", "sex", "age", "job", "income"],
    ["age", "sex", "income", "married", "job"],
]


@pytest.fixture(scope="module")
def people():
    draws = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "age": draws.integers(18, 80, 800),
            "income": draws.integers(10, 90, 800),
            "sex": draws.integers(0, 2, 800),
            "married": draws.integers(0, 2, 800),
            "job": draws.integers(0, 3, 800),
        }
    )
    score = (table.age - 60) / 10 + (table.income - 60) / 20 + 1.5 * table.sex - 0.5 * table.married
    return table.assign(hired=np.where(score + 0.6 * draws.logistic(size=800) > 0.4, "yes", "no"))


@pytest.fixture(scope="module")
def model(people):
    return linear.LogisticRegression(max_iter=2000).fit(people[NAMES].to_numpy(), people.hired)


@pytest.fixture(scope="module")
def truth(people, model):
    """The flip rate by the original model on original cells."""
    decided = [model.predict(people[NAMES].assign(sex=value).to_numpy()) for value in (0, 1)]
    return (decided[0] != decided[1]).mean()


def checked(model, table, **how):
    """Return the input encoding check of an audit, and the opened model."""
    data = read(table, model=model, sensitive="sex", **how).data
    opened = wrap_model(model, data.domain, data)
    return check_encoding(opened, data), opened


def test_labels_confirm_the_right_order_and_the_report_says_that_it_was_taken(people, model, truth):
    made = audit(model, people, sensitive="sex", target="hired", settings=TINY)
    assert made.report.encoding_check.level == "ok"
    assert "matched by position, in the order of the table: age, income, sex, married, job" in made.report.model.note
    assert made.report.attributes[0].rates.table.rate == truth > 0.1


@pytest.mark.parametrize("order", WRONG, ids=",".join)
def test_no_wrong_order_is_ok(order, people, model):
    for source in (model, model.predict_proba):
        found, _ = checked(source, people[[*order, "hired"]], target="hired")
        assert found.refused
        assert "--columns" in found.text


def test_a_wrong_order_gets_no_verdict_and_judges_no_limit(people, model):
    table = people[[*WRONG[1], "hired"]]
    made = audit(model, table, sensitive="sex", target="hired", settings=TINY)
    assert made.report.verdict.level == "not assessable"
    assert made.report.encoding_check.level == "unconfirmed"
    with pytest.raises(NeuronFairError, match=r"not evaluated.*--columns age,income,married,sex,job"):
        audit(model, table, sensitive="sex", target="hired", settings=TINY, checks=Checks(["rate > 99%"]))
    trusting = Checks(["rate > 99%"], skip_encoding_check=True)
    made = audit(model, table, sensitive="sex", target="hired", settings=TINY, checks=trusting)
    assert made.report.gate.passed
    assert "Caution: The model has no names for its inputs" in made.verdict


def test_columns_name_the_order(people, model, truth):
    table = people[["married", "sex", "age", "job", "income", "hired"]].assign(id=range(800))
    for how in ({"target": "hired"}, {}):
        data = table if how else table.drop(columns="hired")
        made = audit(model, data, sensitive="sex", columns=NAMES, settings=TINY, **how)
        assert made.report.attributes[0].rates.table.rate == truth
        assert made.report.encoding_check.level == ("ok" if how else "not assessable")
    blind = linear.LogisticRegression().fit(people[["age", "income"]].to_numpy(), people.hired)
    made = audit(blind, table, sensitive="sex", target="hired", columns=["age", "income"], settings=TINY)
    assert made.report.attributes[0].rates.table.rate == 0.0
    assert made.report.model.note.endswith("It does not get sex.")


def test_columns_are_for_models_without_names_and_tables_without_a_domain(people, model):
    named = linear.LogisticRegression(max_iter=2000).fit(people[NAMES], people.hired)
    with pytest.raises(DataError, match="the model names its inputs itself"):
        read(people, model=named, sensitive="sex", target="hired", columns=NAMES)
    with pytest.raises(DataError, match=r"has no column 'agee'.*age"):
        read(people, model=model, sensitive="sex", target="hired", columns=["agee", "sex"])
    domain = read(people, sensitive="sex", target="hired").data.domain
    with pytest.raises(DataError, match="the domain sets the order"):
        read(people, model=model, domain=domain, columns=NAMES)


def test_a_model_that_reads_columns_by_name_needs_no_labels(people, model, truth):
    """An audit of scored rows: no target."""
    made = audit(
        lambda table: model.predict_proba(table[NAMES].to_numpy()),
        people.drop(columns="hired"),
        sensitive="sex",
        settings=TINY,
    )
    report = made.report
    assert report.attributes[0].rates.table.rate == truth
    assert report.verdict.level == "dependence found"
    assert report.encoding_check.level == "not assessable"
    assert "Accuracy, error rates and the input encoding are not assessable" in report.encoding_check.text
    assert report.attributes[0].disparity.error_rate_difference is None
    named = "the table has no labels"
    assert named in str(report.attributes[0].disparity.unknown)


def test_accuracy_below_the_most_frequent_class_is_never_ok(people):
    """Weights for the classes are a reason, which is said; with a poor ROC AUC the model is refused."""
    noise = 10 * np.random.default_rng(2).logistic(size=800)
    rare = np.where(people.age + people.income + 20 * people.sex + noise > 165, "yes", "no")
    table = people.assign(hired=rare)
    assert 0.9 < (rare == "no").mean() < 0.97
    weighed = linear.LogisticRegression(class_weight={"no": 1, "yes": 50}, max_iter=2000).fit(people[NAMES], rare)
    found, _ = checked(weighed, table, target="hired")
    assert found.high < found.majority
    assert found.level == "suspicious"
    assert "it weighs the classes" in found.text
    usual = linear.LogisticRegression(max_iter=2000, C=1e-4).fit(people[["job"]], rare)
    found, _ = checked(usual, table, target="hired")
    assert found.accuracy == found.majority  # it always says no, which is no sign of a mismatch
    assert not found.refused
    turned = linear.LogisticRegression(max_iter=2000).fit(-people[NAMES], rare)
    found, _ = checked(turned, table, target="hired")
    assert found.level == "wrong"


def test_the_domain_file_of_an_audit_gives_a_model_of_arrays_the_same_numbers(people, model, tmp_path):
    found = read(
        people,
        model=model,
        sensitive="sex",
        target="hired",
    )
    first = wrap_model(model, found.data.domain, found.data)
    (tmp_path / "domain.toml").write_text(found.domain_text)
    again = read(people, domain=tmp_path / "domain.toml").data
    assert again.domain == found.data.domain
    second = wrap_model(model, again.domain, again.rows)  # as replay and repair do
    assert np.allclose(first.model.scores(again.rows), second.model.scores(again.rows), atol=1e-6)
    assert np.allclose(second.model.scores(again.rows), model.predict_proba(people[NAMES].to_numpy()), atol=1e-5)


def test_fewer_samples_for_a_black_box_are_said(people, model):
    made = audit(model.predict_proba, people, sensitive="sex", target="hired", settings=replace(TINY, samples=10_000))
    (note,) = (note for note in made.report.attributes[0].health if note.name == "fewer-samples")
    assert note.seen == (
        "To save time, 2,500 people were sampled from each population instead of 10,000 (a black box takes longer)."
    )
    assert made.report.attributes[0].rates.domain.of == 2_500
    white = audit(model, people, sensitive="sex", target="hired", settings=replace(TINY, samples=10_000))
    assert white.report.attributes[0].rates.domain.of == 10_000
    assert "fewer-samples" not in {note.name for note in white.report.attributes[0].health}
