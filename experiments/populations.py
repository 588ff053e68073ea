"""Flip rates of real, realistic synthetic and uniformly drawn records, and the plausibility of findings.

Five data sets in their default domains; a network, boosted trees and a forest of each. A second part measures how hard
it is to tell records drawn from a population model from real ones.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

from experiments.cases import CASES, data, once, train, weights_of
from experiments.lab import Job, Report, Results, Scale, Table, figure, gather, mean, span
from experiments.tree_models import KINDS, tree_model
from neuronfair.domain.population.model import PopulationModel, fit_likelihood, fit_population, real_synthetic_auc
from neuronfair.domain.population.plausible import MIN_PLAUSIBILITY
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.measure.rate import Rate, flip_rate
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel, wrap_model
from neuronfair.model.weights import read_model
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig

import torch
from torch import Tensor

MODELS = ("network", *KINDS)
LEAST = 0.05  # what a search is kept to
FULL = {"seeds": 200, "steps": 200, "samples": 20_000}  # of every search; records for a rate
QUICK = {"seeds": 20, "steps": 20, "samples": 500}
RATES = ("table", "plausible", "domain")


@cache
def population(name: str) -> PopulationModel:
    """Return the population model of a data set."""
    table = data(name, "default")
    return once(f"population-{name}", lambda: fit_population(table.domain, table.rows))


def quality(name: str, seed: int) -> dict[str, Any]:
    """Return how realistic records are that a model of 70% of the rows draws, and how likely the other rows are."""
    table = data(name, "default")
    domain, (train, *rest) = table.domain, table.split(seed)
    held = domain.clip(torch.cat([part.rows for part in rest]))
    model, generator = fit_likelihood(domain, domain.clip(train.rows), seed=seed), torch.Generator().manual_seed(seed)
    drawn = model.sample(len(held), generator)
    return {
        "auc": real_synthetic_auc(domain, held, drawn),
        "independent": real_synthetic_auc(domain, held, _independent(table, held, generator)),
        "uniform": real_synthetic_auc(domain, held, domain.sample(len(held), generator)),
        "log_likelihood": model.log_likelihood(held).mean().item(),
        "kept": domain.valid(drawn).double().mean().item(),
    }


def _independent(table: Dataset, rows: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows whose cells are drawn from different rows."""
    drawn = [table.rows[torch.randint(len(table), (len(rows),), generator=generator), i] for i in range(rows.shape[1])]
    return torch.stack(drawn, 1)


def opened(name: str, kind: str, seed: int, quick: bool) -> tuple[OpenedModel, Dataset]:
    """Return a model of a table: a network of ours, the one of Table 3 if it is there, or trees."""
    if kind in KINDS:
        return tree_model(name, kind, seed)
    table, path = data(name, "default"), weights_of(name, seed, "default")
    if not path.exists():
        train(name, "default", seed, quick)
    return wrap_model(read_model(path, table.domain), table.domain, table.rows), table


def measure(name: str, kind: str, seed: int, quick: bool, samples: int, **config: Any) -> dict[str, Any]:
    """Return the rates of a model in three populations, and how usual its findings are, before and after."""
    model, table = opened(name, kind, seed, quick)
    people, domain = population(name), table.domain
    whom: dict[str, Any] = {"table": table.rows, "plausible": people, "domain": "domain"}
    rates = {
        one: flip_rate(model.model, domain, population=p, samples=samples, decision=model.decision, seed=seed)
        for one, p in whom.items()
    }
    method = "frontier" if isinstance(model.model, Network) else "frontier-free"
    result: dict[str, Any] = {
        "method": method,
        "rates": {one: {"found": rate.flips, "sampled": rate.sampled} for one, rate in rates.items()},
    }
    for when, least in (("before", 0.0), ("after", LEAST)):
        chosen = SearchConfig(
            method=method, seed=seed, decision=model.decision, controls=False, plausible=least, **config
        )
        done = search(model.model, domain, table.rows, chosen, population=people)
        if done.interrupted:
            raise KeyboardInterrupt
        usual = people.plausibility(done.findings.rows)
        result[when] = {
            "findings": done.total.findings,
            "gsr": done.total.success_rate,
            "plausible": (usual >= MIN_PLAUSIBILITY).double().mean().item() if len(usual) else None,
        }
    return result


