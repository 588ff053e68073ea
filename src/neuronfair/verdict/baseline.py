"""An audit beside an earlier one: what changed, and whether it is more than chance."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuronfair.errors import DataError
from neuronfair.limits import TREE, read_bytes
from neuronfair.store.seal import is_sealed, unseal

SCHEMA = 1


def read_baseline(path: str | Path) -> dict[str, Any]:
    """Read the audit.json of an earlier audit."""
    path = Path(path)
    try:
        content = read_bytes(path, times=TREE)
        earlier = unseal(content) if is_sealed(content) else json.loads(content)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: damaged, edited, or not a JSON file. Expected the audit.json of an audit") from None
    if not isinstance(earlier, dict) or "schema" not in earlier:
        raise DataError(f"{path}: not an audit. Expected the audit.json of an earlier audit")
    if earlier["schema"] != SCHEMA:
        raise DataError(f"{path}: written in form {earlier['schema']!r}, but this version reads form {SCHEMA}")
    try:
        _check(earlier)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError):
        raise DataError(f"{path}: the audit is damaged or incomplete. Audit again to make a new baseline") from None
    return earlier


def compare_with(summary: Mapping[str, Any], earlier: Mapping[str, Any], file: str | Path = "") -> dict[str, Any]:
    """Return the "baseline" entry of an audit: the figures that both have, before and after, with a sentence each.

    A rate is said to have changed only if the two intervals do not overlap; `low` and `high` are the smallest and the
    largest change that they allow. Other figures have no interval. Audits of another domain, or by another rule of
    decision, mean something else: then nothing is compared and `text` says why.
    """
    why = _incomparable(summary, earlier)
    if why:
        return {"file": str(file), "changes": [], "text": why}
    before = {attribute["name"]: attribute for attribute in earlier["attributes"]}
    after = {attribute["name"]: attribute for attribute in summary["attributes"]}
    changes = [c for name in after if name in before for c in _changes(name, before[name], after[name])]
    for part in ("test", "table"):
        changes += _plain(f"accuracy.{part}", _accuracy(earlier, part), _accuracy(summary, part))
    shown = [c for c in changes if c["significant"]]
    sentences = [" ".join(c["text"] for c in shown) or "No rate changed by more than chance explains."]
    if summary["reproduction"]["rows"] != earlier["reproduction"]["rows"]:
        sentences.append("The table has other rows than then, so its own rate is that of other people.")
    for names, what in ((after.keys() - before.keys(), "now only"), (before.keys() - after.keys(), "then only")):
        if names:
            sentences.append(f"Audited {what}: {', '.join(sorted(names))}.")
    return {"file": str(file), "changes": changes, "text": " ".join(sentences)}


def _incomparable(summary: Mapping[str, Any], earlier: Mapping[str, Any]) -> str | None:
    if summary["reproduction"]["domain"] != earlier["reproduction"]["domain"]:
        return (
            f"The earlier audit was made on another domain ('{earlier['data']['name']}'): its figures speak of other "
            "people, so nothing is compared. Give the domain.toml of that audit as --domain."
        )
    now, then = (f"{s['decision']['kind']} {s['decision']['value']:g}" for s in (summary, earlier))
    if now != then:
        return f"The earlier audit took decisions by {then}, this one by {now}, so nothing is compared."
    return None


def _changes(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind, figure in (("valid", "rate"), ("data", "rate.data")):
        yield from _rates(f"{name}.{figure}", before["rate"].get(kind), after["rate"].get(kind))
    then = {search["method"]: search for search in before["searches"]}
    for search in after["searches"]:
        method = search["method"]
        if method in then:
            for figure in ("findings", "gsr"):
                yield from _plain(f"{name}.{figure}.{method}", then[method][figure], search[figure])
    gaps = [attribute["severity"] or {} for attribute in (before, after)]
    yield from _plain(f"{name}.severity.p95", gaps[0].get("p95"), gaps[1].get("p95"))
    yield from _plain(f"{name}.worst_auc", _worst_auc(before), _worst_auc(after))


def _rates(figure: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    if before is None or after is None:
        return
    low, high = after["low"] - before["high"], after["high"] - before["low"]
    word = "rose" if low > 0 else "fell" if high < 0 else ""
    spans = [f"{100 * r['share']:.3g} % ({100 * r['low']:.3g} to {100 * r['high']:.3g} %)" for r in (before, after)]
    text = f"{figure} {word or 'was'} {'from ' if word else ''}{spans[0]} {'to' if word else 'and is'} {spans[1]}"
    text += "." if word else ": the intervals overlap, so this may be chance."
    yield {
        "figure": figure,
        "before": before["share"],
        "after": after["share"],
        "low": low,
        "high": high,
        "significant": bool(word),
        "text": text,
    }


def _plain(figure: str, before: float | None, after: float | None) -> Iterator[dict[str, Any]]:
    """Yield a figure without an interval, if it is known on both sides and not the same."""
    if before is None or after is None or before == after:
        return
    then, now = (
        f"{100 * x:.3g} %" if ".gsr" in figure or figure.startswith("accuracy") else f"{x:,.4g}"
        for x in (before, after)
    )
    text = f"{figure} went from {then} to {now}."
    yield {
        "figure": figure,
        "before": before,
        "after": after,
        "low": None,
        "high": None,
        "significant": False,
        "text": text,
    }


def _accuracy(summary: Mapping[str, Any], part: str) -> float | None:
    accuracy: Mapping[str, float] = summary["model"]["accuracy"] or {}
    return accuracy.get(part)


def _worst_auc(attribute: Mapping[str, Any]) -> float | None:
    seen = attribute["interpretation"]
    return next((layer["auc"] for layer in seen["layers"] if layer["name"] == seen["worst"]), None) if seen else None


def _check(audit: Mapping[str, Any]) -> None:
    """Look at all that a comparison reads, so that a damaged file is noticed before any work is done."""
    texts = [audit["data"]["name"], audit["decision"]["kind"], *(audit["reproduction"][k] for k in ("domain", "rows"))]
    numbers: list[Any] = [audit["decision"]["value"]]
    maybe: list[Any] = [_accuracy(audit, part) for part in ("test", "table")]
    for attribute in audit["attributes"]:
        texts += [attribute["name"], *(search["method"] for search in attribute["searches"])]
        for rate in filter(None, (attribute["rate"].get(kind) for kind in ("valid", "data"))):
            numbers += [rate[end] for end in ("low", "share", "high")]
        maybe += [search[figure] for search in attribute["searches"] for figure in ("findings", "gsr")]
        maybe += [(attribute["severity"] or {}).get("p95"), _worst_auc(attribute)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError
    for number in numbers + [number for number in maybe if number is not None]:
        if isinstance(number, bool) or not math.isfinite(number):
            raise ValueError
