"""What was proved, and the certificate: a file with the boxes, the claims and the model, for anybody to check."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import nn

from neuronfair import __version__
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, DomainError, NeuronFairError, RunError, one_line
from neuronfair.limits import TREE_FACTOR, check_size
from neuronfair.model.decision import Decision
from neuronfair.store.files import decode
from neuronfair.store.tables import DictionaryColumn, read_columns, write_columns

if TYPE_CHECKING:  # whoever checks a certificate uses nothing of the prover
    from neuronfair.proof.bounds.space import Axis
    from neuronfair.proof.state import ProofState


@dataclass(frozen=True)
class CertifiedBoxes:
    """Boxes of positions, both ends included, that cover the region without overlap, and what is proved in each."""

    low: npt.NDArray[np.int32]  # (n, axes)
    high: npt.NDArray[np.int32]
    fair: list[int]  # records proved to get the same decision as every twin, at least
    discriminatory: list[int]  # records proved to get a different decision than some twin, at least

    def __len__(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class Proof:
    """For how many records of a region the decision does not flip, for how many it does; the others are undecided."""

    record_count: int  # valid rows of the region, exactly
    fair: int
    discriminatory: int
    boxes: int  # that were bounded
    seconds: float
    certified: CertifiedBoxes
    interrupted: bool = False  # by Ctrl-C
    state: ProofState | None = field(default=None, repr=False, compare=False)  # of the prover; a certificate has none

    @property
    def undecided(self) -> int:
        """The number of undecided records."""
        return self.record_count - self.fair - self.discriminatory

    @property
    def complete(self) -> bool:
        """Whether nothing is undecided."""
        return self.undecided == 0


_TRUSTED_PACKAGES = {"torch", "neuronfair", "builtins"}  # whose classes hold no code of the user's
FORMAT = 2
OLD_FORMAT = 1  # the format whose fingerprints were of computed numbers
REPORT_SCHEMA = 2  # raised when an entry changes its meaning
MAX_DIGITS = 4000  # of a number of records: Python reads no longer ones
_COUNT_PATTERN = re.compile(rf"0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}")
CodeRange = tuple[int, int]  # codes from one to another, both included


class CertificateError(NeuronFairError):
    """A certificate cannot be read, is about something else, or claims what cannot be verified."""


@dataclass(frozen=True)
class AxisCodes:
    """Which codes of an attribute stand at each position of its axis, as runs. A linear one has one code at each."""

    column: str
    linear: bool
    runs: tuple[tuple[CodeRange, ...], ...]  # for each position; of a linear axis the first and the last code, once

    def __len__(self) -> int:
        return self.runs[0][0][1] - self.runs[0][0][0] + 1 if self.linear else len(self.runs)

    @staticmethod
    def of(axis: Axis, column: str) -> AxisCodes:
        """Return what an axis of the prover says."""
        if axis.linear:
            return AxisCodes(column, True, (((int(axis.codes[0]), int(axis.codes[-1])),),))
        position_of_code = axis.position_of_code.cpu().numpy()
        starts = np.flatnonzero(np.diff(position_of_code, prepend=-2))
        run_ends = np.append(starts[1:], len(position_of_code)) - 1
        runs: list[list[CodeRange]] = [[] for _ in range(len(axis))]
        for first, last in zip(starts.tolist(), run_ends.tolist(), strict=True):
            if position_of_code[first] >= 0:
                runs[position_of_code[first]].append((first, last))
        return AxisCodes(column, False, tuple(map(tuple, runs)))


@dataclass(frozen=True)
class Certificate:
    """What is certified, for which records, and about which model."""

    domain: TableDomain
    decision: Decision
    where: str
    fingerprint: str  # of the stored numbers and the code that is not torch's, as `fingerprint_model` returns it
    axes: tuple[AxisCodes, ...]
    proof: Proof
    version: str = __version__


def fingerprint_model(stored: str, module: nn.Module | None) -> str:
    """Return what a certificate knows a model by: the digest of its stored numbers, and of its own Python code.

    The same weights in a class with another forward() are another model. Classes of torch and of this package have no
    code of the user's.
    """
    modules = [] if module is None else list(module.modules())
    sources = {_read_source(function) for part in modules for function in _list_user_code(part)}
    return hashlib.sha256("\0".join([stored, *sorted(sources)]).encode()).hexdigest() if sources else stored


def _list_user_code(module: nn.Module) -> list[Any]:
    """Return the classes and functions of a part of a network that are not torch's."""
    routines = [value for value in vars(module).values() if inspect.isroutine(value)]
    classes = [kind for kind in type(module).__mro__ if kind.__module__.partition(".")[0] not in _TRUSTED_PACKAGES]
    return [*classes, *routines]


