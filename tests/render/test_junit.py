from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from neuronfair.render.junit import junit
from neuronfair.verdict.report import Check, Gate
from tests.reports import CORPUS, attribute, counterpart, fair, finding, report, search


def read(audit) -> ElementTree.Element:
    return ElementTree.fromstring(junit(audit))


def check(expression: str, name: str | None, *, fired: bool) -> Check:
    return Check(expression, name, 0.03, 0.02, 0.04, "upper end", fired, "its upper end is above 1 %.")


def gated(*checks: Check, attributes, **more):
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
    assert "its upper end is above 1 %" in failure.get("message")
    assert "A person with age 39 is decided low; with sex M instead of F: high." in failure.text
    assert "neuronfair replay RUN/sex/frontier 17" in failure.text


def test_what_was_not_kept_has_no_line_to_see_it_again():
    (failure,) = read(gated(FIRED, attributes=[attribute(worst=(finding(replay=None),))])).iter("failure")
    assert "See it again" not in failure.text
    assert "with sex M" in failure.text


def test_a_failed_corpus_shows_the_people():
    limit = check("corpus.still_flips > 0", None, fired=True)
    (failure,) = read(gated(limit, attributes=[attribute()], corpus=CORPUS)).iter("failure")
    assert "age 39: decided low" in failure.text


def test_a_limit_may_fire_without_a_pair_to_show():
    (failure,) = read(gated(FIRED, attributes=[fair()])).iter("failure")
    assert "Worst pair" not in failure.text


def test_without_limits_every_search_is_a_test():
    stopped = attribute("race", searches=(search("frontier", 0, None, stop="interrupted"),))
    root = read(report(attribute("sex"), fair("age"), stopped))
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
    assert first[0].get("message") == (
        "The decision flips with sex alone for 4 % of 50 rows of the table and 3 % of 10,000 people drawn uniformly "
        "from the domain; 80 people found"
    )


@given(st.text(max_size=20))
def test_any_name_gives_well_formed_xml(name):
    audit = report(attribute(name), data=replace(report().data, name=name))
    assert int(read(audit).get("failures")) == 2


def test_control_characters_are_written_out():
    name = "a\x1b[31m\n\u202e\ud800"
    text = junit(gated(check("rate > 0.01", name, fired=True), attributes=[attribute(name)]))
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []
    shown = r"a\u001b[31m\u000a\u202e\ud800"
    (failure,) = ElementTree.fromstring(text).iter("failure")
    assert f"with {shown} M instead of F" in failure.text.splitlines()[1]
    assert ElementTree.fromstring(text)[0].get("name") == shown


def test_counterparts_fail_where_an_effect_is_claimed():
    root = read(report(attribute(counterpart=counterpart()), fair("race", counterpart=counterpart(claimed=False))))
    cases = [case for case in root.iter("testcase") if case.get("name") == "counterparts"]
    failed, passed = cases
    assert passed.find("failure") is None
    told = failed.find("failure").text
    assert "Had they been of the other group" in told
    assert "Men as women lose" in told
    assert "Worst pair" not in told  # it is one of flips


def test_people_found_by_counterparts_alone_fail_no_search():
    """With shuffled groups there would be such people, too: the effect is judged."""
    found = attribute(counterpart=counterpart(), search_twins="counterpart")
    cases = {case.get("name"): case.find("failure") for case in read(report(found)).iter("testcase")}
    assert cases["search by frontier"] is None
    assert "Worst pair" in cases["counterparts"].text
