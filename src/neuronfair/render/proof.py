"""What a certification has proved: a bar of characters and a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from neuronfair.formatting import duration, listed, percent, plural
from neuronfair.proof.report import ProofReport, Region

WIDTH = 60  # letters of the bar
NAMES = ("certified", "undecided", "certified to depend")
STYLES, LETTERS = ("green", "dim", "bold red"), ("█", "░", "▓")


def proof_report(report: ProofReport) -> RenderableType:
    """Return a certification as a bar of its three shares, and what they mean."""
    shares = _shares(report)
    bar, legend = Text(), Text()
    for name, share, style, letter, width in zip(NAMES, shares, STYLES, LETTERS, _widths(shares), strict=True):
        bar.append(width * letter, style)
        legend.append(f"{letter} ", style).append(f"{name} {percent(share)}   ")
    return Group(bar, legend, *sentences(report))


def _shares(report: ProofReport) -> tuple[float, float, float]:
    """Return the three shares of the data set, or of the input space without one."""
    if (rows := report.data_set) is not None:
        return rows.certified_fair.share, rows.undecided.share, rows.certified_discriminatory.share
    return report.proved_fair.share, report.open.share, report.proved_discriminatory.share


def sentences(report: ProofReport) -> list[str]:
    """Return what is certified, what is not, and for which records, in plain words."""
    by, records = listed(report.sensitive), int(report.people.count)
    space = "of the declared input space" if not report.where else f"where {report.where}"
    lines = [*_of_rows(report, by), *_of_fresh(report)]
    if report.proved_fair.count == report.people.count:
        lines.append(f"Certified: the decision does not depend on {by} for any of {plural(records, 'record')} {space}.")
    else:
        fair, flips = report.proved_fair, report.proved_discriminatory
        lines.append(
            f"Of {plural(records, 'record')} {space}, it is certified for {percent(fair.share)} that the decision does "
            f"not depend on {by}, and for {percent(flips.share)} that it does."
        )
        if report.complete:
            lines.append(f"Nothing is undecided: the decision depends on {by} for exactly {int(flips.count):,}.")
        else:
            lines.append(f"Undecided: {percent(report.open.share)}. A higher --seconds may decide more of them.")
    if report.decision.kind == "tolerance":
        lines.append(
            f"Two decisions differ if their scores are more than {report.decision.value:g} apart (--decision)."
        )
    lines.append(f"{plural(report.boxes, 'box', 'boxes')} in {duration(report.seconds)}; {report.method}.")
    lines += [f"Certified region: {region_sentence(region)}" for region in report.regions]
    if report.interrupted:
        lines.append("Interrupted: what was certified is kept. The same command resumes from here.")
    return lines


def region_sentence(region: Region | None) -> str:
    """Return a region in words: its rule, its size, and how many records it holds."""
    if region is None:
        return "nothing is proved, not even for the record alone."
    held = f"{plural(int(region.size.count), 'record')} of the input space"
    if region.rows is not None:
        held += f", {region.rows.count:,} of the data set ({percent(region.rows.share)})"
    if region.fresh is not None:
        held += f", {percent(region.fresh.share)} of realistic synthetic records"
    depends = "every decision depends" if region.depends else "no decision depends"
    return f"{depends} on the attribute where {region.rule or 'anything'} ({held})."


def _of_rows(report: ProofReport, by: str) -> list[str]:
    rows = report.data_set
    if rows is None:
        return []
    fair, flips, left = rows.certified_fair, rows.certified_discriminatory, rows.undecided
    lines = [
        f"Of {plural(rows.of, 'record')} in the data set, the decision is certified not to depend on {by} for "
        f"{fair.count:,} ({percent(fair.share)}), and to depend on it for {flips.count:,} ({percent(flips.share)}). "
        f"Undecided: {left.count:,}."
    ]
    if rows.without_twin:
        lines.append(f"{rows.without_twin:,} of the certified have no twin: the rules allow them one group only.")
    if rows.outside_domain:
        lines.append(
            f"{rows.outside_domain:,} of the undecided break a rule of the domain or have a cell between its values."
        )
    return lines


def _of_fresh(report: ProofReport) -> list[str]:
    drawn = report.fresh
    if drawn is None:
        return []
    fair, flips = (
        f"{percent(share.share)} (95% CI {percent(share.low)} to {percent(share.high)})"
        for share in (drawn.certified_fair, drawn.certified_discriminatory)
    )
    return [
        f"Of {drawn.of:,} realistic synthetic records, drawn after the proof, it is certified for {fair} that the "
        f"decision does not depend on it, and for {flips} that it does."
    ]


def _widths(shares: Sequence[float]) -> list[int]:
    """Return how many letters of the bar each share gets: one at least if it is not 0."""
    widths = [max(round(share * WIDTH), int(share > 0)) for share in shares]
    widths[widths.index(max(widths))] += WIDTH - sum(widths)
    return widths
