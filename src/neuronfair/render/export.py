"""Results for other programs: findings as CSV, Excel, Parquet or DataFrames, and audits as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from neuronfair.atomic import replace_file, write_text
from neuronfair.audits.gate.thresholds import REGRESSION_SET
from neuronfair.audits.report import AuditIndex, Gate, GateCheck, Report
from neuronfair.audits.report.attribute import AttributeReport
from neuronfair.audits.wording.phrases import class_names, leading_scores
from neuronfair.audits.wording.summary import described
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, NeuronFairError, RunError, require
from neuronfair.formatting import plural, printable
from neuronfair.measure.rate import find_favourable_class
from neuronfair.model.decision import Decision, Scale, find_probabilities
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.findings import Findings
from neuronfair.store.ledger import MANIFEST, load_manifest
from neuronfair.store.run import Run
from neuronfair.store.tables import TWIN, values

FORMATS = (".csv", ".xlsx", ".parquet")
SHEET = (1_048_576, 16_384)  # rows and columns that a sheet of Excel holds
AT_ONCE = 65_536  # findings that are turned into words at a time
FIRST = ("sensitive", "method", "number")
LAST = (
    "decision",
    "twin_decision",
    "outcome",
    "probability",
    "twin_probability",
    "score",
    "twin_score",
    "gap",
    "plausibility",
)
_FORMULA, _NUMBER = re.compile(r"\s*[=+\-@\t\r\n＝＋－＠]"), re.compile(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")


def export_findings(folder: Path, out: Path) -> int:
    """Write everything that an audit or a search found to a table, and return how many pairs these are.

    `out` ends in .csv, .xlsx or .parquet. A line holds the person's attributes, the twin's where they may differ, both
    decisions, how probable one class is for both, the scores, and how usual the person is. In CSV and Excel a text
    that a spreadsheet would take for a formula begins with an apostrophe.
    """
    if out.suffix.lower() == ".xlsx":
        require("openpyxl", "excel", "writing .xlsx", NeuronFairError)
    runs = runs_in(folder)
    count = sum(int(line["findings"]) for run in runs for lines in run.journal.parts.values() for line in lines)
    twins = twin_names([run.domain for run in runs])
    names = headings(runs[0].domain.names, twins)
    if out.suffix.lower() == ".xlsx" and (count >= SHEET[0] or len(names) > SHEET[1]):
        raise DataError(
            f"{out}: {plural(count, 'finding')} in {len(names):,} columns do not fit into a sheet of Excel, which "
            f"holds {SHEET[0] - 1:,} below its heading and {SHEET[1]:,} columns. Choose .csv or .parquet"
        )
    parts = (part for run in runs for part in _parts(run, twins, names))
    writers: dict[str, Callable[[Path, Iterator[pa.Table]], None]] = {
        ".csv": _csv,
        ".xlsx": _xlsx,
        ".parquet": _parquet,
    }
    with replace_file(out.resolve()) as temporary:
        writers[out.suffix.lower()](temporary, parts)
    return count


def save_as(path: str | Path, forms: Mapping[str, Callable[[], str]]) -> Path:
    """Write a result in the form that the ending of a name stands for, and return the path."""
    path = Path(path)
    form = forms.get(path.suffix.lower())
    if form is None:
        raise DataError(f"{path}: expected a name that ends in {', '.join(forms)}")
    try:
        write_text(path.resolve(), form())
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def runs_in(folder: Path) -> list[Run]:
    """Return the searches of an audit, or the one that a folder is."""
    try:
        is_audit = "audit" in load_manifest(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder}: is not the folder of an audit or of a search: it has no {MANIFEST}") from None
    places = sorted(path.parent for path in folder.glob(f"*/*/{MANIFEST}")) if is_audit else [folder]
    runs = [Run.open(place) for place in places]
    if not runs:
        raise RunError(f"{folder}: this audit has no search of a table yet, so there is nothing to export")
    if len({run.domain.fingerprint for run in runs}) > 1:
        raise RunError(f"{folder}: its searches are about different domains, so they make no one table")
    return runs


def neutral(text: str) -> str:
    r"""Return a text that no spreadsheet takes for a formula: with an apostrophe before it; numbers stay as they are.

    >>> [neutral(text) for text in ("=1+1", "-3.5", "@x", "a=b")]
    ["'=1+1", '-3.5', "'@x", 'a=b']
    """
    shown = printable(text)
    return f"'{shown}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else shown


def twin_names(domains: Iterable[TableDomain]) -> list[str]:
    """Return the attributes in which a twin may differ in one of several searches."""
    return list(dict.fromkeys(domain.names[column] for domain in domains for column in domain.twin_columns))


def headings(attributes: Sequence[str], twins: Sequence[str]) -> list[str]:
    """Return the heading of every column; one of ours that an attribute has already gets a line behind it."""
    taken = set(attributes)
    ours = []
    for name in (*FIRST, *(TWIN.format(name) for name in twins), *LAST):
        while name in taken:
            name += "_"
        taken.add(name)
        ours.append(name)
    return [*ours[: len(FIRST)], *attributes, *ours[len(FIRST) :]]


def _parts(run: Run, twins: Sequence[str], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the findings of a run as tables; without findings one empty table, for its headings."""
    config, findings = run.manifest["plan"], run.findings()
    decision, method = Decision(**config["decision"]), str(config.get("method", ""))
    scale = findings.scale(decision, config.get("scale"))
    for start in range(0, max(1, len(findings)), AT_ONCE):
        part = findings[start : start + AT_ONCE]
        yield pa.table(columns(run.domain, decision, method, part, scale, twins, start), names=list(names))


