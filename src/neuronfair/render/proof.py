"""What a certification came to: a bar of characters and a few sentences."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from neuronfair.formatting import duration, listed, percent, plural
from neuronfair.proof.report import Part, ProofReport

WIDTH = 60  # letters of the bar


def proof_report(report: ProofReport) -> RenderableType:
    """Return a certification as a bar of its three shares, and what they mean."""
    parts = (report.proved_fair, report.open, report.proved_discriminatory)
    names = ("certified", "undecided", "certified to depend")
    styles, letters = ("green", "dim", "bold red"), ("█", "░", "▓")
    bar, legend = Text(), Text()
    for name, part, style, letter, width in zip(names, parts, styles, letters, _widths(parts), strict=True):
        bar.append(width * letter, style)
        legend.append(f"{letter} ", style).append(f"{name} {percent(part.share)}   ")
    return Group(bar, legend, *sentences(report))


def sentences(report: ProofReport) -> list[str]:
    """Return what is certified, what is not, and for whom, in plain words."""
    by, records = listed(report.sensitive), int(report.people.count)
    space = "of the declared input space" if not report.where else f"where {report.where}"
    lines = []
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
    if report.interrupted:
        lines.append("Interrupted: what was certified is kept. The same command resumes from here.")
    return lines


def _widths(parts: tuple[Part, ...]) -> list[int]:
    """Return how many letters of the bar each part gets: one at least if there is anybody."""
    widths = [max(round(part.share * WIDTH), int(part.share > 0)) for part in parts]
    widths[widths.index(max(widths))] += WIDTH - sum(widths)
    return widths
