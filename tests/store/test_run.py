"""Run folders: killed at any moment they go on and find the same, bit for bit; damage is named, never deleted."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronfair import Network, TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule, Span
from neuronfair.domain.table import Target
from neuronfair.domain.toml import format_domain, parse_domain, read_domain
from neuronfair.errors import RunError
from neuronfair.generation import campaign, engine
from neuronfair.generation.campaign import Plan
from neuronfair.generation.findings import Findings
from neuronfair.generation.methods import frontier
from neuronfair.store.journal import JOURNAL
from neuronfair.store.manifest import MANIFEST
from neuronfair.store.run import DOMAIN, SEEDS, Run
from tests.conftest import PEOPLE
from tests.planted import networks
from tests.store.test_tables import assert_same

DOMAIN_OF_RUN = networks.domain()
ROWS = networks.uniform_rows(DOMAIN_OF_RUN, 400)
ROWS = ROWS[(ROWS[:, :4].sum(1) - 19.5).abs() < 3]  # not far from the boundary, so that both phases find some
PLANS = {
    "neuronfair": Plan(method="neuronfair", seeds=12, steps=4, global_steps=4),
    "frontier": Plan(method="frontier", seeds=4, steps=5, global_steps=4, controls=False),
}


@pytest.fixture(autouse=True, scope="module")
def small_steps():
    """A checkpoint every three steps, a short pilot, and no waiting for the disk or for what is not tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(engine.search.__kwdefaults__, "every", 3)
        patch.setattr(frontier, "PILOT_STEPS", 3)
        patch.setattr(os, "fsync", lambda _: None)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        patch.setattr(campaign, "cluster_seeds", lambda _, rows, count, seed: rows[:count])
        patch.setattr(campaign, "check_health", lambda *_: ())
        yield
        torch.set_num_threads(threads)


def planted() -> Network:
    return networks.network(networks.one_biased_neuron(), DOMAIN_OF_RUN)


def make_manifest(plan: Plan, **other: Any) -> dict[str, Any]:
    fixed = {"model": "m.safetensors", "weights": "w", "domain": DOMAIN_OF_RUN.fingerprint, "rows": "r", "outputs": 2}
    return fixed | {"plan": {"sensitive": ["s"], **asdict(plan)}} | other


def search(folder: Path, plan: Plan) -> dict[str, Any]:
    """What `neuronfair search` does around a campaign."""
    run = Run.create_or_open(folder, make_manifest(plan), DOMAIN_OF_RUN, 2)
    outcome = campaign.find(planted(), DOMAIN_OF_RUN, ROWS, plan, recorder=run)
    run.finish(outcome.summary())
    return outcome.summary()


def untimed(summary: dict[str, Any] | None) -> dict[str, Any]:
    assert summary is not None
    return {name: value for name, value in summary.items() if not name.startswith("seconds")}


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same_run(folder: Path, reference: Path) -> None:
    one, other = Run.open(folder), Run.open(reference)
    assert_same(one.findings(), other.findings())
    assert untimed(one.summary) == untimed(other.summary)
    assert torch.equal(one.seeds, other.seeds)
    assert listing(folder) == listing(reference)


def assert_beginning(findings: Findings, whole: Findings) -> None:
    """Every finding is among those of the whole run."""
    lines = {tuple(line) for line in whole.rows.tolist()}
    assert {tuple(line) for line in findings.rows.tolist()} <= lines


@pytest.fixture(params=["neuronfair", "frontier"], scope="module")
def plan(request) -> Plan:
    return PLANS[request.param]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, plan, small_steps) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert min(search(folder, plan)[phase] for phase in ("findings_global", "findings_local")) > 0
    return folder


# Kills


class Killed(BaseException):
    """Stands for SIGKILL: from here on the process does nothing any more."""


class Killer:
    """Lets so many calls that change files through and kills the process at the next one."""

    CALLS = ((tempfile, "mkstemp"), (os, "fsync"), (os, "replace"), (os, "unlink"))

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        self.left, self.dead = after, False
        for module, name in self.CALLS:
            patch.setattr(module, name, self.deadly(getattr(module, name)))

    def deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*values: Any, **options: Any) -> Any:
            self.dead = self.dead or self.left == 0
            if self.dead:
                raise Killed
            self.left -= 1
            return call(*values, **options)

        return instead


def killed_at(call: int, folder: Path, plan: Plan) -> bool:
    """Search and be killed before the given call; return whether the search was still going on."""
    with pytest.MonkeyPatch.context() as patch:
        Killer(patch, call)
        try:
            search(folder, plan)
        except Killed:
            return True
    return False


