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

from neuronfair.audits.report import DataReport, DecisionReport, Verdict, find_worst_attribute
from neuronfair.audits.report.attribute import (
    DirectionReport,
    Histogram,
    Interpretation,
    ProofSummary,
    Rates,
    SeverityReport,
    SideReport,
)
from neuronfair.domain.schema.column_types import ExcludedColumn
from neuronfair.formatting import POPULATIONS, TWINS_OF_POPULATION, interval_ends, percent
from neuronfair.proof.certificate import FreshClaims, ShareInterval
from neuronfair.render.page import group_neurons, make_layer_maps, render_audit, round_axis_end
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
        return re.sub(r"\s+", " ", "".join(self.words))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(report: Any) -> Page:
    return Page(render_audit(report))


def test_the_page_is_well_formed_and_asks_for_nothing():
    page = render_audit(reports.adult(("sex",), ("race",), ("sex", "race")))
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
        "Flip rate6.1", "Certified share95", "of 20,000 ", "364 of 20,000", "1,213 of 20,000", "102,400",
        "15,679",
        "612 of 1,000 seeds", "of 2,000 fresh records",
        "A finding activates 62", "9,321 regions", "300 of 40,000 findings",
        "1 of 2 thresholds failed", "its upper end is above 1", "▲ failed", "0.0241",
        "41 past counterexamples", "3 still flip", "38 are fixed", "2 lines of the file no longer fit",
        "9f2c61d0a4b7", "5b1e77aa90c2", "torch 2.13.0", "total 44 s", "layer1 (64), layer2 (32)",
    ):  # fmt: skip
        assert words in text, words


def test_the_first_screen_has_four_metrics_of_the_model_and_none_of_the_search():
    page = render_audit(reports.adult())
    first = page[page.index('<section id="metrics"') :].partition("</section>")[0]
    assert re.findall(r"<dt>([^<]*)</dt>", first) == [
        "Flip rate", "Disparate-impact ratio", "Proxy excess", "Certified share",
    ]  # fmt: skip
    assert f'<dd class="value">{percent(0.06065)}</dd>' in first
    assert "of 20,000 " in first
    assert "frontier" not in first
    ids = re.findall(r'<section id="([^"]*)"', page)
    assert ids[:2] == ["metrics", "next"]


def test_no_heading_occurs_twice():
    made = reports.adult(("sex",), ("race",), ("sex", "race"), findings=5)
    made = reports.with_first(made, counterfactual=reports.counterfactual(), direction=(HURT,), groups=reports.GROUPS)
    headings = re.findall(r"<h([1-4])[^>]*>(.*?)</h\1>", render_audit(made))
    assert len(headings) == len(set(headings))


def test_rates_that_look_alike_say_in_what_they_differ():
    rates = Rates(*(replace(reports.rate(152, 1000), population=one) for one in ("table", "plausible")))
    text = read(reports.with_first(reports.report(), rates=replace(rates, pairs=reports.rate(175, 1000, "pairs")))).text
    for population in ("pairs", "table", "plausible"):
        assert f"{POPULATIONS[population]} {TWINS_OF_POPULATION[population]}" in text


def test_the_top_line_has_version_and_day_and_a_quick_look():
    made = reports.report()
    assert f"NeuronFair {made.neuronfair} fairness audit of people by sex, 2024-05-06" in read(made).text
    quick = replace(made, reproduction=replace(made.reproduction, reduced=("permutations 5/20",)))
    assert "by sex, quick look, 2024-05-06" in read(quick).text


def test_real_pairs_come_before_synthetic_ones_each_under_its_name():
    real = reports.finding(method="table", number=7, replay=None)
    text = read(reports.with_first(reports.report(), worst=(real, reports.finding()))).text
    assert text.index("Worst pairs: records of the data set, by sex") < text.index("record 8 of the data set")
    assert text.index("record 8 of the data set") < text.index("Worst pairs: synthetic records, by sex")


def test_small_groups_and_subgroups_are_marked():
    assert "X too few to compare" in read(reports.with_first(reports.report(), groups=reports.GROUPS)).text
    made = reports.adult()
    one = made.attributes[0].subgroups[0]
    few = replace(one, rate=replace(one.rate, of=99), sentence="Of a few.")
    text = read(reports.with_first(made, subgroups=(one, few))).text
    assert text.index("1 subgroup with few fresh records") < text.index("Of a few.")
    assert text.index(one.sentence) < text.index("1 subgroup with few")


def test_that_a_black_box_has_no_layers_is_said_once():
    made = reports.report(*(reports.attribute(name, interpretation=None) for name in ("sex", "race")))
    text = read(replace(made, model=replace(made.model, white_box=False))).text
    assert text.count("The model is a black box, so its layers are not known.") == 1


