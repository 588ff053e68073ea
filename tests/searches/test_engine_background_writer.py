"""Findings are confirmed and written beside the search: nothing of it is torn, lost or late."""

from __future__ import annotations

import threading

import pytest
import torch

from neuronfair.errors import RunError
from neuronfair.model.blackbox import BlackBox
from neuronfair.searches.engine import BackgroundWriter, Budget, Checkpoint, PhaseRecording, run_phase
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import SearchContext, State
from tests.planted import networks

WORLD = networks.context(networks.one_biased_neuron(), networks.domain())
SEEDS = networks.uniform_rows(WORLD.domain, 30)


class Counting:
    """Walks along the first attribute, and counts its steps in place."""

    def start(self, context: SearchContext, chains: State) -> State:
        return chains | {"steps": torch.zeros_like(chains["origin"])}

    def ask(self, context: SearchContext, state: State, t: int) -> torch.Tensor:
        rows = state["rows"].clone()
        rows[:, 0] = t % 10
        return rows

    def tell(self, context: SearchContext, state: State, rows: torch.Tensor, evaluation: Evaluation, t: int) -> State:
        state["steps"] += 1
        return state


@pytest.mark.parametrize("threaded", [False, True])
def test_pieces_are_done_one_after_the_other(threaded):
    done: list[int] = []
    gate = threading.Event()
    with BackgroundWriter(threaded) as writer:
        writer.do(lambda: (gate.wait(5 if threaded else 0), done.append(1)))
        assert done == ([] if threaded else [1])
        gate.set()
        writer.do(lambda: done.append(2))
        writer.wait()
        assert done == [1, 2]
        writer.do(lambda: done.append(3))
    assert done == [1, 2, 3]  # also what nobody has waited for


def test_an_error_beside_is_raised_by_the_next_piece_or_at_the_end():
    done: list[int] = []
    with BackgroundWriter(True) as writer:
        writer.do(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.do(lambda: done.append(1))
        writer.wait()
        writer.do(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.wait()
    assert done == []


def test_walkers_are_written_as_they_were():
    """The search goes on only when the checkpoint before last is done: by then the chains have been overwritten."""
    parts: list[Checkpoint] = []
    run_phase(WORLD, Counting(), SEEDS, budget=Budget(9), recording=PhaseRecording(parts.append, interval=2))
    assert [part.t for part in parts] == [2, 4, 6, 8, 9]
    for part in parts:
        assert (part.state["steps"] == part.t).all()
    assert [part.seconds for part in parts] == sorted(part.seconds for part in parts)


def test_a_checkpoint_that_fails_ends_the_search():
    steps: list[int] = []

    def full(where: Checkpoint) -> None:
        raise RunError(f"no space left after step {where.t}")

    with pytest.raises(RunError, match="after step 2"):
        run_phase(
            WORLD,
            Counting(),
            SEEDS,
            budget=Budget(100),
            recording=PhaseRecording(full, interval=2),
            progress=lambda t, *_: steps.append(t),
        )
    assert steps[-1] <= 4


def test_a_black_box_is_asked_by_one_thread_alone():
    threads: set[int] = set()

    def ask(rows: torch.Tensor) -> torch.Tensor:
        threads.add(threading.get_ident())
        return WORLD.network.scores(rows)

    def written(_: Checkpoint) -> None:
        threads.add(threading.get_ident())

    context = SearchContext(BlackBox(ask, WORLD.domain), WORLD.domain, WORLD.decision, WORLD.draws)
    result = run_phase(context, Counting(), SEEDS, budget=Budget(9), recording=PhaseRecording(written, interval=2))
    assert result.finding_count > 0
    assert threads == {threading.get_ident()}
    run_phase(WORLD, Counting(), SEEDS, budget=Budget(9), recording=PhaseRecording(written, interval=2))
    assert len(threads) == 2
