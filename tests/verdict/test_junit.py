from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from neuronfair.verdict.gate import check
from neuronfair.verdict.junit import junit
from tests.verdict.summaries import attribute, fair, pair, search, summary


def read(audit) -> ElementTree.Element:
    return ElementTree.fromstring(junit(audit))


def gated(*expressions, attributes, **more):
    audit = summary(*attributes, **more)
    return audit | {"gate": check(audit, expressions)}


def test_every_limit_is_a_test_in_the_suite_of_its_attribute():
    root = read(
        gated("rate > 0.01", "accuracy < 0.5", "race.findings > 0", attributes=[attribute("sex"), fair("race")])
    )
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


def test_a_failure_shows_the_worst_pair_and_how_to_see_it_again():
    (failure,) = read(gated("rate > 0.01", attributes=[attribute()])).iter("failure")
    assert "its upper end is above 1 %" in failure.get("message")
    assert "A person with age 39 is decided low; with sex M instead of F: high." in failure.text
    assert "neuronfair replay RUN/sex/frontier 17" in failure.text


def test_what_was_not_kept_has_no_line_to_see_it_again():
    (failure,) = read(gated("rate > 1%", attributes=[attribute(worst=[pair() | {"replay": None}])])).iter("failure")
    assert "See it again" not in failure.text
    assert "with sex M" in failure.text


def test_a_failed_corpus_shows_the_people():
    corpus = {"replayed": 2, "still_wrong": 1, "examples": ["age 39: decided low; with sex M: high"]}
    (failure,) = read(gated("corpus.still_wrong > 0", attributes=[], corpus=corpus)).iter("failure")
    assert "age 39: decided low; with sex M: high" in failure.text


def test_a_limit_may_fire_without_a_pair_to_show():
    (failure,) = read(gated("rate > 0", attributes=[fair()])).iter("failure")
    assert "Worst pair" not in failure.text


def test_without_limits_every_search_is_a_test():
    stopped = attribute("race", searches=[search("frontier", 0, None, stop="interrupted")])
    root = read(summary(attribute("sex"), fair("age"), stopped))
    assert [(s.get("name"), s.get("tests"), s.get("failures"), s.get("skipped")) for s in root] == [
        ("sex", "2", "2", "0"),
        ("age", "2", "0", "0"),
        ("race", "1", "0", "1"),
    ]
    first = next(root.iter("testcase"))
    assert (first.get("name"), first.get("classname"), first.get("time")) == (
        "search by frontier",
        "neuronfair.sex",
        "1.500",
    )
    assert "80 people are decided otherwise" in first[0].get("message")


@given(st.text(max_size=20))
def test_any_name_gives_well_formed_xml(name):
    audit = summary(attribute(name), data={"name": name})
    root = read(audit)
    assert int(root.get("failures")) == 2


def test_control_characters_are_written_out():
    name = "a\x1b[31m\n\u202e\ud800"
    audit = gated("rate > 0.01", attributes=[attribute(name, worst=[pair(name)])])
    text = junit(audit)
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []
    shown = r"a\u001b[31m\u000a\u202e\ud800"
    (failure,) = ElementTree.fromstring(text).iter("failure")
    assert f"with {shown} M instead of F" in failure.text.splitlines()[1]
    assert ElementTree.fromstring(text)[0].get("name") == shown
