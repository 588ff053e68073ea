"""What depends on what: the graph that the attributes' `causes` are, where a user gives one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from neuronfair.domain.attribute import Attribute
from neuronfair.errors import DomainError, did_you_mean


def check_graph(attributes: Sequence[Attribute]) -> None:
    """Refuse causes that are no attributes, and attributes that depend on themselves."""
    names = [attribute.name for attribute in attributes]
    for attribute in attributes:
        for name in attribute.causes or ():
            if name not in names:
                raise DomainError(
                    f"attribute '{attribute.name}': causes names '{name}', which is no attribute. "
                    f"{did_you_mean(name, names)}"
                )
    try:
        list(TopologicalSorter({a.name: a.causes or () for a in attributes}).static_order())
    except CycleError as error:
        circle = " -> ".join(f"'{name}'" for name in error.args[1])
        raise DomainError(f"causes go round in a circle: {circle}. Remove one of them") from None


def graph(attributes: Sequence[Attribute]) -> Mapping[int, Sequence[int]] | None:
    """Return the columns that each column depends on; None where no attribute has causes.

    An attribute without causes depends on none if others have some.
    """
    if all(attribute.causes is None for attribute in attributes):
        return None
    check_graph(attributes)
    column = {attribute.name: i for i, attribute in enumerate(attributes)}
    return {i: [column[name] for name in a.causes or ()] for i, a in enumerate(attributes)}


def without_others(attributes: Sequence[Attribute], names: Collection[str]) -> tuple[Attribute, ...]:
    """Return the attributes of some names; a cause that is not among them is stood in for by its own causes."""
    kept = tuple(attribute for attribute in attributes if attribute.name in names)
    causes = {attribute.name: attribute.causes or () for attribute in attributes}
    if all(attribute.causes is None for attribute in attributes):
        return kept
    known: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(causes).static_order():
        found = [(cause,) if cause in names else known[cause] for cause in causes[name]]
        known[name] = tuple(dict.fromkeys(cause for several in found for cause in several))
    return tuple(replace(attribute, causes=known[attribute.name]) for attribute in kept)