def test_a_run_killed_between_any_two_file_operations_finds_the_same(tmp_path, plan, reference):
    for call in itertools.count(step=1 if plan.method == "neuronfair" else 5):
        folder = tmp_path / f"killed-{call}"
        if not killed_at(call, folder, plan):
            break
        if (folder / DOMAIN).exists():  # what was found can be looked at without going on
            assert_beginning(Run.open(folder).findings(), Run.open(reference).findings())
        search(folder, plan)
        assert_same_run(folder, reference)
    assert call > 50  # the test has teeth: that many moments were tried


def test_a_run_that_is_killed_again_and_again_finds_the_same(tmp_path, plan, reference):
    kills = 0
    while killed_at(5 + kills, tmp_path / "killed", plan):
        kills += 1
    assert kills > 5
    assert_same_run(tmp_path / "killed", reference)


def test_a_journal_line_that_is_cut_off(tmp_path, plan, reference, monkeypatch):
    write = Run._write
    for number, share in zip(range(20), itertools.cycle((0.0, 0.5, 1.0)), strict=False):
        folder = tmp_path / f"torn-{number}-{share}"
        lines = itertools.count()

        def torn(run: Run, line: dict[str, Any], number=number, share=share, lines=lines) -> None:
            if next(lines) < number:
                return write(run, line)
            text = json.dumps(line).encode()  # the line break is never reached
            with (run.folder / JOURNAL).open("ab") as journal:
                journal.write(text[: round(share * len(text))])
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Run, "_write", torn)
            try:
                search(folder, plan)
                break
            except Killed:
                assert_beginning(Run.open(folder).findings(), Run.open(reference).findings())
        search(folder, plan)
        assert_same_run(folder, reference)
    assert number > 4


def test_a_finished_run_is_not_searched_again(reference, plan, monkeypatch):
    # The pilot of frontier is made anew: it is short, and only its findings are kept.
    before = contents(reference)
    asked = []
    monkeypatch.setattr(campaign, "_random", lambda *_: asked.append("random"))
    monkeypatch.setattr(campaign, "_blind", lambda *_: asked.append("blind"))
    if plan.method != "frontier":
        monkeypatch.setattr(engine._Tally, "record", lambda *_: asked.append("rows"))
    again = search(reference, plan)
    assert asked == []
    assert untimed(again) == untimed(Run.open(reference).summary)
    after = contents(reference)
    assert {n: c for n, c in after.items() if n != JOURNAL} == {n: c for n, c in before.items() if n != JOURNAL}


def test_files_of_others_in_the_folder_are_left_alone(tmp_path, plan, reference):
    folder = tmp_path / "killed"
    killed_at(40, folder, plan)
    for name in (".gitignore", "global-notes.txt", "local-plot.png", "model.safetensors", "figures.json"):
        (folder / name).write_text("mine")
    search(folder, plan)
    assert {".gitignore", "global-notes.txt", "local-plot.png", "model.safetensors", "figures.json"} == (
        set(listing(folder)) - set(listing(reference))
    )


# A full disk


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("call", ["fsync", "mkstemp"])
def test_a_full_disk(tmp_path, plan, reference, monkeypatch, share, call):
    folder = tmp_path / "full"
    module = os if call == "fsync" else tempfile
    real, count = getattr(module, call), itertools.count()
    total = {"fsync": 0, "mkstemp": 0}

    def counted(*values: Any, **options: Any) -> Any:
        total[call] += 1
        return real(*values, **options)

    def full(*values: Any, **options: Any) -> Any:
        if next(count) >= share * total[call]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*values, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, call, counted)
        search(tmp_path / "counted", plan)
        patch.setattr(module, call, full)
        with pytest.raises(RunError, match=r"No space left on device.*What was found before is kept"):
            search(folder, plan)
    if (folder / DOMAIN).exists():
        assert_beginning(Run.open(folder).findings(), Run.open(reference).findings())
    search(folder, plan)
    assert_same_run(folder, reference)


# Damage


