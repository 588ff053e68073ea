from __future__ import annotations

import copy
import json

import pytest

from neuronfair.errors import DataError
from neuronfair.limits import TooLarge
from neuronfair.verdict.baseline import compare_with, read_baseline
from tests.verdict.summaries import attribute, fair, search, summary


def changes(now, then):
    return {c["figure"]: c for c in compare_with(now, then)["changes"]}


def test_the_same_audit_has_not_changed():
    result = compare_with(summary(), summary(), "old/audit.json")
    assert result["file"] == "old/audit.json"
    assert result["text"] == "No rate changed by more than chance explains."
    assert [(c["figure"], c["significant"]) for c in result["changes"]] == [
        ("sex.rate", False),
        ("sex.rate.data", False),
    ]


def test_a_rate_changed_if_the_intervals_are_apart():
    change = changes(summary(attribute(found=500)), summary(attribute(found=300)))["sex.rate"]
    before, after = attribute(found=300)["rate"]["valid"], attribute(found=500)["rate"]["valid"]
    assert (change["before"], change["after"], change["significant"]) == (0.03, 0.05, True)
    assert change["low"] == after["low"] - before["high"] > 0
    assert change["high"] == after["high"] - before["low"]
    assert change["text"] == "sex.rate rose from 3 % (2.67 to 3.35 %) to 5 % (4.58 to 5.45 %)."
    fell = compare_with(summary(fair()), summary())
    assert "sex.rate fell from 3 %" in fell["text"]


def test_overlapping_intervals_are_said_to_overlap():
    result = compare_with(summary(attribute(found=320)), summary(attribute(found=300)))
    assert "rate" in result["text"]
    assert "rose" not in result["text"]
    assert "overlap, so this may be chance" in result["changes"][0]["text"]
    assert not result["changes"][0]["significant"]


def test_figures_without_an_interval_are_shown_if_they_differ():
    now = summary(
        attribute(
            searches=[search("frontier", 90), search("adf", 7)],
            severity={"p95": 2.0},
            interpretation={"worst": "l1", "layers": [{"name": "l1", "auc": 0.25}]},
        ),
        model={"accuracy": {"test": 0.85}},
    )
    seen = changes(now, summary())
    assert {name: (c["before"], c["after"]) for name, c in seen.items() if "rate" not in name} == {
        "sex.findings.frontier": (80, 90),
        "sex.gsr.frontier": (0.08, 0.09),
        "sex.severity.p95": (2.5, 2.0),
        "sex.worst_auc": (0.4, 0.25),
        "accuracy.test": (0.8, 0.85),
    }
    assert seen["accuracy.test"]["text"] == "accuracy.test went from 80 % to 85 %."


def test_attributes_that_only_one_audit_has_are_named():
    text = compare_with(summary(attribute("sex"), attribute("race")), summary(attribute("age"), attribute("sex")))[
        "text"
    ]
    assert "Audited now only: race. Audited then only: age." in text


def test_what_is_unknown_is_left_out():
    black_box = attribute(rate={"valid": None, "data": None}, interpretation=None, severity=None, searches=[])
    assert changes(summary(black_box, model={"accuracy": None}), summary()) == {}


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"reproduction": summary()["reproduction"] | {"domain": "d2"}}, "another domain"),
        ({"decision": {"kind": "threshold", "value": 0.5}}, "by threshold 0.5, this one by argmax 0"),
    ],
)
def test_what_means_something_else_is_not_compared(part, says):
    result = compare_with(summary(), summary(**part))
    assert result["changes"] == []
    assert says in result["text"]


def test_another_table_is_mentioned():
    then = summary(reproduction=summary()["reproduction"] | {"rows": "r2"})
    result = compare_with(summary(), then)
    assert result["changes"]
    assert "other rows than then" in result["text"]


def test_a_baseline_is_read_back(tmp_path):
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(summary()), encoding="utf-8")
    assert read_baseline(path) == summary()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a JSON file"),
        (b"\xff\xfe", "not a JSON file"),
        (b"[" * 100_000, "not a JSON file"),
        (b"[]", "not an audit"),
        (b"{}", "not an audit"),
        (b'{"schema": 2}', "form 2"),
        (b'{"schema": 1}', "damaged or incomplete"),
    ],
)
def test_other_files_are_refused(tmp_path, content, says):
    path = tmp_path / "audit.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_baseline(path)


def test_a_folder_or_nothing_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(DataError, match=str(path)):
            read_baseline(path)


@pytest.mark.parametrize("bad", ["x", [], {}, True, float("nan"), 10**400])
@pytest.mark.parametrize(
    "place",
    [
        ("attributes", 0, "rate", "valid", "low"),
        ("attributes", 0, "searches", 0, "gsr"),
        ("attributes", 0, "severity", "p95"),
        ("attributes", 0, "interpretation", "layers", 1, "auc"),
        ("model", "accuracy", "test"),
        ("decision", "value"),
        ("reproduction",),
        ("attributes",),
        ("attributes", 0, "name"),
    ],
)
def test_every_damaged_figure_is_noticed_when_it_is_read(tmp_path, place, bad):
    audit = copy.deepcopy(summary())
    part = audit
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = bad
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(audit), encoding="utf-8")
    if (place, bad) in ((("attributes",), []), (("attributes",), {}), (("attributes", 0, "name"), "x")):
        read_baseline(path)
    else:
        with pytest.raises(DataError, match="damaged or incomplete"):
            read_baseline(path)


def test_a_file_that_would_take_too_much_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "audit.json"
    path.write_text("[" + "[]," * 1000 + "[]]")
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "90000")
    with pytest.raises(TooLarge, match=r"audit\.json"):
        read_baseline(path)
