"""Speed and memory of the search, on Adult in the paper's encoding with the published weights.

    python benchmarks/search.py

Speed: evaluated rows per second and seconds per 1,000 unique findings, duplicates and second evaluation included, for
more and more seeds at about a million evaluated rows each. Beside each stands the same engine with a single walker,
measured right after it: on a machine that other work shares the ratio says more than seconds do. Preparation is what is
not in those seconds: interpretation, clustering of the seeds, health checks. Memory: the peak of a whole
`neuronfair search` of ten million evaluated rows, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.draws import Draws
from neuronfair.domain.tables.dataset import Dataset, load_dataset
from neuronfair.model import weights
from neuronfair.model.network import Network
from neuronfair.searches import methods as search_methods
from neuronfair.searches.campaign import SearchResult, search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import SearchContext

import torch

METHODS = ("frontier", "neuronfair-plus", "uniform")
SIZES = ((100, 10_000), (1_000, 1_000), (10_000, 100), (100_000, 10))  # seeds and steps
SINGLE_STEPS = 300
# Seeds for ten million evaluated rows in 1,000 steps: walkers that find nothing in the global phase go no further.
MEMORY_SEEDS = {"frontier": 11_000, "neuronfair-plus": 15_000, "neuronfair-printed": 15_000, "uniform": 29_000}
MEMORY_STEPS = 1_000


@dataclass(frozen=True)
class Speed:
    """What one search took."""

    outcome: SearchResult
    preparation: float
    single: float  # evaluated rows per second of one walker alone


def published() -> Path:
    path = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models")) / "neuronfair" / "census.npz"
    if not path.is_file():
        sys.exit("the published weights are not here: set NEURONFAIR_MODELS to their folder")
    return path


def measure(method: str, seeds: int, steps: int, network: Network, data: Dataset) -> Speed:
    config = SearchConfig(method=method, seeds=seeds, steps=steps, global_steps=min(40, steps), controls=False)
    start = time.perf_counter()
    outcome = search(network, data.domain, data.rows, config)
    whole = time.perf_counter() - start
    return Speed(
        outcome, whole - outcome.global_phase.seconds - outcome.local_phase.seconds, single(outcome, network, data)
    )


def single(outcome: SearchResult, network: Network, data: Dataset) -> float:
    """Return the evaluated rows per second of one walker that starts from a finding."""
    context = SearchContext(network, data.domain, outcome.config.decision, Draws(0, "local"), outcome.profile)
    rule = (
        METHODS[outcome.config.method]
        .make(search_methods.Setting(context, KeySet(), outcome.config.seeds * outcome.config.steps))
        .local_phase
    )
    start = outcome.findings.rows[:1]
    run_phase(context, rule, start, budget=Budget(steps=20))  # warm up
    result = run_phase(context, rule, start, budget=Budget(steps=SINGLE_STEPS))
    return result.findings.evaluated / result.seconds


def speed(methods: list[str]) -> None:
    data = load_dataset("adult", "paper", sensitive=["sex"])
    module, _ = weights.load_weights(published())
    network = Network(module, data.domain)
    search(network, data.domain, data.rows, SearchConfig(seeds=100, steps=50, controls=False))  # warm up
    print(
        "| method | seeds | steps | evaluated rows | findings | rows per second | one walker | ratio | "
        "seconds per 1,000 findings | preparation | load |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        flush=True,
    )
    for method in methods:
        for seeds, steps in SIZES:
            load_now = os.getloadavg()[0]
            result = measure(method, seeds, steps, network, data)
            figures = result.outcome.summary()
            rate = figures["rows_evaluated"] / figures["seconds"]
            print(
                f"| {method} | {seeds:,} | {steps:,} | {figures['rows_evaluated']:,} | {figures['findings']:,} | "
                f"{rate:,.0f} | {result.single:,.0f} | {rate / result.single:,.0f} | "
                f"{figures['seconds_per_1000'] or 0:.4f} | {result.preparation:.1f} s | {load_now:.1f} |",
                flush=True,
            )


def memory(methods: list[str], *, controls: bool) -> None:
    print(
        "\n| method | evaluated rows | findings | controls | peak memory | time |\n"
        "| --- | ---: | ---: | --- | ---: | ---: |",
        flush=True,
    )
    for method in methods:
        with tempfile.TemporaryDirectory() as folder:
            seeds, steps = MEMORY_SEEDS[method], MEMORY_STEPS
            words = ["search", "adult", "--encoding", "paper", "--sensitive", "sex", "--model", str(published())]
            words += ["--method", method, "--seeds", str(seeds), "--steps", str(steps), "--json", "-"]
            words += ["--controls" if controls else "--no-controls", "--out", str(Path(folder) / "run")]
            output = Path(folder) / "figures.json"
            start = time.perf_counter()
            with output.open("wb") as out:
                process = subprocess.Popen([sys.executable, "-m", "neuronfair.cli", *words], stdout=out)
                _, status, usage = os.wait4(process.pid, 0)
            if status != 0:
                sys.exit(f"neuronfair {' '.join(words)} ended with status {os.waitstatus_to_exitcode(status)}")
            figures = json.loads(output.read_text(encoding="utf-8"))
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            print(
                f"| {method} | {figures['rows_evaluated']:,} | {figures['findings']:,} | "
                f"{'yes' if controls else 'no'} | "
                f"{peak / 1e6:,.0f} MB | {time.perf_counter() - start:.0f} s |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--method", action="append", help=f"may be given several times; default: {', '.join(METHODS)}")
    parser.add_argument("--part", choices=("speed", "memory"), help="default: both")
    parser.add_argument("--controls", action="store_true", help="measure the memory with the two controls")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {os.cpu_count()} cores\n", flush=True)
    if options.part != "memory":
        speed(options.method or list(METHODS))
    if options.part != "speed":
        memory(options.method or ["neuronfair-plus", "uniform"], controls=options.controls)


if __name__ == "__main__":
    main()
