"""Who was evaluated and who was found, counted once each and never beyond the budget."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from neuronfair.domain.population.model import PopulationModel
from neuronfair.errors import NeuronFairError
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.searches.evaluate import not_finite
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import World
from neuronfair.searches.stepping import Judged, differ_exactly


@dataclass(frozen=True)
class Budget:
    """The limits of one phase; whichever is reached first ends it.

    `steps` counts the rows judged for each seed. `instances` (different people judged) and `findings` count over all
    seeds. `findings_per_seed` retires a chain when it has met so many discriminatory rows, whether or not another
    chain met them before: what a chain does must not depend on the others. `seconds` is wall-clock time, the one
    limit that does not give the same findings twice.
    """

    steps: int = 1000
    instances: int | None = None
    findings: int | None = None
    findings_per_seed: int | None = None
    seconds: float | None = None

    @property
    def counts_findings(self) -> bool:
        """Whether a finding can end something: the search, or the way of its chain."""
        return self.findings is not None or self.findings_per_seed is not None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value >= 0:
                raise NeuronFairError(f"a budget of {field.name.replace('_', ' ')} must be 0 or more, got {value}")


MISS, FOUND, REJECTED, DOUBTFUL = range(4)  # same decision; finding; no finding in float64; seen before it counted
_KINDS = 4
MISS_SHARE = 64  # one in so many misses is kept as a sample


def evaluated_lines(keys: Tensor, step: Tensor, place: Tensor, chains: int, kind: Tensor) -> Tensor:
    """Return the lines of people: their keys, and their order and kind in one number: int64, (n, 2)."""
    return torch.stack([keys, (step * chains + place) * _KINDS + kind], 1)


def keys_of(lines: Tensor) -> Tensor:
    """Return the keys of the people: (n,)."""
    return lines[:, 0]


def order_of(lines: Tensor) -> Tensor:
    """Return the order in which they were judged in their phase, different for all: (n,)."""
    return lines[:, 1] // _KINDS


def kind_of(lines: Tensor) -> Tensor:
    """Return what came of it: (n,)."""
    return lines[:, 1] % _KINDS


def with_kind(lines: Tensor, kind: Tensor) -> Tensor:
    """Return the lines with other results."""
    return torch.stack([lines[:, 0], lines[:, 1] - kind_of(lines) + kind], 1)


def is_sampled_miss(keys: Tensor) -> Tensor:
    """Return which keys belong to the sample of misses: bool, (n,)."""
    return (((keys * -7046029254386353131) >> 33) & 0x7FFFFFFF) % MISS_SHARE == 0


Limit = Literal["instances", "findings"]
PENDING = {"cpu": 1 << 16, "cuda": 1 << 23}  # judged rows that are put aside before they are counted
FINER = {"cpu": 4}  # smaller passes for findings: what is computed of them stays in the processor's cache
WIDE = 256  # codes of a row, from which on fewer are put aside: pictures have very many


@dataclass(frozen=True)
class ChainRange:
    """Which part of the chains of a phase these are: the place of the first, and how many there are in all."""

    first: int = 0
    total: int | None = None  # None: these are all


WHOLE = ChainRange()


class PhaseTally:
    """The account of a phase."""

    def __init__(self, world: World, budget: Budget, seen: KeySet, *, keep: bool, chains: int) -> None:
        self._world, self._budget, self._seen, self._keep, self._chains = world, budget, seen, keep, chains
        self._limited = budget.instances is not None or budget.findings is not None
        self._most = PENDING.get(world.domain.device.type, PENDING["cpu"]) // (1 + world.domain.codes_per_row // WIDE)
        self._pending: list[tuple[int, Judged]] = []
        self._waiting = 0  # rows in them
        self._recent: list[Findings] = []  # not judged a second time yet
        self._lines: list[Tensor] = []
        self._parts: list[Findings] = []
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
        self._parts = [before]
        self._seen.add(keys)
        self.tried = before.tried
        self.found = self.confirmed = len(before)

    def record(self, judged: Judged, t: int) -> None:
        """Put a judged step aside."""
        self._pending.append((t, judged))
        self._waiting += len(judged.rows)
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
        counts = [len(judged.rows) for _, judged in self._pending]
        number = torch.tensor([t for t, _ in self._pending], device=self._world.domain.device)
        step = number.repeat_interleave(torch.tensor(counts, device=number.device), output_size=self._waiting)
        steps = Judged.join([judged for _, judged in self._pending])
        keys = self._world.domain.key(steps.rows)
        judged, self._pending, self._waiting = self._waiting, [], 0
        # People beyond the budget are not judged, so they may count in a later phase.
        new = self._seen.unseen(keys) if self._limited else self._seen.add(keys)
        found = new & steps.hits
        if self._budget.instances is not None:
            new &= torch.cumsum(new, 0) <= self._budget.instances - self.tried
            found &= new
        if self._budget.findings is not None:
            # Whoever comes after the last finding that fits was never asked for.
            new &= torch.cumsum(found, 0) - found.long() < self._budget.findings - self.found
            found &= new
        if self._limited:
            self._seen.add(keys[new])
        figures = torch.stack([new.sum(), found.sum(), (new & steps.doubtful).sum(), steps.finite.long()])
        tried, hits, rejected, sound = figures.tolist()
        if not sound:
            raise not_finite()
        kind = torch.where(found, FOUND, torch.where(steps.doubtful, DOUBTFUL, MISS))
        lines = evaluated_lines(keys, step, steps.place, self._chains, kind)
        missed = new & ~found & is_sampled_miss(keys)
        chosen = found.nonzero()[:, 0]
        part = self._findings(steps.at(chosen), step[chosen])
        self._recent.append(replace(part, misses=steps.rows[missed], tried=tried, judged=judged, rejected=rejected))
        self._lines.append(lines[new])
        self.tried, self.found = self.tried + tried, self.found + hits

    def _findings(self, steps: Judged, number: Tensor) -> Findings:
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
            step=number,
            misses=rows[:0].to(domain.compact),
        )

    def since_last(self) -> tuple[Findings, Tensor]:
        """Return what was found, not judged a second time yet, and the lines of all judged, since the last call."""
        self.count()
        nobody = Findings.empty(self._world.domain, self._world.network.outputs)
        recent, lines = (
            Findings.join(self._recent or [nobody]),
            torch.cat(self._lines or [nobody.origin.new_empty(0, 2)]),
        )
        self._recent, self._lines = [], []
        return recent, lines

    def confirm(self, recent: Findings, lines: Tensor, *, told: bool) -> tuple[Findings, Tensor]:
        """Return the findings that stand the second judgement, and the lines that say so.

        How usual the people are is found out if the findings are kept, here or by somebody who is told of them. This
        may be done beside the search, part by part.
        """
        if not self._budget.counts_findings:
            holds = holds_exactly(self._world, recent)
            kind = kind_of(lines)
            kind[kind == FOUND] = torch.where(holds, FOUND, REJECTED)
            lines = with_kind(lines, kind)
            recent = replace(recent[holds], rejected=recent.rejected + int((~holds).sum()))
        if (self._keep or told) and self._world.population is not None:
            recent = replace(recent, plausibility=_plausibility(self._world.population, recent.packed))
        self._parts.append(recent if self._keep else recent.counts())
        self.confirmed += len(recent)
        return recent, lines

    def findings(self) -> Findings:
        """Return everything that was found and confirmed."""
        return Findings.join(self._parts)


def holds_exactly(world: World, findings: Findings) -> Tensor:
    """Judge each pair once more, on its own and in float64; return which are decided differently then: bool, (f,)."""
    holds = torch.zeros(len(findings), dtype=torch.bool, device=world.domain.device)
    size = max(1, world.network.encoding.rows_per_pass // FINER.get(holds.device.type, 1))
    for start in range(0, len(findings), size):
        part = findings[start : start + size]
        holds[start : start + size] = differ_exactly(world, part.rows, part.twins(world.domain))
    return holds


def _plausibility(population: PopulationModel, packed: Tensor) -> Tensor:
    size = ROWS_PER_PASS // FINER.get(packed.device.type, 1)
    return torch.cat([population.plausibility(part.long()).float() for part in torch.split(packed, size)])
