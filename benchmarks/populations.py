"""How hard the people of a population are to tell from real ones, beside simpler populations.

python benchmarks/populations.py adult german --splits 3

Fitted to 70% of the rows. For the other 30%: how well boosted trees tell them from drawn people (AUC, 0.5: not at
all), and their mean log-likelihood in nats. Besides, the share of drawn people that keep the rules (the simpler
populations do not know them), and for ours the processor seconds of fitting to all rows, with cross-fitting, and the
milliseconds of 1,000 likelihoods.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import neuronfair
from neuronfair.domain.population.model import TablePopulation, fit_likelihood, fit_population, real_synthetic_auc
from neuronfair.domain.population.trees import ChanceForest, fill_tree, find_information
from neuronfair.domain.tables.dataset import DATASETS, Dataset

import numpy as np
import torch
from torch import Tensor


def with_parents(model: TablePopulation, rows: Tensor, most: int) -> TablePopulation:
    """Return a Bayes network over the same places: full tables given so many parents. With one, a Chow-Liu tree."""
    codes = [bins.bins_of(rows[:, i]).numpy() for i, bins in enumerate(model.bins)]
    places, sizes = np.stack(codes, 1), [len(bins) for bins in model.bins]
    ordered = [a.is_ordered for a in model.domain.attributes]
    shared, trees = find_information(places[:10_000], sizes, ordered), {}
    for i, target in enumerate(model.order):
        column, children, width = [], [], 1
        for asked in sorted(model.order[:i], key=lambda c, to=target: -shared[c, to])[:most]:
            column += [asked] * width
            starts = 1 + sum(map(len, children)) + np.arange(width) * sizes[asked]
            children += [start + np.arange(sizes[asked]) for start in starts]
            width *= sizes[asked]
        ends = [np.zeros(0, dtype=np.int64)] * width
        trees[target] = fill_tree(places, target, sizes[target], np.array(column + [-1] * width), children + ends)
    free = replace(model.domain, rules=())
    return replace(model, domain=free, tied=(), trees=ChanceForest.of([trees[c] for c in range(len(sizes))]))


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Return the processor seconds that something takes, the fastest of three."""
    found = []
    for _ in range(3):
        start = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - start) / times)
    return min(found)


def measured(data: Dataset, splits: int) -> dict[str, list[float]]:
    """Return for each population AUC, log-likelihood and the share that keeps the rules, the means of some splits."""
    domain, people = data.domain, data.domain.clip(data.rows)
    found: dict[str, list[list[float]]] = {}
    for split in range(splits):
        order = torch.randperm(len(people), generator=torch.Generator().manual_seed(100 + split))
        cut = len(people) * 7 // 10
        rows, held = people[order[:cut]], people[order[cut:]]
        ours = fit_likelihood(domain, rows)
        kinds = {"independent": 0, "Chow-Liu": 1, "two parents": 2}
        models = {name: with_parents(ours, rows, most) for name, most in kinds.items()} | {"ours": ours}
        for name, draws in ({"uniform": domain} | models).items():
            drawn = draws.sample(len(held), torch.Generator().manual_seed(split))
            likely = -np.log(float(domain.count)) if draws is domain else float(draws.log_likelihood(held).mean())
            figures = [real_synthetic_auc(domain, held, drawn), likely, float(domain.valid(drawn).double().mean())]
            found.setdefault(name, []).append(figures)
    return {name: np.mean(figures, 0).tolist() for name, figures in found.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", default=list(DATASETS))
    parser.add_argument("--splits", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| table | population | AUC | log-likelihood | keep the rules | fit, s | 1,000 likelihoods, ms |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in args.data:
        data = neuronfair.load_dataset(name)
        for kind, (auc, likely, valid) in measured(data, args.splits).items():
            times = "| |"
            if kind == "ours":
                model = fit_population(data.domain, data.rows)
                rows = model.sample(1000, torch.Generator().manual_seed(0))
                fit = seconds(lambda: fit_population(data.domain, data.rows))  # noqa: B023 - called at once
                ask = seconds(lambda: model.log_likelihood(rows), 10)  # noqa: B023
                times = f"{fit:.2f} | {1000 * ask:.1f} |"
            print(f"| {name} | {kind} | {auc:.3f} | {likely:.2f} | {100 * valid:.1f} % | {times}", flush=True)


if __name__ == "__main__":
    main()
