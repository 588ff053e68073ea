"""The eight cases of the paper, the classifiers they are tried on, and the searches that several tables look at."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from experiments.lab import FOLDER, Job, Scale, code_digest
from experiments.repairs.retrain import MAX_PAIRS
from neuronfair.atomic import replace_file
from neuronfair.audits.comparison import measure_method
from neuronfair.domain.tables.dataset import Dataset, load_dataset
from neuronfair.domain.tables.sources import find_local_files
from neuronfair.errors import ModelError
from neuronfair.measure.rate import flip_rate
from neuronfair.model.encoding import TableEncoding, cluster_seeds
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.model.train import train as train_classifier
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import read_model, save_weights
from neuronfair.searches import campaign
from neuronfair.searches.campaign import SearchResult, random_directions
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.findings import Findings
from neuronfair.store.tables import read_findings, write_findings

import torch
from torch import Tensor

T = TypeVar("T")
ALL_CASES = {  # case: data set, sensitive attribute, published weights, the paper's name of the case
    "adult-sex": ("adult", "sex", "census.npz", "adult-gender"),
    "adult-race": ("adult", "race", "census.npz", "adult-race"),
    "adult-age": ("adult", "age", "census.npz", "adult-age"),
    "german-sex": ("german", "sex", "credit.npz", "german-gender"),
    "german-age": ("german", "age", "credit.npz", "german-age"),
    "bank-age": ("bank", "age", "bank.npz", "bank-age"),
    "compas-race": ("compas", "race", "compas.npz", "compas-race"),
    "meps-sex": ("meps", "SEX=1", None, "meps-gender"),  # the published model cannot be fed
}
CASES = {
    case: facts for case, facts in ALL_CASES.items() if find_local_files(facts[0]) is not None
}  # whose data are on this machine
PUBLISHED = "published"
WIDE = ("compas-race", "meps-sex")  # hundreds of columns: fewer run seeds
METHODS = ("neuronfair-plus", "frontier", "eidig5", "adf", "aequitas")
KEPT = 10 * MAX_PAIRS  # findings of a search, drawn at random; retraining takes at most a tenth of them
WHOLE = {"method", "seeds", "steps", "seed"}  # what the plan of a search without limits names
SHORT = TrainingSettings(epochs=10, patience=3, restarts=1)
PAPER: dict[str, Any] = tomllib.loads((FOLDER / "paper.toml").read_text(encoding="utf-8"))
PAPER_METHODS = ("aequitas", "symbgen", "adf", "eidig", "neuronfair")  # the order of columns in the paper's tables


def published(case: str) -> Path | None:
    """Return the published weights of a case, if they are on this machine (NEURONFAIR_MODELS)."""
    name, folder = ALL_CASES[case][2], os.environ.get("NEURONFAIR_MODELS")
    if name is None or not folder:
        return None
    paths = (Path(folder) / "neuronfair" / name, Path(folder) / name)
    return next((path for path in paths if path.exists()), None)


def run_seeds(scale: Scale, case: str) -> range:
    """Return the run seeds of the searches of a case: at most three for the wide tables, which take longer."""
    return range(min(scale.repeats, 3) if case in WIDE else scale.repeats)


def split_of(model: str | int) -> int:
    """Return the split of the rows that a classifier was trained on; the published ones have seen all."""
    return 0 if model == PUBLISHED else int(model)


def model_of(case: str) -> str | int:
    """Return the classifier that stands for the paper's: the published one, or else our first."""
    return PUBLISHED if published(case) is not None else 0


_OWN = [case for case in CASES if published(case) is None]
CLASSIFIERS = "Published classifiers" + (f" (our own: {', '.join(_OWN)})" if _OWN else "")


@cache
def data(name: str, encoding: str = "paper", sensitive: str | None = None) -> Dataset:
    """Return a data set, read once."""
    return load_dataset(name, encoding, sensitive=[sensitive] if sensitive else None)


def case_data(case: str) -> Dataset:
    """Return the rows of a case, with its sensitive attribute."""
    name, sensitive, *_ = CASES[case]
    return data(name, "paper", sensitive)


@cache
def network(case: str, model: str | int) -> Network:
    """Return the published classifier, or our own of a training seed, which is trained if it was not yet."""
    rows = case_data(case)
    path = published(case) if model == PUBLISHED else weights_of(CASES[case][0], int(model))
    if path is None:
        raise ModelError(f"{case}: the published weights are not here. Set NEURONFAIR_MODELS to their folder")
    if not path.exists():
        train(CASES[case][0], "paper", int(model), quick="quick" in path.parent.parent.name)
    return Network(read_model(path, rows.domain), rows.domain)


@cache
def profile(case: str, model: str | int) -> BiasProfile:
    """Return what the neurons of a classifier do, looked at once for all jobs of a process."""
    rows = case_data(case)
    return interpret(network(case, model), rows.domain, rows.rows)


