"""An audit as one page that opens offline, fits a phone and prints: made from its JSON summary alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from neuronfair.report.page.attribute import attribute_panel
from neuronfair.report.page.checks import checks
from neuronfair.report.page.closing import footer, reading, repair, reproduction
from neuronfair.report.page.head import header, key_figures, overview
from neuronfair.report.page.shell import document, escape, name
from neuronfair.report.page.summary import complete
from neuronfair.report.page.words import listed


def audit_page(summary: Mapping[str, Any]) -> str:
    """Return the report of an audit as one self-contained HTML page.

    `summary` is what `audit.json` holds. What it does not know (None) is left out or called not known.
    """
    summary = complete(summary)
    attributes, data = summary["attributes"], summary["data"]
    white_box = bool(summary["model"]["white_box"])
    panels = [attribute_panel(i, one, data["classes"], white_box=white_box) for i, one in enumerate(attributes)]
    parts = [
        key_figures(summary),
        overview(attributes),
        checks(summary),
        _tabs(attributes),
        *panels,
        repair(summary),
        reading(),
        reproduction(summary),
    ]
    body = "\n".join(part for part in parts if part)
    title = f"Fairness audit of {escape(data['name'])} by {listed([escape(word) for word in data['sensitive']])}"
    page = f"{header(summary)}\n<main>\n{_contents(summary)}{body}\n</main>\n{footer(summary)}"
    return document(title, page, style=_file("page.css"), script=_file("page.js"))


def _contents(summary: Mapping[str, Any]) -> str:
    """Return links to the parts of the page."""
    places = {
        "checks": "Checks" if any(summary[key] for key in ("gate", "corpus", "baseline")) else "",
        "a0": "Findings" if summary["attributes"] else "",
        "repair": "Repair" if summary["repair"] else "",
        "reading": "How to read this",
        "again": "Do it again",
    }
    links = "".join(f'<li><a href="#{place}">{words}</a></li>' for place, words in places.items() if words)
    return f'<nav class="contents" aria-label="On this page"><ul>{links}</ul></nav>\n'


def _tabs(attributes: Sequence[Mapping[str, Any]]) -> str:
    """Return links to the panels, where there are several; the page's script makes tabs of them."""
    if len(attributes) < 2:
        return ""
    links = "".join(
        f'<a href="#a{i}">{listed([name(word) for word in attribute["sensitive"]])}</a>'
        for i, attribute in enumerate(attributes)
    )
    return f'<nav class="tabs" aria-label="Sensitive attributes">{links}</nav>'


def _file(filename: str) -> str:
    return Path(__file__).with_name(filename).read_text(encoding="utf-8")
