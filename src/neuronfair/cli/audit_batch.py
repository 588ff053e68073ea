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
from itertools import product
from os.path import realpath
from pathlib import Path

from neuronfair import __version__
from neuronfair.atomic import write_text
from neuronfair.audits.folder import FIGURES, PAGE, check_writable, read_report, refuse_links
from neuronfair.audits.gate.checks import attribute_sets
from neuronfair.audits.gate.thresholds import read_expressions
from neuronfair.audits.report import AuditIndex, AuditLine, Report, as_json, line_of
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
from neuronfair.render.page import index_page
from neuronfair.render.terminal import make_console
from neuronfair.scale.pool import Pool
from neuronfair.searches.methods import METHODS
from neuronfair.store.files import sha256
from neuronfair.store.ledger import check_discardable, discard

MULTIPLIED = ("data", "model", "sensitive")  # keys that take a list; data and model also a pattern such as *.onnx
LONGEST = 80  # characters of a name
MAX_AUDITS = 10_000  # audits in a file
_NAME = re.compile(r"\w[\w+-]*")
INDEX, FIGURES_OF_ALL = "index.html", "index.json"
DONE = "order.sha256"  # in the folder of a finished audit: digests of its settings and of its result


@dataclass(frozen=True)
class NamedAudit:
    """One audit and its name, which is also the name of its folder."""

    name: str
    job: AuditJob

    @property
    def digest(self) -> str:
        """A digest of the settings, of the files that the audit reads, and of the version of this package."""
        made = hashlib.sha256(json.dumps([__version__, asdict(self.job)], default=str).encode())
        named = (*self.job.reads, self.job.baseline, self.job.model.preprocess)  # a regression set grows every time
        for path in (Path(name) for name in named if name is not None):
            file = path if path.is_file() else _code(str(path))
            made.update(b"-" if file is None else _digest(file).encode())
        return made.hexdigest()


def _code(name: str) -> Path | None:
    """Return the file of `package.module:name`, in the working folder or installed; None if unknown."""
    module, colon, _ = name.partition(":")
    here = module.replace(".", "/")
    files = [Path(f"{here}.py"), Path(f"{here}/__init__.py")] if module and colon else []
    if files and not any(file.is_file() for file in files):
        try:
            found = find_spec(module)
        except (Exception, SystemExit):  # find_spec imports the package, which may fail; the audit reports that
            return None
        files = [] if found is None or found.origin is None else [Path(found.origin)]
    return next((file for file in files if file.is_file()), None)


def _digest(file: Path) -> str:
    """Return the digest of a file; one that many audits name is read once."""
    known = file.stat()
    return _read_digest(file.absolute(), known.st_ino, known.st_size, known.st_mtime_ns)


@cache
def _read_digest(file: Path, *_known: int) -> str:
    return sha256(file)


