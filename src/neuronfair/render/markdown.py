"""An audit as a page of Markdown, for the summary of a build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from neuronfair.render.counterparts import HEADS as COUNTERPART_HEADS
from neuronfair.render.counterparts import TITLE, counterpart_lines, counterpart_sentences, hurt_sentences
from neuronfair.render.escaped import code as _code
from neuronfair.render.escaped import table as _table
from neuronfair.render.escaped import words as _words
from neuronfair.render.groups import HEADS, group_lines, left_out
from neuronfair.render.strip import KEY, strip_line
from neuronfair.verdict.entries import AttributeReport, measured_populations, omissions
from neuronfair.verdict.rates import RateOf
from neuronfair.verdict.report import CorpusReport, Gate, Report
from neuronfair.words import POPULATIONS, Population, spanned, times

WORST = 3  # pairs shown for each attribute


def markdown(report: Report) -> str:
    """Return an audit as Markdown: verdict, a line per attribute, worst pairs, limits, corpus and earlier audit.

    Words from the table are escaped: a column called `<b>` or `a|b` stays a word.
    """
    populations = measured_populations(report.attributes)
    parts = [
        f"## Fairness audit: {report.verdict.level}",
        _words(f"{report.verdict.text} {report.verdict.threshold_text}".rstrip()),
        _table(
            ("attribute", *(f"flips, of {POPULATIONS[one]}" for one in populations), "findings", "lift over random"),
            [_figures(attribute, populations) for attribute in report.attributes],
        ),
        "\n".join(f"- {_words(sentence)}" for sentence in omissions(report.attributes)),
        *_counterparts(report.attributes),
        _words(report.data.population.text) if report.data.population else "",
        *_proofs(report.attributes),
        *(f"**Whom it hurts.** {_words(sentence)}" for sentence in hurt_sentences(report.attributes)),
        *_groups(report.attributes),
        *_worst(report.attributes),
        *_gate(report.gate),
        *_corpus(report.corpus),
    ]
    if report.baseline is not None:
        changes = [f"- {_words(change.text)}" for change in report.baseline.changes]
        parts += ["### Since the earlier audit", _words(report.baseline.text), "\n".join(changes)]
    if report.repair is not None:
        longer = f" {report.repair.lead} {_code(report.repair.command)}" if report.repair.command else ""
        parts += ["### Repair", _words(report.repair.text) + longer]
    model, data, again = report.model, report.data, report.reproduction
    parts.append(
        f"Model: {_words(model.source)} ({_words(model.kind)}); data: {_words(data.name)}, "
        f"{data.rows:,} rows; neuronfair {report.neuronfair}. Again: {_code(again.command)}"
        + (" **Interrupted: not everything was looked at.**" if again.interrupted else "")
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(attribute: AttributeReport, populations: Sequence[Population]) -> Sequence[str]:
    lifts = [f"{_words(s.method)} {times(s.lift)}" for s in attribute.searches if s.lift is not None]
    counts = [f"{_words(s.method)} {s.how_many}" for s in attribute.searches]
    rates = [_rate(getattr(attribute.rates, population)) for population in populations]
    return _words(attribute.name), *rates, ", ".join(counts) or "–", ", ".join(lifts) or "–"


def _rate(rate: RateOf | None) -> str:
    return "–" if rate is None else spanned(rate.rate, rate.low, rate.high)


def _proofs(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    proofs = [(one, one.proved) for one in attributes if one.proved is not None]
    if proofs:
        yield "### Proof"
        yield "\n".join(f"- {_words(strip_line(*proof))}" for proof in proofs)
    if any(proved.method for _, proved in proofs):
        yield KEY


def _counterparts(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    lines = counterpart_lines(attributes)
    if lines:
        yield f"### {TITLE}"
        yield _table(COUNTERPART_HEADS, [[_words(cell) for cell in line] for line in lines])
        yield _words(" ".join(counterpart_sentences(attributes)))


def _groups(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    lines = group_lines(attributes)
    if lines:
        yield "### Groups of the table"
        yield _table(HEADS, [[_words(cell) for cell in line] for line in lines])
        yield _words(" ".join(left_out(attributes)))


def _worst(attributes: Sequence[AttributeReport]) -> Iterator[str]:
    if any(attribute.worst for attribute in attributes):
        yield "### Worst pairs"
    for attribute in attributes:
        worst = attribute.worst[:WORST]
        told = [(_words(f"{p.sentence} {p.how_usual}".rstrip()), p.replay) for p in worst]
        pairs = [f"- {text}" + (f"<br>{_code(replay)}" if replay else "") for text, replay in told]
        if pairs:
            yield "\n".join([f"**{_words(attribute.name)}**", "", *pairs])


def _gate(gate: Gate | None) -> Iterator[str]:
    if gate is None:
        return
    yield f"### Limits: {'passed' if gate.passed else 'failed'}"
    rows = []
    for check in gate.checks:
        limit = _code(check.expression).replace("|", "\\|")  # a table is cut at its bars before code is looked at
        rows.append((limit, "**fired**" if check.fired else "ok", _words(check.text)))
    yield _table(("fails the build if", "result", "why"), rows)


def _corpus(corpus: CorpusReport | None) -> Iterator[str]:
    if corpus is None:
        return
    yield "### Past counterexamples"
    unfit = f", {corpus.unfit:,} no longer fit the domain" if corpus.unfit else ""
    yield (
        f"{corpus.replayed:,} of {_words(corpus.file)} judged again: {corpus.still_flips:,} still flip, "
        f"{corpus.fixed:,} are fixed{unfit}; {corpus.added:,} added."
    )
    yield "\n".join(f"- {_words(line)}" for line in (*corpus.examples, *corpus.notes))
