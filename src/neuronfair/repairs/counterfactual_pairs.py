"""CounterfactualTwins as training data: a person's label is that of their counterpart, too."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.population.counterfactuals import CounterfactualTwins, fit_counterfactuals, with_counterfactuals
from neuronfair.domain.tables.dataset import Dataset, Split
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, Thoroughness, counterfactual_effect
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.repairs.training import Lesson

PLACEBOS = 20  # tables with shuffled groups, beside which a repair is shown


class Lessons(NamedTuple):
    """What is learned with counterparts and, as a control, without them."""

    parts: Split  # whose people are compared with their typical counterparts
    alike: Lesson
    plain: Lesson
    pairs: int  # that join in one repeat


def draw_counterfactuals(data: Dataset, how: CounterfactualTwins, generator: torch.Generator) -> Tensor:
    """Draw one counterpart of each person, of another group that is drawn by how many people it has: (n, d).

    Who has none is their own.
    """
    domain, rows = data.domain, data.domain.clip(data.rows)
    own = domain.combinations.number(rows).cpu()
    chances = (torch.bincount(own, minlength=len(domain.sensitive_values)) * how.groups.cpu()).double() + 1e-9
    others = chances.expand(len(rows), -1).scatter(1, own[:, None], 0.0)
    ahead = (torch.multinomial(others, 1, generator=generator) - own[:, None]) % len(chances)
    u = torch.rand(rows.shape, generator=generator, dtype=torch.float64)
    twins = how.transported(domain, rows, ahead.to(rows.device), u.to(rows.device))
    return torch.where(twins.valid, twins.rows[:, 0], rows)


def counterfactual_pairs(data: Dataset, seed: int) -> tuple[Tensor, Tensor]:
    """Return each person with a counterpart, (n, 2, d), and the person's label for both, (n,)."""
    how = fit_counterfactuals(data.domain, data.rows)
    rows = draw_counterfactuals(data, how, torch.Generator().manual_seed(seed))
    return torch.stack([data.domain.clip(data.rows), rows], 1), data.labels


def counterfactual_lessons(parts: Split, repeats: int, generator: torch.Generator) -> Lessons:
    """Return what each repeat learns: the training rows, and of each of them one counterpart with the same label.

    So at each place people of all groups are taught, as many as belong there by their group or as counterparts. The
    counterparts are learned from training rows only. Those of validation rows join them, or the training would stop by
    rows of which none says that people are alike. Who has no counterpart stands twice.
    """
    train, validation = parts.train, parts.validation
    how = fit_counterfactuals(train.domain, train.rows)
    n, own = len(train), torch.arange(len(train))
    drawn = [draw_counterfactuals(train, how, generator) for _ in range(repeats)]
    lines = torch.stack([torch.cat([own, own + n * number]) for number in range(1, repeats + 1)])
    others = draw_counterfactuals(validation, how, generator)
    held = torch.cat([validation.rows, others]), validation.labels.repeat(2)
    alike = Lesson((torch.cat([train.rows, *drawn]), train.labels.repeat(1 + repeats)), lines, held)
    plain = Lesson((train.rows, train.labels), own[None], (validation.rows, validation.labels))
    domain = with_counterfactuals(train.domain, how)
    compared = Split(*(replace(part, domain=domain) for part in parts))
    return Lessons(compared, alike, plain, n)


def held_out_effect(
    model: Model,
    parts: Split,
    decision: Decision,
    *,
    confidence: float = 0.95,
    placebos: int | None = None,
    seed: int = 0,
) -> CounterfactualEffect:
    """Compare the people of the test part with their counterparts, which are learned from the whole table."""
    rows = torch.cat([part.rows for part in parts])
    held = torch.arange(len(rows) - len(parts.test), len(rows), device=rows.device)
    thorough = Thoroughness(placebos=placebos or PLACEBOS, people=held)
    return counterfactual_effect(
        model, parts.test.domain, rows, decision=decision, thorough=thorough, confidence=confidence, seed=seed
    )
