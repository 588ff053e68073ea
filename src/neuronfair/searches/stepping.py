"""One step of all chains: propose rows, evaluate them, update the method.

Large steps are taken in slices whose families fit into memory. On a GPU steps are recorded once as a CUDA graph and
then replayed, so that the host does not launch each operation. A method with a function `graph_key(t)` says which of
its steps run the same operations: those with the same key. A step with the key None is never recorded. Only the
addresses of random numbers change from step to step, so a graph reads them from the device. A recorded step is used
only if it gives the same result, bit for bit, as the step itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.twins import Domain
from neuronfair.errors import ModelError
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import ROW_MULTIPLE, Evaluation, evaluate, in_full_batches, not_finite
from neuronfair.searches.method import Method, SearchContext, State

# Records whose scores are in memory at once, twins included: some 300 MB with all that is computed from them, and 5 GB
# on a GPU, where few large steps are faster than many small ones.
RECORDS_HELD = {"cpu": 1 << 22, "cuda": 1 << 26}


def slice_chains(domain: Domain, state: State) -> Sequence[State]:
    """Return the chains in slices of bounded families; mostly one slice holds all of them."""
    size = in_full_batches(RECORDS_HELD.get(domain.device.type, RECORDS_HELD["cpu"]) // len(domain.sensitive_values))
    if len(state["origin"]) <= size:
        return [state]
    parts = zip(*(torch.split(lines, size) for lines in state.values()), strict=True)
    return [dict(zip(state, part, strict=True)) for part in parts]


def release_memory() -> None:
    """Give free memory back to the system, where the C library can (Linux).

    The large blocks of one slice lie between small ones that stay. The allocator finds no room for the next slice
    between them and takes 50 MB more for each: 7 GB for 100,000 chains with 5,000 twins.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def join_states(parts: Sequence[State]) -> State:
    """Return slices as one again."""
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class EvaluatedStep(NamedTuple):
    """What is kept of a step until it is counted: one line per chain each."""

    rows: Tensor  # in the domain's compact type
    hits: Tensor  # whether the row gets a different decision than a twin
    doubtful: Tensor  # whether only float64 denies it; all False if float64 is asked later
    member: Tensor  # the two members of the family that are compared, by number
    other: Tensor
    scores: Tensor
    twin_scores: Tensor
    origin: Tensor
    chain_index: Tensor
    finite: Tensor  # whether all scores are numbers: ()

    @staticmethod
    def join(steps: Sequence[EvaluatedStep]) -> EvaluatedStep:
        """Return several steps as one."""
        *lines, finite = zip(*steps, strict=True)
        return EvaluatedStep._make([*map(torch.cat, lines), torch.stack(finite).all()])

    def at(self, chosen: Tensor | slice) -> EvaluatedStep:
        """Return some of the lines."""
        return EvaluatedStep._make([*(line[chosen] for line in self[:-1]), self.finite])


StepFunction = Callable[[State, int], tuple[State, EvaluatedStep]]


def fill_batches(steps: StepFunction, network: Network) -> StepFunction:
    """Return steps that fill a batch up to a multiple of 16 with copies of the last chain, and drop these.

    A processor computes the last few rows of a batch in another way than the others, and rounds them differently. So
    only full batches give a chain the same path, to the last bit, in any batch; and layers must have a multiple of
    four neurons, since rounding may depend on the alignment of a row, too. Copies do not count as rows of the network.
    """
    last: tuple[State, State] | None = None  # the chains last returned, without and with the copies

    def step_full_batches(state: State, t: int) -> tuple[State, EvaluatedStep]:
        nonlocal last
        chains = len(state["origin"])
        if chains % ROW_MULTIPLE == 0:
            return steps(state, t)
        padded = last[1] if last is not None and last[0] is state else _with_copies(state, -chains % ROW_MULTIPLE)
        rows_before = network.rows_forward, network.rows_backward
        padded, evaluated = steps(padded, t)
        share = Fraction(chains, chains + -chains % ROW_MULTIPLE)
        network.rows_forward = rows_before[0] + int((network.rows_forward - rows_before[0]) * share)
        network.rows_backward = rows_before[1] + int((network.rows_backward - rows_before[1]) * share)
        state = {name: x[:chains] for name, x in padded.items()}
        last = state, padded
        return state, evaluated.at(slice(chains))

    return step_full_batches


def _with_copies(state: State, copies: int) -> State:
    return {name: torch.cat([x, x[-1:].expand(copies, *x.shape[1:])]) for name, x in state.items()}


