"""What a search method is: a rule that proposes the next row of every chain. The engine does all the rest.

Formulas that several methods share follow: what to differentiate, which attribute to change, whether to accept a miss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.population.model import PopulationModel
from neuronfair.domain.population.plausible import PlausibleDomain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import Domain
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile
from neuronfair.searches.evaluate import Evaluation

MAX_UNIT_STEP_VALUES = 128  # ordered attributes with more values have steps longer than one code
MAX_QUANTILES = 1024  # of an attribute, at most
STEPS_BEYOND = 8  # steps beyond each end of the data set
MIN_GRADIENT = 1e-9  # replaces 0 in inverses: attributes without influence share the chances
MIN_MARGIN_LOSS = 0.03  # the share of its margin that a row may lose at no cost
TEMPERATURE = 1.0  # of the Metropolis test in the published programs, where a miss after a finding costs 1


@dataclass(frozen=True)
class StepSizes:
    """How long steps of ordered attributes with many values are: as far as their quantiles in the data set lie apart.

    All other attributes step by one code.
    """

    columns: Tensor  # these attributes: (m,)
    values: Tensor  # the codes of their quantiles, from the lowest bound to the highest: (m, k), float64

    @staticmethod
    def of(domain: TableDomain, rows: Tensor) -> StepSizes | None:
        """Return the step sizes for a data set; None if every step is one code, as in the `paper` encoding."""
        columns = (domain.is_ordered & domain.changeable & (domain.grid_sizes > MAX_UNIT_STEP_VALUES)).nonzero()[:, 0]
        if domain.encoding == "paper" or not len(rows) or not len(columns):
            return None
        codes = rows[:, columns].double().clamp(min=0)
        last = (domain.grid_sizes[columns] - 1).double()
        middle = codes.masked_fill(codes > last, torch.nan).nanmedian(0).values.nan_to_num()
        codes = torch.where(codes > last, middle, codes)  # an empty cell is not in the order
        ranks = torch.linspace(0, len(rows) - 1, min(MAX_QUANTILES, len(rows)), device=rows.device).round().long()
        ranks = ranks.clamp(max=len(rows) - 1)  # of very many rows, rounding may exceed the last
        quantiles = codes.sort(0).values[ranks].T
        exponents = torch.arange(1, STEPS_BEYOND + 1, dtype=torch.float64, device=rows.device) / STEPS_BEYOND
        low, high = quantiles[:, :1], quantiles[:, -1:]
        codes_above = high + (last[:, None] - high + 1) ** exponents - 1
        codes_below = low - (low + 1) ** exponents.flip(0) + 1
        return StepSizes(columns, torch.cat([codes_below, quantiles, codes_above], 1).round())

    def stretch(self, base: Tensor, codes: Tensor, u: Tensor) -> Tensor:
        """Return the codes with steps of one code stretched by random numbers u in [0, 1), each in its direction."""
        old, stepped = base[:, self.columns], codes[:, self.columns]
        new = self._move_codes(old.T.double(), (stepped - old).T.sign(), u[:, self.columns].T).T
        is_single_step = (stepped - old).abs() == 1  # not to or from an empty cell, which is not in the order
        return codes.index_copy(1, self.columns, torch.where(is_single_step, new.long(), stepped))

    def _move_codes(self, codes: Tensor, direction: Tensor, u: Tensor) -> Tensor:
        """Return the new codes of steps, (m, n): at least one code away, and at most one code beyond a bound."""
        last = self.values.shape[1] - 1
        up = direction > 0
        position = torch.where(up, self._locate(codes, right=True), self._locate(codes, right=False))
        distance = torch.where(up, last - position, position)
        goal = (position + direction * ((distance + 1) ** u - 1)).clamp(0, last)
        segment = goal.long().clamp(max=last - 1)
        low, high = self.values.gather(1, segment), self.values.gather(1, segment + 1)
        new_codes = (low + (goal - segment) * (high - low)).round()
        return torch.where(up, torch.maximum(new_codes, codes + 1), torch.minimum(new_codes, codes - 1))

    def _locate(self, codes: Tensor, *, right: bool) -> Tensor:
        """Return the positions of codes among the values, interpolated; of equal values the one at the end."""
        upper = torch.searchsorted(self.values, codes.contiguous(), right=right).clamp(1, self.values.shape[1] - 1)
        low, high = self.values.gather(1, upper - 1), self.values.gather(1, upper)
        share = torch.where(high > low, (codes - low) / (high - low).clamp(min=1e-9), 1.0 if not right else 0.0)
        return upper - 1 + share.clamp(0, 1)

    def step_lengths(self, width: int) -> Tensor:
        """Return about how many codes a step of each attribute is long: one, or the mean over the values: (width,)."""
        old, last = self.values[:, 1:-1], self.values[:, -1:]
        sizes = []
        for u in torch.arange(0.5, 8) / 8:  # evenly spread
            for direction in (1.0, -1.0):
                new_codes = self._move_codes(old, torch.full_like(old, direction), torch.full_like(old, float(u)))
                sizes.append((torch.minimum(new_codes.clamp(min=0), last) - old).abs())
        lengths = torch.ones(width, dtype=torch.float64, device=old.device)
        return lengths.index_copy(0, self.columns, torch.stack(sizes).mean((0, 2)).clamp(min=1))


State = dict[str, Tensor]
"""The memory of a method: tensors with one line per active chain, `origin` and `rows` among them."""


@dataclass(frozen=True)
class SearchContext:
    """What a method may look at."""

    network: Model
    domain: Domain
    decision: Decision
    draws: Draws
    profile: BiasProfile | None = None
    population: PopulationModel | None = None  # gives the plausibility of findings
    blind: bool = False  # the control: random numbers in place of every gradient
    step_sizes: StepSizes | None = None  # None: every step is one code

    def __getstate__(self) -> dict[str, object]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without the cached properties

    @cached_property
    def exact(self) -> Model:
        """The model in float64, for the second evaluation of findings."""
        return self.network.double()

    @cached_property
    def step_lengths(self) -> Tensor | float:
        """About how many codes a step of each attribute is long."""
        return 1.0 if self.step_sizes is None else self.step_sizes.step_lengths(self.domain.codes_per_row)

    @cached_property
    def free_columns(self) -> Tensor:
        """The positions of the codes that a search may change."""
        return self.domain.changeable.nonzero()[:, 0]

    @cached_property
    def key_increments(self) -> Tensor:
        """What an increase of each column by one code adds to a key, which is a sum over the columns: (d,)."""
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

        The rows are one line per chain, or several such blocks; `layer` and `through` are passed to
        `Network.gradient`. In the blind control the gradient is noise, so that the same method takes random directions.
        """
        if self.blind:
            blocks, width = len(rows) // len(state["origin"]), math.prod(self.network.encoding.shape)
            noise = self.draws.normal(t, state["origin"], blocks * width, use="blind")
            return noise.to(self.network.dtype).view(-1, blocks, width).transpose(0, 1).flatten(0, 1)
        assert isinstance(self.network, Network)  # `check_method` refuses a black box
        return self.network.gradient(rows, objective, layer=layer, through=through).flatten(1)

    def draw_codes(self, u: Tensor) -> Tensor:
        """Return new random values of the attributes, by numbers u in [0, 1): (…, d) each.

        They are independent and uniform. In a search among plausible records, which are rare among such rows, they are
        the values of a random plausible record of the data set.
        """
        if isinstance(self.domain, PlausibleDomain):
            return self.domain.records[(u[..., 0] * len(self.domain.records)).long()]
        return (u * self.domain.sizes).long()

    def zero_gradient(self, rows: Tensor) -> Tensor:
        """Return gradients of 0 for rows, in the type of the network: (n, width)."""
        width, dtype = math.prod(self.network.encoding.shape), self.network.dtype
        return torch.zeros(len(rows), width, dtype=dtype, device=rows.device)


