"""The region of a certificate, as its checker reads it: places, records, cover, and lines over boxes.

A line is a number for every feature and a constant. A linear axis has one feature, what one place more adds; another
axis has one for each place.

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
ON_GRID = 1e-6  # of a step: so far from its place a number may be written
EPS = float(np.finfo(np.float64).eps)
END_ERROR = 16 * EPS  # of a probability: by how much the rounding of softmax or sigmoid may change it
MAX_VALUES = 10_000_000  # of one attribute
MOST_COMBINATIONS = 4096  # of sensitive values
MAX_POSITIONS = 1 << 20  # of all axes that are not linear
PRIME = 2**31 - 1  # products of two numbers below it fit into 64 bits
REPEATS = 3  # the chance that a wrong cover passes is below (axes / PRIME) to this power
BOXES_PER_BATCH = 1 << 14
MAX_CONDITION_LENGTH = 20_000  # letters


def codes_meeting(domain: TableDomain, text: str) -> list[Bools]:
    """Return which codes of each attribute meet the conditions of a region: (size,) each."""
    allowed = [np.ones(attribute.size, bool) for attribute in domain.attributes]
    if len(text) > MAX_CONDITION_LENGTH:
        raise CertificateError(f"its region has {len(text):,} letters; {MAX_CONDITION_LENGTH:,} at most are read")
    try:
        for name, condition in read_conditions(domain, text):
            column = domain.names.index(name) if name in domain.names else None
            if column is None:
                raise CertificateError(f"there is no attribute '{name}'")
            allowed[column] &= _meeting(domain.attributes[column], condition)
    except NeuronFairError as error:
        raise CertificateError(f"its region '{text}' cannot be read: {error}") from None
    return allowed


def _code(attribute: Attribute, value: str | float, known: Mapping[str, int]) -> int:
    """Return the one code that a label or a number stands for; an unknown label stands for another, if there is one."""
    text = value.strip() if isinstance(value, str) else repr(value)
    if attribute.values:
        named = (text, str(int(value))) if isinstance(value, float) and value.is_integer() else (value, text)
        for label in (*named, attribute.other):
            if label in known:
                return known[str(label)]
        raise CertificateError(f"'{text}' is no value of '{attribute.name}'")
    if text == MISSING and attribute.empty is not None:
        return attribute.empty
    number = attribute.number(text) if isinstance(value, str) else float(value)
    if number is None or not math.isfinite(number):
        raise CertificateError(f"'{text}' is no number that '{attribute.name}' could be")
    place = (number - attribute.low) / attribute.step
    if not -0.5 <= place < attribute.grid_size:
        raise CertificateError(f"'{text}' lies outside '{attribute.name}'")
    code = round(place)
    if not 0 <= code < attribute.grid_size or (attribute.kind != "continuous" and abs(place - code) > ON_GRID):
        raise CertificateError(f"'{text}' is no value of '{attribute.name}'")
    return code


def rule_tables(domain: TableDomain, rule: Rule) -> tuple[list[tuple[int, Bools]], list[tuple[int, Bools]]]:
    """Return the conditions of a rule, of `when` and of `then`: the column, and which of its codes meet it."""
    if not rule.when:
        raise CertificateError(f"its rule '{rule.name}' has no condition")
    unknown = next((name for name in (*rule.when, *rule.then) if name not in domain.names), None)
    if unknown is not None:
        raise CertificateError(f"its rule '{rule.name}' names '{unknown}', which is no attribute")

    def tables(part: Mapping[str, RuleCondition]) -> list[tuple[int, Bools]]:
        columns = {domain.names.index(name): condition for name, condition in part.items()}
        return [(column, _meeting(domain.attributes[column], met)) for column, met in columns.items()]

    return tables(rule.when), tables(rule.then)


def _meeting(attribute: Attribute, condition: RuleCondition) -> Bools:
    met = np.zeros(attribute.size, bool)
    if isinstance(condition, Span):
        if attribute.values:
            raise CertificateError(f"a rule asks for numbers of '{attribute.name}', which has labels")
        numbers = float(attribute.low) + float(attribute.step) * np.arange(attribute.size, dtype=np.float64)
        near = VALUE_TOLERANCE * max(1.0, abs(attribute.low), abs(attribute.high))
        met = (numbers >= condition.low - near) & (numbers <= condition.high + near)
        met[attribute.grid_size :] = False
        return met
    known = {label: code for code, label in enumerate(attribute.values)}
    for value in condition:
        met[_code(attribute, value, known)] = True
    return met


@dataclass(frozen=True)
class Signed:
    """Margins with their sign: row r of `matrix` times the sums, plus `offset`. Each comes both ways.

    Class c is chosen where all rows `classes[c]` are positive. With a tolerance the rows are the score and its
    negative, and there are no classes.
    """

    matrix: Floats  # (rows, outputs)
    offset: Floats  # (rows,) less how far it may be off
    classes: tuple[tuple[int, ...], ...]
    against: tuple[tuple[int, ...], ...]  # the same rows the other way: one is positive for another class
    tolerance: float = math.nan
    squash: bool = False  # the score is a sigmoid of the sum

    def decided(self, least: Floats, valid: Bools) -> tuple[Bools, Bools]:
        """Return which records certainly do not flip and which do, by the least values of rows, (n, values, rows)."""
        off = ~valid
        if not self.classes:
            low, high = least[..., 0], -least[..., 1]
            slack = 8 * EPS * (np.where(off, 0, np.abs(low) + np.abs(high)).max(1) + abs(self.tolerance))
            top = np.where(off, -np.inf, high).max(1) - np.where(off, np.inf, low).min(1)
            gap = np.where(off, -np.inf, low).max(1) - np.where(off, np.inf, high).min(1)
            return top + slack <= self.tolerance, gap - slack > self.tolerance
        above = least > 0
        fair, flips = np.zeros(len(least), bool), np.zeros(len(least), bool)
        for rows, against in zip(self.classes, self.against, strict=True):
            sure, never = above[..., rows].all(-1), above[..., against].any(-1)
            fair |= (sure | off).all(1)
            flips |= (sure & valid).any(1) & (never & valid).any(1)
        return fair, flips


def signed(decision: Decision, outputs: int, end: str) -> Signed:
    """Return the margins of a decision, by the sums before a model's end."""
    decision.check(outputs)
    one = np.eye(outputs)
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
        return Signed(np.array([one[c] - one[j] for c, j in pairs]), np.full(len(pairs), -slack), classes, against)
    if end == "softmax" and outputs != 2:
        raise CertificateError("a score that is one of several probabilities cannot be checked")
    score = one[-1] - one[0] if end == "softmax" else one[-1]
    both = np.array([score, -score])
    if decision.kind == "tolerance":
        return Signed(both, np.zeros(2), (), (), decision.value, end != "none")
    either = ((1,), (0,))
    limit, slack = decision.value, 0.0
    if end != "none":
        if 0 < limit < 1e-300 or 1 - 1e-9 <= limit <= 1:
            raise CertificateError(f"a threshold of {limit:g} is so near 0 or 1 that rounding decides who reaches it")
        if not 0 < limit < 1:  # all records lie on one side; the sums do not matter
            sign = 1.0 if limit <= 0 else -1.0
            return Signed(0 * both, np.array([sign, -sign]), either, either[::-1])
        limit = math.log(decision.value) - math.log1p(-decision.value)
        slack = 8 * EPS * (abs(math.log(decision.value)) + abs(math.log1p(-decision.value)))
        slack += END_ERROR / (1 - decision.value)
    return Signed(both, np.array([-limit, limit]) - slack, either, either[::-1])


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Condition:
    """A condition of a rule: which places of an axis meet it, or, where there is no axis, which sensitive values."""

    axis: int | None
    met: Bools

    @cached_property
    def before(self) -> Ints:
        """How many places before each one meet it."""
        return np.concatenate([[0], np.cumsum(self.met)])

    def over(self, low: Ints, high: Ints) -> tuple[Bools, Bools]:
        """Return where all of a box meets it and where nothing does: (n, 1) each, or (1, values)."""
        if self.axis is None:
            return self.met[None], ~self.met[None]
        first, last = low[:, self.axis], high[:, self.axis]
        met = self.before[last + 1] - self.before[first]
        return (met == last - first + 1)[:, None], (met == 0)[:, None]


