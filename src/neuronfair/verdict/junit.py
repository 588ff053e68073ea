"""An audit as JUnit XML, which build servers show as tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from neuronfair.shown import visible

WHOLE = "audit"  # the suite of checks that belong to no attribute


def junit(summary: Mapping[str, Any]) -> str:
    """Return an audit as JUnit XML: a suite per attribute, in it a test per limit, or per search where none was set.

    A limit fails if it fired, a search if it found anybody. A failure shows the worst pair in words and how to see it
    again. Control characters, most of which XML cannot hold, are written out.
    """
    root = ElementTree.Element("testsuites", name=f"neuronfair audit of {visible(summary['data']['name'])}")
    for name, cases in _suites(summary).items():
        suite = ElementTree.SubElement(root, "testsuite", name=visible(name))
        suite.extend(cases)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suites(summary: Mapping[str, Any]) -> dict[str, list[ElementTree.Element]]:
    suites: dict[str, list[ElementTree.Element]] = {}
    attributes = {attribute["name"]: attribute for attribute in summary["attributes"]}
    if summary["gate"] is None:
        return {name: list(_searches(attribute)) for name, attribute in attributes.items()}
    for check in summary["gate"]["checks"]:
        name = check["attribute"]
        case = _case(name or WHOLE, check["expression"])
        if check["fired"]:
            details = _worst(attributes[name]) if name else _corpus(summary)
            _fail(case, check["text"], details)
        suites.setdefault(name or WHOLE, []).append(case)
    return suites


def _searches(attribute: Mapping[str, Any]) -> Iterator[ElementTree.Element]:
    for search in attribute["searches"]:
        case = _case(attribute["name"], f"search by {search['method']}", search["seconds"])
        if search["findings"]:
            message = f"{search['findings']:,} people are decided otherwise when only {attribute['name']} changes"
            _fail(case, message, _worst(attribute))
        elif "interrupted" in str(search["stop"]):
            ElementTree.SubElement(case, "skipped", message="interrupted before anybody was found")
        yield case


def _case(suite: str, name: str, seconds: float | None = None) -> ElementTree.Element:
    places = {"classname": f"neuronfair.{visible(suite)}", "name": visible(name), "time": f"{seconds or 0:.3f}"}
    return ElementTree.Element("testcase", places)


def _fail(case: ElementTree.Element, message: str, details: Sequence[str]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=visible(message), type="discrimination")
    failure.text = "\n".join(map(visible, (message, *details)))


def _worst(attribute: Mapping[str, Any]) -> list[str]:
    if not attribute["worst"]:
        return []
    worst = attribute["worst"][0]
    again = [f"See it again: {worst['replay']}"] if worst["replay"] else []
    return [f"Worst pair: {worst['sentence']}", *again]


def _corpus(summary: Mapping[str, Any]) -> list[str]:
    return list((summary["corpus"] or {}).get("examples", ()))


def _count(suite: ElementTree.Element) -> None:
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", "0")
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
