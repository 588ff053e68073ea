from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import typer

from neuronfair import api as proving
from neuronfair import cli
from neuronfair.audits import comparison
from neuronfair.audits import run as audits
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages import attributes
from neuronfair.audits.stages import rates as usual
from neuronfair.domain.population import model
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.model import train as training
from neuronfair.proof import session
from neuronfair.searches import campaign
from neuronfair.testing.cases import CENSUS as PEOPLE

pytest_plugins = "pytester"  # to test our own pytest plugin

ROOT = Path(__file__).parent.parent

# An audit without proof and counterfactual test, which take seconds: as settings, and as options.
FLIPS: dict[str, Any] = {"prove": 0.0, "twins": "flip"}
FLIPS_ONLY = ("--prove", 0, "--twins", "flip")

# Continuous integration tries the same examples every time; people at work try new ones. No test measures time.
hypothesis.settings.register_profile("ours", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("ours")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than there are cores: some tests wait for other processes, or for a cluster."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(autouse=True, scope="session")
def quickly() -> Iterator[None]:
    """Build the tree of commands once, not for every call, and wait for no disk: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def fitted_once() -> Iterator[None]:
    """Fit the population of a table once, however many tests audit it: each fit takes half a second."""
    known: dict[object, object] = {}

    def remembered(fit):
        def fitted(domain, rows, **options):
            table = (rows.cpu().numpy().tobytes(), rows.shape, rows.device)
            chosen = tuple(sorted((name, value) for name, value in options.items() if name != "progress"))
            key = (fit, domain.fingerprint, domain.sensitive, table, chosen)
            if key not in known:
                known[key] = fit(domain, rows, **options)
            return known[key]

        return fitted

    with pytest.MonkeyPatch.context() as patch:
        fit = remembered(model.fit_population)
        for module in (model, campaign, comparison, usual):
            patch.setattr(module, "fit_population", fit)
        patch.setattr(audits, "measure_quality", remembered(model.measure_quality))
        yield


@pytest.fixture(autouse=True, scope="session")
def in_one_process() -> Iterator[None]:
    """Run all stages of an audit in this process, where tests replace functions and count calls of them.

    `tests/cli/test_audit_whole.py` runs an audit as users do; tests of side-by-side stages set the number of cores.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audits, "count_usable_cores", lambda: 1)
        yield


@pytest.fixture
def forgotten_modules(tmp_path: Path) -> Iterator[None]:
    """Forget the modules of the test's folder: another test has modules of the same names in another folder."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train and audit with little effort: for tests that ask what works together, not how good the result is."""
    shorten(monkeypatch)


def shorten(patch: pytest.MonkeyPatch, epochs: int = 15) -> None:
    """Train for few epochs, let audits search from 15 rows, 5 steps each, sample and prove little."""
    run_epochs, sized, certify = training.run_epochs, AuditSettings.scale_budgets, session.certify

    def short(module, task, shuffles, **others):
        settings = replace(task.settings, epochs=min(task.settings.epochs, epochs))
        return run_epochs(module, replace(task, settings=settings), shuffles, **others)

    def small(settings, *given):
        whole = sized(settings, *given)
        most = {"seeds": 15, "steps": 5, "samples": 5_000}
        return replace(whole, **{name: min(getattr(whole, name), limit) for name, limit in most.items()})

    patch.setattr(training, "run_epochs", short)
    patch.setattr(AuditSettings, "scale_budgets", small)

    def briefly_certified(problem, opened, records, seconds, **others):
        return certify(problem, opened, records, min(seconds, 0.1), **others)

    patch.setattr(attributes, "certify", briefly_certified)
    patch.setattr(proving, "certify_problem", briefly_certified)


@pytest.fixture
def people() -> TableDomain:
    """A domain with every kind of attribute and two rules."""
    return parse_domain(PEOPLE)


def shared(variable: str, folder: str) -> Path:
    """The folder of published data or models, or a skip with the reason."""
    path = Path(os.environ.get(variable) or ROOT / ".." / "shared" / folder).resolve()
    if not path.is_dir():
        pytest.skip(f"the published {folder} are not here: set {variable} to their folder")
    return path


@pytest.fixture
def shared_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the published data; the package finds it too."""
    path = shared("NEURONFAIR_DATA", "data")
    monkeypatch.setenv("NEURONFAIR_DATA", str(path))
    return path


@pytest.fixture
def shared_models() -> Path:
    """The folder of the published weights."""
    return shared("NEURONFAIR_MODELS", "models")


class Result(NamedTuple):
    status: int
    out: str
    err: str


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the tests of it also in the workers of pytest-xdist, which ignore it."""
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Call `neuronfair …` in this process, inside an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["neuronfair", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            cli.main()
        code = stop.value.code
        return Result(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


@pytest.fixture
def refused(run, tmp_path):
    """Call `neuronfair …`, expect one line of error that holds all the words, and no new file."""

    def call(*words: object, says: tuple[str, ...]) -> str:
        before = sorted(tmp_path.rglob("*"))
        result = run(*words)
        assert result.status == 2, result
        assert result.out == ""
        assert result.err.startswith("neuronfair: error: ")
        assert result.err.count("\n") == 1
        for word in says:
            assert word in result.err
        assert sorted(tmp_path.rglob("*")) == before
        return result.err

    return call
