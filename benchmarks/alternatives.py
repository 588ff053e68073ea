"""Are the claims of a search for alternatives true, and is it better than seeds alone and than Fairlearn?

    python benchmarks/alternatives.py --jobs 16 --out out/alternatives
    python benchmarks/alternatives.py --data compas bank --estimators lightgbm --splits 4 --budget 20 --out out/small

Of each data set a quarter is put aside before the search; nothing of it is used but to look whether what was called
better is better there, too. Next to the search: the best of its controls (as many fits by seed alone), and, where
Fairlearn is installed, ExponentiatedGradient (at most as many fits as candidates) and ThresholdOptimizer (one fit) with
demographic parity, fitted to the same part and measured on the part put aside. ThresholdOptimizer has other thresholds
for each group, which the search never has. A network takes no weights of records: for ExponentiatedGradient as many
records are drawn by their weights instead.

Each cell (data set, estimator, split) is one process with one thread. Its fits are kept in OUT/fits, its result in
OUT/cells, all results in OUT/results.csv; the same command resumes, also in the middle of a cell. --summary prints the
results there are. The data sets are read from the folder NEURONFAIR_DATA.

Worlds whose truth is known: --worlds 100 counts how often "none found" is said where nothing can be had, and how often
a proxy that can be left out is found (tests/planted/alternatives.py). --bounds 2000 draws so many tables for each of a
few pairs of models that are equally discriminatory, and counts how often the bound of the test part (95%) says that the
second is less so; "percentile" and "smaller of percentile and basic" are simpler bounds, for comparison.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

#: The attribute by which each data set is compared.
SENSITIVE = {"adult": "sex", "meps": "race", "bank": "marital", "compas": "sex", "german": "sex"}
ESTIMATORS = ("network", "lightgbm")
#: The first split that the published table does not have; these cells are done first.
MISSING_FROM = {("adult", "network"): 4, ("meps", "network"): 6, ("bank", "network"): 3, ("bank", "lightgbm"): 9}
ASIDE = 4  # one record in so many is put aside
FITS_PER_ITERATION = 3  # of ExponentiatedGradient, at most (2.6 on German)
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")} | {"CUDA_VISIBLE_DEVICES": ""}
KINDS = ("chosen", "best control", "ThresholdOptimizer", "ExponentiatedGradient")


# One cell, in a process of its own


def put_aside(name: str, sensitive: str, split: int) -> tuple[Any, Any]:
    """Return the records for the search, and those put aside."""
    from neuronfair import load_dataset

    import torch

    data = load_dataset(name, sensitive=[sensitive])
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1000 + split))
    cut = len(data) // ASIDE
    return data.take(order[cut:].sort().values), data.take(order[:cut].sort().values)


def search_cell(name: str, estimator: str, split: int, options: argparse.Namespace) -> dict[str, Any]:
    """Search one split of a data set, and look at the part put aside."""
    from neuronfair.alternative_models import AlternativesSettings
    from neuronfair.alternative_models.candidates import CandidateFitter
    from neuronfair.alternative_models.objectives import PartEvaluator
    from neuronfair.alternative_models.parts import prepare_search_table
    from neuronfair.alternative_models.search import SearchFile
    from neuronfair.alternative_models.session import describe_search, prepare_fitter, run_alternatives
    from neuronfair.progress import show_nothing

    import numpy as np

    start = time.perf_counter()
    sensitive = options.sensitive or SENSITIVE[name]
    data, second = put_aside(name, sensitive, split)
    settings = AlternativesSettings(budget=options.budget, seed=split, tolerance=options.tolerance)
    fitter, notes = prepare_fitter(estimator, data, settings)
    path = options.out / "fits" / f"{cell_name(name, estimator, split)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = run_alternatives(fitter, notes, SearchFile(path, describe_search(fitter)), show_nothing)
    report = result.report
    table = prepare_search_table(second, 0)
    other = CandidateFitter(table, fitter.recipe, settings, result.fitter.hints)
    evaluator = PartEvaluator(table, np.arange(len(second)), settings.quality, report.measure)
    test = fitter.evaluator("test")

    def measure(fit: str) -> dict[str, Any]:
        """Return quality and measure on the part put aside, and on the test part the counts that its bound rests on."""
        model = result.find_model(fit)
        answers = other.answer(model, evaluator.rows)
        counts = test.count_answers(fitter.answer(model, test.rows), baseline).tolist()
        return {
            "name": fit,
            "second": [evaluator.quality_of(answers), evaluator.measure_model(answers)],
            "counts": counts,
        }

    baseline = fitter.answer(result.find_model("baseline"), test.rows)
    shown = {one.candidate.name: {**measure(one.candidate.name), "better": one.better} for one in report.shown}
    before = shown["baseline"]["second"]
    for one in shown.values():
        one["holds"] = one["second"][0] >= before[0] - options.tolerance and one["second"][1] < before[1]
    control = next((name for name, one in shown.items() if name.startswith("control") and one["better"]), None)
    searched = round(time.perf_counter() - start, 1)
    return {
        "data": name,
        "sensitive": sensitive,
        "estimator": estimator,
        "split": split,
        "budget": options.budget,
        "tolerance": options.tolerance,
        "conclusion": report.conclusion,
        "measure": report.measure,
        "failed": report.failed,
        "baseline": before,
        "shown": shown,
        **{kind: shown[key] for kind, key in (("chosen", report.chosen), ("best control", control)) if key},
        **measure_fairlearn(result.fitter, other, evaluator, options.budget),
        "seconds": searched,
        "cpu_seconds": round(time.process_time(), 1),
    }


def measure_fairlearn(fitter: Any, other: Any, evaluator: Any, budget: int) -> dict[str, Any]:
    """Return quality and measure of two methods of Fairlearn on the part put aside; nothing where it is missing."""
    try:
        from fairlearn.postprocessing import ThresholdOptimizer
        from fairlearn.reductions import DemographicParity, ExponentiatedGradient
    except ImportError:
        return {}
    from neuronfair.alternative_models.objectives import ModelAnswers

    import numpy as np

    table, fits = fitter.table, [0]
    columns, fit = list(fitter.recipe.columns), table.fit
    x, y, groups = table.frame.iloc[fit][columns], (table.labels[fit] == table.positive).astype(int), table.group[fit]
    model = weighted_model(fitter, fits)
    methods = {
        "ThresholdOptimizer": ThresholdOptimizer(estimator=model, predict_method="predict_proba"),
        "ExponentiatedGradient": ExponentiatedGradient(
            model, DemographicParity(), max_iter=max(1, budget // FITS_PER_ITERATION)
        ),
    }
    found = {}
    for name, method in methods.items():
        fits[0] = 0
        method.fit(x, y, sensitive_features=groups)
        given = {"sensitive_features": other.table.group} if name == "ThresholdOptimizer" else {}
        selected = np.asarray(method.predict(other.table.frame[columns], random_state=0, **given)) == 1
        decided = np.where(selected, other.table.positive, 1 - other.table.positive)
        answers = ModelAnswers(decided, None, {})
        found[name] = {"second": [evaluator.quality_of(answers), evaluator.measure_model(answers)], "fits": fits[0]}
    return found


def weighted_model(fitter: Any, fits: list[int]) -> Any:
    """Return a classifier of 0 and 1 (selected) that takes weights of records, and counts its fits."""
    from neuronfair.alternative_models import estimators

    import numpy as np
    from sklearn.base import BaseEstimator, ClassifierMixin

    table = fitter.table
    classes = [table.values[1 - table.positive], table.values[table.positive]]

    class WeightedModel(ClassifierMixin, BaseEstimator):
        def fit(self, frame: Any, y: Any, sample_weight: Any = None) -> Any:
            fits[0] += 1
            self.classes_ = np.array([0, 1])
            estimator = estimators.clone_with_seed(fitter.recipe.estimator, 0, {})
            y = np.array(classes, dtype=table.y.dtype)[np.asarray(y, dtype=int)]
            weights = None if sample_weight is None else np.asarray(sample_weight, dtype=float)
            self.estimator_ = estimators.fit_estimator(estimator, frame, y, weights, 0)
            return self

        def predict_proba(self, frame: Any) -> Any:
            order = [list(self.estimator_.classes_).index(value) for value in classes]
            return np.asarray(self.estimator_.predict_proba(frame))[:, order]

        def predict(self, frame: Any) -> Any:
            return self.predict_proba(frame).argmax(1)

    return WeightedModel()


# All cells


def cell_name(name: str, estimator: str, split: int) -> str:
    """Return the name of the files of a cell."""
    return f"{name}-{estimator}-{split}"


def order_cells(options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Return all cells: first those that the published table misses, then the slow ones."""
    slow = list(SENSITIVE)
    cells = [(d, e, split) for d in options.data for e in options.estimators for split in range(options.splits)]
    return sorted(
        cells, key=lambda c: (c[2] < MISSING_FROM.get(c[:2], sys.maxsize), ESTIMATORS.index(c[1]), slow.index(c[0]))
    )


