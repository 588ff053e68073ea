"""Whether what is claimed of boxes can be proved again: by own bounds, by cutting them, by asking everybody in them."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from neuronfair.proof.checker.conditions import Bools
from neuronfair.proof.checker.ground import Floats, Ints
from neuronfair.proof.checker.shares import Bounds, bounded

FEW = 64  # combinations of places up to which everybody is asked at once
SMALL = 4096  # and up to which everybody is asked before a box is cut
NUMBERS = 1 << 21  # that are computed together, in each thread
MOST_PARTS = 1 << 15  # into which a box is cut before its claim is refused
LEVELS = 80  # of cuts
DRAWN = 4  # cuts after which it is asked whether a claim can be true at all
CHOSEN, DRAWS = 16, 2048  # boxes of which that is asked, and people drawn from each
PIECES = 1 << 11  # boxes that are looked at together, at most
GROUP = 1 << 10  # boxes that are cut together, at most
TOGETHER = 1 << 17  # and their parts, unless it is one box
THREADS = min(4, os.cpu_count() or 1)  # each with pieces of its own; numpy computes in all of them at once


@dataclass(frozen=True)
class Parts:
    """Parts of boxes, and what was proved of them again."""

    low: Ints
    high: Ints
    box: Ints  # (n,) to which box each belongs
    people: Any  # (n,) exact whole numbers; 0 where a rule still cuts the part
    fair: Any
    discriminatory: Any
    axis: Ints  # (n,) which axis to cut next; -1: nothing is left to prove

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, chosen: Any) -> Parts:
        return Parts(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def __add__(self, other: Parts) -> Parts:
        both = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return Parts(*(np.concatenate(pair) for pair in both))


@dataclass(frozen=True)
class ClaimResult:
    """What was proved again of boxes: exact whole numbers of people (n,), and the first box whose claim was not."""

    people: Any
    fair: Any
    discriminatory: Any
    refused: int | None


def proved(bounds: Bounds, low: Ints, high: Ints, fair: Any, discriminatory: Any) -> ClaimResult:
    """Prove again what is claimed of boxes: so many people at least are decided alike, so many are not."""
    n = len(low)
    # Who claims more people than there can be is refused by one too many: the claim may be too large for a float.
    ground = bounds.frame.ground
    most = ground.combinations(low, high).astype(object) * len(ground.values) + 1
    claims = [np.minimum(np.asarray(claim, dtype=object), most) for claim in (fair, discriminatory)]
    parts = _looked_at(bounds, low, high, np.arange(n), claims, first=True)
    people, sums = parts.people.astype(object), [parts.fair.astype(object), parts.discriminatory.astype(object)]
    left = np.flatnonzero(_short(parts, claims, sums, n))
    waiting = [left[i : i + GROUP] for i in range(0, len(left), GROUP)][::-1]
    while waiting:
        some = waiting.pop()
        found = _cut(bounds, parts[some], [claim[some] for claim in claims])
        if found is None:  # too many parts together, which a single box is refused for before
            few = max(1, len(some) // 16)
            waiting += [some[i : i + few] for i in range(0, len(some), few)][::-1]
            continue
        people[some], sums[0][some], sums[1][some], failed = found
        if failed.any():
            return ClaimResult(people, sums[0], sums[1], int(some[failed.argmax()]))
    return ClaimResult(people, sums[0], sums[1], None)


def _short(parts: Parts, claims: list[Any], sums: list[Any], n: int) -> Bools:
    """Return of which boxes less is proved than is claimed, or which a rule still cuts: (n,)."""
    unsure = np.bincount(parts.box[((parts.people == 0) & (parts.axis >= 0)).astype(bool)], minlength=n) > 0
    return np.asarray(unsure | ((sums[0] < claims[0]) | (sums[1] < claims[1])).astype(bool))


def _cut(bounds: Bounds, parts: Parts, claims: list[Any]) -> tuple[Any, Any, Any, Bools] | None:
    """Cut boxes until what is claimed is proved: the people, both sums, and which failed; None if parts are too many.

    A box that is cut into too many parts has failed.
    """
    n = len(parts)
    parts = replace(parts, box=np.arange(n))
    for level in range(LEVELS + 1):
        sums = [_sums(parts.box, column, n) for column in (parts.fair, parts.discriminatory)]
        short = _short(parts, claims, sums, n)
        wanted = short[parts.box] & (parts.axis >= 0)
        crowded = bool((np.bincount(parts.box, minlength=n) > MOST_PARTS).any())
        if not wanted.any() or crowded or level == LEVELS:
            break
        if len(parts) > TOGETHER and n > 1:
            return None
        if level == DRAWN and (untrue := _untrue(bounds, parts, claims, short)).any():
            return _sums(parts.box, parts.people, n), *sums, untrue
        cut = _largest(parts, wanted, [claim - sum_ for claim, sum_ in zip(claims, sums, strict=True)])
        parts = parts[~cut] + _halves(bounds, parts[cut], claims)
    return _sums(parts.box, parts.people, n), sums[0], sums[1], short


def _untrue(bounds: Bounds, parts: Parts, claims: list[Any], short: Bools) -> Bools:
    """Return which of some boxes that are hard to prove claim what cannot be true, by people drawn from their parts.

    Of a box that claims everybody, one person who is decided otherwise says so. Otherwise it takes more people than
    chance allows once in 10¹² certificates (Hoeffding's inequality).
    """
    ground, draw = bounds.frame.ground, np.random.default_rng()
    untrue = np.zeros(len(short), bool)
    for number in np.flatnonzero(short)[:CHOSEN]:
        mine = parts[(parts.box == number) & (parts.people > 0).astype(bool)]
        people = mine.people.astype(object)
        if not len(mine) or (parts.people[parts.box == number] == 0).any():
            continue
        share = (people / sum(people)).astype(np.float64)
        part = draw.choice(len(mine), DRAWS, p=share / share.sum())
        places = ground.drawn(mine.low[part], mine.high[part], draw)
        valid, _ = ground.valid(places, places)
        alike, flips = bounds.rows.decided(bounds.points(places), valid)
        for claim, other in zip(claims, (flips, alike), strict=True):
            rest = 1 - float(claim[number] / sum(people))
            chance = math.sqrt(math.log(1e12) / (2 * DRAWS))
            untrue[number] |= bool(other.mean() > (rest + chance if claim[number] < sum(people) else 0))
    return untrue


def _largest(parts: Parts, wanted: Bools, missing: list[Any]) -> Bools:
    """Return which parts to cut: the largest that hold twice the open people that a claim misses, and their like."""
    left = (parts.people - parts.fair - parts.discriminatory).astype(np.float64)
    left[(parts.people == 0).astype(bool)] = np.inf  # a rule cuts them
    order = np.flatnonzero(wanted)
    order = order[np.lexsort((-left[order], parts.box[order]))]
    box, size = parts.box[order], np.where(np.isinf(left[order]), 0, left[order])
    before = np.cumsum(size) - size
    start = np.flatnonzero(np.diff(box, prepend=-1))
    before -= np.repeat(before[start], np.diff(np.append(start, len(box))))  # of the same box
    most = 2 * np.maximum(missing[0], missing[1]).astype(np.float64)[box]
    cut = np.zeros(len(parts), bool)
    first = np.repeat(size[start], np.diff(np.append(start, len(box))))  # the largest of the same box
    cut[order[(before <= most) | (size >= first / 4) | np.isinf(left[order])]] = True
    return cut


def _sums(box: Ints, numbers: Any, n: int) -> Any:
    total = np.zeros(n, dtype=object)
    np.add.at(total, box, numbers.astype(object))
    return total


def _halves(bounds: Bounds, parts: Parts, claims: list[Any]) -> Parts:
    rows = np.arange(len(parts))
    middle = (parts.low[rows, parts.axis] + parts.high[rows, parts.axis]) // 2
    below, above = parts.high.copy(), parts.low.copy()
    below[rows, parts.axis], above[rows, parts.axis] = middle, middle + 1
    low, high = np.concatenate([parts.low, above]), np.concatenate([below, parts.high])
    return _looked_at(bounds, low, high, np.tile(parts.box, 2), claims, first=False)


def _looked_at(bounds: Bounds, low: Ints, high: Ints, box: Ints, claims: list[Any], *, first: bool) -> Parts:
    step = max(1, min(PIECES, NUMBERS // bounds.numbers))

    def piece(p: slice) -> Parts:
        return _piece(bounds, low[p], high[p], box[p], [c[box[p]] for c in claims], first)

    with ThreadPoolExecutor(THREADS) as threads:
        parts = list(threads.map(piece, (slice(i, i + step) for i in range(0, len(low), step))))
    return Parts(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Parts)))


def _piece(bounds: Bounds, low: Ints, high: Ints, box: Ints, claims: list[Any], first: bool) -> Parts:
    """Return what can be proved of parts of boxes, of which whole ones (`first`) need no more than is claimed."""
    ground, n = bounds.frame.ground, len(low)
    valid, axis = ground.valid(low, high)
    whole = axis < 0
    twins = valid.sum(1)
    people = ground.combinations(low, high) * ((valid & ground.counted).sum(1) * whole).astype(ground.exact)
    fair: Any = np.zeros(n, dtype=ground.exact)
    flips: Any = np.zeros(n, dtype=ground.exact)
    alone = whole & (twins < 2)  # nobody has a twin
    fair[alone] = people[alone]
    open_ = np.flatnonzero(whole & ~alone & (people > 0).astype(bool) & (claims[0] + claims[1] > 0).astype(bool))
    alike = bounds.same(low[open_], high[open_], valid[open_])
    fair[open_[alike]] = people[open_[alike]]
    open_ = open_[~alike]
    count, few = (high[open_] - low[open_] + 1.0).prod(1), FEW if first else SMALL
    little = open_[count <= few]
    fair[little], flips[little] = _everybody(bounds, low[little], high[little], valid[little])
    open_ = open_[count > few]
    if len(open_):
        needed = [(claim[open_] > 0).astype(np.float64) for claim in claims]
        if first:
            needed = [(claim[open_] / people[open_]).astype(np.float64) for claim in claims]
        shares = bounded(bounds, low[open_], high[open_], valid[open_], needed)
        fair[open_], flips[open_] = (_part(share, people[open_]) for share in shares[:2])
        left = (shares[0] < 1) & (shares[1] < 1)
        axis[open_[left]] = shares[2][left]
    return Parts(low, high, box, people, fair, flips, axis)


def _part(share: Floats, people: Any) -> Any:
    """Return at most this share of whole numbers, exactly rounded down."""
    whole = (share * 2.0**52).astype(np.int64).astype(object)
    return (whole * people.astype(object) // 2**52).astype(people.dtype)


def _everybody(bounds: Bounds, low: Ints, high: Ints, valid: Bools) -> tuple[Any, Any]:
    """Ask everybody in small boxes: how many people are surely decided alike, and how many surely not."""
    ground = bounds.frame.ground
    sizes = high - low + 1
    ends = np.cumsum(sizes.prod(1))
    found: list[Any] = [np.zeros(len(low), dtype=ground.exact) for _ in range(2)]
    step = max(1, NUMBERS // (len(ground.values) * bounds.width))
    members = (valid & ground.counted).sum(1).astype(ground.exact)
    for start in range(0, int(ends[-1]) if len(ends) else 0, step):
        number = np.arange(start, min(start + step, ends[-1]))
        owner = np.searchsorted(ends, number, side="right")
        rest = number - np.where(owner > 0, ends[owner - 1], 0)
        places = np.empty((len(owner), low.shape[1]), dtype=np.int64)
        weight = members[owner]
        for axis in range(low.shape[1]):
            rest, place = np.divmod(rest, sizes[owner, axis])
            places[:, axis] = low[owner, axis] + place
            weight = weight * ground.counts[axis][places[:, axis]].astype(ground.exact)
        for total, who in zip(found, bounds.rows.decided(bounds.points(places), valid[owner]), strict=True):
            np.add.at(total, owner[who], weight[who])
    return found[0], found[1]
