"""What a proof came to: plain values that the terminal and proof.json show.

The comments behind the fields are their documentation: docs/reference/results.schema.json is made from them.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

from neuronfair import __version__
from neuronfair.errors import DataError, one_line
from neuronfair.model.decision import Decision
from neuronfair.store.files import decode

SCHEMA = 2  # raised when an entry changes its meaning


@dataclass(frozen=True)
class Part:
    """Some of the records."""

    count: str  # exact number of records, as text, because it may exceed what readers of JSON keep
    share: float  # of all records that the proof is about; 1 and 0 only if it is all or none of them

    @staticmethod
    def of(count: int, total: int) -> Part:
        """Return a number of records and the share that they are.

        >>> Part.of(10**20 - 1, 10**20)
        Part(count='99999999999999999999', share=0.9999999999999999)
        """
        share = count / total if total else 0.0
        if count < total:
            share = min(share, math.nextafter(1.0, 0.0))
        return Part(str(count), max(share, math.ulp(0.0)) if count else 0.0)


@dataclass(frozen=True)
class RecordPart:
    """Some rows of the data set."""

    count: int  # rows
    share: float  # of all rows that are counted

    @staticmethod
    def of(count: int, rows: int) -> RecordPart:
        """Return a number of rows and the share that they are."""
        return RecordPart(count, count / rows if rows else 0.0)


@dataclass(frozen=True)
class DataSetClaims:
    """For how many rows of the data set the decision is certified, together with the region around them."""

    of: int  # rows of the region
    certified_fair: RecordPart  # every twin gets the same decision
    certified_discriminatory: RecordPart  # some twin gets a different decision: proved, or evaluated by the model
    undecided: RecordPart  # nothing is proved, and no flip was evaluated
    without_twin: int  # rows of `certified_fair` whose values the rules allow for one group only
    outside_domain: int  # rows of `undecided` that break a rule or have a cell that is no value of the domain
    with_twin: RecordPart = field(default=RecordPart(0, 0.0), kw_only=True)  # certified, of the rows with a twin

    def __post_init__(self) -> None:
        """Count the certified rows that have a twin: the others say nothing about the model."""
        count, of = self.certified_fair.count - self.without_twin, self.of - self.without_twin
        object.__setattr__(self, "with_twin", RecordPart.of(count, of))


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
    size: Part  # records of the input space in it
    rows: RecordPart | None  # rows of the data set in it; null without a data set
    fresh: ShareInterval | None  # share of realistic synthetic records in it; null without a population model


@dataclass(frozen=True)
class ProofReport:
    """A proof: for how many records the decision does not flip, for how many it does, and how many are undecided."""

    data: str  # name of the table or of the domain
    model: str  # fingerprint of its weights, or of its file
    sensitive: tuple[str, ...]  # names of the sensitive attributes
    where: str  # conditions of the region; empty: the whole input space
    decision: Decision  # what counts as another decision
    people: Part  # records that the proof is about, with their share of the input space
    proved_fair: Part  # proved: every twin gets the same decision
    proved_discriminatory: Part  # proved: some twin gets a different decision
    undecided: Part  # neither: nothing is proved
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
    schema: int = SCHEMA  # raised when an entry changes its meaning

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
        if report.schema != SCHEMA:
            raise DataError(f"{source}: written in form {report.schema}, but this version reads form {SCHEMA}")
        return report
