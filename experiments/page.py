"""The page of results: which claims held, then every table and picture with the command that makes it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from neuronfair.experiments.lab import Report, Scale

# In the order of the page.
EXPERIMENTS = (
    "table3_accuracy",
    "figure3_as_curve",
    "table4_totals",
    "table5_equal_time",
    "table6_phases",
    "table7_improvement",
    "neuron_repair",
    "figure5_diversity",
    "figure6_coverage",
    "black_boxes",
    "peers",
)


def page(reports: Mapping[str, Report], pictures: Mapping[str, list[Path]], scale: Scale, command: str) -> str:
    """Return the page as Markdown; pictures are named relative to it."""
    import torch

    parts = [
        "# Results",
        "The paper's experiments on structured data, repeated. This page is written by a program: "
        f"`{command}`. One section alone: `neuronfair reproduce NAME` with the name in its last line. Machine: "
        f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__.partition('+')[0]}. "
        "A dash stands for what was not computed or, among the paper's figures, for what it does not print; the notes "
        "say how many runs a table rests on. "
        "Speed, memory, kills and GPU are in [measurements.md](measurements.md), departures from the paper in "
        "[deviations.md](deviations.md).",
    ]
    if scale.quick:
        parts.append("**Quick run: small budgets. It shows that everything works, not what the paper claims.**")
    claims = [claim.line() for report in reports.values() for claim in report.claims]
    if claims:
        parts += ["## Which claims of the paper held", "\n".join(claims)]
    for name, report in reports.items():
        parts += [f"## {report.title}", report.text]
        parts += [table.markdown().rstrip() for table in report.tables.values()]
        parts += [f"![{report.title}]({path.as_posix()})" for path in pictures[name]]
        parts.append(f"Made by `neuronfair reproduce {name}` (`experiments/{name}.py`).")
    return "\n\n".join(parts) + "\n"
