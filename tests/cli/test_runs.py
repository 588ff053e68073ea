"""`neuronfair show`: findings and a model card out of a folder."""

from __future__ import annotations

import pytest

from neuronfair.audits.folder import write_audit_json
from tests import reports
from tests.render.test_export import run as make_run


def test_a_table_and_a_card(run, tmp_path):
    make_run(tmp_path / "found")
    result = run("show", "found", "--out", "f.csv")
    assert (result.status, result.out) == (0, "3 findings: f.csv\n")
    (tmp_path / "found" / "audit.json").write_text(reports.report().to_json())
    result = run("show", "found", "--out", "card.md")
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
    refused("show", folder, "--out", out, says=says)


def test_a_search_an_audit_and_one_of_its_worst_findings(run, tmp_path):
    make_run(tmp_path / "found")
    told = run("show", "found").out
    assert told.startswith("3 findings of ")
    assert "neuronfair show found 0" in told
    made = reports.report()
    (tmp_path / "found" / "audit.json").write_text(made.to_json())
    assert "sex" in run("show", "found").out
    count = sum(len(one.worst) for one in made.attributes)
    refused = run("show", "found", count)
    assert (refused.status, f"lists {count} worst findings" in refused.err) == (2, True)


@pytest.mark.parametrize(("suffix", "starts"), [(".html", "<!doctype html>"), (".xml", "<?xml")])
def test_reports_in_other_formats(run, tmp_path, suffix, starts):
    make_run(tmp_path / "found")
    (tmp_path / "found" / "audit.json").write_text(reports.report().to_json())
    assert run("show", "found", "--out", f"r{suffix}").status == 0
    assert (tmp_path / f"r{suffix}").read_text().startswith(starts)


def test_an_edited_audit_is_refused(run, refused, tmp_path):
    make_run(tmp_path / "found")
    write_audit_json(tmp_path / "found", reports.report())
    assert run("show", "found").status == 0
    path = tmp_path / "found" / "audit.json"
    path.write_bytes(path.read_bytes().replace(b'"m.onnx"', b'"n.onnx"'))
    for more in ((), ("0",), *(("--out", f"r{suffix}") for suffix in (".html", ".xml", ".md"))):
        refused("show", "found", *more, says=("audit.json: damaged or edited",))


def test_the_old_names_work_and_say_so(run, tmp_path):
    make_run(tmp_path / "found")
    told = run("export", "found", "--out", "f.csv")
    assert (told.status, told.out) == (0, "3 findings: f.csv\n")
    assert (
        told.err
        == "neuronfair: 'export' is now 'neuronfair show RUN --out FILE'. The old name goes with the next version\n"
    )
    told = run("replay", "found", 99)
    assert told.status == 2
    assert told.err.startswith("neuronfair: 'replay' is now 'neuronfair show RUN N'.")
    assert "export" not in run("--help").out
