"""What is proved as a strip of characters: for terminal and Markdown."""

from __future__ import annotations

from neuronfair.verdict.entries import AttributeReport
from neuronfair.verdict.proved import Proved
from neuronfair.verdict.rates import RateOf
from neuronfair.words import percent

WIDTH = 40
KEY = "█ proved fair, ░ open, ▓ proved discriminatory; │ the sampled rate, counted from the right"


def strip_line(one: AttributeReport, proved: Proved) -> str:
    """Return what is proved about a choice of attributes: a strip, and the three shares; or why nothing is."""
    if not proved.method:
        return proved.sentence
    shares = ", ".join(f"{name} {percent(part.share)}" for name, part in proved.parts)
    return f"{strip(proved, one.rates.domain)} {one.name}: {shares}"


def strip(proved: Proved, rate: RateOf | None = None, width: int = WIDTH) -> str:
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
