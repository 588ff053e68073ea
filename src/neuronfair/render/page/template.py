"""The templates of HTML pages, and what they are told: everything is escaped, and what is missing is an error."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape

from neuronfair import formatting
from neuronfair.audits.report.attribute import NOT_READ, UNMOVED, AttributeReport, Change, Finding, SearchReport
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval, MoveReport
from neuronfair.audits.report.index import worst_of
from neuronfair.audits.report.rates import RateOf
from neuronfair.audits.report.report import Seconds, Tone
from neuronfair.audits.wording.phrases import AMONG
from neuronfair.formatting import visible
from neuronfair.render.page import charts
from neuronfair.render.page.layermap import layer_maps
from neuronfair.render.tables import left_out

# The class of the style sheet, and a sign next to the words, so that nothing depends on the colour.
_TONES: dict[Tone, tuple[str, str]] = {
    "alarm": ("strong", "▲"),
    "caution": ("middle", "◆"),
    "calm": ("calm", "●"),
    "neutral": ("neutral", "○"),
}
SPACE = "\N{NARROW NO-BREAK SPACE}"  # between a figure and its unit


def rendered(template: str, *, style: str | None = None, scripts: Sequence[str] = (), **values: Any) -> str:
    """Return a page from a template and the files of its style and scripts; no name in it can hide."""
    place = Path(__file__).parent
    values["style"] = style and (place / style).read_text(encoding="utf-8")
    values["script"] = "".join((place / script).read_text(encoding="utf-8") for script in scripts)
    return visible(_environment().get_template(template).render(values), keep="\n\r\t")


def marked(finding: Finding) -> Markup:
    """Return the sentence of a finding with what changes marked, as far as the sentence names it.

    >>> from types import SimpleNamespace as One
    >>> marked(One(sentence="… with sex M instead of F: yes.", changed=[One(attribute="sex", own="F", twin="M")]))
    Markup('… with <mark>sex M instead of F</mark>: yes.')
    """
    sentence, at, parts = finding.sentence, 0, []
    for start, end in sorted(filter(None, (_place(sentence, change) for change in finding.changed))):
        if start >= at:  # two changes may have been found in the same words
            parts += [escape(sentence[at:start]), Markup("<mark>{}</mark>").format(sentence[start:end])]
            at = end
    return Markup("").join([*parts, escape(sentence[at:])])


def _place(sentence: str, change: Change) -> tuple[int, int] | None:
    """Return where a sentence speaks of a change: the more words the better."""
    attribute = formatting.plain(change.attribute)
    for told in (f"{attribute} {change.twin} instead of {change.own}", attribute):
        found = list(re.finditer(rf"(?<!\w){re.escape(told)}(?!\w)", sentence))
        if found:
            return found[-1].span()  # the person is described first, the change last
    return None


def _headline(attribute: AttributeReport) -> RateOf | None:
    """Return the rate that stands for a choice of attributes: that of the people one has."""
    return next(iter(attribute.rates.measured), None)


def _clearest(moves: Sequence[MoveReport]) -> list[MoveReport]:
    """Return those by which most people, on balance, lose or gain first, or else those by which most flip."""

    def concerned(move: MoveReport) -> tuple[float, float]:
        return abs((move.lost or 0.0) - (move.gained or 0.0)) * move.people, move.flips * move.people

    return sorted(moves, key=concerned, reverse=True)


def _hurting(attributes: Sequence[AttributeReport]) -> Sequence[AttributeReport]:
    """Return those of whom the first screen says whom they hurt: each attribute alone, at most two.

    Where counterparts lead, the verdict has said it.
    """
    every = [one for one in attributes if one.direction and not one.leads_with_counterparts]
    return ([one for one in every if len(one.sensitive) == 1] or every)[:2]


def _best_search(attribute: AttributeReport) -> SearchReport | None:
    """Return the search with the largest lift over random; None where none is known."""
    return max(
        (search for search in attribute.searches if search.lift is not None),
        key=lambda search: search.lift or 0.0,
        default=None,
    )


def _people(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what the page's script shows of each person when asked for it."""
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
    return f"{formatting.number(100 * _distance(finding))}{SPACE}points"


def _digest(script: str) -> str:
    """Return the name of a script in a page's policy, which then allows no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _layers(layers: Mapping[str, int]) -> str:
    return ", ".join(f"{layer} ({size})" for layer, size in layers.items())


def _parts(seconds: Seconds) -> str:
    return ", ".join(f"{step} {formatting.duration(value)}" for step, value in asdict(seconds).items())


def _spanned(rate: Interval | CounterfactualReport, unit: str = "%") -> str:
    """Return a figure with the ends of its interval."""
    if unit == "%":
        return formatting.spanned(rate.rate, rate.low, rate.high)
    value, low, high = (formatting.percent(share).removesuffix("%") for share in (rate.rate, rate.low, rate.high))
    return f"{value}{SPACE}{unit} ({low} to {high})"


def _united(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda value: show(value).replace(" ", SPACE)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    percent = _united(formatting.percent)
    environment.filters |= {
        **{
            show.__name__: show
            for show in (
                formatting.listed,
                formatting.many,
                formatting.number,
                formatting.plural,
                formatting.times,
                formatting.unusual,
                formatting.whole,
            )
        },
        "between": lambda rate: f"{percent(rate.low)} to {percent(rate.high)}",
        "best_search": _best_search,
        "clearest": _clearest,
        "digest": _digest,
        "distance": _distance,
        "duration": _united(formatting.duration),
        "gap": _gap,
        "game_json": lambda game: htmlsafe_json_dumps(msgspec.to_builtins(game), separators=(",", ":")),
        "headline": _headline,
        "hurting": _hurting,
        "layers": _layers,
        "left_out": left_out,
        "maps": layer_maps,
        "marked": marked,
        "odds": _odds,
        "parts": _parts,
        "people": _people,
        "percent": percent,
        "reach": charts.reach,
        "spanned": _spanned,
        "widest": charts.widest,
        "worst_attribute": worst_of,
    }
    environment.globals |= {
        "AMONG": AMONG,
        "UNREAD": (NOT_READ, UNMOVED),
        "TONES": _TONES,
        "OF": formatting.OF,
        "POPULATIONS": formatting.POPULATIONS,
        "at": charts.at,
        "ticks": charts.ticks,
        "top_of": charts.top_of,
    }
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment
