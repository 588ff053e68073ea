"""The page in a real browser: what it shows, what its script does, that it asks for nothing, and that it prints."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from neuronfair.render.page import render_audit
from tests import reports
from tests.render.chromium import BROWSER, Browser
from tests.render.test_page import evil

pytestmark = [pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"), pytest.mark.slow]

ROWS = "[...document.querySelectorAll('#a0 .findings tbody tr:not([hidden])')]"
RTL = "שלום عليكم"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Open the page of a summary on a screen of this width, and expect a quiet browser until the end of the test."""
    path = tmp_path / "report.html"

    def show(summary, width=1280):
        path.write_text(render_audit(summary), encoding="utf-8")
        browser.media()
        browser.width(width)
        browser.open(path)
        browser.eval("document.querySelectorAll('.fold').forEach((fold) => { fold.open = true; })")
        return browser

    yield show
    assert browser.errors == []
    assert browser.requests == [path.as_uri()]


def numbers(browser, column):
    return browser.eval(f"{ROWS}.map((row) => row.cells[{column}].dataset.value)")


def type_in(browser, words):
    browser.eval(
        f"(() => {{ const input = document.querySelector('#a0 input'); input.value = {words!r};"
        "input.dispatchEvent(new Event('input')); })()"
    )


def click(browser, selector):
    browser.eval(f"document.querySelector({selector!r}).click()")


def test_it_is_rendered(show):
    browser = show(reports.adult())
    assert browser.eval("document.title") == "Fairness audit of adult by sex"
    assert "rate > 0.01" in browser.eval("document.querySelector('.level').innerText")
    boxes = browser.eval(
        "[...document.querySelectorAll('svg.chart, .interval, .bar, .layer svg')]"
        ".map((svg) => { const box = svg.getBoundingClientRect(); return box.width * box.height; })"
    )
    assert len(boxes) > 15
    assert min(boxes) > 0
    assert browser.eval("document.querySelectorAll('#a0-layers polyline').length") == 5
    # The stroke of the most biased layer is that of the verdict.
    assert browser.eval(
        "getComputedStyle(document.querySelector('polyline.worst')).stroke"
        " === getComputedStyle(document.querySelector('.level')).color"
    )


def test_findings_are_searched_by_words_and_by_attribute(show):
    made = reports.adult()
    browser = show(made)
    findings = made.attributes[0].findings
    assert browser.eval(f"{ROWS}.length") == 15
    type_in(browser, "education=Masters sales")
    wanted = [f.number for f in findings if f.row["education"] == "Masters" and "Sales" in f.sentence]
    assert 0 < len(wanted) < 30
    assert list(map(int, numbers(browser, 0))) == wanted[:15]
    assert f"of {len(wanted)} that match, of 300" in browser.eval("document.querySelector('#a0 .status').innerText")
    type_in(browser, "no such person")
    assert browser.eval(f"{ROWS}.length") == 0
    type_in(browser, "")
    assert browser.eval(f"{ROWS}.length") == 15


def test_findings_are_sorted_up_and_down(show):
    made = reports.adult()
    browser = show(made)
    gaps = sorted(f.gap for f in made.attributes[0].findings)
    gap = "#a0 .findings th:nth-child(4)"
    assert browser.eval(f"document.querySelector({gap!r}).getAttribute('aria-sort')") == "none"
    click(browser, f"{gap} button")
    assert browser.eval(f"document.querySelector({gap!r}).getAttribute('aria-sort')") == "ascending"
    assert list(map(float, numbers(browser, 3))) == gaps[:15]
    click(browser, f"{gap} button")
    assert browser.eval(f"document.querySelector({gap!r}).getAttribute('aria-sort')") == "descending"
    assert list(map(float, numbers(browser, 3))) == gaps[::-1][:15]
    click(browser, "#a0 .findings th:nth-child(2) button")
    sentences = browser.eval(f"{ROWS}.map((row) => row.querySelector('.sentence').innerText)")
    assert sentences == browser.eval(f"{sentences!r}.sort((a, b) => a.localeCompare(b))")


