"""Whether what is claimed of boxes can be proved again: by own bounds, by cutting them, by asking everybody in them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from neuronfair.certify.check_decision import Signed
from neuronfair.certify.check_ground import Bools, Floats, Ground, Ints
from neuronfair.certify.check_lines import Frame
from neuronfair.certify.check_network import Lines

FEW = 64  # combinations of places up to which everybody is asked at once
SMALL = 4096  # and up to which everybody is asked before a box is cut
POINTS = 1 << 17  # people, with all their twins, who are asked together
MOST_PARTS = 1 << 16  # into which a box is cut before its claim is refused
LEVELS = 80  # of cuts
STEEP = 0.05  # how much steepness counts beside looseness when an axis is chosen to be cut
PIECES = 1 << 12  # boxes that are looked at together


class Bounds(Protocol):
    """A model over the places of a certificate."""

    frame: Frame
    rows: Signed

    def lines(self, low: Ints, high: Ints) -> Lines:
        """Return lines below the signed margins over boxes."""

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
    ground, n = bounds.frame.ground, len(low)
    claims = np.asarray(fair, dtype=object), np.asarray(discriminatory, dtype=object)
    asked = (claims[0] > 0).astype(bool), (claims[1] > 0).astype(bool)
    parts = _looked_at(bounds, low, high, np.arange(n), asked, first=True)
    for _ in range(LEVELS):
        sums = [_sums(parts.box, column, n) for column in (parts.fair, parts.discriminatory)]
        unsure = _sums(parts.box, (parts.people == 0) & (parts.axis >= 0), n) > 0  # a rule cuts them
        missing = ((sums[0] < claims[0]) | (sums[1] < claims[1])).astype(bool)
        wanted = (missing | unsure.astype(bool))[parts.box] & (parts.axis >= 0)
        crowded = np.bincount(parts.box, minlength=n) > MOST_PARTS
        if not wanted.any() or (crowded & missing).any():
            break
        left = (parts.people - parts.fair - parts.discriminatory).astype(np.float64)
        left[parts.people == 0] = np.inf
        most = np.zeros(n)
        np.maximum.at(most, parts.box[wanted], left[wanted])
        cut = wanted & ((left >= most[parts.box] / 2) | np.isinf(left))
        parts = parts[~cut] + _halves(bounds, parts[cut], asked)
    people = _sums(parts.box, parts.people, n)
    failed = np.flatnonzero(missing | unsure.astype(bool))
    return Found(people, sums[0], sums[1], int(failed[0]) if len(failed) else None)


def _sums(box: Ints, numbers: Any, n: int) -> Any:
    total = np.zeros(n, dtype=object)
    np.add.at(total, box, numbers.astype(object))
    return total


def _halves(bounds: Bounds, parts: Parts, asked: tuple[Bools, Bools]) -> Parts:
    rows = np.arange(len(parts))
    middle = (parts.low[rows, parts.axis] + parts.high[rows, parts.axis]) // 2
    below, above = parts.high.copy(), parts.low.copy()
    below[rows, parts.axis], above[rows, parts.axis] = middle, middle + 1
    low, high = np.concatenate([parts.low, above]), np.concatenate([below, parts.high])
    return _looked_at(bounds, low, high, np.tile(parts.box, 2), asked, first=False)


def _looked_at(
    bounds: Bounds, low: Ints, high: Ints, box: Ints, asked: tuple[Bools, Bools], *, first: bool
) -> Parts:
    pieces = [slice(i, i + PIECES) for i in range(0, len(low), PIECES)]
    parts = [_piece(bounds, low[p], high[p], box[p], [a[box[p]] for a in asked], FEW if first else SMALL) for p in pieces]
    return Parts(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Parts)))


def _piece(bounds: Bounds, low: Ints, high: Ints, box: Ints, asked: list[Bools], few: int) -> Parts:
    """Return what can be proved of parts of boxes."""
    ground, n = bounds.frame.ground, len(low)
    valid, axis = ground.valid(low, high)
    whole = axis < 0
    twins = valid.sum(1)
    people = ground.combinations(low, high) * ((valid & ground.counted).sum(1) * whole).astype(ground.exact)
    fair, flips = (np.zeros(n, dtype=ground.exact) for _ in range(2))
    alone = whole & (twins < 2)  # nobody has a twin
    fair[alone] = people[alone]
    open_ = np.flatnonzero(whole & ~alone & (people > 0).astype(bool) & (asked[0] | asked[1]))
    alike = bounds.same(low[open_], high[open_], valid[open_])
    fair[open_[alike]] = people[open_[alike]]
    open_ = open_[~alike]
    count = (high[open_] - low[open_] + 1.0).prod(1)
    little = open_[count <= few]
    fair[little], flips[little] = _everybody(bounds, low[little], high[little], valid[little])
    open_ = open_[count > few]
    if len(open_):
        shares = _bounded(bounds, low[open_], high[open_], valid[open_], [a[open_] for a in asked])
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
    bounds: Bounds, low: Ints, high: Ints, valid: Bools, asked: list[Bools]
) -> tuple[Floats, Floats, Ints]:
    """Return at least the shares of boxes that are decided alike and not, and an axis to cut."""
    frame, rows = bounds.frame, bounds.rows
    slopes, at = bounds.lines(low, high)
    n, k, r, features = slopes.shape
    least = frame.least(low, high, slopes.reshape(n, k * r, features)).reshape(n, k, r) + at
    whole_fair, whole_flips = rows.decided(least, valid)
    shares = [whole_fair.astype(np.float64), whole_flips.astype(np.float64)]
    rest = ~(whole_fair | whole_flips)
    lines = Lines(slopes, at)
    for share, wish, counted in zip(shares, asked, (_alike, _flips), strict=True):
        some = np.flatnonzero(rest & wish)
        if len(some):
            mine = Lines(slopes[some], at[some])
            share[some] = counted(frame, rows, low[some], high[some], mine, least[some], valid[some])
    loose = np.where(valid[..., None], slopes.sum(2), 0).sum(1)[:, None]
    score = frame.reach(low, high, loose)[:, 0]
    steep = np.where(valid[..., None], np.abs(slopes).sum(2), 0).sum(1)[:, None]
    score = score + STEEP * frame.reach(low, high, steep)[:, 0]
    score = np.where(high > low, score + 1e-300 * (high - low), -1.0)
    return shares[0], shares[1], score.argmax(1)


def _alike(
    frame: Frame, rows: Signed, low: Ints, high: Ints, lines: Lines, least: Floats, valid: Bools
) -> Floats:
    """Return at least the share of boxes where one line below those of all values says that they are decided alike."""
    common = [_common(frame, low, high, lines, least, valid, row) for row in range(len(rows.matrix))]
    if not rows.classes:
        (slopes, at), (others, other) = common
        return frame.share_above(low, high, slopes + others, at + other + rows.tolerance)
    shares = [frame.share_above(low, high, *line) for line in common]
    total = np.zeros(len(low))
    for own in rows.classes:
        total += np.clip(1 - sum(1 - shares[row] for row in own), 0, 1)
    return np.minimum(total, 1 - 2.0**-52)


def _common(
    frame: Frame, low: Ints, high: Ints, lines: Lines, least: Floats, valid: Bools, row: int
) -> tuple[Floats, Floats]:
    """Return one line below those of all valid values, but for those that are positive anyway: (n, features), (n,)."""
    slopes, at = lines.slopes[:, :, row], lines.at[:, :, row]
    counts = valid & (least[..., row] <= 0)
    counts[~counts.any(1)] = valid[~counts.any(1)]
    weight = counts / counts.sum(1, keepdims=True)
    mean = (slopes * weight[..., None]).sum(1)
    rest = frame.least(low, high, slopes - mean[:, None]) + at
    return mean, np.where(counts, rest, np.inf).min(1)


def _flips(
    frame: Frame, rows: Signed, low: Ints, high: Ints, lines: Lines, least: Floats, valid: Bools
) -> Floats:
    """Return at least the share of boxes where one value surely has a class and another surely has not."""
    n, k, r, features = lines.slopes.shape
    every = np.arange(n)
    mean = frame.mean(low, high, lines.slopes.reshape(n, k * r, features)).reshape(n, k, r) + lines.at
    mean = np.where(valid[..., None], mean, -np.inf)
    if not rows.classes:
        v, w = mean[..., 0].argmax(1), mean[..., 1].argmax(1)
        slopes = lines.slopes[every, v, 0] + lines.slopes[every, w, 1]
        return frame.share_above(low, high, slopes, lines.at[every, v, 0] + lines.at[every, w, 1] - rows.tolerance)

    def above(value: Ints, row: int | Ints) -> Floats:
        return frame.share_above(low, high, lines.slopes[every, value, row], lines.at[every, value, row])

    best = np.zeros(n)
    for own, against in zip(rows.classes, rows.against, strict=True):
        v = mean[..., own].min(-1).argmax(1)
        other = mean[..., against].reshape(n, -1).argmax(1)
        w, row = other // len(against), np.asarray(against)[other % len(against)]
        best = np.maximum(best, above(w, row) - sum(1 - above(v, one) for one in own))
        if len(rows.classes) == 2:  # there is only one pair, and the two may also flip the other way
            best = np.maximum(best, 0) + np.maximum(0, above(v, row) - sum(1 - above(w, one) for one in own))
            break
    return np.minimum(best, 1 - 2.0**-52)
