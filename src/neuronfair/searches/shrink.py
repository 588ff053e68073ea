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
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.evaluate import Pairs, evaluate
from neuronfair.searches.findings import NO_SEED

STEPS_PER_RANGE = 256  # bisection ends at a 256th of an attribute's range: finer steps cost calls and show no more


def shrink(
    network: Model, domain: TableDomain, rows: Tensor, seeds: Tensor, decision: Decision | None = None
) -> Tensor:
    """Return for each finding a row that still discriminates, as near to its seed as possible: (n, d).

    First whole attributes are reset to the seed, the most changed ones first; then ordered attributes are moved
    towards the seed by bisection, to a 256th of their range; both until nothing changes. In the result no single
    attribute can be reset. Sensitive values stay, rules hold, and a row that does not discriminate stays as it is.
    """
    if len(rows) != len(seeds):
        raise NeuronFairError(f"every finding needs its own seed: got {len(rows)} findings and {len(seeds)} seeds")

    def holds(trials: Tensor) -> Tensor:
        good = domain.valid(trials)
        chosen = good.nonzero()[:, 0]
        for (part,) in zip(*split_families(network.encoding, domain, chosen), strict=True):
            good[part] = evaluate(network, domain, trials[part], decision).discriminates
        return good

    result, goals = rows.clone(), domain.clip(seeds)
    goals[:, ~domain.changeable] = rows[:, ~domain.changeable]
    left = holds(result).nonzero()[:, 0]
    result[left] = _accepted(result[left], goals[left], holds)
    while len(left):
        before, goal = result[left], goals[left]
        result[left] = _bisected(_reset(before, goal, domain, holds), goal, domain, holds)
        left = left[(result[left] != before).any(1)]
    return result


_Holds = Callable[[Tensor], Tensor]


def _accepted(rows: Tensor, trials: Tensor, holds: _Holds) -> Tensor:
    """Return the trials that still discriminate, and the rows in place of the others."""
    changed = (trials != rows).any(1).nonzero()[:, 0]
    kept = changed[holds(trials[changed])]
    return rows.index_put((kept,), trials[kept])


def _reset(rows: Tensor, goals: Tensor, domain: TableDomain, holds: _Holds) -> Tensor:
    """Reset whole attributes to the goal, one at a time, until none can be reset."""
    while True:
        span = torch.where(domain.is_ordered, domain.sizes - 1, 1).clamp(min=1)
        change = torch.where(domain.is_ordered, (rows - goals).abs(), (rows != goals).long()) / span
        order = change.argsort(dim=1, descending=True, stable=True)
        before = rows
        for rank in range(order.shape[1]):
            column = order[:, rank : rank + 1]
            rows = _accepted(rows, rows.scatter(1, column, goals.gather(1, column)), holds)
        if torch.equal(rows, before):
            return rows


def _bisected(rows: Tensor, goals: Tensor, domain: TableDomain, holds: _Holds) -> Tensor:
    """Move ordered attributes towards the goal by bisection, column by column."""
    for column in domain.is_ordered.nonzero()[:, 0].tolist():
        # There is nothing between a number and an empty cell.
        whole = torch.maximum(rows[:, column], goals[:, column]) < domain.grid_sizes[column]
        fails = torch.where(whole, goals[:, column], rows[:, column])
        near = max(1, int(domain.sizes[column]) // STEPS_PER_RANGE)
        while bool(((rows[:, column] - fails).abs() > near).any()):
            middle = torch.div(rows[:, column] + fails, 2, rounding_mode="floor")
            apart = (rows[:, column] - fails).abs() > near
            trials = rows.clone()
            trials[:, column] = torch.where(apart, middle, rows[:, column])
            rows = _accepted(rows, trials, holds)
            fails = torch.where(apart & (rows[:, column] != middle), middle, fails)
    return rows


MAX_EXAMPLE_CANDIDATES = 10_000  # findings with the widest gaps, among which the examples are chosen


def examples(outcome: SearchResult, network: Model, count: int) -> tuple[Pairs, Tensor]:
    """Return the findings with the widest score gaps, shrunk, one for each seed at most, and the seeds' own rows."""
    findings, domain, decision = outcome.findings, outcome.domain, outcome.config.decision
    findings = findings[findings.origin != NO_SEED]
    gaps = decision.gap(findings.scores, findings.twin_scores)
    worst = findings[gaps.topk(min(len(gaps), MAX_EXAMPLE_CANDIDATES)).indices]
    _, first = np.unique(worst.origin.cpu().numpy(), return_index=True)
    worst = worst[torch.from_numpy(np.sort(first)[:count]).to(domain.device)]
    seeds = domain.clip(outcome.seeds[worst.origin])
    rows = shrink(network, domain, worst.rows, seeds, decision)
    return evaluate(network, domain, rows, decision).pairs(), seeds
