"""Fidelity: our methods next to the authors' own programs, run the same way on the published classifiers."""

from __future__ import annotations

import tomllib

from experiments.cases import PUBLISHED, published
from experiments.lab import FOLDER, Job, Report, Results, Scale, Table, gather

PEERS = tomllib.loads((FOLDER / "peers.toml").read_text(encoding="utf-8"))
RUN_SEEDS = 10


def runs(scale: Scale, case: str, method: str) -> list[Job]:
    """Return our searches at the budget of the program."""
    config = {"method": method, "seeds": 100, "steps": 100, "global_steps": 41}
    if method == "aequitas":
        config |= {"seeds": 1000, "global_steps": 1}
    if method == "symbgen":
        config |= {"seeds": 20, "global_steps": 1000, "steps": 1000, "instances": 1000}
    seeds = range(2 if scale.quick else RUN_SEEDS)
    return [Job("cases:search", {"case": case, "model": PUBLISHED, **config, "seed": seed}) for seed in seeds]


def jobs(scale: Scale) -> list[Job]:
    """Return all searches for which there is a figure to compare with."""
    cases = [case for case in PEERS if published(case)]
    return [job for case in cases for method in PEERS[case] for job in runs(scale, case, method)]


def report(scale: Scale, results: Results) -> Report:
    """Return global findings and success rate, theirs next to the range of ours."""
    lines = []
    for case, methods in PEERS.items():
        for method, theirs in methods.items():
            done = gather(results, runs(scale, case, method)) if published(case) else []
            first, rates = [d["findings_global"] for d in done], [d["gsr"] for d in done]
            their_rate = sum(theirs["found"]) / theirs["tried"]
            lines.append(
                [
                    f"{case}, {method}",
                    f"{theirs['found'][0]}",
                    f"{min(first):.0f} to {max(first):.0f}" if done else "–",
                    f"{their_rate:.1%}",
                    f"{min(rates):.1%} to {max(rates):.1%}" if done else "–",
                    _inside(theirs["found"][0], first) if done else "–",
                    _inside(their_rate, rates) if done else "–",
                ]
            )
    heading = ["case, method", "global: theirs", "global: ours", "success rate: theirs", "ours", "global", "rate"]
    return Report(
        "The authors' own programs",
        f"One run of each program against the range of ours over {2 if scale.quick else RUN_SEEDS} run seeds. "
        "[Deviations](deviations.md#other-methods) has the summary and says why they differ.",
        {"peers": Table(heading, lines, on_page=False)},
    )


def _inside(value: float, range_of: list[float]) -> str:
    low, high = min(range_of), max(range_of)
    return "inside" if low <= value <= high else "above ours" if value > high else "below ours"
