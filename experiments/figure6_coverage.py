"""Figure 6 of the paper: how many biased neurons the findings activate, and how many the misses."""

from __future__ import annotations

from typing import Any

from experiments.cases import case_data, model_of, network, outcome, profile
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, mean, span
from neuronfair.measure.diversity import measure_coverage

import torch

CASE = "adult-sex"
METHODS = ("neuronfair", "eidig5", "adf", "aequitas", "frontier")
PRINTED = {"neuronfair": 24, "eidig5": 18, "adf": 15}  # of 24; the paper prints 0 for misses


def coverage(case: str, model: str | int, method: str, seeds: int, steps: int, seed: int) -> dict[str, Any]:
    """Return how many biased neurons, and how much of each, findings and equally many misses activate."""
    rows, net, known = case_data(case), network(case, model), profile(case, model)
    findings = outcome(case, model, method=method, seeds=seeds, steps=steps, seed=seed).findings
    count = min(len(findings), len(findings.misses))
    result: dict[str, Any] = {"biased": len(known.worst.biased), "count": count}
    generator = torch.Generator().manual_seed(seed)
    for name, people in (("findings", findings.packed), ("misses", findings.misses)):
        some = people[torch.randperm(len(people), generator=generator)[:count]]
        seen = measure_coverage(net, rows.domain, known, some.long())
        result[name] = seen.covered
        result[f"{name}_share"] = sum(seen.shares) / len(seen.shares)
    return result


def runs(scale: Scale, method: str) -> list[Job]:
    """Return the searches of one method, one for each run seed."""
    fixed = {"case": CASE, "model": model_of(CASE), "method": method}
    budget = {"seeds": scale.seeds, "steps": min(scale.steps, 200)}
    return [Job("figure6_coverage:coverage", {**fixed, **budget, "seed": s}) for s in range(scale.repeats)]


def jobs(scale: Scale) -> list[Job]:
    """Return all searches."""
    return [job for method in METHODS for job in runs(scale, method)]


def report(scale: Scale, results: Results) -> Report:
    """Return the coverage of every method next to the paper's."""
    lines, found, missed, counts, of = [], [], [], [], 0
    for method in METHODS:
        done = gather(results, runs(scale, method))
        if not done:
            continue
        of = done[0]["biased"]
        counts.append(len(done))
        cells = [figure([d[name] for d in done], ".1f") for name in ("findings", "misses")]
        shares = [figure([d[name] for d in done], ".1%") for name in ("findings_share", "misses_share")]
        lines.append([method, str(PRINTED.get(method, "–")), *cells, *shares])
        found.append(mean(d["findings"] for d in done))
        missed.append(mean(d["misses"] for d in done))
    heading = ["method", "paper: findings", "findings", "misses", "active, findings", "active, misses"]
    claim = Claim(
        "Findings activate all biased neurons, misses none of them (Figure 6)",
        bool(found) and min(found) == of and max(missed) == 0,
        f"of {of} neurons the findings of {len(found)} methods activate {min(found, default=0):.1f} to "
        f"{max(found, default=0):.1f}, equally many misses {min(missed, default=0):.1f} to "
        f"{max(missed, default=0):.1f}",
        "neuronfair",
    )
    return Report(
        "Figure 6: coverage of biased neurons",
        "A biased neuron is covered when one row activates it: its activation, scaled within the layer from 0 to 1, is "
        "above 0.5. 'Active' is the mean share of rows that activate a biased neuron.",
        {"coverage": Table(heading, lines, f"As many misses as findings. Run seeds: {span(counts)}.", on_page=False)},
        [claim] if found else [],
    )
