"""Search chains in several processes: the same search, whoever steps them, and whatever ends them."""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from time import sleep

import pytest
import torch

from neuronfair import BlackBox, search
from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.searches import campaign, forked
from neuronfair.searches.campaign import PhaseRunner, in_one_piece
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.evaluate import Evaluation
from neuronfair.searches.method import SearchContext, State
from neuronfair.searches.methods.aequitas import Uniform
from neuronfair.searches.stepping import Chains, make_stepper
from neuronfair.store.run import Run
from tests.planted import networks
from tests.store.runs import DOMAIN_OF_RUN, ROWS, make_manifest, planted, untimed
from tests.store.test_tables import assert_same

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
CONFIGS = {
    "neuronfair-plus": SearchConfig(method="neuronfair-plus", seeds=50, steps=60, global_steps=6),
    "frontier": SearchConfig(method="frontier", seeds=50, steps=60, global_steps=6),
    "seeds": SearchConfig(method="frontier-free", seeds=40, steps=20, global_steps=0, controls=False),
}


@pytest.fixture(autouse=True)
def small_shares(monkeypatch):
    """Deal few chains, in blocks of a few steps."""
    monkeypatch.setattr(forked, "MIN_CHAINS", 10)
    monkeypatch.setattr(forked, "MIN_ROWS", 1)
    monkeypatch.setattr(forked, "ROWS_PER_BLOCK", 100)


@pytest.fixture(autouse=True)
def forks():
    assert forked.can_fork(), f"an earlier test left {threading.enumerate()}"


@pytest.fixture
def teams(monkeypatch) -> list[int]:
    """How many processes each phase was dealt to."""
    sizes: list[int] = []
    whole = forked.ForkedChains.__init__

    def note(self, network, team, *others) -> None:
        sizes.append(len(team))
        whole(self, network, team, *others)

    monkeypatch.setattr(forked.ForkedChains, "__init__", note)
    return sizes


def searched(folder: Path, config: SearchConfig, workers: int, **said) -> campaign.SearchResult:
    run = Run.create_or_open(folder, make_manifest(config), DOMAIN_OF_RUN)
    runner = partial(in_one_piece, workers=workers)
    return campaign.search(planted(), DOMAIN_OF_RUN, ROWS, config, recorder=run, runner=runner, **said)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".parquet", ".npy")}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_several_processes_find_the_same(tmp_path, config, teams):
    whole = searched(tmp_path / "1", config, 1)
    assert teams == []
    for workers in (2, 3):
        parts = searched(tmp_path / str(workers), config, workers)
        assert_same(parts.findings, whole.findings)
        assert untimed(parts.summary()) == untimed(whole.summary())
        assert parts.queries == whole.queries
        assert files(tmp_path / str(workers)) == files(tmp_path / "1")
    assert set(teams) == {2, 3}
    assert whole.total.findings > 20


def pressing(phase: str, step: int):
    """Press Ctrl-C once, from a step of a phase on."""
    left = [signal.SIGINT]

    def progress(name: str, done: int, *_: object) -> None:
        if left and name == phase and done >= step:
            signal.raise_signal(left.pop())

    return progress


@pytest.mark.parametrize(("phase", "step"), [("global", 2), ("local", 0), ("local", 50)])
def test_after_ctrl_c_any_number_of_processes_goes_on(tmp_path, phase, step, teams):
    config = CONFIGS["frontier"]
    whole = searched(tmp_path / "whole", config, 1)
    for workers, others in ((2, 1), (1, 2), (2, 3)):
        folder = tmp_path / f"{workers}{others}"
        assert searched(folder, config, workers, progress=pressing(phase, step)).interrupted
        outcome = searched(folder, config, others)
        assert not outcome.interrupted
        assert untimed(outcome.summary()) == untimed(whole.summary())
        assert_same(outcome.findings, whole.findings)
    assert teams


def phase(method: object, runner: PhaseRunner, **limits: object) -> campaign.PhaseResult:
    context, seeds = networks.context(networks.one_biased_neuron(), DOMAIN_OF_RUN), ROWS[:40]
    return runner(campaign.PhaseTask("local", context, method, seeds, campaign.Budget(50, **limits)))  # type: ignore[arg-type]


def test_limits_of_evaluated_records_are_kept_in_one_process(teams):
    assert phase(Uniform(), partial(in_one_piece, workers=2), instances=77).findings.tried == 77
    assert teams == []
    assert phase(Uniform(), partial(in_one_piece, workers=2), seconds=0.0).stop == "seconds"
    assert phase(Uniform(), partial(in_one_piece, workers=2), seconds=9.0).stop == "steps"
    assert teams == [2, 2]


