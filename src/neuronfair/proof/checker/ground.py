"""What a certificate speaks of, as its checker sees it: places, people, and whether boxes cover everything once."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from neuronfair.domain.table import TableDomain
from neuronfair.limits import check_size
from neuronfair.proof.certificate import AxisCodes, Certificate, CertificateError
from neuronfair.proof.checker.conditions import Bools, region, rule_tables

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_VALUES = 10_000_000  # of one attribute
MOST_COMBINATIONS = 4096  # of sensitive values
MOST_PLACES = 1 << 20  # of all axes that are not linear
PRIME = 2**31 - 1  # products of two numbers below it fit into 64 bits
REPEATS = 3  # the chance that a wrong cover passes is below (axes / PRIME) to this power
ROWS = 1 << 14  # boxes that are looked at together


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
class Ground:
    """The axes of a certificate with the codes at their places, the sensitive values, and the rules."""

    domain: TableDomain
    axes: tuple[AxisCodes, ...]
    columns: tuple[int, ...]  # of the domain, one for each axis
    sensitive: tuple[int, ...]  # of the domain
    place_of: tuple[Ints, ...]  # per axis: where each code stands, -1 outside the region
    values: Ints  # (values, sensitive columns) all combinations of sensitive codes
    counted: Bools  # (values,) whose people are counted; all are twins
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
        """The type of numbers in which people are counted without overflow."""
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
        """Return which sensitive values people of each box may have, (n, values), and an axis to be cut: (n,).

        The axis is -1 where the values are the same for all people of the box.
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
            for start in range(0, len(low), ROWS):
                product = np.ones(len(low[start : start + ROWS]), dtype=np.int64)
                for number, sums in enumerate(before):
                    first, last = (end[start : start + ROWS, number] for end in (low, high))
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
        """Return people at places, with every sensitive value, as rows of codes: (n, values, attributes)."""
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
    """Return where everybody meets all conditions, and where nobody meets some of them: (n, values) each."""
    met, unmet = np.ones(shape, bool), np.zeros(shape, bool)
    for condition in conditions:
        whole, none = condition.over(low, high)
        met &= whole
        unmet |= none
    return met, unmet


def ground_of(certificate: Certificate) -> Ground:
    """Return what a certificate speaks of; axes that are not those of its domain and region are refused."""
    domain = certificate.domain
    for attribute in domain.attributes:
        if attribute.size > MOST_VALUES:
            raise CertificateError(
                f"'{attribute.name}' has {attribute.size:,} values; {MOST_VALUES:,} at most can be checked"
            )
    check_size(sum(attribute.size for attribute in domain.attributes), "the values of its attributes", times=64)
    allowed = region(domain, certificate.where)
    names = [axis.column for axis in certificate.axes]
    free = [name for name in domain.names if name not in domain.sensitive]
    if sorted(names) != sorted(free):
        raise CertificateError(f"its axes are {', '.join(names)}, and must be {', '.join(free)}, each once")
    if sum(1 if axis.linear else len(axis) for axis in certificate.axes) > MOST_PLACES:
        raise CertificateError(
            f"its axes have more than {MOST_PLACES:,} places that are no numbers, too many to be checked"
        )
    columns = tuple(domain.names.index(name) for name in names)
    sensitive = tuple(domain.names.index(name) for name in domain.sensitive)
    places = []
    for axis, column in zip(certificate.axes, columns, strict=True):
        size = domain.attributes[column].size
        place = np.full(size, -1)
        if axis.linear:
            first, last = axis.runs[0][0]
            place[first : last + 1] = np.arange(len(axis))
        else:
            for number, runs in enumerate(axis.runs):
                for first, last in runs:
                    place[first : last + 1] = number
        if not np.array_equal(place >= 0, allowed[column]):
            raise CertificateError(f"the places of '{axis.column}' do not hold just the values of the region")
        places.append(place)
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
    return Ground(domain, certificate.axes, columns, sensitive, tuple(places), values, counted, tuple(rules))


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
