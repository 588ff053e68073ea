"""The region of a certificate, as its checker reads it: positions, records, cover, and lines over boxes.

A line is a number for every feature and a constant. A linear axis has one feature, what one position more adds; another
axis has one for each position.

Records above 0 are counted by waves. Over a box a line is T - need, where T is a sum of independent terms, one for each
axis, all at least 0. With y = (T - need) / P, where P is so large that |y| < 1,

    [T > need] = y + 1/2 + ψ(-y),    ψ(y) = y - floor(y) - 1/2,

and Vaaler's polynomial of M - 1 waves is nowhere farther from ψ than Fejér's kernel divided by 2M (H. L. Montgomery,
Ten Lectures, 1994, chapter 1, theorem 6). All waves are computed, each as the product of what it is for every axis;
nothing is left out or estimated.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.rules import Rule, RuleCondition, Span
from neuronfair.domain.schema.toml import read_conditions
from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.limits import check_size
from neuronfair.model.decision import Decision
from neuronfair.proof.certificate import AxisCodes, Certificate, CertificateError

Bools = npt.NDArray[np.bool_]

VALUE_TOLERANCE = 1e-9  # numbers that lie so close together, beside the size of their attribute, are the same
GRID_TOLERANCE = 1e-6  # how far from its position a number may be written, in parts of a step
EPS = float(np.finfo(np.float64).eps)
END_ERROR = 16 * EPS  # of a probability: by how much the rounding of softmax or sigmoid may change it
MAX_VALUES = 10_000_000  # values of one attribute
MAX_COMBINATIONS = 4096  # combinations of sensitive values
MAX_POSITIONS = 1 << 20  # positions of all axes that are not linear
COVER_PRIME = 2**31 - 1  # products of two numbers below it fit into 64 bits
COVER_REPEATS = 3  # the chance that a wrong cover passes is below (axes / PRIME) to this power
BOXES_PER_BATCH = 1 << 14
MAX_CONDITION_LENGTH = 20_000  # letters


def find_region_codes(domain: TableDomain, text: str) -> list[Bools]:
    """Return which codes of each attribute meet the conditions of a region: (size,) each."""
    allowed = [np.ones(attribute.size, bool) for attribute in domain.attributes]
    if len(text) > MAX_CONDITION_LENGTH:
        raise CertificateError(f"its region has {len(text):,} letters; {MAX_CONDITION_LENGTH:,} at most are read")
    try:
        for name, condition in read_conditions(domain, text):
            column = domain.names.index(name) if name in domain.names else None
            if column is None:
                raise CertificateError(f"there is no attribute '{name}'")
            allowed[column] &= _mark_codes(domain.attributes[column], condition)
    except NeuronFairError as error:
        raise CertificateError(f"its region '{text}' cannot be read: {error}") from None
    return allowed


def _find_code(attribute: Attribute, value: str | float, code_of_label: Mapping[str, int]) -> int:
    """Return the one code that a label or a number stands for; an unknown label stands for another, if there is one."""
    text = value.strip() if isinstance(value, str) else repr(value)
    if attribute.values:
        labels = (text, str(int(value))) if isinstance(value, float) and value.is_integer() else (value, text)
        for label in (*labels, attribute.other):
            if label in code_of_label:
                return code_of_label[str(label)]
        raise CertificateError(f"'{text}' is no value of '{attribute.name}'")
    if text == MISSING and attribute.empty is not None:
        return attribute.empty
    number = attribute.number(text) if isinstance(value, str) else float(value)
    if number is None or not math.isfinite(number):
        raise CertificateError(f"'{text}' is no number that '{attribute.name}' could be")
    position = (number - attribute.low) / attribute.step
    if not -0.5 <= position < attribute.grid_size:
        raise CertificateError(f"'{text}' lies outside '{attribute.name}'")
    code = round(position)
    off_grid = attribute.kind != "continuous" and abs(position - code) > GRID_TOLERANCE
    if not 0 <= code < attribute.grid_size or off_grid:
        raise CertificateError(f"'{text}' is no value of '{attribute.name}'")
    return code


def find_rule_masks(domain: TableDomain, rule: Rule) -> tuple[list[tuple[int, Bools]], list[tuple[int, Bools]]]:
    """Return the conditions of a rule, of `when` and of `then`: the column, and which of its codes meet it."""
    if not rule.when:
        raise CertificateError(f"its rule '{rule.name}' has no condition")
    unknown = next((name for name in (*rule.when, *rule.then) if name not in domain.names), None)
    if unknown is not None:
        raise CertificateError(f"its rule '{rule.name}' names '{unknown}', which is no attribute")

    def tables(part: Mapping[str, RuleCondition]) -> list[tuple[int, Bools]]:
        columns = {domain.names.index(name): condition for name, condition in part.items()}
        return [(column, _mark_codes(domain.attributes[column], condition)) for column, condition in columns.items()]

    return tables(rule.when), tables(rule.then)


def _mark_codes(attribute: Attribute, condition: RuleCondition) -> Bools:
    mask = np.zeros(attribute.size, bool)
    if isinstance(condition, Span):
        if attribute.values:
            raise CertificateError(f"a rule asks for numbers of '{attribute.name}', which has labels")
        numbers = float(attribute.low) + float(attribute.step) * np.arange(attribute.size, dtype=np.float64)
        tolerance = VALUE_TOLERANCE * max(1.0, abs(attribute.low), abs(attribute.high))
        mask = (numbers >= condition.low - tolerance) & (numbers <= condition.high + tolerance)
        mask[attribute.grid_size :] = False
        return mask
    code_of_label = {label: code for code, label in enumerate(attribute.values)}
    for value in condition:
        mask[_find_code(attribute, value, code_of_label)] = True
    return mask


@dataclass(frozen=True)
class SignedMargins:
    """Margins with their sign: row r of `matrix` times the sums, plus `offset`. Each comes both ways.

    Class c is chosen where all rows `classes[c]` are positive. With a tolerance the rows are the score and its
    negative, and there are no classes.
    """

    matrix: Floats  # (rows, outputs)
    offset: Floats  # (rows,) less how far it may be off
    classes: tuple[tuple[int, ...], ...]
    against: tuple[tuple[int, ...], ...]  # the rows of `classes` the other way: one is positive for another class
    tolerance: float = math.nan
    squash: bool = False  # the score is a sigmoid of the sum

    def decide(self, lowest: Floats, valid: Bools) -> tuple[Bools, Bools]:
        """Return which records certainly do not flip and which do, by the least values of rows, (n, values, rows)."""
        invalid = ~valid
        if not self.classes:
            low, high = lowest[..., 0], -lowest[..., 1]
            slack = 8 * EPS * (np.where(invalid, 0, np.abs(low) + np.abs(high)).max(1) + abs(self.tolerance))
            widest_gap = np.where(invalid, -np.inf, high).max(1) - np.where(invalid, np.inf, low).min(1)
            narrowest_gap = np.where(invalid, -np.inf, low).max(1) - np.where(invalid, np.inf, high).min(1)
            return widest_gap + slack <= self.tolerance, narrowest_gap - slack > self.tolerance
        above = lowest > 0
        fair, flips = np.zeros(len(lowest), bool), np.zeros(len(lowest), bool)
        for rows, against in zip(self.classes, self.against, strict=True):
            sure, never = above[..., rows].all(-1), above[..., against].any(-1)
            fair |= (sure | invalid).all(1)
            flips |= (sure & valid).any(1) & (never & valid).any(1)
        return fair, flips


def build_margins(decision: Decision, outputs: int, end: str) -> SignedMargins:
    """Return the margins of a decision, by the sums before a model's end."""
    decision.check(outputs)
    output = np.eye(outputs)
    if end == "sigmoid" and decision.kind == "argmax":
        raise CertificateError(
            "a choice among sigmoids cannot be checked: rounding makes them equal where they are near 1"
        )
    if decision.kind == "argmax":
        pairs = [(c, j) for c in range(outputs) for j in range(outputs) if c != j]
        classes, against = (
            tuple(tuple(i for i, pair in enumerate(pairs) if pair[side] == c) for c in range(outputs))
            for side in (0, 1)
        )
        slack = 0.0 if end == "none" else END_ERROR
        matrix = np.array([output[c] - output[j] for c, j in pairs])
        return SignedMargins(matrix, np.full(len(pairs), -slack), classes, against)
    if end == "softmax" and outputs != 2:
        raise CertificateError("a score that is one of several probabilities cannot be checked")
    score = output[-1] - output[0] if end == "softmax" else output[-1]
    both_signs = np.array([score, -score])
    if decision.kind == "tolerance":
        return SignedMargins(both_signs, np.zeros(2), (), (), decision.value, end != "none")
    two_classes = ((1,), (0,))
    limit, slack = decision.value, 0.0
    if end != "none":
        if 0 < limit < 1e-300 or 1 - 1e-9 <= limit <= 1:
            raise CertificateError(f"a threshold of {limit:g} is so near 0 or 1 that rounding decides who reaches it")
        if not 0 < limit < 1:  # all records lie on one side; the sums do not matter
            sign = 1.0 if limit <= 0 else -1.0
            return SignedMargins(0 * both_signs, np.array([sign, -sign]), two_classes, two_classes[::-1])
        limit = math.log(decision.value) - math.log1p(-decision.value)
        slack = 8 * EPS * (abs(math.log(decision.value)) + abs(math.log1p(-decision.value)))
        slack += END_ERROR / (1 - decision.value)
    return SignedMargins(both_signs, np.array([-limit, limit]) - slack, two_classes, two_classes[::-1])


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_Codes = dict[int, Ints]  # by column: the code of each sensitive value


