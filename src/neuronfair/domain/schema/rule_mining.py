"""Rules that a table suggests: pairs of columns whose values never occur together, with their counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, islice, pairwise
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, pdtr, rel_entr

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.cells import ISO, format_day
from neuronfair.domain.rules import Rule, RuleBook, RuleCondition, Span, find_meeting_codes
from neuronfair.domain.schema.toml import format_rule_lines, toml_value
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import Cells
from neuronfair.errors import DomainError
from neuronfair.formatting import pluralise, printable

# With these two numbers the upper end of Wilson's interval (95%) of the share of exceptions is below 2%: see the tests.
MIN_RECORDS = 200  # records that must meet a condition
MAX_EXCEPTIONS = 0.002  # the largest share of them that may break a rule
MAX_EXPECTED_SHARE = 0.02  # the largest number of exceptions, as a share of those expected by chance
MIN_CHANCE_EXCLUDED = 0.02  # the smallest share of all records that a rule excludes by chance: else it says nothing
MAX_CHANCE = 0.01  # probability that a table of unrelated columns gets any rule
MAX_LEVELS = 30  # values of a column that another one determines, or that are compared one by one
MIN_KNOWN_RECORDS = 5  # records that a value needs to belong to one class; with fewer it may go with every class
MIN_EXCLUDED_SHARE = 0.25  # of all records that the end of a range must exclude
MAX_SIZE = 1_000_000  # values of an attribute that a rule may name

Counts = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


TakeRules = Literal["none", "free", "all"]


@dataclass(frozen=True)
class RuleProposal:
    """Rules between two columns that belong together, and their counts in all records of the table."""

    title: str
    rules: tuple[Rule, ...]
    expected: float  # exceptions if the columns were independent
    determines: bool = False  # one column determines the other
    copy: bool = False  # each column determines the other, without an exception
    people: int = 0  # records that the rules apply to
    exceptions: int = 0  # how many of these records break the rules
    ties: tuple[str, ...] = ()  # sensitive attributes that they name

    @property
    def names(self) -> tuple[str, ...]:
        """The two columns."""
        return (*self.rules[0].when, *self.rules[0].then)

    def repeats(self, other: RuleProposal, proposals: Sequence[RuleProposal]) -> bool:
        """Return whether this proposal repeats another one for a column that is tied to that one's column."""
        differing = {*self.names} ^ {*other.names}
        if len(differing) != 2 or (self.people, self.exceptions) != (other.people, other.exceptions):
            return False
        return any(differing == {*proposal.names} and len(proposal.rules) > 1 for proposal in proposals)

    def is_adopted(self, take: TakeRules) -> bool:
        """Return whether these rules are adopted."""
        return take == "all" or (not self.ties and (take == "free" or self.copy))


