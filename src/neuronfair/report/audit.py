"""What an audit came to, on the terminal: the verdict, a short table, the worst findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neuronfair.shown import visible

WORST = 3  # findings told
_STYLE = {"discriminates": "bold red", "suspicious": "bold yellow", "nothing found": "bold green"}


def audit_report(summary: Mapping[str, Any]) -> RenderableType:
    """Return the verdict first, then the figures of each attribute, the worst findings and what could be done."""
    verdict = summary["verdict"]
    said = Text(visible(verdict["text"]), style=_STYLE.get(verdict["level"], "bold"))
    lines: list[RenderableType] = [said, _table(summary)]
    worst = [(f["gap"], f) for entry in summary["attributes"] for f in entry["worst"]]
    for _, finding in sorted(worst, key=lambda one: -one[0])[:WORST]:
        lines.append(f"• {finding['sentence']}")
        if finding["replay"]:
            lines.append(Text(visible(f"  {finding['replay']}"), style="dim", overflow="fold"))
    groups = [group for entry in summary["attributes"] for group in entry["subgroups"][:1]]
    lines += [f"• {group['sentence']}" for group in groups]
    lines += [f"Note: {n['seen']} {n['remedy']}" for e in summary["attributes"][:1] for n in e["health"]]
    if not summary["model"]["white_box"]:
        lines.append(summary["model"]["note"])
    lines += _afterwards(summary)
    return Group(*lines)


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table()
    for heading in ("attribute", "random people", "in the table", "search", "findings", "lift"):
        table.add_column(heading, justify="left" if heading in ("attribute", "search") else "right")
    for entry in summary["attributes"]:
        cells = [entry["name"], _rate(entry["rate"]["valid"]), _rate(entry["rate"]["data"], ends=False)]
        for search in entry["searches"] or [None]:
            table.add_row(*cells, *_search(search))
            cells = ["", "", ""]
    return table


def _rate(rate: Mapping[str, Any] | None, *, ends: bool = True) -> str:
    if rate is None:
        return "not measured"
    around = f" ({100 * rate['low']:.2f}–{100 * rate['high']:.2f})" if ends else ""
    return f"{rate['share']:.2%}{around}"


def _search(search: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if search is None:
        return "none", "", ""
    lift = "" if search["lift"] is None else f"× {search['lift']:.1f}"
    return search["method"], f"{search['findings']:,}", lift


def _afterwards(summary: Mapping[str, Any]) -> list[RenderableType]:
    """Return what is said of a repair, the corpus, an earlier audit and the gate, where there are such."""
    lines: list[RenderableType] = []
    if summary["repair"] is not None:
        lines.append(f"Repair: {summary['repair']['text']}")
    corpus = summary["corpus"]
    if corpus is not None:
        lines.append(
            f"Corpus: {corpus['still_wrong']:,} of {corpus['replayed']:,} past counterexamples still hold; "
            f"{corpus['added']:,} added to {corpus['file']}."
        )
    if summary["baseline"] is not None:
        lines.append(f"Since {summary['baseline']['file']}: {summary['baseline']['text']}")
    if summary["gate"] is not None:
        for check in summary["gate"]["checks"]:
            mark, style = ("FAILED", "bold red") if check["fired"] else ("passed", "green")
            lines.append(Text.assemble((mark, style), visible(f" {check['expression']}: {check['text']}")))
    return lines
