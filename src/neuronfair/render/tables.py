"""The tables of an audit, which terminal, report and Markdown show alike, and the Markdown summary and model card."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from neuronfair.audits.report import Gate, RegressionSetReport, Report, find_worst_attribute
from neuronfair.audits.report.attribute import AttributeReport, Gap, list_notes, list_omissions
from neuronfair.audits.wording import summary
from neuronfair.audits.wording.summary import by, described, limits_of, metrics, next_steps, realistic_pairs, status
from neuronfair.formatting import POPULATIONS, UNKNOWN, first_few, percent, printable, ratio, tally, with_interval
from neuronfair.proof.report import ShareInterval

SET_FAVOURABLE = "set `favourable`"


class Tabulated(NamedTuple):
    """A table as text: its title, headings and rows, and the sentences below it."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    is_appendix: bool = False  # about our searches, not about the model


def overview(attributes: Sequence[AttributeReport]) -> Tabulated:
    """Return the four metrics of each choice of sensitive attributes, a line each."""
    every = [metrics(one) for one in attributes]
    heads = ("by", "twins", "people", *(metric.name for metric in every[0])) if every else ("by",)
    rows = [
        (by(one), f"{one.twins:,}", f"{one.tested:,}", *(metric.with_range for metric in found))
        for one, found in zip(attributes, every, strict=True)
    ]
    confidence = next((metric.confidence for found in every for metric in found if metric.confidence), None)
    sure = "" if confidence is None else f"; {percent(confidence)} CI"
    return Tabulated(f"All sensitive attributes (twins per person, people tested{sure})", heads, rows)


def first_screen(one: AttributeReport) -> Tabulated:
    """Return the four metrics of one choice of sensitive attributes, a line each, with its population."""
    rows = [(m.name, m.value, m.interval or "–", " ".join(filter(None, (m.of, m.note)))) for m in metrics(one)]
    return Tabulated(f"Metrics by {by(one)}", ("metric", "value", "CI", "population"), rows)


def tables_of(report: Report) -> list[Tabulated]:
    """Return all tables of an audit that have a row, in the order in which they are shown."""
    attributes = report.attributes
    every = (_flip_rates(report), _counterfactual(attributes), _certified(attributes), groups(attributes))
    return [one for one in (*every, _searches(attributes)) if one.rows or one.notes]


def groups(attributes: Sequence[AttributeReport]) -> Tabulated:
    """Return the selection rates of demographic groups and their gaps, a line for each choice of attributes."""
    lines = []
    for one in attributes:
        if one.disparity is None or not one.groups:
            continue
        shares = {group.values: group.selection_rate for group in one.groups}
        apart = one.disparity.selection_rate_difference
        ends = [f"{name} {percent(shares.get(name))}" for name in (apart.least, apart.most)] if apart else ["–", "–"]
        ratio, unset = one.disparity.disparate_impact, UNKNOWN if one.disparity.favourable else SET_FAVOURABLE
        impact = unset if ratio is None else f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
        lines.append((one.name, one.disparity.selected, *ends, impact, _shown(one.disparity.error_rate_difference)))
    heads = ("by", "outcome", "lowest share", "highest share", "disparate-impact ratio", "error-rate difference")
    return Tabulated("Demographic groups in the data set", heads, lines, left_out(attributes))


