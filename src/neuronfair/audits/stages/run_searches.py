"""The searches of an audit: reactions of layers, the runs, severity and diversity of findings, pairs and subgroups."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neuronfair.audits.folder import WORST_FINDINGS, write_worst_findings
from neuronfair.audits.report.attribute import (
    DATA_SET,
    CoverageReport,
    DirectionReport,
    Finding,
    Histogram,
    Interpretation,
    LayerReport,
    Note,
    SearchReport,
    SeverityReport,
)
from neuronfair.audits.stages.case import MAX_NEAR_RECORDS, AttributeAudit, AttributeCase
from neuronfair.audits.wording import phrases
from neuronfair.audits.wording.phrases import report_direction
from neuronfair.domain.draws import draw_order
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.measure.diversity import count_regions, mean_distance, measure_coverage
from neuronfair.measure.groups import learn_subgroups
from neuronfair.measure.rate import DirectionTally, find_favourable_class
from neuronfair.model.decision import find_probabilities
from neuronfair.model.encoding import split_families
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.progress import Progress, count_progress, label_progress
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchResult, SearchSummary
from neuronfair.searches.evaluate import Evaluation, Pairs, evaluate
from neuronfair.searches.findings import Findings
from neuronfair.searches.shrink import shrink
from neuronfair.store.ledger import make_manifest
from neuronfair.store.run import Run

MAX_CURVE_POINTS = 101  # points of an AS curve, at most


def interpret_layers(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Look which layers and neurons react to the sensitive attributes; a black box or a linear model shows nothing."""
    if not isinstance(case.model, Network) or not case.model.layers:
        return
    show = count_progress(progress, "Comparing rows with their twins")
    audit.profile = interpret(case.model, case.domain, case.interpreted_rows, progress=show)
    audit.report = replace(audit.report, interpretation=_report_layers(audit.profile))


def _report_layers(profile: BiasProfile) -> Interpretation:
    layers = []
    for layer in profile.layers:
        points = torch.linspace(0, len(layer.rates) - 1, min(MAX_CURVE_POINTS, len(layer.rates))).round().long()
        curve = torch.stack([layer.thresholds[points], layer.rates[points]], 1)
        layers.append(
            LayerReport(
                name=layer.name,
                neurons=len(layer.act_diff),
                auc=layer.auc,
                cut=layer.cut,
                biased=tuple(layer.biased) if layer.reacts else (),
                act_diff=tuple(float(f"{x:.6g}") for x in layer.act_diff.tolist()),
                curve=tuple((round(t, 4), round(share, 6)) for t, share in curve.tolist()),
            )
        )
    return Interpretation(profile.worst.name, tuple(layers))


