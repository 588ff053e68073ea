"""What a build asks: did the gate fire, did old counterexamples come back, what changed since the last audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronfair.report.page.shell import escape, name, paragraph, section, table
from neuronfair.report.page.words import UNKNOWN, known, number, plural


def checks(summary: Mapping[str, Any]) -> str:
    """Return the gate, the corpus and the baseline, as far as they were asked for."""
    parts = (_gate(summary["gate"]), _corpus(summary["corpus"]), _baseline(summary["baseline"]))
    return section("checks", "Checks", *parts)


def _gate(gate: Mapping[str, Any] | None) -> str:
    if gate is None:
        return ""
    rows = [
        (
            f"<code>{escape(check['expression'])}</code>",
            name(check["attribute"]) if check["attribute"] else "all",
            "<b>▲ fired</b>" if check["fired"] else "● did not fire",
            f'<span dir="auto">{escape(check["text"] or "")}</span>',
        )
        for check in gate["checks"]
    ]
    words = "Passed: no check fired." if gate["passed"] else "Failed: at least one check fired."
    columns = ("Fails if", "Judged by", "Result", "Why")
    return section("gate", "Gate", f"<p><b>{words}</b></p>", table("Checks of the gate", columns, rows), level=3)


def _corpus(corpus: Mapping[str, Any] | None) -> str:
    if corpus is None:
        return ""
    words = (
        f"{plural(corpus['replayed'], 'old counterexample')} replayed first: {number(corpus['still_wrong'])} still "
        f"decided otherwise, {number(corpus['mended'])} mended. {number(corpus['added'])} added by this audit."
    )
    if corpus["unfit"]:
        words += f" {plural(corpus['unfit'], 'line')} of the file no longer fit the domain."
    file = f"<p><code>{escape(corpus['file'])}</code></p>"
    return section("corpus", "Known counterexamples", paragraph(words), file, level=3)


def _baseline(baseline: Mapping[str, Any] | None) -> str:
    if baseline is None:
        return ""
    rows = [
        (
            f"<code>{escape(change['figure'])}</code>",
            _value(change["before"]),
            _value(change["after"]),
            f'<span dir="auto">{escape(change["text"] or "")}</span>',
        )
        for change in baseline["changes"]
    ]
    body = table("Changes since the earlier audit", ("Figure", "Before", "Now", "In words"), rows) if rows else ""
    words = paragraph(baseline["text"] or "") + f"<p><code>{escape(baseline['file'])}</code></p>"
    return section("baseline", "Since the earlier audit", words, body, level=3)


def _value(value: Any) -> str:
    return UNKNOWN if value is None else number(value) if known(value) else name(value)
