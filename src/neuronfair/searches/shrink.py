"""Shrinking findings: the smallest change of a real row that still discriminates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import split_families
from neuronfair.parameters import named_options
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.evaluate import Pairs, evaluate
from neuronfair.searches.findings import NO_SEED

STEPS_PER_RANGE = 256  # bisection ends at a 256th of an attribute's range: finer steps cost calls and show no more


@named_options({"network": "model"})
def shrink(model: Model, domain: TableDomain, rows: Tensor, seeds: Tensor, decision: Decision | None = None) -> Tensor:
    """Return for each finding a row that still discriminates, as near to its seed as possible: (n, d).

    First whole attributes are reset to the seed, the most changed ones first; then ordered attributes are moved
    towards the seed by bisection, to a 256th of their range; both until nothing changes. In the result no single
    attribute can be reset. Sensitive values stay, rules hold, and a row that does not discriminate stays as it is.
    """
    if len(rows) != len(seeds):
        raise NeuronFairError(f"every finding needs its own seed: got {len(rows)} findings and {len(seeds)} seeds")

    def is_finding(trials: Tensor) -> Tensor:
        valid = domain.valid(trials)
        chosen = valid.nonzero()[:, 0]
        for (part,) in zip(*split_families(model.encoding, domain, chosen), strict=True):
            valid[part] = evaluate(model, domain, trials[part], decision).discriminates
        return valid

    result, goals = rows.clone(), domain.clip(seeds)
    goals[:, ~domain.changeable] = rows[:, ~domain.changeable]
    remaining = is_finding(result).nonzero()[:, 0]
    result[remaining] = _accept_trials(result[remaining], goals[remaining], is_finding)
    while len(remaining):
        before, goal = result[remaining], goals[remaining]
        result[remaining] = _bisect(_reset_attributes(before, goal, domain, is_finding), goal, domain, is_finding)
        remaining = remaining[(result[remaining] != before).any(1)]
    return result


_Check = Callable[[Tensor], Tensor]


def _accept_trials(rows: Tensor, trials: Tensor, is_finding: _Check) -> Tensor:
    """Return the trials that still discriminate, and the rows in place of the others."""
    changed = (trials != rows).any(1).nonzero()[:, 0]
    accepted = changed[is_finding(trials[changed])]
    return rows.index_put((accepted,), trials[accepted])


def _reset_attributes(rows: Tensor, goals: Tensor, domain: TableDomain, is_finding: _Check) -> Tensor:
    """Reset whole attributes to the goal, one at a time, until none can be reset."""
    while True:
        span = torch.where(domain.is_ordered, domain.sizes - 1, 1).clamp(min=1)
        change = torch.where(domain.is_ordered, (rows - goals).abs(), (rows != goals).long()) / span
        order = change.argsort(dim=1, descending=True, stable=True)
        before = rows
        for rank in range(order.shape[1]):
            column = order[:, rank : rank + 1]
            rows = _accept_trials(rows, rows.scatter(1, column, goals.gather(1, column)), is_finding)
        if torch.equal(rows, before):
            return rows


def _bisect(rows: Tensor, goals: Tensor, domain: TableDomain, is_finding: _Check) -> Tensor:
    """Move ordered attributes towards the goal by bisection, column by column."""
    for column in domain.is_ordered.nonzero()[:, 0].tolist():
        # There is nothing between a number and an empty cell.
        is_on_grid = torch.maximum(rows[:, column], goals[:, column]) < domain.grid_sizes[column]
        failing = torch.where(is_on_grid, goals[:, column], rows[:, column])
        step = max(1, int(domain.sizes[column]) // STEPS_PER_RANGE)
        while bool(((rows[:, column] - failing).abs() > step).any()):
            middle = torch.div(rows[:, column] + failing, 2, rounding_mode="floor")
            is_far = (rows[:, column] - failing).abs() > step
            trials = rows.clone()
            trials[:, column] = torch.where(is_far, middle, rows[:, column])
            rows = _accept_trials(rows, trials, is_finding)
            failing = torch.where(is_far & (rows[:, column] != middle), middle, failing)
    return rows


MAX_EXAMPLE_CANDIDATES = 10_000  # findings with the widest gaps, among which the examples are chosen


def shrink_examples(outcome: SearchResult, model: Model, count: int) -> tuple[Pairs, Tensor]:
    """Return the findings with the widest score gaps, shrunk, one for each seed at most, and the seeds' own rows."""
    findings, domain, decision = outcome.findings, outcome.domain, outcome.config.decision
    findings = findings[findings.origin != NO_SEED]
    gaps = decision.gap(findings.scores, findings.twin_scores)
    worst = findings[gaps.topk(min(len(gaps), MAX_EXAMPLE_CANDIDATES)).indices]
    _, first = np.unique(worst.origin.cpu().numpy(), return_index=True)
    worst = worst[torch.from_numpy(np.sort(first)[:count]).to(domain.device)]
    seeds = domain.clip(outcome.seeds[worst.origin])
    rows = shrink(model, domain, worst.rows, seeds, decision)
    return evaluate(model, domain, rows, decision).pairs(), seeds