def test_findings_can_be_sorted_by_their_likelihood():
    made = reports.adult(findings=12)
    page = render_audit(made)
    shares = [float(x) for x in re.findall(r'<td class="usual" data-value="([^"]*)"', page)]
    assert shares == [finding.plausibility for finding in made.attributes[0].findings]
    assert '<th scope="col" data-sort="number">Likelihood</th>' in page
    text = Page(page).text
    assert made.attributes[0].worst[0].plausibility_text in text
    assert "Realistic synthetic records are drawn from a model." in text
    plain = render_audit(reports.report(reports.attribute(findings=(reports.finding(),))))
    assert '<th scope="col" data-sort="number">Likelihood</th>' not in plain


def test_what_is_certified_is_a_bar_for_each_group_of_records():
    rows = replace(reports.certified_rows(600, 100, 800), without_twin=200)
    shares = [ShareInterval(share, share - 0.01, share + 0.01) for share in (0.55, 0.05, 0.4)]
    made = replace(reports.proved(950, 9, data_set=rows), fresh=FreshClaims(5000, *shares))
    drawn = render_audit(reports.with_first(reports.adult(), proved=made))
    table, fresh, space = re.findall(r'<svg class="proof".*?</svg>', drawn, re.DOTALL)
    assert 'aria-label="Data set: certified 75%, undecided 12.5%, certified to depend 12.5%"' in table
    assert '<rect class="fair alone" width="25.00%"' in table
    assert '<rect class="fair" x="25.00%" width="50.00%"' in table
    assert 'aria-label="Realistic synthetic: certified 55%, undecided 40%, certified to depend 5%"' in fresh
    parts = f"certified {percent(0.95)}, undecided {percent(0.041)}, certified to depend {percent(0.009)}"
    assert f'aria-label="Input space: {parts}; sampled flip rate {percent(0.0182)}"' in space
    assert '<rect class="fair" x="0.00%" width="95.00%"' in space
    assert '<rect class="unfair" x="99.10%" width="0.90%"' in space
    assert '<line class="mark" x1="98.18%" x2="98.18%"' in space  # counted from the right: within what is undecided
    text = Page(drawn).text
    assert f"75% certified, {percent(400 / 600)} of those with an allowed twin" in text
    assert "200 without an allowed twin" in text
    assert "400 certified, 100 undecided" in text
    assert "100 undecided, 100 certified to depend" in text
    assert f"{percent(0.55)} certified (95% CI {interval_ends(0.55, 0.54, 0.56)})" in text
    assert "By bounds of a network;" in text
    assert "Certified share by" not in read(reports.nothing_found()).text


def test_without_a_data_set_the_input_space_has_the_only_bar():
    drawn = render_audit(reports.adult())
    assert drawn.count('<svg class="proof"') == 1
    assert f"certified not to depend on sex for {percent(0.95)} of the declared input space" in Page(drawn).text


def test_a_part_that_rounds_to_all_is_not_shown_as_all():
    text = read(reports.report(reports.fair(proved=reports.proved(10**20 - 1, 0, 10**20)))).text
    assert "above 99.9999% certified" in text
    assert "below 0.0001% undecided" in text


def test_why_nothing_is_proved_is_said_in_a_sentence():
    drawn = render_audit(reports.report(reports.fair(proved=ProofSummary.nothing(10, "it shows nothing of itself"))))
    assert "No proof: it shows nothing of itself." in drawn
    assert 'class="proof"' not in drawn


def test_that_nothing_can_be_found_is_said_where_it_is_certified():
    text = read(reports.report(reports.fair(proved=reports.proved(1000)))).text
    assert "It is certified that there is none in the declared input space." in text


def test_how_groups_fare():
    made = reports.with_first(reports.adult(), groups=reports.GROUPS, disparity=reports.DISPARITY)
    text = read(made).text
    cells = ("F", percent(0.26), "100", percent(0.74), percent(0.5), percent(0.1))
    assert "".join(cells).replace(" ", "") in text.replace(" ", "")
    assert "Disparate-impact ratio: smallest / largest0.400.28–0.55selection rateFM" in text
    assert "too small to be compared: X (9 rows)." in text
    assert "Not all metrics are known: no labels." in text
    assert "True positives" not in read(reports.adult()).text  # no labels


def test_places_of_an_interval_are_shares_of_its_scale():
    rate = replace(reports.rate(2, 100), low=0.01, high=0.05)
    group = replace(reports.adult(findings=0).attributes[0].subgroups[0], rate=rate, lift=2 / 3)
    page = render_audit(reports.report(reports.fair(rates=Rates(domain=replace(rate, rate=0.03)), subgroups=(group,))))
    drawn = page[page.index('class="subgroups"') :]
    assert 'cx="40.00%"' in drawn
    assert 'class="range" x1="20.00%" x2="100.00%"' in drawn
    assert 'class="reference" x1="60.00%"' in drawn
    assert f"{percent(0.02)}, interval 1.0–5.0%" in drawn


