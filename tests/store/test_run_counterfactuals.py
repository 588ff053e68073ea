"""Runs that compare people with counterfactuals keep what makes these again."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from zlib import crc32

import pyarrow.parquet as pq
import pytest
import torch

from neuronfair.domain.population.counterfactuals import CounterfactualTwins, fit_counterfactuals
from neuronfair.domain.population.storage import save_counterfactuals
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import RunError
from neuronfair.searches import campaign
from neuronfair.searches.config import SearchConfig
from neuronfair.store import run as runs
from neuronfair.store.ledger import COUNTERFACTUALS, JOURNAL, check_same, make_manifest
from neuronfair.store.run import Run
from tests.planted.proxies import by_a, moved_domain, moved_rows
from tests.store.runs import Killed, Killer, assert_same_run, forged

DOMAIN, ROWS = moved_domain(), moved_rows()
PLAN = SearchConfig(method="aequitas", seeds=12, steps=9, global_steps=4, controls=False, twins="counterfactual")


@pytest.fixture(scope="module")
def beside() -> CounterfactualTwins:
    return fit_counterfactuals(DOMAIN, ROWS)


def manifest(config: SearchConfig) -> dict:
    data = Dataset("moved", DOMAIN, ROWS, torch.zeros(len(ROWS), dtype=torch.int64))
    return make_manifest(config, data, model="m.safetensors", weights="w", outputs=2)


def searched(folder: Path, fitted: CounterfactualTwins) -> None:
    """What `neuronfair search --twins counterfactual` does around a campaign."""
    run = Run.create_or_open(folder, manifest(PLAN), DOMAIN)
    known = {"counterfactuals": run.counterfactuals or fitted}
    run.finish(campaign.search(by_a(DOMAIN), DOMAIN, ROWS, PLAN, recorder=run, **known).summary())


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_steps, beside) -> Path:
    folder = tmp_path_factory.mktemp("counterfactuals") / "run"
    searched(folder, beside)
    return folder


def test_whoever_opens_a_run_has_the_same_counterfactuals(whole, beside):
    run = Run.open(whole)
    found = run.findings()
    assert len(found) > 0
    assert (run.domain.twin_columns, run.declared.twin_columns) == ((0, 1, 2), (2,))
    assert isinstance(run.counterfactuals, CounterfactualTwins)
    assert torch.equal(run.domain.twins(ROWS).rows, beside.twins(DOMAIN, ROWS).rows)
    # The twin of a finding is the counterfactual that can be made again.
    assert (run.domain.twins(found.rows).rows == found.twins(run.domain)[:, None]).all(2).any(1).all()
    part = pq.ParquetFile(whole / "local-00000.parquet").read()
    assert {"twin_a", "twin_b", "twin_group"} <= set(part.column_names)
    assert part["twin_a"].to_pylist()[0] != part["a"].to_pylist()[0]
    assert run.domain is run.domain  # read once


def test_a_search_that_is_killed_again_and_again_finds_the_same(tmp_path, whole, beside, monkeypatch):
    def killed(fitted: CounterfactualTwins) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, after=14)
            try:
                searched(tmp_path / "run", fitted)
            except Killed:
                return True
        return False

    assert killed(beside)
    other = dataclasses.replace(beside, groups=beside.groups & False)  # is not looked at: the run has its own
    assert sum(1 for _ in iter(lambda: killed(other), False)) > 1
    assert_same_run(tmp_path / "run", whole)
    assert (tmp_path / "run" / COUNTERFACTUALS).read_bytes() == (whole / COUNTERFACTUALS).read_bytes()


def test_a_damaged_or_forged_file_is_refused(tmp_path, beside):
    folder = tmp_path / "run"
    Run.create_or_open(folder, manifest(PLAN), DOMAIN).begin(ROWS[:3], None, beside)
    check = Run.open(folder).lines[0]["crc32"]["counterfactuals"]
    content = (folder / COUNTERFACTUALS).read_bytes()
    (folder / COUNTERFACTUALS).write_bytes(content[:-1])
    with pytest.raises(RunError, match=f"{COUNTERFACTUALS}: damaged: it is not as it was written"):
        Run.open(folder)
    (folder / COUNTERFACTUALS).write_bytes(content.replace(b'"kept"', b'"kepd"'))
    forged(folder, JOURNAL, str(check), str(crc32((folder / COUNTERFACTUALS).read_bytes())))
    run = Run.open(folder)
    with pytest.raises(RunError, match=rf"{COUNTERFACTUALS}: not a population that can be read.*is still there"):
        run.findings()
    (folder / COUNTERFACTUALS).unlink()
    with pytest.raises(RunError, match=f"{COUNTERFACTUALS}: is gone"):
        Run.open(folder)


def test_a_run_of_version_0_2_is_read(tmp_path, beside, monkeypatch):
    files = {"counterparts": ("counterparts.safetensors", partial(save_counterfactuals, beside))}
    monkeypatch.setattr(runs, "population_writers", lambda *_: files)
    Run.create_or_open(tmp_path / "run", manifest(PLAN), DOMAIN).begin(ROWS[:3], None, beside)
    assert torch.equal(Run.open(tmp_path / "run").counterfactuals.groups, beside.groups)


def test_a_file_of_counterfactuals_that_no_line_names(tmp_path):
    folder = tmp_path / "run"
    Run.create_or_open(folder, manifest(PLAN), DOMAIN)
    (folder / COUNTERFACTUALS).write_bytes(b"mine")
    with pytest.raises(RunError, match=rf"{COUNTERFACTUALS}: is not in {JOURNAL}"):
        Run.create_or_open(folder, manifest(PLAN), DOMAIN)


def test_manifests_of_flips_are_as_they_were():
    flips, counterfactuals = (manifest(dataclasses.replace(PLAN, twins=kind)) for kind in ("flip", "counterfactual"))
    assert "twins" not in flips["plan"]
    assert counterfactuals["plan"]["twins"] == "counterfactual"
    check_same(Path("run"), flips, flips)
    with pytest.raises(RunError, match="begun with twins = counterfactual, not flip"):
        check_same(Path("run"), counterfactuals, flips)
    with pytest.raises(RunError, match="begun with twins = flip, not counterfactual"):
        check_same(Path("run"), flips, counterfactuals)
