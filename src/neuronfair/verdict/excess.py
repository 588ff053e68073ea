"""What a check in a test measures, and what it says if that is too much."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronfair.domain.counterpart_fit import with_counterparts
from neuronfair.domain.data import Data
from neuronfair.domain.plausible import plausible_twins
from neuronfair.domain.population import PopulationModel
from neuronfair.measure.counterparts import Thoroughness, counterpart_effect
from neuronfair.measure.rate import Rate, discrimination_rate, plausible_pair_rate
from neuronfair.model.open import Opened
from neuronfair.verdict.counterpart import CounterpartReport
from neuronfair.verdict.counterpart_words import counterpart_report
from neuronfair.verdict.expressions import Limit
from neuronfair.verdict.gate import people_needed
from neuronfair.words import POPULATIONS, Population, listed, percent, plain


def sampled_rates(
    opened: Opened,
    data: Data,
    samples: int,
    confidence: float,
    seed: int,
    table: Data | None = None,
    usual: PopulationModel | None = None,
) -> tuple[Rate, ...]:
    """Return how often the decision flips in each population that there is, and in the whole domain.

    `table` is the data set, and `usual` says who is plausible: then plausible pairs come first.
    """
    populations: tuple[Population | Data | PopulationModel | None, ...] = (table, usual, "domain")
    pairs = None
    if table is not None and usual is not None:
        pairs = plausible_pair_rate(
            opened,
            plausible_twins(data.domain, usual, table.rows),
            table,
            samples=samples,
            confidence=confidence,
            decision=opened.decision,
            seed=seed,
        )
    return (() if pairs is None else (pairs.rate,)) + tuple(
        discrimination_rate(
            opened,
            data.domain,
            population=population,
            samples=samples,
            confidence=confidence,
            decision=opened.decision,
            seed=seed,
        )
        for population in populations
        if population is not None
    )


def decides_alike(opened: Opened, data: Data, samples: int, seed: int) -> bool:
    """Return whether all these rows, and as many drawn from the domain as were judged, get one decision."""
    model = opened.model
    people = torch.cat([data.rows, data.domain.sample(samples, torch.Generator().manual_seed(seed))])
    parts = torch.split(people, model.encoding.rows_per_pass)
    return opened.decision.alike(torch.cat([model.scores(part) for part in parts]))


def too_many(rate: Rate, limit: Limit, data: Data) -> list[str]:
    """Return that too many decisions flip; nothing where the people who were sampled exclude it."""
    low, high = rate.interval
    if not limit.met_by(high):
        return []
    by = listed([plain(name) for name in data.domain.sensitive])
    lines = [
        f"The decision flips with {by} for {percent(rate.rate)} of {POPULATIONS[rate.population]} "
        f"({percent(low)} to {percent(high)} with {percent(rate.confidence)} confidence, {rate.found:,} of "
        f"{rate.sampled:,} people); at most {percent(limit.number)} is allowed."
    ]
    if not limit.met_by(rate.rate):
        needed = people_needed(limit, rate.rate, rate.confidence)
        if needed is not None:
            how = f"settings=CheckSettings(samples={needed})"
            if rate.population == "table" and rate.sampled >= len(data):
                how = f"the table has {len(data):,}"
            lines.append(f"These are too few people to decide: about {needed:,} would be needed ({how}).")
    return lines


def compared(
    opened: Opened, data: Data, samples: int | None, confidence: float, seed: int
) -> tuple[CounterpartReport, Data]:
    """Return what the counterparts of a table's people came to, and the table whose people are compared with them."""
    effect = counterpart_effect(
        opened.model,
        data.domain,
        data.rows,
        decision=opened.decision,
        thorough=Thoroughness(people=samples),
        confidence=confidence,
        seed=seed,
    )
    domain = with_counterparts(data.domain, effect.counterparts)
    return counterpart_report(data.domain, data.rows, effect, confidence), replace(data, domain=domain)


def too_large(report: CounterpartReport, most: float) -> list[str]:
    """Return that the effect of counterparts is too large; nothing where its interval excludes that."""
    if report.effect.high <= most:
        return []
    return [f"{report.sentence} Its upper end may be {100 * most:g} at most.", *report.sentences[1:]]
