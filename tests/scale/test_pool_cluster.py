"""A cluster of two machines, both on this one: workers and a machine die, and nothing is lost or different."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest

from neuronfair.errors import ModelError, NeuronFairError, RunError
from neuronfair.scale.pool import Ray, cluster
from neuronfair.searches import campaign
from neuronfair.searches.campaign import PhaseTask, SearchResult
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.method import Method
from neuronfair.store import shard_runner
from neuronfair.store.run import Run
from neuronfair.store.shard_runner import ShardRunner
from tests.conftest import ROOT
from tests.store.runs import DOMAIN_OF_RUN, ROWS, assert_same_run, make_manifest, planted

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray", reason="needs the extra [ray]")

PLAN = SearchConfig(method="neuronfair-plus", seeds=12, steps=12, global_steps=4, controls=False)
QUICK = {"health_check_period_ms": 1_000}  # five in vain: the machine is lost


class Machines:
    """A cluster of two machines with one core each, of which the second can be taken away and put back."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        first = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK}
        self.cluster = Cluster(initialize_head=True, head_node_args=first)
        self.second = self.cluster.add_node(num_cpus=1)
        self.cluster.wait_for_nodes()

    def lose_the_second(self) -> None:
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = None


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")  # of the workers, which import this file
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setattr(shard_runner, "MIN_CHAINS_PER_SHARD", {})
        patch.setattr(shard_runner, "MAX_STEPS_PER_PART", 3)
        patch.setattr(campaign, "cluster_seeds", lambda _, rows, count, seed: rows[:count])
        patch.setattr(campaign, "check_health", lambda *_: ())
        made = Machines()
        try:
            with cluster(made.cluster.address):
                yield made
        finally:
            made.cluster.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, machines) -> Path:
    """An undisturbed search in one piece."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            campaign, "PhaseRecording", lambda *given, **said: shard_runner.PhaseRecording(*given, interval=3, **said)
        )
        searched(folder, campaign.in_one_piece)
    return folder


def searched(
    folder: Path,
    runner: campaign.PhaseRunner | None = None,
    upset: Callable[[PhaseTask], PhaseTask] | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Search in a run folder, on the cluster unless it is said who walks; some phases are upset."""
    run = Run.create_or_open(folder, make_manifest(PLAN), DOMAIN_OF_RUN)
    shards = ShardRunner(Ray(), folder / "shards", run=run)

    def progress(phase: str, *_: int) -> None:
        told(phase)

    def scatter(task: PhaseTask) -> campaign.PhaseResult:
        mine = upset is not None and task.name == "local" and task.recorder is not None
        return shards(upset(task) if mine else task)

    outcome = campaign.search(
        planted(), DOMAIN_OF_RUN, ROWS, PLAN, recorder=run, progress=progress, runner=runner or scatter
    )
    if not outcome.interrupted:
        run.finish(outcome.summary())
        shards.remove()
    return outcome


@dataclass(frozen=True)
class Upset:
    """A method that does something else first, in the worker, when a chain of the given place comes to a step."""

    method: Method
    act: Callable[[Path], None]
    folder: Path
    step: int
    place: int | None = None

    def start(self, context, state):
        return self.method.start(context, state)

    def ask(self, context, state, t):
        if t == self.step and self.place in (None, int(state["place"][0])):
            self.act(self.folder)
        return self.method.ask(context, state, t)

    def tell(self, context, state, rows, evaluation, t):
        return self.method.tell(context, state, rows, evaluation, t)


