"""Rules between attributes: combinations of values that no real record has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.errors import DomainError, did_you_mean
from neuronfair.limits import check_size

MAX_COMBINATIONS = 1_000_000  # of classes in one group of entangled attributes
MAX_RULE_VALUES = 10_000_000  # of an attribute that a rule names: a table over all of them is kept
MAX_CONDITIONS = 1_000  # in all rules: compiling them takes time with the third power of their number


@dataclass(frozen=True)
class Span:
    """The numbers from `low` to `high`, both included."""

    low: float = -math.inf
    high: float = math.inf


RuleCondition = Span | tuple[str | float, ...]


@dataclass(frozen=True)
class Rule:
    """No valid row meets every condition of `when` without meeting every condition of `then`.

    With an empty `then` the combination in `when` is forbidden outright.
    """

    name: str
    when: Mapping[str, RuleCondition]
    then: Mapping[str, RuleCondition]


def find_excluded_labels(rules: Sequence[Rule], name: str) -> set[str]:
    """Return the labels of an attribute that rules forbid whatever else a row has: no record is compared with them."""
    conditions = (rule.when[name] for rule in rules if {*rule.when} == {name} and not rule.then)
    return {str(label) for condition in conditions if not isinstance(condition, Span) for label in condition}


@dataclass(frozen=True)
class TiedColumns:
    """Attributes that rules tie together, and the combinations of their classes that are allowed."""

    columns: tuple[int, ...]
    class_of: tuple[Tensor, ...]  # per column: (size,) class of each code
    members: tuple[Tensor, ...]  # per column: (size,) codes sorted by class
    starts: tuple[Tensor, ...]  # per column: (classes,) where a class begins in members
    counts: tuple[Tensor, ...]  # per column: (classes,) how many codes a class has
    allowed: Tensor  # (combinations, columns): class per column
    total: int  # rows these combinations stand for
    weights: Tensor  # (combinations,): share of those rows


class RuleBook:
    """The rules of a domain, compiled to lookup tables over codes, of at most `max_cases` combinations of classes."""

    def __init__(
        self, attributes: Sequence[Attribute], rules: Sequence[Rule], *, max_cases: int = MAX_COMBINATIONS
    ) -> None:
        self.rules = tuple(rules)
        self._max_cases = max_cases
        self._attributes = tuple(attributes)
        self._columns = {a.name: i for i, a in enumerate(attributes)}
        self._check_sizes()
        # Per rule: the conditions of both parts as (column, table of the codes that meet it).
        self._when = [self._make_tables(rule, rule.when) for rule in self.rules]
        self._then = [self._make_tables(rule, rule.then) for rule in self.rules]
        self._rule_columns = [{c for c, _ in (*w, *t)} for w, t in zip(self._when, self._then, strict=True)]
        for rule, when in zip(self.rules, self._when, strict=True):
            if not when:
                raise DomainError(
                    f"rule '{rule.name}': has no condition. Write if = {{…}} and then = {{…}}, or forbid = {{…}}"
                )
        self.tied = tuple(
            self._compile_group(columns) for columns in self._group_columns()
        )  # the groups of tied attributes

    def _check_sizes(self) -> None:
        """Refuse rules whose tables would take too much time or memory."""
        names = [name for rule in self.rules for name in (*rule.when, *rule.then)]
        if len(names) > MAX_CONDITIONS:
            raise DomainError(f"the rules have {len(names):,} conditions; {MAX_CONDITIONS:,} at most. Use fewer rules")
        sizes = {name: self._attributes[self._columns[name]].size for name in set(names) if name in self._columns}
        for name, size in sizes.items():
            if size > MAX_RULE_VALUES:
                raise DomainError(f"attribute '{name}' has too many values for a rule. Use a larger step")
        tables = sum(sizes.get(name, 0) for name in names) + 32 * sum(sizes.values())
        check_size(tables, "the tables of the rules")

    @property
    def conditions(self) -> list[tuple[list[tuple[int, Tensor]], list[tuple[int, Tensor]]]]:
        """The conditions of each rule, of `when` and of `then`: a column, and which of its codes meet them."""
        return list(zip(self._when, self._then, strict=True))

    @property
    def columns(self) -> set[int]:
        """The columns that some rule names."""
        return {c for group in self.tied for c in group.columns}

    def _make_tables(self, rule: Rule, part: Mapping[str, RuleCondition]) -> list[tuple[int, Tensor]]:
        tables = []
        for name, condition in part.items():
            if name not in self._columns:
                raise DomainError(f"rule '{rule.name}': no attribute '{name}'. {did_you_mean(name, self._columns)}")
            column = self._columns[name]
            try:
                tables.append((column, find_meeting_codes(self._attributes[column], condition)))
            except DomainError as error:
                raise DomainError(f"rule '{rule.name}': {error}") from None
        return tables

    def _group_columns(self) -> list[tuple[int, ...]]:
        groups: list[set[int]] = []
        for columns in self._rule_columns:
            merged_group = columns.union(*(g for g in groups if g & columns))
            groups = [g for g in groups if not g & columns] + [merged_group]
        return [tuple(sorted(g)) for g in groups]

    def _compile_group(self, columns: tuple[int, ...]) -> TiedColumns:
        class_of = []
        for column in columns:
            tables = [t for part in (*self._when, *self._then) for c, t in part if c == column]
            # Refined one condition at a time: sorting whole rows of a 100,000-value attribute is slow.
            classes = torch.zeros(self._attributes[column].size, dtype=torch.int64)
            for table in tables:
                _, classes = torch.unique(classes * 2 + table, return_inverse=True)
            class_of.append(classes)
        counts = [torch.bincount(classes) for classes in class_of]
        members = [torch.argsort(classes, stable=True) for classes in class_of]
        starts = [torch.cumsum(c, 0) - c for c in counts]
        combinations = torch.zeros(1, 0, dtype=torch.int64)
        rows = torch.zeros(1, len(self._attributes), dtype=torch.int64)  # by the first code of their classes
        for j, column in enumerate(columns):
            # One column at a time; combinations that break a rule are dropped before the next column multiplies them.
            k = len(counts[j])
            check_size(len(rows) * k * (len(self._attributes) + j + 1), "the cases of the rules", times=16)
            classes = torch.arange(k).repeat(len(rows))
            combinations = torch.cat([combinations.repeat_interleave(k, 0), classes[:, None]], 1)
            rows = rows.repeat_interleave(k, 0)
            rows[:, column] = members[j][starts[j][classes]]
            allowed_so_far = ~self._find_newly_broken(rows, column, set(columns[: j + 1]))
            combinations, rows = combinations[allowed_so_far], rows[allowed_so_far]
            if len(rows) > self._max_cases:
                names = ", ".join(self._attributes[c].name for c in columns)
                raise DomainError(
                    f"the rules tie {len(columns)} attributes into too many cases ({names}). Use fewer or simpler rules"
                )
        allowed = combinations
        if len(allowed) == 0:
            rule_names = [rule.name for rule, when in zip(self.rules, self._when, strict=True) if when[0][0] in columns]
            names = "; ".join(rule_names)
            raise DomainError(f"the rules forbid every row: {names}. Remove or correct one of them")
        cells = np.stack([counts[j][allowed[:, j]].numpy() for j in range(len(columns))], 1).astype(object)
        rows_of = [math.prod(int(n) for n in row) for row in cells]  # exact: Python integers do not overflow
        total = sum(rows_of)
        weights = torch.tensor([n / total for n in rows_of], dtype=torch.float64)
        return TiedColumns(
            columns, tuple(class_of), tuple(members), tuple(starts), tuple(counts), allowed, total, weights
        )

    def _find_newly_broken(self, rows: Tensor, column: int, completed: set[int]) -> Tensor:
        """Return which rows break a rule that names a column for any values of the columns that are not yet known."""
        broken = torch.zeros(len(rows), dtype=torch.bool)
        for when, then, rule_columns in zip(self._when, self._then, self._rule_columns, strict=True):
            if column in rule_columns and {c for c, _ in when} <= completed:
                completed_conditions = [(c, table) for c, table in then if c in completed]
                if completed_conditions or not then:
                    is_met = _meet_all(rows, when)
                    broken |= is_met & ~_meet_all(rows, completed_conditions) if then else is_met
        return broken

    def broken(self, rows: Tensor) -> Tensor:
        """Return for each row and each rule whether the row breaks it: bool, (n, rules)."""
        result = torch.zeros(len(rows), len(self.rules), dtype=torch.bool, device=rows.device)
        for i, (when, then) in enumerate(zip(self._when, self._then, strict=True)):
            is_met = _meet_all(rows, when)
            result[:, i] = is_met & ~_meet_all(rows, then) if then else is_met
        return result

    def count(self) -> int:
        """Return the exact number of rows that keep the rules."""
        untied_rows = math.prod(a.size for c, a in enumerate(self._attributes) if c not in self.columns)
        return untied_rows * math.prod(group.total for group in self.tied)

    def sample_into(self, rows: Tensor, u: Tensor, v: Tensor) -> None:
        """Overwrite the columns that rules name with rows drawn uniformly from the allowed combinations.

        The draws are numbers in [0, 1): u (n, groups) chooses the combination, v (n, attributes) the code within it.
        """
        for i, group in enumerate(self.tied):
            ends = group.weights.to(u.device).cumsum(0)
            # The last end may be below 1 by rounding; numbers beyond it belong to the last combination.
            index = torch.searchsorted(ends, u[:, i].contiguous(), right=True).clamp(max=len(ends) - 1)
            classes_drawn = group.allowed.to(u.device)[index]
            for j, column in enumerate(group.columns):
                classes = classes_drawn[:, j]
                within = (v[:, column] * group.counts[j].to(u.device)[classes]).long()
                rows[:, column] = group.members[j].to(u.device)[group.starts[j].to(u.device)[classes] + within]

    def move_to_nearest_valid(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the nearest rows that keep the rules; rows that keep them do not change.

        Nearest means: the fewest changed attributes, weighted by `weights`, then the shortest distance within the
        ordered ones.
        """
        rows = rows.clone()
        for group in self.tied:
            own_rules = [i for i, when in enumerate(self._when) if when[0][0] in group.columns]
            broken = self.broken(rows)[:, own_rules].any(1).nonzero()[:, 0]
            # Slices bound the memory of the (rows, combinations) cost table.
            for part in torch.split(broken, max(1, 4_000_000 // len(group.allowed))):
                rows[part] = self._move_group_to_valid(rows[part], group, weights)
        return rows

    def _move_group_to_valid(self, rows: Tensor, group: TiedColumns, weights: Tensor) -> Tensor:
        allowed = group.allowed.to(rows.device)
        cost = torch.zeros(len(rows), len(allowed), dtype=torch.float64, device=rows.device)
        nearest = []
        for j, column in enumerate(group.columns):
            code = rows[:, column]
            class_of, empty = group.class_of[j].to(rows.device), self._attributes[column].empty
            target, distance = _find_nearest(class_of, code, len(group.counts[j]), empty)
            nearest.append(target)
            # Distance breaks ties between equally many changes, scaled so that it never outweighs a change.
            ordered = self._attributes[column].is_ordered
            share = distance / (self._attributes[column].size * len(weights)) if ordered else 0
            price = (distance > 0) * weights[column] * (1 + share)
            cost += price.to(torch.float64)[:, allowed[:, j]]
        best = allowed[cost.argmin(1)]
        for j, column in enumerate(group.columns):
            rows[:, column] = nearest[j].gather(1, best[:, j : j + 1])[:, 0]
        return rows


def _find_nearest(class_of: Tensor, code: Tensor, classes: int, empty: int | None) -> tuple[Tensor, Tensor]:
    """Return for each code and each class the nearest member and the distance to it: (n, classes) each.

    The code of an empty cell has no neighbours: it is chosen only for itself, or as the only member of its class.
    """
    distinct, inverse = torch.unique(code, return_inverse=True)
    target = torch.empty(len(distinct), classes, dtype=torch.int64, device=code.device)
    for c in range(classes):
        members = (class_of == c).nonzero()[:, 0]  # ascending
        has_empty = members[-1] == empty  # which is the last
        members = members[:-1] if has_empty and len(members) > 1 else members
        right = torch.searchsorted(members, distinct).clamp(max=len(members) - 1)
        left = (right - 1).clamp(min=0)
        nearer = (members[left] - distinct).abs() <= (members[right] - distinct).abs()
        target[:, c] = torch.where(nearer, members[left], members[right])
        if has_empty:
            target[distinct == empty, c] = distinct[distinct == empty]
    distance = (target - distinct[:, None]).abs()
    return target[inverse], distance[inverse]


def _meet_all(rows: Tensor, tables: list[tuple[int, Tensor]]) -> Tensor:
    is_met = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for column, table in tables:
        is_met &= table.to(rows.device)[rows[:, column].clamp(0, len(table) - 1)]
    return is_met


def find_meeting_codes(attribute: Attribute, condition: RuleCondition) -> Tensor:
    """Return which codes of an attribute meet a condition: bool, (size,)."""
    if isinstance(condition, Span):
        if attribute.values:
            raise DomainError(f"attribute '{attribute.name}' has labels, not numbers. List the labels that are meant")
        numbers = float(attribute.low) + float(attribute.step) * torch.arange(attribute.size, dtype=torch.float64)
        slack = 1e-9 * max(1.0, abs(attribute.low), abs(attribute.high))
        is_met = (numbers >= condition.low - slack) & (numbers <= condition.high + slack)
        is_met[attribute.grid_size :] = False  # an empty cell is in no range
        return is_met
    is_met = torch.zeros(attribute.size, dtype=torch.bool)
    codes = torch.from_numpy(attribute.codes(condition))
    if bool(((codes < 0) | (codes >= attribute.size)).any()):  # an extra label, or an empty cell
        raise DomainError(f"attribute '{attribute.name}': a rule can name its values only, not {condition}")
    is_met[codes] = True
    return is_met


@dataclass(frozen=True)
class CompletionStep:
    """A column of a group that rules tie together, completed after the group's earlier columns.

    A *state* is the beginning of an allowed combination of classes, in the earlier columns. `follow` gives the next
    state for each class, and -1 where no valid row can be completed.
    """

    group: int
    follow: Tensor  # (states, classes)

    def allowed(self, states: Tensor) -> Tensor:
        """Return which classes may follow: bool, (n, classes)."""
        return self.follow.index_select(0, states) >= 0


def make_completion_steps(
    groups: Sequence[TiedColumns], order: Sequence[int], device: torch.device
) -> dict[int, CompletionStep]:
    """Return the completion step of each column that rules name, in the given order."""
    position = {column: i for i, column in enumerate(order)}
    completions: dict[int, CompletionStep] = {}
    for number, group in enumerate(groups):
        states, count = torch.zeros(len(group.allowed), dtype=torch.int64), 1
        for j in sorted(range(len(group.columns)), key=lambda j: position[group.columns[j]]):
            classes = len(group.counts[j])
            check_size(count * classes * 8, "the completions under the rules")
            key = states * classes + group.allowed[:, j]
            follow = torch.full((count * classes,), -1)
            distinct, states = torch.unique(key, return_inverse=True)
            follow[distinct] = torch.arange(len(distinct))
            completions[group.columns[j]] = CompletionStep(number, follow.view(count, classes).to(device))
            count = len(distinct)
    return {column: completions[column] for column in order if column in completions}