def left_out(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return a sentence for each attribute with groups that are too small to be compared."""
    sentences = []
    for one in attributes:
        gap = one.disparity and (one.disparity.error_rate_difference or one.disparity.selection_rate_difference)
        if gap and gap.left_out:
            sentences.append(f"Groups by {one.name} that are too small to be compared: {first_few(gap.left_out)}.")
    return sentences


def disadvantaged(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return which groups are disadvantaged, by the flip test where the model reads the attribute, and by twins."""
    sentences = (
        sentence
        for one in attributes
        for sentence in (
            one.direction[0].sentence if one.direction and one.search_twins == "flip" else "",
            one.counterfactual.disadvantaged if one.counterfactual is not None else "",
        )
    )
    return _once(sentences)


def _flip_rates(report: Report) -> Tabulated:
    attributes, population = report.attributes, report.data.population
    rows = [
        (
            one.name,
            POPULATIONS[rate.population],
            with_interval(rate.rate, rate.low, rate.high),
            f"{rate.discriminated:,} of {rate.of:,}",
        )
        for one in attributes
        for rate in one.rates.measured
    ]
    notes = [*list_omissions(attributes), *([population.text] if population is not None else [])]
    sure = dict.fromkeys(f" ({percent(rate.confidence)} CI)" for one in attributes for rate in one.rates.measured)
    return Tabulated("Flip rates", ("by", "population", f"flip rate{' or'.join(sure)}", "flips"), rows, notes)


def _counterfactual(attributes: Sequence[AttributeReport]) -> Tabulated:
    reports = [(one.name, one.counterfactual) for one in attributes if one.counterfactual is not None]
    rows = [
        (
            name,
            *(with_interval(share.rate, share.low, share.high) for share in (report, report.permutation_baseline)),
            with_interval(report.effect.rate, report.effect.low, report.effect.high, " pp"),
            *("" if share is None else percent(share) for share in (report.lost, report.gained)),
        )
        for name, report in reports
    ]
    notes = _once(
        sentence
        for _, one in reports
        for sentence in (one.assumed, one.explained, one.mediators_text, one.predictability_text, *one.notes)
    )
    heads = ("by", "different decision", "permutation baseline", "excess", "lost", "gained")
    return Tabulated("Counterfactual twins: proxy evidence", heads, rows, notes)


def _certified(attributes: Sequence[AttributeReport]) -> Tabulated:
    proofs = [(one.name, one.proved) for one in attributes if one.proved is not None]
    rows = list[tuple[str, ...]]()
    for name, proved in proofs:
        if not proved.method:
            continue
        if (table := proved.data_set) is not None:
            parts = (table.certified_fair, table.undecided, table.certified_discriminatory)
            rows.append((name, "data set", *(percent(part.share) for part in parts), tally(table.of)))
            if 0 < (alone := table.without_twin) < table.of:
                counts = (part.count / (table.of - alone) for part in (table.with_twin, *parts[1:]))
                rows.append((name, "data set, with an allowed twin", *map(percent, counts), tally(table.of - alone)))
        if (drawn := proved.fresh) is not None:
            shares = (drawn.certified_fair, drawn.undecided, drawn.certified_discriminatory)
            rows.append((name, "realistic synthetic", *(_interval(one) for one in shares), tally(drawn.of)))
        space = (percent(part.share) for part in (proved.proved_fair, proved.undecided, proved.proved_discriminatory))
        rows.append((name, "input space", *space, tally(int(proved.people))))
    heads = ("by", "of", "certified", "undecided", "certified to depend", "records") if proofs else ()
    refused = _once(proved.sentence for _, proved in proofs if not proved.method)
    return Tabulated("Certified shares", heads, rows, refused)


def _interval(share: ShareInterval) -> str:
    return with_interval(share.share, share.low, share.high)


def _searches(attributes: Sequence[AttributeReport]) -> Tabulated:
    rows = [
        (
            one.name,
            search.method,
            f"{search.findings:,}",
            "–" if search.plausible_share is None else percent(search.plausible_share),
            f"{search.tried:,}",
            "–" if search.lift is None else ratio(search.lift),
        )
        for one in attributes
        for search in one.searches
    ]
    heads = ("by", "search", "found (synthetic)", "realistic", "tried", "lift over random")
    return Tabulated("Appendix: searches for discriminatory inputs", heads, rows, is_appendix=True)


def _once(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, sentences)))