def test_curves_put_the_most_biased_layer_on_top_and_its_cut_on_the_diagonal():
    first, second = (reports.layer(name, 0.2) for name in "ba")
    second = replace(second, curve=((0.0, 0.5), (0.1, 0.0)), cut=0.1)
    drawn = render_audit(reports.report(reports.attribute(interpretation=Interpretation("b", (first, second)))))
    lines = re.findall(r'<polyline class="([^"]*)" points="([^"]*)"', drawn)
    assert lines == [("line c1", "0.0,500.0 200.0,1000.0"), ("line worst", "0.0,0.0 500.0,500.0 1000.0,1000.0")]
    assert 'class="cut" cx="60.00%" cy="70.00%"' in drawn


def test_the_histogram_is_as_high_as_its_counts():
    severity = SeverityReport(1.5, 2.0, 3.0, Histogram((0.0, 1.0, 3.0), (1, 4)))
    drawn = render_audit(reports.report(reports.attribute(severity=severity)))
    columns = re.findall(r'class="column" x="([\d.]+)%" width="([\d.]+)%" y="([\d.]+)%" height="([\d.]+)%"', drawn)
    assert [tuple(map(float, c)) for c in columns] == [(0, 33.33, 75, 25), (33.33, 66.67, 0, 100)]
    assert 'class="mark" x1="50.00%"' in drawn


def test_a_wide_layer_is_gathered_into_cells():
    reactions, shares, each = group_neurons([0.0] * 4999 + [1.0], [4998, 4999], limit=1024)
    assert (len(reactions), each) == (1000, 5)
    assert reactions[-1] == pytest.approx(math.tanh(1))
    assert reactions[:-1] == [0.0] * 999
    assert shares == [0.0] * 999 + [0.4]


def test_a_deep_network_makes_no_heavy_page():
    deep = tuple(reports.layer(f"conv{i}", 0.1, [0.1] * 9000) for i in range(50))
    assert [(len(one.shades), one.neurons_per_cell, one.columns, one.rows) for one in make_layer_maps(deep)] == [
        (1, 28, 32, 11)
    ] * 50
    drawn = render_audit(reports.report(reports.attribute(interpretation=Interpretation("conv3", deep))))
    assert len(drawn) < 1_000_000
    assert drawn.count("most biased</em>") == 1
    assert "Each cell holds 28 neurons" in drawn


