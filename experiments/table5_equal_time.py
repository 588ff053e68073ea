"""Table 5 of the paper: SymbGen and NeuronFair in equal time."""

from __future__ import annotations

from experiments.cases import CASES, PAPER, model_of
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, mean, span

METHODS = ("symbgen", "neuronfair", "frontier")
UNLIMITED = 1_000_000  # steps: the time ends the search


def runs(scale: Scale, case: str, method: str) -> list[Job]:
    """Return the timed searches of one method, one for each run seed."""
    config = {"method": method, "seeds": scale.seeds, "steps": UNLIMITED, "seconds": scale.seconds}
    return [
        Job("cases:search", {"case": case, "model": model_of(case), **config, "seed": seed})
        for seed in range(scale.few)
    ]


def jobs(scale: Scale) -> list[Job]:
    """Return all timed searches."""
    return [job for case in CASES for method in METHODS for job in runs(scale, case, method)]


def report(scale: Scale, results: Results) -> Report:
    """Return findings and success rates in equal time, next to the paper's in 500 seconds."""
    lines, wins, counts = [], [], []
    for case, (*_, printed) in CASES.items():
        line = [case]
        for name in ("symbgen", "neuronfair"):
            theirs = PAPER["in_500_seconds"][name][printed]
            line.append(f"{theirs['idis']:,} at {theirs['gsr']:.1%}")
        done = {method: gather(results, runs(scale, case, method)) for method in METHODS}
        for method in METHODS:
            found = figure([d["findings"] for d in done[method]])
            line.append(f"{found} at {figure([d['gsr'] for d in done[method]], '.1%')}")
        lines.append(line)
        counts += map(len, done.values())
        if all(done.values()):
            rival = mean(d["findings"] for d in done["symbgen"])
            wins.append(mean(d["findings"] for d in done["neuronfair"]) / max(1.0, rival))
    heading = ["case", "paper: SymbGen", "paper: NeuronFair", *METHODS]
    note = f"{scale.seconds:g} seconds for each search here, 500 in the paper. Run seeds: {span(counts)}."
    claim = Claim(
        "NeuronFair finds more than SymbGen in the same time (Table 5)",
        all(w > 1 for w in wins) or (None if any(w > 1 for w in wins) else False),
        f"{min(wins):,.0f} to {max(wins):,.0f} times as many" if wins else "",
        "neuronfair",
    )
    text = (
        f"Each search has {scale.seconds:g} seconds; in the paper 500. NeuronFair is `neuronfair`. SymbGen queries the "
        "network for 500 neighbours of every row that it evaluates, to fit surrogate trees."
    )
    return Report(
        "Table 5: in equal time",
        text,
        {"equal-time": Table(heading, lines, note, on_page=False)},
        [claim] if wins else [],
    )
