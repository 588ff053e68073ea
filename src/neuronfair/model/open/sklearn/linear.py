"""Fitted perceptrons, logistic regressions and other linear models of scikit-learn as torch modules."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.classes import class_order
from neuronfair.model.open.request import Request
from neuronfair.model.open.sklearn.preprocessing import NotLinear, Transform, linear_layer

_HIDDEN = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}


class OneByOne(nn.Module):
    """Probabilities of classes that are each told from all others: sigmoids that are made to sum to 1."""

    def forward(self, scores: Tensor) -> Tensor:
        """Return the shares of the sigmoids."""
        return torch.nn.functional.normalize(scores.sigmoid(), p=1, dim=1)


def is_network(final: Any) -> bool:
    """Return whether a fitted model is a perceptron, or a linear one: a network of no hidden layer."""
    return is_perceptron(final) or _weights(final) is not None


def is_perceptron(final: Any) -> bool:
    """Return whether a fitted model is a network with hidden layers."""
    return type(final).__name__ in ("MLPClassifier", "MLPRegressor")


def networks(
    request: Request, transform: Transform, final: Any, asked: str | None = None
) -> tuple[TableEncoding, list[nn.Sequential]]:
    """Return a model and what stands before it as torch modules, and the encoding that they read.

    `asked` is what stands before it, or it itself, where that may be any program. There are several ways to make
    answers of the scores of a linear model; whoever calls this compares them.
    """
    base = torch.zeros_like(request.tried[0])  # no row of the table: with any table the same numbers are found
    encoding, first = linear_layer(transform, request.domain, base, every=True)
    first.found_by_asking = asked
    parts: OrderedDict[str, nn.Module] = OrderedDict(preprocessing=first)
    if is_perceptron(final):
        *hidden, last = [_linear(w, b) for w, b in zip(final.coefs_, final.intercepts_, strict=True)]
        for number, linear in enumerate(hidden, 1):
            parts[f"layer{number}"] = nn.Sequential(linear, _HIDDEN[final.activation]())
        if final.out_activation_ not in ("logistic", "softmax", "identity"):
            raise NotLinear(f"its output function '{final.out_activation_}' is not known here")
    else:
        last = _linear(*(_weights(final) or ()))
    ends: list[dict[str, nn.Module]] = [{"output": last}]
    if hasattr(final, "classes_"):
        order = class_order(request.domain, final.classes_)
        output = _class_scores(last, order)
        ends = [{"output": output, "probabilities": nn.Softmax(dim=1)}]
        if not is_perceptron(final):
            ends += [{"output": output, "probabilities": OneByOne()}, {"output": output}]
            ends += [{"output": last if order in (None, [0, 1]) else _linear(-last.weight.T, -last.bias)}]
    return encoding, [nn.Sequential(OrderedDict(parts | end)).float().eval() for end in ends]


def _weights(final: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the weights of a linear model, (inputs, outputs) and (outputs,); None for any other."""
    weight, bias = getattr(final, "coef_", None), getattr(final, "intercept_", None)
    if weight is None or bias is None:
        return None
    weight = weight.toarray() if hasattr(weight, "toarray") else np.asarray(weight)
    if weight.ndim not in (1, 2) or weight.dtype.kind != "f" or np.ndim(bias) > 1:
        return None
    weight = np.atleast_2d(weight).astype(np.float64).T
    return weight, np.broadcast_to(np.asarray(bias, dtype=np.float64), weight.shape[1:]).copy()


def _linear(weight: Any, bias: Any) -> nn.Linear:
    before, after = weight.shape
    if tuple(bias.shape) != (after,):
        raise NotLinear(f"a layer of {after} numbers adds {tuple(bias.shape)} to them")
    layer = nn.Linear(before, after, dtype=torch.float64)
    numbers = {"weight": torch.as_tensor(weight).T, "bias": torch.as_tensor(bias)}
    layer.load_state_dict({name: part.detach().clone() for name, part in numbers.items()})
    return layer


def _class_scores(layer: nn.Linear, order: list[int] | None) -> nn.Linear:
    """Return a layer with one score for each class, in the domain's order; two classes share one in scikit-learn."""
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    if len(bias) == 1:  # softmax of (0, z) is the sigmoid of z
        weight, bias = torch.cat([torch.zeros_like(weight), weight]), torch.cat([torch.zeros_like(bias), bias])
    chosen = list(range(len(bias))) if order is None else order
    return _linear(weight[chosen].T, bias[chosen])