def _read_source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (TypeError, OSError):  # typed in, or compiled: known by its name only
        return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Write a certificate, whole or not at all."""
    proof = certificate.proof
    boxes = proof.certified
    columns: dict[str, npt.NDArray[np.int32] | list[str]] = {}
    for number in range(boxes.low.shape[1]):
        columns[f"low_{number}"] = boxes.low[:, number].astype(np.int32)
        columns[f"high_{number}"] = boxes.high[:, number].astype(np.int32)
    columns |= {"fair": [*map(str, boxes.fair)], "discriminatory": [*map(str, boxes.discriminatory)]}
    note = {
        "format": FORMAT,
        "version": certificate.version,
        "domain": format_domain(certificate.domain),
        "decision": {"kind": certificate.decision.kind, "value": certificate.decision.value},
        "where": certificate.where,
        "fingerprint": certificate.fingerprint,
        "axes": [{"column": a.column, "linear": a.linear, "codes": a.runs} for a in certificate.axes],
        "people": str(proof.record_count),
        "fair": str(proof.fair),
        "discriminatory": str(proof.discriminatory),
        "boxes": proof.boxes,
        "seconds": proof.seconds,
    }
    write_columns(path, columns, json.dumps(note))


@dataclass(frozen=True)
class _FormatNote:
    format: int = 0


@dataclass(frozen=True)
class _AxisNote:
    """An axis as the note of a file has it."""

    column: str
    linear: bool
    codes: tuple[tuple[CodeRange, ...], ...]

    def to_axis(self, domain: TableDomain) -> AxisCodes:
        """Return the axis; its positions must hold different codes. Whether they hold all, the checker asks."""
        size = domain.attributes[domain.column(self.column)].size
        runs = sorted(run for runs_of_position in self.codes for run in runs_of_position)
        if not all(self.codes) or not runs or (self.linear and (len(self.codes), len(runs)) != (1, 1)):
            raise ValueError(f"the positions of '{self.column}' are missing")
        previous = -1
        for first, last in runs:
            if not previous < first <= last < size:
                raise ValueError(f"a position of '{self.column}' holds codes of another, or that it does not have")
            previous = last
        return AxisCodes(self.column, self.linear, self.codes)


@dataclass(frozen=True)
class _Note:
    """What a file says of its boxes."""

    version: str
    domain: str
    decision: Decision
    where: str
    fingerprint: str
    axes: tuple[_AxisNote, ...]
    people: str
    fair: str
    discriminatory: str
    boxes: int
    seconds: float


def read_certificate(path: Path) -> Certificate:
    """Read a certificate; what is not as it must be is refused. Whether its claims are true is for `check` to say."""
    try:
        columns, text = read_columns(path)
        check_size(len(text), path, times=TREE_FACTOR)
        form = decode(text or "{}", _FormatNote).format
        if form == OLD_FORMAT:
            raise ValueError("an older version of neuronfair wrote it. Prove again with neuronfair certify")
        if form != FORMAT:
            raise ValueError(f"it says nothing of itself, or not in format {FORMAT}")
        return _build_certificate(columns, decode(text, _Note))
    except RunError as error:
        raise CertificateError(f"{error}. Expected a certificate of neuronfair certify") from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, DomainError) as error:
        missing = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else one_line(error)
        raise CertificateError(f"{path}: is no certificate, or damaged: {missing}") from None


def _build_certificate(columns: dict[str, npt.NDArray[np.int32] | DictionaryColumn], note: _Note) -> Certificate:
    domain = parse_domain(note.domain)
    axes = tuple(axis.to_axis(domain) for axis in note.axes)
    bound_columns = [columns[f"{end}_{i}"] for end in ("low", "high") for i in range(len(axes))]
    bounds = [end for end in bound_columns if not isinstance(end, DictionaryColumn)]
    fair, discriminatory = columns["fair"], columns["discriminatory"]
    is_complete = len(bounds) == 2 * len(axes) == len(columns) - 2
    if not is_complete or not isinstance(fair, DictionaryColumn) or not isinstance(discriminatory, DictionaryColumn):
        raise ValueError("its columns are not low_0, …, high_0, …, fair and discriminatory, of numbers and of texts")
    low, high = np.array(bounds, dtype=np.int32).reshape(2, len(axes), len(fair.indices)).transpose(0, 2, 1)
    sizes = np.array([len(axis) for axis in axes])
    invalid = np.flatnonzero(((low < 0) | (low > high) | (high >= sizes)).any(1))
    if len(invalid):
        raise ValueError(f"box {invalid[0] + 1} does not lie between its first and its last position")
    certified = CertifiedBoxes(low, high, _parse_counts(fair), _parse_counts(discriminatory))
    if min(note.boxes, note.seconds) < 0:
        raise ValueError("its boxes or seconds are below 0")
    record_count, fair_count, discriminatory_count = map(_parse_count, (note.people, note.fair, note.discriminatory))
    proof = Proof(record_count, fair_count, discriminatory_count, note.boxes, note.seconds, certified)
    return Certificate(domain, note.decision, note.where, note.fingerprint, axes, proof, note.version)


def _parse_counts(column: DictionaryColumn) -> list[int]:
    counts = [_parse_count(text) for text in column.distinct]
    return [counts[index] for index in column.indices.tolist()]


def _parse_count(text: str) -> int:
    if not _COUNT_PATTERN.fullmatch(text):
        raise ValueError(f"'{text[:40]}' is no number of people")
    return int(text)


@dataclass(frozen=True)
class RowShare:
    """Some of the records."""

    count: str  # exact number of records, as text, because it may exceed what readers of JSON keep
    share: float  # of all records that the proof is about; 1 and 0 only if it is all or none of them

    @staticmethod
    def of(count: int, total: int) -> RowShare:
        """Return a number of records and the share that they are.

        >>> RowShare.of(10**20 - 1, 10**20)
        RowShare(count='99999999999999999999', share=0.9999999999999999)
        """
        share = count / total if total else 0.0
        if count < total:
            share = min(share, math.nextafter(1.0, 0.0))
        return RowShare(str(count), max(share, math.ulp(0.0)) if count else 0.0)


@dataclass(frozen=True)
class RecordShare:
    """Some rows of the data set."""

    count: int  # rows
    share: float  # of all rows that are counted

    @staticmethod
    def of(count: int, rows: int) -> RecordShare:
        """Return a number of rows and the share that they are."""
        return RecordShare(count, count / rows if rows else 0.0)


@dataclass(frozen=True)
class DataSetClaims:
    """For how many rows of the data set the decision is certified, together with the region around them."""

    of: int  # rows of the region
    certified_fair: RecordShare  # every twin gets the same decision
    certified_discriminatory: RecordShare  # some twin gets a different decision: proved, or evaluated by the model
    undecided: RecordShare  # nothing is proved, and no flip was evaluated
    without_twin: int  # rows of `certified_fair` whose values the rules allow for one group only
    outside_domain: int  # rows of `undecided` that break a rule or have a cell that is no value of the domain
    with_twin: RecordShare = field(default=RecordShare(0, 0.0), kw_only=True)  # certified, of the rows with a twin

    def __post_init__(self) -> None:
        """Count the certified rows that have a twin: the others say nothing about the model."""
        count, of = self.certified_fair.count - self.without_twin, self.of - self.without_twin
        object.__setattr__(self, "with_twin", RecordShare.of(count, of))


@dataclass(frozen=True)
class ShareInterval:
    """A share of drawn records with its exact 95% confidence interval (Clopper-Pearson)."""

    share: float  # of the drawn records
    low: float  # lower end of its confidence interval
    high: float


@dataclass(frozen=True)
class FreshClaims:
    """For which share of realistic synthetic records, drawn after the proof, the decision is certified."""

    of: int  # drawn records; none of them has guided the proof
    certified_fair: ShareInterval  # every twin gets the same decision
    certified_discriminatory: ShareInterval  # some twin gets a different decision
    undecided: ShareInterval  # nothing is proved


@dataclass(frozen=True)
class Region:
    """A part of the input space in which no decision depends on the sensitive attributes, or every one does."""

    rule: str  # conditions of the region, as --where takes them; empty: the whole region of the proof
    depends: bool  # whether every decision in it is certified to depend, or none
    size: RowShare  # records of the input space in it
    rows: RecordShare | None  # rows of the data set in it; null without a data set
    fresh: ShareInterval | None  # share of realistic synthetic records in it; null without a population model


@dataclass(frozen=True)
class ProofReport:
    """A proof: for how many records the decision does not flip, for how many it does, and how many are undecided."""

    data: str  # name of the table or of the domain
    model: str  # fingerprint of its weights, or of its file
    sensitive: tuple[str, ...]  # names of the sensitive attributes
    where: str  # conditions of the region; empty: the whole input space
    decision: Decision  # what counts as another decision
    people: RowShare  # records that the proof is about, with their share of the input space
    proved_fair: RowShare  # proved: every twin gets the same decision
    proved_discriminatory: RowShare  # proved: some twin gets a different decision
    undecided: RowShare  # neither: nothing is proved
    boxes: int  # parts of the domain that were bounded
    seconds: float  # time spent
    complete: bool  # whether nothing is undecided
    method: str  # how it was proved: bounds of a network or of trees, enumeration, attribute not given
    interrupted: bool = False  # by Ctrl-C
    order: str = "records"  # boxes with many records came first, or those with the largest undecided volume
    data_set: DataSetClaims | None = None  # the rows of the data set; null without a data set
    fresh: FreshClaims | None = None  # records drawn from the population model after the proof; null without one
    regions: tuple[Region, ...] = ()  # large certified regions of many records, as rules
    neuronfair: str = __version__  # version of the package
    schema: int = REPORT_SCHEMA  # raised when an entry changes its meaning

    def to_json(self) -> str:
        """Return the content of proof.json."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str | bytes, source: object = "proof.json") -> ProofReport:
        """Read the content of a proof.json; what is damaged, or of another form, is refused."""
        try:
            report = decode(text, ProofReport)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{source}: not a proof.json that can be read ({one_line(error)})") from None
        if report.schema != REPORT_SCHEMA:
            raise DataError(f"{source}: written in form {report.schema}, but this version reads form {REPORT_SCHEMA}")
        return report
