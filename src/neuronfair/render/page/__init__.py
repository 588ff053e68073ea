"""An audit as one page that opens offline, fits a phone and prints: made from its report alone."""

from __future__ import annotations

from neuronfair.render.page.template import rendered
from neuronfair.verdict.report import Report


def audit_page(report: Report) -> str:
    """Return the report of an audit as one self-contained HTML page."""
    return rendered("page.html", style="page.css", script="page.js", report=report)
