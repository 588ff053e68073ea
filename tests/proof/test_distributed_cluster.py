"""A cluster of two machines proves, a worker is killed, then a machine: the counts are those of a proof in peace."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neuronfair.audits.inputs import draw_records
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.proof import distributed
from neuronfair.proof import prove as proving
from neuronfair.proof.checker.check import check
from neuronfair.proof.problem import build_problem
from neuronfair.proof.records import ProofRecords
from neuronfair.proof.session import CERTIFICATE, SHARDS, ProofRequest, ProofRun, certify
from neuronfair.proof.state import ProofState
from neuronfair.scale.pool import Ray
from tests.proof.enumerable import RULES, domain_of, network_of, truth

pytestmark = pytest.mark.slow

pytest.importorskip("ray")


@pytest.fixture
def machines() -> Iterator[tuple[Any, Any]]:
    """A cluster of two machines with a core each, and the second one of them."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False)
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def doomed(marks: Path, second: str, problem: Any, piece: distributed.Piece, note: Callable[..., None]) -> ProofState:
    """Do a piece in small steps; in the second one the second machine hangs, and the other loses its worker once."""
    import ray

    proving.BOXES_PER_STEP, proving.MAX_ENUMERATED, proving.MIN_SECONDS_BETWEEN_STATES = {"cpu": 16}, 2, -1.0
    here, steps = ray.get_runtime_context().get_node_id(), 0

    def tell(*line: int) -> None:
        nonlocal steps
        steps += 1
        note(*line)
        if steps == 2 and here == second:
            (marks / "hangs").touch()
            time.sleep(1e6)
        if steps == 2 and not (marks / "killed").exists():
            (marks / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return distributed.continue_piece(problem, piece, tell)


@dataclass(frozen=True, kw_only=True)
class Doomed(Ray):
    """The cluster, with work that kills."""

    work: Callable[..., ProofState]

    def map(self, work: Any, shared: Any, items: Sequence[Any], **options: Any) -> Iterator[Any]:
        return super().map(
            self.work if work is distributed.continue_piece else work,
            shared,
            items,
            **options,
        )


def test_a_worker_and_a_machine_are_killed(tmp_path, machines, monkeypatch):
    cluster, second = machines
    monkeypatch.setattr(distributed, "BOXES_PER_PIECE", 1)
    monkeypatch.setattr(distributed, "MIN_ROUND_SECONDS", 100.0)  # so that no piece ends before its second step
    monkeypatch.setattr(proving, "MAX_ENUMERATED", 2)
    decision = Decision("tolerance", 0.6)
    domain = domain_of(*RULES)
    data = draw_records(domain)
    opened = wrap_model(network_of(domain, 1), domain, data.rows, decision=decision)
    problem = build_problem(opened, domain)
    marks = tmp_path / "marks"
    marks.mkdir()
    events = []

    def watch(*told: Any) -> None:
        """Kill the second machine in the middle of a piece, when the worker of another is gone."""
        if not events and {path.name for path in marks.iterdir()} == {"hangs", "killed"}:
            assert list((tmp_path / "run" / SHARDS).rglob("*.state"))
            events.append(told)
            cluster.remove_node(second, allow_graceful=False)

    run = ProofRun.create_or_open(tmp_path / "run", data, ProofRequest(decision), model="m", weights="w", outputs=1)
    report, _ = certify(
        problem,
        opened,
        ProofRecords.of(problem, data),
        600.0,
        show=watch,
        run=run,
        pool=Doomed(work=partial(doomed, marks, second.node_id)),
    )
    assert events
    assert report.complete
    true = truth(opened.model, domain, decision)
    counts = (report.people.count, report.proved_fair.count, report.proved_discriminatory.count)
    assert tuple(map(int, counts)) == true
    found = check(tmp_path / "run" / CERTIFICATE, opened)
    assert (found.record_count, found.fair, found.discriminatory) == true
    assert not (tmp_path / "run" / SHARDS).exists()
