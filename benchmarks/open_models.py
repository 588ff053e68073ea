"""How long opening a small model takes, by kind, from a file and in memory: processor seconds, and how it is seen.

    python benchmarks/open_models.py

Each model is opened twice and the second time counts: its framework is imported then, and the process that reads such
files is there.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from neuronfair import TableEncoding, wrap_model
from neuronfair.domain.schema.infer import infer_domain
from neuronfair.domain.tables.dataset import Dataset, read_table

import numpy as np
import pandas as pd
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from torch import Tensor, nn

ROWS = 400


class Embedding(nn.Module):
    """A network with an embedding beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.job, self.hidden, self.last = nn.Embedding(4, 3), nn.Linear(5, 8), nn.Linear(8, 2)
        self.act = nn.ReLU()

    def forward(self, numbers: Tensor, job: Tensor) -> Tensor:
        """Return two scores."""
        return self.last(self.act(self.hidden(torch.cat([numbers, self.job(job)], 1))))


def table() -> tuple[pd.DataFrame, Dataset]:
    """Return people with numbers, a flag and a label."""
    random = np.random.default_rng(0)
    people = pd.DataFrame(
        {
            "age": random.integers(18, 80, ROWS),
            "pay": random.integers(10, 90, ROWS),
            "sex": random.choice(["f", "m"], ROWS),
            "job": random.choice(["a", "b", "c", "d"], ROWS),
        }
    )
    people["y"] = np.where(people.age + people.pay + 20 * (people.sex == "m") > 110, "yes", "no")
    domain = infer_domain(people, sensitive=["sex"], target="y")
    return people, read_table(people, domain)


def models(people: pd.DataFrame, data: Dataset, folder: Path) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each kind of model, what is given for it, and how it is opened."""
    import catboost
    import joblib
    import lightgbm
    import skops.io
    import xgboost

    x, y = people.drop(columns="y"), people.y
    before = make_column_transformer((OneHotEncoder(), ["sex", "job"]), (StandardScaler(), ["age", "pay"]))
    for name, last in (
        ("perceptron", MLPClassifier((8,), max_iter=200)),
        ("logistic regression", LogisticRegression()),
        ("forest", RandomForestClassifier(20)),
        ("calibrated", CalibratedClassifierCV(RandomForestClassifier(10), cv=2)),
    ):
        fitted = make_pipeline(before, last).fit(x, y)
        yield f"{name}, in memory", fitted, {}
        skops.io.dump(fitted, folder / f"{name}.skops")
        yield f"{name}, .skops", folder / f"{name}.skops", {"trust_pickle": True}
        joblib.dump(fitted, folder / f"{name}.joblib")
        yield f"{name}, .joblib", folder / f"{name}.joblib", {"trust_pickle": True}
    typed = x.astype({"sex": "category", "job": "category"})
    light = lightgbm.LGBMClassifier(n_estimators=20, verbose=-1).fit(typed, y)
    light.booster_.save_model(folder / "light.txt")
    cat = catboost.CatBoostClassifier(iterations=20, verbose=0, allow_writing_files=False)
    cat.fit(x, y, cat_features=["sex", "job"])
    cat.save_model(str(folder / "cat.cbm"))
    boost = xgboost.XGBClassifier(n_estimators=20, enable_categorical=True).fit(typed, y == "yes")
    boost.save_model(folder / "boost.ubj")
    for name, fitted, file in (
        ("LightGBM", light, "light.txt"),
        ("CatBoost", cat, "cat.cbm"),
        ("XGBoost", boost, "boost.ubj"),
    ):
        yield f"{name}, in memory", fitted, {}
        yield f"{name}, {Path(file).suffix}", folder / file, {}
    width = TableEncoding.of(data.domain).width
    plain = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    yield "torch, one tensor, in memory", plain, {}
    example = torch.zeros(2, width)
    exported = torch.export.export(plain, (example,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.export.save(exported, folder / "plain.pt2")
    yield "torch, .pt2", folder / "plain.pt2", {"trust_pickle": True}
    yield "torch, embeddings, in memory", Embedding().eval(), {"preprocess": _inputs}
    torch.onnx.export(
        plain, (example,), folder / "plain.onnx", dynamo=False, dynamic_axes={"x": [0]}, input_names=["x"]
    )
    yield "ONNX", folder / "plain.onnx", {}
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    network = keras.Sequential([keras.Input((width,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")])
    network.save(folder / "plain.keras")
    yield "Keras, in memory", network, {}
    yield "Keras, .keras", folder / "plain.keras", {}


def _inputs(people: pd.DataFrame) -> tuple[Tensor, Tensor]:
    numbers = torch.tensor(people[["age", "pay"]].to_numpy(dtype=np.float32)) / 50
    return numbers, torch.tensor([list("abcd").index(job) for job in people.job])


def main() -> None:
    """Print a line for each model."""
    people, data = table()
    with tempfile.TemporaryDirectory() as place:
        print("| model | processor seconds | how it is seen |\n| --- | ---: | --- |")
        for name, model, how in models(people, data, Path(place)):
            for _ in range(2):
                begun = os.times()
                opened = wrap_model(model, data.domain, data.rows, **how)
                ended = os.times()
            spent = sum(ended[:4]) - sum(begun[:4])
            print(f"| {name} | {spent:.2f} | {'white' if opened.white_box else 'black'} box |", flush=True)


if __name__ == "__main__":
    main()
