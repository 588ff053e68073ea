"""Table 3 of the paper: the accuracy of the classifiers, beside logistic regression on the same rows.

    python experiments/table3_accuracy.py --seeds 3 --out out/table3
    python experiments/table3_accuracy.py --data german --seeds 20

Each seed draws another split into 70 % for training, 10 % for validation and 20 % for testing. Early stopping, the
choice between restarts and the strength of the regression's penalty look at the validation part only; the test part is
looked at once, at the end.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
import time
import tomllib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from neuronfair.atomic import write_text
from neuronfair.domain.data import DATASETS, ENCODINGS, Data, Split, load
from neuronfair.network.fit import fit
from neuronfair.network.train import TrainingSettings

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

PAPER = Path(__file__).with_name("paper.toml")
QUICK = TrainingSettings(epochs=20, patience=5, restarts=1)
PARTS = ("train", "validation", "test")
PENALTIES = (0.001, 0.01, 0.1, 1.0)  # C of the logistic regression; the best on the validation part is taken


class Run(NamedTuple):
    """The accuracies of one training, by part."""

    data: str
    encoding: str
    seed: int
    network: dict[str, float]
    regression: dict[str, float]
    seconds: float


def run(data: Data, seed: int, settings: TrainingSettings | None) -> Run:
    """Train a network and a logistic regression on one split, and measure both on all three parts."""
    start = time.perf_counter()
    _, card = fit(data, settings=settings, seed=seed)
    seconds = time.perf_counter() - start
    return Run(data.name, data.domain.encoding, seed, dict(card.accuracy), regression(data.split(seed)), seconds)


def regression(split: Split) -> dict[str, float]:
    """Return the accuracies of logistic regression on standardised inputs."""
    x, y = ({k: f(v) for k, v in split._asdict().items()} for f in (_inputs, lambda part: part.labels.numpy()))
    models = []
    for penalty in PENALTIES:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=300))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # judged by the validation part as it is
            models.append(model.fit(x["train"], y["train"]))

    def unseen(model: Pipeline) -> float:
        return float(log_loss(y["validation"], model.predict_proba(x["validation"])))

    best = min(models, key=unseen)
    return {part: float(best.score(x[part], y[part])) for part in PARTS}


def _inputs(part: Data) -> npt.NDArray[np.float32]:
    return part.domain.encode(part.rows).numpy()


def figure(shares: Sequence[float]) -> str:
    """Return a mean in percent, with its standard error where there are several values."""
    mean = f"{100 * statistics.mean(shares):.2f}"
    if len(shares) == 1:
        return mean
    return f"{mean} ± {100 * statistics.stdev(shares) / len(shares) ** 0.5:.2f}"


def rows(runs: Sequence[Run], paper: dict[str, float]) -> list[list[str]]:
    """Return the table, one line per data set and encoding."""
    lines = [["data", "encoding", "seeds", "train", "validation", "test", "regression", "test - regression", "paper"]]
    for name, encoding in dict.fromkeys((r.data, r.encoding) for r in runs):
        mine = [r for r in runs if (r.data, r.encoding) == (name, encoding)]
        ours = [figure([r.network[part] for r in mine]) for part in PARTS]
        difference = figure([r.network["test"] - r.regression["test"] for r in mine])
        theirs = figure([r.regression["test"] for r in mine])
        lines.append([name, encoding, str(len(mine)), *ours, theirs, difference, f"{100 * paper[name]:.2f}"])
    return lines


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table."""
    head, *body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([head, "| --- | --- |" + " ---: |" * (len(lines[0]) - 2), *body]) + "\n"


def main() -> None:
    """Read the options, train, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", nargs="+", choices=DATASETS, default=DATASETS)
    parser.add_argument("--encoding", nargs="+", choices=ENCODINGS, default=ENCODINGS)
    parser.add_argument("--seeds", type=int, default=1, help="how many splits, numbered from 0")
    parser.add_argument("--quick", action="store_true", help="one short training each: does it run at all?")
    parser.add_argument("--out", type=Path, help="write OUT.md (the table) and OUT.csv (every run)")
    options = parser.parse_args()
    paper = tomllib.loads(PAPER.read_text(encoding="utf-8"))["accuracy"]
    runs = []
    for seed in range(options.seeds):
        for name in options.data:
            for encoding in options.encoding:
                runs.append(run(load(name, encoding), seed, QUICK if options.quick else None))
                last = runs[-1]
                shown = ", ".join(f"{part} {last.network[part]:.4f}/{last.regression[part]:.4f}" for part in PARTS)
                print(f"{name} {encoding} seed {seed}: network/regression {shown}; {last.seconds:.0f} s", flush=True)
    table = markdown(rows(runs, paper))
    print(f"\nAccuracy in percent, mean ± standard error over the seeds\n\n{table}", end="")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(options.out.with_suffix(".md"), table)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["data", "encoding", "seed", "model", *PARTS])
        for r in runs:
            for model, shares in (("network", r.network), ("regression", r.regression)):
                writer.writerow([r.data, r.encoding, r.seed, model, *(f"{shares[part]:.6f}" for part in PARTS)])
        write_text(options.out.with_suffix(".csv"), text.getvalue())


if __name__ == "__main__":
    main()
