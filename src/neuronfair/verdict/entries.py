"""What an audit says of one choice of sensitive attributes. The comments behind the fields are their documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from neuronfair.domain.plausible import PLAUSIBLE
from neuronfair.verdict.counterpart import CounterpartReport
from neuronfair.verdict.inside import Interpretation
from neuronfair.verdict.proved import Proved
from neuronfair.verdict.rates import AUDITED, RateOf, Rates
from neuronfair.words import Population, percent, unusual

Cell = str | int | float
NOT_READ = "not-read"  # the name of a note about attributes that the model does not read
TABLE = "table"  # in the place of a method: the person was not searched for


def worst_cases(attributes: Sequence[AttributeReport], most: int) -> list[Finding]:
    """Return the worst findings by any of these: plausible people first, then those with the widest gap."""
    worst = (finding for one in attributes for finding in one.worst)
    return sorted(worst, key=lambda finding: (not finding.is_plausible, -finding.gap))[:most]


def measured_populations(attributes: Sequence[AttributeReport]) -> list[Population]:
    """Return the populations for which at least one of these has a rate, in the order in which they are shown."""
    measured = {rate.population for attribute in attributes for rate in attribute.rates.measured}
    return [population for population in AUDITED if population in measured]


@dataclass(frozen=True)
class Group:
    """How a group of the table fares."""

    values: str  # the sensitive values of the group
    rows: int  # rows of the table in it
    selection_rate: float  # share of them that the favourable class is decided for, or else the last class
    accuracy: float | None = None  # share of them decided as labelled; null without labels
    true_positive_rate: float | None = None  # the selection rate of those who are labelled with that class
    false_positive_rate: float | None = None  # and of the others; null where there are none


@dataclass(frozen=True)
class Gap:
    """How far two groups of the table lie apart, and how sure that is."""

    rate: str  # the rate in which they do
    value: float
    low: float  # lower end of the interval
    high: float  # and its upper end
    least: str  # the group whose rate is smallest
    most: str  # the group whose rate is largest
    left_out: tuple[str, ...] = ()  # groups of too few rows


@dataclass(frozen=True)
class Disparity:
    """How far the groups of the table lie apart; null where that cannot be said."""

    selected: str  # the class whose share is the selection rate: the favourable one, or else the last
    confidence: float  # of the intervals
    disparate_impact: Gap | None = None  # smallest selection rate / largest: four fifths are a common limit
    selection_rate_difference: Gap | None = None  # largest selection rate - smallest
    error_rate_difference: Gap | None = None  # of true or false positive rates, whichever lie farther apart
    unknown: Mapping[str, str] = field(default_factory=dict)  # why a figure is null, by its name in a gate


@dataclass(frozen=True)
class Side:
    """How one choice of sensitive values fares against the others."""

    values: str  # the sensitive values, as of a group
    gets: int  # people for whom these values get the favourable decision, and others do not
    loses: int  # people for whom these values do not get it, and others do


@dataclass(frozen=True)
class Direction:
    """Whom it hurts: who gets the favourable decision, and who loses it, when only the sensitive values change."""

    population: Literal["table", "plausible", "domain", "findings"]  # findings: the pairs that the searches found
    people: int  # those among them for whom the favourable decision hangs on the sensitive values
    sides: tuple[Side, ...]  # up to 20, the clearest first
    sentence: str


@dataclass(frozen=True)
class SearchReport:
    """What a search found, beside its controls."""

    method: str
    folder: str | None  # its run folder inside the audit's
    findings: int  # different people whose decision flips
    tried: int  # different people judged
    gsr: float  # findings / tried
    seconds: float
    findings_per_second: float | None
    random_gsr: float | None  # of as many random people: drawn uniformly from where it searched
    lift: float | None  # gsr / random_gsr
    random_direction_gsr: float | None  # of the same walk with random numbers in the place of gradients
    lift_over_random_direction: float | None
    violations: int  # findings that break a rule: 0
    stop: str  # why each phase ended
    plausible_share: float | None = None  # of the findings, those not less usual than 99 of 100 people of the table

    @property
    def how_many(self) -> str:
        """How many people were found, and how many of them are plausible, where that is known."""
        share = "" if self.plausible_share is None else f" ({percent(self.plausible_share)} plausible)"
        return f"{self.findings:,}{share}"


@dataclass(frozen=True)
class Histogram:
    """How many score gaps lie between two edges."""

    edges: tuple[float, ...]  # one more than counts
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Severity:
    """Gaps of the findings."""

    median: float
    p95: float  # one in twenty is wider
    max: float
    histogram: Histogram


@dataclass(frozen=True)
class CoverageReport:
    """Share of the biased neurons that people activate on average."""

    findings: float  # by findings
    misses: float  # by people tried in vain


@dataclass(frozen=True)
class Change:
    """A sensitive attribute in which the twin differs."""

    attribute: str
    own: Cell  # the person's value
    twin: Cell  # the twin's value


@dataclass(frozen=True)
class Finding:
    """An individual discriminatory instance: a person, and the twin for whom the decision flips."""

    number: int  # in its run folder; or of the row of the table, from 0
    method: str  # the search that found it; "table": nobody searched, it is a row of the table
    row: Mapping[str, Cell]  # the person
    changed: tuple[Change, ...]
    decision: str
    twin_decision: str  # which is another
    score: float  # for classes: how far the person's class leads the twin's
    twin_score: float
    gap: float  # how far the two lie apart: larger is worse
    sentence: str
    outcome: str | None = None  # the class of the probabilities: the favourable one, or the person's own decision
    probability: float | None = None  # of that class for the person; null where scores are no probabilities or logits
    twin_probability: float | None = None  # and for the twin
    replay: str | None = None  # the command that shows it again; null without a folder or for a model in memory
    plausibility: float | None = None  # share of the people of the table who are less usual; null where not known

    @property
    def place(self) -> str:
        """Where the person was found."""
        if self.method == TABLE:
            return f"row {self.number + 1:,} of the table"
        return f"finding {self.number:,} of {self.method}"

    @property
    def is_plausible(self) -> bool:
        """Whether the person is not less usual than 99 of 100 people of the table, as far as is known."""
        return self.plausibility is None or self.plausibility >= PLAUSIBLE

    @property
    def how_usual(self) -> str:
        """How usual the person is, as a sentence; nothing where that is not known."""
        if self.plausibility is None:
            return ""
        told = unusual(self.plausibility)
        return f"{told[0].upper()}{told[1:]}." if self.is_plausible else f"Not plausible: {told}."


@dataclass(frozen=True)
class CounterpartPerson:
    """A person of the table beside the typical counterpart, who is decided otherwise."""

    person: Finding  # changed: all in which the counterpart differs
    share: float  # of the person's drawn counterparts who are decided otherwise


@dataclass(frozen=True)
class Condition:
    """One condition of a rule: labels, or the ends that matter of a number."""

    attribute: str
    values: tuple[Cell, ...] | None = None  # one of these
    min: Cell | None = None  # at least
    max: Cell | None = None  # at most


@dataclass(frozen=True)
class SubgroupReport:
    """A short rule under which discrimination is frequent."""

    text: str  # its conditions in words
    conditions: tuple[Condition, ...]
    people: float  # share of the population of its rate that it holds
    findings: float  # share of the findings that it holds: of the plausible ones, where the population is theirs
    rate: RateOf  # among fresh people inside; the intervals of all subgroups of an attribute hold together
    lift: float | None  # over the rate of the whole population
    sentence: str


@dataclass(frozen=True)
class Note:
    """Something that may mislead."""

    name: str
    seen: str  # what was seen, and why it matters
    remedy: str  # what to do


@dataclass(frozen=True)
class AttributeReport:
    """One choice of sensitive attributes."""

    name: str  # such as sex+race
    sensitive: tuple[str, ...]
    twins: int  # with how many others a person is compared
    rates: Rates = field(default_factory=Rates)
    counterpart: CounterpartReport | None = None  # null where there are none, or they were not asked for
    counterpart_people: tuple[CounterpartPerson, ...] = ()  # up to four; none where no effect is claimed
    groups: tuple[Group, ...] = ()
    proved: Proved | None = None  # null where no proof was tried
    disparity: Disparity | None = None  # null where the model chooses no class
    direction: tuple[Direction, ...] = ()  # by population, findings last; empty if no class is known as favourable
    interpretation: Interpretation | None = None  # null for a black box, or if the audit was interrupted before
    searches: tuple[SearchReport, ...] = ()
    search_twins: Literal["flip", "counterpart"] = "flip"  # whom the searches compare people with
    plausible_found: int | None = None  # people found who are plausible; null where that is not known
    severity: Severity | None = None  # gaps between scores
    probability_gaps: Severity | None = None  # the same between probabilities; null where there are none
    mean_distance: float | None = None  # between two findings
    regions: int | None = None  # of the domain that the findings reach
    coverage: CoverageReport | None = None  # null without misses
    worst: tuple[Finding, ...] = ()  # up to ten, plausible people first, then those with the widest gap, shrunk
    findings: tuple[Finding, ...] = ()  # up to 300, drawn at random, plausible people first, as found
    subgroups: tuple[SubgroupReport, ...] = ()
    health: tuple[Note, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether the model decided alike for everybody looked at, so that it cannot be judged."""
        return any(note.name == "constant-decision" for note in self.health)

    @property
    def is_read(self) -> bool:
        """Whether the model reads one of the sensitive attributes, as far as is known; else no decision can flip."""
        return all(note.name != NOT_READ for note in self.health)

    @property
    def leads_with_counterparts(self) -> bool:
        """Whether the flip test is empty and counterparts speak in its place."""
        return self.counterpart is not None and not self.is_read

    @property
    def is_cleared(self) -> bool:
        """Whether it is proved that the decision flips for nobody in the domain."""
        return self.proved is not None and self.proved.proved_fair.share == 1

    @property
    def people_found(self) -> int:
        """How many different people all searches found together; at least so many if that was not counted."""
        if self.severity is not None:
            return sum(self.severity.histogram.counts)
        return max((search.findings for search in self.searches), default=0)
