"""The end of the page: what repair would change, how to read all this, and how to do it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronfair.report.page.charts import interval, scale, top_of
from neuronfair.report.page.shell import command, escape, name, paragraph, section, table
from neuronfair.report.page.words import UNKNOWN, between, duration, known, number, plain, share

_STATES = (("before", "Before"), ("after", "Retrained with findings"), ("without_findings", "Retrained without them"))


def repair(summary: Mapping[str, Any]) -> str:
    """Return the proposal, and the figures before and after it beside those of its control."""
    proposal = summary["repair"]
    if proposal is None:
        return ""
    states = [(title, proposal[key]) for key, title in _STATES if proposal[key]]
    rates = [state["rate"] for _, state in states]
    top = top_of([rate[end] for rate in rates for end in ("high", "share")], most=1)
    rows = []
    for (title, state), rate in zip(states, rates, strict=True):
        rows.append(
            (
                title,
                f"<b>{share(rate['share'])}</b> <small>{between(rate)}</small>" if rate else UNKNOWN,
                interval(rate, top) if rate else "",
                share(state["accuracy"]),
                number(state["auc"]),
                "<br>".join(f"{name(group['values'])} {share(group['selection_rate'])}" for group in state["groups"])
                or UNKNOWN,
            )
        )
    columns = (
        "Model", "Decided otherwise", f"<span>Interval</span>{scale(top)}", "Accuracy", "AUC of the worst layer",
        "Selected, by group",
    )  # fmt: skip
    body = table("Before and after the repair", columns, rows, kind="wide") if rows else ""
    # A proposal ends with the command that does it, after a colon.
    words, colon, line = plain(proposal["text"]).partition(": neuronfair ")
    text = paragraph(f"{words}:") + command(f"neuronfair {line}") if colon else paragraph(words)
    return section("repair", "Before and after repair", text, body)


def reading() -> str:
    """Return how to read the page, and what it does not show."""
    terms = (
        ("Decided otherwise", "Two people who are alike in everything but the sensitive attribute get different "
         "decisions. Every other value of the attribute is tried."),
        ("Rate", "The share of such people among many drawn at random, with the interval that holds the true share "
         "with the stated confidence. This is the figure to compare models by."),
        ("Finding", "One such person that a search came upon. A search looks where they are likely, so its share of "
         "findings says how good the search is, not how frequent they are."),
        ("Lift", "How many times as many a search finds as random people do, with as many people tried."),
        ("Score", "With classes: how far the first person’s class leads the other one’s, below 0 where it does not. "
         "The score gap is how far the scores of the two lie apart: larger is worse."),
        ("ActDiff, AS curve, cut", "How much a neuron changes when only the sensitive attribute does; the share of a "
         "layer’s neurons above each threshold; the threshold from which a neuron is called biased."),
    )  # fmt: skip
    limits = (
        "A search finds cases; it does not prove that there are none. “Nothing found” is not “fair”.",
        "The rate depends on the distribution that is named beside it. “Valid people” are all people the domain "
        "allows, equally likely; real applicants are not.",
        "Only the attributes named as sensitive are changed. Another attribute that stands in for one of them, such "
        "as a postcode, is not tested.",
        "People are treated alike here if the decision is the same. Whether the decision is right, and whether groups "
        "fare equally, are other questions.",
        "The findings are as plausible as the domain’s rules: a combination that no rule forbids may still not exist.",
    )
    return section(
        "reading",
        "How to read this page",
        '<div class="halves"><dl class="terms">'
        + "".join(f"<div><dt>{term}</dt><dd>{words}</dd></div>" for term, words in terms)
        + '</dl><div class="limits"><h3>What it does not show</h3><ul>'
        + "".join(f"<li>{limit}</li>" for limit in limits)
        + "</ul></div></div>",
    )


def reproduction(summary: Mapping[str, Any]) -> str:
    """Return the command, the seed, the versions and the fingerprints: enough to do it again."""
    again, model, decision = summary["reproduction"], summary["model"], summary["decision"]
    layers = ", ".join(f"{layer} ({size})" for layer, size in dict(model["layers"]).items())
    decided = plain(decision["kind"])
    if decision["kind"] in ("threshold", "tolerance"):
        decided += f" {number(decision['value'])}"
    trained = ", trained by the audit" if model["trained_here"] else ""
    times = [f"{step} {duration(value)}" for step, value in summary["seconds"].items() if known(value)]
    facts = {
        "Made": again["created"],
        "Seed": again["seed"],
        "Decision": decided,
        "Model": f"{plain(model['source'])} ({plain(model['kind'])}){trained}",
        "About it": model["note"],
        "Layers": layers,
        "Fingerprint of the model": again["model"] or model["fingerprint"],
        "Fingerprint of the domain": again["domain"],
        "Fingerprint of the rows": again["rows"],
        "Versions": ", ".join(
            f"{title} {version}"
            for title, version in (
                ("NeuronFair", summary["neuronfair"]), ("Python", again["python"]), ("torch", again["torch"]),
                ("NumPy", again["numpy"]),
            )
            if version
        ),
        "Platform": again["platform"],
        "Time": ", ".join(times),
    }  # fmt: skip
    rows = "".join(
        f"<div><dt>{title}</dt><dd>{name(value)}</dd></div>"
        for title, value in facts.items()
        if value not in (None, "")
    )
    return section("again", "Do it again", command(again["command"]), f'<dl class="facts-list">{rows}</dl>')


def footer(summary: Mapping[str, Any]) -> str:
    """Return the last line."""
    return f"<footer><p>NeuronFair {escape(summary['neuronfair'])}. This page is complete in itself.</p></footer>"
