"""Random small models over random small domains, nasty ones among them, of which everybody can be asked."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, RuleCondition
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel, wrap_model

import torch
from torch import Tensor, nn

from .everybody import Asked, Doubt

KINDS = ("plain", "huge", "cancelling", "dead", "ties", "shifted", "lifted", "trees")
CURVES: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
STEEPEST = 1.2  # of all curves
UNIT = 2.0**-53


@dataclass(frozen=True)
class Planted:
    """A model and a domain, small enough to ask everybody."""

    name: str
    domain: TableDomain
    model: OpenedModel | Network
    asked: Asked  # the same in float64
    decision: Decision
    doubt: Doubt | None


def planted(seed: int, *, kind: str | None = None, people: int = 20_000) -> Planted:
    """Return a model and a domain of at most so many people, the same for every seed."""
    draw = random.Random(seed)
    kind = kind or KINDS[seed % len(KINDS)]
    domain = _domain(draw, kind, people)
    if kind == "trees":
        return _trees(draw, domain, seed)
    curve = "relu" if kind in ("ties", "lifted") else draw.choice(list(CURVES))
    outputs, decision, end = _question(draw, kind)
    layers = [draw.randint(2, 8) for _ in range(draw.choice((0, 1, 1, 2, 2, 3)) or (kind != "plain"))]
    rows = domain.sample(300, torch.Generator().manual_seed(seed))
    x = TableEncoding.of(domain).encode(rows, torch.float64)
    torch.manual_seed(seed)
    module = _module(kind, x, layers, outputs, curve, draw)
    if end is not None:
        module.append(end)
    network = Network(module.eval(), domain, layers=None if layers else ())
    name = f"{kind} {curve} {layers} to {outputs}, {decision.kind}{' of a sigmoid' if end else ''}"
    doubt = (lambda rows, _: torch.zeros(len(rows))) if kind == "ties" else _doubt(module, domain)
    return Planted(name, domain, network, network.double(), decision, doubt)


def _question(draw: random.Random, kind: str) -> tuple[int, Decision, nn.Module | None]:
    choice = draw.randrange(6)
    if choice < 2:
        return 2, Decision(), None
    if choice == 2:
        return 3, Decision(), None
    if choice == 3 or kind == "ties":
        return 1, Decision("threshold", 0.0), None
    if choice == 4:
        return 1, Decision("threshold", draw.choice((0.5, 0.3))), nn.Sigmoid()
    end = draw.choice((None, nn.Sigmoid()))
    return 1, Decision("tolerance", 0.5 if end is None else 0.1), end


def _domain(draw: random.Random, kind: str, people: int) -> TableDomain:
    """Return attributes of all kinds and rules between some of them."""
    while True:
        free = [_attribute(draw, f"a{i}", kind) for i in range(draw.randint(2, 5))]
        kept = [_sensitive(draw, f"s{i}") for i in range(draw.choice((1, 1, 2)))]
        attributes = [*free, *kept]
        draw.shuffle(attributes)
        rules = tuple(_rule(draw, f"rule {i}", attributes) for i in range(draw.choice((0, 0, 1, 2, 3))))
        try:
            domain = TableDomain("planted", tuple(attributes), tuple(a.name for a in kept), rules)
        except DomainError:  # rules that forbid everybody
            continue
        if 500 <= domain.count <= people:
            return domain


def _attribute(draw: random.Random, name: str, model: str) -> Attribute:
    kind = draw.choice(("raw", "raw", "scaled", "onehot", "empty"))
    size = draw.randint(2, 30)
    if kind == "onehot":
        values = tuple("abcdefgh"[: draw.randint(2, 8)])
        return Attribute(name, "nominal", values=values, encode=draw.choice(("onehot", "onehot", "raw")))
    if model == "ties" or kind == "raw":  # whole numbers, with which nothing is rounded
        low = draw.choice((0, -5, 10_000 if model in ("shifted", "lifted") else 3))
        return Attribute(name, "ordinal", low=low, high=low + size - 1)
    missing = "keep" if kind == "empty" else None
    return Attribute(
        name, "continuous", low=0, high=0.1 * size, step=0.1, encode="scaled", center=1.3, scale=0.7, missing=missing
    )


def _sensitive(draw: random.Random, name: str) -> Attribute:
    kind = draw.randrange(3)
    if kind == 0:
        return Attribute(name, "flag")
    if kind == 1:
        return Attribute(name, "nominal", values=("a", "b", "c"), encode="onehot")
    return Attribute(name, "ordinal", low=0, high=draw.randint(2, 4))


def _rule(draw: random.Random, name: str, attributes: list[Attribute]) -> Rule:
    one, other = draw.sample(attributes, 2)
    then: dict[str, RuleCondition] = {} if draw.random() < 0.3 else {other.name: _some(draw, other)}
    when: dict[str, RuleCondition] = {one.name: _some(draw, one)}
    if not then:
        when[other.name] = _some(draw, other)
    return Rule(name, when, then)


def _some(draw: random.Random, attribute: Attribute) -> RuleCondition:
    """Return some of an attribute's values."""
    codes = draw.sample(range(attribute.grid_size), draw.randint(1, max(1, attribute.grid_size // 2)))
    return tuple(attribute.value(code) for code in codes)


def _module(kind: str, x: Tensor, layers: list[int], outputs: int, curve: str, draw: random.Random) -> nn.Sequential:
    """Return a network whose boundary runs through the rows that x stands for."""
    module, now = nn.Sequential(), x
    with torch.no_grad():
        for width in layers:
            module.append(_linear(kind, now, width))
            if kind == "plain" and draw.random() < 0.3:
                module.append(_normalised(width))
            module.append(CURVES[curve]())
            now = module(x)
        last = _linear(kind, now, outputs)
        if kind == "cancelling" and outputs > 1:
            last.weight[1] = last.weight[0] + 1e-4 * last.weight[1]
        if kind != "ties":
            scores = last(now)
            others = scores - scores[:, :1] if outputs > 1 else scores
            last.bias -= others.median(0).values
        if kind in ("cancelling", "shifted") and outputs > 1:
            last.bias += 1e4  # all scores are far from 0, and near to each other
    module.append(last)
    return module.float() if kind in ("plain", "dead") else module


def _linear(kind: str, x: Tensor, width: int) -> nn.Linear:
    """Return a layer for inputs like x."""
    layer = nn.Linear(x.shape[1], width, dtype=torch.float64)
    if kind == "ties":
        layer.weight.copy_(torch.randint(-2, 3, layer.weight.shape))
        layer.bias.copy_(torch.randint(-3, 4, layer.bias.shape))
        return layer
    layer.weight.normal_()
    layer.weight /= x.std(0).clamp(min=0.1) * x.shape[1] ** 0.5
    layer.weight *= 1e6 if kind == "huge" else 1.0
    layer.bias.copy_(-(x @ layer.weight.T).median(0).values)
    if kind == "lifted":
        layer.bias += 1e10 if width % 2 else 1e6  # which, added to a weight and taken away, takes digits with it
    if kind == "dead" and width > 3:
        layer.weight[0] = 0.0
        layer.bias[1] = -1e3
    return layer


def _normalised(width: int) -> nn.BatchNorm1d:
    layer = nn.BatchNorm1d(width, dtype=torch.float64)
    with torch.no_grad():
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
        layer.weight.uniform_(-2, 2)
        layer.bias.normal_()
    return layer.eval()


def _doubt(module: nn.Sequential, domain: TableDomain) -> Doubt:
    """Return how far rounding may move the scores of rows, by the usual analysis of sums in floating point."""
    encode = TableEncoding.of(domain).encode
    parts = copy.deepcopy(module).double().eval()

    def doubt(rows: Tensor, _: Tensor) -> Tensor:
        x = encode(rows, torch.float64)
        error = torch.zeros_like(x)
        with torch.no_grad():
            for part in parts:
                if isinstance(part, nn.Linear):
                    size = x.abs() @ part.weight.abs().T + part.bias.abs()
                    error = error @ part.weight.abs().T + (part.in_features + 1) * UNIT * size
                    x = part(x)
                elif isinstance(part, nn.BatchNorm1d):
                    scale = part.weight.abs() / (part.running_var + part.eps).sqrt()
                    error = error * scale + 8 * UNIT * ((x.abs() + part.running_mean.abs()) * scale + part.bias.abs())
                    x = part(x)
                else:
                    x = part(x)
                    error = STEEPEST * error + 8 * UNIT * (x.abs() + 1)
        return error.amax(1)

    return doubt


def _trees(draw: random.Random, domain: TableDomain, seed: int) -> Planted:
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

    rows = domain.sample(300, torch.Generator().manual_seed(seed))
    x = TableEncoding.of(domain).encode(rows, torch.float64).numpy()
    weight = torch.randn(x.shape[1], generator=torch.Generator().manual_seed(seed)).double().numpy()
    noisy = (x - x.mean(0)) / (x.std(0) + 1e-9) @ weight
    classes = draw.choice((2, 2, 3))
    labels = (noisy > 0).astype(int) + ((noisy > 1).astype(int) if classes == 3 else 0)
    make = draw.choice((GradientBoostingClassifier, RandomForestClassifier))
    model = make(n_estimators=draw.randint(1, 12), max_depth=draw.randint(1, 4), random_state=seed).fit(x, labels)
    opened = wrap_model(model, domain, rows)
    assert opened.trees is not None
    name = f"trees {make.__name__}, {model.n_estimators} of depth {model.max_depth}, {classes} classes"
    return Planted(name, domain, opened, opened.trees(), opened.decision, None)
