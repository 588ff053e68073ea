"""Table 4 of the paper: how many findings, and at which success rate; and Table 8: how long it takes."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from experiments.cases import (
    CASES,
    CLASSIFIERS,
    METHODS,
    PAPER,
    PAPER_METHODS,
    WIDE,
    control_job,
    model_of,
    rate_job,
    run_seeds,
    search_job,
    train_jobs,
)
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, held_in, mean, span

RUNGS = ("neuronfair-printed", "neuronfair", "neuronfair-plus")
SHOWN = (*RUNGS[:2], *METHODS)
OWN = ("neuronfair-plus", "frontier")  # on our own classifiers, which have held-out data
GUIDED = (*RUNGS, "frontier", "eidig5", "adf")  # by gradients, which a control replaces by noise
RIVALS = ("eidig5", "adf", "aequitas")
TIMED = ("neuronfair", *METHODS)
PRINTED = {"neuronfair": "neuronfair", "eidig5": "eidig", "adf": "adf", "aequitas": "aequitas"}


def runs(scale: Scale, case: str, method: str) -> list[Job]:
    """Return the searches of one method on the classifier of the paper, one for each run seed."""
    return [search_job(scale, case, model_of(case), method, seed) for seed in run_seeds(scale, case)]


def own_runs(scale: Scale, case: str, method: str) -> list[Job]:
    """Return the searches of one method on our own classifiers, one for each training seed; three of wide tables."""
    trainings = min(scale.trainings, 3) if case in WIDE else scale.trainings
    return [search_job(scale, case, seed, method, seed) for seed in range(trainings)]


def jobs(scale: Scale) -> list[Job]:
    """Return all searches, the first run seed of every case before the second."""
    # One case after the other, so that two processes need not cluster the same table at the same time.
    by_seed = zip_longest(*(runs(scale, case, method) for method in SHOWN for case in CASES))
    own = [job for method in OWN for case in CASES for job in own_runs(scale, case, method)]
    rates = [rate_job(scale, case, model_of(case)) for case in CASES]
    rates += [control_job(scale, case, model_of(case), method) for method in GUIDED for case in CASES]
    return [*train_jobs(scale), *rates, *(job for line in by_seed for job in line if job is not None), *own]


def report(scale: Scale, results: Results) -> Report:
    """Return findings, success rates, spread and cost next to the paper's."""
    found = {(case, m): gather(results, runs(scale, case, m)) for case in CASES for m in SHOWN}
    lines, owns, spreads, costs, own_counts, lifts = [], [], [], [], [], []
    for case, (*_, printed) in CASES.items():
        rate = results(rate_job(scale, case, model_of(case)))
        theirs = PAPER["total"]["neuronfair"][printed]
        known = [f"{rate['rate']:.2%}" if rate else "–", f"{theirs['idis']:,} at {theirs['gsr']:.1%}"]
        lines.append([case, *known, *(_total(found[case, m]) for m in SHOWN)])
        name, strongest = _strongest(scale, case, results)
        over = [[d["gsr"] / strongest for d in found[case, m]] if strongest else [] for m in SHOWN]
        lifts.append([case, f"{name} {strongest:.2%}" if strongest else "–", *(figure(one, ".1f") for one in over)])
        own = [gather(results, own_runs(scale, case, m)) for m in OWN]
        own_counts += map(len, own)
        if any(own):  # else none was searched
            owns.append([case, *map(_total, own)])
        spreads.append([case, *(_spread(found[case, m]) for m in SHOWN)])
        paper = dict(zip(PAPER_METHODS, PAPER["seconds_per_1000"][printed], strict=True))
        ours = {m: _mean(found[case, m], "seconds_per_1000", ".3f") for m in TIMED}
        costs.append([case, *(f"{ours[m]} ({paper[PRINTED[m]]:,.0f})" if m in PRINTED else ours[m] for m in TIMED)])
    headings = ["case", "random records", "the paper's NeuronFair", *SHOWN]
    note = (
        f"{CLASSIFIERS}, `paper` encoding, {scale.seeds:,} starts, 40 global and {scale.steps:,} local steps, "
        f"{span(map(len, found.values()))} run seeds."
    )
    return Report(
        "Table 4: how many findings, and at which success rate",
        "A finding is counted once per record without the sensitive attribute, over both phases. The success rate is "
        "findings divided by distinct records evaluated.",
        {
            "totals": Table(headings, lines, note),
            "lift": Table(
                ["case", "strongest control", *SHOWN],
                lifts,
                "Lift: the success rate divided by that of the strongest control of any method: random records, or the "
                "search of a method in random directions (a tenth of the starts, one run seed).",
                on_page=False,
            ),
            "own": Table(
                ["case", *OWN],
                owns,
                f"Our own classifiers, trained on 70% of the rows: {span(own_counts)} training seeds, one search each.",
                on_page=False,
            ),
            "diversity": Table(
                ["case", *SHOWN],
                spreads,
                "Mean distance between two findings (0 to 1), and regions among 20,000.",
                on_page=False,
            ),
            "seconds": Table(
                ["case", *TIMED],
                costs,
                "Table 8: seconds per 1,000 findings, in brackets the paper's (other hardware). One process of several "
                "on a shared machine.",
                on_page=False,
            ),
        },
        _claims(found),
    )


def _strongest(scale: Scale, case: str, results: Results) -> tuple[str, float]:
    """Return the control that succeeds most often, and how often; 0 where none is known."""
    rate = results(rate_job(scale, case, model_of(case)))
    known = {"random records": rate["rate"] if rate else 0.0}
    for method in GUIDED:
        walk = results(control_job(scale, case, model_of(case), method))
        known[f"random directions of {method}"] = (walk and walk["gsr"]) or 0.0
    name = max(known, key=lambda control: known[control])
    return name, known[name]


def _mean(done: list[dict[str, Any]], name: str, form: str = ",.0f") -> str:
    return figure([d[name] for d in done], form)


def _spread(done: list[dict[str, Any]]) -> str:
    return f"{_mean(done, 'diversity', '.3f')}, {_mean(done, 'regions')}"


def _total(done: list[dict[str, Any]]) -> str:
    return f"{_mean(done, 'findings')} at {_mean(done, 'gsr', '.1%')}" if done else "–"


def _claims(found: dict[tuple[str, str], list[dict[str, Any]]]) -> list[Claim]:
    """Return the two claims of the table about each rung of NeuronFair."""
    claims = []
    for rung in RUNGS:
        done = [case for case in CASES if all(found[case, m] for m in (rung, *RIVALS))]
        if not done:
            continue
        mine = {case: mean(d["findings"] for d in found[case, rung]) for case in done}
        shares = [mine[case] / PAPER["total"]["neuronfair"][CASES[case][3]]["idis"] for case in done]
        others = {case: [mean(d["findings"] for d in found[case, m]) for m in RIVALS] for case in done}
        reached = sum(share >= 1 for share in shares)
        most = sum(mine[case] > max(others[case]) for case in done)
        fewest = sum(mine[case] < min(others[case]) for case in done)
        claims += [
            Claim(
                "NeuronFair finds the printed numbers (Table 4)",
                held_in(reached, len(done)),
                f"{min(shares):,.0%} to {max(shares):,.0%} of them; all of them in {reached} of {len(done)} cases",
                rung,
            ),
            Claim(
                "NeuronFair finds more than EIDIG, ADF and Aequitas (Table 4)",
                held_in(most, len(done)),
                f"the most of the four in {most} of {len(done)} cases, the fewest in {fewest}",
                rung,
            ),
        ]
    return claims
