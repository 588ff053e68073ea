"""The tables of an audit, which terminal, Markdown and model card show alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from neuronfair.audits.report.attribute import AttributeReport, Gap, left_out_pairs
from neuronfair.audits.report.report import Report
from neuronfair.audits.wording.summary import by, metrics
from neuronfair.formatting import POPULATIONS, UNKNOWN, many, percent, some, spanned, times
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
    heads = ("by", *(metric.name for metric in every[0])) if every else ("by",)
    rows = [(by(one), *(metric.with_range for metric in found)) for one, found in zip(attributes, every, strict=True)]
    confidence = next((metric.confidence for found in every for metric in found if metric.confidence), None)
    sure = "" if confidence is None else f" ({percent(confidence)} CI)"
    return Tabulated(f"All sensitive attributes{sure}", heads, rows)


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
            sentences.append(f"Groups by {one.name} that are too small to be compared: {some(gap.left_out)}.")
    return sentences


def disadvantaged(attributes: Sequence[AttributeReport]) -> list[str]:
    """Return which groups are disadvantaged, by the flip test where the model reads the attribute, and by twins."""
    told = (
        sentence
        for one in attributes
        for sentence in (
            one.direction[0].sentence if one.direction and one.search_twins == "flip" else "",
            one.counterpart.hurt if one.counterpart is not None else "",
        )
    )
    return _once(told)


def _flip_rates(report: Report) -> Tabulated:
    attributes, population = report.attributes, report.data.population
    rows = [
        (
            one.name,
            POPULATIONS[rate.population],
            spanned(rate.rate, rate.low, rate.high),
            f"{rate.discriminated:,} of {rate.of:,}",
        )
        for one in attributes
        for rate in one.rates.measured
    ]
    notes = [*left_out_pairs(attributes), *([population.text] if population is not None else [])]
    return Tabulated("Flip rates", ("by", "population", "flip rate (95% CI)", "flips"), rows, notes)


def _counterfactual(attributes: Sequence[AttributeReport]) -> Tabulated:
    reports = [(one.name, one.counterpart) for one in attributes if one.counterpart is not None]
    rows = [
        (
            name,
            *(spanned(share.rate, share.low, share.high) for share in (report, report.placebo)),
            spanned(report.effect.rate, report.effect.low, report.effect.high, " pp"),
            *("" if share is None else percent(share) for share in (report.lost, report.gained)),
        )
        for name, report in reports
    ]
    notes = _once(
        sentence for _, one in reports for sentence in (one.assumed, one.explained, one.carried, one.told, *one.notes)
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
            rows.append((name, "data set", *(percent(part.share) for part in parts), many(table.of)))
        if (drawn := proved.fresh) is not None:
            shares = (drawn.certified_fair, drawn.undecided, drawn.certified_discriminatory)
            rows.append((name, "realistic synthetic", *(_interval(one) for one in shares), many(drawn.of)))
        space = (percent(part.share) for _, part in proved.parts)
        rows.append((name, "input space", *space, many(int(proved.people))))
    heads = ("by", "of", "certified", "undecided", "certified to depend", "records") if proofs else ()
    refused = _once(proved.sentence for _, proved in proofs if not proved.method)
    return Tabulated("Certified shares", heads, rows, refused)


def _interval(share: ShareInterval) -> str:
    return spanned(share.share, share.low, share.high)


def _searches(attributes: Sequence[AttributeReport]) -> Tabulated:
    rows = [
        (
            one.name,
            search.method,
            f"{search.findings:,}",
            "–" if search.plausible_share is None else percent(search.plausible_share),
            f"{search.tried:,}",
            "–" if search.lift is None else times(search.lift),
        )
        for one in attributes
        for search in one.searches
    ]
    heads = ("by", "search", "found (synthetic)", "plausible", "tried", "lift over random")
    return Tabulated("Appendix: searches for discriminatory inputs", heads, rows, is_appendix=True)


def _once(sentences: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(filter(None, sentences)))


def _shown(gap: Gap | None) -> str:
    return UNKNOWN if gap is None else spanned(gap.value, gap.low, gap.high, " pp")
