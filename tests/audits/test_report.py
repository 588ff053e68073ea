"""audit.json: the whole report comes back, and whatever is damaged is refused with its place."""

from __future__ import annotations

import json

import pytest

from neuronfair.audits.report import Report
from neuronfair.errors import DataError
from tests import reports


@pytest.mark.parametrize(
    "made", [reports.report(), reports.adult(("sex",), ("sex", "race"), findings=3), reports.nothing_found()]
)
def test_a_report_comes_back_as_it_was(made):
    text = made.to_json()
    assert Report.from_json(text) == made
    assert text.isascii()
    assert json.loads(text)["schema"] == 3


def test_a_report_from_before_there_were_proofs_is_read():
    made = reports.report()
    old = json.loads(made.to_json())
    del old["seconds"]["proof"]
    for one in old["attributes"]:
        del one["proved"]
    assert Report.from_json(json.dumps(old)) == made


def test_a_report_from_before_there_were_plausible_people_is_read():
    made = reports.report()
    old = json.loads(made.to_json())
    del old["data"]["population"]
    for one in old["attributes"]:
        del one["rates"]["plausible"]
        for finding in (*one["worst"], *one["findings"]):
            del finding["plausibility"]
        for search in one["searches"]:
            del search["plausible_share"]
    read = Report.from_json(json.dumps(old))
    assert read == made
    assert [finding.plausibility_text for finding in read.attributes[0].worst] == [""]


def test_people_are_counted_exactly():
    made = reports.report(reports.attribute(proved=reports.proved(10**30 + 1, 7, 10**31)))
    entry = json.loads(made.to_json())["attributes"][0]["proved"]
    assert entry["people"] == f"1{'0' * 31}"
    assert entry["proved_fair"] == {"count": f"1{'0' * 29}1", "share": 0.1}
    assert entry["proved_discriminatory"]["count"] == "7"
    assert int(entry["undecided"]["count"]) == 10**31 - 10**30 - 8
    assert Report.from_json(made.to_json()) == made


def test_what_is_no_number_is_not_written():
    with pytest.raises(ValueError, match="JSON compliant"):
        reports.with_first(reports.report(), mean_distance=float("nan")).to_json()


def test_an_undecodable_path_can_be_written():
    assert (
        "\\udcff" in reports.report(regression_set=reports.r.RegressionSetReport("c\udcff.jsonl", 0, 0, 0, 0)).to_json()
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an audit.json"),
        (b"\xff\xfe", "not an audit.json"),
        (b"[" * 100_000, "not an audit.json"),
        (b"[]", "not an audit.json"),
        (b"{}", "not an audit.json"),
        (b'{"schema": 1}', "written in form 1, but this version reads form 3"),
        (b'{"schema": 3}', "not an audit.json"),
    ],
)
def test_other_files_are_refused(content, says):
    with pytest.raises(DataError, match=says):
        Report.from_json(content, "old.json")


@pytest.mark.parametrize("bad", ["x", [], {}, True, float("nan"), 10**400])
@pytest.mark.parametrize(
    "place",
    [
        ("attributes", 0, "rates", "domain", "low"),
        ("attributes", 0, "searches", 0, "gsr"),
        ("attributes", 0, "severity", "p95"),
        ("attributes", 0, "interpretation", "layers", 1, "auc"),
        ("model", "accuracy", "test"),
        ("decision", "value"),
        ("reproduction",),
    ],
)
def test_every_damaged_figure_is_refused_with_its_place(place, bad):
    audit = json.loads(reports.report().to_json())
    part = audit
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = bad
    with pytest.raises(DataError, match=r"old.json: not an audit.json that can be read"):
        Report.from_json(json.dumps(audit), "old.json")


def test_the_place_is_named():
    text = reports.report().to_json().replace('"gsr": 0.08', '"gsr": "many"')
    with pytest.raises(DataError, match=r"Expected `float`, got `str` - at `\$.attributes\[0\].searches\[0\].gsr`"):
        Report.from_json(text)
