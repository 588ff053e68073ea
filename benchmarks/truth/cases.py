"""Domains small enough to ask everybody, with models of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neuronfair.domain.rules import Rule
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset, load_dataset
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open import wrap_model
from neuronfair.model.open.opened import OpenedModel
from neuronfair.model.train import train
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.testing.cases import CENSUS, random_module, uniform_rows

import torch

from .everybody import Asked

MOST_ROWS = 10_000  # of a table: models of a benchmark need not be the best
Grid = tuple[float, float, float]  # the lowest and the highest number, and the step between two


@dataclass(frozen=True)
class Case:
    """A model, the people it is asked about, and rows of a table to start searches from."""

    data: Dataset
    opened: OpenedModel
    asked: Asked  # the same model in float64
    what: str

    @property
    def domain(self) -> TableDomain:
        """The people."""
        return self.data.domain

    @property
    def decision(self) -> Decision:
        """What counts as another decision."""
        return self.opened.decision


def coarser(data: Dataset, names: Sequence[str], grids: dict[str, Grid]) -> Dataset:
    """Return some columns of a table, numbers on coarser grids; what lies beyond an end counts as that end."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    data = data.take(order[:MOST_ROWS]).only(names)
    attributes, rows = list(data.domain.attributes), data.rows.clone()
    for name, (low, high, step) in grids.items():
        column = data.domain.column(name)
        old = attributes[column]
        new = attributes[column] = replace(old, low=low, high=high, step=step)
        numbers = old.low + old.step * rows[:, column].double()
        rows[:, column] = ((numbers - low) / step).round().long().clamp(0, new.size - 1)
    return replace(data, domain=replace(data.domain, attributes=tuple(attributes)), rows=rows)


def trained(data: Dataset, hidden: Sequence[int], *, seed: int = 0) -> Case:
    """Return a network that the project's own trainer has made."""
    module, card = train(data, hidden=hidden, settings=TrainingSettings(restarts=1), seed=seed)
    opened = wrap_model(module, data.domain, data.rows)
    assert isinstance(opened.model, Network)
    what = f"network {'-'.join(map(str, hidden))}, accuracy {100 * card.accuracy['test']:.0f} %"
    return Case(data, opened, opened.model.double(), what)


def boosted(data: Dataset, estimator: Any, what: str) -> Case:
    """Return boosted trees, fitted to the numbers that the domain's encoding makes of rows."""
    part = data.split(0)
    encode = TableEncoding.of(data.domain).encode
    estimator.fit(encode(part.train.rows).numpy(), part.train.labels.numpy())
    opened = wrap_model(estimator, data.domain, data.rows)
    assert opened.trees is not None
    right = opened.model.scores(part.test.rows).argmax(1) == part.test.labels
    return Case(data, opened, opened.trees(), f"{what}, accuracy {100 * float(right.double().mean()):.0f} %")


def adult(quick: bool) -> Case:
    names = ["age", "education", "marital_status", "occupation", "relationship", "race", "sex", "hours_per_week"]
    grids: dict[str, Grid] = {"age": (17, 87, 10), "hours_per_week": (10, 90, 20)}
    names = [name for name in names if not quick or name not in ("race", "occupation")]
    return trained(coarser(load_dataset("adult"), names, grids), (16, 8))


def adult_couples(quick: bool) -> Case:
    """Two sensitive attributes, one of them tied by rules: a husband has no female twin."""
    names = ["age", "education", "marital_status", "relationship", "race", "sex", "capital_gain", "hours_per_week"]
    grids: dict[str, Grid] = {"age": (17, 87, 5), "capital_gain": (0, 20000, 5000), "hours_per_week": (10, 90, 10)}
    names = [name for name in names if not quick or name not in ("capital_gain", "hours_per_week")]
    data = coarser(load_dataset("adult"), names, {name: grid for name, grid in grids.items() if name in names})
    rules = (
        Rule("a husband is a man", {"relationship": ("Husband",)}, {"sex": ("Male",)}),
        Rule("a wife is a woman", {"relationship": ("Wife",)}, {"sex": ("Female",)}),
    )
    domain = replace(data.domain, sensitive=("sex", "race"), rules=(*data.domain.rules, *rules))
    return trained(replace(data, domain=domain), (32,))


