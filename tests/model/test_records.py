"""Records of a data set: the model is given the original cells, or the numbers in them, and what changes of codes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.tables.dataset import Dataset, read_table
from neuronfair.measure.groups import measure_groups
from neuronfair.measure.rate import flip_rate
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.model.records import REFUSES_EMPTY, prepare_records

pd = pytest.importorskip("pandas")

DOMAIN = parse_domain("""
name = "people"
sensitive = ["sex"]
target = { column = "y", classes = ["0", "1"] }
[attributes]
sex = { kind = "flag", values = ["f", "m"] }
util = { kind = "continuous", low = 0, high = 10, step = 1, center = 2, scale = 4, outliers = "clip", missing = 3 }
city = { kind = "nominal", values = ["a", "b", "other"], other = "other", extra = { c = 2 } }
""")
CELLS = {
    "sex": ["f", "m", "f", "m"],
    "util": [0.25, 400.5, 7.0, 2.75],
    "city": ["a", "c", "d", "b"],
    "y": [0, 1, 0, 1],
}


def people(**other) -> Dataset:
    return read_table(pd.DataFrame({**CELLS, **other}), DOMAIN)


def seen_by(function):
    """Return a model that notes every table that it is given."""
    tables = []

    def model(table):
        tables.append(table.copy())
        return function(table)

    return model, tables


def test_a_model_of_tables_is_given_the_cells_as_they_came():
    data = people()
    model, tables = seen_by(lambda table: (table["util"] > 2.5).to_numpy(float))
    records = prepare_records(wrap_model(model, DOMAIN, data), data)
    assert records.form == "cells"
    assert not records.reason
    last = tables[-1]
    assert last["util"].tolist() == CELLS["util"]
    assert last["city"].tolist() == CELLS["city"]
    assert records.model.record_scores[:, 0].tolist() == [0, 1, 1, 1]


def test_only_the_changed_cells_of_a_twin_are_those_of_codes():
    data = people()
    model, tables = seen_by(lambda table: (table["sex"] == "m").to_numpy(float))
    records = prepare_records(wrap_model(model, DOMAIN, data), data)
    asked = len(tables)
    rate = flip_rate(records.model, records.data.domain, population=records.data.rows, decision=HALF)
    assert rate.flips == 4
    twins = tables[asked].sort_values("util")
    assert twins["util"].tolist() == sorted(CELLS["util"])
    assert twins["sex"].tolist() == ["m", "f", "m", "f"]  # of 0.25, 2.75, 7 and 400.5
    assert len(tables) == asked + 1  # the records themselves were asked about before


HALF = Decision("threshold", 0.5)


def test_records_that_are_taken_keep_their_own_cells():
    data = people().take(torch.tensor([3, 1]))
    model, tables = seen_by(lambda table: table["util"].to_numpy(float))
    records = prepare_records(wrap_model(model, DOMAIN, data, decision=HALF), data)
    assert records.model.record_scores[:, 0].tolist() == [2.75, 400.5]
    assert tables[-1]["city"].tolist() == ["b", "c"]


def test_a_file_gives_numbers_and_labels_beyond_the_domain(tmp_path):
    path = tmp_path / "people.csv"
    pd.DataFrame(CELLS).to_csv(path, index=False)
    data = read_table(path, DOMAIN)
    model, tables = seen_by(lambda table: table["util"].to_numpy(float))
    records = prepare_records(wrap_model(model, DOMAIN, data.rows, decision=HALF), data)
    assert records.model.record_scores[:, 0].tolist() == CELLS["util"]
    assert tables[-1]["city"].tolist() == CELLS["city"]


def test_a_network_is_given_the_numbers_between_two_codes():
    data = people()
    linear = nn.Linear(5, 1, bias=False)  # sex, util scaled, and a block of three
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.5, 1.0, 0.0, 0.0, 0.0]]))
    network = Network(nn.Sequential(linear), DOMAIN, layers=())
    records = prepare_records(network, data)
    assert records.form == "numbers"
    scaled = [(number - 2) / 4 for number in CELLS["util"]]
    sexes = [0, 1, 0, 1]
    expected = [0.5 * sex + number for sex, number in zip(sexes, scaled, strict=True)]
    assert records.model.record_scores[:, 0].tolist() == pytest.approx(expected)
    twins = records.data.rows.clone()
    twins[:, 0] = 1 - twins[:, 0]
    expected = [0.5 * (1 - sex) + number for sex, number in zip(sexes, scaled, strict=True)]
    assert records.model.scores(twins)[:, 0].tolist() == pytest.approx(expected)


def test_a_module_of_columns_is_given_the_numbers_between_two_codes():
    class Scaled(nn.Module):
        def forward(self, sex, util):
            return util + 0.5 * sex[:, None].float()

    data = people(util=[0.25, 400.5, np.nan, 2.75])
    records = prepare_records(wrap_model(Scaled(), DOMAIN, data, decision=HALF), data)
    assert records.form == "cells"
    expected = [(number - 2) / 4 + 0.5 * sex for sex, number in zip([0, 1, 0, 1], [0.25, 400.5, 3, 2.75], strict=True)]
    assert records.model.record_scores[:, 0].tolist() == pytest.approx(
        expected
    )  # an empty cell is 3, as the domain says


def test_a_graph_of_columns_is_given_the_cells_as_they_came(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from onnx import helper

    value = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 1])  # noqa: E731
    nodes = [helper.make_node("Add", ["util", "util"], ["y"])]
    graph = helper.make_graph(nodes, "twice", [value("util")], [value("y")])
    path = tmp_path / "twice.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    data = people()
    records = prepare_records(wrap_model(path, DOMAIN, data, decision=HALF), data)
    assert records.form == "cells"
    assert records.model.record_scores[:, 0].tolist() == pytest.approx([2 * number for number in CELLS["util"]])


def test_cells_on_the_grid_leave_a_network_alone():
    data = people(util=[0, 4, 7, 2], city=["a", "b", "a", "b"])
    network = Network(nn.Sequential(nn.Linear(5, 2)), DOMAIN, layers=())
    assert prepare_records(network, data).model is network


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_a_copy_of_a_data_set_has_the_same_records(copied):
    data = copied(people())
    assert prepare_records(wrap_model(lambda table: table["util"] > 2.5, DOMAIN, data), data).form == "cells"


def test_where_only_codes_can_be_given_it_is_said():
    data = people()
    box = BlackBox(lambda rows: rows[:, 1].double(), DOMAIN)
    records = prepare_records(box, data)
    assert records.form == "codes"
    assert records.reason == "the model reads values of the domain only"
    assert records.model is box
    assert not prepare_records(box, people(util=[0, 4, 7, 2])).reason


def test_empty_cells_are_given_as_they_are_and_filled_only_where_they_are_refused():
    data = people(util=[0.25, np.nan, 7.0, 2.75])
    records = prepare_records(
        wrap_model(lambda t: t["util"].fillna(9).to_numpy(), DOMAIN, data.rows, decision=HALF), data
    )
    assert records.model.record_scores[:, 0].tolist() == [0.25, 9, 7, 2.75]
    assert not records.reason

    def refuses(table):
        if table["util"].isna().any():
            raise ValueError("NaN")
        return table["util"].to_numpy(float)

    records = prepare_records(wrap_model(refuses, DOMAIN, data.rows, decision=HALF), data)
    assert records.model.record_scores[:, 0].tolist() == [0.25, 3, 7, 2.75]  # as the domain says
    assert records.reason == REFUSES_EMPTY


def test_groups_are_counted_with_the_original_cells():
    data = people()
    model = wrap_model(lambda table: (table["util"] > 7.5).to_numpy(float), DOMAIN, data)
    records = prepare_records(model, data)
    found = measure_groups(records.model, records.data.domain, records.data.rows, decision=HALF)
    assert [(g.codes, g.selection) for g in found] == [((0,), (1.0, 0.0)), ((1,), (0.5, 0.5))]


@pytest.mark.parametrize("kind", ["category", "bool", "string"])
def test_a_twin_has_the_type_of_its_column(kind):
    sexes = {"category": pd.Categorical(CELLS["sex"]), "bool": [False, True, False, True]}.get(kind, CELLS["sex"])
    frame = pd.DataFrame({**CELLS, "sex": sexes})
    frame = frame.astype({"sex": "string"}) if kind == "string" else frame
    sex = replace(DOMAIN.attributes[0], values=("False", "True")) if kind == "bool" else DOMAIN.attributes[0]
    domain = replace(DOMAIN, attributes=(sex, *DOMAIN.attributes[1:]))
    data = read_table(frame, domain)
    model, tables = seen_by(lambda table: np.zeros(len(table)))
    records = prepare_records(wrap_model(model, domain, data), data)
    twins = records.data.rows.clone()
    twins[:, 0] = 1 - twins[:, 0]
    records.model.scores(twins)
    assert tables[-1]["sex"].dtype == frame["sex"].dtype
    assert tables[-1]["sex"].tolist() == [frame["sex"][1], frame["sex"][0]] * 2
