"""How many wrong feedings the check of an audit notices, and how many right ones it doubts.

    python benchmarks/feeding.py

Ten models, each fed rightly and in ten wrong ways. A wrong feeding is a wrong domain file: other attributes for the
same rows, or the classes the other way round. The constants of the check were settled on SETTLED, models of Adult,
German credit and COMPAS; HELD_OUT are models of other tables, though not unseen (docs/howto/feeding.md). WEAK are fed
rightly and bad all the same: they must not be called wrongly fed. NEURONFAIR_DATA and NEURONFAIR_MODELS must be set.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from neuronfair.audits.report import EncodingCheckReport
from neuronfair.audits.stages.encoding_check import check_encoding
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain, Target
from neuronfair.domain.tables.dataset import Dataset, load_dataset
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import wrap_model
from neuronfair.model.train import train
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import read_model

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

FEW = 2_000
SECONDS: list[float] = []
PUBLISHED = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models"))


@dataclass(frozen=True)
class Subject:
    """A model with rows that it is right for."""

    name: str
    data: Dataset
    model: Any


def published(file: str, table: str) -> Subject:
    data = load_dataset(table, "paper")
    return Subject(f"published {file}, {table}", data, read_model(PUBLISHED / f"{file}.npz", data.domain))


def audited(data: Dataset, few: int = FEW) -> Dataset:
    """Return rows that a model has not seen or, if they are too few, all."""
    test = data.split(0).test
    return test if len(test) >= few else data


def network(table: str, encoding: str, hidden: tuple[int, ...] = (32, 16)) -> Subject:
    data = synthetic() if table == "synthetic" else load_dataset(table, encoding)
    settings = TrainingSettings(restarts=1, batch=512, lr=0.003, patience=3, epochs=20)
    module, _ = train(data, hidden=hidden, settings=settings)
    return Subject(f"network on {table} ({encoding})", audited(data), module)


def estimator(table: str, encoding: str, made: Any, few: int = FEW) -> Subject:
    data = synthetic() if table == "synthetic" else load_dataset(table, encoding)
    part = data.split(0).train
    made.fit(TableEncoding.of(data.domain).encode(part.rows).numpy(), part.labels.numpy())
    return Subject(f"{type(made).__name__} on {table} ({encoding})", audited(data, few), made)


def synthetic() -> Dataset:
    """Return a table of small codes, half of them labels, whose class hangs on some of them, two of them together."""
    draw = np.random.default_rng(5)
    sizes = np.array([9, 5, 4, 12, 2, 6, 3, 20, 7, 3])
    values = [tuple(f"{'qwertyuiop'[i]}{k}" for k in range(size)) if i % 2 else () for i, size in enumerate(sizes)]
    attributes = tuple(
        Attribute(f"{'qwertyuiop'[i]}{i}", "ordinal", high=size - 1, values=values[i]) for i, size in enumerate(sizes)
    )
    codes = draw.integers(0, sizes, (8000, len(sizes)))
    share = codes / (sizes - 1) - 0.5
    lean = 4 * share[:, 0] + 12 * share[:, 1] * share[:, 3] - 3 * share[:, 5] + 2 * (share[:, 7] > 0.2) - 1.5
    labels = draw.random(len(codes)) < 1 / (1 + np.exp(-2 * lean))
    domain = TableDomain("synthetic", attributes, (attributes[9].name,), target=Target("y", ("no", "yes")))
    return Dataset("synthetic", domain, torch.tensor(codes), torch.tensor(labels).long())


# Wrong feedings: another domain for the same rows, as a wrong domain file would be.


def reordered(data: Dataset, order: list[int]) -> Dataset:
    attributes = tuple(data.domain.attributes[place] for place in order)
    return replace(data, domain=replace(data.domain, attributes=attributes, rules=()), rows=data.rows[:, order])


def permuted(data: Dataset, seed: int) -> Dataset:
    return reordered(data, np.random.default_rng(seed).permutation(len(data.domain.attributes)).tolist())


def by_name(data: Dataset) -> Dataset:
    names = data.domain.names
    return reordered(data, sorted(range(len(names)), key=lambda place: names[place]))


def with_attributes(data: Dataset, change: Callable[[Attribute, np.ndarray], tuple[Attribute, np.ndarray]]) -> Dataset:
    pairs = [change(a, data.rows[:, i].numpy()) for i, a in enumerate(data.domain.attributes)]
    domain = replace(data.domain, attributes=tuple(a for a, _ in pairs), rules=())
    return replace(data, domain=domain, rows=torch.tensor(np.stack([codes for _, codes in pairs], 1)))


def standardised(attribute: Attribute, center: float, scale: float) -> Attribute:
    return replace(attribute, encode="scaled", center=float(center), scale=float(scale) or 1.0)


def values_of(attribute: Attribute, codes: np.ndarray) -> np.ndarray:
    return codes if attribute.values else attribute.low + attribute.step * codes


def scaled_by_table(attribute: Attribute, codes: np.ndarray) -> tuple[Attribute, np.ndarray]:
    if attribute.encode == "onehot":
        return attribute, codes
    if attribute.encode == "scaled":
        return replace(attribute, encode="raw"), codes
    values = values_of(attribute, codes)
    return standardised(attribute, values.mean(), values.std()), codes


def scaled_by_bounds(attribute: Attribute, codes: np.ndarray) -> tuple[Attribute, np.ndarray]:
    if attribute.encode == "onehot":
        return attribute, codes
    values = values_of(attribute, codes)
    low, span = values.min(), float(np.ptp(values)) or 1.0
    if attribute.encode == "scaled":
        return standardised(attribute, low, span), codes
    return standardised(attribute, low + span / 2, span / 2), codes


def shifted(attribute: Attribute, codes: np.ndarray) -> tuple[Attribute, np.ndarray]:
    """Codes that begin with 1 where they should begin with 0."""
    if attribute.encode == "onehot":
        return attribute, (codes + 1) % attribute.size
    step = 1.0 if attribute.values else attribute.step
    return standardised(attribute, attribute.center - step, attribute.scale), codes


def relabelled(attribute: Attribute, codes: np.ndarray) -> tuple[Attribute, np.ndarray]:
    """Labels and flags numbered from the other end."""
    if attribute.values or attribute.kind == "flag":
        return replace(attribute, values=attribute.values[::-1]), attribute.size - 1 - codes
    return attribute, codes


def swapped(data: Dataset) -> Dataset:
    target = data.domain.target
    assert target is not None
    turned = replace(data.domain, target=Target(target.column, target.classes[::-1]), favourable=None)
    return replace(data, domain=turned, labels=1 - data.labels)


WRONG: dict[str, Callable[[Dataset], Dataset]] = {
    **{f"columns permuted ({seed})": partial(permuted, seed=seed) for seed in range(1, 5)},
    "columns by name": by_name,
    "raw for scaled": partial(with_attributes, change=scaled_by_table),
    "other scale": partial(with_attributes, change=scaled_by_bounds),
    "codes one higher": partial(with_attributes, change=shifted),
    "labels reversed": partial(with_attributes, change=relabelled),
    "classes swapped": swapped,
}

SETTLED: tuple[Callable[[], Subject], ...] = (
    partial(published, "neuronfair/census", "adult"),
    partial(published, "adf/credit", "german"),
    partial(network, "adult", "default"),
    partial(estimator, "compas", "default", MLPClassifier((16,), max_iter=30, random_state=0)),
    partial(estimator, "adult", "paper", HistGradientBoostingClassifier(random_state=0)),
)
HELD_OUT: tuple[Callable[[], Subject], ...] = (
    partial(published, "adf/bank", "bank"),
    partial(network, "meps", "default"),
    partial(network, "synthetic", "raw"),
    partial(estimator, "bank", "default", LogisticRegression(max_iter=300)),
    partial(estimator, "bank", "default", HistGradientBoostingClassifier(random_state=0)),
)
WEAK: tuple[Callable[[], Subject], ...] = tuple(
    partial(estimator, table, "default", made, few=0)
    for table, made in (
        ("bank", LogisticRegression(C=1e-4, max_iter=300)),
        ("meps", LogisticRegression(C=1e-4, max_iter=300)),
        ("bank", LogisticRegression(class_weight="balanced", max_iter=300)),
        ("meps", LogisticRegression(class_weight="balanced", max_iter=300)),
        ("adult", DecisionTreeClassifier(max_depth=1)),
        ("compas", DecisionTreeClassifier(max_depth=1)),
        ("bank", DecisionTreeClassifier(random_state=0)),
        ("compas", DecisionTreeClassifier(random_state=0)),
        ("german", MLPClassifier((100, 100), alpha=0, max_iter=400, random_state=0)),
        ("compas", RandomForestClassifier(20, max_depth=2, random_state=0)),
    )
)


def checked(subject: Subject, data: Dataset) -> EncodingCheckReport:
    opened = wrap_model(subject.model, data.domain, data.rows)
    begun = time.process_time()
    report = check_encoding(opened, data)
    SECONDS.append(time.process_time() - begun)
    return report


def line(cells: Sequence[object]) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    warnings.simplefilter("ignore")  # trainings that were stopped early
    torch.set_num_threads(1)
    for title, makers in (("SETTLED", SETTLED), ("HELD_OUT", HELD_OUT)):
        noticed, doubted, called = 0, 0, 0
        print(f"\n{title}: W is wrong, s suspicious, . ok\n")
        line(["model", "rows", "right", *WRONG])
        line(["---"] * (len(WRONG) + 3))
        for make in makers:
            subject = make()
            levels = [checked(subject, change(subject.data)).level for change in (lambda data: data, *WRONG.values())]
            line(
                [
                    subject.name,
                    f"{len(subject.data):,}",
                    *({"wrong": "W", "suspicious": "s", "ok": "."}[one] for one in levels),
                ]
            )
            doubted += levels[0] != "ok"
            noticed += sum(level != "ok" for level in levels[1:])
            called += levels[1:].count("wrong")
        print(
            f"\n{noticed} of {len(makers) * len(WRONG)} wrong feedings noticed, {called} of them called wrong; "
            f"{doubted} of {len(makers)} right ones doubted"
        )
    print("\nWEAK: fed rightly\n")
    line(["model", "rows", "accuracy", "most frequent class", "AUC", "forest's AUC", "said"])
    line(["---"] * 7)
    for make in WEAK:
        subject = make()
        one = checked(subject, subject.data)
        shares = [
            f"{share:.3f}" for share in (one.accuracy, one.majority, one.auc, one.attainable) if share is not None
        ]
        line([subject.name, f"{len(subject.data):,}", *shares, one.level])
    print(f"\nProcessor seconds of a check: median {statistics.median(SECONDS):.2f}, most {max(SECONDS):.2f}")


if __name__ == "__main__":
    main()
