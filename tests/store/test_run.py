"""Run folders: killed at any moment they go on and find the same, bit for bit."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.model import PopulationModel, fit_population
from neuronfair.domain.population.storage import load_population
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.schema.toml import format_domain, parse_domain, read_domain
from neuronfair.domain.table import Target
from neuronfair.errors import OtherRunError, RunError
from neuronfair.searches import campaign, engine
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.findings import Findings
from neuronfair.store.ledger import DOMAIN, JOURNAL, MANIFEST, POPULATION, SEEDS, Journal, Ledger
from neuronfair.store.run import Run, read_back
from neuronfair.testing.cases import Young
from tests.conftest import PEOPLE
from tests.store.runs import (
    DOMAIN_OF_RUN,
    PLAN,
    PLANS,
    ROWS,
    Killed,
    Killer,
    assert_beginning,
    assert_same_run,
    contents,
    forged,
    killed_at,
    listing,
    make_manifest,
    planted,
    search,
    untimed,
)
from tests.store.test_tables import assert_same


@pytest.fixture(params=["neuronfair-plus", "frontier"], scope="module")
def config(request) -> SearchConfig:
    return PLANS[request.param]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, config, small_steps) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert min(search(folder, config)[phase] for phase in ("findings_global", "findings_local")) > 0
    return folder


# Kills


@pytest.mark.slow
def test_a_run_killed_between_any_two_file_operations_finds_the_same(tmp_path, config, reference):
    for call in itertools.count(step=1 if config.method == "neuronfair-plus" else 5):
        folder = tmp_path / f"killed-{call}"
        if not killed_at(call, folder, config):
            break
        if (folder / DOMAIN).exists():  # what was found can be looked at without going on
            assert_beginning(Run.open(folder).findings(), Run.open(reference).findings())
        search(folder, config)
        assert_same_run(folder, reference)
    assert call > 40  # the test has teeth: that many moments were tried


def test_a_run_that_is_killed_again_and_again_finds_the_same(tmp_path, config, reference):
    kills = 0
    while killed_at(5 + kills, tmp_path / "killed", config):
        kills += 1
    assert kills > 5
    assert_same_run(tmp_path / "killed", reference)


def test_a_journal_line_that_is_cut_off(tmp_path, config, reference, monkeypatch):
    append = Journal.append
    for number, share in zip(range(20), itertools.cycle((0.0, 0.5, 1.0)), strict=False):
        folder = tmp_path / f"torn-{number}-{share}"
        lines = itertools.count()

        def torn(journal: Journal, entry: dict[str, Any], number=number, share=share, lines=lines) -> None:
            before = journal.path.stat().st_size if journal.path.exists() else 0
            append(journal, entry)
            if next(lines) == number:
                text = journal.path.read_bytes()
                journal.path.write_bytes(text[: before + round(share * (len(text) - before - 1))])  # no line break
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", torn)
            try:
                search(folder, config)
                break
            except Killed:
                assert_beginning(Run.open(folder).findings(), Run.open(reference).findings())
        search(folder, config)
        assert_same_run(folder, reference)
    assert number > 4


def test_a_finished_run_is_not_searched_again(reference, config, monkeypatch):
    # The pilot of frontier is made anew: it is short, and only its findings are kept.
    before = contents(reference)
    asked = []
    monkeypatch.setattr(campaign._PhaseSequence, "random", lambda *_: asked.append("random"))
    monkeypatch.setattr(campaign._PhaseSequence, "random_directions", lambda *_: asked.append("blind"))
    if config.method != "frontier":
        monkeypatch.setattr(engine.PhaseTally, "record", lambda *_: asked.append("rows"))
    again = search(reference, config)
    assert asked == []
    assert untimed(again) == untimed(Run.open(reference).summary)
    after = contents(reference)
    assert {n: c for n, c in after.items() if n != JOURNAL} == {n: c for n, c in before.items() if n != JOURNAL}


def test_files_of_others_in_the_folder_are_left_alone(tmp_path, config, reference):
    folder = tmp_path / "killed"
    killed_at(25, folder, config)
    others = {".gitignore", "global-notes.txt", "local-plot.png", "model.safetensors", "figures.json"}
    others |= {"global-00007.parquet", "local-00009.state.safetensors", ".global-00000.parquet.k3j_x90a.parquet"}
    others |= {".local-00001.keys.npy.deadbeef", "pilot-00002.keys.npy"}
    for name in others:
        (folder / name).write_text("mine", encoding="utf-8")
    search(folder, config)
    assert set(listing(folder)) - set(listing(reference)) == others
    assert all((folder / name).read_text(encoding="utf-8") == "mine" for name in others)


def test_a_file_in_the_way_of_a_checkpoint_is_not_overwritten(tmp_path, config):
    run = Run.create_or_open(tmp_path / "run", make_manifest(config), DOMAIN_OF_RUN)
    (run.folder / SEEDS).write_text("mine", encoding="utf-8")
    with pytest.raises(RunError, match=f"{SEEDS}: is not in journal.jsonl"):
        run.begin(ROWS[:1])
    assert (run.folder / SEEDS).read_text(encoding="utf-8") == "mine"


def test_half_a_file_of_a_killed_run_is_removed(halfway, tmp_path):
    mark = Run.open(halfway).mark
    (halfway / f".local-00002.parquet.{mark}").write_bytes(b"PAR1")
    before = contents(halfway)
    assert len(Run.open(halfway).lines) > 4
    assert contents(halfway) == before  # looking removes nothing
    search(tmp_path / "whole", PLAN)
    search(halfway, PLAN)
    assert_same_run(halfway, tmp_path / "whole")


def test_other_rows_to_start_from(halfway):
    run = Run.create_or_open(halfway, make_manifest(PLAN), DOMAIN_OF_RUN)
    run.begin(ROWS[: PLAN.seeds])
    with pytest.raises(RunError, match="begun with other rows to start from"):
        run.begin(ROWS[1 : PLAN.seeds + 1])


def test_a_run_that_is_being_written_can_be_looked_at(tmp_path, config, monkeypatch):
    """Looking while another process goes from one checkpoint to the next: the files that were read about are gone."""
    folder, checks, seen = tmp_path / "run", [], []
    check = Ledger._check_files

    def late(run: Ledger) -> None:
        checks.append(len(run.lines))
        if len(checks) == 2:  # the reader has read the journal; now the writer goes on
            writer.checkpoint("local", where)
        check(run)

    monkeypatch.setattr(Ledger, "_check_files", late)
    writer = Run.create_or_open(folder, make_manifest(config), DOMAIN_OF_RUN)
    writer.begin(ROWS[:2])
    none = Findings.empty(DOMAIN_OF_RUN, 2)
    where = engine.Checkpoint(1, {"rows": ROWS[:2]}, none, torch.zeros(0, 2, dtype=torch.int64))
    writer.checkpoint("local", where)
    seen = Run.open(folder).lines
    assert checks == [0, 2, 3]
    assert [line["event"] for line in seen] == ["begin", "part", "part"]


# A full disk


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, 0.8, 0.9])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk(tmp_path, config, reference, monkeypatch, share, call):
    folder = tmp_path / "full"
    real, count = getattr(os, call), itertools.count()
    total = {"fsync": 0, "replace": 0}

    def counted(*values: Any, **options: Any) -> Any:
        total[call] += 1
        return real(*values, **options)

    def full(*values: Any, **options: Any) -> Any:
        if next(count) >= share * total[call]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*values, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, counted)
        search(tmp_path / "counted", config)
        patch.setattr(os, call, full)
        with pytest.raises(RunError, match=r"No space left on device.*Earlier findings are saved"):
            search(folder, config)
    if (folder / DOMAIN).exists():
        assert_beginning(Run.open(folder).findings(), Run.open(reference).findings())
    search(folder, config)
    assert_same_run(folder, reference)


def test_seeds_beyond_the_bounds_are_kept_as_the_walkers_start(tmp_path):
    run = Run.create_or_open(tmp_path / "run", make_manifest(PLAN), DOMAIN_OF_RUN)
    run.begin(torch.tensor([[300, -1, 3, 4, 0]]))  # 300 does not fit a byte
    assert run.seeds.tolist() == [[9, 0, 3, 4, 0]]
    assert np.load(run.folder / SEEDS).dtype == np.int8


# Runs of something else


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"weights": "x"}, "other weights"),
        ({"domain": "x"}, "another domain"),
        ({"rows": "x"}, "another table"),
        ({"population": "x"}, "another population"),
    ],
)
def test_a_run_of_another_model_domain_or_table(halfway, other, says):
    before = contents(halfway)
    with pytest.raises(RunError, match=f"{halfway}.*begun with {says}.*Choose another --out"):
        Run.create_or_open(halfway, make_manifest(PLAN, **other), DOMAIN_OF_RUN)
    assert contents(halfway) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("method", "uniform"),
        ("seeds", 7),
        ("steps", 1),
        ("global_steps", 9),
        ("seconds", 3.5),
        ("seed", 1),
        ("plausible", 0.1),
    ],
)
def test_a_run_with_another_option(halfway, option, value):
    other = make_manifest(dataclasses.replace(PLAN, **{option: value}))
    was = getattr(PLAN, option)
    with pytest.raises(RunError, match=f"begun with {option} = {was}, not {value}"):
        Run.create_or_open(halfway, other, DOMAIN_OF_RUN)


def test_a_run_that_is_older_than_a_setting_goes_on_without_it(tmp_path):
    old = make_manifest(PLAN)
    del old["plan"]["plausible"], old["plan"]["twins"]
    Run.create_or_open(tmp_path / "run", old, DOMAIN_OF_RUN)
    assert Run.create_or_open(tmp_path / "run", make_manifest(PLAN), DOMAIN_OF_RUN).population is None
    other = make_manifest(dataclasses.replace(PLAN, plausible=0.1))
    with pytest.raises(RunError, match=r"begun with plausible = 0\.0, not 0\.1"):
        Run.create_or_open(tmp_path / "run", other, DOMAIN_OF_RUN)
    other = make_manifest(dataclasses.replace(PLAN, twins="counterfactual"))
    with pytest.raises(RunError, match=r"begun with twins = flip, not counterfactual"):
        Run.create_or_open(tmp_path / "run", other, DOMAIN_OF_RUN)


def test_the_population_is_kept_with_the_run(tmp_path):
    population = fit_population(DOMAIN_OF_RUN, ROWS)
    made = Run.create_or_open(tmp_path / "run", make_manifest(PLAN), DOMAIN_OF_RUN)
    made.begin(ROWS[:3], population)
    again = Run.open(tmp_path / "run").population
    assert again is not None
    assert torch.equal(again.plausibility(ROWS), population.plausibility(ROWS))
    u = torch.rand(20, population.draws_per_row, dtype=torch.float64)
    assert torch.equal(again.rows_at(u), population.rows_at(u))
    content = (tmp_path / "run" / POPULATION).read_bytes()
    (tmp_path / "run" / POPULATION).write_bytes(content[:-1])
    with pytest.raises(RunError, match=f"{POPULATION}: damaged: it is not as it was written"):
        Run.open(tmp_path / "run")
    with pytest.raises(
        RunError, match=r"bad\.safetensors: not a population that can be read.*What was found is still there"
    ):
        read_back(load_population, tmp_path / "bad.safetensors", DOMAIN_OF_RUN)


def test_a_population_of_ones_own_is_not_kept(tmp_path):
    made = Run.create_or_open(tmp_path / "run", make_manifest(PLAN), DOMAIN_OF_RUN)
    made.begin(ROWS[:3], Young(DOMAIN_OF_RUN))
    assert Run.open(tmp_path / "run").population is None


def test_a_plausible_search_that_is_killed_again_and_again_finds_the_same(tmp_path):
    config = dataclasses.replace(PLAN, plausible=0.3)

    def searched(folder: Path, usual: PopulationModel | None) -> None:
        run = Run.create_or_open(folder, make_manifest(config), DOMAIN_OF_RUN)
        known = {"population": run.population or usual}
        run.finish(campaign.search(planted(), DOMAIN_OF_RUN, ROWS, config, recorder=run, **known).summary())

    def killed(usual: PopulationModel | None) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, after=14)
            try:
                searched(tmp_path / "run", usual)
            except Killed:
                return True
        return False

    usual = fit_population(DOMAIN_OF_RUN, ROWS)
    searched(tmp_path / "whole", usual)
    assert killed(usual)
    other = fit_population(DOMAIN_OF_RUN, ROWS[:20])  # is not looked at: the run has its own
    kills = sum(1 for _ in iter(lambda: killed(other), False))
    assert kills > 2
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    found = Run.open(tmp_path / "run").findings()
    assert len(found) > 0
    assert (found.plausibility >= 0.3).all()


def test_a_run_with_other_sensitive_attributes(halfway):
    other = make_manifest(PLAN)
    other["plan"]["sensitive"] = ["s", "a0"]
    with pytest.raises(RunError, match="sensitive"):
        Run.create_or_open(halfway, other, DOMAIN_OF_RUN)


def test_a_folder_that_is_not_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(RunError, match="exists and is not a run folder"):
            search(folder, PLAN)
        with pytest.raises(RunError):
            Run.open(folder)
    with pytest.raises(RunError, match="not a run folder"):
        Run.open(tmp_path / "nothing")
    assert listing(tmp_path) == ["notes.txt"]


def test_an_empty_folder_becomes_a_run(tmp_path, config, reference):
    folder = tmp_path / "empty"
    folder.mkdir()
    search(folder, config)
    assert_same_run(folder, reference)


# The domain in the folder


def test_the_domain_in_the_folder_is_the_same(reference):
    domain = read_domain(reference / DOMAIN)
    assert domain.fingerprint == DOMAIN_OF_RUN.fingerprint
    assert domain.sensitive == DOMAIN_OF_RUN.sensitive


def test_the_people_and_the_catalogue_come_back_from_their_text(people):
    from neuronfair.domain.tables.dataset import DATASETS, catalog_domain

    assert parse_domain(format_domain(people)) == people
    assert parse_domain(format_domain(people)).fingerprint == parse_domain(PEOPLE).fingerprint
    for name, encoding in itertools.product(DATASETS, ("default", "paper")):
        domain = catalog_domain(name, encoding)
        assert parse_domain(format_domain(domain)) == domain
        assert parse_domain(format_domain(domain)).fingerprint == domain.fingerprint


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ODD = st.one_of(
    TEXT, st.sampled_from(['"', "'", '"""', "\\", "[a]", "a.b", "a = 1", "# no", "\n", "\r\n", "\x7f", "ü"])
)
NUMBER = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6, allow_nan=False))


