"""Who was judged and who was found, counted once each and never beyond the budget.

Steps are put aside as they are judged and counted many at a time: on a GPU nothing waits for the host meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.population import PopulationModel
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.search.budget import Budget
from neuronfair.search.findings import Findings
from neuronfair.search.judge import Judgement, not_finite
from neuronfair.search.judged import DOUBTFUL, FOUND, MISS, REJECTED, is_sampled, judged_lines, kind_of, with_kind
from neuronfair.search.keys import KeySet
from neuronfair.search.method import State, World

Limit = Literal["instances", "findings"]
PENDING = {"cpu": 1 << 16, "cuda": 1 << 23}  # judged rows that are put aside before they are counted
WIDE = 256  # codes of a row, from which on fewer are put aside: pictures have very many


class _Step(NamedTuple):
    """What is kept of a judged step until it is counted: one line per walker each."""

    rows: Tensor  # in the compact type
    keys: Tensor
    hits: Tensor
    doubtful: Tensor
    own: Tensor  # which member of the family stands for it, and which one is decided otherwise
    other: Tensor
    scores: Tensor
    twin_scores: Tensor
    origin: Tensor
    place: Tensor
    step: Tensor


@dataclass(frozen=True)
class Share:
    """Which part of the walkers of a phase these are: the place of the first, and how many there are in all."""

    first: int = 0
    walkers: int | None = None  # None: these are all


WHOLE = Share()


class Tally:
    """The account of a phase."""

    def __init__(self, world: World, budget: Budget, seen: KeySet, *, keep: bool, walkers: int) -> None:
        self._world, self._budget, self._seen, self._keep, self._walkers = world, budget, seen, keep, walkers
        self._limited = budget.instances is not None or budget.findings is not None
        self._most = PENDING.get(world.domain.device.type, PENDING["cpu"]) // (1 + world.domain.codes_per_row // WIDE)
        self._pending: list[_Step] = []
        self._waiting = 0  # rows in them
        self._sound = torch.ones((), dtype=torch.bool, device=world.domain.device)
        self._parts: list[Findings] = []
        self._lines: list[Tensor] = []
        self._saved = 0
        self.tried = self.found = self.confirmed = 0

    @property
    def stop(self) -> Limit | None:
        """The limit that is reached, if any."""
        if self._budget.instances is not None and self.tried >= self._budget.instances:
            return "instances"
        if self._budget.findings is not None and self.found >= self._budget.findings:
            return "findings"
        return None

    def take(self, before: Findings, keys: Tensor) -> None:
        """Start from what an interrupted run has left."""
        self._parts, self._saved = [before], 1
        self._seen.add(keys)
        self.tried = before.tried
        self.found = self.confirmed = len(before)

    def record(self, state: State, judgement: Judgement, doubtful: Tensor | None, t: int) -> None:
        """Put a judged batch aside; hits that are `doubtful` were none in float64."""
        domain, rows, pair = self._world.domain, judgement.rows, judgement.pair
        self._sound = self._sound & torch.isfinite(judgement.family).all()
        if rows.device.type == "cpu" and not bool(self._sound):
            raise not_finite()
        doubtful = torch.zeros_like(judgement.discriminates) if doubtful is None else doubtful
        lines = (rows.to(domain.compact), domain.key(rows), judgement.discriminates, doubtful, *pair)
        self._pending.append(_Step(*lines, state["origin"], state["place"], torch.full_like(state["origin"], t)))
        self._waiting += len(rows)
        if self._waiting >= self._most or self._may_be_the_last():
            self.count()

    def _may_be_the_last(self) -> bool:
        """Whether a limit may be reached by what is put aside: nobody beyond it is to be judged."""
        limits = ((self._budget.instances, self.tried), (self._budget.findings, self.found))
        return any(limit is not None and so_far + self._waiting >= limit for limit, so_far in limits)

    def count(self) -> None:
        """Count what was put aside and keep its findings."""
        if not self._pending:
            return
        steps = _Step(*(torch.cat(parts) for parts in zip(*self._pending, strict=True)))
        judged, self._pending, self._waiting = self._waiting, [], 0
        # People beyond the budget are not judged, so they may count in a later phase.
        new = self._seen.unseen(steps.keys) if self._limited else self._seen.add(steps.keys)
        found = new & steps.hits
        if self._budget.instances is not None:
            new &= torch.cumsum(new, 0) <= self._budget.instances - self.tried
            found &= new
        if self._budget.findings is not None:
            # Whoever comes after the last finding that fits was never asked for.
            new &= torch.cumsum(found, 0) - found.long() < self._budget.findings - self.found
            found &= new
        if self._limited:
            self._seen.add(steps.keys[new])
        counts = torch.stack([new.sum(), found.sum(), (new & steps.doubtful).sum(), self._sound.long()])
        tried, hits, rejected, sound = counts.tolist()
        if not sound:
            raise not_finite()
        kind = torch.where(found, FOUND, torch.where(steps.doubtful, DOUBTFUL, MISS))
        lines = judged_lines(steps.keys, steps.step, steps.place, self._walkers, kind)
        missed = new & ~found & is_sampled(steps.keys)
        found_steps = _Step(*(line[found] for line in steps))
        misses = steps.rows[missed]
        self._parts.append(self._findings(found_steps, misses, tried=tried, judged=judged, rejected=rejected))
        self._lines.append(lines[new])
        self.tried, self.found = self.tried + tried, self.found + hits

    def _findings(self, steps: _Step, misses: Tensor, **counts: int) -> Findings:
        domain, rows = self._world.domain, steps.rows.long()
        twins = domain.member(rows, steps.other)
        if self._world.decision.kind == "tolerance":
            rows = domain.member(rows, steps.own)
        return Findings(
            packed=rows.to(domain.compact),
            twin_values=twins[:, list(domain.twin_columns)],
            scores=steps.scores,
            twin_scores=steps.twin_scores,
            origin=steps.origin,
            step=steps.step,
            misses=misses,
            **counts,  # type: ignore[arg-type]
        )

    def since_last(self, *, told: bool) -> tuple[Findings, Tensor]:
        """Return the findings that stand the second judgement, and the lines of all judged, since the last call.

        How usual the people are is found out if the findings are kept, here or by somebody who is told of them.
        """
        self.count()
        world = self._world
        recent = Findings.join(self._parts[self._saved :] or [Findings.empty(world.domain, world.network.outputs)])
        lines = torch.cat(self._lines) if self._lines else recent.origin.new_empty(0, 2)
        if not self._budget.counts_findings:
            holds = standing(world, recent)
            kind = kind_of(lines)
            kind[kind == FOUND] = torch.where(holds, FOUND, REJECTED)
            lines = with_kind(lines, kind)
            recent = replace(recent[holds], rejected=recent.rejected + int((~holds).sum()))
        if (self._keep or told) and world.population is not None:
            recent = replace(recent, plausibility=_plausibility(world.population, recent.packed))
        self._parts[self._saved :] = [recent if self._keep else replace(recent[:0], misses=recent.misses[:0])]
        self._saved, self._lines = len(self._parts), []
        self.confirmed += len(recent)
        return recent, lines

    def findings(self) -> Findings:
        """Return everything that was found and confirmed."""
        return Findings.join(self._parts)


def standing(world: World, findings: Findings) -> Tensor:
    """Judge each pair once more, on its own and in float64; return which are decided differently then: bool, (f,)."""
    holds = torch.zeros(len(findings), dtype=torch.bool, device=world.domain.device)
    size = world.network.encoding.rows_per_pass
    for start in range(0, len(findings), size):
        part = findings[start : start + size]
        holds[start : start + size] = _differ_exactly(world, part.rows, part.twins(world.domain))
    return holds


def doubtful_hits(world: World, judgement: Judgement) -> Tensor:
    """Return which rows discriminate in the judgement, but not in float64: bool, (n,)."""
    doubtful = torch.zeros_like(judgement.discriminates)
    hits = judgement.discriminates.nonzero()[:, 0]
    for part in torch.split(hits, world.network.encoding.rows_per_pass) if len(hits) else ():
        pairs = judgement[part].pairs()
        doubtful[part] = ~_differ_exactly(world, pairs.rows, pairs.twins)
    return doubtful


def _differ_exactly(world: World, rows: Tensor, twins: Tensor) -> Tensor:
    own, other = world.exact.scores(torch.cat([rows, twins])).chunk(2)
    return world.decision.differ(own, other)


def _plausibility(population: PopulationModel, packed: Tensor) -> Tensor:
    parts = [population.plausibility(part.long()).float() for part in torch.split(packed, ROWS_PER_PASS)]
    return torch.cat(parts)
