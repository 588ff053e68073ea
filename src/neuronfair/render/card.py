"""A model card: what an audit says of a model, on one page of Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from neuronfair.audits.report.attribute import notes_of, omissions, worst_cases
from neuronfair.audits.report.report import Report
from neuronfair.formatting import percent, spanned
from neuronfair.render.markdown import code, table, words
from neuronfair.render.tables import (
    GROUPS_HEADS,
    TITLE,
    counterpart_lines,
    counterpart_sentences,
    group_lines,
    hurt_sentences,
)
from neuronfair.render.tables import HEADS as COUNTERPART_HEADS

WORST, GROUPS = 3, 6  # cases told, and groups listed of each attribute: the card is one page
LIMITS = (
    "A search finds cases; it does not prove that there are none.",
    "A rate belongs to the population that is named beside it. People drawn uniformly from the domain are all people "
    "that the domain allows, equally likely; real applicants are not. Plausible people are as real as the model that "
    "they are drawn from.",
    "Deciding twins alike says nothing about whether decisions are right, nor whether groups fare equally.",
    "How plausible a person is says a model of the table; nobody has looked whether such a person lives.",
)


def model_card(report: Report) -> str:
    """Return an audit as a model card in Markdown: the model, the people, the figures, the limits."""
    model, data, again = report.model, report.data, report.reproduction
    parts = [
        f"# Model card: {words(model.source)}",
        f"**{words(report.verdict.headline)}**",
        words(f"{report.verdict.details} {report.verdict.threshold_text}".strip()),
        "## The model",
        _facts(
            ("Model", f"{words(model.source)} ({words(model.kind)}), {'white' if model.white_box else 'black'} box"),
            ("Fingerprint", code(model.fingerprint)),
            ("Accuracy", ", ".join(f"{percent(share)} ({part})" for part, share in (model.accuracy or {}).items())),
            ("Decides", f"{words(data.target or '')}: {' or '.join(map(words, data.classes))}" if data.target else ""),
            ("Hoped for", words(data.favourable or "")),
            ("A decision flips by", _decision(report)),
        ),
        "## The people",
        _facts(
            ("Table", f"{words(data.name)}, {data.rows:,} rows, {data.attributes:,} attributes"),
            ("Sensitive", words(", ".join(data.sensitive))),
            ("What a person may be", "guessed from the table" if data.domain_inferred else "from a domain file"),
            ("Who is plausible", words(data.population.text) if data.population else ""),
        ),
        "## How often the decision flips if only the attribute changes",
        table(
            ("attribute", "of", f"share (interval{_sure(report)})"),
            [
                (
                    words(one.name),
                    rate.people,
                    spanned(rate.rate, rate.low, rate.high),
                )
                for one in report.attributes
                for rate in one.rates.measured
            ],
        ),
        "\n".join(f"- {words(sentence)}" for sentence in omissions(report.attributes)),
        *_counterparts(report),
        *_proofs(report),
        *_hurt(report),
        *_groups(report),
        *_worst(report),
        "## Limits of this audit",
        "\n".join(f"- {line}" for line in (*LIMITS, _proxies(report), *map(words, notes_of(report.attributes)))),
        "## How it was made",
        f"neuronfair {words(report.neuronfair)}, {words(again.created)}, seed {again.seed}; Python "
        f"{words(again.python)}, torch {words(again.torch)}; domain {code(again.domain[:12])}, rows "
        f"{code(again.rows[:12])}."
        + (f" Again: {code(again.command)}" if again.command else "")
        + (" **Interrupted: not everything was looked at.**" if again.interrupted else ""),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _proxies(report: Report) -> str:
    """Return what is, and is not, known of attributes that stand in for the sensitive ones."""
    if any(one.counterpart for one in report.attributes):
        return (
            "Counterfactual twins come from a model of the data set, which knows no hidden causes. What they show "
            "rests on causal assumptions that the data cannot test."
        )
    return "Only the attributes named here were changed. Proxies for them, such as a postcode, were not tested."


def _sure(report: Report) -> str:
    sure = {percent(rate.confidence) for one in report.attributes for rate in one.rates.measured}
    return f" with {' or '.join(sorted(sure))} confidence" if sure else ""


def _facts(*facts: tuple[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts if value)


def _decision(report: Report) -> str:
    kind, value = report.decision.kind, report.decision.value
    said = {"argmax": "another class", "threshold": f"the other side of {value:g}", "tolerance": f"more than {value:g}"}
    return said[kind]


def _proofs(report: Report) -> Iterator[str]:
    told = [f"- {words(one.name)}: {words(one.proved.sentence)}" for one in report.attributes if one.proved]
    if told:
        yield "## What is proved"
        yield "\n".join(told)


def _counterparts(report: Report) -> Iterator[str]:
    lines = counterpart_lines(report.attributes)
    if lines:
        yield f"## {TITLE}"
        yield table(COUNTERPART_HEADS, [tuple(map(words, line)) for line in lines])
        yield words(" ".join(counterpart_sentences(report.attributes)))


def _hurt(report: Report) -> Iterator[str]:
    told = hurt_sentences(report.attributes)
    if told:
        yield "## Whom it hurts"
        yield "\n".join(f"- {words(sentence)}" for sentence in told)


def _groups(report: Report) -> Iterator[str]:
    rows = []
    for one in report.attributes:
        largest = sorted(one.groups, key=lambda group: -group.rows)[:GROUPS]
        rows += [
            (words(one.name), words(group.values), f"{group.rows:,}", percent(group.selection_rate))
            for group in one.groups
            if group in largest
        ]
    if rows:
        chosen = next((words(one.disparity.selected) for one in report.attributes if one.disparity), "chosen")
        yield "## Groups of the table"
        yield f"The largest {GROUPS} of each choice of attributes; audit.json has all."
        yield table(("attribute", "group", "rows", f"decided {chosen}"), rows)
        yield table(GROUPS_HEADS, [tuple(map(words, line)) for line in group_lines(report.attributes)])


def _worst(report: Report) -> Iterator[str]:
    worst = worst_cases(report.attributes, WORST)
    found = ", ".join(f"{one.people_found:,} by {words(one.name)}" for one in report.attributes)
    if worst:
        yield "## Worst cases"
        yield f"Of the people found ({found}), moved as near to a row of the table as possible:"
        yield "\n".join(f"- {words(f'{finding.sentence} {finding.how_usual}'.rstrip())}" for finding in worst)
