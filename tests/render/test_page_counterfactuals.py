"""CounterfactualTwins on the page: what it says of them, where that stands, and where things lie in the charts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from neuronfair.audits.report.attribute import Change, CounterfactualPerson
from neuronfair.formatting import percent
from neuronfair.render.page import render_audit, round_largest_move
from tests import reports
from tests.render.test_page import Page, evil, read

RACES = ("White", "Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other")


@pytest.fixture(scope="module")
def unread() -> Page:
    return read(reports.unread(reports.adult(findings=3), reports.counterfactual()))


def sections(page: Page) -> list[str]:
    return [attributes["id"] for tag, attributes in page.tags if tag == "section" and "id" in attributes]


def svgs(page: Page, kind: str) -> list[str]:
    return [svg["aria-label"] for svg in page.all("svg") if svg.get("class") == kind]


def test_they_come_first_where_the_model_does_not_read_the_attribute(unread):
    ids = sections(unread)
    assert ids.index("a0-counterfactuals") < ids.index("a0-worst")
    assert not {"a0-proved", "a0-rate"} & set(ids)
    assert unread.text.count("The model does not read it.") == 2  # a note of the audit, and why no flip rate is shown


def test_they_are_folded_where_the_model_reads_the_attribute():
    made = reports.with_first(reports.adult(findings=3), counterfactual=reports.counterfactual(lost=None))
    page = read(made)
    ids = sections(page)
    assert ids.index("a0-worst") < ids.index("a0-rate") < ids.index("a0-counterfactuals")
    assert "The twin is the same in everything else." in page.text


def test_what_they_say_is_on_the_page(unread):
    for words in (
        "Had they been of the other group, 19% of 20,000 people", "Men as women lose '>50K' in 17.1% of cases.",
        "20,000 people, 32 twins each in every other group;", "(20 times)",
        "Male as Female 20,000 people", "lose 17.1%, gain 1.3% baseline 1.8%, 1%",
        "81% of the effect goes through relationship and marital status.", "with an AUC of 0.93",
        "relationship 58%", "marital_status 81%", "Twins keep age: held fixed.",
        "Twins keep hours per week, since it is resolving.", "Other have too few people",
        "What else differs goes with the group.", "(people whose counterfactual twin gets a different decision)",
        "This rests on causal assumptions that the data cannot test.",
    ):  # fmt: skip
        assert words in unread.text, words
    assert [a["href"] for a in unread.all("a")].count("#counterfactuals") == 1
    assert "counterfactuals" in [attributes.get("id") for _, attributes in unread.tags]


def test_each_chart_says_in_words_what_it_shows(unread):
    one = f"Male as Female: {percent(0.171)} lose >50K, {percent(0.013)} gain it"
    assert svgs(unread, "move")[0].startswith(one)
    (first,) = svgs(unread, "beside")
    assert first == (
        "Different decision 19.0% (18.1–19.9%); Permutation baseline 0.030% (0–0.070%); Excess 19.0 pp (18.1–19.9)"
    )


def test_lost_lies_left_and_gained_right_of_the_middle(unread):
    """The largest share is 17.1%, so either half holds 20%."""
    places = [(r["class"], r.get("x"), r["width"]) for r in unread.all("rect") if r.get("class") in ("fair", "unfair")]
    assert places[:4] == [
        ("unfair", "7.25%", "42.75%"), ("fair", "50%", "3.25%"),
        ("unfair", "48.50%", "1.50%"), ("fair", "50%", "20.00%"),
    ]  # fmt: skip
    marks = [line["x1"] for line in unread.all("line") if line.get("class") == "mark"]
    assert marks[:2] == ["45.50%", "52.50%"]
    assert dots(unread) == [("dot", "95.00%"), ("dot faint", "0.15%"), ("dot", "94.85%")]


def test_nothing_is_claimed_that_the_permutation_baseline_reaches():
    page = read(reports.unread(reports.adult(findings=0), reports.counterfactual(claimed=False)))
    assert "This may be chance" in page.text
    assert "relationship 58" not in page.text
    assert "with an AUC of 0.93" in page.text
    assert "0.3 pp (−0.9 to 1.5)" in page.text
    assert [kind for kind, _ in dots(page)] == ["dot", "dot faint", "dot faint"]


def dots(page: Page) -> list[tuple[str, str | None]]:
    """The dots of the chart of the excess."""
    found = [(dot["class"].strip(), dot["cx"]) for dot in page.all("circle") if "cy" in dot and "em" in dot["cy"]]
    return [dot for dot in found if "dot" in dot[0]]


def test_without_a_favourable_class_flips_are_shown_and_it_is_asked_for():
    made = reports.unread(reports.adult(findings=0), reports.counterfactual(lost=None, gained=None))
    page = read(replace(made, data=replace(made.data, favourable=None)))
    assert svgs(page, "move") == []
    assert "Male as Female 20% 20,000 people" in page.text
    assert page.text.count("Set the favourable outcome in the input schema") == 1


def test_many_groups_are_folded_and_the_clearest_come_first():
    page = read(reports.unread(reports.adult(("race",), findings=0), reports.counterfactual(RACES)))
    assert len(svgs(page, "move")) == 20
    assert "12 more moves" in page.text
    assert svgs(page, "move")[0].startswith("White as Black")
    many = reports.counterfactual([f"group {i}" for i in range(9)])
    text = read(reports.unread(reports.adult(("race",), findings=0), many)).text
    assert "32 more moves" in text
    assert "audit.json has all 72" in text


def test_several_attributes_stand_side_by_side():
    made = reports.adult(("sex",), ("race",), ("sex", "race"), findings=0)
    weak = replace(reports.counterfactual(claimed=False), disadvantaged="")
    text = read(reports.unread(made, weak, reports.counterfactual(RACES), weak)).text
    assert "Metrics by race the attribute with the highest flip rate" in text
    assert "19.0 pp 18.1–19.9 pp" in text
    assert "this may be chance" not in text.partition("What to do next")[0]


def test_people_stand_beside_their_counterfactuals():
    person = reports.finding(
        changed=(Change("relationship", "Wife", "Husband"), Change("sex", "F", "M")), number=4, method="table"
    )
    made = reports.unread(reports.adult(findings=0), reports.counterfactual())
    page = read(reports.with_first(made, counterfactual_people=(CounterfactualPerson(person, 0.9375),)))
    assert "93.8% of this person’s twins get a different decision." in page.text
    assert "record 5 of the data set" in page.text
    assert "relationship Husbandsex M" in page.text
    assert "People and their twins" in page.text


def test_names_stay_names_and_headings_in_order():
    made = reports.unread(evil(reports.adult(findings=2)), evil(reports.counterfactual()))
    page = read(made)
    assert not page.all("img")
    assert not any("onerror" in attributes for _, attributes in page.tags)
    levels = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {a["href"][1:] for a in page.all("a")} <= set(ids)


def test_without_counterfactuals_nothing_is_said_of_them():
    page = render_audit(reports.adult(findings=3))
    assert "of another group" not in page
    assert "#counterfactuals" not in page
    assert "Whether another attribute stands in" not in page


def test_the_scale_holds_the_permutation_baseline():
    (move, _) = reports.counterfactual().moves
    assert round_largest_move([replace(move, lost=0.01, gained=0.0, permutation_lost=0.021)]) == pytest.approx(0.03)
    assert (
        round_largest_move([replace(move, lost=0.0, gained=0.0, permutation_lost=None, permutation_gained=None)]) == 1
    )
