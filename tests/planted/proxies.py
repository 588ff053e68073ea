"""Tables in which another attribute tells the group, and networks that read that one only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.model.network import Network
from neuronfair.testing.cases import linear


def moved_domain(groups: int = 2) -> TableDomain:
    """`a` is 0 to 4 in the first group, 5 to 9 in the second, and so on; `b` is 0 to 9 in all of them."""
    return TableDomain(
        "moved",
        (
            Attribute("a", "ordinal", low=0, high=5 * groups - 1),
            Attribute("b", "ordinal", low=0, high=9),
            Attribute("group", "nominal", values=tuple("xyz"[:groups]), encode="raw"),
        ),
        ("group",),
    )


def moved_rows(groups: int = 2) -> Tensor:
    """Everybody who is usual, each forty times: 2,000 people in a group, so that smoothing moves nobody."""
    b, g, a = (torch.arange(n) for n in (10, groups, 5))
    rows = torch.cartesian_prod(a, b, g)
    rows[:, 0] += 5 * rows[:, 2]
    return rows.repeat(40, 1)


def by_a(domain: TableDomain, boundary: float = 6.5) -> Network:
    """Decide for the second class where `a` exceeds a boundary; the group is not read."""
    first, second = linear([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]], [0.0, 1.0]), linear([[0, 0], [1, 0]], [boundary, 0.0])
    return Network(nn.Sequential(first, nn.ReLU(), second).eval(), domain)
