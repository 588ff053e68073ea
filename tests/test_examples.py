"""The examples run, as they are, in an empty folder."""

from __future__ import annotations

import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from neuronfair.cli.audit_batch import AuditFile
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
SCRIPTS = {
    "audit_own_table.py": "Decisions depend on origin for",
    "torch_model.py": "changed from a record of the data set",
    "compare_methods.py": "Drawn uniformly",
}
NOTEBOOKS = {
    "audit_texts.ipynb": ("Decisions depend on gender for", "added to the training texts", "gained"),
    "audit_dataframe.ipynb": ("by <bdi>sex</bdi>", "1 column left out", "twin_sex"),
    "audit_torch.ipynb": ("by <bdi>sex</bdi>", "Flip rate", "twin_sex"),
}


@pytest.fixture
def call(monkeypatch, tmp_path, capsys, briefly, forgotten_modules):
    """Run a script in an empty folder, and return what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(script: Path) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", [str(script)])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr()

    return run


def needs_skops() -> None:
    if find_spec("skops") is None:
        pytest.skip("the example needs the package skops")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs(name, call):
    if name == "audit_own_table.py":
        needs_skops()
    out, err = call(EXAMPLES / name)
    assert SCRIPTS[name] in out
    assert err == ""


def test_the_little_project_passes_its_own_test(call, tmp_path, capsys):
    needs_skops()
    shutil.copytree(EXAMPLES / "ci_gate", tmp_path, dirs_exist_ok=True)
    call(tmp_path / "train.py")
    assert pytest.main(["-q", "--rootdir", str(tmp_path)]) == 0
    assert "2 passed" in capsys.readouterr().out


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


def test_nothing_is_wrong_with_the_file_of_audits(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    orders = AuditFile.read("audits.toml")
    assert orders.problems == []
    assert [audit.name for audit in orders.audits] == ["german-sex", "german-foreign_worker", "german-together"]


def test_every_example_is_listed_and_tested():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert "audits.toml" in listed
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix != ".toml" and path.name[0] not in "._R"}
    assert there == {*SCRIPTS, *NOTEBOOKS, "ci_gate"}
    assert [name for name in there if name not in listed] == []
