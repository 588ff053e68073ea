"""What a search or a comparison of methods found, for the terminal: metrics, findings in words, tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from torch import Tensor

from neuronfair.audits.comparison import Comparison
from neuronfair.audits.folder import read_shrunk_pair
from neuronfair.audits.wording import phrases
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.formatting import (
    POPULATIONS,
    distinct_numbers,
    distinct_percents,
    join_words,
    likelihood,
    percent,
    ratio,
    with_interval,
)
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision, Scale
from neuronfair.plots import saved_figure
from neuronfair.searches.campaign import ControlFigures, SearchResult, SearchSummary
from neuronfair.searches.evaluate import count_flips_of_drawn_twins, counterfactuals_of
from neuronfair.searches.findings import NO_SEED, PlausibilityFigures
from neuronfair.searches.health import WEAK_GUIDANCE
from neuronfair.searches.shrink import shrink_examples
from neuronfair.store.run import Run

MAX_EXAMPLES = 3


def compose_search(outcome: SearchResult, model: Model, folder: Path, replay: Sequence[str] = ()) -> RenderableType:
    """Return the metrics of a search next to its controls, the worst findings in words, and where everything is.

    `replay` is what `neuronfair show` must be told to open the model again.
    """
    figures = outcome.summary()
    counterfactuals, by = counterfactuals_of(outcome.domain), join_words(outcome.domain.sensitive)
    flips = f"Discriminatory inputs by {by}"
    twins = f"Records whose counterfactual twin by {by} gets a different decision"
    table = Table(title=flips if counterfactuals is None else twins)
    for heading in ("", "records tried", "findings", "success rate", "lift"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row(outcome.config.method, *_format_counts(figures), "", style="bold")
    uniform = "drawn at random, realistic" if outcome.config.plausible else "drawn uniformly"
    for control, lift, label in (
        (figures["random"], figures["lift"], uniform),
        (figures["random_direction"], figures["lift_over_random_direction"], "random directions"),
    ):
        if control is not None:
            table.add_row(label, *_format_counts(control), "found none" if lift is None else ratio(lift))
    per_1000 = figures["seconds_per_1000"]
    cost = f", {per_1000:.3f} seconds per 1,000 findings" if per_1000 is not None else ""
    guidance_notes = [note for note in outcome.health if note.name == WEAK_GUIDANCE]
    lines = [f"{note.observation} {note.remedy}" for note in guidance_notes]  # the verdict on the search
    lines += [
        f"{figures['findings_global']:,} findings in the global phase, {figures['findings_local']:,} in the local one; "
        f"{figures['seconds']:.1f} seconds{cost}.",
        f"{figures['violations']:,} findings break a rule or a bound; {figures['rejected_on_recheck']:,} were dropped "
        "because the decisions agree in float64.",
    ]
    if figures["confused"]:
        lines.append(
            f"Records are compared by 63-bit keys: the chance that two different records were taken for one is "
            f"{figures['confused']:.1e}."
        )
    lines += _describe_plausibility(outcome, figures["plausibility"])
    if counterfactuals is not None and not bool(counterfactuals.groups.all()):
        small = f"{int((~counterfactuals.groups).sum()):,} of {len(counterfactuals.groups):,} groups"
        lines.append(f"Groups with too few records for counterfactual twins, which are left out: {small}.")
    if outcome.interrupted:
        lines.append("Interrupted: what was found is kept. The same command resumes from here.")
    other_notes = [note for note in outcome.health if note not in guidance_notes]
    lines += [f"Health check {note.name}: {note.observation} {note.remedy}" for note in other_notes]
    lines += describe_examples(outcome, model)
    command = shlex.join(["neuronfair", "show", str(folder), "0", *replay])
    lines.append(f"All findings: {folder} (Parquet). One of them in words: {command}")
    return Group(table, *lines)


def _describe_plausibility(outcome: SearchResult, figures: PlausibilityFigures | None) -> list[str]:
    """Return how plausible the findings are, and the likelihood percentile that the search kept to."""
    limit, lines = outcome.config.plausible, []
    if limit:
        prefix = "" if figures else "Nothing was found. "
        lines.append(f"{prefix}Minimum likelihood percentile of the records: {percent(limit)}.")
    if figures:
        lines.append(
            f"{percent(figures['share'])} of the findings are realistic: at or above the 1st likelihood percentile of "
            f"your data. Their median: {likelihood(figures['median'])}."
        )
    return lines


def _format_counts(figures: ControlFigures | SearchSummary) -> tuple[str, str, str]:
    return f"{figures['tried']:,}", f"{figures['findings']:,}", percent(figures["gsr"])


def describe_examples(outcome: SearchResult, model: Model) -> list[str]:
    """Return the findings with the widest score gap, shrunk to the smallest change from their seed row, in words."""
    domain, decision = outcome.domain, outcome.config.decision
    pairs, seeds = shrink_examples(outcome, model, MAX_EXAMPLES)
    if len(seeds) == 0:
        return []
    scale = outcome.findings.scale(decision, outcome.config.scale)
    lines = ["Some of the widest gaps, each moved as near to a record of the data set as possible:"]
    for row, twin, scores, twin_scores, seed in zip(*pairs, seeds, strict=True):
        changes = describe_changes(domain, seed, row)
        pair = phrases.DescribedPair(row, twin, scores, twin_scores)
        text, twin_text = describe_decisions(domain, decision, scale, pair)
        lines.append(
            f"• {domain.describe(row)}: gets {text}; {_describe_twin(domain, row, twin)}: {twin_text}. "
            + (f"Changed from a record of the data set: {changes}." if changes else "A record of the data set.")
        )
    return lines


def describe_changes(domain: TableDomain, before: Tensor, after: Tensor) -> str:
    """Return in words which attributes differ between two rows."""
    changes = phrases.list_changes(domain, before, after)
    return ", ".join(f"{change.attribute} {change.own} → {change.twin}" for change in changes)


def _describe_twin(domain: TableDomain, row: Tensor, twin: Tensor) -> str:
    """Return in words who the twin is."""
    if counterfactuals_of(domain) is None:
        return f"with only {describe_changes(domain, row, twin)}"
    return phrases.describe_twin(domain, phrases.list_changes(domain, row, twin), len(row))


def describe_decisions(
    domain: TableDomain, decision: Decision, scale: Scale, pair: phrases.DescribedPair
) -> tuple[str, str]:
    """Return the decisions for a person and the twin in words, with the probabilities or scores that they rest on."""
    text, twin_text = phrases.describe_decisions(domain, decision, pair.scores, pair.twin_scores)
    if decision.kind == "tolerance":
        return text, twin_text
    shares = phrases.find_class_probability(domain, decision, scale, pair)
    if shares is None:
        score, twin_score = map(float, phrases.find_leads(decision, pair.scores, pair.twin_scores))
        basis, twin_basis = (f"score {text}" for text in distinct_numbers(score, twin_score))
    else:
        basis, twin_basis = (f"probability of {shares[0]} {text}" for text in distinct_percents(*shares[1:]))
    return f"{text} ({basis})", f"{twin_text} ({twin_basis})"


def compose_replay(run: Run, model: Model, number: int, *, same_weights: bool) -> RenderableType:
    """Return one finding in words, as it was found and as the network decides now.

    If it is one of the worst of an audit, the person follows as the audit shows it: nearer to a record.
    """
    findings, domain, config = run.findings(), run.domain, run.manifest["plan"]
    finding, decision = findings[number : number + 1], Decision(**config["decision"])
    scale = findings.scale(decision, config.get("scale"))
    pair = _evaluate(model, finding.rows[0], finding.twins(domain)[0])
    source, sentence = "the pilot", "It was found from a random record."
    if int(finding.origin) != NO_SEED:
        changes = describe_changes(domain, domain.clip(run.seeds[finding.origin])[0], pair.row) or "nothing"
        source, sentence = f"seed {int(finding.origin)}", f"Changed from its record of the data set: {changes}."
    lines = [
        f"Finding {number} of {run.folder}: {source}, step {int(finding.step)}.",
        *_describe_pair(domain, decision, scale, pair),
        sentence,
    ]
    if (counts := count_flips_of_drawn_twins(model, domain, finding.rows, decision)) is not None:
        flips, total = map(int, counts)
        share = f"{percent(flips / total if total else None)} ({flips})"
        lines.append(f"Of {total} counterfactual twins drawn for this person, {share} get a different decision.")
    if not bool(finding.plausibility.isnan()):
        lines.append(f"Likelihood: {likelihood(float(finding.plausibility))}.")
    weights = f"{'the same' if same_weights else 'other'} weights"
    lines.append(f"Evaluated again with {weights}: {_describe_state(pair, decision)}")
    if (rows := read_shrunk_pair(run, number)) is not None:
        shrunk = _evaluate(model, *rows)
        lines += ["Shrunk, as it was reported:", *_describe_pair(domain, decision, scale, shrunk)]
        lines.append(f"Shrunk, {_describe_state(shrunk, decision)}")
    return Group(*lines)


def _evaluate(model: Model, row: Tensor, twin: Tensor) -> phrases.DescribedPair:
    """Return a pair with the scores that the model gives it now."""
    scores, twin_scores = model.scores(torch.stack([row, twin]))
    if not (scores.isfinite().all() and twin_scores.isfinite().all()):
        raise ModelError("the network gives NaN or infinite scores for this finding. Check its weights")
    return phrases.DescribedPair(row, twin, scores, twin_scores)


def _describe_pair(domain: TableDomain, decision: Decision, scale: Scale, pair: phrases.DescribedPair) -> list[str]:
    """Return two people and what is decided for them now, in words."""
    text, twin_text = describe_decisions(domain, decision, scale, pair)
    return [
        f"  {domain.describe(pair.row)}",
        f"  gets {text};",
        f"{_describe_twin(domain, pair.row, pair.twin)} gets",
        f"  {twin_text}.",
    ]


def _describe_state(pair: phrases.DescribedPair, decision: Decision) -> str:
    holds = bool(decision.differ(pair.scores, pair.twin_scores))
    return "it still holds." if holds else "it no longer holds: the decisions are the same."


FIGURES = {  # heading: figure, format; kept narrow, so that a line fits into 80 columns
    "find-\nings": ("findings", ",.0f"),
    "records\ntried": ("tried", ",.0f"),
    "success": ("gsr", ".1%"),
    "lift": ("lift_over_strongest_control", ".1f"),
    "diver-\nsity": ("diversity", ".2f"),
    "median\ngap": ("severity", ".3g"),
    "s per\n1,000": ("seconds_per_1000", ".3f"),
    "rows\neach": ("rows_per_finding", ",.1f"),
}
SPREAD_FIGURES = ("findings", "gsr")  # the JSON has the intervals of all figures
RATE_LABELS = {"flip": "Flip rate:", "counterfactual": "A typical counterfactual twin gets a different decision for"}


def compose_comparison(comparison: Comparison, domain: TableDomain) -> RenderableType:
    """Return one line per method, the random rate, and what the columns mean."""
    config = comparison.config
    title = f"{domain.name}, {join_words(domain.sensitive)}: {comparison.seeds:,} seeds"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False, pad_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in FIGURES:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    entries = comparison.methods()
    maximum = max((entry["findings"] for entry in entries), default=0)
    for entry in entries:
        cells = [_format_cell(entry, figure, form) for figure, form in FIGURES.values()]
        table.add_row(entry["method"], *cells, style="bold" if entry["findings"] == maximum > 0 else None)
    lines = []
    if comparison.rates:
        shares = [
            f"{with_interval(rate.rate, *rate.interval)} of {rate.sampled:,} {POPULATIONS[rate.population]}"
            for rate in comparison.rates
        ]
        flips = RATE_LABELS[config.twins]
        lines.append(f"{flips} {join_words(shares)} (95% intervals).")
    if (strongest := comparison.strongest) is not None:
        lines.append(
            f"Lift: the success rate over that of the strongest control, {strongest.name} ({percent(strongest.gsr)})."
        )
    lines.append(
        "Diversity: mean distance between two findings, 0 to 1. Gap: of the scores. Rows each: rows evaluated for one "
        "finding, duplicates included; symbgen also asks the network about 500 neighbours of every row."
    )
    runs = len(comparison.lines) // max(1, len(entries))
    if runs > 1:
        lines.append(f"Means over {runs} run seeds, ± the half-width of the 95% interval.")
    if comparison.interrupted:
        lines.append("Interrupted: the methods above are complete, the others are missing.")
    if config.instances is not None:
        lines.append(f"At most {config.instances:,} different records tried in each phase.")
    return Group(table, *lines)


def _format_cell(entry: dict[str, Any], figure: str, form: str) -> str | Text:
    value, spread = entry[figure], entry.get("plus_minus", {}).get(figure)
    if value is None:
        return "–"
    if spread is None or figure not in SPREAD_FIGURES:
        return f"{value:{form}}"
    return Text(f"{value:{form}}\n±{spread:{form}}")


def plot_comparison(comparison: Comparison, path: Path, *, title: str) -> None:
    """Draw findings, success rate and diversity of every method as bars, with the random rate as a line."""
    entries = comparison.methods()[::-1]
    names = [entry["method"] for entry in entries]
    panels = (("findings", "findings", 1.0), ("gsr", "success rate (%)", 100.0), ("diversity", "diversity", 1.0))
    with saved_figure(path, size=(11, 1.6 + 0.42 * len(entries))) as figure:
        figure.suptitle(title)
        for axes, (name, label, scale) in zip(figure.subplots(1, 3, sharey=True), panels, strict=True):
            values = [scale * (entry[name] or 0.0) for entry in entries]
            spread = [scale * (entry.get("plus_minus", {}).get(name) or 0.0) for entry in entries]
            bars = axes.barh(names, values, color="#3b6ea8", xerr=spread if any(spread) else None, ecolor="0.3")
            axes.bar_label(
                bars, [f"{v:,.0f}" if name == "findings" else f"{v:.3g}" for v in values], padding=4, fontsize=8
            )
            axes.set_xlabel(label)
            axes.set_xlim(0, 1.3 * max([v + s for v, s in zip(values, spread, strict=True)], default=0) or 1)
            axes.spines[["top", "right"]].set_visible(False)
            if name == "gsr" and comparison.random is not None:
                axes.axvline(scale * comparison.random.rate, color="#c0392b", linestyle="--", label="drawn uniformly")
                axes.legend(frameon=False, fontsize=8, loc="lower right")
