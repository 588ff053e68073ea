"""What a search method is: a rule that proposes the next row of every walker. The engine does all the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.interface import Domain
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.population.plausible import Plausible
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.step_sizes import Pace

State = dict[str, Tensor]
"""Everything a method remembers: tensors with one line per living walker, `origin` and `rows` among them."""


@dataclass(frozen=True)
class World:
    """What a method may look at."""

    network: Model
    domain: Domain
    decision: Decision
    draws: Draws
    profile: BiasProfile | None = None
    population: PopulationModel | None = None  # says how usual the people are who are found
    blind: bool = False  # the control: random numbers in the place of every gradient
    pace: Pace | None = None  # how far steps go; None: one code

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # others can make the rest themselves

    @cached_property
    def exact(self) -> Model:
        """The model in float64, for the second judgement of findings."""
        return self.network.double()

    @cached_property
    def reach(self) -> Tensor | float:
        """How many codes a step of each attribute goes, about."""
        return 1.0 if self.pace is None else self.pace.reach(self.domain.codes_per_row)

    @cached_property
    def free(self) -> Tensor:
        """The positions of the codes that a search may change."""
        return self.domain.free.nonzero()[:, 0]

    @cached_property
    def key_parts(self) -> Tensor:
        """What one code more of each column adds to a key, which is a sum over the columns: (d,)."""
        return self.domain.key(torch.eye(self.domain.codes_per_row, dtype=torch.int64, device=self.domain.device))

    @cached_property
    def biased(self) -> dict[str, Tensor]:
        """Which neurons of each layer of the profile are biased: bool, (neurons,)."""
        assert self.profile is not None
        masks = {layer.name: torch.zeros(len(layer.act_diff), dtype=torch.bool) for layer in self.profile.layers}
        for layer in self.profile.layers:
            masks[layer.name][list(layer.biased)] = True
        return {name: mask.to(self.domain.device) for name, mask in masks.items()}

    def gradient(
        self,
        rows: Tensor,
        objective: Callable[[Tensor], Tensor],
        state: State,
        t: int,
        *,
        layer: str | None = None,
        through: tuple[str, Tensor] | None = None,
    ) -> Tensor:
        """Return the gradient of an objective by the network input, one line per row: (n, width).

        The rows are one line per walker, or several such blocks; `layer` and `through` are `Network.gradient`'s. In the
        blind control the gradient is noise, so that the same walk goes in random directions.
        """
        if self.blind:
            blocks, width = len(rows) // len(state["origin"]), math.prod(self.network.encoding.shape)
            noise = self.draws.normal(t, state["origin"], blocks * width, use="blind")
            return noise.to(self.network.dtype).view(-1, blocks, width).transpose(0, 1).flatten(0, 1)
        assert isinstance(self.network, Network)  # methods that need gradients are not given a black box
        return self.network.gradient(rows, objective, layer=layer, through=through).flatten(1)

    def anywhere(self, u: Tensor) -> Tensor:
        """Return values to draw attributes anew from, by numbers u in [0, 1): (…, d) each.

        They are uniform, one by one; where the search stays among plausible people, who are rare among such rows, they
        are all those of one plausible row of the table.
        """
        if isinstance(self.domain, Plausible):
            return self.domain.people[(u[..., 0] * len(self.domain.people)).long()]
        return (u * self.domain.sizes).long()

    def no_gradient(self, rows: Tensor) -> Tensor:
        """Return gradients of 0 for so many rows, in the type of the network's: (n, width)."""
        width, dtype = math.prod(self.network.encoding.shape), self.network.dtype
        return torch.zeros(len(rows), width, dtype=dtype, device=rows.device)


class Method(Protocol):
    """One phase of a search method: what the engine asks of it."""

    def start(self, world: World, state: State) -> State:
        """Return the state before the first step, given one with `origin` and `rows` (the seeds)."""

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return the row each walker wants judged at step t: (n, d)."""

    def tell(self, world: World, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Return the state after the rows were judged."""
