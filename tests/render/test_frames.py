"""What was found as a DataFrame; tests/test_audits.py looks at one of a whole audit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from neuronfair import Decision, Plan
from neuronfair.domain.table import Target
from neuronfair.render.frames import findings_frame
from neuronfair.search.engine import PhaseResult
from neuronfair.search.findings import Findings
from neuronfair.search.outcome import Outcome
from tests.planted import networks

pytest.importorskip("pandas", reason="the package pandas is not installed")


def outcome(decision: Decision, scores: list[list[float]], others: list[list[float]], classes=("no", "yes")) -> Outcome:
    """One person with the flag 0, whose twin has 1."""
    domain = networks.domain()
    domain = replace(domain, target=Target("credit", classes) if classes else None)
    empty = Findings.empty(domain, len(scores[0]))
    one = replace(
        empty,
        packed=torch.zeros(1, len(domain.names), dtype=domain.compact),
        twin_values=torch.ones(1, 1, dtype=torch.int64),
        scores=torch.tensor(scores),
        twin_scores=torch.tensor(others),
        origin=torch.zeros(1, dtype=torch.int64),
        step=torch.zeros(1, dtype=torch.int64),
    )
    phases = [PhaseResult(found, len(found), "steps", 0.0) for found in (one, empty)]
    return Outcome(Plan(decision=decision), domain, one.rows, None, *phases, None, None, ())


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (outcome(Decision(), [[1.0, 4.0]], [[3.0, 2.5]]), ("yes", "no", 3.0, -0.5, 3.5)),
        (outcome(Decision("threshold", 0.3), [[0.25]], [[0.5]]), ("no", "yes", 0.25, 0.5, 0.25)),
        (outcome(Decision("threshold", 0.3), [[0.25]], [[0.5]], ()), ("class 0", "class 1", 0.25, 0.5, 0.25)),
        (outcome(Decision("tolerance", 0.5), [[10.0]], [[12.5]]), (10.0, 12.5, 10.0, 12.5, 2.5)),
    ],
    ids=["argmax", "threshold", "no names", "tolerance"],
)
def test_decisions_and_scores(found, line):
    frame = findings_frame({("s", "frontier"): found})
    names = ["decision", "twin_decision", "score", "twin_score", "gap"]
    assert tuple(frame[names].iloc[0]) == line
    assert tuple(frame[["attribute", "method", "number", "a0", "s", "twin_s"]].iloc[0]) == ("s", "frontier", 0, 0, 0, 1)


def test_a_column_of_the_table_keeps_its_name():
    found = outcome(Decision(), [[1.0, 4.0]], [[3.0, 2.5]])
    domain = found.domain
    first = replace(domain.attributes[0], name="method")
    renamed = replace(found, domain=replace(domain, attributes=(first, *domain.attributes[1:])))
    frame = findings_frame({("s", "frontier"): renamed})
    assert (frame["method"][0], frame["method_"][0]) == (0, "frontier")


def test_nobody_was_looked_for():
    assert findings_frame({}).empty
