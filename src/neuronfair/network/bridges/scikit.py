"""scikit-learn models: multilayer perceptrons, bare or behind preprocessing, become networks; others black boxes."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.table import TableDomain
from neuronfair.network.bridges.opened import Opened, Request, needs, one_line
from neuronfair.network.bridges.preprocessing import NotLinear, linear_layer
from neuronfair.network.bridges.readings import Reading, first_that_works, readings

AGREE = 1e-5  # how close the network's scores must be to the pipeline's own
_HIDDEN = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid, "identity": nn.Identity}
# Types in the files of ordinary perceptrons that skops does not list as safe; none of them runs anything when opened.
_PLAIN = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.compose._column_transformer._RemainderColsList",
}


def open(request: Request) -> Opened:  # noqa: A001 - each bridge has a function of this name
    """Read a .skops file, or a pickle if pickles are trusted."""
    needs("sklearn", "sklearn")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            estimator = _read_skops(request) if request.path.suffix.lower() == ".skops" else _read_pickle(request)
        except (Exception, SystemExit) as error:
            if type(error).__module__ == "neuronfair.errors":
                raise
            raise request.error(f"cannot be read ({type(error).__name__}: {one_line(error)})") from error
    if not is_estimator(estimator):
        raise request.error(f"holds no model with a method predict, but {type(estimator).__name__}")
    old = next((w.message for w in said if w.category.__name__ == "InconsistentVersionWarning"), None)
    version = getattr(old, "original_sklearn_version", None)
    remark = f"it was saved by scikit-learn {version}, which is not the version used here" if version else ""
    return open_estimator(request, estimator, request.digest, remark)


def is_estimator(thing: Any) -> bool:
    """Return whether something is a fitted model in the manner of scikit-learn."""
    return not isinstance(thing, (type, nn.Module)) and callable(getattr(thing, "predict", None))


def open_estimator(request: Request, estimator: Any, print_of: str, remark: str = "") -> Opened:
    """Return a fitted estimator as a network if it is a perceptron behind ordinary preprocessing, else as a black box.

    A pipeline is given the table's own labels and numbers. A bare estimator is given the columns that its feature
    names say, or the numbers of the domain's encoding where it has no names.
    """
    estimator = getattr(estimator, "best_estimator_", estimator)  # a finished search for hyperparameters
    steps, final = _split(estimator)
    kind = "XGBoost" if type(final).__module__.startswith("xgboost") else "scikit-learn"
    ask, probability = _question(request, estimator, final)
    reading, answers = first_that_works(request, readings(request, estimator, bare=not steps), ask)
    why = f"{type(final).__name__} has no neurons to look at"
    if type(final).__name__ in ("MLPClassifier", "MLPRegressor"):
        try:
            domain, module = _network(request, steps, final, reading)
            # The layers are built in float64, so that only the numbers of the network itself are rounded.
            scores = module(domain.encode(request.tried, torch.float32)).detach().numpy()
            if scores.shape != answers.shape or not np.allclose(scores, answers, rtol=0, atol=AGREE):
                raise NotLinear("its preprocessing mixes columns")
            notes = ("its preprocessing has become the first layer" if steps else "", reading.note, remark)
            note = "; ".join(filter(None, notes))
            opened = request.white_box(kind, module, domain=domain, note=note, probability=True)
            # The numbers of the first layer depend on the row it was probed with, so they are no fingerprint.
            return replace(opened, fingerprint=print_of)
        except NotLinear as reason:
            why = str(reason)
    decode = request.domain.to("cpu").decode

    def predict(x: np.ndarray) -> np.ndarray:
        return ask(reading.given(decode(torch.from_numpy(x))))

    why = "; ".join(filter(None, (why, reading.note, remark)))
    return request.black_box(kind, predict, why, probability=probability, print_of=print_of)


def _read_skops(request: Request) -> Any:
    skops = needs("skops.io", "sklearn")
    unknown = skops.get_untrusted_types(file=request.path)
    doubtful = [name for name in unknown if name not in _PLAIN]
    if doubtful and not request.trust_pickle:
        shown = ", ".join(doubtful[:6]) + (", …" if len(doubtful) > 6 else "")
        raise request.error(f"holds types that can run a program when opened: {shown}. If you trust it: --trust-pickle")
    return skops.load(request.path, trusted=unknown)


def _read_pickle(request: Request) -> Any:
    if not request.trust_pickle:
        raise request.error(
            "a pickle, and opening one runs any program hidden in it. If you trust the file: --trust-pickle. Better, "
            "save the model with skops.io.dump(model, 'model.skops')"
        )
    return needs("joblib", "sklearn").load(request.path)


def _split(estimator: Any) -> tuple[list[Any], Any]:
    """Return the transformers of a pipeline, also of one inside another, and what stands at its end."""
    if not hasattr(estimator, "steps"):
        return [], estimator
    *before, (_, last) = estimator.steps
    steps = [step for _, step in before if step not in (None, "passthrough")]
    more, final = _split(last)
    return steps + more, final


def _question(request: Request, estimator: Any, final: Any) -> tuple[Callable[[Any], np.ndarray], bool | None]:
    """Return how to ask an estimator for scores in the order of the domain's classes, and what a single one means."""
    classes = getattr(final, "classes_", None)
    if isinstance(classes, list) or getattr(getattr(final, "_label_binarizer", None), "y_type_", "").startswith(
        "multilabel"
    ):
        raise request.error("decides several questions at once; give a function that answers one of them")
    order = class_order(request.domain, classes)
    name = next((name for name in ("predict_proba", "decision_function") if hasattr(estimator, name)), None)
    if name is not None:
        method = getattr(estimator, name)
        return lambda table: _ordered(np.asarray(_quietly(method, table)), order), name == "predict_proba"
    if classes is None:  # a regression: its number stands for the second class from one half on
        return lambda table: np.asarray(_quietly(estimator.predict, table)).reshape(-1, 1), True
    known = np.asarray(classes)
    return lambda table: _ordered(_quietly(estimator.predict, table)[:, None] == known, order).astype(float), None


