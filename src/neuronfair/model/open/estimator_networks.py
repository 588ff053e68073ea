"""Fitted perceptrons, logistic regressions and other linear models of scikit-learn as torch modules."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.classes import class_order
from neuronfair.model.open.frames import ModelInputs
from neuronfair.model.open.opened import Request
from neuronfair.model.open.preprocessing import MAX_CURVE, NotLinear, linear_layer, mixes_columns

__all__ = ["NotLinear", "hides_trees", "is_network", "is_perceptron", "network_of"]

_REPLACEABLE = {"transform", "predict", "predict_proba", "decision_function"}  # on an object instead of its class
_LIBRARIES = {"sklearn", "xgboost", "lightgbm", "catboost"}  # whose trees are read
_STRAIGHT = {
    *("ColumnTransformer", "FeatureUnion", "Pipeline", "StandardScaler", "MinMaxScaler", "MaxAbsScaler"),
    *("RobustScaler", "OneHotEncoder", "OrdinalEncoder", "SimpleImputer", "VarianceThreshold", "PCA", "TruncatedSVD"),
}
# These are not linear in numbers: known where every value of a number is tried.
_BENT = {
    "KBinsDiscretizer",
    "Binarizer",
    "TargetEncoder",
    "MissingIndicator",
    "PowerTransformer",
    "QuantileTransformer",
}
AGREE = 1e-5  # how close the network's scores must be to the pipeline's own, relative to the largest if above 1
_HIDDEN = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}


class OneVersusRest(nn.Module):
    """One-versus-rest probabilities: sigmoids, divided by their sum."""

    def forward(self, scores: Tensor) -> Tensor:
        """Return the probability of each class."""
        return torch.nn.functional.normalize(scores.sigmoid(), p=1, dim=1)


def is_network(final: Any) -> bool:
    """Return whether a fitted model is a perceptron or a linear model, a network without hidden layers."""
    return is_perceptron(final) or _weights(final) is not None


def is_perceptron(final: Any) -> bool:
    """Return whether a fitted model is a network with hidden layers."""
    return type(final).__name__ in ("MLPClassifier", "MLPRegressor")


def network_of(
    request: Request, estimator: Any, parts: tuple[Sequence[Any], Any], inputs: ModelInputs, answers: np.ndarray
) -> tuple[TableEncoding, nn.Sequential]:
    """Return a fitted model and the steps before it, its `parts`, as one torch module, and the encoding that it reads.

    A linear model may turn its output into scores in several ways; the one that reproduces the model's own `answers`
    to the tried rows is chosen.
    """
    steps, final = parts

    def transform(rows: Tensor) -> np.ndarray:
        features = inputs.of_rows(rows)
        for step in steps:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                features = step.transform(features)
        return np.asarray(features.toarray() if hasattr(features, "toarray") else features, dtype=np.float64)

    base = torch.zeros_like(request.tried[0])  # the same row for every table, so that the weights are the same
    encoding, first = linear_layer(transform, request.domain, base, every=True)
    wide = any(attribute.size > MAX_CURVE for attribute in request.domain.attributes)
    first.unknown_program = inputs.program or _unknown(estimator, _STRAIGHT if wide else _STRAIGHT | _BENT)
    x, atol = encoding.encode(request.tried), AGREE * max(1.0, np.abs(answers).max())
    for end in _ends(request, final):
        module = nn.Sequential(OrderedDict({"preprocessing": first} | _hidden(final) | end)).float().eval()
        scores = module(x).detach().numpy()  # derived in float64, so only the network's own numbers are rounded
        if scores.shape == answers.shape and np.allclose(scores, answers, rtol=0, atol=atol):
            return encoding, module
    mixed = mixes_columns(transform, request.tried)
    raise NotLinear("its preprocessing mixes columns" if mixed else "its scores could not be reproduced")


def _hidden(final: Any) -> dict[str, nn.Module]:
    if not is_perceptron(final):
        return {}
    if final.out_activation_ not in ("logistic", "softmax", "identity"):
        raise NotLinear(f"its output function '{final.out_activation_}' is not supported")
    layers = zip(final.coefs_[:-1], final.intercepts_[:-1], strict=True)
    return {
        f"layer{number}": nn.Sequential(_linear(weight, bias), _HIDDEN[final.activation]())
        for number, (weight, bias) in enumerate(layers, 1)
    }


def _ends(request: Request, final: Any) -> list[dict[str, nn.Module]]:
    """Return the last layers that a model may have: its scores, with or without probabilities of them."""
    perceptron = is_perceptron(final)
    last = _linear(final.coefs_[-1], final.intercepts_[-1]) if perceptron else _linear(*(_weights(final) or ()))
    if not hasattr(final, "classes_"):
        return [{"output": last}]
    order = class_order(request.domain, final.classes_)
    output = _class_scores(last, order)
    ends: list[dict[str, nn.Module]] = [{"output": output, "probabilities": nn.Softmax(dim=1)}]
    if not perceptron:
        ends += [{"output": output, "probabilities": OneVersusRest()}, {"output": output}]
        ends += [{"output": last if order in (None, [0, 1]) else _linear(-last.weight.T, -last.bias)}]
    return ends


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
        raise NotLinear(f"a layer of {after} numbers has a bias of shape {tuple(bias.shape)}")
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


def _unknown(part: Any, known: set[str]) -> str | None:
    """Return the class of the first part of a pipeline with unknown code; None: all parts are known.

    Known are scikit-learn's own models, and its transformers of single columns or linear mixtures.
    """
    if part is None or isinstance(part, str):  # passthrough, drop
        return None
    kind = type(part)
    own = kind.__module__.partition(".")[0] == "sklearn" and not set(vars(part)) & _REPLACEABLE
    if own and kind.__name__ == "FunctionTransformer" and part.func is None:  # what a fitted passthrough is
        return None
    if not own or (hasattr(part, "transform") and not hasattr(part, "predict") and kind.__name__ not in known):
        return f"the step {kind.__name__}"
    inner = [step for _, step in getattr(part, "steps", ())] + [
        step for _, step in getattr(part, "transformer_list", ())
    ]
    inner += [step for _, step, _ in getattr(part, "transformers_", ())]
    return next((name for one in inner if (name := _unknown(one, known)) is not None), None)


def hides_trees(estimator: Any, steps: Sequence[Any], final: Any) -> bool:
    """Return whether the trees alone may not determine the scores of a model.

    A step with unknown code comes before them, a method was replaced, or a number marks empty cells.
    """
    missing = getattr(final, "missing", None)  # of XGBoost: what counts as empty
    return (
        any(_unknown(step, _STRAIGHT | _BENT) is not None for step in steps)
        or any(set(vars(part)) & _REPLACEABLE for part in (estimator, final))
        or type(final).__module__.partition(".")[0] not in _LIBRARIES
        or (isinstance(missing, (int, float)) and not isnan(missing))
    )
