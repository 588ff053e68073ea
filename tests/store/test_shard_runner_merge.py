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
from neuronfair.domain.population.model import fit_population
from neuronfair.errors import RunError
from neuronfair.model.decision import Decision
from neuronfair.model.profile import interpret
from neuronfair.searches import engine
from neuronfair.searches.engine import Budget, Checkpoint, PhaseRecording
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import DOUBTFUL, FOUND, MISS, REJECTED, KeySet, encode_lines, is_sampled_miss
from neuronfair.searches.method import SearchContext, StepSizes
from neuronfair.searches.methods import METHODS, Setting
from neuronfair.store import shard_runner as merge
from neuronfair.store.shard_files import ShardStore
from neuronfair.store.shard_runner import merge_parts
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
def context() -> SearchContext:
    network = planted()
    profile, population = interpret(network, DOMAIN_OF_RUN, ROWS), fit_population(DOMAIN_OF_RUN, ROWS)
    step_sizes = StepSizes.of(DOMAIN_OF_RUN, ROWS)
    return SearchContext(
        network, DOMAIN_OF_RUN, Decision(), Draws(3, "global"), profile, population, step_sizes=step_sizes
    )


def run_phase(
    context: SearchContext,
    method: str,
    share: slice | None,
    phase: str,
    starts: Findings | None,
    recording: PhaseRecording,
    seen,
):
    """Search the global phase from the seeds, or the local one from what it found; a share of its chains."""
    rules = METHODS[method].make(Setting(context, KeySet(), 100))
    rows, origin = (SEEDS, torch.arange(len(SEEDS))) if starts is None else (starts.rows, starts.origin)
    here = share or slice(0, len(rows))
    recording = replace(recording, interval=EVERY, first_chain=here.start, chains=len(rows))
    return engine.run_phase(
        replace(context, draws=Draws(3, phase)),
        rules.global_phase if starts is None else rules.local_phase,
        rows[here],
        budget=Budget(6, findings_per_seed=1) if starts is None else Budget(12),
        origin=origin[here],
        key_set=seen,
        recording=recording,
    )


def in_one_piece(context: SearchContext, method: str) -> tuple[dict[str, list[Checkpoint]], Findings]:
    parts: dict[str, list[Checkpoint]] = {"global": [], "local": []}
    seen, found = KeySet(), None
    for phase, kept in parts.items():
        result = run_phase(context, method, None, phase, found, PhaseRecording(kept.append), seen)
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


@pytest.mark.parametrize("method", ["neuronfair-plus", "frontier", "expga"])
def test_shards_put_together_are_the_search_in_one_piece(context, method, tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "LINES_SORTED_AT_ONCE", 100)  # several files
    whole, found = in_one_piece(context, method)
    assert len(found) > 3
    for shards, kind in ((1, Forgetful), (2, KeySet), (3, Forgetful), (7, KeySet)):
        known: list[Path | Tensor] = []
        for phase, starts in (("global", None), ("local", found)):
            stores = []
            for number, share in enumerate(slices(len(SEEDS if starts is None else found), shards)):
                stores.append(store := ShardStore(f"memory://{method}/{shards}", phase, number))
                run_phase(context, method, share, phase, starts, PhaseRecording(store.checkpoint, keep=False), kind())
            parts = list(merge_parts(stores, known, tmp_path / "work"))
            same_parts(parts, whole[phase])
            np.save(tmp_path / "keys.npy", torch.cat([part.lines for part in parts]).numpy())
            known = [tmp_path / "keys.npy"]
    assert [part.t for part in merge_parts(stores, known, tmp_path / "work", skip=2)] == [
        part.t for part in whole["local"]
    ][2:]


