"""Memory of a search where people have thousands of twins: age x race x sex with 5,000 combinations.

    python benchmarks/twins.py

Every search runs in a process of its own, of which the peak memory is told. The model is small, so that the scores of
the twins, and not its layers, are what takes memory; the table is made up.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.draws import Draws
from neuronfair.domain.table import TableDomain
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.profile import interpret
from neuronfair.searches import methods as search_methods
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import SearchContext

import torch
from torch import nn

METHODS = ("neuronfair-plus", "frontier", "uniform")
WALKERS = (10_000, 100_000)


def people() -> TableDomain:
    others = [Attribute(f"a{i}", "ordinal", low=0, high=99) for i in range(3)]
    sensitive = [Attribute("age", "ordinal", low=0, high=99), Attribute("race", "ordinal", low=0, high=24)]
    sensitive.append(Attribute("sex", "ordinal", low=0, high=1))
    return TableDomain("people", (*others, *sensitive), ("age", "race", "sex"))


def one(method: str, walkers: int, steps: int) -> None:
    """Search once, in this process."""
    torch.manual_seed(7)  # a network that a quarter of the people is discriminated by
    domain = people()
    network = Network(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), domain)
    seeds = domain.sample(walkers, torch.Generator().manual_seed(0))
    context = SearchContext(network, domain, Decision(), Draws(0, "global"), interpret(network, domain, seeds[:100]))
    setting = search_methods.Setting(context, KeySet(), rows=0)  # too few rows for a pilot
    rule = search_methods.METHODS[method].make(setting).first
    result = run_phase(context, rule, seeds, budget=Budget(steps=steps))
    print(result.findings.evaluated, result.finding_count)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--method", action="append", help=f"may be given several times; default: {', '.join(METHODS)}")
    parser.add_argument("--walkers", type=int, action="append", help=f"default: {' and '.join(map(str, WALKERS))}")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--limit", type=int, default=8, help="GB that a search may ask for")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        resource.setrlimit(resource.RLIMIT_AS, (options.limit * 10**9,) * 2)
        one(options.method[0], options.walkers[0], options.steps)
        return
    print(
        "| method | walkers | evaluated rows | findings | peak memory | time |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for method in options.method or METHODS:
        for walkers in options.walkers or WALKERS:
            words = ["--alone", "--method", method, "--walkers", str(walkers)]
            words += ["--steps", str(options.steps), "--limit", str(options.limit)]
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, __file__, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert process.stdout is not None  # both are pipes, and little is written
            said = process.stdout.read().decode().split()
            _, status, usage = os.wait4(process.pid, 0)
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            figures = f"- | - | did not finish within {options.limit} GB"
            if status == 0:
                figures = f"{int(said[0]):,} | {int(said[1]):,} | {peak / 1e6:,.0f} MB"
            print(f"| {method} | {walkers:,} | {figures} | {time.perf_counter() - start:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
