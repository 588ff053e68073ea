"""The verdict of an audit: one word for the level, and a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuronfair.verdict.words import listed, percent, plain


def verdict(attributes: Sequence[dict[str, Any]], rows: int, *, interrupted: bool = False) -> dict[str, str]:
    """Return the level and the text of a verdict about a table of so many rows.

    A model "discriminates" where random people or rows of the table are decided otherwise, is "suspicious" where only a
    search found somebody, and otherwise "nothing found"; but "interrupted" where nothing was measured by then.
    """
    named = {entry["name"]: listed([plain(n) for n in entry["sensitive"]]) for entry in attributes}
    hit = [entry for entry in attributes if _share(entry) > 0]
    found = [entry for entry in attributes if people_found(entry) > 0]
    measured = any(entry["rate"]["valid"] is not None or entry["searches"] for entry in attributes)
    if hit:
        level, text = "discriminates", _discriminates(max(hit, key=_share), hit, named, rows)
    elif found:
        level, text = "suspicious", _suspicious(found, named)
    elif interrupted and not measured:
        level, text = "interrupted", "Nothing was measured, so nothing can be said."
    else:
        level, text = "nothing found", _nothing(attributes, named)
    if any(is_constant(entry) for entry in attributes):
        text += " But it decided alike for everybody looked at: such a model cannot be judged."
    if interrupted:
        text += " The audit was interrupted: this is what was seen until then."
    return {"level": level, "text": text}


def is_constant(entry: Mapping[str, Any]) -> bool:
    """Return whether the model decided alike for everybody looked at, so that it cannot be judged."""
    return any(note["name"] == "constant-decision" for note in entry["health"])


def people_found(entry: Mapping[str, Any]) -> int:
    """Return how many different people all searches found together; at least so many if that was not counted."""
    counts = (entry["severity"] or {}).get("histogram", {}).get("counts", ())
    if counts:
        return int(sum(counts))
    return max((int(search["findings"] or 0) for search in entry["searches"]), default=0)


def _discriminates(worst: dict[str, Any], hit: Sequence[dict[str, Any]], named: dict[str, str], rows: int) -> str:
    name, data, valid = named[worst["name"]], worst["rate"]["data"], worst["rate"]["valid"]
    parts = []
    if data is not None and data["discriminated"]:
        whom = "the people in the table" if data["people"] >= rows else f"{data['people']:,} people of the table"
        parts.append(f"{percent(data['share'])} of {whom}")
    if valid is not None and valid["discriminated"]:
        ends = f"between {percent(valid['low'])} and {percent(valid['high'])}"
        parts.append(f"{percent(valid['share'])} of random valid people ({ends})")
    text = f"This model judges people by {name}: {listed(parts)} would be decided otherwise if only that changed."
    others = [f"{named[e['name']]} ({percent(_share(e))})" for e in hit if e is not worst]
    if others:
        text += f" Also by {listed(others)}."
    count = people_found(worst)
    return text + (f" The searches found {count:,} such people." if count else "")


def _suspicious(found: Sequence[dict[str, Any]], named: dict[str, str]) -> str:
    counts = listed([f"{people_found(entry):,} by {named[entry['name']]}" for entry in found])
    return f"A search found people whom this model judges otherwise: {counts}. They are rare{_bound(found)}."


def _nothing(attributes: Sequence[dict[str, Any]], named: dict[str, str]) -> str:
    if not attributes:
        return "Nothing was looked at."
    names = listed([named[e["name"]] for e in attributes if len(e["sensitive"]) == 1] or [*named.values()][:1])
    tried = sum(search["tried"] for entry in attributes for search in entry["searches"])
    return (
        f"Nobody was found whose decision changes with {names}{_bound(attributes)}. {tried:,} people were tried by "
        "search. That is no proof that there is nobody."
    )


def _bound(attributes: Sequence[dict[str, Any]]) -> str:
    rates = [entry["rate"]["valid"] for entry in attributes if entry["rate"]["valid"] is not None]
    if not rates:
        return ""
    widest = max(rates, key=lambda rate: float(rate["high"]))
    return (
        f": none of {widest['people']:,} random people, so at most {percent(widest['high'])} of all "
        f"({widest['confidence']:.0%} confidence)"
    )


def _share(entry: dict[str, Any]) -> float:
    """Return the larger of the two shares that were measured."""
    return max((float(rate["share"]) for rate in entry["rate"].values() if rate is not None), default=0.0)
