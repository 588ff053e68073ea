"""Are the claims of a search for alternatives true, and is it better than seeds alone and than Fairlearn?

    python benchmarks/alternatives.py --data compas bank --estimators lightgbm --splits 4 --budget 20 --out out/alt

Of each data set a quarter is put aside before the search; nothing of it is used but to look whether what was called
better is better there, too. Next to the search: the best of its controls (as many fits by seed alone), and, where
Fairlearn is installed, ExponentiatedGradient and ThresholdOptimizer with demographic parity, fitted to the same part
and measured on the part put aside. ThresholdOptimizer has other thresholds for each group, which the search never has.

Worlds whose truth is known: --worlds 100 counts how often "none found" is said where nothing can be had, and how often
a proxy that can be left out is found (tests/planted/alternatives.py).

One line of JSON for each run goes to results.jsonl in --out; a run that is there already is not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from neuronfair import load_dataset
from neuronfair.alternative_models import AlternativesSettings
from neuronfair.alternative_models.candidates import CandidateFitter
from neuronfair.alternative_models.objectives import ModelAnswers, PartEvaluator
from neuronfair.alternative_models.parts import search_table
from neuronfair.alternative_models.session import Alternatives, alternatives
from neuronfair.domain.tables.dataset import DATASETS

from tests.planted import alternatives as worlds

ASIDE = 4  # one record in so many is put aside


def aside(name: str, sensitive: str | None, split: int) -> tuple[Any, Any]:
    """Return the records for the search, and those put aside."""
    data = load_dataset(name, sensitive=[sensitive] if sensitive else None)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1000 + split))
    cut = len(data) // ASIDE
    return data.take(order[cut:].sort().values), data.take(order[:cut].sort().values)


def on(other: Any, result: Alternatives) -> tuple[CandidateFitter, PartEvaluator]:
    """Return what asks models of a search about other records, and measures the answers."""
    table = search_table(other, 0)
    fitter = CandidateFitter(table, result.fitter.recipe, result.fitter.settings, result.fitter.hints)
    everybody = np.arange(len(other))
    settings = AlternativesSettings(measure=result.report.measure, quality=result.report.quality)
    evaluator = PartEvaluator.of(table, "test", settings, None)
    return fitter, PartEvaluator(table, everybody, evaluator.quality, evaluator.measure)


def compared(
    name: str, sensitive: str | None, estimator: str, split: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Search one split of a data set, and look at the part put aside."""
    start = time.perf_counter()
    data, second = aside(name, sensitive, split)
    result = alternatives(
        estimator, data, budget=options.budget, seed=split, tolerance=options.tolerance, workers=options.workers
    )
    report = result.report
    fitter, evaluator = on(second, result)

    def asked(fit: str) -> ModelAnswers:
        return fitter.answers(result._made(fit), evaluator.rows)

    baseline = asked("baseline")
    control = next((one for one in report.shown if one.candidate.kind == "control" and one.better), None)
    models = {"chosen": report.winner, "best control": control}
    found: dict[str, Any] = {
        "data": name,
        "sensitive": sensitive,
        "estimator": estimator,
        "split": split,
        "budget": options.budget,
        "tolerance": options.tolerance,
        "conclusion": report.conclusion,
        "measure": report.measure,
        "seconds": round(time.perf_counter() - start, 1),
        "baseline": [evaluator.quality_of(baseline), evaluator.measured(baseline)],
    }
    for kind, shown in models.items():
        if shown is not None:
            answers = asked(shown.candidate.name)
            figures = [evaluator.quality_of(answers), evaluator.measured(answers)]
            holds = figures[0] >= found["baseline"][0] - options.tolerance and figures[1] < found["baseline"][1]
            found[kind] = {"name": shown.candidate.name, "second": figures, "holds": holds}
    found["fairlearn"] = {} if estimator == "network" else fairlearn(result, fitter, evaluator)
    return found