@dataclass
class AuditFile:
    """The audits that a file names, and all problems found in it."""

    audits: list[NamedAudit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _counted: int = 0  # audits named; at most MAX_AUDITS are made
    _taken: set[str] = field(default_factory=set)  # names, case-folded
    _header: Callable[[Path], list[str] | None] = field(default_factory=lambda: cache(read_header))
    _domain: Callable[[Path], TableDomain] = field(default_factory=lambda: cache(read_domain))
    _catalog: Callable[[str, str], TableDomain] = field(default_factory=lambda: cache(catalog_domain))

    @staticmethod
    def read(file: str) -> AuditFile:
        """Read a file in the working folder; paths in it are relative to that folder."""
        found = AuditFile()
        try:
            content = read_toml(file)
        except NeuronFairError as error:
            found.problems.append(str(error).removeprefix(f"{file}: "))
            return found
        for key in content.keys() - {"defaults", "audit"}:
            found.problems.append(f"unknown key '{key}'. {did_you_mean(key, ('defaults', 'audit'))}")
        defaults, entries = content.get("defaults", {}), content.get("audit", [])
        if (
            not isinstance(defaults, dict)
            or not isinstance(entries, list)
            or not all(isinstance(e, dict) for e in entries)
        ):
            found.problems.append("expected a table [defaults] and tables [[audit]]")
            return found
        if not entries:
            found.problems.append("it has no [[audit]]")
        known = find_parameters(AuditJob)
        lists = {key: replace(one, hint=list[str]) if key in MULTIPLIED else one for key, one in known.items()}
        common = found._known(defaults, "[defaults]", lists)
        lists["name"] = Parameter("Name of the audit.", hint=str)
        for number, entry in enumerate(entries, 1):
            found._add({**common, **found._known(entry, f"[[audit]] {number}", lists)}, number)
        if found._counted > MAX_AUDITS:
            found.problems.append(f"it names {found._counted:,} audits; {MAX_AUDITS:,} are allowed. Make several files")
        found._refuse_shared()
        found.problems = list(dict.fromkeys(found.problems))
        return found

    def _known(self, entry: Values, where: str, known: Mapping[str, Parameter]) -> Values:
        """Return the valid values of an entry; note the others as problems."""
        values, problems = validate_entry(entry, known)
        problems += [f"{key}: an empty list" for key in MULTIPLIED if key in values and not values[key]]
        self.problems += [f"{where}: {problem}" for problem in problems]
        return values

    def _add(self, values: Values, number: int) -> None:
        """Add the audits of one entry: each combination of data set, model and attributes."""
        where, name = f"[[audit]] {number}", values.pop("name", None)
        if name is not None and (_NAME.fullmatch(name) is None or len(name) > LONGEST):
            self.problems.append(f"{where}: name '{name}': expected letters, digits, -, + and _, {LONGEST} at most")
        lists = {key: values.pop(key, [None]) for key in MULTIPLIED}
        for key in ("data", "model"):
            lists[key] = [one for pattern in lists[key] for one in self._matching(pattern, f"{where}: {key}")]
        self._counted += math.prod(map(len, lists.values()))
        if self._counted > MAX_AUDITS:
            return
        parts = {key: _parts(one) for key, one in lists.items()}
        for places in product(*(range(len(one)) for one in lists.values())):
            chosen = {key: lists[key][place] for key, place in zip(lists, places, strict=True)}
            try:
                job = build_settings(AuditJob, {**values, **chosen})
            except NeuronFairError as error:
                self.problems.append(f"{where}: {error}")
                continue
            labels = [
                parts[key][place] or ("adult" if key == "data" else "")
                for key, place in zip(lists, places, strict=True)
                if name is None or len(lists[key]) > 1
            ]
            full = "-".join(filter(None, [name, *labels]))[:LONGEST] if name is None or labels else name
            if full.casefold() in self._taken:
                self.problems.append(f"{where}: two audits are called '{full}'. Give one of them another name")
            self._taken.add(full.casefold())
            self.audits.append(NamedAudit(full, job))
            self.problems += [f"{where}: {problem}" for problem in self._wrong(job)]

    def _matching(self, name: str | None, where: str) -> Sequence[str | None]:
        if name is None or not set("*?[") & set(name) or Path(name).exists():
            return [name]
        root = Path(name).anchor
        try:
            found = sorted(map(str, Path(root).glob(str(Path(name).relative_to(root)))))
        except (OSError, ValueError, RecursionError) as error:  # such as models/**.onnx before Python 3.13
            self.problems.append(f"{where}: {name}: {error}")
            return []
        if not found:
            self.problems.append(f"{where}: no file is called {name}")
        return found

    def _refuse_shared(self) -> None:
        """Refuse a regression set that several audits would write."""
        written = [
            audit.job.regression_set
            for audit in self.audits
            if audit.job.regression_set_add and audit.job.regression_set
        ]
        files = Counter(map(_file, written))
        for path in dict.fromkeys(path for path in written if files[_file(path)] > 1):
            self.problems.append(
                f"regression_set {path}: several audits add to it. Set regression_set_add = false, or name one for each"
            )

    def _wrong(self, job: AuditJob) -> Iterator[str]:
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
        named = {"attributes_file": job.table.attributes_file, "population": job.population, "baseline": job.baseline}
        for key, path in named.items():
            if path is not None and not path.is_file():
                yield f"{key}: there is no file {path}"

    def _check_table(self, table: options.TableOptions) -> None:
        domain, chosen = self._known_domain(table), options.names(table.sensitive) or []
        if domain is not None and chosen:
            domain.with_sensitive(*chosen)
        if table.data in DATASETS or table.attributes_file is not None:
            return
        header = self._header(Path(table.data))
        wanted = [*chosen, table.target] if domain is None else chosen or domain.sensitive
        for name in (name for name in wanted if header is not None and name not in header):
            raise NeuronFairError(f"{table.data}: column '{name}' is missing. {did_you_mean(str(name), header or ())}")

    def _check_limits(self, job: AuditJob) -> None:
        domain = self._known_domain(job.table)
        sensitive = options.names(job.table.sensitive) or (() if domain is None else domain.sensitive)
        if sensitive:
            names = ["+".join(choice) for choice in attribute_sets(sensitive)]
            read_expressions(job.fail_if, names, list(METHODS))

    def _known_domain(self, table: options.TableOptions) -> TableDomain | None:
        """Return the domain of a data set; None if it will be inferred."""
        if table.data in DATASETS:
            return self._catalog(table.data, table.encoding)
        return None if table.domain is None else self._domain(table.domain)


def _file(path: Path) -> tuple[object, ...]:
    """Return the identity of the file that a path names, however it is spelt.

    Files that do not exist yet are the same if their names differ in case only, as on some file systems.
    """
    real = Path(os.path.realpath(path))
    try:
        known = real.stat()
    except OSError:
        return (os.path.realpath(real.parent), real.name.casefold())
    return (known.st_dev, known.st_ino)


def _parts(values: Sequence[str | None]) -> list[str]:
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

    folder: Path
    out: Path
    force: bool = False

    def check(self) -> None:
        """Refuse a folder that cannot be written, or that holds other things than audits."""
        check_writable(self.out)
        if self.out.exists():
            refuse_links(self.out)
            if any(self.out.iterdir()) and not (self.out / FIGURES_OF_ALL).is_file():
                raise RunError(f"{self.out} exists and is not a folder of audits. Choose another --out")

    def finished(self, audit: NamedAudit) -> Report | None:
        """Return the report of an audit that was finished with the present settings; else None."""
        place = self.out / audit.name
        try:
            if self.force or read_text(place / DONE) != _stamp(place, audit.digest):
                return None
            return read_report(place / FIGURES)
        except (OSError, UnicodeDecodeError, NeuronFairError):
            return None

    def discard(self, audits: Sequence[NamedAudit]) -> None:
        """Delete the folders of these audits; none if one is not ours or holds a file that an audit reads."""
        folders = [self.out / audit.name for audit in audits]
        with chdir(self.folder):
            jobs = [audit.job for audit in audits]
            named = {path for job in jobs for path in (*job.reads, job.regression_set, job.baseline) if path}
            inside = [path for path in named if Path(realpath(path)).is_relative_to(realpath(self.out))]
            for folder in folders:
                check_discardable(folder, inside)
            for folder in folders:
                discard(folder)


def _stamp(folder: Path, digest: str) -> str:
    """Return the content of the file DONE: it changes with the settings and with the result."""
    return f"{digest} {sha256(folder / FIGURES)}\n"


def audit_one(place: BatchFolder, audit: NamedAudit, note: PieceProgress) -> BatchOutcome:
    """Run one audit; an error is part of the outcome, so that the others continue."""
    note(0, 1, 0)
    try:
        with chdir(place.folder):
            out = Path(os.path.relpath(place.out / audit.name))
            digest = audit.digest  # before its files are read
            outputs, command = AuditOutputs(out, quiet=True), shlex.join(["neuronfair", "audit", *audit.job.words(out)])
            console = make_console(quiet=True)
            try:
                done = run_job(audit.job, outputs, console, command=command)
            except OtherRunError:
                if not (out / DONE).is_file():  # an unfinished audit with other settings stays
                    raise
                done = run_job(audit.job, replace(outputs, force=True), console, command=command)
            interrupted = done.report.reproduction.interrupted
            if done.failure is None and not interrupted:
                write_text(out / DONE, _stamp(out, digest))
        return BatchOutcome(None if done.failure is None else str(done.failure), interrupted=interrupted)
    except NeuronFairError as error:
        return BatchOutcome(str(error), reported=False)
    except Exception as error:  # a defect must not stop the other audits
        return BatchOutcome(internal_message(error), reported=False, internal=True)
    finally:
        note(1, 1, 0)


@dataclass
class Batch:
    """All audits of a file and their results so far."""

    file: str
    audits: Sequence[NamedAudit]
    place: BatchFolder
    lines: dict[str, AuditLine] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    internal: bool = False  # whether one of them met a defect of this program
    begun: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        for audit in self.audits:
            table, model = audit.job.table, audit.job.model.model or ""
            self.lines[audit.name] = AuditLine(audit.name, model, table.data, table.sensitive or "", "not finished")
            with chdir(self.place.folder):
                report = self.place.finished(audit)
            if report is not None:
                self._enter(audit.name, report)

    @property
    def index(self) -> AuditIndex:
        """The present lines of all audits."""
        return AuditIndex(__version__, self.file, tuple(self.lines.values()), time.perf_counter() - self.begun)

    def run(self, pool: Pool, progress: PoolProgress, missing: Sequence[NamedAudit]) -> bool:
        """Run the unfinished audits, writing the index after each; return whether Ctrl-C stopped it."""
        if self.place.force:  # once; later an interrupted audit resumes
            self.place.discard(missing)
        self.write()
        place = replace(self.place, force=False)
        gpus = float(any(audit.job.model.device.startswith("cuda") for audit in missing))
        try:
            with closing(_closable(pool.map(audit_one, place, missing, progress=progress, gpus=gpus))) as ended:
                for audit, one in zip(missing, ended, strict=False):
                    self._end(audit, one)
                    self.write()
                    if one.interrupted:
                        return True
        except KeyboardInterrupt:
            return True
        return False

    def missing(self) -> list[NamedAudit]:
        """Return the audits that are not finished."""
        return [audit for audit in self.audits if audit.name not in self.reports]

    def write(self) -> None:
        """Write the index as HTML and as JSON."""
        self.place.out.mkdir(parents=True, exist_ok=True)
        write_file(self.place.out / FIGURES_OF_ALL, as_json(self.index))
        write_file(self.place.out / INDEX, index_page(self.index))

    def _end(self, audit: NamedAudit, ended: BatchOutcome) -> None:
        line, error, report = self.lines[audit.name], ended.error, None
        self.internal |= ended.internal
        if ended.reported:
            try:
                report = read_report(self.place.out / audit.name / FIGURES)
            except NeuronFairError as unread:  # such as a folder on another machine
                error = error or str(unread)
        if error is not None:
            self.lines[audit.name] = AuditLine(line.name, line.model, line.data, line.sensitive, "error", error)
        if report is not None:
            self._enter(audit.name, report)

    def _enter(self, name: str, report: Report) -> None:
        self.reports[name] = report
        self.lines[name] = line_of(self.lines[name], report, f"{name}/{PAGE}")


def _closable(ended: Iterator[BatchOutcome]) -> Generator[BatchOutcome]:
    """Yield the outcomes of a pool; closing this generator closes the pool's."""
    yield from ended