def columns(
    domain: TableDomain,
    decision: Decision,
    method: str,
    found: Findings,
    scale: Scale,
    twins: Sequence[str],
    first: int = 0,
) -> list[pa.Array]:
    """Return findings as the columns that `headings` names; the first of them has the number `first`."""
    count, outputs = len(found), found.scores.shape[1]
    people, others = found.rows.cpu(), found.twins(domain).cpu()
    said = class_names(domain, decision, outputs)
    scores, twin_scores = found.scores.double().cpu(), found.twin_scores.double().cpu()
    likely = find_probabilities(decision, scale, scores, twin_scores, find_favourable_class(domain, decision, outputs))
    nothing = pa.nulls(count, pa.float64())

    def classes(numbers: torch.Tensor | None) -> pa.Array:
        if numbers is None or not said:
            return pa.nulls(count, pa.string())
        codes = pa.array(numbers.to(torch.int32).numpy())
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(said), pa.string()))

    chosen = [decision.decide(one) if said else None for one in (scores, twin_scores)]
    return [
        *(pa.array([text] * count, pa.string()) for text in ("+".join(domain.sensitive), method)),
        pa.array(range(first, first + count), pa.int64()),
        *(values(attribute, people[:, i]) for i, attribute in enumerate(domain.attributes)),
        *(values(domain.attributes[c], others[:, c]) for c in map(domain.column, twins)),
        *map(classes, chosen),
        classes(None if likely is None else likely.label),
        *([nothing, nothing] if likely is None else (pa.array(p.numpy()) for p in (likely.row, likely.twin))),
        *(pa.array(score.numpy()) for score in leading_scores(decision, scores, twin_scores)),
        pa.array(decision.gap(scores, twin_scores).numpy()),
        pa.array(found.plausibility.double().cpu().numpy(), from_pandas=True),  # an empty cell: not known
    ]


def _shown(table: pa.Table) -> pa.Table:
    """Return a table whose words, headings too, no spreadsheet takes for formulas."""
    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            one = column.combine_chunks()
            coded = one if pa.types.is_dictionary(one.type) else one.dictionary_encode()
            said = pa.array([None if t is None else neutral(t) for t in coded.dictionary.to_pylist()], pa.string())
            column = pa.DictionaryArray.from_arrays(coded.indices, said).cast(pa.string())
        columns.append(column)
    return pa.table(columns, names=[neutral(name) for name in table.column_names])