def run_cell(cell: tuple[str, str, int], options: argparse.Namespace) -> str:
    """Search one cell in a process of its own; return the last line that it printed where it failed."""
    command = [sys.executable, __file__, "--cell", cell[0], cell[1], str(cell[2]), "--out", str(options.out)]
    command += ["--budget", str(options.budget), "--tolerance", str(options.tolerance)]
    command += ["--sensitive", options.sensitive] if options.sensitive else []
    done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    (options.out / f"{cell_name(*cell)}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def read_cells(out: Path) -> list[dict[str, Any]]:
    """Return the results there are."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((out / "cells").glob("*.json"))]


def write_csv(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write one line for each cell."""
    keys = ("data", "sensitive", "estimator", "split", "budget", "tolerance", "measure", "conclusion", "failed")
    columns = [f"{kind} {what}" for kind in KINDS for what in ("name", "quality", "measure", "holds", "fits")]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*keys, "seconds", "CPU seconds in all", "baseline quality", "baseline measure", *columns])
        for cell in cells:
            values = [cell[key] for key in (*keys, "seconds", "cpu_seconds")] + cell["baseline"]
            for kind in KINDS:
                one = cell.get(kind, {})
                values += [one.get("name"), *one.get("second", (None, None)), one.get("holds"), one.get("fits")]
            writer.writerow(values)


