"""Table 4 of the paper: how many people are found, and at which success rate; and Table 8: how long it takes."""

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
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, mean, span

SHOWN = ("neuronfair-printed", *METHODS)
OWN = ("neuronfair-plus", "frontier")  # on our own classifiers, which have held-out data
# By gradients, which a control can take away.
GUIDED = ("neuronfair-printed", "neuronfair-plus", "frontier", "eidig5", "adf")
PRINTED = {"neuronfair-plus": "neuronfair", "eidig5": "eidig", "adf": "adf", "aequitas": "aequitas"}


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
    """Return findings, success rates, spread and cost beside the paper's."""
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
        ours = {m: _mean(found[case, m], "seconds_per_1000", ".3f") for m in METHODS}
        costs.append([case, *(f"{ours[m]} ({paper[PRINTED[m]]:,.0f})" if m in PRINTED else ours[m] for m in METHODS)])
    headings = ["case", "random people", "the paper's NeuronFair", *SHOWN]
    note = (
        f"{CLASSIFIERS}, `paper` encoding, {scale.seeds:,} seeds, 40 "
        f"global and {scale.steps:,} local steps, {span(map(len, found.values()))} run seeds: mean ± "
        "half-width of the 95% interval."
    )
    return Report(
        "Table 4: how many people are found, and at which success rate",
        "Findings are counted once per person without the sensitive attribute, over both phases; the success rate is "
        "findings over different people judged.",
        {
            "totals": Table(headings, lines, note),
            "lift": Table(
                ["case", "strongest control", *SHOWN],
                lifts,
                "Lift: the success rate over that of the strongest control of any method: random people, or the walk "
                "of a method in random directions (a tenth of the seeds, one run seed).",
            ),
            "own": Table(
                ["case", *OWN],
                owns,
                f"Our own classifiers, trained on 70% of the rows: {span(own_counts)} training seeds, a "
                "search each. Cases that were not searched are left out.",
            ),
            "diversity": Table(
                ["case", *SHOWN], spreads, "Mean distance between two findings (0 to 1), and regions among 20,000."
            ),
            "seconds": Table(
                ["case", *METHODS],
                costs,
                "Table 8: seconds per 1,000 findings, in brackets the paper's (other hardware). One process of several "
                "on a shared machine; for undisturbed figures see `benchmarks/search.py`.",
            ),
        },
        _claims(found),
    )


def _strongest(scale: Scale, case: str, results: Results) -> tuple[str, float]:
    """Return the control that succeeds most often, and how often; 0 where none is known."""
    rate = results(rate_job(scale, case, model_of(case)))
    known = {"random people": rate["rate"] if rate else 0.0}
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
    def average(case: str, method: str, name: str = "findings") -> float:
        return mean(d[name] for d in found[case, method])

    done = [case for case in CASES if all(found[case, m] for m in SHOWN)]
    if not done:
        return []
    printed = {case: PAPER["total"]["neuronfair"][CASES[case][3]]["idis"] for case in done}
    above = [case for case in done if average(case, "neuronfair-plus") >= printed[case]]
    literal = [average(case, "neuronfair-printed") / printed[case] for case in done]
    rivals = ("eidig5", "adf", "aequitas")

    def ahead_of_all(method: str, name: str = "findings") -> list[str]:
        return [c for c in done if all(average(c, method, name) > average(c, rival, name) for rival in rivals)]

    ahead, redesigned, rate = (
        ahead_of_all("neuronfair-printed"), ahead_of_all("neuronfair-plus"), ahead_of_all("neuronfair-plus", "gsr")
    )  # fmt: skip
    fewest = [c for c in done if all(average(c, "neuronfair-printed") < average(c, rival) for rival in rivals)]
    front = [c for c in done if average(c, "frontier") > max(average(c, m) for m in SHOWN if m != "frontier")]
    return [
        Claim(
            "NeuronFair as printed finds the printed numbers of people",
            min(literal) >= 1 or (None if max(literal) >= 1 else False),
            f"Algorithm 3 as printed (`neuronfair-printed`) finds {min(literal):.0%} to {max(literal):.0%} of them. "
            "The redesigned search of this package (`neuronfair-plus`), which goes back to the last finding after "
            f"a miss, reaches or exceeds them in {len(above)} of {len(done)} cases.",
        ),
        Claim(
            "NeuronFair as printed finds more people than EIDIG, ADF and Aequitas",
            len(ahead) == len(done) or (None if ahead else False),
            f"As printed (`neuronfair-printed`) it finds the most of the four in {len(ahead)} of {len(done)} cases and "
            f"the fewest in {len(fewest)}. The redesigned search of this package (`neuronfair-plus`) finds more than "
            f"the three in {len(redesigned)} of {len(done)} cases ({', '.join(redesigned) or 'none'}); its success "
            f"rate is the highest in {len(rate)} ({', '.join(rate) or 'none'}). `frontier`, which is not in the paper, "
            f"finds the most in {len(front)}.",
        ),
    ]
