"""How often decisions flip, in each population that an audit speaks of."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import cast

from neuronfair.words import POPULATIONS, Population, percent


@dataclass(frozen=True)
class RateOf:
    """How often the decision flips among the people of a population."""

    population: Population  # rows of the table; drawn from a model of it, or from the domain; rules ignored
    rate: float  # share of people whose decision flips with the sensitive attributes
    low: float  # exact interval: its lower end
    high: float  # and its upper end
    of: int  # people judged
    discriminated: int  # people among them whose decision flips
    confidence: float  # of the interval
    part: float = 1.0  # share of the population that they were drawn from: all that is not proved lies in it

    @property
    def people(self) -> str:
        """Who was judged, in words."""
        if self.part == 1:
            return f"{self.of:,} {POPULATIONS[self.population]}"
        if not self.part:
            return "all people of the domain, by proof"
        return f"{self.of:,} people drawn uniformly from the {percent(self.part)} in boxes that are not wholly proved"


@dataclass(frozen=True)
class Rates:
    """The same figure for several populations; null where it was not measured."""

    table: RateOf | None = None  # of the people of the table
    plausible: RateOf | None = None  # of people drawn from a model of the table
    domain: RateOf | None = None  # of people drawn uniformly from the domain

    @property
    def measured(self) -> tuple[RateOf, ...]:
        """Those that were measured: the people one has come first."""
        rates = (getattr(self, population) for population in AUDITED)
        return tuple(rate for rate in rates if rate is not None)

    @property
    def largest(self) -> float:
        """The largest share that was measured; 0 where none was."""
        return max((rate.rate for rate in self.measured), default=0.0)


AUDITED = cast("tuple[Population, ...]", tuple(entry.name for entry in fields(Rates)))  # whose rates an audit has
