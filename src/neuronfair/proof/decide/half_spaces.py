"""Which people of a box its lines decide alike: of a box that the boundary crosses only a slab is left."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.proof.bounds.margins import look
from neuronfair.proof.boxes.space import Boxes
from neuronfair.proof.problem import Problem

ROUNDING = 1e-12  # of the sum of a line's terms: by so much it must be above 0
BATCH = 4_096  # boxes that are bounded at once


@dataclass(frozen=True)
class HalfSpaces:
    """Lines of some boxes: where those of a class are all above 0, every twin is of that class."""

    subject: Problem
    slopes: Tensor  # (boxes with lines, lines, features)
    at: Tensor  # (boxes with lines, lines)
    number: Tensor  # (boxes,) which of these lines belong to a box; -1: none

    @staticmethod
    def of(subject: Problem, boxes: Boxes, valid: Tensor, chosen: Tensor) -> HalfSpaces:
        """Return the lines of the chosen boxes."""
        slopes, at = [], []
        for part in torch.split(chosen, BATCH):
            some = boxes[part].to(subject.device)
            assert subject.bounder is not None
            lines = subject.bounder.lines(some)
            alike = look(subject.question, subject.space, some, lines, valid[part].to(subject.device)).alike
            slopes.append(alike.slopes.cpu())
            at.append(alike.at.cpu())
        number = torch.full((len(boxes),), -1)
        number[chosen] = torch.arange(len(chosen))
        return HalfSpaces(subject, torch.cat(slopes), torch.cat(at), number)

    def decided(self, box: Tensor, rows: Tensor) -> Tensor:
        """Return which people, each of one of the boxes, are decided alike whatever their sensitive values: (n,)."""
        result = torch.zeros(len(rows), dtype=torch.bool)
        here = (self.number[box] >= 0).nonzero()[:, 0]
        lines, rows, space = self.number[box[here]], rows[here], self.subject.space
        value = self.at[lines]
        size = value.abs()
        for axis, first in zip(space.axes, space.first, strict=False):
            place = axis.place.cpu()[rows[:, axis.column]]
            if axis.linear:
                term = self.slopes[lines, :, first] * place[:, None]
            else:
                term = self.slopes[lines, :, first + place]
            value, size = value + term, size + term.abs()
        above, classes = value > ROUNDING * size, self.subject.question.classes.cpu()
        result[here] = above[:, classes].all(-1).any(-1) if len(classes) else above[:, 0]
        return result
