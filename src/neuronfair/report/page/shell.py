"""What every page is made of: escaped words, tables, sections, and one document that asks nothing of the network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from neuronfair.report.page.words import SPACE, known, plain
from neuronfair.shown import visible


def escape(value: object) -> str:
    """Return words that are safe in text and in attributes; None is not known."""
    return html.escape(visible(plain(value), keep="\n\r\t"))


def name(value: object) -> str:
    """Return a name or a value of the user's, kept apart from the words around it whichever way it is written."""
    return f"<bdi>{escape(value)}</bdi>"


def paragraph(text: object, kind: str = "") -> str:
    """Return words as a paragraph; a percentage stays on one line."""
    return f'<p dir="auto"{_kind(kind)}>{re.sub("(?<=[0-9]) %", f"{SPACE}%", escape(text))}</p>'


def section(key: str, heading: str, *parts: str, level: int = 2, kind: str = "") -> str:
    """Return a part of the page with its heading, which is HTML; nothing where there is nothing to say."""
    if not any(parts):
        return ""
    body = "\n".join(part for part in parts if part)
    return (
        f'<section id="{key}" aria-labelledby="{key}-h"{_kind(kind)}><h{level} id="{key}-h">{heading}</h{level}>\n'
        f"{body}\n</section>"
    )


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """Return a table; cells and caption are HTML, the first cell of a row names it. Narrow screens stack the cells."""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    labels = [re.sub("<[^>]*>", "", column) for column in columns]
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(
            f'<td data-label="{label}"><div>{cell}</div></td>' for label, cell in zip(labels[1:], cells, strict=True)
        )
        + "</tr>"
        for first, *cells in rows
    )
    return (
        f"<table{_kind(kind)}><caption>{caption}</caption><thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table>"
    )


def command(line: object) -> str:
    """Return a command line with a button that copies it; nothing where there is none."""
    if not line:
        return ""
    # A line is broken between words only: "--seed" must not become "-" and "-seed".
    words = " ".join(f"<span>{escape(word)}</span>" for word in plain(line).split(" "))
    return (
        f'<div class="command"><code dir="ltr">{words}</code>'
        '<button type="button" class="copy" hidden>Copy</button></div>'
    )


def embedded(value: Any, kind: str) -> str:
    """Return data for the page's script; nothing in it can end the element or start another."""
    text = json.dumps(value, default=str, separators=(",", ":"))  # ASCII only
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" class="{kind}">{text}</script>'


def finite(value: Any) -> Any:
    """Return a cell as JSON can hold it: NaN and infinity become None."""
    return value if not isinstance(value, float) or known(value) else None


def document(title: str, body: str, *, style: str, script: str = "") -> str:
    """Return a whole page; title and body are HTML. A page with a script forbids every request and any other script."""
    policy = ""
    if script:
        allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        rules = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
        policy = f'<meta http-equiv="Content-Security-Policy" content="{rules}">\n'
        body += f"\n<script>{script}</script>"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n{policy}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{style}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
