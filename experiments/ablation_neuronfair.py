"""What each part of the guidance of `neuronfair-plus` is worth, and where: one part is changed at a time.

Every search stands next to the same walk with noise in the place of gradients (random directions): the lift over it is
what the gradients are worth.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from experiments.cases import SHORT, data, once
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, gather, mean, span
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.tables.sources import find_local_files
from neuronfair.measure.stats import mean_interval
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding, cluster_seeds
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.model.train import train
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import read_model
from neuronfair.plots import saved_figure
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchCounts, random_directions
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.method import StepSizes
from neuronfair.searches.methods import METHODS, MethodEntry, Phases, Setting
from neuronfair.searches.methods.neuronfair import NeuronFair

from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

SEEDS, STEPS = 200, 100
OWN, SCIKIT = "own", "scikit-learn"


class Case(NamedTuple):
    """A model and what it is searched for."""

    table: str
    encoding: str
    sensitive: str
    source: str  # published weights, or who trains it here
    settled: bool = False  # whether the switches were settled on it: the others are the test

    @property
    def name(self) -> str:
        """What the tables call it."""
        kind = self.source if self.source in (OWN, SCIKIT) else self.source.partition("/")[0]
        return f"{self.table}-{self.sensitive.partition('=')[0].lower()}, {self.encoding}, {kind}"


ALL_CASES = (
    Case("adult", "paper", "sex", "neuronfair/census.npz", settled=True),
    Case("german", "paper", "age", "neuronfair/credit.npz"),
    Case("bank", "paper", "age", "neuronfair/bank.npz"),
    Case("compas", "paper", "race", "neuronfair/compas.npz", settled=True),
    Case("adult", "paper", "race", "adf/census.npz"),
    Case("german", "paper", "sex", "adf/credit.npz"),
    Case("bank", "paper", "age", "adf/bank.npz", settled=True),
    Case("adult", "paper", "sex", OWN, settled=True),
    Case("german", "paper", "sex", OWN, settled=True),
    Case("bank", "paper", "age", OWN),
    Case("compas", "paper", "race", OWN, settled=True),
    Case("meps", "paper", "SEX=1", OWN),
    Case("adult", "default", "sex", OWN, settled=True),
    Case("adult", "default", "race", OWN),
    Case("german", "default", "sex", OWN, settled=True),
    Case("german", "default", "age", OWN),
    Case("bank", "default", "age", OWN, settled=True),
    Case("compas", "default", "sex", OWN, settled=True),
    Case("compas", "default", "race", OWN),
    Case("adult", "default", "sex", SCIKIT),
    Case("german", "default", "sex", SCIKIT, settled=True),
    Case("bank", "default", "age", SCIKIT),
    Case("compas", "default", "race", SCIKIT),
)

BEFORE = "before: Eq. 5, all attributes at once"
SHIPPED = "as shipped"
# What is changed in both phases, in the global one, and in the local one.
PARTS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = {
    SHIPPED: ({}, {}, {}),
    "layer: the last hidden one": ({"layer": "last"}, {}, {}),
    "layer: the first hidden one": ({"layer": "first"}, {}, {}),
    "loss: Eq. 5": ({"loss": "dynamic"}, {}, {"choice": "inverse"}),
    "loss: difference of activations": ({"loss": "difference"}, {}, {"choice": "inverse"}),
    "r: none, the biased neurons alone": ({"extra_share": 0.0}, {}, {}),
    "r: all neurons": ({"extra_share": 1.0}, {}, {}),
    "momentum of the paper": ({}, {"momentum": 0.1}, {"momentum": 0.05}),
    "global: all attributes at once": ({}, {"moved_attributes": "all"}, {}),
    "global: no random step": ({}, {"kick": False}, {}),
    "local: attribute uniform": ({}, {}, {"choice": "uniform"}),
    "local: inverse influence": ({}, {}, {"choice": "inverse"}),
    "local: sign of the gradient": ({}, {}, {"sign": "gradient"}),
    "local: a miss is kept with 1/e": ({}, {}, {"after_miss": "metropolis"}),
    "local: walks on after a miss": ({}, {}, {"after_miss": "walk"}),
    "steps of one code": ({}, {}, {}),
    BEFORE: (
        {"loss": "dynamic", "extra_share": 0.05},
        {"momentum": 0.1, "moved_attributes": "all", "refresh": 10},
        {"momentum": 0.05, "choice": "inverse", "refresh": 50},
    ),
}
OF_ONE_CODE = ("steps of one code", BEFORE)


def cases() -> dict[str, Case]:
    """Return the models that can be tried here: data sets and published weights must be on this machine."""
    return {
        case.name: case
        for case in ALL_CASES
        if find_local_files(case.table) is not None and (case.source in (OWN, SCIKIT) or _weights(case) is not None)
    }


def _weights(case: Case) -> Path | None:
    path = Path(os.environ.get("NEURONFAIR_MODELS", ""), case.source)
    return path if path.exists() else None


@cache
def subject(name: str, quick: bool) -> tuple[Network, BiasProfile, Decision]:
    """Return the network of a case and what its neurons do; one that is trained here is trained once."""
    case = cases()[name]
    table = data(case.table, case.encoding, case.sensitive)
    key = f"{case.table}-{case.encoding}-{case.source}".replace("/", "-") + "-quick" * quick
    decision = Decision()
    if case.source == OWN:
        settings = SHORT if quick else TrainingSettings(restarts=1)
        network = Network(once(key, lambda: train(table, settings=settings)[0]), table.domain)
    elif case.source == SCIKIT:
        opened = wrap_model(once(key, lambda: _perceptron(table, quick)), table.domain, table.rows)
        assert isinstance(opened.model, Network)  # a perceptron is rebuilt in torch
        network, decision = opened.model, opened.decision
    else:
        network = Network(read_model(_weights(case), table.domain), table.domain)
    profile = once(f"{key}-{case.sensitive}-profile", lambda: interpret(network, table.domain, table.rows))
    return network, profile, decision


def _perceptron(table: Dataset, quick: bool) -> MLPClassifier:
    """Return a scikit-learn perceptron on one-hot labels and scaled numbers, the default encoding."""
    inputs = TableEncoding.of(table.domain).encode(table.rows).numpy()
    perceptron = MLPClassifier((32, 16), max_iter=3 if quick else 15, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fifteen rounds are enough for something to search
        return perceptron.fit(inputs, table.labels.numpy())


def prepare(case: str, quick: bool) -> dict[str, Any]:
    """Train a model and look at its neurons, for all searches to come."""
    return {"layers": len(subject(case, quick)[1].layers)}


def search(case: str, part: str, seeds: int, steps: int, seed: int, quick: bool) -> dict[str, Any]:
    """Search a model with one part of the method changed, and return the figures next to its random directions."""
    network, profile, decision = subject(case, quick)
    table = data(*cases()[case][:3])
    starts = once(
        f"starts-{case}-{seeds}-{seed}".replace("/", "-"),
        lambda: cluster_seeds(network.encoding, table.rows, seeds, seed=seed),
    )
    config = SearchConfig("neuronfair-plus", seeds, steps, seed=seed, decision=decision, controls=False)
    entry = MethodEntry(lambda setting: changed(setting, part), neurons=True)
    step_sizes = StepSizes.of(table.domain, table.rows) if part not in OF_ONE_CODE else None
    with patch.dict(METHODS.entries, {config.method: entry}), patch.object(StepSizes, "of", lambda *_: step_sizes):
        given = (network, table.domain, table.rows, config)
        outcome = campaign.search(*given, seeds=starts, profile=profile)
        if outcome.interrupted:
            raise KeyboardInterrupt
        name = f"{case}-{seeds}-{steps}-{seed}-{unguided(part)}".replace("/", "-")
        blind = once(name, lambda: _walked(random_directions(*given, seeds=starts, profile=profile)))
    figures = replace(outcome, random_direction=blind).summary()
    names = ("findings", "findings_global", "tried", "gsr", "random_direction", "lift_over_random_direction")
    return {name: figures[name] for name in names} | {"rows": seeds}


def _walked(count: SearchCounts | None) -> SearchCounts:
    """Return what a walk came to; one that Ctrl-C has cut short is no result."""
    if count is None:
        raise KeyboardInterrupt
    return count


def changed(setting: Setting, part: str) -> Phases:
    """Return `neuronfair-plus` as shipped, with one part changed."""
    both, first, local = PARTS[part]
    made = _SHIPPED.make(setting)
    assert isinstance(made.global_phase, NeuronFair)
    assert isinstance(made.local_phase, NeuronFair)
    return Phases(replace(made.global_phase, **both, **first), replace(made.local_phase, **both, **local))


def unguided(part: str) -> str:
    """Return a name of what is left of a part where noise stands for gradients: neurons and losses do not matter."""
    steered = {"loss", "layer", "extra_share", "refresh"}
    named = zip(("both", "global", "local"), PARTS[part], strict=True)
    left = sorted(f"{phase}-{name}-{v}" for phase, some in named for name, v in some.items() if name not in steered)
    return "-".join(["blind", *left, *(["one-code"] if part in OF_ONE_CODE else [])])


_SHIPPED = METHODS["neuronfair-plus"]


def runs(scale: Scale, case: str, part: str) -> list[Job]:
    """Return the searches of one part on one model: all run seeds for the method as shipped, fewer for its parts."""
    seeds, steps = min(scale.seeds, SEEDS), min(scale.steps, STEPS)
    fixed = {"case": case, "part": part, "seeds": seeds, "steps": steps, "quick": scale.quick}
    repeats = scale.repeats if part == SHIPPED else scale.few
    return [Job("ablation_neuronfair:search", {**fixed, "seed": seed}) for seed in range(repeats)]


def jobs(scale: Scale) -> list[Job]:
    """Return all trainings and searches; for a quick look those of the method as it is and as it was."""
    parts = (SHIPPED, BEFORE) if scale.quick else PARTS
    models = [Job("ablation_neuronfair:prepare", {"case": c, "quick": scale.quick}, first=True) for c in cases()]
    searches = [job for case in cases() for part in parts for job in runs(scale, case, part)]
    return models + sorted(searches, key=lambda job: int(job.arguments["seed"]))  # cut short, all models are there


def report(scale: Scale, results: Results) -> Report:
    """Return what the parts are worth over all models, and the lift over random directions model by model."""
    known = cases()
    done = {(c, p): gather(results, runs(scale, c, p)) for c in known for p in PARTS}
    lines, lifts, repeats = [], {}, []
    for name, case in known.items():
        here, before = done[name, SHIPPED], done[name, BEFORE]
        repeats.append(len(here))
        if here:
            lifts[name] = [lift(d) for d in here]
        lines.append(
            [
                name + ("" if case.settled else " (test)"),
                *(figure([d["gsr"] for d in some], ".1%") for some in (here, before)),
                figure([d["random_direction"]["gsr"] for d in here], ".1%"),
                *(figure([lift(d) for d in some], ".2f") for some in (here, before)),
                *(figure([d["findings"] for d in some]) for some in (here, before)),
                figure([d["findings_global"] / d["rows"] for d in here], ".0%"),
            ]
        )
    heading = ["model", "success", "success before", "random directions", "lift over random directions", "lift before"]
    heading += ["findings", "findings before", "of the seeds, found"]
    note = (
        f"Starts: {min(scale.seeds, SEEDS)}, local steps: {min(scale.steps, STEPS)}; {span(repeats)} run seeds. "
        "(test): the parts were chosen on the other models."
    )
    tables = {"models": Table(heading, lines, note, on_page=False), "parts": _parts(scale, known, done)}
    text = (
        "Lift is the success rate divided by that of the same search with noise instead of gradients. 'Before' is "
        "`neuronfair`, from which `neuronfair-plus` was made, in steps of one code. The file `parts` says what each "
        "part of `neuronfair-plus` is worth."
    )
    if not lifts:
        return Report("What NeuronFair's guidance is worth", text, tables)
    drawn = {"lift": lambda path: _draw(path, lifts, done)}
    return Report("What NeuronFair's guidance is worth", text, tables, [_claim(known, lifts)], drawn)


def lift(figures: Mapping[str, Any]) -> float | None:
    """Return the lift over random directions; None where these found nothing."""
    found: float | None = figures["lift_over_random_direction"]
    return found


def _claim(known: Mapping[str, Case], lifts: Mapping[str, list[float | None]]) -> Claim:
    behind = {
        encoding: [name for name in lifts if known[name].encoding == encoding and mean(lifts[name]) < 1]
        for encoding in ("paper", "default")
    }
    counts = {encoding: sum(known[name].encoding == encoding for name in lifts) for encoding in behind}
    held = all(10 * len(names) <= counts[encoding] for encoding, names in behind.items())
    test = [mean(lifts[name]) for name in lifts if not known[name].settled]
    listed = ", ".join(name for names in behind.values() for name in names) or "none"
    return Claim(
        "The gradients of `neuronfair-plus` help: in each encoding, its own walk in random directions does better "
        "on at most one model of ten",
        held,
        f"better on {listed}, of {counts['paper']} (paper) and {counts['default']} (default) models; lift "
        f"{min(map(mean, lifts.values())):.2f} to {max(map(mean, lifts.values())):.2f}"
        + (f", on the {len(test)} models not used for tuning {min(test):.2f} to {max(test):.2f}" if test else ""),
        of_paper=False,
    )


def _parts(scale: Scale, known: Mapping[str, Case], done: Mapping[tuple[str, str], list[dict[str, Any]]]) -> Table:
    lines = []
    for part in PARTS:
        cells = []
        for encoding in ("paper", "default"):
            names = [name for name, case in known.items() if case.encoding == encoding and done[name, part]]
            ratios = [mean(map(lift, done[name, part])) for name in names]
            behind = sum(ratio < 1 for ratio in ratios)
            cells += [_geometric(ratios), f"{behind} of {len(ratios)}"]
            for figure_ in ("gsr", "findings"):
                cells.append(
                    _geometric(
                        [
                            mean(d[figure_] for d in done[name, part])
                            / max(1e-9, mean(d[figure_] for d in done[name, SHIPPED][: len(done[name, part])]))
                            for name in names
                            if done[name, SHIPPED]
                        ]
                    )
                )
        lines.append([part, *cells])
    columns = ("lift", "below 1", "success", "findings")
    heading = ["part", *(f"{encoding}: {column}" for encoding in ("paper", "default") for column in columns)]
    note = (
        "Lift: geometric mean over the models, and on how many it is below 1. Success rate and findings are multiples "
        f"of those of the method as shipped, on the same run seeds. Run seeds of the parts: {scale.few}."
    )
    return Table(heading, lines, note, on_page=False)


def _geometric(values: list[float]) -> str:
    known = [v for v in values if v > 0]
    return f"{math.exp(mean(map(math.log, known))):.2f}" if known else "–"


def _draw(
    path: Path, lifts: Mapping[str, list[float | None]], done: Mapping[tuple[str, str], list[dict[str, Any]]]
) -> None:
    names = sorted(lifts, key=lambda name: mean(lifts[name]))
    with saved_figure(path, size=(8, 0.3 * len(names) + 1.2)) as drawn:
        axes = drawn.add_subplot()
        for y, name in enumerate(names):
            middle, half = mean_interval([v for v in lifts[name] if v is not None])
            axes.errorbar(middle, y, xerr=half, fmt="o", color="tab:blue", label="as shipped" if y == 0 else None)
            before = mean(map(lift, done[name, BEFORE]))
            axes.plot(before, y, "o", mfc="none", color="tab:gray", label="before" if y == 0 else None)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
        axes.minorticks_off()
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("lift over random directions")
        axes.legend()
