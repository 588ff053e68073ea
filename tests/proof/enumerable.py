"""A domain small enough to ask everybody, networks over it, and the truth about them."""

from __future__ import annotations

from itertools import product

import torch
from torch import nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.proof.bounds.space import Boxes
from neuronfair.searches.evaluate import evaluate

RULES = (
    Rule("no d before 3", {"a0": Span(0, 2)}, {"job": ("a", "b", "c")}),
    Rule("no 1 among b from 7 on", {"a1": Span(7, 9), "job": ("b",), "s": (1,)}, {}),
)
DECISIONS = {
    "classes": (2, Decision()),
    "three classes": (3, Decision()),
    "threshold": (1, Decision("threshold", 0.3)),
    "tolerance": (1, Decision("tolerance", 0.6)),
}


def domain_of(*rules: Rule) -> TableDomain:
    attributes = (
        Attribute("a0", "ordinal", low=0, high=9),
        Attribute("s", "ordinal", low=0, high=2),
        Attribute("job", "nominal", values=("a", "b", "c", "d"), encode="onehot"),
        Attribute("a1", "ordinal", low=0, high=9),
        Attribute("unread", "ordinal", low=0, high=1),
    )
    return TableDomain("small", attributes, ("s",), rules)


def network_of(domain: TableDomain, outputs: int, seed: int = 0) -> Network:
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, outputs)).double()
    scale = torch.tensor([0.2, 0.3, *[1.0] * 4, 0.2, 0.0], dtype=torch.float64)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator))
        module[0].weight.mul_(scale)
        hidden = module[:2](torch.rand(500, 8, dtype=torch.float64, generator=generator) * 9 * (scale < 1))
        module[2].bias.copy_(-module[2](hidden).mean(0))
    return Network(module.eval(), domain)


def truth(model, domain, decision, where=lambda rows: rows[:, 0] >= 0):
    rows = torch.tensor(list(product(*(range(a.size) for a in domain.attributes))))
    rows = rows[domain.valid(rows) & where(rows)]
    flips = int(evaluate(model.double(), domain, rows, decision).discriminates.sum())
    return len(rows), len(rows) - flips, flips


def figures(proof):
    return proof.record_count, proof.fair, proof.discriminatory


def tiles(problem, proof):
    """The boxes cover everybody once."""
    low, high = (torch.from_numpy(part).long() for part in (proof.certified.low, proof.certified.high))
    shape = [len(axis) for axis in problem.space.axes]
    times = torch.zeros(shape, dtype=torch.int64)
    for a, b in zip(low.tolist(), high.tolist(), strict=True):
        times[tuple(slice(i, j + 1) for i, j in zip(a, b, strict=True))] += 1
    return bool((times == 1).all()) and (Boxes(low, high).low >= 0).all()
