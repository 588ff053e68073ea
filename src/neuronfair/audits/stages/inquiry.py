"""One sensitive attribute, or several together: how often it matters, where, for whom, and who is found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuronfair.audits.folder import NEARER
from neuronfair.audits.report.attribute import (
    NO_TWIN,
    NOT_READ,
    UNMOVED,
    AttributeReport,
    Interpretation,
    LayerReport,
    Note,
    SearchReport,
)
from neuronfair.audits.report.rates import covering
from neuronfair.audits.stages.groups import group_figures
from neuronfair.audits.wording import phrases
from neuronfair.audits.wording.phrases import direction
from neuronfair.domain.population.model import OwnPopulation, PopulationModel
from neuronfair.domain.population.plausible import PLAUSIBLE, plausible, plausible_twins
from neuronfair.domain.rules import left_out
from neuronfair.domain.schema.infer import SHARE, SMALL
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.twins import FLIPS
from neuronfair.errors import DomainError
from neuronfair.formatting import Population, listed, plural
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.measure.rate import Rate, discrimination_rate, plausible_pair_rate
from neuronfair.measure.subgroups import subgroups
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision, Scale
from neuronfair.model.encoding import ROWS_PER_PASS
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.records import Records, records_of
from neuronfair.progress import Progress
from neuronfair.searches import campaign
from neuronfair.searches.config import SearchConfig, SearchResult
from neuronfair.store.manifest import make_manifest
from neuronfair.store.run import Run

READ, FEWEST = 500_000, 500  # rows, twins included, whose neurons are read; but so many rows at least
POINTS = 101  # of an AS curve, at most
NEAR = 20_000  # rows of the table among which the nearest to a finding is looked for
ROUNDED, MUCH = 10_000, 0.01  # records that are looked at on the grid; and the share of other decisions that is much
LOOK = 20_000  # findings that rules for groups are learned from, at most


@dataclass(frozen=True)
class AttributeCase:
    """What is audited for one choice of sensitive attributes: the table's domain names them."""

    model: Model
    data: Dataset
    decision: Decision
    seeds: Tensor
    configs: tuple[SearchConfig, ...]
    samples: int
    confidence: float
    seed: int
    telling: list[int]  # columns, the most important first
    scale: Scale = "numbers"  # what the scores are
    shrunk: int = 100  # candidates for the worst findings that are shrunk
    folder: Path | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)  # where the model is, and its fingerprint
    replay: tuple[str, ...] | None = ()  # what `neuronfair replay` must be told; None: the model is only in memory
    population: PopulationModel | None = None  # who is usual; None where that is not known
    opened: Opened | None = None  # what the model came from, which may be asked with the original cells

    @cached_property
    def records(self) -> Records:
        """The records of the data set, with their original cells where the model can be asked with them."""
        return records_of(self.opened or self.model, self.data)

    @property
    def domain(self) -> TableDomain:
        """The domain with the sensitive attributes chosen."""
        return self.data.domain

    @cached_property
    def pairs(self) -> TableDomain:
        """The domain whose people are compared with plausible twins only; itself where nothing is known of them."""
        if self.population is None or self.domain.twinning != FLIPS:
            return self.domain
        return plausible_twins(self.domain, self.population, self.data.rows)

    @cached_property
    def near(self) -> tuple[TableDomain, Tensor]:
        """The domain of plausible pairs, and the plausible people of the table; all where nobody is known as usual."""
        if self.population is None:
            return self.domain, self.domain.clip(self.data.rows[:NEAR])
        # Of all rows: nobody among the first ones may be plausible.
        inside = plausible(self.pairs, self.population, PLAUSIBLE, self.domain.clip(self.data.rows))
        return inside, inside.people[:NEAR]

    def plausibility(self, rows: Tensor) -> Tensor | None:
        """Return for each row the share of the people of the table who are less usual; None where that is not known."""
        if self.population is None:
            return None
        return torch.cat([self.population.plausibility(part.long()) for part in torch.split(rows, ROWS_PER_PASS)])

    def plausible(self, rows: Tensor) -> Tensor:
        """Return for each row whether it is a plausible person: bool, (n,); all are where nobody is known as usual."""
        known = self.plausibility(rows)
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device) if known is None else known >= PLAUSIBLE

    @cached_property
    def looked_at(self) -> Tensor:
        """The rows of the table whose neurons are read, twins included; not all where there are many twins."""
        rows, most = self.data.rows, max(FEWEST, READ // len(self.domain.sensitive_values))
        if len(rows) <= most:
            return rows
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order[:most].to(rows.device)]

    @cached_property
    def exact(self) -> Model:
        """The model in float64, as findings are confirmed."""
        return self.model.double()


