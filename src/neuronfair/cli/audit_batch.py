"""Many audits from one file: `[defaults]` and `[[audit]]` entries, each audit in a folder, and one index of all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import chdir, closing
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import chain, product
from os.path import realpath
from pathlib import Path

from neuronfair import __version__
from neuronfair.atomic import write_text
from neuronfair.audits.folder import PAGE, REPORT_FILE, check_writable, read_report, refuse_links
from neuronfair.audits.gate.checks import list_attribute_sets
from neuronfair.audits.gate.thresholds import read_expressions
from neuronfair.audits.report import AuditIndex, AuditLine, Report, fill_line, format_json
from neuronfair.cli import options
from neuronfair.cli.audit import AuditJob, AuditOutputs, run_job
from neuronfair.cli.options import write_file
from neuronfair.domain.schema.toml import read_domain, read_toml
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import DATASETS, catalog_domain
from neuronfair.domain.tables.files import read_header
from neuronfair.errors import NeuronFairError, OtherRunError, RunError, did_you_mean, internal_message
from neuronfair.limits import read_text
from neuronfair.parameters import Parameter, Values, build_settings, find_parameters, validate_entry
from neuronfair.progress import PieceProgress, PoolProgress
from neuronfair.render.page import render_index
from neuronfair.render.terminal import make_console
from neuronfair.scale.pool import Pool
from neuronfair.searches.methods import METHODS
from neuronfair.store.files import sha256
from neuronfair.store.ledger import check_discardable, discard

LIST_KEYS = ("data", "model", "sensitive")  # keys that take a list; data and model also a pattern such as *.onnx
MAX_NAME_LENGTH = 80  # characters of a name
MAX_AUDITS = 10_000  # audits in a file
_NAME = re.compile(r"\w[\w+-]*")
INDEX_PAGE, INDEX_JSON = "index.html", "index.json"
STAMP_FILE = "order.sha256"  # in the folder of a finished audit: digests of its settings and of its result


@dataclass(frozen=True)
class NamedAudit:
    """One audit and its name, which is also the name of its folder."""

    name: str
    job: AuditJob

    @property
    def digest(self) -> str:
        """A digest of the settings, of the files that the audit reads, and of the version of this package."""
        checksum = hashlib.sha256(json.dumps([__version__, asdict(self.job)], default=str).encode())
        # A regression set that grows is no input file.
        names = (*self.job.input_files, self.job.baseline, self.job.model.preprocess)
        for path in (Path(name) for name in names if name is not None):
            file = path if path.is_file() else _find_code_file(str(path))
            checksum.update(b"-" if file is None else _find_digest(file).encode())
        return checksum.hexdigest()


def _find_code_file(name: str) -> Path | None:
    """Return the file of `package.module:name`, in the working folder or installed; None if unknown."""
    module, colon, _ = name.partition(":")
    stem = module.replace(".", "/")
    files = [Path(f"{stem}.py"), Path(f"{stem}/__init__.py")] if module and colon else []
    if files and not any(file.is_file() for file in files):
        try:
            spec = find_spec(module)
        except (Exception, SystemExit):  # find_spec imports the package, which may fail; the audit reports that
            return None
        files = [] if spec is None or spec.origin is None else [Path(spec.origin)]
    return next((file for file in files if file.is_file()), None)


def _find_digest(file: Path) -> str:
    """Return the digest of a file; one that many audits name is read once."""
    status = file.stat()
    return _read_digest(file.absolute(), status.st_ino, status.st_size, status.st_mtime_ns)


@cache
def _read_digest(file: Path, *_status: int) -> str:
    return sha256(file)


@dataclass
class AuditFile:
    """The audits that a file names, and all problems found in it."""

    audits: list[NamedAudit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _audit_count: int = 0  # audits named; at most MAX_AUDITS are made
    _name_keys: set[str] = field(default_factory=set)  # names, case-folded
    _read_header: Callable[[Path], list[str] | None] = field(default_factory=lambda: cache(read_header))
    _read_domain: Callable[[Path], TableDomain] = field(default_factory=lambda: cache(read_domain))
    _read_catalog: Callable[[str, str], TableDomain] = field(default_factory=lambda: cache(catalog_domain))

    @staticmethod
    def read(file: str) -> AuditFile:
        """Read a file in the working folder; paths in it are relative to that folder."""
        audit_file = AuditFile()
        try:
            content = read_toml(file)
        except NeuronFairError as error:
            audit_file.problems.append(str(error).removeprefix(f"{file}: "))
            return audit_file
        for key in content.keys() - {"defaults", "audit"}:
            audit_file.problems.append(f"unknown key '{key}'. {did_you_mean(key, ('defaults', 'audit'))}")
        defaults, entries = content.get("defaults", {}), content.get("audit", [])
        tables = [defaults, *entries] if isinstance(entries, list) else [None]
        if not all(isinstance(table, dict) for table in tables):
            audit_file.problems.append("expected a table [defaults] and tables [[audit]]")
            return audit_file
        if not entries:
            audit_file.problems.append("it has no [[audit]]")
        declared = find_parameters(AuditJob)
        declared |= {key: replace(declared[key], hint=list[str]) for key in LIST_KEYS}
        common = audit_file._check_values(defaults, "[defaults]", declared)
        declared["name"] = Parameter("Name of the audit.", hint=str)
        for number, entry in enumerate(entries, 1):
            audit_file._add_audits(
                {**common, **audit_file._check_values(entry, f"[[audit]] {number}", declared)}, number
            )
        if audit_file._audit_count > MAX_AUDITS:
            count = f"it names {audit_file._audit_count:,} audits"
            audit_file.problems.append(f"{count}; {MAX_AUDITS:,} are allowed. Make several files")
        audit_file._refuse_shared_regression_sets()
        audit_file.problems = list(dict.fromkeys(audit_file.problems))
        return audit_file

    def _check_values(self, entry: Values, location: str, declared: Mapping[str, Parameter]) -> Values:
        """Return the valid values of an entry; note the others as problems."""
        values, problems = validate_entry(entry, declared)
        problems += [f"{key}: an empty list" for key in LIST_KEYS if key in values and not values[key]]
        self.problems += [f"{location}: {problem}" for problem in problems]
        return values

    def _add_audits(self, values: Values, number: int) -> None:
        """Add the audits of one entry: each combination of data set, model and attributes."""
        location, name = f"[[audit]] {number}", values.pop("name", None)
        if name is not None and (_NAME.fullmatch(name) is None or len(name) > MAX_NAME_LENGTH):
            expected = f"expected letters, digits, -, + and _, {MAX_NAME_LENGTH} at most"
            self.problems.append(f"{location}: name '{name}': {expected}")
        lists = {key: values.pop(key, [None]) for key in LIST_KEYS}
        for key in ("data", "model"):
            matches = (self._find_matches(pattern, f"{location}: {key}") for pattern in lists[key])
            lists[key] = [*chain.from_iterable(matches)]
        self._audit_count += math.prod(map(len, lists.values()))
        if self._audit_count > MAX_AUDITS:
            return
        labels_by_key = {key: _make_labels(value) for key, value in lists.items()}
        for indices in product(*(range(len(value)) for value in lists.values())):
            chosen = {key: lists[key][index] for key, index in zip(lists, indices, strict=True)}
            try:
                job = build_settings(AuditJob, {**values, **chosen})
            except NeuronFairError as error:
                self.problems.append(f"{location}: {error}")
                continue
            labels = [
                labels_by_key[key][index] or ("adult" if key == "data" else "")
                for key, index in zip(lists, indices, strict=True)
                if name is None or len(lists[key]) > 1
            ]
            full_name = "-".join(filter(None, [name, *labels]))[:MAX_NAME_LENGTH] if name is None or labels else name
            if full_name.casefold() in self._name_keys:
                self.problems.append(f"{location}: two audits are called '{full_name}'. Give one of them another name")
            self._name_keys.add(full_name.casefold())
            self.audits.append(NamedAudit(full_name, job))
            self.problems += [f"{location}: {problem}" for problem in self._find_problems(job)]

    def _find_matches(self, name: str | None, location: str) -> Sequence[str | None]:
        if name is None or not set("*?[") & set(name) or Path(name).exists():
            return [name]
        root = Path(name).anchor
        try:
            matches = sorted(map(str, Path(root).glob(str(Path(name).relative_to(root)))))
        except (OSError, ValueError, RecursionError) as error:  # such as models/**.onnx before Python 3.13
            self.problems.append(f"{location}: {name}: {error}")
            return []
        if not matches:
            self.problems.append(f"{location}: no file is called {name}")
        return matches

    def _refuse_shared_regression_sets(self) -> None:
        """Refuse a regression set that several audits would write."""
        regression_sets = [
            audit.job.regression_set
            for audit in self.audits
            if audit.job.regression_set_add and audit.job.regression_set
        ]
        files = Counter(map(_identify_file, regression_sets))
        for path in dict.fromkeys(path for path in regression_sets if files[_identify_file(path)] > 1):
            self.problems.append(
                f"regression_set {path}: several audits add to it. Set regression_set_add = false, or name one for each"
            )

    def _find_problems(self, job: AuditJob) -> Iterator[str]:
        """Yield the problems of an audit that show before its model and data are read."""
        checks: tuple[Callable[[], object], ...] = (
            job.model.check,
            lambda: options.read_decision(job.model.decision),
            job.table.check,
            lambda: self._check_table(job.table),
            lambda: self._check_limits(job),
        )
        for check in checks:
            try:
                check()
            except (NeuronFairError, OSError) as error:
                yield str(error)
        files = {"attributes_file": job.table.attributes_file, "population": job.population, "baseline": job.baseline}
        for key, path in files.items():
            if path is not None and not path.is_file():
                yield f"{key}: there is no file {path}"

    def _check_table(self, table: options.TableOptions) -> None:
        domain, sensitive = self._read_declared_domain(table), options.split_names(table.sensitive) or []
        if domain is not None and sensitive:
            domain.with_sensitive(*sensitive)
        if table.data in DATASETS or table.attributes_file is not None:
            return
        header = self._read_header(Path(table.data))
        expected = [*sensitive, table.target] if domain is None else sensitive or domain.sensitive
        for name in (name for name in expected if name and header is not None and name not in header):
            raise NeuronFairError(f"{table.data}: column '{name}' is missing. {did_you_mean(str(name), header or ())}")

    def _check_limits(self, job: AuditJob) -> None:
        domain = self._read_declared_domain(job.table)
        sensitive = options.split_names(job.table.sensitive) or (() if domain is None else domain.sensitive)
        if sensitive:
            set_names = ["+".join(choice) for choice in list_attribute_sets(sensitive)]
            read_expressions(job.fail_if, set_names, list(METHODS))

    def _read_declared_domain(self, table: options.TableOptions) -> TableDomain | None:
        """Return the domain of a data set; None if it will be inferred."""
        if table.data in DATASETS:
            return self._read_catalog(table.data, table.encoding)
        return None if table.domain is None else self._read_domain(table.domain)


def _identify_file(path: Path) -> tuple[object, ...]:
    """Return the identity of the file that a path names, however it is spelt.

    Files that do not exist yet are the same if their names differ in case only, as on some file systems.
    """
    real = Path(os.path.realpath(path))
    try:
        status = real.stat()
    except OSError:
        return (os.path.realpath(real.parent), real.name.casefold())
    return (status.st_dev, status.st_ino)


def _make_labels(values: Sequence[str | None]) -> list[str]:
    """Return a short and distinct word for each file or choice of attributes: the stem, if that is distinct."""
    paths = [Path(value or "") for value in values]
    for short in (lambda p: p.stem, lambda p: str(p.with_suffix("")) if p.name else "", str):
        words = [re.sub(r"[^\w+-]+", "_", short(path).replace(",", "+")).strip("_") for path in paths]
        if len(set(words)) == len(words):
            break
    return words


@dataclass(frozen=True)
class BatchOutcome:
    """How one audit ended."""

    error: str | None = None
    reported: bool = True  # whether it wrote a report
    interrupted: bool = False
    internal: bool = False  # whether the error is a defect of this program


@dataclass(frozen=True)
class BatchFolder:
    """The folder of the file, and the folder for the audits; the same on all machines."""

    working_folder: Path
    out: Path
    force: bool = False

    def check(self) -> None:
        """Refuse a folder that cannot be written, or that holds other things than audits."""
        check_writable(self.out)
        if self.out.exists():
            refuse_links(self.out)
            if any(self.out.iterdir()) and not (self.out / INDEX_JSON).is_file():
                raise RunError(f"{self.out} exists and is not a folder of audits. Choose another --out")

    def read_finished(self, audit: NamedAudit) -> Report | None:
        """Return the report of an audit that was finished with the present settings; else None."""
        folder = self.out / audit.name
        try:
            if self.force or read_text(folder / STAMP_FILE) != _make_stamp(folder, audit.digest):
                return None
            return read_report(folder / REPORT_FILE)
        except (OSError, UnicodeDecodeError, NeuronFairError):
            return None

    def discard(self, audits: Sequence[NamedAudit]) -> None:
        """Delete the folders of these audits; none if one is not ours or holds a file that an audit reads."""
        folders = [self.out / audit.name for audit in audits]
        with chdir(self.working_folder):
            jobs = [audit.job for audit in audits]
            inputs = {path for job in jobs for path in (*job.input_files, job.regression_set, job.baseline) if path}
            inputs_inside = [path for path in inputs if Path(realpath(path)).is_relative_to(realpath(self.out))]
            for folder in folders:
                check_discardable(folder, inputs_inside)
            for folder in folders:
                discard(folder)


def _make_stamp(folder: Path, digest: str) -> str:
    """Return the content of the file DONE: it changes with the settings and with the result."""
    return f"{digest} {sha256(folder / REPORT_FILE)}\n"


def audit_one(batch_folder: BatchFolder, audit: NamedAudit, progress: PieceProgress) -> BatchOutcome:
    """Run one audit; an error is part of the outcome, so that the others continue."""
    progress(0, 1, 0)
    try:
        with chdir(batch_folder.working_folder):
            out = Path(os.path.relpath(batch_folder.out / audit.name))
            digest = audit.digest  # before its files are read
            outputs, console = AuditOutputs(out, quiet=True), make_console(quiet=True)
            command = shlex.join(["neuronfair", "audit", *audit.job.command_words(out)])
            try:
                result = run_job(audit.job, outputs, console, command=command)
            except OtherRunError:
                if not (out / STAMP_FILE).is_file():  # an unfinished audit with other settings stays
                    raise
                result = run_job(audit.job, replace(outputs, force=True), console, command=command)
            interrupted = result.report.reproduction.interrupted
            if result.failure is None and not interrupted:
                write_text(out / STAMP_FILE, _make_stamp(out, digest))
        return BatchOutcome(None if result.failure is None else str(result.failure), interrupted=interrupted)
    except NeuronFairError as error:
        return BatchOutcome(str(error), reported=False)
    except Exception as error:  # a defect must not stop the other audits
        return BatchOutcome(internal_message(error), reported=False, internal=True)
    finally:
        progress(1, 1, 0)


@dataclass
class Batch:
    """All audits of a file and their results so far."""

    file: str
    audits: Sequence[NamedAudit]
    folder: BatchFolder
    lines: dict[str, AuditLine] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    internal: bool = False  # whether one of them met a defect of this program
    start_time: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        for audit in self.audits:
            table, model = audit.job.table, audit.job.model.model or ""
            self.lines[audit.name] = AuditLine(audit.name, model, table.data, table.sensitive or "", "not finished")
            with chdir(self.folder.working_folder):
                report = self.folder.read_finished(audit)
            if report is not None:
                self._enter_report(audit.name, report)

    @property
    def index(self) -> AuditIndex:
        """The present lines of all audits."""
        return AuditIndex(__version__, self.file, tuple(self.lines.values()), time.perf_counter() - self.start_time)

    def run(self, pool: Pool, progress: PoolProgress, missing: Sequence[NamedAudit]) -> bool:
        """Run the unfinished audits, writing the index after each; return whether Ctrl-C stopped it."""
        if self.folder.force:  # once; later an interrupted audit resumes
            self.folder.discard(missing)
        self.write()
        folder = replace(self.folder, force=False)
        gpus = float(any(audit.job.model.device.startswith("cuda") for audit in missing))
        try:
            outcomes = _close_with_generator(pool.map(audit_one, folder, missing, progress=progress, gpus=gpus))
            with closing(outcomes):
                for audit, outcome in zip(missing, outcomes, strict=False):
                    self._enter_outcome(audit, outcome)
                    self.write()
                    if outcome.interrupted:
                        return True
        except KeyboardInterrupt:
            return True
        return False

    def list_missing(self) -> list[NamedAudit]:
        """Return the audits that are not finished."""
        return [audit for audit in self.audits if audit.name not in self.reports]

    def write(self) -> None:
        """Write the index as HTML and as JSON."""
        self.folder.out.mkdir(parents=True, exist_ok=True)
        write_file(self.folder.out / INDEX_JSON, format_json(self.index))
        write_file(self.folder.out / INDEX_PAGE, render_index(self.index))

    def _enter_outcome(self, audit: NamedAudit, outcome: BatchOutcome) -> None:
        line, error, report = self.lines[audit.name], outcome.error, None
        self.internal |= outcome.internal
        if outcome.reported:
            try:
                report = read_report(self.folder.out / audit.name / REPORT_FILE)
            except NeuronFairError as read_error:  # such as a folder on another machine
                error = error or str(read_error)
        if error is not None:
            self.lines[audit.name] = AuditLine(line.name, line.model, line.data, line.sensitive, "error", error)
        if report is not None:
            self._enter_report(audit.name, report)

    def _enter_report(self, name: str, report: Report) -> None:
        self.reports[name] = report
        self.lines[name] = fill_line(self.lines[name], report, f"{name}/{PAGE}")


def _close_with_generator(outcomes: Iterator[BatchOutcome]) -> Generator[BatchOutcome]:
    """Yield the outcomes of a pool; closing this generator closes the pool's."""
    yield from outcomes
