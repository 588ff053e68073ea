"""Black boxes: all methods without gradients on boosted trees and random forests, at equal queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, held_in, mean, span
from experiments.tree_models import KINDS, encoded, fitted_trees
from neuronfair.domain.tables.sources import find_local_files
from neuronfair.measure.diversity import count_regions, mean_distance
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.open import wrap_model
from neuronfair.searches import campaign
from neuronfair.searches.config import SearchConfig

TABLES = [name for name in ("adult", "german", "bank", "compas", "meps") if find_local_files(name) is not None]
SEEDS, STEPS = 100, 200
FEWER = {"bank": 40}  # steps where a row has many twins
OURS, SHOWN = "frontier-free", "frontier-free, thresholds"
RIVALS = ("symbgen", "expga", "aequitas", "uniform")
LINES = (OURS, *RIVALS, SHOWN)
ASKED = 500  # neighbours that SymbGen queries for every row


def train(table: str, kind: str) -> dict[str, Any]:
    """Fit the trees of one table, and return their accuracy on held-out rows."""
    model, rows = fitted_trees(table, kind, 0)
    test = rows.split(0).test
    return {"accuracy": float(model.score(encoded(test), test.labels.numpy()))}


def search(table: str, kind: str, line: str, seeds: int, steps: int, seed: int) -> dict[str, Any]:
    """Search one model by one method, and return success rate, diversity and queries."""
    model, rows = fitted_trees(table, kind, 0)
    box = BlackBox.of_inputs(model.predict_proba, rows.domain)
    if line == SHOWN:
        shown = wrap_model(model, rows.domain, rows.rows).model
        assert isinstance(shown, BlackBox)
        box.trees = shown.trees
    family, neighbours = len(rows.domain.sensitive_values), 0
    budget = seeds * steps * family
    if line == "symbgen":  # as many queries as the others, its neighbours counted
        neighbours, share = ASKED, (family / (family + ASKED)) ** 0.5
        seeds, steps = max(2, round(seeds * share)), max(2, round(steps * share))
    config = SearchConfig(line.partition(",")[0], seeds, steps, seed=seed, controls=False)
    for _ in range(2):
        before = box.rows_forward
        outcome = campaign.search(box, rows.domain, rows.rows, config)
        if outcome.interrupted:
            raise KeyboardInterrupt
        # Pilots and confirmations take more queries, starts that lead nowhere fewer. The second round has the steps
        # that make the queries equal.
        first, local = (
            (family + neighbours) * f.evaluated + 2 * len(f)
            for f in (phase.findings for phase in (outcome.global_phase, outcome.local_phase))
        )
        config = replace(config, steps=max(1, round((budget - first) / max(1.0, local / (config.steps + 1))) - 1))
    found = outcome.findings.packed
    return {
        "gsr": outcome.total.success_rate,
        "findings": len(found),
        "distance": mean_distance(rows.domain, found),
        "regions": count_regions(rows.domain, found),
        "evaluated": outcome.total.evaluated,
        "queries": box.rows_forward - before,
        "thresholds": box.trees is not None and box.cells is not None,
    }


def runs(scale: Scale, table: str, kind: str, line: str) -> list[Job]:
    """Return the searches of one model by one method, one for each run seed."""
    budget = {"seeds": min(scale.seeds, SEEDS), "steps": min(scale.steps, FEWER.get(table, STEPS))}
    fixed = {"table": table, "kind": kind, "line": line, **budget}
    return [Job("black_boxes:search", {**fixed, "seed": seed}) for seed in range(scale.repeats)]


def jobs(scale: Scale) -> list[Job]:
    """Return the trainings and all searches, those that take longest first."""
    models = [(table, kind) for kind in reversed(KINDS) for table in reversed(TABLES)]
    trained = [Job("black_boxes:train", {"table": table, "kind": kind}, first=True) for table, kind in models]
    return trained + [job for line in reversed(LINES) for model in models for job in runs(scale, *model, line)]


def report(scale: Scale, results: Results) -> Report:
    """Return success rate, mean distance and regions of all methods, and how often ours is first."""
    figures = {"success": ("gsr", ".3f"), "distance": ("distance", ".3f"), "regions": ("regions", ",.0f")}
    tables, counts, first = dict[str, Table](), list[int](), {name: [0, 0] for name in figures}
    done = {(t, k, m): gather(results, runs(scale, t, k, m)) for t in TABLES for k in KINDS for m in LINES}
    for name, (key, form) in figures.items():
        lines = []
        for table in TABLES:
            for kind in KINDS:
                values = {m: [run[key] for run in done[table, kind, m]] for m in LINES}
                lines.append([f"{table}, {kind}", *(figure(values[m], form) for m in LINES)])
                counts += [len(value) for value in values.values()]
                if all(values[m] for m in (OURS, *RIVALS)):
                    first[name][0] += all(mean(values[OURS]) > mean(values[m]) for m in RIVALS)
                    first[name][1] += 1
        note = {
            "success": "Success rate: findings divided by distinct rows.",
            "distance": "Mean distance between two findings, without the sensitive attributes.",
            "regions": "Regions of the domain that the findings lie in, among at most 20,000 of them.",
        }[name]
        tables[name] = Table(["model", *LINES], lines, f"{note} {span(counts)} run seeds.", on_page=False)
    asked = [
        [f"{t}, {k}", *(figure([run["queries"] for run in done[t, k, m]]) for m in LINES)]
        for t in TABLES
        for k in KINDS
    ]
    tables["queries"] = Table(["model", *LINES], asked, "Rows that the model evaluated, twins included.", False)
    claims = [
        Claim(
            f"Among methods without gradients, `frontier-free` has the highest {words}",
            held_in(won, models),
            f"in {won} of {models} models",
            of_paper=False,
        )
        for name, words in (
            ("success", "success rate"),
            ("distance", "mean distance"),
            ("regions", "number of regions"),
        )
        for won, models in (first[name],)
    ]
    every = [f"{t}, {k}" for t in TABLES for k in KINDS]
    shown = [f"{t}, {k}" for t in TABLES for k in KINDS if any(r["thresholds"] for r in done[t, k, SHOWN])]
    text = (
        f"{min(scale.seeds, SEEDS)} starts, {min(scale.steps, STEPS)} steps (bank: {min(scale.steps, FEWER['bank'])}), "
        "default domains. The models are functions without visible parts. All methods have about as many queries (file "
        "queries): rows, twins, pilots, the confirmation of findings and SymbGen's neighbours count. ExpGA's "
        f"explanations come on top of its budget. '{SHOWN}' knows which codes the trees do not tell apart"
        + (f" ({', '.join(shown)}; the other forests have too many nodes to be read)." if shown != every else ".")
    )
    return Report("Black boxes: methods without gradients", text, tables, claims)
