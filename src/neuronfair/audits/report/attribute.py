"""What an audit says of one choice of sensitive attributes. The comments behind the fields are their documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from neuronfair.audits.report.counterfactual import CounterfactualReport
from neuronfair.audits.report.proved import Proved
from neuronfair.audits.report.rates import AUDITED, RateOf, Rates
from neuronfair.domain.population.plausible import PLAUSIBLE
from neuronfair.formatting import Population, likelihood, listed, percent


@dataclass(frozen=True)
class LayerReport:
    """How a layer reacts to the sensitive attributes."""

    name: str
    neurons: int
    auc: float  # area under the AS curve
    cut: float  # T_d, where the AS curve meets y = x
    biased: tuple[int, ...]  # neurons whose reaction exceeds the cut
    act_diff: tuple[float, ...]  # ActDiff of each neuron
    curve: tuple[tuple[float, float], ...]  # the AS curve: threshold and share of neurons above it


@dataclass(frozen=True)
class Interpretation:
    """Which layers and neurons react."""

    worst: str  # the most biased layer
    layers: tuple[LayerReport, ...]

    @property
    def worst_auc(self) -> float | None:
        """The area of the most biased layer; None where it is not among the layers."""
        return next((layer.auc for layer in self.layers if layer.name == self.worst), None)


Cell = str | int | float
# What an audit concludes, of one choice of sensitive attributes and of the whole model. Only thresholds raise an alarm.
Level = Literal["no dependence found", "proxy evidence", "dependence found", "not assessable", "above the threshold"]
NOT_READ = "not-read"  # the name of a note: the sensitive attribute is not among the inputs that the model names
UNMOVED = "no-score-moves"  # the name of a note: no score in the data set changes with the sensitive attribute
SYNTHETIC: tuple[Population, ...] = ("plausible", "domain", "combinations")  # people who are drawn, not given
NO_TWIN = "no-plausible-twin"  # the name of a note: nobody in the data set has a plausible twin
TABLE = "table"  # in the place of a method: the person was not searched for


def worst_cases(attributes: Sequence[AttributeReport], most: int) -> list[Finding]:
    """Return the worst findings by any of these: plausible pairs first, then those with the widest gap."""
    worst = (finding for one in attributes for finding in one.worst)
    return sorted(worst, key=lambda finding: (not finding.is_plausible, -finding.gap))[:most]


def is_constant(attributes: Sequence[AttributeReport]) -> bool:
    """Return whether the model gave the same decision to every record that was looked at, so nothing can be said."""
    noted = any(note.name == "constant-decision" for one in attributes for note in one.health)
    return noted and not any(one.depends for one in attributes)


def notes_of(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return what may mislead, each note once; with the names of the attributes where it is not about all of them."""
    about: dict[Note, list[str]] = {}
    for one in attributes:
        for note in one.health:
            about.setdefault(note, []).append(one.name)
    return [
        f"{'' if len(names) == len(attributes) else f'({listed(names)}) '}{note.seen} {note.remedy}"
        for note, names in about.items()
    ]


