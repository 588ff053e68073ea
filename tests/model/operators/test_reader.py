"""Networks that a sample misreads: each is refused by name, or read as it is on everybody of a small domain."""

from __future__ import annotations

import functools
import itertools
import os
import random
import time
import types
import uuid
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrize

from neuronfair import Network
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.operators import read_chain

DOMAIN = """
name = "loans"
encode = "raw"
sensitive = ["sex"]
[attributes]
income = { kind = "ordinal", low = 0, high = 199 }
sex = { kind = "flag" }
years = { kind = "ordinal", low = 0, high = 4 }
"""


@pytest.fixture(scope="module")
def domain() -> TableDomain:
    return parse_domain(DOMAIN)


def everybody(domain: TableDomain) -> Tensor:
    return torch.tensor(list(itertools.product(*(range(a.size) for a in domain.attributes))))


class Whole(nn.Module):
    """A network with something before its first layer, between its layers and behind its last one."""

    def __init__(
        self,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        between: Callable[[Tensor], Tensor] = lambda x: x,
        behind: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)
        self.before, self.between, self.behind = before, between, behind

    def forward(self, x: Tensor) -> Tensor:
        return self.behind(self.last(self.between(self.act(self.first(self.before(x))))))


def override(x: Tensor) -> Tensor:
    chosen = (x[:, 0] > 193) & (x[:, 1] == 1)
    return torch.where(chosen[:, None], x + 100, x)


def branch(x: Tensor) -> Tensor:
    return x + 100 if bool((x[:, 0] > 193).any()) else x


def swallowed(x: Tensor) -> Tensor:
    try:
        return x + 100 if x[0, 0] > 193 else x
    except Exception:
        return x


def through_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.minimum(x.numpy(), 193).astype(np.float32)).to(x.dtype)


def through_a_list(x: Tensor) -> Tensor:
    return torch.tensor([[min(a, 193.0), b, c] for a, b, c in x.tolist()], dtype=x.dtype)


def written_over(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 0].clamp_(max=193)
    return x


class Called(nn.Module):
    """Behaves from its hundredth call on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + 100 if self.calls > 100 else x


class Counted(nn.Module):
    """The same with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + 0 * self.calls


class Remembers(nn.Module):
    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        before, self.last = self.last, x
        return x if before is None else x + before.mean()


def counter() -> Callable[[Tensor], Tensor]:
    calls = itertools.count()
    return lambda x: x + 100 if next(calls) > 100 else x


def generated() -> Callable[[Tensor], Tensor]:
    factors = (1.0 if call < 100 else 2.0 for call in itertools.count())
    return lambda x: x * next(factors)


def own_random(kind: Callable[[int], Any]) -> Callable[[Tensor], Tensor]:
    own = kind(0)
    return lambda x: x + (own.random() > 2)


