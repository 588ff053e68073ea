"""`neuronfair export`: findings and a model card out of a folder."""

from __future__ import annotations

import pytest

from tests import reports
from tests.render.test_export import run as make_run


def test_a_table_and_a_card(run, tmp_path):
    make_run(tmp_path / "found")
    result = run("export", "found", "--out", "f.csv")
    assert (result.status, result.out) == (0, "3 findings: f.csv\n")
    (tmp_path / "found" / "audit.json").write_text(reports.report().to_json())
    result = run("export", "found", "--out", "card.md")
    assert (result.status, result.out) == (0, "Model card: card.md\n")
    assert (tmp_path / "card.md").read_text().startswith("# Model card: m.onnx\n")


@pytest.mark.parametrize(
    ("folder", "out", "says"),
    [
        ("found", "f.txt", (".csv", ".xlsx", ".parquet", ".md")),
        ("found", "card.md", ("found: has no audit.json",)),
        ("nowhere", "f.csv", ("nowhere: is not the folder of an audit",)),
    ],
)
def test_what_cannot_be_exported(refused, tmp_path, folder, out, says):
    make_run(tmp_path / "found")
    refused("export", folder, "--out", out, says=says)
