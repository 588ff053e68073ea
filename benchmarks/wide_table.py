"""How long a wide table takes: 200,000 people with 51 columns of all kinds, and the audit of a model of trees on it.

`python benchmarks/wide_table.py --rows 200000 --format csv --audit` prints the seconds of each stage.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from neuronfair.domain.schema.infer import draft_domain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.domain.tables.files import read_sheet

import numpy as np
import pandas as pd

DECIMALS, WHOLES, WORDS = 18, 14, 8


def people(count: int, seed: int = 0) -> pd.DataFrame:
    """People with decimals, whole numbers, words, and what else stands in such tables; 'paid' is to be predicted."""
    dice = np.random.default_rng(seed)
    table: dict[str, object] = {"customer_id": np.cumsum(dice.integers(1, 9, count))}
    table |= {f"ratio_{i}": np.round(dice.normal(50, 15, count), 4 if i % 2 else 1) for i in range(DECIMALS)}
    table |= {f"count_{i}": dice.poisson(2 + 5 * i, count) for i in range(WHOLES)}
    table |= {f"word_{i}": dice.choice([f"w{k}" for k in range(3 + 4 * i)], count) for i in range(WORDS)}
    table["sex"] = dice.choice(["F", "M"], count)
    table["age"] = dice.integers(18, 90, count)
    table["employer"] = [f"firm {k}" for k in dice.zipf(1.3, count) % 5000]
    table["postcode"] = [f"{k:05d}" for k in dice.integers(1000, 1900, count)]
    table["income"] = [f"${wage:,.2f}" for wage in dice.lognormal(10, 0.5, count)]
    table["share"] = [f"{share:.1f}%" for share in dice.uniform(0, 100, count)]
    born = np.datetime64("1950-01-01") + dice.integers(0, 20_000, count).astype("timedelta64[D]")
    table["born"] = born.astype(str)
    table["country"] = "DE"
    table["note"] = ""
    found = pd.DataFrame(table)
    found.loc[dice.random(count) < 0.1, "ratio_3"] = np.nan
    score = found.ratio_0 / 15 + found.count_1 / 3 + (found.sex == "M") + dice.normal(0, 1, count)
    found["paid"] = np.where(score > score.median(), "yes", "no")
    return found


def model(table: pd.DataFrame, path: Path) -> None:
    """Train trees on the columns that need no cleaning, and save them with joblib."""
    import joblib
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder

    words = [name for name in table if name.startswith("word_")] + ["sex", "employer"]
    numbers = [name for name in table if name.startswith(("ratio_", "count_"))] + ["age"]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    trees = HistGradientBoostingClassifier(max_iter=50, random_state=0)
    first = make_column_transformer((codes, words), ("passthrough", numbers))
    joblib.dump(make_pipeline(first, trees).fit(table[words + numbers], table.paid), path)


@contextmanager
def timed(what: str) -> Iterator[None]:
    begun, worked = time.perf_counter(), _worked()
    yield
    print(f"{what:14} {time.perf_counter() - begun:8.1f} s, of a processor {_worked() - worked:8.1f} s", flush=True)


def _worked() -> float:
    """Seconds of processor time so far, also of programs that were run and have ended: other work does not count."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--format", choices=("csv", "parquet", "feather"), default="csv")
    parser.add_argument("--audit", action="store_true", help="also train trees and audit them by sex")
    parser.add_argument("--options", default="", help="more options of the audit")
    parser.add_argument("--folder", type=Path, help="where to leave everything; default: nowhere")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        table, path = people(given.rows), folder / f"people.{given.format}"
        with timed(f"write {given.format}"):
            table.to_csv(path, index=False) if given.format == "csv" else getattr(table, f"to_{given.format}")(path)
        print(f"{len(table):,} rows, {table.shape[1]} columns, {path.stat().st_size / 1e6:.0f} MB", flush=True)
        with timed("read_sheet"):
            sheet = read_sheet(path)
        with timed("infer"):
            draft = draft_domain(sheet, sensitive=["sex"], target="paid")
        with timed("read_table"):
            read_table(sheet, draft.domain)
        if not given.audit:
            return
        with timed("train trees"):
            model(table, folder / "trees.joblib")
        words = ["audit", str(path), "--model", str(folder / "trees.joblib"), "--trust-pickle", "--target", "paid"]
        words += ["--sensitive", "sex", "--out", str(folder / "run"), *shlex.split(given.options)]
        with timed("audit"):
            subprocess.run([sys.executable, "-m", "neuronfair.cli", *words], check=True)


if __name__ == "__main__":
    main()
