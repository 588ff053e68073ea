"""Findings: how different and severe they are, how many lie outside the data, which biased neurons they activate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from neuronfair.domain.draws import draw_order
from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.errors import DomainError, ModelError, NeuronFairError
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile
from neuronfair.searches.findings import Findings

REGION_BINS = 4  # per ordered attribute, for counting regions
MAX_COMPARED_ROWS, MAX_COUNTED_ROWS = 2_000, 20_000
MAX_ONE_HOT_LABELS = 16  # of an attribute whose labels become one column each when distances are computed
DISTANCE_TOLERANCE = 1e-12  # of a distance in float64, so that equal rows lie within radius 0


def mean_distance(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> float:
    """Return the mean distance between two findings, from 0 (all alike) to 1 (opposite in every attribute).

    Sensitive attributes do not count. An ordered attribute counts with the share of its range between the two, a
    nominal one with 1 where they differ. At most 2,000 findings are compared, drawn at random.
    """
    check_rows(domain, rows, "mean distance")
    sample = _draw_sample(rows, MAX_COMPARED_ROWS, seed)
    n = len(sample)
    return float(_pairwise_distances(domain, sample).sum() / (n * (n - 1))) if n > 1 else 0.0


def count_regions(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> int:
    """Return how many regions of the domain the findings lie in, among at most 20,000 of them drawn at random.

    A region is a combination of nominal values and quarters of the ordered ranges; sensitive attributes do not count.
    """
    check_rows(domain, rows, "regions")
    columns = domain.changeable.nonzero()[:, 0]
    sample, sizes = _draw_sample(rows, MAX_COUNTED_ROWS, seed)[:, columns], domain.sizes[columns]
    coarse = torch.where(domain.is_ordered[columns] & (sizes > REGION_BINS), sample * REGION_BINS // sizes, sample)
    return len(torch.unique(coarse, dim=0))


def count_clusters(domain: TableDomain, rows: Tensor, *, radius: float = 0.2, seed: int = 0) -> int:
    """Return how many balls hold all findings, among at most 2,000 of them drawn at random.

    The distance is that of `mean_distance`. The first centre is any finding; each next one is the finding farthest from
    all centres, until none is farther than the radius (Gonzalez, 1985). This many balls of the radius hold all
    findings, and fewer balls of half the radius cannot. The number falls as the radius grows and, up to 2,000 findings,
    does not depend on their order. DBSCAN would join each walk into one cluster however far it goes; k-means needs the
    number of clusters.
    """
    check_rows(domain, rows, "clusters")
    if not radius >= 0:
        raise NeuronFairError(f"a radius must be 0 or more, got {radius}")
    if len(rows) == 0:
        return 0
    sample = _draw_sample(rows, MAX_COMPARED_ROWS, seed)
    sample[:, list(domain.sensitive_columns)] = 0
    # Sorted and each once, so that the same findings in another order give the same clusters.
    distances = _pairwise_distances(domain, torch.unique(sample, dim=0))
    count, nearest = 1, distances[0]
    while float(nearest.max()) > radius + DISTANCE_TOLERANCE:
        count, nearest = count + 1, torch.minimum(nearest, distances[nearest.argmax()])
    return count


def _pairwise_distances(domain: TableDomain, rows: Tensor) -> Tensor:
    """Return the distances between all pairs of rows, from 0 to 1, without the sensitive attributes: (n, n)."""
    columns = domain.changeable.nonzero()[:, 0]
    codes, sizes = rows[:, columns], domain.sizes[columns]
    on_a_line = domain.is_ordered[columns] | (sizes <= 2)  # two values are as far apart either way
    coordinates = [codes[:, on_a_line].double() / (sizes[on_a_line] - 1).clamp(min=1)]
    one_hot_columns = ~on_a_line & (sizes <= MAX_ONE_HOT_LABELS)
    # A nominal value is a corner of its own, half a step away from where all meet.
    coordinates += [one_hot(codes[:, i], int(sizes[i])).double() / 2 for i in one_hot_columns.nonzero()[:, 0].tolist()]
    points = torch.cat(coordinates, 1)
    total = torch.cdist(points, points, p=1)
    for i in (~on_a_line & ~one_hot_columns).nonzero()[:, 0].tolist():
        total += codes[:, None, i] != codes[:, i]
    return total / max(1, len(columns))


def _draw_sample(rows: Tensor, count: int, seed: int) -> Tensor:
    order = draw_order(len(rows), seed)[:count]
    return rows[order.to(rows.device)].long()


def share_outside(domain: TableDomain, rows: Tensor, table: Tensor) -> float:
    """Return the share of rows with a value outside the range of a table; 0 for no rows.

    The range of an ordered attribute runs from the smallest to the largest value in the table; a label must occur in
    it. Each attribute counts separately: a new combination of known values is inside.
    """
    check_rows(domain, rows, "findings")
    check_rows(domain, table, "table")
    if len(table) == 0:
        raise DomainError("the table has no rows, so it has no range to compare with")
    if len(rows) == 0:
        return 0.0
    low, high = table.amin(0).to(rows.device), table.amax(0).to(rows.device)
    nominal_columns = (~domain.is_ordered).nonzero()[:, 0].tolist()
    labels_by_column = [(column, torch.unique(table[:, column]).to(rows.device)) for column in nominal_columns]
    outside = 0
    for packed in torch.split(rows, ROWS_PER_PASS):
        codes = packed.long()
        beyond = ((codes < low) | (codes > high)).any(1)
        for column, labels_in_table in labels_by_column:
            beyond |= ~torch.isin(codes[:, column], labels_in_table)
        outside += int(beyond.sum())
    return outside / len(rows)


@dataclass(frozen=True)
class Severity:
    """The score gaps of findings, in the units of the network's scores: 0 would be no gap at all."""

    median: float
    p95: float  # the 95th percentile
    largest: float


