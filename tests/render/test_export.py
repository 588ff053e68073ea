"""Findings as a table for other programs, harmless in a spreadsheet; DataFrames; audits as JUnit XML."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import asdict, replace
from xml.etree import ElementTree

import openpyxl
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronfair import TableDomain
from neuronfair.audits.report import EncodingCheckReport, Gate, GateCheck
from neuronfair.audits.report.attribute import Rates
from neuronfair.audits.wording.verdict import conclude
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.errors import DataError, NeuronFairError, RunError
from neuronfair.model.decision import Decision
from neuronfair.render import export
from neuronfair.render.export import make_findings_frame, write_junit
from neuronfair.searches.campaign import SearchResult, search
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import Checkpoint, PhaseResult
from neuronfair.searches.findings import Findings
from neuronfair.store.ledger import write_manifest
from neuronfair.store.run import Run
from tests.planted import networks
from tests.planted.proxies import by_a, moved_domain, moved_rows
from tests.reports import REGRESSION_SET, attribute, counterfactual, fair, finding, report

DOMAIN = TableDomain(
    "t",
    (
        Attribute("=cmd", "nominal", values=("=1+1", "-3.5", "\tx", "ü")),
        Attribute("gap", "continuous", low=0, high=1, step=0.1),
        Attribute("sex", "flag", values=("F", "M")),
        Attribute("race", "nominal", values=("A", "B")),
    ),
    ("sex",),
    target=Target("loan", ("no", "yes")),
    favourable="yes",
)
PEOPLE = torch.tensor([[0, 3, 0, 0], [1, 10, 1, 1], [2, 0, 0, 1]])
SCORES, TWINS = torch.tensor([[0.6, 0.4], [0.3, 0.7], [0.9, 0.1]]), torch.tensor([[0.2, 0.8], [0.5, 0.5], [0.4, 0.6]])


def run(folder, domain: TableDomain = DOMAIN, decision: Decision | None = None, scale=None) -> Run:
    config = SearchConfig(method="frontier", seeds=3, steps=1, decision=decision or Decision(), scale=scale)
    manifest = {"model": "m.onnx", "weights": "w", "domain": domain.fingerprint, "rows": "r", "outputs": 2}
    made = Run.create_or_open(folder, manifest | {"plan": {"sensitive": [*domain.sensitive], **asdict(config)}}, domain)
    made.begin(PEOPLE)
    columns = list(domain.sensitive_columns)
    number = torch.arange(3)
    found = Findings(
        *(PEOPLE.to(domain.compact), 1 - PEOPLE[:, columns], SCORES, TWINS, number, number),
        misses=PEOPLE[:0].to(domain.compact),
        plausibility=torch.tensor([0.25, 0.5, torch.nan]),
    )
    made.checkpoint("global", Checkpoint(1, {}, found, torch.zeros(0, 2, dtype=torch.int64)))
    return made


@pytest.fixture
def audit(tmp_path):
    """The folder of an audit with two searches: by sex, and by sex and race."""
    folder = tmp_path / "audit"
    run(folder / "sex" / "frontier")
    run(folder / "sex+race" / "frontier", DOMAIN.with_sensitive("sex", "race"))
    write_manifest(folder, {"audit": 2, "files": {}})
    return folder


HEADS = [
    *("sensitive", "method", "number", "=cmd", "gap", "sex", "race", "twin_sex", "twin_race"),
    *("decision", "twin_decision", "outcome", "probability", "twin_probability", "score", "twin_score", "gap_"),
    "plausibility",
]  # fmt: skip


def test_csv_holds_all_pairs_side_by_side(audit, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "PART_ROWS", 2)  # several parts make one file
    out = tmp_path / "findings.csv"
    assert export.export_findings(audit, out) == 6
    with out.open(encoding="utf-8", newline="") as file:
        heads, *rows = list(csv.reader(file))
    assert heads == ["'=cmd" if head == "=cmd" else head for head in HEADS]
    assert [row[:9] for row in rows] == [
        ["sex", "frontier", "0", "'=1+1", "0.3", "F", "A", "M", "A"],
        ["sex", "frontier", "1", "-3.5", "1", "M", "B", "F", "B"],
        ["sex", "frontier", "2", "'\\u0009x", "0", "F", "B", "M", "B"],
        ["sex+race", "frontier", "0", "'=1+1", "0.3", "F", "A", "M", "B"],
        ["sex+race", "frontier", "1", "-3.5", "1", "M", "B", "F", "A"],
        ["sex+race", "frontier", "2", "'\\u0009x", "0", "F", "B", "M", "A"],
    ]
    assert rows[0][9:12] == ["no", "yes", "yes"]
    # The probability of the favourable class; the lead of the person's own class, and how far that moves.
    assert [float(cell) for cell in rows[0][12:]] == pytest.approx([0.4, 0.8, 0.2, -0.6, 0.8, 0.25], abs=1e-6)
    assert [row[-1] for row in rows] == ["0.25", "0.5", ""] * 2  # an empty cell: not known


def test_excel_and_parquet_hold_the_same(audit, tmp_path):
    for name in ("findings.xlsx", "findings.parquet"):
        assert export.export_findings(audit, tmp_path / name) == 6
    heads, *rows = openpyxl.load_workbook(tmp_path / "findings.xlsx").active.iter_rows()
    assert [cell.value for cell in heads] == ["'=cmd" if head == "=cmd" else head for head in HEADS]
    assert {cell.data_type for row in rows for cell in row} == {"s", "n"}  # no formula
    assert [cell.value for cell in rows[1][:9]] == ["sex", "frontier", 1, "-3.5", 1, "M", "B", "F", "B"]
    table = pq.read_table(tmp_path / "findings.parquet")
    assert table.column_names == HEADS
    assert table["=cmd"].to_pylist() == ["=1+1", "-3.5", "\tx"] * 2  # as it is: nobody opens it in a spreadsheet
    assert [row[-1].value for row in rows] == table["plausibility"].to_pylist() == [0.25, 0.5, None] * 2
    assert [row[12].value for row in rows] == pytest.approx(table["probability"].to_pylist())


def test_a_single_search_and_scores_without_a_class(tmp_path):
    run(tmp_path / "run", decision=Decision("tolerance", 0.1))
    export.export_findings(tmp_path / "run", tmp_path / "f.parquet")
    (first, *_) = pq.read_table(tmp_path / "f.parquet").to_pylist()
    assert "twin_race" not in first
    assert [first[name] for name in ("decision", "twin_decision", "outcome", "probability")] == [None] * 4
    assert [first[name] for name in ("score", "twin_score", "gap_")] == pytest.approx([0.4, 0.8, 0.4])


def test_margins_are_no_probabilities(tmp_path):
    made = run(tmp_path / "run", scale="numbers")
    export.export_findings(made.folder, tmp_path / "f.parquet")
    assert pq.read_table(tmp_path / "f.parquet")["probability"].null_count == 3


def test_nobody_found_is_a_table_without_rows(tmp_path):
    Run.create_or_open(
        tmp_path / "run",
        {"model": "m", "weights": "w", "domain": DOMAIN.fingerprint, "rows": "r", "outputs": 2}
        | {"plan": {"sensitive": ["sex"], **asdict(SearchConfig())}},
        DOMAIN,
    )
    assert export.export_findings(tmp_path / "run", tmp_path / "f.xlsx") == 0
    assert openpyxl.load_workbook(tmp_path / "f.xlsx").active.max_row == 1


def test_more_than_a_sheet_holds_is_refused_before_any_work(audit, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "EXCEL_LIMITS", (6, 16_384))
    with pytest.raises(DataError, match=r"6 findings in 18 columns do not fit .* holds 5 below .* Choose \.csv"):
        export.export_findings(audit, tmp_path / "f.xlsx")
    assert export.export_findings(audit, tmp_path / "f.csv") == 6


def test_without_the_package_for_excel(audit, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(NeuronFairError, match=r"needs the package 'openpyxl'.*neuronfair\[excel\]"):
        export.export_findings(audit, tmp_path / "f.xlsx")
    assert not (tmp_path / "f.xlsx").exists()


def test_folders_that_hold_no_findings(audit, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunError, match="is not the folder of an audit or of a search"):
            export.open_runs(folder)
    (tmp_path / "empty").mkdir()
    write_manifest(tmp_path / "empty", {"audit": 2, "files": {}})
    with pytest.raises(RunError, match="no search of a table yet"):
        export.open_runs(tmp_path / "empty")
    run(audit / "other" / "frontier", replace(DOMAIN, name="u"))
    with pytest.raises(RunError, match="different domains"):
        export.open_runs(audit)


@pytest.mark.parametrize("text", ["=1", "+cmd", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", "-", "-inf"])
def test_formulas_are_neutralised(text):
    assert export.disarm(text).startswith("'")


@pytest.mark.parametrize("text", ["-1", "+1.5", "-1,000.5", "1e-5", "-2E+3", "a-b", "<=50K", ""])
def test_numbers_and_other_words_stay(text):
    assert export.disarm(text) == text


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


def test_counterfactuals_have_a_column_wherever_they_may_differ():
    domain, rows = moved_domain(), moved_rows()
    config = SearchConfig("uniform", seeds=20, steps=0, global_steps=5, controls=False, twins="counterfactual")
    found = search(by_a(domain), domain, rows, config)
    nobody = replace(found.global_phase, findings=Findings.empty(domain, 2))
    flips = replace(found, domain=domain, global_phase=nobody, local_phase=nobody)
    frame = make_findings_frame({("group", "uniform"): found, ("group", "flips"): flips})
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
    frame = make_findings_frame({("s", "frontier"): found})
    names = ["decision", "twin_decision", "score", "twin_score", "gap"]
    assert tuple(None if cell != cell else cell for cell in frame[names].iloc[0]) == line
    assert tuple(frame[["sensitive", "method", "number", "a0", "s", "twin_s"]].iloc[0]) == ("s", "frontier", 0, 0, 0, 1)


def test_a_column_of_the_table_keeps_its_name():
    found = outcome(Decision(), [[1.0, 4.0]], [[3.0, 2.5]])
    domain = found.domain
    first = replace(domain.attributes[0], name="method")
    renamed = replace(found, domain=replace(domain, attributes=(first, *domain.attributes[1:])))
    frame = make_findings_frame({("s", "frontier"): renamed})
    assert (frame["method"][0], frame["method_"][0]) == (0, "frontier")


def test_no_column_of_the_table_is_overwritten():
    found = outcome(Decision(), [[1.0, 4.0]], [[3.0, 2.5]])
    domain = found.domain
    names = ("score", "score_")
    first = [replace(one, name=name) for one, name in zip(domain.attributes, names, strict=False)]
    renamed = replace(found, domain=replace(domain, attributes=(*first, *domain.attributes[2:])))
    frame = make_findings_frame({("s", "frontier"): renamed})
    assert tuple(frame[["score", "score_", "score__"]].iloc[0]) == (0, 0, 3.0)


def test_probabilities_are_given_unless_the_scores_are_none():
    found = outcome(Decision("threshold", 0.0), [[0.0]], [[-math.log(3.0)]])
    names = ["outcome", "probability", "twin_probability"]
    assert tuple(make_findings_frame({("s", "frontier"): found})[names].iloc[0]) == ("yes", 0.5, pytest.approx(0.25))
    margins = replace(found, config=replace(found.config, scale="numbers"))
    assert make_findings_frame({("s", "frontier"): margins})[names].isna().all(axis=None)


def test_nobody_was_looked_for():
    assert make_findings_frame({}).empty


def read(audit) -> ElementTree.Element:
    return ElementTree.fromstring(write_junit(audit))


def check(expression: str, name: str | None, *, fired: bool) -> GateCheck:
    return GateCheck(
        expression, name, 0.03, 0.02, 0.04, "upper end", fired, "its upper end is above 1%.", expression.split()[0]
    )


def gated(*checks: GateCheck, attributes, **more):
    return report(*attributes, gate=Gate(not any(one.fired for one in checks), checks), **more)


def test_every_limit_is_a_test_in_the_suite_of_its_attribute():
    checks = (
        check("rate > 0.01", "sex", fired=True),
        check("rate > 0.01", "race", fired=False),
        check("accuracy < 0.5", None, fired=False),
        check("race.findings > 0", "race", fired=False),
    )
    root = read(gated(*checks, attributes=[attribute("sex"), fair("race")]))
    assert [(s.get("name"), s.get("tests"), s.get("failures")) for s in root] == [
        ("sex", "1", "1"),
        ("race", "2", "0"),
        ("audit", "1", "0"),
    ]
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("4", "1", "0")
    assert [case.get("name") for case in root.iter("testcase")] == [
        "rate > 0.01",
        "rate > 0.01",
        "race.findings > 0",
        "accuracy < 0.5",
    ]


FIRED = check("rate > 0.01", "sex", fired=True)


def test_a_failure_shows_the_worst_pair_and_how_to_see_it_again():
    (failure,) = read(gated(FIRED, attributes=[attribute()])).iter("failure")
    assert "its upper end is above 1%" in failure.get("message")
    assert "A person with age 39 is decided low; with sex M instead of F: high." in failure.text
    assert "neuronfair show RUN/sex/frontier 17" in failure.text


def test_what_was_not_kept_has_no_line_to_see_it_again():
    (failure,) = read(gated(FIRED, attributes=[attribute(worst=(finding(replay=None),))])).iter("failure")
    assert "Show it again" not in failure.text
    assert "with sex M" in failure.text


def test_a_failed_regression_set_shows_the_people():
    limit = check("regression_set.still_flips > 0", None, fired=True)
    (failure,) = read(gated(limit, attributes=[attribute()], regression_set=REGRESSION_SET)).iter("failure")
    assert "age 39: decided low" in failure.text
    limit = check("accuracy < 90%", None, fired=True)
    (failure,) = read(gated(limit, attributes=[attribute()], regression_set=REGRESSION_SET)).iter("failure")
    assert "age 39: decided low" not in failure.text


def test_a_limit_may_fire_without_a_pair_to_show():
    (failure,) = read(gated(FIRED, attributes=[fair()])).iter("failure")
    assert "Worst pair" not in failure.text


def test_without_thresholds_nothing_fails_whatever_was_found():
    found = attribute("sex", counterfactual=counterfactual())
    root = read(conclude(report(found, fair("age"), fair("race", rates=Rates(), searches=()))))
    assert [(s.get("name"), s.get("tests"), s.get("failures"), s.get("skipped")) for s in root] == [
        ("sex", "1", "0", "0"),
        ("age", "1", "0", "0"),
        ("race", "1", "0", "1"),
    ]
    first = next(root.iter("testcase"))
    assert (first.get("name"), first.get("classname"), first.get("time")) == (
        "no threshold set",
        "neuronfair.sex",
        "3.000",
    )
    told = first.find("system-out").text
    assert told.startswith("Dependence found. Decisions depend on sex for 4% of people (2 of 50).")
    assert "Worst pair, synthetic record: A person with age 39" in told


def test_thresholds_that_were_not_evaluated_are_an_error_and_no_failure():
    wrong = EncodingCheckReport("wrong", "The encoding is probably wrong.", 50, accuracy=0.3)
    root = read(conclude(report(attribute(), encoding_check=wrong), thresholds_set=True))
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "1", "1")
    assert "The encoding is probably wrong." in next(root.iter("error")).get("message")
    unset = read(conclude(report(attribute(), encoding_check=wrong)))
    assert (unset.get("failures"), unset.get("errors"), unset.get("skipped")) == ("0", "1", "1")  # exit status 2


@given(st.text(max_size=20))
def test_any_name_gives_well_formed_xml(name):
    audit = conclude(report(attribute(name), data=replace(report().data, name=name)))
    assert int(read(audit).get("tests")) == 1


def test_control_characters_are_written_out():
    name = "a\x1b[31m\n\u202e\ud800"
    text = write_junit(gated(check("rate > 0.01", name, fired=True), attributes=[attribute(name)]))
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []
    shown = r"a\u001b[31m\u000a\u202e\ud800"
    (failure,) = ElementTree.fromstring(text).iter("failure")
    assert f"with {shown} M instead of F" in failure.text.splitlines()[1]
    assert ElementTree.fromstring(text)[0].get("name") == shown
