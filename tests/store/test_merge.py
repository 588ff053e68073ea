"""Shards put together are the search in one piece, bit for bit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.domain.population import fit_population
from neuronfair.errors import RunError
from neuronfair.interpretation.profile import interpret
from neuronfair.model.decision import Decision
from neuronfair.search import engine
from neuronfair.search.budget import Budget
from neuronfair.search.engine import Checkpoint, Record
from neuronfair.search.findings import Findings
from neuronfair.search.judged import DOUBTFUL, FOUND, MISS, REJECTED, is_sampled, judged_lines
from neuronfair.search.keys import KeySet
from neuronfair.search.method import World
from neuronfair.search.methods import Setting, phases
from neuronfair.search.pace import Pace
from neuronfair.search.tally import Share
from neuronfair.store import merge
from neuronfair.store.merge import merged, windows
from neuronfair.store.shards import ShardPart, ShardStore
from tests.planted import networks
from tests.store.runs import DOMAIN_OF_RUN, ROWS, planted
from tests.store.test_tables import assert_same

SEEDS = ROWS[:23]
EVERY = 4


class Forgetful(KeySet):
    """A set that forgets everything now and then."""

    def add(self, keys: Tensor) -> Tensor:
        if len(self) > 40:
            self.__init__()
        return super().add(keys)


@pytest.fixture(scope="module")
def world() -> World:
    network = planted()
    profile, population = interpret(network, DOMAIN_OF_RUN, ROWS), fit_population(DOMAIN_OF_RUN, ROWS)
    pace = Pace.of(DOMAIN_OF_RUN, ROWS)
    return World(network, DOMAIN_OF_RUN, Decision(), Draws(3, "global"), profile, population, pace=pace)


def search(world: World, method: str, share: slice | None, phase: str, starts: Findings | None, record: Record, seen):
    """Search the global phase from the seeds, or the local one from what it found; a share of its walkers."""
    rules = phases(method, Setting(world, KeySet(), 100))
    rows, origin = (SEEDS, torch.arange(len(SEEDS))) if starts is None else (starts.rows, starts.origin)
    here = share or slice(0, len(rows))
    record = replace(record, every=EVERY, share=Share(here.start, len(rows)))
    return engine.search(
        replace(world, draws=Draws(3, phase)),
        rules.first if starts is None else rules.local,
        rows[here],
        budget=Budget(6, findings_per_seed=1) if starts is None else Budget(12),
        origin=origin[here],
        seen=seen,
        record=record,
    )


def in_one_piece(world: World, method: str) -> tuple[dict[str, list[Checkpoint]], Findings]:
    parts: dict[str, list[Checkpoint]] = {"global": [], "local": []}
    seen, found = KeySet(), None
    for phase, kept in parts.items():
        result = search(world, method, None, phase, found, Record(kept.append), seen)
        found = found or result.findings
    return parts, found


def same_parts(one: list[Checkpoint], other: list[Checkpoint]) -> None:
    assert [(part.t, part.stop) for part in one] == [(part.t, part.stop) for part in other]
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine.lines, theirs.lines)
        assert_same(mine.findings, theirs.findings)
    assert one[-1].state.keys() == other[-1].state.keys()
    assert all(torch.equal(one[-1].state[name], tensor) for name, tensor in other[-1].state.items())


def slices(count: int, shards: int) -> list[slice]:
    ends = [count * number // shards for number in range(shards + 1)]
    return [slice(*both) for both in itertools.pairwise(ends)]


@pytest.mark.parametrize("method", ["neuronfair", "frontier", "aequitas", "adf", "expga", "symbgen", "uniform"])
def test_shards_put_together_are_the_search_in_one_piece(world, method, tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "SORTED", 100)  # several files
    whole, found = in_one_piece(world, method)
    assert len(found) > 3
    assert whole["local"][-1].t == 12 + 0
    for shards, kind in itertools.product((1, 2, 3, 7), (KeySet, Forgetful)):
        address = f"memory://{method}-{shards}-{kind.__name__}"
        known: list[Path | Tensor] = []
        for phase, starts in (("global", None), ("local", found)):
            stores = []
            for number, share in enumerate(slices(len(SEEDS if starts is None else found), shards)):
                stores.append(store := ShardStore(address, phase, number))
                record = Record(store.checkpoint, keep=False)
                search(world, method, share, phase, starts, record, kind())
            parts = list(merged(stores, known, tmp_path / "work"))
            same_parts(parts, whole[phase])
            assert not (tmp_path / "work").exists()
            np.save(tmp_path / "keys.npy", torch.cat([part.lines for part in parts]).numpy())
            known = [tmp_path / "keys.npy"]