@dataclass(frozen=True)
class CheckedRegion:
    """The axes of a certificate with the codes at their places, the sensitive values, and the rules."""

    domain: TableDomain
    axes: tuple[AxisCodes, ...]
    columns: tuple[int, ...]  # of the domain, one for each axis
    sensitive: tuple[int, ...]  # of the domain
    place_of: tuple[Ints, ...]  # per axis: where each code stands, -1 outside the region
    values: Ints  # (values, sensitive columns) all combinations of sensitive codes
    counted: Bools  # (values,) whose records are counted; all are twins
    rules: tuple[tuple[list[_Condition], list[_Condition]], ...]

    @cached_property
    def counts(self) -> tuple[Ints, ...]:
        """How many codes stand at each place."""
        return tuple(
            np.bincount(place[place >= 0], minlength=len(axis))
            for place, axis in zip(self.place_of, self.axes, strict=True)
        )

    @cached_property
    def exact(self) -> type:
        """The type of numbers in which records are counted without overflow."""
        most = math.prod(int(count.sum()) for count in self.counts) * len(self.values)
        return np.int64 if most < 2**62 else object

    @cached_property
    def _before(self) -> tuple[Ints, ...]:
        return tuple(np.concatenate([[0], np.cumsum(count)]) for count in self.counts)

    def combinations(self, low: Ints, high: Ints) -> Any:
        """Return how many combinations of codes each box has, exactly: (n,)."""
        total: Any = np.ones(len(low), dtype=self.exact)
        for axis, before in enumerate(self._before):
            total = total * (before[high[:, axis] + 1] - before[low[:, axis]]).astype(self.exact)
        return total

    def valid(self, low: Ints, high: Ints) -> tuple[Bools, Ints]:
        """Return which sensitive values records of each box may have, (n, values), and an axis to be cut: (n,).

        The axis is -1 where the values are the same for all records of the box.
        """
        n, k = len(low), len(self.values)
        broken, unsure, axis = np.zeros((n, k), bool), np.zeros((n, k), bool), np.full(n, -1)
        for when, then in self.rules:
            met, unmet = _all(when, low, high, (n, k))
            kept, failed = _all(then, low, high, (n, k)) if then else (np.zeros((n, k), bool), np.ones((n, k), bool))
            broken |= met & failed
            open_ = ~(unmet | kept | (met & failed))
            unsure |= open_
            for condition in (*when, *then):
                if condition.axis is not None:
                    whole, none = condition.over(low, high)
                    axis[open_.any(1) & ~(whole | none)[:, 0]] = condition.axis
        axis[~(unsure & ~broken).any(1)] = -1
        return ~broken, axis

    def cover_once(self, low: Ints, high: Ints) -> bool:
        """Return whether boxes cover all combinations of places, each exactly once.

        Every place gets a random number. The sum over boxes of the products of their places' sums is then the product
        of all places' sums, if each combination is covered once; otherwise it is not, but for a chance of nearly 0.
        """
        for _ in range(REPEATS):
            total, found = 1, 0
            before = []
            for axis in self.axes:
                drawn = np.random.default_rng(secrets.randbits(128)).integers(0, PRIME, len(axis))
                before.append(np.concatenate([[0], np.cumsum(drawn)]))  # at most 2^24 places of 2^31
                total = total * int(before[-1][-1] % PRIME) % PRIME
            for start in range(0, len(low), BOXES_PER_BATCH):
                product = np.ones(len(low[start : start + BOXES_PER_BATCH]), dtype=np.int64)
                for number, sums in enumerate(before):
                    first, last = (end[start : start + BOXES_PER_BATCH, number] for end in (low, high))
                    product = product * ((sums[last + 1] - sums[first]) % PRIME) % PRIME
                found += int(product.sum())
            if found % PRIME != total:
                return False
        return True

    def drawn(self, low: Ints, high: Ints, draw: np.random.Generator) -> Ints:
        """Return one place of each box, drawn so that all its combinations of codes are equally likely: (n, axes)."""
        places = np.empty_like(low)
        for axis, before in enumerate(self._before):
            code = draw.integers(before[low[:, axis]], before[high[:, axis] + 1])
            places[:, axis] = np.searchsorted(before, code, side="right") - 1
        return places

    def rows(self, places: Ints, draw: np.random.Generator) -> Ints:
        """Return records at places, with every sensitive value, as rows of codes: (n, values, attributes)."""
        rows = np.zeros((len(places), len(self.values), len(self.domain.attributes)), dtype=np.int64)
        rows[..., self.sensitive] = self.values
        for axis, (column, place) in enumerate(zip(self.columns, self.place_of, strict=True)):
            codes = np.argsort(place, kind="stable")[np.count_nonzero(place < 0) :]
            first = np.cumsum(self.counts[axis]) - self.counts[axis]
            some = places[:, axis]
            rows[..., column] = codes[first[some] + draw.integers(0, self.counts[axis][some])][:, None]
        return rows

    def in_words(self, low: Ints, high: Ints) -> str:
        """Return a box in words: the attributes of which it does not hold everything."""
        parts = []
        for axis, column, first, last in zip(self.axes, self.columns, low.tolist(), high.tolist(), strict=True):
            if last - first + 1 == len(axis):
                continue
            attribute = self.domain.attributes[column]
            if axis.linear:
                code = axis.runs[0][0][0]
                ends = [attribute.value(code + place) for place in (first, last)]
                parts.append(f"{attribute.name} {ends[0]}" + (f" to {ends[1]}" if first < last else ""))
                continue
            runs = [run for place in axis.runs[first : last + 1] for run in place]
            names = [str(attribute.value(a)) + (f" to {attribute.value(b)}" if a < b else "") for a, b in runs[:4]]
            parts.append(f"{attribute.name} {' or '.join(names)}{' or …' if len(runs) > 4 else ''}")
        return ", ".join(parts) or "everybody"


