"""What conditions mean, as a checker reads them: the words of a region, and the rules of a domain, as sets of codes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.rules import Condition, Rule, Span
from neuronfair.domain.table import TableDomain
from neuronfair.proof.certificate import CertificateError

Bools = npt.NDArray[np.bool_]

LONGEST = 20_000  # letters of a region
NEAR = 1e-9  # numbers that lie so close together, beside the size of their attribute, are the same
ON_GRID = 1e-6  # of a step: so far from its place a number may be written
_SIGNS = ("==", "!=", "<=", ">=", "=", "<", ">", "[", "]")


class _Word(NamedTuple):
    text: str
    kind: str  # sign, quoted or bare


def region(domain: TableDomain, text: str) -> list[Bools]:
    """Return which codes of each attribute belong to a region in words: (size,) each."""
    if len(text) > LONGEST:
        raise CertificateError(f"its region has {len(text):,} letters; {LONGEST:,} at most are read")
    allowed = [np.ones(attribute.size, bool) for attribute in domain.attributes]
    try:
        words = [*_words(text), _Word("", "end")]
        place = 0
        while words[place].kind != "end":
            if place:
                if not _is(words[place], "and"):
                    raise CertificateError(f"'and' was expected, not '{words[place].text}'")
                place += 1
            place = _narrowed(domain, words, place, allowed)
    except (CertificateError, IndexError) as error:
        reason = error if isinstance(error, CertificateError) else "it ends too early"
        raise CertificateError(f"its region '{text}' cannot be read: {reason}") from None
    return allowed


def _narrowed(domain: TableDomain, words: list[_Word], place: int, allowed: list[Bools]) -> int:
    """Read one condition, leave only the codes that meet it, and return where the next word stands."""
    name = _value(words[place])
    if name not in domain.names:
        raise CertificateError(f"there is no attribute '{name}'")
    column = domain.names.index(name)
    attribute = domain.attributes[column]
    place += 1
    if words[place].kind == "sign" and words[place].text not in ("[", "]", ","):
        met = _compared(attribute, words[place].text, _value(words[place + 1]))
        place += 2
    else:
        inverted = _is(words[place], "not")
        place += inverted
        if not _is(words[place], "in") or words[place + 1] != _Word("[", "sign"):
            raise CertificateError(f"a comparison or a list was expected behind '{name}'")
        met, place = _listed(attribute, words, place + 2)
        met = ~met if inverted else met
    allowed[column] &= met
    return place


def _listed(attribute: Attribute, words: list[_Word], place: int) -> tuple[Bools, int]:
    """Read a list up to its end, and return which codes it names and where the next word stands."""
    met = np.zeros(attribute.size, bool)
    while True:
        first = _value(words[place])
        if _is(words[place + 1], "to"):
            last = _value(words[place + 2])
            met |= _compared(attribute, ">=", first) & _compared(attribute, "<=", last)
            place += 3
        else:
            met |= _compared(attribute, "==", first)
            place += 1
        if words[place] == _Word("]", "sign"):
            return met, place + 1
        if words[place] != _Word(",", "sign"):
            raise CertificateError("a list is not closed")
        place += 1


def _is(word: _Word, text: str) -> bool:
    return word.kind == "bare" and word.text.casefold() == text


def _value(word: _Word) -> str:
    if word.kind in ("sign", "end") or _is(word, "and"):
        raise CertificateError(f"a name or a value was expected, not '{word.text}'")
    return word.text


def _words(text: str) -> Iterator[_Word]:
    """Yield names, values and signs; a comma is a sign within brackets only."""
    place, listed, end = 0, False, len(text)
    while place < end:
        letter = text[place]
        if letter.isspace():
            place += 1
        elif letter in "\"'":
            written, place = _quoted(text, place)
            yield _Word(written, "quoted")
        elif sign := next((s for s in _SIGNS if text.startswith(s, place)), "," if listed and letter == "," else ""):
            listed = (listed or sign == "[") and sign != "]"
            place += len(sign)
            yield _Word(sign, "sign")
        else:
            start = place
            while place < end and not (
                text[place].isspace()
                or text[place] in ("=<>[]," if listed else "=<>[]")
                or text.startswith("!=", place)
            ):
                place += 1
            yield _Word(text[start:place], "bare")


def _quoted(text: str, start: int) -> tuple[str, int]:
    """Return what stands in quotes, and where the next letter stands."""
    letters, place = list[str](), start + 1
    while place < len(text) and text[place] != text[start]:
        place += text[place] == "\\"
        letters.append(text[place : place + 1])
        place += 1
    if place >= len(text):
        raise CertificateError("a quote is not closed")
    return "".join(letters), place + 1


def _compared(attribute: Attribute, sign: str, text: str) -> Bools:
    """Return which codes of an attribute compare so with a value: (size,)."""
    if sign in ("==", "=", "!="):
        same: Bools = np.arange(attribute.size) == _code(attribute, text)
        return ~same if sign == "!=" else same
    if attribute.kind == "nominal":
        raise CertificateError(f"'{attribute.name}' has no order")
    if attribute.values:
        place, value, near = np.arange(attribute.size, dtype=np.float64), float(_code(attribute, text)), 0.0
    else:
        place, value, near = _numbers(attribute), _number(attribute, text), _near(attribute)
    side: Bools = place >= value - near if sign in ("<", ">=") else place <= value + near
    met = ~side if sign in ("<", ">") else side
    met[attribute.points :] = False  # an empty cell is neither much nor little
    return met


def _numbers(attribute: Attribute) -> npt.NDArray[np.float64]:
    """Return the number that each code stands for; that of an empty cell means nothing."""
    return float(attribute.low) + float(attribute.step) * np.arange(attribute.size, dtype=np.float64)


def _near(attribute: Attribute) -> float:
    return NEAR * max(1.0, abs(attribute.low), abs(attribute.high))


def _number(attribute: Attribute, text: str) -> float:
    found = attribute.number(text)
    if found is None or not math.isfinite(found):
        raise CertificateError(f"'{text}' is no number that '{attribute.name}' could be")
    return float(found)


def _code(attribute: Attribute, value: str | float, other: str | None = None) -> int:
    """Return the one code that a label or a number stands for; an unknown label stands for another, if there is one."""
    text = value.strip() if isinstance(value, str) else repr(value)
    if attribute.values:
        known = {label: code for code, label in enumerate(attribute.values)}
        named = (text, str(int(value))) if isinstance(value, float) and value.is_integer() else (value, text)
        for label in (*named, other):
            if label in known:
                return known[str(label)]
        raise CertificateError(f"'{text}' is no value of '{attribute.name}'")
    if text == MISSING and attribute.empty is not None:
        return attribute.empty
    number = _number(attribute, text) if isinstance(value, str) else float(value)
    place = (number - attribute.low) / attribute.step
    if not -0.5 <= place < attribute.points:
        raise CertificateError(f"'{text}' lies outside '{attribute.name}'")
    code = round(place)
    if not 0 <= code < attribute.points or (attribute.kind != "continuous" and abs(place - code) > ON_GRID):
        raise CertificateError(f"'{text}' is no value of '{attribute.name}'")
    return code


def rule_tables(domain: TableDomain, rule: Rule) -> tuple[list[tuple[int, Bools]], list[tuple[int, Bools]]]:
    """Return the conditions of a rule, of `when` and of `then`: the column, and which of its codes meet it."""
    if not rule.when:
        raise CertificateError(f"its rule '{rule.name}' has no condition")
    return _tables(domain, rule, rule.when), _tables(domain, rule, rule.then)


def _tables(domain: TableDomain, rule: Rule, part: Mapping[str, Condition]) -> list[tuple[int, Bools]]:
    tables = []
    for name, condition in part.items():
        if name not in domain.names:
            raise CertificateError(f"its rule '{rule.name}' names '{name}', which is no attribute")
        column = domain.names.index(name)
        tables.append((column, _meeting(domain.attributes[column], condition)))
    return tables


def _meeting(attribute: Attribute, condition: Condition) -> Bools:
    met = np.zeros(attribute.size, bool)
    if isinstance(condition, Span):
        if attribute.values:
            raise CertificateError(f"a rule asks for numbers of '{attribute.name}', which has labels")
        numbers, near = _numbers(attribute), _near(attribute)
        met = (numbers >= condition.low - near) & (numbers <= condition.high + near)
        met[attribute.points :] = False
        return met
    for value in condition:
        met[_code(attribute, value, attribute.other)] = True
    return met
