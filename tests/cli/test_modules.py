"""Models that are users' own code, at the command line: a failure is one line, and what was found is kept."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from tests.conftest import FLIPS_ONLY, Result

CODE = """
import torch
from pathlib import Path
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.relu, self.b = nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)
        with torch.no_grad():
            self.a.weight[:], self.a.bias[:] = torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), 0
            self.b.weight[:], self.b.bias[:] = torch.eye(2), torch.tensor([0.0, 0.5])
    def forward(self, x): return self.b(self.relu(self.a(self.first(x))))
    def first(self, x): return x + 0.25

class Writes(Net):
    def first(self, x): return x.add_(0.25)

class Codes(nn.Module):
    # Women must be 60, men 30.
    def __init__(self):
        super().__init__()
        self.table, self.relu = nn.Embedding(2, 1), nn.ReLU()
        self.table.weight.data[:] = torch.tensor([[0.0], [30.0]])
    def forward(self, sex, years): return self.relu(self.table(sex) + years) - 59.5

def prepare(table):
    return {"sex": (table["sex"] == "M").to_numpy(dtype="int64"), "years": table[["age"]].to_numpy(dtype="float32")}

class Large(Net):
    def first(self, x):
        if len(x) > 600: raise ValueError("at most\\n600 rows\\x1b[2J")
        return x

class Nan(Net):
    def first(self, x): return x if len(x) <= 600 else x / 0

class Tuple(Net):
    def forward(self, x): return super().forward(x), x

class Late(Net):
    calls = 0
    def first(self, x):
        Late.calls += 1
        if Late.calls > 40 and Path("broken").exists(): raise ConnectionError("the server is gone")
        return x

class Stop(Net):
    calls = 0
    def first(self, x):
        Stop.calls += 1
        if Stop.calls == 8: raise KeyboardInterrupt
        return x
"""
USE = ("table.csv", "--target", "income", "--sensitive", "sex")
SEARCH = ("search", *USE, "--starts", 5, "--steps", 20)


@pytest.fixture
def code(run, tmp_path, monkeypatch, request):
    """A table of two columns and, with a name of its own for each test, the module above."""
    draw = random.Random(0)
    people = [(draw.randint(18, 70), draw.choice("FM")) for _ in range(80)]
    lines = [f"{age},{sex},{'high' if age > 44 else 'low'}" for age, sex in people]
    Path("table.csv").write_text("\n".join(["age,sex,income", *lines]) + "\n", encoding="utf-8")
    name = f"users_{abs(hash(request.node.nodeid))}"
    Path(f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_function_that_prepares_the_table(run, code):
    told = ("--model", f"{code}:Codes", "--preprocess", f"{code}:prepare", "--samples", 500, "--json", "-")
    result = run("rate", *USE, *told, "--population", "domain")
    assert result.status == 0
    ages = [int(line.split(",")[0]) for line in Path("table.csv").read_text().splitlines()[1:]]
    possible = range(min(ages), max(ages) + 1)
    affected = sum(30 <= age < 60 for age in possible) / len(possible)
    assert abs(json.loads(result.out)["rates"]["domain"]["rate"] - affected) < 0.1
    failed(run("rate", *USE, "--preprocess", f"{code}:prepare"), "--preprocess belongs to a --model")


def failed(result: Result, *says: str) -> None:
    assert result.status == 2, result
    assert result.out == ""
    assert result.err.startswith("neuronfair: error: ")
    assert result.err.count("\n") == 1
    for words in says:
        assert words in result.err


AUDIT = ("audit", *USE, "--quick", *FLIPS_ONLY, "--starts", 5, "--steps", 5, "--samples", 700, "--out", "run")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("Large", (r"the module failed on rows of shape (", "2): at most 600 rows\\u001b[2J")),
        ("Nan", ("NaN or infinite scores", "Check its weights")),
        ("Tuple", (":Tuple: the module must return one tensor", "got tuple")),
    ],
)
@pytest.mark.parametrize("command", [AUDIT, ("rate", *USE), (*SEARCH, "--out", "run")], ids=lambda words: words[0])
def test_a_module_that_fails(run, code, command, model, says):
    failed(run(*command, "--model", f"{code}:{model}"), *says)


def test_a_search_goes_on_where_the_model_failed(run, code):
    model = ("--model", f"{code}:Late", "--json", "r.json", "--out")
    assert run(*SEARCH, *model, "whole").status == 0
    whole = json.loads(Path("r.json").read_text(encoding="utf-8"))
    sys.modules[code].Late.calls = 0
    Path("broken").touch()
    failed(run(*SEARCH, *model, "run"), "the server is gone. Earlier findings are saved: the same command resumes")
    Path("broken").unlink()
    assert run(*SEARCH, *model, "run").status == 0
    again = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert whole["findings"] > 0
    assert [again[key] for key in ("findings", "tried", "gsr", "random")] == [
        whole[key] for key in ("findings", "tried", "gsr", "random")
    ]


@pytest.mark.parametrize(
    "command", [("interpret", *USE), ("rate", *USE, "--samples", 500), (*SEARCH, "--out")], ids=lambda words: words[0]
)
def test_a_module_that_writes_into_its_input(run, code, command):
    results = []
    for name in ("Writes", "Net"):
        out = (name,) if command[0] == "search" else ()
        result = run(*command, *out, "--model", f"{code}:{name}", "--json", "-")
        assert (result.status, result.err) == (0, "")
        figures = json.loads(result.out)
        results.append({key: figures[key] for key in figures if not key.startswith("seconds")})
    assert results[0] == results[1]


def test_ctrl_c_in_a_module_is_ctrl_c(run, code):
    assert run("interpret", *USE, "--model", f"{code}:Stop").status == 130