@st.composite
def odd_domains(draw: st.DrawFn) -> TableDomain:
    def labels(least: int, most: int) -> tuple[str, ...]:
        return tuple(draw(st.lists(ODD, min_size=least, max_size=most, unique=True)))

    def column(name: str) -> Attribute:
        kind = draw(st.sampled_from(["ordinal", "nominal", "flag", "continuous"]))
        shape = {"encode": draw(st.sampled_from(["raw", "scaled", "onehot"]))}
        shape |= {"center": draw(NUMBER), "scale": draw(st.floats(0.001, 1e6))}
        if kind == "flag":
            return Attribute(name, kind, values=draw(st.sampled_from([(), labels(2, 2)])), **shape)
        if kind == "nominal":
            values = labels(2, 5)
            return Attribute(name, kind, values=values, missing=draw(st.sampled_from([None, values[0]])), **shape)
        low, step = draw(NUMBER), draw(st.sampled_from([1, 0.1, 0.25, 2, 1e-3]))
        missing = draw(st.sampled_from([None, low]))
        return Attribute(name, kind, low=low, high=low + step * draw(st.integers(1, 50)), step=step, missing=missing)

    attributes = tuple(map(column, labels(2, 5)))
    first, last = attributes[0], attributes[-1]
    condition = (first.values[0],) if first.values else Span(high=float(first.low))
    then = {last.name: (last.values[0],) if last.values else Span(low=float(last.high))}
    rule = Rule(draw(ODD), {first.name: condition}, then if draw(st.booleans()) else {})
    return TableDomain(
        draw(ODD),
        attributes,
        (last.name,),
        rules=draw(st.sampled_from([(), (rule,)])),
        target=draw(st.sampled_from([None, Target(draw(ODD), labels(2, 3))])),
        encoding=draw(ODD),
        description=draw(ODD),
        outside=draw(st.sampled_from(["error", "keep"])),
    )


