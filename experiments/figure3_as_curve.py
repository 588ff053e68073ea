"""Figure 3 of the paper: the AS curves of the Adult classifier, sex."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from experiments.cases import PUBLISHED, model_of, profile
from experiments.lab import Claim, Job, Report, Results, Scale, Table
from neuronfair.plots import saved_figure

CASE = "adult-sex"
NAMES = ("classifier trained here", "published classifier")
PRINTED = {"cut of layer 1": 0.33, "share above it": 0.3281, "AUC of layer 2": 0.7513, "biased neurons of layer 2": 24}


def layers(model: str | int) -> dict[str, Any]:
    """Return what the figure shows, layer by layer."""
    found = [(x.auc, x.cut, len(x.biased), len(x.act_diff)) for x in profile(CASE, model).layers]
    return {"layers": found}


def jobs(scale: Scale) -> list[Job]:
    """Return the one interpretation."""
    return [Job("figure3_as_curve:layers", {"model": model_of(CASE)})]


def _draw(title: str, path: Path) -> None:
    with saved_figure(path, size=(7.5, 6.2)) as figure:
        profile(CASE, model_of(CASE)).plot(figure.add_subplot(), title=title)


def report(scale: Scale, results: Results) -> Report:
    """Return the curves, and the figures that the paper prints of them."""
    done = results(jobs(scale)[0])
    if done is None:
        return Report("Figure 3: AS curves of Adult", "Not done.")
    lines = [
        [f"layer {i}", f"{auc:.4f}", f"{cut:.3f}", f"{biased} of {size}"]
        for i, (auc, cut, biased, size) in enumerate(done["layers"], 1)
    ]
    (_, cut, _, _), (auc, _, biased, _), *_ = done["layers"]
    ours = {"cut of layer 1": cut, "AUC of layer 2": auc, "biased neurons of layer 2": biased}
    same = abs(cut - 0.33) < 0.005 and abs(auc - 0.7513) < 0.001 and biased == 24
    claim = Claim(
        "Layer 2 of the Adult classifier is the most biased: AUC 0.7513, 24 biased neurons (Figure 3)",
        same,
        ", ".join(f"{name} {value:.4g} (paper {PRINTED[name]})" for name, value in ours.items()),
    )
    title = f"Adult, sex: {NAMES[model_of(CASE) == PUBLISHED]}"
    return Report(
        "Figure 3: AS curves of Adult",
        "How many neurons of each layer react more strongly than a threshold when only sex changes.",
        {"layers": Table(["layer", "AUC", "cut", "biased"], lines)},
        [claim] if model_of(CASE) == PUBLISHED else [],
        {"as-curves": partial(_draw, title)},
    )
