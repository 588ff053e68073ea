"""The counterfactual test on models that do not use the sensitive attribute.

Five data sets in their default domains; a network and boosted trees, trained on 70% of the rows without the attribute.
Everything is measured on the other rows, as by an auditor who does not have the training rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import Any

from experiments.cases import SHORT, data
from experiments.lab import Job, Report, Results, Scale, Table, figure, gather, mean, span
from experiments.tree_models import fit_trees
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.tables.sources import find_local_files
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, CounterfactualSettings, CounterfactualTest
from neuronfair.measure.rate import flip_rate
from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.train import train

import torch

EVERY = (("adult", "sex"), ("adult", "race"), ("german", "sex"), ("bank", "age"), ("compas", "race"), ("meps", "race"))
CASES = [case for case in EVERY if find_local_files(case[0]) is not None]
MODELS = ("network", "xgboost")
AGES = {"below 25": 25, "25 to 60": 61, "above 60": None}  # of Bank's clients: the first age that is no longer in it
FULL = {"draws": 32, "permutations": 20, "records": None}
QUICK = {"draws": 2, "permutations": 2, "records": 200}
NAMED = 4  # mediating attributes in a line


def unread(name: str, sensitive: str) -> Dataset:
    """Return a data set whose sensitive attribute is no input of a model."""
    table = data(name, "default")
    if (name, sensitive) == ("bank", "age"):
        table = in_groups(table)
    domain = table.domain.with_sensitive(sensitive)
    attributes = tuple(replace(a, encode="none") if a.name == sensitive else a for a in domain.attributes)
    classes = domain.target.classes if domain.target is not None else ()
    return replace(table, domain=replace(domain, attributes=attributes, favourable=domain.favourable or classes[-1]))


def in_groups(table: Dataset) -> Dataset:
    """Return Bank with three age groups instead of 78 ages, and without the rules about single ages."""
    column, rows = table.domain.names.index("age"), table.rows.clone()
    low = table.domain.attributes[column].low
    bounds = torch.tensor([end - low for end in AGES.values() if end is not None])
    rows[:, column] = torch.bucketize(rows[:, column].double(), bounds.double(), right=True)
    attributes = list(table.domain.attributes)
    attributes[column] = Attribute("age", "nominal", values=tuple(AGES))
    rules = tuple(rule for rule in table.domain.rules if "age" not in {*rule.when, *rule.then})
    return replace(table, domain=replace(table.domain, attributes=tuple(attributes), rules=rules), rows=rows)


def trained(table: Dataset, kind: str, seed: int, quick: bool) -> Model:
    """Return a model of 70% of the rows."""
    if kind == "network":
        module, _ = train(table, settings=SHORT if quick else None, seed=seed)
        return Network(module, table.domain)
    return BlackBox.of_inputs(fit_trees(table, kind, seed).predict_proba, table.domain)


def measure(name: str, sensitive: str, kind: str, seed: int, quick: bool, **thorough: Any) -> dict[str, Any]:
    """Return the effect and the flip rate of a model, on rows that it was not trained on."""
    table = unread(name, sensitive)
    model, domain = trained(table, kind, seed, quick), table.domain
    _, validation, test = table.split(seed)
    held = torch.cat([validation.rows, test.rows])
    effect = CounterfactualTest(model, domain, held, settings=CounterfactualSettings(**thorough), seed=seed).measure()
    flips = flip_rate(model, domain, population=held, samples=len(held), seed=seed)
    right = Decision().decide(model.scores(test.rows)) == test.labels
    return {"accuracy": right.double().mean().item(), "flip": flips.rate, **described(domain, effect)}


def described(domain: TableDomain, effect: CounterfactualEffect) -> dict[str, Any]:
    """Return an effect in words and numbers."""
    placebo = {(move.group, move.twin_group): move for move in effect.permutation_moves}

    def words(codes: tuple[int, ...]) -> str:
        columns = [domain.attributes[column] for column in domain.sensitive_columns]
        return ", ".join(str(a.value(code)) for a, code in zip(columns, codes, strict=True))

    moves = [
        {
            "own": words(move.group),
            "other": words(move.twin_group),
            "people": move.records,
            "flips": move.flips,
            "lost": move.losses,
            "gained": move.gains,
            **{
                f"placebo_{part}": getattr(placebo[move.group, move.twin_group], counter)
                for part, counter in (("flips", "flips"), ("lost", "losses"), ("gained", "gains"))
            },
        }
        for move in effect.moves
    ]
    return {
        "rate": list(effect.rate),
        "placebo": list(effect.permutation_baseline),
        "effect": list(effect.effect),
        "claimed": effect.has_excess,
        "of": effect.with_twin,
        "favourable": domain.favourable,
        "moves": moves,
        "carriers": [[domain.names[c.columns[-1]], c.share] for c in effect.mediators],
        "auc": effect.auc,
        "left_out": [words(codes) for codes in effect.small_groups],
    }


def runs(scale: Scale, case: tuple[str, str], kind: str) -> list[Job]:
    """Return the measurements of one kind of model, one for each split."""
    arguments = {"name": case[0], "sensitive": case[1], "kind": kind, "quick": scale.quick}
    arguments |= QUICK if scale.quick else FULL
    return [Job("counterparts:measure", {**arguments, "seed": seed}) for seed in range(scale.repeats)]


def jobs(scale: Scale) -> list[Job]:
    """Return all measurements, one split of everything after the other."""
    lines = [runs(scale, case, kind) for case, kind in product(CASES, MODELS)]
    return [job for split in zip(*lines, strict=True) for job in split]


def report(scale: Scale, results: Results) -> Report:
    """Return flip rates and baselines, the disadvantaged groups, and the mediating attributes."""
    rates, moves, carried, counts, small = [], [], [], [], dict[str, None]()
    for case, kind in product(CASES, MODELS):
        done = gather(results, runs(scale, case, kind))
        counts.append(len(done))
        if not done:
            continue
        name, claimed = f"{' '.join(case)}, {kind}", [d for d in done if d["claimed"]]
        rates.append([name, *_rates(done), f"{len(claimed)} of {len(done)}", figure([d["auc"] for d in done], ".2f")])
        largest = _largest(done)
        moves += [[f"{name}: {own} as {other}", *_move(done, own, other)] for own, other in (largest, largest[::-1])]
        carried.append([name, *_carriers(claimed)])
        small |= dict.fromkeys(f"{' '.join(case)}: {group}" for d in done for group in d["left_out"])
    splits, tables = f"Splits: {span(counts)}.", (QUICK if scale.quick else FULL)["permutations"]
    return Report(
        "Counterfactual test: models that do not read the attribute",
        "A network and boosted trees are trained on 70% of the rows without the sensitive attribute, so the "
        "attribute-flip test finds nothing. The [counterfactual test](explanation/counterfactuals.md) compares each "
        "of the other records with its twins in another group. The permutation baseline is the same with shuffled "
        f"groups; the excess is the rate without the part due to chance. {tables} permutations and {tables} resampled "
        "data sets; no attribute is held fixed. The excess rests on causal assumptions that the data cannot test. An "
        "excess that is not claimed is not proved absent.",
        {
            "rates": Table(
                ["model", "accuracy", "attribute flips", "twins", "baseline", "excess", "claimed", "AUC"],
                rates,
                "Excess with the 95% confidence interval of one audit (mean of the splits). AUC: how well boosted "
                f"trees predict the group from the other attributes (0.5: not at all). {splits} They share records, "
                f"so another data set may differ by more than ± says.{_left_out(small)}",
                on_page=False,
            ),
            "groups": Table(
                ["the two largest groups", "class", "lost", "gained", "baseline: lost", "gained"],
                moves,
                "Share of twins for which the class is lost or gained; it is the favourable one where the domain names "
                f"one, else the last. {splits}",
                on_page=False,
            ),
            "mediators": Table(
                ["model", "mediating attributes (splits that name them)", "first alone", "first two", "all named"],
                carried,
                "Share of the excess that goes if the first, the first two or all (at most five) mediating attributes "
                "of a split are held fixed; splits in which an excess is claimed.",
                on_page=False,
            ),
        },
    )


def _rates(done: list[dict[str, Any]]) -> list[str]:
    effect = [mean(d["effect"][i] for d in done) for i in range(3)]
    return [
        figure([d["accuracy"] for d in done], ".1%"),
        f"{mean(d['flip'] for d in done):.1%}",
        *(figure([d[part][0] for d in done], ".1%") for part in ("rate", "placebo")),
        f"{effect[0]:.1%} ({effect[1]:.1%} to {effect[2]:.1%})",
    ]


def _largest(done: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the two groups of most people, the largest first."""
    people: dict[str, int] = {}
    for move in (move for d in done for move in d["moves"]):
        people[move["own"]] = max(people.get(move["own"], 0), move["people"])
    first, second = sorted(people, key=lambda group: -people[group])[:2]
    return first, second


def _between(done: list[dict[str, Any]], own: str, other: str) -> list[dict[str, Any]]:
    return [move for d in done for move in d["moves"] if (move["own"], move["other"]) == (own, other)]


def _move(done: list[dict[str, Any]], own: str, other: str) -> list[str]:
    parts = ("lost", "gained", "placebo_lost", "placebo_gained")
    found = _between(done, own, other)
    return [done[0]["favourable"], *(figure([move[part] for move in found], ".1%") for part in parts)]


def _carriers(claimed: list[dict[str, Any]]) -> list[str]:
    """Return the attributes that most splits name, and the mean share of the effect that goes with the first ones."""
    named = [d["carriers"] for d in claimed if d["carriers"]]
    if not named:
        return ["–"] * 4
    names = Counter(name for carriers in named for name, _ in carriers)
    words = ", ".join(f"{name} ({count})" for name, count in names.most_common(NAMED))
    return [words, *(f"{mean(carriers[:most][-1][1] for carriers in named):.0%}" for most in (1, 2, None))]


def _left_out(small: Collection[str]) -> str:
    return f" Left out, with fewer than 30 people in some split: {'; '.join(small)}." if small else ""
