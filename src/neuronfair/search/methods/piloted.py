"""The pilot of frontier-free: random rows that its effects are fitted to, and moves that say what can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.decision import leaning, with_row
from neuronfair.search.budget import Budget
from neuronfair.search.engine import PhaseResult, search
from neuronfair.search.findings import Findings
from neuronfair.search.judge import Judgement
from neuronfair.search.keys import KeySet
from neuronfair.search.method import Method, State, World
from neuronfair.search.methods.effects import Cells, Effects
from neuronfair.search.methods.frontier import BINS, DISTANCES, SHRINK, chances
from neuronfair.search.methods.frontier_free import FrontierFree
from neuronfair.search.methods.uniform import Uniform

SURVEY, AT_ONCE = 2_000, 50  # random rows at most, and in each step
STEPS, WALKERS = 20, 500  # of the walk: steps, and walkers at most
LEAST = 4 * AT_ONCE  # rows, below which there is no pilot


def prepared(world: World, *, rows: int, seen: KeySet | None = None) -> tuple[FrontierFree, PhaseResult | None]:
    """Return frontier-free with what a pilot of at most so many rows has learned, and the pilot's findings.

    Half of the rows are random ones. The effects that are fitted to them predict the moves of the other half, random
    ones from the findings; what the moves do gives the table of trust. Then the effects are fitted to all.
    """
    domain = world.domain
    cells = Cells.of(domain, world.network.cells if isinstance(world.network, BlackBox) else None)
    method = FrontierFree(
        Effects.blank(domain, cells, world.network.outputs),
        torch.ones(domain.codes_per_row, dtype=torch.float64, device=domain.device),
    )
    if rows < LEAST:
        return method, None
    survey = _Kept(Uniform())
    nobody = torch.zeros(AT_ONCE, domain.codes_per_row, dtype=torch.int64, device=domain.device)
    scout = replace(world, draws=Draws(world.draws.seed, "survey"))
    first = search(scout, survey, nobody, budget=Budget(min(SURVEY, rows // 2) // AT_ONCE), seen=seen)
    if first.stop == "interrupted":
        return method, first
    method = replace(method, effects=method.effects.fitted(survey.judged))
    starts = torch.cat([first.findings.rows, survey.judged.rows])[: min(WALKERS, rows // 2 // STEPS)]
    pilot = _Pilot(replace(method, candidates=1))
    scout = replace(world, draws=Draws(world.draws.seed, "pilot"))
    second = search(scout, pilot, starts, budget=Budget(STEPS), seen=seen)
    both = Findings.join([first.findings, second.findings])
    result = replace(second, findings=both, found=first.found + second.found, seconds=first.seconds + second.seconds)
    if second.stop == "interrupted":
        return method, result
    method = pilot.learned(world)
    return replace(method, effects=method.effects.fitted(_joined([survey.judged, pilot.judged]))), result


@dataclass(frozen=True)
class _Kept:
    """A method, with all that was judged for it."""

    walk: Method
    parts: list[Judgement] = field(default_factory=list)

    @property
    def judged(self) -> Judgement:
        return _joined(self.parts)

    def start(self, world: World, state: State) -> State:
        return self.walk.start(world, state)

    def ask(self, world: World, state: State, t: int) -> Tensor:
        return self.walk.ask(world, state, t)

    def tell(self, world: World, state: State, rows: Tensor, judgement: Judgement, t: int) -> State:
        self.parts.append(judgement)
        return self.walk.tell(world, state, rows, judgement, t)


@dataclass(frozen=True)
class _Pilot(_Kept):
    """Random moves of frontier-free: what was predicted of each that began inside, and what came of it."""

    walk: FrontierFree
    moves: list[tuple[Tensor, ...]] = field(default_factory=list)

    def tell(self, world: World, state: State, rows: Tensor, judgement: Judgement, t: int) -> State:
        walk, columns = self.walk, torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        cells = walk.effects.cells
        changed = cells.of_codes(columns, rows) != cells.of_codes(columns, state["rows"])
        column = changed.int().argmax(1, keepdim=True)
        code = rows.gather(1, column)
        safety = walk.safety(world, state, column, code)
        # What the move has led to, seen as the prediction saw it.
        read = walk.effects.read(judgement)
        exists, seen = with_row(read.valid), leaning(read.family, state["lean"])
        high, low = torch.where(exists, seen, -torch.inf).amax(1), torch.where(exists, seen, torch.inf).amin(1)
        error = (safety[:, 0] - read.decision.safety(high, low)) ** 2
        counted = state["inside"] & (changed.sum(1) == 1)
        line = (state["rows"], column, code, safety, error, judgement.discriminates.double())
        self.moves.append(tuple(x[counted] for x in line))
        return super().tell(world, state, rows, judgement, t)

    def learned(self, world: World) -> FrontierFree:
        """Return the method with the noise of its predictions and the table of what can be trusted."""
        rows, columns, codes, safety, error, hit = (torch.cat(part) for part in zip(*self.moves, strict=True))
        d, one = rows.shape[1], torch.ones_like(error)
        total, tries = (one.new_zeros(d).index_add(0, columns[:, 0], x) for x in (error, one))
        mean = error.sum() / max(1, len(error))
        noise = ((total + SHRINK * mean) / (tries + SHRINK)).sqrt().clamp(min=1e-9)
        method = replace(self.walk, noise=noise, candidates=FrontierFree.candidates)
        kinds = method.kinds(world, rows, columns, codes, safety)[:, 0]
        counts = [one.new_zeros(d * BINS * DISTANCES).index_add(0, kinds, x) for x in (hit, one)]
        return replace(method, table=chances(*(count.view(d, BINS, DISTANCES) for count in counts)))


def _joined(parts: list[Judgement]) -> Judgement:
    names = ("rows", "family", "valid", "apart", "discriminates")
    lines = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Judgement(parts[0].domain, parts[0].decision, **lines)
