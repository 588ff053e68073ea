"""ONNX files, compared with onnxruntime; those that torch cannot run are black boxes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from neuronfair.errors import ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.model.open.graphs import Unsupported, onnx_file, onnx_operators
from neuronfair.model.open.opened import ModelInputs
from tests.model.open.conftest import check_black_box, check_white_box, trained

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
runtime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")
helper = onnx.helper
FLOAT, INT, TEXT = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.STRING
HALF = onnx.TensorProto.FLOAT16


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Linear(8, 16)
        self.c, self.pool, self.o = nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.Linear(12, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.a(x)))
        x = nn.functional.relu6(self.b(x)).view(x.size(0), 1, 4, 4)
        return self.o(self.pool(nn.functional.elu(self.c(x))).flatten(1)).softmax(1)


def answers(path, x) -> np.ndarray:
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.parametrize("dynamo", [True, False], ids=["torch.export", "TorchScript"])
def test_a_network_exported_by_torch(dynamo, crowd, tmp_path):
    if dynamo:
        pytest.importorskip("onnxscript", reason="the package onnxscript is not installed")
        if torch.__version__ < "2.13":
            pytest.skip("torch 2.9 cannot export it, and 2.10 exports an operator that is known as a black box only")
    torch.manual_seed(0)
    loss = nn.NLLLoss()
    module = trained(Net(crowd.x.shape[1]), crowd.x, lambda y: loss(y.log(), crowd.labels))
    path = tmp_path / "net.onnx"
    how = {"dynamic_shapes": ({0: torch.export.Dim("n")},)} if dynamo else {"dynamic_axes": {"x": {0: "n"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn of their own future
        torch.onnx.export(module, (crowd.x[:3],), path, input_names=["x"], dynamo=dynamo, verbose=False, **how)
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, answers(path, crowd.x), [8, 16, 48])
    assert (found.kind, found.decision) == ("ONNX", Decision())
    torch.testing.assert_close(found.model.scores(crowd.rows), module(crowd.x).detach(), rtol=0, atol=1e-5)


def graph(path, nodes, arrays=None, outputs=(("y", FLOAT),), inputs=None, width=14, opset=17):
    """Write an ONNX file by hand."""
    given = [helper.make_tensor_value_info(n, t, ["n", w]) for n, t, w in inputs or [("x", FLOAT, width)]]
    stored = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in (arrays or {}).items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    versions = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph(nodes, "g", given, results, stored), opset_imports=versions)
    model.ir_version = 8
    onnx.save(model, path)
    return path


def floats(*shape) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape, scale=0.2).astype(np.float32)


def ints(*values) -> np.ndarray:
    return np.array(values, dtype=np.int64)


node = helper.make_node
FIRST = [node("Gemm", ["x", "w", "b"], ["h"], transB=1), node("Relu", ["h"], ["r"], name="hidden")]


def OUT(name):
    return node("Gemm", [name, "v"], ["y"])


WEIGHTS = {"w": floats(16, 14), "b": floats(16)}
VARIANTS = {
    "gemm": ([node("Gemm", ["r", "v"], ["y"], alpha=0.5)], {"v": floats(16, 2)}),
    "gemm with parts": (
        [node("Gemm", ["r", "v", "c"], ["y"], alpha=2.0, beta=3.0)],
        {"v": floats(16, 2), "c": floats(2)},
    ),
    "matmul": (
        [
            node("MatMul", ["r", "v"], ["m"]),
            node("Add", ["m", "c"], ["p"]),
            node("Sub", ["p", "s"], ["q"]),
            node("Mul", ["q", "s"], ["t"]),
            node("Div", ["t", "d"], ["y"]),
        ],
        {"v": floats(16, 2), "c": floats(2), "s": floats(1), "d": np.float32(3.0).reshape(1)},
    ),
    "division of whole numbers": (
        [
            node("Mul", ["r", "ten"], ["t"]),
            node("Sub", ["t", "two"], ["s"]),
            node("Cast", ["s"], ["i"], to=INT),
            node("Div", ["i", "three"], ["d"]),
            node("Cast", ["d"], ["f"], to=FLOAT),
            node("Add", ["f", "r"], ["y"]),
        ],
        {"ten": np.float32(10.0), "two": np.float32(5.0), "three": ints(3)},
    ),
    "log softmax": ([node("LogSoftmax", ["r"], ["y"], axis=1)], {}),
    "dropout, identity, cast": (
        [node("Dropout", ["r"], ["d"]), node("Identity", ["d"], ["i"]), node("Cast", ["i"], ["c"], to=FLOAT), OUT("c")],
        {"v": floats(16, 2)},
    ),
    "dropout that is off": (
        [node("Dropout", ["r", "share", "off"], ["d"]), OUT("d")],
        {"share": np.float32(0.5), "off": np.array(False), "v": floats(16, 2)},
    ),
    "reshape, transpose, squeeze": (
        [
            node("Reshape", ["r", "shape"], ["a"]),
            node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
            node("Unsqueeze", ["t", "one"], ["u"]),
            node("Squeeze", ["u", "one"], ["q"]),
            node("Flatten", ["q"], ["y"]),
        ],
        {"shape": ints(0, 2, 8), "one": ints(1)},
    ),
    "shape by hand": (
        [
            node("Shape", ["r"], ["s"]),
            node("Gather", ["s", "zero"], ["n"], axis=0),
            node("Unsqueeze", ["n", "first"], ["n1"]),
            node("Concat", ["n1", "rest"], ["shape"], axis=0),
            node("Reshape", ["r", "shape"], ["q"]),
            OUT("q"),
        ],
        {"v": floats(16, 2), "zero": ints(0).reshape(()), "first": ints(0), "rest": ints(-1)},
    ),
    "convolution": (
        [
            node("Reshape", ["r", "shape"], ["a"]),
            node("Conv", ["a", "k", "kb"], ["c"], pads=[0, 1, 1, 2], strides=[1, 2], dilations=[1, 1], group=1),
            node("AveragePool", ["c"], ["p"], kernel_shape=[2, 2], pads=[1, 0, 0, 0], count_include_pad=1),
            node("MaxPool", ["p"], ["m"], kernel_shape=[2, 1], pads=[1, 0, 0, 0], strides=[2, 1]),
            node("GlobalAveragePool", ["m"], ["g"]),
            node("Flatten", ["g"], ["y"]),
        ],
        {"shape": ints(-1, 1, 4, 4), "k": floats(3, 1, 2, 2), "kb": floats(3)},
    ),
    "concat": ([node("Concat", ["r", "x"], ["y"], axis=1)], {}),
    "clip below": ([node("Clip", ["r", "low"], ["y"])], {"low": np.float32(0.5)}),
    "clip above a computed bound": (
        [
            node("Cast", ["whole"], ["high"], to=FLOAT),
            node("Clip", ["r", "low", "high"], ["c"]),
            OUT("c"),
        ],
        {"low": np.float32(0.0), "whole": np.int64(30), "v": floats(16, 2)},
    ),
    "constant": (
        [node("Constant", [], ["k"], value=onnx.numpy_helper.from_array(floats(1))), node("Mul", ["r", "k"], ["y"])],
        {},
    ),
    "scores beside a label": ([node("ArgMax", ["r"], ["label"], axis=1), node("Softmax", ["r"], ["y"])], {}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_operators_agree_with_onnxruntime(name, crowd, tmp_path):
    nodes, arrays = VARIANTS[name]
    outputs = (("y", FLOAT), ("label", INT))[: 2 if "label" in name else 1]
    path = graph(tmp_path / "g.onnx", FIRST + nodes, WEIGHTS | arrays, outputs)
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, answers(path, crowd.x), [16])
    assert found.model.layers == ("hidden",)


@pytest.mark.parametrize(
    "hidden",
    [
        node("LeakyRelu", ["h"], ["r"], alpha=0.2),
        node("Elu", ["h"], ["r"], alpha=0.5),
        node("Selu", ["h"], ["r"]),
        node("Selu", ["h"], ["r"], gamma=2.0),
        node("Selu", ["h"], ["r"], alpha=0.5, gamma=2.0),
        node("Selu", ["h"], ["r"], alpha=1.67326319, gamma=1.05070102),
        node("Sigmoid", ["h"], ["r"]),
        node("Clip", ["h", "low", "high"], ["r"]),
        node("Clip", ["h", "low"], ["r"]),
        node("Gelu", ["h"], ["r"], approximate="tanh"),
        node("Gelu", ["h"], ["r"]),
    ],
    ids=lambda n: f"{n.op_type}{len(n.input)}{len(n.attribute)}",
)
def test_activations_are_layers(hidden, crowd, tmp_path):
    nodes = [FIRST[0], hidden, node("Gemm", ["r", "v"], ["y"])]
    arrays = WEIGHTS | {"v": floats(16, 2), "low": np.float32(0.0), "high": np.float32(0.7)}
    path = graph(tmp_path / "g.onnx", nodes, arrays, opset=20)
    check_white_box(wrap_model(path, crowd.domain, crowd.rows), crowd.rows, answers(path, crowd.x), [16])


def test_a_bound_that_no_row_of_the_table_reaches_is_kept(crowd, tmp_path):
    """Twins may reach it, so that a network without it would be another function."""
    nodes, arrays = VARIANTS["clip above a computed bound"]
    module = wrap_model(graph(tmp_path / "g.onnx", FIRST + nodes, WEIGHTS | arrays), crowd.domain, crowd.rows).module
    far, beyond = (module(x * torch.ones(1, 14)) for x in (1e6, 1e7))
    assert torch.equal(far, beyond)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([node("HardSigmoid", ["r"], ["y"])], "the operator HardSigmoid"),
        ([node("Softmax", ["r"], ["y"], axis=0)], "Softmax along axis 0"),
        ([node("LpNormalization", ["r"], ["y"])], "the operator LpNormalization"),
        ([node("Cast", ["r"], ["c"], to=HALF), node("Cast", ["c"], ["y"], to=FLOAT)], "a cast to type 10"),
    ],
)
def test_other_graphs_are_black_boxes(nodes, says, crowd, tmp_path):
    path = graph(tmp_path / "g.onnx", [*FIRST, *nodes], WEIGHTS)
    if "axis" in says:  # such a model mixes people
        with pytest.raises(ModelError, match="other rows"):
            wrap_model(path, crowd.domain, crowd.rows)
        return
    check_black_box(wrap_model(path, crowd.domain, crowd.rows), crowd.rows, answers(path, crowd.x), says)


def test_a_function_of_the_file_under_a_standard_name_is_not_taken_for_the_operator(crowd, tmp_path):
    path = graph(tmp_path / "g.onnx", [*FIRST, node("Relu", ["r"], ["y"])], WEIGHTS)
    model = onnx.load(path)
    body, version = [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("", "Relu", ["a"], ["b"], body, version))
    with pytest.raises(Unsupported, match=r"its own\.Relu"):
        onnx_file._build_graph(onnx, model, ["x"])


def test_only_the_first_output_of_a_node_is_known(crowd, tmp_path):
    nodes = [
        node("Unsqueeze", ["r", "one"], ["u"]),
        node("MaxPool", ["u"], ["m", "places"], kernel_shape=[2]),
        node("Cast", ["places"], ["c"], to=FLOAT),
        node("Add", ["m", "c"], ["a"]),
        node("Flatten", ["a"], ["y"]),
    ]
    model = onnx.load(graph(tmp_path / "g.onnx", FIRST + nodes, WEIGHTS | {"one": ints(1)}))
    with pytest.raises(Unsupported, match="another output of MaxPool"):
        onnx_file._build_graph(onnx, model, ["x"])


def trees(path, labels):
    """As sklearn-onnx writes pipelines: one input for each column, labels as text, a dictionary for each row."""
    tree = {
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [40.0, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0, 0, 0, 0],
        "class_nodeids": [1, 1, 2, 2],
        "class_ids": [0, 1, 0, 1],
        "class_weights": [1.0, 0.0, 0.0, 1.0],
        "classlabels_int64s": [0, 1],
        "post_transform": "NONE",
    }
    nodes = [
        node("OneHotEncoder", ["sex"], ["s"], domain="ai.onnx.ml", cats_strings=["F", "M"]),
        node("TreeEnsembleClassifier", ["age"], ["label", "p"], domain="ai.onnx.ml", **tree),
        node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", **labels),
    ]
    kind = onnx.helper.make_sequence_type_proto(
        onnx.helper.make_map_type_proto(
            INT if "classlabels_int64s" in labels else TEXT, helper.make_tensor_type_proto(FLOAT, [])
        )
    )
    inputs = [
        helper.make_tensor_value_info("age", FLOAT, ["n", 1]),
        helper.make_tensor_value_info("sex", TEXT, ["n", 1]),
    ]
    outputs = [helper.make_tensor_value_info("label", INT, ["n"]), helper.make_value_info("z", kind)]
    versions = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=versions)
    model.ir_version = 8
    onnx.save(model, path)
    return path


def test_trees_by_columns_of_the_table(crowd, tmp_path):
    path = trees(tmp_path / "trees.onnx", {"classlabels_int64s": [0, 1]})
    found = wrap_model(path, crowd.domain, crowd.rows)
    old = (crowd.rows[:, 0] + 17 > 40).double()
    check_black_box(found, crowd.rows, torch.stack([1 - old, old], 1), "it reads the table itself")
    assert "its classes 0, 1 are taken for low, high in this order" in found.note
    assert found.decision == Decision()
    path = trees(tmp_path / "trees.onnx", {"classlabels_strings": ["high", "low"]})
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, torch.stack([old, 1 - old], 1), "it reads the table itself")
    assert "its classes" not in found.note


def test_without_onnxruntime_it_says_what_to_install(crowd, tmp_path, monkeypatch):
    path = graph(tmp_path / "g.onnx", [*FIRST, node("HardSigmoid", ["r"], ["y"])], WEIGHTS)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"the operator HardSigmoid.*pip install 'neuronfair\[onnx\]'"):
        wrap_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize(
    ("nodes", "arrays", "options", "says"),
    [
        ([node("ArgMax", ["r"], ["y"], axis=1)], {}, {"outputs": (("y", INT),)}, "ends in ArgMax"),
        ([node("Reshape", ["r", "s"], ["y"])], {"s": ints(1, 16)}, {}, "dynamic batch size"),
        (
            [node("Identity", ["r"], ["y"])],
            {"w": floats(16, 9)},
            {"width": 9},
            r"shape \(n, 9\).*gives 14 numbers a row",
        ),
        ([node("Identity", ["r"], ["y"])], {"b": floats(16) * np.nan}, {}, "'b' hold NaN"),
    ],
    ids=["argmax", "fixed batch", "width", "nan"],
)
def test_refusals(nodes, arrays, options, says, crowd, tmp_path):
    path = graph(tmp_path / "g.onnx", [*FIRST, *nodes], WEIGHTS | arrays, **options)
    with pytest.raises(ModelError, match=says) as error:
        wrap_model(path, crowd.domain, crowd.rows)
    assert "\n" not in str(error.value)


def test_a_truncated_file(crowd, tmp_path):
    path = graph(tmp_path / "g.onnx", [*FIRST, node("Identity", ["r"], ["y"])], WEIGHTS)
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(ModelError, match="not a readable ONNX file"):
        wrap_model(path, crowd.domain, crowd.rows)


def test_a_graph_that_torch_computes_otherwise_is_a_black_box(crowd, tmp_path, monkeypatch):
    path = graph(tmp_path / "g.onnx", [*FIRST, OUT("r")], WEIGHTS | {"v": floats(16, 2)})
    monkeypatch.setitem(onnx_operators._ACTIVATIONS, "Relu", lambda _: nn.Softplus())
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, answers(path, crowd.x), "its scores could not be reproduced in torch")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    found = wrap_model(path, crowd.domain, crowd.rows)
    assert found.white_box  # there is nothing to compare with, which is said
    assert "not compared with its source" in found.note


def test_a_graph_for_one_row_at_a_time_is_asked_row_by_row(crowd, tmp_path, monkeypatch):
    path = graph(tmp_path / "g.onnx", [*FIRST, OUT("r")], WEIGHTS | {"v": floats(16, 2)})
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(model, path)
    found = wrap_model(path, crowd.domain, crowd.rows)
    assert found.white_box
    assert found.model.rows_forward == 0
    monkeypatch.setitem(onnx_operators._ACTIVATIONS, "Relu", lambda _: nn.Softplus())
    found = wrap_model(path, crowd.domain, crowd.rows)
    assert not found.white_box
    assert "could not be reproduced" in found.note


def test_a_rebuilt_graph_whose_source_does_not_answer_is_no_white_box(crowd, tmp_path, monkeypatch):
    path = graph(tmp_path / "g.onnx", [*FIRST, OUT("r")], WEIGHTS | {"v": floats(16, 2)})

    def refuses(*_):
        raise RuntimeError("not today")

    monkeypatch.setattr(onnx_file, "_make_onnx_scores", lambda *_: ModelInputs(refuses))
    with pytest.raises(ModelError, match="not today"):
        wrap_model(path, crowd.domain, crowd.rows)
