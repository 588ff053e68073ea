"""Programs that overwrite tensors give what torch gives, line by line, or are refused."""

from __future__ import annotations

import pytest
import torch

from neuronfair.model.open.aten import FUNCTIONS, OVERWRITING, VIEWS
from neuronfair.model.open.graph import Graph, Ref, Step, Unsupported
from neuronfair.model.open.overwriting import Makes, without_overwriting

X, W = torch.tensor([[1.0, -2.0, 3.0, -4.0], [-5.0, 6.0, -7.0, 8.0]]), torch.tensor([[1.0], [-1.0]])


def aten(name: str):
    """Return torch's own operation, for the expected numbers."""
    packet, _, form = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), form or "default")


def literal(lines, result):
    """Compute lines such as ("y z", "chunk", "x", 2, 1) one by one, overwriting what they overwrite."""
    values = {"x": X.clone(), "w": W.clone()}
    for names, name, *arguments in lines:
        made = aten(name)(*(values.get(a, a) if isinstance(a, str) else a for a in arguments))
        values.update(zip(names.split(), made if isinstance(made, (tuple, list)) else [made], strict=True))
    return values[result]


def rewritten(lines, result) -> Graph:
    steps = []
    for names, name, *arguments in lines:
        target = f"torch.ops.aten.{name if '.' in name else name + '.default'}"
        makes = Makes.CHANGE if target in OVERWRITING else Makes.WINDOW if target in VIEWS else Makes.NEW
        call = FUNCTIONS[OVERWRITING.get(target, target)]
        filled = tuple(Ref(a) if isinstance(a, str) else a for a in arguments)
        steps.append((Step(names, tuple(names.split()), call, filled), makes))
    plain, result = without_overwriting(steps, result)
    return Graph(plain, {"w": W}, "x", result)


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        ([("y", "relu_", "x"), ("z", "add.Tensor", "x", "y")], "z"),
        ([("y", "add_.Tensor", "x", "w"), ("z", "add_.Tensor", "x", "y"), ("a", "mul.Tensor", "y", "x")], "a"),
        ([("y", "relu_", "x"), ("z", "sigmoid_", "y")], "x"),
        ([("y", "relu_", "x"), ("z", "t", "x"), ("a", "exp", "z")], "a"),
        ([("y", "add_.Tensor", "w", "w"), ("z", "mul.Tensor", "x", "w")], "z"),
        ([("y z", "chunk", "x", 2, 1), ("a", "relu_", "y"), ("b", "add.Tensor", "a", "y")], "b"),
        ([("y", "clone", "x"), ("z", "relu_", "y"), ("a", "sub.Tensor", "x", "z")], "a"),
        ([("y", "mul_.Tensor", "x", "x"), ("z", "copy_", "x", "w"), ("a", "add.Tensor", "y", "w")], "a"),
    ],
)
def test_what_is_overwritten_is_read_anew(lines, result):
    given, expected = X.clone(), literal(lines, result)
    graph = rewritten(lines, result)
    for _ in range(2):
        torch.testing.assert_close(graph(given), expected)
    assert torch.equal(given, X)
    assert torch.equal(graph.w, W)


@pytest.mark.parametrize(
    "lines",
    [
        [("y", "t", "x"), ("z", "relu_", "x"), ("a", "exp", "y")],
        [("y", "t", "x"), ("z", "relu_", "y"), ("a", "exp", "x")],
        [("y z", "chunk", "x", 2, 1), ("b", "relu_", "y"), ("a", "exp", "x")],
        [("y z", "split.Tensor", "x", 2, 1), ("b", "relu_", "x"), ("a", "exp", "z")],
        [("y z", "unbind.int", "x"), ("b", "relu_", "y"), ("a", "exp", "x")],
        [("y", "positive", "x"), ("z", "relu_", "y"), ("a", "exp", "x")],
        [("y", "alpha_dropout", "x", 0.5, False), ("z", "relu_", "y"), ("a", "exp", "x")],
        [("y", "relu_", "x"), ("z", "t", "x"), ("b", "exp_", "y"), ("a", "exp", "z")],
        [("y", "t", "x"), ("z", "t", "y"), ("b", "relu_", "z"), ("c", "exp", "z"), ("a", "exp", "y")],
        [("y", "t", "x"), ("a", "relu_", "x"), ("z", "exp_", "y")],
    ],
)
def test_a_window_into_it_is_refused(lines):
    with pytest.raises(Unsupported, match=r"shares its numbers with a tensor that is overwritten.*run_decompositions"):
        rewritten(lines, "a")


def test_one_operand_of_einsum_may_be_the_result():
    steps = [
        (Step("y", ("y",), FUNCTIONS["torch.ops.aten.einsum.default"], ("ij->ji", [Ref("x")])), Makes.WINDOW),
        (Step("z", ("z",), torch.relu, (Ref("x"),)), Makes.CHANGE),
    ]
    assert "torch.ops.aten.einsum.default" in VIEWS
    with pytest.raises(Unsupported, match="'y' shares"):
        without_overwriting(steps, "y")


def test_a_name_is_used_once():
    with pytest.raises(Unsupported, match="two values called 'y'"):
        rewritten([("y", "exp", "x"), ("y", "log", "x")], "y")
