"""Black boxes: all methods without gradients on boosted trees and random forests, at equal queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuronfair.domain.sources import where
from neuronfair.experiments.cases import data, once
from neuronfair.experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, mean, span
from neuronfair.measure.diversity import mean_distance, regions
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import open_model
from neuronfair.search.campaign import find
from neuronfair.search.outcome import Plan

import torch

TABLES = [name for name in ("adult", "german", "bank", "compas", "meps") if where(name) is not None]
KINDS = {"XGBoost": 100, "random forest": 100}  # trees
SEEDS, STEPS = 100, 200
OURS, SHOWN, COSTLY = "frontier-free", "frontier-free, thresholds", "symbgen, asking freely"
RIVALS = ("symbgen", "expga", "aequitas", "uniform")
LINES = (OURS, *RIVALS, SHOWN, COSTLY)
ASKED = 500  # neighbours that SymbGen asks the model about for every row that is judged


def train(table: str, kind: str) -> dict[str, Any]:
    """Fit the trees of one table to the numbers of its default domain, and return their accuracy on the same rows."""
    rows = data(table, "default")
    x = TableEncoding.of(rows.domain).encode(rows.rows, torch.float64).numpy()
    return {"accuracy": float(_fitted(table, kind).score(x, rows.labels.numpy()))}


def _fitted(table: str, kind: str) -> Any:
    rows = data(table, "default")

    def fit() -> Any:
        if kind == "XGBoost":
            import xgboost

            model: Any = xgboost.XGBClassifier(n_estimators=KINDS[kind], n_jobs=1, random_state=0)
        else:
            from sklearn.ensemble import RandomForestClassifier

            model = RandomForestClassifier(KINDS[kind], min_samples_leaf=5, random_state=0)
        x = TableEncoding.of(rows.domain).encode(rows.rows, torch.float64).numpy()
        return model.fit(x, rows.labels.numpy())

    return once(f"{table}-{kind.replace(' ', '-')}", fit)


def search(table: str, kind: str, line: str, seeds: int, steps: int, seed: int) -> dict[str, Any]:
    """Search one model by one method, and return its success rate, its diversity and what was asked of the model."""
    rows, model = data(table, "default"), _fitted(table, kind)
    box = BlackBox.of_inputs(model.predict_proba, rows.domain)
    if line == SHOWN:
        shown = open_model(model, rows.domain, rows.rows).model
        assert isinstance(shown, BlackBox)
        box.trees = shown.trees
    judged = seeds * steps
    if line == "symbgen":  # as many queries as the others have, its neighbours counted
        share = (family := len(rows.domain.sensitive_values)) / (family + ASKED)
        judged, seeds, steps = round(judged * share), *(max(2, round(x * share**0.5)) for x in (seeds, steps))
    plan = Plan(line.partition(",")[0], seeds, steps, seed=seed, controls=False)
    for _ in range(1 if line == COSTLY else 2):
        before = box.rows_forward
        outcome = find(box, rows.domain, rows.rows, plan)
        if outcome.interrupted:
            raise KeyboardInterrupt
        # Pilots take more, seeds that lead nowhere less: once more, with the steps that make the rows judged equal.
        walkers = len(outcome.first.findings.origin[outcome.first.findings.origin >= 0])
        left = judged - outcome.first.findings.judged
        plan = replace(plan, steps=max(1, round(left / max(1, walkers)) - 1))
    found = outcome.findings.packed
    return {
        "gsr": outcome.total.gsr,
        "findings": len(found),
        "distance": mean_distance(rows.domain, found),
        "regions": regions(rows.domain, found),
        "judged": outcome.total.judged,
        "queries": box.rows_forward - before,
        "thresholds": box.trees is not None and box.cells is not None,
    }


def runs(scale: Scale, table: str, kind: str, line: str) -> list[Job]:
    """Return the searches of one model by one method, one for each run seed."""
    budget = {"seeds": min(scale.seeds, SEEDS), "steps": min(scale.steps, STEPS)}
    fixed = {"table": table, "kind": kind, "line": line, **budget}
    seeds = range(1 if line == COSTLY else scale.repeats)  # millions of queries each
    return [Job("black_boxes:search", {**fixed, "seed": seed}) for seed in seeds]


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
            "success": "Findings among the different people judged.",
            "distance": "Mean distance between two findings, without the sensitive attributes.",
            "regions": "Regions of the domain that the findings lie in, among at most 20,000 of them.",
        }[name]
        tables[name] = Table(["model", *LINES], lines, f"{note} {span(counts)} run seeds.")
    asked = [
        [f"{t}, {k}", *(figure([run["queries"] for run in done[t, k, m]]) for m in LINES)]
        for t in TABLES
        for k in KINDS
    ]
    tables["queries"] = Table(["model", *LINES], asked, "Rows that the model was asked about, twins included.")
    claims = [
        Claim(
            f"Without gradients, frontier-free is first in {words}",
            None if not models else won >= 0.8 * models,
            f"In {won} of {models} models, against {', '.join(RIVALS)}.",
        )
        for name, words in (("success", "success rate"), ("distance", "mean distance"), ("regions", "regions reached"))
        for won, models in (first[name],)
    ]
    shown = [f"{t}, {k}" for t in TABLES for k in KINDS if any(r["thresholds"] for r in done[t, k, SHOWN])]
    text = (
        f"{min(scale.seeds, SEEDS)} seeds, {min(scale.steps, STEPS)} steps, default domains; the models are functions "
        f"that answer and show nothing. Everybody judges as many rows, pilots included, and SymbGen fewer, so that "
        f"its neighbours are paid for; in the line '{COSTLY}' they are not. The people "
        f"that ExpGA's explanations ask about come on top of its budget. "
        f"'{SHOWN}' is told which codes the trees do not tell apart"
        + (f" ({', '.join(shown)}; the other forests have too many nodes to be read)." if shown else ".")
    )
    return Report("Black boxes: methods without gradients", text, tables, claims)