def search(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Run the searches one after the other; Ctrl-C ends them, and what was found is kept."""
    for config in case.configs:
        run, folder = None, None
        if (runs := case.runs) is not None:
            folder = f"{runs.path.name}/{config.method}"
            manifest = make_manifest(
                config,
                case.data,
                model=runs.model,
                weights=runs.weights,
                outputs=case.model.outputs,
                extra_weights=runs.extra_weights,
            )
            manifest["worst"] = f"../{WORST_FINDINGS}"
            run = Run.create_or_open(runs.path / config.method, manifest, case.domain)

        outcome = campaign.search(
            case.model,
            case.domain,
            case.interpreted_rows,
            config,
            seeds=None if case.seeds is None else case.seeds[: config.seeds],
            profile=audit.profile,
            population=case.population,
            recorder=run,
            progress=label_progress(progress, f"{config.method}: "),
        )
        audit.outcomes.append(outcome)
        figures = outcome.summary()
        if run is not None and not outcome.interrupted:
            run.finish({"data": case.data.name, "sensitive": list(case.domain.sensitive), **figures})
        audit.report = replace(audit.report, searches=(*audit.report.searches, _report_search(figures, folder)))
        audit.note(*(Note(note.name, note.observation, note.remedy) for note in outcome.health))
        if outcome.interrupted:
            raise KeyboardInterrupt


def _report_search(figures: SearchSummary, folder: str | None) -> SearchReport:
    random, directed, seconds = figures["random"], figures["random_direction"], figures["seconds"]
    plausibility = figures["plausibility"]
    return SearchReport(
        method=figures["method"],
        folder=folder,
        findings=figures["findings"],
        tried=figures["tried"],
        gsr=figures["gsr"],
        seconds=seconds,
        findings_per_second=figures["findings"] / seconds if seconds else None,
        random_gsr=random and random["gsr"],
        lift=figures["lift"],
        random_direction_gsr=directed and directed["gsr"],
        lift_over_random_direction=figures["lift_over_random_direction"],
        violations=figures["violations"],
        stop="; ".join(f"{phase}: {reason}" for phase, reason in figures["stop"].items()),
        plausible_share=plausibility and plausibility["share"],
    )


MAX_WORST_FINDINGS = 10  # described in full
MAX_WORST_RECORDS = 4  # real records among the worst findings, where the searches found enough
MAX_CANDIDATES = 20_000  # findings among which the widest gaps of different people are looked for


class Candidates(NamedTuple):
    """All findings, and which of them are different records."""

    rows: Tensor  # (f, d), packed
    indices: Tensor  # of the different records among them
    gaps: Tensor  # the gap of each of the different records
    is_plausible: Tensor  # whether they and their twins are plausible

    def only(self, plausible: bool) -> Candidates:
        """Return those that are, or are not, plausible."""
        matches = self.is_plausible == plausible
        return Candidates(self.rows, self.indices[matches], self.gaps[matches], self.is_plausible[matches])


class Selection(NamedTuple):
    """Rows to describe, and where each comes from: the data set, or the findings of all searches."""

    rows: Tensor  # (n, d)
    is_record: Tensor  # whether it is a record of the data set: bool, (n,)
    indices: Tensor  # of the record in the data set, or of the finding among all findings
    goals: Tensor  # the rows that they were moved towards

    def take(self, order: Tensor) -> Selection:
        """Return some of the rows in another order."""
        return Selection(*(part[order] for part in self))


def select_worst(case: AttributeCase, candidates: Candidates) -> tuple[Selection, list[list[int]]]:
    """Return the findings with the widest gaps after shrinking, and the columns that differ from the shrinking's goal.

    Plausible records of the data set whose decision differs from a plausible twin's come first, then plausible pairs of
    the searches, which stay plausible when they are shrunk, then others. There are more than `MAX_WORST_RECORDS`
    records of the data set only where the searches found too few plausible pairs.
    """
    domain = case.domain
    parts = [_shrink_widest(case, case.plausible_records[0], candidates.only(plausible=True))]
    if case.population is not None:
        limit = max(MAX_WORST_RECORDS, MAX_WORST_FINDINGS - len(torch.unique(domain.key(parts[0].rows))))
        has_few = limit > MAX_WORST_RECORDS
        others = [_shrink_widest(case, domain, candidates.only(plausible=False))] if has_few else []
        parts += [_select_records(case, limit), *others]
    worst = Selection(*map(torch.cat, zip(*parts, strict=True)))
    order = _order_by_gap(case, worst.rows)
    rank = torch.where(case.is_plausible(worst.rows) & flips_plausibly(case, worst.rows), (~worst.is_record).long(), 2)
    worst = worst.take(order[rank[order].argsort(stable=True)])
    worst = worst.take(_find_first_indices(domain.key(worst.rows))[:MAX_WORST_FINDINGS])
    changed = (worst.rows != worst.goals) & domain.changeable
    return worst, [row.nonzero()[:, 0].tolist() for row in changed]


def _order_by_gap(case: AttributeCase, rows: Tensor) -> Tensor:
    """Return the order of rows by the gap between their scores and those of their twins, the widest first."""
    return case.decision.gap(*evaluate_pairs(case, rows)[2:]).argsort(descending=True, stable=True)


def _find_first_indices(keys: Tensor) -> Tensor:
    """Return the index of the first row with each key, in the order of the rows."""
    _, first = np.unique(keys.cpu().numpy(), axis=0, return_index=True)
    return torch.from_numpy(np.sort(first)).to(keys.device)


def evaluate_pairs(case: AttributeCase, rows: Tensor) -> Pairs:
    """Return rows and the twins that they are compared with, and the scores of both, in float64.

    Where the decision differs from that of a plausible twin, the twin is a plausible one.
    """
    parts = [_prefer_plausible(case, evaluation).pairs() for evaluation in _evaluate_parts(case, rows)]
    return Pairs(*map(torch.cat, zip(*parts, strict=True)))


def flips_plausibly(case: AttributeCase, rows: Tensor) -> Tensor:
    """Return for each row whether the decision differs from that of a plausible twin: bool, (n,)."""
    parts = [
        (evaluation.twin_explains_finding & case.pair_domain.twins(evaluation.rows).valid).any(1)
        for evaluation in _evaluate_parts(case, rows)
    ]
    return torch.cat([rows.new_zeros(0, dtype=torch.bool), *parts])


def _evaluate_parts(case: AttributeCase, rows: Tensor) -> Iterator[Evaluation]:
    for (part,) in zip(*split_families(case.model.encoding, case.domain, rows), strict=True):
        yield evaluate(case.exact, case.domain, part, case.decision)


def _prefer_plausible(case: AttributeCase, evaluation: Evaluation) -> Evaluation:
    """Return an evaluation without implausible twins, where the decision differs from a plausible one's."""
    plausible = case.pair_domain.twins(evaluation.rows).valid & evaluation.valid
    flips = (evaluation.twin_explains_finding & plausible).any(1, keepdim=True)
    valid = torch.where(flips, plausible, evaluation.valid)
    return replace(evaluation, valid=valid, twin_differs=evaluation.twin_differs & valid)


def _shrink_widest(case: AttributeCase, domain: TableDomain, candidates: Candidates) -> Selection:
    """Return the widest of the findings, and what becomes of them if they are shrunk within a domain."""
    count = min(len(candidates.gaps), MAX_CANDIDATES)
    widest = candidates.indices[candidates.gaps.topk(count).indices]
    # Search chains leave many near copies: the widest of each region of the domain is a candidate.
    regions = case.model.encoding.encode(candidates.rows[widest].long()).round()
    widest = widest[_find_first_indices(regions)[: case.shrunk]]
    rows = candidates.rows[widest].long()
    goals = _find_nearest(domain, rows, case.plausible_records[1])
    shrunk = shrink(case.exact, domain, rows, goals, case.decision)
    return Selection(shrunk, torch.zeros_like(widest, dtype=torch.bool), widest, goals)


def _select_records(case: AttributeCase, limit: int) -> Selection:
    """Return different plausible records whose decision differs from a plausible twin's: the widest gaps."""
    rows = case.data.rows[: min(MAX_NEAR_RECORDS, case.samples)]
    indices = (case.plausible_records[0].valid(rows)).nonzero()[:, 0]
    indices = indices[flips_plausibly(case, rows[indices])]
    indices = indices[_order_by_gap(case, rows[indices])]
    indices = indices[_find_first_indices(case.domain.key(rows[indices]))[:limit]]
    return Selection(rows[indices], torch.ones_like(indices, dtype=torch.bool), indices, rows[indices])


def _find_nearest(domain: TableDomain, rows: Tensor, table: Tensor) -> Tensor:
    """Return for each row the record that differs least, sensitive attributes apart: (n, d)."""
    distance = torch.zeros(len(rows), len(table), device=rows.device)
    for column in domain.changeable.nonzero()[:, 0].tolist():
        difference = rows[:, column, None] - table[None, :, column]
        attribute = domain.attributes[column]
        step = difference.abs() / max(1, attribute.grid_size - 1) if attribute.is_ordered else (difference != 0).float()
        if attribute.empty is not None:  # an empty cell is as far from each number
            is_single = (rows[:, column, None] == attribute.empty) != (table[None, :, column] == attribute.empty)
            step = torch.where(is_single, 1.0, step)
        distance += step
    return table[distance.argmin(1)]


MAX_LISTED_FINDINGS = 300  # in the table of the page
GAP_BINS = 30  # of the histogram


class _Sources(NamedTuple):
    """Where each finding comes from: the search, and the number of the finding in it."""

    methods: list[str]  # of the searches
    search: Tensor  # (f,)
    number: Tensor  # (f,)

    @staticmethod
    def of(outcomes: Sequence[SearchResult], device: torch.device) -> _Sources:
        """Return the sources of the findings of several searches, joined."""
        counts = [len(outcome.findings) for outcome in outcomes]
        search = torch.cat([torch.full((count,), i) for i, count in enumerate(counts)])
        number = torch.cat([torch.arange(count) for count in counts])
        methods = [outcome.config.method for outcome in outcomes]
        return _Sources(methods, search.to(device), number.to(device))

    def of_finding(self, index: int) -> tuple[int, str]:
        """Return the number of a finding in its search, and the method."""
        return int(self.number[index]), self.methods[int(self.search[index])]


def describe_findings(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Describe the discriminatory inputs that were found: score gaps, diversity, and the worst in words."""
    outcomes = [outcome for outcome in audit.outcomes if len(outcome.findings)]
    if not outcomes:
        return
    progress("Describing the findings", 0, None)
    domain = case.domain
    findings = Findings.join([outcome.findings for outcome in outcomes])
    rows = findings.packed
    sources = _Sources.of(outcomes, rows.device)
    # Two methods may find the same record: one of them is enough.
    indices = _find_first_indices(domain.key(rows.long()))
    unique = findings[indices]
    scores, twin_scores = unique.scores.double(), unique.twin_scores.double()
    gaps = case.decision.gap(scores, twin_scores)
    plausible = case.is_plausible(rows[indices]) & _has_plausible_twin(
        case, rows[indices].long(), unique.twins(domain).long()
    )
    generator = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(len(indices), generator=generator).to(indices.device)
    shuffled = indices[order]
    audit.report = replace(
        audit.report,
        plausible_found=None if case.population is None else int(plausible.sum()),
        severity=_report_gaps(gaps.cpu().numpy()),
        probability_gaps=_report_probability_gaps(case, scores, twin_scores),
        direction=(*audit.report.direction, *_report_direction(case, unique)),
        mean_distance=mean_distance(domain, rows[indices].long(), seed=case.seed),
        regions=count_regions(domain, rows[indices].long(), seed=case.seed),
        coverage=_report_coverage(case, outcomes[0], rows[shuffled[sources.search[shuffled] == 0][:MAX_CANDIDATES]]),
    )
    listed = shuffled[(~plausible[order]).long().argsort(stable=True)[:MAX_LISTED_FINDINGS]]
    sample = Selection(rows[listed].long(), torch.zeros_like(listed, dtype=torch.bool), listed, rows[listed].long())
    worst, changed = select_worst(case, Candidates(rows, indices, gaps, plausible))
    audit.report = replace(
        audit.report,
        worst=_describe_selection(case, sources, worst, changed),
        findings=_describe_selection(case, sources, sample, [[] for _ in listed]),
    )
    if case.runs is not None:
        write_worst_findings(case.runs.path, audit.report.worst)


def _describe_selection(
    case: AttributeCase, sources: _Sources, selection: Selection, changed: list[list[int]]
) -> tuple[Finding, ...]:
    """Return rows as findings in words.

    The columns in `changed` are named first for each row, then the others in the order of their importance.
    """
    pairs = evaluate_pairs(case, selection.rows)
    plausibilities = _measure_plausibility(case, pairs.rows), _measure_plausibility(case, pairs.twins)
    twin_is_plausible = _has_plausible_twin(case, pairs.rows, pairs.twins).tolist()
    findings = []
    for i, pair in enumerate(map(phrases.DescribedPair, *pairs)):
        columns = [*changed[i], *(c for c in case.importance_order if c not in changed[i])]
        index = int(selection.indices[i])
        number, method = (index, DATA_SET) if selection.is_record[i] else sources.of_finding(index)
        finding = replace(
            phrases.report_finding(case.domain, case.decision, pair, columns, number, method, case.scale),
            plausibility=plausibilities[0][i],
            twin_plausibility=plausibilities[1][i],
            twin_is_plausible=twin_is_plausible[i],
        )
        if case.runs is not None and case.runs.replay is not None and method != DATA_SET:
            words = ["neuronfair", "show", str(case.runs.path / method), str(number), *case.runs.replay]
            finding = replace(finding, replay=shlex.join(words))
        findings.append(finding)
    return tuple(findings)


def _measure_plausibility(case: AttributeCase, rows: Tensor) -> list[float] | list[None]:
    """Return the plausibility of each row; None where it is not known."""
    plausibility = case.plausibility(rows)
    return [None] * len(rows) if plausibility is None else plausibility.tolist()


def _has_plausible_twin(case: AttributeCase, rows: Tensor, twins: Tensor) -> Tensor:
    """Return for each pair whether the twin is plausible: bool, (n,); all are where that is not known."""
    if case.pair_domain is case.domain:
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    parts = [rows.new_zeros(0, dtype=torch.bool)]
    for row_part, twin_part in zip(*split_families(case.model.encoding, case.domain, rows, twins), strict=True):
        plausible = case.pair_domain.twins(row_part)
        parts.append((plausible.valid & (plausible.rows == twin_part[:, None]).all(2)).any(1))
    return torch.cat(parts)


def _report_gaps(gaps: np.ndarray[Any, Any]) -> SeverityReport:
    median, p95, largest = (float(q) for q in np.quantile(gaps, (0.5, 0.95, 1.0)))
    counts, edges = np.histogram(gaps, GAP_BINS, (0.0, largest or 1.0))
    return SeverityReport(median, p95, largest, Histogram(tuple(edges.tolist()), tuple(counts.tolist())))


def _report_probability_gaps(case: AttributeCase, scores: Tensor, twin_scores: Tensor) -> SeverityReport | None:
    """Return how far the probabilities of people and their twins lie apart; None where scores are only numbers."""
    probabilities = find_probabilities(case.decision, case.scale, scores, twin_scores)
    return None if probabilities is None else _report_gaps((probabilities.row - probabilities.twin).abs().cpu().numpy())


def _report_direction(case: AttributeCase, findings: Findings) -> tuple[DirectionReport, ...]:
    """Return which groups the found pairs disadvantage."""
    tally = DirectionTally(case.domain, find_favourable_class(case.domain, case.decision, case.model.outputs))
    pairs = Pairs(findings.rows, findings.twins(case.domain), findings.scores, findings.twin_scores)
    tally.add_pairs(pairs, case.decision)
    return report_direction(case.domain, "findings", tally.direction())


def _report_coverage(case: AttributeCase, outcome: SearchResult, findings: Tensor) -> CoverageReport | None:
    """Return the share of biased neurons that a finding, and that a miss, of one search activates on average.

    None without misses.
    """
    misses = outcome.findings.misses[: len(findings)]
    if outcome.profile is None or not isinstance(case.model, Network) or len(misses) == 0:
        return None
    network, profile = case.model, outcome.profile
    counts = (measure_coverage(network, case.domain, profile, rows) for rows in (findings, misses))
    return CoverageReport(*(float(np.mean(count.shares)) for count in counts))


MAX_RULE_FINDINGS = 20_000  # findings that rules for groups are learned from, at most


def find_subgroups(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Look for short rules under which discrimination is frequent, in plausible pairs if they are known."""
    rate, parts = audit.rate, [outcome.findings.packed for outcome in audit.outcomes]
    if rate is None or not parts:
        return
    progress("Looking for groups", 0, None)
    rows = torch.cat(parts)
    rows = rows[case.is_plausible(rows)]
    if len(rows) == 0 and rate.flips == 0:
        return
    if case.pair_domain is not case.domain:  # the rate of the same people, compared with plausible twins only
        rate = case.rate(case.population or "domain", case.pair_domain)
    rows = rows[draw_order(len(rows), case.seed)[:MAX_RULE_FINDINGS].to(rows.device)]
    try:
        groups = learn_subgroups(
            case.model,
            case.pair_domain,
            rows,
            rate,
            population=case.population,
            samples=case.samples,
            decision=case.decision,
            seed=case.seed + 1,
        )
    except DomainError as error:  # a rule on top of many others may not fit their table of combinations
        observation = f"Groups in which discrimination is frequent could not be looked for: {error}"
        audit.note(Note("no-groups", observation, "Use fewer or simpler rules."))
        return
    audit.report = replace(
        audit.report, subgroups=tuple(phrases.report_subgroup(case.pair_domain, group) for group in groups)
    )
