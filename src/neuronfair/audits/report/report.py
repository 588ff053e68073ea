"""What an audit came to: a tree of plain values that page, terminal, gate, JUnit, Markdown and audit.json show.

`to_json` and `from_json` are the only ways in and out. The comments behind the fields are their documentation:
docs/reference/json.md is made from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from neuronfair.audits.report.attribute import AttributeReport, GroupReport, Level
from neuronfair.audits.report.counterfactual import CounterfactualState
from neuronfair.audits.report.rates import RateOf
from neuronfair.domain.schema.column_types import LeftOut
from neuronfair.errors import DataError
from neuronfair.model.decision import Scale

SCHEMA = 3
T = TypeVar("T")
ThresholdState = Literal["none set", "passed", "failed", "not evaluated"]
Tone = Literal["alarm", "caution", "calm", "neutral"]
EncodingLevel = Literal["ok", "not assessable", "suspicious", "unconfirmed", "wrong"]


@dataclass(frozen=True)
class RepairState:
    """A model before or after a repair."""

    rate: RateOf  # of people drawn uniformly from the domain; by counterparts, of test rows and the typical one of each
    accuracy: float  # on test rows
    groups: tuple[GroupReport, ...] = ()
    auc: float | None = None  # of the most biased layer
    plausible: RateOf | None = None  # of plausible people; null where it was not measured
    test: RateOf | None = None  # of the test rows, held-out records of the data set; null in a repair by counterparts
    counterpart: CounterfactualState | None = None  # of a repair by counterparts

    @property
    def shown_rate(self) -> RateOf:
        """The rate that comes first: of held-out records of the data set, where it was measured."""
        return self.test or self.rate


@dataclass(frozen=True)
class RepairReport:
    """A short retraining with the findings or with counterparts, or why there is none."""

    kind: Literal["retraining", "none"]
    text: str
    command: str | None = None  # a longer one, whose result is kept, or what writes the pairs
    before: RepairState | None = None
    after: RepairState | None = None
    without_findings: RepairState | None = None  # the same training without the findings or counterparts

    @property
    def lead(self) -> str:
        """What is said before the command."""
        return "A longer one, whose result is kept:" if self.kind == "retraining" else "The command:"


@dataclass(frozen=True)
class RegressionSetReport:
    """Past counterexamples, judged again."""

    file: str
    replayed: int
    still_flips: int  # people whose decision flips now
    fixed: int  # people whose decision does not flip any more
    unfit: int  # people whom the domain does not know any more
    added: int = 0  # of the worst findings, now
    examples: tuple[str, ...] = ()  # people whose decision still flips
    notes: tuple[str, ...] = ()  # about those who do not fit


@dataclass(frozen=True)
class FigureChange:
    """A figure of an earlier audit and of this one."""

    figure: str
    before: float
    after: float
    low: float | None  # of the difference
    high: float | None
    significant: bool  # whether the intervals do not overlap
    text: str


@dataclass(frozen=True)
class BaselineReport:
    """What changed since an earlier audit."""

    file: str
    changes: tuple[FigureChange, ...]
    text: str


@dataclass(frozen=True)
class GateCheck:
    """A limit, and what it was judged on."""

    expression: str
    attribute: str | None  # null: of the whole audit
    value: float
    low: float | None  # its interval, if it has one
    high: float | None
    judged_on: Literal["value", "lower end", "upper end"]
    fired: bool  # whether the limit holds, which fails a build
    text: str
    figure: str = ""  # which one decided: for a rate, that of which population


@dataclass(frozen=True)
class Gate:
    """All limits."""

    passed: bool
    checks: tuple[GateCheck, ...]


@dataclass(frozen=True)
class Verdict:
    """What the audit concludes. Only a threshold that failed raises an alarm."""

    level: Level  # dependence found: for a record of the data set, or only for synthetic ones: the headline says which
    headline: str  # the conclusion as a fact in one sentence
    details: tuple[str, ...] = ()  # more about it, a short paragraph each
    thresholds: ThresholdState = "none set"  # not evaluated: set, but the audit was interrupted or cannot be assessed
    threshold_text: str = ""  # the same as a sentence

    @property
    def text(self) -> str:
        """The headline and the details."""
        return " ".join((self.headline, *self.details))

    @property
    def tone(self) -> Tone:
        """How it is shown: an alarm for a failed threshold, calm where all passed, neutral where none was set."""
        if self.thresholds == "failed":
            return "alarm"
        if self.level == "not assessable":
            return "caution"
        return "calm" if self.thresholds == "passed" else "neutral"


@dataclass(frozen=True)
class PopulationReport:
    """Whom plausible people are drawn from, and how good that is."""

    kind: Literal["table", "own", "none"]  # a model of the table; people of the user's own sampler; none was possible
    rows: int  # people that it was made of
    text: str
    auc: float | None = None  # with which a classifier tells drawn from real people: 0.5 is not at all; null: not tried
    log_likelihood: float | None = None  # of held-out real people, their mean
    least: float = 0.0  # plausibility that the searches kept to; 0: they went through the whole domain


@dataclass(frozen=True)
class DataReport:
    """The table."""

    name: str
    rows: int
    attributes: int
    sensitive: tuple[str, ...]
    target: str | None = None  # column that the model decides
    classes: tuple[str, ...] = ()  # of the target
    favourable: str | None = None  # the class that people hope for
    domain_inferred: bool = False  # whether the domain was read off the table
    left_out: tuple[LeftOut, ...] = ()  # columns that nobody looked at, and why
    population: PopulationReport | None = None  # null in older audits


@dataclass(frozen=True)
class ModelReport:
    """The model."""

    source: str
    kind: str
    white_box: bool
    note: str  # about that
    fingerprint: str
    outputs: int
    layers: Mapping[str, int] = field(default_factory=dict)  # neurons by layer
    accuracy: Mapping[str, float] | None = None  # by part: train, validation, test; or table
    trained_here: bool = False


@dataclass(frozen=True)
class EncodingCheckReport:
    """Whether the inputs seem to be encoded as in training; null where it could not be measured."""

    level: EncodingLevel
    text: str
    rows: int  # of the table that were looked at
    trusted: bool = False  # whether the user said that the encoding is right whatever the check says
    constant: bool = False  # whether all of them get one decision
    decided: tuple[float, ...] = ()  # share of each class among the decisions
    probabilities: tuple[float, ...] = ()  # of the last class: 5, 25, 50, 75 and 95% of the rows lie below
    confidence: float | None = None  # mean probability of the likeliest class
    saturated: float | None = None  # share of rows with a confidence of 99.9% or more
    accuracy: float | None = None
    low: float | None = None  # its interval, 95%
    high: float | None = None
    majority: float | None = None  # accuracy of always saying the most frequent class
    calibration: float | None = None  # mean distance of confidence and accuracy, over ten bins
    auc: float | None = None  # area under the ROC curve, mean of the classes
    auc_low: float | None = None  # its interval, 95%
    auc_high: float | None = None
    attainable: float | None = None  # AUC of a quick forest on the same rows, out of bag

    @property
    def refused(self) -> bool:
        """Whether there is no verdict about a model unless the user says that its inputs are right."""
        return self.level in ("unconfirmed", "wrong")


@dataclass(frozen=True)
class DecisionReport:
    """What counts as a flip of the decision."""

    kind: Literal["argmax", "threshold", "tolerance"]
    value: float  # the threshold, or the widest gap that is tolerated
    scale: Scale = "numbers"  # what the scores are; probabilities of logits are their softmax or sigmoid


@dataclass(frozen=True)
class Seconds:
    """How long it took."""

    total: float = 0.0
    interpretation: float = 0.0
    search: float = 0.0
    rate: float = 0.0
    proof: float = 0.0
    repair: float = 0.0
    counterparts: float = 0.0


@dataclass(frozen=True)
class Reproduction:
    """How to do it again."""

    command: str
    seed: int
    created: str
    python: str
    torch: str
    numpy: str
    platform: str
    domain: str  # fingerprint, as of rows and model
    rows: str
    model: str
    interrupted: bool = False  # by Ctrl-C
    export: str | None = None  # the command that writes all findings as a table; null without a folder


@dataclass(frozen=True)
class Report:
    """The whole audit."""

    neuronfair: str  # version of the package
    verdict: Verdict
    data: DataReport
    model: ModelReport
    decision: DecisionReport
    attributes: tuple[AttributeReport, ...]  # one for each sensitive attribute, then one for all together
    reproduction: Reproduction
    seconds: Seconds = Seconds()
    feeding: EncodingCheckReport | None = None  # null if the audit was interrupted before
    repair: RepairReport | None = None
    corpus: RegressionSetReport | None = None  # with --corpus
    baseline: BaselineReport | None = None  # with --baseline
    gate: Gate | None = None  # with --fail-if
    schema: int = SCHEMA  # raised when an entry changes its meaning

    def to_json(self) -> str:
        """Return the content of audit.json."""
        return as_json(self)

    @property
    def is_misfed(self) -> bool:
        """Whether the input encoding check failed, and the user has not said that the encoding is right."""
        return self.feeding is not None and self.feeding.refused and not self.feeding.trusted

    @staticmethod
    def from_json(text: str | bytes, source: object = "audit.json") -> Report:
        """Read the content of an audit.json; what is damaged, or of another form, is refused with its place."""
        return read_json(text, Report, source, "an audit.json")


@dataclass(frozen=True)
class _Form:
    schema: int


def as_json(report: object) -> str:
    """Return a report as text."""
    return json.dumps(msgspec.to_builtins(report), indent=2, allow_nan=False) + "\n"


def read_json(text: str | bytes, kind: type[T], source: object, what: str) -> T:
    """Read a report of one kind back; what is damaged, or of another form, is refused with its place."""
    try:
        schema = msgspec.json.decode(text, type=_Form).schema
        if schema != SCHEMA:
            raise DataError(f"{source}: written in form {schema}, but this version reads form {SCHEMA}. Audit again")
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: not {what} that can be read ({error})") from None