@dataclass(frozen=True)
class _Condition:
    """A condition of a rule: which positions of an axis meet it, or, where there is no axis, which sensitive values."""

    axis: int | None
    mask: Bools

    @cached_property
    def before(self) -> Ints:
        """How many positions before each one meet it."""
        return np.concatenate([[0], np.cumsum(self.mask)])

    def decide_boxes(self, low: Ints, high: Ints) -> tuple[Bools, Bools]:
        """Return where all of a box meets it and where nothing does: (n, 1) each, or (1, values)."""
        if self.axis is None:
            return self.mask[None], ~self.mask[None]
        first, last = low[:, self.axis], high[:, self.axis]
        meeting = self.before[last + 1] - self.before[first]
        return (meeting == last - first + 1)[:, None], (meeting == 0)[:, None]


@dataclass(frozen=True)
class CheckedRegion:
    """The axes of a certificate with the codes at their positions, the sensitive values, and the rules."""

    domain: TableDomain
    axes: tuple[AxisCodes, ...]
    columns: tuple[int, ...]  # of the domain, one for each axis
    sensitive: tuple[int, ...]  # of the domain
    position_of_code: tuple[Ints, ...]  # per axis: where each code stands, -1 outside the region
    values: Ints  # (values, sensitive columns) all combinations of sensitive codes
    in_region: Bools  # (values,) whose records are counted; all are twins
    rules: tuple[tuple[list[_Condition], list[_Condition]], ...]

    @cached_property
    def counts(self) -> tuple[Ints, ...]:
        """How many codes stand at each position."""
        return tuple(
            np.bincount(position_of_code[position_of_code >= 0], minlength=len(axis))
            for position_of_code, axis in zip(self.position_of_code, self.axes, strict=True)
        )

    @cached_property
    def exact(self) -> type:
        """The type of numbers in which records are counted without overflow."""
        record_count = math.prod(int(count.sum()) for count in self.counts) * len(self.values)
        return np.int64 if record_count < 2**62 else object

    @cached_property
    def _before(self) -> tuple[Ints, ...]:
        return tuple(np.concatenate([[0], np.cumsum(count)]) for count in self.counts)

    def count_combinations(self, low: Ints, high: Ints) -> Any:
        """Return how many combinations of codes each box has, exactly: (n,)."""
        total: Any = np.ones(len(low), dtype=self.exact)
        for axis, before in enumerate(self._before):
            total = total * (before[high[:, axis] + 1] - before[low[:, axis]]).astype(self.exact)
        return total

    def find_valid(self, low: Ints, high: Ints) -> tuple[Bools, Ints]:
        """Return which sensitive values records of each box may have, (n, values), and an axis to be cut: (n,).

        The axis is -1 where the values are the same for all records of the box.
        """
        n, k = len(low), len(self.values)
        forbidden, unsure, axis = np.zeros((n, k), bool), np.zeros((n, k), bool), np.full(n, -1)
        for when, then in self.rules:
            applies, never_applies = _combine_conditions(when, low, high, (n, k))
            never_obeyed = np.zeros((n, k), bool), np.ones((n, k), bool)
            obeyed, broken = _combine_conditions(then, low, high, (n, k)) if then else never_obeyed
            forbidden |= applies & broken
            rule_unsure = ~(never_applies | obeyed | (applies & broken))
            unsure |= rule_unsure
            for condition in (*when, *then):
                if condition.axis is not None:
                    all_meet, none_meet = condition.decide_boxes(low, high)
                    axis[rule_unsure.any(1) & ~(all_meet | none_meet)[:, 0]] = condition.axis
        axis[~(unsure & ~forbidden).any(1)] = -1
        return ~forbidden, axis

    def cover_once(self, low: Ints, high: Ints) -> bool:
        """Return whether boxes cover all combinations of positions, each exactly once.

        Every position gets a random number. The sum over boxes of the products of their positions' sums is then the
        product of all positions' sums, if each combination is covered once; else it is not, but for a tiny chance.
        """
        for _ in range(COVER_REPEATS):
            total, covered = 1, 0
            before = []
            for axis in self.axes:
                random_numbers = np.random.default_rng(secrets.randbits(128)).integers(0, COVER_PRIME, len(axis))
                before.append(np.concatenate([[0], np.cumsum(random_numbers)]))  # at most 2^24 positions of 2^31
                total = total * int(before[-1][-1] % COVER_PRIME) % COVER_PRIME
            for start in range(0, len(low), BOXES_PER_BATCH):
                product = np.ones(len(low[start : start + BOXES_PER_BATCH]), dtype=np.int64)
                for number, sums in enumerate(before):
                    first, last = (end[start : start + BOXES_PER_BATCH, number] for end in (low, high))
                    product = product * ((sums[last + 1] - sums[first]) % COVER_PRIME) % COVER_PRIME
                covered += int(product.sum())
            if covered % COVER_PRIME != total:
                return False
        return True

    def draw_points(self, low: Ints, high: Ints, draw: np.random.Generator) -> Ints:
        """Return one point of each box, drawn so that all its combinations of codes are equally likely: (n, axes)."""
        points = np.empty_like(low)
        for axis, before in enumerate(self._before):
            code = draw.integers(before[low[:, axis]], before[high[:, axis] + 1])
            points[:, axis] = np.searchsorted(before, code, side="right") - 1
        return points

    def make_rows(self, points: Ints, draw: np.random.Generator) -> Ints:
        """Return records at positions, with every sensitive value, as rows of codes: (n, values, attributes)."""
        rows = np.zeros((len(points), len(self.values), len(self.domain.attributes)), dtype=np.int64)
        rows[..., self.sensitive] = self.values
        for axis, (column, position_of_code) in enumerate(zip(self.columns, self.position_of_code, strict=True)):
            codes = np.argsort(position_of_code, kind="stable")[np.count_nonzero(position_of_code < 0) :]
            first = np.cumsum(self.counts[axis]) - self.counts[axis]
            positions = points[:, axis]
            rows[..., column] = codes[first[positions] + draw.integers(0, self.counts[axis][positions])][:, None]
        return rows

    def describe_box(self, low: Ints, high: Ints) -> str:
        """Return a box in words: the attributes of which it does not hold everything."""
        parts = []
        for axis, column, first, last in zip(self.axes, self.columns, low.tolist(), high.tolist(), strict=True):
            if last - first + 1 == len(axis):
                continue
            attribute = self.domain.attributes[column]
            if axis.linear:
                code = axis.runs[0][0][0]
                ends = [attribute.value(code + position) for position in (first, last)]
                parts.append(f"{attribute.name} {ends[0]}" + (f" to {ends[1]}" if first < last else ""))
                continue
            runs = [run for position in axis.runs[first : last + 1] for run in position]
            names = [str(attribute.value(a)) + (f" to {attribute.value(b)}" if a < b else "") for a, b in runs[:4]]
            parts.append(f"{attribute.name} {' or '.join(names)}{' or …' if len(runs) > 4 else ''}")
        return ", ".join(parts) or "everybody"


