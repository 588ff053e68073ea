"""Fitted perceptrons and linear models of scikit-learn, and the preprocessing before them, as torch modules."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
from neuronfair.model.open.opened import ModelInputs, OpenRequest

LINE_POINTS = 17  # values of a number at which a straight line is checked, both ends among them
MAX_LOOKUP_VALUES = 256  # values of a number that may become a one-hot block where the transform is no straight line
MAX_CURVE_VALUES = 1 << 17  # values of a number whose transform may be kept as a table
CHUNK_VALUES = 4096  # values that are tried at once
LINE_TOLERANCE = 1e-6  # how far a feature may lie from the line, in parts of the size of the feature

Transform = Callable[[Tensor], np.ndarray]  # rows of codes (n, d) to features (n, f)
Changes = np.ndarray  # (codes, features): what each code of one attribute adds to the features of a base row


class NotLinear(Exception):  # noqa: N818 - not an error: the model is then a black box
    """The preprocessing is no sum of functions of single columns, so it is no linear layer."""


class FeatureCurve(nn.Module):
    """What one number adds to features that are no straight line of it, such as its logarithm: a table with slopes."""

    def __init__(self, column_index: int, features: Tensor, table: Tensor) -> None:
        super().__init__()
        self.place = column_index
        self.features: Tensor
        self.table: Tensor
        self.register_buffer("features", features)
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the number, scaled to -1 … 1 as `make_linear_layer` does, adds: (n, features)."""
        last = len(self.table) - 1
        position = (x[:, self.place] + 1) * (last / 2)
        code = position.detach().round().long().clamp(0, last)
        before, after = (code - 1).clamp(min=0), (code + 1).clamp(max=last)
        slope = (self.table[after] - self.table[before]) / (after - before)[:, None]
        return self.table[code] + slope * (position - position.detach())[:, None]

    def part(self, start: int, stop: int) -> FeatureCurve:
        """Return the same for some of the features."""
        is_included = (self.features >= start) & (self.features < stop)
        return FeatureCurve(self.place, self.features[is_included] - start, self.table[:, is_included])


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
        for curve in self._list_curves():
            features = features.index_add(1, curve.features, curve(x))
        return features

    def part(self, start: int, stop: int) -> PreprocessingLayer:
        """Return a layer that computes some of the features only."""
        curves = (curve.part(start, stop) for curve in self._list_curves())
        return PreprocessingLayer(
            self.weight[start:stop], self.bias[start:stop], [c for c in curves if len(c.features)]
        )

    def _list_curves(self) -> Iterator[FeatureCurve]:
        return (curve for curve in self.curves if isinstance(curve, FeatureCurve))


def make_linear_layer(
    transform: Transform, domain: TableDomain, row: Tensor, *, check_all: bool = False
) -> tuple[TableEncoding, PreprocessingLayer]:
    """Return an encoding from which a linear layer computes the features, and that layer, in float64.

    Such preprocessing works column by column: features(row) = features(base) + the sum over attributes of what a
    change of that attribute alone adds. So one row is varied in one attribute at a time. A nominal attribute becomes a
    one-hot block, which can express any function; a number stays a number if its features lie on straight lines, and
    otherwise becomes a one-hot block, if it has few values, or a curve. This is checked at some values, or with
    `check_all` at every one if there are not too many. The caller compares the result on real rows.
    """
    domain = domain.to("cpu")
    base = domain.clip(row.cpu()[None])[0]
    start = transform(base[None]).astype(np.float64)[0]
    measure = partial(_measure_effects, transform, base, start)
    attributes, columns, curves, bias = [], [], [], start.copy()
    width = 0
    for index, attribute in enumerate(domain.attributes):
        codes = _list_tried_codes(attribute)
        effects = measure(index, codes)
        empty_share = _fit_line(attribute, codes, effects) if attribute.is_ordered or attribute.size <= 2 else None
        if empty_share is not None and check_all and len(codes) < attribute.size <= MAX_CURVE_VALUES:
            empty_share = _fit_line_everywhere(partial(measure, index), attribute, effects)
        is_straight = empty_share is not None
        if not is_straight and len(codes) < attribute.size:
            # A curve has no value for an empty cell.
            if attribute.size > (MAX_CURVE_VALUES if attribute.empty is None else MAX_LOOKUP_VALUES):
                raise NotLinear(f"the preprocessing of '{attribute.name}' is not linear in its values")
            codes = np.arange(attribute.size)
            effects = measure(index, codes)
        if is_straight or (attribute.is_ordered and attribute.size > MAX_LOOKUP_VALUES):
            scaled_attribute, column, shift = _scale_to_line(attribute, effects, empty_share)
            if not is_straight:
                curved = np.flatnonzero((effects != 0).any(0))
                curves.append(FeatureCurve(width, torch.from_numpy(curved), torch.from_numpy(effects[:, curved])))
                column, shift = np.zeros_like(column), np.zeros_like(shift)
            attributes.append(scaled_attribute)
            columns.append(column[:, None])
            bias += shift
        else:
            attributes.append(dataclasses.replace(attribute, encode="onehot"))
            columns.append(effects.T)
        width += columns[-1].shape[1]
        check_size(width * len(bias), "the preprocessing as one layer", times=16)
    weight = np.concatenate(columns, 1)
    return TableEncoding(attributes), PreprocessingLayer(torch.from_numpy(weight), torch.from_numpy(bias), curves)


