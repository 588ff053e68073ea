"""Files in the working folder are data: none is imported because the program was started there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import neuronfair

SHADOWS = ("onnx", "pandas", "pyarrow", "torch", "json", "numpy", "typing", "keras", "sklearn", "h5py", "openpyxl")
ROWS = (f"{20 + i % 40},{'fm'[i % 2]},{'yes' if i % 40 > 15 else 'no'}\n" for i in range(80))
DATA_SET = "age,sex,hired\n" + "".join(ROWS)
MODEL = """
import pandas
from beside_me import LIMIT

def older(table):
    from later import needed  # the folder can be read when it is asked, too
    return (table["age"] + 5 * (table["sex"] == "m") > LIMIT) & needed
"""
AUDIT = ("audit", "table.csv", "--target", "hired", "--sensitive", "sex", "--model", "own.inside:older", "--quick")
AUDIT += ("--starts", "3", "--steps", "2", "--samples", "50", "--twins", "flip", "--out", "out")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in SHADOWS:
        text = f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).open('a').write({name!r})\n"
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "table.csv").write_text(DATA_SET)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "inside.py").write_text(MODEL)
    (tmp_path / "beside_me.py").write_text("LIMIT = 40\n")
    (tmp_path / "later.py").write_text("needed = True\n")
    return tmp_path


def started(folder: Path, *words: str, console: bool = False) -> subprocess.CompletedProcess[str]:
    source = str(Path(neuronfair.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    start = ["-m", "neuronfair.cli"]
    if console:  # as the installed script does: its own folder is first on the path
        script = folder.parent / f"{folder.name}-bin" / "neuronfair"
        script.parent.mkdir(exist_ok=True)
        script.write_text("from neuronfair.cli import main\nmain()\n")
        start = [str(script)]
    return subprocess.run(
        [sys.executable, *start, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("console", [False, True])
def test_a_users_module_is_found_and_packages_are_not_shadowed(folder, console):
    done = started(folder, *AUDIT, console=console)
    assert done.returncode == 0, done.stderr
    assert not (folder / "imported").exists(), (folder / "imported").read_text()
    assert (folder / "out" / "audit.json").is_file()


@pytest.mark.parametrize(
    "model", ["m.onnx", "m.skops", *(pytest.param(name, marks=pytest.mark.slow) for name in ("m.keras", "m.h5"))]
)
def test_a_reader_of_files_imports_nothing_from_the_folder(folder, model):
    (folder / model).write_bytes(b"no model")
    done = started(folder, *(model if word == "own.inside:older" else word for word in AUDIT))
    assert done.returncode == 2, done.stderr
    assert not (folder / "imported").exists(), (folder / "imported").read_text()


def test_a_module_with_the_name_of_a_package_is_refused_in_one_line(folder):
    done = started(folder, *("onnx:make" if word == "own.inside:older" else word for word in AUDIT))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "also the name of the package" in done.stderr
    assert "Rename the file of your own" in done.stderr
    assert not (folder / "imported").exists()
