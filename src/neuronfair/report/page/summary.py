"""The summary of an audit with nothing missing: what is not known is empty, so that no part of the page must ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Some names stand for a list in one place and for a figure in another; an empty list is no figure either.
_LISTS = {
    "act_diff", "attributes", "biased", "changed", "changes", "checks", "classes", "counts", "curve", "edges",
    "findings", "groups", "health", "layers", "searches", "sensitive", "subgroups", "worst",
}  # fmt: skip
_TABLES = {
    "accuracy", "coverage", "data", "decision", "histogram", "model", "rate", "reproduction", "row", "seconds",
    "severity", "valid", "verdict",
}  # fmt: skip


class Known(dict[str, Any]):
    """A part of a summary: an unknown list or table is empty, any other unknown value None."""

    def __missing__(self, key: str) -> Any:
        return () if key in _LISTS else Known() if key in _TABLES else None


def complete(value: Any) -> Any:
    """Return a summary, or a part of one, with every unknown list and table empty.

    >>> part = complete({"rate": None, "seed": None})
    >>> part["rate"]["valid"]["share"], part["seed"], part["findings"]
    (None, None, ())
    """
    if isinstance(value, Mapping):
        # What is None is left out, and then found missing; but a person is shown as it is.
        items = ((str(key), item) for key, item in value.items() if item is not None)
        return Known({key: item if key == "row" else complete(item) for key, item in items})
    return [complete(item) for item in value] if isinstance(value, list | tuple) else value
