"""Settings become options, help texts and defaults of a project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuronfair.cli.audit import AuditJob, read_project_settings
from neuronfair.errors import DataError
from neuronfair.parameters import EXPERT, find_parameters

FIRST = {"sensitive", "target", "domain", "model", "trust-pickle", "text", "favourable", "quick"}
FIRST |= {"out", "quiet", "fail-if", "baseline"}


def test_the_help_of_an_audit_fits_two_screens_and_begins_with_what_people_use(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = run("audit", "--help").out
    assert len(text.splitlines()) <= 100
    first, _, rest = text.partition(f"─ {EXPERT} ")
    options = re.compile(r"^│ --([\w-]+)", re.MULTILINE)
    assert set(options.findall(first)) == FIRST
    assert {"starts", "skip-encoding-check", "help"} <= set(options.findall(rest))
    assert "--seeds" not in text
    assert [panel for panel in ("Input", "Budget", "Output", "Gate") if f"─ {panel} ─" not in first] == []


def test_the_commands_have_panels(run):
    text = run("--help").out
    places = [text.index(f"─ {panel} ─") for panel in ("Audit", "Research", "Data")]
    assert places == sorted(places)


def test_every_help_text_is_one_sentence_or_two():
    for name, known in find_parameters(AuditJob).items():
        assert known.text[0].isupper(), name
        assert known.text.endswith("."), name


def test_a_project_sets_defaults(run, refused, tmp_path):
    assert read_project_settings(tmp_path) == {}
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.neuronfair]\nsensitive = "sex"\nquick = true\nfail-if = ["rate > 1%"]\ndomain = "d.toml"\n')
    expected = {"sensitive": "sex", "quick": True, "fail_if": ("rate > 1%",), "domain": Path("d.toml")}
    assert read_project_settings(tmp_path) == expected
    refused("audit", "german", says=("german: has its own domain",))  # the domain is that of the project
    refused("audit", "none.csv", "--domain", "e.toml", says=("none.csv: neither a file nor a data set",))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('sensitiv = "sex"', "unknown key 'sensitiv'.*Did you mean 'sensitive'"),
        ("seeds = 0", "seeds: 0 is less than 1"),
        ('quick = "yes"', "quick: Expected bool"),
        ("trust_pickle = true", "runs a program. Set it on the command line"),
        ('preprocess = "a:b"', "runs a program"),
        ('model = "a.b:make"', "runs a program"),
        ("quick = ", "not TOML"),
    ],
)
def test_a_project_that_sets_something_wrong(tmp_path, line, says):
    (tmp_path / "pyproject.toml").write_text(f"[tool.neuronfair]\n{line}\n")
    with pytest.raises(DataError, match=says):
        read_project_settings(tmp_path)
