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
from neuronfair.audits.wording.phrases import describe_decisions
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, DomainError
from neuronfair.limits import read_text
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import split_families
from neuronfair.searches.evaluate import evaluate

MAX_SENTENCES = 10  # sentences about records whose decision still flips, or that no longer fit


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
        indices: dict[tuple[str, ...], list[int]] = {}
        for i, counterexample in enumerate(self.past):
            indices.setdefault(counterexample.sensitive, []).append(i)
        return [
            (names, torch.tensor(lines_of_set), self.domain.with_sensitive(*names))
            for names, lines_of_set in indices.items()
        ]


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
    counterexamples: list[Counterexample] = []
    rows: list[Tensor] = []
    unfit: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        counterexample = _parse_counterexample(line, f"{path}: line {number}")
        try:
            if counterexample.sensitive not in views:
                views[counterexample.sensitive] = domain.with_sensitive(*counterexample.sensitive)
            rows.append(_encode_counterexample(counterexample, views[counterexample.sensitive]))
            counterexamples.append(counterexample)
        except DomainError as error:
            unfit.append(f"line {number}: {error}")
    codes = torch.cat(rows) if rows else torch.empty(0, len(domain.attributes), dtype=torch.int64)
    return RegressionSet(path, domain, text, tuple(counterexamples), codes, tuple(unfit))


def replay_regression_set(stored: RegressionSet, model: Model, decision: Decision | None = None) -> RegressionSetReport:
    """Evaluate every counterexample again, in float64."""
    flips = torch.zeros(len(stored), dtype=torch.bool)
    sentences: dict[int, str] = {}
    model, decision = model.double(), decision or Decision()
    for names, indices, _ in stored.groups:
        view = stored.domain.to(model.encoding.device).with_sensitive(*names)
        for (part,) in zip(*split_families(model.encoding, view, indices), strict=True):
            evaluation = evaluate(model, view, stored.rows[part].to(view.device), decision)
            flips[part] = evaluation.discriminates.cpu()
            flipping = evaluation.discriminates.nonzero()[:MAX_SENTENCES, 0]
            for i, *pair in zip(part[flipping.cpu()].tolist(), *evaluation[flipping].pairs(), strict=True):
                sentences[i] = _describe_flip(view, decision, *pair)
    return RegressionSetReport(
        file=str(stored.file),
        replayed=len(stored),
        still_flips=int(flips.sum()),
        fixed=int((~flips).sum()),
        unfit=len(stored.unfit),
        examples=tuple(sentences[i] for i in sorted(sentences)[:MAX_SENTENCES]),
        notes=stored.unfit[:MAX_SENTENCES],
    )


def _describe_flip(
    domain: TableDomain, decision: Decision, row: Tensor, twin_row: Tensor, scores: Tensor, twin_scores: Tensor
) -> str:
    """Return a record whose decision still flips in words, with the decisions now."""
    table = domain.to_table(torch.stack([row, twin_row]))
    person = ", ".join(f"{name} {value}" for name, (value, _) in table.items())
    twin = ", ".join(
        f"{name} {twin_decision}" for name, (value, twin_decision) in table.items() if value != twin_decision
    )
    decision_text, twin_decision = describe_decisions(domain, decision, scores, twin_scores)
    return f"{person}: gets {decision_text}; with {twin}: {twin_decision}"


def extend(stored: RegressionSet, report: Report, *, limit: int = 10, write: bool = True) -> int:
    """Add the worst findings of an audit to the file, at most `limit` for each attribute, and return how many.

    A record in the file is not added again. The file is locked, read again and written whole. It stays as it is if
    there is nothing to add or a line cannot be read. Without `write` the new lines are only counted.
    """
    lines = _format_new_lines(read_regression_set(stored.file, stored.domain), report, limit)
    if not lines or not write:
        return len(lines)
    try:
        with _lock_file(stored.file.resolve()) as file:
            current = read_regression_set(
                stored.file, stored.domain
            )  # another audit may have added the same people meanwhile
            lines = _format_new_lines(current, report, limit)
            text = current.text if current.text.endswith("\n") or not current.text else current.text + "\n"
            if lines:
                write_text(file, text + "\n".join(lines) + "\n")
    except OSError as error:
        raise DataError(f"{stored.file}: cannot be written: {error.strerror or error}") from None
    return len(lines)


def _format_new_lines(stored: RegressionSet, report: Report, limit: int) -> list[str]:
    """Return the lines of the worst findings of an audit that are not in a regression set yet."""
    date, model = report.reproduction.created[:10], report.model.fingerprint
    origin = {"version": report.neuronfair, "date": date, "model": model}
    keys, lines = stored.keys, []
    for attribute in report.attributes:
        names = attribute.sensitive
        synthetic = [
            finding for finding in attribute.worst if not finding.is_real
        ]  # the file is committed: no record of a person
        for counterexample, key in _make_counterexamples(synthetic[:limit], names, origin, stored.domain):
            if (names, key) not in keys:
                keys.add((names, key))
                lines.append(counterexample.line())
    return lines


@contextmanager
def _lock_file(path: Path) -> Iterator[Path]:
    """Yield a file that no other process adds to until the end: the file itself is locked, no other file is left.

    Where files that are in use cannot be replaced, as on Windows, a hidden file in the same folder is locked and stays.
    """
    lock_path = path.with_name(f".{path.name}.lock") if os.name == "nt" else path
    while True:
        handle = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            lock_descriptor(handle, blocking=True)
            if lock_path != path or _is_same_file(path, handle):  # else it was replaced before it was ours
                yield path
                return
        finally:
            os.close(handle)


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _make_counterexamples(
    worst: Sequence[Finding], names: tuple[str, ...], origin: Mapping[str, str], domain: TableDomain
) -> Iterator[tuple[Counterexample, int]]:
    """Yield findings as they are written, each with the key of its record."""
    view = domain.with_sensitive(*names)
    for finding in worst:
        twin = {change.attribute: change.twin for change in finding.changed}
        row = domain.from_table({name: [finding.row[name]] for name in domain.names})
        yield (
            Counterexample(finding.row, names, twin, finding.decision, finding.twin_decision, origin),
            int(view.key(row)),
        )


def _parse_counterexample(line: str, source: str) -> Counterexample:
    try:
        return msgspec.json.decode(line, type=Counterexample)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
        raise DataError(
            f"{source}: not a counterexample ({error}). Correct or remove the line; nothing was changed"
        ) from None


def _encode_counterexample(counterexample: Counterexample, domain: TableDomain) -> Tensor:
    """Return the codes of one person, (1, d), or say why they do not fit the domain."""
    row = domain.from_table({name: [cell] for name, cell in counterexample.row.items()})
    if not bool(domain.valid(row)):
        rules = [rule.name for rule, broken in zip(domain.rules, domain.broken(row)[0].tolist(), strict=True) if broken]
        raise DomainError(f"breaks the rule '{rules[0]}'" if rules else "a value lies outside its bounds")
    return row
