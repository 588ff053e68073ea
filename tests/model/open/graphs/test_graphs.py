"""Graphs that would take too much: refused before anything is computed, whatever the size of the batch."""

from __future__ import annotations

import operator
import weakref
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.limits import TooLargeError
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.open.graphs import MAX_STEPS, Graph, GraphStep, Ref, Unsupported

MANY, HUGE = 4 * 10**4, 10**6


def small(*steps: GraphStep) -> Graph:
    """Three inputs, eight neurons, two scores; then further steps from the scores, `scores`."""
    layers = {"a": torch.ones(8, 3), "b": torch.zeros(8), "c": torch.ones(2, 8)}
    first = [
        GraphStep("hidden", "hidden", functional.linear, (Ref("x"), Ref("a"), Ref("b"))),
        GraphStep("relu", "relu", nn.ReLU(), (Ref("hidden"),)),
        GraphStep("scores", "scores", functional.linear, (Ref("relu"), Ref("c"))),
    ]
    return Graph([*first, *steps], layers, ["x"], (steps or first)[-1].result)


def test_a_pass_as_large_as_the_limit_allows(monkeypatch):
    """At most 16 numbers a row are held at once: the eight neurons before and after their activation."""
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(16 * 4 * ROWS_PER_PASS))
    small().check_memory([torch.empty(1, 3)])
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(16 * 4 * ROWS_PER_PASS - 1))
    with pytest.raises(TooLargeError, match=r"its step 'relu' for a pass of 32,768 rows: would"):
        small().check_memory([torch.empty(1, 3)])