class Method(Protocol):
    """One phase of a search method: the functions that the engine calls."""

    def start(self, context: SearchContext, state: State) -> State:
        """Return the state before the first step, given one with `origin` and `rows` (the seeds)."""

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the row of each chain that is to be evaluated at step t: (n, d)."""

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Return the state after the evaluation of the rows."""


class ChoosesAhead:
    """A method that chooses its next rows when it learns of the last ones, and keeps them in `rows`."""

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the rows chosen after the last evaluation, at first the seeds."""
        return state["rows"]


# Formulas that several methods share


def confidence(decision: Decision, scores: Tensor) -> Tensor:
    """Return how sure each decision is, (n,): the probability of its class, or the distance to the threshold."""
    if decision.kind == "argmax":
        return scores.softmax(1).amax(1)
    return (scores[:, -1] - decision.boundary).abs()


def decision_margins(decision: Decision, scores: Tensor) -> Tensor:
    """Return how far the scores of each row and twin are from another decision: (2 n,), the rows and then the twins.

    It is the lead of the winning class, or the distance to the threshold. A tolerance has no such boundary: there it
    is how far the gap of the pair exceeds the tolerance.
    """
    if decision.kind == "argmax":
        if scores.shape[1] == 2:  # a third of the time of topk; of equal scores the first wins, as there
            lead = scores[:, 0] - scores[:, 1]
            return torch.where(lead.detach() < 0, -lead, lead)
        best, second = scores.topk(2, 1).values.unbind(1)
        return best - second
    score = scores[:, -1]
    if decision.kind == "tolerance":
        return (score - swap_pairs(score)).abs() - decision.value
    return (score - decision.boundary).abs()


def swap_pairs(pairs: Tensor) -> Tensor:
    """Return the lines of the twins in place of those of the rows, and vice versa, as constants."""
    return torch.cat(pairs.detach().chunk(2)[::-1])


def stretch(context: SearchContext, state: State, base: Tensor, codes: Tensor, t: int) -> Tensor:
    """Return the codes with steps of one code stretched to `SearchContext.step_sizes`."""
    if context.step_sizes is None:
        return codes
    return context.step_sizes.stretch(base, codes, context.draws.uniform(t, state["origin"], base.shape[1], use="pace"))


def step_uphill(context: SearchContext, state: State, base: Tensor, g: Tensor, t: int) -> Tensor:
    """Return the codes that a step along a gradient leads to: (n, d)."""
    return stretch(context, state, base, context.network.encoding.step_uphill(g, base), t)


def step_where_agreed(context: SearchContext, state: State, base: Tensor, g: Tensor, g_twin: Tensor, t: int) -> Tensor:
    """Return the codes uphill of both gradients, and the old codes where they disagree: (n, d)."""
    return stretch(context, state, base, context.network.encoding.step_where_agreed(g, g_twin, base), t)


def inverse_influence(context: SearchContext, base: Tensor, g: Tensor, g_twin: Tensor) -> Tensor:
    """Return a weight for each attribute, larger where it has less influence: 1 / (|g| + |g'|), (n, d)."""
    size = context.network.encoding.influence(g, base).double() + context.network.encoding.influence(g_twin, base)
    if context.step_sizes is not None:
        size = size * context.step_lengths
    return (1 / size.clamp(min=MIN_GRADIENT)) * context.domain.changeable


def inverse_margin_loss(context: SearchContext, state: State, codes: Tensor) -> Tensor:
    """Return a weight for the move of each attribute, larger where row and twin lose less of their margins: (n, d).

    `state` holds both margins (`room`) and their gradients, which predict the loss: `base`, `g` and `g_twin`.
    """
    base, effects = state["base"], context.network.encoding.effects
    margins = state["room"].double().clamp(min=MIN_GRADIENT)
    row_change, twin_change = (
        effects(state[name], base, None, codes).double().div_(margins[:, i, None])
        for i, name in enumerate(("g", "g_twin"))
    )
    margin_loss = torch.minimum(row_change, twin_change).neg_()  # a loss is an effect below 0
    return (1 / margin_loss.clamp_(min=MIN_MARGIN_LOSS)) * (context.domain.changeable & (codes != base))


def draw_column(context: SearchContext, state: State, weights: Tensor, t: int) -> Tensor:
    """Return one attribute for each chain, drawn with probability proportional to its weight: (n, 1)."""
    # A GPU takes half a millisecond to sum many short lines, and a fiftieth of that for few long ones.
    ends = weights.cumsum(1) if weights.device.type == "cpu" else weights.T.contiguous().cumsum(0).T.contiguous()
    u = context.draws.uniform(t, state["origin"], 1, use="choice") * ends[:, -1:]
    return torch.searchsorted(ends, u, right=True).clamp(max=weights.shape[1] - 1)


def move_column(context: SearchContext, state: State, base: Tensor, codes: Tensor, weights: Tensor, t: int) -> Tensor:
    """Return the rows with one attribute at its new code, drawn with probability proportional to `weights`.

    In a search among plausible records, moves to others are not drawn: they often have the largest weights.
    """
    if isinstance(context.domain, PlausibleDomain):
        weights = weights * context.domain.can_change(base, codes)
    column = draw_column(context, state, weights, t)
    return base.scatter(1, column, codes.gather(1, column))


def draw_neighbours(context: SearchContext, state: State, base: Tensor, t: int) -> Tensor:
    """Return a neighbouring value of each attribute, up or down at random: (n, d)."""
    u = context.draws.uniform(t, state["origin"], base.shape[1], use="sign")
    return stretch(context, state, base, context.domain.neighbours(base, u), t)


def metropolis(context: SearchContext, state: State, discriminates: Tensor, t: int) -> Tensor:
    """Return whether each chain accepts its new row: a miss after a finding is accepted with probability 1/e.

    `state["missed"]` says whether the current row is a miss itself. This is basin hopping, the optimiser of the
    published programs, with an objective of 0 for a finding and 1 for a miss.
    """
    u = context.draws.uniform(t, state["origin"], 1, use="metropolis")[:, 0]
    return discriminates | state["missed"] | (u < math.exp(-1 / TEMPERATURE))


def select_state(is_selected: Tensor, new: State, old: State) -> State:
    """Return the new values for the chains that meet the condition, and the old ones for the others."""
    return {name: torch.where(is_selected.view(-1, *[1] * (x.dim() - 1)), x, old[name]) for name, x in new.items()}


def renew_state(is_marked: Tensor, old: State, compute: Callable[[Tensor | slice], State]) -> State:
    """Return the state with the values of the marked chains computed anew.

    `compute` gets the marked chains on a CPU, and all of them on a GPU, which would have to wait for their number.
    """
    if is_marked.device.type != "cpu":
        return select_state(is_marked, compute(slice(None)), old)
    indices = is_marked.nonzero()[:, 0]
    if len(indices) == 0:
        return old
    return {name: old[name].index_copy(0, indices, x) for name, x in compute(indices).items()}