def _all(conditions: Sequence[_Condition], low: Ints, high: Ints, shape: tuple[int, int]) -> tuple[Bools, Bools]:
    """Return where all records meet all conditions, and where none meets some of them: (n, values) each."""
    met, unmet = np.ones(shape, bool), np.zeros(shape, bool)
    for condition in conditions:
        whole, none = condition.over(low, high)
        met &= whole
        unmet |= none
    return met, unmet


def checked_region(certificate: Certificate) -> CheckedRegion:
    """Return the region of a certificate; axes that are not those of its domain and region are refused."""
    domain = certificate.domain
    for attribute in domain.attributes:
        if attribute.size > MAX_VALUES:
            raise CertificateError(
                f"'{attribute.name}' has {attribute.size:,} values; {MAX_VALUES:,} at most can be checked"
            )
    check_size(sum(attribute.size for attribute in domain.attributes), "the values of its attributes", times=64)
    allowed = codes_meeting(domain, certificate.where)
    names = [axis.column for axis in certificate.axes]
    free = [name for name in domain.names if name not in domain.sensitive]
    if sorted(names) != sorted(free):
        raise CertificateError(f"its axes are {', '.join(names)}, and must be {', '.join(free)}, each once")
    if sum(1 if axis.linear else len(axis) for axis in certificate.axes) > MAX_POSITIONS:
        raise CertificateError(
            f"its axes have more than {MAX_POSITIONS:,} places that are no numbers, too many to be checked"
        )
    columns = tuple(domain.names.index(name) for name in names)
    sensitive = tuple(domain.names.index(name) for name in domain.sensitive)
    axes = zip(certificate.axes, columns, strict=True)
    places = tuple(_places(axis, allowed[column]) for axis, column in axes)
    if domain.has_bands:
        raise CertificateError("a sensitive attribute is in bands, about which nothing can be certified")
    values = _combinations([domain.attributes[column].size for column in sensitive])
    counted = np.ones(len(values), bool)
    for j, column in enumerate(sensitive):
        counted &= allowed[column][values[:, j]]
    rules = []
    for rule in domain.rules:
        parts = rule_tables(domain, rule)
        when, then = (
            [
                _condition(domain, columns, places, values[:, sensitive.index(c)] if c in sensitive else None, c, m)
                for c, m in part
            ]
            for part in parts
        )
        rules.append((when, then))
    return CheckedRegion(domain, certificate.axes, columns, sensitive, places, values, counted, tuple(rules))