def summary(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return how often something was claimed, and how often it held."""
    for key in dict.fromkeys((cell["data"], cell["sensitive"], cell["estimator"]) for cell in cells):
        some = [cell for cell in cells if (cell["data"], cell["sensitive"], cell["estimator"]) == key]
        claims, controls = ([cell[kind] for cell in some if kind in cell] for kind in ("chosen", "best control"))
        seconds = sum(cell["seconds"] for cell in some) / len(some)
        yield (
            f"{', '.join(key)}: {len(some)} splits, better {len(claims)}, held on the second part "
            f"{sum(one['holds'] for one in claims)}; controls better {len(controls)}, held "
            f"{sum(one['holds'] for one in controls)}; {seconds:.0f} s each"
        )
        values = {"baseline": [cell["baseline"] for cell in some]}
        values |= {kind: [cell[kind]["second"] for cell in some if kind in cell] for kind in KINDS}
        for kind, pairs in values.items():
            if pairs:
                quality, measure = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
                yield f"    {kind:22} quality {quality:.4f}, measure {measure:.4f} (mean of {len(pairs)})"


def run_table(options: argparse.Namespace) -> int:
    """Search all cells that are missing, `--jobs` at a time; return how many failed."""
    (options.out / "cells").mkdir(parents=True, exist_ok=True)
    cells = [c for c in order_cells(options) if not (options.out / "cells" / f"{cell_name(*c)}.json").exists()]
    start, failed = time.perf_counter(), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(run_cell, cell, options): cell for cell in cells}
        for number, future in enumerate(as_completed(running), 1):
            error, cell = future.result(), running[future]
            failed += bool(error)
            write_csv(read_cells(options.out), options.out / "results.csv")
            seconds = time.perf_counter() - start
            print(f"{number} of {len(cells)}, {seconds:.0f} s: {cell_name(*cell)} {error or 'done'}", flush=True)
    return failed


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(SENSITIVE), choices=SENSITIVE)
    parser.add_argument("--sensitive", help="default: sex; for Bank marital, for MEPS race")
    parser.add_argument("--estimators", nargs="+", default=list(ESTIMATORS), choices=ESTIMATORS)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--tolerance", type=float, default=0.005)
    parser.add_argument("--jobs", type=int, default=1, help="cells at the same time, with one thread each")
    parser.add_argument("--worlds", type=int, default=0, help="planted worlds of each kind, instead of data sets")
    parser.add_argument("--bounds", type=int, default=0, help="drawn tables of each kind, instead of data sets")
    parser.add_argument("--summary", action="store_true", help="print the results there are, and search nothing")
    parser.add_argument("--out", type=Path, default=Path("out/alternatives"))
    parser.add_argument("--cell", nargs=3, metavar=("DATA", "ESTIMATOR", "SPLIT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        name, estimator, split = options.cell
        cell = json.dumps(search_cell(name, estimator, int(split), options))
        path = options.out / "cells" / f"{cell_name(name, estimator, int(split))}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".part").write_text(cell, encoding="utf-8")
        path.with_suffix(".part").replace(path)
        return
    if options.worlds:
        search_worlds(options.worlds)
        return
    if options.bounds:
        check_bounds(options.bounds)
        return
    failed = 0 if options.summary else run_table(options)
    print("\n".join(summary(read_cells(options.out))))
    sys.exit(bool(failed))


# Worlds whose truth is known


def search_worlds(count: int) -> None:
    """Count what is said of planted worlds."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from neuronfair.alternative_models.session import alternatives

    from tests.planted import alternatives as worlds

    described: dict[str, Any] = {"sensitive": "sex", "target": "hired", "favourable": "yes", "budget": 6}
    kinds = {"nothing to have": (worlds.nothing_to_have, {}), "free proxy": (worlds.free_proxy, {"tolerance": 0.02})}
    for kind, (world, settings) in kinds.items():
        conclusions = []
        for seed in range(count):
            result = alternatives("logistic", world(seed), seed=seed, **described, **settings)
            conclusions.append(result.report.conclusion)
            print(f"{kind}, world {seed}: {conclusions[-1]}", flush=True)
        better, none = conclusions.count("better"), conclusions.count("none found")
        print(f"{kind}: {count} worlds, better {better}, none found {none}")


#: Measure, records of each group, and the share of each group that the baseline and the other model select, equally
#: discriminatory; for error rates among the records of either label.
EQUALLY_UNFAIR: dict[str, tuple[str, list[int], Any, Any]] = {
    "five groups of 40, fewer selected, no gap": ("selection_gap", [40] * 5, [0.5] * 5, [0.05] * 5),
    "five groups of 40, fewer selected": ("selection_gap", [40] * 5, [0.5] * 4 + [0.4], [0.15] * 4 + [0.05]),
    "five groups of 20, fewer selected": ("selection_gap", [20] * 5, [0.5] * 4 + [0.3], [0.25] + [0.05] * 4),
    "two groups of 400, fewer selected": ("selection_gap", [400] * 2, [0.5, 0.4], [0.15, 0.05]),
    "five groups of 40, more selected, ratio 1": ("disparate_impact", [40] * 5, [0.25] * 5, [0.9] * 5),
    "five groups of 40, more selected, ratio 0.8": (
        "disparate_impact", [40] * 5, [0.25] * 4 + [0.2], [0.5] * 4 + [0.4],
    ),
    "five groups of 20, nearly all selected": ("disparate_impact", [20] * 5, [0.9] * 4 + [0.72], [0.95] * 4 + [0.76]),
    "two groups of 600, ratio 0.4": ("disparate_impact", [600] * 2, [0.25, 0.1], [0.2, 0.08]),
    "five groups of 80, fewer errors": (
        "error_rates", [80] * 5, [(0.4, 0.6)] * 4 + [(0.3, 0.5)], [(0.05, 0.9)] * 4 + [(0.05, 0.8)],
    ),
    "two groups of 100, fewer errors": ("error_rates", [100] * 2, [(0.4, 0.6), (0.3, 0.5)], [(0.05, 0.9), (0.05, 0.8)]),
}  # fmt: skip


def check_bounds(count: int, confidence: float = 0.95) -> None:
    """Count how often a lower measure is claimed where it is the same."""
    from types import SimpleNamespace

    from neuronfair.alternative_models.objectives import DRAWS, ModelAnswers, PartEvaluator

    import numpy as np

    def draw(sizes: Any, rates: Any, times: int, random: Any) -> tuple[Any, list[Any]]:
        """Return what measures tables of groups, and the answers of the two models for it."""
        group = np.repeat(np.arange(len(sizes)), np.array(sizes) * times)
        labels = (random.random(len(group)) < 0.5).astype(int)
        shares = [np.array([rate if isinstance(rate, tuple) else (rate, rate) for rate in side]) for side in rates]
        decided = [(random.random(len(group)) < share[group, labels]).astype(int) for share in shares]
        domain = SimpleNamespace(domain=SimpleNamespace(favourable="yes"))
        table: Any = SimpleNamespace(group=group, groups=sizes, positive=1, labels=labels, data=domain)
        return table, [ModelAnswers(side, None, {}) for side in decided]

    for name, (measure, sizes, *rates) in EQUALLY_UNFAIR.items():
        random, claims = np.random.default_rng(0), np.zeros(3)
        for _ in range(count):
            table, (baseline, model) = draw(sizes, rates, 1, random)
            other, (known, _) = draw(sizes, rates, 4, random)  # the parts to fit and to choose
            evaluator, before = (PartEvaluator(t, np.arange(len(t.group)), "accuracy", measure) for t in (table, other))
            gain = evaluator.measure_gain(model, baseline, confidence, pair=before.find_pair(known))
            drawn = evaluator._draw_measures(model, baseline, DRAWS)
            percentile, opposite = np.quantile(drawn[1] - drawn[0], [1 - confidence, confidence])
            claims += [gain.low > 0, percentile > 0, min(percentile, 2 * gain.value - opposite) > 0]
        bound, percentile, smaller = (f"{share:.1%}" for share in claims / count)
        print(
            f"{measure}, {name}: {bound} (percentile {percentile}, smaller of percentile and basic {smaller})",
            flush=True,
        )


if __name__ == "__main__":
    main()
