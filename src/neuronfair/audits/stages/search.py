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
    TABLE,
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
from neuronfair.audits.stages.case import NEAR, AttributeAudit, AttributeCase
from neuronfair.audits.wording import phrases
from neuronfair.audits.wording.phrases import direction
from neuronfair.domain.draws import random_order
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

POINTS = 101  # of an AS curve, at most


def interpret_layers(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Look which layers and neurons react to the sensitive attributes; a black box or a linear model shows nothing."""
    if not isinstance(case.model, Network) or not case.model.layers:
        return
    show = count_progress(progress, "Comparing rows with their twins")
    audit.profile = interpret(case.model, case.domain, case.interpreted_rows, progress=show)
    audit.report = replace(audit.report, interpretation=_interpretation(audit.profile))


def _interpretation(profile: BiasProfile) -> Interpretation:
    layers = []
    for layer in profile.layers:
        points = torch.linspace(0, len(layer.rates) - 1, min(POINTS, len(layer.rates))).round().long()
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
        run, place = None, None
        if (runs := case.runs) is not None:
            place = f"{runs.path.name}/{config.method}"
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
        audit.report = replace(audit.report, searches=(*audit.report.searches, _search(figures, place)))
        audit.note(*(Note(note.name, note.seen, note.remedy) for note in outcome.health))
        if outcome.interrupted:
            raise KeyboardInterrupt


def _search(figures: SearchSummary, place: str | None) -> SearchReport:
    random, directed, seconds = figures["random"], figures["random_direction"], figures["seconds"]
    plausibility = figures["plausibility"]
    return SearchReport(
        method=figures["method"],
        folder=place,
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
        stop="; ".join(f"{phase}: {why}" for phase, why in figures["stop"].items()),
        plausible_share=plausibility and plausibility["share"],
    )


WORST = 10  # findings described in full
REAL = 4  # of them real records, where there are as many
LOOK = 20_000  # findings among which the widest gaps of different people are looked for


class Candidates(NamedTuple):
    """All findings."""

    rows: Tensor  # (f, d), packed
    once: Tensor  # the numbers of different records among them
    gaps: Tensor  # of those
    plausible: Tensor  # whether they and their twins are plausible

    def only(self, plausible: bool) -> Candidates:
        """Return those that are, or are not, plausible."""
        chosen = self.plausible == plausible
        return Candidates(self.rows, self.once[chosen], self.gaps[chosen], self.plausible[chosen])


class _Shown(NamedTuple):
    which: Tensor  # the number of a finding; below 0, -1 - the number of a record in the data set
    people: Tensor
    goals: Tensor  # the rows that they were moved towards


def worst_findings(case: AttributeCase, found: Candidates) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Return the findings with the widest gaps after shrinking: their numbers, shrunk rows, and changed columns.

    Plausible records of the data set whose decision differs from a plausible twin's come first (their numbers are below
    0), then plausible pairs of the searches, which stay plausible when they are shrunk, then others. There are more
    than `REAL` records of the data set only where the searches found too few plausible pairs.
    """
    domain = case.domain
    parts = [_shrunk(case, case.plausible_records[0], found.only(plausible=True))]
    if case.population is not None:
        most_real = max(REAL, WORST - len(torch.unique(domain.key(parts[0].people))))
        others = [_shrunk(case, domain, found.only(plausible=False))] if most_real > REAL else []
        parts += [_real(case, most_real), *others]
    which, people, goals = map(torch.cat, zip(*parts, strict=True))
    order = case.decision.gap(*evaluated_pairs(case, people)[2:]).argsort(descending=True, stable=True)
    rank = torch.where(case.plausible(people) & flips_plausibly(case, people), (which >= 0).long(), 2)
    order = order[rank[order].argsort(stable=True)]
    _, first = np.unique(domain.key(people[order]).cpu().numpy(), return_index=True)
    order = order[torch.from_numpy(np.sort(first)[:WORST]).to(order.device)]
    changed = (people[order] != goals[order]) & domain.free
    return which[order], people[order], [row.nonzero()[:, 0].tolist() for row in changed]


def evaluated_pairs(case: AttributeCase, people: Tensor) -> Pairs:
    """Return people and the twins that they are compared with, and the scores of both, in float64.

    Where the decision differs from that of a plausible twin, the twin is a plausible one.
    """
    parts = [_preferred(case, evaluation).pairs() for evaluation in _evaluations(case, people)]
    return Pairs(*map(torch.cat, zip(*parts, strict=True)))


def flips_plausibly(case: AttributeCase, people: Tensor) -> Tensor:
    """Return for each person whether the decision differs from that of a plausible twin: bool, (n,)."""
    parts = [
        (evaluation.differs & case.pair_domain.twins(evaluation.rows).valid).any(1)
        for evaluation in _evaluations(case, people)
    ]
    return torch.cat([people.new_zeros(0, dtype=torch.bool), *parts])


def _evaluations(case: AttributeCase, people: Tensor) -> Iterator[Evaluation]:
    for (part,) in zip(*split_families(case.model.encoding, case.domain, people), strict=True):
        yield evaluate(case.exact, case.domain, part, case.decision)


def _preferred(case: AttributeCase, evaluation: Evaluation) -> Evaluation:
    """Return an evaluation without implausible twins, where the decision differs from a plausible one's."""
    good = case.pair_domain.twins(evaluation.rows).valid & evaluation.valid
    some = (evaluation.differs & good).any(1, keepdim=True)
    valid = torch.where(some, good, evaluation.valid)
    return replace(evaluation, valid=valid, apart=evaluation.apart & valid)


def _shrunk(case: AttributeCase, domain: TableDomain, found: Candidates) -> _Shown:
    """Return the widest of the findings, and what becomes of them if they are shrunk within a domain."""
    wide = found.once[found.gaps.topk(min(len(found.gaps), LOOK)).indices]
    # Walks leave many near copies: the widest of each region of the domain is a candidate.
    coarse = case.model.encoding.encode(found.rows[wide].long()).cpu().numpy()
    _, first = np.unique(np.round(coarse), axis=0, return_index=True)
    wide = wide[torch.from_numpy(np.sort(first)[: case.shrunk]).to(wide.device)]
    rows = found.rows[wide].long()
    goals = _nearest(domain, rows, case.plausible_records[1])
    return _Shown(wide, shrink(case.exact, domain, rows, goals, case.decision), goals)


def _real(case: AttributeCase, most: int) -> _Shown:
    """Return different plausible records whose decision differs from a plausible twin's: the widest gaps."""
    rows = case.data.rows[: min(NEAR, case.samples)]
    numbers = (case.plausible_records[0].valid(rows)).nonzero()[:, 0]
    numbers = numbers[flips_plausibly(case, rows[numbers])]
    gaps = case.decision.gap(*evaluated_pairs(case, rows[numbers])[2:])
    numbers = numbers[gaps.argsort(descending=True, stable=True)]
    _, first = np.unique(case.domain.key(rows[numbers]).cpu().numpy(), return_index=True)
    numbers = numbers[torch.from_numpy(np.sort(first)[:most]).to(numbers.device)]
    return _Shown(-1 - numbers, rows[numbers], rows[numbers])


def _nearest(domain: TableDomain, rows: Tensor, table: Tensor) -> Tensor:
    """Return for each row the record that differs least, sensitive attributes apart: (n, d)."""
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


SAMPLE = 300  # findings in the table of the page
BINS = 30  # of the histogram of gaps


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

    def place(self, finding: int) -> tuple[int, str]:
        """Return the number of a finding in its search, and the method; below 0 it is a record in the data set."""
        if finding < 0:
            return -1 - finding, TABLE
        return int(self.number[finding]), self.methods[int(self.search[finding])]


def describe_findings(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Describe the discriminatory inputs that were found: score gaps, diversity, and the worst in words."""
    outcomes = [outcome for outcome in audit.outcomes if len(outcome.findings)]
    if not outcomes:
        return
    progress("Describing the findings", 0, None)
    domain = case.domain
    found = Findings.join([outcome.findings for outcome in outcomes])
    rows = found.packed
    sources = _Sources.of(outcomes, rows.device)
    # Two methods may find the same person: once is enough.
    _, first = np.unique(domain.key(rows.long()).cpu().numpy(), return_index=True)
    once = torch.from_numpy(np.sort(first)).to(rows.device)
    unique = found[once]
    scores, others = unique.scores.double(), unique.twin_scores.double()
    gaps = case.decision.gap(scores, others)
    plausible = case.plausible(rows[once]) & _plausible_twin(case, rows[once].long(), unique.twins(domain).long())
    generator = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(len(once), generator=generator).to(once.device)
    drawn = once[order]
    audit.report = replace(
        audit.report,
        plausible_found=None if case.population is None else int(plausible.sum()),
        severity=_severity(gaps.cpu().numpy()),
        probability_gaps=_probability_gaps(case, scores, others),
        direction=(*audit.report.direction, *_found_direction(case, unique)),
        mean_distance=mean_distance(domain, rows[once].long(), seed=case.seed),
        regions=count_regions(domain, rows[once].long(), seed=case.seed),
        coverage=_coverage(case, outcomes[0], rows[drawn[sources.search[drawn] == 0][:LOOK]]),
    )
    sample = once[order[(~plausible[order]).long().argsort(stable=True)[:SAMPLE]]]
    worst = worst_findings(case, Candidates(rows, once, gaps, plausible))
    audit.report = replace(
        audit.report,
        worst=_in_words(case, sources, *worst),
        findings=_in_words(case, sources, sample, rows[sample].long(), [[] for _ in sample]),
    )
    if case.runs is not None:
        write_worst_findings(case.runs.path, audit.report.worst)


def _in_words(
    case: AttributeCase, sources: _Sources, which: Tensor, people: Tensor, changed: list[list[int]]
) -> tuple[Finding, ...]:
    """Return people as findings in words.

    `which` are the numbers of the findings. The columns in `changed` are named first for each person, then the others
    in the order of their importance.
    """
    pairs = evaluated_pairs(case, people)
    plausibilities = _shares(case, pairs.rows), _shares(case, pairs.twins)
    twin_is_plausible = _plausible_twin(case, pairs.rows, pairs.twins).tolist()
    findings = []
    for i, pair in enumerate(map(phrases.DescribedPair, *pairs)):
        columns = [*changed[i], *(c for c in case.importance_order if c not in changed[i])]
        number, method = sources.place(int(which[i]))
        finding = replace(
            phrases.finding(case.domain, case.decision, pair, columns, number, method, case.scale),
            plausibility=plausibilities[0][i],
            twin_plausibility=plausibilities[1][i],
            twin_is_plausible=twin_is_plausible[i],
        )
        if case.runs is not None and case.runs.replay is not None and method != TABLE:
            words = ["neuronfair", "show", str(case.runs.path / method), str(number), *case.runs.replay]
            finding = replace(finding, replay=shlex.join(words))
        findings.append(finding)
    return tuple(findings)


def _shares(case: AttributeCase, people: Tensor) -> list[float] | list[None]:
    """Return the plausibility of each person; None where it is not known."""
    known = case.plausibility(people)
    return [None] * len(people) if known is None else known.tolist()


def _plausible_twin(case: AttributeCase, people: Tensor, twins: Tensor) -> Tensor:
    """Return for each pair whether the twin is plausible: bool, (n,); all are where that is not known."""
    if case.pair_domain is case.domain:
        return torch.ones(len(people), dtype=torch.bool, device=people.device)
    fits = [
        (every.valid & (every.rows == twin[:, None]).all(2)).any(1)
        for part, twin in zip(*split_families(case.model.encoding, case.domain, people, twins), strict=True)
        for every in (case.pair_domain.twins(part),)
    ]
    return torch.cat([people.new_zeros(0, dtype=torch.bool), *fits])


def _severity(gaps: np.ndarray[Any, Any]) -> SeverityReport:
    median, p95, largest = (float(q) for q in np.quantile(gaps, (0.5, 0.95, 1.0)))
    counts, edges = np.histogram(gaps, BINS, (0.0, largest or 1.0))
    return SeverityReport(median, p95, largest, Histogram(tuple(edges.tolist()), tuple(counts.tolist())))


def _probability_gaps(case: AttributeCase, scores: Tensor, others: Tensor) -> SeverityReport | None:
    """Return how far the probabilities of people and their twins lie apart; None where scores are only numbers."""
    found = find_probabilities(case.decision, case.scale, scores, others)
    return None if found is None else _severity((found.row - found.twin).abs().cpu().numpy())


def _found_direction(case: AttributeCase, found: Findings) -> tuple[DirectionReport, ...]:
    """Return which groups the found pairs disadvantage."""
    tally = DirectionTally(case.domain, find_favourable_class(case.domain, case.decision, case.model.outputs))
    tally.add_pairs(Pairs(found.rows, found.twins(case.domain), found.scores, found.twin_scores), case.decision)
    return direction(case.domain, "findings", tally.direction())


def _coverage(case: AttributeCase, outcome: SearchResult, findings: Tensor) -> CoverageReport | None:
    """Return the share of biased neurons that a finding, and that a miss, of one search activates on average.

    None without misses.
    """
    misses = outcome.findings.misses[: len(findings)]
    if outcome.profile is None or not isinstance(case.model, Network) or len(misses) == 0:
        return None
    network, profile = case.model, outcome.profile
    counts = (measure_coverage(network, case.domain, profile, rows) for rows in (findings, misses))
    return CoverageReport(*(float(np.mean(count.shares)) for count in counts))


MAX_FINDINGS = 20_000  # findings that rules for groups are learned from, at most


def find_subgroups(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Look for short rules under which discrimination is frequent, in plausible pairs if they are known."""
    rate, found = audit.rate, [o.findings.packed for o in audit.outcomes]
    if rate is None or not found:
        return
    progress("Looking for groups", 0, None)
    rows = torch.cat(found)
    rows = rows[case.plausible(rows)]
    if len(rows) == 0 and rate.flips == 0:
        return
    if case.pair_domain is not case.domain:  # the rate of the same people, compared with plausible twins only
        rate = case.rate(case.population or "domain", case.pair_domain)
    rows = rows[random_order(len(rows), case.seed)[:MAX_FINDINGS].to(rows.device)]
    try:
        result = learn_subgroups(
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
        seen = f"Groups in which discrimination is frequent could not be looked for: {error}"
        audit.note(Note("no-groups", seen, "Use fewer or simpler rules."))
        return
    audit.report = replace(audit.report, subgroups=tuple(phrases.subgroup(case.pair_domain, group) for group in result))
