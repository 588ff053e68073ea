"""The documentation is true: its code runs, and the methods it lists are the methods there are."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from neuronfair.generation.methods import METHODS
from tests.conftest import ROOT

METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def test_the_worked_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", METHODS_PAGE, re.S)
    names = dict(METHODS)
    try:
        exec(compile(code, "docs/methods.md", "exec"), {"__name__": "docs"})
    finally:
        METHODS.clear()
        METHODS.update(names)
    assert 0 < float(capsys.readouterr().out) <= 1


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_is_described(name):
    assert f"`{name}`" in METHODS_PAGE


def test_every_described_method_exists():
    table = METHODS_PAGE.partition("| --- |")[2].partition("\n\n")[0]
    listed = {name for line in table.splitlines()[1:] for name in re.findall(r"`([\w-]+)`", line.split("|")[1])}
    assert listed == set(METHODS)


def test_the_tables_of_pictures_are_those_of_the_results():
    script, results = (ROOT / "experiments" / name for name in ("table11_image_improvement.py", "h200"))
    printed = subprocess.run([sys.executable, script, results], capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    lines = [line for line in printed.splitlines() if line]
    assert len(lines) > 40
    assert [line for line in lines if line not in page] == []
