"""frontier: stay between the decisions of the twins, by predicting the effect of each possible move.

A family (a row and its twins) is split exactly when its split depth s = w - |c| is positive, where c is the centre and
w the half-width of the decision margin over the family. One gradient at each end of the family predicts s after any
move of any attribute to any value, so many moves are compared for the price of one evaluation. See docs/frontier.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.searches.engine import Budget, Checkpoint, PhaseRecording, PhaseResult, run_phase
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.keys import KeySet, are_among
from neuronfair.searches.method import SearchContext, State, renew_state, select_state

# The predicted split depth of a move, in units of the predicted change, is sorted into bins by these edges.
DEPTH_EDGES = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
DEPTH_BINS = len(DEPTH_EDGES) + 1
LENGTH_BINS = 9  # bins of the length of a move: 1, 2 to 3, 4 to 7, …, 256 codes and more
PILOT_STEPS, MIN_PILOT, MAX_PILOT = 400, 4, 48  # of the pilot: steps, and least and most chains
ROWS_REMEMBERED = 64  # rows that a chain remembers, and does not evaluate again
PRIOR_TRIES = 8.0  # as many tries of a cell weigh as much as the estimate of its coarser cell
REDRAWN_SHARE = 0.5  # the share of its attributes that a chain redraws when its seed is no finding


@dataclass(frozen=True)
class Frontier:
    """Both phases of frontier: chains outside move to the boundary, chains inside move without leaving.

    Each step compares `candidates` random moves. Inside, the first one is taken whose chance to stay inside is at least
    `trust`. The chance comes from `stay_chances`, which a pilot fills; without one, the most central move is taken.
    """

    candidates: int = 30
    trust: float = 0.9
    stay_chances: Tensor | None = None  # of each kind of move: (attributes * bins * distances,)

    def prepare(
        self, context: SearchContext, *, rows: int = 20_000, key_set: KeySet | None = None
    ) -> tuple[Frontier, PhaseResult | None]:
        """Return this method with its chances, counted in a short pilot run from random rows, and the pilot's findings.

        The pilot evaluates at most `rows` rows; with too few to learn from, there is no pilot. The pilot, and so the
        chances, depend on the network, the domain and the seed of the run only. No chain learns from another one: a
        search split into batches finds the same.
        """
        chains = min(MAX_PILOT, rows // PILOT_STEPS)
        if chains < MIN_PILOT:
            return self, None
        domain = context.domain
        scout = replace(context, draws=Draws(context.draws.seed, "pilot"))
        numbers = torch.arange(chains, device=domain.device)
        seeds = domain.rows_at(scout.draws.uniform(0, numbers, domain.draws_per_row, use="seeds"))
        cells = domain.codes_per_row * DEPTH_BINS * LENGTH_BINS
        # Inside it trusts all moves alike and takes the first one, which is random.
        equal_chances = torch.zeros(cells, dtype=context.network.dtype, device=domain.device)
        pilot, checkpoints = _FrontierPilot(self.candidates, self.trust, equal_chances), list[Checkpoint]()
        recording = PhaseRecording(checkpoints.append, interval=PILOT_STEPS + 1)
        result = run_phase(scout, pilot, seeds, budget=Budget(steps=PILOT_STEPS), key_set=key_set, recording=recording)
        moves = checkpoints[-1].state["moves"]
        moves = moves[moves >= 0]
        stay_chances = estimate_stay_chances(moves // 2, moves % 2 == 1, domain.codes_per_row).to(context.network.dtype)
        return replace(self, stay_chances=stay_chances), result

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains before anything is known about them."""
        n, device, dtype = len(state["rows"]), state["rows"].device, context.network.dtype
        zeros = torch.zeros(n, dtype=dtype, device=device)
        slope = context.zero_gradient(state["rows"])
        is_inside = torch.zeros(n, dtype=torch.bool, device=device)
        findings_state = {"inside": is_inside, "sloping": is_inside, "high": zeros, "low": zeros}
        findings_state["recent"] = torch.full((n, ROWS_REMEMBERED), -1, device=device)
        return state | findings_state | {"slope_high": slope, "slope_low": slope}

    def graph_key(self, t: int) -> int | None:
        """Return the same key for all steps but the first two: they run the same operations."""
        return 0 if t > 1 else None

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the seeds first, then the best of some random moves of one attribute each."""
        rows, is_inside = state["rows"], state["inside"][:, None]
        if t == 0:
            return rows
        columns, codes, exists = self._draw_moves(context, state, t)
        high, low, cells = self._predict(context, state, columns, codes)
        if context.decision.kind == "tolerance":
            merit = high - low
        else:  # the centre of the family should lie on the boundary
            merit = -((high + low) / 2 - context.decision.boundary).abs()
        if self.stay_chances is not None:
            merit = torch.where(is_inside, _look_up(self.stay_chances, cells).clamp(max=self.trust), merit)
        # Of equal merit the first is taken: all trusted moves are equally good, and they come in random order.
        best = merit.masked_fill(~exists, -torch.inf).argmax(1, keepdim=True)
        new_rows = rows.scatter(1, columns.gather(1, best), codes.gather(1, best))
        is_lost = ~state["inside"] if t == 1 else ~(state["inside"] | state["sloping"])

        def redraw(indices: Tensor | slice) -> State:
            lines = {name: state[name][indices] for name in ("rows", "origin", "sloping")}
            return {"rows": self._redraw(context, lines, t)}

        return renew_state(is_lost, {"rows": new_rows}, redraw)["rows"]

    def _draw_moves(self, context: SearchContext, state: State, t: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return random moves as attribute, new code, and whether the row exists and is new: (n, candidates) each."""
        domain, rows = context.domain, state["rows"]
        u, v, w = context.draws.uniform(t, state["origin"], 3 * self.candidates, use="moves").chunk(3, 1)
        columns = _look_up(context.free_columns, (u * len(context.free_columns)).long())
        sizes, points, old_codes = (
            _look_up(domain.sizes, columns),
            _look_up(domain.grid_sizes, columns),
            rows.gather(1, columns),
        )
        # Inside, the length of a move is log-uniform: most are short, some reach across the whole range.
        length = torch.exp(v * _look_up(torch.log(domain.grid_sizes - 0.01).double(), columns)).long()
        above, below = old_codes + length, old_codes - length
        up = torch.where(w < 0.5, below < 0, above < points)  # at a bound it turns round
        # Elsewhere a move leads to any other code.
        anywhere = old_codes + 1 + (v * _look_up((domain.sizes - 1).double(), columns)).long()
        anywhere = torch.where(anywhere >= sizes, anywhere - sizes, anywhere)
        steps = _look_up(domain.is_ordered, columns) & (old_codes < points) & state["inside"][:, None]
        codes = torch.where(steps, torch.where(up, above, below), anywhere)
        exists = (codes >= 0) & (codes < sizes) & (codes != old_codes)
        codes = torch.where(exists, codes, old_codes)
        if domain.is_restricted:
            new_rows = rows[:, None].repeat(1, self.candidates, 1).scatter(2, columns[..., None], codes[..., None])
            exists &= domain.valid(new_rows.flatten(0, 1)).view(exists.shape)
            codes = torch.where(exists, codes, old_codes)
        # A key is a sum over the columns, so the key of a moved row is known without making the row.
        keys = domain.key(rows)[:, None] + (codes - old_codes) * _look_up(context.key_increments, columns)
        return columns, codes, exists & ~are_among(state["recent"], keys)

    def _predict(
        self, context: SearchContext, state: State, columns: Tensor, codes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the family's ends after each move, to first order, and the kind of the move: (n, m) each."""
        rise = context.network.encoding.effects(state["slope_high"], state["rows"], columns, codes)
        fall = context.network.encoding.effects(state["slope_low"], state["rows"], columns, codes)
        high, low = state["high"][:, None] + rise, state["low"][:, None] + fall
        relative = context.decision.measure_split_depth(high, low) / (rise.abs() + fall.abs()).clamp(min=1e-6)
        edges, lengths = binning(relative.dtype, relative.device)
        length = (codes - state["rows"].gather(1, columns)).abs().clamp(max=len(lengths) - 1)
        distance = _look_up(lengths, length * _look_up(context.domain.is_ordered, columns))
        return high, low, (columns * DEPTH_BINS + torch.bucketize(relative, edges)) * LENGTH_BINS + distance

    def _redraw(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return rows with half of the attributes redrawn, or all of them if the gradients are 0."""
        rows = state["rows"]
        u, v = context.draws.uniform(t, state["origin"], 2 * rows.shape[1], use="redraw").chunk(2, 1)
        share = torch.where(state["sloping"], REDRAWN_SHARE, 1.0)[:, None]
        return context.domain.move(rows, torch.where(u < share, context.draw_codes(v), rows))

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Compute the ends of the families and their gradients; each chain keeps the better of its old and new row."""
        ends = evaluation.ends
        members = context.domain.member(rows.repeat(2, 1), torch.cat([ends.highest, ends.lowest]))
        slopes = context.gradient(members, lambda s: (s * ends.margin_weights.repeat(2, 1)).sum(1), state, t).chunk(2)
        new = {"rows": rows, "inside": evaluation.discriminates, "high": ends.high, "low": ends.low}
        new |= {"slope_high": slopes[0], "slope_low": slopes[1], "sloping": (torch.cat(slopes, 1) != 0).any(1)}
        # A miss never replaces a finding, nor a plateau a row with gradients.
        better = new["inside"] | (~state["inside"] & (new["sloping"] | ~state["sloping"]))
        recent = torch.cat([state["recent"][:, 1:], context.domain.key(rows)[:, None]], 1)
        return state | select_state(better, new, state) | {"recent": recent}


@lru_cache(maxsize=8)
def binning(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the edges of the bins of split depth, and the bin of each length up to the first of the last bin."""
    lengths = [max(length, 1).bit_length() - 1 for length in range(1 + 2 ** (LENGTH_BINS - 1))]
    return torch.tensor(DEPTH_EDGES, dtype=dtype, device=device), torch.tensor(lengths, device=device)


def _look_up(chances: Tensor, indices: Tensor) -> Tensor:
    """Return chances[indices] for indices (n, m), in a third of the time."""
    return chances.expand(len(indices), -1).gather(1, indices)


@dataclass(frozen=True)
class _FrontierPilot(Frontier):
    """Frontier with random moves; each chain records its moves from inside: twice their cell, plus 1 if they stayed."""

    def start(self, context: SearchContext, state: State) -> State:
        moves = state["origin"].new_full((len(state["rows"]), PILOT_STEPS), -1)
        return super().start(context, state) | {"moves": moves}

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        changed = rows != state["rows"]
        columns = changed.int().argmax(1, keepdim=True)
        *_, cells = self._predict(context, state, columns, rows.gather(1, columns))
        is_counted = state["inside"] & changed.any(1)
        move = torch.where(is_counted, 2 * cells[:, 0] + evaluation.discriminates, -1)
        moves = torch.cat([state["moves"][:, 1:], move[:, None]], 1)
        return super().tell(context, state, rows, evaluation, t) | {"moves": moves}


def estimate_stay_chances(cells: Tensor, stayed: Tensor, attributes: int) -> Tensor:
    """Return the chance to stay inside of each kind of move, from a pilot's moves and whether they stayed."""
    shape = attributes, DEPTH_BINS, LENGTH_BINS
    hits, tries = (torch.bincount(x, minlength=math.prod(shape)).view(shape).double() for x in (cells[stayed], cells))
    return estimate_chances(hits, tries)


def estimate_chances(hits: Tensor, tries: Tensor) -> Tensor:
    """Return the share of hits in each cell, shrunk towards the share of its coarser cell."""
    # Where the pilot has no tries, safer moves have better chances: with few findings that is nearly everywhere.
    chance = torch.linspace(0.05, 0.95, DEPTH_BINS, dtype=torch.float64, device=hits.device)[:, None]
    # By split depth alone; by depth and distance; by attribute, depth and distance.
    for h, n in (
        (hits.sum((0, 2), True), tries.sum((0, 2), True)),
        (hits.sum(0, True), tries.sum(0, True)),
        (hits, tries),
    ):
        chance = (h + PRIOR_TRIES * chance) / (n + PRIOR_TRIES)
    return chance.flatten()
