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

from neuronfair.certify.certificate import Certificate, CertificateError, Places
from neuronfair.certify.where import allowed_codes
from neuronfair.domain.rules import RuleBook
from neuronfair.domain.table import TableDomain

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MOST_VALUES = 10_000_000  # of one attribute
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
    axes: tuple[Places, ...]
    columns: tuple[int, ...]  # of the domain, one for each axis
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
    allowed = [marks.numpy() for marks in allowed_codes(domain, certificate.where)]
    names = [axis.column for axis in certificate.axes]
    free = [name for name in domain.names if name not in domain.sensitive]
    if sorted(names) != sorted(free):
        raise CertificateError(f"its axes are {', '.join(names)}, and must be {', '.join(free)}, each once")
    columns = tuple(domain.column(name) for name in names)
    places = []
    for axis, column in zip(certificate.axes, columns, strict=True):
        size = domain.attributes[column].size
        if size > MOST_VALUES:
            raise CertificateError(f"'{axis.column}' has {size:,} values; {MOST_VALUES:,} at most can be checked")
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
    values = domain.sensitive_values.cpu().numpy()
    counted = np.ones(len(values), bool)
    for j, column in enumerate(domain.sensitive_columns):
        counted &= allowed[column][values[:, j]]
    rules = []
    for parts in RuleBook(domain.attributes, domain.rules).conditions:
        when, then = ([_condition(domain, columns, places, values, c, m.numpy()) for c, m in part] for part in parts)
        rules.append((when, then))
    return Ground(domain, certificate.axes, columns, tuple(places), values, counted, tuple(rules))


def _condition(
    domain: TableDomain, columns: Sequence[int], places: Sequence[Ints], values: Ints, column: int, met: Bools
) -> _Condition:
    if column not in columns:
        return _Condition(None, met[values[:, domain.sensitive_columns.index(column)]])
    axis = columns.index(column)
    place = places[axis]
    inside = place >= 0
    total = np.bincount(place[inside])
    mine = np.bincount(place[inside & met], minlength=len(total))
    if not ((mine == 0) | (mine == total)).all():
        raise CertificateError(f"a place of '{domain.attributes[column].name}' holds values that a rule tells apart")
    return _Condition(axis, mine > 0)
