"""Conditions on attributes, as `--where` takes them: in words, or as a rule of a domain file has them.

In words: age >= 30 and education in [Masters, Doctorate]. As in a rule: age = { min = 30 }, sex = "Female". Both become
the conditions of the domain's rules.
"""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.rules import MAX_VALUES, Condition, Span, meets
from neuronfair.domain.schema.toml import format_condition, parse_conditions
from neuronfair.domain.table import TableDomain
from neuronfair.errors import CellError, DomainError, did_you_mean

LONGEST = 20_000  # letters of a text
MOST_LISTED = 200_000  # values of a condition that is no range
GRID_SLACK = 1e-6  # of a step: so far from its place on the grid a number may be written
_QUOTED = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')"""
_BARE = r"""(?!["'])(?:(?!!=)[^\s=<>\[\]])+"""  # outside a list a number may hold a comma: 7,000
_ITEM = rf"""(?:{_QUOTED}|(?!["'])[^\s=<>\[\],]++)"""
_RANGE = re.compile(rf"({_ITEM})(?:\s+to\s+({_ITEM}))?", re.DOTALL | re.IGNORECASE)
_CONDITION = re.compile(
    rf"\s*(?P<name>{_QUOTED}|{_BARE})\s*"
    rf"(?:(?P<sign>[=!<>]=|[=<>])\s*(?P<value>{_QUOTED}|{_BARE})"
    rf"|(?P<negated>not\s+)?in\s*\[\s*(?P<list>{_RANGE.pattern}\s*(?:,\s*{_RANGE.pattern}\s*)*+)\])"
    r"\s*(?P<next>and\b|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_SHAPE = (
    "Write conditions such as age >= 30 and education in [Masters, Doctorate], with names and values that hold blanks, "
    'commas or operators in quotes, or those of a rule in a domain file: age = { min = 30 }, sex = "Female"'
)

Mask = npt.NDArray[np.bool_]


def read_conditions(domain: TableDomain, text: str) -> list[tuple[str, Condition]]:
    """Return the conditions of a text, each with the name of its attribute; an empty text has none.

    In words: NAME == VALUE (or =, !=, <, <=, >, >=), NAME in [VALUE, LOW to HIGH, …] or NAME not in […], joined by
    `and`. An empty cell that is a value of its own is called missing; no order includes it.

    >>> from neuronfair.domain.schema.toml import parse_domain
    >>> age = 'age = { kind = "ordinal", low = 17, high = 90 }'
    >>> domain = parse_domain(f'sensitive = ["age"]\\n[attributes]\\n{age}')
    >>> read_conditions(domain, "age >= 20 and age < 30")
    [('age', Span(low=20.0, high=90.0)), ('age', Span(low=17.0, high=29.0))]
    """
    try:
        if len(text) > LONGEST:
            raise DomainError(f"has {len(text):,} letters; {LONGEST:,} at most are read")
        matches, unread = _matches(text.strip())
        if not unread:
            return [_in_words(domain, match) for match in matches]
        try:
            return list(parse_conditions(text).items())
        except DomainError:
            raise DomainError(f"cannot be read from '{unread[:20]}' on. {_SHAPE}") from None
    except DomainError as error:
        reason = error.reason if isinstance(error, CellError) else error
        raise DomainError(f"where '{text}': {reason}") from None


def allowed_codes(domain: TableDomain, text: str) -> tuple[Tensor, ...]:
    """Return for each attribute which of its codes meet all conditions of a text: bool, (size,). No text: all do."""
    # Not copied until it is restricted: an attribute may have more values than fit into memory.
    allowed = [torch.ones(1, dtype=torch.bool).expand(a.size) for a in domain.attributes]
    for name, condition in read_conditions(domain, text):
        try:
            attribute = _attribute(domain, name)
            column = domain.column(name)
            allowed[column] = allowed[column] & meets(attribute, condition)
            _check_left(attribute, bool(allowed[column].any()))
        except DomainError as error:
            raise DomainError(f"where '{text}': {error}") from None
    return tuple(allowed)


def written(attribute: Attribute, met: Mask) -> str:
    """Return the condition that some codes of an attribute meet, as a rule of a domain file has it.

    >>> age = Attribute("age", "ordinal", low=17, high=90)
    >>> written(age, np.arange(74) >= 3), written(age, np.arange(74) % 50 == 0)
    ('age = { "min" = 20.0, "max" = 90.0 }', 'age = [17, 67]')
    """
    return format_condition(attribute.name, _condition(attribute, met))


