"""NeuronFair, frontier and the rivals on one network: same seeds, same budget, same judge."""

from __future__ import annotations

import neuronfair as nf
from neuronfair.model.training_loop import TrainingSettings

METHODS = ("frontier", "neuronfair-plus", "neuronfair", "eidig5", "adf", "aequitas", "uniform")


def main() -> None:
    """Train a small network on Adult and search it with each method."""
    data = nf.load_dataset("adult", sensitive=["sex"])
    quick = TrainingSettings(restarts=1, batch=512, lr=0.003, epochs=5)
    module, card = nf.train(data, hidden=[32, 16], settings=quick)
    print(f"A network of 32 and 16 neurons, {card.accuracy['test']:.1%} right on people it has not seen")

    network = nf.Network(module, data.domain)
    result = nf.compare_methods(network, data.domain, data.rows, METHODS, nf.SearchConfig(seeds=30, steps=20))

    print(f"{'method':<12}{'findings':>10}{'success':>10}{'lift':>8}{'distance':>10}{'regions':>9}")
    for line in result.methods():
        print(
            f"{line['method']:<12}{line['findings']:>10,.0f}{line['gsr']:>10.1%}{line['lift'] or 0:>8.1f}"
            f"{line['diversity'] or 0:>10.3f}{line['regions']:>9,.0f}"
        )
    if result.random is not None:
        print(f"Drawn uniformly from the domain: {result.random.rate:.2%}")
    print("Success is findings among the people tried; distance and regions say how different the findings are.")


if __name__ == "__main__":
    main()
