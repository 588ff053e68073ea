"""The input schema (domain file) as TOML: reading, writing, and the conditions of rules and of `--where`."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import MAX_VALUES, MISSING, Attribute, as_days, check_graph
from neuronfair.domain.rules import MAX_RULE_VALUES, Rule, RuleCondition, Span, meets
from neuronfair.domain.table import TableDomain, Target
from neuronfair.errors import CellError, DomainError, did_you_mean
from neuronfair.limits import read_text

_TOP = (
    *("name", "encoding", "description", "sensitive", "target", "favourable"),
    *("encode", "outside", "attributes", "rules"),
)
_ATTRIBUTE = (
    *("kind", "low", "high", "step", "values", "encode", "center", "scale", "missing", "extra"),
    *("decimal", "date", "other", "outliers", "bands", "band_values", "fixed", "legitimate", "causes"),
)
_NUMBERS = ("low", "high", "step", "center", "scale")
_TIMES = 400  # how much more memory than letters tomllib takes for a file of nothing but short headers
# A key of 16 parts, where a key may stand; tomllib takes time and memory with the square of their number.
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key without quotes
_DEEP = re.compile(rf"(?m)(?:^[ \t]*+\[{{0,2}}+|[{{,])[ \t]*+(?:{_PART}){{16}}")


def read_domain(path: str | Path) -> TableDomain:
    """Read a domain from a TOML file; an error names the file and the entry."""
    path = Path(path)
    try:
        return parse_domain(read_text(path, times=_TIMES), default_name=path.stem)
    except (OSError, UnicodeDecodeError, DomainError) as error:
        raise DomainError(f"{path}: {_reason(error)}") from None


def parse_domain(text: str, *, default_name: str = "table") -> TableDomain:
    """Read a domain from the text of a TOML file."""
    try:
        if _DEEP.search(text):
            raise ValueError("a key has too many parts")
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or thousands of brackets
        raise DomainError(f"cannot be read as TOML: {error}") from None
    return domain_of(document, default_name=default_name)


def domain_of(document: Mapping[str, Any], *, default_name: str = "table") -> TableDomain:
    """Return the domain from the values of a TOML file."""
    _check_keys("the file", document, _TOP)
    attributes = _table("attributes", document.get("attributes"))
    if not attributes:
        raise DomainError("no attributes. Write a table [attributes] with one line per column")
    default_encode = document.get("encode")
    known = tuple(_attribute(name, entry, default_encode) for name, entry in attributes.items())
    check_graph(known)
    return TableDomain(
        name=str(document.get("name", default_name)),
        attributes=known,
        sensitive=_names("sensitive", document.get("sensitive", [])),
        rules=tuple(_rule(entry) for entry in _list("rules", document.get("rules", []))),
        target=_target(document.get("target")),
        encoding=str(document.get("encoding", "default")),
        description=str(document.get("description", "")),
        outside=_outside(document.get("outside", "error")),
        favourable=None if document.get("favourable") is None else str(document["favourable"]),
    )


def parse_conditions(text: str) -> dict[str, RuleCondition]:
    """Read conditions in the form of a rule: age = { min = 30 }, education = ["Masters", "Doctorate"]."""
    try:
        if _DEEP.search(text):
            raise ValueError("a key has too many parts")
        document = tomllib.loads(f"conditions = {{ {text} }}")
    except (ValueError, RecursionError) as error:
        raise DomainError(f"cannot be read as the conditions of a rule: {error}") from None
    _check_keys("conditions", document, ("conditions",))
    return _conditions("conditions", document["conditions"])


def format_condition(name: str, condition: RuleCondition) -> str:
    """Return a condition on an attribute in the form of a rule: the inverse of `parse_conditions`."""
    return f"{toml_key(name)} = {toml_value(condition)}"


def format_domain(domain: TableDomain) -> str:
    """Return the TOML text of a domain: the inverse of `parse_domain`."""
    lines = [f"{key} = {toml_value(getattr(domain, key))}" for key in ("name", "encoding", "description", "outside")]
    lines.append(f"sensitive = {toml_value(domain.sensitive)}")
    if domain.target is not None:
        lines.append(f"target = {toml_value(target_entry(domain.target))}")
    if domain.favourable is not None:
        lines.append(f"favourable = {toml_value(domain.favourable)}")
    lines.append("\n[attributes]")
    for a in domain.attributes:
        entry: dict[str, Any] = {"kind": a.kind, "encode": a.encode}
        entry |= {"values": a.values} if a.values else {"low": a.low, "high": a.high, "step": a.step}
        entry |= {"center": a.center, "scale": a.scale}
        entry |= {"missing": a.missing} if a.missing is not None else {}
        entry |= {"extra": a.extra} if a.extra else {}
        entry |= {"decimal": a.decimal} if a.decimal != "." else {}
        further = ("date", "other", "outliers", "causes")
        entry |= {key: getattr(a, key) for key in further if getattr(a, key) is not None}
        entry |= {key: getattr(a, key) for key in ("bands", "band_values") if getattr(a, key)}
        entry |= {key: True for key in ("fixed", "legitimate") if getattr(a, key)}
        lines.append(f"{toml_key(a.name)} = {toml_value(entry)}")
    for rule in domain.rules:
        lines += ["\n[[rules]]", f"name = {toml_value(rule.name)}"]
        if rule.then:
            lines += [f"if = {toml_value(rule.when)}", f"then = {toml_value(rule.then)}"]
        else:
            lines.append(f"forbid = {toml_value(rule.when)}")
    return "\n".join(lines) + "\n"


def target_entry(target: Target) -> dict[str, str | tuple[str, ...]]:
    """Return the entry of a target, without classes where it is a quantity."""
    return {"column": target.column, **({"classes": target.classes} if target.classes else {})}


def with_favourable(text: str, favourable: str) -> str:
    """Return the text of a domain file that names no favourable outcome with this one."""
    return f"favourable = {quoted(favourable)}\n{text}"  # before the first table, whose key it would be


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Span):
        ends = {"min": value.low, "max": value.high}
        return toml_value({key: end for key, end in ends.items() if math.isfinite(end)})
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(str(key))} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return value.isoformat()
    return quoted(value) if isinstance(value, str) else repr(value)


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, in quotes where it needs them."""
    return name if _BARE.fullmatch(name) else quoted(name)


