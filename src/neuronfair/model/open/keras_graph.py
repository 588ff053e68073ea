"""The layers of a Keras model, joined as they are in it, as one graph of torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from neuronfair.errors import needs
from neuronfair.model.open.graph import Graph, Ref, Step, Unsupported
from neuronfair.model.open.keras_layers import convert

DEPTH = 20  # of models in models


def keras_graph(model: Any, given: Sequence[str], texts: Sequence[str]) -> Graph:
    """Return a model in torch; `given` are the names of its inputs, and a text is its place in `texts`."""
    joined = _Joined(given, texts)
    results = joined.model(model, given, 0)
    if len(results) != 1:
        raise Unsupported("it has several outputs")
    return Graph(joined.steps, {}, given, results[0]).float().eval()


class _Joined:
    """Steps that are found by following a model from its inputs."""

    def __init__(self, given: Sequence[str], texts: Sequence[str]) -> None:
        self.steps: list[Step] = []
        self.given, self.texts = set(given), texts

    def model(self, model: Any, values: Sequence[str], depth: int) -> list[str]:
        """Follow a model that is given these values; return the names of what it computes."""
        kind = type(model).__name__
        if depth > DEPTH:
            raise Unsupported(f"more than {DEPTH} models in models")
        if kind == "Sequential":
            for layer in model.layers:
                values = self.layer(layer, values, depth)
            return list(values)
        if kind != "Functional":
            raise Unsupported(f"it is of the class '{kind}', whose layers may be joined in any way")
        known = {id(tensor): value for tensor, value in zip(model.inputs, values, strict=True)}
        for _, nodes in sorted(model._nodes_by_depth.items(), reverse=True):
            for node in nodes:
                if type(node.operation).__name__ == "InputLayer":
                    continue
                made = self.layer(node.operation, [known[id(tensor)] for tensor in node.input_tensors], depth)
                known |= {id(tensor): value for tensor, value in zip(node.output_tensors, made, strict=True)}
        return [known[id(tensor)] for tensor in model.outputs]

    def layer(self, layer: Any, values: Sequence[str], depth: int) -> list[str]:
        """Add the steps of a layer that is given these values."""
        if type(layer).__name__ in ("Sequential", "Functional"):
            return self.model(layer, values, depth + 1)
        if not isinstance(layer, needs("keras", "keras").layers.Layer):
            raise Unsupported(f"its operation '{layer.name}' has no counterpart in torch here")
        for name, part in convert(layer, len(values), self.texts).items():
            result = f"value {len(self.steps)}"
            while result in self.given:
                result += "'"
            self.steps.append(Step(name, (result,), part, tuple(map(Ref, values))))
            values = [result]
        return list(values)