def step(context: SearchContext, method: Method, state: State, t: int, *, exact: bool) -> tuple[State, EvaluatedStep]:
    """Return the chains after a step, and what was evaluated.

    If a finding can end something (`exact`), it is confirmed in float64 at once; otherwise nothing waits for a GPU.
    """
    parts = slice_chains(context.domain, state)
    if len(parts) == 1:
        return _step(context, method, state, t, exact)
    results = []
    for part in parts:
        results.append(_step(context, method, part, t, exact))
        release_memory()
    states, evaluated = zip(*results, strict=True)
    return join_states(states), EvaluatedStep.join(evaluated)


def _step(context: SearchContext, method: Method, state: State, t: int, exact: bool) -> tuple[State, EvaluatedStep]:
    rows = method.ask(context, state, t)
    evaluation = evaluate(context.network, context.domain, rows, context.decision, checked=False)
    finite = evaluation.finite
    if rows.device.type == "cpu" and not bool(finite):  # on a GPU this is checked when the step is counted
        raise not_finite()
    if exact:
        doubtful = doubtful_hits(context, evaluation)
        evaluation = replace(evaluation, discriminates=evaluation.discriminates & ~doubtful)
    else:
        doubtful = torch.zeros_like(evaluation.discriminates)
    packed = rows.to(
        context.domain.compact, copy=True
    )  # a recorded step may overwrite the rows before they are counted
    chains = state["origin"], state["place"]
    evaluated = EvaluatedStep(packed, evaluation.discriminates, doubtful, *evaluation.pair, *chains, finite)
    return method.tell(context, state, rows, evaluation, t), evaluated


def doubtful_hits(context: SearchContext, evaluation: Evaluation) -> Tensor:
    """Return which rows discriminate in this evaluation, but not in float64: bool, (n,)."""
    doubtful = torch.zeros_like(evaluation.discriminates)
    hits = evaluation.discriminates.nonzero()[:, 0]
    for part in torch.split(hits, context.network.encoding.rows_per_pass) if len(hits) else ():
        pairs = evaluation[part].pairs()
        doubtful[part] = ~differ_exactly(context, pairs.rows, pairs.twins)
    return doubtful


def differ_exactly(context: SearchContext, rows: Tensor, twins: Tensor) -> Tensor:
    """Return whether the rows of pairs get a different decision than their twins in float64: bool, (n,)."""
    scores, twin_scores = context.exact.scores(torch.cat([rows, twins])).chunk(2)
    return context.decision.differ(scores, twin_scores)


@dataclass
class Chains:
    """The chains of a phase, which are stepped in this process."""

    steps: StepFunction
    current: State
    t: int
    max_findings: int | None = None  # discriminatory rows, after which a chain retires

    def __len__(self) -> int:
        return len(self.current["origin"])

    def advance(self) -> list[tuple[int, EvaluatedStep]]:
        """Take a step, and return it with its number."""
        state, evaluated = self.steps(self.current, self.t)
        if self.max_findings is not None:
            state = state | {"found": state["found"] + evaluated.hits}
            is_active = state["found"] < self.max_findings
            state = {name: tensor[is_active] for name, tensor in state.items()}
        self.current, self.t = state, self.t + 1
        return [(self.t - 1, evaluated)]

    def state(self) -> State:
        """Return a copy of the chains: the next steps may overwrite them."""
        return {name: tensor.clone() for name, tensor in self.current.items()}


# Steps on a GPU, recorded as CUDA graphs

STEPS_AHEAD = 64  # steps whose addresses are sent to the device at once
MAX_USES = 32  # different uses of random numbers in a step, at most


class _DeviceDraws(Draws):
    """The random numbers of a step whose addresses lie on the device, one for each use in the order of use."""

    def __init__(self, draws: Draws, starts: Tensor) -> None:
        super().__init__(draws.seed, draws.phase)
        self.starts = starts  # (MAX_USES,)
        self.uses: list[str] = []

    def start(self, t: int, use: str) -> Tensor:
        if use not in self.uses:
            self.uses.append(use)
        return self.starts[self.uses.index(use)]


class _RecordedStep(NamedTuple):
    """A step as a graph, with the addresses that it reads and the tensors that it writes."""

    graph: torch.cuda.CUDAGraph
    context: SearchContext  # holds tensors that the graph reads
    draws: _DeviceDraws
    evaluated: EvaluatedStep
    rows: tuple[int, int]  # rows through the network, forward and backward


