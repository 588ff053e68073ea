"""Boxes that cover a region once, and what is proved of each: shares, or exact counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.errors import RunError
from neuronfair.proof.boxes.enumerate import varied
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.decide.queue import State
from neuronfair.proof.problem import Problem
from neuronfair.proof.result import Leaves

BITS = 30  # of a share that are counted: people · floor(share · 2^30) / 2^30
_SMALL = 1 << 62  # people up to which int64 is enough
Columns = Mapping[str, Tensor]
_NAMES = ("low", "high", "pattern", "fair", "flips", "fair_count", "flips_count")
NEAR = 1e-6  # how far sums of shares may be off


def decided(boxes: Boxes, pattern: Tensor, fair: Tensor) -> dict[str, Tensor]:
    """Return boxes that are decided as a whole: fair, or discriminatory."""
    none = torch.full_like(pattern, -1, dtype=torch.int64)
    return _columns(boxes, pattern, fair.double(), 1.0 - fair.double(), none, none)


def asked(subject: Problem, boxes: Boxes, pattern: Tensor, counts: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return boxes of which everybody was asked, with so many combinations of codes that are fair, and that are not."""
    codes = varied(subject.space, boxes)
    return _columns(boxes, pattern, counts[0] / codes, counts[1] / codes, *counts)


def undecided(boxes: Boxes, pattern: Tensor, fair: Tensor, flips: Tensor) -> dict[str, Tensor]:
    """Return boxes of which shares are proved, at least."""
    none = torch.full_like(pattern, -1, dtype=torch.int64)
    return _columns(boxes, pattern, fair, flips, none, none)


def _columns(boxes: Boxes, pattern: Tensor, *proved: Tensor) -> dict[str, Tensor]:
    return dict(zip(_NAMES, (boxes.low.int(), boxes.high.int(), pattern.int(), *proved), strict=True))


def shares(subject: Problem, columns: Columns) -> Tensor:
    """Return the shares of all combinations of codes that boxes prove fair and discriminatory, about: (2,)."""
    boxes = Boxes(columns["low"].long(), columns["high"].long())
    weight = subject.people.share(subject.space, boxes, columns["pattern"].long())
    return torch.stack([(weight * columns["fair"]).sum(), (weight * columns["flips"]).sum()])


def leaves_of(subject: Problem, parts: Sequence[Columns]) -> Leaves:
    """Return boxes with the whole numbers of people that are proved in each."""
    low, high, pattern, *proved = (torch.cat([part[name].cpu() for part in parts]) for name in _NAMES)
    boxes = Boxes(low.long().to(subject.device), high.long().to(subject.device))
    sizes = subject.space.sizes(boxes).cpu()
    members = subject.people.inside.sum(1).cpu()[pattern.long()]
    single = torch.where(high > low, 1, sizes)
    kind = np.int64 if subject.count < _SMALL else object
    people = _product(sizes, members, kind)
    rest = _product(single, members, kind)
    fair, flips = (
        np.where(count.numpy() >= 0, rest * count.numpy().astype(kind), _part(people, share))
        for share, count in zip(proved[:2], proved[2:], strict=True)
    )
    return Leaves(low.numpy(), high.numpy(), fair.tolist(), flips.tolist())


def check_state(subject: Problem, state: State, what: object) -> None:
    """Refuse a state that no proof about this region can have: a folder may be a stranger's.

    Its boxes must lie within the region and make it up, and no box may have more proved than it holds.
    """
    columns = (state.open, state.done)
    if any(set(_NAMES) - {*kind} for kind in columns) or {"axis", "last"} - {*state.open} or not state.sound:
        raise RunError(f"{what}: is no state of such a proof")
    highest = subject.space.everything().high.cpu()
    total = torch.zeros((), dtype=torch.float64)
    for kind in columns:
        low, high, pattern = (kind[name].cpu().long() for name in ("low", "high", "pattern"))
        inside = low.shape == high.shape == (len(pattern), highest.shape[1]) and bool(
            ((low >= 0) & (low <= high) & (high <= highest)).all()
            & ((pattern >= 0) & (pattern < len(subject.people.valid))).all()
        )
        proved = [kind[name].cpu().double() for name in ("fair", "flips")]
        counts = [kind[name].cpu().double() for name in ("fair_count", "flips_count")]
        if not inside or not bool(((proved[0] >= 0) & (proved[1] >= 0) & (sum(proved) <= 1 + NEAR)).all()):
            raise RunError(f"{what}: its boxes do not lie within the region, or prove more people than they hold")
        boxes = Boxes(low.to(subject.device), high.to(subject.device))
        codes = varied(subject.space, boxes).cpu()
        if not bool(((counts[0] >= -1) & (counts[1] >= -1) & (sum(counts) <= codes)).all()):
            raise RunError(f"{what}: its boxes prove more people than they hold")
        total += subject.people.share(subject.space, boxes, pattern.to(subject.device)).sum().cpu()
    axis = state.open["axis"].cpu()
    if not bool(((axis >= -1) & (axis < highest.shape[1])).all()) or abs(float(total / subject.whole.cpu()) - 1) > NEAR:
        raise RunError(f"{what}: its boxes are not those of the whole region")


def _product(sizes: Tensor, members: Tensor, kind: Any) -> npt.NDArray[Any]:
    result = members.numpy().astype(kind)
    for column in sizes.T:
        result = result * column.numpy().astype(kind)
    return result


def _part(people: npt.NDArray[Any], share: Tensor) -> npt.NDArray[Any]:
    """Return a share of people, at most."""
    parts = (share.clamp(0, 1) * (1 << BITS)).floor().long().numpy().astype(people.dtype)
    claimed: npt.NDArray[Any] = (people >> BITS) * parts + (((people & ((1 << BITS) - 1)) * parts) >> BITS)
    return claimed
