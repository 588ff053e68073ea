"""What stacking gains: k small networks trained as one, against one after another, in the same run.

python benchmarks/training.py --rows 10000 --epochs 3
python benchmarks/training.py --threads 1 2

With --threads the stacks are trained on so many threads instead: from where on do several pay?
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning
from neuronfair.model import train as training
from neuronfair.model.train import train_module
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import HFCN, LFCN, fully_connected

import torch
from experiments.repairs.stacks import train_stack
from torch import Tensor


def compare_threads(options: argparse.Namespace, x: Tensor, y: Tensor, held: tuple[Tensor, Tensor]) -> None:
    """Print the time of a step against the number of products in it, for each number of threads."""
    training.MAX_PRODUCTS = 0  # leave the threads alone
    settings = TrainingSettings(epochs=options.epochs, restarts=1)
    every = torch.arange(len(x)).expand(1, -1)
    train_stack(
        partial(fully_connected, options.inputs, LFCN), (x, y), chosen=every, validation=held, settings=settings
    )
    print("network | members | million products |", " | ".join(f"ms a step, {n} threads" for n in options.threads))
    for name, hidden in (("LFCN", LFCN), ("HFCN", HFCN)):
        for members in (1, *options.members):
            chosen = torch.arange(len(x)).expand(members, -1)
            build = partial(fully_connected, options.inputs, hidden)
            products = members * settings.batch * sum(p.numel() for p in build().parameters())
            cells = []
            for threads in options.threads:
                torch.set_num_threads(threads)
                begun = time.perf_counter()
                train_stack(build, (x, y), chosen=chosen, validation=held, settings=settings)
                steps = options.epochs * -(-len(x) // settings.batch)
                cells.append(f"{1e3 * (time.perf_counter() - begun) / steps:.2f}")
            print(f"{name} | {members} | {products / 1e6:.1f} |", " | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--inputs", type=int, default=13)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--members", type=int, nargs="*", default=[2, 5, 10, 20])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="*", default=[])
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(options.rows, options.inputs, generator=generator).to(options.device)
    y = (x[:, 0] > x[:, 1]).long()
    held = x[:1000], y[:1000]
    if options.threads:
        compare_threads(options, x, y, held)
    else:
        compare_stacks(options, x, y, held)


def compare_stacks(options: argparse.Namespace, x: Tensor, y: Tensor, held: tuple[Tensor, Tensor]) -> None:
    """Print the time of trainings one after another, and as one."""
    settings = TrainingSettings(epochs=options.epochs, restarts=1)
    print("network | members | one after another, s | stacked, s | ratio")
    for name, hidden in (("LFCN", LFCN), ("HFCN", HFCN)):

        def build(hidden: tuple[int, ...] = hidden) -> torch.nn.Sequential:
            return fully_connected(options.inputs, hidden)

        train_module(build, x, y, validation=held, settings=TrainingSettings(epochs=1, restarts=1))  # warm up
        begun = time.perf_counter()
        for seed in range(2):
            train_module(build, x, y, validation=held, settings=settings, seed=seed)
        alone = (time.perf_counter() - begun) / 2
        for members in options.members:
            begun = time.perf_counter()
            chosen = torch.arange(len(x)).expand(members, -1)
            train_stack(build, (x, y), chosen=chosen, validation=held, settings=settings)
            together = time.perf_counter() - begun
            serial = alone * members
            print(f"{name} | {members} | {serial:.2f} | {together:.2f} | {serial / together:.1f}", flush=True)


if __name__ == "__main__":
    main()
