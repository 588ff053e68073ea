"""The tables of an audit, which terminal, report and Markdown show alike, and the Markdown summary and model card."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from neuronfair.audits.report import Gate, RegressionSetReport, Report, find_worst_attribute
from neuronfair.audits.report.attribute import AttributeReport, Gap, list_notes, list_omissions
from neuronfair.audits.wording import summary
from neuronfair.audits.wording.summary import (
    describe_pair,
    list_limits,
    list_sensitive,
    metrics,
    propose_steps,
    select_realistic_pairs,
    status,
)
from neuronfair.formatting import (
    POPULATIONS,
    UNKNOWN,
    first_few,
    format_count,
    percent,
    printable,
    ratio,
    with_interval,
)
from neuronfair.proof.certificate import ShareInterval

SET_FAVOURABLE = "set `favourable`"


class TextTable(NamedTuple):
    """A table as text: its title, headings and rows, and the sentences below it."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    is_appendix: bool = False  # about our searches, not about the model


def tabulate_overview(attributes: Sequence[AttributeReport]) -> TextTable:
    """Return the four metrics of each choice of sensitive attributes, a line each."""
    lines = [metrics(attribute) for attribute in attributes]
    heads = ("by", "twins", "people", *(metric.name for metric in lines[0])) if lines else ("by",)
    rows = [
        (
            list_sensitive(attribute),
            f"{attribute.twins:,}",
            f"{attribute.tested:,}",
            *(metric.with_range for metric in line),
        )
        for attribute, line in zip(attributes, lines, strict=True)
    ]
    confidence = next((metric.confidence for line in lines for metric in line if metric.confidence), None)
    level = "" if confidence is None else f"; {percent(confidence)} CI"
    return TextTable(f"All sensitive attributes (twins per person, people tested{level})", heads, rows)


def tabulate_metrics(attribute: AttributeReport) -> TextTable:
    """Return the four metrics of one choice of sensitive attributes, a line each, with its population."""
    rows = [(m.name, m.value, m.interval or "–", " ".join(filter(None, (m.of, m.note)))) for m in metrics(attribute)]
    return TextTable(f"Metrics by {list_sensitive(attribute)}", ("metric", "value", "CI", "population"), rows)


def tabulate_report(report: Report) -> list[TextTable]:
    """Return all tables of an audit that have a row, in the order in which they are shown."""
    attributes = report.attributes
    builders = (_tabulate_twin_tests, _tabulate_proofs, tabulate_groups, _tabulate_searches)
    tables = (_tabulate_flip_rates(report), *(tabulate(attributes) for tabulate in builders))
    return [table for table in tables if table.rows or table.notes]


def tabulate_groups(attributes: Sequence[AttributeReport]) -> TextTable:
    """Return the selection rates of demographic groups and their gaps, a line for each choice of attributes."""
    lines = []
    for attribute in attributes:
        disparity = attribute.disparity
        if disparity is None or not attribute.groups:
            continue
        shares = {group.values: group.selection_rate for group in attribute.groups}
        gap = disparity.selection_rate_difference
        ends = [f"{name} {percent(shares.get(name))}" for name in (gap.least, gap.most)] if gap else ["–", "–"]
        ratio, unset = disparity.disparate_impact, UNKNOWN if disparity.favourable else SET_FAVOURABLE
        impact = unset if ratio is None else f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
        errors = _format_gap(disparity.error_rate_difference)
        lines.append((attribute.name, disparity.selected, *ends, impact, errors))
    heads = ("by", "outcome", "lowest share", "highest share", "disparate-impact ratio", "error-rate difference")
    return TextTable("Demographic groups in the data set", heads, lines, list_small_groups(attributes))


