"""Retraining: pairs of records for which the decision flips join the training rows with one label for both."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from experiments.repairs.evaluate import RepairOutcome, outcomes
from experiments.repairs.labels import Ensemble, from_training_rows
from experiments.repairs.stacks import train_stack
from neuronfair.domain.tables.dataset import Dataset, Split
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import percent
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.training_loop import EpochCallback, Rows, TrainingSettings
from neuronfair.searches.findings import Findings

import torch
from torch import Tensor, nn

MAX_PAIRS = 20_000  # pairs that join at most, however many were found; on Adult 10,000 helped less
VALIDATION_ONE_IN = 8  # one in so many of the drawn pairs is kept for validation, at most
MIN_VALIDATION_PAIRS = 500  # pairs kept for validation beside a small table
SAMPLES = 10_000  # records drawn from the domain, on which the repeats are compared
#: Larger batches and steps than in the first training, and an earlier end: a third less time than with steps of 0.001,
#: and as fair. Steps of 0.003 cost small tables their accuracy.
TRAINING = TrainingSettings(batch=256, lr=0.002, patience=4)


@dataclass(frozen=True)
class RepairSettings:
    """How a network is repaired; turning neurons down uses `max_loss` and `seed` only."""

    share: float = 0.1  # of the findings that join
    repeats: int = 5
    max_loss: float = 0.01  # of accuracy on validation rows; inf: whatever it costs, and even if it does not help
    training: TrainingSettings = TRAINING
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise NeuronFairError(f"the share of the findings must be above 0 and at most 1, got {self.share}")
        if self.repeats < 1:
            raise NeuronFairError(f"there must be at least one repeat, got {self.repeats}")

    def joining(self, pairs: int) -> int:
        """Return how many of so many pairs join."""
        return min(MAX_PAIRS, max(1, round(self.share * pairs)))


@dataclass(frozen=True)
class Retraining:
    """The retrained network, and the outcomes of every repeat and of a retraining without findings.

    All are measured on the test rows and on drawn records that played no part in the choice. `ensemble` is the accuracy
    on the test rows of the networks that label the findings.
    """

    module: nn.Sequential
    chosen: int
    pairs: int
    before: RepairOutcome
    repeats: tuple[RepairOutcome, ...]
    without: RepairOutcome
    ensemble: float

    @property
    def after(self) -> RepairOutcome:
        """The outcome of the repeat that was chosen."""
        return self.repeats[self.chosen]


@dataclass(frozen=True)
class _Lesson:
    """Rows and labels that several learn from, which of them each learns from, (k, n), and those held to stop by."""

    learned: Rows
    lines: Tensor
    held: Rows


def retrain(
    module: nn.Sequential,
    parts: Split,
    findings: Findings,
    seeds: Tensor,
    settings: RepairSettings | None = None,
    *,
    ensemble: Ensemble | None = None,
    control: nn.Sequential | None = None,
    progress: EpochCallback | None = None,
) -> Retraining:
    """Train a network again on the training rows and a share of the findings, several times, and keep the best.

    Both records of a pair join with the same label, the vote of an ensemble that does not see the sensitive attribute.
    Findings that have to do with a validation or test row are left out. The repeats draw different pairs. Some pairs
    join the validation rows, or training would stop before the network had become fair. Kept is the repeat with the
    fewest flips among those that lose at most `max_loss` of the accuracy on validation rows. An `ensemble` or a
    `control` (`without_findings`) that is at hand saves the time to train it.
    """
    settings = settings or RepairSettings()
    domain = parts.train.domain
    if not parts.train.labelled:
        raise NeuronFairError(
            f"{parts.train.name}: the rows have no labels, so nothing can be trained. Give the target column"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    findings = from_training_rows(parts, findings, seeds)
    ensemble = ensemble or Ensemble(parts, seed=settings.seed)
    pairs, labels = torch.stack([findings.rows, findings.twins(domain)], 1), ensemble.labels(findings.rows)
    count = settings.joining(len(pairs))
    order = torch.randperm(len(pairs), generator=generator)
    # About as many records of pairs as validation rows, lest either decide alone when the training stops.
    kept = min(count // VALIDATION_ONE_IN, max(MIN_VALIDATION_PAIRS, len(parts.validation) // 2))
    held, rest = order[:kept], order[kept:]
    drawn = [rest[torch.randperm(len(rest), generator=generator)[:count]] for _ in range(settings.repeats)]
    tried = torch.cat([parts.validation.rows, domain.sample(SAMPLES, generator)])
    fresh = domain.sample(SAMPLES, generator)
    modules = _trained(module, _encoding(parts), _lesson(parts, pairs, labels, drawn, held), settings, progress)
    plain = control or without_findings(module, parts, settings, progress=progress)
    start, *results = outcomes([module, *modules], parts.validation, tried)
    chosen = _choose(start, results, settings.max_loss)
    before, without, *after = outcomes([module, plain, *modules], parts.test, fresh)
    right = float((ensemble.labels(parts.test.rows) == parts.test.labels).double().mean())
    return Retraining(modules[chosen], chosen, len(drawn[0]), before, tuple(after), without, right)


def without_findings(
    module: nn.Sequential,
    parts: Split,
    settings: RepairSettings | None = None,
    *,
    progress: EpochCallback | None = None,
) -> nn.Sequential:
    """Train a network again on the training rows alone: the control of `retrain`."""
    none = torch.empty(0, dtype=torch.int64)
    lesson = _lesson(parts, parts.train.rows.new_empty(0, 2, parts.train.rows.shape[1]), none, [none], none)
    return _trained(module, _encoding(parts), lesson, settings or RepairSettings(), progress)[0]


def _encoding(parts: Split) -> TableEncoding:
    """Return how our own networks read the rows of a data set."""
    return TableEncoding.of(parts.train.domain)


def _trained(
    module: nn.Sequential,
    encoding: TableEncoding,
    lesson: _Lesson,
    settings: RepairSettings,
    progress: EpochCallback | None,
) -> list[nn.Sequential]:
    """Train one network for each line of a lesson, all as one stack."""
    (rows, labels), (held, held_labels) = lesson.learned, lesson.held
    results = train_stack(
        lambda: copy.deepcopy(module),
        (encoding.encode(rows), labels),
        chosen=lesson.lines,
        validation=(encoding.encode(held), held_labels),
        settings=settings.training,
        seed=settings.seed,
        fresh=False,
        progress=progress,
    )
    return [result.module for result in results]


def _lesson(parts: Split, pairs: Tensor, labels: Tensor, chosen: list[Tensor], kept: Tensor) -> _Lesson:
    """Return all rows that any repeat learns from with their labels, which of them each learns from, and those held.

    The pairs that several repeats have drawn are there once.
    """
    used, place = torch.unique(torch.cat(chosen), return_inverse=True)
    n, own = len(parts.train), torch.arange(len(parts.train))
    first = n + 2 * place.view(len(chosen), -1)
    lines = torch.cat([own.expand(len(chosen), -1), first, first + 1], 1)

    def joined(part: Dataset, some: Tensor) -> Rows:
        rows = torch.cat([part.rows, pairs[some].flatten(0, 1)])
        return rows, torch.cat([part.labels, labels[some].repeat_interleave(2)])

    return _Lesson(joined(parts.train, used), lines, joined(parts.validation, kept))


def _choose(start: RepairOutcome, results: list[RepairOutcome], max_loss: float) -> int:
    """Return the number of the repeat to keep."""
    if math.isinf(max_loss):
        return min(range(len(results)), key=lambda i: results[i].rate)
    allowed = [i for i, result in enumerate(results) if result.accuracy >= start.accuracy - max_loss]
    if not allowed:
        best = max(result.accuracy for result in results)
        raise NeuronFairError(
            f"no repeat keeps the accuracy: on the validation rows it falls from {percent(start.accuracy)} to "
            f"{percent(best)} at best, and {percent(max_loss)} may be lost. Allow more with --max-loss, or try another "
            "--share"
        )
    if min(results[i].rate for i in allowed) >= start.rate:
        raise NeuronFairError(
            f"no repeat that keeps the accuracy has fewer flips than before ({percent(start.rate)}). Search "
            "longer for more findings, or try a larger --share"
        )
    return min(allowed, key=lambda i: results[i].rate)