class CudaGraphs:
    """The steps of one phase on a GPU."""

    def __init__(self, context: SearchContext, method: Method) -> None:
        self._context, self._method = context, method
        self._state: State = {}
        self._recorded: dict[Hashable, _RecordedStep | None] = {}
        self._addresses: dict[Hashable, tuple[int, Tensor]] = {}

    @staticmethod
    def fit(context: SearchContext, method: Method) -> bool:
        """Return whether the steps of a method can be recorded; rules need the host to repair rows."""
        domain, network = context.domain, context.network
        plain = domain.device.type == "cuda" and not domain.is_restricted
        return plain and hasattr(method, "graph_key") and isinstance(network, Network)

    def __call__(self, state: State, t: int) -> tuple[State, EvaluatedStep]:
        """Return the chains after a step, which the next step overwrites, and what was evaluated."""
        key = self._method.graph_key(t)  # type: ignore[attr-defined]
        if key is None:
            return step(self._context, self._method, state, t, exact=False)
        if self._state.keys() != state.keys():
            self._state = {name: tensor.clone() for name, tensor in state.items()}
        elif state is not self._state:
            self._take(state)
        if key not in self._recorded:
            self._recorded[key] = self._record(t)
        recorded = self._recorded[key]
        if recorded is None:
            return step(self._context, self._method, self._state, t, exact=False)
        self._set_clock(key, recorded.draws, t)
        recorded.graph.replay()
        network = self._context.network
        assert isinstance(network, Network)
        network.rows_forward, network.rows_backward = (
            network.rows_forward + recorded.rows[0],
            network.rows_backward + recorded.rows[1],
        )
        constant_fields = ("origin", "chain_index")  # never change while no chain retires
        lines = {name: x if name in constant_fields else x.clone() for name, x in recorded.evaluated._asdict().items()}
        return self._state, EvaluatedStep(**lines)

    def _take(self, state: State) -> None:
        for name, tensor in state.items():
            self._state[name].copy_(tensor)

    def _set_clock(self, key: Hashable, draws: _DeviceDraws, t: int) -> None:
        """Put the addresses of a step where its graph reads them."""
        first, table = self._addresses.get(key, (-STEPS_AHEAD, draws.starts))
        if not 0 <= t - first < STEPS_AHEAD:
            plain = self._context.draws
            starts = [[plain.start(t + ahead, use) for use in draws.uses] for ahead in range(STEPS_AHEAD)]
            first, table = t, torch.tensor(starts, device=draws.starts.device)
            self._addresses[key] = first, table
        draws.starts[: len(draws.uses)].copy_(table[t - first])

    def _record(self, t: int) -> _RecordedStep | None:
        """Return the step as a graph; None if it cannot be recorded, or gives another result then."""
        network, before = self._context.network, {name: tensor.clone() for name, tensor in self._state.items()}
        assert isinstance(network, Network)
        initial_counts = network.rows_forward, network.rows_backward  # trials do not count
        updated, evaluated = step(self._context, self._method, before, t, exact=False)
        starts = torch.zeros(MAX_USES, dtype=torch.int64, device=self._context.domain.device)
        draws = _DeviceDraws(self._context.draws, starts)
        context = replace(self._context, draws=draws)
        counts_before = network.rows_forward, network.rows_backward
        graph = torch.cuda.CUDAGraph()
        try:
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):  # libraries initialise themselves on first use
                    step(context, self._method, self._state, t, exact=False)
            torch.cuda.current_stream().wait_stream(stream)
            counts_before = network.rows_forward, network.rows_backward
            with torch.cuda.graph(graph):
                new_state, recorded_step = step(context, self._method, self._state, t, exact=False)
                for name, tensor in new_state.items():
                    if tensor is not self._state[name]:
                        self._state[name].copy_(tensor)
        except (RuntimeError, ModelError):  # something in it waits for the host
            torch.cuda.synchronize()
            self._take(before)
            network.rows_forward, network.rows_backward = initial_counts
            return None
        rows = network.rows_forward - counts_before[0], network.rows_backward - counts_before[1]
        network.rows_forward, network.rows_backward = initial_counts
        recorded = _RecordedStep(graph, context, draws, recorded_step, rows)
        self._set_clock(("trial", t), draws, t)
        graph.replay()
        is_equal = all(torch.equal(self._state[name], updated[name]) for name in updated)
        is_equal = is_equal and all(torch.equal(a, b) for a, b in zip(recorded_step, evaluated, strict=True))
        self._take(before)
        return recorded if is_equal else None


def make_stepper(context: SearchContext, method: Method, *, exact: bool, even: bool) -> StepFunction:
    """Return what takes a step of all chains: a recorded graph on a GPU, where that is possible."""
    if CudaGraphs.fit(context, method) and not exact:
        return CudaGraphs(context, method)
    steps = partial(step, context, method, exact=exact)
    if even and isinstance(context.network, Network) and context.domain.device.type == "cpu":
        return fill_batches(steps, context.network)
    return steps
