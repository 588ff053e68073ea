"""The way of one row through an audit, as docs/architecture.md lists it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import neuronfair
from tests.conftest import FLIPS_ONLY, ROOT

pandas = pytest.importorskip("pandas", reason="the package pandas is not installed")
skops = pytest.importorskip("skops.io", reason="the package skops is not installed")

LINE = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
WHO = ("--target", "hired", "--sensitive", "sex")
COMMAND = ("audit", "table.csv", "--model", "m.skops", *WHO, "--quick", *FLIPS_ONLY)


def hired(count: int = 300) -> pandas.DataFrame:
    dice = np.random.default_rng(0)
    people = {"age": dice.integers(18, 80, count), "job": dice.choice(["a", "b", "c"], count)}
    people["sex"] = dice.choice(["f", "m"], count)
    good = (people["age"] > 40) + (people["sex"] == "m") + dice.random(count) > 1.3
    return pandas.DataFrame(people | {"hired": np.where(good, "yes", "no")})


def perceptron(table: pandas.DataFrame):
    from sklearn.compose import make_column_transformer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    first = make_column_transformer((OneHotEncoder(), ["job", "sex"]), (StandardScaler(), ["age"]))
    network = MLPClassifier((6,), random_state=0, solver="lbfgs", max_iter=5000)
    return make_pipeline(first, network).fit(table.drop(columns="hired"), table["hired"])


def test_a_row_goes_the_way_that_is_drawn(run):
    drawn = LINE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert len(set(drawn)) == len(drawn) > 15
    table = hired()
    table.to_csv("table.csv", index=False)
    skops.dump(perceptron(table), "m.skops")
    source = str(Path(neuronfair.__file__).parent)
    calls: Counter[tuple[str, str]] = Counter()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(source):
            module = Path(frame.f_code.co_filename).relative_to(source).as_posix()
            calls[module, frame.f_code.co_qualname] += 1  # in the order of first calls

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = run(*COMMAND, "--out", "out")
    finally:
        sys.setprofile(before)
    assert result.status == 0, result.err
    assert [step for step in calls if step in set(drawn)] == drawn
    assert calls["domain/tables/files.py", "_read_csv_table"] == calls["model/profile.py", "interpret"] == 1