def weights_of(name: str, seed: int, encoding: str = "paper") -> Path:
    """Return where our own classifier of a data set is kept, next to the results."""
    kind = "" if encoding == "paper" else f"-{encoding}"
    return Path(os.environ["NEURONFAIR_LAB"]) / "models" / f"{name}{kind}-{seed}.safetensors"


def train(name: str, encoding: str, seed: int, quick: bool = False) -> dict[str, Any]:
    """Train a classifier on one split, keep it, and return its accuracy on the three parts."""
    module, card = train_classifier(data(name, encoding), settings=SHORT if quick else None, seed=seed)
    path = weights_of(name, seed, encoding)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_weights(path, module, card)
    return {"accuracy": dict(card.accuracy)}


def train_jobs(scale: Scale, encoding: str = "paper") -> list[Job]:
    """Return the trainings of our own classifiers: some seeds for every data set."""
    names = dict.fromkeys(case[0] for case in CASES.values())
    return [
        Job("cases:train", {"name": name, "encoding": encoding, "seed": seed, "quick": scale.quick}, first=True)
        for seed in range(scale.trainings)
        for name in names
    ]


def search_job(scale: Scale, case: str, model: str | int, method: str, seed: int, **more: Any) -> Job:
    """Return a whole search: both phases, from the cluster seeds of the table."""
    config = {"method": method, "seeds": scale.seeds, "steps": scale.steps, "seed": seed}
    return Job("cases:search", {"case": case, "model": model, **config, **more})


@cache
def starts(case: str, count: int, seed: int) -> Tensor:
    """Return the rows that searches start from: those that `find` would take, clustered once for all methods."""
    rows = case_data(case)
    return once(
        f"starts-{case}-{count}-{seed}",
        lambda: cluster_seeds(TableEncoding.of(rows.domain), rows.rows, count, seed=seed),
    )


def once(name: str, make: Callable[[], T]) -> T:
    """Return what `make` makes, from the file in which another process has left it if there is one."""
    path = Path(os.environ["NEURONFAIR_LAB"]) / "shared" / f"{name}-{code_digest()}.pt"
    if path.exists():
        made: T = torch.load(path, weights_only=False)  # our own file
        return made
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as temporary:
        torch.save(made, temporary)
    return made


def search(case: str, model: str | int, **config: Any) -> dict[str, Any]:
    """Search a classifier and return the figures; the findings of its first search are kept for retraining."""
    result = outcome(case, model, **config)
    if config["seed"] == split_of(model) and config.keys() <= WHOLE:
        _keep(result, _kept(case, model, **config))
    return measure_method(result)


def found(case: str, model: str | int, **config: Any) -> Findings:
    """Return findings of a search: as they were kept, or else by searching now."""
    path = _kept(case, model, **config)
    if not path.exists():
        _keep(outcome(case, model, **config), path)
    return read_findings(path, case_data(case).domain, network(case, model).outputs)


def _kept(case: str, model: str | int, **config: Any) -> Path:
    job = Job("cases:search", {"case": case, "model": model, **config})
    return Path(os.environ["NEURONFAIR_LAB"]) / "findings" / f"{job.key}-{code_digest()}.parquet"


def _keep(result: SearchResult, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(result.config.seed)
    some = torch.randperm(len(result.findings), generator=generator)[:KEPT]
    with replace_file(path) as temporary:
        write_findings(temporary, result.findings[some], result.domain)


def outcome(case: str, model: str | int, **config: Any) -> SearchResult:
    """Search a classifier, by default without controls; a search that Ctrl-C has cut short is no result."""
    rows, chosen = case_data(case), SearchConfig(**{"controls": False, **config})
    seeds = starts(case, chosen.seeds, chosen.seed)
    known = profile(case, model)
    result = campaign.search(network(case, model), rows.domain, rows.rows, chosen, seeds=seeds, profile=known)
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def control_job(scale: Scale, case: str, model: str | int, method: str) -> Job:
    """Return a method's walk in random directions, from a tenth of the seeds: its success rate needs no more."""
    config = {"method": method, "seeds": max(20, scale.seeds // 10), "steps": scale.steps, "seed": 0}
    return Job("cases:control", {"case": case, "model": model, **config})


def control(case: str, model: str | int, **config: Any) -> dict[str, Any]:
    """Return the success rate of a method with noise instead of gradients."""
    rows, chosen = case_data(case), SearchConfig(**config)
    seeds = starts(case, chosen.seeds, chosen.seed)
    known = profile(case, model)
    walk = random_directions(network(case, model), rows.domain, rows.rows, chosen, seeds=seeds, profile=known)
    if walk is None:
        raise KeyboardInterrupt
    return {"gsr": walk.success_rate}


def rate_job(scale: Scale, case: str, model: str | int) -> Job:
    """Return the estimate of the flip rate of random records."""
    return Job("cases:rate", {"case": case, "model": model, "samples": scale.samples})


def rate(case: str, model: str | int, samples: int) -> dict[str, Any]:
    """Return the flip rate of uniformly drawn records (DM-RS), with its confidence interval."""
    result = flip_rate(network(case, model), case_data(case).domain, samples=samples)
    return {"rate": result.rate, "interval": result.interval}
