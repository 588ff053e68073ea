"""The dictionary of an audit as the report that it is to become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from neuronfair.verdict.report import SCHEMA, Report

_POPULATIONS = {"valid": "domain", "data": "table", "domain": "combinations"}


def typed(figures: Mapping[str, Any]) -> Report:
    """Return an audit's dictionary as a report."""
    return msgspec.convert({**_renamed(figures), "schema": SCHEMA}, Report)


def _renamed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_renamed(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    made = {key: item if key == "row" else _renamed(item) for key, item in value.items()}
    if "distribution" in made:
        rate = {key: made[key] for key in ("low", "high", "confidence", "discriminated")}
        return {**rate, "population": _POPULATIONS[made["distribution"]], "rate": made["share"], "of": made["people"]}
    if "valid" in made:
        return {"table": made["data"], "domain": made["valid"]}
    for old, new in (
        *(("from", "own"), ("to", "twin"), ("other_decision", "twin_decision"), ("other_score", "twin_score")),
        *(("still_wrong", "still_flips"), ("mended", "fixed")),
        *((("rate", "rates"),) if "twins" in made else ()),
    ):
        if old in made:
            made[new] = made.pop(old)
    return made
