"""What a search found, in figures and in words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.search.campaign import NO_SEED, Outcome
from neuronfair.search.findings import Findings
from neuronfair.search.judge import judge
from neuronfair.search.shrink import shrink
from neuronfair.store.run import Run
from neuronfair.verdict import words
from neuronfair.verdict.folder import shrunk_pair
from neuronfair.words import listed, percent, times

EXAMPLES = 3
LOOK = 10_000  # findings with the widest gaps, among which the examples are chosen


def search_report(outcome: Outcome, network: Model, folder: Path, replay: Sequence[str] = ()) -> RenderableType:
    """Return the figures of a search beside its controls, the worst findings in words, and where everything is.

    `replay` is what `neuronfair replay` must be told to open the model again.
    """
    figures = outcome.summary()
    table = Table(title=f"Decisions that flip when only {listed(outcome.domain.sensitive)} changes")
    for heading in ("", "people judged", "findings", "success rate", "lift"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row(outcome.plan.method, *_cells(figures), "", style="bold")
    for name, lift, label in (
        ("random", "lift", "drawn uniformly"),
        ("random_direction", "lift_over_random_direction", "random directions"),
    ):
        if figures[name] is not None:
            table.add_row(
                label, *_cells(figures[name]), "found none" if figures[lift] is None else times(figures[lift])
            )
    per_1000 = figures["seconds_per_1000"]
    cost = f", {per_1000:.3f} seconds per 1,000 findings" if per_1000 is not None else ""
    lines = [
        f"{figures['findings_global']:,} findings in the global phase, {figures['findings_local']:,} in the local one; "
        f"{figures['seconds']:.1f} seconds{cost}.",
        f"{figures['violations']:,} findings break a rule or a bound; {figures['rejected_on_recheck']:,} did not stand "
        "the second judgement in float64 and were dropped.",
    ]
    if outcome.interrupted:
        lines.append("Interrupted: what was found is kept. The same command goes on from here.")
    lines += [f"Health check {note.name}: {note.seen} {note.remedy}" for note in outcome.health]
    lines += worst_examples(outcome, network)
    again = shlex.join(["neuronfair", "replay", str(folder), "0", *replay])
    lines.append(f"All findings: {folder} (Parquet). One of them in words: {again}")
    return Group(table, *lines)


def _cells(figures: dict[str, Any]) -> tuple[str, str, str]:
    return f"{figures['tried']:,}", f"{figures['findings']:,}", percent(figures["gsr"])


def worst_examples(outcome: Outcome, network: Model) -> list[str]:
    """Return the findings with the widest score gap, shrunk to the smallest change from their seed row, in words."""
    findings, domain, decision = outcome.findings, outcome.domain, outcome.plan.decision
    findings = findings[findings.origin != NO_SEED]
    if len(findings) == 0:
        return []
    gaps = decision.gap(findings.scores, findings.twin_scores)
    worst = findings[gaps.topk(min(len(gaps), LOOK)).indices]
    _, first = np.unique(worst.origin.cpu().numpy(), return_index=True)  # one example per seed, the widest
    worst = worst[torch.from_numpy(np.sort(first)[:EXAMPLES]).to(domain.device)]
    seeds = domain.clip(outcome.seeds[worst.origin])
    rows = shrink(network, domain, worst.rows, seeds, decision)
    pairs = judge(network, domain, rows, decision).pairs()
    verb = "gets" if decision.kind == "tolerance" else "decided"
    lines = [
        "Some of the widest gaps, each shrunk to the smallest change from a row of the table that still shows one:"
    ]
    for row, twin, own, other, seed in zip(*pairs, seeds, strict=True):
        changes = changed(domain, seed, row)
        lines.append(
            f"• {domain.describe(row)}: {verb} {decided(domain, decision, own)}; with only "
            f"{changed(domain, row, twin)}: {decided(domain, decision, other)}. "
            + (f"Changed from a row of the table: {changes}." if changes else "A row of the table as it is.")
        )
    return lines


def changed(domain: TableDomain, before: Tensor, after: Tensor) -> str:
    """Return in words which attributes differ between two rows."""
    table = domain.to_table(torch.stack([before, after]))
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in table.items() if old != new)


def decided(domain: TableDomain, decision: Decision, scores: Tensor) -> str:
    """Return a decision in words, with the scores it rests on."""
    said = words.decided(domain, decision, scores)
    figures = ", ".join(f"{score:.3g}" for score in scores.tolist())
    return said if decision.kind == "tolerance" else f"{said} (score{'s' if len(scores) > 1 else ''} {figures})"


def replay_report(run: Run, network: Model, number: int, *, same_weights: bool) -> RenderableType:
    """Return one finding in words, as it was found and as the network decides now.

    If it is one of the worst of an audit, the person follows as the audit shows it: nearer to a row of the table.
    """
    findings, domain, decision = run.findings(), run.domain, Decision(**run.manifest["plan"]["decision"])
    one: Findings = findings[number : number + 1]
    row, twin = one.rows, one.twins(domain)
    told, holds = _pair(network, domain, decision, row[0], twin[0])
    if int(one.origin) == NO_SEED:
        where, origin = "the pilot", "It was found from a random row."
    else:
        where = f"seed {int(one.origin)}"
        seed = domain.clip(run.seeds[one.origin])
        origin = f"Changed from its row of the table: {changed(domain, seed[0], row[0]) or 'nothing'}."
    lines = [
        f"Finding {number} of {run.folder}: {where}, step {int(one.step)}.",
        *told,
        origin,
        f"With {'the weights it was found with' if same_weights else 'other weights'}, {_state(holds)}",
    ]
    nearer = shrunk_pair(run, number)
    if nearer is not None:
        told, holds = _pair(network, domain, decision, *nearer)
        lines += ["Shrunk, as it was reported:", *told, f"Shrunk, {_state(holds)}"]
    return Group(*lines)


def _pair(network: Model, domain: TableDomain, decision: Decision, row: Tensor, twin: Tensor) -> tuple[list[str], bool]:
    """Return two people and what is decided for them now, in words, and whether that differs."""
    now, other = network.scores(torch.stack([row, twin]))
    if not (now.isfinite().all() and other.isfinite().all()):
        raise ModelError("the network gives NaN or infinite scores for this finding. Check its weights")
    verb = "gets" if decision.kind == "tolerance" else "is decided"
    lines = [
        f"  {domain.describe(row)}",
        f"  {verb} {decided(domain, decision, now)};",
        f"with only {changed(domain, row, twin)} the decision is",
        f"  {decided(domain, decision, other)}.",
    ]
    return lines, bool(decision.differ(now, other))


def _state(holds: bool) -> str:
    return "it still holds." if holds else "it no longer holds: the decision does not flip."