def _shown(gap: Gap | None) -> str:
    return UNKNOWN if gap is None else with_interval(gap.value, gap.low, gap.high, " pp")


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def escaped(text: str) -> str:
    """Return a text that Markdown and HTML show as it is, on one line: no table, list, link, formula or mention."""
    line = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", printable(" ".join(text.split())))
    line = re.sub(r"^(\d*)([-+.)])(?= |$)", r"\1\\\2", line)
    # GitHub makes links of bare addresses, and writes to whom an @ names.
    return re.sub(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", "<!-- -->", html.escape(line, quote=False))


def code_span(text: str) -> str:
    """Return a text as code, whatever backticks are in it."""
    text = printable(" ".join(text.split()))
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
        f"## {escaped(report.verdict.headline)}",
        escaped(summary.twin_explained(attributes)),
        escaped(status(report)),
        *(f"- {escaped(note)}" for note in limits_of(report)),
        *(_titled(first_screen(find_worst_attribute(attributes))) if attributes else ()),
        *(_titled(overview(attributes)) if len(attributes) > 1 else ()),
        *_steps(report),
        *_worst(report),
        *_gate(report.gate),
        *_regression_set(report.regression_set),
    ]
    if report.baseline is not None:
        changes = [f"- {escaped(change.text)}" for change in report.baseline.changes]
        parts += ["### Since the earlier audit", escaped(report.baseline.text), "\n".join(changes)]
    parts += [escaped(sentence) for sentence in disadvantaged(attributes)]
    parts += [part for one in tables_of(report) for part in _titled(one)]
    model, data, again = report.model, report.data, report.reproduction
    parts.append(
        f"Model: {escaped(model.source)} ({escaped(model.kind)}); data set: {escaped(data.name)}, "
        f"{data.rows:,} records; neuronfair {report.neuronfair}."
        + (f" To reproduce: {code_span(again.command)}" if again.command else "")
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _titled(one: Tabulated) -> Iterator[str]:
    """Return a table below its title, and the sentences about it."""
    yield f"### {escaped(one.title)}"
    if one.rows:
        yield markdown_table(one.heads, [[escaped(cell) for cell in line] for line in one.rows])
    yield "\n".join(f"- {escaped(note)}" for note in one.notes)


def _steps(report: Report) -> Iterator[str]:
    steps = next_steps(report)
    if steps:
        yield "### What to do next"
        yield "\n".join(
            f"{i}. {escaped(step.text)}" + (f" {code_span(step.command)}" if step.command else "")
            for i, step in enumerate(steps, 1)
        )


def _worst(report: Report) -> Iterator[str]:
    pairs = realistic_pairs(report.attributes, SHOWN_PAIRS)
    if pairs:
        yield "### Worst pairs"
        yield "\n".join(
            f"- {escaped(described(pair))}" + (f"<br>{code_span(pair.replay)}" if pair.replay else "") for pair in pairs
        )


def _gate(gate: Gate | None) -> Iterator[str]:
    if gate is None:
        return
    yield f"### Thresholds: {'passed' if gate.passed else 'failed'}"
    rows = []
    for check in gate.checks:
        limit = code_span(check.expression).replace("|", "\\|")  # a table is cut at its bars before code is looked at
        rows.append((limit, "**failed**" if check.fired else "passed", escaped(check.explained)))
    yield markdown_table(("threshold", "result", "why"), rows)


def _regression_set(past: RegressionSetReport | None) -> Iterator[str]:
    if past is None:
        return
    yield "### Past counterexamples"
    unfit = f", {past.unfit:,} no longer fit the input schema" if past.unfit else ""
    yield (
        f"{past.replayed:,} of {escaped(past.file)} evaluated again: {past.still_flips:,} still flip, "
        f"{past.fixed:,} are fixed{unfit}; {past.added:,} added."
    )
    yield "\n".join(f"- {escaped(line)}" for line in (*past.examples, *past.notes))


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
    classes = f"{escaped(data.target or '')}: {' or '.join(map(escaped, data.classes))}" if data.target else ""
    shown = [one for one in tables_of(report) if not one.is_appendix]
    tested = any(one.counterfactual for one in report.attributes)
    untested = "Only the attributes named here were changed. Proxies for them, such as a postcode, were not tested."
    box = "white" if model.white_box else "black"
    limits = [*CARD_LIMITS, *([] if tested else [untested]), *list_notes(report.attributes)]
    parts = [
        f"# Model card: {escaped(model.source)}",
        f"**{escaped(report.verdict.headline)}** {escaped(summary.twin_explained(report.attributes))}".rstrip(),
        escaped(status(report)),
        "## The model",
        _facts(
            ("Model", f"{escaped(model.source)} ({escaped(model.kind)}), {box} box"),
            ("Fingerprint", code_span(model.fingerprint)),
            ("Accuracy", accuracy),
            ("Decides", classes),
            ("Favourable outcome", escaped(data.favourable or "")),
            ("Two decisions differ by", _decision(report)),
        ),
        "## The data set",
        _facts(
            ("Data set", f"{escaped(data.name)}, {data.rows:,} records, {data.attributes:,} attributes"),
            ("Sensitive", escaped(", ".join(data.sensitive))),
            ("Input schema", "inferred from the data set" if data.domain_inferred else "declared"),
        ),
        *(part.replace("### ", "## ", 1) for one in (overview(report.attributes), *shown) for part in _titled(one)),
        *(escaped(sentence) for sentence in disadvantaged(report.attributes)),
        *(part.replace("### ", "## ", 1) for part in _worst(report)),
        "## Limits of this audit",
        "\n".join(f"- {escaped(line)}" for line in limits),
        "## How it was made",
        f"neuronfair {escaped(report.neuronfair)}, {escaped(again.created)}, seed {again.seed}; Python "
        f"{escaped(again.python)}, torch {escaped(again.torch)}; input schema {code_span(again.domain[:12])}, records "
        f"{code_span(again.rows[:12])}."
        + (f" To reproduce: {code_span(again.command)}" if again.command else "")
        + (" **Interrupted: not everything was measured.**" if again.interrupted else ""),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(*facts: tuple[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts if value)


def _decision(report: Report) -> str:
    kind, value = report.decision.kind, report.decision.value
    said = {"argmax": "their class", "threshold": f"their side of {value:g}", "tolerance": f"more than {value:g}"}
    return said[kind]
