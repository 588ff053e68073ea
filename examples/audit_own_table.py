"""From a CSV file and a scikit-learn pipeline to a verdict and a page, in Python.

The folder `audit-own-table` is made where you are: open its report.html.
"""

from __future__ import annotations

from pathlib import Path

import neuronfair as nf  # before anything that imports torch

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

FOLDER = Path("audit-own-table")


def make_table() -> pd.DataFrame:
    """Applicants for a flat; whoever chose the tenants preferred some names of a region."""
    rng = np.random.default_rng(1)
    n = 2000
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "origin": rng.choice(["north", "south", "abroad"], n),
            "household": rng.integers(1, 6, n),
            "income": np.round(rng.lognormal(7.8, 0.35, n)),
            "contract": rng.choice(["permanent", "temporary", "none"], n, p=[0.6, 0.3, 0.1]),
        }
    )
    liking = (
        (table.income - 2400) / 600
        - 0.4 * table.household
        + (table.contract == "permanent")
        - 0.6 * (table.origin == "abroad")
    )
    table["gets_flat"] = np.where(liking + rng.normal(0, 0.5, n) > -0.7, "yes", "no")
    table.loc[rng.random(n) < 0.04, "contract"] = None  # did not say
    return table


def train(table: pd.DataFrame) -> Pipeline:
    """Train an ordinary pipeline: words one-hot, numbers scaled, empty cells filled."""
    words = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    preparation = make_column_transformer(
        (words, ["origin", "contract"]), (StandardScaler(), ["age", "household", "income"])
    )
    model = make_pipeline(preparation, MLPClassifier((24, 12), early_stopping=True, max_iter=300, random_state=0))
    return model.fit(table.drop(columns="gets_flat"), table["gets_flat"])


def main() -> None:
    """Make a table and a model, audit it, and leave a page."""
    FOLDER.mkdir(exist_ok=True)
    file = FOLDER / "flats.csv"
    table = make_table()
    table.to_csv(file, index=False)

    # A first draft of what a person may be. Write it to a file and correct it; here one rule is added.
    draft = nf.infer_domain(file, sensitive=["origin"], target="gets_flat").to_toml()
    draft += '[[rules]]\nname = "a household of five has an income"\n'
    draft += "forbid = { household = { min = 5 }, income = { max = 1000 } }\n"
    domain = nf.parse_domain(draft)
    data = nf.read_table(file, domain)

    opened = nf.wrap_model(train(table), domain, data.rows)  # or a file: model.skops, model.onnx, …
    print(opened.note)
    result = nf.audit(opened, data, settings=nf.AuditSettings.quick(seeds=30))
    print(result.verdict)

    (attribute,) = result.report.attributes
    for told in (*attribute.worst[:3], *attribute.subgroups[:2]):
        print("-", told.sentence)
    page = FOLDER / "report.html"
    page.write_text(result.to_html(), encoding="utf-8")
    print("Page:", page)


if __name__ == "__main__":
    main()
