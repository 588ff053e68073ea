"""The report on one choice of sensitive attributes. The comments behind the fields are their documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval
from neuronfair.domain.population.plausible import MIN_PLAUSIBILITY
from neuronfair.formatting import POPULATIONS, Population, join_words, likelihood, pluralise
from neuronfair.proof.certificate import DataSetClaims, FreshClaims, ProofReport, RowShare
from neuronfair.searches.health import CONSTANT_DECISION


@dataclass(frozen=True)
class FlipRateReport:
    """The flip rate of a population."""

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
        """The population in words."""
        return f"{self.of:,} {POPULATIONS[self.population]}"

    @property
    def omission(self) -> str:
        """Which records a flip rate over plausible pairs leaves out, as a sentence; empty where none."""
        lone_text = f"Not counted, without a plausible twin: {self.alone:,} of {self.of + self.alone:,} people."
        flip_text = f"Left out because the twin is not plausible: {pluralise(self.left_out, 'flip')}."
        return " ".join([lone_text] * (self.alone > 0) + [flip_text] * (self.left_out > 0))


@dataclass(frozen=True)
class Rates:
    """The same figure for several populations; null where it was not measured."""

    table: FlipRateReport | None = None  # of all people in the data set, whatever the twin: the raw flip rate
    plausible: FlipRateReport | None = None  # of realistic synthetic records; its interval covers the data set's, too
    domain: FlipRateReport | None = None  # of people drawn uniformly from the domain
    pairs: FlipRateReport | None = None  # leads: of records with a plausible twin, against such twins only

    @property
    def available(self) -> tuple[FlipRateReport, ...]:
        """Those that were measured: plausible pairs first, then all people one has."""
        rates = (getattr(self, population) for population in AUDITED)
        return tuple(rate for rate in rates if rate is not None)

    @property
    def largest(self) -> float:
        """The largest share that was measured; 0 where none was."""
        return max((rate.rate for rate in self.available), default=0.0)


AUDITED: tuple[Population, ...] = ("pairs", "table", "plausible", "domain")  # whose rates an audit has, as shown


def widen_interval(synthetic: FlipRateReport, real: FlipRateReport) -> FlipRateReport:
    """Return a rate of drawn people with an interval that holds for the population that the data set is a sample of.

    The number of draws says how well the fitted model is known, and nothing of how far it is off. The rate of the data
    set estimates the same without a model: with its interval taken in, the confidence is at least that of the data set.
    """
    return replace(synthetic, low=min(synthetic.low, real.low), high=max(synthetic.high, real.high))


@dataclass(frozen=True)
class LayerReport:
    """How a layer reacts to the sensitive attributes."""

    name: str  # name of the layer
    neurons: int  # number of its neurons
    auc: float  # area under the AS curve
    cut: float  # T_d, where the AS curve meets y = x
    biased: tuple[int, ...]  # neurons whose reaction exceeds the cut
    act_diff: tuple[float, ...]  # ActDiff of each neuron
    curve: tuple[tuple[float, float], ...]  # the AS curve: threshold and share of neurons above it


@dataclass(frozen=True)
class Interpretation:
    """Which layers and neurons react."""

    worst: str  # the most biased layer
    layers: tuple[LayerReport, ...]  # all hidden layers, in the order of the network

    @property
    def worst_auc(self) -> float | None:
        """The area of the most biased layer; None where it is not among the layers."""
        return next((layer.auc for layer in self.layers if layer.name == self.worst), None)


Cell = str | int | float
# What an audit concludes, of one choice of sensitive attributes and of the whole model. Only thresholds raise an alarm.
Conclusion = Literal[
    "no dependence found", "proxy evidence", "dependence found", "not assessable", "above the threshold"
]
NOT_USED = "not-read"  # the name of a note: the sensitive attribute is not among the inputs that the model names
NO_SCORE_CHANGES = "no-score-moves"  # the name of a note: no score in the data set changes with the sensitive attribute
SYNTHETIC: tuple[Population, ...] = ("plausible", "domain", "combinations")  # people who are drawn, not given
UNREAD_NOTES = (NOT_USED, NO_SCORE_CHANGES)  # the names of notes that the model does not read the attribute
NO_PLAUSIBLE_TWIN = "no-plausible-twin"  # the name of a note: no record of the data set has a plausible twin
MIN_GROUP_ROWS = 30  # rows that the rate of a group is made of, at least, to be compared with that of another
MIN_SUBGROUP_RECORDS = 100  # fresh records below which a subgroup is shown apart
DATA_SET = "table"  # in the place of a method: the person was not searched for


def list_worst_findings(attributes: Sequence[AttributeReport], limit: int | None = None) -> list[Finding]:
    """Return the worst findings by any of these: plausible pairs first, real records first, then the widest gap."""
    worst = (finding for item in attributes for finding in item.worst)
    return sorted(worst, key=lambda item: (not item.is_plausible, not item.is_real, -item.gap))[:limit]


def is_constant(attributes: Sequence[AttributeReport]) -> bool:
    """Return whether the model gave the same decision to every record that was looked at, so nothing can be said."""
    is_noted = any(attribute.find_note(CONSTANT_DECISION) for attribute in attributes)
    return is_noted and not any(attribute.depends for attribute in attributes)


def list_notes(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return what may mislead, each note once; with the names of the attributes where it is not about all of them."""
    names_by_note: dict[Note, list[str]] = {}
    for attribute in attributes:
        for note in attribute.health:
            names_by_note.setdefault(note, []).append(f"by {join_words(attribute.sensitive)}")
    return [
        f"{'' if len(names) == len(attributes) else '(' + ', '.join(names) + ') '}{note.seen} {note.remedy}"
        for note, names in names_by_note.items()
    ]