@dataclass(frozen=True)
class CodedColumn:
    """An attribute in the sampled rows: the codes that occur, ascending, and the position of each row's code there."""

    attribute: Attribute
    codes: Counts
    indices: Counts

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers or dates."""
        return not self.attribute.values

    @property
    def has_few_values(self) -> bool:
        """Whether its values can be compared one by one."""
        return 2 <= len(self.codes) <= MAX_LEVELS

    @cached_property
    def views(self) -> list[tuple[list[Mask], Counts]]:
        """The ways to divide the values into groups: the groups as masks of codes, and each row's group.

        Few values are groups of their own. If half of the rows have one number, often 0, the groups are the numbers
        below it, the number itself and those above it, unless it is the value of empty cells.
        """
        all_codes = np.arange(self.attribute.size)
        views = [([all_codes == code for code in self.codes], self.indices)] if self.has_few_values else []
        often = int(np.bincount(self.indices).argmax())
        filled = self.attribute.missing is not None and self.attribute.codes([""])[0] == self.codes[often]
        if self.is_number and len(self.codes) > 2 and not filled and (self.indices == often).mean() >= 0.5:
            sides, groups = np.unique(np.sign(self.indices - often), return_inverse=True)
            side = np.where(all_codes == self.attribute.empty, 2, np.sign(all_codes - self.codes[often]))
            views.append(([side == value for value in sides], groups))
        return views

    def claim_codes(self, is_chosen: Mask) -> Mask:
        """Return the codes of a class of the values that occur; of a range of numbers, all up to the next class.

        A number between two classes that does not occur may go with both.
        """
        mask = np.zeros(self.attribute.size, dtype=np.bool_)
        class_codes, other_codes = self.codes[is_chosen], self.codes[~is_chosen]
        mask[class_codes] = True
        below, above = other_codes[other_codes < class_codes[0]], other_codes[other_codes > class_codes[-1]]
        if self.is_number and len(below) + len(above) == len(other_codes) and self.attribute.empty not in class_codes:
            mask[below[-1] + 1 if len(below) else 0 : above[0] if len(above) else self.attribute.grid_size] = True
        return mask


def find_dependencies(columns: Sequence[CodedColumn]) -> list[RuleProposal]:
    """Return the rules between all pairs of columns, not yet counted in the whole table."""
    columns = [c for c in columns if len(c.codes) > 1 and c.attribute.size <= MAX_SIZE]
    groups = sum(len(groups) for c in columns for groups, _ in c.views)
    tests = max(1, groups**2 // 2)
    proposals = list[RuleProposal]()
    for a, b in combinations(columns, 2):
        first, second = (a, b) if a.is_number and not b.is_number else (b, a)
        if (function_rules := _find_function(first, second, tests) or _find_function(second, first, tests)) is not None:
            proposals.append(function_rules)
        else:
            proposals += [*_find_exclusions(a, b, tests), *_find_ranges(a, b, tests), *_find_ranges(b, a, tests)]
    return proposals


def _find_function(a: CodedColumn, b: CodedColumn, tests: int) -> RuleProposal | None:
    """Return the rules by which column a determines column b: for each value of b, the values of a."""
    records, is_copy = len(a.indices), len(a.codes) == len(b.codes)
    if not b.has_few_values or len(a.codes) < len(b.codes):
        return None
    table = _cross_tabulate(a.indices, b.indices, len(a.codes), len(b.codes))
    error = 1 - float(table.sum(0).max()) / records  # of predicting the largest class for all
    for owns, log_functions in _list_assignments(a, table):
        exceptions = int(np.where(owns, 0, table).sum())
        share = exceptions / records
        if share > min(MAX_EXCEPTIONS, MAX_EXPECTED_SHARE * error) or error < MIN_CHANCE_EXCLUDED:
            continue
        # Chernoff's bound of the probability of so few exceptions, as a logarithm.
        log_chance = -records * float(rel_entr(share, error) + rel_entr(1 - share, 1 - error))
        if log_chance + log_functions + math.log(tests / MAX_CHANCE) > 0:
            continue
        if rules := _make_function_rules(a, b, table, owns):
            verb = "and {} fix one another" if is_copy else "fixes {}"
            title = f"{shorten(a.attribute.name)} {verb.format(shorten(b.attribute.name))}"
            copy = exceptions == 0 and is_copy and len(rules) == len(b.codes)
            return RuleProposal(title, rules, error * records, determines=True, copy=copy)
    return None


def _make_function_rules(a: CodedColumn, b: CodedColumn, table: Counts, owns: Mask) -> tuple[Rule, ...]:
    """Return a rule for each value of b with few exceptions; none where one of these rules is too long."""
    records, exceptions = table.sum(0), np.where(owns, 0, table).sum(0)
    is_sound = (exceptions <= 10 * MAX_EXCEPTIONS * records) & (records >= MIN_KNOWN_RECORDS) & ~owns.all(0)
    values = b.views[0][0]
    rules = [
        make_rule(b.attribute, values[c], a.attribute, ~a.claim_codes(owns[:, c])) for c in np.flatnonzero(is_sound)
    ]
    return () if None in rules else tuple(rule for rule in rules if rule is not None)


def _list_assignments(column: CodedColumn, table: Counts) -> list[tuple[Mask, float]]:
    """Return the ways to assign a column's values to classes; classes of numbers are ranges: these are fewer ways."""
    by_order = _assign_by_order(table) if column.is_number else None
    by_value = [] if column.is_number and len(column.codes) > MAX_VALUES else [_assign_by_value(table)]
    return by_value if by_order is None else [by_order, *by_value]