class OfClass(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return x + 100 if self.calls > 100 else x


elsewhere = types.ModuleType("elsewhere")
elsewhere.calls = 0


def module_counter(x: Tensor) -> Tensor:
    elsewhere.calls += 1
    return x + 100 if elsewhere.calls > 100 else x


class Slotted:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + 100 if self.calls > 100 else x


def number_in_a_closure() -> Callable[[Tensor], Tensor]:
    calls = 0

    def called(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x + 100 if calls > 100 else x

    return called


CALLED = 0


def number_in_a_global(x: Tensor) -> Tensor:
    global CALLED
    CALLED += 1
    return x + 100 if CALLED > 100 else x


CALLS = [0]


def global_counter(x: Tensor) -> Tensor:
    CALLS[0] += 1
    return x + 100 if CALLS[0] > 100 else x


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(max=193)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class CappedLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=1e6)


class OddReLU(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 50, x + 1, super().forward(x))


class Odd(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


def with_odd_weights() -> nn.Module:
    module = Whole()
    module.first.weight = nn.Parameter(torch.randn(6, 3).as_subclass(Odd))
    return module


def replaced(part: str, by: nn.Module) -> nn.Module:
    module = Whole()
    setattr(module, part, by)
    return module


def patched() -> nn.Module:
    module = Whole()
    inner = module.act.forward
    module.act.forward = lambda x: inner(x).clamp(max=100)
    return module


def hooked(before: bool) -> nn.Module:
    module = Whole()
    if before:
        module.first.register_forward_pre_hook(lambda part, given: (given[0].clamp(max=193),))
    else:
        module.act.register_forward_hook(lambda part, given, output: output.clamp(max=100))
    return module


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(Whole(), torch.zeros(2, 3))


def with_nan() -> nn.Module:
    module = Whole()
    with torch.no_grad():
        module.last.bias[0] = float("nan")
    return module


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 2)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.act(self.first(x)))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "clamp": (lambda: Whole(lambda x: x.clamp(max=193)), "aten.clamp"),
    "minimum": (lambda: Whole(lambda x: torch.minimum(x, torch.tensor(193.0))), "aten.minimum"),
    "override": (lambda: Whole(override), "aten.gt"),
    "a Python branch": (lambda: Whole(branch), "takes a number out of a tensor|aten.gt"),
    "a branch whose error is swallowed": (lambda: Whole(swallowed), "aten.gt|out of a tensor"),
    "a jump in a hidden layer": (lambda: Whole(between=lambda h: h + (h > 30).float()), "aten.gt"),
    "a cap that nobody reads": (lambda: Whole(lambda x: (x.clamp(max=193), x)[1]), "aten.clamp"),
    "a cap behind the scores": (lambda: Whole(behind=lambda s: s.clamp(max=50)), "aten.clamp"),
    "where on floor": (lambda: Whole(lambda x: x.floor()), "aten.floor"),
    "round": (lambda: Whole(lambda x: x.round()), "aten.round"),
    "a cast to whole numbers": (lambda: Whole(lambda x: (x / 3).long().float()), "rounds to int64"),
    "a cast to half": (lambda: Whole(lambda x: x.half().float()), "rounds to float16"),
    "a remainder": (lambda: Whole(lambda x: x % 194), "aten.remainder"),
    "an absolute value": (lambda: Whole(lambda x: (x - 193).abs()), "aten.abs"),
    "a maximum over columns": (lambda: Whole(lambda x: x - x.amax(1, keepdim=True)), "aten.amax"),
    "sorted columns": (lambda: Whole(lambda x: x.sort(1)[0]), "aten.sort"),
    "a square": (lambda: Whole(lambda x: x * x), "multiplies numbers of a row"),
    "a power": (lambda: Whole(lambda x: x**2), "aten.pow"),
    "an exponential": (lambda: Whole(lambda x: (x / 99).exp()), "aten.exp"),
    "a quotient": (lambda: Whole(lambda x: x / (x + 1)), "divides by a number of a row"),
    "floor division": (lambda: Whole(lambda x: x // 2), "aten.floor_divide|rounds"),
    "NumPy": (lambda: Whole(through_numpy), "numpy"),
    "a list": (lambda: Whole(through_a_list), "tolist"),
    "a number taken out": (lambda: Whole(lambda x: x * x[0, 0].item()), "_local_scalar_dense"),
    "in place": (lambda: Whole(written_over), "aten.clamp_"),
    "a table looked up": (lambda: Whole(lambda x: torch.ones(500, 3)[x[:, 0].long()]), "rounds to int64"),
    "the mean of the batch": (lambda: Whole(lambda x: x - x.mean(0)), "several rows"),
    "the first row": (lambda: Whole(lambda x: x + x[0]), "several rows"),
    "rows in reverse": (lambda: Whole(lambda x: x.flip(0)), "aten.flip"),
    "the batch size": (lambda: Whole(lambda x: x + 100 if x.shape[0] > 64 else x), "number of rows"),
    "one row": (lambda: Whole(lambda x: x + 100 if x.shape[0] == 1 else x), "one row than for several"),
    "the batch size as a number": (lambda: Whole(lambda x: x + x.shape[0]), "number of rows"),
    "calls": (lambda: replaced("before", Called()), "changes its part 'before'.calls"),
    "calls in a buffer": (lambda: replaced("before", Counted()), "changes"),
    "calls in a closure": (lambda: Whole(counter()), "changes calls, which"),
    "calls in a generator": (lambda: Whole(generated()), "changes factors, which"),
    "calls in a class": (lambda: replaced("before", OfClass()), "changes the class OfClass.calls"),
    "calls in a module": (lambda: Whole(module_counter), "changes elsewhere.calls"),
    "a number in a closure": (lambda: Whole(number_in_a_closure()), "changes calls, which"),
    "a number in a global": (lambda: Whole(number_in_a_global), "changes the global CALLED"),
    "calls in slots": (lambda: Whole(Slotted()), "changes .*calls"),
    "its own random numbers": (lambda: Whole(own_random(random.Random)), "changes own, which"),
    "its own random numbers of NumPy": (lambda: Whole(own_random(np.random.default_rng)), "changes own, which"),
    "a sum of whole numbers": (lambda: Whole(lambda x: x.sum(1, dtype=torch.int64)[:, None] + x), "rounds to int64"),
    "a sum of small numbers": (lambda: Whole(lambda x: x.sum(1, dtype=torch.half)[:, None] + x), "rounds to float16"),
    "DLPack": (lambda: Whole(lambda x: torch.from_numpy(np.from_dlpack(x)).clone()), "dlpack"),
    "calls in a global": (lambda: Whole(global_counter), "changes the global CALLS"),
    "the call before": (lambda: replaced("before", Remembers()), "changes|from call to call"),
    "random in Python": (lambda: Whole(lambda x: x + (random.random() > 0.9999)), "changes the state of random"),
    "random in NumPy": (lambda: Whole(lambda x: x + (np.random.rand() > 2)), "numpy.random"),
    "the clock": (lambda: Whole(lambda x: x + (time.time() < 0)), "time.time"),
    "noise": (lambda: Whole(lambda x: x + torch.randn(3)), "random"),
    "dropout that stays": (lambda: Whole(lambda x: functional.dropout(x, 0.1, True)), "random|dropout"),
    "statistics of the batch": (
        lambda: replaced("before", nn.BatchNorm1d(3, track_running_stats=False)),
        "more than 1 value",
    ),
    "an autograd function": (lambda: Whole(Straight.apply), "aten.clamp"),
    "a subclass of Linear": (lambda: replaced("first", CappedLinear(3, 6)), "aten.clamp"),
    "a subclass of ReLU": (lambda: replaced("act", OddReLU()), "aten.gt"),
    "forward on the instance": (patched, "aten.clamp"),
    "a hook before": (lambda: hooked(True), "aten.clamp"),
    "a hook behind": (lambda: hooked(False), "aten.clamp"),
    "a tensor subclass": (with_odd_weights, "no plain tensor but"),
    "TorchScript": (scripted, "TorchScript"),
    "NaN": (with_nan, "NaN or infinite"),
    "half precision": (lambda: Whole().bfloat16(), "bfloat16"),
    "ReLU6": (lambda: replaced("act", nn.ReLU6()), "hardtanh|relu6"),
    "Hardtanh": (lambda: replaced("act", nn.Hardtanh()), "hardtanh"),
    "Mish": (lambda: replaced("act", nn.Mish()), "mish"),
    "SELU": (lambda: replaced("act", nn.SELU()), "elu"),
    "ELU with another parameter": (lambda: replaced("act", nn.ELU(0.5)), "aten.elu"),
    "Softplus with another parameter": (lambda: replaced("act", nn.Softplus(2)), "aten.softplus"),
    "Softplus with its parameters exchanged": (lambda: replaced("act", nn.Softplus(20, 1)), "aten.softplus"),
    "GELU by tanh": (lambda: replaced("act", nn.GELU("tanh")), "aten.gelu"),
    "Softmax inside": (lambda: Whole(between=lambda h: h.softmax(1)), "softmax"),
    "LogSoftmax": (lambda: Whole(behind=lambda s: s.log_softmax(1)), "log_softmax"),
    "LayerNorm": (lambda: replaced("before", nn.LayerNorm(3)), "layer_norm"),
    "a skip": (lambda: Skipping(), "not one after the other"),
}


@functools.cache
def counted(_: int = 0) -> list[int]:
    return []


IN_CONTEXT: ContextVar[int] = ContextVar("IN_CONTEXT", default=0)


class Outside(Whole):
    """Reads, or leaves something in, what lies outside of the module and its input."""

    def __init__(self, look) -> None:
        super().__init__()
        self.look = look

    def forward(self, x):
        self.look()
        return super().forward(x)


OUTSIDE = {
    "a cached function": lambda: counted(len(counted())).append(1),
    "a context variable": lambda: IN_CONTEXT.set(IN_CONTEXT.get() + 1),
    "the environment": lambda: os.environ.update(NEURONFAIR_TEST_CALLS="1"),
    "the clock": lambda: datetime.now(tz=UTC),
    "random bytes": uuid.uuid4,
    "a file": lambda: Path("here").exists(),
    "the mode it is called in": torch.is_inference_mode_enabled,
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_what_reads_or_changes_the_world_outside_is_refused(domain, case, monkeypatch):
    monkeypatch.setenv("NEURONFAIR_TEST_CALLS", "0")
    network = Network(Outside(OUTSIDE[case]), domain, layers=())
    with pytest.raises(ModelError):
        read_chain(network, domain.sample(64, torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name(domain, case):
    make, why = REFUSED[case]
    network = Network(make(), domain, layers=())
    with pytest.raises(ModelError, match=why):
        read_chain(network, domain.sample(64, torch.Generator().manual_seed(0)))


def test_a_global_hook_is_read(domain):
    handle = register_module_forward_hook(
        lambda part, given, output: output.clamp(max=100) if isinstance(part, nn.ReLU) else None
    )
    try:
        with pytest.raises(ModelError, match=r"aten\.clamp"):
            read_chain(Network(Whole(), domain, layers=()), domain.sample(64, torch.Generator()))
    finally:
        handle.remove()


class Listed(nn.Module):
    """Its layers are in a list, of which torch knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = [nn.Linear(3, 5), nn.Linear(5, 2)]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](torch.tanh(self.layers[0](x)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer, self.last = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.silu(self.layer(functional.silu(self.layer(x / 100)))))


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight.exp()


def parametrized() -> nn.Module:
    module = Whole()
    parametrize.register_parametrization(module.first, "weight", Doubled())
    return module


def prelu() -> nn.Module:
    return replaced("act", nn.PReLU(1, 0.3))


def linear_hook() -> nn.Module:
    module = Whole()
    module.first.register_forward_hook(lambda part, given, output: 2 * output - 1)
    return module


def normed() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Linear(4, 2), nn.Softmax(-1))
    module[1].running_mean, module[1].running_var = torch.arange(4.0), torch.arange(1.0, 5.0)
    return module


READ: dict[str, Callable[[], nn.Module]] = {
    "plain": Whole,
    "scaled by constants": lambda: Whole(lambda x: (x - torch.tensor([100.0, 0.5, 2.0])) / torch.tensor([57.0, 3, 7])),
    "columns taken apart and joined": lambda: Whole(lambda x: torch.cat([x[:, 1:], x[:, :1] * 2], 1)),
    "columns by number": lambda: Whole(lambda x: torch.stack([x[:, 2], 1 - x[:, 0], x.sum(1)], 1)),
    "columns by a list": lambda: Whole(lambda x: x[:, [2, 0, 1]]),
    "split": lambda: Whole(lambda x: torch.cat(x.split([1, 2], 1)[::-1], 1)),
    "a mean": lambda: Whole(lambda x: x - x.mean(1, keepdim=True)),
    "transposed": lambda: Whole(lambda x: (torch.eye(3).to(x) @ x.T).T),
    "zeros beside": lambda: Whole(lambda x: torch.cat([x[:, :2], torch.zeros(x.shape[0], 1)], 1)),
    "in place": lambda: Whole(lambda x: x.clone().mul_(0.5).add_(1)),
    "without a gradient": lambda: Whole(torch.no_grad()(lambda x: x * 3)),
    "a convolution": lambda: Whole(lambda x: functional.conv1d(x[:, None], torch.ones(1, 1, 3).to(x), padding=1)[:, 0]),
    "in float64 for a while": lambda: Whole(lambda x: x.double().mul(0.1).to(x.dtype)),
    "a learned slope": prelu,
    "a straight hook": linear_hook,
    "a batch normalisation": normed,
    "layers in a list": Listed,
    "tied weights": Tied,
    "a parametrization": parametrized,
    "a sigmoid at the end": lambda: Whole(behind=lambda s: s[:, 1].sigmoid()),
    "a softmax at the end": lambda: Whole(behind=lambda s: s.softmax(-1)),
    "two curves": lambda: Whole(between=torch.tanh),
}


@pytest.mark.parametrize("case", READ)
def test_what_is_read_is_right_for_everybody(domain, case):
    network = Network(READ[case](), domain, layers=())
    rows = everybody(domain)
    chain = read_chain(network, domain.sample(64, torch.Generator().manual_seed(0)))
    scores = chain.scores(network.encoding.encode(rows, torch.float64))
    torch.testing.assert_close(scores, network.scores(rows).double(), rtol=1e-4, atol=1e-4)


def test_weights_are_those_of_the_module(domain):
    module = Whole()
    chain = read_chain(Network(module, domain), domain.sample(4, torch.Generator()))
    for affine, layer in zip(chain.affines, (module.first, module.last), strict=True):
        assert torch.equal(affine.weight, layer.weight.detach().double())
        assert torch.equal(affine.bias, layer.bias.detach().double())


def test_composed_maps_are_exact_to_the_last_digit(domain):
    """Two layers without an activation between them, whose products nearly cancel."""
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        module[0].weight[:] = torch.tensor([[1e8, 3.0, 1.0], [1e8 + 2**-20, 3.0, 1 + 2**-52]])
        module[1].weight[:] = torch.tensor([[1.0, -1.0]])
    chain = read_chain(Network(module, domain), domain.sample(4, torch.Generator()))
    exact = module[0].weight[0] - module[0].weight[1]
    assert torch.equal(chain.affines[0].weight[0], exact.detach())


def test_the_module_is_left_as_it_was(domain):
    module = Whole().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    read_chain(Network(module, domain), domain.sample(4, torch.Generator()))
    assert module.training
    assert module.first.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert not any(part._forward_hooks for part in module.modules())
