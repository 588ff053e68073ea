"""What each part of frontier is worth: the method as it is, and with one part taken away at a time.

python -m experiments.ablation_frontier --models FOLDER --cases adult-sex bank-age
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from experiments.cases import CASES
from neuronfair.domain.tables.dataset import load_dataset
from neuronfair.measure.diversity import count_regions, mean_distance
from neuronfair.model.network import Network
from neuronfair.model.weights import read_model
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import SearchContext, State
from neuronfair.searches.methods import METHODS, MethodEntry, Phases, Setting, frontier
from neuronfair.searches.methods.frontier import DEPTH_BINS, LENGTH_BINS, Frontier

import torch
from torch import Tensor

FAR = 1e6


class NoPrediction(Frontier):
    """The table does not know what the gradient predicts."""

    def _predicted(
        self, context: SearchContext, state: State, columns: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        high, low, cells = super()._predicted(context, state, columns, codes)
        return high, low, columns * DEPTH_BINS * LENGTH_BINS + cells % LENGTH_BINS


class NoAttribute(Frontier):
    """The table does not know which attribute moves."""

    def _predicted(
        self, context: SearchContext, state: State, columns: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        high, low, cells = super()._predicted(context, state, columns, codes)
        return high, low, cells % (DEPTH_BINS * LENGTH_BINS)


class NoDistance(Frontier):
    """The table does not know how far an attribute moves."""

    def _predicted(
        self, context: SearchContext, state: State, columns: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        high, low, cells = super()._predicted(context, state, columns, codes)
        return high, low, cells - cells % LENGTH_BINS


class UniformDistance(Frontier):
    """Inside, too, any value is as likely as any other."""

    def _moves(self, context: SearchContext, state: State, t: int) -> tuple[Tensor, Tensor, Tensor]:
        return super()._moves(context, state | {"inside": torch.zeros_like(state["inside"])}, t)


class RandomOutside(Frontier):
    """Outside, any move is taken."""

    def _predicted(
        self, context: SearchContext, state: State, columns: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        high, low, cells = super()._predicted(context, state, columns, codes)
        inside = state["inside"][:, None]
        return torch.where(inside, high, 0.0), torch.where(inside, low, 0.0), cells


class WidenOutside(Frontier):
    """Outside, moves that widen the family count as much as moves that centre it: the largest predicted w - |c|."""

    def _predicted(
        self, context: SearchContext, state: State, columns: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        high, low, cells = super()._predicted(context, state, columns, codes)
        far = FAR - context.decision.measure_split_depth(high, low)
        inside = state["inside"][:, None]
        return torch.where(inside, high, far), torch.where(inside, low, far), cells


class WalkOn(Frontier):
    """Continue from a miss instead of the last finding."""

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Forget what was found before."""
        forgetful = {name: torch.zeros_like(state[name]) for name in ("inside", "slope_high", "slope_low")}
        return super().tell(context, state | forgetful, rows, evaluation, t)


class NoRedraw(Frontier):
    """Take a random move on a plateau."""

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Take every place for a slope."""
        return super().ask(context, state | {"sloping": torch.ones_like(state["sloping"])}, t)


class NoMemory(Frontier):
    """Evaluate rows again that the chain has evaluated before."""

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Remember nothing."""
        return super().tell(context, state, rows, evaluation, t) | {"recent": state["recent"]}


VARIANTS: dict[str, Frontier] = {
    "frontier": Frontier(),
    "no table: the most central move": Frontier(trust=-1.0),
    "table without prediction": NoPrediction(),
    "table without attribute": NoAttribute(),
    "table without distance": NoDistance(),
    "uniform instead of log distance": UniformDistance(),
    "random moves outside": RandomOutside(),
    "widening outside": WidenOutside(),
    "no scatter": Frontier(),
    "no redraw on plateaus": NoRedraw(),
    "no memory": NoMemory(),
    "walk on after a miss": WalkOn(),
    "8 candidates": Frontier(candidates=8),
    "64 candidates": Frontier(candidates=64),
    "trust 0.8": Frontier(trust=0.8),
    "trust 0.97": Frontier(trust=0.97),
}
SCATTERED = {"no scatter": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", default=["adult-sex", "german-sex", "bank-age", "compas-race"])
    parser.add_argument("--models", type=Path, required=True, help="folder of the published weights")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    print("| case | variant | findings | success rate | of the seeds, found | mean distance | regions |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for case in options.cases:
        name, sensitive, weights, _ = CASES[case]
        data = load_dataset(name, "paper", sensitive=[sensitive])
        module = read_model(options.models / "neuronfair" / str(weights), data.domain)
        network = Network(module, data.domain)
        for label, method in VARIANTS.items():
            METHODS.entries["frontier"] = MethodEntry(lambda setting, method=method: ready(setting, method))
            with patch.object(frontier, "REDRAWN_SHARE", SCATTERED.get(label, frontier.REDRAWN_SHARE)):
                config = SearchConfig("frontier", options.seeds, options.steps, controls=False)
                outcome = search(network, data.domain, data.rows, config)
            found, rows = outcome.summary(), outcome.findings.packed
            reached = len(outcome.global_phase.findings.origin.unique()) - 1
            print(
                f"| {case} | {label} | {found['findings']:,} | {found['gsr']:.3f} | "
                f"{reached / options.seeds:.2f} | {mean_distance(data.domain, rows):.3f} | "
                f"{count_regions(data.domain, rows):,} |",
                flush=True,
            )


def ready(setting: Setting, method: Frontier) -> Phases:
    prepared, pilot = method.prepare(setting.context, rows=setting.rows // 20, key_set=setting.key_set)
    if method.trust < 0:
        prepared = replace(prepared, stay_chances=None)
    return Phases(prepared, prepared, pilot)


if __name__ == "__main__":
    main()