def evil(value: Any, kind: str = "") -> Any:
    """The same report with markup in every word and every name."""
    if is_dataclass(value):
        return replace(value, **{f.name: evil(getattr(value, f.name), str(f.type)) for f in fields(value)})
    if isinstance(value, Mapping):
        return {evil(key): evil(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(evil(item) for item in value)
    literal = kind.startswith(("Literal", "Level", "Population", "Scale"))
    return EVIL + value if isinstance(value, str) and not value.isdigit() and not literal else value


def test_words_of_the_user_stay_words():
    made = evil(reports.adult(("sex",), ("race",), findings=20))
    page = render_audit(made)
    parsed = Page(page)
    assert not parsed.all("img")
    assert page.count("</script>") == page.count("<script")
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
    people = [json.loads(data) for data in parsed.data if data.startswith('{"columns"')]
    assert people[0]["columns"] == [EVIL + attribute for attribute in reports.PEOPLE]
    assert list(find_worst_attribute(made.attributes).findings[3].row.values()) == people[0]["rows"][3]


def test_what_a_page_cannot_hold_or_would_hide_is_written_out():
    made = reports.report(data=replace(reports.report().data, name="a\x00b\ud800c\x1bd\u202e<e", target="t\x07"))
    page = render_audit(made)
    page.encode()
    assert "a\\u0000b\\ud800c\\u001bd\\u202e&lt;e" in page


def test_a_black_box_in_which_nobody_was_found():
    parsed = read(reports.nothing_found())
    assert "No discriminatory input found by sex" in parsed.text
    assert "The model is a black box" in parsed.text
    assert "That is no certificate that there is none" in parsed.text
    assert "None" not in parsed.text
    assert not [table for table in parsed.all("table") if table.get("class") == "findings"]
    assert not parsed.all("mark")


def test_an_audit_stopped_before_its_searches_claims_nothing():
    made = reports.with_first(reports.nothing_found(), searches=(), rates=Rates(), groups=())
    text = read(made).text
    assert text.count("No decision was found that depends on sex.") == 1  # in the headline only
    assert "no certificate" not in text
    assert "Not measured." in text


def test_an_interrupted_white_box_is_no_black_box_and_no_calm_verdict():
    verdict = Verdict("not assessable", "Nothing was measured.")
    made = reports.report(reports.fair(interpretation=None, searches=(), rates=Rates()), verdict=verdict)
    made = replace(made, model=replace(made.model, layers={"layer1": 4}))
    parsed = read(made)
    assert "The audit was interrupted before this was measured" in parsed.text
    assert "black box" not in parsed.text
    assert "verdict calm" not in {header["class"] for header in parsed.all("header")}
    assert "◆ Not assessable." in parsed.text


def test_nothing_at_all_makes_a_page():
    assert "Nothing was looked at" in read(
        replace(reports.report(), attributes=(), verdict=Verdict("not assessable", "Nothing was looked at."))
    ).text  # fmt: skip


def test_who_the_rules_were_learned_from_is_said():
    assert "The rules were learned from" in read(reports.adult()).text


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
    assert "the share for which the model decides high" in text
    assert "The audit was interrupted" in text
    assert "The input schema was inferred" in text
    assert "threshold 0.5" in text


def test_one_attribute_needs_no_tabs_and_several_are_side_by_side():
    one, several = read(reports.adult()), read(reports.adult(("sex",), ("race",), ("sex", "race")))
    assert not [nav for nav in one.all("nav") if nav.get("class") == "tabs"]
    assert "All sensitive attributes" not in one.text
    assert "All sensitive attributes" in several.text
    assert "Metrics by race the attribute with the highest flip rate" in several.text
    assert [a["href"] for a in several.all("a")].count("#a2") == 2


def test_a_wide_table_stays_small():
    page = render_audit(reports.adult(extra=127))
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
    style = render_audit(reports.nothing_found())
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
    assert round_axis_end(ends[:1]) == pytest.approx(0.03)  # not 2.5%, whose half has no short label
    assert round_axis_end(ends[:1], 0.3) == pytest.approx(0.3)
    assert round_axis_end(ends[1:2]) == 1
    assert round_axis_end(ends[2:]) == 1
    assert round_axis_end([]) == 1


HURT = DirectionReport(
    "table", 900, (SideReport("Female", 88, 812), SideReport("Male", 812, 88)), "In 812 of 900 pairs Female loses."
)


def test_pairs_and_subgroups_come_before_details_and_the_searches_last():
    parsed = read(reports.with_first(reports.adult(), direction=(HURT,)))
    ids = [attributes["id"] for tag, attributes in parsed.tags if tag == "section" and "id" in attributes]
    ours = ["metrics", "next", "limits", "details", "checks", "a0", "a0-worst", "a0-subgroups", "a0-disadvantaged"]
    ours += ["a0-rate", "a0-groups", "a0-proved", "a0-findings", "appendix", "a0-layers", "a0-search"]
    ours += ["reading", "again"]
    assert [name for name in ids if name in ours] == ours


def test_the_disadvantaged_group_is_said_and_drawn():
    made = reports.report(reports.attribute(direction=(HURT,)))
    made = replace(made, data=replace(made.data, classes=("no", "yes"), favourable="yes"))
    text = read(made).text
    assert "In 812 of 900 pairs Female loses." in text
    assert f"Female {percent(812 / 900)} 812 of 900" in text
    assert "Set the favourable outcome" not in text
    unknown = replace(reports.report(), data=replace(made.data, favourable=None))
    assert 'favourable = "yes"' in read(unknown).text


def test_probabilities_stand_in_the_place_of_margins():
    found = reports.finding(outcome="yes", probability=0.5832, twin_probability=0.3401)
    likely = SeverityReport(0.2, 0.4, 0.5, Histogram((0.0, 0.25, 0.5), (60, 40)))
    made = reports.with_first(reports.report(), worst=(found,), findings=(found,), probability_gaps=likely)
    parsed = read(replace(made, decision=DecisionReport("argmax", 0.0, "logits")))
    assert "probability of yes 58%" in parsed.text
    assert "probability of yes 34%" in parsed.text
    assert "Gap 24.3 pp" in parsed.text
    assert "median 20 pp" in parsed.text
    assert "the softmax or sigmoid of its scores" in parsed.text
    assert "score 1" not in parsed.text
    assert [float(td["data-value"]) for td in parsed.all("td") if td.get("class") == "gap"] == [pytest.approx(0.2431)]


def test_columns_that_were_left_out_are_listed():
    text = read(
        reports.report(
            data=DataReport("people", 50, 2, ("sex",), left_out=(ExcludedColumn("id", "every cell is different"),))
        )
    ).text
    assert "1 column of the data set left out" in text
    assert "idevery cell is different" in text
