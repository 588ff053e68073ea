"""How many repairs do, judged at once: the share of people they discriminate, and their accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neuronfair.domain.data import Data
from neuronfair.domain.table import TableDomain
from neuronfair.measure.rate import discrimination_rate
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import ROWS_PER_PASS, TableEncoding
from neuronfair.model.open import Opened
from neuronfair.model.records import records_of
from neuronfair.model.stacked import Stack

GROUP = 16  # networks judged at once


@dataclass(frozen=True)
class Outcome:
    """How a network does: the share of people it discriminates, and its accuracy."""

    rate: float
    accuracy: float


def outcomes(modules: Sequence[nn.Sequential], labelled: Data, people: Tensor) -> list[Outcome]:
    """Return how often each network discriminates `people`, and its accuracy on labelled rows."""
    domain = labelled.domain
    encoding = TableEncoding.of(domain)
    results = []
    for first in range(0, len(modules), GROUP):
        stack = Stack(modules[first : first + GROUP]).to(domain.device)
        found = right = torch.zeros(len(stack.weights[0]), dtype=torch.int64)
        for rows, labels in zip(*_split(domain, labelled.rows, labelled.labels), strict=True):
            right = right + (_decided(stack, encoding, rows) == labels).sum(1).cpu()
        for (rows,) in zip(*_split(domain, people), strict=True):
            twins, valid = domain.twins(rows)
            family = torch.cat([rows[:, None], twins], 1)  # (n, 1 + k, d)
            decided = _decided(stack, encoding, family.flatten(0, 1)).view(-1, *family.shape[:2])
            found = found + ((decided[..., 1:] != decided[..., :1]) & valid).any(-1).sum(1).cpu()
        results += [
            Outcome(f / len(people), r / len(labelled)) for f, r in zip(found.tolist(), right.tolist(), strict=True)
        ]
    return results


def outcomes_of(models: Sequence[Opened], labelled: Data, people: Tensor, decision: Decision) -> list[Outcome]:
    """Return the same of models of any kind, one after the other."""
    return [
        Outcome(
            discrimination_rate(
                one.model, labelled.domain, population=people, samples=len(people), decision=decision
            ).rate,
            accuracy_of(one.model if one.white_box else one, labelled, decision),
        )
        for one in models
    ]


def accuracy_of(asked: Model | Opened, labelled: Data, decision: Decision) -> float:
    """Return the share of labelled rows that are decided as they are labelled."""
    records = records_of(asked, labelled)
    parts = torch.split(records.data.rows, ROWS_PER_PASS)
    chosen = torch.cat([decision.chosen(records.model.scores(part)) for part in parts])
    return float((chosen == labelled.labels).double().mean())


@torch.no_grad()
def _decided(stack: Stack, encoding: TableEncoding, rows: Tensor) -> Tensor:
    """Return the class that each network decides for each row: (networks, n)."""
    scores: Tensor = stack(encoding.encode(rows, stack.weights[0].dtype))
    return scores.argmax(-1)


def _split(domain: TableDomain, *tensors: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Split tensors so that the rows and twins that a group of networks sees at once fill a few batches."""
    return tuple(torch.split(t, max(1, 4 * ROWS_PER_PASS // GROUP // len(domain.sensitive_values))) for t in tensors)