def german(quick: bool) -> Case:
    names = ["checking_status", "duration", "credit_history", "purpose", "credit_amount", "savings_status"]
    names = [name for name in names if not quick or name != "purpose"]
    grids: dict[str, Grid] = {"duration": (4, 72, 6), "credit_amount": (250, 18250, 2000), "age": (19, 75, 8)}
    return trained(coarser(load_dataset("german"), [*names, "employment", "sex", "age"], grids), (64, 32, 16, 8, 4))


def compas(quick: bool) -> Case:
    names = ["sex", "age", "race", "juv_misd_count", "juv_other_count", "priors_count", "c_charge_degree"]
    grids: dict[str, Grid] = {"age": (18, 96, 6), "juv_misd_count": (0, 4, 1), "juv_other_count": (0, 4, 1)}
    grids["priors_count"] = (0, 38, 2)
    names += [] if quick else ["c_charge_desc"]
    return trained(coarser(load_dataset("compas"), names, grids), (24, 12))


def bank(quick: bool) -> Case:
    """A sensitive number, tied by a rule: whoever has a degree has no twin of 18."""
    names = ["age", "job", "marital", "education", "balance", "housing", "loan", "duration", "poutcome"]
    grids: dict[str, Grid] = {"age": (18, 90, 8), "balance": (-8000, 32000, 8000), "duration": (0, 4500, 500)}
    names = [name for name in names if not quick or name != "job"]
    return trained(coarser(load_dataset("bank"), names, grids), (32, 16))


def german_trees(quick: bool) -> Case:
    """Nearly 10⁹ people, whom the trees put into far fewer cells."""
    from xgboost import XGBClassifier

    names = ["checking_status", "duration", "credit_history", "credit_amount", "savings_status", "employment", "sex"]
    grids: dict[str, Grid] = {"credit_amount": (250, 18350, 100)}
    data = coarser(load_dataset("german"), [*names, "age"], grids)
    trees, depth = (20, 3) if quick else (50, 3)
    model = XGBClassifier(n_estimators=trees, max_depth=depth, learning_rate=0.1, n_jobs=1, random_state=0)
    return boosted(data, model, f"XGBoost, {trees} trees of depth {depth}")


def adult_trees(quick: bool) -> Case:
    from lightgbm import LGBMClassifier

    names = ["age", "workclass", "education", "marital_status", "relationship", "race", "sex", "hours_per_week"]
    data = coarser(load_dataset("adult"), names, {})
    domain = replace(data.domain, sensitive=("race",))
    trees = 10 if quick else 30
    model = LGBMClassifier(n_estimators=trees, num_leaves=6, n_jobs=1, random_state=0, verbose=-1)
    return boosted(replace(data, domain=domain), model, f"LightGBM, {trees} trees of 6 leaves")


def drawn(quick: bool) -> Case:
    """Random weights over made-up people: three classes, and a rule that ties a sensitive attribute."""
    return _random(quick, 3, Decision(), ("sex", "marital"), seed=2)


def drawn_score(quick: bool) -> Case:
    """Random weights over made-up people: a score, and a gap that is too large."""
    return _random(quick, 1, Decision("tolerance", 2.5), ("sex",), seed=3)


def _random(quick: bool, outputs: int, decision: Decision, sensitive: tuple[str, ...], seed: int) -> Case:
    people = parse_domain(CENSUS)
    rows = uniform_rows(people, 2000)
    data = Dataset("people", people, rows, torch.full((len(rows),), -1))
    if quick:
        data = coarser(data, people.names, {"age": (17, 89, 4), "gain": (0, 50, 2.5), "loss": (0, 20, 2)})
    domain = data.domain.with_sensitive(*sensitive)
    network = Network(random_module(domain, outputs, seed=seed).eval(), domain)
    opened = wrap_model(network, domain, data.rows, decision=decision)
    return Case(replace(data, domain=domain), opened, network.double(), "network 12, random weights")


CASES: dict[str, Callable[[bool], Case]] = {
    "drawn": drawn,
    "drawn-score": drawn_score,
    "german": german,
    "german-trees": german_trees,
    "adult": adult,
    "adult-couples": adult_couples,
    "adult-trees": adult_trees,
    "compas": compas,
    "bank": bank,
}
