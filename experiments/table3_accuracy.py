"""Table 3 of the paper: the accuracy of the classifiers, next to logistic regression on the same rows.

Each seed draws another split into 70% for training, 10% for validation and 20% for testing. Early stopping, the
choice between restarts and the strength of the regression's penalty use the validation part only; the test part is
used once, at the end.
"""

from __future__ import annotations

import warnings
from typing import Any

from experiments.cases import PAPER, data, train_jobs
from experiments.lab import Claim, Job, Report, Results, Scale, Table, figure, mean
from neuronfair.model.encoding import TableEncoding

from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

PARTS = ("train", "validation", "test")
PENALTIES = (0.001, 0.01, 0.1, 1.0)  # C of the logistic regression; the best on the validation part is taken
ENCODINGS = ("default", "paper")


def regression(name: str, encoding: str, seed: int, quick: bool) -> dict[str, Any]:
    """Return the accuracy of logistic regression on standardised inputs, on the test rows of a split."""
    split = data(name, encoding).split(seed)._asdict()
    x = {part: TableEncoding.of(rows.domain).encode(rows.rows).numpy() for part, rows in split.items()}
    y = {part: rows.labels.numpy() for part, rows in split.items()}
    models = []
    for penalty in PENALTIES[-1:] if quick else PENALTIES:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=300))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the validation part decides
            models.append(model.fit(x["train"], y["train"]))

    def unseen(model: Pipeline) -> float:
        return float(log_loss(y["validation"], model.predict_proba(x["validation"])))

    return {"test": float(min(models, key=unseen).score(x["test"], y["test"]))}


def jobs(scale: Scale) -> list[Job]:
    """Return the trainings in both encodings, each next to a regression."""
    trainings = [job for encoding in ENCODINGS for job in train_jobs(scale, encoding)]
    return [*trainings, *(Job("table3_accuracy:regression", job.arguments) for job in trainings)]


def report(scale: Scale, results: Results) -> Report:
    """Return the accuracy on all three parts, the regression's, and the paper's."""
    lines: dict[str, list[list[str]]] = {encoding: [] for encoding in ENCODINGS}
    gaps = {}
    for encoding in ENCODINGS:
        trainings = train_jobs(scale, encoding)
        for name in dict.fromkeys(job.arguments["name"] for job in trainings):
            mine = [job for job in trainings if job.arguments["name"] == name]
            pairs = [(results(job), results(Job("table3_accuracy:regression", job.arguments))) for job in mine]
            done = [(ours["accuracy"], other["test"]) for ours, other in pairs if ours and other]
            if not done:
                continue
            parts = [figure([100 * ours[part] for ours, _ in done], ".2f") for part in PARTS]
            rival = figure([100 * other for _, other in done], ".2f")
            difference = figure([100 * (ours["test"] - other) for ours, other in done], ".2f")
            gaps[name] = mean(ours["test"] for ours, _ in done) - PAPER["accuracy"][name]
            printed = f"{100 * PAPER['accuracy'][name]:.2f}"
            lines[encoding].append([name, str(len(done)), *parts, rival, difference, printed])
    heading = ["data set", "splits", "train", "validation", "test", "regression, test", "difference", "paper"]
    gap_list = ", ".join(f"{100 * gap:+.1f} ({name})" for name, gap in gaps.items())
    claim = Claim(
        "The classifiers reach the printed accuracies (Table 3)",
        all(gap >= 0 for gap in gaps.values()),
        f"on held-out rows, percentage points: {gap_list}",
    )
    note = "Percent, mean and 95% interval over the splits, which overlap."
    return Report(
        "Table 3: accuracy of the classifiers",
        "The paper's program measures accuracy on the rows that it trained on. Here the test rows play no part in "
        "training. 'Regression' is logistic regression on standardised inputs; the validation rows choose its penalty. "
        "The files have the two encodings.",
        {encoding: Table(heading, lines[encoding], note, on_page=False) for encoding in ENCODINGS},
        [claim] if gaps else [],
    )