def list_small_groups(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return a sentence for each attribute with groups that are too small to be compared."""
    sentences = []
    for attribute in attributes:
        disparity = attribute.disparity
        gap = disparity and (disparity.error_rate_difference or disparity.selection_rate_difference)
        if gap and gap.left_out:
            left_out = first_few(gap.left_out)
            sentences.append(f"Groups by {attribute.name} that are too small to be compared: {left_out}.")
    return sentences


def list_disadvantaged(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return which groups are disadvantaged, by the flip test where the model reads the attribute, and by twins."""
    sentences = (
        sentence
        for attribute in attributes
        for sentence in (
            attribute.direction[0].sentence if attribute.direction and attribute.search_twins == "flip" else "",
            attribute.counterfactual.disadvantaged if attribute.counterfactual is not None else "",
        )
    )
    return _drop_repeats(sentences)


def _tabulate_flip_rates(report: Report) -> TextTable:
    attributes, population = report.attributes, report.data.population
    rows = [
        (
            attribute.name,
            POPULATIONS[rate.population],
            with_interval(rate.rate, rate.low, rate.high),
            f"{rate.discriminated:,} of {rate.of:,}",
        )
        for attribute in attributes
        for rate in attribute.rates.available
    ]
    notes = [*list_omissions(attributes), *([population.text] if population is not None else [])]
    rates = (rate for attribute in attributes for rate in attribute.rates.available)
    levels = dict.fromkeys(f" ({percent(rate.confidence)} CI)" for rate in rates)
    return TextTable("Flip rates", ("by", "population", f"flip rate{' or'.join(levels)}", "flips"), rows, notes)


def _tabulate_twin_tests(attributes: Sequence[AttributeReport]) -> TextTable:
    reports = [(attribute.name, attribute.counterfactual) for attribute in attributes if attribute.counterfactual]
    rows = [
        (
            name,
            *(with_interval(share.rate, share.low, share.high) for share in (report, report.permutation_baseline)),
            with_interval(report.effect.rate, report.effect.low, report.effect.high, " pp"),
            *("" if share is None else percent(share) for share in (report.lost, report.gained)),
        )
        for name, report in reports
    ]
    notes = _drop_repeats(
        sentence
        for _, test in reports
        for sentence in (test.assumed, test.explained, test.mediators_text, test.predictability_text, *test.notes)
    )
    heads = ("by", "different decision", "permutation baseline", "excess", "lost", "gained")
    return TextTable("Counterfactual twins: proxy evidence", heads, rows, notes)


def _tabulate_proofs(attributes: Sequence[AttributeReport]) -> TextTable:
    proofs = [(attribute.name, attribute.proved) for attribute in attributes if attribute.proved is not None]
    rows = list[tuple[str, ...]]()
    for name, proved in proofs:
        if not proved.method:
            continue
        if (table := proved.data_set) is not None:
            parts = (table.certified_fair, table.undecided, table.certified_discriminatory)
            rows.append((name, "data set", *(percent(part.share) for part in parts), format_count(table.of)))
            if 0 < (unpaired := table.without_twin) < table.of:
                counts = (part.count / (table.of - unpaired) for part in (table.with_twin, *parts[1:]))
                rows.append(
                    (name, "data set, with an allowed twin", *map(percent, counts), format_count(table.of - unpaired))
                )
        if (fresh := proved.fresh) is not None:
            shares = (fresh.certified_fair, fresh.undecided, fresh.certified_discriminatory)
            rows.append((name, "realistic synthetic", *map(_format_share, shares), format_count(fresh.of)))
        space = (percent(part.share) for part in (proved.proved_fair, proved.undecided, proved.proved_discriminatory))
        rows.append((name, "input space", *space, format_count(int(proved.people))))
    heads = ("by", "of", "certified", "undecided", "certified to depend", "records") if proofs else ()
    refused = _drop_repeats(proved.sentence for _, proved in proofs if not proved.method)
    return TextTable("Certified shares", heads, rows, refused)


def _format_share(share: ShareInterval) -> str:
    return with_interval(share.share, share.low, share.high)


def _tabulate_searches(attributes: Sequence[AttributeReport]) -> TextTable:
    rows = [
        (
            attribute.name,
            search.method,
            f"{search.findings:,}",
            "–" if search.plausible_share is None else percent(search.plausible_share),
            f"{search.tried:,}",
            "–" if search.lift is None else ratio(search.lift),
        )
        for attribute in attributes
        for search in attribute.searches
    ]
    heads = ("by", "search", "found (synthetic)", "realistic", "tried", "lift over random")
    return TextTable("Appendix: searches for discriminatory inputs", heads, rows, is_appendix=True)


def _drop_repeats(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, sentences)))


