"""An audit as one page that opens offline, fits a phone and prints: made from its report alone."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from neuronfair.audits.report.index import AuditIndex
from neuronfair.audits.report.report import Report
from neuronfair.render.page.template import rendered


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


def index_page(index: AuditIndex) -> str:
    """Return many audits as one page: a line for each, to sort and to search, with a link to its own page."""
    return rendered("index.html", style="page.css", script="page.js", index=index)


def verdict_card(report: Report, folder: Path | None = None) -> str:
    """Return the first screen as a piece of HTML for a notebook: no script, no style but its own."""
    return rendered("card.html", report=report, folder=folder)
