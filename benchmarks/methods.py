"""How long every method takes for 1,000 seeds and 1,000 steps on Adult, sex, with the published weights.

    python benchmarks/methods.py

`uniform` only draws and judges rows, so a method's rows per second over those of uniform, measured in the same run, say
what its own work costs. SymbGen, which asks the network about 500 neighbours of every row, is stopped after 60 seconds.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.model.network import Network
from neuronfair.model.weights import read_model
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.methods import METHODS

LIMITS = {"symbgen": 60.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    path = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models")) / "neuronfair" / "census.npz"
    if not path.is_file():
        sys.exit("the published weights are not here: set NEURONFAIR_MODELS to their folder")
    data = load_dataset("adult", "paper", sensitive=["sex"])
    network = Network(read_model(path, data.domain), data.domain)
    search(network, data.domain, data.rows, SearchConfig("uniform", seeds=100, steps=50, controls=False))  # warm up
    print("| method | seconds | rows evaluated | findings | rows per second | of uniform's | load |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    yardstick = None
    for method in ("uniform", *(name for name in METHODS if name != "uniform")):
        busy = os.getloadavg()[0]
        config = SearchConfig(method, options.seeds, options.steps, seconds=LIMITS.get(method), controls=False)
        figures = search(network, data.domain, data.rows, config).summary()
        speed = figures["rows_evaluated"] / figures["seconds"]
        yardstick = yardstick or speed
        print(
            f"| {method} | {figures['seconds']:.1f} | {figures['tried']:,} | {figures['findings']:,} | {speed:,.0f} | "
            f"{speed / yardstick:.2f} | {busy:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