def _matches(text: str) -> tuple[list[re.Match[str]], str]:
    """Return the conditions in words, and what is left that is none."""
    matches, place, joined = list[re.Match[str]](), 0, False
    while place < len(text) or joined:
        match = _CONDITION.match(text, place)
        if match is None:
            return matches, text[place:].strip() or "and"
        matches.append(match)
        place, joined = match.end(), bool(match["next"])
    return matches, ""


def _in_words(domain: TableDomain, match: re.Match[str]) -> tuple[str, Condition]:
    """Return a condition in words as one of a rule."""
    name = _plain(match["name"])
    attribute = _attribute(domain, name)
    if match["sign"] is None:
        met = np.zeros(attribute.size, dtype=bool)
        for low, high in _RANGE.findall(match["list"]):
            ends = _ordered(attribute, ">=", _plain(low)) & _ordered(attribute, "<=", _plain(high)) if high else None
            met |= _equal(attribute, _plain(low)) if ends is None else ends
        met = ~met if match["negated"] else met
    elif match["sign"] in ("==", "=", "!="):
        met = _equal(attribute, _plain(match["value"]))
        met = ~met if match["sign"] == "!=" else met
    else:
        met = _ordered(attribute, match["sign"], _plain(match["value"]))
    return name, _condition(attribute, met)


def _attribute(domain: TableDomain, name: str) -> Attribute:
    if name not in domain.names:
        raise DomainError(f"no attribute '{name}'. {did_you_mean(name, domain.names)}")
    attribute = domain.attributes[domain.column(name)]
    if attribute.size > MAX_VALUES:
        raise DomainError(f"attribute '{name}' has too many values for a condition. Use a larger step")
    return attribute


def _plain(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL) if word[0] in "\"'" else word


def _equal(attribute: Attribute, text: str) -> Mask:
    """Return which code stands for a value: of labels only one that is known, not another that stands for it."""
    _check_label(attribute, text)
    same: Mask = np.arange(attribute.size) == attribute.codes([text])[0]
    return same


def _ordered(attribute: Attribute, sign: str, text: str) -> Mask:
    """Return which codes lie on one side of a value; an empty cell lies on none."""
    if not attribute.ordered:
        raise DomainError(f"'{attribute.name}' has no order. Name the values that are meant: {attribute.name} in […]")
    _check_label(attribute, text)
    if attribute.values:
        place = float(attribute.values.index(text))
    else:
        number = attribute.number(text)
        if number is None or not math.isfinite(number):
            expected = "a number" if attribute.date is None else f"a date such as {attribute.value(0)}"
            raise DomainError(f"attribute '{attribute.name}': expected {expected}, got {text!r}")
        place = (number - attribute.low) / attribute.step
    codes = np.arange(attribute.size)
    met: Mask = codes >= place - GRID_SLACK if sign in (">=", "<") else codes <= place + GRID_SLACK
    return (~met if sign in ("<", ">") else met) & (codes < attribute.points)


def _check_label(attribute: Attribute, text: str) -> None:
    if attribute.values and text not in attribute.values:
        known = did_you_mean(text, attribute.values)
        raise DomainError(f"attribute '{attribute.name}': unknown value '{text}'. {known}")


def _condition(attribute: Attribute, met: Mask) -> Condition:
    """Return the condition that some codes meet: a range of numbers, or a list of values."""
    codes = np.flatnonzero(met)
    _check_left(attribute, len(codes) > 0)
    if not attribute.values and len(codes) == codes[-1] - codes[0] + 1 and codes[-1] < attribute.points:
        return Span(*(float(attribute.low + attribute.step * code) for code in (codes[0], codes[-1])))
    if len(codes) > MOST_LISTED:
        raise DomainError(f"attribute '{attribute.name}': a condition leaves too many values that are no range")
    values = tuple(attribute.value(int(code)) for code in codes)
    if attribute.decimal == ".":
        return values
    return tuple(repr(v).replace(".", attribute.decimal) if isinstance(v, float) else v for v in values)


def _check_left(attribute: Attribute, left: bool) -> None:
    if left:
        return
    known = did_you_mean("", attribute.values) if attribute.values else None
    missing = f", or is {MISSING}" if attribute.empty is not None else ""
    ends = f"It runs from {attribute.value(0)} to {attribute.value(attribute.points - 1)}{missing}"
    raise DomainError(f"no value of '{attribute.name}' is left. {known or ends}")
