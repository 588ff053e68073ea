"""An audit as Markdown, and words of strangers in it: whatever they hold, they stay words."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from neuronfair.audits.report.attribute import AttributeReport, measured_populations, omissions
from neuronfair.audits.report.rates import RateOf
from neuronfair.audits.report.report import Gate, RegressionSetReport, Report
from neuronfair.formatting import POPULATIONS, Population, spanned, times, visible
from neuronfair.render.proof import KEY, strip_line
from neuronfair.render.tables import (
    GROUPS_HEADS,
    TITLE,
    counterpart_lines,
    counterpart_sentences,
    group_lines,
    hurt_sentences,
    left_out,
)
from neuronfair.render.tables import HEADS as COUNTERPART_HEADS


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


WORST = 3  # pairs shown for each attribute


def markdown(report: Report) -> str:
    """Return an audit as Markdown: verdict, a line per attribute, worst pairs, limits, corpus and earlier audit.

    Words from the table are escaped: a column called `<b>` or `a|b` stays a word.
    """
    populations = measured_populations(report.attributes)
    parts = [
        f"## Fairness audit: {report.verdict.level}",
        words(f"{report.verdict.text} {report.verdict.threshold_text}".rstrip()),
        table(
            ("attribute", *(f"flips, of {POPULATIONS[one]}" for one in populations), "findings", "lift over random"),
            [_figures(attribute, populations) for attribute in report.attributes],
        ),
        "\n".join(f"- {words(sentence)}" for sentence in omissions(report.attributes)),
        *_counterparts(report.attributes),
        words(report.data.population.text) if report.data.population else "",
        *_proofs(report.attributes),
        *(f"**Whom it hurts.** {words(sentence)}" for sentence in hurt_sentences(report.attributes)),
        *_groups(report.attributes),
        *_worst(report.attributes),
        *_gate(report.gate),
        *_corpus(report.corpus),
    ]
    if report.baseline is not None:
        changes = [f"- {words(change.text)}" for change in report.baseline.changes]
        parts += ["### Since the earlier audit", words(report.baseline.text), "\n".join(changes)]
    if report.repair is not None:
        longer = f" {report.repair.lead} {code(report.repair.command)}" if report.repair.command else ""
        parts += ["### Repair", words(report.repair.text) + longer]
    model, data, again = report.model, report.data, report.reproduction
    parts.append(
        f"Model: {words(model.source)} ({words(model.kind)}); data: {words(data.name)}, "
        f"{data.rows:,} rows; neuronfair {report.neuronfair}. Again: {code(again.command)}"
        + (" **Interrupted: not everything was looked at.**" if again.interrupted else "")
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(attribute: AttributeReport, populations: Sequence[Population]) -> Sequence[str]:
    lifts = [f"{words(s.method)} {times(s.lift)}" for s in attribute.searches if s.lift is not None]
    counts = [f"{words(s.method)} {s.how_many}" for s in attribute.searches]
    rates = [_rate(getattr(attribute.rates, population)) for population in populations]
    return words(attribute.name), *rates, ", ".join(counts) or "–", ", ".join(lifts) or "–"


def _rate(rate: RateOf | None) -> str:
    return "–" if rate is None else spanned(rate.rate, rate.low, rate.high)


def _proofs(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    proofs = [(one, one.proved) for one in attributes if one.proved is not None]
    if proofs:
        yield "### Proof"
        yield "\n".join(f"- {words(strip_line(*proof))}" for proof in proofs)
    if any(proved.method for _, proved in proofs):
        yield KEY


def _counterparts(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    lines = counterpart_lines(attributes)
    if lines:
        yield f"### {TITLE}"
        yield table(COUNTERPART_HEADS, [[words(cell) for cell in line] for line in lines])
        yield words(" ".join(counterpart_sentences(attributes)))


def _groups(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    lines = group_lines(attributes)
    if lines:
        yield "### Groups of the table"
        yield table(GROUPS_HEADS, [[words(cell) for cell in line] for line in lines])
        yield words(" ".join(left_out(attributes)))


def _worst(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    if any(attribute.worst for attribute in attributes):
        yield "### Worst pairs"
    for attribute in attributes:
        worst = attribute.worst[:WORST]
        told = [(words(f"{p.sentence} {p.how_usual}".rstrip()), p.replay) for p in worst]
        pairs = [f"- {text}" + (f"<br>{code(replay)}" if replay else "") for text, replay in told]
        if pairs:
            yield "\n".join([f"**{words(attribute.name)}**", "", *pairs])


def _gate(gate: Gate | None) -> Iterator[str]:
    if gate is None:
        return
    yield f"### Limits: {'passed' if gate.passed else 'failed'}"
    rows = []
    for check in gate.checks:
        limit = code(check.expression).replace("|", "\\|")  # a table is cut at its bars before code is looked at
        rows.append((limit, "**fired**" if check.fired else "ok", words(check.text)))
    yield table(("fails the build if", "result", "why"), rows)


def _corpus(corpus: RegressionSetReport | None) -> Iterator[str]:
    if corpus is None:
        return
    yield "### Past counterexamples"
    unfit = f", {corpus.unfit:,} no longer fit the domain" if corpus.unfit else ""
    yield (
        f"{corpus.replayed:,} of {words(corpus.file)} judged again: {corpus.still_flips:,} still flip, "
        f"{corpus.fixed:,} are fixed{unfit}; {corpus.added:,} added."
    )
    yield "\n".join(f"- {words(line)}" for line in (*corpus.examples, *corpus.notes))
