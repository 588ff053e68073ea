"""What counterparts say of one choice of sensitive attributes. The comments behind the fields are their documentation.

A counterpart is who a person would be, had they been of another group, by what the table says of both groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuronfair.words import listed, plain, some

NO_COUNTERPARTS = "no-counterparts"  # the name of a note about why there are none


@dataclass(frozen=True)
class Interval:
    """A share, and how sure it is."""

    rate: float
    low: float  # lower end of the interval
    high: float  # and its upper end


@dataclass(frozen=True)
class CounterpartState:
    """How many counterparts a model decides otherwise, before or after a repair."""

    rate: Interval
    placebo: Interval  # the same figure with the groups shuffled
    effect: Interval  # rate - placebo
    of: int  # people of the test rows who have counterparts


@dataclass(frozen=True)
class MoveReport:
    """How people of one group would fare in another."""

    own: str  # sensitive values of the people, as of a group
    other: str  # and of their counterparts
    people: int  # of the table who have such counterparts
    flips: float  # share of their counterparts who are decided otherwise
    lost: float | None = None  # share of them who lose the favourable decision; null if no class is known as such
    gained: float | None = None  # and who gain it
    placebo_lost: float | None = None  # the same with shuffled groups, mean
    placebo_gained: float | None = None


@dataclass(frozen=True)
class CarrierReport:
    """Attributes that carry the group: how much of the effect goes if counterparts keep them."""

    attributes: tuple[str, ...]  # each entry adds one to those of the entry before
    share: float  # of the effect


@dataclass(frozen=True)
class Legitimate:
    """An attribute that may differ between the groups and may count: counterparts keep it."""

    attribute: str
    text: str  # how the groups differ in it


@dataclass(frozen=True)
class CounterpartReport:
    """How many people would be decided otherwise had they been of another group: evidence, no proof."""

    rate: float  # share of the people's counterparts who are decided otherwise
    low: float  # lower end of its interval
    high: float  # and its upper end
    of: int  # people who have counterparts
    draws: int  # counterparts of each person in each other group
    placebo: Interval  # the same figure with the groups shuffled
    effect: Interval  # rate - placebo
    claimed: bool  # whether the intervals of rate and placebo lie apart: else nothing is claimed
    sentence: str
    placebos: int  # how often the groups were shuffled
    confidence: float  # of the intervals
    lost: float | None = None  # share of the counterparts who lose the favourable decision; null if none is known
    gained: float | None = None  # and who gain it
    moves: tuple[MoveReport, ...] = ()  # by group and other group, the largest groups first
    hurt: str = ""  # whom it hurts, as a sentence; empty where nothing is claimed, or no class is known as favourable
    carriers: tuple[CarrierReport, ...] = ()  # the attribute that carries most of the effect first
    carried: str = ""  # which attributes carry it, as a sentence; empty where nothing is claimed
    auc: float | None = None  # with which the model's inputs tell the group: 0.5 is not at all; null: not known
    told: str = ""  # the same as a sentence
    fixed: tuple[str, ...] = ()  # attributes that no group moves: counterparts keep them
    legitimate: tuple[Legitimate, ...] = ()  # attributes that may differ and count
    left_out: tuple[str, ...] = ()  # groups of too few people to say what they are like

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is said: how many would be decided otherwise, whom it hurts, what carries it, what is kept."""
        return tuple(filter(None, (self.sentence, self.hurt, self.carried, self.told, *self.notes)))

    @property
    def notes(self) -> tuple[str, ...]:
        """What counterparts keep, and who has none."""
        fixed = f"Counterparts keep {listed([plain(name) for name in self.fixed])}: nobody's group moves that."
        few = "have too few people to say what such people are like, so they have no counterparts."
        return (
            *([fixed] if self.fixed else []),
            *(one.text for one in self.legitimate),
            *([f"{some(self.left_out)} {few}"] if self.left_out else []),
        )
