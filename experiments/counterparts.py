"""CounterfactualTwins: would people be decided otherwise in another group, by models that do not read the group?

Five tables, default domains; a network of ours and boosted trees, trained on 70% of the rows without the sensitive
attribute. Everything is measured on the other rows, as an auditor would who was not given those of the training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from experiments.cases import SHORT, data
from experiments.lab import Job, Report, Results, Scale, Table, figure, gather, mean, span
from experiments.tree_models import fit_trees
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.tables.sources import where
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, Thoroughness, counterfactual_effect
from neuronfair.measure.rate import flip_rate
from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.train import train

import torch

EVERY = (("adult", "sex"), ("adult", "race"), ("german", "sex"), ("bank", "age"), ("compas", "race"), ("meps", "race"))
CASES = [case for case in EVERY if where(case[0]) is not None]
MODELS = ("network", "xgboost")
AGES = {"below 25": 25, "25 to 60": 61, "above 60": None}  # of Bank's clients: the first age that is no longer in it
FULL = {"draws": 32, "placebos": 20, "people": None}
QUICK = {"draws": 2, "placebos": 2, "people": 200}
NAMED = 4  # carriers in a line
BOTH = ("flips", "placebo_flips")
# A first measurement, by other code: a Chow-Liu tree, one draw, the two largest groups; flips and one placebo.
FIRST = {
    ("adult", "sex"): (0.197, 0.042),
    ("adult", "race"): (0.139, 0.048),
    ("compas", "race"): (0.275, 0.116),
    ("german", "sex"): (0.173, 0.100),
}


def unread(name: str, sensitive: str) -> Dataset:
    """Return a table whose sensitive attribute no model is given."""
    table = data(name, "default")
    if (name, sensitive) == ("bank", "age"):
        table = in_groups(table)
    domain = table.domain.with_sensitive(sensitive)
    attributes = tuple(replace(a, encode="none") if a.name == sensitive else a for a in domain.attributes)
    classes = domain.target.classes if domain.target is not None else ()
    # Where no class is favourable, what is lost and gained is the second.
    return replace(table, domain=replace(domain, attributes=attributes, favourable=domain.favourable or classes[-1]))


def in_groups(table: Dataset) -> Dataset:
    """Return Bank with three groups of age in the place of 78 ages; the rules of a single age go."""
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
    """Return how people whom a model has not seen compare with their counterparts, and how often flips change it."""
    table = unread(name, sensitive)
    model, domain = trained(table, kind, seed, quick), table.domain
    _, validation, test = table.split(seed)
    held = torch.cat([validation.rows, test.rows])
    effect = counterfactual_effect(model, domain, held, thorough=Thoroughness(**thorough), seed=seed)
    flips = flip_rate(model, domain, population=held, samples=len(held), seed=seed)
    right = Decision().chosen(model.scores(test.rows)) == test.labels
    return {"accuracy": right.double().mean().item(), "flip": flips.rate, **described(domain, effect)}


def described(domain: TableDomain, effect: CounterfactualEffect) -> dict[str, Any]:
    """Return an effect in words and numbers."""
    placebo = {(move.own, move.other): move for move in effect.placebo_moves}

    def words(codes: tuple[int, ...]) -> str:
        columns = [domain.attributes[column] for column in domain.sensitive_columns]
        return ", ".join(str(a.value(code)) for a, code in zip(columns, codes, strict=True))

    moves = [
        {
            "own": words(move.own),
            "other": words(move.other),
            "people": move.people,
            "flips": move.flips,
            "lost": move.lost,
            "gained": move.gained,
            **{f"placebo_{part}": getattr(placebo[move.own, move.other], part) for part in ("flips", "lost", "gained")},
        }
        for move in effect.moves
    ]
    return {
        "rate": list(effect.rate),
        "placebo": list(effect.placebo),
        "effect": list(effect.effect),
        "claimed": effect.claimed,
        "of": effect.of,
        "favourable": domain.favourable,
        "moves": moves,
        "carriers": [[domain.names[c.columns[-1]], c.share] for c in effect.mediators],
        "auc": effect.auc,
        "left_out": [words(codes) for codes in effect.left_out],
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
    """Return rates beside placebos, who loses and who gains, and what carries the effect."""
    rates, moves, carried, before, counts, small = [], [], [], [], [], dict[str, None]()
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
        if kind == "xgboost" and case in FIRST:
            before.append([" ".join(case), *_beside(FIRST[case]), *_beside([_of(done, largest, k) for k in BOTH])])
    splits, tables = f"Splits: {span(counts)}.", (QUICK if scale.quick else FULL)["placebos"]
    return Report(
        "Counterparts: models that do not read the attribute",
        "A network and boosted trees are trained on 70% of the rows without the sensitive attribute, so the flip test "
        "finds nothing. A person's [counterparts](explanation/counterfactuals.md) are who they would be in another "
        "group, by what the table says of both groups; the rate is the share of counterparts that get a different "
        f"decision, the placebo the same with shuffled groups. Counterparts, {tables} placebos and {tables} resampled "
        "tables are made of the 30% of the rows that taught the model nothing (a third of them stopped the network's "
        "training) and measured on the same people: that is what an auditor has who is not given the rows of the "
        "training. "
        "Default domains, no attribute fixed or legitimate; Bank's ages are three: below 25, 25 to 60, above 60. "
        "An effect is claimed where the interval of the rate does not reach that of the placebo. It is evidence that "
        "other attributes carry the group into the decision, not proof: with hidden causes, or another order of the "
        "attributes, counterparts would be others, and what may rightly differ between groups the table does not say. "
        "Nor does an effect that is not claimed acquit a model: of few people (German: 300) only a large one can be "
        "told from chance.",
        {
            "rates": Table(
                ["model", "accuracy", "flip test", "counterparts", "placebo", "effect", "claimed", "AUC"],
                rates,
                "Accuracy on the 20% of rows for testing. Effect: rate less placebo, with the 95% interval of one "
                "audit (mean of the splits). AUC: how well boosted trees tell the group from the other attributes "
                f"(0.5: not at all). {splits} They share people: another table may differ by more than ± says."
                f"{_left_out(small)}",
            ),
            "moves": Table(
                ["the two largest groups", "class", "lost", "gained", "placebo: lost", "gained"],
                moves,
                "Of the counterparts that people of one group have in the other, the share that loses or gains the "
                f"class, which is the favourable one where the domain names one (not of Bank and MEPS). {splits}",
            ),
            "carriers": Table(
                ["model", "carriers (splits that name them)", "first alone", "first two", "all named"],
                carried,
                "Attributes through which the group reaches the decision, and how much of the effect goes if the "
                "first, the first two or all (at most five) of a split stay as the person's are; splits in which an "
                "effect is claimed.",
            ),
            "first": Table(
                ["xgboost", "first measurement", "placebo", "here", "placebo"],
                before,
                "The two largest groups beside a first, throw-away measurement: one split, one draw, one placebo, and "
                "another model of the people (a Chow-Liu tree). What it called flips was in part noise of its own.",
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


def _of(done: list[dict[str, Any]], pair: tuple[str, str], part: str) -> float:
    """Return the share of flips between two groups, both ways."""
    moves = [*_between(done, *pair), *_between(done, *pair[::-1])]
    return sum(move["people"] * move[part] for move in moves) / sum(move["people"] for move in moves)


def _beside(both: Sequence[float]) -> list[str]:
    return [f"{share:.1%}" for share in both]


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
