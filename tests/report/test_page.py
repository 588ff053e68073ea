from __future__ import annotations

import copy
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from neuronfair.report.page import audit_page
from neuronfair.report.page.charts import curves, histogram, interval, top_of
from neuronfair.report.page.findings import marked
from neuronfair.report.page.layermap import cells, layer_map
from neuronfair.report.page.shell import document, embedded, escape
from neuronfair.report.page.summary import complete
from neuronfair.report.page.words import SPACE, duration, known, number, share, times
from tests.report import summaries

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


def read(summary: Any) -> Page:
    return Page(audit_page(summary))


def test_the_page_is_well_formed_and_asks_for_nothing():
    page = audit_page(summaries.summary(["sex"], ["race"], ["sex", "race"]))
    parsed = Page(page)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "http:" not in page.replace("http://www.w3.org", "")
    assert "https:" not in page
    assert not parsed.all("img")
    assert {attributes["href"][0] for attributes in parsed.all("a")} == {"#"}
    assert {attributes["href"][1:] for attributes in parsed.all("a")} <= set(ids)
    (policy,) = [m["content"] for m in parsed.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'")


def test_headings_are_in_order_and_tables_have_captions_and_scopes():
    parsed = read(summaries.summary(["sex"], ["race"]))
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


def test_the_figures_are_those_of_the_summary():
    made = summaries.summary()
    text = read(made).text
    worst = made["attributes"][0]["interpretation"]["layers"][1]
    assert f"layer2{worst['auc']:.3g}{worst['cut']:.3g}{len(worst['biased'])} of 32" in text
    for words in (
        "1.82 %", "people found40,000", "frontier 48,211, neuronfair 16,007", "× 26", "200,704",  # the first screen
        "364 of 20,000", "1,213 of 20,000", "6.07 %", "valid people, equally likely", "15,679 rows",
        "seeds-already-discriminating", "38 % of 2,000 new random people", "× 21 the overall rate",
        "3.4 % of all valid people", "A finding activates 62 %", "47.1 %", "18.8 %", "9,321 regions",
        "300 of 40,000 findings", "0.415 %", "84.6 %", "0.31",  # to the repair
        "Failed: at least one check fired", "its upper end is above 1 %", "▲ fired", "0.0241",
        "41 old counterexamples", "3 still decided otherwise", "2 lines of the file no longer fit",
        "9f2c61d0a4b7", "5b1e77aa90c2", "torch 2.13.0", "total 44 s",
    ):  # fmt: skip
        assert words in text, words


def test_places_of_an_interval_are_shares_of_its_scale():
    drawn = interval(complete({"share": 0.02, "low": 0.01, "high": 0.04}), 0.05, reference=0.03)
    assert 'cx="40.00%"' in drawn
    assert 'class="range" x1="20.00%" x2="80.00%"' in drawn
    assert 'class="reference" x1="60.00%"' in drawn
    assert "2 %, between 1 % to 4 %".replace(" %", f"{SPACE}%") in drawn


def test_curves_put_the_most_biased_layer_on_top_and_its_cut_on_the_diagonal():
    layers = [
        {"name": "b", "curve": [[0, 1], [0.25, 0.5], [0.5, 0.0]], "cut": 0.3},
        {"name": "a", "curve": [[0, 0.5], [0.1, 0]], "cut": 0.1},
    ]
    drawn = curves(complete(layers), "b")
    lines = re.findall(r'<polyline class="([^"]*)" points="([^"]*)"', drawn)
    assert lines[-1] == ("line worst", "0.0,0.0 500.0,500.0 1000.0,1000.0")
    assert lines[0] == ("line c1", "0.0,500.0 200.0,1000.0")
    assert 'class="cut" cx="60.00%" cy="70.00%"' in drawn
    assert curves(complete([{"name": "a"}]), "a") == ""


def test_the_histogram_is_as_high_as_its_counts():
    drawn = histogram([0, 1, 3], [1, 4], {"median": 1.5})
    columns = re.findall(r'x="([\d.]+)%" width="([\d.]+)%" y="([\d.]+)%" height="([\d.]+)%"', drawn)
    assert [tuple(map(float, c)) for c in columns] == [(0, 33.333, 75, 25), (33.333, 66.667, 0, 100)]
    assert 'x1="50.00%"' in drawn
    assert histogram([0, 0], [0], {}) == ""


def test_a_wide_layer_is_gathered_into_cells():
    reactions, shares, each = cells([0.0] * 4999 + [1.0], [4998, 4999], most=1024)
    assert (len(reactions), each) == (1000, 5)
    assert reactions[-1] == pytest.approx(math.tanh(1))
    assert reactions[:-1] == [0.0] * 999
    assert shares == [0.0] * 999 + [0.4]
    deep = [{"name": f"conv{i}", "neurons": 9000, "biased": [1], "act_diff": [0.1] * 9000} for i in range(50)]
    drawn = layer_map(deep, "conv3")
    assert len(drawn) < 1_000_000
    assert drawn.count("most biased") == 1
    assert "Each cell holds 28 neurons" in drawn


def test_the_changed_attribute_is_marked_once_wherever_the_sentence_names_it():
    change = {"attribute": "marital_status", "from": "Divorced", "to": "Widowed"}
    for sentence, expected in (
        ("x: marital_status Widowed instead of Divorced", "x: <mark>marital_status Widowed instead of Divorced</mark>"),
        ("x; with marital status Widowed: y", "x; with <mark>marital status</mark> Widowed: y"),
        ("a < b", "a &lt; b <mark><bdi>marital_status</bdi> <bdi>Divorced</bdi> → <bdi>Widowed</bdi></mark>"),
    ):  # fmt: skip
        assert marked({"sentence": sentence, "changed": [change]}) == expected
    both = [{"attribute": "sex", "from": "F", "to": "M"}, {"attribute": "age", "from": 3, "to": 4}]
    assert marked({"sentence": "with sex M instead of F and age 4 instead of 3: y", "changed": both}) == (
        "with <mark>sex M instead of F</mark> and <mark>age 4 instead of 3</mark>: y"
    )


def evil(value: Any) -> Any:
    """The same summary with markup in every word and every name."""
    if isinstance(value, dict):
        return {(evil(key) if key in summaries.PEOPLE else key): evil(item) for key, item in value.items()}
    if isinstance(value, list):
        return [evil(item) for item in value]
    return EVIL + value if isinstance(value, str) else value


def test_words_of_the_user_stay_words():
    made = evil(summaries.summary(["sex"], ["race"], findings=20))
    page = audit_page(made)
    parsed = Page(page)
    assert not parsed.all("img")
    assert page.count("</script>") == page.count("<script")
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
    people = [json.loads(data) for data in parsed.data if data.startswith('{"columns"')]
    assert people[0]["columns"] == [EVIL + attribute for attribute in summaries.PEOPLE]
    assert list(made["attributes"][0]["findings"][3]["row"].values()) == people[0]["rows"][3]


def test_what_a_page_cannot_hold_or_would_hide_is_written_out():
    assert escape("a\x00b\ud800c\x1bd\u202e<e") == "a\\u0000b\\ud800c\\u001bd\\u202e&lt;e"
    made = summaries.nothing_found()
    made["data"]["name"] = "\ud800\x00"
    audit_page(made).encode()
    assert embedded({"a": "</script>\u2028"}, "x").count("<") == 2


def test_unknown_figures_are_called_so():
    for value in (None, math.nan, math.inf):
        assert {share(value), number(value), times(value), duration(value)} == {"not known"}
    made = summaries.summary(findings=3)
    for person in made["attributes"][0]["findings"]:
        person |= {"gap": math.nan, "score": None}
        person["row"]["age"] = math.nan
    (data,) = [data for data in read(made).data if data.startswith('{"columns"')]
    assert json.loads(data, parse_constant=pytest.fail)["rows"][0][0] is None


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    own = [at] if at and isinstance(at[-1], str) else []
    return own + [path for key, item in items for path in paths(item, (*at, key))]


def test_every_value_may_be_unknown():
    assert complete({"a": None, "rate": None}) == complete({}) == {}
    whole = summaries.summary(findings=2)
    whole["attributes"][0]["worst"] = whole["attributes"][0]["worst"][:1]
    wrong = []
    for path in paths(whole):
        made = copy.deepcopy(whole)
        place = made
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = None
        try:
            said = re.search("None", re.sub("<(style|script).*?</\\1>", "", audit_page(made), flags=re.DOTALL))
        except Exception as error:
            said = error
        if said:
            wrong.append(f"{path}: {said!r}")
    assert not wrong, "\n".join(wrong)


def test_a_black_box_in_which_nobody_was_found():
    parsed = read(summaries.nothing_found())
    assert "Nothing found" in parsed.text
    assert "The model is a black box here" in parsed.text
    assert "no proof that there is nobody" in parsed.text
    assert "none of them was decided otherwise" in parsed.text
    assert not [table for table in parsed.all("table") if table.get("class") == "findings"]
    assert not parsed.all("mark")


def test_an_audit_stopped_before_its_searches_claims_nothing():
    made = summaries.nothing_found()
    made["attributes"][0] |= {"searches": [], "rate": {"valid": None, "data": None}}
    text = read(made).text
    assert "Nobody was found" in made["verdict"]["text"]
    assert text.count("Nobody was found") == 1  # in the verdict only
    assert "no proof that there is nobody" not in text
    assert "No random search to compare with" in text


def test_an_interrupted_white_box_is_no_black_box_and_no_calm_verdict():
    made = summaries.summary()
    made["attributes"][0] |= dict.fromkeys(("interpretation", "severity", "coverage"))
    made["attributes"][0] |= {"searches": [], "worst": [], "findings": [], "rate": {"valid": None, "data": None}}
    made["verdict"] = {"level": "interrupted", "text": "Nothing was measured, so nothing can be said."}
    parsed = read(made)
    assert "The audit was interrupted before the layers were looked at" in parsed.text
    assert "black box" not in parsed.text
    assert "verdict calm" not in {header["class"] for header in parsed.all("header")}
    assert "◆ Interrupted" in parsed.text


def test_who_the_rules_were_learned_from_is_said():
    assert "learned from random valid people, joined by findings where few" in read(summaries.summary()).text


def test_a_finding_that_cannot_be_replayed_has_no_command():
    made = summaries.summary(findings=1)
    assert "neuronfair replay" in read(made).text
    for found in (*made["attributes"][0]["worst"], *made["attributes"][0]["findings"]):
        found["replay"] = None
    before = len(read(summaries.summary(findings=1)).all("code"))
    parsed = read(made)
    assert "neuronfair replay" not in parsed.text
    assert len(parsed.all("code")) < before


def test_three_classes_an_interruption_and_a_guessed_domain():
    made = summaries.summary(["race"], classes=("low", "middle", "high"))
    made["reproduction"]["interrupted"] = made["data"]["domain_inferred"] = True
    made["decision"] = {"kind": "threshold", "value": 0.5}
    text = read(made).text
    assert "income: low or middle or high" in text
    assert "the share decided high" in text
    assert "Interrupted." in text
    assert "Domain inferred." in text
    assert "threshold 0.5" in text


def test_one_attribute_needs_no_tabs_and_several_are_side_by_side():
    one, several = read(summaries.summary()), read(summaries.summary(["sex"], ["race"], ["sex", "race"]))
    assert not [nav for nav in one.all("nav") if nav.get("class") == "tabs"]
    assert "Side by side" not in one.text
    assert "Side by side" in several.text
    assert "Judged by sex and race, the strongest of all" in several.text
    assert [a["href"] for a in several.all("a")].count("#a2") == 2


def test_a_wide_table_stays_small():
    page = audit_page(summaries.summary(extra=127))
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
    style = audit_page(summaries.nothing_found())
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


def test_round_tops_and_known_numbers():
    assert top_of([0.0201], most=1) == pytest.approx(0.025)
    assert top_of([None, 0.95], most=1) == 1
    assert top_of([0, None]) == 1
    assert not known("1")


def test_a_document_runs_no_script_but_its_own():
    plain = document("T", "<p>x</p>", style="p { }")
    assert "<title>T</title>" in plain
    assert "<script" not in plain
