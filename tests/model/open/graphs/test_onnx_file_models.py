"""ONNX files that name other files, or would grow: refused before anything is read or run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.open import wrap_model
from neuronfair.model.open.graphs import onnx_file, onnx_operators
from tests.model.open.conftest import check_black_box, check_white_box
from tests.model.open.graphs.test_onnx_file import FIRST, WEIGHTS, answers, floats, graph, helper, ints, onnx

node = helper.make_node
HEAD = [*FIRST, node("Gemm", ["r", "v"], ["y"])]
ARRAYS = WEIGHTS | {"v": floats(16, 2)}


@pytest.fixture
def folder(tmp_path):
    """A folder for a model, beside a secret."""
    (tmp_path / "secret").write_bytes(floats(16, 14).tobytes())
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def moved(tensor, location: str, **where):
    """Say that a tensor lies in another file."""
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **where}.items():
        tensor.external_data.add(key=key, value=str(value))


def written(folder, change, nodes=(), arrays=None):
    path = graph(folder / "g.onnx", [*HEAD, *nodes], ARRAYS | (arrays or {}))
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def of(model, name: str):
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


@pytest.mark.parametrize("black", [False, True], ids=["white box", "black box"])
def test_weights_beside_the_model_are_read_once(black, crowd, folder):
    nodes = [node("HardSigmoid", ["r"], ["s"])] if black else []
    (folder / "deep").mkdir()
    place = folder / "deep" / "weights.bin"
    place.write_bytes(b"12345678" + ARRAYS["w"].tobytes() + b"rest")
    path = graph(folder / "g.onnx", [*FIRST, *nodes, node("Gemm", ["s" if black else "r", "v"], ["y"])], ARRAYS)
    expected = answers(path, crowd.x)
    model = onnx.load(path)
    moved(of(model, "w"), "deep/weights.bin", offset=8, length=16 * 14 * 4)
    path.write_bytes(model.SerializeToString())
    found = wrap_model(path, crowd.domain, crowd.rows)
    place.unlink()  # neither torch nor onnxruntime needs it any more
    if black:
        check_black_box(found, crowd.rows, expected, "the operator HardSigmoid")
    else:
        check_white_box(found, crowd.rows, expected, [16])


@pytest.mark.parametrize(
    ("location", "where", "says"),
    [
        ("../secret", {}, "outside of its own folder"),
        ("deep/../../secret", {}, "outside of its own folder"),
        ("{secret}", {}, "outside of its own folder"),
        ("", {}, "outside of its own folder"),
        ("C:\\secret", {}, "outside of its own folder"),
        ("..\\secret", {}, "outside of its own folder"),
        ("link", {}, "is a link or reached by one"),
        ("way/secret", {}, "is a link or reached by one"),
        ("nothing", {}, "is not there"),
        ("*/_ORT_MEM_ADDR_/*", {"offset": 94000000000000}, "is not there"),
        ("here", {"offset": 4}, "shorter or longer"),
        ("here", {"length": 4}, "shorter or longer"),
        ("here", {"offset": -896, "length": 896}, "shorter or longer"),
        ("here", {"offset": 10**30, "length": 896}, "shorter or longer"),
        ("here", {"length": -1}, "shorter or longer"),
        ("here", {"offset": "x"}, "not a readable ONNX file"),
    ],
)
def test_other_files_are_not_read(location, where, says, crowd, folder):
    (folder / "here").write_bytes(b"\0" * 896)
    (folder / "link").symlink_to("../secret")
    (folder / "way").symlink_to("..")
    location = location.format(secret=folder.parent / "secret")
    path = written(folder, lambda model: moved(of(model, "w"), location, **where))
    with pytest.raises(ModelError, match=says) as error:
        wrap_model(path, crowd.domain, crowd.rows)
    assert "\n" not in str(error.value)


def secret() -> onnx.TensorProto:
    tensor = onnx.numpy_helper.from_array(floats(16, 14), "hidden")
    moved(tensor, "../secret")
    return tensor


def in_a_constant(model):
    model.graph.node.append(node("Constant", [], ["c"], value=secret()))


def in_a_branch(model):
    inner = helper.make_graph([node("Constant", [], ["z"], value=secret())], "inner", [], [])
    model.graph.node.append(node("If", ["r"], ["z"], then_branch=inner, else_branch=inner))


def in_a_branch_weight(model):
    inner = helper.make_graph([node("Identity", ["hidden"], ["z"])], "inner", [], [], [secret()])
    model.graph.node.append(node("If", ["r"], ["z"], then_branch=inner, else_branch=inner))


def in_a_function(model):
    body = [node("Constant", [], ["z"], value=secret())]
    model.functions.append(helper.make_function("own", "f", [], ["z"], body, [helper.make_opsetid("", 17)]))


def in_training(model):
    model.training_info.add().algorithm.initializer.append(secret())


def in_a_sparse_tensor(model):
    places = onnx.numpy_helper.from_array(ints(0))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(secret(), places, [4]))


@pytest.mark.parametrize(
    "hide",
    [in_a_constant, in_a_branch, in_a_branch_weight, in_a_function, in_training, in_a_sparse_tensor],
    ids=lambda f: f.__name__,
)
def test_nor_from_anywhere_in_a_model(hide, crowd, folder):
    with pytest.raises(ModelError, match="outside of its own folder"):
        wrap_model(written(folder, hide), crowd.domain, crowd.rows)


def doubled(axis: int, times: int = 40):
    names = ["r", *(f"d{i}" for i in range(times))]
    steps = [node("Concat", [a, a], [b], axis=axis) for a, b in pairwise(names)]
    return [*FIRST, *steps, node("GlobalAveragePool", [names[-1]], ["y"])]


@pytest.mark.parametrize(
    "nodes",
    [
        doubled(1),
        [
            *FIRST,
            node("Reshape", ["r", "flat"], ["f"]),
            node("Transpose", ["f"], ["t"]),
            node("MatMul", ["f", "t"], ["y"]),
        ],
        [*FIRST, node("Gather", ["r", "many"], ["y"], axis=1)],
        [
            *FIRST,
            node("Reshape", ["r", "tall"], ["t"]),
            node("Conv", ["t", "k"], ["c"], pads=[10**6, 10**6]),
            node("Flatten", ["c"], ["y"]),
        ],
    ],
    ids=["concat", "outer product", "gather", "pads"],
)
def test_graphs_that_grow_are_refused(nodes, crowd, tmp_path):
    arrays = {"flat": ints(-1, 1), "tall": ints(0, 1, 16), "many": ints(*[0] * 20_000), "k": floats(1, 1, 3)}
    path = graph(tmp_path / "g.onnx", nodes, WEIGHTS | arrays)
    with pytest.raises(ModelError, match=r"g.onnx: its step .* GB of memory; 2.0 GB are allowed"):
        wrap_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("ConstantOfShape", ["size"], ["c"])],
        [node("Expand", ["one", "size"], ["c"])],
        [node("Tile", ["one", "size"], ["c"])],
        [node("RandomNormal", [], ["c"], shape=[20000, 20000])],
    ],
    ids=lambda nodes: nodes[0].op_type,
)
def test_onnxruntime_is_held_to_the_limit(nodes, crowd, tmp_path, monkeypatch):
    """1.6 GB, where 200 MB are allowed."""
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "200000000")
    end = [node("ReduceSum", ["c"], ["s"], keepdims=0), node("Add", ["r", "s"], ["y"])]
    arrays = WEIGHTS | {"size": ints(20000, 20000), "one": np.ones((1, 1), np.float32)}
    path = graph(tmp_path / "g.onnx", [*FIRST, *nodes, *end], arrays)
    with pytest.raises(TooLargeError, match=r"g.onnx: takes more than 0.2 GB of memory"):
        wrap_model(path, crowd.domain, crowd.rows)
    path = graph(tmp_path / "g.onnx", [*FIRST, *nodes, *end], arrays | {"size": ints(2, 2)})
    if nodes[0].op_type != "RandomNormal":
        assert not wrap_model(path, crowd.domain, crowd.rows).white_box


def test_also_for_sizes_that_depend_on_the_rows(crowd, tmp_path, monkeypatch):
    """Nothing for rows of zeros, on which a graph is tried first, and more than 400 MB for people."""
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "200000000")
    nodes = [
        node("ReduceMax", ["x"], ["m"], keepdims=0),
        node("Mul", ["m", "many"], ["f"]),
        node("Cast", ["f"], ["i"], to=onnx.TensorProto.INT64),
        node("Reshape", ["i", "one"], ["size"]),
        node("ConstantOfShape", ["size"], ["c"]),
        node("ReduceSum", ["c"], ["s"], keepdims=0),
        node("Add", ["r", "s"], ["y"]),
    ]
    path = graph(tmp_path / "g.onnx", [*FIRST, *nodes], WEIGHTS | {"many": np.float32(1e8), "one": ints(1)})
    with pytest.raises(ModelError, match=r"needs more memory than 0.2 GB. If you trust it, set NEURONFAIR_MAX_BYTES"):
        wrap_model(path, crowd.domain, crowd.rows)


def test_a_small_file_of_many_parts(crowd, tmp_path, monkeypatch):
    """Four million empty nodes of two bytes each take about 600 MB when they are parsed."""
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "100000000")
    thousand = onnx.ModelProto(graph=onnx.GraphProto(node=[onnx.NodeProto()] * 1000))
    (tmp_path / "g.onnx").write_bytes(thousand.SerializeToString() * 4000)  # graphs that follow each other are one
    with pytest.raises(TooLargeError, match=r"g.onnx: takes more than 0.1 GB of memory"):
        wrap_model(tmp_path / "g.onnx", crowd.domain, crowd.rows)


def test_tensors_are_not_larger_than_allowed(crowd, tmp_path, monkeypatch):
    """100,000 numbers of 8 bytes take 6.4 MB with all their copies."""

    def sparse(model, size):
        values = onnx.numpy_helper.from_array(np.ones(1, np.float64), "sparse")
        model.graph.sparse_initializer.append(
            helper.make_sparse_tensor(values, onnx.numpy_helper.from_array(ints(0)), [size])
        )

    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "6500000")
    assert wrap_model(written(tmp_path, lambda m: sparse(m, 10**5)), crowd.domain, crowd.rows).white_box
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "6300000")
    with pytest.raises(TooLargeError, match=r"g.onnx"):
        wrap_model(written(tmp_path, lambda m: sparse(m, 10**5)), crowd.domain, crowd.rows)


def test_a_file_is_not_larger_than_allowed(crowd, tmp_path, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "7000")
    with pytest.raises(TooLargeError, match=r"g.onnx"):
        wrap_model(graph(tmp_path / "g.onnx", HEAD, ARRAYS), crowd.domain, crowd.rows)


@pytest.mark.parametrize("kind", ["Loop", "StringConcat"])
def test_what_has_no_end_is_refused(kind, crowd, tmp_path):
    def add(model):
        model.graph.node.append(node(kind, ["r", "r"], ["z"]))

    with pytest.raises(ModelError, match=f"uses the operator {kind}"):
        wrap_model(written(tmp_path, add), crowd.domain, crowd.rows)


def functions(model, depth: int, last: str = "Neg") -> None:
    """Functions each of which calls the next one twice."""
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for i in range(depth):
        kind, domain = (f"f{i + 1}", "own") if i + 1 < depth else (last, "own" if last != "Neg" else "")
        body = [node(kind, ["a"], ["b"], domain=domain), node(kind, ["b"], ["c"], domain=domain)]
        model.functions.append(helper.make_function("own", f"f{i}", ["a"], ["c"], body, versions))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[-1].input[0] = "called"
    model.graph.node.insert(2, node("f0", ["r"], ["called"], domain="own"))


def test_functions_are_counted_as_often_as_they_run(crowd, tmp_path):
    found = wrap_model(written(tmp_path, lambda m: functions(m, 4)), crowd.domain, crowd.rows)
    assert "the operator own.f0" in found.note
    for depth, last in ((40, "Neg"), (2, "f0")):  # 2⁴⁰ nodes, and one that calls itself
        with pytest.raises(ModelError, match="more than 100,000 nodes"):
            wrap_model(written(tmp_path, lambda m, d=depth, e=last: functions(m, d, e)), crowd.domain, crowd.rows)


def test_parts_are_counted(crowd, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "MAX_MESSAGES", 10)
    with pytest.raises(ModelError, match="has more than 10 parts"):
        wrap_model(graph(tmp_path / "g.onnx", HEAD, ARRAYS), crowd.domain, crowd.rows)


class Elsewhere:
    """Stands for a tensor on another device than the processor."""

    shape, device, is_meta = (5, 3), torch.device("meta"), False


def test_shapes_are_where_the_tensor_is():
    shape = onnx_operators.find_operator("Shape", {}, 13)
    assert shape(Elsewhere()).device.type == "meta"
    assert shape(torch.zeros(5, 3)).tolist() == [5, 3]
    assert shape(torch.empty(5, 3, device="meta")).tolist() == [5, 3]  # a graph is measured there


RESHAPED = [
    *FIRST,
    node("Shape", ["r"], ["s"]),
    node("Gather", ["s", "zero"], ["n"], axis=0),
    node("Mul", ["n", "two"], ["n2"]),
    node("Concat", ["n2", "rest"], ["shape"], axis=0),
    node("Reshape", ["r", "shape"], ["q"]),
    node("Reshape", ["q", "back"], ["o"]),
    node("Gemm", ["o", "v"], ["y"]),
]


def reshaped(path):
    sizes = {"zero": ints(0), "two": ints(2), "rest": ints(8), "back": ints(-1, 16)}
    return graph(path, RESHAPED, ARRAYS | sizes)


def test_a_graph_may_reshape_by_sizes_it_has_worked_out(crowd, tmp_path):
    path = reshaped(tmp_path / "g.onnx")
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, answers(path, crowd.x), [16])
    assert found.module._bounds[1].rows == ROWS_PER_PASS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_graph_may_do_so_on_a_graphics_card(crowd, tmp_path):
    path = reshaped(tmp_path / "g.onnx")
    found = wrap_model(path, crowd.domain.to("cuda"), crowd.rows.cuda(), device="cuda")
    assert found.white_box
    np.testing.assert_allclose(found.model.scores(crowd.rows.cuda()).cpu(), answers(path, crowd.x), atol=1e-5)
