"""The page as text: what it says, that all of it is escaped, and where things lie in its charts."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from neuronfair.audits.report.attribute import (
    Change,
    DirectionReport,
    Histogram,
    Interpretation,
    SeverityReport,
    SideReport,
)
from neuronfair.audits.report.proved import Proved
from neuronfair.audits.report.rates import RateOf, Rates
from neuronfair.audits.report.report import DataReport, DecisionReport, Verdict
from neuronfair.domain.schema.column_types import LeftOut
from neuronfair.render.page import audit_page
from neuronfair.render.page.charts import top_of
from neuronfair.render.page.layermap import cells, layer_maps
from neuronfair.render.page.template import SPACE, marked
from tests import reports

EMPTY = {"meta", "link", "br", "input"}
EVIL = '</script><img src="x" onerror="alert(1)">&\'\u2028'


class Page(HTMLParser):
    """The text of a page and its elements; complains of any element that is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}: {attrs}"
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        (self.data if self.open and self.open[-1] in ("script", "style") else self.words).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words).replace(SPACE, " "))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(report: Any) -> Page:
    return Page(audit_page(report))


def test_the_page_is_well_formed_and_asks_for_nothing():
    page = audit_page(reports.adult(("sex",), ("race",), ("sex", "race")))
    parsed = Page(page)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page
    assert not parsed.all("img")
    assert {attributes["href"][0] for attributes in parsed.all("a")} == {"#"}
    assert {attributes["href"][1:] for attributes in parsed.all("a")} <= set(ids)


