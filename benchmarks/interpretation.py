"""Time and memory of the interpretation, on all Adult rows in the paper's encoding and all layers.

    python benchmarks/interpretation.py

The time is given beside that of a plain forward pass over the same rows and twins, already encoded, measured in turn in
the same run: the ratio says more than seconds do on a machine that other work shares. Memory is what `interpret` adds
at its peak to a process of its own that already holds the rows; it should not grow with their number.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.model import weights
from neuronfair.model.encoding import TableEncoding, split_families
from neuronfair.model.network import Network
from neuronfair.model.profile import interpret
from neuronfair.model.weights import fully_connected

import torch

SIZES = (10_000, 100_000, 1_000_000)


def make_network(domain: TableDomain) -> tuple[Network, str]:
    published = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models")) / "neuronfair" / "census.npz"
    if published.is_file():
        return Network(weights.load_weights(published)[0], domain), "published weights"
    torch.manual_seed(0)
    return Network(
        fully_connected(TableEncoding.of(domain).width), domain
    ), "new weights (the published ones are not here)"


def timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def speed(repeats: int) -> None:
    data = load_dataset("adult", "paper", sensitive=["sex"])
    domain, rows = data.domain, data.rows
    network, which = make_network(domain)
    batches = []
    for (part,) in zip(*split_families(network.encoding, domain, rows), strict=True):
        family = torch.cat([part[:, None], domain.twins(part).rows], 1)
        batches.append(family.flatten(0, 1))

    def forward() -> None:
        for x in batches:
            network.scores(x)

    def all_layers() -> None:
        interpret(network, domain, rows)

    forward(), all_layers()  # warm up
    times = [(timed(all_layers), timed(forward)) for _ in range(repeats)]
    print(f"{len(rows):,} rows, {sum(network.neurons.values())} neurons in {len(network.layers)} layers, {which}")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, {repeats} repeats\n")
    print("|  | best | median |\n| --- | ---: | ---: |")
    for name, seconds in zip(
        ("interpret", "forward pass of the same rows and twins"), zip(*times, strict=True), strict=True
    ):
        print(f"| {name} | {min(seconds):.3f} s | {statistics.median(seconds):.3f} s |")
    ratios = [a / b for a, b in times]
    print(f"| ratio | {min(a for a, _ in times) / min(b for _, b in times):.1f} | {statistics.median(ratios):.1f} |\n")


def memory() -> None:
    print(
        "| sampled rows | the rows themselves | added by interpret at its peak | time |\n| ---: | ---: | ---: | ---: |"
    )
    for n in SIZES:
        command = [sys.executable, __file__, "--child", str(n)]
        child = subprocess.run(command, capture_output=True, text=True, check=True)
        own, added, seconds = map(float, child.stdout.split())
        print(f"| {n:,} | {own:.0f} MB | {added:.0f} MB | {seconds:.2f} s |")


def child(n: int) -> None:
    domain = load_dataset("adult", "paper", sensitive=["sex"]).domain
    network, _ = make_network(domain)
    rows = domain.sample(n, torch.Generator().manual_seed(0))
    interpret(network, domain, rows[:100])  # what torch allocates once is not counted
    before = forget_peak()
    seconds = timed(lambda: interpret(network, domain, rows))
    print(rows.nbytes / 1e6, (peak() - before) / 1e6, seconds)


def forget_peak() -> float:
    """Let the peak start anew where the system can do that (Linux), and return the memory in use, in bytes."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")
    return peak()


def peak() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    speed(options.repeats)
    memory()


if __name__ == "__main__":
    main()
