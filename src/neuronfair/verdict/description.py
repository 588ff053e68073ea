"""The findings of an inquiry: how badly they are treated, how different they are, and the worst in words."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.measure.coverage import covered
from neuronfair.measure.direction import Tally, favourable_class
from neuronfair.measure.diversity import mean_distance, regions
from neuronfair.model.encoding import families
from neuronfair.model.network import Network
from neuronfair.model.probability import chances
from neuronfair.search.findings import Findings
from neuronfair.search.judge import Pairs, judge
from neuronfair.search.outcome import Outcome
from neuronfair.search.shrink import shrink
from neuronfair.verdict import words
from neuronfair.verdict.entries import CoverageReport, Direction, Finding, Histogram, Severity
from neuronfair.verdict.folder import keep_nearer
from neuronfair.verdict.hurt import direction
from neuronfair.verdict.inquiry import Case, Inquiry, Progress

WORST, SAMPLE = 10, 300  # findings told in full, and findings in the table of the page
LOOK = 20_000  # findings whose gaps, distances and neurons are looked at
BINS = 30  # of the histogram of gaps


def describe(case: Case, inquiry: Inquiry, progress: Progress) -> None:
    """Describe everybody who was found: how badly they are treated, how different they are, the worst in words."""
    outcomes = [outcome for outcome in inquiry.outcomes if len(outcome.findings)]
    if not outcomes:
        return
    progress("Describing the findings", 0, None)
    domain, decision = case.domain, case.decision
    parts = [outcome.findings for outcome in outcomes]
    found = Findings.join(parts)
    rows = found.packed
    method = torch.cat([torch.full((len(f),), i) for i, f in enumerate(parts)]).to(rows.device)
    number = torch.cat([torch.arange(len(f)) for f in parts]).to(rows.device)
    # Two methods may find the same person: once is enough.
    _, first = np.unique(domain.key(rows.long()).cpu().numpy(), return_index=True)
    once = torch.from_numpy(np.sort(first)).to(rows.device)
    unique = found[once]
    scores, others = unique.scores.double(), unique.twin_scores.double()
    gaps = decision.gap(scores, others)
    usual = case.plausible(rows[once])
    generator = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(len(once), generator=generator).to(once.device)
    drawn = once[order]
    inquiry.add(
        severity=_severity(gaps.cpu().numpy()),
        probability_gaps=_probability_gaps(case, scores, others),
        direction=(*inquiry.report.direction, *_found_direction(case, unique)),
        mean_distance=mean_distance(domain, rows[once].long(), seed=case.seed),
        regions=regions(domain, rows[once].long(), seed=case.seed),
        coverage=_coverage(case, outcomes[0], rows[drawn[:LOOK]]),
    )

    def told(which: Tensor, people: Tensor, first: list[list[int]]) -> tuple[Finding, ...]:
        """Return people in words; `first` holds the columns that are most telling for each."""
        columns = [[*own, *(c for c in case.telling if c not in own)] for own in first]
        methods = [outcomes[i].plan.method for i in method[which].tolist()]
        pairs = map(words.Pair, *_partners(case, people))
        lines = zip(pairs, columns, number[which].tolist(), methods, strict=True)
        known = case.plausibility(people)
        shares = [None] * len(people) if known is None else known.tolist()
        told = (words.finding(domain, decision, *line, case.scale) for line in lines)
        return tuple(_replayed(case, replace(one, plausibility=share)) for one, share in zip(told, shares, strict=True))

    spread = once[order[(~usual[order]).long().argsort(stable=True)[:SAMPLE]]]
    inquiry.add(
        worst=told(*_worst(case, rows, once, gaps, usual)),
        findings=told(spread, rows[spread].long(), [[] for _ in spread]),
    )
    if case.folder is not None:
        keep_nearer(case.folder, inquiry.report.worst)


def _partners(case: Case, people: Tensor) -> Pairs:
    """Return people and the twins that they are compared with, and the scores of both, in float64."""
    parts = [
        judge(case.exact, case.domain, part, case.decision).pairs()
        for (part,) in zip(*families(case.model.encoding, case.domain, people), strict=True)
    ]
    return Pairs(*map(torch.cat, zip(*parts, strict=True)))


def _replayed(case: Case, finding: Finding) -> Finding:
    """Return a finding with the command that shows it again, where there is one."""
    if case.folder is None or case.replay is None:
        return finding
    words = ["neuronfair", "replay", str(case.folder / finding.method), str(finding.number), *case.replay]
    return replace(finding, replay=shlex.join(words))


def _severity(gaps: np.ndarray[Any, Any]) -> Severity:
    median, p95, largest = (float(q) for q in np.quantile(gaps, (0.5, 0.95, 1.0)))
    counts, edges = np.histogram(gaps, BINS, (0.0, largest or 1.0))
    return Severity(median, p95, largest, Histogram(tuple(edges.tolist()), tuple(counts.tolist())))


def _probability_gaps(case: Case, scores: Tensor, others: Tensor) -> Severity | None:
    """Return how far the probabilities of people and their twins lie apart; None where scores are only numbers."""
    found = chances(case.decision, case.scale, scores, others)
    return None if found is None else _severity((found.own - found.twin).abs().cpu().numpy())


def _found_direction(case: Case, found: Findings) -> tuple[Direction, ...]:
    """Return whom the found pairs hurt."""
    favourable = favourable_class(case.domain, case.decision, case.model.outputs)
    if favourable is None:
        return ()
    tally = Tally(case.domain, favourable)
    tally.add_pairs(Pairs(found.rows, found.twins(case.domain), found.scores, found.twin_scores), case.decision)
    return direction(case.domain, "findings", tally.direction())


def _coverage(case: Case, outcome: Outcome, findings: Tensor) -> CoverageReport | None:
    """Return the share of biased neurons that a finding, and that a miss, activates on average; None without misses."""
    misses = outcome.findings.misses[: len(findings)]
    if outcome.profile is None or not isinstance(case.model, Network) or len(misses) == 0:
        return None
    network, profile = case.model, outcome.profile
    shares = [float(np.mean(covered(network, case.domain, profile, rows).shares)) for rows in (findings, misses)]
    return CoverageReport(*shares)


def _worst(
    case: Case, rows: Tensor, once: Tensor, gaps: Tensor, usual: Tensor
) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Return the findings with the widest gaps after shrinking: their numbers, shrunk rows, and changed columns.

    Plausible people come first, and stay plausible when they are shrunk. Others are looked at only where there are too
    few of them; some become plausible by it.
    """
    domain = case.domain
    parts = [_shrunk(case, case.near[0], rows, once[usual], gaps[usual])]
    if not usual.all() and len(torch.unique(domain.key(parts[0][1]))) < WORST:
        parts.append(_shrunk(case, domain, rows, once[~usual], gaps[~usual]))
    wide, people, goals = map(torch.cat, zip(*parts, strict=True))
    order = case.decision.gap(*_partners(case, people)[2:]).argsort(descending=True, stable=True)
    order = order[(~case.plausible(people[order])).long().argsort(stable=True)]
    _, first = np.unique(domain.key(people[order]).cpu().numpy(), return_index=True)
    order = order[torch.from_numpy(np.sort(first)[:WORST]).to(order.device)]
    changed = (people[order] != goals[order]) & domain.free
    return wide[order], people[order], [row.nonzero()[:, 0].tolist() for row in changed]


