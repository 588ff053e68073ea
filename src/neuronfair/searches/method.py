"""What a search method is: a rule that proposes the next row of every chain. The engine does all the rest."""

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
from neuronfair.domain.table import TableDomain
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import Evaluation

MAX_UNIT_STEP_VALUES = 128  # up to so many values in order, one code is a step
QUANTILES = 1024  # places at most
BEYOND = 8  # places beyond each end of the table


@dataclass(frozen=True)
class StepSizes:
    """Quantiles of the attributes with many values in order; all others go as the domain goes."""

    columns: Tensor  # which attributes: (m,)
    values: Tensor  # the codes of their places, from the lowest bound to the highest: (m, k), float64

    @staticmethod
    def of(domain: TableDomain, rows: Tensor) -> StepSizes | None:
        """Return the step sizes of a table; None if every step is one code, as in the `paper` encoding."""
        wide = (domain.ordered & domain.free & (domain.points > MAX_UNIT_STEP_VALUES)).nonzero()[:, 0]
        if domain.encoding == "paper" or not len(rows) or not len(wide):
            return None
        codes = rows[:, wide].double().clamp(min=0)
        last = (domain.points[wide] - 1).double()
        middle = codes.masked_fill(codes > last, torch.nan).nanmedian(0).values.nan_to_num()
        codes = torch.where(codes > last, middle, codes)  # an empty cell has no place in the order
        places = torch.linspace(0, len(rows) - 1, min(QUANTILES, len(rows)), device=rows.device).round().long()
        places = places.clamp(max=len(rows) - 1)  # rounding may lead beyond the last of very many
        inside = codes.sort(0).values[places].T
        rungs = torch.arange(1, BEYOND + 1, dtype=torch.float64, device=rows.device) / BEYOND
        low, high = inside[:, :1], inside[:, -1:]
        above = high + (last[:, None] - high + 1) ** rungs - 1
        below = low - (low + 1) ** rungs.flip(0) + 1
        return StepSizes(wide, torch.cat([below, inside, above], 1).round())

    def stretched(self, base: Tensor, codes: Tensor, u: Tensor) -> Tensor:
        """Return the codes with steps of one code made as long as numbers u in [0, 1) say, each in its direction."""
        old, near = base[:, self.columns], codes[:, self.columns]
        new = self._stepped(old.T.double(), (near - old).T.sign(), u[:, self.columns].T).T
        single = (near - old).abs() == 1  # not to or from an empty cell, which has no place in the order
        return codes.index_copy(1, self.columns, torch.where(single, new.long(), near))

    def _stepped(self, old: Tensor, way: Tensor, u: Tensor) -> Tensor:
        """Return where steps lead, (m, n): at least one code away, and beyond no bound but by one code."""
        last = self.values.shape[1] - 1
        up = way > 0
        place = torch.where(up, self._place(old, right=True), self._place(old, right=False))
        room = torch.where(up, last - place, place)
        goal = (place + way * ((room + 1) ** u - 1)).clamp(0, last)
        below = goal.long().clamp(max=last - 1)
        low, high = self.values.gather(1, below), self.values.gather(1, below + 1)
        there = (low + (goal - below) * (high - low)).round()
        return torch.where(up, torch.maximum(there, old + 1), torch.minimum(there, old - 1))

    def _place(self, codes: Tensor, *, right: bool) -> Tensor:
        """Return the places of codes among the values, between two of them in proportion; of a heap its end."""
        after = torch.searchsorted(self.values, codes.contiguous(), right=right).clamp(1, self.values.shape[1] - 1)
        low, high = self.values.gather(1, after - 1), self.values.gather(1, after)
        share = torch.where(high > low, (codes - low) / (high - low).clamp(min=1e-9), 1.0 if not right else 0.0)
        return after - 1 + share.clamp(0, 1)

    def reach(self, width: int) -> Tensor:
        """Return how many codes a step of each attribute goes, about: one, or the mean over the table: (width,)."""
        old, last = self.values[:, 1:-1], self.values[:, -1:]
        sizes = []
        for u in torch.arange(0.5, 8) / 8:  # evenly spread
            for way in (1.0, -1.0):
                there = self._stepped(old, torch.full_like(old, way), torch.full_like(old, float(u)))
                sizes.append((torch.minimum(there.clamp(min=0), last) - old).abs())
        reach = torch.ones(width, dtype=torch.float64, device=old.device)
        return reach.index_copy(0, self.columns, torch.stack(sizes).mean((0, 2)).clamp(min=1))


State = dict[str, Tensor]
"""Everything a method remembers: tensors with one line per living chain, `origin` and `rows` among them."""


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
    step_sizes: StepSizes | None = None  # how far steps go; None: one code

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # others can make the rest themselves

    @cached_property
    def exact(self) -> Model:
        """The model in float64, for the second judgement of findings."""
        return self.network.double()

    @cached_property
    def reach(self) -> Tensor | float:
        """How many codes a step of each attribute goes, about."""
        return 1.0 if self.step_sizes is None else self.step_sizes.reach(self.domain.codes_per_row)

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

        The rows are one line per chain, or several such blocks; `layer` and `through` are `Network.gradient`'s. In the
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
            return self.domain.records[(u[..., 0] * len(self.domain.records)).long()]
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
        """Return the row each chain wants judged at step t: (n, d)."""

    def tell(self, world: World, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Return the state after the rows were judged."""
