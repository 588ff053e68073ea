"""What is optional can be left out: tables are audited without the packages that draw, and who needs one is told."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

GERMAN, SMALL = "german --sensitive sex --model run/model.safetensors", "--seeds 10 --steps 5"
WITHOUT = (
    f"audit german --sensitive sex --quick {SMALL} --out run",
    f"search {GERMAN} {SMALL} --out found",
    f"rate {GERMAN} --samples 500",
    f"interpret {GERMAN}",
    f"compare {GERMAN} --methods uniform {SMALL}",
    "repair found --repeats 1 --max-loss 1 --out fixed.safetensors",
)
NEEDING = {
    "interpret german --plot curves.png": ("matplotlib", "plots"),
    "compare german --plot methods.png": ("matplotlib", "plots"),
    "reproduce figure3_as_curve --out results": ("matplotlib", "plots"),
    "audit-images drawn --sensitive cast --out pictures": ("PIL", "images"),
}


class Done(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("extras")


@pytest.fixture(scope="module")
def ended(folder) -> dict[str, Done]:
    """How commands end where neither matplotlib nor Pillow is installed: all in one process, to be quick."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "COLUMNS": "200"}
    commands = (*NEEDING, *WITHOUT)
    child = subprocess.run(
        [sys.executable, "-m", "tests.test_extras", *commands],
        capture_output=True, text=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return {command: Done(*entry) for command, entry in zip(commands, json.loads(child.stdout), strict=True)}


def test_tables_are_audited_searched_rated_and_repaired_without_the_packages_that_draw(ended, folder):
    for command in WITHOUT:
        assert (ended[command].status, ended[command].err) == (0, ""), command
    assert (folder / "run" / "report.html").exists()
    assert (folder / "fixed.safetensors").exists()


def test_a_command_that_needs_one_says_at_once_how_to_install_it(ended, folder):
    for command, (package, extra) in NEEDING.items():
        done = ended[command]
        assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
        assert f"needs the package '{package}'" in done.err
        assert f"pip install 'neuronfair[{extra}]'" in done.err
        assert not (folder / command.split()[-1]).exists()


def main() -> None:
    """Run the commands that are given, and print how each ended."""
    # What Python itself puts in the place of a module that cannot be imported.
    sys.modules.update(dict.fromkeys(("matplotlib", "PIL")))
    from neuronfair import cli
    from tests.conftest import shorten

    shorten(pytest.MonkeyPatch())
    ends = []
    for command in sys.argv[1:]:
        sys.argv = ["neuronfair", *command.split()]
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                cli.main()
            except SystemExit as end:
                ends.append((end.code or 0, out.getvalue(), err.getvalue()))
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
