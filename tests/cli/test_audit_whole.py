"""One audit as users run it: with its proof, its counterfactual test and its files, and no setting but a small table.

It runs in a process of its own, in which nothing is replaced that `tests/conftest.py` replaces.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

from tests.cli.test_app import write

HEADER = "age,sex,club,hired"


def people(rows: int = 240) -> list[str]:
    """Age decides, and being a man counts for ten years; the club tells nearly always who is one."""
    draw = random.Random(0)
    lines = []
    for _ in range(rows):
        age, sex = draw.randint(18, 67), draw.choice("FM")
        club = sex if draw.random() < 0.9 else draw.choice("FM")
        hired = "yes" if age + 10 * (sex == "M") + draw.gauss(0, 3) > 45 else "no"
        lines.append(f"{age},{sex},{'chess' if club == 'M' else 'golf'},{hired}")
    return lines


def test_an_audit_proves_compares_finds_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("table.csv", HEADER, *people())
    words = ("audit", "table.csv", "--target", "hired", "--favourable", "yes", "--sensitive", "sex", "--out", "run")
    gate = ("--fail-if", "rate > 1%", "--fail-if", "accuracy < 50%", "--junit", "tests.xml")
    command = [sys.executable, "-m", "neuronfair.cli", *words, *gate]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "80"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (result.returncode, result.stderr) == (1, "")
    assert "Decisions depend on sex for " in result.stdout
    assert "FAILED rate > 1%: " in " ".join(result.stdout.split())
    report = json.loads(Path("run", "audit.json").read_text(encoding="utf-8"))
    (one,) = report["attributes"]
    assert (report["verdict"]["level"], one["level"]) == ("above the threshold", "above the threshold")
    assert report["verdict"]["headline"] == one["headline"]
    assert one["rates"]["table"]["discriminated"] > 0
    assert one["proved"]["method"] == "bounds of a network"
    assert one["proved"]["proved_discriminatory"]["count"] != "0"
    assert one["counterfactual"]["of"] > 0
    assert one["searches"][0]["findings"] > 0
    assert one["direction"][0]["people"] > 0
    assert all(report["seconds"][stage] > 0 for stage in ("rate", "search", "proof", "counterfactuals"))
    assert 'failures="1"' in Path("tests.xml").read_text(encoding="utf-8")
    assert Path("run", "report.html").is_file()