def test_findings_are_paged(show):
    made = reports.adult(findings=32)
    browser = show(made)
    seen = numbers(browser, 0)
    assert browser.eval("document.querySelector('#a0 .back').disabled")
    for _ in range(2):
        click(browser, "#a0 .next")
        seen += numbers(browser, 0)
    assert list(map(int, seen)) == [finding.number for finding in made.attributes[0].findings]
    assert browser.eval("document.querySelector('#a0 .next').disabled")
    assert browser.eval("document.querySelector('#a0 .pages span').innerText") == "Page 3 of 3"


def test_a_row_shows_all_its_attributes_when_asked(show):
    made = reports.adult(extra=127)
    browser = show(made)
    click(browser, "#a0 .findings summary")
    browser.eval("new Promise((done) => setTimeout(done, 50))")  # details tell of themselves a moment later
    first = made.attributes[0].findings[0]
    shown = browser.eval("[...document.querySelectorAll('#a0 .findings dl')][0].innerText.split(/\\n+/)")
    assert shown[0::2] == list(first.row)
    (change,) = first.changed
    expected = [f"{change.own} → {change.twin}" if k == "sex" else str(v) for k, v in first.row.items()]
    assert shown[1::2] == expected
    assert browser.eval("document.querySelectorAll('#a0 .findings tr:first-child dl mark').length") == 1


