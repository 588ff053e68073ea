"""Whom it hurts, in words: which sensitive values get what people hope for, and which lose it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from neuronfair.domain.table import TableDomain
from neuronfair.measure.direction import Direction as Counted
from neuronfair.measure.direction import Side as Count
from neuronfair.verdict.entries import Direction, Side
from neuronfair.words import listed, plain, plural

KEPT, TOLD = 20, 2  # sides in the report; sides of each kind in a sentence
AMONG = {
    "pairs": "of the data set, both of them plausible",
    "table": "of the table",
    "plausible": "of plausible people",
    "domain": "drawn uniformly from the domain",
    "findings": "that the searches found",
}


def direction(
    domain: TableDomain,
    population: Literal["pairs", "table", "plausible", "domain", "findings"],
    counted: Counted | None,
) -> tuple[Direction, ...]:
    """Return who gets the favourable decision in a population and who loses it; nothing where nobody does."""
    if counted is None or not counted.people:
        return ()
    columns = [domain.attributes[c] for c in domain.sensitive_columns]
    values = [[a.group_name(code) for a, code in zip(columns, side.codes, strict=True)] for side in counted.sides]
    names = [listed([f"{plain(a.name)} {value}" for a, value in zip(columns, own, strict=True)]) for own in values]
    said = list(zip(names, counted.sides, strict=True))
    hoped, among = f"'{domain.favourable}'", AMONG[population]
    if len(said) == 2:
        sentence = _two(hoped, f"{plural(counted.people, 'pair')} {among}", said)
    else:
        by = listed([plain(name) for name in domain.sensitive])
        sentence = _several(f"For {plural(counted.people, 'person', 'people')} {among}, {hoped} hangs on {by}", said)
    sides = [Side(", ".join(own), side.gets, side.loses) for own, side in zip(values, counted.sides, strict=True)]
    return (Direction(population, counted.people, tuple(sides[:KEPT]), sentence),)


def _two(hoped: str, pairs: str, sides: Sequence[tuple[str, Count]]) -> str:
    (winner, _), (loser, side) = sorted(sides, key=lambda one: one[1].loses)
    other = f" In {side.gets:,} it is the other way round." if side.gets else ""
    return f"In {side.loses:,} of {pairs}, {loser} loses {hoped} where {winner} gets it.{other}"


def _several(where: str, sides: Sequence[tuple[str, Count]]) -> str:
    """Name those who mostly lose and those who mostly get; the clearest come first."""
    losers = [(name, "loses", side.loses, side) for name, side in sides if side.loses > side.gets]
    winners = [(name, "gets", side.gets, side) for name, side in sides if side.gets > side.loses]
    told = [
        f"{name} {verb} it for {count:,} of {side.gets + side.loses:,}"
        for name, verb, count, side in (*losers[:TOLD], *winners[:TOLD])
    ]
    return f"{where}: {', '.join(told)}." if told else f"{where}, as often for as against each value."