def quoted(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _attribute(name: str, entry: Any, default_encode: Any) -> Attribute:
    where = f"attribute '{name}'"
    entry = _table(where, entry)
    _check_keys(where, entry, _ATTRIBUTE)
    if "kind" not in entry:
        raise DomainError(f'{where}: kind is missing. Write kind = "ordinal", "nominal", "flag" or "continuous"')
    for key in _NUMBERS:
        if "date" in entry and isinstance(entry.get(key), date):
            entry = {**entry, key: as_days(entry[key])}
        if key in entry and (isinstance(entry[key], bool) or not isinstance(entry[key], (int, float))):
            raise DomainError(f"{where}: {key} must be a number, is {entry[key]!r}")
    values = tuple(str(v) for v in _list(f"{where}: values", entry.get("values", [])))
    kind = entry["kind"]
    if kind in ("ordinal", "continuous") and not values and not {"low", "high"} <= set(entry):
        raise DomainError(f"{where}: give either low and high, or values = [...]")
    encode = entry.get("encode", default_encode)
    if encode is None:
        encode = "onehot" if kind == "nominal" else "scaled" if {"center", "scale"} & set(entry) else "raw"
    numbers = {key: entry[key] for key in _NUMBERS if key in entry}
    extra = dict(_table(f"{where}: extra", entry.get("extra", {})))
    missing = entry.get("missing")
    if not all(_is_code(code) for code in extra.values()) or not (missing is None or _is_cell(missing)):
        raise DomainError(f"{where}: extra needs whole numbers as codes, and missing a label or a number")
    for key in ("decimal", "date", "other", "outliers"):
        if not isinstance(entry.get(key, ""), str):
            raise DomainError(f"{where}: {key} must be a text, is {entry[key]!r}")
    for key in ("fixed", "legitimate"):
        if not isinstance(entry.get(key, False), bool):
            raise DomainError(f"{where}: {key} must be true or false, is {entry[key]!r}")
    keys = ("decimal", "date", "other", "outliers", "fixed", "legitimate")
    reading = {key: entry[key] for key in keys if key in entry}
    for key in ("bands", "band_values"):
        if not all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in _list(where, entry.get(key, []))):
            raise DomainError(f"{where}: {key} must be a list of numbers, is {entry[key]!r}")
        reading |= {key: tuple(entry[key])} if key in entry else {}
    if "causes" in entry:
        reading["causes"] = _names(f"{where}: causes", entry["causes"])
    return Attribute(name, kind, values=values, encode=encode, missing=missing, extra=extra, **numbers, **reading)


