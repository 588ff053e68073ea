"""Words of strangers in Markdown: whatever they hold, they stay words."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from neuronfair.shown import visible


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def words(text: str) -> str:
    """Return a text that Markdown and HTML show as it is, on one line: no table, list, link, formula or mention."""
    line = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", visible(" ".join(text.split())))
    line = re.sub(r"^(\d*)([-+.)])(?= |$)", r"\1\\\2", line)
    # GitHub makes links of bare addresses, and writes to whom an @ names.
    return re.sub(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", "<!-- -->", html.escape(line, quote=False))


def code(text: str) -> str:
    """Return a text as code, whatever backticks are in it."""
    text = visible(" ".join(text.split()))
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    inner = f" {text} " if text.startswith("`") or text.endswith("`") else text
    return f"{ticks}{inner}{ticks}"