def _assign_by_order(table: Counts) -> tuple[Mask, float] | None:
    """Return the values of each class if classes are ranges, and the logarithm of how many such functions there are."""
    values, k = table.shape
    order = np.argsort((table * np.arange(values)[:, None]).sum(0) / table.sum(0), kind="stable")
    upto = table[:, order].cumsum(0)
    # The cut between two neighbouring classes with the fewest records on the wrong side.
    cuts = [int((upto[-1, i] - upto[:-1, i] + upto[:-1, i + 1]).argmin()) for i in range(k - 1)]
    if any(left >= right for left, right in pairwise(cuts)):
        return None
    owns = np.zeros(table.shape, dtype=np.bool_)
    owns[np.arange(values), order[np.searchsorted(cuts, np.arange(values))]] = True
    return owns, float(gammaln(values) - gammaln(k) - gammaln(values - k + 1) + gammaln(k + 1))


def _assign_by_value(table: Counts) -> tuple[Mask, float]:
    """Return the values of each class by their most frequent class, and the logarithm of how many such functions."""
    owns = np.arange(table.shape[1]) == table.argmax(1)[:, None]
    owns |= (table.sum(1) < MIN_KNOWN_RECORDS)[:, None]
    return owns, len(table) * math.log(table.shape[1])


def _find_exclusions(a: CodedColumn, b: CodedColumn, tests: int) -> Iterator[RuleProposal]:
    """Yield rules for groups of values that (nearly) never occur together."""
    for groups_a, row_a in a.views:
        for groups_b, row_b in b.views:
            table = _cross_tabulate(row_a, row_b, len(groups_a), len(groups_b))
            size_a, size_b = table.sum(1)[:, None], table.sum(0)[None]
            smaller, expected = np.minimum(size_a, size_b), size_a * size_b / len(row_a)
            is_excluded = (table <= np.minimum(MAX_EXCEPTIONS * smaller, MAX_EXPECTED_SHARE * expected)) & (
                smaller >= MIN_RECORDS
            )
            is_excluded &= (pdtr(table, expected) * tests <= MAX_CHANCE) & (expected >= MIN_CHANCE_EXCLUDED * smaller)
            if is_excluded.any():
                expected = np.where(is_excluded, expected, 0.0)
                by_a, by_b = _merge_exclusions(is_excluded, table), _merge_exclusions(is_excluded.T, table.T)
                if _reading_effort(by_a, table) <= _reading_effort(by_b, table.T):
                    yield from _make_exclusion_rules(a, groups_a, b, groups_b, by_a, expected)
                else:
                    yield from _make_exclusion_rules(b, groups_b, a, groups_a, by_b, expected.T)


def _merge_exclusions(is_excluded: Mask, table: Counts) -> list[tuple[list[int], list[int]]]:
    """Return which groups never occur with which, merging groups that exclude the same ones.

    Where at most two groups occur with a group, all others that never do are excluded, however rare they are.
    """
    merged = dict[tuple[int, ...], list[int]]()
    for group, row in enumerate(is_excluded):
        if row.any():
            row = row | (table[group] == 0) if (table[group][~row] > 0).sum() <= 2 else row
            merged.setdefault(tuple(np.flatnonzero(row).tolist()), []).append(group)
    return [(groups, list(excluded)) for excluded, groups in merged.items()]


def _reading_effort(merged: list[tuple[list[int], list[int]]], table: Counts) -> tuple[int, ...]:
    """Return how hard rules are to read: how many they are, the values they list and leave, and their records."""
    remaining = [table.shape[1] - len(excluded) for _, excluded in merged]
    listed = sum(
        len(groups) + min(len(excluded), count) for (groups, excluded), count in zip(merged, remaining, strict=True)
    )
    return len(merged), listed, sum(remaining), sum(int(table[groups].sum()) for groups, _ in merged)


def _make_exclusion_rules(
    a: CodedColumn,
    groups_a: list[Mask],
    b: CodedColumn,
    groups_b: list[Mask],
    merged: list[tuple[list[int], list[int]]],
    expected: npt.NDArray[np.float64],
) -> Iterator[RuleProposal]:
    for groups, excluded in merged:
        exceptions = float(expected[np.ix_(groups, excluded)].sum())
        condition = np.logical_or.reduce([groups_a[i] for i in groups])
        excluded_values = np.logical_or.reduce([groups_b[j] for j in excluded])
        rules = [make_rule(a.attribute, condition, b.attribute, excluded_values)]
        if rules == [None]:  # too long: one rule for each pair of groups
            rules = [make_rule(a.attribute, groups_a[i], b.attribute, groups_b[j]) for i in groups for j in excluded]
        yield from (RuleProposal(rule.name, (rule,), exceptions / len(rules)) for rule in rules if rule is not None)