PLAN = PLANS["neuronfair"]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, small_steps) -> Path:
    """A run that was killed in the local phase, tidied up."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    for call in itertools.count(50, 2):
        shutil.rmtree(folder, ignore_errors=True)
        assert killed_at(call, folder, PLAN)
        if [line.get("phase") for line in Run.open(folder).lines].count("local") == 2:
            break
    Run.create_or_open(folder, make_manifest(PLAN), DOMAIN_OF_RUN, 2)
    return folder


@pytest.fixture
def halfway(tmp_path, interrupted) -> Path:
    """A copy of a run that was killed in the local phase, to be damaged."""
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


def refused(folder: Path) -> str:
    """Going on is refused in one line and changes no file but the seeds, which are the same."""
    before = contents(folder)
    with pytest.raises(RunError) as caught:
        search(folder, PLAN)
    assert contents(folder) == before
    message = str(caught.value)
    assert message.startswith(str(folder))
    assert "\n" not in message
    return message


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    place = len(content) - 5  # in the numbers of an array or a state, in the footer of a Parquet file
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("kind", ["parquet", "keys.npy", "misses.npy", "state.safetensors"])
@pytest.mark.parametrize("damage", [lambda _: b"", cut, flip, lambda _: None], ids=["empty", "cut", "flip", "gone"])
def test_a_damaged_file_is_named_and_nothing_is_deleted(halfway, kind, damage):
    path = max(p for p in halfway.glob("local-*") if p.name.endswith(kind))
    content = damage(path.read_bytes())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    message = refused(halfway)
    assert str(path) in message
    assert "damaged" in message


def test_every_changed_byte_of_a_part_is_noticed(halfway):
    for path in halfway.glob("local-00000.*"):
        whole = path.read_bytes()
        for place in range(0, len(whole), max(1, len(whole) // 25)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x20]) + whole[place + 1 :])
            with pytest.raises(RunError, match=f"{path}: .*damaged"):
                Run.open(halfway).resume("local")
        path.write_bytes(whole)


def test_a_damaged_line_of_the_journal_is_named(halfway):
    journal = halfway / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) > 2
    for number in range(len(lines)):
        for bad in (b"{\n", b"\x00\xff\n", b"\n", b"[]\n", b'{"event": "part"}\n', b'{"event": "party"}\n'):
            journal.write_bytes(b"".join([*lines[:number], bad, *lines[number + 1 :]]))
            assert f"line {number + 1} is damaged" in refused(halfway)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00", '{"plan": 3}'])
def test_a_damaged_manifest(halfway, text):
    (halfway / MANIFEST).write_text(text)
    assert MANIFEST in refused(halfway)
    with pytest.raises(RunError, match=MANIFEST):
        Run.open(halfway)


def test_seeds_beyond_the_bounds_are_kept_as_the_walkers_start(tmp_path):
    run = Run.create_or_open(tmp_path / "run", make_manifest(PLAN), DOMAIN_OF_RUN, 2)
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
    ],
)
def test_a_run_of_another_model_domain_or_table(halfway, other, says):
    before = contents(halfway)
    with pytest.raises(RunError, match=f"{halfway}.*begun with {says}.*Choose another --out"):
        Run.create_or_open(halfway, make_manifest(PLAN, **other), DOMAIN_OF_RUN, 2)
    assert contents(halfway) == before


@pytest.mark.parametrize(
    ("option", "value"),
    [("method", "uniform"), ("seeds", 7), ("steps", 1), ("global_steps", 9), ("seconds", 3.5), ("seed", 1)],
)
def test_a_run_with_another_option(halfway, option, value):
    other = make_manifest(dataclasses.replace(PLAN, **{option: value}))
    was = getattr(PLAN, option)
    with pytest.raises(RunError, match=f"begun with {option} = {was}, not {value}"):
        Run.create_or_open(halfway, other, DOMAIN_OF_RUN, 2)


def test_a_run_with_other_sensitive_attributes(halfway):
    other = make_manifest(PLAN)
    other["plan"]["sensitive"] = ["s", "a0"]
    with pytest.raises(RunError, match="sensitive"):
        Run.create_or_open(halfway, other, DOMAIN_OF_RUN, 2)


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


def test_an_empty_folder_becomes_a_run(tmp_path, plan, reference):
    folder = tmp_path / "empty"
    folder.mkdir()
    search(folder, plan)
    assert_same_run(folder, reference)


# The domain in the folder


def test_the_domain_in_the_folder_is_the_same(reference):
    domain = read_domain(reference / DOMAIN)
    assert domain.fingerprint == DOMAIN_OF_RUN.fingerprint
    assert domain.sensitive == DOMAIN_OF_RUN.sensitive


def test_the_people_and_the_catalogue_come_back_from_their_text(people):
    from neuronfair.domain.data import DATASETS, catalog_domain

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
    manifest = make_manifest(PLANS["neuronfair"], domain=domain.fingerprint)
    Run.create_or_open(folder, manifest, domain, 2)
    there = Run.open(folder).domain
    assert there == domain
    assert there.fingerprint == domain.fingerprint
