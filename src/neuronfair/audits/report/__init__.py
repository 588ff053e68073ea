"""The report of an audit: a tree of frozen dataclasses that page, terminal, gate, JUnit, Markdown and audit.json show.

`to_json` and `from_json` are the only ways in and out. The comments behind the fields are their documentation:
docs/reference/results.schema.json is made from them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import msgspec

from neuronfair.audits.report.attribute import AttributeReport, Conclusion, FlipRateReport
from neuronfair.audits.report.counterfactual import Interval
from neuronfair.domain.schema.column_types import ExcludedColumn
from neuronfair.errors import DataError
from neuronfair.model.decision import Scale

SCHEMA = 3
T = TypeVar("T")
ThresholdState = Literal["none set", "passed", "failed", "not evaluated"]
Tone = Literal["alarm", "caution", "calm", "neutral"]
EncodingLevel = Literal["ok", "not assessable", "suspicious", "unconfirmed", "wrong"]


@dataclass(frozen=True)
class RegressionSetReport:
    """Past counterexamples, evaluated again."""

    file: str  # path of the regression set
    replayed: int  # counterexamples evaluated again
    still_flips: int  # counterexamples whose decision still flips
    fixed: int  # counterexamples whose decision no longer flips
    unfit: int  # counterexamples that no longer fit the domain
    added: int = 0  # new counterexamples added by this audit
    examples: tuple[str, ...] = ()  # sentences on counterexamples whose decision still flips
    notes: tuple[str, ...] = ()  # sentences on those that do not fit


@dataclass(frozen=True)
class FigureChange:
    """A figure of an earlier audit and of this one."""

    figure: str  # name of the metric
    before: float  # value in the earlier audit
    after: float  # value in this audit
    low: float | None  # lower end of the interval of the difference; null: it has none
    high: float | None  # upper end of it
    significant: bool  # whether the intervals do not overlap
    text: str  # the same as a sentence


@dataclass(frozen=True)
class BaselineReport:
    """What changed since an earlier audit."""

    file: str  # path of the earlier audit.json
    changes: tuple[FigureChange, ...]  # one entry for each metric
    text: str  # the changes in words


@dataclass(frozen=True)
class GateCheck:
    """A threshold, and the value that it was compared with."""

    expression: str  # the threshold as written
    attribute: str | None  # null: of the whole audit
    value: float  # measured value of the metric
    low: float | None  # lower end of its confidence interval; null: it has none
    high: float | None  # upper end of it
    judged_on: Literal["value", "lower end", "upper end"]  # what was compared with the threshold
    fired: bool  # whether the expression holds, which fails the build
    text: str  # the same as a sentence
    figure: str = ""  # metric that decided: for a flip rate, that of one population
    exceeded: bool = True  # whether the value itself, not only an end of its interval, meets the expression
    note: str = ""  # what else a reader should know, as sentences: the counts, and the milder populations

    @property
    def explained(self) -> str:
        """The comparison and what else a reader should know."""
        return f"{self.text} {self.note}".rstrip()


@dataclass(frozen=True)
class Gate:
    """All thresholds."""

    passed: bool  # whether no threshold failed
    checks: tuple[GateCheck, ...]  # one entry for each threshold and attribute


@dataclass(frozen=True)
class Verdict:
    """What the audit concludes. Only a threshold that failed raises an alarm."""

    level: Conclusion  # "dependence found" for a record of the data set or only for synthetic ones: see the headline
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
    """The population model that realistic synthetic records are drawn from, and its quality."""

    kind: Literal["table", "own", "none"]  # model fitted to the data set; your own sampler; none was possible
    rows: int  # records it was fitted to
    text: str  # the same as a sentence
    auc: float | None = None  # real-versus-synthetic AUC: 0.5 if they cannot be told apart; null: not measured
    log_likelihood: float | None = None  # mean over held-out real records
    least: float = 0.0  # minimum likelihood percentile of the searches, as a share; 0: the whole input space


@dataclass(frozen=True)
class DataReport:
    """The table."""

    name: str  # name of the data set
    rows: int  # number of records
    attributes: int  # number of attributes
    sensitive: tuple[str, ...]  # sensitive attributes of the domain
    target: str | None = None  # column to predict
    classes: tuple[str, ...] = ()  # classes of the target
    favourable: str | None = None  # the favourable outcome
    domain_inferred: bool = False  # whether the domain was inferred from the data set
    left_out: tuple[ExcludedColumn, ...] = ()  # columns that are not used, and why
    population: PopulationReport | None = None  # null in older audits


@dataclass(frozen=True)
class ModelReport:
    """The model."""

    source: str  # where it came from
    kind: str  # type of the model
    white_box: bool  # whether its layers or coefficients are known
    note: str  # how it was opened
    fingerprint: str  # of the weights or of the file
    outputs: int  # number of outputs
    layers: Mapping[str, int] = field(default_factory=dict)  # neurons by layer
    accuracy: Mapping[str, float] | None = None  # by part: train, validation, test; or table
    trained_here: bool = False  # whether this command trained it


@dataclass(frozen=True)
class EncodingCheckReport:
    """Whether the inputs seem to be encoded as in training; null where it could not be measured."""

    level: EncodingLevel  # result of the check
    text: str  # the result in words
    rows: int  # records of the data set that were used
    trusted: bool = False  # whether --skip-encoding-check was set
    constant: bool = False  # whether all records get the same decision
    decided: tuple[float, ...] = ()  # share of each class among the decisions
    probabilities: tuple[float, ...] = ()  # of the last class: 5, 25, 50, 75 and 95% of the rows lie below
    confidence: float | None = None  # mean probability of the likeliest class
    saturated: float | None = None  # share of rows with a confidence of 99.9% or more
    accuracy: float | None = None  # accuracy by the labels
    low: float | None = None  # lower end of its 95% confidence interval
    high: float | None = None  # upper end of it
    majority: float | None = None  # accuracy of always predicting the most frequent class
    calibration: float | None = None  # mean distance of confidence and accuracy, over ten bins
    auc: float | None = None  # ROC AUC, mean of the classes
    auc_low: float | None = None  # lower end of its 95% confidence interval
    auc_high: float | None = None  # upper end of it
    attainable: float | None = None  # ROC AUC of a quick random forest on the same rows, out of bag

    @property
    def refused(self) -> bool:
        """Whether there is no verdict about a model unless the user says that its inputs are right."""
        return self.level in ("unconfirmed", "wrong")


@dataclass(frozen=True)
class DecisionReport:
    """What counts as a flip of the decision."""

    kind: Literal["argmax", "threshold", "tolerance"]  # rule by which scores become decisions
    value: float  # the threshold, or the tolerance
    scale: Scale = "numbers"  # what the scores are; probabilities of logits are their softmax or sigmoid


@dataclass(frozen=True)
class Seconds:
    """How long it took."""

    total: float = 0.0  # all
    interpretation: float = 0.0  # neurons and layers
    search: float = 0.0  # searches
    rate: float = 0.0  # flip rates
    proof: float = 0.0  # certificates
    counterfactuals: float = 0.0  # counterfactual tests


@dataclass(frozen=True)
class Reproduction:
    """How to do it again."""

    command: str  # the command line
    seed: int  # of all random numbers
    created: str  # date and time
    python: str  # version
    torch: str  # version
    numpy: str  # version
    platform: str  # operating system and processor
    domain: str  # fingerprint of the domain
    rows: str  # fingerprint of the rows
    model: str  # fingerprint of the model
    interrupted: bool = False  # by Ctrl-C
    export: str | None = None  # the command that writes all findings as a table; null without a folder
    reduced: tuple[str, ...] = ()  # budgets below the defaults, in words: the audit was a quick look
    alternatives: str | None = None  # the command that searches for a less discriminatory model; null where none can


@dataclass(frozen=True)
class Report:
    """The whole audit."""

    neuronfair: str  # version of the package
    verdict: Verdict  # what the audit concludes
    data: DataReport  # the data set
    model: ModelReport  # the model
    decision: DecisionReport  # the decision rule
    attributes: tuple[AttributeReport, ...]  # one for each sensitive attribute, then one for all together
    reproduction: Reproduction  # how to repeat the audit
    seconds: Seconds = Seconds()  # time spent
    encoding_check: EncodingCheckReport | None = None  # null if the audit was interrupted before
    regression_set: RegressionSetReport | None = None  # with --regression-set
    baseline: BaselineReport | None = None  # with --baseline
    gate: Gate | None = None  # with --fail-if
    schema: int = SCHEMA  # raised when an entry changes its meaning

    def to_json(self) -> str:
        """Return the content of audit.json."""
        return format_json(self)

    @property
    def fails_encoding_check(self) -> bool:
        """Whether the input encoding check failed, and the user has not said that the encoding is right."""
        return self.encoding_check is not None and self.encoding_check.refused and not self.encoding_check.trusted

    @staticmethod
    def from_json(text: str | bytes, source: object = "audit.json") -> Report:
        """Read the content of an audit.json; what is damaged, or of another form, is refused with its place."""
        return read_json(text, Report, source, "an audit.json")


@dataclass(frozen=True)
class _SchemaVersion:
    schema: int


def format_json(report: object) -> str:
    """Return a report as text."""
    return json.dumps(msgspec.to_builtins(report), indent=2, allow_nan=False) + "\n"


def read_json(text: str | bytes, kind: type[T], source: object, description: str) -> T:
    """Read a report of one kind back; what is damaged, or of another form, is refused with its place."""
    try:
        schema = msgspec.json.decode(text, type=_SchemaVersion).schema
        if schema != SCHEMA:
            raise DataError(f"{source}: written in form {schema}, but this version reads form {SCHEMA}. Audit again")
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise DataError(f"{source}: not {description} that can be read ({error})") from None


AuditState = Literal["passed", "failed", "no limits", "error", "not finished"]


@dataclass(frozen=True)
class AuditLine:
    """One audit in short. The figures are those of its worst choice of sensitive attributes."""

    name: str  # of the audit, and of its folder
    model: str  # as in the file; empty: trained on the spot
    data: str  # as in the file
    sensitive: str  # sensitive attributes
    state: AuditState  # failed: a threshold failed; no limits: none was set
    error: str | None = None  # why it ended early, or why its thresholds could not be evaluated
    level: Conclusion | None = None  # level of the verdict
    verdict: str = ""  # the verdict in words
    attribute: str = ""  # the attribute to which the metrics belong
    rate: FlipRateReport | None = None  # flip rate in the data set
    random: FlipRateReport | None = None  # flip rate of uniformly drawn records
    counterfactual: Interval | None = None  # excess flip rate of the counterfactual test; null if none is claimed
    gap: float | None = None  # widest gap between a record and a twin
    gap_of: Literal["probabilities", "scores"] = "probabilities"  # what the gap is measured in
    fired: tuple[str, ...] = ()  # thresholds that failed, in words
    seconds: float = 0.0  # time spent
    page: str | None = None  # path of the report, relative to the index


@dataclass(frozen=True)
class AuditIndex:
    """Many audits."""

    neuronfair: str  # version of the package
    file: str  # the file that names the audits
    audits: tuple[AuditLine, ...]  # one entry for each audit
    seconds: float  # time of this command; finished audits do not count
    schema: int = SCHEMA  # raised when an entry changes its meaning

    def count(self, *states: AuditState) -> int:
        """Return how many audits are in one of these states."""
        return sum(line.state in states for line in self.audits)


def find_worst_attribute(attributes: Sequence[AttributeReport]) -> AttributeReport:
    """Return the sensitive attributes of which the verdict speaks: with the highest flip rate in the data set.

    A combination, which has more twins, leads only if no single attribute has flips in the data set. Where rates are
    equal, that of synthetic records decides, then the largest counterfactual effect.
    """

    def rank(attribute: AttributeReport) -> tuple[float, float, float]:
        excess = 0.0 if attribute.claimed_effect is None else attribute.claimed_effect.rate
        return max((rate.rate for rate in attribute.data_set_rates[:1]), default=0.0), attribute.rates.largest, excess

    single_attributes = [attribute for attribute in attributes if len(attribute.sensitive) == 1 and rank(attribute)[0]]
    return max(single_attributes or attributes, key=rank)


def fill_line(line: AuditLine, report: Report, page: str) -> AuditLine:
    """Return the line of an audit with what its report says; an error that is known stays."""
    state: AuditState = "no limits" if report.gate is None else "passed" if report.gate.passed else "failed"
    common = replace(
        line,
        state="not finished" if report.reproduction.interrupted else "error" if line.error is not None else state,
        level=report.verdict.level,
        verdict=report.verdict.text,
        fired=tuple(check.explained for check in report.gate.checks if check.fired) if report.gate is not None else (),
        seconds=report.seconds.total,
        page=page,
    )
    if not report.attributes:
        return common
    attribute = find_worst_attribute(report.attributes)
    gaps = attribute.probability_gaps or attribute.severity
    return replace(
        common,
        attribute=attribute.name,
        rate=next(iter(attribute.rates.available), None),
        random=attribute.rates.domain,
        counterfactual=attribute.claimed_effect,
        gap=None if gaps is None else gaps.max,
        gap_of="scores" if attribute.probability_gaps is None else "probabilities",
    )
