"""Training a model again: an estimator in its own framework, a module from the weights that it has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.train import linear_layers, stackable, train_module, train_stack
from neuronfair.model.training_loop import Note, Rows, TrainingSettings
from neuronfair.model.weights import fully_connected

LOOKED_AT = 1000  # rows that tell whether scores are shares
STEPS, MIN_STEPS = 20, 16  # of an epoch, at least, and rows of a step, for modules whose inputs are not standardised
TINY = 1e-7  # the smallest share whose logarithm is taken


@dataclass(frozen=True)
class Lesson:
    """Rows and labels that several learn from, which of them each learns from, (k, n), and those held to stop by."""

    learned: Rows
    lines: Tensor
    held: Rows


class Logits(nn.Module):
    """Makes logits of classes of a module's scores: of shares the logarithm, of one score two."""

    def __init__(self, *, shares: bool, threshold: float) -> None:
        super().__init__()
        self.shares, self.threshold = shares, threshold

    def forward(self, scores: Tensor) -> Tensor:
        """Return one logit for each class: (n, classes)."""
        scores = scores.unsqueeze(1) if scores.dim() == 1 else scores
        if scores.shape[1] == 1:
            other = 1 - scores if self.shares else torch.full_like(scores, self.threshold)
            scores = torch.cat([other, scores], 1)
        return scores.clamp(min=TINY).log() if self.shares else scores


def check_trainable(opened: Opened, data: Dataset) -> None:
    """Refuse a model that cannot be trained again here, or that decides something else than the table's labels."""
    otherwise = "Add the pairs to the data that it is trained with: --augment pairs.csv"
    target = data.domain.target
    if opened.refit is None and (
        opened.module is None or not any(p.requires_grad for p in _start(opened).parameters())
    ):
        raise ModelError(f"{opened.source}: {opened.kind} of this kind cannot be trained again here. {otherwise}")
    outputs, classes = opened.model.outputs, 0 if target is None else len(target.classes)
    if opened.decision.classes(outputs) != classes:
        raise ModelError(f"{opened.source}: has {outputs} outputs, but {data.name} has {classes} classes. {otherwise}")


def trained(
    opened: Opened,
    lesson: Lesson,
    settings: TrainingSettings,
    *,
    seed: int,
    fresh: bool = False,
    progress: Note | None = None,
) -> list[Opened]:
    """Train one model for each line of a lesson; `fresh` networks start anew, estimators always do.

    Fully connected ReLU networks are trained as one stack.
    """
    rows, labels = lesson.learned
    if opened.refit is not None:
        models = []
        for number, line in enumerate(lesson.lines):
            models.append(opened.refit(rows[line], labels[line], seed + number))
            if progress is not None:
                progress(number + 1, {})
        return models
    network, module = opened.model, opened.module
    assert isinstance(network, Network)
    assert module is not None
    encode = network.encoding.encode
    x, held = encode(rows), (encode(lesson.held[0]), lesson.held[1])
    if opened.decision.kind == "argmax" and (plain := stackable([module])) is not None:
        results = train_stack(
            _starting(plain[0], fresh),
            (x, labels),
            chosen=lesson.lines,
            validation=held,
            settings=settings,
            seed=seed,
            fresh=fresh,
            progress=progress,
        )
        return [opened.with_module(result.module) for result in results]
    shares, threshold = _are_shares(opened, rows[:LOOKED_AT]), opened.decision.boundary

    def start() -> nn.Sequential:
        return nn.Sequential(_start(opened), Logits(shares=shares, threshold=threshold))

    batch = min(settings.batch, max(MIN_STEPS, lesson.lines.shape[1] // STEPS))
    once = replace(settings, restarts=1, batch=batch)
    note = None if progress is None else lambda _, epoch, loss: progress(epoch, {0: loss})
    done = [
        train_module(
            start, x[line], labels[line], validation=held, settings=once, seed=seed, fresh=False, progress=note
        )
        for line in lesson.lines
    ]
    return [opened.with_module(result.module[0]) for result in done]


def _start(opened: Opened) -> nn.Module:
    """Return a copy of the module of which all may be trained that training may change."""
    module = copy.deepcopy(opened.module)
    assert module is not None
    if opened.unlock is not None:
        opened.unlock(module)
    return module


def _are_shares(opened: Opened, rows: Tensor) -> bool:
    """Return whether the scores are probabilities: from 0 to 1, and all together 1 if there are several."""
    scores = opened.model.scores(rows).double()
    inside = bool(((scores >= 0) & (scores <= 1)).all())
    if scores.shape[1] == 1:
        return inside and opened.decision.boundary > 0
    return inside and torch.allclose(scores.sum(1), torch.ones(len(scores), dtype=torch.float64), atol=1e-3)


def _starting(module: nn.Sequential, fresh: bool) -> Callable[[], nn.Sequential]:
    """Return what makes the network as it is, or an untrained one of the same sizes."""
    if not fresh:
        return lambda: copy.deepcopy(module)
    layers = linear_layers(module)
    *hidden, outputs = [layer.out_features for layer in layers]
    return lambda: fully_connected(layers[0].in_features, hidden, outputs)
