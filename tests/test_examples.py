"""The examples run, as they are, in an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT

EXAMPLES = ROOT / "examples"
SCRIPTS = {
    "audit_own_table.py": "This model discriminates by origin",
    "torch_model.py": "changed from a row of the table",
    "compare_methods.py": "Drawn uniformly",
}
NOTEBOOKS = {
    "audit_dataframe.ipynb": ("by <bdi>sex</bdi>", "1 column left out", "twin_sex"),
    "audit_torch.ipynb": ("by <bdi>sex</bdi>", "is decided", "twin_sex"),
}


@pytest.fixture
def call(tmp_path):
    """Run Python with some words in an empty folder, and return the process."""

    def run(*words: object, cwd=tmp_path) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, *map(str, words)]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    return run


def needs_skops() -> None:
    if find_spec("skops") is None:
        pytest.skip("the example needs the package skops")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name, call):
    if name == "audit_own_table.py":
        needs_skops()
    result = call(EXAMPLES / name)
    assert result.returncode == 0, result.stderr
    assert SCRIPTS[name] in result.stdout
    assert result.stderr == ""


def test_the_little_project_passes_its_own_test(call, tmp_path):
    needs_skops()
    project = shutil.copytree(EXAMPLES / "ci_gate", tmp_path / "project", dirs_exist_ok=True)
    assert call("train.py", cwd=project).returncode == 0
    result = call("-m", "pytest", "-q", cwd=project)
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_the_verdict(name, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="the package nbclient is not installed")
    pytest.importorskip("ipykernel", reason="the package ipykernel is not installed")
    pytest.importorskip("pandas", reason="the package pandas is not installed")
    import nbformat

    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in cells if cell.outputs or cell.execution_count] == []  # none is committed
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=120, resources=resources).execute()
    shown = [part for cell in cells for part in cell.outputs]
    assert [part for part in shown if part.output_type == "stream" and part.name == "stderr"] == []
    pieces = [piece for part in shown for piece in (part.get("text", ""), *part.get("data", {}).values())]
    for words in NOTEBOOKS[name]:
        assert any(words in piece for piece in pieces), words
    assert not any("<script" in piece for piece in pieces)


def test_every_example_is_listed_and_tested():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix != ".toml" and path.name[0] not in "._R"}
    assert there == {*SCRIPTS, *NOTEBOOKS, "ci_gate"}
    assert [name for name in there if name not in listed] == []
