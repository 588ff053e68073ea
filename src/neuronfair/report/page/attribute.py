"""All that was found for one set of sensitive attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronfair.report.page.charts import bars, histogram, interval, scale, top_of
from neuronfair.report.page.findings import cards, finding_table
from neuronfair.report.page.inside import interpretation
from neuronfair.report.page.shell import escape, name, paragraph, section, table
from neuronfair.report.page.words import (
    between,
    count,
    duration,
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


def attribute_panel(i: int, attribute: Mapping[str, Any], classes: Sequence[object], *, white_box: bool) -> str:
    """Return the panel of one set of sensitive attributes: how often, whom, which groups, where, how it was found."""
    words = listed([name(word) for word in attribute["sensitive"]])
    total = people_found(attribute)
    return section(
        f"a{i}",
        f"Judged by {words}",
        section(f"a{i}-rate", "How often", _rates(attribute), _groups(attribute["groups"], classes), level=3),
        _health(i, attribute["health"]),
        section(
            f"a{i}-worst", "The worst cases" if total else "Nobody was found", _worst(attribute, words, total), level=3
        ),
        section(f"a{i}-subgroups", "Where it is frequent", _subgroups(attribute), level=3),
        interpretation(i, attribute, white_box=white_box),
        section(f"a{i}-search", "How they were found", *_searches(attribute), level=3),
        section(f"a{i}-severity", "How severe it is", *_severity(attribute), level=3),
        section(f"a{i}-findings", "Findings", finding_table(attribute["findings"], total), level=3),
        kind="panel",
    )


def _rates(attribute: Mapping[str, Any]) -> str:
    rates = [rate for rate in attribute["rate"].values() if rate]
    if not rates:
        return ""
    top = top_of([rate[end] for rate in rates for end in ("high", "share")], most=1)
    rows = [
        (
            escape(people(rate["distribution"])),
            f"<b>{share(rate['share'])}</b>",
            f"{interval(rate, top)}",
            between(rate),
            f"{count(rate['discriminated'])} of {count(rate['people'])}",
        )
        for rate in rates
    ]
    confidence = share(rates[0]["confidence"])
    caption = "People with a twin, alike but for " + listed([name(w) for w in attribute["sensitive"]])
    columns = ("People drawn from", "Share", f"<span>Interval</span>{scale(top)}", f"With {confidence} confidence")
    return table(f"{caption}, who is decided otherwise", (*columns, "People"), rows, kind="wide")


def _groups(groups: Sequence[Mapping[str, Any]], classes: Sequence[object]) -> str:
    rows = [
        (plain(group["values"]), group["selection_rate"], "", plural(group["rows"], "row"))
        for group in groups
        if known(group["selection_rate"])
    ]
    if not rows:
        return ""
    decided = f"decided {name(classes[-1])}" if classes else "decided for"
    return bars(
        rows, f"Groups of the table: the share {decided}. Groups may differ for other reasons than the attribute"
    )


def _health(i: int, health: Sequence[Mapping[str, Any]]) -> str:
    notes = "".join(
        f'<li dir="auto"><b>{escape(note["name"])}.</b> {escape(note["seen"])} {escape(note["remedy"])}</li>'
        for note in health
    )
    heading = "What makes this result less telling"
    return section(f"a{i}-health", heading, f"<ul>{notes}</ul>", level=3, kind="notice") if notes else ""


def _worst(attribute: Mapping[str, Any], words: str, total: int) -> str:
    if attribute["searches"] and not total and not attribute["worst"]:
        return (
            f"<p>No search found anybody whose decision hangs on {words}. That is no proof that there is nobody: "
            'see <a href="#reading">what this page does not show</a>.</p>'
        )
    if not attribute["worst"]:
        return ""
    return (
        "<p>Each person was moved as near to a row of the table as possible while the decision still hangs on "
        f"{words}. Both are alike in everything else.</p>{cards(attribute['worst'])}"
    )


def _subgroups(attribute: Mapping[str, Any]) -> str:
    subgroups = attribute["subgroups"]
    if not subgroups:
        return ""
    overall = attribute["rate"]["valid"]["share"]
    reference = overall if known(overall) else None
    top = top_of([s["rate"][end] for s in subgroups for end in ("high", "share")] + [reference], most=1)
    items = "".join(
        f'<li><div><p dir="auto">{escape(subgroup["sentence"])}</p><p class="about">{_measured(subgroup)}</p></div>'
        f"{interval(subgroup['rate'], top, reference=reference)}</li>"
        for subgroup in subgroups
    )
    dashed = f" The dashed line is the overall rate, {share(reference)}." if reference is not None else ""
    return (
        "<p>The rules were learned from random valid people, joined by findings where few of those are decided "
        "otherwise, and then measured on people who played no part in choosing them. Their intervals hold together."
        f'{dashed}</p><ol class="subgroups">{items}<li aria-hidden="true"><div></div>{scale(top)}</li></ol>'
    )


def _measured(subgroup: Mapping[str, Any]) -> str:
    rate = subgroup["rate"]
    words = [
        f"<b>{share(rate['share'])}</b> of {count(rate['people'])} new random people like this, {between(rate)}",
        f"{times(subgroup['lift'])} the overall rate",
        f"{share(subgroup['findings'])} of all findings",
    ]
    if known(subgroup["people"]):
        words.append(f"{share(subgroup['people'])} of all valid people")
    return "; ".join(words)


def _searches(attribute: Mapping[str, Any]) -> list[str]:
    searches = attribute["searches"]
    if not searches:
        return []
    chart: list[tuple[str, object, str, str]] = []
    for search in searches:
        chart.append((plain(search["method"]), search["gsr"], "strong", ""))
        for key, lift, label in (
            ("random_direction_gsr", "lift_over_random_direction", "… in random directions"),
            ("random_gsr", "lift", "… random people"),
        ):
            if known(search[key]):
                note = f"lift {times(search[lift])}" if known(search[lift]) else ""
                chart.append((label, search[key], "quiet", note))
    rows = [
        (
            name(search["method"]),
            count(search["findings"]),
            count(search["tried"]),
            number(search["findings_per_second"]),
            duration(search["seconds"]),
            count(search["violations"]),
            escape(search["stop"] or ""),
        )
        for search in searches
    ]
    columns = ("Search", "Findings", "People tried", "Findings a second", "Time", "Impossible people", "Ended by")
    return [
        bars(chart, "Success rate: findings among the people tried. Below each search its controls with as many"),
        table("What the searches cost", columns, rows),
    ]


def _severity(attribute: Mapping[str, Any]) -> list[str]:
    severity = attribute["severity"]
    if not known(severity["median"]):
        return []
    bins = severity["histogram"]
    marks = {"median": severity["median"], "95 of 100 below": severity["p95"]}
    figure = histogram(bins["edges"], bins["counts"], marks) if len(bins["edges"]) > 1 and bins["counts"] else ""
    caption = (
        "Findings by their score gap: how far the model’s scores for the person and for the twin lie apart, in the "
        f"units of the scores. The largest is {number(severity['max'])}."
    )
    spread = []
    if known(attribute["regions"]):
        spread.append(f"they lie in {plural(attribute['regions'], 'region')} of the domain")
    if known(attribute["mean_distance"]):
        spread.append(
            f"two of them differ on average by {share(attribute['mean_distance'])} of the way from alike to opposite"
        )
    lines = f"How different the findings are: {listed(spread)}." if spread else ""
    return [f"<figure>{figure}<figcaption>{caption}</figcaption></figure>", paragraph(lines) if lines else ""]
