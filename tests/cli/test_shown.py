"""Every command with names that try to give the terminal orders: they are shown, and obeyed by nobody."""

from __future__ import annotations

import csv
import json
import random
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from neuronfair.cli.app import _print_warning
from neuronfair.domain.schema.toml import read_domain
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.weights import Card, fingerprint, fully_connected, save_weights
from tests.conftest import FLIPS_ONLY, Result

ORDER = "\x1b[31m\x1b]0;owned\x07"
SHOWN = r"\u001b[31m\u001b]0;owned\u0007"
SEX = f"se|x`<b>{ORDER}[bold]\u202e"
FILE = f"t{ORDER}"
DOMAIN = f"{FILE}.toml"
FORBIDDEN = {
    *map(chr, (*range(10), *range(11, 32), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)))
}
USE = ("--domain", DOMAIN, "--model", "model.safetensors")


@pytest.fixture
def hostile(run):
    """A table, its domain and a network that decides by age and sex; no name or value in them is harmless."""
    draw = random.Random(0)
    rows = [[f"age{ORDER}", SEX, "ra\x9bce[/bold]", "job\x7f\u2028x\nnothing was found", "income"]]
    for _ in range(60):
        age, sex = draw.randint(18, 70), draw.choice([f"F{ORDER}", "M[red]"])
        income = "high\x1b[2J" if age + 20 * (sex[0] == "M") > 50 else "low"
        rows.append([str(age), sex, draw.choice(["A\x85B", "C"]), draw.choice(["cl\u202eerk", "smith"]), income])
    with Path(f"{FILE}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    assert run("domain", "infer", f"{FILE}.csv", "--sensitive", SEX, "--target", "income").status == 0
    domain = read_domain(DOMAIN)
    module = fully_connected(TableEncoding.of(domain).width, (2,))
    first, last = (part for part in module.modules() if isinstance(part, torch.nn.Linear))
    with torch.no_grad():
        for part in (first, last):
            part.weight.zero_()
            part.bias.zero_()
        first.weight[0, :2] = first.weight[1, :2] = torch.tensor([1.0, 1.0])  # age in units of its spread, and sex
        first.weight[1] *= -1
        last.weight[0, 0], last.weight[1, 1], last.bias[1] = 1.0, 1.0, 0.5
    card = Card(
        domain=domain.name,
        encoding=domain.encoding,
        domain_fingerprint=domain.input_fingerprint,
        inputs=TableEncoding.of(domain).width,
        hidden=(2,),
        outputs=2,
        classes=("high\x1b[2J", "low"),
        accuracy={},
        seed=0,
        fingerprint=fingerprint(module),
    )
    save_weights("model.safetensors", module, card)
    return f"{FILE}.csv"


def harmless(result: Result, *says: str, status: int = 0) -> None:
    assert result.status == status, result
    text = result.out + result.err
    assert not FORBIDDEN & set(text)
    for words in says:
        assert words in "".join(text.split()), text


def test_search_replay_and_repair(run, hostile, monkeypatch):
    monkeypatch.setattr("experiments.repairs.evaluate.SAMPLES", 20)  # enough for a report
    call = ("search", hostile, *USE, "--starts", 5, "--steps", 5, "--out", f"run{ORDER}")
    harmless(run(*call), SHOWN, "se|x`<b>", "[bold]", r"\u202e")
    harmless(run("show", f"run{ORDER}", 0), SHOWN, "[red]", f"Finding0ofrun{SHOWN}")
    harmless(run("show", f"run{ORDER}", 10**6), f"run{SHOWN}", status=2)
    harmless(run("show", f"no{ORDER}", 0), f"no{SHOWN}", status=2)
    call = ("repair", f"run{ORDER}", "--data", hostile, "--how", "neurons", "--max-loss", 1)
    harmless(run(*call, "--out", f"fair{ORDER}.safetensors"), "beforeandafter", f"Wrotefair{SHOWN}.safetensors")


def test_audit_and_its_files(run, hostile):
    small = ("--quick", *FLIPS_ONLY, "--starts", 5, "--steps", 5, "--samples", 500)
    call = ("audit", hostile, *USE, *small, "--out", f"run{ORDER}")
    files = ("--markdown", "a.md", "--junit", "a.xml", "--regression-set", f"past{ORDER}.jsonl")
    gate = ("--fail-if", "rate > 0.1%")
    harmless(run(*call, *files, *gate), SHOWN, "[bold]", r"\u202e", "FAILED", status=1)
    harmless(run(*call, *files, *gate, "--quiet"), r"\u202e", "--fail-if", status=1)
    printed = run(*call, "--json", "-")
    harmless(printed)
    assert json.loads(printed.out)["attributes"][0]["name"] == SEX
    for name in ("a.md", "a.xml", f"run{ORDER}/report.html", f"run{ORDER}/audit.json"):
        assert not FORBIDDEN & set(Path(name).read_text(encoding="utf-8"))
    table = [line for line in Path("a.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert {line.count(" | ") for line in table} == {5, 3, 2}
    root = ElementTree.parse("a.xml").getroot()
    assert root[0].get("name") == SEX.replace(ORDER, SHOWN).replace("\u202e", r"\u202e")


def test_one_network(run, hostile):
    harmless(run("train", hostile, *USE[:2], "--hidden", 2, "--out", f"m{ORDER}.safetensors"), SHOWN)
    harmless(run("interpret", hostile, *USE, "--plot", f"as{ORDER}.svg"), SHOWN, r"\u202e", f"as{SHOWN}.svg")
    ElementTree.parse(f"as{ORDER}.svg")
    harmless(run("interpret", hostile, *USE, "--json", "-"), r"\u202e")
    harmless(run("compare", hostile, *USE, "--methods", "uniform", "--starts", 2, "--steps", 2), SHOWN, r"\u202e")
    harmless(run("rate", hostile, *USE, "--samples", 100), SHOWN, r"\u202e")


def test_a_draft_of_a_domain(run, hostile):
    infer = ("domain", "infer", hostile, "--sensitive", SEX, "--target", "income", "--out")
    printed = run(*infer, "-")
    harmless(printed, SHOWN, r"\u202e")
    Path("printed.toml").write_text(printed.out, encoding="utf-8")
    assert read_domain("printed.toml").names == read_domain(DOMAIN).names
    harmless(run(*infer, f"d{ORDER}.toml"), f"d{SHOWN}.toml")
    harmless(run(*infer, f"d{ORDER}.toml"), f"d{SHOWN}.tomlexists", status=2)


@pytest.mark.parametrize(
    "words",
    [
        (ORDER,),
        ("rate", ORDER),
        ("rate", "german", ORDER),
        ("rate", "german", f"--{ORDER}"),
        ("rate", "german", "--samples", ORDER),
        ("rate", "german", "--distribution", ORDER),
        ("rate", "german", "--sensitive", ORDER),
        ("rate", "german", "--decision", ORDER),
        ("rate", "german", "--device", ORDER),
        ("rate", "german", "--model", ORDER),
        ("rate", "german", "--model", f"{ORDER}:x"),
        ("rate", "german", "--json", f"{ORDER}/r.json"),
        ("data", "where", ORDER),
        ("reproduce", ORDER),
    ],
    ids=lambda words: " ".join(words).replace(ORDER, "ORDER"),
)
def test_wrong_words(run, words):
    harmless(run(*words), status=2)


def test_warnings_are_one_line(run, monkeypatch, capsys):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    assert run("--version").status == 0
    assert warnings.showwarning is _print_warning
    warnings.showwarning(UserWarning(f"a{ORDER}\n  b"), UserWarning, "file.py", 1)
    assert capsys.readouterr().err == f"neuronfair: warning: a{SHOWN} b\n"
