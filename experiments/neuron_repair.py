"""Not in the paper: turning the biased neurons down instead of retraining, next to equally many random neurons."""

from __future__ import annotations

from typing import Any

from experiments.cases import CASES, PUBLISHED, case_data, model_of, network, split_of, train_jobs
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure
from experiments.repairs.neurons import repair_neurons
from neuronfair.errors import NeuronFairError
from neuronfair.model.profile import interpret

MAX_LOSS = 0.01


def turned(case: str, model: str | int) -> dict[str, Any]:
    """Repair one classifier within a point of accuracy, and measure it on rows that played no part."""
    rows, net = case_data(case), network(case, model)
    seed = split_of(model)
    parts = rows.split(seed)
    profile = interpret(net, rows.domain, parts.train.rows)
    try:
        done = repair_neurons(net.module, profile, parts, max_loss=MAX_LOSS, seed=seed)
    except NeuronFairError as error:  # nothing helps within the budget
        return {"refused": str(error)}
    return {
        "before": [done.before.rate, done.before.accuracy],
        "after": [done.after.rate, done.after.accuracy],
        "random": [[o.rate, o.accuracy] for o in done.random],
        "turn": [done.turn.layer + 1, len(done.turn.neurons), done.turn.factor],
    }


def runs(case: str) -> list[Job]:
    """Return the repairs of the published classifier and of our own first one."""
    return [Job("neuron_repair:turned", {"case": case, "model": m}) for m in dict.fromkeys([model_of(case), 0])]


def jobs(scale: Scale) -> list[Job]:
    """Return all repairs."""
    return [*train_jobs(scale), *(job for case in CASES for job in runs(case))]


def report(scale: Scale, results: Results) -> Report:
    """Return discrimination and accuracy before, after, and with random neurons."""
    lines, better, tried, lost = [], 0, 0, 0.0
    for case in CASES:
        for job in runs(case):
            done = results(job)
            if done is None:
                continue
            name = f"{case}, {'published' if job.arguments['model'] == PUBLISHED else 'own'}"
            tried += 1
            if "refused" in done:
                lines.append([name, "–", "–", "no way within the budget", "–", "–"])
                continue
            layer, count, factor = done["turn"]
            (before, right), (after, still) = done["before"], done["after"]
            chance = [rate for rate, _ in done["random"]]
            better += after < sum(chance) / len(chance)
            what = f"{count} of layer {layer}, × {factor:g}"
            points = f"{100 * (still - right):+.2f}"
            lost = max(lost, right - still)
            lines.append([name, what, f"{before:.2%}", f"{after:.2%}", figure(chance, ".2%"), points])
    heading = ["case, classifier", "turned down", "DM-RS before", "after", "random neurons", "accuracy, points"]
    claim = Claim(
        "Turning biased neurons down lowers discrimination more than turning down random neurons",
        better == tried or (None if 2 * better > tried else False),
        f"in {better} of {tried} classifiers, at a cost of at most {100 * lost:.2f} points of accuracy",
        of_paper=False,
    )
    return Report(
        "Neuron repair",
        "The outputs of the neurons that react most are scaled down. Validation rows choose the layer, the number of "
        "neurons and the factor, at a cost of at most one point of accuracy. DM-RS and accuracy are measured on other "
        "rows.",
        {"neurons": Table(heading, lines, "Random neurons: ten draws from the same layer.", False)},
        [claim] if tried else [],
    )
