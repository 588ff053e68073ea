"""The figures of a proof as JSON, and in words."""

from __future__ import annotations

import json
import math

import pytest

from neuronfair.errors import DataError
from neuronfair.model.decision import Decision
from neuronfair.proof.certificate import ProofReport, RowShare

HUGE = 10**24
REPORT = ProofReport(
    data="adult",
    model="f" * 64,
    sensitive=("sex", "race"),
    where="age >= 60",
    decision=Decision("threshold", 0.5),
    people=RowShare.of(HUGE, 4 * HUGE),
    proved_fair=RowShare.of(HUGE - 3, HUGE),
    proved_discriminatory=RowShare.of(1, HUGE),
    undecided=RowShare.of(2, HUGE),
    boxes=1000,
    seconds=12.5,
    complete=False,
    method="bounds of a network",
)


def test_a_share_is_whole_only_if_it_is():
    assert RowShare.of(HUGE - 3, HUGE).share == math.nextafter(1.0, 0.0)
    assert RowShare.of(1, 10**400).share > 0
    assert (RowShare.of(0, 5).share, RowShare.of(5, 5).share, RowShare.of(0, 0).share) == (0.0, 1.0, 0.0)


def test_it_comes_back():
    assert ProofReport.from_json(REPORT.to_json()) == REPORT
    assert json.loads(REPORT.to_json())["proved_fair"]["count"] == str(HUGE - 3)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", REPORT.to_json().replace('"schema": 2', '"schema": 3'), REPORT.to_json()[:-9]]
    + [json.dumps({**json.loads(REPORT.to_json()), name: value}) for name, value in (("boxes", "x"), ("people", 3))],
)
def test_what_is_no_proof(text):
    with pytest.raises(DataError, match=r"^some\.json: "):
        ProofReport.from_json(text, "some.json")
