"""A torch module of one's own: which neurons react to sex, whose decision flips, and what it takes to show it."""

from __future__ import annotations

import neuronfair as nf

import torch
from torch import Tensor, nn


class Credit(nn.Module):
    """Any module will do. This one has a shortcut around its hidden layers."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU())
        self.second = nn.Sequential(nn.Linear(32, 16), nn.Tanh())
        self.output = nn.Linear(16 + inputs, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of bad and good risk."""
        return self.output(torch.cat([self.second(self.first(x)), x], 1))


def train(data: nf.Dataset) -> Credit:
    """Train on everybody; how well does not matter here."""
    torch.manual_seed(0)
    x = nf.TableEncoding.of(data.domain).encode(data.rows)
    module = Credit(x.shape[1])
    optimiser = torch.optim.Adam(module.parameters(), lr=0.005, weight_decay=1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x), data.labels).backward()
        optimiser.step()
    return module.eval()


def main() -> None:
    """Interpret, measure, search, shrink."""
    data = nf.load_dataset("german", sensitive=["sex"])
    domain = data.domain
    network = nf.Network(train(data), domain)

    for layer in nf.interpret(network, domain, data.rows).layers:
        print(f"{layer.name}: AUC {layer.auc:.3f}, biased neurons {list(layer.biased)}")

    rate = nf.rate(network, domain, samples=10_000)
    low, high = rate.interval
    print(f"The decision flips with sex for {rate.rate:.2%} of people drawn from the domain ({low:.2%} to {high:.2%})")

    outcome = nf.search(network, domain, data.rows, nf.SearchConfig(seeds=50, steps=50))
    figures = outcome.summary()
    print(f"{figures['findings']:,} people found, {figures['lift']:.0f} times as often as at random")

    # The five with the widest gap, each moved back towards the row that the search started from.
    found = outcome.findings
    gaps = nf.Decision().gap(found.scores, found.twin_scores)
    worst = gaps.topk(min(5, len(found))).indices
    people, starts = found.rows[worst], outcome.seeds[found.origin[worst]]
    for person, start in zip(nf.shrink(network, domain, people, starts), starts, strict=True):
        moved = [name for name, a, b in zip(domain.names, person, start, strict=True) if a != b]
        print(
            f"- {domain.describe(person)}\n  (changed from a record of the data set: {', '.join(moved) or 'nothing'})"
        )


if __name__ == "__main__":
    main()
