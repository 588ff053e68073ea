"""The findings of an inquiry: how badly they are treated, how different they are, and the worst in words."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.measure.coverage import covered
from neuronfair.measure.direction import Tally, favourable_class
from neuronfair.measure.diversity import mean_distance, regions
from neuronfair.model.encoding import families
from neuronfair.model.network import Network
from neuronfair.model.probability import chances
from neuronfair.search.findings import Findings
from neuronfair.search.judge import Pairs
from neuronfair.search.outcome import Outcome
from neuronfair.verdict import words
from neuronfair.verdict.entries import TABLE, CoverageReport, Direction, Finding, Histogram, Severity
from neuronfair.verdict.folder import keep_nearer
from neuronfair.verdict.hurt import direction
from neuronfair.verdict.inquiry import Case, Inquiry, Progress
from neuronfair.verdict.worst import Candidates, partners, worst_people

SAMPLE = 300  # findings in the table of the page
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
    usual = case.plausible(rows[once]) & _plausible_twin(case, rows[once].long(), unique.twins(domain).long())
    generator = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(len(once), generator=generator).to(once.device)
    drawn = once[order]
    inquiry.add(
        plausible_found=None if case.population is None else int(usual.sum()),
        severity=_severity(gaps.cpu().numpy()),
        probability_gaps=_probability_gaps(case, scores, others),
        direction=(*inquiry.report.direction, *_found_direction(case, unique)),
        mean_distance=mean_distance(domain, rows[once].long(), seed=case.seed),
        regions=regions(domain, rows[once].long(), seed=case.seed),
        coverage=_coverage(case, outcomes[0], rows[drawn[method[drawn] == 0][:LOOK]]),
    )

    def told(which: Tensor, people: Tensor, first: list[list[int]]) -> tuple[Finding, ...]:
        """Return people in words; `first` holds the columns that are most telling for each."""
        columns = [[*own, *(c for c in case.telling if c not in own)] for own in first]
        found_by = [outcome.plan.method for outcome in outcomes]
        places = [(int(number[w]), found_by[method[w]]) if w >= 0 else (-1 - w, TABLE) for w in which.tolist()]
        both = partners(case, people)
        pairs = map(words.Pair, *both)
        usual = [_shares(case, part) for part in both[:2]]
        lines = zip(pairs, columns, places, *usual, _plausible_twin(case, *both[:2]).tolist(), strict=True)
        people_told = (
            replace(
                words.finding(domain, decision, pair, own, at, by, case.scale),
                plausibility=share,
                twin_plausibility=twin_share,
                twin_is_plausible=fits,
            )
            for pair, own, (at, by), share, twin_share, fits in lines
        )
        return tuple(_replayed(case, one) for one in people_told)

    spread = once[order[(~usual[order]).long().argsort(stable=True)[:SAMPLE]]]
    inquiry.add(
        worst=told(*worst_people(case, Candidates(rows, once, gaps, usual))),
        findings=told(spread, rows[spread].long(), [[] for _ in spread]),
    )
    if case.folder is not None:
        keep_nearer(case.folder, inquiry.report.worst)


def _shares(case: Case, people: Tensor) -> list[float] | list[None]:
    """Return the plausibility of each person; None where it is not known."""
    known = case.plausibility(people)
    return [None] * len(people) if known is None else known.tolist()


def _plausible_twin(case: Case, people: Tensor, twins: Tensor) -> Tensor:
    """Return for each pair whether the twin is plausible: bool, (n,); all are where that is not known."""
    if case.pairs is case.domain:
        return torch.ones(len(people), dtype=torch.bool, device=people.device)
    fits = [
        (every.valid & (every.rows == twin[:, None]).all(2)).any(1)
        for part, twin in zip(*families(case.model.encoding, case.domain, people, twins), strict=True)
        for every in (case.pairs.twins(part),)
    ]
    return torch.cat([people.new_zeros(0, dtype=torch.bool), *fits])


def _replayed(case: Case, finding: Finding) -> Finding:
    """Return a finding with the command that shows it again, where there is one."""
    if case.folder is None or case.replay is None or finding.method == TABLE:
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
    """Return the share of biased neurons that a finding, and that a miss, of one search activates on average.

    None without misses.
    """
    misses = outcome.findings.misses[: len(findings)]
    if outcome.profile is None or not isinstance(case.model, Network) or len(misses) == 0:
        return None
    network, profile = case.model, outcome.profile
    shares = [float(np.mean(covered(network, case.domain, profile, rows).shares)) for rows in (findings, misses)]
    return CoverageReport(*shares)
