"""One step of all chains: propose, evaluate, tell; in slices whose families fit into memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.interface import Domain
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import EVEN, Evaluation, evaluate, in_full_batches, not_finite
from neuronfair.searches.method import Method, State, World

# People whose scores are held at once, twins included: some 300 MB with all that is computed from them, and 5 GB on a
# GPU, where few large steps are faster than many small ones.
HELD = {"cpu": 1 << 22, "cuda": 1 << 26}


def slices(domain: Domain, state: State) -> Sequence[State]:
    """Return the chains in their order, as many at a time as their families allow; mostly that is all of them."""
    size = in_full_batches(HELD.get(domain.device.type, HELD["cpu"]) // len(domain.sensitive_values))
    if len(state["origin"]) <= size:
        return [state]
    parts = zip(*(torch.split(lines, size) for lines in state.values()), strict=True)
    return [dict(zip(state, part, strict=True)) for part in parts]


def release_memory() -> None:
    """Give free memory back to the system, where the C library can (Linux).

    The large pieces of one slice lie between small ones that stay. It does not find room for the next slice between
    them, and takes 50 MB more for each: 7 GB for 100,000 chains with 5,000 twins.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def joined(parts: Sequence[State]) -> State:
    """Return slices as one again."""
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class Judged(NamedTuple):
    """What is kept of a judged step until it is counted: one line per chain each."""

    rows: Tensor  # in the domain's compact type
    hits: Tensor  # who gets a different decision than a twin
    doubtful: Tensor  # who would be, but is not in float64; nobody where that is looked at later
    own: Tensor  # which member of the family stands for it, and which one gets a different decision
    other: Tensor
    scores: Tensor
    twin_scores: Tensor
    origin: Tensor
    place: Tensor
    finite: Tensor  # whether all scores are numbers: ()

    @staticmethod
    def join(steps: Sequence[Judged]) -> Judged:
        """Return several steps as one."""
        *lines, finite = zip(*steps, strict=True)
        return Judged._make([*map(torch.cat, lines), torch.stack(finite).all()])

    def at(self, chosen: Tensor | slice) -> Judged:
        """Return some of the lines."""
        return Judged._make([*(line[chosen] for line in self[:-1]), self.finite])


Steps = Callable[[State, int], tuple[State, Judged]]


def in_even_batches(steps: Steps, network: Network) -> Steps:
    """Return steps with copies of the last chain behind the others, to a multiple of `EVEN`; they are not kept.

    A processor computes the last few rows of a batch in another way than the others, and rounds them otherwise. Only so
    a chain goes, to the last bit, the same way in any batch; if layers have a multiple of four neurons, since a row
    that begins elsewhere in memory may be rounded otherwise, too. The network counts no rows of copies.
    """
    last: tuple[State, State] | None = None  # chains as they were given back, and with the copies behind them

    def even(state: State, t: int) -> tuple[State, Judged]:
        nonlocal last
        chains = len(state["origin"])
        if chains % EVEN == 0:
            return steps(state, t)
        whole = last[1] if last is not None and last[0] is state else _with_copies(state, -chains % EVEN)
        before = network.rows_forward, network.rows_backward
        whole, judged = steps(whole, t)
        share = Fraction(chains, chains + -chains % EVEN)
        network.rows_forward = before[0] + int((network.rows_forward - before[0]) * share)
        network.rows_backward = before[1] + int((network.rows_backward - before[1]) * share)
        state = {name: x[:chains] for name, x in whole.items()}
        last = state, whole
        return state, judged.at(slice(chains))

    return even


def _with_copies(state: State, copies: int) -> State:
    return {name: torch.cat([x, x[-1:].expand(copies, *x.shape[1:])]) for name, x in state.items()}


def step(world: World, method: Method, state: State, t: int, *, exact: bool) -> tuple[State, Judged]:
    """Return the chains after a step, and what was judged.

    Where a finding can end something (`exact`) it is judged in float64 at once; otherwise nothing waits for a GPU.
    """
    parts = slices(world.domain, state)
    if len(parts) == 1:
        return _step(world, method, state, t, exact)
    done = []
    for part in parts:
        done.append(_step(world, method, part, t, exact))
        release_memory()
    told, judged = zip(*done, strict=True)
    return joined(told), Judged.join(judged)


def _step(world: World, method: Method, state: State, t: int, exact: bool) -> tuple[State, Judged]:
    rows = method.ask(world, state, t)
    evaluation = evaluate(world.network, world.domain, rows, world.decision, checked=False)
    finite = evaluation.finite
    if rows.device.type == "cpu" and not bool(finite):  # a GPU is asked when the step is counted
        raise not_finite()
    if exact:
        doubtful = doubtful_hits(world, evaluation)
        evaluation = replace(evaluation, discriminates=evaluation.discriminates & ~doubtful)
    else:
        doubtful = torch.zeros_like(evaluation.discriminates)
    packed = rows.to(world.domain.compact, copy=True)  # a recorded step may overwrite the rows before they are counted
    chains = state["origin"], state["place"]
    judged = Judged(packed, evaluation.discriminates, doubtful, *evaluation.pair, *chains, finite)
    return method.tell(world, state, rows, evaluation, t), judged


def doubtful_hits(world: World, evaluation: Evaluation) -> Tensor:
    """Return which rows discriminate in the judgement, but not in float64: bool, (n,)."""
    doubtful = torch.zeros_like(evaluation.discriminates)
    hits = evaluation.discriminates.nonzero()[:, 0]
    for part in torch.split(hits, world.network.encoding.rows_per_pass) if len(hits) else ():
        pairs = evaluation[part].pairs()
        doubtful[part] = ~differ_exactly(world, pairs.rows, pairs.twins)
    return doubtful


def differ_exactly(world: World, rows: Tensor, twins: Tensor) -> Tensor:
    """Return whether the rows of pairs get a different decision than their twins in float64: bool, (n,)."""
    own, other = world.exact.scores(torch.cat([rows, twins])).chunk(2)
    return world.decision.differ(own, other)
