"""Flip rates: how often the decision changes in each population, and what may mislead about that."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronfair.audits.report.attribute import (
    NO_TWIN,
    Note,
)
from neuronfair.audits.report.rates import covering
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.audits.stages.groups import group_metrics
from neuronfair.audits.wording import phrases
from neuronfair.audits.wording.phrases import direction
from neuronfair.domain.population.model import OwnPopulation, PopulationModel
from neuronfair.domain.rules import left_out
from neuronfair.domain.schema.infer import SMALL_GROUP_RECORDS, SMALL_GROUP_SHARE
from neuronfair.formatting import Population, listed, plural
from neuronfair.measure.rate import plausible_pair_rate
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.records import Records
from neuronfair.progress import Progress

MAX_ROUNDED_RECORDS = 10_000  # records that are evaluated on the grid
NOTABLE_ROUNDING = 0.01  # share of different decisions from which a note says so


def measure_rates(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Estimate how often the decision flips: in plausible pairs, the table's rows, plausible people and the domain."""
    _measure_pairs(case, audit, progress)
    populations: tuple[tuple[Population | Records | PopulationModel | None, str], ...] = (
        (case.records, "Judging the rows of the table"),
        (case.population, "Judging plausible people"),
        ("domain", "Judging people drawn from the domain"),
    )
    for population, what in populations:
        if population is None:
            continue

        def note(done: int, total: int, what: str = what) -> None:
            progress(what, done, total)

        rate = case.rate(population, progress=note)
        if rate.population != "table":
            audit.rate = audit.rate or rate
        audit.report = replace(
            audit.report, rates=replace(audit.report.rates, **{rate.population: phrases.rate_of(rate)})
        )
        if rate.population != "combinations":
            hurt = direction(case.domain, rate.population, rate.direction)
            audit.report = replace(audit.report, direction=(*audit.report.direction, *hurt))
    audit.note(*_small_groups(case))
    rates = audit.report.rates
    if rates.table is not None and rates.plausible is not None and not isinstance(case.population, OwnPopulation):
        audit.report = replace(audit.report, rates=replace(rates, plausible=covering(rates.plausible, rates.table)))
    audit.note(*_broken_rules(case), *_rounding(case))
    groups, disparity = group_metrics(case.records.model, case.records.data, case.decision, case.confidence)
    audit.report = replace(audit.report, groups=groups, disparity=disparity)


def _broken_rules(case: AttributeCase) -> tuple[Note, ...]:
    """Return a note if rows of the table break a rule between attributes; a group that is left out breaks none."""
    names = case.domain.sensitive
    between = [rule for rule in case.domain.rules if not ({*rule.when} <= {*names} and not rule.then)]
    whole = replace(case.domain, rules=tuple(between))
    broken = sum(int((~whole.valid(part)).sum()) for part in torch.split(case.data.rows, ROWS_PER_PASS))
    if not broken:
        return ()
    seen = f"{broken:,} of {len(case.data):,} records break a rule; the flip rate of the data set includes them."
    return (Note("rows-break-rules", seen, "Correct the rules in the domain file, or the records."),)


def _small_groups(case: AttributeCase) -> tuple[Note, ...]:
    """Return which demographic groups nobody is compared with, and which small ones people are compared with."""
    domain, out, kept = case.domain, list[str](), list[str]()
    for column in domain.sensitive_columns:
        attribute = domain.attributes[column]
        if not attribute.values:
            continue
        counts = torch.bincount(case.data.rows[:, column].clamp(0, attribute.size - 1), minlength=attribute.size)
        without = left_out(domain.rules, attribute.name)
        for label, count in zip(attribute.values, counts.tolist(), strict=True):
            shown = f"{attribute.name} {label} ({plural(count, 'record')})"
            if label in without:
                out.append(shown)
            elif count < SMALL_GROUP_RECORDS and count < SMALL_GROUP_SHARE * len(case.data):
                kept.append(shown)
    notes = []
    if out:
        remedy = "Delete its rule from the domain file to include a group."
        seen = f"Nobody is compared with {listed(out)}: too few records, or their group is not known."
        notes.append(Note("groups-left-out", seen, remedy))
    if kept:
        remedy = "Forbid the value by a rule in the domain file to leave a group out."
        seen = f"People are compared with small groups, too: {listed(kept)}. A flip against one of them counts fully."
        notes.append(Note("small-groups", seen, remedy))
    return tuple(notes)


def _rounding(case: AttributeCase) -> tuple[Note, ...]:
    """Return what the values of the domain change about the records of the data set."""
    records, remedy = case.records, "Use smaller steps or more labels in the domain file."
    if records.form == "codes":
        seen = f"The metrics of the data set are measured on the grid of the domain: {records.why}."
        return (Note("measured-on-grid", seen, remedy),) if records.why else ()
    notes = []
    if records.why:
        notes.append(Note("empty-cells", f"In the data set, {records.why}.", "Fill them as your own program does."))
    order = torch.randperm(len(case.data), generator=torch.Generator().manual_seed(case.seed))[:MAX_ROUNDED_RECORDS]
    chosen = order.to(case.data.rows.device)
    parts = torch.split(case.data.rows[chosen], case.model.encoding.rows_per_pass)
    grid = torch.cat([case.model.scores(part) for part in parts]).double()
    other = int(case.decision.differ(grid, records.model.scores(records.data.rows[chosen])).sum())
    if not other:
        return tuple(notes)
    seen = (
        f"{other:,} of {len(order):,} records {'gets' if other == 1 else 'get'} another decision after rounding to "
        "the grid of the domain. The metrics of the data set use the original cells; generated records are on the grid."
    )
    if other > NOTABLE_ROUNDING * len(order):
        seen += " So many differ that findings and the metrics of generated records may not hold between its steps."
    return (*notes, Note("rounded-records" if other > NOTABLE_ROUNDING * len(order) else "rounded-few", seen, remedy))


def _measure_pairs(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Estimate the flip rate over plausible pairs, where it is known which twins are plausible."""
    if case.pairs is case.domain:
        return
    pairs = plausible_pair_rate(
        case.model,
        case.pairs,
        case.records,
        samples=case.samples,
        confidence=case.confidence,
        decision=case.decision,
        seed=case.seed,
        progress=lambda done, total: progress("Comparing people with their plausible twins", done, total),
    )
    if pairs is None:
        seen = "Nobody in the data set has a plausible twin, so no flip rate over plausible pairs is known."
        audit.note(Note(NO_TWIN, seen, "Check the rules of the domain file, or choose another attribute."))
        return
    audit.report = replace(audit.report, rates=replace(audit.report.rates, pairs=phrases.pair_rate_of(pairs)))
    audit.report = replace(
        audit.report, direction=(*audit.report.direction, *direction(case.domain, "pairs", pairs.rate.direction))
    )
