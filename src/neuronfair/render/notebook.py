"""What a notebook shows of an audit: a bar while it runs, and the verdict on a card."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from markupsafe import Markup

from neuronfair.audits.report.attribute import measured_populations
from neuronfair.audits.report.report import Report
from neuronfair.formatting import visible
from neuronfair.render.page.template import rendered

EVERY = 0.2  # seconds between two looks of a bar


def verdict_card(report: Report, folder: Path | None = None) -> str:
    """Return the verdict and the main figures as a piece of HTML that needs nothing else, and runs nothing."""
    populations, proofs = measured_populations(report.attributes), any(one.proved for one in report.attributes)
    compared = any(one.counterpart for one in report.attributes)
    return rendered(
        "card.html", report=report, folder=folder, populations=populations, proofs=proofs, compared=compared
    )


@contextmanager
def notebook_bar(what: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar below the cell of a notebook while a block runs; it is gone when that ends."""
    shown = import_module("IPython.display")
    place = shown.display(shown.HTML(""), display_id=True)
    last = 0.0

    def show(done: int, total: int | None, note: str = "", what: str = what) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            place.update(shown.HTML(bar(what, done, total, note)))

    try:
        yield show
    finally:
        place.update(shown.HTML(""))


def bar(what: str, done: int, total: int | None, note: str = "") -> str:
    """Return a progress bar as HTML; without a total it says how much is done.

    >>> bar("Judging <people>", 5, 10)
    'Judging &lt;people&gt; <progress value="5" max="10"></progress> 5/10 '
    """
    if total is None:
        return Markup("{} {} {}").format(visible(what), f"{done:,}" if done else "…", visible(note))
    line = Markup('{} <progress value="{}" max="{}"></progress> {} {}')
    return str(line.format(visible(what), done, total, f"{done:,}/{total:,}", visible(note)))
