"""Which values may follow: a row is made column by column, and only of values that some valid row goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.rules import Group
from neuronfair.limits import check_size


@dataclass(frozen=True)
class Step:
    """A column of a group that rules tie together, as it is met after the group's earlier ones.

    What the earlier ones hold is a *state*: a beginning of an allowed combination of classes. `follow` gives the
    state that each class leads to, and -1 where no valid row goes on from there.
    """

    group: int
    follow: Tensor  # (states, classes)

    def allowed(self, states: Tensor) -> Tensor:
        """Return which classes may follow: bool, (n, classes)."""
        return self.follow.index_select(0, states) >= 0


def steps(groups: Sequence[Group], order: Sequence[int], device: torch.device) -> dict[int, Step]:
    """Return the columns that rules name, in an order, with what may follow there."""
    place = {column: i for i, column in enumerate(order)}
    found: dict[int, Step] = {}
    for number, group in enumerate(groups):
        states, count = torch.zeros(len(group.allowed), dtype=torch.int64), 1
        for j in sorted(range(len(group.columns)), key=lambda j: place[group.columns[j]]):
            classes = len(group.counts[j])
            check_size(count * classes * 8, "what may follow under the rules")
            key = states * classes + group.allowed[:, j]
            follow = torch.full((count * classes,), -1)
            distinct, states = torch.unique(key, return_inverse=True)
            follow[distinct] = torch.arange(len(distinct))
            found[group.columns[j]] = Step(number, follow.view(count, classes).to(device))
            count = len(distinct)
    return {column: found[column] for column in order if column in found}
