"""A search in shards: the same as in one piece, whoever walks them, and whatever ends them in the middle."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from neuronfair.domain.population.model import fit_population
from neuronfair.errors import NeuronFairError, RunError
from neuronfair.model.decision import Decision
from neuronfair.scale.pool import Serial
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchResult, in_one_piece
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.keys import KeySet
from neuronfair.store import shard_runner
from neuronfair.store.files import load_array
from neuronfair.store.ledger import Ledger
from neuronfair.store.run import Run
from neuronfair.store.shard_files import RemoteFolder
from neuronfair.store.shard_runner import Division, ShardRunner
from tests.planted import networks
from tests.store.runs import (
    DOMAIN_OF_RUN,
    PLAN,
    PLANS,
    ROWS,
    Killed,
    Killer,
    assert_same_run,
    make_manifest,
    planted,
    untimed,
)
from tests.store.test_tables import assert_same


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    """Shards of a few chains, and a checkpoint every three steps, as the whole run has them."""
    monkeypatch.setattr(shard_runner, "MIN_CHAINS_PER_SHARD", {})
    monkeypatch.setattr(shard_runner, "MAX_STEPS_PER_PART", 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_steps) -> Path:
    """An undisturbed search in one piece."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    searched(folder, PLAN)
    return folder


def searched(folder: Path, config: SearchConfig, size: int | None = None, **said) -> SearchResult:
    """What `neuronfair search` does: in one piece, or in shards for so many workers."""
    run = Run.create_or_open(folder, make_manifest(config), DOMAIN_OF_RUN)
    runner = in_one_piece
    if size is not None:
        runner = ShardRunner(Serial(size), folder / "shards", run=run)
    outcome = campaign.search(planted(), DOMAIN_OF_RUN, ROWS, config, recorder=run, runner=runner, **said)
    if not outcome.interrupted:
        run.finish(outcome.summary())
        if size is not None:
            runner.remove()
    return outcome


@pytest.mark.parametrize("config", PLANS.values(), ids=PLANS)
def test_shards_find_what_one_piece_finds(tmp_path, config):
    whole = searched(tmp_path / "whole", config)
    for size in (1, 3):
        parts = searched(tmp_path / str(size), config, size)
        assert_same(parts.findings, whole.findings)
        assert untimed(parts.summary()) == untimed(whole.summary())
        assert_same_run(tmp_path / str(size), tmp_path / "whole")
    assert whole.total.findings > 20


def pressing(phase: str, step: int) -> Callable[..., None]:
    """Press Ctrl-C at a step of a phase, once."""
    left = [signal.SIGINT]

    def progress(name: str, done: int, *_: int) -> None:
        if left and (name, done) == (phase, step):
            signal.raise_signal(left.pop())

    return progress


class Kill(Killer):
    """Kills before a file of a shard, or a line of the journal, is written."""

    CALLS = ((RemoteFolder, "write"), (Ledger, "commit"))


@pytest.mark.parametrize("phase", ["global", "local"])
def test_after_ctrl_c_the_same_command_goes_on(tmp_path, whole, phase):
    outcome = searched(tmp_path / "run", PLAN, 2, progress=pressing(phase, 1))
    assert outcome.interrupted
    assert outcome.summary()["stop"][phase] == "interrupted"
    # It goes on as it was cut, whoever works now.
    assert not searched(tmp_path / "run", PLAN, 3).interrupted
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("call", [3, 12, 24, 44])
def test_kills_lose_nothing(tmp_path, call):
    config = PLANS["frontier"]
    with pytest.MonkeyPatch.context() as patch:
        Kill(patch, call)
        with pytest.raises(Killed):
            searched(tmp_path / "run", config, 2)
    searched(tmp_path / "run", config, 2)
    searched(tmp_path / "whole", config)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_search_that_was_begun_in_one_piece_goes_on_so(tmp_path, whole, monkeypatch):
    assert searched(tmp_path / "run", PLAN, progress=pressing("local", 3)).interrupted
    before = Run.open(tmp_path / "run").evaluated_keys("global")
    known: list[KeySet | None] = []
    monkeypatch.setattr(shard_runner, "in_one_piece", lambda task, _: known.append(task.key_set) or in_one_piece(task))
    searched(tmp_path / "run", PLAN, 2)
    assert_same(Run.open(tmp_path / "run").findings(), Run.open(whole).findings())
    (seen,) = known
    judged = torch.cat([load_array(path, 2)[:, 0] for path in before])
    assert not bool(seen.unseen(judged).any())  # whom the first phase has judged does not count again


def test_a_search_that_was_begun_in_shards_goes_on_in_one_piece(tmp_path, whole):
    assert searched(tmp_path / "run", PLAN, 2, progress=pressing("local", 2)).interrupted
    shutil.rmtree(tmp_path / "run" / "shards")
    searched(tmp_path / "run", PLAN)
    assert_same_run(tmp_path / "run", whole)


