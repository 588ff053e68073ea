"""How methods are asked: the list of checks, and small searches that record what a method does."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig, SearchResult
from neuronfair.searches.engine import PhaseResult, run_phase
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, State, World
from neuronfair.searches.methods import Phases, Setting, phases
from neuronfair.searches.tally import Budget
from neuronfair.testing.cases import CHAINS, case, network

STEPS = 12
PHASES = ("first", "local")
ROWS = 32_000  # that a method is made ready for: enough for a pilot, where it has one
LINES = ("rows", "twin_values", "scores", "twin_scores", "origin", "step", "misses")  # of findings


@dataclass(frozen=True)
class MethodCheck:
    """One thing that is asked of a method: call it with the name of the method."""

    ask: Callable[..., None]
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, name: str) -> None:
        """Ask it; a broken promise is an AssertionError."""
        self.ask(name, **dict(self.options))

    def __str__(self) -> str:
        return "-".join([self.ask.__name__, *(str(value) for _, value in self.options)])


CHECKS: list[MethodCheck] = []


def check(**options: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter a function into the list of checks, once for every choice of the options."""

    def enter(ask: Callable[..., None]) -> Callable[..., None]:
        for chosen in itertools.product(*options.values()):
            CHECKS.append(MethodCheck(ask, tuple(zip(options, chosen, strict=True))))
        return ask

    return enter


@dataclass
class Spy:
    """A method, with a record of what it was started from, what it asked for and what it met."""

    inner: Method
    starts: dict[int, Tensor] = field(default_factory=dict)
    asked: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # origin and rows, step by step
    met: list[Tensor] = field(default_factory=list)  # whether they discriminate

    def start(self, world: World, state: State) -> State:
        """Start the method."""
        self.starts = dict(zip(state["origin"].tolist(), state["rows"], strict=True))
        return self.inner.start(world, state)

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Ask the method."""
        rows = self.inner.ask(world, state, t)
        self.asked.append((state["origin"], rows))
        return rows

    def tell(self, world: World, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Tell the method."""
        self.met.append(evaluation.discriminates)
        return self.inner.tell(world, state, rows, evaluation, t)

    def path(self, origin: int) -> list[list[int]]:
        """Return every row that one chain asked for."""
        return [row for numbers, rows in self.asked for row in rows[numbers == origin].tolist()]

    def hits(self, origin: int) -> list[bool]:
        """Return which of them discriminate."""
        lines = zip(self.asked, self.met, strict=True)
        return [hit for (numbers, _), met in lines for hit in met[numbers == origin].tolist()]


@functools.cache
def _ready(name: str, where: str) -> Phases:
    return phases(name, Setting(case(where).world, KeySet(), ROWS))


def explore(name: str, where: str, phase: str, budget: Budget | None = None, **options: Any) -> tuple[PhaseResult, Spy]:
    """Run one phase of a method on a case, and return what it found and what it did."""
    spy = Spy(getattr(_ready(name, where), phase))
    seeds = options.pop("seeds", case(where).starts(phase))
    return run_phase(case(where).world, spy, seeds, budget=budget or Budget(STEPS), **options), spy


def full_search(name: str, where: str, *, seed: int = 0, controls: bool = False) -> SearchResult:
    """Run a whole search by a method on a case."""
    here = case(where)
    config = SearchConfig(name, CHAINS, STEPS, STEPS, seed=seed, decision=here.decision, controls=controls)
    return search(network(here.module, here.domain), here.domain, here.rows, config, seeds=here.seeds)


@functools.cache
def kept_search(name: str, where: str) -> SearchResult:
    """Return a whole search that several checks look at."""
    return full_search(name, where, controls=where == "people")


@functools.cache
def kept(name: str, where: str, phase: str) -> tuple[PhaseResult, Spy]:
    """Return a phase that several checks look at."""
    return explore(name, where, phase)


def digest(outcome: SearchResult) -> str:
    """Return a number for all that a search found."""
    found = outcome.findings
    tensors = [getattr(found, line).contiguous().numpy().tobytes() for line in LINES]
    return hashlib.sha256(b"".join(tensors)).hexdigest()