def list_omissions(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return which records the flip rates over plausible pairs leave out, a sentence for each attribute."""
    omissions = (
        (attribute.name, attribute.rates.pairs.omission)
        for attribute in attributes
        if attribute.rates.pairs is not None
    )
    return [f"{name}: {sentence}" for name, sentence in omissions if sentence]


@dataclass(frozen=True)
class GroupReport:
    """The metrics of a demographic group in the data set."""

    values: str  # the sensitive values of the group
    rows: int  # records in the group
    selection_rate: float  # share of them that get the favourable outcome; the last class if none is set
    accuracy: float | None = None  # share of them with the decision of the label; null without labels
    true_positive_rate: float | None = None  # selection rate of those labelled with the favourable class
    false_positive_rate: float | None = None  # selection rate of all others; null if there are none


@dataclass(frozen=True)
class Gap:
    """The gap between two demographic groups, with its confidence interval."""

    rate: str  # the rate that is compared
    value: float  # the ratio or difference
    low: float  # lower end of its confidence interval
    high: float  # upper end of it
    least: str  # the group whose rate is smallest
    most: str  # the group whose rate is largest
    left_out: tuple[str, ...] = ()  # groups with too few records


@dataclass(frozen=True)
class Disparity:
    """The gaps between demographic groups; null where they are not known."""

    selected: str  # the class whose share is the selection rate: the favourable outcome, or else the last class
    confidence: float  # of the intervals
    disparate_impact: Gap | None = None  # smallest selection rate / largest: four fifths are a common limit
    selection_rate_difference: Gap | None = None  # largest selection rate - smallest
    error_rate_difference: Gap | None = None  # of true or false positive rates, whichever lie farther apart
    unknown: Mapping[str, str] = field(default_factory=dict)  # why a metric is null, by its name in the gate
    favourable: bool = True  # whether the selected class is known to be the favourable outcome


@dataclass(frozen=True)
class SideReport:
    """How one choice of sensitive values fares against the others."""

    values: str  # the sensitive values, as of a group
    gets: int  # records that get the favourable decision with these values, and not with others
    loses: int  # records that do not get it with these values, and do with others


@dataclass(frozen=True)
class DirectionReport:
    """The disadvantaged groups: who gets the favourable decision, and who loses it, with other sensitive values."""

    population: Literal["pairs", "table", "plausible", "domain", "findings"]  # findings: those of the searches
    people: int  # records for which the favourable decision depends on the sensitive values
    sides: tuple[SideReport, ...]  # up to 20, the clearest first
    sentence: str  # the same as a sentence
    losers: tuple[str, ...] = ()  # of several groups, those that clearly lose most often: one for each attribute


@dataclass(frozen=True)
class SearchReport:
    """What a search found, next to its controls."""

    method: str  # name of the search method
    folder: str | None  # its run folder inside the audit's
    findings: int  # different discriminatory inputs found
    tried: int  # different inputs evaluated
    gsr: float  # success rate: findings / tried
    seconds: float  # duration of the search
    findings_per_second: float | None  # null without a duration
    random_gsr: float | None  # success rate among as many random records, drawn uniformly where it searched
    lift: float | None  # gsr / random_gsr
    random_direction_gsr: float | None  # success rate of the same search with random numbers instead of gradients
    lift_over_random_direction: float | None  # gsr / random_direction_gsr
    violations: int  # findings that break a rule: 0
    stop: str  # why each phase ended
    plausible_share: float | None = None  # of the findings, those at or above the 1st likelihood percentile


@dataclass(frozen=True)
class Histogram:
    """How many score gaps lie between two edges."""

    edges: tuple[float, ...]  # one more than counts
    counts: tuple[int, ...]  # score gaps between two edges


@dataclass(frozen=True)
class SeverityReport:
    """Gaps of the findings."""

    median: float  # half of the gaps are wider
    p95: float  # one in twenty is wider
    max: float  # the widest
    histogram: Histogram  # all gaps


@dataclass(frozen=True)
class CoverageReport:
    """Share of the biased neurons that people activate on average: those of the first search that found anybody."""

    findings: float  # by its findings
    misses: float  # by inputs that are no findings


@dataclass(frozen=True)
class Change:
    """A sensitive attribute in which the twin differs."""

    attribute: str  # name of the attribute
    own: Cell  # value of the record
    twin: Cell  # value of the twin


@dataclass(frozen=True)
class Finding:
    """An individual discriminatory instance: a record, and the twin with a different decision."""

    number: int  # number in its run folder, or of the row in the data set, from 0
    method: str  # the search that found it; "table": a record in the data set
    row: Mapping[str, Cell]  # the record, by attribute
    changed: tuple[Change, ...]  # what differs in the twin
    decision: str  # decision for the record
    twin_decision: str  # decision for the twin
    score: float  # for classes: score of the record's class minus that of the twin's
    twin_score: float  # the same score of the twin
    gap: float  # difference of the two scores: larger is worse
    sentence: str  # the pair in words
    outcome: str | None = None  # class of the probabilities: the favourable one, or the decision for the record
    probability: float | None = None  # probability of `outcome` for the record; null if scores are no probabilities
    twin_probability: float | None = None  # probability of `outcome` for the twin
    replay: str | None = None  # the command that shows it again; null without a folder or for a model in memory
    plausibility: float | None = None  # likelihood percentile of the record, as a share; null if not known
    twin_plausibility: float | None = None  # likelihood percentile of the twin
    twin_is_plausible: bool = True  # false: such a twin (nearly) never occurs; as far as is known

    @property
    def is_real(self) -> bool:
        """Whether it is a record of the data set, not a synthetic one."""
        return self.method == DATA_SET

    @property
    def source_text(self) -> str:
        """Where the record was found."""
        if self.is_real:
            return f"record {self.number + 1:,} of the data set"
        return f"finding {self.number:,} of {self.method}"

    @property
    def is_plausible(self) -> bool:
        """Whether the person is at or above the 1st likelihood percentile, and the twin plausible, if known."""
        return self._person_is_plausible and self.twin_is_plausible

    @property
    def _person_is_plausible(self) -> bool:
        return self.plausibility is None or self.plausibility >= MIN_PLAUSIBILITY

    @property
    def plausibility_text(self) -> str:
        """How usual the person is, and whether the twin is plausible, in sentences; nothing where that is not known."""
        if self.plausibility is None:
            return ""
        percentile = likelihood(self.plausibility)
        text = f"Realistic: {percentile}." if self._person_is_plausible else f"Not realistic: {percentile}."
        return text if self.twin_is_plausible else f"{text} The twin is not plausible."


@dataclass(frozen=True)
class CounterfactualPerson:
    """A person in the data set next to the typical twin, who gets a different decision."""

    person: Finding  # the pair; `changed` lists all attributes in which the twin differs
    share: float  # share of the drawn twins that get a different decision


@dataclass(frozen=True)
class Condition:
    """One condition of a rule: labels, or the ends that matter of a number."""

    attribute: str  # name of the attribute
    values: tuple[Cell, ...] | None = None  # one of these
    min: Cell | None = None  # at least
    max: Cell | None = None  # at most


@dataclass(frozen=True)
class SubgroupReport:
    """A short rule under which discrimination is frequent."""

    text: str  # its conditions in words
    conditions: tuple[Condition, ...]  # the same as data
    people: float  # share of the population that is in the subgroup
    findings: float  # share of the findings in it; of the plausible ones if the population is
    rate: FlipRateReport  # flip rate of fresh records in it; intervals of all subgroups of an attribute hold together
    lift: float | None  # over the rate of the whole population
    sentence: str  # the subgroup in words


@dataclass(frozen=True)
class Note:
    """Something that may mislead."""

    name: str  # identifier of the note
    seen: str  # what was seen, and why it matters
    remedy: str  # what to do


@dataclass(frozen=True)
class AttributeReport:
    """One choice of sensitive attributes."""

    name: str  # such as sex+race
    sensitive: tuple[str, ...]  # names of the sensitive attributes
    twins: int  # number of twins of a record
    level: Conclusion = "not assessable"  # what is concluded: see the level of the verdict
    headline: str = ""  # the same as a fact in one sentence
    rates: Rates = field(default_factory=Rates)  # flip rates by population
    counterfactual: CounterfactualReport | None = None  # counterfactual test; null if it was not made
    counterfactual_people: tuple[CounterfactualPerson, ...] = ()  # up to four; none where no effect is claimed
    groups: tuple[GroupReport, ...] = ()  # group metrics of the data set
    proved: ProofSummary | None = None  # null where no proof was tried
    disparity: Disparity | None = None  # null where the model chooses no class
    direction: tuple[DirectionReport, ...] = ()  # by population, findings last; empty without a favourable class
    interpretation: Interpretation | None = None  # null for a black box, or if the audit was interrupted before
    searches: tuple[SearchReport, ...] = ()  # one entry for each search
    search_twins: Literal["flip", "counterfactual"] = "flip"  # what the searches compare records with
    plausible_found: int | None = None  # findings that are plausible, and so are their twins; null: not known
    severity: SeverityReport | None = None  # gaps between scores
    probability_gaps: SeverityReport | None = None  # the same between probabilities; null where there are none
    mean_distance: float | None = None  # mean distance between two findings
    regions: int | None = None  # regions of the input space in which findings lie
    coverage: CoverageReport | None = None  # null without misses
    worst: tuple[Finding, ...] = ()  # up to ten: plausible real records first, then plausible synthetic ones, shrunk
    findings: tuple[Finding, ...] = ()  # up to 300, drawn at random, plausible pairs first, as found
    subgroups: tuple[SubgroupReport, ...] = ()  # subgroups in which flips are frequent
    health: tuple[Note, ...] = ()  # notes on what may mislead

    @property
    def data_set_rates(self) -> tuple[FlipRateReport, ...]:
        """The flip rates of records in the data set, the one that leads first: real people, not synthetic ones."""
        return tuple(rate for rate in self.rates.available if rate.population not in SYNTHETIC)

    @property
    def tested(self) -> int:
        """How many records of the data set its first flip rate is made of; of synthetic ones without a data set."""
        return next((rate.of for rate in (*self.data_set_rates, *self.rates.available)), 0)

    def find_note(self, *names: str) -> Note | None:
        """Return the first note of one of these names; None where there is none."""
        return next((note for note in self.health if note.name in names), None)

    @property
    def is_unused(self) -> bool:
        """Whether the model names its inputs and the sensitive attribute is not among them."""
        return self.find_note(NOT_USED) is not None and not self.depends

    @property
    def is_read(self) -> bool:
        """Whether the model reads one of the sensitive attributes, as far as is known."""
        return self.depends or self.find_note(*UNREAD_NOTES) is None

    @property
    def lacks_twins(self) -> bool:
        """Whether no record has a plausible twin, so that no flip could be seen of a model whose scores do change."""
        return self.find_note(NO_PLAUSIBLE_TWIN) is not None and self.is_read and not self.depends

    @property
    def depends(self) -> bool:
        """Whether a decision was seen to depend on the sensitive attributes: in the data set, or a synthetic record."""
        has_findings = self.search_twins == "flip" and self.people_found > 0
        is_certified = self.proved is not None and self.proved.proved_discriminatory.count != "0"
        return self.rates.largest > 0 or has_findings or is_certified

    @property
    def claimed_effect(self) -> Interval | None:
        """The excess flip rate that the counterfactual test claims; None where it claims none."""
        report = self.counterfactual
        return report.effect if report is not None and report.claimed else None

    @property
    def has_proxy_evidence(self) -> bool:
        """Whether the counterfactual test claims an effect: evidence of proxies, under its assumptions."""
        return self.claimed_effect is not None

    @property
    def leads_with_counterfactuals(self) -> bool:
        """Whether the flip test is empty and the counterfactual test leads."""
        return self.counterfactual is not None and not self.is_read

    @property
    def is_cleared(self) -> bool:
        """Whether it is certified for the whole input space that decisions do not depend on the attributes."""
        return self.proved is not None and self.proved.proved_fair.share == 1

    @property
    def people_found(self) -> int:
        """How many different records all searches found together; a lower bound if that was not counted."""
        if self.severity is not None:
            return sum(self.severity.histogram.counts)
        return max((search.findings for search in self.searches), default=0)


ProofMethod = Literal["bounds of a network", "bounds of trees", "enumeration", "attribute not given"]


@dataclass(frozen=True)
class ProofSummary:
    """For which records it is proved that the decision does, or does not, depend on the sensitive attributes."""

    people: str  # records in the declared input space, exactly
    proved_fair: RowShare  # certified: every twin gets the same decision
    proved_discriminatory: RowShare  # certified to depend: some twin gets a different decision
    undecided: RowShare  # neither: nothing is proved
    boxes: int  # boxes into which the input space was cut
    seconds: float  # time spent
    complete: bool  # whether nothing is undecided
    method: ProofMethod | None  # null if nothing can be proved
    reason: str  # why nothing can be proved; else empty
    sentence: str  # the same as a sentence
    data_set: DataSetClaims | None = None  # rows of the data set; null without a data set
    fresh: FreshClaims | None = None  # realistic synthetic records, drawn after the proof; null without a population

    @property
    def certified_share(self) -> float:
        """The certified share of the data set's rows with an allowed twin, or of the input space without a data set."""
        return (self.data_set.with_twin if self.data_set else self.proved_fair).share

    @staticmethod
    def of(report: ProofReport, sentence: str) -> ProofSummary:
        """Return what a proof has proved, with a sentence that says it."""
        return ProofSummary(
            report.people.count,
            report.proved_fair,
            report.proved_discriminatory,
            report.undecided,
            boxes=report.boxes,
            seconds=report.seconds,
            complete=report.complete,
            method=cast(ProofMethod, report.method),
            reason="",
            sentence=sentence,
            data_set=report.data_set,
            fresh=report.fresh,
        )

    @staticmethod
    def nothing(record_count: int, reason: str) -> ProofSummary:
        """Return that nothing can be proved, and why."""
        none = RowShare.of(0, record_count)
        return ProofSummary(
            str(record_count),
            *(none, none, RowShare.of(record_count, record_count)),
            boxes=0,
            seconds=0.0,
            complete=False,
            method=None,
            reason=reason,
            sentence=f"No proof: {reason.rstrip('.')}.",
        )
