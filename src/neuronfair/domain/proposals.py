"""Rules proposed by a table: the strongest of them that fit together, with their counts, as text of a domain file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.cells import Cells
from neuronfair.domain.dependencies import EXCEPTIONS, PEOPLE, Column, Found, dependencies
from neuronfair.domain.phrases import brief, rule_lines
from neuronfair.domain.rules import Condition, Rule, RuleBook, meets
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.shown import visible
from neuronfair.words import plural

TakeRules = Literal["none", "free", "all"]

MOST = 20  # proposals: nobody reads more
TRIED, FAILED = 60, 5  # candidates, and how many of them may not fit, until no more are tried
ROWS = 50_000  # that are looked at; what is proposed is counted in all
COLUMNS = 100  # that are looked at, the sensitive ones first
NEWS = 0.001  # of the people whom the rules before have left, whom another must shut out
CASES = 10_000  # that the rules may leave in one group of attributes, so that searches stay quick


@dataclass(frozen=True)
class Proposal:
    """Rules that belong together, how many people they speak of, how many of these break them, and whom they tie."""

    title: str
    rules: tuple[Rule, ...]
    people: int
    exceptions: int
    ties: tuple[str, ...]  # sensitive attributes that they name
    copy: bool = False  # one column is the other in other words, in every row

    def repeats(self, other: Proposal, known: Sequence[Proposal]) -> bool:
        """Return whether this says of one column what another says of a column that is tied to it."""
        apart = {*self.names} ^ {*other.names}
        same = (self.people, self.exceptions) == (other.people, other.exceptions)
        return same and len(apart) == 2 and any(apart == {*one.names} and len(one.rules) > 1 for one in known)

    @property
    def names(self) -> tuple[str, ...]:
        """The two columns."""
        return (*self.rules[0].when, *self.rules[0].then)

    def taken(self, take: TakeRules) -> bool:
        """Return whether these rules are taken over."""
        return take == "all" or (not self.ties and (take == "free" or self.copy))


@dataclass(frozen=True)
class Proposals:
    """What a table proposes, and what was dropped because all together would be too many cases."""

    proposals: tuple[Proposal, ...] = ()
    dropped: tuple[str, ...] = ()
    unseen: int = 0  # columns that were not looked at

    def remarks(self, take: TakeRules) -> list[str]:
        """Return in a line how many rules are proposed and how to take them over, if there are any."""
        every, taken = len(self.proposals), sum(one.taken(take) for one in self.proposals)
        if not every:
            return []
        tied = sum(bool(one.ties) for one in self.proposals)
        verb = "rule is" if every == 1 else "rules are"
        said = f"{every} {verb} suggested" + (f", {tied} on a sensitive attribute" if tied else "")
        used = f"{taken} taken over" if taken else "not used unless --take-rules says free or all"
        copies = [one.title for one in self.proposals if one.copy and one.taken(take)]
        kept = [f"{title}, value by value: both are kept together" for title in copies]
        return [f"{said}: see the end of the domain file; {used}", *kept]

    def text(self, take: TakeRules, attributes: Sequence[Attribute]) -> str:
        """Return the lines of a domain file: rules that are not taken over as comments, to be taken out of them."""
        if not self.proposals:
            return ""
        named = {a.name: a for a in attributes}
        lines = [
            "",
            "## Rules that the table suggests. Which of them hold for everybody, and not only in this table? Take away",
            "## one # from each of their lines, or let --take-rules do it: free (all but those that name a sensitive",
            "## attribute), all. Exceptions are rows that break the rule: they stay in the table.",
        ]
        if self.unseen:
            lines.append(f"## {plural(self.unseen, 'column')} of this wide table were not looked at.")
        for one in self.proposals:
            mark = "" if one.taken(take) else "# "
            counted = f"{plural(one.people, 'person', 'people')}, {plural(one.exceptions, 'exception')}"
            lines += ["", f"## {visible(one.title)}: {counted}" if len(one.rules) > 1 else f"## {counted}"]
            if one.ties:
                ties = " and ".join(visible(brief(name)) for name in one.ties)
                lines.append(f"## ties {ties}, which is sensitive: such people then have no twin")
            lines += [mark + line for rule in one.rules for line in rule_lines(rule, named)]
        if self.dropped:
            lines += ["", f"## Dropped, as all together would be too many cases: {visible('; '.join(self.dropped))}"]
        return "\n".join(lines) + "\n"


def check_take(take: str) -> None:
    """Refuse an unknown way of taking rules over."""
    if take not in get_args(TakeRules):
        raise DomainError(f"take rules '{take}': expected {', '.join(get_args(TakeRules))}")


def propose(domain: TableDomain, columns: Mapping[str, Cells]) -> Proposals:
    """Return the rules that a table suggests for its domain, given its columns: the strongest, and no more than needed.

    A rule that others imply is left out. Large tables are looked at in part; what is found is counted in all rows.
    """
    looked = [*domain.sensitive, *(name for name in domain.names if name not in domain.sensitive)][:COLUMNS]
    attributes = [a for a in domain.attributes if a.name in looked]
    rows = len(columns[looked[0]])
    if rows < PEOPLE or len(attributes) < 2:
        return Proposals()
    some = np.arange(rows)
    if rows > ROWS:
        some = np.sort(np.random.default_rng(0).choice(rows, ROWS, replace=False))
    table = _Table(domain, columns)
    found = dependencies(
        [Column(a, a.codes(Cells(columns[a.name].texts, columns[a.name].numbers[some]))) for a in attributes]
    )
    kept, dropped, rules = list[Proposal](), list[str](), list[Rule]()
    count = RuleBook(attributes, ()).count()
    for one in islice(_in_turn(found), TRIED):
        proposal = table.counted(one)
        if proposal is None or any(proposal.repeats(other, kept) for other in kept):
            continue
        if len(kept) == MOST or len(dropped) == FAILED:
            break
        try:
            left = RuleBook(attributes, [*rules, *proposal.rules], most=CASES).count()
        except DomainError:
            dropped.append(one.title)
            continue
        if left <= (1 - NEWS) * count:  # else the others say so already, or nearly
            kept.append(proposal)
            rules += proposal.rules
            count = left
    return Proposals(tuple(kept), tuple(dropped), len(domain.names) - len(looked))


def _in_turn(found: Sequence[Found]) -> Iterator[Found]:
    """Yield findings, the strongest first; the more often a column was named already, the less another one counts."""
    rest, named = list(found), Counter[str]()
    while rest:
        best = max(rest, key=lambda one: (one.fixes, one.expected / math.prod(1 + named[name] for name in one.names)))
        rest.remove(best)
        named.update(best.names)
        yield best


@dataclass(frozen=True)
class _Table:
    """All rows of a table, in which rules are counted."""

    domain: TableDomain
    columns: Mapping[str, Cells]

    def counted(self, found: Found) -> Proposal | None:
        """Return a finding with its counts in all rows; None where these have too many exceptions after all."""
        people = exceptions = 0
        for rule in found.rules:
            when = np.logical_and.reduce([self._met(name, one) for name, one in rule.when.items()])
            then = [self._met(name, one) for name, one in rule.then.items()]
            broken = int((when & ~np.logical_and.reduce(then)).sum() if then else when.sum())
            # Of what must not come together: the people who have one of the two, whichever is less frequent.
            sides = [int(self._met(name, one).sum()) for name, one in rule.when.items()]
            people, exceptions = people + min(sides), exceptions + broken
        if exceptions > EXCEPTIONS * people:
            return None
        ties = tuple(name for name in self.domain.sensitive if name in found.names)
        return Proposal(found.title, found.rules, people, exceptions, ties, found.copy and not exceptions)

    def _met(self, name: str, condition: Condition) -> npt.NDArray[np.bool_]:
        """Return which rows meet a condition."""
        attribute = self.domain.attributes[self.domain.column(name)]
        met: npt.NDArray[np.bool_] = meets(attribute, condition).numpy()[attribute.codes(self.columns[name])]
        return met