def _combine_conditions(
    conditions: Sequence[_Condition], low: Ints, high: Ints, shape: tuple[int, int]
) -> tuple[Bools, Bools]:
    """Return where all records meet all conditions, and where none meets some of them: (n, values) each."""
    all_meet, none_meet = np.ones(shape, bool), np.zeros(shape, bool)
    for condition in conditions:
        all_of_box, none_of_box = condition.decide_boxes(low, high)
        all_meet &= all_of_box
        none_meet |= none_of_box
    return all_meet, none_meet


def build_checked_region(certificate: Certificate) -> CheckedRegion:
    """Return the region of a certificate; axes that are not those of its domain and region are refused."""
    domain = certificate.domain
    for attribute in domain.attributes:
        if attribute.size > MAX_VALUES:
            raise CertificateError(
                f"'{attribute.name}' has {attribute.size:,} values; {MAX_VALUES:,} at most can be checked"
            )
    check_size(sum(attribute.size for attribute in domain.attributes), "the values of its attributes", times=64)
    allowed = find_region_codes(domain, certificate.where)
    names = [axis.column for axis in certificate.axes]
    expected = [name for name in domain.names if name not in domain.sensitive]
    if sorted(names) != sorted(expected):
        raise CertificateError(f"its axes are {', '.join(names)}, and must be {', '.join(expected)}, each once")
    if sum(1 if axis.linear else len(axis) for axis in certificate.axes) > MAX_POSITIONS:
        raise CertificateError(
            f"its axes have more than {MAX_POSITIONS:,} positions that are no numbers, too many to be checked"
        )
    columns = tuple(domain.names.index(name) for name in names)
    sensitive = tuple(domain.names.index(name) for name in domain.sensitive)
    axes = zip(certificate.axes, columns, strict=True)
    positions = tuple(_find_positions(axis, allowed[column]) for axis, column in axes)
    if domain.has_bands:
        raise CertificateError("a sensitive attribute is in bands, about which nothing can be certified")
    values = _list_combinations([domain.attributes[column].size for column in sensitive])
    is_counted = np.ones(len(values), bool)
    for j, column in enumerate(sensitive):
        is_counted &= allowed[column][values[:, j]]
    codes = {column: values[:, j] for j, column in enumerate(sensitive)}
    rules = []
    for rule in domain.rules:
        parts = find_rule_masks(domain, rule)
        when, then = ([_build_condition(domain, columns, positions, codes, c, m) for c, m in part] for part in parts)
        rules.append((when, then))
    return CheckedRegion(domain, certificate.axes, columns, sensitive, positions, values, is_counted, tuple(rules))


