"""An audit as JUnit XML, which build servers show as tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from xml.etree import ElementTree

from neuronfair.shown import visible
from neuronfair.verdict.entries import AttributeReport
from neuronfair.verdict.index import Index
from neuronfair.verdict.report import Report
from neuronfair.words import listed, percent

WHOLE = "audit"  # the suite of checks that belong to no attribute


def junit(report: Report) -> str:
    """Return an audit as JUnit XML: a suite per attribute, in it a test per limit, or per search where none was set.

    A limit fails if it fired, a search for flips if it found anybody, counterparts if an effect is claimed, and a test
    of its own comes first if the model seems to be wrongly fed. A failure shows the worst pair in words and how to
    see it again. Control characters, most of which XML cannot hold, are written out.
    """
    return _document(f"neuronfair audit of {report.data.name}", _suites(report))


def junit_of_all(index: Index, reports: Mapping[str, Report]) -> str:
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
    if report.feeding is not None and report.feeding.level == "wrong":
        case = _case(WHOLE, "the model is fed what it was trained on")
        _fail(case, report.feeding.text, (), "feeding")
        suites[WHOLE] = [case]
    if report.gate is None:
        return suites | {
            name: [*_counterparts(attribute), *_searches(attribute)] for name, attribute in attributes.items()
        }
    for check in report.gate.checks:
        suite = check.attribute or WHOLE
        case = _case(suite, check.expression)
        if check.fired:
            examples = report.corpus.examples if report.corpus is not None else ()
            _fail(case, check.text, _worst(attributes[suite]) if check.attribute else examples)
        suites.setdefault(suite, []).append(case)
    return suites


def _counterparts(attribute: AttributeReport) -> Iterator[ElementTree.Element]:
    report = attribute.counterpart
    if report is not None:
        case = _case(attribute.name, "counterparts")
        if report.claimed:
            shown = _worst(attribute) if attribute.search_twins == "counterpart" else []
            _fail(case, report.sentence, [*report.sentences[1:], *shown])
        yield case


def _searches(attribute: AttributeReport) -> Iterator[ElementTree.Element]:
    by_flips = attribute.search_twins == "flip"  # else what is found is judged with the effect
    for search in attribute.searches:
        case = _case(attribute.name, f"search by {search.method}", search.seconds)
        if search.findings and by_flips:
            shares = [f"{percent(rate.rate)} of {rate.people}" for rate in attribute.rates.measured]
            flips = f"The decision flips with {listed(attribute.sensitive)} alone"
            whose = f" for {listed(shares)}" if shares else ""
            _fail(case, f"{flips}{whose}; {search.findings:,} people found", _worst(attribute))
        elif "interrupted" in search.stop:
            ElementTree.SubElement(case, "skipped", message="interrupted before anybody was found")
        yield case


def _case(suite: str, name: str, seconds: float = 0.0) -> ElementTree.Element:
    places = {"classname": f"neuronfair.{visible(suite)}", "name": visible(name), "time": f"{seconds:.3f}"}
    return ElementTree.Element("testcase", places)


def _fail(case: ElementTree.Element, message: str, details: Sequence[str], kind: str = "discrimination") -> None:
    failure = ElementTree.SubElement(case, "failure", message=visible(message), type=kind)
    failure.text = "\n".join(map(visible, (message, *details)))


def _worst(attribute: AttributeReport) -> list[str]:
    if not attribute.worst:
        return []
    worst = attribute.worst[0]
    return [
        f"Worst pair: {worst.sentence} {worst.how_usual}".rstrip(),
        *([f"See it again: {worst.replay}"] if worst.replay else []),
    ]


def _count(suite: ElementTree.Element) -> None:
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
