"""A search in shards: the same as in one piece, whoever walks them, and whatever ends them in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from neuronfair.errors import NeuronFairError, RunError
from neuronfair.scale.pool import Serial
from neuronfair.search import campaign
from neuronfair.search.outcome import Outcome, Plan
from neuronfair.store import scattered
from neuronfair.store.run import Run
from neuronfair.store.scattered import Division, Scattered
from tests.store.runs import DOMAIN_OF_RUN, PLANS, ROWS, assert_same_run, listing, make_manifest, planted, untimed
from tests.store.test_tables import assert_same


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of a few walkers, and a checkpoint every three steps, as the whole run has them."""
    monkeypatch.setattr(scattered, "LEAST", {})
    monkeypatch.setattr(scattered, "EVERY", 3)


def searched(folder: Path, plan: Plan, size: int | None = None, **said) -> Outcome:
    """What `neuronfair search` does: in one piece, or in shards for so many workers."""
    run = Run.create_or_open(folder, make_manifest(plan), DOMAIN_OF_RUN, 2)
    walk = campaign.in_one_piece
    if size is not None:
        walk = Scattered(Serial(size), str(folder / "shards"), folder / "shards", run)
    outcome = campaign.find(planted(), DOMAIN_OF_RUN, ROWS, plan, recorder=run, walk=walk, **said)
    if not outcome.interrupted:
        run.finish(outcome.summary())
        if size is not None:
            walk.remove()
    return outcome


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_shards_find_what_one_piece_finds(tmp_path, plan):
    whole = searched(tmp_path / "whole", plan)
    for size in (1, 2, 3):
        parts = searched(tmp_path / str(size), plan, size)
        assert_same(parts.findings, whole.findings)
        assert untimed(parts.summary()) == untimed(whole.summary())
        assert_same_run(tmp_path / str(size), tmp_path / "whole")
    assert whole.total.findings > 20
