"""Before and after a repair: the same questions to two models, with rows and a search that played no part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset, Split
from neuronfair.interpretation.profile import LayerBias
from neuronfair.measure.counterfactual_effect import CounterfactualEffect
from neuronfair.measure.groups import Group, groups
from neuronfair.measure.rate import Rate, flip_rate
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import ROWS_PER_PASS, TableEncoding, families
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.records import records_of
from neuronfair.model.train import Stack
from neuronfair.progress import Progress
from neuronfair.repairs.counterfactual_pairs import held_out_effect
from neuronfair.searches.campaign import search
from neuronfair.searches.config import Count, SearchConfig
from neuronfair.searches.evaluate import counterparts_of

GROUP = 16  # networks judged at once


@dataclass(frozen=True)
class RepairOutcome:
    """How a network does: the share of people it discriminates, and its accuracy."""

    rate: float
    accuracy: float


def outcomes(modules: Sequence[nn.Sequential], labelled: Dataset, people: Tensor) -> list[RepairOutcome]:
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
            RepairOutcome(f / len(people), r / len(labelled))
            for f, r in zip(found.tolist(), right.tolist(), strict=True)
        ]
    return results


def outcomes_of(models: Sequence[Opened], labelled: Dataset, people: Tensor, decision: Decision) -> list[RepairOutcome]:
    """Return the same of models of any kind, one after the other."""
    return [
        RepairOutcome(
            flip_rate(one.model, labelled.domain, population=people, samples=len(people), decision=decision).rate,
            accuracy_of(one.model if one.white_box else one, labelled, decision),
        )
        for one in models
    ]


def accuracy_of(asked: Model | Opened, labelled: Dataset, decision: Decision) -> float:
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


SAMPLES = 20_000
SEEDS, STEPS = 200, 200  # of the independent search
DRAWS = 200  # of the bootstrap
ROWS = 10_000  # of the test part that the bootstrap draws from, at most
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Area:
    """The area under the AS curve of a layer, with a bootstrap interval over the rows."""

    layer: str
    auc: float
    low: float
    high: float


@dataclass(frozen=True)
class FairnessMeasurement:
    """How a model stands: flip rates, reaction of its layers, accuracy, groups, and what a search finds."""

    rate: Rate  # of people drawn uniformly from the domain; by counterparts, of the test rows
    test: Rate  # of the test rows, which are records of the data set
    areas: tuple[Area, ...]
    accuracy: dict[str, float]
    groups: tuple[Group, ...]
    search: Count | None  # of a repair by findings
    counterpart: CounterfactualEffect | None = None  # of the test rows, where a repair is by counterparts

    @property
    def unfair(self) -> float:
        """What a repair must lower: the effect of counterparts, or else the rate."""
        return self.rate.rate if self.counterpart is None else self.counterpart.effect.rate

    @property
    def worst(self) -> Area | None:
        """The most biased layer; None where none can be looked into."""
        return max(self.areas, key=lambda area: area.auc, default=None)


def measure_model(
    opened: Opened,
    parts: Split,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> FairnessMeasurement:
    """Measure a model; the same seed asks two models the same questions. A black box, which is slow, gets fewer.

    Layers, groups, the seeds of the search and one rate come from the test rows, the other rate from people of the
    domain. Where people are compared with counterparts, both are of the test rows, and nobody is searched for.
    """
    test = parts.test
    domain, model, decision = test.domain, opened.model, opened.decision
    alike = counterparts_of(domain) is not None
    slow = 1 if opened.white_box else 2
    # A network is repaired as it was rebuilt here, so both are asked so; an estimator is fitted anew and asked itself.
    asked = model if opened.white_box else opened
    tested = records_of(asked, test)
    measured = partial(flip_rate, model, domain, confidence=CONFIDENCE, decision=decision, seed=seed)
    held_out = measured(population=tested, samples=len(test))
    return FairnessMeasurement(
        held_out if alike else measured(population="domain", samples=SAMPLES // slow),
        held_out,
        areas(model, domain, test.rows[:ROWS], seed=seed) if isinstance(model, Network) else (),
        {name: accuracy_of(asked, part, decision) for name, part in parts._asdict().items()},
        groups(tested.model, tested.data.domain, tested.data.rows, test.labels, decision=decision),
        None if alike else _searched(opened, test, slow, seed, progress),
        held_out_effect(model, parts, decision, confidence=CONFIDENCE) if alike else None,
    )


def _searched(opened: Opened, test: Dataset, slow: int, seed: int, progress: Progress | None) -> Count:
    """Return what a search of the test rows finds."""
    method = "frontier" if opened.white_box else "frontier-free"
    seeds, steps = SEEDS // slow, STEPS // slow
    config = SearchConfig(method=method, seeds=seeds, steps=steps, seed=seed, controls=False, decision=opened.decision)
    outcome = search(opened.model, test.domain, test.rows, config, progress=progress)
    if outcome.interrupted:  # the search has caught Ctrl-C; half a search proves nothing
        raise KeyboardInterrupt
    found = outcome.findings
    return Count(found.tried, len(found), found.judged)


def areas(network: Network, domain: TableDomain, rows: Tensor, *, seed: int = 0) -> tuple[Area, ...]:
    """Return the area under the AS curve of every layer, with percentiles over draws of the rows."""
    differences: dict[str, list[Tensor]] = {name: [] for name in network.layers}
    pairs = []
    for (part,) in zip(*families(network.encoding, domain, rows), strict=True):
        twins, valid = domain.twins(part)
        family = torch.cat([part[:, None], twins], 1)  # (n, 1 + k, d)
        for name, flat in network.activations(family.flatten(0, 1)).items():
            f = flat.view(*family.shape[:2], -1)
            differences[name].append(((f[:, 1:] - f[:, :1]).abs() * valid[..., None]).sum(1, dtype=torch.float64).cpu())
        pairs.append(valid.sum(1).double().cpu())
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(rows), (DRAWS, len(rows)), generator=generator)
    # How often each draw holds each row; the first line is the rows as they are.
    times = torch.zeros(DRAWS, len(rows), dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    times = torch.cat([torch.ones(1, len(rows), dtype=torch.float64), times])
    compared = (times @ torch.cat(pairs))[:, None].clamp(min=1.0)
    result = []
    tails = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64)
    for name, parts in differences.items():
        auc, *draws = [LayerBias(name, mean).auc for mean in times @ torch.cat(parts) / compared]
        low, high = torch.tensor(draws, dtype=torch.float64).quantile(tails).tolist()
        result.append(Area(name, auc, low, high))
    return tuple(result)
