"""Fitted perceptrons and linear models of scikit-learn, and the preprocessing before them, as torch modules."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from math import isnan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.limits import check_size
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.names import match_classes
from neuronfair.model.open.opened import ModelInputs, Request

POINTS = 17  # values of a number at which a straight line is checked, both ends among them
MAX_LOOKUP = 256  # values of a number that may become a one-hot block where the transform is no straight line
MAX_CURVE = 1 << 17  # and those of a number whose transform may be kept as a table
PART = 4096  # values that are tried at once
STRAIGHT = 1e-6  # how far a feature may lie from the line, in parts of the size of the feature

Transform = Callable[[Tensor], np.ndarray]  # rows of codes (n, d) to features (n, f)


class NotLinear(Exception):  # noqa: N818 - not an error: the model is then a black box
    """The preprocessing is no sum of functions of single columns, so it is no linear layer."""


class FeatureCurve(nn.Module):
    """What one number adds to features that are no straight line of it, such as its logarithm: a table with slopes."""

    def __init__(self, place: int, features: Tensor, table: Tensor) -> None:
        super().__init__()
        self.place = place
        self.features: Tensor
        self.table: Tensor
        self.register_buffer("features", features)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the number, scaled to -1 … 1 as `linear_layer` does, adds: (n, features)."""
        last = len(self.table) - 1
        place = (x[:, self.place] + 1) * (last / 2)
        code = place.detach().round().long().clamp(0, last)
        before, after = (code - 1).clamp(min=0), (code + 1).clamp(max=last)
        slope = (self.table[after] - self.table[before]) / (after - before)[:, None]
        return self.table[code] + slope * (place - place.detach())[:, None]

    def part(self, start: int, stop: int) -> FeatureCurve:
        """Return the same for some of the features."""
        inside = (self.features >= start) & (self.features < stop)
        return FeatureCurve(self.place, self.features[inside] - start, self.table[:, inside])