def plain(table: pa.Table) -> pa.Table:
    """Return a table with texts in the place of codes: every part of a file has one type then."""
    kinds = (pa.string() if pa.types.is_dictionary(field.type) else field.type for field in table.schema)
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _csv(path: Path, parts: Iterator[pa.Table]) -> None:
    first = _shown(next(parts))
    with pa.csv.CSVWriter(str(path), first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(_shown(part))


def _parquet(path: Path, parts: Iterator[pa.Table]) -> None:
    first = plain(next(parts))
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(plain(part))


def _xlsx(path: Path, parts: Iterator[pa.Table]) -> None:
    from openpyxl import Workbook

    book: Any = Workbook(write_only=True)
    sheet = book.create_sheet("findings")
    sheet.freeze_panes = "A2"
    for i, part in enumerate(map(_shown, parts)):
        if i == 0:
            sheet.append(part.column_names)
        for row in zip(*(column.to_pylist() for column in part.columns), strict=True):
            sheet.append(row)
    book.save(path)


def findings_frame(outcomes: Mapping[tuple[str, str], SearchResult]) -> Any:
    """Return all findings, a line each, with the columns of an exported table.

    A record that two methods found has two lines.
    """
    pandas, every = _pandas(), list(outcomes.values())
    if not every:
        return pandas.DataFrame()
    twins = twin_names(one.domain for one in every)
    names = headings(every[0].domain.names, twins)
    tables = []
    for one in every:
        decision, found = one.config.decision, one.findings
        scale = found.scale(decision, one.config.scale)
        cells = columns(one.domain, decision, one.config.method, found, scale, twins)
        tables.append(plain(pa.table(cells, names=names)))
    return pa.concat_tables(tables).to_pandas()


def groups_frame(report: Report) -> Any:
    """Return the metrics of demographic groups (kind "group") and of subgroups with frequent flips ("subgroup")."""
    lines = []
    for one in report.attributes:
        for group in one.groups:
            figures = asdict(group)
            lines.append({"attribute": one.name, "kind": "group", "who": figures.pop("values"), **figures})
        for part in one.subgroups:
            figures = {"people": part.people, "findings": part.findings, "lift": part.lift}
            figures |= {"rate": part.rate.rate, "low": part.rate.low, "high": part.rate.high}
            lines.append({"attribute": one.name, "kind": "subgroup", "who": part.text, **figures})
    return _pandas().DataFrame(lines)


def rates_frame(report: Report) -> Any:
    """Return the flip rates with their confidence intervals: a line for each attribute and population."""
    lines = [
        {
            "attribute": one.name,
            "population": rate.population,
            "flip_rate": rate.rate,
            "low": rate.low,
            "high": rate.high,
            "confidence": rate.confidence,
            "records": rate.of,
        }
        for one in report.attributes
        for rate in one.rates.measured
    ]
    return _pandas().DataFrame(lines)


def _pandas() -> Any:
    return require("pandas", "sklearn", "a DataFrame", NeuronFairError)


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
            ElementTree.SubElement(case, "error", message=printable(line.error or line.state), type=line.state)
            suites[line.name] = [case]
        else:
            for suite, cases in _suites(reports[line.name]).items():
                suites[f"{line.name}: {suite}"] = cases
                for case in cases:
                    case.set("classname", f"neuronfair.{printable(line.name)}.{printable(suite)}")
    return _document(f"neuronfair audits of {index.file}", suites)


def junit_of_texts(name: str, attribute: str, gate: Gate | None, lines: Sequence[str], unknown: str = "") -> str:
    """Return an audit of texts as JUnit XML: a test per threshold, or one test where none was set.

    `lines` say what was found, and `unknown` why thresholds that were set could not be evaluated, which is an error.
    """
    if gate is not None:
        return _document(f"neuronfair audit of {name}", _checked(gate, lambda _: lines))
    case = _case(attribute, "assessable" if unknown else "no threshold set")
    if unknown:
        ElementTree.SubElement(case, "error", message=printable(unknown), type="not evaluated")
    else:
        ElementTree.SubElement(case, "system-out").text = "\n".join(map(printable, lines))
    return _document(f"neuronfair audit of {name}", {attribute: [case]})


def _document(name: str, suites: Mapping[str, Sequence[ElementTree.Element]]) -> str:
    root = ElementTree.Element("testsuites", name=printable(name))
    for suite_name, cases in suites.items():
        suite = ElementTree.SubElement(root, "testsuite", name=printable(suite_name))
        suite.extend(cases)
        _count(suite)
    _count(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suites(report: Report) -> dict[str, list[ElementTree.Element]]:
    suites: dict[str, list[ElementTree.Element]] = {}
    attributes = {attribute.name: attribute for attribute in report.attributes}
    if report.gate is None:
        if report.verdict.thresholds == "not evaluated" or report.fails_encoding_check:
            case = _case(WHOLE, "assessable")
            message = printable(f"{report.verdict.headline} {report.verdict.threshold_text}")
            ElementTree.SubElement(case, "error", message=message, type="not evaluated")
            suites[WHOLE] = [case]
        return suites | {name: [_without_thresholds(attribute)] for name, attribute in attributes.items()}

    def details(check: GateCheck) -> Sequence[str]:
        past = report.regression_set if check.figure in REGRESSION_SET else None
        examples = () if past is None else past.examples
        return _worst(attributes[check.attribute]) if check.attribute else examples

    return _checked(report.gate, details)


def _checked(gate: Gate, details: Callable[[GateCheck], Sequence[str]]) -> dict[str, list[ElementTree.Element]]:
    """Return a test for each threshold; one that failed says why, with details."""
    suites: dict[str, list[ElementTree.Element]] = {}
    for check in gate.checks:
        suite = check.attribute or WHOLE
        case = _case(suite, check.expression)
        if check.fired:
            _fail(case, check.explained, details(check))
        suites.setdefault(suite, []).append(case)
    return suites


def _without_thresholds(attribute: AttributeReport) -> ElementTree.Element:
    """Return a test that passes, and says what was found; one that is skipped where nothing could be assessed."""
    case = _case(attribute.name, "no threshold set", sum(search.seconds for search in attribute.searches))
    if attribute.level == "not assessable":
        ElementTree.SubElement(case, "skipped", message=printable(attribute.level))
    sentences = [f"{attribute.level.capitalize()}. {attribute.headline}", *_worst(attribute)]
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(printable, sentences))
    return case


def _case(suite: str, name: str, seconds: float = 0.0) -> ElementTree.Element:
    places = {"classname": f"neuronfair.{printable(suite)}", "name": printable(name), "time": f"{seconds:.3f}"}
    return ElementTree.Element("testcase", places)


def _fail(case: ElementTree.Element, message: str, details: Sequence[str]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=printable(message), type="threshold")
    failure.text = "\n".join(map(printable, (message, *details)))


def _worst(attribute: AttributeReport) -> list[str]:
    if not attribute.worst:
        return []
    worst = attribute.worst[0]
    return [f"Worst pair, {described(worst)}", *([f"Show it again: {worst.replay}"] if worst.replay else [])]


def _count(suite: ElementTree.Element) -> None:
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
