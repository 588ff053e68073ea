"""The result of an audit of texts as plain values, and the sentences that terminal and page say about it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import shorten

from neuronfair.audits.gate.thresholds import Threshold, check_count, check_rate, make_refusal, read_expressions
from neuronfair.audits.report import SCHEMA, Gate, GateCheck, ThresholdState, Tone, format_json, read_json
from neuronfair.audits.report.counterfactual import Interval
from neuronfair.audits.wording.summary import NOT_MEASURED, SIGNS, Metric, Step
from neuronfair.audits.wording.verdict import NO_THRESHOLD, find_threshold_state
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import format_count, interval_ends, join_words, percent, pluralise, with_interval
from neuronfair.measure.stats import Estimate
from neuronfair.render.export import write_text_junit
from neuronfair.render.page import render_template
from neuronfair.text.lexicon import REASON_TEXT, Reason


@dataclass(frozen=True)
class Share:
    """A share with its 95% confidence interval."""

    count: int  # how many
    of: int  # of how many
    value: float  # the share
    low: float  # lower end of its confidence interval
    high: float  # upper end of it


@dataclass(frozen=True)
class TextModelReport:
    """The model under test."""

    source: str  # file, name or type
    kind: str  # torch, scikit-learn or Python function
    classes: tuple[str, ...]  # names of its decisions
    white_box: bool  # whether its neurons can be read
    fingerprint: str  # of its weights or code
    accuracy: float | None = None  # on the texts with labels
    calls: int | None = None  # texts that were sent to a function; null for a network
    unanswered: int = 0  # pairs of texts without an answer


@dataclass(frozen=True)
class TextsReport:
    """Which texts were tested."""

    name: str  # of the table
    column: str  # with the texts
    all: int  # different texts, empty ones left out
    tested: int  # with an identity that can be swapped
    measured: int  # how many of the tested texts the model was asked about
    left_out: dict[Reason, int]  # the others, by reason
    empty: int = 0  # texts without a letter


@dataclass(frozen=True)
class GroupPairReport:
    """Texts of one group, swapped to another."""

    group: str  # that the texts mention
    other: str  # that they are swapped to
    flips: Share  # pairs with different decisions
    lost: int  # flips in which the text has the favourable decision and the twin has not
    gained: int  # flips the other way round
    shift: float  # mean change of the favourable class's score by the swap


@dataclass(frozen=True)
class NeutralWordsReport:
    """Swaps of as many neutral words of equal frequency, in the same texts."""

    texts: int  # with enough neutral words
    identity: Estimate  # share whose decision changes by the swap of the identity
    neutral: Estimate  # share whose decision changes by the swap of neutral words
    excess: Estimate  # the difference
    score_identity: float  # mean change of the score by the swap of the identity, without sign
    score_neutral: float  # the same for neutral words
    claimed: bool  # whether the two intervals are apart, with identity above


@dataclass(frozen=True)
class TextFinding:
    """A text and its twin with different decisions."""

    text: str  # the text
    twin: str  # the text with the other identity
    group: str  # that the text mentions
    other: str  # that the twin mentions
    decision: str  # for the text
    twin_decision: str  # for the twin
    score: float  # of the favourable class, for the text
    twin_score: float  # the same for the twin
    found_by: str  # "data set", or a search method
    original: str | None = None  # the text of the data set that a search started from


@dataclass(frozen=True)
class TextSearchReport:
    """What one search found, next to its controls."""

    method: str  # of the search
    findings: int  # different texts whose decision depends on the identity
    tried: int  # different texts evaluated
    rate: float  # findings / tried
    random_rate: float | None  # the same for random words in the same texts
    random_direction_rate: float | None  # for the same walk along noise; null without gradients


@dataclass(frozen=True)
class TextLayerReport:
    """How one layer reacts to the identity."""

    name: str  # of the layer
    units: int  # neurons, each averaged over the tokens of a text
    auc: float  # area under its AS curve
    biased: tuple[int, ...]  # units above the cut


@dataclass(frozen=True)
class TextInterpretation:
    """Which layers and neurons react, and what their silence changes."""

    worst: str  # the most biased layer
    layers: tuple[TextLayerReport, ...]  # in the order of the network
    flip_rate: float  # of the texts, with all neurons
    without_biased: float  # with the biased neurons of the most biased layer silenced
    without_random: float  # with as many random neurons of it silenced, mean of several draws


@dataclass(frozen=True)
class TopicReport:
    """A word whose texts depend on the identity more often than the others."""

    word: str  # the word
    texts: int  # texts with the word
    flips: int  # how many of them have a decision that depends on the identity
    p_value: float  # of Fisher's exact test, corrected for the number of words


@dataclass(frozen=True)
class TextReport:
    """The whole audit of a model of texts by one attribute."""

    neuronfair: str  # version
    attribute: str  # that was swapped
    groups: tuple[str, ...]  # of the lexicon
    favourable: str  # class that counts as the favourable outcome
    model: TextModelReport
    texts: TextsReport
    flip_rate: Share | None  # texts with a twin that gets a different decision; null if no pair was answered
    score_change: Estimate | None  # mean change of the score, without sign; null for a model that returns names
    largest_change: float | None  # of all pairs
    pairs: tuple[GroupPairReport, ...]
    baseline: NeutralWordsReport | None  # null where calls were spent, or no text has enough neutral words
    worst: tuple[TextFinding, ...]  # of the data set first, the widest change of score first
    searches: tuple[TextSearchReport, ...] = ()
    interpretation: TextInterpretation | None = None  # null for a black box
    topics: tuple[TopicReport, ...] = ()
    gate: Gate | None = None  # null without thresholds
    notes: tuple[str, ...] = ()  # what may mislead
    seed: int = 0  # of all random numbers
    seconds: float = 0.0  # that it took
    interrupted: bool = False  # by Ctrl-C, or since all calls were spent
    calls_spent: bool = False  # whether that was since all calls were spent
    thresholds: ThresholdState = "none set"  # not evaluated: set, but the audit was interrupted or cannot be assessed
    threshold_text: str = NO_THRESHOLD  # the same as a sentence
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the content of audit.json."""
        return format_json(self)

    def to_junit(self, reason: object = None) -> str:
        """Return the thresholds as JUnit XML; `reason` says why they could not be evaluated."""
        unknown = str(reason or self.threshold_text) if self.thresholds == "not evaluated" else ""
        return write_text_junit(self.texts.name, self.attribute, self.gate, lines(self), unknown)

    @staticmethod
    def from_json(text: str | bytes, source: object = "audit.json") -> TextReport:
        """Read the content of an audit.json; what is damaged, or of another form, is refused with its place."""
        return read_json(text, TextReport, source, "the audit.json of texts")


