"""Conditions in words: which people are meant by 'income >= 50000 and education in [Masters, Doctorate]'."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.rules import MAX_VALUES, Span, meets
from neuronfair.domain.table import TableDomain
from neuronfair.errors import CellError, DomainError, did_you_mean

_ORDERS = ("<", "<=", ">", ">=")
_OPERATORS = ("==", "=", "!=", *_ORDERS)
# A bare word ends at a blank, a sign and, in a list, a comma; outside a list a number may hold one: 7,000.
_TOKENS = [
    re.compile(
        rf"""\s*(?:(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign>[=!<>]=|[=<>\[\]{comma}])"""
        rf"""|(?P<bare>(?!["'])(?:(?!!=)[^\s=<>\[\]{comma}])+))""",
        re.DOTALL,
    )
    for comma in ("", ",")
]
_SHAPE = "Write conditions such as age >= 30 and education in [Masters, Doctorate]"
_QUOTES = "put names and values with blanks, commas or operators into quotes"


def allowed_codes(domain: TableDomain, text: str) -> tuple[Tensor, ...]:
    """Return for each attribute which of its codes meet all conditions of a text: bool, (size,). No text: all do.

    The conditions are joined by `and`: NAME == VALUE (or !=, <, <=, >, >=), NAME in [VALUE, LOW to HIGH, …], or
    NAME not in […]. An empty cell that is a value of its own is called missing; it is neither much nor little.
    """
    # Not copied until it is restricted: an attribute may have more values than fit into memory.
    allowed = [torch.ones(1, dtype=torch.bool).expand(a.size) for a in domain.attributes]
    try:
        for name, operator, ranges in _conditions(_Reader(text)):
            if name not in domain.names:
                raise DomainError(f"no attribute '{name}'. {did_you_mean(name, domain.names)}")
            column = domain.column(name)
            attribute = domain.attributes[column]
            if attribute.size > MAX_VALUES:
                raise DomainError(f"attribute '{name}' has too many values for a condition. Use a larger step")
            allowed[column] = allowed[column] & _met(attribute, operator, ranges)
            if not bool(allowed[column].any()):
                raise DomainError(f"no value of '{name}' is left. {_known(attribute)}")
    except DomainError as error:
        reason = error.reason if isinstance(error, CellError) else error
        raise DomainError(f"where '{text}': {reason}") from None
    return tuple(allowed)


def condition(attribute: Attribute, codes: Tensor) -> str:
    """Return in words, as `allowed_codes` reads them, that a value is one of some codes, bool (size,). All: nothing.

    >>> age = Attribute("age", "ordinal", low=17, high=90)
    >>> condition(age, torch.arange(74) >= 3)
    'age >= 20'
    """
    if bool(codes.all()):
        return ""
    name, end = written(attribute.name), attribute.points - 1
    some, others = _runs(attribute, codes), _runs(attribute, ~codes)
    (first, last), *more = some
    if not more and first == last:
        return f"{name} == {_value(attribute, first)}"
    if not more and (first, last) != (0, end):
        ends = [("<=", last)] if first == 0 else [(">=", first)] if last == end else [(">=", first), ("<=", last)]
        return " and ".join(f"{name} {sign} {_value(attribute, code)}" for sign, code in ends)
    if len(others) == 1 and others[0][0] == others[0][1]:
        return f"{name} != {_value(attribute, others[0][0])}"
    word, listed = ("in", some) if len(some) <= len(others) else ("not in", others)
    items = [" to ".join(_value(attribute, code) for code in dict.fromkeys(run)) for run in listed]
    return f"{name} {word} [{', '.join(items)}]"


def _runs(attribute: Attribute, codes: Tensor) -> list[tuple[int, int]]:
    """Return the first and last of each stretch of codes; where there is no order each code is one."""
    chosen = codes.nonzero()[:, 0]
    if not attribute.ordered:
        return [(code, code) for code in chosen.tolist()]
    cut = (chosen.diff() > 1) | (chosen[1:] == attribute.empty if attribute.empty is not None else False)
    starts = torch.cat([torch.tensor([True]), cut]) if len(chosen) else cut
    first, last = chosen[starts], chosen[starts.roll(-1)]
    return list(zip(first.tolist(), last.tolist(), strict=True))


def _value(attribute: Attribute, code: int) -> str:
    value = attribute.value(code)
    return written(value if isinstance(value, str) else repr(value).replace(".", attribute.decimal))


def written(word: str) -> str:
    """Return a name or a value as it stands in a condition: in quotes where it could be read otherwise.

    >>> print(written("Masters"), written("Self emp"))
    Masters "Self emp"
    """
    found = _TOKENS[1].fullmatch(word)
    if found is not None and found["bare"] == word and word.casefold() not in ("and", "to"):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class _Token(NamedTuple):
    text: str
    kind: str  # quoted, sign, bare, or end

    def is_word(self, word: str) -> bool:
        return self.kind == "bare" and self.text.casefold() == word


class _Range(NamedTuple):
    """The values from one to another; a single value if there is no other."""

    low: str
    high: str | None = None


class _Reader:
    """The words of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self.next = next(self._tokens)

    def take(self) -> _Token:
        taken, self.next = self.next, next(self._tokens, _Token("", "end"))
        return taken

    def takes(self, *signs: str) -> str | None:
        """Take the next word if it is one of these signs."""
        return self.take().text if self.next.kind == "sign" and self.next.text in signs else None

    def takes_word(self, word: str) -> bool:
        return self.next.is_word(word) and bool(self.take())

    def word(self, what: str) -> str:
        """Take a name or a value."""
        if self.next.kind in ("sign", "end") or self.next.is_word("and"):
            self.fail(what)
        return self.take().text

    def fail(self, what: str) -> NoReturn:
        came = f"got '{self.next.text}'" if self.next.kind != "end" else "nothing follows"
        raise DomainError(f"expected {what}, {came}. {_SHAPE}; {_QUOTES}")


def _tokens(text: str) -> Iterator[_Token]:
    place, inside, text = 0, False, text.strip()
    while place < len(text):
        found = _TOKENS[inside].match(text, place)
        if found is None:
            raise DomainError(
                f"'{text[place:].strip()[:20]}' cannot be read: a quote is not closed, or a sign is alone"
            )
        place, kind = found.end(), str(found.lastgroup)
        word = found[kind]
        if kind == "sign":
            inside = {"[": True, "]": False}.get(word, inside)
        elif kind == "quoted":
            word = re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL)
        yield _Token(word, kind)
    yield _Token("", "end")


def _conditions(reader: _Reader) -> Iterator[tuple[str, str, list[_Range]]]:
    """Yield the name, the operator and the values of each condition."""
    while reader.next.kind != "end":
        name = reader.word("the name of an attribute")
        operator = reader.takes(*_OPERATORS)
        if operator is not None:
            yield name, operator, [_Range(reader.word("a value"))]
        else:
            sign = "!=" if reader.takes_word("not") else "=="
            if not reader.takes_word("in"):
                reader.fail("'in'" if sign == "!=" else f"one of {' '.join(_OPERATORS)}, in, not in behind '{name}'")
            yield name, sign, list(_listed(reader))
        if reader.takes_word("and"):
            if reader.next.kind == "end":
                reader.fail("a condition behind 'and'")
        elif reader.next.kind != "end":
            reader.fail("'and'")


def _listed(reader: _Reader) -> Iterator[_Range]:
    if not reader.takes("["):
        reader.fail("a list such as [A, B] behind 'in'")
    while True:
        low = reader.word("a value")
        yield _Range(low, reader.word("a value") if reader.takes_word("to") else None)
        if reader.takes("]"):
            return
        if not reader.takes(","):
            reader.fail("a comma or ]")


def _met(attribute: Attribute, operator: str, ranges: list[_Range]) -> Tensor:
    """Return which codes of an attribute meet a condition: bool, (size,)."""
    if operator in _ORDERS:
        bound = ranges[0].low
        met = _between(attribute, bound, None) if operator in (">=", "<") else _between(attribute, None, bound)
        if operator in ("<", ">"):
            met = ~met
            met[attribute.points :] = False
        return met
    met = torch.zeros(attribute.size, dtype=torch.bool)
    for low, high in ranges:
        met |= meets(attribute, (_label(attribute, low),)) if high is None else _between(attribute, low, high)
    return ~met if operator == "!=" else met


def _between(attribute: Attribute, low: str | None, high: str | None) -> Tensor:
    """Return which codes lie between two values, both included; None: there is no end."""
    if not attribute.ordered:
        raise DomainError(f"'{attribute.name}' has no order. Name the values that are meant: {attribute.name} in […]")
    if not attribute.values:
        least = -math.inf if low is None else _number(attribute, low)
        return meets(attribute, Span(least, math.inf if high is None else _number(attribute, high)))
    met = torch.ones(attribute.size, dtype=torch.bool)
    if low is not None:
        met[: attribute.values.index(_label(attribute, low))] = False
    if high is not None:
        met[attribute.values.index(_label(attribute, high)) + 1 :] = False
    return met


def _number(attribute: Attribute, text: str) -> float:
    found = attribute.number(text)
    if found is None or not math.isfinite(found):
        expected = "a number" if attribute.date is None else f"a date such as {attribute.value(0)}"
        raise DomainError(f"attribute '{attribute.name}': expected {expected}, got {text!r}")
    return found


def _label(attribute: Attribute, text: str) -> str:
    """Return a value as it is; of labels only those that are known, not others that stand for one."""
    if attribute.values and text not in attribute.values:
        raise DomainError(
            f"attribute '{attribute.name}': unknown value '{text}'. {did_you_mean(text, attribute.values)}"
        )
    return text


def _known(attribute: Attribute) -> str:
    if attribute.values:
        return did_you_mean("", attribute.values)
    kept = f", or is {MISSING}" if attribute.empty is not None else ""
    return f"It runs from {attribute.value(0)} to {attribute.value(attribute.points - 1)}{kept}"
