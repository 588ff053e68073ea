"""The searches of a comparison: one model by each method and run seed, here or in the processes of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import NeuronFairError
from neuronfair.measure.diversity import clusters, mean_distance, regions
from neuronfair.measure.quality import quality
from neuronfair.measure.severity import severity
from neuronfair.model.blackbox import Model
from neuronfair.scale.pool import Note, Pool
from neuronfair.search.campaign import CONTROL, Progress, find
from neuronfair.search.outcome import Outcome, Plan
from neuronfair.search.seeds import cluster_seeds

MIX_SEEDS = 10  # times as many seeds as asked for start each method's global phase, whose findings are then mixed
Made = TypeVar("Made")


@dataclass(frozen=True)
class Line:
    """What one method did with one run seed; a figure is None where nothing was found."""

    method: str
    seed: int
    figures: dict[str, float | None]


def figures(outcome: Outcome) -> dict[str, float | None]:
    """Return how a search went; None for what cannot be said where nothing was found."""
    summary, findings, domain = outcome.summary(), outcome.findings, outcome.domain
    gaps = severity(findings, outcome.plan.decision)
    found = summary["findings"]
    return {
        "findings": found,
        "findings_global": summary["findings_global"],
        "findings_local": summary["findings_local"],
        "tried": summary["tried"],
        "gsr": summary["gsr"],
        "random_direction_gsr": outcome.random_direction.gsr if outcome.random_direction else None,
        "lift": None,
        "lift_over_strongest_control": None,
        "diversity": mean_distance(domain, findings.packed) if found > 1 else None,
        "regions": regions(domain, findings.packed),
        "clusters": clusters(domain, findings.packed.long()),
        "severity": gaps.median if gaps else None,
        "severity_p95": gaps.p95 if gaps else None,
        "severity_largest": gaps.largest if gaps else None,
        "seconds": summary["seconds"],
        "seconds_per_1000": summary["seconds_per_1000"],
        "rows_judged": summary["rows_judged"],
        "rows_per_finding": summary["rows_judged"] / found if found else None,
    }


@dataclass(frozen=True)
class Search:
    """One search of a comparison."""

    plan: Plan
    seeds: Tensor | None = None  # None: as the plan says

    @property
    def starts(self) -> int:
        """From how many rows it starts."""
        return self.plan.seeds if self.seeds is None else len(self.seeds)


@dataclass(frozen=True)
class _Kept:
    """Gives a model that is open already."""

    network: Model

    def __call__(self) -> Model:
        return self.network


@dataclass(frozen=True)
class _Subject:
    """What is searched, as it is sent elsewhere."""

    network: Callable[[], Model]
    domain: TableDomain
    rows: Tensor


@dataclass(frozen=True)
class Work:
    """Searches of one model, done one after the other or by a pool; Ctrl-C leaves those out that are not finished."""

    network: Model
    domain: TableDomain
    rows: Tensor
    progress: Progress | None
    pool: Pool | None
    opens: Callable[[], Model] | None

    def each(
        self, work: Callable[[_Subject, Search, Progress], Made | None], searches: Sequence[Search], what: str = ""
    ) -> list[Made]:
        """Return what the work makes of each search, up to the first that was interrupted."""
        show, done = self.progress or _silent, list[Made]()
        try:
            if self.pool is None:
                subject = _Subject(_Kept(self.network), self.domain, self.rows)
                found: Iterator[Made | None] = (
                    work(subject, one, _labelled(show, f"{one.plan.method}{what}")) for one in searches
                )
            else:

                def note(lines: Sequence[tuple[int, int, int]]) -> None:
                    steps, total, people = (sum(figures) for figures in zip(*lines, strict=True))
                    show(f"{len(searches)} searches{what}", steps, total, people)

                sent = work, _Subject(self.opens or _Kept(self.network), self.domain, self.rows)
                gpus = float(self.network.encoding.device.type == "cuda")
                found = self.pool.map(_elsewhere, sent, searches, progress=note, gpus=gpus)
            for one in found:
                if one is None:
                    break
                done.append(one)
        except KeyboardInterrupt:
            if self.pool is None:
                raise
        return done

    def clustered(self, plans: Sequence[Plan], methods: Sequence[str]) -> list[Search]:
        """Return all searches, from rows of the table."""
        starts = [cluster_seeds(self.network.encoding, self.rows, plan.seeds, seed=plan.seed) for plan in plans]
        return [Search(replace(p, method=m), seeds) for p, seeds in zip(plans, starts, strict=True) for m in methods]

    def mixed(self, plans: Sequence[Plan], methods: Sequence[str]) -> list[Search]:
        """Return all searches, from people drawn from the global findings of all methods; none on Ctrl-C."""
        wide = [
            replace(one, seeds=MIX_SEEDS * one.seeds, steps=0, instances=None, seconds=None, controls=False)
            for one in plans
        ]
        found = self.each(_rows, [Search(replace(plan, method=m)) for plan in wide for m in methods], ", mixing")
        result, each = list[Search](), len(methods)
        for number in range(len(found) // each):
            plan = replace(plans[number], global_steps=0)
            seeds = _mixed(self.domain, torch.cat(found[number * each : (number + 1) * each]), plan)
            result += [Search(replace(plan, method=method), seeds) for method in methods]
        return result


def _elsewhere(sent: tuple[Callable[[_Subject, Search, Progress], Made], _Subject], one: Search, note: Note) -> Made:
    """Do one search, in a worker."""
    work, subject = sent
    return work(subject, one, lambda phase, done, total, found: note(done, total, found))


def line_of(subject: _Subject, one: Search, progress: Progress) -> Line | None:
    """Search, and return how it went; None on Ctrl-C."""
    network = subject.network()
    asked = _Asked(network, progress)
    outcome = find(network, subject.domain, subject.rows, one.plan, seeds=one.seeds, progress=asked)
    if outcome.interrupted:
        return None
    outside = quality(subject.domain, outcome.findings.packed, subject.rows).outside
    more: dict[str, float | None] = {"queries": float(asked.rows), "outside_data": outside}
    return Line(one.plan.method, one.plan.seed, figures(outcome) | more)


def _rows(subject: _Subject, one: Search, progress: Progress) -> Tensor | None:
    """Search, and return the people found; None on Ctrl-C."""
    network = subject.network()
    outcome = find(network, subject.domain, subject.rows, one.plan, progress=progress)
    return None if outcome.interrupted else outcome.findings.rows


def _mixed(domain: TableDomain, pool: Tensor, plan: Plan) -> Tensor:
    """Return `plan.seeds` different people, drawn at random."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(plan.seed)).to(pool.device)
    pool = pool[order]
    keys = domain.key(pool)
    ranked, place = torch.sort(keys, stable=True)
    first_of = torch.ones_like(ranked, dtype=torch.bool)
    first_of[1:] = ranked[1:] != ranked[:-1]
    mixed = pool[torch.sort(place[first_of]).values][: plan.seeds]
    if len(mixed) == 0:
        raise NeuronFairError("no method has a global finding, so there is nothing to start the local phases from")
    return mixed


class _Asked:
    """Counts the rows that a model was asked about in a search, but not in its controls."""

    def __init__(self, network: Model, progress: Progress | None) -> None:
        self._network, self._progress, self._before = network, progress, network.rows_forward
        self.rows = 0

    def __call__(self, phase: str, done: int, total: int, found: int) -> None:
        if not phase.startswith(CONTROL):
            self.rows = self._network.rows_forward - self._before
        if self._progress is not None:
            self._progress(phase, done, total, found)


def _labelled(progress: Progress, method: str) -> Progress:
    return lambda phase, done, total, found: progress(f"{method}, {phase}", done, total, found)


def _silent(phase: str, done: int, total: int, found: int) -> None:
    """Show nothing."""