def _places(axis: AxisCodes, allowed: Bools) -> Ints:
    """Return the place of each code of an axis, -1 outside the region; places that hold other codes are refused."""
    place = np.full(len(allowed), -1)
    if axis.linear:
        first, last = axis.runs[0][0]
        place[first : last + 1] = np.arange(len(axis))
    else:
        for number, runs in enumerate(axis.runs):
            for first, last in runs:
                place[first : last + 1] = number
    if not np.array_equal(place >= 0, allowed):
        raise CertificateError(f"the places of '{axis.column}' do not hold just the values of the region")
    return place


def _combinations(sizes: Sequence[int]) -> Ints:
    """Return all combinations of sensitive codes: (values, columns)."""
    count = math.prod(sizes)
    if count > MOST_COMBINATIONS:
        raise CertificateError(
            f"it has {count:,} combinations of sensitive values; {MOST_COMBINATIONS:,} at most are checked"
        )
    return np.stack([part.ravel() for part in np.indices(sizes)], 1)


def _condition(
    domain: TableDomain, columns: Sequence[int], places: Sequence[Ints], values: Ints | None, column: int, met: Bools
) -> _Condition:
    """Return a condition on an axis, or on the sensitive codes `values` of its attribute."""
    if values is not None:
        return _Condition(None, met[values])
    axis = columns.index(column)
    place = places[axis]
    inside = place >= 0
    total = np.bincount(place[inside])
    mine = np.bincount(place[inside & met], minlength=len(total))
    if not ((mine == 0) | (mine == total)).all():
        raise CertificateError(f"a place of '{domain.attributes[column].name}' holds values that a rule tells apart")
    return _Condition(axis, mine > 0)


