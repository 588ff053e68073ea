"""Long searches: seconds, memory and disk of a search in shards, on Adult in the paper's encoding.

    python benchmarks/long.py --rows 100_000_000 --method frontier --workers 2

As `neuronfair search` does it beyond 20 million rows: chains are searched in shards, one after the other or by so many
processes, then they are put together and written to the run folder. One search for each call, since the peak of memory
is that of the process; of several processes the largest counts.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.population.model import fit_population
from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.model import weights
from neuronfair.model.network import Network
from neuronfair.scale.pool import Processes, Serial
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig
from neuronfair.store.ledger import make_manifest
from neuronfair.store.run import Run
from neuronfair.store.shard_runner import ShardRunner

import torch

STEPS = 1000
# Judged rows for each seed and step: chains that find nothing in the global phase go no further.
GO_ON = {"neuronfair-plus": 0.18, "frontier": 0.85, "uniform": 0.36}


class Disk(threading.Thread):
    """Looks every second how much a folder holds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.peak, self.finished = folder, 0, threading.Event()

    def now(self) -> int:
        """Return the bytes of all files."""
        total = 0
        for parent, _, names in os.walk(self.folder):
            for name in names:
                try:
                    total += (Path(parent) / name).stat().st_blocks * 512
                except FileNotFoundError:  # renamed or removed meanwhile
                    continue
        return total

    def run(self) -> None:
        """Remember the most there was."""
        while not self.finished.wait(1):
            self.peak = max(self.peak, self.now())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="evaluated rows, about")
    parser.add_argument("--method", choices=GO_ON, default="neuronfair-plus")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, help="where the run folder is made and removed; default: a temporary one"
    )
    options = parser.parse_args()
    path = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models")) / "neuronfair" / "census.npz"
    if not path.is_file():
        sys.exit("the published weights are not here: set NEURONFAIR_MODELS to their folder")
    data = load_dataset("adult", "paper", sensitive=["sex"])
    network = Network(weights.load_weights(path)[0], data.domain)
    config = SearchConfig(
        method=options.method, seeds=int(options.rows / STEPS / GO_ON[options.method]), steps=STEPS, controls=False
    )
    seeds, usual = (
        data.domain.sample(config.seeds, torch.Generator().manual_seed(0)),
        fit_population(data.domain, data.rows),
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        out = Path(folder) / "run"
        manifest = make_manifest(config, data, model=str(path), weights="", outputs=2)
        run = Run.create_or_open(out, manifest, data.domain)
        pool = Processes(options.workers) if options.workers > 1 else Serial()
        runner = ShardRunner(pool, out / "shards", run=run)
        disk = Disk(out)
        disk.start()
        start = time.perf_counter()
        outcome = search(
            network, data.domain, data.rows, config, seeds=seeds, recorder=run, runner=runner, population=usual
        )
        runner.remove()
        seconds = time.perf_counter() - start
        disk.finished.set()
        peak = [resource.getrusage(who).ru_maxrss / 1e3 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        total = outcome.total
        figures = {
            "method": config.method,
            "workers": options.workers,
            "evaluated rows": f"{total.evaluated:,}",
            "people": f"{total.tried:,}",
            "findings": f"{total.findings:,}",
            "seconds": f"{seconds:,.0f}",
            "peak memory": f"{peak[0]:,.0f} MB",
            "of a worker": f"{peak[1]:,.0f} MB",
            "most on disk": f"{disk.peak / 1e9:,.2f} GB",
            "run folder": f"{disk.now() / 1e9:,.2f} GB",
        }
        for line in (figures, ["---"] * len(figures), figures.values()):
            print(f"| {' | '.join(map(str, line))} |", flush=True)


if __name__ == "__main__":
    main()
