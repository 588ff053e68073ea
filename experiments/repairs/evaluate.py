"""Before and after a repair: the same metrics of two networks, on records that played no part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronfair.domain.tables.dataset import Dataset, Split
from neuronfair.measure.groups import Group, measure_groups
from neuronfair.measure.rate import Rate, flip_rate
from neuronfair.model.encoding import ROWS_PER_PASS, TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.profile import interpret
from neuronfair.model.train import Stack

import torch
from torch import Tensor, nn

GROUP = 16  # networks evaluated at once
SAMPLES = 20_000


@dataclass(frozen=True)
class RepairOutcome:
    """The flip rate and the accuracy of a network."""

    rate: float
    accuracy: float


def outcomes(modules: Sequence[nn.Sequential], labelled: Dataset, people: Tensor) -> list[RepairOutcome]:
    """Return the flip rate of each network among `people`, and its accuracy on labelled rows."""
    domain = labelled.domain
    encoding, size = TableEncoding.of(domain), max(1, 4 * ROWS_PER_PASS // GROUP // len(domain.sensitive_values))
    results = []
    for first in range(0, len(modules), GROUP):
        stack = Stack(modules[first : first + GROUP]).to(domain.device)
        found = right = torch.zeros(len(stack.weights[0]), dtype=torch.int64)
        for rows, labels in zip(torch.split(labelled.rows, size), torch.split(labelled.labels, size), strict=True):
            right = right + (_decided(stack, encoding, rows) == labels).sum(1).cpu()
        for rows in torch.split(people, size):
            twins, valid = domain.twins(rows)
            family = torch.cat([rows[:, None], twins], 1)  # (n, 1 + k, d)
            decided = _decided(stack, encoding, family.flatten(0, 1)).view(-1, *family.shape[:2])
            found = found + ((decided[..., 1:] != decided[..., :1]) & valid).any(-1).sum(1).cpu()
        results += [
            RepairOutcome(f / len(people), r / len(labelled))
            for f, r in zip(found.tolist(), right.tolist(), strict=True)
        ]
    return results


@torch.no_grad()
def _decided(stack: Stack, encoding: TableEncoding, rows: Tensor) -> Tensor:
    """Return the class that each network decides for each row: (networks, n)."""
    scores: Tensor = stack(encoding.encode(rows, stack.weights[0].dtype))
    return scores.argmax(-1)


@dataclass(frozen=True)
class FairnessMeasurement:
    """Flip rates, accuracy, groups and the most biased layer of a network."""

    test: Rate  # of the test rows, which are records of the data set
    rate: Rate  # of records drawn uniformly from the domain
    accuracy: dict[str, float]
    groups: tuple[Group, ...]  # on the test rows
    layer: str  # the most biased one
    auc: float  # the area under its AS curve


def measure_network(module: nn.Sequential, parts: Split, *, seed: int = 0) -> FairnessMeasurement:
    """Measure a network on the test rows and on drawn records; the same seed draws the same records."""
    test, network = parts.test, Network(module, parts.test.domain)
    worst = interpret(network, test.domain, test.rows).worst
    return FairnessMeasurement(
        flip_rate(network, test.domain, population=test, samples=len(test), seed=seed),
        flip_rate(network, test.domain, population="domain", samples=SAMPLES, seed=seed),
        {name: outcomes([module], part, part.rows[:1])[0].accuracy for name, part in parts._asdict().items()},
        measure_groups(network, test.domain, test.rows, test.labels),
        worst.name,
        worst.auc,
    )
