"""Where results go: what cannot be written is refused before any work, and nothing is written through planted links."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuronfair.audits.folder import check_audit_folder
from neuronfair.errors import RunError

TABLE = ["age,sex,income", *(f"{20 + i},{'FM'[i % 2]},{'high' if i > 25 else 'low'}" for i in range(50))]
USE = ("table.csv", "--target", "income", "--sensitive", "sex")
COMMANDS = {
    "interpret --json": ("interpret", *USE, "--json"),
    "interpret --plot": ("interpret", *USE, "--plot"),
    "compare --json": ("compare", *USE, "--json"),
    "compare --plot": ("compare", *USE, "--plot"),
    "rate --json": ("rate", *USE, "--json"),
    "search --json": ("search", *USE, "--out", "run", "--json"),
    "train --out": ("train", *USE, "--out"),
    "domain infer --out": ("domain", "infer", *USE, "--out"),
    "audit --html": ("audit", *USE, "--out", "run", "--html"),
    "audit --json": ("audit", *USE, "--out", "run", "--json"),
    "audit --junit": ("audit", *USE, "--out", "run", "--junit"),
    "audit --markdown": ("audit", *USE, "--out", "run", "--markdown"),
    "audit --regression-set": ("audit", *USE, "--out", "run", "--regression-set"),
}
SUFFIX = {"--plot": ".svg", "train --out": ".safetensors"}
FOLDERS = {
    "search": ("search", *USE, "--out"),
    "audit": ("audit", *USE, "--out"),
    "audit-images": ("audit-images", "drawn", "--sensitive", "cast", "--out"),
    "reproduce": ("reproduce", "--quick", "--out"),
    "reproduce --docs": ("reproduce", "--quick", "--docs"),
}


@pytest.fixture
def table(run, monkeypatch):
    """A table, and no command that gets as far as reading it."""
    Path("table.csv").write_text("\n".join(TABLE) + "\n", encoding="utf-8")

    def late(*_, **__):
        raise AssertionError("found out too late")

    monkeypatch.setattr("neuronfair.cli.options.TableOptions.load", late)
    monkeypatch.setattr("neuronfair.domain.schema.infer.draft_domain", late)
    monkeypatch.setattr("neuronfair.images.archive.open_images", late)
    monkeypatch.setattr("neuronfair_experiments.find_checkout", late)


def named(command: str, stem: str) -> str:
    return stem + next((suffix for end, suffix in SUFFIX.items() if command.endswith(end)), ".x")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(refused, table, command):
    words = COMMANDS[command]
    folder, device, loop, lost = (named(command, stem) for stem in ("folder", "device", "loop", "lost"))
    Path(folder).mkdir()
    os.mkfifo(device)
    Path(loop).symlink_to(loop)
    Path(lost).symlink_to(Path("nowhere") / lost)
    for name in (folder, device, loop):
        refused(*words, name, says=(name, "is a folder, a device or a link to itself, not a file"))
    refused(*words, lost, says=(lost, "there is no folder", "nowhere"))
    refused(*words, named(command, "no/file"), says=("there is no folder",))
    if "--plot" not in command and "train" not in command:  # their names must end in certain letters
        refused(*words, "/dev/full", says=("/dev/full", "not a file"))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("there", [True, False], ids=["file", "folder"])
def test_a_place_without_permission_is_refused_before_any_work(refused, table, monkeypatch, command, there):
    name = named(command, "mine")
    kept = (command == "domain infer --out" and ("--force",)) or ()
    if there:
        Path(name).write_text("old", encoding="utf-8")
    here = Path(name if there else ".").absolute()
    monkeypatch.setattr(
        os, "access", lambda path, mode: mode != os.W_OK or Path(path).absolute() != here
    )  # root may write
    says = "not a folder that can be written" if command.startswith("audit") and not there else "no permission"
    refused(*COMMANDS[command], name, *kept, says=(says,))


def test_the_card_of_a_network_is_thought_of(refused, table):
    Path("m.json").mkdir()
    refused("train", *USE, "--out", "m.safetensors", says=("m.json", "not a file"))


@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_that_cannot_be_made_is_refused_before_any_work(refused, table, monkeypatch, command):
    Path("file").touch()
    Path("lost").symlink_to("nowhere")
    refused(*FOLDERS[command], "file/run", says=("file/run", "not a folder that can be written"))
    refused(*FOLDERS[command], "lost", says=("lost",))
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != Path.cwd())
    refused(*FOLDERS[command], "run", says=("not a folder that can be written",))


# Links that the user names


@pytest.mark.parametrize("there", [True, False], ids=["file", "nothing"])
def test_a_link_that_is_named_is_followed(run, there):
    Path("table.csv").write_text("\n".join(TABLE) + "\n", encoding="utf-8")
    Path("elsewhere").mkdir()
    for name in ("t.toml", "m.safetensors", "r.json"):
        Path(name).symlink_to(Path("elsewhere") / name)
        if there:
            (Path("elsewhere") / name).write_text("old", encoding="utf-8")
    assert run("domain", "infer", *USE, "--out", "t.toml", "--force").status == 0
    trained = run("train", "table.csv", "--domain", "t.toml", "--hidden", "2", "--out", "m.safetensors")
    assert f"Wrote {Path('elsewhere/m.safetensors').absolute()}" in "".join(trained.out.split("\n"))
    use = ("table.csv", "--domain", "t.toml", "--model", "m.safetensors")
    assert run("rate", *use, "--samples", "50", "--json", "r.json").status == 0
    assert {path.name for path in Path().iterdir() if path.is_symlink()} == {"t.toml", "m.safetensors", "r.json"}
    assert {path.name for path in Path("elsewhere").iterdir()} == {"m.json", "m.safetensors", "r.json", "t.toml"}
    assert json.loads(Path("elsewhere/r.json").read_text(encoding="utf-8"))["rates"]["domain"]["of"] == 50


# Links that others have planted


@pytest.mark.parametrize(
    "name", ["audit.json", "report.html", "domain.toml", "model.safetensors", "sex", "sex/frontier/journal.jsonl"]
)
def test_an_audit_is_not_written_through_planted_links(refused, table, name):
    planted(name, {"audit": 1})
    refused("audit", *USE, "--out", "run", says=(f"run/{name}: is a link, which is not followed", "Remove it"))
    assert Path("precious").read_text(encoding="utf-8") == "old"
    with pytest.raises(RunError, match="is a link"):
        check_audit_folder(Path("run"))


@pytest.mark.parametrize("name", ["journal.jsonl", "domain.toml", "seeds.npy", "model.safetensors"])
def test_a_search_is_not_written_through_planted_links(refused, table, name):
    planted(name, {"schema": 1})
    refused("search", *USE, "--out", "run", says=(f"run/{name}: is a link, which is not followed", "Remove it"))
    assert Path("precious").read_text(encoding="utf-8") == "old"


def planted(name: str, manifest: dict[str, int]) -> None:
    """A folder of somebody else's in which a name leads to a file of ours."""
    Path("precious").write_text("old", encoding="utf-8")
    link = Path("run") / name
    link.parent.mkdir(parents=True)
    Path("run/manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    link.symlink_to(Path("precious").absolute())


# Standard output


@pytest.mark.parametrize(
    ("where", "status", "says"), [(">&-", 0, ""), (">/dev/full", 2, "neuronfair: error: output: No space left")]
)
def test_an_output_that_is_closed_or_full(where, status, says):
    line = f"{sys.executable} -m neuronfair.cli --version {where}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert result.returncode == status
    assert result.stderr.startswith(says)
    assert result.stderr.count("\n") == (1 if says else 0)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_figures_on_standard_output(run, name):
    Path("table.csv").write_text("\n".join(TABLE) + "\n", encoding="utf-8")
    result = run("rate", *USE, "--samples", "50", "--json", name)
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out)["rates"]["domain"]["of"] == 50
