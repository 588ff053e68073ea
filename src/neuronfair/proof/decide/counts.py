"""What is proved of boxes, as shares or exact counts of people; the people of small boxes are enumerated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.errors import RunError
from neuronfair.proof.boxes.cuts import LEAF, CutTree
from neuronfair.proof.boxes.space import Boxes, Space
from neuronfair.proof.certificate import CertifiedBoxes
from neuronfair.proof.decide.queue import BoxColumns, ProofState
from neuronfair.proof.problem import Problem

ROWS = 1 << 18  # people with their twins that are evaluated at once
LARGEST = 2.0**62  # combinations of codes that are counted in 64 bits
BITS = 30  # of a share that are counted: people · floor(share · 2^30) / 2^30
SHARE_TOLERANCE = 1e-6  # how far sums of shares may be off
_NAMES = ("low", "high", "pattern", "fair", "flips", "fair_count", "flips_count")


def combinations(boxes: Boxes) -> Tensor:
    """Return how many combinations of places each box has, about: float64 (n,)."""
    return (boxes.high - boxes.low + 1).double().prod(1)


def varied(space: Space, boxes: Boxes) -> Tensor:
    """Return how many combinations of codes each box has on the axes of which it has several places: float64 (n,)."""
    return torch.where(boxes.high > boxes.low, space.sizes(boxes), 1).double().prod(1)


def can_enumerate(space: Space, boxes: Boxes, most: int) -> Tensor:
    """Return which boxes have few enough places, and codes at these that can be counted: bool, (n,)."""
    return (combinations(boxes) <= most) & (varied(space, boxes) < LARGEST)


def enumerated_people(problem: Problem, boxes: Boxes, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many combinations of codes do not flip, and how many do: int64 (n,) each.

    Only axes of which a box has several places are counted: with the others each count multiplies. People whose margin
    is within rounding of the boundary are neither.
    """
    counts = torch.zeros(2, len(boxes), dtype=torch.int64, device=boxes.low.device)
    per_pass = max(1, ROWS // problem.people.valid.shape[1])
    groups = ((combinations(boxes).long().cumsum(0) - 1) // per_pass).cpu()
    for part in torch.split(torch.arange(len(boxes), device=boxes.low.device), torch.bincount(groups).tolist()):
        if not len(part):
            continue
        some = boxes[part]
        owner, places = members(some)
        weight = torch.ones_like(owner)
        for axis, _, _ in problem.space.tables:
            count = problem.space.axes[axis].count.to(owner.device)[places[:, axis]]
            weight = weight * torch.where((some.high > some.low)[owner, axis], count, 1)
        valid = problem.people.valid[pattern[part][owner]]
        zero = torch.zeros(len(part), dtype=torch.int64, device=owner.device)
        for number, who in enumerate(problem.margins.decided(problem.margins_at(places), problem.slack, valid)):
            counts[number, part] = zero.scatter_add(0, owner, torch.where(who, weight, 0))
    return counts[0], counts[1]


def members(boxes: Boxes) -> tuple[Tensor, Tensor]:
    """Return all places in boxes: the number of their box, and the places."""
    extent = boxes.high - boxes.low + 1
    sizes, device = extent.prod(1), extent.device
    box = torch.arange(len(boxes), device=device).repeat_interleave(sizes)
    number = torch.arange(len(box), device=device) - (sizes.cumsum(0) - sizes)[box]
    most = int((extent > 1).sum(1).max()) if len(boxes) else 0
    extent, axes = extent.topk(most, dim=1)  # the others have one place
    places = boxes.low[box]
    for length, axis in zip(extent.T, axes.T, strict=True):
        places.scatter_add_(1, axis[box, None], (number % length[box])[:, None])
        number = number // length[box]
    return box, places


def certified(boxes: Boxes, pattern: Tensor, fair: Tensor) -> dict[str, Tensor]:
    """Return the columns of boxes that are decided as a whole: fair, or discriminatory."""
    return undecided(boxes, pattern, fair.double(), 1.0 - fair.double())


def enumerated(problem: Problem, boxes: Boxes, pattern: Tensor, counts: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return the columns of boxes whose people were enumerated: so many combinations of codes are fair, so many not."""
    codes = varied(problem.space, boxes)
    return _columns(boxes, pattern, counts[0] / codes, counts[1] / codes, *counts)


def undecided(boxes: Boxes, pattern: Tensor, fair: Tensor, flips: Tensor) -> dict[str, Tensor]:
    """Return the columns of boxes of which shares are proved, at least."""
    none = torch.full_like(pattern, -1, dtype=torch.int64)
    return _columns(boxes, pattern, fair, flips, none, none)


def _columns(boxes: Boxes, pattern: Tensor, *proved: Tensor) -> dict[str, Tensor]:
    return dict(zip(_NAMES, (boxes.low.int(), boxes.high.int(), pattern.int(), *proved), strict=True))


def certified_shares(problem: Problem, columns: BoxColumns) -> Tensor:
    """Return the shares of all combinations of codes that boxes prove fair and discriminatory, about: (2,)."""
    boxes = Boxes(columns["low"].long(), columns["high"].long())
    weight = problem.people.share(problem.space, boxes, columns["pattern"].long())
    return torch.stack([(weight * columns["fair"]).sum(), (weight * columns["flips"]).sum()])


def certified_boxes(problem: Problem, parts: Sequence[BoxColumns]) -> CertifiedBoxes:
    """Return boxes with the whole numbers of people that are proved in each."""
    low, high, pattern, *proved = (torch.cat([part[name].cpu() for part in parts]) for name in _NAMES)
    boxes = Boxes(low.long().to(problem.device), high.long().to(problem.device))
    sizes = problem.space.sizes(boxes).cpu()
    members = problem.people.inside.sum(1).cpu()[pattern.long()]
    kind = np.int64 if problem.count < LARGEST else object
    people = _product(sizes, members, kind)
    rest = _product(torch.where(high > low, 1, sizes), members, kind)
    fair, flips = (
        np.where(count.numpy() >= 0, rest * count.numpy().astype(kind), _part(people, share))
        for share, count in zip(proved[:2], proved[2:], strict=True)
    )
    return CertifiedBoxes(low.numpy(), high.numpy(), fair.tolist(), flips.tolist())


def _product(sizes: Tensor, members: Tensor, kind: Any) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] = sizes.numpy().astype(kind).prod(1) * members.numpy().astype(kind)
    return result


def _part(people: npt.NDArray[Any], share: Tensor) -> npt.NDArray[Any]:
    """Return a share of people, at most."""
    parts = (share.clamp(0, 1) * (1 << BITS)).floor().long().numpy().astype(people.dtype)
    claimed: npt.NDArray[Any] = (people >> BITS) * parts + (((people & ((1 << BITS) - 1)) * parts) >> BITS)
    return claimed


def check_state(problem: Problem, state: ProofState, what: object) -> None:
    """Refuse a state that no proof about this region can have: a folder may be a stranger's.

    Its boxes must lie within the region and make it up, and no box may have more proved than it holds. They must be the
    leaves of its cuts, and every guide must lie in its leaf.
    """
    columns = (state.undecided, state.done)
    needed = {*_NAMES, "node"}
    if any(needed - {*kind} for kind in columns) or {"axis", "last"} - {*state.undecided} or not state.sound:
        raise RunError(f"{what}: is no state of such a proof")
    highest = problem.space.everything().high.cpu()
    total = torch.zeros((), dtype=torch.float64)
    for kind in columns:
        low, high, pattern = (kind[name].cpu().long() for name in ("low", "high", "pattern"))
        inside = low.shape == high.shape == (len(pattern), highest.shape[1]) and bool(
            ((low >= 0) & (low <= high) & (high <= highest)).all()
            & ((pattern >= 0) & (pattern < len(problem.people.valid))).all()
        )
        fair, flips, *counts = (kind[name].cpu().double() for name in _NAMES[3:])
        if not inside or not bool(((fair >= 0) & (flips >= 0) & (fair + flips <= 1 + SHARE_TOLERANCE)).all()):
            raise RunError(f"{what}: its boxes do not lie within the region, or prove more people than they hold")
        boxes = Boxes(low.to(problem.device), high.to(problem.device))
        codes = varied(problem.space, boxes).cpu()
        if not bool(((counts[0] >= -1) & (counts[1] >= -1) & (counts[0] + counts[1] <= codes)).all()):
            raise RunError(f"{what}: its boxes prove more people than they hold")
        total += problem.people.share(problem.space, boxes, pattern.to(problem.device)).sum().cpu()
    axis = state.undecided["axis"].cpu()
    whole = abs(float(total / problem.whole.cpu()) - 1) <= SHARE_TOLERANCE
    if not whole or not bool(((axis >= -1) & (axis < highest.shape[1])).all()):
        raise RunError(f"{what}: its boxes are not those of the whole region")
    if not _are_leaves(state, highest.to(problem.device)):
        raise RunError(f"{what}: its boxes are not the leaves of its cuts, or its guides do not lie in them")


def _are_leaves(state: ProofState, highest: Tensor) -> bool:
    cuts, places = CutTree(state.cuts), state.guides["places"].long()
    node, low, high = (torch.cat([state.done[n], state.undecided[n]]).long() for n in ("node", "low", "high"))
    leaves = (state.cuts[:, 0] == LEAF).nonzero()[:, 0]
    if not cuts.is_sound(highest.shape[1]) or len(node) != len(leaves) or not torch.equal(node.sort()[0], leaves):
        return False
    if places.shape[1:] != highest.shape[1:] or bool((state.guides["root"] != 0).any()):
        return False
    box = torch.zeros(len(cuts), dtype=torch.int64, device=node.device)
    box[node] = torch.arange(len(node), device=node.device)
    mine = box[cuts.leaves(places)]
    counts = torch.stack([state.guides[name] for name in ("rows", "drawn", "status")])
    return bool(((places >= low[mine]) & (places <= high[mine])).all()) and bool((counts >= 0).all())
