"""Whether what is claimed of boxes can be proved again: by own bounds, by cutting them, by asking everybody in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from neuronfair.certify.check_decision import Signed
from neuronfair.certify.check_ground import Bools, Floats, Ground, Ints
from neuronfair.certify.check_lines import WORTH, Frame
from neuronfair.certify.check_network import Lines

FEW = 64  # combinations of places up to which everybody is asked at once
SMALL = 4096  # and up to which everybody is asked before a box is cut
POINTS = 1 << 17  # people, with all their twins, who are asked together
MOST_PARTS = 1 << 16  # into which a box is cut before its claim is refused
LEVELS = 80  # of cuts
BINS, FINE = 512, 2048  # of the grids on which shares are counted, at first and then
MOST_SINGLE = 16  # sensitive values up to which each gets lines of its own
STEEP = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
PIECES = 1 << 12  # boxes that are looked at together


class Bounds(Protocol):
    """A model over the places of a certificate."""

    frame: Frame
    rows: Signed

    def lines(self, low: Ints, high: Ints, joint: bool) -> Lines:
        """Return lines below the signed margins over boxes; joint ones have the same slopes for all values."""

    def same(self, low: Ints, high: Ints, valid: Bools) -> Bools:
        """Return where all valid sensitive values surely lead to the same numbers."""

    def points(self, places: Ints) -> Floats:
        """Return signed margins of people at places, rounded down: (n, values, rows)."""


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
class Found:
    """What was proved again of boxes: exact whole numbers of people (n,), and the first box whose claim was not."""

    people: Any
    fair: Any
    discriminatory: Any
    refused: int | None


def proved(bounds: Bounds, low: Ints, high: Ints, fair: Any, discriminatory: Any) -> Found:
    """Prove again what is claimed of boxes: so many people at least are decided alike, so many are not."""
    n = len(low)
    claims = [np.asarray(claim, dtype=object) for claim in (fair, discriminatory)]
    parts = _looked_at(bounds, low, high, np.arange(n), claims, first=True)
    for _ in range(LEVELS):
        sums = [_sums(parts.box, column, n) for column in (parts.fair, parts.discriminatory)]
        unsure = _sums(parts.box, (parts.people == 0) & (parts.axis >= 0), n) > 0  # a rule cuts them
        missing = ((sums[0] < claims[0]) | (sums[1] < claims[1])).astype(bool)
        wanted = (missing | unsure.astype(bool))[parts.box] & (parts.axis >= 0)
        crowded = np.bincount(parts.box, minlength=n) > MOST_PARTS
        if not wanted.any() or (crowded & missing).any():
            break
        cut = _largest(parts, wanted, [claim - sum_ for claim, sum_ in zip(claims, sums, strict=True)])
        parts = parts[~cut] + _halves(bounds, parts[cut], claims)
    people = _sums(parts.box, parts.people, n)
    failed = np.flatnonzero(missing | unsure.astype(bool))
    return Found(people, sums[0], sums[1], int(failed[0]) if len(failed) else None)


def _largest(parts: Parts, wanted: Bools, missing: list[Any]) -> Bools:
    """Return which parts to cut: the largest that together hold twice as many open people as a claim misses."""
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
    cut[order[(before <= most) | np.isinf(left[order])]] = True
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
    pieces = [slice(i, i + PIECES) for i in range(0, len(low), PIECES)]
    parts = [_piece(bounds, low[p], high[p], box[p], [c[box[p]] for c in claims], first) for p in pieces]
    return Parts(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Parts)))


def _piece(bounds: Bounds, low: Ints, high: Ints, box: Ints, claims: list[Any], first: bool) -> Parts:
    """Return what can be proved of parts of boxes, of which whole ones (`first`) need no more than is claimed."""
    ground, n = bounds.frame.ground, len(low)
    valid, axis = ground.valid(low, high)
    whole = axis < 0
    twins = valid.sum(1)
    people = ground.combinations(low, high) * ((valid & ground.counted).sum(1) * whole).astype(ground.exact)
    fair, flips = (np.zeros(n, dtype=ground.exact) for _ in range(2))
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
        shares = _bounded(bounds, low[open_], high[open_], valid[open_], needed)
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
    counts = sizes.prod(1)
    found = [np.zeros(len(low), dtype=ground.exact) for _ in range(2)]
    step = max(1, POINTS // (len(ground.values) * int(counts.max(initial=1))))
    members = (valid & ground.counted).sum(1).astype(ground.exact)
    for start in range(0, len(low), step):
        some = np.arange(start, min(start + step, len(low)))
        owner = some.repeat(counts[some])
        rest = np.arange(len(owner)) - np.repeat(np.cumsum(counts[some]) - counts[some], counts[some])
        places = np.empty((len(owner), low.shape[1]), dtype=np.int64)
        weight = members[owner]
        for axis in range(low.shape[1]):
            rest, place = np.divmod(rest, sizes[owner, axis])
            places[:, axis] = low[owner, axis] + place
            weight = weight * ground.counts[axis][places[:, axis]].astype(ground.exact)
        for total, who in zip(found, bounds.rows.decided(bounds.points(places), valid[owner]), strict=True):
            np.add.at(total, owner[who], weight[who])
    return found[0], found[1]


def _bounded(
    bounds: Bounds, low: Ints, high: Ints, valid: Bools, needed: list[Floats]
) -> tuple[Floats, Floats, Ints]:
    """Return at least the shares of boxes that are decided alike and not, and an axis to cut.

    Where less than is needed is proved, it is tried with more effort.
    """
    joint = bounds.lines(low, high, True)
    shares = _shares(bounds, low, high, valid, needed, joint, BINS)
    axis = _axis(bounds.frame, low, high, valid, joint)
    for single in (False, True):
        short = np.flatnonzero(((shares[0] < needed[0]) | (shares[1] < needed[1])) & (shares.max(0) < 1))
        if not len(short) or (single and len(bounds.frame.ground.values) > MOST_SINGLE):
            break
        box = low[short], high[short], valid[short]
        lines = bounds.lines(*box[:2], False) if single else joint.chosen(short)
        again = _shares(bounds, *box, [need[short] for need in needed], lines, FINE)
        shares[:, short] = np.maximum(shares[:, short], again)
    return shares[0], shares[1], axis


def _axis(frame: Frame, low: Ints, high: Ints, valid: Bools, lines: Lines) -> Ints:
    """Return the axis that makes lines loosest within each box, to be cut: (n,)."""
    exists = valid[..., None] if lines.slopes.shape[1] > 1 else np.ones((len(low), 1, 1), bool)
    loose = np.where(exists, lines.slopes.sum(2), 0).sum(1)[:, None]  # both signs of a margin: what is between them
    steep = np.where(exists, np.abs(lines.slopes).sum(2), 0).sum(1)[:, None]
    score = frame.reach(low, high, loose)[:, 0] + STEEP * frame.reach(low, high, steep)[:, 0]
    return np.asarray(np.where(high > low, score + 1e-300 * (high - low), -1.0).argmax(1))


def _shares(
    bounds: Bounds, low: Ints, high: Ints, valid: Bools, needed: list[Floats], lines: Lines, bins: int
) -> Floats:
    """Return at least the shares of boxes that are decided alike and not, by some lines: (2, n)."""
    frame, rows = bounds.frame, bounds.rows
    whole = rows.decided(lines.least, valid)
    shares = np.array(whole, dtype=np.float64)
    for share, need, counted in zip(shares, needed, (_alike, _flips), strict=True):
        some = np.flatnonzero(~(whole[0] | whole[1]) & (need > 0))
        if len(some):
            box = _Box(frame, low[some], high[some], valid[some], bins)
            share[some] = counted(box, rows, lines.chosen(some))
    return shares


def _over(what: Callable[[Ints, Ints, Floats], Floats], low: Ints, high: Ints, lines: Lines) -> Floats:
    """Return what can be said of lines, and of joint ones once for all values, plus their constants: as these."""
    n, k, r, features = lines.slopes.shape
    return what(low, high, lines.slopes.reshape(n, k * r, features)).reshape(n, k, r) + lines.at


@dataclass(frozen=True)
class _Box:
    """Boxes whose shares are counted on a grid of so many bins."""

    frame: Frame
    low: Ints
    high: Ints
    valid: Bools
    bins: int

    def above(self, slopes: Floats, at: Floats, some: Ints | slice = slice(None)) -> Floats:
        """Return at least the share of some boxes where lines are above 0."""
        return self.frame.share_above(self.low[some], self.high[some], slopes, at, self.bins)


def _alike(box: _Box, rows: Signed, lines: Lines) -> Floats:
    """Return at least the share of boxes where one line below those of all values says that they are decided alike."""
    if not rows.classes:
        (slopes, at), (others, other) = (_common(box, lines, row, box.valid) for row in (0, 1))
        return box.above(slopes + others, at + other + rows.tolerance)
    shares = []
    for row in range(len(rows.matrix)):
        matter = box.valid & (lines.least[..., row] <= 0)  # those that are positive anyway do not
        matter[~matter.any(1)] = box.valid[~matter.any(1)]
        shares.append(box.above(*_common(box, lines, row, matter)))
    total = np.zeros(len(box.low))
    for own in rows.classes:
        total += np.clip(1 - sum(1 - shares[row] for row in own), 0, 1)
    return np.minimum(total, 1 - 2.0**-52)


def _common(box: _Box, lines: Lines, row: int, matter: Bools) -> tuple[Floats, Floats]:
    """Return one line below those of the values that matter: (n, features) and (n,)."""
    slopes, at = lines.slopes[:, :, row], lines.at[:, :, row]
    if slopes.shape[1] == 1:
        return slopes[:, 0], np.where(matter, at, np.inf).min(1)
    mean = (slopes * (matter / matter.sum(1, keepdims=True))[..., None]).sum(1)
    rest = box.frame.least(box.low, box.high, slopes - mean[:, None]) + at
    return mean, np.where(matter, rest, np.inf).min(1)


def _flips(box: _Box, rows: Signed, lines: Lines) -> Floats:
    """Return at least the share of boxes where one value surely has a class and another surely has not."""
    n, frame, exists = len(box.low), box.frame, box.valid[..., None]
    every, last = np.arange(n), lines.slopes.shape[1] - 1
    mean = np.where(exists, _over(frame.mean, box.low, box.high, lines), -np.inf)

    def line(some: Ints, value: Ints, row: int | Ints) -> tuple[Floats, Floats]:
        return lines.slopes[some, np.minimum(value, last)[some], row], lines.at[some, value[some], row]

    if not rows.classes:
        (slopes, at), (others, other) = (line(every, mean[..., row].argmax(1), row) for row in (0, 1))
        return box.above(slopes + others, at + other - rows.tolerance)
    slopes = np.broadcast_to(lines.slopes, (*lines.at.shape, frame.features)).reshape(n, -1, frame.features)
    likely = frame.guess(box.low, box.high, slopes, lines.at.reshape(n, -1)).reshape(lines.at.shape)
    best = np.zeros(n)
    for own, against in zip(rows.classes, rows.against, strict=True):
        v = mean[..., own].min(-1).argmax(1)
        other = mean[..., against].reshape(n, -1).argmax(1)
        w, row = other // len(against), np.asarray(against)[other % len(against)]
        total = np.zeros(n)
        # Where there are two classes, the two values may flip either way.
        for one, two in ((v, w), (w, v)) if len(rows.classes) == 2 else ((v, w),):
            chance = likely[every, two, row] - (1 - likely[every, one][:, own]).sum(1)
            some = np.flatnonzero(chance > WORTH)
            sure = sum(1 - box.above(*line(some, one, c), some) for c in own)
            total[some] += np.maximum(0, box.above(*line(some, two, row[some]), some) - sure)
        best = np.maximum(best, total)
        if len(rows.classes) == 2:
            break
    return np.minimum(best, 1 - 2.0**-52)
