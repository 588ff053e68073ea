"""frontier-free: stay between the twins' decisions without gradients, by what earlier answers say of each move.

As in `frontier`, a family is split exactly when its safety is positive. Where a move leads is predicted by the additive
effects of the attributes' values, fitted to rows that were judged; a pilot counts which predictions can be trusted.
Where the model shows the thresholds of its trees, moves lead across them. See docs/methods.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.plausible import Plausible
from neuronfair.search.judge import Judgement
from neuronfair.search.method import State, World
from neuronfair.search.methods.effects import Effects
from neuronfair.search.methods.frontier import BINS, DISTANCES, binning
from neuronfair.search.methods.memory import empty_memory, knows, remember
from neuronfair.search.steps import renewed, where

DRAWN = 16  # random people of whom a promising one takes the place of a seed that is no finding

SHARES = (0.25, 0.5, 1.0)  # of the attributes, of which some are drawn anew together
STAYS = 0.5  # the chance of a walker without a trusted move to roam among people who are the same to the model


@dataclass(frozen=True)
class FrontierFree:
    """Both phases of frontier-free: outside it heads for the boundary, inside it roams without leaving.

    Each step weighs `candidates` random moves to people whom the walker has not met. Inside, the first one is taken
    whose chance to stay inside is at least `trust`, by the `table` of the pilot. Without a pilot nothing is known of
    any move, and the first is as good as the others: a random walk that returns to its last finding.
    """

    effects: Effects
    noise: Tensor  # (d,) how far predictions are off, for moves of each attribute
    table: Tensor | None = None  # (attributes * bins * distances,)
    candidates: int = 30
    trust: float = 0.9

    def start(self, world: World, state: State) -> State:
        """Return the walkers before anything is known about them."""
        n, device = len(state["rows"]), state["rows"].device
        number = torch.zeros(n, dtype=torch.float64, device=device)
        return state | {
            "inside": torch.zeros(n, dtype=torch.bool, device=device),
            "high": number,
            "low": number,
            "lean": torch.zeros(n, world.network.outputs, dtype=torch.float64, device=device),
            "memory": empty_memory(n, device),
        }

    def ask(self, world: World, state: State, t: int) -> Tensor:
        """Return the seeds, and from then on the best of some random moves of one attribute each."""
        rows, inside = state["rows"], state["inside"]
        if t == 0:
            return rows
        columns, codes, exists, met = self._moves(world, state, t)
        merit = self.safety(world, state, columns, codes)
        if self.table is not None:
            chance = self.table[self.kinds(world, rows, columns, codes, merit)].clamp(max=self.trust)
            merit = torch.where(inside[:, None], chance, merit)
        merit = torch.where(met, merit.amin(1, keepdim=True) - 1, merit)
        # Of equal merit the first is taken: every trusted move is as good as another, and they come at random.
        best = merit.masked_fill(~exists, -torch.inf).argmax(1, keepdim=True)
        moved = rows.scatter(1, columns.gather(1, best), codes.gather(1, best))
        if self.table is not None and self.effects.cells.known:
            moved = torch.where(self._stays(world, state, merit.gather(1, best), t), rows, moved)
        if t == 1:

            def drawn(some: Tensor | slice) -> State:
                return {"rows": self._redrawn(world, rows[some], state["origin"][some], t)}

            moved = renewed(~inside, {"rows": moved}, drawn)["rows"]
        return self._roamed(world, state, moved, t)

    def tell(self, world: World, state: State, rows: Tensor, judgement: Judgement, t: int) -> State:
        """Measure the families; a finding is never given up for a miss."""
        ends, keys = self.effects.read(judgement).ends, world.domain.key(rows)[:, None]
        new = {"rows": rows, "inside": judgement.discriminates, "lean": ends.lean.double()}
        new |= {"high": ends.high.double(), "low": ends.low.double()}
        better = judgement.discriminates | ~state["inside"]
        return state | where(better, new, state) | {"memory": remember(state["memory"], keys)}

    def safety(self, world: World, state: State, columns: Tensor, codes: Tensor) -> Tensor:
        """Return how far inside each move is predicted to lead, negative for outside: (n, m)."""
        rise, fall = self.effects.of_moves(state["lean"], state["rows"], columns, codes)
        high, low = state["high"][:, None] + rise, state["low"][:, None] + fall
        return self.effects.decision(world.decision).safety(high, low)

    def kinds(self, world: World, rows: Tensor, columns: Tensor, codes: Tensor, safety: Tensor) -> Tensor:
        """Return where each move stands in the table: by attribute, predicted safety and length, (n, m)."""
        here, there = (self.effects.cells.of_codes(columns, c) for c in (rows.gather(1, columns), codes))
        relative = safety / self.noise[columns]
        bins = torch.bucketize(relative, binning(relative.dtype, relative.device)[0])
        length = torch.log2((there - here).abs().clamp(min=1).double()).long().clamp(max=DISTANCES - 1)
        return (columns * BINS + bins) * DISTANCES + torch.where(world.domain.ordered[columns], length, 0)

    def _moves(self, world: World, state: State, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return random moves: attribute, new code, whether the new row exists, whether it was met: (n, m) each."""
        domain, rows, cells = world.domain, state["rows"], self.effects.cells
        u = world.draws.uniform(t, state["origin"], 5 * self.candidates, use="moves")
        which, how_far, side, kind, within = u.chunk(5, 1)
        columns = world.free[(which * len(world.free)).long()]
        old, ordered = rows.gather(1, columns), domain.ordered[columns]
        here, count = cells.of_codes(columns, old), cells.count[columns]
        # Half of the moves along an order are log-uniform in length, mostly short; the others lead anywhere.
        points = count if cells.known else domain.points[columns]
        way = torch.exp(how_far * torch.log(points - 0.01)).long() * torch.where(side < 0.5, -1, 1)
        way = torch.where((here + way < 0) | (here + way >= points), -way, way)
        anywhere = torch.where(
            ordered, (to_the_ends(how_far) * count).long(), (here + 1 + (how_far * (count - 1)).long()) % count
        )
        short = ordered & (here < points) & (kind < 0.5) & state["inside"][:, None]
        there = torch.where(short, here + way, anywhere)
        exists = (there >= 0) & (there < count) & (there != here)
        codes = torch.where(exists, cells.draw(columns, torch.where(exists, there, here), within), old)
        moved = rows[:, None].repeat(1, self.candidates, 1).scatter(2, columns[..., None], codes[..., None])
        exists &= domain.valid(moved.flatten(0, 1)).view(exists.shape)
        return columns, torch.where(exists, codes, old), exists, knows(state["memory"], domain.key(moved))

    def _stays(self, world: World, state: State, chance: Tensor, t: int) -> Tensor:
        """Return which walkers would rather roam than take a move that cannot be trusted: bool, (n, 1)."""
        u = world.draws.uniform(t, state["origin"], 1, use="stay")
        key = world.domain.key(self._roamed(world, state, state["rows"], t))[:, None]
        return state["inside"][:, None] & (chance < self.trust) & (u < STAYS) & ~knows(state["memory"], key)

    def _roamed(self, world: World, state: State, rows: Tensor, t: int) -> Tensor:
        """Return other people who are the same to the model: every code is drawn anew within its cell."""
        cells, domain = self.effects.cells, world.domain
        if not cells.known:
            return rows
        columns = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        u, which = world.draws.uniform(t, state["origin"], 2 * rows.shape[1], use="roam").chunk(2, 1)
        drawn = torch.where(domain.free, cells.draw(columns, cells.of_codes(columns, rows), u), rows)
        for share in SHARES:  # as many of them as the rules allow
            codes = torch.where(which < share, drawn, rows)
            rows = torch.where(domain.valid(codes)[:, None], codes, rows)
        return rows

    def _redrawn(self, world: World, rows: Tensor, origin: Tensor, t: int) -> Tensor:
        """Return a promising one of some random people for each walker, with its sensitive values."""
        domain, d = world.domain, rows.shape[1]
        u = world.draws.uniform(t, origin, DRAWN * domain.draws_per_row, use="redraw").view(len(rows) * DRAWN, -1)
        if not isinstance(domain, Plausible) or domain.population.draws_per_row == d:  # a number for each attribute
            u[:, :d] = torch.where(domain.ordered, to_the_ends(u[:, :d]), u[:, :d])
        drawn = domain.move(rows.repeat_interleave(DRAWN, 0), domain.rows_at(u)).view(len(rows), DRAWN, d)
        # The first who may be a finding, not the likeliest: those would all be alike.
        best = self.effects.of_rows(drawn.flatten(0, 1), world.decision).clamp(max=0).view(len(rows), DRAWN).argmax(1)
        return drawn[torch.arange(len(rows), device=rows.device), best]


def to_the_ends(u: Tensor) -> Tensor:
    """Return numbers of [0, 1) that lie near 0 and 1 more often than in the middle, so that walkers part."""
    near = 4 * torch.minimum(u, 1 - u) ** 3
    return torch.where(u < 0.5, near, (1 - near).clamp(max=1 - 1e-12))