def mixes_columns(transform: Transform, rows: Tensor) -> bool:
    """Return whether the features of rows differ from the sum of what each column alone adds to a base row."""
    start = transform(rows[:1]).astype(np.float64)
    features, total = transform(rows).astype(np.float64), start
    for column in range(rows.shape[1]):
        varied = rows[:1].repeat(len(rows), 1)
        varied[:, column] = rows[:, column]
        total = total + transform(varied) - start
    return bool((np.abs(features - total) > LINE_TOLERANCE * (1 + np.abs(features).max(0))).any())


def _list_tried_codes(attribute: Attribute) -> np.ndarray:
    """Return the codes to try: all of a nominal attribute, some of a number, the last one that of an empty cell."""
    if attribute.values or attribute.size <= LINE_POINTS:
        return np.arange(attribute.size)
    return np.unique([*np.linspace(0, attribute.grid_size - 1, LINE_POINTS).astype(np.int64), attribute.size - 1])


def _measure_effects(transform: Transform, base: Tensor, start: np.ndarray, column: int, codes: np.ndarray) -> Changes:
    """Return what each code of one attribute adds to the features `start` of the base row."""
    rows = base.repeat(len(codes), 1)
    rows[:, column] = torch.from_numpy(codes)
    return np.asarray(transform(rows).astype(np.float64) - start)


def _fit_line(attribute: Attribute, codes: np.ndarray, effects: Changes) -> float | None:
    """Return the share of the way along a straight line at which an empty cell lies, or one half; None for no line.

    An imputed cell lies where the imputed number lies.
    """
    count = len(codes) - (attribute.empty is not None)
    rise = effects[count - 1] - effects[0]
    share, empty_share = codes / max(1, codes[count - 1]), 0.5
    if attribute.empty is not None:
        if rise.any():
            steepest = np.abs(rise).argmax()
            empty_share = float(np.clip((effects[-1] - effects[0])[steepest] / rise[steepest], 0, 1))
        share[-1] = empty_share
    line = effects[0] + share[:, None] * rise
    is_straight = (np.abs(effects - line) <= LINE_TOLERANCE * (1 + np.abs(effects).max(0))).all()
    return empty_share if is_straight else None