@dataclass
class Inquiry:
    """What is known so far about one choice of sensitive attributes; it grows stage by stage."""

    report: AttributeReport
    outcomes: list[SearchResult] = field(default_factory=list)
    rate: Rate | None = None  # of plausible people, or else of people drawn uniformly from the domain
    profile: BiasProfile | None = None  # a black box has none

    @staticmethod
    def of(domain: TableDomain) -> Inquiry:
        """Return an inquiry about which nothing is known yet."""
        names = domain.sensitive
        return Inquiry(AttributeReport("+".join(names), tuple(names), twins=len(domain.sensitive_values) - 1))

    def add(self, **known: Any) -> None:
        """Add what is known now."""
        self.report = replace(self.report, **known)

    def note(self, *notes: Note) -> None:
        """Add what may mislead, unless it was said before."""
        self.add(health=(*self.report.health, *(note for note in notes if note not in self.report.health)))

    def drop_refuted(self) -> None:
        """Take back that the model does not read the attribute where a later stage has seen a decision depend on it."""
        if self.report.depends:
            self.add(health=tuple(note for note in self.report.health if note.name not in (NOT_READ, UNMOVED)))


def measure_rates(case: AttributeCase, inquiry: Inquiry, progress: Progress) -> None:
    """Estimate how often the decision flips: in plausible pairs, the table's rows, plausible people and the domain."""
    _measure_pairs(case, inquiry, progress)
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

        rate = discrimination_rate(
            case.model,
            case.domain,
            population=population,
            samples=case.samples,
            confidence=case.confidence,
            decision=case.decision,
            seed=case.seed,
            progress=note,
        )
        if rate.population != "table":
            inquiry.rate = inquiry.rate or rate
        inquiry.add(rates=replace(inquiry.report.rates, **{rate.population: phrases.rate_of(rate)}))
        if rate.population != "combinations":
            hurt = direction(case.domain, rate.population, rate.direction)
            inquiry.add(direction=(*inquiry.report.direction, *hurt))
    inquiry.note(*_small_groups(case))
    rates = inquiry.report.rates
    if rates.table is not None and rates.plausible is not None and not isinstance(case.population, OwnPopulation):
        inquiry.add(rates=replace(rates, plausible=covering(rates.plausible, rates.table)))
    # Groups that are left out of the twins break no rule between attributes.
    names = case.domain.sensitive
    between = [rule for rule in case.domain.rules if not ({*rule.when} <= {*names} and not rule.then)]
    whole = replace(case.domain, rules=tuple(between))
    broken = sum(int((~whole.valid(part)).sum()) for part in torch.split(case.data.rows, ROWS_PER_PASS))
    if broken:
        seen = f"{broken:,} of {len(case.data):,} rows of the table break a rule; the share of the table includes them."
        remedy = "Correct the rules in the domain file, or the rows."
        inquiry.note(Note("rows-break-rules", seen, remedy))
    inquiry.note(*_rounding(case))
    groups, disparity = group_figures(case.records.model, case.records.data, case.decision, case.confidence)
    inquiry.add(groups=groups, disparity=disparity)


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
            elif count < SMALL and count < SHARE * len(case.data):
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
    if records.given == "codes":
        seen = f"The metrics of the data set are measured on the grid of the domain: {records.why}."
        return (Note("measured-on-grid", seen, remedy),) if records.why else ()
    notes = []
    if records.why:
        notes.append(Note("empty-cells", f"In the data set, {records.why}.", "Fill them as your own program does."))
    order = torch.randperm(len(case.data), generator=torch.Generator().manual_seed(case.seed))[:ROUNDED]
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
    if other > MUCH * len(order):
        seen += " So many differ that findings and the metrics of generated records may not hold between its steps."
    return (*notes, Note("rounded-records" if other > MUCH * len(order) else "rounded-few", seen, remedy))