# The rule, on made-up lines


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_of_each_person_the_first_judgement_counts(tmp_path_factory, data):
    """Against a dictionary: shards with checkpoints at their own steps, that forget whom they have judged."""
    chains, steps = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    person = st.one_of(st.integers(0, 6), st.integers(-(2**63), 2**63 - 1))
    judged = {
        (t, place): (data.draw(person), data.draw(st.integers(0, 3))) for t in range(steps) for place in range(chains)
    }
    known = data.draw(st.lists(person, max_size=3))
    first: dict[int, tuple[int, int]] = {}
    for at, (key, _) in sorted(judged.items()):
        if key not in known:
            first.setdefault(key, at)
    cuts = sorted({0, chains, *data.draw(st.lists(st.integers(0, chains), max_size=2))})
    folder, stores = tmp_path_factory.mktemp("shards"), []
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        stores.append(store := ShardStore(f"memory://{folder}", "local", number))
        ends = [*sorted(data.draw(st.sets(st.integers(1, steps), max_size=3))), steps]
        for begin, end in itertools.pairwise([0, *ends]):
            some = {at: who for at, who in judged.items() if begin <= at[0] < end and low <= at[1] < high}
            store.checkpoint(made_up(some, chains, end, "steps" if end is ends[-1] else None))
    parts = list(merge_parts(stores, [torch.tensor(known, dtype=torch.int64)], folder / "work"))
    wins = [(at, *judged[at]) for at in sorted(first.values())]
    lines = torch.cat([part.lines for part in parts])
    assert lines.tolist() == [[key, (t * chains + place) * 4 + kind] for (t, place), key, kind in wins]
    found = Findings.join([part.findings for part in parts])
    assert list(zip(found.step.tolist(), found.origin.tolist(), strict=True)) == [
        at for at, _, kind in wins if kind == FOUND
    ]
    assert (found.tried, found.evaluated) == (len(wins), len(judged))
    assert found.rejected == sum(kind in (REJECTED, DOUBTFUL) for _, _, kind in wins)
    missed = [at for at, key, kind in wins if kind in (MISS, DOUBTFUL) and is_sampled_miss(torch.tensor([key]))]
    assert found.misses.tolist() == [[*at, 0, 0, 0] for at in missed]
    assert all((part.lines[:, 1] // 4 // chains < part.t).all() for part in parts)
    assert [part.stop for part in parts] == [None] * (len(parts) - 1) + ["steps"]


def made_up(
    judged: dict[tuple[int, int], tuple[int, int]], chains: int, t: int, stop: engine.Stop | None
) -> Checkpoint:
    """A checkpoint of rows evaluated by a step and a place, whose numbers their findings and misses hold."""
    at = torch.tensor(list(judged), dtype=torch.int64).reshape(-1, 2)
    keys, kind = torch.tensor(list(judged.values()), dtype=torch.int64).reshape(-1, 2).T
    none, found = Findings.empty(DOMAIN_OF_RUN, 2), kind == FOUND
    missed = is_sampled_miss(keys) & ((kind == MISS) | (kind == DOUBTFUL))
    rows = torch.cat([at, torch.zeros(len(at), 3)], 1).to(DOMAIN_OF_RUN.compact)
    scores = torch.zeros(int(found.sum()), 2)
    findings = replace(
        none,
        packed=rows[found],
        twin_values=rows[found][:, :1].long(),
        scores=scores,
        twin_scores=scores,
        step=at[found, 0],
        origin=at[found, 1],
        misses=rows[missed],
        evaluated=len(at),
        plausibility=torch.zeros(len(scores)),
    )
    state = {"place": torch.arange(2)}
    return Checkpoint(t, state, findings, encode_lines(keys, *at.T, chains, kind), 1.0, stop)


def test_checkpoints_at_other_steps_are_put_together(tmp_path):
    """One shard was interrupted at step 5, one has ended at step 7: parts end where all had a checkpoint."""
    for number, ends in enumerate(([4, 5, 8, 12, 12], [4, 7], [4, 8, 12, 12])):
        for end in ends[:-1]:
            ShardStore(str(tmp_path), "local", number).checkpoint(
                made_up({}, 3, end, "interrupted" if end == 5 else None)
            )
        stop: engine.Stop = "walkers" if number == 1 else "steps"
        ShardStore(str(tmp_path), "local", number).checkpoint(made_up({}, 3, ends[-1], stop))
    stores = [ShardStore(str(tmp_path), "local", number) for number in range(3)]
    parts = list(merge_parts(stores, [], tmp_path / "work"))
    assert [(part.t, part.stop, part.seconds) for part in parts] == [
        (4, None, 3),
        (8, None, 3),
        (12, None, 3),
        (12, "steps", 3),
    ]
    assert [(part.t, part.stop) for part in merge_parts(stores[1:2], [], tmp_path / "work")] == [
        (4, None),
        (7, "walkers"),
    ]


def test_a_shard_that_is_not_finished(tmp_path):
    store = ShardStore(str(tmp_path), "local", 0)
    for stop in (None, "interrupted"):
        with pytest.raises(RunError, match="shard 0 of the phase 'local' is not finished"):
            list(merge_parts([store], [], tmp_path / "work"))
        store.checkpoint(made_up({}, 1, 3, stop))


def test_not_too_many_files_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "LINES_SORTED_AT_ONCE", 1)
    monkeypatch.setattr(merge, "MAX_OPEN_FILES", 8)
    opened = []
    monkeypatch.setattr(merge, "_spread_lines", lambda lines, files, bits: opened.append((len(files), bits)))
    merge._find_repeats([], [torch.arange(1000)], tmp_path)
    assert opened == [(8, 3)]
