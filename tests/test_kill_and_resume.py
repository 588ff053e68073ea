"""The benchmark that kills commands: it would notice what is lost, different or left over."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def paths(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("kill_and_resume")


@pytest.fixture
def stages() -> ModuleType:
    return importlib.import_module("stages")


def run_folder(folder: Path, findings: int = 3, parts: int = 2) -> None:
    """What a search leaves behind: a journal and the parts that it names."""
    (folder / "run").mkdir(parents=True, exist_ok=True)
    for part in range(parts):
        pq.write_table(pa.table({"age": [30 + i for i in range(findings)]}), folder / "run" / f"local-{part}.parquet")
    lines = "".join(f'{{"part": "local-{part}.parquet"}}\n' for part in range(parts))
    (folder / "run" / "journal.jsonl").write_text(lines)


def test_every_stage_is_a_function_that_exists(stages):
    for functions in stages.STAGES.values():
        for place in functions:
            assert callable(getattr(stages.find(place)[2], "__func__", stages.find(place)[2])), place


def test_the_same_and_all_that_is_not(bench, tmp_path):
    whole, other = tmp_path / "whole", tmp_path / "other"
    run_folder(whole)
    run_folder(other)
    assert bench.differences(whole, other) == ()
    run_folder(other, findings=2)  # one finding is missing
    assert set(bench.differences(whole, other)) == {f"run/local-{part}.parquet is different" for part in (0, 1)}
    run_folder(other)
    (other / "run" / "local-1.parquet").rename(other / "run" / ".local-1.parquet.abcdefgh.parquet")
    assert set(bench.differences(whole, other)) == {
        "run/local-1.parquet is missing",
        "run/.local-1.parquet.abcdefgh.parquet is left over",
    }


def test_finished_work_that_is_gone_or_done_again(bench, tmp_path):
    run_folder(tmp_path, parts=2)
    journal = tmp_path / "run" / "journal.jsonl"
    journal.write_text(journal.read_text()[:-3])  # the second line is cut off: its part does not count
    cache = tmp_path / "out" / "cache-quick"
    cache.mkdir(parents=True)
    (cache / "train-1.json").write_text("{}")
    done = bench.finished(tmp_path)
    assert {path.name for path in done} == {"local-0.parquet", "train-1.json"}
    assert bench.losses(done) == ()
    (cache / "train-1.json").unlink()
    (tmp_path / "run" / "local-0.parquet").touch()
    assert set(bench.losses(done)) == {"train-1.json is gone", "local-0.parquet was written again"}


@pytest.mark.parametrize(("findings", "status"), [(3, 0), (2, 0), (3, 2)])
def test_a_resumed_run_with_a_finding_less_is_reported(bench, stages, tmp_path, monkeypatch, findings, status):
    run_folder(tmp_path / "search")
    work = bench.Work(tmp_path, {"search": []}, {}, {})
    order = stages.Order("search", str(tmp_path / "mark"), "local phase", 1, 0.0)

    def run(words, order, folder, output):
        output.write_text("what it said")
        if order.seconds is not None:
            return -9, order.stage
        run_folder(folder, findings)
        return status, stages.REST

    monkeypatch.setattr(stages, "run", run)
    kills = bench.attempt(work, bench.Trial(1, "search", (order, order)))
    assert [(kill.hit, kill.number) for kill in kills] == [("local phase", 1), ("local phase", 2)]
    wrong = findings != 3 or status != 0
    assert [bool(kill.different) for kill in kills] == [wrong, wrong]
    assert (tmp_path / "trial-1").exists() == wrong
    shown = bench.table(kills, type("Aims", (), {"stages": [("search", "local phase")]}))
    assert f"| all | 2 | {0 if wrong else 2} | {2 if wrong else 0} | 0 |" in shown


def test_a_kill_comes_at_the_event_that_was_ordered(stages, tmp_path, monkeypatch):
    killed = []
    monkeypatch.setattr(stages, "kill_after", killed.append)
    mark = tmp_path / "mark"
    mark.write_bytes(b" " * stages.NAME)
    watch = stages.Watch(stages.Order("search", str(mark), "inner", 2, 0.5))
    work = watch.watched(lambda: watch.file_event("os.rename", ()), "inner")
    outer = watch.watched(work, lambda: "outer")
    outer()  # events of the inner stage: its beginning and a rename
    assert (killed, watch.counts["inner"], watch.counts["outer"]) == ([], 2, 2)
    watch.watched(lambda: (work(), killed.append("later")), "outer")()
    assert killed == [0.5, "later"]
    assert mark.read_bytes().decode().strip() == stages.REST
