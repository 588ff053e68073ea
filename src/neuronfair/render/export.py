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
from neuronfair.audits.gate.thresholds import REGRESSION_METRICS
from neuronfair.audits.report import AuditIndex, Gate, GateCheck, Report
from neuronfair.audits.report.attribute import AttributeReport
from neuronfair.audits.wording.phrases import find_leads, list_class_names
from neuronfair.audits.wording.summary import describe_pair
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, NeuronFairError, RunError, require
from neuronfair.formatting import pluralise, printable
from neuronfair.measure.rate import find_favourable_class
from neuronfair.model.decision import Decision, Scale, find_probabilities
from neuronfair.searches.campaign import SearchResult
from neuronfair.searches.findings import Findings
from neuronfair.store.ledger import MANIFEST, load_manifest
from neuronfair.store.run import Run
from neuronfair.store.tables import TWIN, decode_codes

FORMATS = (".csv", ".xlsx", ".parquet")
EXCEL_LIMITS = (1_048_576, 16_384)  # rows and columns that a sheet of Excel holds
PART_ROWS = 65_536  # findings that are turned into words at a time
FIRST_HEADINGS = ("sensitive", "method", "number")
LAST_HEADINGS: tuple[str, ...] = ("decision", "twin_decision", "outcome", "probability", "twin_probability")
LAST_HEADINGS += ("score", "twin_score", "gap", "plausibility")
_FORMULA, _NUMBER = re.compile(r"\s*[=+\-@\t\r\n＝＋－＠]"), re.compile(r"[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?")


def export_findings(folder: Path, out: Path) -> int:
    """Write everything that an audit or a search found to a table, and return how many pairs these are.

    `out` ends in .csv, .xlsx or .parquet. A line holds the person's attributes, the twin's where they may differ, both
    decisions, how probable one class is for both, the scores, and how usual the person is. In CSV and Excel a text
    that a spreadsheet would take for a formula begins with an apostrophe.
    """
    if out.suffix.lower() == ".xlsx":
        require("openpyxl", "excel", "writing .xlsx", NeuronFairError)
    runs = open_runs(folder)
    count = sum(int(line["findings"]) for run in runs for lines in run.journal.parts.values() for line in lines)
    twins = list_twin_names([run.domain for run in runs])
    names = make_headings(runs[0].domain.names, twins)
    if out.suffix.lower() == ".xlsx" and (count >= EXCEL_LIMITS[0] or len(names) > EXCEL_LIMITS[1]):
        raise DataError(
            f"{out}: {pluralise(count, 'finding')} in {len(names):,} columns do not fit into a sheet of Excel, which "
            f"holds {EXCEL_LIMITS[0] - 1:,} below its heading and {EXCEL_LIMITS[1]:,} columns. Choose .csv or .parquet"
        )
    parts = (part for run in runs for part in _read_parts(run, twins, names))
    with replace_file(out.resolve()) as temporary:
        _WRITERS[out.suffix.lower()](temporary, parts)
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


def open_runs(folder: Path) -> list[Run]:
    """Return the searches of an audit, or the one that a folder is."""
    try:
        is_audit = "audit" in load_manifest(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder}: is not the folder of an audit or of a search: it has no {MANIFEST}") from None
    folders = sorted(path.parent for path in folder.glob(f"*/*/{MANIFEST}")) if is_audit else [folder]
    runs = [Run.open(run_folder) for run_folder in folders]
    if not runs:
        raise RunError(f"{folder}: this audit has no search of a table yet, so there is nothing to export")
    if len({run.domain.fingerprint for run in runs}) > 1:
        raise RunError(f"{folder}: its searches are about different domains, so they make no one table")
    return runs


def disarm(text: str) -> str:
    r"""Return a text that no spreadsheet takes for a formula: with an apostrophe before it; numbers stay as they are.

    >>> [disarm(text) for text in ("=1+1", "-3.5", "@x", "a=b")]
    ["'=1+1", '-3.5', "'@x", 'a=b']
    """
    line = printable(text)
    return f"'{line}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else line


def list_twin_names(domains: Iterable[TableDomain]) -> list[str]:
    """Return the attributes in which a twin may differ in one of several searches."""
    return list(dict.fromkeys(domain.names[column] for domain in domains for column in domain.twin_columns))