@pytest.mark.parametrize("last", [0, 1])
def test_a_phase_is_stepped_here_where_no_further_process_can_be_forked(monkeypatch, teams, last):
    start, started = forked.get_context("fork").Process.start, []

    def failing(process) -> None:
        if len(started) == last:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        start(process)
        started.append(process)

    whole = phase(Uniform(), partial(in_one_piece, workers=1))
    monkeypatch.setattr(forked.get_context("fork").Process, "start", failing)
    assert_same(phase(Uniform(), partial(in_one_piece, workers=3)).findings, whole.findings)
    assert teams == []
    assert not any(process.is_alive() for process in started)


class Failing(Uniform):
    """Fails, or kills its process, at step 20."""

    def __init__(self, error: BaseException | None) -> None:
        object.__setattr__(self, "error", error)

    def tell(self, context: SearchContext, state: State, rows: torch.Tensor, evaluation: Evaluation, t: int) -> State:
        if t == 20:
            if self.error is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise self.error
        return super().tell(context, state, rows, evaluation, t)


class UnsendableError(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock())


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ModelError("NaN"), ModelError), (UnsendableError(), NeuronFairError), (None, NeuronFairError)],
)
def test_an_error_in_a_process_is_raised_here(error, raised):
    with pytest.raises(raised):
        phase(Failing(error), partial(in_one_piece, workers=2))


def test_where_a_fork_is_not_safe_one_process_does_all(monkeypatch, teams):
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    assert not forked.can_fork()
    gate.set()
    thread.join()
    bar = type("TMonitor", (threading.Thread,), {"__module__": "tqdm._monitor"})(target=sleep, args=(0.5,))
    bar.start()  # as tqdm does with its first progress bar
    assert forked.can_fork()
    bar.join()
    context = networks.context(networks.one_biased_neuron(), DOMAIN_OF_RUN)
    assert forked.choose_team_size(context, 40, 1000, 2) == 2
    assert forked.choose_team_size(context, 19, 1000, 2) == 1
    assert forked.choose_team_size(context, 40, 0, 2) == 1
    function = BlackBox(lambda rows: rows[:, :2].float(), context.network.encoding)
    assert forked.choose_team_size(replace(context, network=function), 40, 1000, 2) == 1
    work = forked._work

    def late(*given) -> None:
        sleep(1)
        work(*given)

    monkeypatch.setattr(forked, "_work", late)
    monkeypatch.setattr(forked, "MAX_START_SECONDS", 0.0)
    found = phase(Uniform(), partial(in_one_piece, workers=2))  # no process is ready so soon
    assert teams == []
    assert_same(found.findings, phase(Uniform(), in_one_piece).findings)


def test_the_public_search_chooses_the_number_of_processes(monkeypatch, teams):
    monkeypatch.setattr("neuronfair.api.default_workers", lambda: 2)
    config = SearchConfig("uniform", seeds=40, steps=5, controls=False)
    search(planted(), DOMAIN_OF_RUN, ROWS, config)
    assert set(teams) == {2}
    del teams[:]
    search(planted(), DOMAIN_OF_RUN, ROWS, config, workers=1)
    assert teams == []


def test_a_process_does_what_is_ordered_and_nothing_else():
    context = networks.context(networks.one_biased_neuron(), DOMAIN_OF_RUN)
    rows = ROWS[:20]
    state = {name: torch.arange(20) for name in ("origin", "place")} | {"rows": rows, "found": torch.zeros(20).long()}
    shares = [Chains(make_stepper(context, Uniform(), exact=False, even=True), state, 0) for _ in range(2)]
    (theirs, orders), (results, answers) = Pipe(duplex=False), Pipe(duplex=False)
    for order in ((3, False), (5, False), (3, True)):
        orders.send(order)
    orders.close()
    with pytest.raises(EOFError):  # the caller has ended
        forked.serve(shares[0], context.network, theirs, answers)
    first, second, chains = (results.recv() for _ in range(3))
    assert (first.sizes, second.sizes, chains.end) == ([20] * 3, [20] * 2, 3)
    assert first.forward == 3 * 20 * 2
    expected = [step for _ in range(3) for _, step in shares[1].advance()]
    found = forked._unpack_block(first)
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(torch.equal(torch.from_numpy(chains.state[name]), x) for name, x in shares[1].state().items())
    assert isinstance(results, Connection)
