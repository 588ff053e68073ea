"""Steps on a GPU, recorded once as a CUDA graph and then played again: the host does not launch each operation.

A method that has a function `form(t)` says so which of its steps run the same operations: those of the same form. None
is a step that is never recorded. What changes from step to step is the addresses of random numbers, so these are read
from the device. A recorded step is used only if it does, bit for bit, what the step itself does.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.errors import ModelError
from neuronfair.model.network import Network
from neuronfair.searches.method import Method, State, World
from neuronfair.searches.stepping import Judged, step

AHEAD = 64  # steps whose addresses are sent to the device at once
USES = 32  # of random numbers in a step, at most


@dataclass(frozen=True)
class _Clocked(Draws):
    """The random numbers of a step whose address lies on the device: what they are used for, in the order of use."""

    starts: Tensor = field(default_factory=lambda: torch.empty(0))  # (USES,)
    uses: list[str] = field(default_factory=list)

    def start(self, t: int, use: str) -> Tensor:
        if use not in self.uses:
            self.uses.append(use)
        return self.starts[self.uses.index(use)]


class _Recorded(NamedTuple):
    """A step as a graph, with the addresses it reads and the places of what it gives."""

    graph: torch.cuda.CUDAGraph
    world: World  # holds tensors that the graph reads
    draws: _Clocked
    judged: Judged
    rows: tuple[int, int]  # that went through the network, forward and backward


class CudaGraphs:
    """The steps of one phase on a GPU."""

    def __init__(self, world: World, method: Method) -> None:
        self._world, self._method = world, method
        self._state: State = {}
        self._recorded: dict[Hashable, _Recorded | None] = {}
        self._addresses: dict[Hashable, tuple[int, Tensor]] = {}

    @staticmethod
    def fit(world: World, method: Method) -> bool:
        """Return whether the steps of a method can be recorded: where there are rules, mending rows asks the host."""
        domain, network = world.domain, world.network
        plain = domain.device.type == "cuda" and not domain.restricted
        return plain and hasattr(method, "form") and isinstance(network, Network)

    def __call__(self, state: State, t: int) -> tuple[State, Judged]:
        """Return the chains after a step, and what was judged. The chains are overwritten by the next step."""
        form = self._method.form(t)  # type: ignore[attr-defined]
        if form is None:
            return step(self._world, self._method, state, t, exact=False)
        if self._state.keys() != state.keys():
            self._state = {name: tensor.clone() for name, tensor in state.items()}
        elif state is not self._state:
            self._take(state)
        if form not in self._recorded:
            self._recorded[form] = self._record(t)
        recorded = self._recorded[form]
        if recorded is None:
            return step(self._world, self._method, self._state, t, exact=False)
        self._set_clock(form, recorded.draws, t)
        recorded.graph.replay()
        network = self._world.network
        assert isinstance(network, Network)
        network.rows_forward, network.rows_backward = (
            network.rows_forward + recorded.rows[0],
            network.rows_backward + recorded.rows[1],
        )
        kept = ("origin", "place")  # never change while nobody retires
        lines = {name: x if name in kept else x.clone() for name, x in recorded.judged._asdict().items()}
        return self._state, Judged(**lines)

    def _take(self, state: State) -> None:
        for name, tensor in state.items():
            self._state[name].copy_(tensor)

    def _set_clock(self, form: Hashable, draws: _Clocked, t: int) -> None:
        """Put the addresses of a step where its graph reads them."""
        first, table = self._addresses.get(form, (-AHEAD, draws.starts))
        if not 0 <= t - first < AHEAD:
            plain = self._world.draws
            starts = [[plain.start(t + ahead, use) for use in draws.uses] for ahead in range(AHEAD)]
            first, table = t, torch.tensor(starts, device=draws.starts.device)
            self._addresses[form] = first, table
        draws.starts[: len(draws.uses)].copy_(table[t - first])

    def _record(self, t: int) -> _Recorded | None:
        """Return the step as a graph; None if it cannot be one, or is not the same then."""
        network, before = self._world.network, {name: tensor.clone() for name, tensor in self._state.items()}
        assert isinstance(network, Network)
        first = network.rows_forward, network.rows_backward  # what is tried here is not asked for
        told, judged = step(self._world, self._method, before, t, exact=False)
        starts = torch.zeros(USES, dtype=torch.int64, device=self._world.domain.device)
        draws = _Clocked(self._world.draws.seed, self._world.draws.phase, starts)
        world = replace(self._world, draws=draws)
        counted = network.rows_forward, network.rows_backward
        graph = torch.cuda.CUDAGraph()
        try:
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):  # libraries prepare themselves when they are first used
                    step(world, self._method, self._state, t, exact=False)
            torch.cuda.current_stream().wait_stream(side)
            counted = network.rows_forward, network.rows_backward
            with torch.cuda.graph(graph):
                new, places = step(world, self._method, self._state, t, exact=False)
                for name, tensor in new.items():
                    if tensor is not self._state[name]:
                        self._state[name].copy_(tensor)
        except (RuntimeError, ModelError):  # something in it waits for the host
            torch.cuda.synchronize()
            self._take(before)
            network.rows_forward, network.rows_backward = first
            return None
        rows = network.rows_forward - counted[0], network.rows_backward - counted[1]
        network.rows_forward, network.rows_backward = first
        recorded = _Recorded(graph, world, draws, places, rows)
        self._set_clock(("trial", t), draws, t)
        graph.replay()
        same = all(torch.equal(self._state[name], told[name]) for name in told)
        same = same and all(torch.equal(a, b) for a, b in zip(places, judged, strict=True))
        self._take(before)
        return recorded if same else None