def _format_gap(gap: Gap | None) -> str:
    return UNKNOWN if gap is None else with_interval(gap.value, gap.low, gap.high, " pp")


def join_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def escape(text: str) -> str:
    """Return a text that Markdown and HTML show as it is, on one line: no table, list, link, formula or mention."""
    line = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", printable(" ".join(text.split())))
    line = re.sub(r"^(\d*)([-+.)])(?= |$)", r"\1\\\2", line)
    # GitHub makes links of bare addresses, and writes to whom an @ names.
    return re.sub(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", "<!-- -->", html.escape(line, quote=False))


def quote_code(text: str) -> str:
    """Return a text as code, whatever backticks are in it."""
    text = printable(" ".join(text.split()))
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    inner = f" {text} " if text.startswith("`") or text.endswith("`") else text
    return f"{ticks}{inner}{ticks}"


MAX_PAIRS = 3  # pairs shown


def write_markdown(report: Report) -> str:
    """Return an audit as Markdown: headline, status, metrics, worst pairs, thresholds, all tables.

    Names and values from the data set are escaped: a column called `<b>` or `a|b` stays text.
    """
    attributes = report.attributes
    parts = [
        f"## {escape(report.verdict.headline)}",
        escape(summary.explain_twin(attributes)),
        escape(status(report)),
        *(f"- {escape(note)}" for note in list_limits(report)),
        *(_write_table(tabulate_metrics(find_worst_attribute(attributes))) if attributes else ()),
        *(_write_table(tabulate_overview(attributes)) if len(attributes) > 1 else ()),
        *_write_steps(report),
        *_write_worst_pairs(report),
        *_write_gate(report.gate),
        *_write_regression_set(report.regression_set),
    ]
    if report.baseline is not None:
        changes = [f"- {escape(change.text)}" for change in report.baseline.changes]
        parts += ["### Since the earlier audit", escape(report.baseline.text), "\n".join(changes)]
    parts += [escape(sentence) for sentence in list_disadvantaged(attributes)]
    parts += [part for table in tabulate_report(report) for part in _write_table(table)]
    model, data, origin = report.model, report.data, report.reproduction
    parts.append(
        f"Model: {escape(model.source)} ({escape(model.kind)}); data set: {escape(data.name)}, "
        f"{data.rows:,} records; neuronfair {report.neuronfair}."
        + (f" To reproduce: {quote_code(origin.command)}" if origin.command else "")
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _write_table(table: TextTable) -> Iterator[str]:
    """Return a table below its title, and the sentences about it."""
    yield f"### {escape(table.title)}"
    if table.rows:
        yield join_table(table.heads, [[escape(cell) for cell in line] for line in table.rows])
    yield "\n".join(f"- {escape(note)}" for note in table.notes)


def _write_steps(report: Report) -> Iterator[str]:
    steps = propose_steps(report)
    if steps:
        yield "### What to do next"
        yield "\n".join(
            f"{i}. {escape(step.text)}" + (f" {quote_code(step.command)}" if step.command else "")
            for i, step in enumerate(steps, 1)
        )


def _write_worst_pairs(report: Report) -> Iterator[str]:
    pairs = select_realistic_pairs(report.attributes, MAX_PAIRS)
    if pairs:
        yield "### Worst pairs"
        yield "\n".join(
            f"- {escape(describe_pair(pair))}" + (f"<br>{quote_code(pair.replay)}" if pair.replay else "")
            for pair in pairs
        )


def _write_gate(gate: Gate | None) -> Iterator[str]:
    if gate is None:
        return
    yield f"### Thresholds: {'passed' if gate.passed else 'failed'}"
    rows = []
    for check in gate.checks:
        limit = quote_code(check.expression).replace("|", "\\|")  # a table is cut at its bars before code is looked at
        rows.append((limit, "**failed**" if check.fired else "passed", escape(check.explained)))
    yield join_table(("threshold", "result", "why"), rows)


def _write_regression_set(past: RegressionSetReport | None) -> Iterator[str]:
    if past is None:
        return
    yield "### Past counterexamples"
    unfit = f", {past.unfit:,} no longer fit the input schema" if past.unfit else ""
    yield (
        f"{past.replayed:,} of {escape(past.file)} evaluated again: {past.still_flips:,} still flip, "
        f"{past.fixed:,} are fixed{unfit}; {past.added:,} added."
    )
    yield "\n".join(f"- {escape(line)}" for line in (*past.examples, *past.notes))


CARD_LIMITS = (
    "A search finds cases; it does not certify that there are none.",
    "A rate belongs to the population that is named with it. Records drawn uniformly from the declared input space are "
    "not real applicants; realistic synthetic records are as real as the model that they are drawn from.",
    "The same decision for two groups says nothing about whether decisions are right, nor whether groups fare equally.",
)


def write_model_card(report: Report) -> str:
    """Return an audit as a model card in Markdown: the model, the data set, the metrics, the limits."""
    model, data, origin = report.model, report.data, report.reproduction
    accuracy = ", ".join(f"{percent(share)} ({part})" for part, share in (model.accuracy or {}).items())
    classes = f"{escape(data.target or '')}: {' or '.join(map(escape, data.classes))}" if data.target else ""
    tables = [tabulate_overview(report.attributes)]
    tables += [table for table in tabulate_report(report) if not table.is_appendix]
    has_twin_test = any(attribute.counterfactual for attribute in report.attributes)
    proxy_note = "Only the attributes named here were changed. Proxies for them, such as a postcode, were not tested."
    box = "white" if model.white_box else "black"
    limits = [*CARD_LIMITS, *([] if has_twin_test else [proxy_note]), *list_notes(report.attributes)]
    parts = [
        f"# Model card: {escape(model.source)}",
        f"**{escape(report.verdict.headline)}** {escape(summary.explain_twin(report.attributes))}".rstrip(),
        escape(status(report)),
        "## The model",
        _write_facts(
            ("Model", f"{escape(model.source)} ({escape(model.kind)}), {box} box"),
            ("Fingerprint", quote_code(model.fingerprint)),
            ("Accuracy", accuracy),
            ("Decides", classes),
            ("Favourable outcome", escape(data.favourable or "")),
            ("Two decisions differ by", _describe_decision(report)),
        ),
        "## The data set",
        _write_facts(
            ("Data set", f"{escape(data.name)}, {data.rows:,} records, {data.attributes:,} attributes"),
            ("Sensitive", escape(", ".join(data.sensitive))),
            ("Input schema", "inferred from the data set" if data.domain_inferred else "declared"),
        ),
        *(part.replace("### ", "## ", 1) for table in tables for part in _write_table(table)),
        *(escape(sentence) for sentence in list_disadvantaged(report.attributes)),
        *(part.replace("### ", "## ", 1) for part in _write_worst_pairs(report)),
        "## Limits of this audit",
        "\n".join(f"- {escape(line)}" for line in limits),
        "## How it was made",
        f"neuronfair {escape(report.neuronfair)}, {escape(origin.created)}, seed {origin.seed}; Python "
        f"{escape(origin.python)}, torch {escape(origin.torch)}; input schema {quote_code(origin.domain[:12])}, "
        f"records {quote_code(origin.rows[:12])}."
        + (f" To reproduce: {quote_code(origin.command)}" if origin.command else "")
        + (" **Interrupted: not everything was measured.**" if origin.interrupted else ""),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _write_facts(*facts: tuple[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in facts if value)


def _describe_decision(report: Report) -> str:
    kind, value = report.decision.kind, report.decision.value
    phrases = {"argmax": "their class", "threshold": f"their side of {value:g}", "tolerance": f"more than {value:g}"}
    return phrases[kind]
