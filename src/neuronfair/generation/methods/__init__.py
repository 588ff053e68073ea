"""The search methods by name, each as the rules of two phases: one instance per seed first, then many near it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.generation.engine import PhaseResult
from neuronfair.generation.keys import KeySet
from neuronfair.generation.method import Method, World
from neuronfair.generation.methods.frontier import Frontier
from neuronfair.generation.methods.neuronfair import NeuronFair
from neuronfair.generation.methods.uniform import Uniform


class Phases(NamedTuple):
    """The rules of the two phases of a method, and the pilot that made them ready, if there was one."""

    first: Method  # global: until every walker has met one discriminatory row
    local: Method
    pilot: PhaseResult | None = None


@dataclass(frozen=True)
class Setting:
    """What a method is made ready for."""

    world: World
    seen: KeySet  # people that are judged on the way count once
    rows: int  # how many the search may judge, about


def _neuronfair(_: Setting) -> Phases:
    # The best of the switches as measured: docs/results.md.
    local = NeuronFair(local=True, momentum=0.05, refresh=50, after_miss="reset", sign="random", choice="inverse")
    return Phases(NeuronFair(), local)


def _neuronfair_paper(_: Setting) -> Phases:
    return Phases(NeuronFair(), NeuronFair(local=True, momentum=0.05, refresh=50))


def _frontier(setting: Setting) -> Phases:
    method, pilot = Frontier().prepared(setting.world, rows=setting.rows // 20, seen=setting.seen)
    return Phases(method, method, pilot)


def _uniform(_: Setting) -> Phases:
    return Phases(Uniform(), Uniform())


METHODS: dict[str, Callable[[Setting], Phases]] = {
    "frontier": _frontier,
    "neuronfair": _neuronfair,
    "neuronfair-paper": _neuronfair_paper,
    "uniform": _uniform,
}


def phases(name: str, setting: Setting) -> Phases:
    """Return the two phases of a method, made ready for a network and a domain."""
    check_method(name)
    return METHODS[name](setting)


def check_method(name: str) -> None:
    """Refuse a method that does not exist."""
    if name not in METHODS:
        raise NeuronFairError(f"no method '{name}'. {did_you_mean(name, METHODS)}")
