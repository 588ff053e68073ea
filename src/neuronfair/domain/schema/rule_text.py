"""Sets of codes as the conditions of a rule, in words, and as lines of TOML that are pleasant to read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from neuronfair.domain.attribute import ISO, Attribute, day
from neuronfair.domain.rules import Condition, Rule, Span
from neuronfair.domain.schema.toml import quoted
from neuronfair.formatting import visible

VALUES = 20  # that a condition lists at most
LETTERS = 40  # of a label or a name that is only mentioned
_BARE = re.compile(r"[A-Za-z0-9_-]+")

Mask = npt.NDArray[np.bool_]


def implied(a: Attribute, mine: Mask, b: Attribute, excluded: Mask) -> Rule | None:
    """Return the rule that people with some codes of a have none of the excluded ones of b; None if it is too long."""
    left, right, rest = _condition(a, mine), _condition(b, excluded), _condition(b, ~excluded)
    if left is None or (right is None and rest is None):
        return None
    said = f"{brief(a.name)} {_words(a, left)}"
    both = isinstance(left, Span) and isinstance(right, Span)  # "not much of both" is easier to read
    if rest is not None and (right is None or (_length(rest) <= _length(right) and not both)):
        return Rule(f"{said}: {brief(b.name)} {_words(b, rest)}", {a.name: left}, {b.name: rest})
    assert right is not None
    return Rule(f"not both: {said}, {brief(b.name)} {_words(b, right)}", {a.name: left, b.name: right}, {})


def rule_lines(rule: Rule, attributes: Mapping[str, Attribute]) -> list[str]:
    """Return the lines of a rule in a domain file; whatever its names hold, each stays one line."""

    def part(conditions: Mapping[str, Condition]) -> str:
        entries = (
            f"{name if _BARE.fullmatch(name) else quoted(name)} = {_written(attributes[name], one)}"
            for name, one in conditions.items()
        )
        return "{ " + ", ".join(entries) + " }"

    parts = {"if": rule.when, "then": rule.then} if rule.then else {"forbid": rule.when}
    lines = ["[[rules]]", f"name = {quoted(rule.name)}", *(f"{key} = {part(value)}" for key, value in parts.items())]
    return [visible(line) for line in lines]


def brief(text: str) -> str:
    """Return a name or label that is not too long to be mentioned."""
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _condition(attribute: Attribute, mask: Mask) -> Condition | None:
    """Return the codes of a mask as a rule says them; None where these are too many to list, or none."""
    codes = np.flatnonzero(mask)
    if len(codes) == 0:
        return None
    adjacent = codes[-1] - codes[0] + 1 == len(codes) and codes[-1] != attribute.empty
    if len(codes) == 1 or ((attribute.values or not adjacent) and len(codes) <= VALUES):
        return tuple(attribute.value(int(code)) for code in codes)
    if attribute.values or not adjacent:
        return None
    first, last = int(codes[0]), int(codes[-1])
    low, high = (float(attribute.low) + float(attribute.step) * code for code in (first, last))
    ends = (
        low if first or last == attribute.points - 1 else -math.inf,
        high if last < attribute.points - 1 else math.inf,
    )
    return Span(*(float(f"{end:.12g}") for end in ends))


def _length(condition: Condition) -> int:
    return 1 if isinstance(condition, Span) else len(condition)


def _ends(attribute: Attribute, span: Span) -> dict[str, str]:
    """Return the ends of a range that it has, as they are written."""
    ends = {"min": span.low, "max": span.high}
    return {key: _number(attribute, end) for key, end in ends.items() if math.isfinite(end)}


def _number(attribute: Attribute, number: float) -> str:
    return day(number, ISO) if attribute.date is not None else f"{number:.12g}"


def _words(attribute: Attribute, condition: Condition) -> str:
    if not isinstance(condition, Span):
        return _listed([brief(str(value)) for value in condition])
    ends = _ends(attribute, condition)
    return (
        " to ".join(ends.values())
        if len(ends) == 2
        else " or ".join([*ends.values(), "more" if "min" in ends else "less"])
    )


def _listed(texts: Sequence[str]) -> str:
    return " or ".join(texts) if len(texts) <= 3 else f"{', '.join(texts[:2])} or {len(texts) - 2} more"


def _written(attribute: Attribute, condition: Condition) -> str:
    if isinstance(condition, Span):
        return "{ " + ", ".join(f"{key} = {end}" for key, end in _ends(attribute, condition).items()) + " }"
    values = [quoted(value) if isinstance(value, str) else repr(value) for value in condition]
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"
