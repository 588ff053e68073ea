"""A method in another package is a method like ours, and one that is broken disturbs nobody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import neuronfair.methods
from neuronfair import NeuronFairError, SearchConfig, load_dataset, train
from neuronfair.methods import Uniform
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import save_weights
from neuronfair.searches import config
from neuronfair.searches.methods import METHODS, MethodEntry, Methods, Phases
from tests.conftest import ROOT

BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.S | re.M)
TITLED = dict(BLOCK.findall((ROOT / "docs" / "methods.md").read_text(encoding="utf-8")))
ENTRY = MethodEntry(lambda _: Phases(Uniform(), Uniform()), gradients=False)


def install(folder: Path, project: str, **modules: str) -> None:
    """Put a package into a folder as pip would, from its pyproject.toml and its modules."""
    described = tomllib.loads(project)["project"]
    info = folder / f"{described['name'].replace('-', '_')}-{described['version']}.dist-info"
    info.mkdir(parents=True)
    name, version = described["name"], described["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    groups = described["entry-points"].items()
    lines = [line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items()))]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")


def fresh(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call `neuronfair …` in a process of its own, where the packages in a folder are installed."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}", "COLUMNS": "200"}
    command = [sys.executable, "-m", "neuronfair.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Put a package where this process finds it, and let it look for methods again."""

    def put(project: str, **modules: str) -> None:
        install(tmp_path, project, **modules)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr(METHODS, "_entries", Methods(METHODS._built_in).entries)

    yield put
    for name in ("climber", "test_climber"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def search(tmp_path_factory) -> tuple[str, ...]:
    """A small search of a network that is hardly trained."""
    data, path = load_dataset("german", sensitive=["sex"]), tmp_path_factory.mktemp("model") / "model.safetensors"
    save_weights(path, *train(data, settings=TrainingSettings(epochs=1, restarts=1)))
    small = ("--starts", "10", "--steps", "10", "--no-controls", "--quiet")
    return ("search", "german", "--sensitive", "sex", "--model", str(path), *small)


@pytest.mark.slow
def test_the_method_of_the_documentation_is_a_method_like_ours(search, installed, run, capsys, tmp_path):
    project, code, test = (TITLED[name] for name in ("pyproject.toml", "climber.py", "test_climber.py"))
    assert len(f"{code}{project}".splitlines()) <= 40
    assert tomllib.loads(project)["tool"]["setuptools"]["py-modules"] == ["climber"]  # pip refuses to guess of two
    installed(project, climber=code, test_climber=test)
    assert "climber of another package" in fresh(tmp_path, "search", "--help").stdout
    found = run(*search, "--method", "climber", "--out", "run")
    assert (found.status, found.err) == (0, "")
    assert (tmp_path / "run" / "global-00000.parquet").exists()
    unknown = run(*search, "--method", "climbr", "--out", "other")
    assert unknown.status == 2
    assert "Did you mean 'climber'?" in unknown.err
    checked = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_climber.py"])
    out = capsys.readouterr().out
    assert checked == 0, out
    assert int(re.search(r"(\d+) passed", out)[1]) > 30


def test_a_broken_package_gives_a_line_and_disturbs_nobody(search, tmp_path):
    install(tmp_path, TITLED["pyproject.toml"], climber="raise RuntimeError('out of order')")
    done = fresh(tmp_path, *search, "--method", "uniform", "--out", "run")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("neuronfair: warning: the method 'climber' of fair-climber is left out (RuntimeError")
    assert "out of order" in line


@pytest.fixture
def registered(monkeypatch):
    """Register things of this module under names, as a package would."""

    def register(**points: str) -> None:
        made = [EntryPoint(name, f"{__name__}:{thing}", config.GROUP) for name, thing in points.items()]
        monkeypatch.setattr(config, "entry_points", lambda group: made if group == config.GROUP else [])

    return register


def test_other_packages_are_loaded_when_somebody_looks_and_once(registered, monkeypatch):
    registered(mine="ENTRY")
    methods = Methods({"uniform": ENTRY})
    assert "data" not in vars(methods)  # they import the module that has the list
    assert list(methods) == ["uniform", "mine"]
    assert methods["mine"] is ENTRY
    monkeypatch.setattr(config, "entry_points", None)
    assert "mine" in methods


@pytest.mark.parametrize(
    ("name", "thing", "why"),
    [
        ("uniform", "ENTRY", "there is a method of this name already"),
        ("../climber", "ENTRY", "expected a name of letters"),
        ("climber", "BLOCK", "expected a neuronfair.methods.MethodEntry, got Pattern"),
        ("climber", "NOTHING", "NOTHING"),
        ("climber", "leaves", "SystemExit"),
    ],
)
def test_what_cannot_be_used_is_left_out_with_a_warning(name, thing, why, registered, monkeypatch):
    registered(**{name: thing})
    if thing == "leaves":
        monkeypatch.setattr(EntryPoint, "load", lambda _: sys.exit(3))
    methods, own = Methods({"uniform": ENTRY, "adf": ENTRY}), ["uniform", "adf"]
    with pytest.warns(UserWarning, match=f"the method '{re.escape(name)}' of .* is left out .*{why}"):
        assert list(methods) == own
    assert methods["uniform"] is ENTRY


def test_a_registered_method_is_known_to_plans_and_in_errors(monkeypatch):
    monkeypatch.setitem(METHODS.entries, "mine", ENTRY)
    assert SearchConfig("mine").method == "mine"
    with pytest.raises(NeuronFairError, match=r"no method 'mime'.*uniform, mine.*Did you mean 'mine'\?"):
        SearchConfig("mime")


@pytest.mark.parametrize(
    ("old", "new"),
    neuronfair.methods._RENAMED.items(),
)
def test_old_names_for_authors_of_methods_still_work(old, new):
    with pytest.warns(DeprecationWarning, match=f"is now {new}"):
        assert getattr(neuronfair.methods, old) is getattr(neuronfair.methods, new)


def test_old_names_of_phases_and_methods_for_images_work_with_a_warning():
    method = Uniform()
    with pytest.warns(DeprecationWarning, match="first is now global_phase"):
        phases = Phases(first=method, local_phase=method)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match=r"Phases\.first is now Phases\.global_phase"):
        assert phases.first is method
    with pytest.warns(DeprecationWarning, match="pictures is now image_method"):
        entry = MethodEntry(lambda _: phases, pictures="adf")  # type: ignore[call-arg]
    assert entry.image_method == "adf"
