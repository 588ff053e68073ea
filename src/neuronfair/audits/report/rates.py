"""How often decisions flip, in each population that an audit speaks of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from neuronfair.formatting import POPULATIONS, Population, plural


@dataclass(frozen=True)
class RateOf:
    """How often the decision flips among the people of a population."""

    population: Population  # pairs: records in the data set with a plausible twin; table: all of them
    rate: float  # share of records whose decision flips
    low: float  # lower end of its confidence interval
    high: float  # upper end of it
    of: int  # records evaluated
    discriminated: int  # records among them whose decision flips
    confidence: float  # level of the interval
    left_out: int = 0  # pairs only: records whose decision flips, but only for a twin that is not plausible
    alone: int = 0  # pairs only: records without a plausible twin

    @property
    def people(self) -> str:
        """Who was judged, in words."""
        return f"{self.of:,} {POPULATIONS[self.population]}"

    @property
    def omission(self) -> str:
        """Who is not in a flip rate over plausible pairs, as a sentence; empty where everybody is."""
        if not self.left_out and not self.alone:
            return ""
        alone = f"{self.alone:,} of {self.of + self.alone:,} people {'has' if self.alone == 1 else 'have'}"
        text = f"{alone} no plausible twin and {'is' if self.alone == 1 else 'are'} not in the flip rate over pairs."
        if self.left_out:
            flips = plural(self.left_out, "flip")
            text += f" {flips} {'was' if self.left_out == 1 else 'were'} left out because the twin is not plausible."
        return text


@dataclass(frozen=True)
class Rates:
    """The same figure for several populations; null where it was not measured."""

    table: RateOf | None = None  # of all people in the data set, whatever the twin: the raw flip rate
    plausible: RateOf | None = None  # of people drawn from a model of the table; its interval covers the table's, too
    domain: RateOf | None = None  # of people drawn uniformly from the domain
    pairs: RateOf | None = None  # leads: of people in the data set with a plausible twin, and against such twins only

    @property
    def measured(self) -> tuple[RateOf, ...]:
        """Those that were measured: plausible pairs first, then all people one has."""
        rates = (getattr(self, population) for population in AUDITED)
        return tuple(rate for rate in rates if rate is not None)

    @property
    def largest(self) -> float:
        """The largest share that was measured; 0 where none was."""
        return max((rate.rate for rate in self.measured), default=0.0)


AUDITED: tuple[Population, ...] = ("pairs", "table", "plausible", "domain")  # whose rates an audit has, as shown


def covering(drawn: RateOf, real: RateOf) -> RateOf:
    """Return a rate of drawn people with an interval that holds for the population that the data set is a sample of.

    The number of draws says how well the fitted model is known, and nothing of how far it is off. The rate of the data
    set estimates the same without a model: with its interval taken in, the confidence is at least that of the data set.
    """
    return replace(drawn, low=min(drawn.low, real.low), high=max(drawn.high, real.high))
