"""What a proof says about single records: by their box, by the lines that hold in it, or as guides of the proof."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.proof.bounds.margins import decided_at
from neuronfair.proof.boxes.cuts import CutTree
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.decide.guides import FAIR, FLIPS, UNDECIDED
from neuronfair.proof.decide.queue import ProofState
from neuronfair.proof.problem import Problem

NUMBERS = 1 << 22  # of lines that are computed at once


@dataclass(frozen=True)
class Evidence:
    """The boxes of a proof, those that are done first, and how a record finds its box."""

    problem: Problem
    state: ProofState

    @cached_property
    def boxes(self) -> Boxes:
        """All boxes."""
        return Boxes(self._column("low").long(), self._column("high").long())

    @cached_property
    def valid(self) -> Tensor:
        """Which sensitive values the records of each box may have: (n, values)."""
        return self.problem.people.valid[self._column("pattern").long()]

    @cached_property
    def inside(self) -> Tensor:
        """Which of these belong to the region: (n, values)."""
        return self.problem.people.inside[self._column("pattern").long()]

    def boxes_of(self, places: Tensor) -> Tensor:
        """Return the number of the box in which each place of the region lies; -1 for a place outside."""
        inside = ((places >= 0).all(1)).nonzero()[:, 0]
        result = torch.full((len(places),), -1, dtype=torch.int64, device=places.device)
        result[inside] = self._box_of_leaf[CutTree(self.state.cuts).leaves(places[inside])]
        return result

    def twins_of(self, places: Tensor) -> Tensor:
        """Return how many sensitive values records at places may have: (n,)."""
        return self.valid[self.boxes_of(places.long())].sum(1)

    def status_of(self, places: Tensor) -> Tensor:
        """Return what is proved of the records at places: undecided, fair or flips, as guides have it."""
        status, box = self._as_guides(places), self.boxes_of(places)
        open_ = ((status == UNDECIDED) & (box >= 0)).nonzero()[:, 0]
        fair, flips = (self._column(name)[box[open_]] == 1 for name in ("fair", "flips"))
        status[open_[fair]], status[open_[flips]] = FAIR, FLIPS
        open_ = open_[~(fair | flips)]
        counted = self._column("fair_count")[box[open_]] >= 0
        for some, decide in ((open_[counted], self._by_margins), (open_[~counted], self._by_lines)):
            if len(some):
                fair, flips = decide(box[some], places[some])
                status[some[fair]], status[some[flips & ~fair]] = FAIR, FLIPS
        return status

    def _by_margins(self, box: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        return problem.margins.decided(problem.margins_at(places), problem.slack, self.valid[box])

    def _by_lines(self, box: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records do not flip and which do, by the tightest lines of their boxes."""
        problem, result = self.problem, torch.zeros(2, len(box), dtype=torch.bool, device=box.device)
        bounder = problem.bounder
        if bounder is None:
            return result[0], result[1]
        chosen, owner = torch.unique(box, return_inverse=True)
        step = max(1, NUMBERS // (self.valid.shape[1] * (problem.space.features + len(problem.space.axes))))
        for begin in range(0, len(chosen), step):
            some = chosen[begin : begin + step]
            mine = ((owner >= begin) & (owner < begin + step)).nonzero()[:, 0]
            lines = bounder.lines(self.boxes[some], way=bounder.ways - 1)
            place = owner[mine] - begin
            found = decided_at(problem.margins, problem.space, lines, place, places[mine], self.valid[some])
            result[:, mine] = torch.stack(found)
        return result[0], result[1]

    def _as_guides(self, places: Tensor) -> Tensor:
        """Return what is proved of guides at the same places."""
        guides, status = self.state.guides["places"].long(), self.state.guides["status"]
        distinct, which = torch.unique(torch.cat([guides, places]), dim=0, return_inverse=True)
        known = torch.zeros(len(distinct), dtype=status.dtype, device=status.device)
        known.scatter_reduce_(0, which[: len(guides)], status, "amax")
        return known[which[len(guides) :]]

    @cached_property
    def _box_of_leaf(self) -> Tensor:
        node = self._column("node").long()
        boxes = torch.full((len(self.state.cuts),), -1, dtype=torch.int64, device=node.device)
        boxes[node] = torch.arange(len(node), device=node.device)
        return boxes

    def _column(self, name: str) -> Tensor:
        return torch.cat([self.state.done[name], self.state.undecided[name]])
