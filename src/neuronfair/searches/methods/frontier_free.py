"""frontier-free: stay between the decisions of the twins without gradients, by predictions from earlier scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.population.plausible import PlausibleDomain
from neuronfair.domain.twins import Domain
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import Decision, compute_margins, include_row
from neuronfair.searches.engine import Budget, PhaseResult, run_phase
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.keys import KeySet, empty_memory, knows, remember
from neuronfair.searches.method import SearchContext, State, renew_state, select_state
from neuronfair.searches.methods.aequitas import Uniform
from neuronfair.searches.methods.frontier import DEPTH_BINS, LENGTH_BINS, PRIOR_TRIES, binning, estimate_stay_chances

MAX_BINS_PER_ATTRIBUTE = 32  # per attribute; if it has more cells, neighbouring ones share a bin
MAX_EFFECT_BINS = 2048  # of all attributes together, about: the size of the linear system
RIDGE = 3.0  # as many records weigh as much as the prior that a value adds nothing
MIN_PROBABILITY = 1e-3  # of a probability, before its logarithm


class _CellIndex(NamedTuple):
    """The codes of all attributes in one line, in their own order and in the order of their cells."""

    number: Tensor  # the cell of each code
    member: Tensor  # the codes in the order of their cells
    start: Tensor  # (d,) where each attribute begins in both
    first: Tensor  # where each cell begins in `member`; one more than there are cells
    begin: Tensor  # (d,) where each attribute begins in `first`


@dataclass(frozen=True)
class EffectCells:
    """Cells of codes that the model treats alike, attribute by attribute; single codes if that is not known.

    The cells of an ordered attribute are intervals, in its order.
    """

    count: Tensor  # (d,) how many cells each attribute has
    index: _CellIndex | None = None

    @staticmethod
    def of(domain: Domain, cells: Sequence[Tensor] | None) -> EffectCells:
        """Return the cells of a forest as tables, or single codes."""
        if cells is None:
            return EffectCells(domain.sizes)
        cells = [cell.to(domain.device) for cell in cells]
        count = torch.stack([cell.max() + 1 for cell in cells])
        sizes = torch.cat([torch.bincount(cell) for cell in cells])
        index = _CellIndex(
            torch.cat(cells),
            torch.cat([torch.argsort(cell, stable=True) for cell in cells]),
            domain.sizes.cumsum(0) - domain.sizes,
            torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]),
            count.cumsum(0) - count,
        )
        return EffectCells(count, index)

    @property
    def is_known(self) -> bool:
        """Whether the cells of the model are known."""
        return self.index is not None

    def find(self, columns: Tensor, codes: Tensor) -> Tensor:
        """Return the cells of codes of attributes, which have the same shape."""
        return codes if self.index is None else self.index.number[self.index.start[columns] + codes]

    def draw(self, columns: Tensor, cells: Tensor, u: Tensor) -> Tensor:
        """Return a code of each cell, by numbers u in [0, 1)."""
        if self.index is None:
            return cells
        cell_index = self.index.begin[columns] + cells
        first, after = self.index.first[cell_index], self.index.first[cell_index + 1]
        return self.index.member[first + (u * (after - first)).long()]


@dataclass(frozen=True)
class Effects:
    """A linear model: what each bin of each attribute adds to the centre of the scores of a family and its width."""

    cells: EffectCells
    bin_counts: Tensor  # (d,) how many bins each attribute has
    first: Tensor  # (d,) the first of them
    bin_effects: Tensor  # (bins, outputs + 1)
    base: Tensor  # (outputs + 1,) the intercept
    is_logarithmic: bool = False  # the scores are probabilities, whose logarithms are more nearly additive

    @staticmethod
    def blank(domain: Domain, cells: EffectCells, outputs: int) -> Effects:
        """Return effects of 0."""
        max_bins = max(2, min(MAX_BINS_PER_ATTRIBUTE, MAX_EFFECT_BINS // domain.codes_per_row))
        bin_counts = torch.where(domain.changeable, cells.count.clamp(max=max_bins), 1)
        bin_effects = torch.zeros(int(bin_counts.sum()), outputs + 1, dtype=torch.float64, device=domain.device)
        first = bin_counts.cumsum(0) - bin_counts
        return Effects(cells, bin_counts, first, bin_effects, bin_effects.new_zeros(outputs + 1))

    def fit(self, evaluation: Evaluation) -> Effects:
        """Return the effects that explain evaluated scores best; the first fit decides whether to take logarithms."""
        scales = [self]
        if not self.is_logarithmic and not bool(self.bin_effects.any()) and _are_probabilities(evaluation):
            scales.append(replace(self, is_logarithmic=True))
        fits = [scale._solve(scale.read(evaluation)) for scale in scales]
        return max(fits, key=lambda fit: fit[1])[0]

    def read(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation with its scores on the scale of the effects, and the same decisions."""
        if not self.is_logarithmic:
            return evaluation
        family = evaluation.family.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        if evaluation.decision.kind == "argmax":  # for two classes, half of the logit each
            family = family.log() - family.log().mean(2, keepdim=True)
        else:
            family = family.logit()
        return replace(evaluation, family=family, decision=self.decision(evaluation.decision))

    def decision(self, decision: Decision) -> Decision:
        """Return the same decision on the scale of the effects."""
        if not self.is_logarithmic or decision.kind == "argmax":
            return decision
        value = min(max(decision.value, MIN_PROBABILITY), 1 - MIN_PROBABILITY)
        return replace(decision, value=math.log(value / (1 - value)))

    def move_ends(self, margin_weights: Tensor, rows: Tensor, columns: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return what moves of one attribute add to both ends of the family's margin: (n, m) each."""
        new_effects, old_effects = (
            self.bin_effects[self._find_bin(columns, c)] for c in (codes, rows.gather(1, columns))
        )
        change = new_effects - old_effects
        centre, width = (change[..., :-1] * margin_weights[:, None]).sum(2), change[..., -1]
        return centre + width, centre - width

    def predict_depth(self, rows: Tensor, decision: Decision) -> Tensor:
        """Return the predicted split depth of the families of rows: (n,)."""
        total = self.bin_effects[self._find_bin(_column_indices(rows), rows)].sum(1) + self.base
        scores, width = total[:, :-1], total[:, -1]
        if decision.kind == "argmax":  # the first two classes should be even
            first, second = scores.topk(2, 1).values.unbind(1)
            return width - (first - second)
        centre = scores[:, -1]
        return self.decision(decision).measure_split_depth(centre + width, centre - width)

    def _find_bin(self, columns: Tensor, codes: Tensor) -> Tensor:
        cell = self.cells.find(columns, codes)
        return self.first[columns] + cell * self.bin_counts[columns] // self.cells.count[columns]

    def _solve(self, evaluation: Evaluation) -> tuple[Effects, float]:
        """Return the effects by ridge regression, and the share of the scores' variance that they explain."""
        rows = evaluation.rows
        x = torch.zeros(len(rows), len(self.bin_effects), dtype=torch.float64, device=rows.device)
        x.scatter_(1, self._find_bin(_column_indices(rows), rows), 1.0)
        y = _centres_and_width(evaluation)
        centre, mean = x.mean(0), y.mean(0)
        x, y = x - centre, y - mean
        by_bins = x.shape[1] <= len(rows)  # the smaller of two systems with the same solution
        square = x.T @ x if by_bins else x @ x.T
        square.diagonal().add_(RIDGE)
        bin_effects = torch.linalg.solve(square, x.T @ y) if by_bins else x.T @ torch.linalg.solve(square, y)
        unexplained, total = ((part[:, :-1] ** 2).sum() for part in (y - x @ bin_effects, y))
        explained_share = 1 - float(unexplained / total.clamp(min=1e-300))
        return replace(self, bin_effects=bin_effects, base=mean - centre @ bin_effects), explained_share


def _column_indices(rows: Tensor) -> Tensor:
    """Return the number of the column of each code: (n, d)."""
    return torch.arange(rows.shape[1], device=rows.device).expand_as(rows)


def _centres_and_width(evaluation: Evaluation) -> Tensor:
    """Return the centre of every score over each family, and half of the width of its margin: (n, outputs + 1)."""
    exists = include_row(evaluation.valid)[..., None]
    high = evaluation.family.masked_fill(~exists, -torch.inf).amax(1)
    low = evaluation.family.masked_fill(~exists, torch.inf).amin(1)
    ends = evaluation.ends
    return torch.cat([(high + low) / 2, ((ends.high - ends.low) / 2)[:, None]], 1).double()


def _are_probabilities(evaluation: Evaluation) -> bool:
    decision, family = evaluation.decision, evaluation.family
    in_range = bool(((family >= 0) & (family <= 1)).all())
    return in_range and (decision.kind == "argmax" or (decision.kind == "threshold" and 0 < decision.value < 1))


DRAWS = 16  # random records, of which a promising one replaces a seed that is no finding
REDRAWN_SHARES = (0.25, 0.5, 1.0)  # of the attributes that are redrawn together
STAY_CHANCE = 0.5  # the chance of a chain without a trusted move to change to a record that the model treats alike


@dataclass(frozen=True)
class FrontierFree:
    """Both phases of frontier-free: chains outside move to the boundary, chains inside move without leaving.

    Each step compares `candidates` random moves to records that are new to the chain. Inside, the first one is taken
    whose chance to stay inside is at least `trust`, by `stay_chances` from the pilot. Without a pilot all moves are
    equal: a random walk that returns to its last finding.
    """

    effects: Effects
    noise: Tensor  # (d,) the error of predictions, for moves of each attribute
    stay_chances: Tensor | None = None  # of each kind of move: (attributes * bins * distances,)
    candidates: int = 30
    trust: float = 0.9

    def start(self, context: SearchContext, state: State) -> State:
        """Return the chains before anything is known about them."""
        n, device = len(state["rows"]), state["rows"].device
        number = torch.zeros(n, dtype=torch.float64, device=device)
        return state | {
            "inside": torch.zeros(n, dtype=torch.bool, device=device),
            "high": number,
            "low": number,
            "lean": torch.zeros(n, context.network.outputs, dtype=torch.float64, device=device),
            "memory": empty_memory(n, device),
        }

    def ask(self, context: SearchContext, state: State, t: int) -> Tensor:
        """Return the seeds first, then the best of some random moves of one attribute each."""
        rows, is_inside = state["rows"], state["inside"]
        if t == 0:
            return rows
        columns, codes, exists, is_known = self._draw_moves(context, state, t)
        merit = self.measure_split_depth(context, state, columns, codes)
        if self.stay_chances is not None:
            chance = self.stay_chances[self.find_kinds(context, rows, columns, codes, merit)].clamp(max=self.trust)
            merit = torch.where(is_inside[:, None], chance, merit)
        merit = torch.where(is_known, merit.amin(1, keepdim=True) - 1, merit)
        # Of equal merit the first is taken: all trusted moves are equally good, and they come in random order.
        best = merit.masked_fill(~exists, -torch.inf).argmax(1, keepdim=True)
        new_rows = rows.scatter(1, columns.gather(1, best), codes.gather(1, best))
        if self.stay_chances is not None and self.effects.cells.is_known:
            new_rows = torch.where(self._stays_in_cells(context, state, merit.gather(1, best), t), rows, new_rows)
        if t == 1:

            def redraw(indices: Tensor | slice) -> State:
                return {"rows": self._redraw(context, rows[indices], state["origin"][indices], t)}

            new_rows = renew_state(~is_inside, {"rows": new_rows}, redraw)["rows"]
        return self._redraw_within_cells(context, state, new_rows, t)

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        """Record the ends of the families; a miss never replaces a finding."""
        ends, keys = self.effects.read(evaluation).ends, context.domain.key(rows)[:, None]
        new = {"rows": rows, "inside": evaluation.discriminates, "lean": ends.margin_weights.double()}
        new |= {"high": ends.high.double(), "low": ends.low.double()}
        better = evaluation.discriminates | ~state["inside"]
        return state | select_state(better, new, state) | {"memory": remember(state["memory"], keys)}

    def measure_split_depth(self, context: SearchContext, state: State, columns: Tensor, codes: Tensor) -> Tensor:
        """Return the predicted split depth after each move, negative outside: (n, m)."""
        rise, fall = self.effects.move_ends(state["lean"], state["rows"], columns, codes)
        high, low = state["high"][:, None] + rise, state["low"][:, None] + fall
        return self.effects.decision(context.decision).measure_split_depth(high, low)

    def find_kinds(self, context: SearchContext, rows: Tensor, columns: Tensor, codes: Tensor, depth: Tensor) -> Tensor:
        """Return the kind of each move, by attribute, predicted split depth and length: (n, m)."""
        cells, new_cells = (self.effects.cells.find(columns, c) for c in (rows.gather(1, columns), codes))
        relative = depth / self.noise[columns]
        bins = torch.bucketize(relative, binning(relative.dtype, relative.device)[0])
        length = torch.log2((new_cells - cells).abs().clamp(min=1).double()).long().clamp(max=LENGTH_BINS - 1)
        return (columns * DEPTH_BINS + bins) * LENGTH_BINS + torch.where(context.domain.is_ordered[columns], length, 0)

    def _draw_moves(self, context: SearchContext, state: State, t: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return random moves: attribute, new code, whether the new row exists, whether it is known: (n, m) each."""
        domain, rows, cells = context.domain, state["rows"], self.effects.cells
        u = context.draws.uniform(t, state["origin"], 5 * self.candidates, use="moves")
        picks, lengths, sides, kinds, offsets = u.chunk(5, 1)
        columns = context.free_columns[(picks * len(context.free_columns)).long()]
        old, ordered = rows.gather(1, columns), domain.is_ordered[columns]
        cell, count = cells.find(columns, old), cells.count[columns]
        # Half of the moves of ordered attributes are log-uniform in length, mostly short; the others lead anywhere.
        points = count if cells.is_known else domain.grid_sizes[columns]
        shift = torch.exp(lengths * torch.log(points - 0.01)).long() * torch.where(sides < 0.5, -1, 1)
        shift = torch.where((cell + shift < 0) | (cell + shift >= points), -shift, shift)
        anywhere = torch.where(
            ordered, (favour_ends(lengths) * count).long(), (cell + 1 + (lengths * (count - 1)).long()) % count
        )
        short = ordered & (cell < points) & (kinds < 0.5) & state["inside"][:, None]
        new_cell = torch.where(short, cell + shift, anywhere)
        exists = (new_cell >= 0) & (new_cell < count) & (new_cell != cell)
        codes = torch.where(exists, cells.draw(columns, torch.where(exists, new_cell, cell), offsets), old)
        new_rows = rows[:, None].repeat(1, self.candidates, 1).scatter(2, columns[..., None], codes[..., None])
        exists &= domain.valid(new_rows.flatten(0, 1)).view(exists.shape)
        return columns, torch.where(exists, codes, old), exists, knows(state["memory"], domain.key(new_rows))

    def _stays_in_cells(self, context: SearchContext, state: State, chance: Tensor, t: int) -> Tensor:
        """Return which chains change within their cells because no move can be trusted: bool, (n, 1)."""
        u = context.draws.uniform(t, state["origin"], 1, use="stay")
        key = context.domain.key(self._redraw_within_cells(context, state, state["rows"], t))[:, None]
        return state["inside"][:, None] & (chance < self.trust) & (u < STAY_CHANCE) & ~knows(state["memory"], key)

    def _redraw_within_cells(self, context: SearchContext, state: State, rows: Tensor, t: int) -> Tensor:
        """Return other records that the model treats alike: every code is redrawn within its cell."""
        cells, domain = self.effects.cells, context.domain
        if not cells.is_known:
            return rows
        columns = _column_indices(rows)
        u, order = context.draws.uniform(t, state["origin"], 2 * rows.shape[1], use="roam").chunk(2, 1)
        redrawn = torch.where(domain.changeable, cells.draw(columns, cells.find(columns, rows), u), rows)
        for share in REDRAWN_SHARES:  # as many attributes as the rules allow
            codes = torch.where(order < share, redrawn, rows)
            rows = torch.where(domain.valid(codes)[:, None], codes, rows)
        return rows

    def _redraw(self, context: SearchContext, rows: Tensor, origin: Tensor, t: int) -> Tensor:
        """Return a promising one of some random records for each chain, with its sensitive values."""
        domain, d = context.domain, rows.shape[1]
        u = context.draws.uniform(t, origin, DRAWS * domain.draws_per_row, use="redraw").view(len(rows) * DRAWS, -1)
        if (
            not isinstance(domain, PlausibleDomain) or domain.population.draws_per_row == d
        ):  # a number for each attribute
            u[:, :d] = torch.where(domain.is_ordered, favour_ends(u[:, :d]), u[:, :d])
        candidates = domain.move(rows.repeat_interleave(DRAWS, 0), domain.rows_at(u)).view(len(rows), DRAWS, d)
        # The first that may be a finding, not the likeliest, which would all be similar.
        depths = self.effects.predict_depth(candidates.flatten(0, 1), context.decision).view(len(rows), DRAWS)
        best = depths.clamp(max=0).argmax(1)
        return candidates[torch.arange(len(rows), device=rows.device), best]


def favour_ends(u: Tensor) -> Tensor:
    """Return numbers in [0, 1) that are more often near 0 and 1 than in the middle, so that chains diverge."""
    near = 4 * torch.minimum(u, 1 - u) ** 3
    return torch.where(u < 0.5, near, (1 - near).clamp(max=1 - 1e-12))


SURVEY_ROWS, SURVEY_CHAINS = 2_000, 50  # random rows at most, and in each step
PILOT_STEPS, MAX_PILOT_CHAINS = 20, 500  # of the pilot's second half: steps, and chains at most
MIN_PILOT_ROWS = 4 * SURVEY_CHAINS  # rows of a pilot


def prepare_frontier_free(
    context: SearchContext, *, rows: int, key_set: KeySet | None = None
) -> tuple[FrontierFree, PhaseResult | None]:
    """Return frontier-free as learned in a pilot of at most `rows` rows, and the pilot's findings.

    Half of the rows are random. The effects fitted to them predict random moves from the findings, which are the other
    half; the results of these moves give the chances to stay inside. Then the effects are fitted to all rows.
    """
    domain = context.domain
    cells = EffectCells.of(domain, context.network.cells if isinstance(context.network, BlackBox) else None)
    method = FrontierFree(
        Effects.blank(domain, cells, context.network.outputs),
        torch.ones(domain.codes_per_row, dtype=torch.float64, device=domain.device),
    )
    if rows < MIN_PILOT_ROWS:
        return method, None
    survey = _Survey()
    no_seeds = torch.zeros(SURVEY_CHAINS, domain.codes_per_row, dtype=torch.int64, device=domain.device)
    scout = replace(context, draws=Draws(context.draws.seed, "survey"))
    budget = Budget(min(SURVEY_ROWS, rows // 2) // SURVEY_CHAINS)
    survey_result = run_phase(scout, survey, no_seeds, budget=budget, key_set=key_set)
    if survey_result.stop == "interrupted":
        return method, survey_result
    evaluation = _join_evaluations(survey.evaluations)
    method = replace(method, effects=method.effects.fit(evaluation))
    chains = min(MAX_PILOT_CHAINS, rows // 2 // PILOT_STEPS)
    starts = torch.cat([survey_result.findings.rows, evaluation.rows])[:chains]
    pilot = _FrontierFreePilot(method.effects, method.noise)
    scout = replace(context, draws=Draws(context.draws.seed, "pilot"))
    pilot_result = run_phase(scout, pilot, starts, budget=Budget(PILOT_STEPS), key_set=key_set)
    result = pilot_result.after(survey_result)
    if pilot_result.stop == "interrupted":
        return method, result
    method = pilot.learn(context)
    return replace(method, effects=method.effects.fit(_join_evaluations([evaluation, *pilot.evaluations]))), result


@dataclass(frozen=True)
class _Survey(Uniform):
    """Random records, with all their evaluations."""

    evaluations: list[Evaluation] = field(default_factory=list)

    def graph_key(self, t: int) -> None:
        return None  # a replayed step would append nothing

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        self.evaluations.append(evaluation)
        return state


@dataclass(frozen=True)
class _FrontierFreePilot(FrontierFree):
    """Random moves of frontier-free from inside, with their evaluations, predictions and results."""

    candidates: int = 1
    evaluations: list[Evaluation] = field(default_factory=list)
    moves: list[tuple[Tensor, ...]] = field(default_factory=list)

    def tell(self, context: SearchContext, state: State, rows: Tensor, evaluation: Evaluation, t: int) -> State:
        cells, columns = self.effects.cells, _column_indices(rows)
        changed = cells.find(columns, rows) != cells.find(columns, state["rows"])
        column = changed.int().argmax(1, keepdim=True)
        code = rows.gather(1, column)
        split_depth = self.measure_split_depth(context, state, column, code)
        # The result of the move, on the scale of the prediction.
        rescaled = self.effects.read(evaluation)
        exists, leanings = include_row(rescaled.valid), compute_margins(rescaled.family, state["lean"])
        high, low = torch.where(exists, leanings, -torch.inf).amax(1), torch.where(exists, leanings, torch.inf).amin(1)
        error = (split_depth[:, 0] - rescaled.decision.measure_split_depth(high, low)) ** 2
        is_counted = state["inside"] & (changed.sum(1) == 1)
        move = (state["rows"], column, code, split_depth, error, evaluation.discriminates)
        self.moves.append(tuple(x[is_counted] for x in move))
        self.evaluations.append(evaluation)
        return super().tell(context, state, rows, evaluation, t)

    def learn(self, context: SearchContext) -> FrontierFree:
        """Return the method with the noise of its predictions and its chances to stay inside."""
        rows, columns, codes, split_depth, error, stayed = (torch.cat(part) for part in zip(*self.moves, strict=True))
        d, weights = rows.shape[1], torch.ones_like(error)
        total, tries = (weights.new_zeros(d).index_add(0, columns[:, 0], x) for x in (error, weights))
        mean = error.sum() / max(1, len(error))
        noise = ((total + PRIOR_TRIES * mean) / (tries + PRIOR_TRIES)).sqrt().clamp(min=1e-9)
        method = FrontierFree(self.effects, noise)
        kinds = method.find_kinds(context, rows, columns, codes, split_depth)[:, 0]
        return replace(method, stay_chances=estimate_stay_chances(kinds, stayed, d))


def _join_evaluations(parts: list[Evaluation]) -> Evaluation:
    names = ("rows", "family", "valid", "twin_differs", "discriminates")
    lines = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Evaluation(parts[0].domain, parts[0].decision, **lines)
