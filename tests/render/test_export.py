"""Findings as a table to take along: all of them, side by side, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict, replace

import openpyxl
import pyarrow.parquet as pq
import pytest
import torch

from neuronfair import TableDomain
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import Target
from neuronfair.errors import DataError, NeuronFairError, RunError
from neuronfair.model.decision import Decision
from neuronfair.render import export
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.engine import Checkpoint
from neuronfair.searches.findings import Findings
from neuronfair.store.manifest import write_manifest
from neuronfair.store.run import Run

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
    made = Run.create_or_open(
        folder, manifest | {"plan": {"sensitive": [*domain.sensitive], **asdict(config)}}, domain, 2
    )
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
    monkeypatch.setattr(export, "AT_ONCE", 2)  # several parts make one file
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
        2,
    )
    assert export.export_findings(tmp_path / "run", tmp_path / "f.xlsx") == 0
    assert openpyxl.load_workbook(tmp_path / "f.xlsx").active.max_row == 1


def test_more_than_a_sheet_holds_is_refused_before_any_work(audit, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "SHEET", (6, 16_384))
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
            export.runs_in(folder)
    (tmp_path / "empty").mkdir()
    write_manifest(tmp_path / "empty", {"audit": 2, "files": {}})
    with pytest.raises(RunError, match="no search of a table yet"):
        export.runs_in(tmp_path / "empty")
    run(audit / "other" / "frontier", replace(DOMAIN, name="u"))
    with pytest.raises(RunError, match="different domains"):
        export.runs_in(audit)


@pytest.mark.parametrize("text", ["=1", "+cmd", "-1+1", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1", "-", "-inf"])
def test_formulas_are_neutralised(text):
    assert export.neutral(text).startswith("'")


@pytest.mark.parametrize("text", ["-1", "+1.5", "-1,000.5", "1e-5", "-2E+3", "a-b", "<=50K", ""])
def test_numbers_and_other_words_stay(text):
    assert export.neutral(text) == text
