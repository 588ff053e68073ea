"""An audit as one page that opens offline, fits a phone and prints: made from its report alone."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from neuronfair.audits.report.index import AuditIndex
from neuronfair.audits.report.report import Report
from neuronfair.audits.stages.playground import Playground
from neuronfair.render.page.template import rendered


class Reported(Protocol):
    """What has a report, such as the result of an audit."""

    @property
    def report(self) -> Report:
        """The report."""
        ...


def audit_page(audit: Report | Reported, game: Playground | None = None) -> str:
    """Return an audit, or its report, as one self-contained HTML page; with a playground, the model is inside it."""
    report = audit if isinstance(audit, Report) else audit.report
    scripts = ("page.js",) if game is None else ("page.js", "playground.js")
    return rendered("page.html", style="page.css", scripts=scripts, report=report, game=game)


def index_page(index: AuditIndex) -> str:
    """Return many audits as one page: a line for each, to sort and to search, with a link to its own page."""
    return rendered("index.html", style="page.css", scripts=("page.js",), index=index)


def verdict_card(report: Report, folder: Path | None = None) -> str:
    """Return the first screen as a piece of HTML for a notebook: no script, no style but its own."""
    return rendered("card.html", report=report, folder=folder)
