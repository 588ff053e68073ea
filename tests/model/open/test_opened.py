"""Attributes that no model is given: every kind of model answers as it does without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset, limit_domain
from neuronfair.errors import ModelError
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.model.train import train
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import fully_connected, save_weights
from tests.model.open.conftest import check_white_box


def without(domain: TableDomain, *names: str) -> TableDomain:
    """The domain with attributes that no model is given."""
    return replace(
        domain, attributes=tuple(replace(a, encode="none") if a.name in names else a for a in domain.attributes)
    )


@pytest.fixture
def outside(crowd):
    """The crowd, of whom no model is told sex and race; and the numbers that are left."""
    domain = without(crowd.domain, "sex", "race")
    return crowd._replace(domain=domain, x=TableEncoding.of(domain).encode(crowd.rows))


def moved(rows):
    """The same people with another sex and race."""
    other = rows.clone()
    other[:, 1], other[:, 4] = 1 - rows[:, 1], (rows[:, 4] + 1) % 3
    return other


def test_a_module_is_a_white_box_over_the_others(outside):
    torch.manual_seed(0)
    module = fully_connected(10, (6, 4))
    opened = wrap_model(module, outside.domain, outside.rows)
    check_white_box(opened, outside.rows, module(outside.x).detach(), [6, 4])
    assert opened.note.endswith("It does not get sex and race.")
    assert torch.equal(opened.model.scores(outside.rows), opened.model.scores(moved(outside.rows)))
    assert torch.equal(opened.model.scores_of_inputs(outside.x), opened.model.scores(outside.rows))
    gradient = opened.model.gradient(outside.rows, lambda scores: scores[:, 0])
    size = opened.model.encoding.influence(gradient, outside.rows)
    assert (size[:, [1, 4]] == 0).all()
    assert (size[:, 0] > 0).any()


def test_a_network_and_a_black_box_of_the_whole_domain_stay_as_they_are(outside):
    network = Network(fully_connected(10, (4,)), outside.domain)
    assert wrap_model(network, outside.domain, outside.rows).model is network
    box = BlackBox(lambda rows: (rows[:, 0] > 20).double().numpy(), outside.domain)  # it is told all codes
    opened = wrap_model(box, outside.domain, outside.rows)
    assert torch.equal(opened.model.scores(outside.rows), box.scores(outside.rows))


def test_a_function_is_given_a_table_without_them(outside):
    seen = set()

    def decide(table):
        seen.update(table.columns)
        return (table.age > 40).to_numpy(dtype=float)

    opened = wrap_model(decide, outside.domain, outside.rows)
    assert seen == {"age", "relationship", "marital", "gain", "loss"}
    older = torch.from_numpy(np.asarray(outside.domain.to_table(outside.rows)["age"]) > 40)
    assert torch.equal(opened.model.scores(outside.rows)[:, 0], older.double())
    # It is known by its answers, which do not depend on what it is not given.
    fewer = limit_domain(outside.domain.with_sensitive("age"), list(seen))
    kept = [outside.domain.column(name) for name in fewer.names]
    assert wrap_model(decide, fewer, outside.rows[:, kept]).fingerprint == opened.fingerprint


def test_trees_are_told_by_their_own_columns(outside):
    ensemble = pytest.importorskip("sklearn.ensemble")
    x, y = outside.x.numpy(), outside.labels.numpy()
    model = ensemble.RandomForestClassifier(5, max_depth=4, random_state=0).fit(x, y)
    opened = wrap_model(model, outside.domain, outside.rows)
    np.testing.assert_allclose(opened.model.scores(outside.rows), model.predict_proba(x))
    torch.testing.assert_close(opened.trees().scores(outside.rows), opened.model.scores(outside.rows))
    assert opened.model.cells is not None
    assert [len(cell) for cell in opened.model.cells] == outside.domain.sizes.tolist()
    assert [int(opened.model.cells[column].max()) for column in (1, 4)] == [0, 0]  # nobody is told apart by these


def test_a_pipeline_of_named_columns_becomes_a_network(outside):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    table = pandas.DataFrame(outside.domain.to_table(outside.rows))[["gain", "age"]]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(table, outside.labels.numpy())
    opened = wrap_model(model, outside.domain, outside.rows)
    assert opened.white_box
    np.testing.assert_allclose(opened.model.scores(outside.rows), model.predict_proba(table), atol=1e-5)


def test_a_network_that_is_trained_without_them_opens_with_and_without_the_columns(outside, tmp_path):
    data = Dataset("crowd", outside.domain, outside.rows, outside.labels)
    module, card = train(data, hidden=(4,), settings=TrainingSettings(epochs=2, restarts=1))
    assert card.inputs == 10
    save_weights(tmp_path / "m.safetensors", module, card)
    opened = wrap_model(tmp_path / "m.safetensors", outside.domain, outside.rows)
    fewer = Dataset.only(
        replace(data, domain=outside.domain.with_sensitive("age")), ["age", "relationship", "marital", "gain", "loss"]
    )
    assert torch.equal(
        wrap_model(tmp_path / "m.safetensors", fewer.domain, fewer.rows).model.scores(fewer.rows),
        opened.model.scores(outside.rows),
    )


@pytest.mark.parametrize(
    ("module", "said"),
    [(nn.Linear(3, 2), "gives 14 numbers a row .*, and 13 without sex"), (fully_connected(3, (4,)), "13 without sex")],
)
def test_a_width_that_fits_neither_way_names_both(crowd, module, said):
    with pytest.raises(ModelError, match=said):
        wrap_model(module, crowd.domain, crowd.rows)
    with pytest.raises(ModelError, match=r"gives 13 numbers a row .* without sex;"):
        wrap_model(module, without(crowd.domain, "sex"), crowd.rows)


def test_a_model_that_would_be_given_nothing_that_varies_is_refused(outside):
    names = [name for name in outside.domain.names if name != "age"]
    one = without(outside.domain, *names)
    one = replace(one, rules=(), attributes=(replace(one.attributes[0], low=30, high=30), *one.attributes[1:]))
    with pytest.raises(ModelError, match="one value only"):
        wrap_model(nn.Linear(1, 2), one, outside.rows)
