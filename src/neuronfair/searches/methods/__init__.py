"""The search methods by name, each with two phases: one instance per seed first, then many near it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.parameters import accept_old_names, renamed_field
from neuronfair.searches.config import load_registered
from neuronfair.searches.engine import PhaseResult
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import Method, SearchContext
from neuronfair.searches.methods.adf import Adf
from neuronfair.searches.methods.aequitas import Aequitas, Uniform
from neuronfair.searches.methods.eidig import EidigGlobal, EidigLocal
from neuronfair.searches.methods.expga import ExpgaGlobal, ExpgaLocal
from neuronfair.searches.methods.frontier import Frontier
from neuronfair.searches.methods.frontier_free import MIN_PILOT_ROWS, prepare_frontier_free
from neuronfair.searches.methods.neuronfair import NeuronFair
from neuronfair.searches.methods.symbgen import SymbGen


@dataclass(frozen=True)
class Phases:
    """The two phases of a method, and the result of its pilot, if there was one."""

    global_phase: Method  # until every chain has met one discriminatory row
    local_phase: Method
    pilot: PhaseResult | None = None
    first = renamed_field("first", "global_phase")
    local = renamed_field("local", "local_phase")

    def __iter__(self) -> Iterator[Method | PhaseResult | None]:
        return iter((self.global_phase, self.local_phase, self.pilot))


accept_old_names(Phases, {"first": "global_phase", "local": "local_phase"})


@dataclass(frozen=True)
class Setting:
    """What a method is prepared for."""

    context: SearchContext
    key_set: KeySet  # records that a pilot evaluates count once
    rows: int  # about how many rows the search may evaluate


# Three rungs of NeuronFair: docs/deviations.md says what each of them changes.


def _neuronfair_printed(_: Setting) -> Phases:
    return Phases(NeuronFair(), NeuronFair(local=True, momentum=0.05, refresh=50))


def _neuronfair(_: Setting) -> Phases:
    # The steps of the authors' program, and the return after a miss, which the printed counts require.
    local_phase = NeuronFair(local=True, momentum=0.05, refresh=50, after_miss="reset", sign="random", choice="inverse")
    return Phases(NeuronFair(kick=True), local_phase)


def _neuronfair_plus(_: Setting) -> Phases:
    # The best settings as measured: docs/results.md.
    global_phase = NeuronFair(loss="decision", momentum=0.0, extra_share=0.5, moved_attributes="some", kick=True)
    local_phase = replace(global_phase, local=True, refresh=50, after_miss="reset", sign="random", choice="margin_loss")
    return Phases(global_phase, local_phase)


def _frontier(setting: Setting) -> Phases:
    method, pilot = Frontier().prepare(setting.context, rows=setting.rows // 20, key_set=setting.key_set)
    return Phases(method, method, pilot)


def _frontier_free(setting: Setting) -> Phases:
    # A pilot is worth a tenth of the rows, or a quarter of few.
    rows = max(setting.rows // 10, min(MIN_PILOT_ROWS, setting.rows // 4))
    method, pilot = prepare_frontier_free(setting.context, rows=rows, key_set=setting.key_set)
    return Phases(method, method, pilot)


@dataclass(frozen=True)
class MethodEntry:
    """A method in the list: how to prepare it, and what it needs."""

    make: Callable[[Setting], Phases]
    gradients: bool = True  # a black box has none
    neurons: bool = False  # a linear model has none
    boundary: bool = False  # between decisions; a tolerance has none
    image_method: str | None = None  # the name of its global phase as a method for images, if it is one
    pictures = renamed_field("pictures", "image_method")


accept_old_names(MethodEntry, {"pictures": "image_method"})


class Methods(Mapping[str, MethodEntry]):
    """Our methods and those of other packages, which are imported on first access: they import this module."""

    def __init__(self, built_in: dict[str, MethodEntry]) -> None:
        self._built_in = built_in
        self._entries: dict[str, MethodEntry] | None = None

    @property
    def entries(self) -> dict[str, MethodEntry]:
        """All methods; other packages cannot replace ours."""
        if self._entries is None:
            self._entries = self._built_in  # until then: a package that is being imported may look at ours
            self._entries = {**self._built_in, **dict(load_registered(MethodEntry, set(self._built_in)))}
        return self._entries

    def __getitem__(self, name: str) -> MethodEntry:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


_BUILT_IN = {
    "frontier": MethodEntry(_frontier),
    "neuronfair-plus": MethodEntry(_neuronfair_plus, neurons=True),
    "neuronfair": MethodEntry(_neuronfair, neurons=True),
    "neuronfair-printed": MethodEntry(_neuronfair_printed, neurons=True, image_method="neuronfair"),
    "eidig5": MethodEntry(lambda _: Phases(EidigGlobal(), EidigLocal(interval=5)), boundary=True, image_method="eidig"),
    "eidiginf": MethodEntry(lambda _: Phases(EidigGlobal(), EidigLocal(interval=None)), boundary=True),
    "adf": MethodEntry(lambda _: Phases(Adf(), Adf(local=True)), boundary=True, image_method="adf"),
    "frontier-free": MethodEntry(_frontier_free, gradients=False),
    "symbgen": MethodEntry(lambda _: Phases(SymbGen(), SymbGen(local=True)), gradients=False),
    "expga": MethodEntry(lambda _: Phases(ExpgaGlobal(), ExpgaLocal()), gradients=False),
    "aequitas": MethodEntry(lambda _: Phases(Uniform(), Aequitas()), gradients=False),
    "aequitas-semi": MethodEntry(lambda _: Phases(Uniform(), Aequitas(learns="directions")), gradients=False),
    "aequitas-random": MethodEntry(lambda _: Phases(Uniform(), Aequitas(learns="nothing")), gradients=False),
    "uniform": MethodEntry(lambda _: Phases(Uniform(), Uniform()), gradients=False),
}
METHODS = Methods(_BUILT_IN)
_RENAMED = {"neuronfair-paper": "neuronfair-printed"}  # the names of version 0.2, which work for one version


def current_name(name: str) -> str:
    """Return the current name of a method; an old name gives a warning."""
    if name not in _RENAMED or name in METHODS:
        return name
    new = _RENAMED[name]
    message = f"the method '{name}' is now '{new}'. The old name goes with the next version"
    warnings.warn(message, FutureWarning, stacklevel=3)
    return new


def find_obstacle(entry: MethodEntry, model: Model | None = None, decision: Decision | None = None) -> str | None:
    """Return why a method cannot search a model for a kind of decision; None if it can."""
    if entry.gradients and model is not None and not isinstance(model, Network):
        return "follows gradients, and a black box has none"
    if entry.neurons and isinstance(model, Network) and not model.layers:
        return "follows neurons, and a linear model has none"
    if entry.boundary and decision is not None and decision.kind == "tolerance":
        return "moves to a boundary; a tolerance has none"
    return None


def check_method(name: str, model: Model | None = None, decision: Decision | None = None) -> None:
    """Refuse a method that does not exist, or that cannot search this model for this kind of decision."""
    if name not in METHODS:
        raise NeuronFairError(f"no method '{name}'. {did_you_mean(name, METHODS)}")
    reason = find_obstacle(METHODS[name], model, decision)
    if reason is not None:
        raise NeuronFairError(f"method '{name}' {reason}. Methods that can: {', '.join(list_able(model, decision))}")


def list_able(model: Model | None, decision: Decision | None = None) -> list[str]:
    """Return the methods that can search this model."""
    return [name for name, entry in METHODS.items() if find_obstacle(entry, model, decision) is None]
