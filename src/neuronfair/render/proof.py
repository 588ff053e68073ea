"""What a proof came to: a bar of characters and a few sentences."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from neuronfair.audits.report.attribute import AttributeReport
from neuronfair.audits.report.proved import Proved
from neuronfair.audits.report.rates import RateOf
from neuronfair.formatting import duration, listed, percent, plural
from neuronfair.proof.report import Part, ProofReport

WIDTH = 60  # letters of the bar


def proof_report(report: ProofReport) -> RenderableType:
    """Return a proof as a bar of what is proved fair, proved discriminatory and open, and what that means."""
    parts = (report.proved_fair, report.open, report.proved_discriminatory)  # as on the strip of an audit
    names = ("proved fair", "open", "proved discriminatory")
    styles, letters = ("green", "dim", "bold red"), ("█", "░", "▓")
    bar, legend = Text(), Text()
    for name, part, style, letter, width in zip(names, parts, styles, letters, _widths(parts), strict=True):
        bar.append(width * letter, style)
        legend.append(f"{letter} ", style).append(f"{name} {percent(part.share)}   ")
    return Group(bar, legend, *sentences(report))


def sentences(report: ProofReport) -> list[str]:
    """Return what is proved, what is not, and of whom, in plain words."""
    by, people = listed(report.sensitive), int(report.people.count)
    whom = "of the domain" if not report.where else f"where {report.where}"
    lines = []
    if report.proved_fair.count == report.people.count:
        lines.append(f"Proved: nobody's decision flips with {by}, for all {plural(people, 'person', 'people')} {whom}.")
    else:
        fair, flips = report.proved_fair, report.proved_discriminatory
        lines.append(
            f"Of the {plural(people, 'person', 'people')} {whom}, it is proved that the decision does not flip with "
            f"{by} for {percent(fair.share)}, and that it does for {percent(flips.share)}."
        )
        if report.complete:
            lines.append(f"Nothing is open: it flips for exactly {int(flips.count):,}.")
        else:
            lines.append(
                f"Open: {percent(report.open.share)}. Of these people nothing is proved, neither way; "
                "more --seconds may decide more of them."
            )
    if report.decision.kind == "tolerance":
        lines.append(
            f"A flip is a gap of more than {report.decision.value:g} between the scores of twins (--decision)."
        )
    lines.append(f"{plural(report.boxes, 'box', 'boxes')} in {duration(report.seconds)}; {report.method}.")
    if report.interrupted:
        lines.append("Interrupted: what was proved is kept. The same command goes on from here.")
    return lines


def _widths(parts: tuple[Part, ...]) -> list[int]:
    """Return how many letters of the bar each part gets: one at least if there is anybody."""
    widths = [max(round(part.share * WIDTH), int(part.share > 0)) for part in parts]
    widths[widths.index(max(widths))] += WIDTH - sum(widths)
    return widths


STRIP_WIDTH = 40
KEY = "█ proved fair, ░ open, ▓ proved discriminatory; │ the sampled rate, counted from the right"


def strip_line(one: AttributeReport, proved: Proved) -> str:
    """Return what is proved about a choice of attributes: a strip, and the three shares; or why nothing is."""
    if not proved.method:
        return proved.sentence
    shares = ", ".join(f"{name} {percent(part.share)}" for name, part in proved.parts)
    return f"{strip(proved, one.rates.domain)} {one.name}: {shares}"


def strip(proved: Proved, rate: RateOf | None = None, width: int = STRIP_WIDTH) -> str:
    """Return the people as a strip: proved fair, open, proved discriminatory; and where the sampled rate lies.

    The rate is counted from the right: as many as lie there are estimated to be discriminatory. Nobody gets no
    character, and whoever there is at least one; so the strip is only as exact as its characters.
    """
    shares = [part.share for _, part in proved.parts]
    sizes = [max(1, round(share * width)) if share else 0 for share in shares]
    sizes[sizes.index(max(sizes))] += width - sum(sizes)
    cells = "".join(sign * size for sign, size in zip("█░▓", sizes, strict=True))
    if rate is None:
        return cells
    at = min(width, max(0, round(width * (1 - rate.rate))))
    return f"{cells[:at]}│{cells[at:]}"
