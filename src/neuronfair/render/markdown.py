"""An audit as Markdown, and as a model card: names and values of the user are escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from neuronfair.audits.report.attribute import notes_of
from neuronfair.audits.report.report import Gate, RegressionSetReport, Report, worst_of
from neuronfair.audits.wording.summary import described, limits_of, next_steps, realistic_pairs, status
from neuronfair.formatting import percent, visible
from neuronfair.render.tables import Tabulated, disadvantaged, first_screen, overview, tables_of


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def words(text: str) -> str:
    """Return a text that Markdown and HTML show as it is, on one line: no table, list, link, formula or mention."""
    line = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", visible(" ".join(text.split())))
    line = re.sub(r"^(\d*)([-+.)])(?= |$)", r"\1\\\2", line)
    # GitHub makes links of bare addresses, and writes to whom an @ names.
    return re.sub(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", "<!-- -->", html.escape(line, quote=False))


def code(text: str) -> str:
    """Return a text as code, whatever backticks are in it."""
    text = visible(" ".join(text.split()))
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    inner = f" {text} " if text.startswith("`") or text.endswith("`") else text
    return f"{ticks}{inner}{ticks}"


SHOWN_PAIRS = 3  # pairs shown


def markdown(report: Report) -> str:
    """Return an audit as Markdown: headline, status, metrics, worst pairs, thresholds, all tables.

    Names and values from the data set are escaped: a column called `<b>` or `a|b` stays text.
    """
    attributes = report.attributes
    parts = [
        f"## {words(report.verdict.headline)}",
        words(status(report)),
        *(f"- {words(note)}" for note in limits_of(report)),
        *(_titled(first_screen(worst_of(attributes))) if attributes else ()),
        *(_titled(overview(attributes)) if len(attributes) > 1 else ()),
        *_steps(report),
        *_worst(report),
        *_gate(report.gate),
        *_corpus(report.corpus),
    ]
    if report.baseline is not None:
        changes = [f"- {words(change.text)}" for change in report.baseline.changes]
        parts += ["### Since the earlier audit", words(report.baseline.text), "\n".join(changes)]
    parts += [words(sentence) for sentence in disadvantaged(attributes)]
    parts += [part for one in tables_of(report) for part in _titled(one)]
    model, data, again = report.model, report.data, report.reproduction
    parts.append(
        f"Model: {words(model.source)} ({words(model.kind)}); data set: {words(data.name)}, "
        f"{data.rows:,} records; neuronfair {report.neuronfair}."
        + (f" To reproduce: {code(again.command)}" if again.command else "")
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _titled(one: Tabulated) -> Iterator[str]:
    """Return a table below its title, and the sentences about it."""
    yield f"### {words(one.title)}"
    if one.rows:
        yield table(one.heads, [[words(cell) for cell in line] for line in one.rows])
    yield "\n".join(f"- {words(note)}" for note in one.notes)


def _steps(report: Report) -> Iterator[str]:
    steps = next_steps(report)
    if steps:
        yield "### What to do next"
        yield "\n".join(
            f"{i}. {words(step.text)}" + (f" {code(step.command)}" if step.command else "")
            for i, step in enumerate(steps, 1)
        )


def _worst(report: Report) -> Iterator[str]:
    pairs = realistic_pairs(report.attributes, SHOWN_PAIRS)
    if pairs:
        yield "### Worst realistic pairs"
        yield "\n".join(
            f"- {words(described(pair))}" + (f"<br>{code(pair.replay)}" if pair.replay else "") for pair in pairs
        )


def _gate(gate: Gate | None) -> Iterator[str]:
    if gate is None:
        return
    yield f"### Thresholds: {'passed' if gate.passed else 'failed'}"
    rows = []
    for check in gate.checks:
        limit = code(check.expression).replace("|", "\\|")  # a table is cut at its bars before code is looked at
        rows.append((limit, "**failed**" if check.fired else "passed", words(check.explained)))
    yield table(("threshold", "result", "why"), rows)


def _corpus(corpus: RegressionSetReport | None) -> Iterator[str]:
    if corpus is None:
        return
    yield "### Past counterexamples"
    unfit = f", {corpus.unfit:,} no longer fit the input schema" if corpus.unfit else ""
    yield (
        f"{corpus.replayed:,} of {words(corpus.file)} evaluated again: {corpus.still_flips:,} still flip, "
        f"{corpus.fixed:,} are fixed{unfit}; {corpus.added:,} added."
    )
    yield "\n".join(f"- {words(line)}" for line in (*corpus.examples, *corpus.notes))


CARD_LIMITS = (
    "A search finds cases; it does not certify that there are none.",
    "A rate belongs to the population that is named with it. Records drawn uniformly from the declared input space are "
    "not real applicants; realistic synthetic records are as real as the model that they are drawn from.",
    "The same decision for two groups says nothing about whether decisions are right, nor whether groups fare equally.",
)


def model_card(report: Report) -> str:
    """Return an audit as a model card in Markdown: the model, the data set, the metrics, the limits."""
    model, data, again = report.model, report.data, report.reproduction
    accuracy = ", ".join(f"{percent(share)} ({part})" for part, share in (model.accuracy or {}).items())
    classes = f"{words(data.target or '')}: {' or '.join(map(words, data.classes))}" if data.target else ""
    shown = [one for one in tables_of(report) if not one.is_appendix]
    tested = any(one.counterpart for one in report.attributes)
    untested = "Only the attributes named here were changed. Proxies for them, such as a postcode, were not tested."
    limits = [*CARD_LIMITS, *([] if tested else [untested]), *notes_of(report.attributes)]
    parts = [
        f"# Model card: {words(model.source)}",
        f"**{words(report.verdict.headline)}**",
        words(status(report)),
        "## The model",
        _facts(
            ("Model", f"{words(model.source)} ({words(model.kind)}), {'white' if model.white_box else 'black'} box"),
            ("Fingerprint", code(model.fingerprint)),
            ("Accuracy", accuracy),
            ("Decides", classes),
            ("Favourable outcome", words(data.favourable or "")),
            ("Two decisions differ by", _decision(report)),
        ),
        "## The data set",
        _facts(
            ("Data set", f"{words(data.name)}, {data.rows:,} records, {data.attributes:,} attributes"),
            ("Sensitive", words(", ".join(data.sensitive))),
            ("Input schema", "inferred from the data set" if data.domain_inferred else "declared"),
        ),
        *(part.replace("### ", "## ", 1) for one in (overview(report.attributes), *shown) for part in _titled(one)),
        *(words(sentence) for sentence in disadvantaged(report.attributes)),
        *(part.replace("### ", "## ", 1) for part in _worst(report)),
        "## Limits of this audit",
        "\n".join(f"- {words(line)}" for line in limits),
        "## How it was made",
        f"neuronfair {words(report.neuronfair)}, {words(again.created)}, seed {again.seed}; Python "
        f"{words(again.python)}, torch {words(again.torch)}; input schema {code(again.domain[:12])}, records "
        f"{code(again.rows[:12])}."
        + (f" To reproduce: {code(again.command)}" if again.command else "")
        + (" **Interrupted: not everything was measured.**" if again.interrupted else ""),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(*facts: tuple[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts if value)


def _decision(report: Report) -> str:
    kind, value = report.decision.kind, report.decision.value
    said = {"argmax": "their class", "threshold": f"their side of {value:g}", "tolerance": f"more than {value:g}"}
    return said[kind]
