"""An audit as one page that opens offline, fits a phone and prints: made from its report alone."""

from __future__ import annotations

from typing import Protocol

from neuronfair.render.page.template import rendered
from neuronfair.verdict.report import Report


class Reported(Protocol):
    """What has a report, such as the result of an audit."""

    @property
    def report(self) -> Report:
        """The report."""
        ...


def audit_page(audit: Report | Reported) -> str:
    """Return an audit, or its report, as one self-contained HTML page."""
    report = audit if isinstance(audit, Report) else audit.report
    return rendered("page.html", style="page.css", script="page.js", report=report)
