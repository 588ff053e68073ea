"""Searching on a GPU beside the CPU of the same machine: evaluated rows per second against the number of seeds.

python benchmarks/device.py --model census.npz --devices cpu cuda
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.model.network import Network
from neuronfair.model.profile import interpret
from neuronfair.model.weights import read_model
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig

import torch

SIZES = ((100, 500), (1_000, 500), (10_000, 200), (100_000, 40))  # seeds, local steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="weights for Adult in the paper encoding")
    parser.add_argument("--devices", nargs="*", default=["cpu", "cuda"])
    parser.add_argument("--methods", nargs="*", default=["frontier", "neuronfair-plus"])
    parser.add_argument("--most", type=int, default=100_000, help="leave out larger numbers of seeds")
    options = parser.parse_args()
    data = load_dataset("adult", "paper", sensitive=["sex"])
    module = read_model(options.model, data.domain)
    print("| method | seeds | device | rows evaluated | findings | success rate | rows a second | s per 1,000 |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for device in options.devices:
        domain = data.domain.to(device)
        moved = replace(data, domain=domain, rows=data.rows.to(device))
        network = Network(module, domain)
        interpret(network, domain, moved.rows)  # the first use of a device is slow
        search(network, domain, moved.rows, SearchConfig(options.methods[0], 100, 20, controls=False))
        for method in options.methods:
            for seeds, steps in SIZES:
                if seeds > options.most:
                    continue
                config = SearchConfig(method, seeds, steps, controls=False)
                figures = search(network, domain, moved.rows, config).summary()
                assert figures["violations"] == 0
                print(
                    f"| {method} | {seeds:,} | {device} | {figures['rows_evaluated']:,} | {figures['findings']:,} | "
                    f"{figures['gsr']:.3f} | {figures['rows_evaluated'] / figures['seconds']:,.0f} | "
                    f"{figures['seconds_per_1000']:.4f} |",
                    flush=True,
                )
    if "cuda" in options.devices:
        print(f"GPU: {torch.cuda.get_device_name()}; peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