def make_headings(attributes: Sequence[str], twins: Sequence[str]) -> list[str]:
    """Return the heading of every column; one of ours that an attribute has already gets a line behind it."""
    used = set(attributes)
    names = []
    for name in (*FIRST_HEADINGS, *(TWIN.format(name) for name in twins), *LAST_HEADINGS):
        while name in used:
            name += "_"
        used.add(name)
        names.append(name)
    return [*names[: len(FIRST_HEADINGS)], *attributes, *names[len(FIRST_HEADINGS) :]]


def _read_parts(run: Run, twins: Sequence[str], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the findings of a run as tables; without findings one empty table, for its headings."""
    config, findings = run.manifest["plan"], run.findings()
    decision, method = Decision(**config["decision"]), str(config.get("method", ""))
    scale = findings.scale(decision, config.get("scale"))
    for start in range(0, max(1, len(findings)), PART_ROWS):
        part = findings[start : start + PART_ROWS]
        yield pa.table(make_columns(run.domain, decision, method, part, scale, twins, start), names=list(names))


def make_columns(
    domain: TableDomain,
    decision: Decision,
    method: str,
    findings: Findings,
    scale: Scale,
    twins: Sequence[str],
    start: int = 0,
) -> list[pa.Array]:
    """Return findings as the columns that `make_headings` names; the first of them has the number `start`."""
    count, outputs = len(findings), findings.scores.shape[1]
    rows, twin_rows = findings.rows.cpu(), findings.twins(domain).cpu()
    labels = list_class_names(domain, decision, outputs)
    scores, twin_scores = findings.scores.double().cpu(), findings.twin_scores.double().cpu()
    favourable = find_favourable_class(domain, decision, outputs)
    probability = find_probabilities(decision, scale, scores, twin_scores, favourable)
    probabilities = [pa.nulls(count, pa.float64())] * 2
    if probability is not None:
        probabilities = [pa.array(side.numpy()) for side in (probability.row, probability.twin)]

    def label_classes(indices: torch.Tensor | None) -> pa.Array:
        if indices is None or not labels:
            return pa.nulls(count, pa.string())
        codes = pa.array(indices.to(torch.int32).numpy())
        return pa.DictionaryArray.from_arrays(codes, pa.array(list(labels), pa.string()))

    decisions = [decision.decide(side) if labels else None for side in (scores, twin_scores)]
    return [
        *(pa.array([text] * count, pa.string()) for text in ("+".join(domain.sensitive), method)),
        pa.array(range(start, start + count), pa.int64()),
        *(decode_codes(attribute, rows[:, i]) for i, attribute in enumerate(domain.attributes)),
        *(decode_codes(domain.attributes[c], twin_rows[:, c]) for c in map(domain.column, twins)),
        *map(label_classes, decisions),
        label_classes(None if probability is None else probability.label),
        *probabilities,
        *(pa.array(score.numpy()) for score in find_leads(decision, scores, twin_scores)),
        pa.array(decision.gap(scores, twin_scores).numpy()),
        pa.array(findings.plausibility.double().cpu().numpy(), from_pandas=True),  # an empty cell: not known
    ]


def _disarm_table(table: pa.Table) -> pa.Table:
    """Return a table whose words, headings too, no spreadsheet takes for formulas."""
    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            cells = column.combine_chunks()
            encoded = cells if pa.types.is_dictionary(cells.type) else cells.dictionary_encode()
            texts = pa.array([None if t is None else disarm(t) for t in encoded.dictionary.to_pylist()], pa.string())
            column = pa.DictionaryArray.from_arrays(encoded.indices, texts).cast(pa.string())
        columns.append(column)
    return pa.table(columns, names=[disarm(name) for name in table.column_names])


def decode_texts(table: pa.Table) -> pa.Table:
    """Return a table with texts in the place of codes: every part of a file has one type then."""
    kinds = (pa.string() if pa.types.is_dictionary(field.type) else field.type for field in table.schema)
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _write_csv(path: Path, parts: Iterator[pa.Table]) -> None:
    first = _disarm_table(next(parts))
    with pa.csv.CSVWriter(str(path), first.schema) as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(_disarm_table(part))


def _write_parquet(path: Path, parts: Iterator[pa.Table]) -> None:
    first = decode_texts(next(parts))
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        writer.write_table(first)
        for part in parts:
            writer.write_table(decode_texts(part))


def _write_xlsx(path: Path, parts: Iterator[pa.Table]) -> None:
    from openpyxl import Workbook

    book: Any = Workbook(write_only=True)
    sheet = book.create_sheet("findings")
    sheet.freeze_panes = "A2"
    for i, part in enumerate(map(_disarm_table, parts)):
        if i == 0:
            sheet.append(part.column_names)
        for row in zip(*(column.to_pylist() for column in part.columns), strict=True):
            sheet.append(row)
    book.save(path)


_WRITERS = {".csv": _write_csv, ".xlsx": _write_xlsx, ".parquet": _write_parquet}


def make_findings_frame(outcomes: Mapping[tuple[str, str], SearchResult]) -> Any:
    """Return all findings, a line each, with the columns of an exported table.

    A record that two methods found has two lines.
    """
    pandas, results = _import_pandas(), list(outcomes.values())
    if not results:
        return pandas.DataFrame()
    twins = list_twin_names(result.domain for result in results)
    names = make_headings(results[0].domain.names, twins)
    tables = []
    for result in results:
        decision, findings = result.config.decision, result.findings
        scale = findings.scale(decision, result.config.scale)
        cells = make_columns(result.domain, decision, result.config.method, findings, scale, twins)
        tables.append(decode_texts(pa.table(cells, names=names)))
    return pa.concat_tables(tables).to_pandas()


def make_groups_frame(report: Report) -> Any:
    """Return the metrics of demographic groups (kind "group") and of subgroups with frequent flips ("subgroup")."""
    lines = []
    for attribute in report.attributes:
        for group in attribute.groups:
            metrics = asdict(group)
            lines.append({"attribute": attribute.name, "kind": "group", "who": metrics.pop("values"), **metrics})
        for subgroup in attribute.subgroups:
            metrics = {"people": subgroup.people, "findings": subgroup.findings, "lift": subgroup.lift}
            metrics |= {"rate": subgroup.rate.rate, "low": subgroup.rate.low, "high": subgroup.rate.high}
            lines.append({"attribute": attribute.name, "kind": "subgroup", "who": subgroup.text, **metrics})
    return _import_pandas().DataFrame(lines)


def make_rates_frame(report: Report) -> Any:
    """Return the flip rates with their confidence intervals: a line for each attribute and population."""
    lines = [
        {
            "attribute": attribute.name,
            "population": rate.population,
            "flip_rate": rate.rate,
            "low": rate.low,
            "high": rate.high,
            "confidence": rate.confidence,
            "records": rate.of,
        }
        for attribute in report.attributes
        for rate in attribute.rates.available
    ]
    return _import_pandas().DataFrame(lines)


def _import_pandas() -> Any:
    return require("pandas", "sklearn", "a DataFrame", NeuronFairError)


Suites = dict[str, list[ElementTree.Element]]  # tests by the name of their suite
WHOLE_AUDIT = "audit"  # the suite of checks that belong to no attribute


def write_junit(report: Report) -> str:
    """Return an audit as JUnit XML: a suite per attribute, in it a test per threshold, or one test where none was set.

    Only a threshold that failed is a failure, so that the file says what the exit status says; a failed input encoding
    check, and thresholds that could not be evaluated, are an error. Without thresholds each attribute is a test that
    passes and says what was found. A failure shows the worst pair in words and how to see it again. Control characters,
    most of which XML cannot hold, are written out.
    """
    return _write_document(f"neuronfair audit of {report.data.name}", _make_suites(report))


def write_batch_junit(index: AuditIndex, reports: Mapping[str, Report]) -> str:
    """Return many audits as JUnit XML: the suites of each, behind its name; an audit that ended early is an error."""
    suites = dict[str, list[ElementTree.Element]]()
    for line in index.audits:
        if line.state in ("error", "not finished"):
            case = _make_case(line.name, WHOLE_AUDIT)
            ElementTree.SubElement(case, "error", message=printable(line.error or line.state), type=line.state)
            suites[line.name] = [case]
        else:
            for suite, cases in _make_suites(reports[line.name]).items():
                suites[f"{line.name}: {suite}"] = cases
                for case in cases:
                    case.set("classname", f"neuronfair.{printable(line.name)}.{printable(suite)}")
    return _write_document(f"neuronfair audits of {index.file}", suites)


def write_text_junit(name: str, attribute: str, gate: Gate | None, lines: Sequence[str], reason: str = "") -> str:
    """Return an audit of texts as JUnit XML: a test per threshold, or one test where none was set.

    `lines` say what was found, and `reason` why thresholds that were set could not be evaluated, which is an error.
    """
    if gate is not None:
        return _write_document(f"neuronfair audit of {name}", _make_gate_suites(gate, lambda _: lines))
    case = _make_case(attribute, "assessable" if reason else "no threshold set")
    if reason:
        ElementTree.SubElement(case, "error", message=printable(reason), type="not evaluated")
    else:
        ElementTree.SubElement(case, "system-out").text = "\n".join(map(printable, lines))
    return _write_document(f"neuronfair audit of {name}", {attribute: [case]})


def _write_document(name: str, suites: Mapping[str, Sequence[ElementTree.Element]]) -> str:
    root = ElementTree.Element("testsuites", name=printable(name))
    for suite_name, cases in suites.items():
        suite = ElementTree.SubElement(root, "testsuite", name=printable(suite_name))
        suite.extend(cases)
        _count_cases(suite)
    _count_cases(root)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _make_suites(report: Report) -> Suites:
    suites: Suites = {}
    attributes = {attribute.name: attribute for attribute in report.attributes}
    if report.gate is None:
        if report.verdict.thresholds == "not evaluated" or report.fails_encoding_check:
            case = _make_case(WHOLE_AUDIT, "assessable")
            message = printable(f"{report.verdict.headline} {report.verdict.threshold_text}")
            ElementTree.SubElement(case, "error", message=message, type="not evaluated")
            suites[WHOLE_AUDIT] = [case]
        return suites | {name: [_make_open_case(attribute)] for name, attribute in attributes.items()}

    def details(check: GateCheck) -> Sequence[str]:
        past = report.regression_set if check.figure in REGRESSION_METRICS else None
        examples = () if past is None else past.examples
        return _describe_worst(attributes[check.attribute]) if check.attribute else examples

    return _make_gate_suites(report.gate, details)


def _make_gate_suites(gate: Gate, details: Callable[[GateCheck], Sequence[str]]) -> Suites:
    """Return a test for each threshold; one that failed says why, with details."""
    suites: Suites = {}
    for check in gate.checks:
        suite = check.attribute or WHOLE_AUDIT
        case = _make_case(suite, check.expression)
        if check.fired:
            _add_failure(case, check.explained, details(check))
        suites.setdefault(suite, []).append(case)
    return suites


def _make_open_case(attribute: AttributeReport) -> ElementTree.Element:
    """Return a test that passes, and says what was found; one that is skipped where nothing could be assessed."""
    case = _make_case(attribute.name, "no threshold set", sum(search.seconds for search in attribute.searches))
    if attribute.level == "not assessable":
        ElementTree.SubElement(case, "skipped", message=printable(attribute.level))
    sentences = [f"{attribute.level.capitalize()}. {attribute.headline}", *_describe_worst(attribute)]
    ElementTree.SubElement(case, "system-out").text = "\n".join(map(printable, sentences))
    return case


def _make_case(suite: str, name: str, seconds: float = 0.0) -> ElementTree.Element:
    attributes = {"classname": f"neuronfair.{printable(suite)}", "name": printable(name), "time": f"{seconds:.3f}"}
    return ElementTree.Element("testcase", attributes)


def _add_failure(case: ElementTree.Element, message: str, details: Sequence[str]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=printable(message), type="threshold")
    failure.text = "\n".join(map(printable, (message, *details)))


def _describe_worst(attribute: AttributeReport) -> list[str]:
    if not attribute.worst:
        return []
    worst = attribute.worst[0]
    return [f"Worst pair, {describe_pair(worst)}", *([f"Show it again: {worst.replay}"] if worst.replay else [])]


def _count_cases(suite: ElementTree.Element) -> None:
    cases = list(suite.iter("testcase"))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("errors", str(sum(case.find("error") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
