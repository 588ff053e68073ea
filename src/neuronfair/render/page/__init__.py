"""An audit as one page that opens offline, fits a phone and prints: made from its report alone."""

from __future__ import annotations

from neuronfair.render.page.template import rendered
from neuronfair.verdict.playground import Playground
from neuronfair.verdict.report import Report


def audit_page(report: Report, game: Playground | None = None) -> str:
    """Return the report of an audit as one self-contained HTML page; with a playground, the model is inside it."""
    scripts = ("page.js",) if game is None else ("page.js", "playground.js")
    return rendered("page.html", style="page.css", scripts=scripts, report=report, game=game)
