"""What was found as a DataFrame; tests/test_audits.py looks at one of a whole audit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from neuronfair import Decision, SearchConfig
from neuronfair.domain.table import Target
from neuronfair.render.export import findings_frame
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchResult
from neuronfair.searches.engine import PhaseResult
from neuronfair.searches.findings import Findings
from tests.planted import networks
from tests.planted.proxies import by_a, moved_domain, moved_rows

pytest.importorskip("pandas", reason="the package pandas is not installed")


def outcome(
    decision: Decision, scores: list[list[float]], others: list[list[float]], classes=("no", "yes")
) -> SearchResult:
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
    return SearchResult(SearchConfig(decision=decision), domain, one.rows, None, *phases, None, None, ())


def test_counterparts_have_a_column_wherever_they_may_differ():
    domain, rows = moved_domain(), moved_rows()
    config = SearchConfig("uniform", seeds=20, steps=0, global_steps=5, controls=False, twins="counterpart")
    found = search(by_a(domain), domain, rows, config)
    nobody = replace(found.first, findings=Findings.empty(domain, 2))
    flips = replace(found, domain=domain, first=nobody, local=nobody)
    frame = findings_frame({("group", "uniform"): found, ("group", "flips"): flips})
    assert [name for name in frame.columns if name.startswith("twin_")][:3] == ["twin_a", "twin_b", "twin_group"]
    twins = found.findings.twins(found.domain)
    assert frame["twin_a"].tolist() == twins[:, 0].tolist()
    assert frame["twin_group"].tolist() == ["xy"[code] for code in twins[:, 2].tolist()]
    assert len(frame) > 0


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (outcome(Decision(), [[1.0, 4.0]], [[3.0, 2.5]]), ("yes", "no", 3.0, -0.5, 3.5)),
        (outcome(Decision("threshold", 0.3), [[0.25]], [[0.5]]), ("no", "yes", 0.25, 0.5, 0.25)),
        (outcome(Decision("threshold", 0.3), [[0.25]], [[0.5]], ()), ("below 0.3", "at least 0.3", 0.25, 0.5, 0.25)),
        (outcome(Decision("tolerance", 0.5), [[10.0]], [[12.5]]), (None, None, 10.0, 12.5, 2.5)),
    ],
    ids=["argmax", "threshold", "no names", "tolerance"],
)
def test_decisions_and_scores(found, line):
    frame = findings_frame({("s", "frontier"): found})
    names = ["decision", "twin_decision", "score", "twin_score", "gap"]
    assert tuple(None if cell != cell else cell for cell in frame[names].iloc[0]) == line
    assert tuple(frame[["sensitive", "method", "number", "a0", "s", "twin_s"]].iloc[0]) == ("s", "frontier", 0, 0, 0, 1)


def test_a_column_of_the_table_keeps_its_name():
    found = outcome(Decision(), [[1.0, 4.0]], [[3.0, 2.5]])
    domain = found.domain
    first = replace(domain.attributes[0], name="method")
    renamed = replace(found, domain=replace(domain, attributes=(first, *domain.attributes[1:])))
    frame = findings_frame({("s", "frontier"): renamed})
    assert (frame["method"][0], frame["method_"][0]) == (0, "frontier")


def test_no_column_of_the_table_is_overwritten():
    found = outcome(Decision(), [[1.0, 4.0]], [[3.0, 2.5]])
    domain = found.domain
    names = ("score", "score_")
    first = [replace(one, name=name) for one, name in zip(domain.attributes, names, strict=False)]
    renamed = replace(found, domain=replace(domain, attributes=(*first, *domain.attributes[2:])))
    frame = findings_frame({("s", "frontier"): renamed})
    assert tuple(frame[["score", "score_", "score__"]].iloc[0]) == (0, 0, 3.0)


def test_probabilities_are_given_unless_the_scores_are_none():
    found = outcome(Decision("threshold", 0.0), [[0.0]], [[-math.log(3.0)]])
    names = ["outcome", "probability", "twin_probability"]
    assert tuple(findings_frame({("s", "frontier"): found})[names].iloc[0]) == ("yes", 0.5, pytest.approx(0.25))
    margins = replace(found, config=replace(found.config, scale="numbers"))
    assert findings_frame({("s", "frontier"): margins})[names].isna().all(axis=None)


def test_nobody_was_looked_for():
    assert findings_frame({}).empty
