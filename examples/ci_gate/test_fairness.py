"""The fairness of loans.skops, tested like everything else: `pytest`."""

from __future__ import annotations

from pathlib import Path

import neuronfair

HERE = Path(__file__).parent


def test_people_are_not_judged_by_sex(fairness):
    data = neuronfair.read_table(HERE / "loans.csv", neuronfair.read_domain(HERE / "loans.toml"))
    fairness.check(HERE / "loans.skops", data, max_rate=0.05, regression_set=HERE / "counterexamples.jsonl")


def test_german_and_foreign_workers_are_treated_alike(fairness):
    fairness.check(HERE / "loans.skops", HERE / "loans.toml", sensitive="foreign_worker", max_rate=0.2)
