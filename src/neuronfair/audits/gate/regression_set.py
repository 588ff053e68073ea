"""Past counterexamples in a file that a user commits, evaluated again by every audit.

The file has one counterexample a line (JSON), by labels and not by codes, the oldest first; new ones go to the end, so
that a version control shows them as added lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from filelock import lock_descriptor
from torch import Tensor

from neuronfair.atomic import write_text
from neuronfair.audits.report import RegressionSetReport, Report
from neuronfair.audits.report.attribute import Cell, Finding
from neuronfair.audits.wording.phrases import decision_phrase
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, DomainError
from neuronfair.limits import read_text
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import split_families
from neuronfair.searches.evaluate import evaluate

SHOWN = 10  # sentences about records whose decision still flips, or that no longer fit


@dataclass(frozen=True)
class Counterexample:
    """One past counterexample: a record, its sensitive attributes, and the decisions at that time."""

    row: Mapping[str, Cell]
    sensitive: tuple[str, ...]
    twin: Mapping[str, Cell]  # the sensitive values with which the decision was another
    decision: str
    other_decision: str
    seen: Mapping[str, str]  # first: version, date and fingerprint of the model

    def line(self) -> str:
        """Return the line of the file."""
        return json.dumps(msgspec.to_builtins(self), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class RegressionSet:
    """The counterexamples of a file that a domain knows, and a sentence about each of the others."""

    file: Path
    domain: TableDomain
    text: str  # the file as it is
    past: tuple[Counterexample, ...]
    rows: Tensor  # (n, d) codes, one line per counterexample
    unfit: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.past)

    @property
    def keys(self) -> set[tuple[tuple[str, ...], int]]:
        """Who is in it: sensitive attributes and the key of the person."""
        return {(names, key) for names, index, view in self.groups for key in view.key(self.rows[index]).tolist()}

    @property
    def groups(self) -> list[tuple[tuple[str, ...], Tensor, TableDomain]]:
        """The sensitive attributes that occur, which lines have them, and the domain with these."""
        lines: dict[tuple[str, ...], list[int]] = {}
        for i, past in enumerate(self.past):
            lines.setdefault(past.sensitive, []).append(i)
        return [(names, torch.tensor(where), self.domain.with_sensitive(*names)) for names, where in lines.items()]


def read_regression_set(path: str | Path, domain: TableDomain) -> RegressionSet:
    """Read a regression set; a file that does not exist yet is an empty one.

    A line that is not a counterexample is an error that names it. A record that no longer fits the domain is
    left out and named in `unfit`.
    """
    path = Path(path)
    domain = domain.to("cpu")
    try:
        text = read_text(path) if path.exists() else ""
    except UnicodeDecodeError:
        raise DataError(
            f"{path}: this is not a text file. Expected a regression set, one counterexample per line"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    views: dict[tuple[str, ...], TableDomain] = {}
    fitting: list[Counterexample] = []
    rows: list[Tensor] = []
    unfit: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        past = _parse(line, f"{path}: line {number}")
        try:
            if past.sensitive not in views:
                views[past.sensitive] = domain.with_sensitive(*past.sensitive)
            rows.append(_codes(past, views[past.sensitive]))
            fitting.append(past)
        except DomainError as error:
            unfit.append(f"line {number}: {error}")
    codes = torch.cat(rows) if rows else torch.empty(0, len(domain.attributes), dtype=torch.int64)
    return RegressionSet(path, domain, text, tuple(fitting), codes, tuple(unfit))


def replay_regression_set(stored: RegressionSet, model: Model, decision: Decision | None = None) -> RegressionSetReport:
    """Evaluate every counterexample again, in float64."""
    flips = torch.zeros(len(stored), dtype=torch.bool)
    sentences: dict[int, str] = {}
    model, decision = model.double(), decision or Decision()
    for names, index, _ in stored.groups:
        view = stored.domain.to(model.encoding.device).with_sensitive(*names)
        for (part,) in zip(*split_families(model.encoding, view, index), strict=True):
            evaluation = evaluate(model, view, stored.rows[part].to(view.device), decision)
            flips[part] = evaluation.discriminates.cpu()
            still = evaluation.discriminates.nonzero()[:SHOWN, 0]
            for i, *pair in zip(part[still.cpu()].tolist(), *evaluation[still].pairs(), strict=True):
                sentences[i] = _sentence(view, decision, *pair)
    return RegressionSetReport(
        file=str(stored.file),
        replayed=len(stored),
        still_flips=int(flips.sum()),
        fixed=int((~flips).sum()),
        unfit=len(stored.unfit),
        examples=tuple(sentences[i] for i in sorted(sentences)[:SHOWN]),
        notes=stored.unfit[:SHOWN],
    )


def _sentence(
    domain: TableDomain, decision: Decision, row: Tensor, twin_row: Tensor, scores: Tensor, twin_scores: Tensor
) -> str:
    """Return a record whose decision still flips in words, with the decisions now."""
    table = domain.to_table(torch.stack([row, twin_row]))
    person = ", ".join(f"{name} {value}" for name, (value, _) in table.items())
    twin = ", ".join(f"{name} {other}" for name, (value, other) in table.items() if value != other)
    now, other = decision_phrase(domain, decision, scores, twin_scores)
    return f"{person}: gets {now}; with {twin}: {other}"


def extend(stored: RegressionSet, report: Report, *, most: int = 10, write: bool = True) -> int:
    """Add the worst findings of an audit to the file, at most `most` for each attribute, and return how many.

    A record in the file is not added again. The file is locked, read again and written whole. It stays as it is if
    there is nothing to add or a line cannot be read. Without `write` the new lines are only counted.
    """
    lines = _new_lines(read_regression_set(stored.file, stored.domain), report, most)
    if not lines or not write:
        return len(lines)
    try:
        with _alone(stored.file.resolve()) as file:
            now = read_regression_set(
                stored.file, stored.domain
            )  # another audit may have added the same people meanwhile
            lines = _new_lines(now, report, most)
            before = now.text if now.text.endswith("\n") or not now.text else now.text + "\n"
            if lines:
                write_text(file, before + "\n".join(lines) + "\n")
    except OSError as error:
        raise DataError(f"{stored.file}: cannot be written: {error.strerror or error}") from None
    return len(lines)


def _new_lines(stored: RegressionSet, report: Report, most: int) -> list[str]:
    """Return the lines of the worst findings of an audit that are not in a regression set yet."""
    date, model = report.reproduction.created[:10], report.model.fingerprint
    seen = {"version": report.neuronfair, "date": date, "model": model}
    known, lines = stored.keys, []
    for attribute in report.attributes:
        names = attribute.sensitive
        synthetic = [one for one in attribute.worst if not one.is_real]  # the file is committed: no record of a person
        for past, key in _findings(synthetic[:most], names, seen, stored.domain):
            if (names, key) not in known:
                known.add((names, key))
                lines.append(past.line())
    return lines


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Yield a file that no other process adds to until the end: the file itself is locked, no other file is left.

    Where files that are in use cannot be replaced, as on Windows, a hidden file in the same folder is locked and stays.
    """
    locked = path.with_name(f".{path.name}.lock") if os.name == "nt" else path
    while True:
        handle = os.open(locked, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock_descriptor(handle, blocking=True)
            if locked != path or _is_still(path, handle):  # else it was replaced before it was ours
                yield path
                return
        finally:
            os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _findings(
    worst: Sequence[Finding], names: tuple[str, ...], seen: Mapping[str, str], domain: TableDomain
) -> Iterator[tuple[Counterexample, int]]:
    """Yield findings as they are written, each with the key of its record."""
    view = domain.with_sensitive(*names)
    for one in worst:
        twin = {change.attribute: change.twin for change in one.changed}
        row = domain.from_table({name: [one.row[name]] for name in domain.names})
        yield Counterexample(one.row, names, twin, one.decision, one.twin_decision, seen), int(view.key(row))


def _parse(line: str, where: str) -> Counterexample:
    try:
        return msgspec.json.decode(line, type=Counterexample)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise DataError(
            f"{where}: not a counterexample ({error}). Correct or remove the line; nothing was changed"
        ) from None


def _codes(past: Counterexample, domain: TableDomain) -> Tensor:
    """Return the codes of one person, (1, d), or say why they do not fit the domain."""
    row = domain.from_table({name: [cell] for name, cell in past.row.items()})
    if not bool(domain.valid(row)):
        rules = [rule.name for rule, broken in zip(domain.rules, domain.broken(row)[0].tolist(), strict=True) if broken]
        raise DomainError(f"breaks the rule '{rules[0]}'" if rules else "a value lies outside its bounds")
    return row
