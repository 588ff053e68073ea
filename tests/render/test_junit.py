from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from neuronfair.audits.report.attribute import Rates
from neuronfair.audits.report.report import EncodingCheckReport, Gate, GateCheck
from neuronfair.audits.wording.verdict import conclude
from neuronfair.render.junit import junit
from tests.reports import CORPUS, attribute, counterpart, fair, finding, report


def read(audit) -> ElementTree.Element:
    return ElementTree.fromstring(junit(audit))


def check(expression: str, name: str | None, *, fired: bool) -> GateCheck:
    return GateCheck(expression, name, 0.03, 0.02, 0.04, "upper end", fired, "its upper end is above 1%.")


def gated(*checks: GateCheck, attributes, **more):
    return report(*attributes, gate=Gate(not any(one.fired for one in checks), checks), **more)


def test_every_limit_is_a_test_in_the_suite_of_its_attribute():
    checks = (
        check("rate > 0.01", "sex", fired=True),
        check("rate > 0.01", "race", fired=False),
        check("accuracy < 0.5", None, fired=False),
        check("race.findings > 0", "race", fired=False),
    )
    root = read(gated(*checks, attributes=[attribute("sex"), fair("race")]))
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


FIRED = check("rate > 0.01", "sex", fired=True)


def test_a_failure_shows_the_worst_pair_and_how_to_see_it_again():
    (failure,) = read(gated(FIRED, attributes=[attribute()])).iter("failure")
    assert "its upper end is above 1%" in failure.get("message")
    assert "A person with age 39 is decided low; with sex M instead of F: high." in failure.text
    assert "neuronfair show RUN/sex/frontier 17" in failure.text


def test_what_was_not_kept_has_no_line_to_see_it_again():
    (failure,) = read(gated(FIRED, attributes=[attribute(worst=(finding(replay=None),))])).iter("failure")
    assert "Show it again" not in failure.text
    assert "with sex M" in failure.text


def test_a_failed_corpus_shows_the_people():
    limit = check("corpus.still_flips > 0", None, fired=True)
    (failure,) = read(gated(limit, attributes=[attribute()], corpus=CORPUS)).iter("failure")
    assert "age 39: decided low" in failure.text


def test_a_limit_may_fire_without_a_pair_to_show():
    (failure,) = read(gated(FIRED, attributes=[fair()])).iter("failure")
    assert "Worst pair" not in failure.text


def test_without_thresholds_nothing_fails_whatever_was_found():
    found = attribute("sex", counterpart=counterpart())
    root = read(conclude(report(found, fair("age"), fair("race", rates=Rates(), searches=()))))
    assert [(s.get("name"), s.get("tests"), s.get("failures"), s.get("skipped")) for s in root] == [
        ("sex", "1", "0", "0"),
        ("age", "1", "0", "0"),
        ("race", "1", "0", "1"),
    ]
    first = next(root.iter("testcase"))
    assert (first.get("name"), first.get("classname"), first.get("time")) == (
        "no threshold set",
        "neuronfair.sex",
        "3.000",
    )
    told = first.find("system-out").text
    assert told.startswith("Dependence found. Decisions depend on sex for 4% of people (2 of 50).")
    assert "Worst pair: A person with age 39" in told


def test_thresholds_that_were_not_evaluated_are_an_error_and_no_failure():
    wrong = EncodingCheckReport("wrong", "The encoding is probably wrong.", 50, accuracy=0.3)
    root = read(conclude(report(attribute(), feeding=wrong), thresholds_set=True))
    assert (root.get("failures"), root.get("errors"), root.get("skipped")) == ("0", "1", "1")
    assert "The encoding is probably wrong." in next(root.iter("error")).get("message")
    unset = read(conclude(report(attribute(), feeding=wrong)))
    assert (unset.get("failures"), unset.get("errors"), unset.get("skipped")) == ("0", "1", "1")  # exit status 2


@given(st.text(max_size=20))
def test_any_name_gives_well_formed_xml(name):
    audit = conclude(report(attribute(name), data=replace(report().data, name=name)))
    assert int(read(audit).get("tests")) == 1


def test_control_characters_are_written_out():
    name = "a\x1b[31m\n\u202e\ud800"
    text = junit(gated(check("rate > 0.01", name, fired=True), attributes=[attribute(name)]))
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []
    shown = r"a\u001b[31m\u000a\u202e\ud800"
    (failure,) = ElementTree.fromstring(text).iter("failure")
    assert f"with {shown} M instead of F" in failure.text.splitlines()[1]
    assert ElementTree.fromstring(text)[0].get("name") == shown