WAVES = 256  # M
NUMBERS_PER_PASS = 1 << 19
ROUNDING = 1e-8  # more than what rounding can do to a sum of waves, for each axis
APART = 0.01  # of a period, by which its end lies beyond all sums: there a wave jumps, too
STILL = 1e-3  # of codes · sin a: below this it is a whole turn
WORTH = 0.005  # a share that is likely smaller is not counted


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

    def outside(self, low: Ints, high: Ints, axis: int) -> Bools:
        """Return which places of an axis do not lie in each box: (n, places)."""
        places = np.arange(len(self.region.axes[axis]))
        return (places < low[:, axis, None]) | (places > high[:, axis, None])

    def least(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return the least value of lines (n, lines, features), rounded down: (n, lines)."""
        steep = slopes[..., self.starts[self.linear]]
        first, last = (end[:, None, self.linear].astype(np.float64) for end in (low, high))
        terms = np.where(steep > 0, steep * first, steep * last)
        result, size = terms.sum(-1), np.abs(terms).sum(-1)
        for axis, features in self.tables():
            own = np.where(self.outside(low, high, axis)[:, None], np.inf, slopes[..., features]).min(-1)
            result, size = result + own, size + np.abs(own)
        return np.asarray(result - EPS * (len(self.region.axes) + 4) * size)

    def mean(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return about the mean of lines (n, lines, features) over each box: (n, lines)."""
        result = (slopes[..., self.starts[self.linear]] * ((low + high) / 2)[:, None, self.linear]).sum(-1)
        for axis, features in self.tables():
            share = self._shares(low, high, axis)
            result = result + (slopes[..., features] * share[:, None]).sum(-1)
        return np.asarray(result)

    def reach(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return how far each axis moves lines (n, lines, features) within a box: (n, lines, axes)."""
        result = np.zeros((*slopes.shape[:2], len(self.region.axes)))
        steep = slopes[..., self.starts[self.linear]]
        result[..., self.linear] = np.abs(steep) * (high - low)[:, None, self.linear]
        for axis, features in self.tables():
            out, own = self.outside(low, high, axis)[:, None], slopes[..., features]
            result[..., axis] = np.where(out, -np.inf, own).max(-1) - np.where(out, np.inf, own).min(-1)
        return result

    def _shares(self, low: Ints, high: Ints, axis: int) -> Floats:
        weight = np.where(self.outside(low, high, axis), 0, self.region.counts[axis])
        return np.asarray(weight / weight.sum(-1, keepdims=True))

    def guess(self, low: Ints, high: Ints, slopes: Floats, at: Floats) -> Floats:
        """Return about the share of each box where lines (n, lines, features) are above 0: (n, lines)."""
        return np.asarray(ndtr((self.mean(low, high, slopes) + at) / self.spread(low, high, slopes)))

    def spread(self, low: Ints, high: Ints, slopes: Floats) -> Floats:
        """Return about the standard deviation of lines (n, lines, features) over each box: (n, lines)."""
        return np.asarray(np.sqrt((self.reach(low, high, slopes) ** 2 / 12).sum(-1) + 1e-300))

    def bound_share(self, low: Ints, high: Ints, slopes: Floats, at: Floats, waves: int = WAVES) -> Floats:
        """Return at least the share of each box's combinations of codes where lines (n, features) are above 0: (n,).

        It is 1 only where the whole box lies above, and 0 where counting is not worth it.
        """
        result = np.zeros(len(low))
        least = at + self.least(low, high, slopes[:, None])[:, 0]
        least -= EPS * 4 * (np.abs(at) + np.abs(least))
        reach = self.reach(low, high, slopes[:, None])[:, 0]
        result[least > 0] = 1.0
        crossed = np.flatnonzero((least <= 0) & (least + reach.sum(1) > 0))
        likely = self.guess(low[crossed], high[crossed], slopes[crossed, None], at[crossed, None])[:, 0]
        crossed = crossed[likely > WORTH]
        step = max(1, NUMBERS_PER_PASS // (waves * max(1, len(self.linear))))
        for start in range(0, len(crossed), step):
            some = crossed[start : start + step]
            result[some] = self._counted(low[some], high[some], slopes[some], -least[some], reach[some], waves)
        return result

    def _counted(self, low: Ints, high: Ints, slopes: Floats, need: Floats, reach: Floats, waves: int) -> Floats:
        """Return at least the share where terms that are at least 0 exceed `need`, which is at least 0."""
        most = reach.sum(1)
        need = need + 8 * EPS * (len(self.region.axes) + 4) * (need + most)
        codes = (high - low + 1.0)[:, self.linear]
        steep = np.where(codes > 1, np.abs(slopes[:, self.starts[self.linear]]), 0.0)
        period = np.maximum(np.maximum(need, most - need), 1e-280) * (1 + APART)
        # A wave of an axis with the terms 0, s, 2s, … is sin(codes · a) / (codes · sin a), a = π s k / period.
        flat = steep == 0
        codes = np.where(flat, 1.0, codes)
        angle = np.where(flat, 1.0, math.pi * steep / period[:, None])  # of one code it is 1 whatever the angle
        below = codes[..., None] * _sines(angle, waves)
        above = _sines(angle * codes, waves)
        still = np.nonzero(np.abs(below) < STILL)  # whole turns, where a series is exact and the quotient is not
        turns = (angle[still[:2]] * (still[2] + 1), codes[still[:2]], below[still])
        below[still] = 1.0
        above /= below
        above[still] = np.sign(np.cos(turns[0]) * np.cos(turns[0] * turns[1])) * (
            1 - turns[2] ** 2 * (1 - turns[1] ** -2.0) / 6
        )
        wave = above.prod(1)
        middle = (steep * (codes - 1)).sum(1) / 2 - need
        turned = wave * _powers(2 * math.pi * middle / period, waves)
        mean = middle
        for axis, features in self.tables():
            out = self.outside(low, high, axis)
            own = np.where(out, np.inf, slopes[:, features])
            term = np.where(out, 0, own - own.min(1, keepdims=True))
            share = self._shares(low, high, axis)
            angle, step = 2 * math.pi * term / period[:, None], max(1, NUMBERS_PER_PASS // (waves * len(low)))
            parts = (slice(i, i + step) for i in range(0, term.shape[1], step))
            turned *= sum((share[:, part, None] * _powers(angle[:, part], waves)).sum(1) for part in parts)
            mean = mean + (share * term).sum(1)
        sines, cosines = _weights(waves)
        rounding = ROUNDING * (len(self.region.axes) + 10)
        found = mean / period + 0.5 + turned.imag @ sines - turned.real @ cosines - 0.5 / waves - rounding
        found[~np.isfinite(found)] = 0.0
        return np.asarray(np.clip(found, 0, 1 - rounding))


def _weights(waves: int) -> tuple[Floats, Floats]:
    """Return the coefficients of the sines and cosines of the waves k = 1, …, M - 1."""
    k = np.arange(1, waves)
    part = k / waves
    vaaler = (math.pi * part * (1 - part) / np.tan(math.pi * part) + part) / (math.pi * k)
    return vaaler, (1 - part) / waves


def _sines(angle: Floats, waves: int) -> Floats:
    """Return sin(k angle) for k = 1, …, M - 1: (…, M - 1)."""
    side = math.isqrt(waves - 1) + 1
    near, far = (angle[..., None] * np.arange(*ends) for ends in ((side,), (0, waves, side)))
    whole = np.sin(far)[..., :, None] * np.cos(near)[..., None, :]
    whole += np.cos(far)[..., :, None] * np.sin(near)[..., None, :]
    return np.asarray(whole.reshape(*angle.shape, far.shape[-1] * side)[..., 1:waves])


def _powers(angle: Floats, waves: int) -> npt.NDArray[np.complex128]:
    """Return exp(i k angle) for k = 1, …, M - 1: (…, M - 1)."""
    side = math.isqrt(waves - 1) + 1
    near = np.exp(1j * angle[..., None] * np.arange(side))
    far = np.exp(1j * angle[..., None] * np.arange(0, waves, side))
    whole = far[..., :, None] * near[..., None, :]
    return np.asarray(whole.reshape(*angle.shape, whole.shape[-2] * side)[..., 1:waves])