TONES: dict[ThresholdState, Tone] = {
    "failed": "alarm",
    "passed": "calm",
    "not evaluated": "caution",
    "none set": "neutral",
}


def find_disadvantaged_group(report: TextReport) -> tuple[str, int, int] | None:
    """Return the group that loses the favourable decision most often: its name, the flips against it, and all flips."""
    flips = sum(pair.flips.count for pair in report.pairs)
    losses_by_group = dict.fromkeys(report.groups, 0)
    for pair in report.pairs:
        losses_by_group[pair.group] += pair.gained
        losses_by_group[pair.other] += pair.lost
    if not flips:
        return None
    name = max(losses_by_group, key=lambda group: losses_by_group[group])
    counts = sorted(losses_by_group.values())
    return (name, losses_by_group[name], flips) if len(counts) < 2 or counts[-1] > counts[-2] else None


def headline(report: TextReport) -> str:
    """Return the fact that comes first."""
    rate = report.flip_rate
    if rate is None:
        return f"No text was answered in both versions, so nothing is known about {report.attribute}."
    if not rate.count:
        return f"No decision changed when {report.attribute} was swapped in {pluralise(rate.of, 'text')}."
    fact = (
        f"Decisions depend on {report.attribute} for {percent(rate.value)} of texts that mention it "
        f"({rate.count:,} of {rate.of:,})"
    )
    worst = find_disadvantaged_group(report)
    if worst is None:
        return f"{fact}."
    name, count, flips = worst
    return f"{fact}; {percent(count / flips)} of these flips disadvantage {name}."


