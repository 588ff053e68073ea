"""Figure 5 of the paper: how well NeuronFair's findings cover those of others, over the radius."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from experiments.cases import case_data, model_of, outcome
from experiments.lab import Claim, Job, Report, Results, Scale, Table, gather, held_in, mean
from experiments.metrics import generation_diversity

import torch

CASES = ("adult-sex", "adult-race", "german-sex", "german-age")  # the lines L1 to L4 of the figure
BASELINES = ("aequitas", "adf", "frontier")
RADII = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
EQUAL = 5_000  # findings of each method, drawn at random: the larger set would cover more


def diversity(case: str, model: str | int, seeds: int, steps: int, seed: int) -> dict[str, Any]:
    """Return GD of NeuronFair over each baseline for every radius."""
    config, result = {"seeds": seeds, "steps": steps, "seed": seed}, dict[str, Any]()
    mine = outcome(case, model, method="neuronfair", **config).findings
    for baseline in BASELINES:
        sets = mine, outcome(case, model, method=baseline, **config).findings
        count = min(EQUAL, *(len(findings) for findings in sets))
        generator = torch.Generator().manual_seed(seed)
        ours, theirs = (f.rows[torch.randperm(len(f), generator=generator)[:count]] for f in sets)
        result[baseline] = {"gd": generation_diversity(case_data(case).domain, ours, theirs, RADII), "count": count}
    return result


def runs(scale: Scale, case: str) -> list[Job]:
    """Return the comparisons with all baselines, one for each run seed."""
    fixed = {"case": case, "model": model_of(case)}
    budget = {"seeds": scale.seeds, "steps": min(scale.steps, 200)}
    return [Job("figure5_diversity:diversity", {**fixed, **budget, "seed": s}) for s in range(scale.few)]


def jobs(scale: Scale) -> list[Job]:
    """Return all comparisons."""
    return [job for case in CASES for job in runs(scale, case)]


def report(scale: Scale, results: Results) -> Report:
    """Return GD over the radius as a table and a picture."""
    curves: dict[tuple[str, str], list[float]] = {}
    for case in CASES:
        done = gather(results, runs(scale, case))
        for baseline in BASELINES:
            if done:
                # Where the baseline covers none of ours there is no ratio: infinitely much better.
                gd = [[math.inf if x is None else x for x in d[baseline]["gd"]] for d in done]
                curves[case, baseline] = [mean(line[i] for line in gd) for i in range(len(RADII))]
    lines = [[f"{case}, over {b}", *(f"{x:.2f}" for x in curve)] for (case, b), curve in curves.items()]
    smallest = {key: min(curve) for key, curve in curves.items() if key[1] in ("aequitas", "adf")}
    above = [key for key, low in smallest.items() if low > 0.995]  # it converges to 1
    claim = Claim(
        "NeuronFair's findings are more diverse than those of Aequitas and ADF: GD never below 1 (Figure 5)",
        held_in(len(above), len(smallest)),
        f"in {len(above)} of {len(smallest)} curves; the smallest GD is {min(smallest.values(), default=0):.2f}",
        "neuronfair",
    )
    return Report(
        "Figure 5: diversity",
        "GD is the share of the baseline's findings within a cosine distance of NeuronFair's, divided by the share of "
        f"NeuronFair's within that distance of the baseline's. Above 1, NeuronFair's are more diverse. {EQUAL:,} "
        "findings of each method are compared, so their numbers do not matter.",
        {"gd": Table(["case and baseline", *map(str, RADII)], lines, on_page=False)},
        [claim] if smallest else [],
        {"gd": lambda path: draw(curves, path)} if curves else {},
    )


def draw(curves: dict[tuple[str, str], list[float]], path: Path) -> None:
    """Draw GD over the radius, one panel for each baseline."""
    from neuronfair.plots import saved_figure

    with saved_figure(path, size=(12, 4)) as figure:
        for axes, baseline in zip(figure.subplots(1, len(BASELINES), sharey=True), BASELINES, strict=True):
            for (case, other), curve in curves.items():
                if other == baseline:
                    axes.plot(RADII, curve, marker="o", label=case)
            axes.axhline(1.0, color="0.5", linestyle="--", linewidth=1)
            axes.set(xscale="log", xlabel="cosine radius", title=f"NeuronFair over {baseline}")
            axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        figure.axes[0].set_ylabel("GD")