def _rule(entry: Any) -> Rule:
    entry = _table("rules", entry)
    name = str(entry.get("name", "(unnamed)"))
    where = f"rule '{name}'"
    _check_keys(where, entry, ("name", "if", "then", "forbid"))
    if ("forbid" in entry) == ("if" in entry) or ("if" in entry) != ("then" in entry):
        raise DomainError(f"{where}: needs either forbid = {{…}}, or both if = {{…}} and then = {{…}}")
    when = _conditions(where, entry.get("forbid", entry.get("if")))
    return Rule(name, when, _conditions(where, entry.get("then", {})))


def _conditions(where: str, part: Any) -> dict[str, RuleCondition]:
    return {name: _condition(f"{where}: '{name}'", value) for name, value in _table(where, part).items()}


def _condition(where: str, value: Any) -> RuleCondition:
    if isinstance(value, Mapping):
        _check_keys(where, value, ("min", "max"))
        value = {key: as_days(end) if isinstance(end, date) else end for key, end in value.items()}
        if not value or not all(isinstance(v, float) or _is_code(v) for v in value.values()):
            raise DomainError(f"{where}: needs a number for min or max, is {dict(value)!r}")
        return Span(*(float(value.get(key, default)) for key, default in (("min", "-inf"), ("max", "inf"))))
    cells = tuple(value) if isinstance(value, list) else (value,)
    if not all(_is_cell(cell) for cell in cells):
        raise DomainError(f"{where}: expected labels, numbers, or min and max, got {value!r}")
    return cells


def _is_cell(value: Any) -> bool:
    """Return whether a value can stand in a table: a label or a number."""
    return isinstance(value, str) or _is_code(value) or isinstance(value, float)