def _find_ranges(a: CodedColumn, b: CodedColumn, tests: int) -> Iterator[RuleProposal]:
    """Yield rules that records with a value of b have numbers of column a within a range."""
    if not (a.is_number and not a.has_few_values and b.has_few_values) or a.attribute.empty in a.codes:
        return
    table = _cross_tabulate(a.indices, b.indices, len(a.codes), len(b.codes))
    upto = np.concatenate([[0.0], table.sum(1).cumsum() / len(a.indices)])
    first, last = (table > 0).argmax(0), len(table) - 1 - (table[::-1] > 0).argmax(0)
    below, above = upto[first], 1 - upto[last + 1]
    expected = table.sum(0) * (
        np.where(below >= MIN_EXCLUDED_SHARE, below, 0) + np.where(above >= MIN_EXCLUDED_SHARE, above, 0)
    )
    is_significant = (table.sum(0) >= MIN_RECORDS) & (pdtr(0, expected) * tests * len(table) ** 2 <= MAX_CHANCE)
    for index in np.flatnonzero(is_significant):
        outside = np.zeros(a.attribute.size, dtype=np.bool_)
        outside[: a.codes[first[index]] if below[index] >= MIN_EXCLUDED_SHARE else 0] = True
        outside[a.codes[last[index]] + 1 if above[index] >= MIN_EXCLUDED_SHARE else a.attribute.size :] = True
        rule = make_rule(b.attribute, b.views[0][0][index], a.attribute, outside)
        if rule is not None:
            yield RuleProposal(rule.name, (rule,), float(expected[index]))


def _cross_tabulate(a: Counts, b: Counts, size_a: int, size_b: int) -> Counts:
    """Return the contingency table of two columns."""
    return np.bincount(a * size_b + b, minlength=size_a * size_b).reshape(size_a, size_b)


MAX_PROPOSALS = 20
MAX_TRIED, MAX_DROPPED = 60, 5  # candidates that are tried at most, and how many of them may not fit
SAMPLED_ROWS = 50_000  # rows in which rules are looked for; exceptions are counted in all
MAX_COLUMNS = 100  # columns between which rules are looked for, the sensitive ones first
MIN_NEWLY_EXCLUDED = 0.001  # share of the remaining input space that a further rule must exclude
MAX_CASES = 10_000  # cases that the rules may leave in one group of attributes, so that searches stay fast


@dataclass(frozen=True)
class Proposals:
    """The rules that a table suggests, and those dropped because all together would be too many cases."""

    proposals: tuple[RuleProposal, ...] = ()
    dropped: tuple[str, ...] = ()
    unseen: int = 0  # columns that were not examined

    def remarks(self, take: TakeRules) -> list[str]:
        """Return how many rules are suggested and how to adopt them, if there are any."""
        count, adopted = len(self.proposals), sum(proposal.is_adopted(take) for proposal in self.proposals)
        if not count:
            return []
        tied = sum(bool(proposal.ties) for proposal in self.proposals)
        verb = "rule is" if count == 1 else "rules are"
        summary = f"{count} {verb} suggested" + (f", {tied} on a sensitive attribute" if tied else "")
        used = f"{adopted} adopted" if adopted else "not used unless --take-rules says free or all"
        copies = [proposal.title for proposal in self.proposals if proposal.copy and proposal.is_adopted(take)]
        copied = [f"{title}, value by value: both are kept together" for title in copies]
        return [f"{summary}: see the end of the domain file; {used}", *copied]

    def rules(self, take: TakeRules) -> tuple[Rule, ...]:
        """Return the rules that are adopted."""
        return tuple(rule for proposal in self.proposals if proposal.is_adopted(take) for rule in proposal.rules)

    def text(self, take: TakeRules, attributes: Sequence[Attribute]) -> str:
        """Return the lines of a domain file, with rules that are not adopted as comments."""
        if not self.proposals:
            return ""
        attribute_by_name = {a.name: a for a in attributes}
        lines = [
            "",
            "## Rules that the table suggests. Which of them hold for everybody, and not only in this table? Take away",
            "## one # from each of their lines, or let --take-rules do it: free (all but those that name a sensitive",
            "## attribute), all. Exceptions are rows that break the rule: they stay in the table.",
        ]
        if self.unseen:
            lines.append(f"## {pluralise(self.unseen, 'column')} of this wide table were not examined.")
        for proposal in self.proposals:
            mark = "" if proposal.is_adopted(take) else "# "
            counts = f"{pluralise(proposal.people, 'person', 'people')}, {pluralise(proposal.exceptions, 'exception')}"
            lines += ["", f"## {printable(proposal.title)}: {counts}" if len(proposal.rules) > 1 else f"## {counts}"]
            if proposal.ties:
                ties = " and ".join(printable(shorten(name)) for name in proposal.ties)
                lines.append(f"## ties {ties}, which is sensitive: such people then have no twin")
            lines += [mark + line for rule in proposal.rules for line in format_rule(rule, attribute_by_name)]
        if self.dropped:
            lines += ["", f"## Dropped, as all together would be too many cases: {printable('; '.join(self.dropped))}"]
        return "\n".join(lines) + "\n"


