"""Retraining: pairs of people for whom the decision flips join the training rows with one label for both."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neuronfair.domain.data import Data, Split
from neuronfair.errors import NeuronFairError
from neuronfair.model.descent import Note, Rows, TrainingSettings
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.stacked import linear_layers, train_stack
from neuronfair.model.zoo import fully_connected
from neuronfair.repair.labels import UNLABELLED, Ensemble, check_rule, seed_labels, twin_labels
from neuronfair.repair.outcome import Outcome, outcomes
from neuronfair.search.findings import Findings
from neuronfair.words import percent

MOST = 20_000  # pairs that join at most, however many were found; on Adult 10,000 helped less
HELD = 8  # one in so many of the drawn pairs is kept for validation, at most
FEWEST = 500  # pairs kept for validation beside a small table
SAMPLES = 10_000  # people drawn from the domain, on whom the repeats are compared
#: Larger batches and steps than in the first training, and an earlier end: a third less time than with steps of 0.001,
#: and as fair. Steps of 0.003 cost small tables their accuracy.
TRAINING = TrainingSettings(batch=256, lr=0.002, patience=4)


@dataclass(frozen=True)
class RepairSettings:
    """How a network is repaired; turning neurons down asks for `max_loss` and `seed` only."""

    share: float = 0.1  # of the findings that join
    label: str = "ensemble"
    repeats: int = 5
    max_loss: float = 0.01  # of accuracy on validation rows; inf: whatever it costs, and even if it does not help
    fresh: bool = False  # start anew instead of going on from the trained weights
    training: TrainingSettings = TRAINING
    seed: int = 0

    def __post_init__(self) -> None:
        check_rule(self.label)
        if not 0 < self.share <= 1:
            raise NeuronFairError(f"the share of the findings must be above 0 and at most 1, got {self.share}")
        if self.repeats < 1:
            raise NeuronFairError(f"there must be at least one repeat, got {self.repeats}")


@dataclass(frozen=True)
class Retraining:
    """The retrained network, and how every repeat and a retraining without findings did.

    `repeats` and `without` are measured on the test rows and on drawn people who played no part in the choice.
    `ensemble` is the accuracy on the test rows of the networks that do not see the sensitive attributes, if they voted.
    """

    module: nn.Sequential
    label: str
    chosen: int
    pairs: int
    before: Outcome
    repeats: tuple[Outcome, ...]
    without: Outcome
    ensemble: float | None

    @property
    def after(self) -> Outcome:
        """The outcome of the network that was chosen."""
        return self.repeats[self.chosen]


def retrain(
    module: nn.Sequential,
    parts: Split,
    findings: Findings,
    seeds: Tensor,
    settings: RepairSettings | None = None,
    *,
    ensemble: Ensemble | None = None,
    progress: Note | None = None,
) -> Retraining:
    """Train a network again on its training rows and a share of the findings, several times, and keep the best.

    Both people of a pair join, with the same label: what the network is to learn is that they are alike. The repeats
    draw different pairs and are trained as one stack. Some pairs join the validation rows, or the training would stop
    before it had become fair. Kept is the repeat that discriminates the fewest people, among those that lose at most
    `max_loss` of the accuracy on validation rows. An `ensemble` that is at hand saves the time to train it.
    """
    settings = settings or RepairSettings()
    if not parts.train.labelled:
        raise NeuronFairError(
            f"{parts.train.name}: the rows have no labels, so nothing can be trained. Give the target column"
        )
    domain = parts.train.domain
    module = copy.deepcopy(module).to(domain.device)
    generator = torch.Generator().manual_seed(settings.seed)
    ensemble = (ensemble or Ensemble(parts, seed=settings.seed)) if settings.label == "ensemble" else None
    pairs, labels = _labelled_pairs(module, parts.train, findings, seeds, settings.label, ensemble)
    count = min(MOST, max(1, round(settings.share * len(pairs))))
    order = torch.randperm(len(pairs), generator=generator)
    # About as many people of pairs as validation rows, lest either decide alone when the training stops.
    kept = min(count // HELD, max(FEWEST, len(parts.validation) // 2))
    held, rest = order[:kept], order[kept:]
    drawn = [rest[torch.randperm(len(rest), generator=generator)[:count]] for _ in range(settings.repeats)]

    def trained(chosen: list[Tensor], kept: Tensor) -> list[nn.Sequential]:
        """Train one network for each choice of pairs."""
        rows, lines, validation = _lesson(parts, pairs, labels, chosen, kept)
        results = train_stack(
            lambda: _start(module, settings.fresh),
            rows,
            chosen=lines,
            validation=validation,
            settings=settings.training,
            seed=settings.seed,
            fresh=settings.fresh,
            progress=progress,
        )
        return [result.module for result in results]

    networks = trained(drawn, held)
    (plain,) = trained([order[:0]], order[:0])
    people = torch.cat([parts.validation.rows, domain.sample(SAMPLES, generator)])
    start, *results = outcomes([module, *networks], parts.validation, people)
    chosen = _choose(start, results, settings.max_loss)
    before, without, *after = outcomes([module, plain, *networks], parts.test, domain.sample(SAMPLES, generator))
    right = None if ensemble is None else float((ensemble.labels(parts.test.rows) == parts.test.labels).double().mean())
    return Retraining(networks[chosen], settings.label, chosen, len(drawn[0]), before, tuple(after), without, right)


def _start(module: nn.Sequential, fresh: bool) -> nn.Sequential:
    """Return the network as it is, or an untrained one of the same sizes."""
    if not fresh:
        return copy.deepcopy(module)
    layers = linear_layers(module)
    *hidden, outputs = [layer.out_features for layer in layers]
    return fully_connected(layers[0].in_features, hidden, outputs)


def _lesson(
    parts: Split, pairs: Tensor, labels: Tensor, chosen: list[Tensor], kept: Tensor
) -> tuple[Rows, Tensor, Rows]:
    """Return inputs and labels of all rows that anybody learns from, which of them each learns from, and those held.

    The pairs that several repeats have drawn are there once.
    """
    used, place = torch.unique(torch.cat(chosen), return_inverse=True)
    n, own = len(parts.train), torch.arange(len(parts.train))
    first = n + 2 * place.view(len(chosen), -1)
    lines = torch.cat([own.expand(len(chosen), -1), first, first + 1], 1)

    def joined(part: Data, some: Tensor) -> Rows:
        rows = torch.cat([part.rows, pairs[some].flatten(0, 1)])
        return TableEncoding.of(part.domain).encode(rows), torch.cat([part.labels, labels[some].repeat_interleave(2)])

    return joined(parts.train, used), lines, joined(parts.validation, kept)


def _labelled_pairs(
    module: nn.Sequential, train: Data, findings: Findings, seeds: Tensor, rule: str, ensemble: Ensemble | None
) -> tuple[Tensor, Tensor]:
    """Return the pairs that have a label, (f, 2, d), and the labels, (f,)."""
    domain, rows = train.domain, findings.rows
    if ensemble is not None:
        labels = ensemble.labels(rows)
    elif rule == "seed":
        labels = seed_labels(domain, findings, seeds, train)
    else:
        labels = twin_labels(Network(module, domain), domain, rows, train.rows)
    known = labels != UNLABELLED
    if not bool(known.any()):
        raise NeuronFairError(
            "no finding was reached from a training row, so no label is known. Choose --label ensemble or twins"
        )
    return torch.stack([rows, findings.twins(domain)], 1)[known], labels[known]


def _choose(start: Outcome, results: list[Outcome], max_loss: float) -> int:
    """Return the number of the repeat to keep."""
    if math.isinf(max_loss):
        return min(range(len(results)), key=lambda i: results[i].rate)
    allowed = [i for i, result in enumerate(results) if result.accuracy >= start.accuracy - max_loss]
    if not allowed:
        best = max(result.accuracy for result in results)
        raise NeuronFairError(
            f"no repeat keeps the accuracy: on the validation rows it falls from {percent(start.accuracy)} to "
            f"{percent(best)} at best, and {percent(max_loss)} may be lost. Allow more with --max-loss, or try another "
            "--label or --share"
        )
    if min(results[i].rate for i in allowed) >= start.rate:
        raise NeuronFairError(
            f"no repeat that keeps the accuracy discriminates fewer people than before ({percent(start.rate)}). Search "
            "longer for more findings, or try another --label or a larger --share"
        )
    return min(allowed, key=lambda i: results[i].rate)
