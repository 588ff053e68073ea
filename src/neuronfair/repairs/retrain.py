"""Retraining: pairs of people for whom the decision flips join the training rows with one label for both."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from neuronfair.domain.tables.dataset import Dataset, Split
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import percent
from neuronfair.model.open import Opened
from neuronfair.model.training_loop import Note, Rows, TrainingSettings
from neuronfair.repairs.counterfactual_pairs import counterfactual_lessons
from neuronfair.repairs.evaluate import RepairOutcome, outcomes_of
from neuronfair.repairs.labels import Ensemble, check_rule, from_training_rows, labelled_pairs
from neuronfair.repairs.training import Lesson, trained
from neuronfair.searches.findings import Findings

OWN = "own"  # the label of a counterpart: that of its person
MAX_PAIRS = 20_000  # pairs that join at most, however many were found; on Adult 10,000 helped less
VALIDATION_ONE_IN = 8  # one in so many of the drawn pairs is kept for validation, at most
MIN_VALIDATION_PAIRS = 500  # pairs kept for validation beside a small table
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

    def joining(self, pairs: int) -> int:
        """Return how many of so many pairs join."""
        return min(MAX_PAIRS, max(1, round(self.share * pairs)))


@dataclass(frozen=True)
class Retraining:
    """The retrained model, and how every repeat and a retraining without findings did.

    `repeats` and `without` are measured on the test rows and on drawn people who played no part in the choice.
    `ensemble` is the accuracy on the test rows of the networks that do not see the sensitive attributes, if they voted.
    """

    kept: Opened
    label: str
    chosen: int
    pairs: int
    before: RepairOutcome
    repeats: tuple[RepairOutcome, ...]
    without: RepairOutcome
    ensemble: float | None
    anew: bool = False  # an estimator that was fitted anew: what it costs, the fit without findings tells
    control: Opened | None = None  # the model of the retraining without them

    @property
    def after(self) -> RepairOutcome:
        """The outcome of the one that was chosen."""
        return self.repeats[self.chosen]


def retrain(
    opened: Opened,
    parts: Split,
    findings: Findings,
    seeds: Tensor,
    settings: RepairSettings | None = None,
    *,
    ensemble: Ensemble | None = None,
    control: Opened | None = None,
    progress: Note | None = None,
) -> Retraining:
    """Train a model again on the training rows and a share of the findings, several times, and keep the best.

    Findings that were reached from a validation or test row are left out: these rows are for evaluation only. Both
    people of a pair join, with the same label: what the model is to learn is that they are alike. The repeats
    draw different pairs. Some pairs join the validation rows, or the training of a network would stop before it had
    become fair. Kept is the repeat that discriminates the fewest people, among those that lose at most `max_loss` of
    the accuracy on validation rows. A network is compared with what it was; an estimator, which starts anew and may
    have been fitted to the validation rows before, loses what it loses beside the same fit without findings. An
    `ensemble` that is at hand, or a `control` (the model of the same retraining without findings, which does not
    depend on them: `without_findings`), saves the time to train it.
    """
    settings = settings or RepairSettings()
    train, domain = parts.train, parts.train.domain
    _check_labels(train)
    generator = torch.Generator().manual_seed(settings.seed)
    ensemble = (ensemble or Ensemble(parts, seed=settings.seed)) if settings.label == "ensemble" else None
    findings = from_training_rows(parts, findings, seeds)
    pairs, labels = labelled_pairs(train, findings, seeds, settings.label, ensemble=ensemble, voter=opened)
    count = settings.joining(len(pairs))
    order = torch.randperm(len(pairs), generator=generator)
    # About as many people of pairs as validation rows, lest either decide alone when the training stops.
    kept = (
        0
        if opened.refit is not None
        else min(count // VALIDATION_ONE_IN, max(MIN_VALIDATION_PAIRS, len(parts.validation) // 2))
    )
    held, rest = order[:kept], order[kept:]
    drawn = [rest[torch.randperm(len(rest), generator=generator)[:count]] for _ in range(settings.repeats)]
    lessons = _lesson(parts, pairs, labels, drawn, held), _plain(parts)
    people = torch.cat([parts.validation.rows, domain.sample(SAMPLES, generator)]), domain.sample(SAMPLES, generator)
    work = _tried(opened, parts, lessons, people, settings, progress, control)
    right = None if ensemble is None else float((ensemble.labels(parts.test.rows) == parts.test.labels).double().mean())
    return replace(work, label=settings.label, pairs=len(drawn[0]), ensemble=right)


def without_findings(opened: Opened, parts: Split, settings: RepairSettings | None = None) -> Opened:
    """Train a model again on the training rows alone, as `retrain` does in addition to its repeats."""
    settings = settings or RepairSettings()
    return trained(opened, _plain(parts), settings.training, seed=settings.seed, fresh=settings.fresh)[0]


def retrain_with_counterfactuals(
    opened: Opened, parts: Split, settings: RepairSettings | None = None, *, progress: Note | None = None
) -> Retraining:
    """Train a model again on the training rows and their counterparts, several times, and keep the best.

    A counterpart has the label of its person. The repeats draw different ones; kept is the repeat of those that lose at
    most `max_loss` that decides the fewest people otherwise than their typical counterpart.
    """
    settings = settings or RepairSettings()
    _check_labels(parts.train)
    generator = torch.Generator().manual_seed(settings.seed)
    lessons = counterfactual_lessons(parts, settings.repeats, generator)
    people = parts.validation.rows, parts.test.rows
    work = _tried(opened, lessons.parts, (lessons.alike, lessons.plain), people, settings, progress)
    return replace(work, label=OWN, pairs=lessons.pairs)


def _check_labels(train: Dataset) -> None:
    if not train.labelled:
        raise NeuronFairError(
            f"{train.name}: the rows have no labels, so nothing can be trained. Give the target column"
        )


def _tried(
    opened: Opened,
    parts: Split,
    lessons: tuple[Lesson, ...],
    people: tuple[Tensor, Tensor],
    settings: RepairSettings,
    progress: Note | None,
    control: Opened | None = None,
) -> Retraining:
    """Train with a lesson, and without its pairs; choose by some people and validation rows, and tell by others."""
    learn = partial(trained, opened, settings=settings.training, seed=settings.seed, progress=progress)
    models = learn(lessons[0], fresh=settings.fresh)
    plain = control or learn(lessons[1], fresh=settings.fresh)[0]
    start, beside, *results = outcomes_of([opened, plain, *models], parts.validation, people[0], opened.decision)
    if opened.refit is not None:
        start = replace(start, accuracy=beside.accuracy)
    chosen = _choose(start, results, settings.max_loss)
    before, without, *after = outcomes_of([opened, plain, *models], parts.test, people[1], opened.decision)
    anew = opened.refit is not None
    return Retraining(models[chosen], OWN, chosen, 0, before, tuple(after), without, None, anew, plain)


def _lesson(parts: Split, pairs: Tensor, labels: Tensor, chosen: list[Tensor], kept: Tensor) -> Lesson:
    """Return all rows that anybody learns from with their labels, which of them each learns from, and those held.

    The pairs that several repeats have drawn are there once.
    """
    used, place = torch.unique(torch.cat(chosen), return_inverse=True)
    n, own = len(parts.train), torch.arange(len(parts.train))
    first = n + 2 * place.view(len(chosen), -1)
    lines = torch.cat([own.expand(len(chosen), -1), first, first + 1], 1)

    def joined(part: Dataset, some: Tensor) -> Rows:
        rows = torch.cat([part.rows, pairs[some].flatten(0, 1)])
        return rows, torch.cat([part.labels, labels[some].repeat_interleave(2)])

    return Lesson(joined(parts.train, used), lines, joined(parts.validation, kept))


def _plain(parts: Split) -> Lesson:
    """Return a lesson without any pairs."""
    train, none = parts.train, torch.empty(0, dtype=torch.int64)
    return _lesson(parts, train.rows.new_empty(0, 2, train.rows.shape[1]), none, [none], none)


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
            "--label or --share"
        )
    if min(results[i].rate for i in allowed) >= start.rate:
        raise NeuronFairError(
            f"no repeat that keeps the accuracy discriminates fewer people than before ({percent(start.rate)}). Search "
            "longer for more findings, or try another --label or a larger --share"
        )
    return min(allowed, key=lambda i: results[i].rate)