def lines(report: TextReport) -> list[str]:
    """Return the whole summary, at most 25 lines."""
    texts, rate, baseline = report.texts, report.flip_rate, report.baseline
    summary = [headline(report)]
    if report.gate is not None:
        summary += [f"{'●' if not c.fired else '▲'} {c.text}" for c in report.gate.checks]
    else:
        summary.append(f"{SIGNS[TONES[report.thresholds]]} {report.threshold_text}")
    summary += [""]
    if rate is not None:
        ends = with_interval(rate.value, rate.low, rate.high)
        summary.append(f"Flip rate         {ends} of {pluralise(rate.of, 'text')}, 95% CI")
    if baseline is not None:
        summary.append(f"Neutral words     {with_interval(*baseline.neutral)}")
        significance = "" if baseline.claimed else ", not significant"
        summary.append(f"Excess            {_format_points(baseline.excess)}{significance}")
    if report.score_change is not None and report.largest_change is not None:
        change = report.score_change
        summary.append(f"Change of score   {change.value:.3g} on average, {report.largest_change:.3g} at most")
    for search in report.searches:
        controls = f"random words {percent(search.random_rate)}" if search.random_rate is not None else "no control"
        summary.append(
            f"Search            {search.method}: {pluralise(search.findings, 'finding')} in {search.tried:,} texts "
            f"({percent(search.rate)}; {controls})"
        )
    scope = f"{texts.tested:,} of {format_count(texts.all)} mention {report.attribute} so that it can be swapped"
    summary += ["", f"Texts: {scope}."]
    left_out = [f"{count:,} {REASON_TEXT[reason]}" for reason, count in texts.left_out.items() if count]
    if left_out:
        summary.append(f"Left out: {join_words(left_out)}.")
    if report.worst:
        finding = report.worst[0]
        summary += [
            "",
            f"Largest change: “{shorten(finding.text, 140, placeholder='…')}” → {finding.decision}",
            f"as {finding.other}: → {finding.twin_decision}",
        ]
    return summary + [f"Note: {note}" for note in report.notes[:3]]


def _format_points(mean: Estimate) -> str:
    value, low, high = map(in_percentage_points, mean)
    return f"{value} pp ({low} to {high} pp)"


def in_percentage_points(share: float) -> str:
    """Return a difference of shares in percentage points, without the unit.

    >>> in_percentage_points(-0.00721), in_percentage_points(1e-17)
    ('−0.72', '0')
    """
    return f"{round(100 * share, 2) + 0:g}".replace("-", "−")


MAX_SHOWN_CHARACTERS = 600  # characters of a text that is shown
_PIECE = re.compile(r"\w+(?:['’]\w+)?|\W", re.UNICODE)


@dataclass(frozen=True)
class TextPiece:
    """A part of a text; `changed` where the other text of the pair differs."""

    text: str
    changed: bool


def mark_changes(text: str, other: str) -> list[TextPiece]:
    """Return a text in pieces, the words that another text does not share marked.

    >>> [piece.text for piece in mark_changes("She left.", "He left.") if piece.changed]
    ['She']
    """
    words, other_words = _PIECE.findall(text[:MAX_SHOWN_CHARACTERS]), _PIECE.findall(other[:MAX_SHOWN_CHARACTERS])
    result = []
    for kind, start, end, _, _ in difflib.SequenceMatcher(None, words, other_words, autojunk=False).get_opcodes():
        if end > start:
            result.append(TextPiece("".join(words[start:end]), kind != "equal"))
    return [*result, TextPiece("…", False)] if len(text) > MAX_SHOWN_CHARACTERS else result


def text_page(report: TextReport) -> str:
    """Return the audit of texts as one self-contained HTML page."""
    by_search = [finding for finding in report.worst if finding.found_by != "data set"]
    return render_template(
        "texts.html",
        version=report.neuronfair,
        report=report,
        headline=headline(report),
        tone=TONES[report.thresholds],
        status=f"{SIGNS[TONES[report.thresholds]]} {report.threshold_text}",
        metrics=metrics(report),
        steps=[Step(text) for text in propose_steps(report)],
        split_changes=mark_changes,
        matrix=_arrange_by_groups(report),
        format_heat=_format_heat,
        reasons=REASON_TEXT,
        search_pairs=by_search,
        table_pairs=[finding for finding in report.worst if finding.found_by == "data set"],
        format_ends=lambda mean: interval_ends(*mean),
    )


