"""`neuronfair reproduce counterparts`: models that are not given the attribute, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from experiments import counterparts
from experiments.lab import QUICK
from neuronfair.domain.tables.dataset import Dataset, catalog_domain

pytestmark = pytest.mark.slow

SMALL = {"draws": 2, "permutations": 2, "records": 60}


def test_ages_become_three_groups_and_no_rule_speaks_of_a_single_age():
    domain = catalog_domain("bank")
    rows = torch.zeros(5, len(domain.attributes), dtype=torch.int64)
    rows[:, 0] = torch.tensor([18, 24, 25, 60, 61]) - 18
    rows[:, 5] = 7
    grouped = counterparts.in_groups(Dataset("bank", domain, rows, torch.zeros(5, dtype=torch.int64)))
    words = ["below 25", "below 25", "25 to 60", "25 to 60", "above 60"]
    assert grouped.domain.to_table(grouped.rows)["age"] == words
    assert torch.equal(grouped.rows[:, 1:], rows[:, 1:])
    assert {rule.name for rule in domain.rules} - {rule.name for rule in grouped.domain.rules} == {
        "tertiary education takes until 20"
    }


@pytest.mark.parametrize("kind", counterparts.MODELS)
def test_models_are_not_given_the_attribute(kind):
    if kind == "xgboost":
        pytest.importorskip("xgboost", reason="the package xgboost is not installed")
    found = counterparts.measure("german", "sex", kind, 0, True, **SMALL)
    assert found["flip"] == 0  # by construction
    assert found["accuracy"] > 0.6
    assert found["of"] == 60
    assert {(move["own"], move["other"]) for move in found["moves"]} == {("male", "female"), ("female", "male")}
    assert sum(move["people"] for move in found["moves"]) == 60
    assert all(move["lost"] + move["gained"] == pytest.approx(move["flips"]) for move in found["moves"])
    weighed = sum(move["people"] * move["flips"] for move in found["moves"]) / 60
    assert found["rate"][0] == pytest.approx(weighed)


def test_the_class_that_is_lost_is_the_favourable_one_or_else_the_last():
    assert counterparts.unread("german", "sex").domain.favourable == "good"
    assert catalog_domain("german").favourable == "good"
    domain = replace(catalog_domain("meps"), favourable=None)
    table = Dataset("meps", domain, torch.zeros(0, 0), torch.zeros(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counterparts, "data", lambda *_: table)
        domain = counterparts.unread("meps", "race").domain
    assert (domain.favourable, domain.sensitive) == ("10 visits or more", ("race",))
    assert [a.name for a in domain.attributes if not a.is_input] == ["race"]


def result(seed: int) -> dict[str, object]:
    """Return what a split may have given: the first claims an effect, the second does not."""
    move = {"flips": 0.3, "lost": 0.2, "gained": 0.1, "placebo_flips": 0.02, "placebo_lost": 0.01}
    parts = [("a", "b", 300), ("b", "a", 100), ("a", "c", 300), ("c", "a", 50)]
    return {
        "accuracy": 0.8,
        "flip": 0.0,
        "rate": [0.2, 0.1 + seed, 0.3],
        "placebo": [0.02, 0.0, 0.04],
        "effect": [0.18, 0.08, 0.28],
        "claimed": seed == 0,
        "of": 400,
        "favourable": "good",
        "moves": [{"own": o, "other": t, "people": n, **move, "placebo_gained": 0.0} for o, t, n in parts],
        "carriers": [["job", 0.5], ["age", 0.75], ["home", 0.9]] if seed == 0 else [["home", 0.4]],
        "auc": 0.7,
        "left_out": ["d"] if seed else [],
    }


def test_the_report_says_who_loses_and_what_carries_it(monkeypatch):
    monkeypatch.setattr(counterparts, "CASES", [("german", "sex")])
    scale = counterparts.Scale(repeats=2)
    told = counterparts.report(scale, lambda job: result(job.arguments["seed"]))
    network, trees = told.tables["rates"].lines
    same = "± 0.0%"
    assert network == [
        "german sex, network",
        f"80.0% {same}",
        "0.0%",
        f"20.0% {same}",
        f"2.0% {same}",
        "18.0% (8.0% to 28.0%)",
        "1 of 2",
        "0.70 ± 0.00",
    ]
    assert trees[0] == "german sex, xgboost"
    assert told.tables["rates"].note.endswith("Left out, with fewer than 30 people in some split: german sex: d.")
    moves = told.tables["groups"].lines
    assert [line[0] for line in moves[:2]] == ["german sex, network: a as b", "german sex, network: b as a"]
    assert moves[0][1:] == ["good", f"20.0% {same}", f"10.0% {same}", f"1.0% {same}", f"0.0% {same}"]
    # Of the split that claims nothing, nothing carries anything.
    assert told.tables["mediators"].lines[0] == [
        "german sex, network",
        "job (1), age (1), home (1)",
        "50%",
        "75%",
        "90%",
    ]
    assert "20 permutations" in told.text


def test_nothing_carries_what_is_not_claimed(monkeypatch):
    monkeypatch.setattr(counterparts, "CASES", [("german", "sex")])
    told = counterparts.report(QUICK, lambda job: result(1))
    assert told.tables["mediators"].lines[0][1:] == ["–"] * 4


def test_every_split_of_everything_comes_before_the_next():
    """So a run that ends early has whole splits."""
    seeds = [job.arguments["seed"] for job in counterparts.jobs(counterparts.Scale(repeats=3))]
    assert seeds == sorted(seeds)
    assert len(seeds) == 3 * len(counterparts.CASES) * 2
