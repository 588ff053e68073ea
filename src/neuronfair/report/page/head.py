"""The first screen: the verdict, the figures it rests on, and all sensitive attributes side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronfair.report.page.charts import interval, scale, top_of
from neuronfair.report.page.shell import escape, name, paragraph, section, table
from neuronfair.report.page.words import (
    UNKNOWN,
    between,
    count,
    known,
    listed,
    number,
    people,
    plain,
    plural,
    share,
    times,
)
from neuronfair.verdict.sentences import people_found

_LEVELS = {  # a sign beside the words, so that nothing hangs on the colour
    "discriminates": ("strong", "▲", "Discriminates"),
    "suspicious": ("middle", "◆", "Suspicious"),
    "nothing found": ("calm", "●", "Nothing found"),
    "interrupted": ("middle", "◆", "Interrupted"),
}


def header(summary: Mapping[str, Any]) -> str:
    """Return what was audited, the verdict in one or two sentences, and whether the audit was cut short."""
    data, model, verdict = summary["data"], summary["model"], summary["verdict"]
    tone, sign, words = _LEVELS.get(verdict["level"], ("middle", "◆", plain(verdict["level"])))
    box = "white box" if model["white_box"] else "black box"
    facts = [
        f"<b>Table</b> {name(data['name'])}, {plural(data['rows'], 'row')}, {plural(data['attributes'], 'attribute')}",
        f"<b>Model</b> {name(model['source'])}, {escape(model['kind'])}, {box}{_accuracy(model['accuracy'])}",
    ]
    if data["target"]:
        facts.append(f"<b>Decides</b> {name(data['target'])}: {' or '.join(map(name, data['classes']))}")
    cut = '<p class="notice"><b>Interrupted.</b> The audit was stopped early: this page shows what it had by then.</p>'
    inferred = (
        '<p class="notice"><b>Domain inferred.</b> What values a person may have was guessed from the table. '
        "Check domain.toml in the run folder and run the audit again.</p>"
    )
    return (
        f'<header class="verdict {tone}"><p class="brand">NeuronFair <span>fairness audit</span></p>'
        f"<h1>{name(data['name'])}, judged by {listed(list(map(name, data['sensitive'])))}</h1>"
        f'<p class="level"><span aria-hidden="true">{sign}</span> {escape(words)}</p>'
        f"{paragraph(verdict['text'], 'lead')}"
        f"{cut if summary['reproduction']['interrupted'] else ''}{inferred if data['domain_inferred'] else ''}"
        f'<ul class="facts">{"".join(f"<li>{fact}</li>" for fact in facts)}</ul></header>'
    )


def key_figures(summary: Mapping[str, Any]) -> str:
    """Return the four figures that matter most, of the sensitive attributes that are judged by most often."""
    attribute = worst_attribute(summary["attributes"])
    if attribute is None:
        return ""
    rate, searches = attribute["rate"]["valid"] or attribute["rate"]["data"], attribute["searches"]
    tiles = []
    if rate:
        top = top_of([rate["high"], rate["share"]], most=1)
        tiles.append(
            f"<dt>are decided otherwise</dt><dd>{share(rate['share'])}</dd>"
            f"<dd class='plot'>{interval(rate, top)}{scale(top)}</dd>"
            f"<dd class='note'>{between(rate)} with {share(rate['confidence'])} confidence, of "
            f"{count(rate['people'])} people: {escape(people(rate['distribution']))}</dd>"
        )
    found = people_found(attribute)
    methods = ", ".join(f"{escape(search['method'])} {count(search['findings'])}" for search in searches)
    tiles.append(
        f"<dt>{'person' if found == 1 else 'people'} found</dt><dd>{count(found)}</dd><dd class='note'>{methods}"
        + (". One person may be found by several." if len(searches) > 1 else "")
        + "</dd>"
    )
    best = best_search(searches)
    if best:
        tiles.append(
            f"<dt>as many as random</dt><dd>{times(best['lift'])}</dd><dd class='note'>{escape(best['method'])}: "
            f"{share(best['gsr'])} of the people tried, against {share(best['random_gsr'])} at random</dd>"
        )
    else:
        tiles.append(f"<dt>as many as random</dt><dd>–</dd><dd class='note'>{_no_lift(searches)}</dd>")
    judged = sum(search["tried"] for search in searches if known(search["tried"]))
    tiles.append(f"<dt>people judged</dt><dd>{count(judged)}</dd><dd class='note'>{_cost(searches)}</dd>")
    whose = f"Judged by {_by(attribute)}" + (", the strongest of all" if len(summary["attributes"]) > 1 else "")
    body = "".join(f"<div>{tile}</div>" for tile in tiles)
    return section("figures", f'<span class="quiet">{whose}</span>', f'<dl class="tiles">{body}</dl>')


def overview(attributes: Sequence[Mapping[str, Any]]) -> str:
    """Return all sensitive attributes side by side on one scale, where there are several."""
    if len(attributes) < 2:
        return ""
    rates = [attribute["rate"]["valid"] or attribute["rate"]["data"] for attribute in attributes]
    top = top_of([rate["high"] for rate in rates] + [rate["share"] for rate in rates], most=1)
    rows = []
    for i, (attribute, rate) in enumerate(zip(attributes, rates, strict=True)):
        best = best_search(attribute["searches"])
        rows.append(
            (
                f'<a href="#a{i}">{_by(attribute)}</a>',
                f"<b>{share(rate['share'])}</b> <small>{between(rate)}</small>" if rate else UNKNOWN,
                interval(rate, top) if rate else "",
                count(people_found(attribute)),
                times(best["lift"]) if best else "–",
            )
        )
    columns = ("Sensitive", "Decided otherwise", f"<span>Interval</span>{scale(top)}", "Findings", "Lift over random")
    return section("overview", "Side by side", table(*_captioned(columns), rows, kind="wide"))


def worst_attribute(attributes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the sensitive attributes with the highest rate among random people."""

    def rate(attribute: Mapping[str, Any]) -> float:
        value = attribute["rate"]["valid"]["share"]
        return float(value) if known(value) else -1.0

    return max(attributes, key=rate, default=None)


def best_search(searches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the search with the largest lift over random; None where none is known."""
    with_lift = [search for search in searches if known(search["lift"])]
    return max(with_lift, key=lambda search: float(search["lift"]), default=None)


def _by(attribute: Mapping[str, Any]) -> str:
    return listed([name(word) for word in attribute["sensitive"]])


def _accuracy(accuracy: Mapping[str, Any]) -> str:
    if known(accuracy["test"]):
        return f", accuracy {share(accuracy['test'])} on test rows"
    return f", accuracy {share(accuracy['table'])} on the table" if known(accuracy["table"]) else ""


def _no_lift(searches: Sequence[Mapping[str, Any]]) -> str:
    if any(known(search["random_gsr"]) for search in searches):
        return "As many random people were judged, and none of them was decided otherwise."
    return "No random search to compare with."


def _cost(searches: Sequence[Mapping[str, Any]]) -> str:
    speeds = [
        search["findings_per_second"]
        for search in searches
        if known(search["findings_per_second"]) and search["findings_per_second"] > 0
    ]
    return f"by the searches; up to {number(max(speeds))} findings a second" if speeds else "by the searches"


def _captioned(columns: Sequence[str]) -> tuple[str, Sequence[str]]:
    return "How often people are decided otherwise when only these attributes change", columns