def _find_positions(axis: AxisCodes, allowed: Bools) -> Ints:
    """Return the position of each code, -1 outside the region; positions that hold other codes are refused."""
    position_of_code = np.full(len(allowed), -1)
    if axis.linear:
        first, last = axis.runs[0][0]
        position_of_code[first : last + 1] = np.arange(len(axis))
    else:
        for number, runs in enumerate(axis.runs):
            for first, last in runs:
                position_of_code[first : last + 1] = number
    if not np.array_equal(position_of_code >= 0, allowed):
        raise CertificateError(f"the positions of '{axis.column}' do not hold just the values of the region")
    return position_of_code


def _list_combinations(sizes: Sequence[int]) -> Ints:
    """Return all combinations of sensitive codes: (values, columns)."""
    count = math.prod(sizes)
    if count > MAX_COMBINATIONS:
        raise CertificateError(
            f"it has {count:,} combinations of sensitive values; {MAX_COMBINATIONS:,} at most are checked"
        )
    return np.stack([part.ravel() for part in np.indices(sizes)], 1)


def _build_condition(
    domain: TableDomain, columns: Sequence[int], positions: Sequence[Ints], codes: _Codes, column: int, mask: Bools
) -> _Condition:
    """Return a condition on an axis, or on a sensitive attribute, whose value's codes are in `codes` by column."""
    if column in codes:
        return _Condition(None, mask[codes[column]])
    axis = columns.index(column)
    position_of_code = positions[axis]
    in_region = position_of_code >= 0
    total = np.bincount(position_of_code[in_region])
    meeting = np.bincount(position_of_code[in_region & mask], minlength=len(total))
    if not ((meeting == 0) | (meeting == total)).all():
        raise CertificateError(f"a position of '{domain.attributes[column].name}' holds values that a rule tells apart")
    return _Condition(axis, meeting > 0)


WAVES = 256  # M
NUMBERS_PER_PASS = 1 << 19
WAVE_ROUNDING = 1e-8  # more than what rounding can do to a sum of waves, for each axis
PERIOD_MARGIN = 0.01  # of a period, by which its end lies beyond all sums: there a wave jumps, too
FULL_TURN_LIMIT = 1e-3  # of codes · sin a: below this it is a whole turn
MIN_COUNTED_SHARE = 0.005  # a share that is likely smaller is not counted


@dataclass(frozen=True)
class FeatureLayout:
    """Which features belong to which axis."""

    region: CheckedRegion

    @cached_property
    def linear(self) -> Ints:
        """The axes that are linear."""
        return np.array([i for i, axis in enumerate(self.region.axes) if axis.linear], dtype=np.int64)

    @cached_property
    def starts(self) -> Ints:
        """The first feature of each axis, and the number of all."""
        widths = [1 if axis.linear else len(axis) for axis in self.region.axes]
        return np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)

    @property
    def features(self) -> int:
        """How many numbers a line has, but for its constant."""
        return int(self.starts[-1])

    def tables(self) -> Iterator[tuple[int, slice]]:
        """Yield the axes that are not linear, and their features."""
        for number, axis in enumerate(self.region.axes):
            if not axis.linear:
                yield number, slice(int(self.starts[number]), int(self.starts[number + 1]))

    def mark_outside(self, low: Ints, high: Ints, axis: int) -> Bools:
        """Return which positions of an axis do not lie in each box: (n, positions)."""
        positions = np.arange(len(self.region.axes[axis]))
        return (positions < low[:, axis, None]) | (positions > high[:, axis, None])

    def find_minimum(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return the least value of lines (n, lines, features), rounded down: (n, lines)."""
        steep = slopes[..., self.starts[self.linear]]
        first, last = (end[:, None, self.linear].astype(np.float64) for end in (low, high))
        terms = np.where(steep > 0, steep * first, steep * last)
        result, size = terms.sum(-1), np.abs(terms).sum(-1)
        for axis, features in self.tables():
            lowest = np.where(self.mark_outside(low, high, axis)[:, None], np.inf, slopes[..., features]).min(-1)
            result, size = result + lowest, size + np.abs(lowest)
        return np.asarray(result - EPS * (len(self.region.axes) + 4) * size)

    def mean(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return about the mean of lines (n, lines, features) over each box: (n, lines)."""
        result = (slopes[..., self.starts[self.linear]] * ((low + high) / 2)[:, None, self.linear]).sum(-1)
        for axis, features in self.tables():
            share = self._find_shares(low, high, axis)
            result = result + (slopes[..., features] * share[:, None]).sum(-1)
        return np.asarray(result)

    def find_ranges(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return how far each axis moves lines (n, lines, features) within a box: (n, lines, axes)."""
        ranges = np.zeros((*slopes.shape[:2], len(self.region.axes)))
        steep = slopes[..., self.starts[self.linear]]
        ranges[..., self.linear] = np.abs(steep) * (high - low)[:, None, self.linear]
        for axis, features in self.tables():
            outside, table = self.mark_outside(low, high, axis)[:, None], slopes[..., features]
            ranges[..., axis] = np.where(outside, -np.inf, table).max(-1) - np.where(outside, np.inf, table).min(-1)
        return ranges

    def _find_shares(self, low: Ints, high: Ints, axis: int) -> Floats:
        weight = np.where(self.mark_outside(low, high, axis), 0, self.region.counts[axis])
        return np.asarray(weight / weight.sum(-1, keepdims=True))

    def estimate_share(self, low: Ints, high: Ints, slopes: Floats, at: Floats) -> Floats:
        """Return about the share of each box where lines (n, lines, features) are above 0: (n, lines)."""
        return np.asarray(ndtr((self.mean(low, high, slopes) + at) / self.estimate_deviation(low, high, slopes)))

    def estimate_deviation(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return about the standard deviation of lines (n, lines, features) over each box: (n, lines)."""
        return np.asarray(np.sqrt((self.find_ranges(low, high, slopes) ** 2 / 12).sum(-1) + 1e-300))

    def bound_share(self, low: Ints, high: Ints, slopes: Floats, at: Floats, waves: int = WAVES) -> Floats:
        """Return at least the share of each box's combinations of codes where lines (n, features) are above 0: (n,).

        It is 1 only where the whole box lies above, and 0 where counting is not worth it.
        """
        result = np.zeros(len(low))
        lowest = at + self.find_minimum(low, high, slopes[:, None])[:, 0]
        lowest -= EPS * 4 * (np.abs(at) + np.abs(lowest))
        reach = self.find_ranges(low, high, slopes[:, None])[:, 0]
        result[lowest > 0] = 1.0
        crossed = np.flatnonzero((lowest <= 0) & (lowest + reach.sum(1) > 0))
        likely = self.estimate_share(low[crossed], high[crossed], slopes[crossed, None], at[crossed, None])[:, 0]
        crossed = crossed[likely > MIN_COUNTED_SHARE]
        step = max(1, NUMBERS_PER_PASS // (waves * max(1, len(self.linear))))
        for start in range(0, len(crossed), step):
            part = crossed[start : start + step]
            result[part] = self._sum_waves(low[part], high[part], slopes[part], -lowest[part], reach[part], waves)
        return result

    def _sum_waves(self, low: Ints, high: Ints, slopes: Floats, need: Floats, reach: Floats, waves: int) -> Floats:
        """Return at least the share where terms that are at least 0 exceed `need`, which is at least 0."""
        highest = reach.sum(1)
        need = need + 8 * EPS * (len(self.region.axes) + 4) * (need + highest)
        codes = (high - low + 1.0)[:, self.linear]
        steep = np.where(codes > 1, np.abs(slopes[:, self.starts[self.linear]]), 0.0)
        period = np.maximum(np.maximum(need, highest - need), 1e-280) * (1 + PERIOD_MARGIN)
        # A wave of an axis with the terms 0, s, 2s, … is sin(codes · a) / (codes · sin a), a = π s k / period.
        flat = steep == 0
        codes = np.where(flat, 1.0, codes)
        angle = np.where(flat, 1.0, math.pi * steep / period[:, None])  # of one code it is 1 whatever the angle
        below = codes[..., None] * _compute_sines(angle, waves)
        above = _compute_sines(angle * codes, waves)
        # Whole turns, where a series is exact and the quotient is not.
        at_turns = np.nonzero(np.abs(below) < FULL_TURN_LIMIT)
        turns = (angle[at_turns[:2]] * (at_turns[2] + 1), codes[at_turns[:2]], below[at_turns])
        below[at_turns] = 1.0
        above /= below
        above[at_turns] = np.sign(np.cos(turns[0]) * np.cos(turns[0] * turns[1])) * (
            1 - turns[2] ** 2 * (1 - turns[1] ** -2.0) / 6
        )
        wave = above.prod(1)
        middle = (steep * (codes - 1)).sum(1) / 2 - need
        turned = wave * _compute_powers(2 * math.pi * middle / period, waves)
        mean = middle
        for axis, features in self.tables():
            outside = self.mark_outside(low, high, axis)
            table = np.where(outside, np.inf, slopes[:, features])
            term = np.where(outside, 0, table - table.min(1, keepdims=True))
            share = self._find_shares(low, high, axis)
            angle, step = 2 * math.pi * term / period[:, None], max(1, NUMBERS_PER_PASS // (waves * len(low)))
            parts = (slice(i, i + step) for i in range(0, term.shape[1], step))
            turned *= sum((share[:, part, None] * _compute_powers(angle[:, part], waves)).sum(1) for part in parts)
            mean = mean + (share * term).sum(1)
        sines, cosines = _compute_wave_weights(waves)
        rounding = WAVE_ROUNDING * (len(self.region.axes) + 10)
        bound = mean / period + 0.5 + turned.imag @ sines - turned.real @ cosines - 0.5 / waves - rounding
        bound[~np.isfinite(bound)] = 0.0
        return np.asarray(np.clip(bound, 0, 1 - rounding))


def _compute_wave_weights(waves: int) -> tuple[Floats, Floats]:
    """Return the coefficients of the sines and cosines of the waves k = 1, …, M - 1."""
    k = np.arange(1, waves)
    part = k / waves
    vaaler = (math.pi * part * (1 - part) / np.tan(math.pi * part) + part) / (math.pi * k)
    return vaaler, (1 - part) / waves


def _compute_sines(angle: Floats, waves: int) -> Floats:
    """Return sin(k angle) for k = 1, …, M - 1: (…, M - 1)."""
    side = math.isqrt(waves - 1) + 1
    near, far = (angle[..., None] * np.arange(*ends) for ends in ((side,), (0, waves, side)))
    sines = np.sin(far)[..., :, None] * np.cos(near)[..., None, :]
    sines += np.cos(far)[..., :, None] * np.sin(near)[..., None, :]
    return np.asarray(sines.reshape(*angle.shape, far.shape[-1] * side)[..., 1:waves])


def _compute_powers(angle: Floats, waves: int) -> npt.NDArray[np.complex128]:
    """Return exp(i k angle) for k = 1, …, M - 1: (…, M - 1)."""
    side = math.isqrt(waves - 1) + 1
    near = np.exp(1j * angle[..., None] * np.arange(side))
    far = np.exp(1j * angle[..., None] * np.arange(0, waves, side))
    powers = far[..., :, None] * near[..., None, :]
    return np.asarray(powers.reshape(*angle.shape, powers.shape[-2] * side)[..., 1:waves])