def test_tabs_are_switched_by_click_and_key_and_link(show):
    browser = show(reports.adult(("sex",), ("race",), ("sex", "race")))
    visible = "[...document.querySelectorAll('.panel')].map((panel) => !panel.hidden && panel.offsetHeight > 0)"
    assert browser.eval(visible) == [True, False, False]
    click(browser, ".tabs a:nth-child(2)")
    assert browser.eval(visible) == [False, True, False]
    browser.eval(
        "document.querySelector('.tabs a:nth-child(2)')"
        ".dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    )
    assert browser.eval(visible) == [False, False, True]
    assert browser.eval("document.activeElement.getAttribute('aria-selected')") == "true"
    click(browser, "#overview tbody tr:first-child a")
    browser.eval("new Promise((done) => setTimeout(done, 50))")
    assert browser.eval(visible) == [True, False, False]
    assert browser.eval("document.querySelectorAll('[role=tab][aria-selected=true]').length") == 1


def test_a_command_can_be_copied(show):
    browser = show(reports.adult())
    browser.eval("document.querySelector('#again .copy').click()")
    browser.eval("new Promise((done) => setTimeout(done, 100))")
    assert browser.eval("document.querySelector('#again .copy').innerText") in ("Copied", "Selected")
    code = browser.eval("document.querySelector('#again code').textContent")
    assert code == "neuronfair audit adult --sensitive sex --seed 0 --out neuronfair-audit"


def long_names():
    made = reports.adult(extra=127)
    (first,) = made.attributes
    row = {**first.findings[0].row, "attribute" * 30: "value" * 30, RTL: RTL}
    person = replace(first.findings[0], row=row, sentence=f"{RTL} {'word' * 60}")
    inside = first.interpretation
    return reports.with_first(
        replace(
            made,
            data=replace(made.data, name="table" * 40),
            model=replace(made.model, source="/a/very/long/path/" + "model" * 40),
        ),
        findings=(person, *first.findings[1:]),
        worst=(person, *first.worst[1:]),
        groups=(replace(first.groups[0], values="group" * 30), *first.groups[1:]),
        searches=(replace(first.searches[0], stop="method" * 20, method="method" * 20), first.searches[1]),
        interpretation=replace(inside, layers=(replace(inside.layers[0], name="layer" * 30), *inside.layers[1:])),
    )


@pytest.mark.parametrize(
    "made",
    [
        reports.adult(("sex",), ("race",), ("sex", "race")),
        reports.nothing_found(),
        long_names(),
        evil(reports.adult(findings=20)),
        reports.unread(reports.adult(findings=3), reports.counterfactual(("group" * 30, RTL, "a " * 60))),
    ],
    ids=["several", "nothing", "long names", "markup", "counterfactuals"],
)
def test_it_never_scrolls_sideways(show, made):
    browser = show(made)
    browser.eval("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    for width in (320, 768, 1280):
        browser.width(width)
        assert browser.eval("document.documentElement.scrollWidth") <= width
        out = browser.eval(
            "[...document.querySelectorAll('p, th, td, code, dd, h1, h2, h3, button, input, svg')].filter((e) =>"
            f"e.getBoundingClientRect().right > {width} + 1).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert out == [], width


@pytest.mark.parametrize("claimed", [True, False])
def test_words_beside_counterfactuals_do_not_overlap(show, claimed):
    browser = show(reports.unread(reports.adult(findings=0), reports.counterfactual(claimed=claimed)))
    boxes = """(kind) => [...document.querySelectorAll(`${kind}`)].map((svg) => [...svg.querySelectorAll('text')]
      .map((text) => text.getBoundingClientRect()))"""
    for width in (320, 1280):
        browser.width(width)
        for kind in (".beside", ".moves .scale"):
            count, overlaps = browser.eval(
                f"(() => {{ const all = ({boxes})({kind!r}); let hits = 0; all.forEach((some) => some.forEach((a, i) =>"
                "some.slice(i + 1).forEach((b) => { hits += a.width && a.right > b.left && b.right > a.left &&"
                "a.bottom > b.top + 1 && b.bottom > a.top + 1 ? 1 : 0; }))); return [all.flat().length, hits]; })()"
            )
            assert count >= 3
            assert overlaps == 0, (width, kind)


def test_a_phone_gets_one_column(show):
    browser = show(reports.adult(), 320)
    widths = browser.eval(
        "[...document.querySelectorAll('main p:not(.status), .terms dd')].map((e) => e.clientWidth).filter(Boolean)"
    )
    assert min(widths) > 200
    assert browser.eval("[...document.querySelectorAll('.findings thead button')].every((e) => e.offsetHeight > 0)")


def test_it_follows_the_dark(show, browser):
    show(reports.nothing_found())
    ground = "getComputedStyle(document.body).backgroundColor"
    light = browser.eval(ground)
    browser.media(scheme="dark")
    assert (
        sum(map(int, re.findall(r"\d+", browser.eval(ground)))) < 120 < 600 < sum(map(int, re.findall(r"\d+", light)))
    )


def test_it_prints_every_panel_and_opens_its_sections(show):
    browser = show(reports.adult(("sex",), ("race",)))
    closed = "document.querySelectorAll('details.fold:not([open])').length"
    browser.eval("document.querySelectorAll('details.fold').forEach((fold) => { fold.open = false; })")
    before = browser.eval(closed)
    browser.eval(
        "addEventListener('beforeprint', () => {"
        "window.closed = document.querySelectorAll('details.fold:not([open])').length; })"
    )
    pdf = browser.pdf()
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 5
    assert browser.eval("window.closed") == 0
    assert browser.eval(closed) == before > 5  # and closed again
    browser.media("print")
    assert browser.eval("[...document.querySelectorAll('.panel')].every((panel) => panel.offsetHeight > 0)")
    assert browser.eval("document.querySelector('.tabs').offsetHeight") == 0
    assert browser.eval("document.querySelector('#a1 .finder').offsetHeight") == 0
    assert "Not printed: " in browser.eval("document.querySelector('#a1-findings').innerText")  # left out, and said
    shown = "document.querySelector('.tiles').getBoundingClientRect().right <= document.body.clientWidth - 1"
    assert browser.eval(shown)  # the border of the last tile is on the paper


def test_without_its_script_everything_is_there(show, browser):
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        show(reports.adult(("sex",), ("race",), findings=40))
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
        assert browser.eval("[...document.querySelectorAll('tbody tr')].every((row) => row.offsetHeight > 0)")
        assert browser.eval("[...document.querySelectorAll('.copy, .controls, .pages')].every((e) => e.hidden)")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_markup_in_names_runs_nothing(show):
    browser = show(evil(reports.adult(("sex",), findings=3)))
    assert browser.eval("document.querySelectorAll('img').length") == 0
    assert "onerror" in browser.eval("document.querySelector('.sentence').innerText")
