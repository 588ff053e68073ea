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

from tests.conftest import ROOT


class Done(NamedTuple):
    status: int
    out: str
    err: str


def without(folder: Path, *commands: str) -> list[Done]:
    """Call `neuronfair …` where neither matplotlib nor Pillow is installed: all in one process, to be quick."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "COLUMNS": "200"}
    child = subprocess.run(
        [sys.executable, "-m", "tests.test_extras", *commands],
        capture_output=True, text=True, cwd=folder, env=environment, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return [Done(*entry) for entry in json.loads(child.stdout)]


def test_tables_are_audited_searched_rated_and_repaired_without_the_packages_that_draw(tmp_path):
    german, small = "german --sensitive sex --model run/model.safetensors", "--seeds 10 --steps 5"
    commands = [
        f"audit german --sensitive sex --quick {small} --out run",
        f"search {german} {small} --out found",
        f"rate {german} --samples 500",
        f"interpret {german}",
        f"compare {german} --methods uniform {small}",
        "repair found --out fixed.safetensors",
    ]
    for command, done in zip(commands, without(tmp_path, *commands), strict=True):
        assert (done.status, done.err) == (0, ""), command
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "fixed.safetensors").exists()


def test_a_command_that_needs_one_says_at_once_how_to_install_it(tmp_path):
    missing = {
        "interpret german --plot curves.png": ("matplotlib", "plots"),
        "compare german --plot methods.png": ("matplotlib", "plots"),
        "reproduce figure3_as_curve --out results": ("matplotlib", "plots"),
        "audit-images drawn --sensitive cast --out run": ("PIL", "images"),
    }
    for done, (package, extra) in zip(without(tmp_path, *missing), missing.values(), strict=True):
        assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
        assert f"needs the package '{package}'" in done.err
        assert f"pip install 'neuronfair[{extra}]'" in done.err
    assert list(tmp_path.iterdir()) == []


def main() -> None:
    """Run the commands that are given, and print how each ended."""
    # What Python itself puts in the place of a module that cannot be imported.
    sys.modules.update(dict.fromkeys(("matplotlib", "PIL")))
    from neuronfair import cli

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
