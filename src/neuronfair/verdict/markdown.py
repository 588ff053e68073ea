"""An audit as a page of Markdown, for the summary of a build."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from neuronfair.shown import visible

WORST = 3  # pairs shown for each attribute


def markdown(summary: Mapping[str, Any]) -> str:
    """Return an audit as Markdown: verdict, a line per attribute, worst pairs, limits, corpus and earlier audit.

    Words from the table are escaped: a column called `<b>` or `a|b` stays a word.
    """
    parts = [
        f"## Fairness audit: {_words(summary['verdict']['level'])}",
        _words(summary["verdict"]["text"]),
        _table(
            ("attribute", "discriminated, of valid people", "of the table's people", "findings", "lift over random"),
            [_figures(attribute) for attribute in summary["attributes"]],
        ),
        *_worst(summary["attributes"]),
        *_gate(summary["gate"]),
        *_corpus(summary["corpus"]),
    ]
    if summary["baseline"]:
        changes = [f"- {_words(change['text'])}" for change in summary["baseline"]["changes"]]
        parts += ["### Since the earlier audit", _words(summary["baseline"]["text"]), "\n".join(changes)]
    if summary["repair"]:
        parts += ["### Repair", _words(summary["repair"]["text"])]
    model, data, again = summary["model"], summary["data"], summary["reproduction"]
    parts.append(
        f"Model: {_words(model['source'])} ({_words(model['kind'])}); data: {_words(data['name'])}, "
        f"{data['rows']:,} rows; neuronfair {_words(summary['neuronfair'])}. Again: {_code(again['command'])}"
        + (" **Interrupted: not everything was looked at.**" if again["interrupted"] else "")
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(attribute: Mapping[str, Any]) -> Sequence[str]:
    searches = attribute["searches"]
    lifts = [f"{_words(s['method'])} × {s['lift']:.3g}" for s in searches if s["lift"] is not None]
    counts = [f"{_words(s['method'])} {s['findings']:,}" for s in searches]
    rates = [_rate((attribute["rate"] or {}).get(kind)) for kind in ("valid", "data")]
    return _words(attribute["name"]), *rates, ", ".join(counts) or "–", ", ".join(lifts) or "–"


def _rate(rate: Mapping[str, Any] | None) -> str:
    if rate is None:
        return "–"
    return f"{100 * rate['share']:.3g} % ({100 * rate['low']:.3g} to {100 * rate['high']:.3g} %)"


def _worst(attributes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if any(attribute["worst"] for attribute in attributes):
        yield "### Worst pairs"
    for attribute in attributes:
        worst = attribute["worst"][:WORST]
        pairs = [f"- {_words(p['sentence'])}" + (f"<br>{_code(p['replay'])}" if p["replay"] else "") for p in worst]
        if pairs:
            yield "\n".join([f"**{_words(attribute['name'])}**", "", *pairs])


def _gate(gate: Mapping[str, Any] | None) -> Iterator[str]:
    if gate is None:
        return
    yield f"### Limits: {'passed' if gate['passed'] else 'failed'}"
    rows = []
    for check in gate["checks"]:
        limit = _code(check["expression"]).replace("|", "\\|")  # a table is cut at its bars before code is looked at
        rows.append((limit, "**fired**" if check["fired"] else "ok", _words(check["text"])))
    yield _table(("fails the build if", "result", "why"), rows)


def _corpus(corpus: Mapping[str, Any] | None) -> Iterator[str]:
    if corpus is None:
        return
    yield "### Past counterexamples"
    unfit = f", {corpus['unfit']:,} no longer fit the domain" if corpus.get("unfit") else ""
    yield (
        f"{corpus['replayed']:,} of {_words(corpus['file'])} judged again: {corpus['still_wrong']:,} are still decided "
        f"otherwise, {corpus['mended']:,} are mended{unfit}; {corpus['added']:,} added."
    )
    yield "\n".join(f"- {_words(line)}" for line in (*corpus.get("examples", ()), *corpus.get("notes", ())))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _words(text: Any) -> str:
    """Return a text that Markdown and HTML show as it is, on one line: no table, list, link, formula or mention."""
    line = re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", visible(" ".join(str(text).split())))
    line = re.sub(r"^(\d*)([-+.)])(?= |$)", r"\1\\\2", line)
    # GitHub makes links of bare addresses, and writes to whom an @ names.
    return re.sub(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?=@)", "<!-- -->", html.escape(line, quote=False))


def _code(text: str) -> str:
    """Return a text as code, whatever backticks are in it."""
    text = visible(" ".join(text.split()))
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    inner = f" {text} " if text.startswith("`") or text.endswith("`") else text
    return f"{ticks}{inner}{ticks}"