def fairlearn(result: Alternatives, fitter: CandidateFitter, evaluator: PartEvaluator) -> dict[str, list[float]]:
    """Return quality and measure of two methods of Fairlearn on the part put aside; nothing where it is missing."""
    try:
        from fairlearn.postprocessing import ThresholdOptimizer
        from fairlearn.reductions import DemographicParity, ExponentiatedGradient
    except ImportError:
        return {}
    from neuronfair.alternative_models import estimators

    table, recipe, other = result.fitter.table, result.fitter.recipe, fitter.table
    columns, fit = list(recipe.columns), table.fit
    x, y, groups = table.frame.iloc[fit][columns], (table.labels[fit] == table.positive).astype(int), table.group[fit]
    made = estimators.seeded(recipe.estimator, 0, {})
    methods = {
        "ThresholdOptimizer": ThresholdOptimizer(estimator=made, predict_method="auto"),
        "ExponentiatedGradient": ExponentiatedGradient(
            made, DemographicParity(), sample_weight_name="model__sample_weight"
        ),
    }
    found = {}
    for name, method in methods.items():
        method.fit(x, y, sensitive_features=groups)
        given = {"sensitive_features": other.group} if name == "ThresholdOptimizer" else {}
        decided = np.asarray(method.predict(other.frame[columns], random_state=0, **given)).astype(int)
        decided = np.where(decided == 1, other.positive, 1 - other.positive)
        answers = ModelAnswers(decided, None, np.zeros(len(decided), dtype=bool))
        found[name] = [evaluator.quality_of(answers), evaluator.measured(answers)]
    return found


def world(kind: str, seed: int) -> dict[str, Any]:
    """Search one planted world."""
    free = kind == "free proxy"
    people = worlds.free_proxy(seed) if free else worlds.nothing_to_have(seed)
    settings = {"tolerance": 0.02, "budget": 6} if free else {"budget": 6}
    asked = {"sensitive": "sex", "target": "hired", "favourable": "yes"}
    report = alternatives("logistic", people, **asked, seed=seed, **settings).report
    return {"world": kind, "seed": seed, "conclusion": report.conclusion}


def summary(lines: list[dict[str, Any]]) -> None:
    """Print how often something was claimed, and how often it held."""
    for kind in ("free proxy", "nothing to have"):
        some = [line["conclusion"] for line in lines if line.get("world") == kind]
        if some:
            print(f"{kind}: {len(some)} worlds, better {some.count('better')}, none found {some.count('none found')}")
    searched = [line for line in lines if "data" in line]
    for key in dict.fromkeys((line["data"], line["estimator"]) for line in searched):
        some = [line for line in searched if (line["data"], line["estimator"]) == key]
        claims = [line for line in some if "chosen" in line]
        control = [line for line in some if "best control" in line]
        held = sum(line["chosen"]["holds"] for line in claims)
        print(f"{key[0]}, {key[1]}: {len(some)} splits, better {len(claims)}, held on the second part {held}; "
              f"controls better {len(control)}, held {sum(line['best control']['holds'] for line in control)}; "
              f"{np.mean([line['seconds'] for line in some]):.0f} s each")  # fmt: skip
        rows = {
            "baseline": [line["baseline"] for line in some],
            "chosen": [line["chosen"]["second"] for line in claims],
        }
        for method in ("ThresholdOptimizer", "ExponentiatedGradient"):
            rows[method] = [line["fairlearn"][method] for line in some if method in line["fairlearn"]]
        for name, values in rows.items():
            if values:
                quality, measure = np.mean(values, axis=0)
                print(f"    {name:22} quality {quality:.4f}, measure {measure:.4f} (mean of {len(values)})")


def main() -> None:
    """Do what was asked, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], choices=DATASETS)
    parser.add_argument("--sensitive", help="default: as the data set says")
    parser.add_argument("--estimators", nargs="+", default=["lightgbm", "network"])
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--tolerance", type=float, default=0.005)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=0, help="planted worlds of each kind")
    parser.add_argument("--out", type=Path, default=Path("out/alternatives"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []

    def keep(line: dict[str, Any]) -> None:
        lines.append(line)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    for kind in ("nothing to have", "free proxy"):
        done = {line["seed"] for line in lines if line.get("world") == kind}
        for seed in (seed for seed in range(options.worlds) if seed not in done):
            keep(world(kind, seed))
    keys = ("data", "estimator", "split", "budget", "tolerance")
    known = {tuple(line[key] for key in keys) for line in lines if "data" in line}
    for name in options.data:
        for estimator in options.estimators:
            for split in range(options.splits):
                if (name, estimator, split, options.budget, options.tolerance) not in known:
                    keep(compared(name, options.sensitive, estimator, split, options))
    summary(lines)


if __name__ == "__main__":
    main()