def tables() -> list[str]:
    """Return the data sets on this machine."""
    return list(dict.fromkeys(case[0] for case in CASES.values()))


def runs(scale: Scale, name: str, kind: str) -> list[Job]:
    """Return the measurements of one kind of model, one for each training."""
    arguments = {"name": name, "kind": kind, "quick": scale.quick, **(QUICK if scale.quick else FULL)}
    return [Job("populations:measure", {**arguments, "seed": seed}) for seed in range(scale.few)]


def qualities(scale: Scale, name: str) -> list[Job]:
    """Return the measurements of the model of a table, one for each split."""
    return [Job("populations:quality", {"name": name, "seed": seed}) for seed in range(scale.repeats)]


def jobs(scale: Scale) -> list[Job]:
    """Return all measurements."""
    models = [job for name, kind in product(tables(), MODELS) for job in runs(scale, name, kind)]
    return [*models, *(job for name in tables() for job in qualities(scale, name))]


def report(scale: Scale, results: Results) -> Report:
    """Return the rates, the shares of findings that are plausible, and how good the models of the tables are."""
    rates, shares, likeness, counts, splits = [], [], [], [], []
    for name, kind in product(tables(), MODELS):
        done = gather(results, runs(scale, name, kind))
        counts.append(len(done))
        if done:
            rates.append([f"{name}, {kind}", *(_rate(done, one) for one in RATES)])
            cells = [_found(done, when) for when in ("before", "after")]
            shares.append([f"{name}, {kind}", done[0]["method"], *(cell for pair in cells for cell in pair)])
    for name in tables():
        told = gather(results, qualities(scale, name))
        splits.append(len(told))
        if told:
            columns = (
                ("uniform", ".3f"),
                ("independent", ".3f"),
                ("auc", ".3f"),
                ("log_likelihood", ".2f"),
                ("kept", ".1%"),
            )
            likeness.append([name, *(figure([d[column] for d in told], form) for column, form in columns)])
    models = f"{span(counts)} trainings of each model on 70% of the rows"
    return Report(
        "Three populations",
        "The flip rate of a model in three populations: the data set, realistic synthetic records, and the declared "
        f"input space. Findings are plausible at or above likelihood percentile {100 * MIN_PLAUSIBILITY:g}. Default "
        "domains and sensitive attributes.",
        {
            "rates": Table(
                ["data set, model", "data set", "realistic synthetic records", "input space"],
                rates,
                f"Flip rate with its 95% confidence interval; {models}.",
                on_page=False,
            ),
            "findings": Table(
                ["table, model", "method", "findings", "plausible", "`--plausible 0.05`: findings", "plausible"],
                shares,
                f"Findings at their success rate, and the share of them that is plausible; {models}.",
                on_page=False,
            ),
            "likeness": Table(
                ["table", "uniform over the domain", "independent columns", "model", "likelihood", "rules kept"],
                likeness,
                "Real-versus-synthetic AUC of boosted trees, cross-validated, for records drawn in three ways (0.5: "
                "they cannot tell them apart); mean log-likelihood of unseen real records, in nats; share of drawn "
                f"records that keep the rules. Splits: {span(splits)}.",
                on_page=False,
            ),
        },
    )


def _rate(done: list[dict[str, Any]], population: str) -> str:
    """Return the share over all trainings, with its interval."""
    parts = [d["rates"][population] for d in done]
    rate = Rate(sum(p["found"] for p in parts), sum(p["sampled"] for p in parts), "domain")
    low, high = rate.interval
    return f"{rate.rate:.2%} ({low:.2%} to {high:.2%})"


def _found(done: list[dict[str, Any]], when: str) -> tuple[str, str]:
    parts = [d[when] for d in done]
    known = [p["plausible"] for p in parts if p["plausible"] is not None]
    count = f"{mean(p['findings'] for p in parts):,.0f} at {mean(p['gsr'] for p in parts):.1%}"
    return count, f"{mean(known):.1%}" if known else "–"
