"""Many audits as one table for the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronfair.audits.report.index import AuditIndex
from neuronfair.formatting import duration, listed, percent, plural, visible

_STYLES = {"failed": "bold red", "error": "bold red", "not finished": "bold yellow", "passed": "green"}


def index_table(index: AuditIndex) -> RenderableType:
    """Return a line for each audit, then what failed and why, and how many are in which state."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("audit", overflow="fold")
    for heading in ("limits", "verdict"):
        table.add_column(heading)
    for heading in ("flips", "random", "counter-\nparts", "time"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for line in index.audits:
        shares = [None if one is None else one.rate for one in (line.rate, line.random, line.counterpart)]
        table.add_row(
            line.name,
            Text(line.state, style=_STYLES.get(line.state, "")),
            line.level or "–",
            *("–" if share is None else percent(share) for share in shares),
            duration(line.seconds) if line.level else "–",
        )
    told = [
        Text(visible(f"{line.name}: {why}"))
        for line in index.audits
        for why in ((line.error,) if line.error is not None else line.fired)
    ]
    states = dict.fromkeys(line.state for line in index.audits)
    counts = listed([f"{index.count(state):,} {state.replace('no ', 'without ')}" for state in states])
    return Group(table, *told, f"{plural(len(index.audits), 'audit')}: {counts}.")
