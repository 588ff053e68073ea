"""Steps that overwrite tensors, rewritten so that nothing is overwritten: a file has no memory between two calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

from neuronfair.model.open.graph import Step, Unsupported, names_in, renamed

_REMEDY = "Export it as program.run_decompositions({}), which overwrites nothing"


class Makes(Enum):
    """What a step makes: a new tensor, one that may share the numbers of its arguments, or a change of its first."""

    NEW, WINDOW, CHANGE = range(3)


def without_overwriting(steps: Sequence[tuple[Step, Makes]], result: str) -> tuple[list[Step], str]:
    """Return steps of which each makes a new tensor, and the name of the result.

    Where a tensor was changed, later steps read what the change has made. Where a window into it is read later, the
    steps would compute something else than the network did, and are refused.
    """
    tensor: dict[str, str] = {}  # names of another tensor: a change returns the tensor that it has changed
    latest: dict[str, str] = {}  # the name of what a tensor holds now
    memory: dict[str, str] = {}  # tensors that may share their numbers have one place here
    stale: set[str] = set()
    made: set[str] = set()

    def now(names: Iterable[str]) -> dict[str, str]:
        if old := {tensor.get(name, name) for name in names} & stale:
            raise Unsupported(f"{min(old)!a} shares its numbers with a tensor that is overwritten. {_REMEDY}")
        return {name: latest.get(tensor.get(name, name), name) for name in names}

    changed = []
    for step, makes in steps:
        if not made.isdisjoint(step.results):
            raise Unsupported(f"two values called {min(made.intersection(step.results))!a}")
        made.update(step.results)
        names = list(names_in([step.arguments, step.options]))
        current = now(names)
        changed.append(
            replace(step, arguments=renamed(step.arguments, current), options=renamed(step.options, current))
        )
        given = [tensor.get(name, name) for name in names]
        places = {memory.setdefault(one, one) for one in given}
        if makes is Makes.CHANGE:
            first = next(tensor.get(name, name) for name in names_in(step.arguments[:1]))
            tensor[step.results[0]], latest[first] = first, step.results[0]
            stale |= {one for one, place in memory.items() if place == memory[first]} - {first}
        elif makes is Makes.WINDOW and given:
            memory = {one: given[0] if place in places else place for one, place in memory.items()}
            memory |= dict.fromkeys(step.results, given[0])
    return changed, now([result])[result]