def check_take(take: str) -> None:
    """Refuse an unknown way of adopting rules."""
    if take not in get_args(TakeRules):
        raise DomainError(f"take rules '{take}': expected {', '.join(get_args(TakeRules))}")


def propose(domain: TableDomain, columns: Mapping[str, Cells]) -> Proposals:
    """Return the rules that a table suggests for its domain, the strongest first, without those that others imply.

    Rules are looked for in a sample of a large table; their exceptions are counted in all rows.
    """
    examined = [*domain.sensitive, *(name for name in domain.names if name not in domain.sensitive)][:MAX_COLUMNS]
    attributes = [a for a in domain.attributes if a.name in examined]
    rows = len(columns[examined[0]])
    if rows < MIN_RECORDS or len(attributes) < 2:
        return Proposals()
    sample = np.arange(rows)
    if rows > SAMPLED_ROWS:
        sample = np.sort(np.random.default_rng(0).choice(rows, SAMPLED_ROWS, replace=False))
    candidates = find_dependencies(
        [CodedColumn(a, *np.unique(a.codes(columns[a.name].take(sample)), return_inverse=True)) for a in attributes]
    )
    accepted, dropped, rules = list[RuleProposal](), list[str](), list[Rule]()
    count = RuleBook(attributes, ()).count()
    for candidate in islice(_order_by_strength(candidates), MAX_TRIED):
        proposal = _count_exceptions(candidate, domain, columns)
        if proposal is None or any(proposal.repeats(other, accepted) for other in accepted):
            continue
        if len(accepted) == MAX_PROPOSALS or len(dropped) == MAX_DROPPED:
            break
        try:
            remaining = RuleBook(attributes, [*rules, *proposal.rules], max_cases=MAX_CASES).count()
        except DomainError:
            dropped.append(candidate.title)
            continue
        if remaining <= (1 - MIN_NEWLY_EXCLUDED) * count:  # else the other rules nearly imply it
            accepted.append(proposal)
            rules += proposal.rules
            count = remaining
    return Proposals(tuple(accepted), tuple(dropped), len(domain.names) - len(examined))


def _order_by_strength(proposals: Sequence[RuleProposal]) -> Iterator[RuleProposal]:
    """Yield proposals, the strongest first; a proposal counts less the more often its columns were named already."""
    remaining, name_counts = list(proposals), Counter[str]()

    def strength(proposal: RuleProposal) -> tuple[bool, float]:
        return proposal.determines, proposal.expected / math.prod(1 + name_counts[name] for name in proposal.names)

    while remaining:
        best = max(remaining, key=strength)
        remaining.remove(best)
        name_counts.update(best.names)
        yield best