def _measure_pairs(case: AttributeCase, inquiry: Inquiry, progress: Progress) -> None:
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
        inquiry.note(Note(NO_TWIN, seen, "Check the rules of the domain file, or choose another attribute."))
        return
    inquiry.add(rates=replace(inquiry.report.rates, pairs=phrases.pair_rate_of(pairs)))
    inquiry.add(direction=(*inquiry.report.direction, *direction(case.domain, "pairs", pairs.rate.direction)))


def look_inside(case: AttributeCase, inquiry: Inquiry, progress: Progress) -> None:
    """Look which layers and neurons react to the sensitive attributes; a black box or a linear model shows nothing."""
    if not isinstance(case.model, Network) or not case.model.layers:
        return
    what = "Comparing rows with their twins"
    inquiry.profile = interpret(
        case.model, case.domain, case.looked_at, progress=lambda done, total: progress(what, done, total)
    )
    inquiry.add(interpretation=_interpretation(inquiry.profile))


def search(case: AttributeCase, inquiry: Inquiry, progress: Progress) -> None:
    """Run the searches one after the other; Ctrl-C ends them, and what was found is kept."""
    for config in case.configs:
        run, place = None, None
        if case.folder is not None:
            place = f"{case.folder.name}/{config.method}"
            manifest = make_manifest(config, case.data, outputs=case.model.outputs, **case.manifest)
            manifest["worst"] = f"../{NEARER}"
            run = Run.create_or_open(case.folder / config.method, manifest, case.domain, case.model.outputs)

        begun = time.perf_counter()

        def note(
            phase: str, done: int, total: int, found: int, method: str = config.method, begun: float = begun
        ) -> None:
            speed = found / max(1e-9, time.perf_counter() - begun)
            progress(f"{method}: {phase}", done, total, f"{found:,} findings ({speed:,.0f} a second)")

        outcome = campaign.search(
            case.model,
            case.domain,
            case.looked_at,
            config,
            seeds=case.seeds[: config.seeds],
            profile=inquiry.profile,
            population=case.population,
            recorder=run,
            progress=note,
        )
        inquiry.outcomes.append(outcome)
        figures = outcome.summary()
        if run is not None and not outcome.interrupted:
            run.finish({"data": case.data.name, "sensitive": list(case.domain.sensitive), **figures})
        inquiry.add(searches=(*inquiry.report.searches, _search(figures, place)))
        inquiry.note(*(Note(note.name, note.seen, note.remedy) for note in outcome.health))
        if outcome.interrupted:
            raise KeyboardInterrupt


def _search(figures: dict[str, Any], place: str | None) -> SearchReport:
    random, directed, seconds = figures["random"], figures["random_direction"], figures["seconds"]
    usual = figures["plausibility"]
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
        plausible_share=usual and usual["share"],
    )


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


def find_subgroups(case: AttributeCase, inquiry: Inquiry, progress: Progress) -> None:
    """Look for short rules under which discrimination is frequent, in plausible pairs if they are known."""
    rate, found = inquiry.rate, [o.findings.packed for o in inquiry.outcomes]
    if rate is None or not found:
        return
    progress("Looking for groups", 0, None)
    rows = torch.cat(found)
    rows = rows[case.plausible(rows)]
    if len(rows) == 0 and rate.found == 0:
        return
    if case.pairs is not case.domain:  # the rate of the same people, compared with plausible twins only
        rate = discrimination_rate(
            case.model,
            case.pairs,
            population=case.population or "domain",
            samples=case.samples,
            confidence=case.confidence,
            decision=case.decision,
            seed=case.seed,
        )
    generator = torch.Generator().manual_seed(case.seed)
    rows = rows[torch.randperm(len(rows), generator=generator)[:LOOK].to(rows.device)]
    try:
        result = subgroups(
            case.model,
            case.pairs,
            rows,
            rate,
            population=case.population,
            samples=case.samples,
            decision=case.decision,
            seed=case.seed + 1,
        )
    except DomainError as error:  # a rule on top of many others may not fit their table of combinations
        seen = f"Groups in which discrimination is frequent could not be looked for: {error}"
        inquiry.note(Note("no-groups", seen, "Use fewer or simpler rules."))
        return
    inquiry.add(subgroups=tuple(phrases.subgroup(case.pairs, group) for group in result))