def metrics(report: TextReport) -> list[Metric]:
    """Return the figures of the first screen, each with its interval and of how many it speaks."""
    rate, baseline, change = report.flip_rate, report.baseline, report.score_change
    mention, excess = f"texts that mention {report.attribute}", "Excess over neutral words"
    if rate is None:
        tiles = [Metric("Flip rate", NOT_MEASURED, "No text was answered in both versions.")]
    else:
        ends = f"{percent(rate.low)[:-1]}–{percent(rate.high)}"
        tiles = [Metric("Flip rate", percent(rate.value), f"of {rate.of:,} {mention}", ends, 0.95)]
    if baseline is None:
        reason = "Too few neutral words of equal frequency, or the audit ended early."
        tiles.append(Metric(excess, NOT_MEASURED, reason))
    else:
        value, low, high = map(in_percentage_points, baseline.excess)
        neutral = percent(baseline.neutral.value)
        description = f"of {baseline.texts:,} texts; neutral words change {neutral} of decisions"
        warning = "" if baseline.claimed else "not above the baseline: the model may just be unstable"
        tiles.append(Metric(excess, f"{value} pp", description, f"{low} to {high} pp", 0.95, warning))
    if change is not None and report.largest_change is not None:
        description = f"on average over {mention}; {report.largest_change:.3g} at most"
        ends = f"{change.low:.3g}–{change.high:.3g}"
        tiles.append(Metric("Change of score", f"{change.value:.3g}", description, ends, 0.95))
    return tiles


def propose_steps(report: TextReport) -> list[str]:
    """Return what to do next."""
    steps = []
    if report.worst:
        steps.append("Read the pairs below: would you defend both decisions in front of the person concerned?")
    baseline = report.baseline
    if baseline is not None and baseline.claimed:
        steps.append("Add the twins with the labels of the originals to the training data: see nf.repair_texts().")
    elif baseline is not None and baseline.neutral.value and report.flip_rate is not None and report.flip_rate.count:
        steps.append("Neutral words change decisions as often: make the model more stable before you compare groups.")
    if report.gate is None:
        steps.append("Set a threshold for your build: --fail-if 'flip_rate > 1%'.")
    return steps[:3]


def _arrange_by_groups(report: TextReport) -> dict[str, dict[str, GroupPairReport]]:
    """Return the pairs of groups by the group that texts mention, and the one that they are swapped to."""
    matrix: dict[str, dict[str, GroupPairReport]] = {}
    for pair in report.pairs:
        matrix.setdefault(pair.group, {})[pair.other] = pair
    return matrix


def _format_heat(share: Share, report: TextReport) -> str:
    """Return how strongly a cell of the matrix is shaded, in percent."""
    highest_share = max((pair.flips.value for pair in report.pairs), default=0.0)
    return f"{45 * share.value / highest_share if highest_share else 0:.0f}%"


# Thresholds


def read_threshold(text: str, attribute: str, *, searches: bool) -> Threshold:
    """Read a threshold for texts, such as flip_rate > 1%; refuse what there is not for texts."""
    limit = read_expressions([text], [attribute], [])[0]
    if limit.metric not in ("flip_rate", "findings"):
        raise make_refusal(text, "for texts there are flip_rate and findings")
    if limit.metric == "findings" and not searches:
        raise make_refusal(
            text, "there is no search without steps. Leave out --steps 0, or set a threshold on flip_rate"
        )
    return limit


def evaluate(
    report: TextReport, thresholds: Sequence[Threshold], *, is_constant: bool
) -> tuple[TextReport, NeuronFairError | None]:
    """Return a report with its thresholds, or why they could not be evaluated; after Ctrl-C none is."""
    gate, failure = None, None
    if thresholds and (report.calls_spent or not report.interrupted):
        try:
            checks = tuple(_check_threshold(limit, report, is_constant=is_constant) for limit in thresholds)
            gate = Gate(not any(check.fired for check in checks), checks)
        except NeuronFairError as error:
            failure = error
    state, sentence = find_threshold_state(gate, thresholds_set=bool(thresholds))
    return replace(report, gate=gate, thresholds=state, threshold_text=sentence), failure


def _check_threshold(limit: Threshold, report: TextReport, *, is_constant: bool) -> GateCheck:
    """Return whether a threshold fails; a build must not pass for lack of a measurement."""
    rate = report.flip_rate
    if rate is None:
        raise make_refusal(limit.expression, "no text was answered in both versions")
    if is_constant:
        raise make_refusal(
            limit.expression,
            "this model gave the same decision for every text, so it cannot be assessed. Check the texts and the "
            "--decision",
        )
    if limit.metric == "findings":
        if report.calls_spent or not report.searches:
            spent = "all calls were spent before the searches ended"
            reason = spent if report.calls_spent else "no text has other words"
            raise make_refusal(limit.expression, f"no search was made: {reason}")
        worst = (max if limit.looks_up else min)(report.searches, key=lambda search: search.findings)
        return check_count(limit, report.attribute, worst.findings, f"Search by {worst.method}.")
    texts = f"{pluralise(rate.of, 'text')} that mention {report.attribute}"
    return check_rate(limit, report.attribute, Interval(rate.value, rate.low, rate.high), texts)