class PreprocessingLayer(nn.Linear):
    """A linear layer, with curves for the numbers whose features are not linear."""

    # A part of the preprocessing with unknown code, which may compute anything for untried rows; None: there is none.
    unknown_program: str | None = None

    def __init__(self, weight: Tensor, bias: Tensor, curves: Sequence[FeatureCurve] = ()) -> None:
        super().__init__(weight.shape[1], weight.shape[0], dtype=torch.float64)
        self.load_state_dict({"weight": weight, "bias": bias})
        self.curves = nn.ModuleList(curves)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of encoded rows."""
        features = super().forward(x)
        for curve in self._curved():
            features = features.index_add(1, curve.features, curve(x))
        return features

    def part(self, start: int, stop: int) -> PreprocessingLayer:
        """Return a layer that computes some of the features only."""
        curves = (curve.part(start, stop) for curve in self._curved())
        return PreprocessingLayer(
            self.weight[start:stop], self.bias[start:stop], [c for c in curves if len(c.features)]
        )

    def _curved(self) -> Iterator[FeatureCurve]:
        return (curve for curve in self.curves if isinstance(curve, FeatureCurve))


def linear_layer(
    transform: Transform, domain: TableDomain, row: Tensor, *, every: bool = False
) -> tuple[TableEncoding, PreprocessingLayer]:
    """Return an encoding from which a linear layer computes the features, and that layer, in float64.

    Such preprocessing works column by column: features(row) = features(base) + the sum over attributes of what a
    change of that attribute alone adds. So one row is varied in one attribute at a time. A nominal attribute becomes a
    one-hot block, which can express any function; a number stays a number if its features lie on straight lines, and
    otherwise becomes a one-hot block, if it has few values, or a curve. This is checked at some values, or at `every`
    one if there are not too many. The caller compares the result on real rows.
    """
    domain = domain.to("cpu")
    base = domain.clip(row.cpu()[None])[0]
    start = transform(base[None]).astype(np.float64)[0]
    attributes, columns, curves, bias = [], [], [], start.copy()
    width = 0
    for place, attribute in enumerate(domain.attributes):
        codes = _points(attribute)
        adds = _added(transform, base, start, place, codes)
        middle = _on_line(attribute, codes, adds) if attribute.is_ordered or attribute.size <= 2 else None
        if middle is not None and every and len(codes) < attribute.size <= MAX_CURVE:
            middle = _everywhere(transform, base, start, place, attribute, adds)
        straight = middle is not None
        if not straight and len(codes) < attribute.size:
            # A curve has no value for an empty cell.
            if attribute.size > (MAX_CURVE if attribute.empty is None else MAX_LOOKUP):
                raise NotLinear(f"the preprocessing of '{attribute.name}' is not linear in its values")
            codes = np.arange(attribute.size)
            adds = _added(transform, base, start, place, codes)
        if straight or (attribute.is_ordered and attribute.size > MAX_LOOKUP):
            line, column, shift = _as_number(attribute, adds, middle)
            if not straight:
                bent = np.flatnonzero((adds != 0).any(0))
                curves.append(FeatureCurve(width, torch.from_numpy(bent), torch.from_numpy(adds[:, bent])))
                column, shift = np.zeros_like(column), np.zeros_like(shift)
            attributes.append(line)
            columns.append(column[:, None])
            bias += shift
        else:
            attributes.append(dataclasses.replace(attribute, encode="onehot"))
            columns.append(adds.T)
        width += columns[-1].shape[1]
        check_size(width * len(bias), "the preprocessing as one layer", times=16)
    weight = np.concatenate(columns, 1)
    return TableEncoding(attributes), PreprocessingLayer(torch.from_numpy(weight), torch.from_numpy(bias), curves)


def mixes_columns(transform: Transform, rows: Tensor) -> bool:
    """Return whether the features of rows differ from the sum of what each column alone adds to a base row."""
    start = transform(rows[:1]).astype(np.float64)
    features, total = transform(rows).astype(np.float64), start
    for place in range(rows.shape[1]):
        alone = rows[:1].repeat(len(rows), 1)
        alone[:, place] = rows[:, place]
        total = total + transform(alone) - start
    return bool((np.abs(features - total) > STRAIGHT * (1 + np.abs(features).max(0))).any())


def _points(attribute: Attribute) -> np.ndarray:
    """Return the codes to try: all of a nominal attribute, some of a number, the last one that of an empty cell."""
    if attribute.values or attribute.size <= POINTS:
        return np.arange(attribute.size)
    return np.unique([*np.linspace(0, attribute.grid_size - 1, POINTS).astype(np.int64), attribute.size - 1])


def _added(transform: Transform, base: Tensor, start: np.ndarray, place: int, codes: np.ndarray) -> np.ndarray:
    """Return what each code of one attribute adds to the features of the base row: (codes, features)."""
    rows = base.repeat(len(codes), 1)
    rows[:, place] = torch.from_numpy(codes)
    return np.asarray(transform(rows).astype(np.float64) - start)


def _on_line(attribute: Attribute, codes: np.ndarray, adds: np.ndarray) -> float | None:
    """Return the share of the way along a straight line at which an empty cell lies, or one half; None for no line.

    An imputed cell lies where the imputed number lies.
    """
    count = len(codes) - (attribute.empty is not None)
    way = adds[count - 1] - adds[0]
    share, middle = codes / max(1, codes[count - 1]), 0.5
    if attribute.empty is not None:
        if way.any():
            steepest = np.abs(way).argmax()
            middle = float(np.clip((adds[-1] - adds[0])[steepest] / way[steepest], 0, 1))
        share[-1] = middle
    line = adds[0] + share[:, None] * way
    straight = (np.abs(adds - line) <= STRAIGHT * (1 + np.abs(adds).max(0))).all()
    return middle if straight else None


def _everywhere(
    transform: Transform, base: Tensor, start: np.ndarray, place: int, attribute: Attribute, adds: np.ndarray
) -> float | None:
    """Return the same as `_on_line`, checked for all values of a number between the ends of `adds`."""
    count = attribute.grid_size
    last = adds[-1 if attribute.empty is None else -2]
    for codes in np.array_split(np.arange(count), -(-count // PART)):
        line = adds[0] + (codes / max(1, count - 1))[:, None] * (last - adds[0])
        found = _added(transform, base, start, place, codes)
        if (np.abs(found - line) > STRAIGHT * (1 + np.abs(adds).max(0))).any():
            return None
    return _on_line(attribute, _points(attribute), adds)


def _as_number(
    attribute: Attribute, adds: np.ndarray, middle: float | None
) -> tuple[Attribute, np.ndarray, np.ndarray]:
    """Return an attribute scaled to a width of 2 around its middle, the features' slopes, and their values there.

    Its middle is the position of an empty cell, by default one half.
    """
    middle = 0.5 if middle is None else middle
    low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
    last = attribute.grid_size - 1
    first, way = adds[0], adds[-1 if attribute.empty is None else -2] - adds[0]
    scaled = dataclasses.replace(
        attribute, encode="scaled", center=low + step * middle * last, scale=step * (last / 2 or 1.0)
    )
    return scaled, way / 2, first + middle * way


_REPLACEABLE = {"transform", "predict", "predict_proba", "decision_function"}  # on an object instead of its class
_LIBRARIES = {"sklearn", "xgboost", "lightgbm", "catboost"}  # whose trees are read
_LINEAR_STEPS = {
    *("ColumnTransformer", "FeatureUnion", "Pipeline", "StandardScaler", "MinMaxScaler", "MaxAbsScaler"),
    *("RobustScaler", "OneHotEncoder", "OrdinalEncoder", "SimpleImputer", "VarianceThreshold", "PCA", "TruncatedSVD"),
}
# These are not linear in numbers: known where every value of a number is tried.
_CURVED_STEPS = {
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
    request: Request, estimator: Any, final: Any, features: ModelInputs, answers: np.ndarray
) -> tuple[TableEncoding, nn.Sequential]:
    """Return a fitted estimator as one torch module, and the encoding that it reads.

    `final` is the perceptron or linear model that it ends in, and `features` makes the inputs of that one. A linear
    model may turn its output into scores in several ways; the one that reproduces the model's own `answers` to the
    tried rows is chosen.
    """

    def transform(rows: Tensor) -> np.ndarray:
        made = features.of_rows(rows)
        return np.asarray(made.toarray() if hasattr(made, "toarray") else made, dtype=np.float64)

    base = torch.zeros_like(request.trial_rows[0])  # the same row for every table, so that the weights are the same
    encoding, first = linear_layer(transform, request.domain, base, every=True)
    wide = any(attribute.size > MAX_CURVE for attribute in request.domain.attributes)
    first.unknown_program = features.program or _unknown(
        estimator, _LINEAR_STEPS if wide else _LINEAR_STEPS | _CURVED_STEPS
    )
    x, atol = encoding.encode(request.trial_rows), AGREE * max(1.0, np.abs(answers).max())
    for end in _output_layers(request, final):
        module = nn.Sequential(OrderedDict({"preprocessing": first} | _hidden(final) | end)).float().eval()
        scores = module(x).detach().numpy()  # derived in float64, so only the network's own numbers are rounded
        if scores.shape == answers.shape and np.allclose(scores, answers, rtol=0, atol=atol):
            return encoding, module
    mixed = mixes_columns(transform, request.trial_rows)
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


def _output_layers(request: Request, final: Any) -> list[dict[str, nn.Module]]:
    """Return the last layers that a model may have: its scores, with or without probabilities of them."""
    perceptron = is_perceptron(final)
    last = _linear(final.coefs_[-1], final.intercepts_[-1]) if perceptron else _linear(*(_weights(final) or ()))
    if not hasattr(final, "classes_"):
        return [{"output": last}]
    order = match_classes(request.domain, final.classes_)
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
    inner = [one[1] for name in ("steps", "transformer_list", "transformers_") for one in getattr(part, name, ())]
    return next((name for one in inner if (name := _unknown(one, known)) is not None), None)


def has_unknown_code(estimator: Any, steps: Sequence[Any], final: Any) -> bool:
    """Return whether the trees alone may not determine the scores of a model.

    A step with unknown code comes before them, a method was replaced, or a number marks empty cells.
    """
    missing = getattr(final, "missing", None)  # of XGBoost: what counts as empty
    return (
        any(_unknown(step, _LINEAR_STEPS | _CURVED_STEPS) is not None for step in steps)
        or any(set(vars(part)) & _REPLACEABLE for part in (estimator, final))
        or type(final).__module__.partition(".")[0] not in _LIBRARIES
        or (isinstance(missing, (int, float)) and not isnan(missing))
    )