@given(odd_domains())
@settings(max_examples=60, deadline=None)
def test_a_domain_with_odd_names_comes_back_from_its_file(tmp_path_factory, domain):
    folder = tmp_path_factory.mktemp("odd") / "run"
    manifest = make_manifest(PLANS["neuronfair-plus"], domain=domain.fingerprint)
    Run.create_or_open(folder, manifest, domain)
    there = Run.open(folder).domain
    assert there == domain
    assert there.fingerprint == domain.fingerprint


def older(folder: Path, config: SearchConfig, name: str) -> None:
    """Make the run folder of a version with other names of methods, which does not say whose names it means."""
    search(folder, config)
    forged(folder, MANIFEST, '"method_names"', '"unknown"')
    forged(folder, MANIFEST, f'"method": "{config.method}"', f'"method": "{name}"')


def test_an_older_run_of_neuronfair_goes_on_as_neuronfair_plus_only(tmp_path):
    plan = replace(PLANS["neuronfair-plus"], controls=False)
    older(tmp_path / "run", plan, "neuronfair")
    assert Run.open(tmp_path / "run").manifest["plan"]["method"] == "neuronfair-plus"
    assert search(tmp_path / "run", plan)["findings"] == len(Run.open(tmp_path / "run").findings())
    with pytest.raises(OtherRunError, match=r"method = neuronfair-plus .its name since version 0.3., not neuronfair"):
        search(tmp_path / "run", replace(plan, method="neuronfair"))