def _is_code(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < MAX_VALUES


def _target(entry: Any) -> Target | None:
    if entry is None:
        return None
    entry = _table("target", entry)
    _check_keys("target", entry, ("column", "classes"))
    if "column" not in entry:
        raise DomainError('target: write target = { column = "…", classes = ["…", "…"] }, or no classes for a quantity')
    if "classes" not in entry:
        return Target(str(entry["column"]), ())
    classes = tuple(str(c) for c in _list("target: classes", entry["classes"]))
    if len(set(classes)) < 2:
        raise DomainError(f"target '{entry['column']}': needs at least two different classes, has {list(classes)}")
    return Target(str(entry["column"]), classes)


def _outside(value: Any) -> Any:
    if value not in ("error", "keep"):
        raise DomainError(f'outside must be "error" or "keep", is {value!r}')
    return value


def _names(where: str, value: Any) -> tuple[str, ...]:
    return tuple(str(v) for v in _list(where, [value] if isinstance(value, str) else value))


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DomainError(f"{where}: expected a table, got {value!r}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise DomainError(f"{where}: expected a list, got {value!r}")
    return value


def _check_keys(where: str, entry: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in entry:
        if key not in known:
            raise DomainError(f"{where}: unknown entry '{key}'. {did_you_mean(key, known)}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return "this is not a text file"
    return str(error)


LONGEST = 20_000  # letters of a text
MOST_LISTED = 200_000  # values of a condition that is no range
GRID_SLACK = 1e-6  # of a step: so far from its place on the grid a number may be written
_QUOTED = r"""(?:"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')"""
_WORD = r"""(?!["'])(?:(?!!=)[^\s=<>\[\]])+"""  # outside a list a number may hold a comma: 7,000
_ITEM = rf"""(?:{_QUOTED}|(?!["'])[^\s=<>\[\],]++)"""
_RANGE = re.compile(rf"({_ITEM})(?:\s+to\s+({_ITEM}))?", re.DOTALL | re.IGNORECASE)
_CONDITION = re.compile(
    rf"\s*(?P<name>{_QUOTED}|{_WORD})\s*"
    rf"(?:(?P<sign>[=!<>]=|[=<>])\s*(?P<value>{_QUOTED}|{_WORD})"
    rf"|(?P<negated>not\s+)?in\s*\[\s*(?P<list>{_RANGE.pattern}\s*(?:,\s*{_RANGE.pattern}\s*)*+)\])"
    r"\s*(?P<next>and\b|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_SHAPE = (
    "Write conditions such as age >= 30 and education in [Masters, Doctorate], with names and values that hold blanks, "
    'commas or operators in quotes, or those of a rule in a domain file: age = { min = 30 }, sex = "Female"'
)

Mask = npt.NDArray[np.bool_]


def read_conditions(domain: TableDomain, text: str) -> list[tuple[str, RuleCondition]]:
    """Return the conditions of a text as `--where` takes it, each with the name of its attribute.

    In words: NAME == VALUE (or =, !=, <, <=, >, >=), NAME in [VALUE, LOW to HIGH, …] or NAME not in […], joined by
    `and`; or in the form of a rule: age = { min = 30 }, sex = "Female". An empty cell that is a value of its own is
    called missing; no range includes it.

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
    """Return for each attribute which of its codes meet all conditions of a text: bool, (size,)."""
    # Not copied until it is restricted: an attribute may have more values than fit into memory.
    allowed = [torch.ones(1, dtype=torch.bool).expand(a.size) for a in domain.attributes]
    for name, condition in read_conditions(domain, text):
        try:
            attribute = _named(domain, name)
            column = domain.column(name)
            allowed[column] = allowed[column] & meets(attribute, condition)
            _check_left(attribute, bool(allowed[column].any()))
        except DomainError as error:
            raise DomainError(f"where '{text}': {error}") from None
    return tuple(allowed)


def written(attribute: Attribute, met: Mask) -> str:
    """Return the condition that some codes of an attribute meet, in the form of a rule.

    >>> age = Attribute("age", "ordinal", low=17, high=90)
    >>> written(age, np.arange(74) >= 3), written(age, np.arange(74) % 50 == 0)
    ('age = { min = 20.0, max = 90.0 }', 'age = [17, 67]')
    """
    return format_condition(attribute.name, _condition_of(attribute, met))


def _matches(text: str) -> tuple[list[re.Match[str]], str]:
    """Return the conditions in words, and the rest of the text that could not be read."""
    matches, place, joined = list[re.Match[str]](), 0, False
    while place < len(text) or joined:
        match = _CONDITION.match(text, place)
        if match is None:
            return matches, text[place:].strip() or "and"
        matches.append(match)
        place, joined = match.end(), bool(match["next"])
    return matches, ""


def _in_words(domain: TableDomain, match: re.Match[str]) -> tuple[str, RuleCondition]:
    """Return a condition in words as one of a rule."""
    name = _plain(match["name"])
    attribute = _named(domain, name)
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
    return name, _condition_of(attribute, met)


def _named(domain: TableDomain, name: str) -> Attribute:
    if name not in domain.names:
        raise DomainError(f"no attribute '{name}'. {did_you_mean(name, domain.names)}")
    attribute = domain.attributes[domain.column(name)]
    if attribute.size > MAX_RULE_VALUES:
        raise DomainError(f"attribute '{name}' has too many values for a condition. Use a larger step")
    return attribute


def _plain(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL) if word[0] in "\"'" else word


def _equal(attribute: Attribute, text: str) -> Mask:
    """Return which code is that of a value; a label must be one of the attribute's values."""
    _check_label(attribute, text)
    met: Mask = np.arange(attribute.size) == attribute.codes([text])[0]
    return met


def _ordered(attribute: Attribute, sign: str, text: str) -> Mask:
    """Return which codes lie on one side of a value; an empty cell lies on neither."""
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
        suggestion = did_you_mean(text, attribute.values)
        raise DomainError(f"attribute '{attribute.name}': unknown value '{text}'. {suggestion}")


def _condition_of(attribute: Attribute, met: Mask) -> RuleCondition:
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


def _check_left(attribute: Attribute, has_values: bool) -> None:
    if has_values:
        return
    suggestion = did_you_mean("", attribute.values) if attribute.values else None
    missing = f", or is {MISSING}" if attribute.empty is not None else ""
    ends = f"It runs from {attribute.value(0)} to {attribute.value(attribute.points - 1)}{missing}"
    raise DomainError(f"no value of '{attribute.name}' is left. {suggestion or ends}")
