"""An audit as one HTML page that opens offline, fits a phone and prints; in its templates everything is escaped."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from neuronfair import formatting
from neuronfair.audits.report.attribute import NOT_READ, UNMOVED, AttributeReport, Finding
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval, MoveReport
from neuronfair.audits.report.report import AuditIndex, Report, Seconds, Tone, worst_of
from neuronfair.audits.wording import summary
from neuronfair.audits.wording.phrases import AMONG
from neuronfair.formatting import visible
from neuronfair.render.page import charts
from neuronfair.render.tables import left_out


class Reported(Protocol):
    """What has a report, such as the result of an audit."""

    @property
    def report(self) -> Report:
        """The report."""
        ...


def audit_page(audit: Report | Reported) -> str:
    """Return an audit, or its report, as one self-contained HTML page."""
    report = audit if isinstance(audit, Report) else audit.report
    return rendered("page.html", style="page.css", script="page.js", report=report)


def index_page(index: AuditIndex) -> str:
    """Return many audits as one page: a line for each, to sort and to search, with a link to its own page."""
    return rendered("index.html", style="page.css", script="page.js", index=index)


def verdict_card(report: Report, folder: Path | None = None) -> str:
    """Return the first screen as a piece of HTML for a notebook: no script, no style but its own."""
    return rendered("card.html", report=report, folder=folder)


TONES: dict[Tone, str] = {"alarm": "strong", "caution": "middle", "calm": "calm", "neutral": "neutral"}  # of page.css


def rendered(template: str, *, style: str | None = None, script: str | None = None, **values: Any) -> str:
    """Return a page from a template and the files of its style and its script; control characters are written out."""
    place = Path(__file__).parent
    parts = {"style": style, "script": script}
    values |= {name: file and (place / file).read_text(encoding="utf-8") for name, file in parts.items()}
    return visible(_environment().get_template(template).render(values), keep="\n\r\t")


def _worst_first(attributes: Sequence[AttributeReport]) -> list[AttributeReport]:
    """Return the attributes with the one that the headline speaks of first."""
    worst = [worst_of(attributes)] if attributes else []
    return [*worst, *(one for one in attributes if one not in worst)]


def _clearest(moves: Sequence[MoveReport]) -> list[MoveReport]:
    """Return those by which most people, on balance, lose or gain first, or else those by which most flip."""

    def concerned(move: MoveReport) -> tuple[float, float]:
        return abs((move.lost or 0.0) - (move.gained or 0.0)) * move.people, move.flips * move.people

    return sorted(moves, key=concerned, reverse=True)


def _people(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the attributes of each finding, which the page's script shows on demand."""
    columns = list(dict.fromkeys(attribute for finding in findings for attribute in finding.row))
    return {
        "columns": columns,
        "rows": [[finding.row.get(column) for column in columns] for finding in findings],
        "changed": [[[c.attribute, c.own, c.twin] for c in finding.changed] for finding in findings],
    }


def _odds(finding: Finding) -> tuple[str, str, str]:
    """Return what is shown below two decisions, and its values: a probability, or a score where there is none."""
    if finding.probability is None or finding.twin_probability is None:
        return ("score", *formatting.apart(finding.score, finding.twin_score))
    one, other = formatting.shift(finding.probability, finding.twin_probability)
    return f"probability of {finding.outcome}", one, other


def _distance(finding: Finding) -> float:
    """Return how far two people lie apart: of probabilities, or of scores where there are none."""
    if finding.probability is None or finding.twin_probability is None:
        return finding.gap
    return abs(finding.probability - finding.twin_probability)


def _gap(finding: Finding) -> str:
    if finding.probability is None:
        return formatting.number(finding.gap)
    return formatting.points(_distance(finding))


def _digest(script: str) -> str:
    """Return the name of a script in a page's policy, which then allows no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _layers(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{layer} ({size})" for layer, size in layers.items())


def _parts(seconds: Seconds) -> str:
    return ", ".join(f"{step} {formatting.duration(value)}" for step, value in asdict(seconds).items())


def _spanned(rate: Interval | CounterfactualReport, unit: str = "%") -> str:
    """Return a share with the ends of its interval, in percent or in percentage points."""
    return formatting.spanned(rate.rate, rate.low, rate.high, unit)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        **{
            show.__name__: show
            for show in (
                formatting.duration,
                formatting.listed,
                formatting.many,
                formatting.number,
                formatting.percent,
                formatting.plural,
                formatting.points,
                formatting.times,
                formatting.likelihood,
                formatting.whole,
            )
        },
        "between": lambda rate: formatting.ends(rate.rate, rate.low, rate.high),
        "gap_ends": lambda gap: formatting.ends(gap.value, gap.low, gap.high, " pp"),
        "clearest": _clearest,
        "digest": _digest,
        "distance": _distance,
        "gap": _gap,
        "layers": _layers,
        "left_out": left_out,
        "maps": charts.layer_maps,
        "limits_of": summary.limits_of,
        "metrics": summary.metrics,
        "next_steps": summary.next_steps,
        "odds": _odds,
        "parts": _parts,
        "people": _people,
        "reach": charts.reach,
        "spanned": _spanned,
        "status": summary.status,
        "widest": charts.widest,
        "worst_first": _worst_first,
    }
    environment.globals |= {
        "AMONG": AMONG,
        "UNREAD": (NOT_READ, UNMOVED),
        "TONES": TONES,
        "OF": formatting.OF,
        "POPULATIONS": formatting.POPULATIONS,
        "at": charts.at,
        "ticks": charts.ticks,
        "top_of": charts.top_of,
    }
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment
