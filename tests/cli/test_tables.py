"""`--attributes-file` as people use it: a sensitive column beside the table, in every command that takes a table."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from neuronfair import read_domain
from neuronfair.model.weights import load_weights
from tests.cli.test_app import HEADER, people, write
from tests.conftest import FLIPS_ONLY

QUICK = ("--quick", *FLIPS_ONLY)
BESIDE = ("--attributes-file", "sex.csv", "--key", "id")
WHO = ("--sensitive", "sex", "--target", "income")
MODELS = """
import torch
from torch import nn

def of(width):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 2))

def five(): return of(5)    # age, three races, a job
def six(): return of(6)     # and the sex
def nine(): return of(9)
"""


@pytest.fixture(autouse=True)
def folder(run, monkeypatch, briefly):
    """A table without the sex of anybody, which is in another file, in another order."""
    lines = [line.split(",") for line in people()]
    write(
        "table.csv",
        "id," + HEADER.replace("sex,", ""),
        *(f"p{i},{a},{r},{j},{y}" for i, (a, _, r, j, y) in enumerate(lines)),
    )
    write("sex.csv", "sex,id", *(f"{line[1]},p{i}" for i, line in reversed(list(enumerate(lines)))))
    write("whole.csv", HEADER, *(",".join(line) for line in lines))
    write("widths.py", MODELS)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "widths", raising=False)


def test_train_infer_and_ask_without_the_column(run):
    assert run("domain", "infer", "table.csv", *BESIDE, *WHO).out.startswith("Left out: id (the key)\nsex from sex.csv")
    assert [a.name for a in read_domain("table.toml").attributes if not a.is_input] == ["sex"]
    assert "legitimate = true" in Path("table.toml").read_text(encoding="utf-8")
    made = run("train", "table.csv", *BESIDE, "--domain", "table.toml", "--hidden", "4", "--out", "m.safetensors")
    assert (made.status, load_weights(Path("m.safetensors"))[1].inputs) == (0, 5)
    asked = ("--model", "m.safetensors", "--population", "table", "--json", "-")
    beside = json.loads(run("rate", "table.csv", *BESIDE, "--domain", "table.toml", *asked).out)
    assert (beside["rates"]["table"]["rate"], beside["sensitive"]) == (0.0, ["sex"])
    whole = run("rate", "whole.csv", *WHO, *asked[:-2])  # it has no names, and fits without the sex only
    assert (whole.status, whole.out.splitlines()[0]) == (0, "The model does not use sex.")
    wrong = run("rate", "table.csv", *BESIDE, *WHO, "--model", "widths:six")
    assert (wrong.status, "gives 5 numbers a row" in wrong.err, "without sex" in wrong.err) == (2, True, True)


@pytest.mark.parametrize(("name", "status", "said"), [("five", 0, "does not use sex"), ("six", 0, ""), ("nine", 2, "")])
def test_a_model_without_names_is_given_what_fits(run, name, status, said):
    result = run("rate", "whole.csv", *WHO, "--model", f"widths:{name}", "--population", "table")
    assert (result.status, said in result.out) == (status, True)
    assert ("does not use" in result.out) == (name == "five")
    if name == "nine":
        assert "gives 6 numbers a row (race 3 one-hot, the others 1), and 5 without sex" in result.err


def test_an_audit_and_what_follows_from_it(run):
    audited = run("audit", "table.csv", *BESIDE, *WHO, "--model", "widths:five", *QUICK, "--out", "run")
    assert (audited.status, audited.err) == (0, "")
    assert "The model does not use sex" in audited.out.replace("\n", " ")
    found = json.loads(Path("run/audit.json").read_text(encoding="utf-8"))
    assert {"column": "id", "reason": "the key"} in found["data"]["left_out"]
    searched = run(
        "search",
        "table.csv",
        *BESIDE,
        "--domain",
        "run/domain.toml",
        "--sensitive",
        "race",
        "--model",
        "widths:five",
        "--starts",
        9,
        "--steps",
        9,
        "--out",
        "found",
    )
    assert (searched.status, searched.err) == (0, "")


def test_everybody_is_proved_to_stay(run):
    words = ("certify", "table.csv", *BESIDE, *WHO, "--model", "widths:five", "--out", "proof")
    result = run(*words)
    sentence = "Certified for all of the declared input space: decisions do not depend on sex."
    assert (result.status, sentence in result.out) == (0, True)
    check = next(line for line in result.out.splitlines() if line.startswith("Check it: "))
    assert run(*shlex.split(check.removeprefix("Check it: "))[1:]).status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("table.csv", *WHO, "--key", "id"), "--key id: belongs to an --attributes-file"),
        (("german", *BESIDE), "german: has all its columns; --attributes-file is for tables of your own"),
        (("whole.csv", *WHO, "--attributes-file", "whole.csv"), "whole.csv: has a column 'sex', and so has whole.csv"),
        (("table.csv", *WHO, "--attributes-file", "none.csv"), "none.csv: the table is empty"),
        (("table.csv", *WHO, "--attributes-file", "absent.csv"), "absent.csv: No such file"),
        (("table.csv", *WHO, "--attributes-file", "zero.csv"), "zero.csv: line 1: holds a zero byte"),
        (("table.csv", *WHO, "--attributes-file", "one.csv"), "the sensitive attribute 'sex' is 'F' in every row"),
        (("table.csv", *BESIDE, "--domain", "given.toml"), "'sex' is in a separate table"),
        (("table.csv", *BESIDE, "--domain", "other.toml"), "(sex.csv: line 121): attribute 'sex': unknown value 'M'"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(run, words, said):
    run("domain", "infer", "table.csv", *BESIDE, *WHO, "--out", "table.toml")
    text = Path("table.toml").read_text(encoding="utf-8")
    write("given.toml", text.replace(', encode = "none"', ""))
    write("other.toml", text.replace('values = ["F", "M"]', 'values = ["F", "D"]'))
    write("one.csv", "sex", *["F"] * 120)
    Path("none.csv").write_bytes(b"")
    Path("zero.csv").write_bytes(b"sex\0\n")
    before = set(Path.cwd().iterdir())
    result = run("train", *words, "--out", "m.safetensors")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert said in result.err
    assert set(Path.cwd().iterdir()) == before


def test_a_file_beside_a_domain_or_no_table_is_refused(run):
    run("domain", "infer", "table.csv", *BESIDE, *WHO, "--out", "table.toml")
    alone = run("certify", "table.toml", *BESIDE, "--model", "widths:five", "--out", "proof")
    assert (alone.status, "is a domain file; --domain, --target and --attributes-file" in alone.err) == (2, True)