def _count_exceptions(proposal: RuleProposal, domain: TableDomain, columns: Mapping[str, Cells]) -> RuleProposal | None:
    """Return a proposal with its counts in all rows; None where these have too many exceptions."""

    def find_matches(name: str, condition: RuleCondition) -> Mask:
        attribute = domain.attributes[domain.column(name)]
        rows: Mask = find_meeting_codes(attribute, condition).numpy()[attribute.codes(columns[name])]
        return rows

    covered = exceptions = 0
    for rule in proposal.rules:
        sides = [find_matches(name, condition) for name, condition in rule.when.items()]
        when = np.logical_and.reduce(sides)
        then = [find_matches(name, condition) for name, condition in rule.then.items()]
        exceptions += int((when & ~np.logical_and.reduce(then)).sum() if then else when.sum())
        covered += min(int(side.sum()) for side in sides)  # those that meet the rarer condition
    if exceptions > MAX_EXCEPTIONS * covered:
        return None
    ties = tuple(name for name in domain.sensitive if name in proposal.names)
    return replace(proposal, people=covered, exceptions=exceptions, ties=ties, copy=proposal.copy and not exceptions)


MAX_VALUES = 20  # values that a condition lists at most
MAX_NAME_LETTERS = 40  # of a label or a name that is quoted


def make_rule(a: Attribute, codes: Mask, b: Attribute, excluded: Mask) -> Rule | None:
    """Return the rule that some codes of a occur with none of the excluded codes of b; None if it is too long."""
    left, right, others = _mask_condition(a, codes), _mask_condition(b, excluded), _mask_condition(b, ~excluded)
    if left is None or (right is None and others is None):
        return None
    premise = f"{shorten(a.name)} {_wording(a, left)}"
    two_ranges = isinstance(left, Span) and isinstance(right, Span)  # "not both" is easier to read for two ranges
    if others is not None and (
        right is None or (_condition_length(others) <= _condition_length(right) and not two_ranges)
    ):
        return Rule(f"{premise}: {shorten(b.name)} {_wording(b, others)}", {a.name: left}, {b.name: others})
    assert right is not None
    return Rule(f"not both: {premise}, {shorten(b.name)} {_wording(b, right)}", {a.name: left, b.name: right}, {})


def format_rule(rule: Rule, attributes: Mapping[str, Attribute]) -> list[str]:
    """Return the lines of a rule in a domain file; whatever its names hold, each stays one line."""
    return [
        printable(line)
        for line in format_rule_lines(rule, lambda name, side: _format_condition(attributes[name], side))
    ]


def shorten(text: str) -> str:
    """Return a name or label, cut if it is long."""
    return text if len(text) <= MAX_NAME_LETTERS else f"{text[: MAX_NAME_LETTERS - 1]}…"


def _mask_condition(attribute: Attribute, mask: Mask) -> RuleCondition | None:
    """Return the condition that the codes of a mask meet; None where they are too many to list, or none."""
    codes = np.flatnonzero(mask)
    if len(codes) == 0:
        return None
    adjacent = codes[-1] - codes[0] + 1 == len(codes) and codes[-1] != attribute.empty
    if len(codes) == 1 or ((attribute.values or not adjacent) and len(codes) <= MAX_VALUES):
        return tuple(attribute.value(int(code)) for code in codes)
    if attribute.values or not adjacent:
        return None
    first, last = int(codes[0]), int(codes[-1])
    low, high = (float(f"{attribute.low + float(attribute.step) * code:.12g}") for code in (first, last))
    at_end = last == attribute.grid_size - 1
    return Span(low if first or at_end else -math.inf, math.inf if at_end else high)


def _condition_length(condition: RuleCondition) -> int:
    return 1 if isinstance(condition, Span) else len(condition)


def _format_ends(attribute: Attribute, span: Span) -> dict[str, str]:
    ends = {key: end for key, end in {"min": span.low, "max": span.high}.items() if math.isfinite(end)}
    return {key: f"{end:.12g}" if attribute.date is None else format_day(end, ISO) for key, end in ends.items()}


def _wording(attribute: Attribute, condition: RuleCondition) -> str:
    if isinstance(condition, Span):
        ends = _format_ends(attribute, condition)
        beyond = [] if len(ends) == 2 else ["more" if "min" in ends else "less"]
        return (" or " if beyond else " to ").join([*ends.values(), *beyond])
    texts = [shorten(str(value)) for value in condition]
    return " or ".join(texts) if len(texts) <= 3 else f"{', '.join(texts[:2])} or {len(texts) - 2} more"


def _format_condition(attribute: Attribute, condition: RuleCondition) -> str:
    if isinstance(condition, Span):
        return "{ " + ", ".join(f"{key} = {end}" for key, end in _format_ends(attribute, condition).items()) + " }"
    return toml_value(condition[0] if len(condition) == 1 else condition)