def measure_severity(findings: Findings, decision: Decision | None = None) -> Severity | None:
    """Return how large the score gaps of the findings are; None where nothing was found.

    The gap is `Decision.gap` of the decision that the search used: for classes the change in the difference of two
    scores, for a threshold or a tolerance the change of the score.
    """
    if len(findings) == 0:
        return None
    gaps = (decision or Decision()).gap(findings.scores.double(), findings.twin_scores.double())
    median, p95, largest = np.quantile(gaps.cpu().numpy(), (0.5, 0.95, 1.0))
    return Severity(float(median), float(p95), float(largest))


ACTIVE = 0.5  # a neuron whose normalised activation exceeds this is active


@dataclass(frozen=True)
class Coverage:
    """How many rows activate each biased neuron of one layer."""

    layer: str
    biased: tuple[int, ...]
    active: tuple[int, ...]  # rows that activate each of them
    rows: int

    @property
    def covered(self) -> int:
        """How many biased neurons at least one row activates."""
        return sum(count > 0 for count in self.active)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of rows that activate each biased neuron; 0 without rows."""
        return tuple(count / self.rows if self.rows else 0.0 for count in self.active)


def measure_coverage(network: Network, domain: TableDomain, profile: BiasProfile, rows: Tensor) -> Coverage:
    """Count the rows that activate each biased neuron of the most biased layer.

    The paper says "normalize the activation values" and refers to DeepXplore (Pei et al., SOSP 2017): the activations
    of each row are scaled linearly so that the layer's smallest is 0 and its largest 1. Where all are equal, no neuron
    is active. Coverage grows with the number of rows; `shares` does not.
    """
    layer = profile.worst
    check_rows(domain, rows, "coverage")
    if network.neurons.get(layer.name) != len(layer.act_diff):
        raise ModelError(
            f"the profile's most biased layer is '{layer.name}' with {len(layer.act_diff)} neurons, and this network "
            "has no such layer. Interpret this network first"
        )
    counts = torch.zeros(len(layer.biased), dtype=torch.int64)
    for part in torch.split(rows, ROWS_PER_PASS) if len(rows) else ():
        f = network.activations(part.long(), (layer.name,))[layer.name]
        low, high = f.amin(1, keepdim=True), f.amax(1, keepdim=True)
        counts += (f[:, list(layer.biased)] - low > ACTIVE * (high - low)).sum(0).cpu()
    return Coverage(layer.name, layer.biased, tuple(counts.tolist()), len(rows))
