"""What counterfactual twins say of one choice of sensitive attributes. The fields' comments are their documentation.

A counterfactual twin is a person at the same place of another group's distribution (model-based: by quantile and by
maximal coupling). Whether that is who the person would be in the other group rests on causal assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from neuronfair.formatting import first_few, join_words, pluralise, spell

Assumptions = Literal["none declared", "held fixed", "graph declared"]
UNTESTED = "This rests on causal assumptions that the data cannot test"
ASSUMED: dict[Assumptions, str] = {
    "none declared": "No causal graph is declared, so this compares the distributions of the groups",
    "held fixed": "This assumes that the group changes all attributes but those declared as fixed",
    "graph declared": "This assumes that the declared causal graph is right and complete",
}
NO_COUNTERFACTUALS = "no-counterfactuals"  # the name of a note about why there are none


@dataclass(frozen=True)
class Interval:
    """A share, and how sure it is."""

    rate: float  # the share
    low: float  # lower end of its confidence interval
    high: float  # upper end of it


@dataclass(frozen=True)
class MoveReport:
    """How records of one group compare with their twins in another."""

    own: str  # sensitive values of the records, as of a group
    other: str  # sensitive values of their twins
    people: int  # records in the data set with such twins
    flips: float  # share of their twins who get a different decision
    lost: float | None = None  # share of them who lose the favourable outcome; null if no class is known as such
    gained: float | None = None  # share of them who gain it
    permutation_lost: float | None = None  # the same with shuffled groups, mean
    permutation_gained: float | None = None  # the same for those who gain it


@dataclass(frozen=True)
class MediatorReport:
    """Mediating attributes: how much of the excess goes if twins keep them. Never a sensitive attribute."""

    attributes: tuple[str, ...]  # each entry adds one to those of the entry before
    share: float  # of the excess


@dataclass(frozen=True)
class SensitivityReport:
    """How strong a hidden confounder must be to explain the difference away (VanderWeele and Ding, 2017)."""

    more: str  # the group in which the same people get the decision more often
    less: str  # the group in which they get it less often
    outcome: str  # the decision
    ratio: float  # of the two shares
    e_value: float  # the risk ratio that a confounder needs with the group and with the decision
    e_value_low: float  # the same for the lower end of the ratio's confidence interval; 1: none is needed
    sentence: str  # the same as a sentence


@dataclass(frozen=True)
class ResolvingAttribute:
    """A resolving attribute, which may differ between the groups and may count: twins keep it."""

    attribute: str  # its name
    text: str  # how the groups differ in it


@dataclass(frozen=True)
class CounterfactualReport:
    """How often people at the same place of another group's distribution get a different decision: proxy evidence."""

    rate: float  # share of the people's twins who get a different decision
    low: float  # lower end of the interval of the rate
    high: float  # upper end of the interval of the rate
    of: int  # people who have twins
    draws: int  # twins of each person in each other group
    permutation_baseline: Interval  # permutation baseline: the same with the groups shuffled
    effect: Interval  # excess: the rate without what chance adds to it
    claimed: bool  # whether the excess is claimed, as proxy evidence: it is more than shuffled groups explain
    sentence: str  # causal ("Had they been …") only where `assumptions` are declared
    permutations: int  # how often the groups were shuffled
    confidence: float  # of the intervals
    assumptions: Assumptions = "none declared"  # what the user declared: nothing, fixed attributes, or a causal graph
    excess: str = ""  # the excess with its interval, as a sentence
    assumed: str = f"{ASSUMED['none declared']}. {UNTESTED}."  # what the comparison rests on, as a sentence
    lost: float | None = None  # share of the twins who lose the favourable outcome; null if none is known
    gained: float | None = None  # share of the twins who gain the favourable outcome; null if none is known
    moves: tuple[MoveReport, ...] = ()  # by group and other group, the largest groups first
    disadvantaged: str = ""  # disadvantaged groups, as a sentence; empty without a claim or a favourable class
    mediators: tuple[MediatorReport, ...] = ()  # mediating attributes, the one that explains most first
    mediators_text: str = ""  # the same as a sentence; empty where nothing is claimed
    sensitivity: SensitivityReport | None = None  # null where nothing is claimed, or no class is decided for
    auc: float | None = None  # with which the model's inputs tell the group: 0.5 is not at all; null: not known
    predictability_text: str = ""  # the same as a sentence
    fixed: tuple[str, ...] = ()  # attributes held fixed: twins keep them
    legitimate: tuple[ResolvingAttribute, ...] = ()  # resolving attributes, which may differ and count
    graph: tuple[str, ...] = ()  # the declared causal graph: "attribute <- parent, parent" for each attribute
    graph_note: str = ""  # that nothing depends on the group by the declared graph, as a sentence
    without: int = 0  # people without a twin, who are left out of all metrics
    left_out: tuple[str, ...] = ()  # groups of too few people to say what they are like

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is said: how many get a different decision, what that rests on, who loses, by what, what is kept."""
        first = (self.sentence, self.excess, self.assumed, self.explained, self.disadvantaged, self.mediators_text)
        return tuple(filter(None, (*first, self.predictability_text, *self.notes)))

    @property
    def explained(self) -> str:
        """How strong a hidden confounder must be; empty where nothing is claimed."""
        return "" if self.sensitivity is None else self.sensitivity.sentence

    @property
    def notes(self) -> tuple[str, ...]:
        """What twins keep, and who has none."""
        few_people = "have too few people for a model, so they have no twins."
        without_twin = (
            f"{pluralise(self.without, 'person has', 'people have')} no counterfactual twin, since rules tie the group "
            "to attributes that twins keep; all metrics here leave them out."
        )
        return (
            *([self.graph_note] if self.graph_note else []),
            *([f"Twins keep {join_words([spell(name) for name in self.fixed])}: held fixed."] if self.fixed else []),
            *(resolving.text for resolving in self.legitimate),
            *([without_twin] if self.without else []),
            *([f"{first_few(self.left_out)} {few_people}"] if self.left_out else []),
        )
