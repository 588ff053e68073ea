"""Black boxes: any function from numbers to scores can be judged and searched, and says clearly when it cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from neuronfair import BlackBox, Decision, NeuronFairError, evaluate, search
from neuronfair.domain.draws import Draws
from neuronfair.errors import ModelError
from neuronfair.model.encoding import TableEncoding
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.health import check_health
from neuronfair.searches.method import SearchContext
from neuronfair.searches.methods import METHODS
from tests.planted import networks

DOMAIN = networks.domain()
ROWS = networks.uniform_rows(DOMAIN, 400)
X = TableEncoding.of(DOMAIN).encode(ROWS, torch.float64)
WITHOUT_GRADIENTS = [name for name, method in METHODS.items() if not method.gradients]
WITH_GRADIENTS = [name for name, method in METHODS.items() if method.gradients]


def answers() -> np.ndarray:
    """Whether the digits add up to less than 18.5, or 22.5 where the sensitive bit is set."""
    return (ROWS[:, :4].sum(1) < 18.5 + 4 * ROWS[:, 4]).long().numpy()


MODELS = {
    "logistic": LogisticRegression(max_iter=2000).fit(X.numpy(), answers()),
    "tree": DecisionTreeClassifier(max_depth=6, random_state=0).fit(X.numpy(), answers()),
}


def box(model: str = "logistic") -> BlackBox:
    return BlackBox.of_inputs(MODELS[model].predict_proba, DOMAIN)


def config(method: str, **options) -> SearchConfig:
    return SearchConfig(method, seeds=8, steps=12, global_steps=12, **options)


# Scores


def test_scores_are_what_the_function_says():
    model = box()
    assert (model.outputs, model.dtype, model.rows_forward) == (2, torch.float64, 0)
    scores = model.scores(X[:7].float())  # whatever the rows come in
    assert scores.dtype == torch.float64
    assert np.array_equal(scores.numpy(), MODELS["logistic"].predict_proba(X[:7].numpy()))
    model.scores(X[:5])
    assert model.rows_forward == 12
    assert model.double() is model


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x[:, 0],
        lambda x: x[:, :1],
        lambda x: x[:, 0].astype(np.float32),
        lambda x: x[:, 0].astype(int),
        lambda x: x[:, 0].tolist(),
        lambda x: torch.from_numpy(x)[:, 0],
    ],
    ids=["flat", "column", "float32", "int", "list", "tensor"],
)
def test_one_score_per_row_in_any_form(answer):
    model = BlackBox.of_inputs(answer, DOMAIN)
    assert model.outputs == 1
    assert torch.equal(model.scores(ROWS), X[:, :1])


@pytest.mark.parametrize(
    "answer",
    [lambda x: x[:, 1::-1], lambda x: np.broadcast_to([0.0, 1.0], (len(x), 2))],
    ids=["reversed", "read-only"],
)
def test_views_that_torch_cannot_hold(answer):
    model = BlackBox.of_inputs(answer, DOMAIN)
    assert model.scores(ROWS[:9]).tolist() == answer(X[:9].numpy()).tolist()


def test_a_black_box_sees_plain_numbers_only():
    seen = []

    def predict(x: np.ndarray) -> np.ndarray:
        seen.append((type(x), x.dtype, x.shape))
        return x[:, 0]

    evaluate(BlackBox.of_inputs(predict, DOMAIN), DOMAIN, ROWS[:6], Decision("threshold", 0.5))
    assert seen == [(np.ndarray, np.float64, (2, 5)), (np.ndarray, np.float64, (12, 5))]  # rows and twins at once


# Failures


def test_a_function_that_fails_at_once():
    def predict(x: np.ndarray) -> np.ndarray:
        raise ValueError("X has 5 features")

    with pytest.raises(ModelError, match=r"the black box failed on rows of shape \(2, 5\): X has 5 features") as caught:
        BlackBox.of_inputs(predict, DOMAIN)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda x: x[:-1, 0], r"must return 2 scores or rows of scores, got \(1, 1\)"),
        (lambda x: x[None], r"must return 2 scores or rows of scores, got \(1, 2, 5\)"),
        (lambda x: 0.5, r"must return 2 scores or rows of scores, got \(\)"),
        (lambda x: ["yes"] * len(x), "could not convert string"),
        (lambda x: None, "black box"),
    ],
    ids=["short", "deep", "number", "labels", "nothing"],
)
def test_answers_of_a_wrong_form(answer, says):
    with pytest.raises(ModelError, match=says):
        BlackBox.of_inputs(answer, DOMAIN)


def late(change) -> BlackBox:
    """A black box that does well at its first three calls."""
    calls = []

    def predict(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        scores = MODELS["logistic"].predict_proba(x)
        return scores if len(calls) <= 3 else change(scores)

    return BlackBox.of_inputs(predict, DOMAIN)


def fail(_: np.ndarray) -> np.ndarray:
    raise ConnectionError("the server is gone")


@pytest.mark.parametrize("method", WITHOUT_GRADIENTS)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (fail, "the black box failed on rows of shape .*: the server is gone"),
        (lambda s: s[:, :1], "gave 2 scores a row at first and 1 now"),
        (lambda s: s[1:], "must return"),
        (lambda s: s * np.nan, "NaN or infinite"),
        (lambda s: np.where(s == s[0, 0], np.inf, s), "NaN or infinite"),
    ],
    ids=["raises", "narrow", "short", "nan", "inf"],
)
def test_failures_in_the_middle_of_a_search(method, change, says):
    with pytest.raises(ModelError, match=says):
        search(late(change), DOMAIN, ROWS, config(method), seeds=ROWS[:8])


def test_one_score_has_no_classes():
    model = BlackBox.of_inputs(lambda x: x[:, 0], DOMAIN)
    with pytest.raises(ModelError, match="Decide by a threshold instead"):
        search(model, DOMAIN, ROWS, config("uniform"))


# Searching


@pytest.mark.parametrize("method", WITHOUT_GRADIENTS)
@pytest.mark.parametrize("model", MODELS)
def test_findings_are_decided_otherwise_by_the_classifier_itself(method, model):
    outcome = search(box(model), DOMAIN, ROWS, config(method))
    found = outcome.findings
    assert len(found) > 8
    rows, twins = found.rows, found.twins(DOMAIN)
    own, other = (MODELS[model].predict(x.double().numpy()) for x in (rows, twins))
    assert (own != other).all()
    assert torch.equal(rows[:, :4], twins[:, :4])
    assert torch.equal(rows[:, 4], 1 - twins[:, 4])
    assert DOMAIN.valid(rows).all()
    assert len(DOMAIN.key(rows).unique()) == len(found)
    # Nothing inside can be looked at, and there are no directions to take away.
    assert outcome.profile is None
    assert outcome.random_direction is None
    assert outcome.random is not None
    assert outcome.random.evaluated == found.evaluated
    assert outcome.random.findings > 0
    assert not outcome.interrupted
    summary = outcome.summary()
    assert (summary["random_direction"], summary["lift_over_random_direction"]) == (None, None)
    assert summary["lift"] == pytest.approx(found.success_rate / outcome.random.success_rate)
    assert (summary["violations"], summary["rejected_on_recheck"]) == (0, 0)


@pytest.mark.parametrize("method", WITHOUT_GRADIENTS)
def test_a_fair_classifier_gives_no_findings(method):
    model = BlackBox.of_inputs(lambda x: x[:, :4].sum(1) - 18.5, DOMAIN)
    outcome = search(model, DOMAIN, ROWS, config(method, decision=Decision("threshold", 0.0)), seeds=ROWS[:8])
    assert len(outcome.findings) == 0
    assert outcome.random is not None
    assert (outcome.random.findings, outcome.interrupted) == (0, False)
    assert outcome.findings.tried > 8


@pytest.mark.parametrize("method", WITHOUT_GRADIENTS)
def test_a_network_and_the_same_network_as_a_black_box(method):
    network = networks.network(networks.one_biased_neuron().double(), DOMAIN)
    hidden = BlackBox.of_inputs(lambda x: network.module(torch.from_numpy(x)).detach().numpy(), DOMAIN)
    seen, unseen = (search(model, DOMAIN, ROWS, config(method), seeds=ROWS[:8]) for model in (network, hidden))
    assert torch.equal(seen.findings.rows, unseen.findings.rows)
    assert torch.equal(seen.findings.twin_values, unseen.findings.twin_values)
    assert seen.random == unseen.random
    assert seen.profile is not None


@pytest.mark.parametrize("method", WITHOUT_GRADIENTS)
@pytest.mark.parametrize("decision", [Decision("threshold", 0.5), Decision("tolerance", 0.3)], ids=lambda d: d.kind)
def test_other_decisions(method, decision):
    model = MODELS["logistic"]
    positive = BlackBox.of_inputs(lambda x: model.predict_proba(x)[:, 1], DOMAIN)
    found = search(positive, DOMAIN, ROWS, config(method, decision=decision, controls=False)).findings
    assert len(found) > 0
    own, other = (model.predict_proba(r.double().numpy())[:, 1] for r in (found.rows, found.twins(DOMAIN)))
    if decision.kind == "threshold":
        assert ((own >= 0.5) != (other >= 0.5)).all()
    else:
        assert (np.abs(own - other) > 0.3).all()


@pytest.mark.parametrize("method", WITHOUT_GRADIENTS)
def test_without_controls_or_seeds(method):
    outcome = search(box(), DOMAIN, ROWS, config(method, controls=False))
    assert (outcome.random, outcome.random_direction, outcome.interrupted) == (None, None, False)
    outcome = search(box(), DOMAIN, ROWS, config(method), seeds=ROWS[:0])
    assert (len(outcome.findings), outcome.findings.evaluated, outcome.interrupted) == (0, 0, False)


@pytest.mark.parametrize("method", WITH_GRADIENTS)
def test_methods_that_follow_gradients_are_refused(method):
    model = box()
    with pytest.raises(NeuronFairError) as caught:
        search(model, DOMAIN, ROWS, config(method))
    message = str(caught.value)
    assert message.startswith(f"method '{method}' follows gradients, and a black box has none. Methods that can: ")
    assert message.split(": ")[1].split(", ") == WITHOUT_GRADIENTS
    assert model.rows_forward == 0  # before anything is asked


def test_there_are_both_kinds_of_methods():
    assert {"aequitas", "aequitas-semi", "aequitas-random", "uniform"} <= set(WITHOUT_GRADIENTS)
    assert {"frontier", "neuronfair-plus", "neuronfair", "adf", "eidig5", "eidiginf"} <= set(WITH_GRADIENTS)


# Health


def health(model: BlackBox, rows: torch.Tensor = ROWS) -> list[str]:
    context = SearchContext(model, DOMAIN, Decision(), Draws(0, "test"))
    return [note.name for note in check_health(context, rows[:8], rows)]


def test_health_checks_look_at_what_a_black_box_shows():
    assert health(box()) == []
    assert health(BlackBox.of_inputs(lambda x: np.ones((len(x), 2)) * [0.9, 0.1], DOMAIN)) == ["constant-decision"]
    assert health(box(), ROWS[ROWS[:, 4] == 1]) == ["one-sensitive-value"]

    def by_sex(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 4], 1 - x[:, 4]], 1)

    assert health(BlackBox.of_inputs(by_sex, DOMAIN)) == ["seeds-already-discriminating"]

    def unsure(x: np.ndarray) -> np.ndarray:
        """Return probabilities near one half, as a weak logistic regression does."""
        odds = np.exp(MODELS["logistic"].predict_proba(x))
        return odds / odds.sum(1, keepdims=True)

    assert health(BlackBox.of_inputs(unsure, DOMAIN)) == []