def omissions(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return who is not in the flip rates over plausible pairs, a sentence for each of these, where there are such."""
    told = ((one.name, one.rates.pairs.omission) for one in attributes if one.rates.pairs is not None)
    return [f"{name}: {sentence}" for name, sentence in told if sentence]


def measured_populations(attributes: Sequence[AttributeReport]) -> list[Population]:
    """Return the populations for which at least one of these has a rate, in the order in which they are shown."""
    measured = {rate.population for attribute in attributes for rate in attribute.rates.measured}
    return [population for population in AUDITED if population in measured]


@dataclass(frozen=True)
class GroupReport:
    """How a group of the table fares."""

    values: str  # the sensitive values of the group
    rows: int  # rows of the table in it
    selection_rate: float  # share of them that get the favourable outcome; the last class if none is set
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

    selected: str  # the class whose share is the selection rate: the favourable outcome, or else the last class
    confidence: float  # of the intervals
    disparate_impact: Gap | None = None  # smallest selection rate / largest: four fifths are a common limit
    selection_rate_difference: Gap | None = None  # largest selection rate - smallest
    error_rate_difference: Gap | None = None  # of true or false positive rates, whichever lie farther apart
    unknown: Mapping[str, str] = field(default_factory=dict)  # why a figure is null, by its name in a gate
    favourable: bool = True  # whether the selected class is known to be the favourable outcome


@dataclass(frozen=True)
class SideReport:
    """How one choice of sensitive values fares against the others."""

    values: str  # the sensitive values, as of a group
    gets: int  # people for whom these values get the favourable decision, and others do not
    loses: int  # people for whom these values do not get it, and others do


@dataclass(frozen=True)
class DirectionReport:
    """The disadvantaged groups: who gets the favourable decision, and who loses it, with other sensitive values."""

    population: Literal["pairs", "table", "plausible", "domain", "findings"]  # findings: what the searches found
    people: int  # those among them for whom the favourable decision hangs on the sensitive values
    sides: tuple[SideReport, ...]  # up to 20, the clearest first
    sentence: str


@dataclass(frozen=True)
class SearchReport:
    """What a search found, next to its controls."""

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
    plausible_share: float | None = None  # of the findings, those at or above the 1st likelihood percentile

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
class SeverityReport:
    """Gaps of the findings."""

    median: float
    p95: float  # one in twenty is wider
    max: float
    histogram: Histogram


@dataclass(frozen=True)
class CoverageReport:
    """Share of the biased neurons that people activate on average: those of the first search that found anybody."""

    findings: float  # by its findings
    misses: float  # by the people that it tried in vain


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
    plausibility: float | None = None  # share of the data set that is less likely; null where not known
    twin_plausibility: float | None = None  # the same of the twin
    twin_is_plausible: bool = True  # false: such a twin (nearly) never occurs; as far as is known

    @property
    def place(self) -> str:
        """Where the person was found."""
        if self.method == TABLE:
            return f"row {self.number + 1:,} of the table"
        return f"finding {self.number:,} of {self.method}"

    @property
    def is_plausible(self) -> bool:
        """Whether the person is at or above the 1st likelihood percentile, and the twin plausible, if known."""
        return self._person_is_plausible and self.twin_is_plausible

    @property
    def _person_is_plausible(self) -> bool:
        return self.plausibility is None or self.plausibility >= PLAUSIBLE

    @property
    def how_usual(self) -> str:
        """How usual the person is, and whether the twin is plausible, in sentences; nothing where that is not known."""
        if self.plausibility is None:
            return ""
        told = likelihood(self.plausibility)
        text = f"Plausible: {told}." if self._person_is_plausible else f"Not plausible: {told}."
        return text if self.twin_is_plausible else f"{text} The twin is not plausible."


@dataclass(frozen=True)
class CounterfactualPerson:
    """A person in the data set next to the typical twin, who gets a different decision."""

    person: Finding  # changed: all in which the counterpart differs
    share: float  # of the person's drawn counterparts who get a different decision


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
    level: Level = "not assessable"  # what is concluded: see the level of the verdict
    headline: str = ""  # the same as a fact in one sentence
    rates: Rates = field(default_factory=Rates)
    counterpart: CounterfactualReport | None = None  # null where there are none, or they were not asked for
    counterpart_people: tuple[CounterfactualPerson, ...] = ()  # up to four; none where no effect is claimed
    groups: tuple[GroupReport, ...] = ()
    proved: Proved | None = None  # null where no proof was tried
    disparity: Disparity | None = None  # null where the model chooses no class
    direction: tuple[
        DirectionReport, ...
    ] = ()  # by population, findings last; empty if no class is known as favourable
    interpretation: Interpretation | None = None  # null for a black box, or if the audit was interrupted before
    searches: tuple[SearchReport, ...] = ()
    search_twins: Literal["flip", "counterpart"] = "flip"  # whom the searches compare people with
    plausible_found: int | None = None  # people found who are plausible, and so are their twins; null: not known
    severity: SeverityReport | None = None  # gaps between scores
    probability_gaps: SeverityReport | None = None  # the same between probabilities; null where there are none
    mean_distance: float | None = None  # between two findings
    regions: int | None = None  # of the domain that the findings reach
    coverage: CoverageReport | None = None  # null without misses
    worst: tuple[Finding, ...] = ()  # up to ten, plausible pairs first, then those with the widest gap, shrunk
    findings: tuple[Finding, ...] = ()  # up to 300, drawn at random, plausible pairs first, as found
    subgroups: tuple[SubgroupReport, ...] = ()
    health: tuple[Note, ...] = ()

    @property
    def data_set_rates(self) -> tuple[RateOf, ...]:
        """The flip rates of records in the data set, the one that leads first: real people, not synthetic ones."""
        return tuple(rate for rate in self.rates.measured if rate.population not in SYNTHETIC)

    @property
    def is_unused(self) -> bool:
        """Whether the model names its inputs and the sensitive attribute is not among them."""
        return any(note.name == NOT_READ for note in self.health) and not self.depends

    @property
    def is_read(self) -> bool:
        """Whether the model reads one of the sensitive attributes, as far as is known."""
        return self.depends or all(note.name not in (NOT_READ, UNMOVED) for note in self.health)

    @property
    def lacks_twins(self) -> bool:
        """Whether nobody has a plausible twin, so that no flip could be seen of a model whose scores do change."""
        return any(note.name == NO_TWIN for note in self.health) and self.is_read and not self.depends

    @property
    def depends(self) -> bool:
        """Whether a decision was seen to depend on the sensitive attributes: in the data set, or a synthetic record."""
        searched = self.search_twins == "flip" and self.people_found > 0
        certified = self.proved is not None and self.proved.proved_discriminatory.count != "0"
        return self.rates.largest > 0 or searched or certified

    @property
    def has_proxy_evidence(self) -> bool:
        """Whether the counterfactual test claims an effect: evidence of proxies, under its assumptions."""
        return self.counterpart is not None and self.counterpart.claimed

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