def _shrunk(
    case: Case, domain: TableDomain, rows: Tensor, chosen: Tensor, gaps: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the widest of the chosen findings, their rows shrunk within a domain, and the rows they were shrunk to."""
    wide = chosen[gaps.topk(min(len(gaps), LOOK)).indices]
    # Walks leave many near copies: the widest of each region of the domain is a candidate.
    coarse = case.model.encoding.encode(rows[wide].long()).cpu().numpy()
    _, first = np.unique(np.round(coarse), axis=0, return_index=True)
    wide = wide[torch.from_numpy(np.sort(first)[: case.shrunk]).to(wide.device)]
    goals = _nearest(domain, rows[wide].long(), case.near[1])
    return wide, shrink(case.exact, domain, rows[wide].long(), goals, case.decision), goals


def _nearest(domain: TableDomain, rows: Tensor, table: Tensor) -> Tensor:
    """Return for each row the row of the table that differs least, sensitive attributes apart: (n, d)."""
    distance = torch.zeros(len(rows), len(table), device=rows.device)
    for column in domain.free.nonzero()[:, 0].tolist():
        apart = rows[:, column, None] - table[None, :, column]
        attribute = domain.attributes[column]
        step = apart.abs() / max(1, attribute.points - 1) if attribute.ordered else (apart != 0).float()
        if attribute.empty is not None:  # an empty cell is as far from each number
            lone = (rows[:, column, None] == attribute.empty) != (table[None, :, column] == attribute.empty)
            step = torch.where(lone, 1.0, step)
        distance += step
    return table[distance.argmin(1)]