def die_once(folder: Path) -> None:
    if not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def wait(folder: Path) -> None:
    """Say on which machine this is, and wait to be let go."""
    (folder / f"at-{ray.get_runtime_context().get_node_id()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)


def fail(_: Path) -> None:
    raise ModelError("this model has had enough")


def squared(shared: int, item: int, note: Callable[..., None]) -> int:
    note(item, 10, 0)
    if item == shared:
        raise NeuronFairError("expected another number, got this one")
    return item * item


def test_results_come_in_the_order_of_the_items_and_an_error_is_itself(machines):
    pool, lines = Ray(), []
    assert pool.size == 2
    assert list(pool.map(squared, -1, range(5), progress=lines.append)) == [0, 1, 4, 9, 16]
    assert len(lines[-1]) == 5
    assert list(pool.map(squared, 0, [])) == []
    with pytest.raises(NeuronFairError, match=r"^expected another number, got this one$"):
        list(pool.map(squared, 3, range(5)))
    with pytest.raises(NeuronFairError, match=r"^--device cuda: the cluster has no GPU$"):
        list(pool.map(squared, 3, range(5), gpus=1.0))
    with pytest.raises(NeuronFairError, match="cannot be sent to other processes"):
        list(pool.map(squared, threading.Lock(), [1]))


def lacking(shared: object, item: str, note: Callable[..., None]) -> None:
    if item.startswith("/"):
        os.chdir(item)
    __import__(item)


def test_what_a_machine_lacks_is_said_in_one_line(machines, tmp_path, monkeypatch):
    said = r"^--ray: on a machine of the cluster: .*"
    with pytest.raises(NeuronFairError, match=said + r"No such file or directory: '/only/here'$"):
        list(Ray().map(lacking, 0, ["/only/here"]))
    with pytest.raises(NeuronFairError, match=said + r"No module named 'not_installed_there'$"):
        list(Ray().map(lacking, 0, ["not_installed_there"]))
    (tmp_path / "only_here.py").write_text("class Model:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = import_module("only_here").Model()
    with pytest.raises(NeuronFairError, match=said + r"No module named 'only_here'$"):
        list(Ray().map(lacking, model, ["os"]))
    with pytest.raises(NeuronFairError, match=said + r"No module named 'only_here'$"):
        list(Ray().map(lacking, 0, [model]))


def test_after_ctrl_c_the_same_search_goes_on(machines, whole, tmp_path):
    def told(phase: str) -> None:
        if list(tmp_path.glob("at-*")) and not (tmp_path / "go").exists():
            (tmp_path / "go").touch()
            signal.raise_signal(signal.SIGINT)

    outcome = searched(tmp_path / "run", upset=lambda task: replace(task, method=Upset(task.method, wait, tmp_path, 8)),
                       told=told)  # fmt: skip
    assert outcome.interrupted
    assert outcome.local_phase.stop == "interrupted"
    assert list((tmp_path / "run" / "shards").rglob("*.json"))
    assert not searched(tmp_path / "run").interrupted
    assert_same_run(tmp_path / "run", whole)


def test_a_model_that_fails_ends_all_in_one_line(machines, whole, tmp_path):
    with pytest.raises(ModelError, match=r"^this model has had enough. Earlier findings are saved"):
        searched(tmp_path / "run", upset=lambda task: replace(task, method=Upset(task.method, fail, tmp_path, 5)))
    searched(tmp_path / "run")
    assert_same_run(tmp_path / "run", whole)


def test_a_worker_that_cannot_write_says_where(machines, tmp_path):
    run = Run.create_or_open(tmp_path / "run", make_manifest(PLAN), DOMAIN_OF_RUN)
    taken = tmp_path / "run" / "shards" / run.mark / "local-00001"
    taken.parent.mkdir(parents=True)
    taken.touch()  # where a folder should be
    with pytest.raises(RunError, match=r"local-00001: cannot be written .*Earlier findings are saved"):
        searched(tmp_path / "run")


def test_a_killed_worker_and_a_lost_machine_change_nothing(machines, whole, tmp_path):
    def upset(task: PhaseTask) -> PhaseTask:
        dying = Upset(task.method, die_once, tmp_path, step=5, place=0)  # after the checkpoint of step 3
        return replace(task, method=Upset(dying, wait, tmp_path, step=8))

    def told(phase: str) -> None:
        if machines.second is not None and (tmp_path / f"at-{machines.second.node_id}").exists():
            machines.lose_the_second()
            (tmp_path / "go").touch()

    searched(tmp_path / "run", upset=upset, told=told)
    assert (tmp_path / "died").exists()
    assert machines.second is None
    assert_same_run(tmp_path / "run", whole)
