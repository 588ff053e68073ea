"""What is installed is whole: the wheel alone audits, with its pages and data sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("hatchling", reason="hatchling is not installed: pip install 'neuronfair[dev]'")
pytestmark = pytest.mark.slow


AUDIT = """
import sys
import neuronfair, neuronfair.cli
if __name__ == "__main__":
    print(neuronfair.__file__)
    line = "audit german --sensitive sex --quick --seeds 10 --steps 5 --out run --json -"
    sys.argv = ["neuronfair", *line.split()]
    neuronfair.cli.main()
"""


def test_the_wheel_audits(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "installed"
    install = [*pip, "install", "--no-deps", "--no-index", "--target", place, wheel]
    subprocess.run(install, check=True, capture_output=True)

    # -P: neither the checkout nor the folder of the test is looked into before the wheel.
    command = [sys.executable, "-P", "-c", AUDIT]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment)
    where, _, rest = done.stdout.partition("\n")
    assert str(place) in where
    figures, _ = json.JSONDecoder().raw_decode(rest)
    assert figures["attributes"][0]["searches"][0]["findings"] > 0
    assert "<style>" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert not (place / "neuronfair" / "experiments").exists()
    assert (place / "pytest_neuronfair.py").exists()