def test_a_merge_that_was_cut_needs_its_shards(tmp_path, monkeypatch):
    keep = Run.checkpoint

    def checkpoint(run, phase, where):
        assert phase != "local" or where.stop is None, "killed"
        keep(run, phase, where)

    monkeypatch.setattr(Run, "checkpoint", checkpoint)
    with pytest.raises(AssertionError, match="killed"):
        searched(tmp_path / "run", replace(PLAN, global_steps=0), 2)
    monkeypatch.undo()
    monkeypatch.setattr(shard_runner, "MIN_CHAINS_PER_SHARD", {})
    monkeypatch.setattr(shard_runner, "MAX_STEPS_PER_PART", 3)
    assert len(Run.open(tmp_path / "run").journal.parts["local"]) == 1
    with pytest.raises(RunError, match="was searched in shards that are not all merged yet"):
        searched(tmp_path / "run", replace(PLAN, global_steps=0))
    searched(tmp_path / "run", replace(PLAN, global_steps=0), 2)
    searched(tmp_path / "one", replace(PLAN, global_steps=0))
    assert_same_run(tmp_path / "run", tmp_path / "one")


def test_a_long_search_keeps_its_findings_on_disk_only(tmp_path, monkeypatch):
    usual = fit_population(DOMAIN_OF_RUN, ROWS)
    whole = searched(tmp_path / "whole", PLAN, population=usual)
    monkeypatch.setattr(shard_runner, "MAX_ROWS_IN_MEMORY", 0)
    long = searched(tmp_path / "run", PLAN, 2, population=usual)
    assert (len(long.local_phase.findings), long.local_phase.finding_count) == (0, len(whole.local_phase.findings))
    assert_same(long.global_phase.findings, whole.global_phase.findings)
    one, other = untimed(long.summary()), untimed(whole.summary())
    about, exact = one.pop("plausibility"), other.pop("plausibility")
    assert one == other
    assert about == pytest.approx(exact, abs=1e-5)
    assert_same(Run.open(tmp_path / "run").findings(), Run.open(tmp_path / "whole").findings())


def test_without_a_run_and_at_another_address(tmp_path):
    whole = campaign.search(planted(), DOMAIN_OF_RUN, ROWS, PLAN)
    runner = ShardRunner(Serial(2), tmp_path / "work", "memory://shards")
    assert_same(campaign.search(planted(), DOMAIN_OF_RUN, ROWS, PLAN, runner=runner).findings, whole.findings)
    runner.remove()
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_shards_are_put_together(tmp_path, whole, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shard_runner, "merge_parts", pressed)
        assert searched(tmp_path / "run", PLAN, 2).global_phase.stop == "interrupted"
    searched(tmp_path / "run", PLAN, 2)
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize("limit", ["seconds", "instances"])
def test_limits_over_all_walkers_are_refused(tmp_path, limit):
    with pytest.raises(NeuronFairError, match="takes no limit of seconds or evaluated records"):
        searched(tmp_path / "run", replace(PLAN, **{limit: 5}), 2)


@pytest.mark.parametrize(
    ("chains", "steps", "size", "division"),
    [
        (1_000, 1_000, 2, Division(250, 50)),  # four shards: two for each worker
        (1_000, 1_000, 1, Division(1_000, 50)),
        (300, 100, 8, Division(128, 50)),  # not too few chains
        (100_000, 10_000, 1, Division(2_000, 10)),  # 50 shards of 2 × 10⁷ rows; a million rows are merged at a time
        (5, 40_000_000, 2, Division(1, 50)),  # nobody can be cut in two
        (2_000_000, 1, 1, Division(2_000_000, 1)),
    ],
)
def test_a_phase_is_cut(monkeypatch, chains, steps, size, division):
    monkeypatch.setattr(shard_runner, "MIN_CHAINS_PER_SHARD", {"cpu": 128})
    monkeypatch.setattr(shard_runner, "MAX_STEPS_PER_PART", 50)
    assert Division.of(chains, steps, Serial(size), "cpu") == division


@pytest.mark.parametrize("outputs", [1, 2])
def test_scores_are_the_same_to_the_last_bit(tmp_path, outputs):
    """Weights are no round numbers here, so that the order of a sum shows; few chains are left at the end."""
    torch.manual_seed(outputs)
    module = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))
    module[-1].bias.data -= module(ROWS.float()).mean(0)
    network = networks.network(module, DOMAIN_OF_RUN)
    decision = Decision() if outputs == 2 else Decision("threshold", 0.0)
    config = SearchConfig(
        method="neuronfair-plus", seeds=37, steps=20, global_steps=20, decision=decision, controls=False
    )
    whole = campaign.search(network, DOMAIN_OF_RUN, ROWS, config)
    for size in (2, 6):
        runner = ShardRunner(Serial(size), tmp_path)
        assert_same(campaign.search(network, DOMAIN_OF_RUN, ROWS, config, runner=runner).findings, whole.findings)
    assert whole.total.findings > 30