def class_order(domain: TableDomain, classes: Sequence[Any] | None) -> list[int] | None:
    """Return for each class of the domain its place among the estimator's classes; None if they are named otherwise."""
    if classes is None or domain.target is None:
        return None
    names = [_name(c) for c in classes]
    wanted = [_name(c) for c in domain.target.classes]
    return [names.index(c) for c in wanted] if sorted(names) == sorted(wanted) else None


def _name(thing: Any) -> str:
    """Return a class as text, so that 1, 1.0, True and "1" are one."""
    text = str(thing).strip()
    try:
        return f"{float({'True': '1', 'False': '0'}.get(text, text)):g}"
    except ValueError:
        return text


def _ordered(scores: np.ndarray, order: list[int] | None) -> np.ndarray:
    if order is None:
        return scores
    if scores.ndim == 1:  # the score of the second of two classes
        return scores if order == [0, 1] else -scores
    return scores[:, order]


def _quietly(method: Callable[[Any], Any], table: Any) -> Any:
    """Call a method of an estimator; it may warn of unknown categories on every call, which the user knows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method(table)


def _network(request: Request, steps: Sequence[Any], final: Any, reading: Reading) -> tuple[TableDomain, nn.Sequential]:
    """Return a perceptron and what stands before it as a torch module, and the domain in the encoding it reads."""

    def transform(rows: Tensor) -> np.ndarray:
        features = reading.given(rows)
        for step in steps:
            features = _quietly(step.transform, features)
        return np.asarray(features.toarray() if hasattr(features, "toarray") else features, dtype=np.float64)

    domain, first = linear_layer(transform, request.domain, request.tried[0])
    parts: OrderedDict[str, nn.Module] = OrderedDict(preprocessing=first)
    *hidden, last = [_linear(w, b) for w, b in zip(final.coefs_, final.intercepts_, strict=True)]
    for number, linear in enumerate(hidden, 1):
        parts[f"layer{number}"] = nn.Sequential(linear, _HIDDEN[final.activation]())
    if final.out_activation_ not in ("logistic", "softmax", "identity"):
        raise NotLinear(f"its output function '{final.out_activation_}' is not known here")
    if hasattr(final, "classes_"):
        parts["output"] = _class_scores(last, class_order(request.domain, final.classes_))
        parts["probabilities"] = nn.Softmax(dim=1)
    else:
        parts["output"] = last
    return domain, nn.Sequential(parts).float().eval()


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    before, after = weight.shape
    layer = nn.Linear(before, after, dtype=torch.float64)
    layer.load_state_dict({"weight": torch.tensor(weight.T), "bias": torch.tensor(bias)})
    return layer


def _class_scores(layer: nn.Linear, order: list[int] | None) -> nn.Linear:
    """Return a layer with one score for each class, in the domain's order; two classes share one in scikit-learn."""
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    if len(bias) == 1:  # softmax of (0, z) is the sigmoid of z
        weight, bias = torch.cat([torch.zeros_like(weight), weight]), torch.cat([torch.zeros_like(bias), bias])
    chosen = list(range(len(bias))) if order is None else order
    return _linear(weight[chosen].T.numpy(), bias[chosen].numpy())