BOMBS = {
    "expand": [
        GraphStep("tall", "tall", torch.reshape, (Ref("scores"), (-1, 1, 1))),
        GraphStep("y", "y", Tensor.expand, (Ref("tall"), (-1, 45_000, 45_000))),
    ],
    "repeat": [GraphStep("y", "y", Tensor.repeat, (Ref("scores"), (MANY, MANY)))],
    "pad": [GraphStep("y", "y", functional.pad, (Ref("scores"), (HUGE, HUGE)))],
    "doubling": [
        GraphStep("y1", "y1", torch.neg, (Ref("scores"),)),
        *(GraphStep(f"y{i + 1}", f"y{i + 1}", torch.cat, ([Ref(f"y{i}"), Ref(f"y{i}")], 1)) for i in range(1, 40)),
    ],
    "outer product": [
        GraphStep("column", "column", torch.reshape, (Ref("scores"), (-1, 1))),
        GraphStep("row", "row", torch.reshape, (Ref("scores"), (1, -1))),
        GraphStep("y", "y", torch.mul, (Ref("column"), Ref("row"))),
    ],
    "embedding": [
        GraphStep("which", "which", torch.argmax, (Ref("scores"), 1)),
        GraphStep("often", "often", Tensor.repeat, (Ref("which"), (20_000,))),
        GraphStep("y", "y", functional.embedding, (Ref("often"), Ref("a"))),
    ],
    "empty, but long": [
        GraphStep("none", "none", torch.narrow, (Ref("scores"), 1, 0, 0)),
        GraphStep("y", "y", torch.reshape, (Ref("none"), (10**12, 0))),
    ],
    "of many dimensions": [GraphStep("y", "y", torch.reshape, (Ref("scores"), (-1, 2, *[1] * 40)))],
    "a convolution with wide margins": [
        GraphStep("tall", "tall", torch.unsqueeze, (Ref("scores"), 1)),
        GraphStep("kernel", "kernel", torch.unsqueeze, (Ref("c"), 1)),
        GraphStep("y", "y", functional.conv1d, (Ref("tall"), Ref("kernel"), None, 1, HUGE)),
    ],
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(name):
    with pytest.raises(TooLargeError, match=r"GB of memory; 2.0 GB are allowed|more than 32 dimensions"):
        small(*BOMBS[name]).check_memory([torch.empty(1, 3)])


def test_steps_are_counted():
    def chain(n: int) -> Graph:
        names = ["x", *(f"v{i}" for i in range(n))]
        steps = [GraphStep(b, b, torch.neg, (Ref(a),)) for a, b in pairwise(names)]
        return Graph(steps, {}, "x", names[-1])

    chain(MAX_STEPS)
    with pytest.raises(Unsupported, match=r"2,001 steps and 0 weights; at most 2,000 each"):
        chain(MAX_STEPS + 1)


def test_values_are_let_go_after_their_last_use():
    seen = []

    def look(x, others=()):
        seen.append(weakref.ref(x))
        return x + 1 + sum(others)

    def last(x):
        seen.append([kept() is None for kept in seen])
        return x

    steps = [
        GraphStep("a", "a", look, (Ref("x"),)),
        GraphStep("b", "b", look, (Ref("a"),)),
        GraphStep("c", "c", look, (Ref("b"), [Ref("a")])),
        GraphStep("d", "d", last, (Ref("c"),)),
    ]
    x = torch.zeros(2, 1)
    assert Graph(steps, {}, "x", "d")._run([x]).tolist() == [[4.0], [4.0]]
    assert seen[-1] == [False, True, True]  # x, which is held here, and what a and b have made


def growing(*steps: GraphStep) -> Graph:
    """A graph that first takes the number of rows, and then a column of the input."""
    first = [
        GraphStep("n", "n", len, (Ref("x"),)),
        GraphStep("column", "column", torch.narrow, (Ref("x"), 1, 0, 1)),
    ]
    return Graph([*first, *steps], {}, "x", steps[-1].result)


def test_sizes_that_jump_are_measured_for_each_batch():
    """(n mod 7) · 10⁸ columns: none for 7, 14 or 32,767 rows, but 3 · 10⁸ for 10."""
    graph = growing(
        GraphStep("rest", "rest", operator.mod, (Ref("n"), 7)),
        GraphStep("many", "many", operator.mul, (Ref("rest"), 10**8)),
        GraphStep("wide", "wide", Tensor.expand, (Ref("column"), [-1, Ref("many")])),
        GraphStep("y", "y", torch.sum, (Ref("wide"), [1], True)),
    )
    assert graph(torch.ones(14, 3)).tolist() == [[0.0]] * 14
    with pytest.raises(TooLargeError, match=r"its step 'wide' for a pass of 10 rows: would take about 12.0 GB"):
        graph(torch.ones(10, 3))
    with pytest.raises(TooLargeError, match="3 rows"):
        graph.check_memory([torch.empty(1, 3)])


def test_names_of_the_file_are_names_of_parts():
    steps = [
        GraphStep("forward", "a", nn.ReLU(), (Ref("x"),)),
        GraphStep("\x1b[", "b", nn.ReLU(), (Ref("a"),)),
        GraphStep("forward", "c", torch.add, (Ref("b"), Ref("forward"))),
    ]
    graph = Graph(steps, {"forward": torch.ones(1)}, "x", "c")
    assert [name for name, _ in graph.named_children()] == ["forward__", "part"]
    assert graph(torch.tensor([[-1.0], [2.0]])).tolist() == [[1.0], [3.0]]


def test_batches_in_proportion_are_measured_once(monkeypatch):
    graph = growing(GraphStep("y", "y", Tensor.expand, (Ref("column"), [-1, 5])))
    graph.check_memory([torch.empty(1, 3)])
    monkeypatch.setattr(graph, "_measure", None)
    assert graph(torch.ones(1234, 3)).shape == (1234, 5)
    with pytest.raises(TypeError):
        graph(torch.ones(ROWS_PER_PASS + 1, 3))  # larger than what was measured


@pytest.mark.parametrize(
    ("size", "proportional"),
    [
        (lambda n: n.new_ones(4, 3), True),
        (lambda n: n.repeat(2, 1), True),
        (lambda n: n[1:], False),
        (lambda n: n[:1000], False),
        (lambda n: n.chunk(3)[0], False),
        (lambda n: n.flatten() if len(n) == 2 else n.neg(), False),
        (lambda n: torch.tensor(n.shape, device="cpu") * 2, True),
        (lambda n: torch.tensor(n.shape, device="cpu") // 3, False),
        (lambda n: torch.exp(-((torch.tensor(n.shape, device="cpu") - 7.0) ** 2)), False),
    ],
)
def test_what_is_in_proportion(size, proportional):
    graph = Graph([GraphStep("s", "s", size, (Ref("x"),)), GraphStep("y", "y", torch.neg, (Ref("x"),))], {}, "x", "y")
    graph.check_memory([torch.empty(1, 3)])
    assert (graph._bounds is not None) == proportional


def test_gradients_keep_every_step(monkeypatch):
    """20 steps of 50 numbers a row: two at a time without gradients, all of them with."""
    names = ["x", *(f"v{i}" for i in range(20))]
    steps = [GraphStep(b, b, torch.sin, (Ref(a),)) for a, b in pairwise(names)]
    graph = Graph(steps, {}, "x", names[-1])
    graph.check_memory([torch.empty(1, 50)])
    x = torch.zeros(1000, 50)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(20 * 50 * 1000 * 4 // 4))  # four times as much is allowed then
    assert graph(x.clone().requires_grad_()).requires_grad
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(20 * 50 * 1000 * 4 // 4 - 1))
    with pytest.raises(TooLargeError, match="a pass of 1,000 rows"):
        graph(x.clone().requires_grad_())
    graph(x)


def test_convolutions_in_float64_lay_windows_side_by_side(monkeypatch):
    """Kernels of 5 numbers on 20 places: 100 numbers a row, of which only float64 needs memory."""
    graph = Graph(
        [GraphStep("y", "y", functional.conv1d, (Ref("x"), Ref("w"), None, 1, 2))],
        {"w": torch.ones(1, 1, 5)},
        "x",
        "y",
    ).double()
    x = torch.ones(10, 1, 20, dtype=torch.float64)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(10 * 100 * 4))
    assert graph(x)[0, 0, 5] == 5.0
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(10 * 100 * 4 - 1))
    with pytest.raises(TooLargeError, match="a pass of 10 rows"):
        graph(x)
    graph.float()(x.float())


def test_larger_batches_may_take_more(monkeypatch):
    graph = Graph([GraphStep("y", "y", torch.neg, (Ref("x"),))], {}, "x", "y")
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(ROWS_PER_PASS * 4 * 3))
    graph.check_memory([torch.empty(1, 3)])
    assert graph(torch.ones(2 * ROWS_PER_PASS, 3)).shape == (2 * ROWS_PER_PASS, 3)
