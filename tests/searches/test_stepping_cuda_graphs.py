"""Steps that can be recorded on a GPU: they never ask the host, and their random numbers come from the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neuronfair.domain.draws import Draws
from neuronfair.searches.evaluate import evaluate
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import select_state
from neuronfair.searches.methods import METHODS, Setting, frontier, neuronfair
from neuronfair.searches.stepping import STEPS_AHEAD, CudaGraphs, _DeviceDraws, step
from neuronfair.testing.cases import case

# Their result, or the place they read from, is known to the host only: on a GPU it waits for them.
ASKING = ("_local_scalar_dense", "nonzero", "lift_fresh", "masked_select", "equal", "_unique2", "is_nonzero")


class Watch(TorchDispatchMode):
    """Notes operations that would make the host wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in ASKING or masks:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def local(name: str):
    context, starts = case("plain").context, case("plain").seeds
    rule = METHODS[name].make(Setting(context, KeySet(), 0)).local_phase
    numbers = torch.arange(len(starts))
    chains = {"origin": numbers, "place": numbers, "rows": starts, "found": torch.zeros_like(numbers)}
    return context, rule, rule.start(context, chains)


RECORDED = [name for name in METHODS if hasattr(local(name)[1], "graph_key")]


def test_the_usual_methods_can_be_recorded():
    assert {"neuronfair-plus", "neuronfair", "neuronfair-printed", "frontier", "uniform", "adf"} <= set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_step_that_may_be_recorded_asks_the_host_nothing(name, monkeypatch):
    for module in (frontier, neuronfair):
        monkeypatch.setattr(
            module, "renew_state", lambda marked, old, make: select_state(marked, make(slice(None)), old)
        )
    context, rule, state = local(name)
    for t in range(12):
        if rule.graph_key(t) is None:
            state, _ = step(context, rule, state, t, exact=False)
            continue
        with Watch() as watch:
            rows = rule.ask(context, state, t)
            evaluation = evaluate(context.network, context.domain, rows, context.decision, checked=False)
            _ = evaluation.finite, evaluation.pair
            state = rule.tell(context, state, rows, evaluation, t)
        assert watch.seen == [], t


def test_the_watch_sees_what_asks():
    with Watch() as watch:
        x = torch.arange(3)
        _ = bool(x[0] > 1), x[x > 1], x[[0, 1]]
    assert {"_local_scalar_dense", "index", "lift_fresh"} <= set(watch.seen)


def test_numbers_whose_addresses_lie_on_the_device_are_the_same():
    plain, origin = Draws(3, "local"), torch.tensor([4, 0, 77])
    clocked = _DeviceDraws(plain, torch.zeros(8, dtype=torch.int64))
    for use in ("choice", "pace"):
        clocked.uniform(0, origin, 2, use=use)  # as when a step is recorded
    clocked.starts[:2] = torch.tensor([plain.start(9, use) for use in clocked.uses])
    for use in ("pace", "choice"):
        assert torch.equal(clocked.uniform(0, origin, 5, use=use), plain.uniform(9, origin, 5, use=use))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps_are_the_steps_themselves(name):
    context, rule, state = local(name)
    from dataclasses import replace

    domain = context.domain.to("cuda")
    network = type(context.network)(context.network.module, domain)
    context = replace(context, domain=domain, network=network)
    state = {key: value.cuda() for key, value in state.items()}
    replays, mine = CudaGraphs(context, rule), dict(state)
    for t in range(STEPS_AHEAD + 5):
        mine, theirs = step(context, rule, mine, t, exact=False), replays(state, t)
        assert all(torch.equal(mine[0][key], theirs[0][key]) for key in mine[0])
        assert all(map(torch.equal, mine[1], theirs[1]))
        mine, state = mine[0], theirs[0]
    assert any(replays._recorded.values())