def test_an_older_run_as_printed_has_its_new_name(tmp_path):
    older(tmp_path / "run", replace(PLAN, method="neuronfair-printed", controls=False), "neuronfair-paper")
    assert Run.open(tmp_path / "run").manifest["plan"]["method"] == "neuronfair-printed"


def test_a_run_of_neuronfair_keeps_its_name(tmp_path):
    plan = replace(PLANS["neuronfair-plus"], method="neuronfair", controls=False)
    search(tmp_path / "run", plan)
    assert Run.open(tmp_path / "run").manifest["plan"]["method"] == "neuronfair"


@pytest.mark.parametrize("kind", ["halfway", "done"])
def test_a_run_with_the_older_names_of_counts_is_read_and_resumed(kind, halfway, tmp_path):
    if kind == "done":
        search(tmp_path / "done", PLAN)
    folder = tmp_path / "done" if kind == "done" else halfway
    before, summary = Run.open(folder).findings(), Run.open(folder).summary
    while '"evaluated"' in (folder / JOURNAL).read_text(encoding="utf-8"):
        forged(folder, JOURNAL, '"evaluated"', '"judged"')
    if kind == "done":
        forged(folder, JOURNAL, '"rows_evaluated"', '"rows_judged"')
    assert_same(Run.open(folder).findings(), before)
    assert Run.open(folder).summary == summary
    assert untimed(search(folder, PLAN)) == untimed(search(tmp_path / "new", PLAN))