def test_the_page_runs_no_script_but_its_own():
    parsed = read(reports.report())
    (policy,) = [m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    (script,) = [data for data in parsed.data if "use strict" in data]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_headings_are_in_order_and_tables_have_captions_and_scopes():
    parsed = read(reports.adult(("sex",), ("race",)))
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(parsed.all("caption")) == len(parsed.all("table"))
    assert all(th.get("scope") in ("col", "row") for th in parsed.all("th"))
    assert {"header", "main", "footer", "nav"} <= {tag for tag, _ in parsed.tags}
    pictures = [svg for svg in parsed.all("svg") if svg.get("role") == "img"]
    assert pictures
    assert all(svg["aria-label"] for svg in pictures)


def test_the_figures_are_those_of_the_report():
    made = reports.adult()
    text = read(made).text
    worst = made.attributes[0].interpretation.layers[1]
    assert f"layer2{worst.auc:.3g}{worst.cut:.3g}{len(worst.biased)} of 32" in text
    for words in (
        "1.82%", "people found40,000", "frontier 48,211, neuronfair 16,007", "26×", "200,704",  # the first screen
        "364 of 20,000", "1,213 of 20,000", "6.07%", "drawn uniformly from the domain", "15,679 rows",
        "seeds-already-discriminating", "38% of 2,000 new people", "21× the overall rate",
        "3.4% of all people of the domain", "A finding activates 62%", "47.1%", "18.8%", "9,321 regions",
        "300 of 40,000 findings", "0.415%", "84.6%", "0.31",  # to the repair
        "neuronfair repair neuronfair-audit/sex/frontier --out fair.safetensors",
        "Failed: at least one check fired", "its upper end is above 1%", "▲ fired", "0.0241",
        "41 old counterexamples", "3 still flip", "38 are fixed", "2 lines of the file no longer fit",
        "9f2c61d0a4b7", "5b1e77aa90c2", "torch 2.13.0", "total 44 s", "layer1 (64), layer2 (32)",
    ):  # fmt: skip
        assert words in text, words


def test_lift_does_not_say_that_the_control_was_drawn_from_the_whole_domain():
    """With --plausible it was not: its people are plausible as well."""
    text = read(reports.adult()).text
    assert re.search(r"of the people tried, against \S+% of as many drawn at random", text)
    assert "… drawn at random" in text
    assert "or, where the searches kept to plausible people, from those" in text


def test_the_largest_figure_is_that_of_the_table():
    tile = read(reports.adult()).text.partition("of decisions flip")[2]
    assert tile.startswith("6.07%")
    lines = [
        line.start() for line in re.finditer("6.07% of the table|0.91% of plausible people|1.82% of the domain", tile)
    ]
    assert len(lines) == 3
    assert "with 95% confidence, of 20,000 rows of the table" in tile


def test_findings_can_be_sorted_by_how_usual_they_are():
    made = reports.adult(findings=12)
    page = audit_page(made)
    shares = [float(x) for x in re.findall(r'<td class="usual" data-value="([^"]*)"', page)]
    assert shares == [finding.plausibility for finding in made.attributes[0].findings]
    assert '<th scope="col" data-sort="number">Usual</th>' in page
    text = Page(page).text
    assert made.attributes[0].worst[0].how_usual in text
    assert "Plausible people are drawn from a model." in text
    assert "Usual" not in read(reports.report(reports.attribute(findings=(reports.finding(),)))).text


def test_what_is_proved_is_one_bar_with_the_rate_as_a_mark():
    drawn = audit_page(reports.adult())
    bar = drawn[drawn.index('<svg class="proof"') :].partition("</svg>")[0].replace(SPACE, " ")
    title = "proved fair 95%, open 4.1%, proved discriminatory 0.9%; sampled rate 1.82%"
    assert f'aria-label="{title}"' in bar
    assert '<rect class="fair" width="95.00%"' in bar
    assert '<rect class="unfair" x="99.10%" width="0.90%"' in bar
    assert '<line class="mark" x1="98.18%" x2="98.18%"' in bar  # counted from the right: within what is open
    text = Page(drawn).text
    assert "For 95% of all 1.0 × 10¹⁵ people of the domain it is proved that sex does not change the decision;" in text
    assert "By bounds of a network, in 2.5 s." in text
    assert "What is proved" not in read(reports.nothing_found()).text


def test_a_part_that_rounds_to_all_is_not_shown_as_all():
    text = read(reports.report(reports.fair(proved=reports.proved(10**20 - 1, 0, 10**20)))).text
    assert "proved fair above 99.9999%open below 0.0001%" in text
    assert "100%" not in text.partition("What is proved")[2].partition("By bounds")[0]


def test_why_nothing_is_proved_is_said_in_a_sentence():
    drawn = audit_page(reports.report(reports.fair(proved=Proved.nothing(10, "it shows nothing of itself"))))
    assert "No proof: it shows nothing of itself." in drawn
    assert 'class="proof"' not in drawn


def test_a_rate_that_was_not_sampled_from_everybody_says_so():
    part = RateOf("domain", 0.002, 0.001, 0.003, 1000, 20, 0.95, part=0.1)
    text = read(reports.report(reports.fair(rates=Rates(domain=part)))).text
    assert "20 of 1,000 people drawn uniformly from the 10% in boxes that are not wholly proved" in text
    whole = RateOf("domain", 0.0, 0.0, 0.0, 0, 0, 0.95, part=0.0)
    text = read(reports.report(reports.fair(rates=Rates(domain=whole), proved=reports.proved(1000)))).text
    assert "0% to 0%all people of the domain, by proof" in text
    assert "It is proved that there is nobody in the domain." in text


def test_how_groups_fare():
    made = reports.with_first(reports.adult(), groups=reports.GROUPS, disparity=reports.DISPARITY)
    text = read(made).text
    assert "F26%100 rows74%50%10%" in text
    assert "Disparate impact: smallest / largest0.400.28 to 0.55selection rateFM" in text
    assert "too small to be compared: X (9 rows)." in text
    assert "Not all metrics are known: no labels." in text
    assert "True positives" not in read(reports.adult()).text  # no labels


def test_places_of_an_interval_are_shares_of_its_scale():
    rate = replace(reports.rate(2, 100), low=0.01, high=0.05)
    group = replace(reports.adult(findings=0).attributes[0].subgroups[0], rate=rate, lift=2 / 3)
    page = audit_page(reports.report(reports.fair(rates=Rates(domain=replace(rate, rate=0.03)), subgroups=(group,))))
    drawn = page[page.index('class="subgroups"') :]
    assert 'cx="40.00%"' in drawn
    assert 'class="range" x1="20.00%" x2="100.00%"' in drawn
    assert 'class="reference" x1="60.00%"' in drawn
    assert "2%, between 1% to 5%" in drawn


def test_curves_put_the_most_biased_layer_on_top_and_its_cut_on_the_diagonal():
    first, second = (reports.layer(name, 0.2) for name in "ba")
    second = replace(second, curve=((0.0, 0.5), (0.1, 0.0)), cut=0.1)
    drawn = audit_page(reports.report(reports.attribute(interpretation=Interpretation("b", (first, second)))))
    lines = re.findall(r'<polyline class="([^"]*)" points="([^"]*)"', drawn)
    assert lines == [("line c1", "0.0,500.0 200.0,1000.0"), ("line worst", "0.0,0.0 500.0,500.0 1000.0,1000.0")]
    assert 'class="cut" cx="60.00%" cy="70.00%"' in drawn


def test_the_histogram_is_as_high_as_its_counts():
    severity = SeverityReport(1.5, 2.0, 3.0, Histogram((0.0, 1.0, 3.0), (1, 4)))
    drawn = audit_page(reports.report(reports.attribute(severity=severity)))
    columns = re.findall(r'class="column" x="([\d.]+)%" width="([\d.]+)%" y="([\d.]+)%" height="([\d.]+)%"', drawn)
    assert [tuple(map(float, c)) for c in columns] == [(0, 33.33, 75, 25), (33.33, 66.67, 0, 100)]
    assert 'class="mark" x1="50.00%"' in drawn


def test_a_wide_layer_is_gathered_into_cells():
    reactions, shares, each = cells([0.0] * 4999 + [1.0], [4998, 4999], most=1024)
    assert (len(reactions), each) == (1000, 5)
    assert reactions[-1] == pytest.approx(math.tanh(1))
    assert reactions[:-1] == [0.0] * 999
    assert shares == [0.0] * 999 + [0.4]


def test_a_deep_network_makes_no_heavy_page():
    deep = tuple(reports.layer(f"conv{i}", 0.1, [0.1] * 9000) for i in range(50))
    assert [(len(one.shades), one.each, one.columns, one.rows) for one in layer_maps(deep)] == [(1, 28, 32, 11)] * 50
    drawn = audit_page(reports.report(reports.attribute(interpretation=Interpretation("conv3", deep))))
    assert len(drawn) < 1_000_000
    assert drawn.count("most biased</em>") == 1
    assert "Each cell holds 28 neurons" in drawn


def test_the_changed_attribute_is_marked_once_wherever_the_sentence_names_it():
    change = Change("marital_status", "Divorced", "Widowed")
    for sentence, expected in (
        ("x: marital status Widowed instead of Divorced", "x: <mark>marital status Widowed instead of Divorced</mark>"),
        ("x; with marital status Widowed: y", "x; with <mark>marital status</mark> Widowed: y"),
        ("a < b", "a &lt; b"),
    ):  # fmt: skip
        assert marked(reports.finding(sentence=sentence, changed=(change,))) == expected
    both = (Change("sex", "F", "M"), Change("age", 3, 4))
    assert marked(reports.finding(sentence="with sex M instead of F and age 4 instead of 3: y", changed=both)) == (
        "with <mark>sex M instead of F</mark> and <mark>age 4 instead of 3</mark>: y"
    )


def evil(value: Any, kind: str = "") -> Any:
    """The same report with markup in every word and every name."""
    if is_dataclass(value):
        return replace(value, **{f.name: evil(getattr(value, f.name), str(f.type)) for f in fields(value)})
    if isinstance(value, Mapping):
        return {evil(key): evil(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(evil(item) for item in value)
    return (
        EVIL + value
        if isinstance(value, str) and not kind.startswith(("Literal", "Level", "Population", "Scale"))
        else value
    )


def test_words_of_the_user_stay_words():
    made = evil(reports.adult(("sex",), ("race",), findings=20))
    page = audit_page(made)
    parsed = Page(page)
    assert not parsed.all("img")
    assert page.count("</script>") == page.count("<script")
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
    people = [json.loads(data) for data in parsed.data if data.startswith('{"columns"')]
    assert people[0]["columns"] == [EVIL + attribute for attribute in reports.PEOPLE]
    assert list(made.attributes[0].findings[3].row.values()) == people[0]["rows"][3]


def test_what_a_page_cannot_hold_or_would_hide_is_written_out():
    made = reports.report(data=replace(reports.report().data, name="a\x00b\ud800c\x1bd\u202e<e", target="t\x07"))
    page = audit_page(made)
    page.encode()
    assert "a\\u0000b\\ud800c\\u001bd\\u202e&lt;e" in page


def test_a_black_box_in_which_nobody_was_found():
    parsed = read(reports.nothing_found())
    assert "Nothing found" in parsed.text
    assert "The model is a black box here" in parsed.text
    assert "no proof that there is nobody" in parsed.text
    assert "and no decision flipped" in parsed.text
    assert "None" not in parsed.text
    assert not [table for table in parsed.all("table") if table.get("class") == "findings"]
    assert not parsed.all("mark")


def test_an_audit_stopped_before_its_searches_claims_nothing():
    made = reports.with_first(reports.nothing_found(), searches=(), rates=Rates(), groups=())
    text = read(made).text
    assert text.count("No decision was found that depends on sex.") == 1  # in the verdict only
    assert "no proof that there is nobody" not in text
    assert "No random search to compare with" in text


def test_an_interrupted_white_box_is_no_black_box_and_no_calm_verdict():
    verdict = Verdict("not assessable", "Nothing was measured.")
    made = reports.report(reports.fair(interpretation=None, searches=(), rates=Rates()), verdict=verdict)
    made = replace(made, model=replace(made.model, layers={"layer1": 4}))
    parsed = read(made)
    assert "The audit was interrupted before the layers were looked at" in parsed.text
    assert "black box" not in parsed.text
    assert "verdict calm" not in {header["class"] for header in parsed.all("header")}
    assert "◆ Not assessable" in parsed.text


def test_nothing_at_all_makes_a_page():
    assert "Nothing was looked at" in read(
        replace(reports.report(), attributes=(), verdict=Verdict("not assessable", "Nothing was looked at."))
    ).text  # fmt: skip


def test_who_the_rules_were_learned_from_is_said():
    assert "learned from people drawn uniformly from the domain, joined by findings" in read(reports.adult()).text


def test_a_finding_that_cannot_be_replayed_has_no_command():
    made = reports.adult(findings=1)
    assert "neuronfair show" in read(made).text
    (found,) = made.attributes[0].findings
    lost = (replace(found, replay=None),)
    parsed = read(reports.with_first(made, worst=lost, findings=lost))
    assert "neuronfair show" not in parsed.text
    assert len(parsed.all("code")) < len(read(made).all("code"))


def test_three_classes_an_interruption_and_a_guessed_domain():
    made = reports.adult(("race",), classes=("low", "middle", "high"))
    made = replace(
        made,
        reproduction=replace(made.reproduction, interrupted=True),
        data=replace(made.data, domain_inferred=True),
        decision=DecisionReport("threshold", 0.5),
    )
    text = read(made).text
    assert "income: low or middle or high" in text
    assert "the share decided high" in text
    assert "Interrupted." in text
    assert "Domain inferred." in text
    assert "threshold 0.5" in text


def test_one_attribute_needs_no_tabs_and_several_are_side_by_side():
    one, several = read(reports.adult()), read(reports.adult(("sex",), ("race",), ("sex", "race")))
    assert not [nav for nav in one.all("nav") if nav.get("class") == "tabs"]
    assert "Side by side" not in one.text
    assert "Side by side" in several.text
    assert "Discrimination by sex and race, the strongest of all" in several.text
    assert [a["href"] for a in several.all("a")].count("#a2") == 2


def test_an_attribute_that_was_not_measured_stands_beside_the_others():
    made = reports.report(reports.attribute("sex"), reports.fair("race", rates=Rates(), searches=()))
    assert "not known" in read(made).text


def test_a_wide_table_stays_small():
    page = audit_page(reports.adult(extra=127))
    assert len(page) < 900_000
    assert "All 140 attributes" in page


def channel(value: int) -> float:
    part = value / 255
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def contrast(one: str, other: str) -> float:
    light, dark = sorted(
        (
            sum(w * channel(int(c[i : i + 2], 16)) for w, i in ((0.2126, 1), (0.7152, 3), (0.0722, 5)))
            for c in (one, other)
        ),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_told_from_their_ground():
    style = audit_page(reports.nothing_found())
    schemes = [dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in re.findall(r":root \{([^}]*)\}", style)]
    assert len(schemes) == 3  # light, dark, paper
    for scheme in schemes:
        for ground in ("paper", "card"):
            for words in ("ink", "soft", "accent", "strong", "middle", "calm"):
                assert contrast(scheme[words], scheme[ground]) >= 4.5, (words, ground, scheme)
        assert contrast(scheme["on-mark"], scheme["mark"]) >= 4.5
        assert contrast(scheme["ink"], scheme["track"]) >= 4.5
        assert contrast(scheme["accent"], scheme["track"]) >= 4.5  # the copy button
        assert contrast(scheme["paper"], scheme["accent"]) >= 4.5  # the chosen tab
        for line in range(6):
            assert contrast(scheme[f"c{line}"], scheme["paper"]) >= 3


def test_round_tops_hold_every_interval():
    ends = [replace(reports.rate(1, 100), high=high) for high in (0.0201, 0.95, 0.0)]
    assert top_of(ends[:1]) == pytest.approx(0.025)
    assert top_of(ends[:1], 0.3) == pytest.approx(0.3)
    assert top_of(ends[1:2]) == 1
    assert top_of(ends[2:]) == 1
    assert top_of([]) == 1


HURT = DirectionReport(
    "table", 900, (SideReport("Female", 88, 812), SideReport("Male", 812, 88)), "In 812 of 900 pairs Female loses."
)


def test_people_come_before_groups_groups_before_repair_and_the_network_last():
    parsed = read(reports.with_first(reports.adult(), direction=(HURT,)))
    ids = [attributes["id"] for tag, attributes in parsed.tags if tag == "section" and "id" in attributes]
    ours = ["figures", "checks", "a0-rate", "a0-hurt", "a0-worst", "a0-findings", "a0-subgroups", "a0-groups"]
    ours += ["todo", "repair", "inside", "a0-layers", "a0-search", "reading", "again"]
    assert [name for name in ids if name in ours] == ours


def test_whom_it_hurts_is_said_first_and_drawn():
    both = replace(reports.attribute("sex+race"), direction=(replace(HURT, sentence="Both hurt."),))
    made = reports.report(reports.attribute(direction=(HURT,)), both)
    made = replace(made, data=replace(made.data, classes=("no", "yes"), favourable="yes"))
    text = read(made).text
    assert text.count("Whom it hurts. In 812 of 900 pairs Female loses.") == 1
    assert "Whom it hurts. Both hurt." not in text  # of several together, below
    assert "Female 90.22% loses for 812 of 900" in text
    assert "Which decision do people hope for?" not in text
    unknown = replace(reports.report(), data=replace(made.data, favourable=None))
    assert 'favourable = "yes"' in read(unknown).text


def test_probabilities_stand_in_the_place_of_margins():
    found = reports.finding(outcome="yes", probability=0.5832, twin_probability=0.3401)
    likely = SeverityReport(0.2, 0.4, 0.5, Histogram((0.0, 0.25, 0.5), (60, 40)))
    made = reports.with_first(reports.report(), worst=(found,), findings=(found,), probability_gaps=likely)
    parsed = read(replace(made, decision=DecisionReport("argmax", 0.0, "logits")))
    assert "probability of yes 58%" in parsed.text
    assert "probability of yes 34%" in parsed.text
    assert "Gap 24.3 points" in parsed.text
    assert "median 20%" in parsed.text
    assert "the softmax or sigmoid of its scores" in parsed.text
    assert "score 1" not in parsed.text
    assert [float(td["data-value"]) for td in parsed.all("td") if td.get("class") == "gap"] == [pytest.approx(0.2431)]


def test_all_findings_can_be_taken_along():
    made = reports.adult()
    made = replace(made, reproduction=replace(made.reproduction, export="neuronfair show RUN --out findings.xlsx"))
    parsed = read(made)
    assert "Take all of them along" in parsed.text
    assert "neuronfair show RUN --out findings.xlsx" in parsed.text
    assert "#export" in [a["href"] for a in parsed.all("a")]


def test_columns_that_were_left_out_are_listed():
    text = read(
        reports.report(data=DataReport("people", 50, 2, ("sex",), left_out=(LeftOut("id", "every cell is different"),)))
    ).text
    assert "1 column of the table left out" in text
    assert "idevery cell is different" in text