def _fit_line_everywhere(
    measure: Callable[[np.ndarray], Changes], attribute: Attribute, effects: Changes
) -> float | None:
    """Return the same as `_fit_line`, checked for all values of a number between the ends of `effects`."""
    count = attribute.grid_size
    last = effects[-1 if attribute.empty is None else -2]
    for codes in np.array_split(np.arange(count), -(-count // CHUNK_VALUES)):
        line = effects[0] + (codes / max(1, count - 1))[:, None] * (last - effects[0])
        if (np.abs(measure(codes) - line) > LINE_TOLERANCE * (1 + np.abs(effects).max(0))).any():
            return None
    return _fit_line(attribute, _list_tried_codes(attribute), effects)


def _scale_to_line(
    attribute: Attribute, effects: np.ndarray, empty_share: float | None
) -> tuple[Attribute, np.ndarray, np.ndarray]:
    """Return an attribute scaled to a width of 2 around its middle, the features' slopes, and their values there.

    Its middle is the position of an empty cell, by default one half.
    """
    empty_share = 0.5 if empty_share is None else empty_share
    low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
    last = attribute.grid_size - 1
    first, rise = effects[0], effects[-1 if attribute.empty is None else -2] - effects[0]
    scaled = dataclasses.replace(
        attribute, encode="scaled", center=low + step * empty_share * last, scale=step * (last / 2 or 1.0)
    )
    return scaled, rise / 2, first + empty_share * rise


_REPLACEABLE = {"transform", "predict", "predict_proba", "decision_function"}  # on an object instead of its class
_TREE_LIBRARIES = {"sklearn", "xgboost", "lightgbm", "catboost"}  # whose trees are read
_LINEAR_STEPS = {
    *("ColumnTransformer", "FeatureUnion", "Pipeline", "StandardScaler", "MinMaxScaler", "MaxAbsScaler"),
    *("RobustScaler", "OneHotEncoder", "OrdinalEncoder", "SimpleImputer", "VarianceThreshold", "PCA", "TruncatedSVD"),
}
# These are not linear in numbers: steps where every value of a number is tried.
_CURVED_STEPS = {
    "KBinsDiscretizer",
    "Binarizer",
    "TargetEncoder",
    "MissingIndicator",
    "PowerTransformer",
    "QuantileTransformer",
}
TOLERANCE = 1e-5  # how close the network's scores must be to the pipeline's own, relative to the largest if above 1
_HIDDEN_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}


class OneVersusRest(nn.Module):
    """One-versus-rest probabilities: sigmoids, divided by their sum."""

    def forward(self, scores: Tensor) -> Tensor:
        """Return the probability of each class."""
        return torch.nn.functional.normalize(scores.sigmoid(), p=1, dim=1)


def is_network(final: Any) -> bool:
    """Return whether a fitted model is a perceptron or a linear model, a network without hidden layers."""
    return is_perceptron(final) or _linear_weights(final) is not None


def is_perceptron(final: Any) -> bool:
    """Return whether a fitted model is a network with hidden layers."""
    return type(final).__name__ in ("MLPClassifier", "MLPRegressor")


def convert_estimator(
    request: OpenRequest, estimator: Any, final: Any, features: ModelInputs, answers: np.ndarray
) -> tuple[TableEncoding, nn.Sequential]:
    """Return a fitted estimator as one torch module, and the encoding that it reads.

    `final` is the perceptron or linear model that it ends in, and `features` makes the inputs of that one. A linear
    model may turn its output into scores in several ways; the one that reproduces the model's own `answers` to the
    tried rows is chosen.
    """

    def transform(rows: Tensor) -> np.ndarray:
        table = features.of_rows(rows)
        return np.asarray(table.toarray() if hasattr(table, "toarray") else table, dtype=np.float64)

    base = torch.zeros_like(request.trial_rows[0])  # the same row for every table, so that the weights are the same
    encoding, first_layer = make_linear_layer(transform, request.domain, base, check_all=True)
    has_wide = any(attribute.size > MAX_CURVE_VALUES for attribute in request.domain.attributes)
    first_layer.unknown_program = features.program or _find_unknown_step(
        estimator, _LINEAR_STEPS if has_wide else _LINEAR_STEPS | _CURVED_STEPS
    )
    x, atol = encoding.encode(request.trial_rows), TOLERANCE * max(1.0, np.abs(answers).max())
    for last_layers in _list_output_layers(request, final):
        layers = {"preprocessing": first_layer} | _build_hidden(final) | last_layers
        module = nn.Sequential(OrderedDict(layers)).float().eval()
        scores = module(x).detach().numpy()  # derived in float64, so only the network's own numbers are rounded
        if scores.shape == answers.shape and np.allclose(scores, answers, rtol=0, atol=atol):
            return encoding, module
    is_mixed = mixes_columns(transform, request.trial_rows)
    raise NotLinear("its preprocessing mixes columns" if is_mixed else "its scores could not be reproduced")


def _build_hidden(final: Any) -> dict[str, nn.Module]:
    if not is_perceptron(final):
        return {}
    if final.out_activation_ not in ("logistic", "softmax", "identity"):
        raise NotLinear(f"its output function '{final.out_activation_}' is not supported")
    layers = zip(final.coefs_[:-1], final.intercepts_[:-1], strict=True)
    return {
        f"layer{number}": nn.Sequential(_make_linear(weight, bias), _HIDDEN_ACTIVATIONS[final.activation]())
        for number, (weight, bias) in enumerate(layers, 1)
    }


def _list_output_layers(request: OpenRequest, final: Any) -> list[dict[str, nn.Module]]:
    """Return the last layers that a model may have: its scores, with or without probabilities of them."""
    perceptron = is_perceptron(final)
    last = _make_linear(*((final.coefs_[-1], final.intercepts_[-1]) if perceptron else _linear_weights(final) or ()))
    if not hasattr(final, "classes_"):
        return [{"output": last}]
    order = match_classes(request.domain, final.classes_)
    output = _make_class_scores(last, order)
    ends: list[dict[str, nn.Module]] = [{"output": output, "probabilities": nn.Softmax(dim=1)}]
    if not perceptron:
        ends += [{"output": output, "probabilities": OneVersusRest()}, {"output": output}]
        ends += [{"output": last if order in (None, [0, 1]) else _make_linear(-last.weight.T, -last.bias)}]
    return ends


def _linear_weights(final: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the weights of a linear model, (inputs, outputs) and (outputs,); None for any other."""
    weight, bias = getattr(final, "coef_", None), getattr(final, "intercept_", None)
    if weight is None or bias is None:
        return None
    weight = weight.toarray() if hasattr(weight, "toarray") else np.asarray(weight)
    if weight.ndim not in (1, 2) or weight.dtype.kind != "f" or np.ndim(bias) > 1:
        return None
    weight = np.atleast_2d(weight).astype(np.float64).T
    return weight, np.broadcast_to(np.asarray(bias, dtype=np.float64), weight.shape[1:]).copy()


def _make_linear(weight: Any, bias: Any) -> nn.Linear:
    before, after = weight.shape
    if tuple(bias.shape) != (after,):
        raise NotLinear(f"a layer of {after} numbers has a bias of shape {tuple(bias.shape)}")
    layer = nn.Linear(before, after, dtype=torch.float64)
    numbers = {"weight": torch.as_tensor(weight).T, "bias": torch.as_tensor(bias)}
    layer.load_state_dict({name: part.detach().clone() for name, part in numbers.items()})
    return layer


def _make_class_scores(layer: nn.Linear, order: list[int] | None) -> nn.Linear:
    """Return a layer with one score for each class, in the domain's order; two classes share one in scikit-learn."""
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    if len(bias) == 1:  # softmax of (0, z) is the sigmoid of z
        weight, bias = torch.cat([torch.zeros_like(weight), weight]), torch.cat([torch.zeros_like(bias), bias])
    chosen = list(range(len(bias))) if order is None else order
    return _make_linear(weight[chosen].T, bias[chosen])


def _find_unknown_step(part: Any, steps: set[str]) -> str | None:
    """Return the class of the first part of a pipeline with unknown code; None: all parts are steps.

    Known are scikit-learn's own models, and its transformers of single columns or linear mixtures.
    """
    if part is None or isinstance(part, str):  # passthrough, drop
        return None
    kind = type(part)
    is_sklearn = kind.__module__.partition(".")[0] == "sklearn" and not set(vars(part)) & _REPLACEABLE
    if is_sklearn and kind.__name__ == "FunctionTransformer" and part.func is None:  # what a fitted passthrough is
        return None
    if not is_sklearn or (hasattr(part, "transform") and not hasattr(part, "predict") and kind.__name__ not in steps):
        return f"the step {kind.__name__}"
    entries = (entry for name in ("steps", "transformer_list", "transformers_") for entry in getattr(part, name, ()))
    return next((name for entry in entries if (name := _find_unknown_step(entry[1], steps)) is not None), None)


def has_unknown_code(estimator: Any, steps: Sequence[Any], final: Any) -> bool:
    """Return whether the trees alone may not determine the scores of a model.

    A step with unknown code comes before them, a method was replaced, or a number marks empty cells.
    """
    missing = getattr(final, "missing", None)  # of XGBoost: what counts as empty
    return (
        any(_find_unknown_step(step, _LINEAR_STEPS | _CURVED_STEPS) is not None for step in steps)
        or any(set(vars(part)) & _REPLACEABLE for part in (estimator, final))
        or type(final).__module__.partition(".")[0] not in _TREE_LIBRARIES
        or (isinstance(missing, (int, float)) and not isnan(missing))
    )
