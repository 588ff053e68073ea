"""Proofs in one call from Python."""

from __future__ import annotations

import pytest

from neuronfair import Decision, parse_domain, prove
from neuronfair.errors import NeuronFairError
from neuronfair.scale.pool import Serial
from tests.proof.planted import DOMAIN, FLIPS, PEOPLE, make


@pytest.mark.parametrize(("kind", "pool"), [("domain", None), ("file", None), ("domain", Serial(2))])
def test_a_domain_alone(tmp_path, kind, pool):
    (tmp_path / "small.toml").write_text(DOMAIN, encoding="utf-8")
    domain = parse_domain(DOMAIN) if kind == "domain" else tmp_path / "small.toml"
    report = prove(make(), domain, decision=Decision("threshold", 0.0), pool=pool)
    assert (report.people.count, report.proved_discriminatory.count) == (str(PEOPLE), str(FLIPS))
    assert (report.complete, report.sensitive) == (True, ("sex",))


def test_a_table_and_a_region():
    people = {"age": [20, 38, 41, 59], "job": ["a", "b", "c", "a"], "sex": ["f", "m", "f", "m"]}
    people["hired"] = ["no", "no", "yes", "yes"]

    def model(table):
        return (table.age + 4 * (table.sex == "m") > 40) & (table.job != "c")

    report = prove(model, people, sensitive="sex", target="hired", where="job == c")
    assert report.complete
    assert report.proved_fair.count == report.people.count
    # The third row is safe if only one thing changes: with job c at any age, and at 41 with any job.


def test_nobody_in_the_region():
    rule = '\n[[rules]]\nname = "b works from 30 on"\nif = { job = ["b"] }\nthen = { age = { min = 30 } }\n'
    with pytest.raises(NeuronFairError, match="allow no such person"):
        prove(make(), parse_domain(DOMAIN + rule), where="job == b and age < 30", decision=Decision("threshold", 0.0))
