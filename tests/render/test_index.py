"""Many audits: their lines, the table for the terminal, and the page, also in a real browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neuronfair.audits.report import AuditIndex, AuditLine, Gate, GateCheck, fill_line
from neuronfair.render.page import render_index
from neuronfair.render.terminal import compose_index, make_console
from tests import reports
from tests.render.chromium import BROWSER, Browser

EMPTY = AuditLine("a", "m.onnx", "people.csv", "sex", "not finished")


def line(name: str, found: int = 300, **more) -> AuditLine:
    return fill_line(
        replace(EMPTY, name=name, **more), reports.report(reports.attribute(found=found)), f"{name}/report.html"
    )


def index(*lines: AuditLine) -> AuditIndex:
    return AuditIndex("0.2", "audits.toml", lines, 61.0)


def test_the_figures_are_those_of_the_worst_attribute():
    mild, worst = reports.attribute("sex", 100), reports.attribute("race", 5_000)
    found = fill_line(EMPTY, reports.report(mild, worst), "a/report.html")
    assert (found.attribute, found.random) == ("race", worst.rates.domain)
    assert found.rate == worst.rates.available[0]
    assert (found.gap, found.gap_of) == (worst.severity.max, "scores")
    assert (found.state, found.page) == ("no limits", "a/report.html")


def test_counterfactuals_count_only_where_an_effect_is_claimed():
    claimed = reports.counterfactual()
    for effect in (claimed, replace(claimed, claimed=not claimed.claimed)):
        made = reports.report(reports.attribute(counterfactual=effect))
        assert (fill_line(EMPTY, made, "p").counterfactual is not None) == effect.claimed


def test_states():
    fired, held = (
        GateCheck("rate > 1%", "sex", 0.05, 0.04, 0.06, "lower end", bad, "too high") for bad in (True, False)
    )
    made = reports.report()
    failed = fill_line(EMPTY, replace(made, gate=Gate(False, (fired, held))), "p")
    assert (failed.state, failed.fired) == ("failed", ("too high",))
    assert fill_line(EMPTY, replace(made, gate=Gate(True, (held,))), "p").state == "passed"
    assert fill_line(replace(EMPTY, error="why"), made, "p").state == "error"
    stopped = replace(made, attributes=(), reproduction=replace(made.reproduction, interrupted=True))
    assert fill_line(EMPTY, stopped, "p").state == "not finished"


def test_the_terminal_tells_each_and_counts_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    broken = replace(EMPTY, name="b\x1b[31m", state="error", error="no\x07 model")
    make_console().print(compose_index(index(line("a"), broken)))
    out = capsys.readouterr().out
    assert "2 audits: 1 without limits and 1 error." in out
    assert "no\\u0007 model" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([line("a"), replace(line("b"), state="passed")], "All passed"),
        ([line("a")], "All done"),
        ([line("a"), EMPTY], "1 not finished"),
        ([replace(line("a"), state="failed"), replace(EMPTY, state="error")], "1 failed, 1 could not be evaluated"),
    ],
)
def test_the_head_of_the_page(lines, says):
    assert f"</span> {says}</p>" in render_index(index(*lines))


def test_names_cannot_break_the_page():
    evil = "<script>alert(1)</script>\"'"
    made = replace(
        line("a"), name=evil, model=evil, data=evil, sensitive=evil, verdict=evil, error=evil, page=f"{evil}.html"
    )
    page = render_index(index(made))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;.html" in page


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_lines_are_searched_and_sorted(tmp_path):
    lines = [line(f"audit{i}", found=100 * (i * 7 % 10), model=f"m{i % 2}.onnx") for i in range(10)]
    path = tmp_path / "index.html"
    path.write_text(render_index(index(*lines, EMPTY)), encoding="utf-8")
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(path)
        rows = "[...document.querySelectorAll('.audits tbody tr:not([hidden])')].map((row) => row.cells[0].textContent)"
        assert browser.eval(rows) == [*(f"audit{i}" for i in range(10)), "a"]
        browser.eval("[...document.querySelectorAll('.audits th button')][7].click()")  # random
        least_first = sorted(range(10), key=lambda i: i * 7 % 10)
        assert browser.eval(rows) == ["a", *(f"audit{i}" for i in least_first)]
        browser.eval(
            "(() => { const input = document.querySelector('input'); input.value = 'm1.onnx depend';"
            "input.dispatchEvent(new Event('input')); })()"
        )
        assert browser.eval(rows) == [f"audit{i}" for i in least_first if i % 2]
        assert browser.errors == []
        assert browser.requests == [path.as_uri()]
    finally:
        browser.close()
