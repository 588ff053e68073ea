"""The report of an audit of texts as one HTML page, with the changed words marked."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from neuronfair.audits.wording.summary import NOT_MEASURED, Metric
from neuronfair.formatting import percent
from neuronfair.render.page import rendered
from neuronfair.text.report import (
    REASON_TEXT,
    GroupPairReport,
    Share,
    TextFinding,
    TextReport,
    headline,
    points,
)

LONGEST = 600  # characters of a text that is shown
_PIECE = re.compile(r"\w+(?:['’]\w+)?|\W", re.UNICODE)


@dataclass(frozen=True)
class TextPiece:
    """A part of a text; `changed` where the other text of the pair differs."""

    text: str
    changed: bool


def pieces(text: str, other: str) -> list[TextPiece]:
    """Return a text in pieces, the words that another text does not share marked.

    >>> [piece.text for piece in pieces("She left.", "He left.") if piece.changed]
    ['She']
    """
    own, theirs = _PIECE.findall(text[:LONGEST]), _PIECE.findall(other[:LONGEST])
    found = []
    for kind, start, end, _, _ in difflib.SequenceMatcher(None, own, theirs, autojunk=False).get_opcodes():
        if end > start:
            found.append(TextPiece("".join(own[start:end]), kind != "equal"))
    return [*found, TextPiece("…", False)] if len(text) > LONGEST else found


def text_page(report: TextReport) -> str:
    """Return the audit of texts as one self-contained HTML page."""
    return rendered(
        "texts.html",
        style="page.css",
        script="page.js",
        report=report,
        headline=headline(report),
        tone=_tone(report),
        tiles_of=metrics(report),
        steps=next_steps(report),
        marked=pieces,
        matrix=_matrix(report),
        heat=_heat,
        reasons=REASON_TEXT,
        search_pairs=[one for one in report.worst if one.found_by != "data set"],
        table_pairs=[one for one in report.worst if one.found_by == "data set"],
        score_of=_score,
    )


def metrics(report: TextReport) -> list[Metric]:
    """Return the figures of the first screen, each with its interval and of how many it speaks."""
    rate, baseline, change = report.flip_rate, report.baseline, report.score_change
    mention = f"texts that mention {report.attribute}"
    found = [
        _metric("Flip rate", rate, f"of {rate.of:,} {mention}")
        if rate is not None
        else Metric("Flip rate", NOT_MEASURED, "No text was answered in both versions.")
    ]
    if baseline is None:
        found.append(Metric("Excess over neutral words", NOT_MEASURED, "No baseline was measured."))
    else:
        low, high = points(baseline.excess.low), points(baseline.excess.high)
        found.append(
            Metric(
                "Excess over neutral words",
                f"{points(baseline.excess.value)} pp",
                f"of {baseline.texts:,} texts; neutral words change {percent(baseline.neutral.value)} of decisions",
                f"{low} to {high} pp",
                0.95,
                "" if baseline.claimed else "not above the baseline: the model may just be unstable",
            )
        )
    if change is not None and report.largest_change is not None:
        found.append(
            Metric(
                "Change of score",
                f"{change.value:.3g}",
                f"on average over {mention}; {report.largest_change:.3g} at most",
                f"{change.low:.3g}–{change.high:.3g}",
                0.95,
            )
        )
    return found


def _metric(name: str, share: Share, of: str) -> Metric:
    return Metric(name, percent(share.value), of, f"{percent(share.low)[:-1]}–{percent(share.high)}", 0.95)


def next_steps(report: TextReport) -> list[str]:
    """Return what to do next."""
    steps = []
    if report.worst:
        steps.append("Read the pairs below: would you defend both decisions in front of the person concerned?")
    baseline = report.baseline
    if baseline is not None and baseline.claimed:
        steps.append("Add the twins with the labels of the originals to the training data, and audit the new model.")
    elif report.flip_rate is not None and report.flip_rate.count:
        steps.append("Neutral words change decisions as often: make the model more stable before you compare groups.")
    if report.gate is None:
        steps.append("Set a threshold for your build: --fail-if 'flip_rate > 1%'.")
    return steps[:3]


def _tone(report: TextReport) -> str:
    if report.gate is None:
        return "neutral"
    return "calm" if report.gate.passed else "strong"


def _matrix(report: TextReport) -> dict[str, dict[str, GroupPairReport]]:
    """Return the pairs of groups by the group that texts mention, and the one that they are swapped to."""
    found: dict[str, dict[str, GroupPairReport]] = {}
    for pair in report.pairs:
        found.setdefault(pair.group, {})[pair.other] = pair
    return found


def _heat(share: Share, report: TextReport) -> str:
    """Return how strongly a cell of the matrix is shaded, in percent."""
    most = max((pair.flips.value for pair in report.pairs), default=0.0)
    return f"{45 * share.value / most if most else 0:.0f}%"


def _score(finding: TextFinding, report: TextReport) -> str:
    return f"score of {report.favourable}: {finding.score:.3f} → {finding.twin_score:.3f}"
