"""An audit as JUnit XML, which build servers show as tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from neuronfair.audits.report.attribute import AttributeReport
from neuronfair.audits.report.report import AuditIndex, Report
from neuronfair.audits.wording.summary import described
from neuronfair.formatting import visible

WHOLE = "audit"  # the suite of checks that belong to no attribute


def junit(report: Report) -> str:
    """Return an audit as JUnit XML: a suite per attribute, in it a test per threshold, or one test where none was set.

    Only a threshold that failed is a failure, so that the file says what the exit status says; a failed input encoding
    check, and thresholds that could not be evaluated, are an error. Without thresholds each attribute is a test that
    passes and says what was found. A failure shows the worst pair in words and how to see it again. Control characters,
    most of which XML cannot hold, are written out.
    """
    return _document(f"neuronfair audit of {report.data.name}", _suites(report))


def junit_of_all(index: AuditIndex, reports: Mapping[str, Report]) -> str:
    """Return many audits as JUnit XML: the suites of each, behind its name; an audit that ended early is an error."""
    suites = dict[str, list[ElementTree.Element]]()
    for line in index.audits:
        if line.state in ("error", "not finished"):
            case = _case(line.name, WHOLE)
            ElementTree.SubElement(case, "error", message=visible(line.error or line.state), type=line.state)
            suites[line.name] = [case]
        else:
            for suite, cases in _suites(reports[line.name]).items():
                suites[f"{line.name}: {suite}"] = cases
                for case in cases:
                    case.set("classname", f"neuronfair.{visible(line.name)}.{visible(suite)}")
    return _document(f"neuronfair audits of {index.file}", suites)


def _document(name: str, suites: Mapping[str, Sequence[ElementTree.Element]]) -> str:
    root = ElementTree.Element("testsuites", name=visible(name))
    for suite_name, cases in suites.items():
        suite = ElementTree.SubElement(root, "testsuite", name=visible(suite_name))
        suite.extend(cases)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suites(report: Report) -> dict[str, list[ElementTree.Element]]:
    suites: dict[str, list[ElementTree.Element]] = {}
    attributes = {attribute.name: attribute for attribute in report.attributes}
    if report.gate is None:
        if report.verdict.thresholds == "not evaluated" or report.is_misfed:
            case = _case(WHOLE, "assessable")
            message = visible(f"{report.verdict.headline} {report.verdict.threshold_text}")
            ElementTree.SubElement(case, "error", message=message, type="not evaluated")
            suites[WHOLE] = [case]
        return suites | {name: [_without_thresholds(attribute)] for name, attribute in attributes.items()}
    for check in report.gate.checks:
        suite = check.attribute or WHOLE
        case = _case(suite, check.expression)
        if check.fired:
            examples = report.corpus.examples if report.corpus is not None else ()
            _fail(case, check.explained, _worst(attributes[suite]) if check.attribute else examples)
        suites.setdefault(suite, []).append(case)
    return suites


def _without_thresholds(attribute: AttributeReport) -> ElementTree.Element:
    """Return a test that passes, and says what was found; one that is skipped where nothing could be assessed."""
    case = _case(attribute.name, "no threshold set", sum(search.seconds for search in attribute.searches))
    if attribute.level == "not assessable":
        ElementTree.SubElement(case, "skipped", message=visible(attribute.level))
    told = [f"{attribute.level.capitalize()}. {attribute.headline}", *_worst(attribute)]
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(visible, told))
    return case


def _case(suite: str, name: str, seconds: float = 0.0) -> ElementTree.Element:
    places = {"classname": f"neuronfair.{visible(suite)}", "name": visible(name), "time": f"{seconds:.3f}"}
    return ElementTree.Element("testcase", places)


def _fail(case: ElementTree.Element, message: str, details: Sequence[str]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=visible(message), type="threshold")
    failure.text = "\n".join(map(visible, (message, *details)))


def _worst(attribute: AttributeReport) -> list[str]:
    if not attribute.worst:
        return []
    worst = attribute.worst[0]
    return [
        f"Worst pair: {described(worst)}",
        *([f"Show it again: {worst.replay}"] if worst.replay else []),
    ]


def _count(suite: ElementTree.Element) -> None:
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
