"""A file of many audits: `[defaults]`, and entries `[[audit]]` whose models, tables and attributes multiply out."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from neuronfair import __version__
from neuronfair.audits.gate.checks import attribute_sets
from neuronfair.audits.gate.thresholds import read_expressions
from neuronfair.cli import options
from neuronfair.cli.audit_job import AuditJob
from neuronfair.domain.schema.toml import _DEEP, _TIMES, read_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import DATASETS, catalog_domain
from neuronfair.domain.tables.files import read_header
from neuronfair.errors import NeuronFairError, did_you_mean
from neuronfair.limits import read_text
from neuronfair.parameters import Parameter, build, checked, parameters
from neuronfair.searches.methods import METHODS
from neuronfair.store.files import sha256

MULTIPLIED = ("data", "model", "sensitive")  # keys that may hold a list; of data and model also a pattern, *.onnx
LONGEST = 80  # letters of a name
MAX_AUDITS = 10_000  # audits in a file
_NAME = re.compile(r"\w[\w+-]*")


@dataclass(frozen=True)
class NamedAudit:
    """One audit and what it is called, which is also the name of its folder."""

    name: str
    job: AuditJob

    @property
    def digest(self) -> str:
        """What changes with a word of the audit, with a file that it reads, or with the version of this package."""
        made = hashlib.sha256(json.dumps([__version__, asdict(self.job)], default=str).encode())
        named = (*self.job.reads, self.job.baseline, self.job.model.preprocess)  # a corpus is added to every time
        for path in (Path(name) for name in named if name is not None):
            file = path if path.is_file() else _code(str(path))
            made.update(b"-" if file is None else _digest(file).encode())
        return made.hexdigest()


def _code(name: str) -> Path | None:
    """Return the file of the module in `package.module:name`, of the working folder or installed; None: unknown."""
    module, colon, _ = name.partition(":")
    here = module.replace(".", "/")
    files = [Path(f"{here}.py"), Path(f"{here}/__init__.py")] if module and colon else []
    if files and not any(file.is_file() for file in files):
        try:
            found = find_spec(module)
        except (Exception, SystemExit):  # it imports the package, the user's own code; the audit says what is wrong
            return None
        files = [] if found is None or found.origin is None else [Path(found.origin)]
    return next((file for file in files if file.is_file()), None)


def _digest(file: Path) -> str:
    """Return the digest of a file, which is read once even where hundreds of audits name it, unless it changes."""
    known = file.stat()
    return _read_digest(file.absolute(), known.st_ino, known.st_size, known.st_mtime_ns)


@cache
def _read_digest(file: Path, *_known: int) -> str:
    return sha256(file)


@dataclass
class AuditFile:
    """What a file says: audits, and everything that is wrong with them."""

    audits: list[NamedAudit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _counted: int = 0  # audits, of which those above MOST are not made
    _taken: set[str] = field(default_factory=set)  # names, in small letters
    _header: Callable[[Path], list[str] | None] = field(default_factory=lambda: cache(read_header))
    _domain: Callable[[Path], TableDomain] = field(default_factory=lambda: cache(read_domain))
    _catalog: Callable[[str, str], TableDomain] = field(default_factory=lambda: cache(catalog_domain))

    @staticmethod
    def read(file: str) -> AuditFile:
        """Read a file of the working folder, to which all paths in it are relative."""
        found = AuditFile()
        try:
            text = read_text(Path(file), times=_TIMES)
            if _DEEP.search(text):
                raise ValueError("a key has too many parts")
            content = tomllib.loads(text)
        except NeuronFairError as error:  # too large
            found.problems.append(str(error).removeprefix(f"{file}: "))
            return found
        except (OSError, ValueError, RecursionError) as error:  # also thousands of digits, or of brackets
            found.problems.append(getattr(error, "strerror", None) or f"not TOML in UTF-8: {error}")
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
            found.problems.append("there is no [[audit]] in it")
        known = parameters(AuditJob)
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

    def _known(self, entry: Mapping[str, Any], where: str, known: Mapping[str, Parameter]) -> dict[str, Any]:
        """Return the values that can be used; what is multiplied as lists."""
        values, problems = checked(entry, known)
        problems += [f"{key}: an empty list" for key in MULTIPLIED if key in values and not values[key]]
        self.problems += [f"{where}: {problem}" for problem in problems]
        return values

    def _add(self, values: dict[str, Any], number: int) -> None:
        """Add the audits of one entry: every table with every model and every choice of attributes."""
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
                job = build(AuditJob, {**values, **chosen})
            except NeuronFairError as error:
                self.problems.append(f"{where}: {error}")
                continue
            told = [
                parts[key][place] or ("adult" if key == "data" else "")
                for key, place in zip(lists, places, strict=True)
                if name is None or len(lists[key]) > 1
            ]
            full = "-".join(filter(None, [name, *told]))[:LONGEST] if name is None or told else name
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
        """Refuse a corpus that several audits would write at the same time."""
        written = [audit.job.corpus for audit in self.audits if audit.job.corpus_add and audit.job.corpus]
        files = Counter(map(_file, written))
        for path in dict.fromkeys(path for path in written if files[_file(path)] > 1):
            self.problems.append(
                f"corpus {path}: several audits add to it. Say corpus_add = false, or name a file each"
            )

    def _wrong(self, job: AuditJob) -> Iterator[str]:
        """Say all that can be known to be wrong with an audit before its model is opened or its table read."""
        checks: tuple[Callable[[], object], ...] = (
            job.model.check,
            lambda: options.read_decision(job.model.decision),
            lambda: job.table.join,
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
        table.check()
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
        """Return the domain before its table is read; None where it is inferred."""
        if table.data in DATASETS:
            return self._catalog(table.data, table.encoding)
        return None if table.domain is None else self._domain(table.domain)


def _file(path: Path) -> tuple[object, ...]:
    """Return which file a path names, however it is spelt: by links, through other folders, or in other letters.

    Of files that are not there yet, those whose names differ in case only count as one, as on some disks.
    """
    real = Path(os.path.realpath(path))
    try:
        known = real.stat()
    except OSError:
        return (os.path.realpath(real.parent), real.name.casefold())
    return (known.st_dev, known.st_ino)


def _parts(values: Sequence[str | None]) -> list[str]:
    """Return short words for files or attributes, which tell them apart: their stems where these do."""
    paths = [Path(value or "") for value in values]
    for short in (lambda p: p.stem, lambda p: str(p.with_suffix("")) if p.name else "", str):
        words = [re.sub(r"[^\w+-]+", "_", short(path).replace(",", "+")).strip("_") for path in paths]
        if len(set(words)) == len(words):
            break
    return words
