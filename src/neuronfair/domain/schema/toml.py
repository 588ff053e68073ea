"""The input schema (domain file) as TOML: reading, writing, and the conditions of rules and of `--where`."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import GRID_TOLERANCE, MAX_VALUES, MISSING, Attribute, Outside, check_graph
from neuronfair.domain.cells import count_days
from neuronfair.domain.rules import MAX_RULE_VALUES, Rule, RuleCondition, Span, find_meeting_codes
from neuronfair.domain.table import TableDomain, Target
from neuronfair.errors import CellError, DomainError, did_you_mean
from neuronfair.limits import read_text

Toml = Mapping[str, Any]  # a table of a TOML file

_TOP_KEYS = (
    *("name", "encoding", "description", "sensitive", "target", "favourable"),
    *("encode", "outside", "attributes", "rules"),
)
_MEMORY_FACTOR = 400  # how much more memory than letters tomllib takes for a file of nothing but short headers
# A key of 16 parts, where a key may stand; tomllib takes time and memory with the square of their number.
_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")  # a key without quotes
_DEEP_KEY = re.compile(rf"(?m)(?:^[ \t]*+\[{{0,2}}+|[{{,])[ \t]*+(?:{_KEY_PART}){{16}}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_code(value: object) -> bool:
    return isinstance(value, int) and abs(value) < MAX_VALUES


def _is_cell(value: object) -> bool:
    return isinstance(value, (str, float)) or _is_code(value)


_NUMBER = (_is_number, "must be a number")
_TEXT = (lambda value: isinstance(value, str), "must be a text")
_TRUTH = (lambda value: isinstance(value, bool), "must be true or false")
_NUMBERS = (lambda value: isinstance(value, list) and all(map(_is_number, value)), "must be a list of numbers")
_LABELS = (lambda value: isinstance(value, list), "expected a list")
_CODES = (lambda value: isinstance(value, dict) and all(map(_is_code, value.values())), "needs whole numbers as codes")
# The entries of an attribute, which are fields of `Attribute`: what each must be.
_ENTRY_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("low", "high", "step", "center", "scale"), _NUMBER),
    **dict.fromkeys(("kind", "encode", "decimal", "date", "other", "outliers"), _TEXT),
    **dict.fromkeys(("fixed", "legitimate"), _TRUTH),
    **dict.fromkeys(("bands", "band_values"), _NUMBERS),
    **dict.fromkeys(("values", "causes"), _LABELS),
    "missing": (_is_cell, "must be a label or a number"),
    "extra": _CODES,
}
_DEFAULTS = Attribute("", "ordinal")
_OPTIONAL_KEYS = (  # entries that are written where they are no default, in this order
    *("missing", "extra", "decimal", "date", "other", "outliers", "causes", "bands", "band_values"),
    *("fixed", "legitimate"),
)


def read_domain(path: str | Path) -> TableDomain:
    """Read a domain from a TOML file; an error names the file and the entry."""
    document = read_toml(path)
    try:
        return build_domain(document, default_name=Path(path).stem)
    except DomainError as error:
        raise DomainError(f"{path}: {error}") from None


def read_toml(path: str | Path) -> Toml:
    """Read a TOML file that is neither too large nor too deep; an error names it."""
    try:
        return parse_toml(read_text(Path(path), times=_MEMORY_FACTOR))
    except UnicodeDecodeError:
        raise DomainError(f"{path}: this is not a text file in UTF-8") from None
    except OSError as error:
        raise DomainError(f"{path}: {error.strerror or error}") from None
    except DomainError as error:
        raise DomainError(f"{path}: {error}") from None


def parse_toml(text: str) -> Toml:
    """Return the values of a TOML text from a stranger."""
    try:
        if _DEEP_KEY.search(text):
            raise ValueError("a key has too many parts")
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or thousands of brackets
        raise DomainError(f"cannot be read as TOML: {error}") from None


def parse_domain(text: str, *, default_name: str = "table") -> TableDomain:
    """Read a domain from the text of a TOML file."""
    return build_domain(parse_toml(text), default_name=default_name)


def build_domain(document: Toml, *, default_name: str = "table") -> TableDomain:
    """Return the domain from the values of a TOML file."""
    _check_keys("the file", document, _TOP_KEYS)
    attributes = _require_table("attributes", document.get("attributes"))
    if not attributes:
        raise DomainError("no attributes. Write a table [attributes] with one line per column")
    columns = tuple(_parse_attribute(name, entry, document.get("encode")) for name, entry in attributes.items())
    check_graph(columns)
    outside = document.get("outside", "error")
    if outside not in get_args(Outside):
        raise DomainError(f'outside must be "error" or "keep", is {outside!r}')
    return TableDomain(
        name=str(document.get("name", default_name)),
        attributes=columns,
        sensitive=_parse_names("sensitive", document.get("sensitive", [])),
        rules=tuple(_parse_rule(entry) for entry in _require_list("rules", document.get("rules", []))),
        target=_parse_target(document["target"]) if "target" in document else None,
        encoding=str(document.get("encoding", "default")),
        description=str(document.get("description", "")),
        outside=outside,
        favourable=str(document["favourable"]) if "favourable" in document else None,
    )


def format_domain(domain: TableDomain) -> str:
    """Return the TOML text of a domain: the inverse of `parse_domain`."""
    lines = [f"{key} = {toml_value(getattr(domain, key))}" for key in ("name", "encoding", "description", "outside")]
    lines.append(f"sensitive = {toml_value(domain.sensitive)}")
    if domain.target is not None:
        lines.append(f"target = {toml_value(make_target_entry(domain.target))}")
    if domain.favourable is not None:
        lines.append(f"favourable = {toml_value(domain.favourable)}")
    lines.append("\n[attributes]")
    for a in domain.attributes:
        keys = ("kind", "encode", *(("values",) if a.values else ("low", "high", "step")), "center", "scale")
        keys += tuple(key for key in _OPTIONAL_KEYS if getattr(a, key) != getattr(_DEFAULTS, key))
        lines.append(f"{toml_key(a.name)} = {toml_value({key: getattr(a, key) for key in keys})}")
    for rule in domain.rules:
        lines += ["", *format_rule_lines(rule, lambda _, condition: toml_value(condition))]
    return "\n".join(lines) + "\n"


def format_rule_lines(rule: Rule, write: Callable[[str, RuleCondition], str]) -> list[str]:
    """Return the lines of a rule in a domain file; `write` gives the text of the condition on an attribute."""
    parts = {"if": rule.when, "then": rule.then} if rule.then else {"forbid": rule.when}
    lines = ["[[rules]]", f"name = {quote(rule.name)}"]
    for key, conditions in parts.items():
        entries = [f"{toml_key(name)} = {write(name, condition)}" for name, condition in conditions.items()]
        lines.append(f"{key} = {{ {', '.join(entries)} }}")
    return lines


def make_target_entry(target: Target) -> dict[str, str | tuple[str, ...]]:
    """Return the entry of a target, without classes where it is a quantity."""
    return {"column": target.column, **({"classes": target.classes} if target.classes else {})}


def with_favourable(text: str, favourable: str) -> str:
    """Return the text of a domain file that names no favourable outcome with this one."""
    return f"favourable = {quote(favourable)}\n{text}"  # before the first table, whose key it would be


def toml_value(value: object) -> str:
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
    return quote(value) if isinstance(value, str) else repr(value)


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, in quotes where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else quote(name)


def quote(text: str) -> str:
    """Return a text as a TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _parse_attribute(name: str, entry: object, default_encode: object) -> Attribute:
    site = f"attribute '{name}'"
    table = _require_table(site, entry)
    _check_keys(site, table, tuple(_ENTRY_CHECKS))
    if "kind" not in table:
        raise DomainError(f'{site}: kind is missing. Write kind = "ordinal", "nominal", "flag" or "continuous"')
    dates = {key: count_days(value) for key, value in table.items() if isinstance(value, date) and "date" in table}
    table = {**({} if default_encode is None else {"encode": default_encode}), **table, **dates}
    if isinstance(table.get("causes"), str):
        table["causes"] = [table["causes"]]
    for key, value in table.items():
        fits, expected = _ENTRY_CHECKS[key]
        if not fits(value):
            raise DomainError(f"{site}: {key} {expected}, is {value!r}")
    values = tuple(map(str, table.get("values", ())))
    if table["kind"] in ("ordinal", "continuous") and not values and not {"low", "high"} <= set(table):
        raise DomainError(f"{site}: give either low and high, or values = [...]")
    standard = "onehot" if table["kind"] == "nominal" else "scaled" if {"center", "scale"} & set(table) else "raw"
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    lists |= {"causes": tuple(map(str, lists["causes"]))} if "causes" in lists else {}
    return Attribute(name, **{"encode": standard, **table, **lists, "values": values})


def _parse_rule(entry: object) -> Rule:
    table = _require_table("rules", entry)
    name = str(table.get("name", "(unnamed)"))
    site = f"rule '{name}'"
    _check_keys(site, table, ("name", "if", "then", "forbid"))
    if ("forbid" in table) == ("if" in table) or ("if" in table) != ("then" in table):
        raise DomainError(f"{site}: needs either forbid = {{…}}, or both if = {{…}} and then = {{…}}")
    when = _parse_conditions(site, table.get("forbid", table.get("if")))
    return Rule(name, when, _parse_conditions(site, table.get("then", {})))


def _parse_conditions(site: str, part: object) -> dict[str, RuleCondition]:
    return {name: _parse_condition(f"{site}: '{name}'", value) for name, value in _require_table(site, part).items()}


def _parse_condition(site: str, value: object) -> RuleCondition:
    if isinstance(value, Mapping):
        _check_keys(site, value, ("min", "max"))
        value = {key: count_days(end) if isinstance(end, date) else end for key, end in value.items()}
        if not value or not all(isinstance(v, float) or _is_code(v) for v in value.values()):
            raise DomainError(f"{site}: needs a number for min or max, is {value!r}")
        return Span(float(value.get("min", -math.inf)), float(value.get("max", math.inf)))
    cells = tuple(value) if isinstance(value, list) else (value,)
    if not all(map(_is_cell, cells)):
        raise DomainError(f"{site}: expected labels, numbers, or min and max, got {value!r}")
    return cells


def _parse_target(entry: object) -> Target:
    table = _require_table("target", entry)
    _check_keys("target", table, ("column", "classes"))
    if "column" not in table:
        raise DomainError('target: write target = { column = "…", classes = ["…", "…"] }, or no classes for a quantity')
    classes = tuple(map(str, _require_list("target: classes", table.get("classes", []))))
    if "classes" in table and len(set(classes)) < 2:
        raise DomainError(f"target '{table['column']}': needs at least two different classes, has {list(classes)}")
    return Target(str(table["column"]), classes)


def _parse_names(site: str, value: object) -> tuple[str, ...]:
    return tuple(map(str, _require_list(site, [value] if isinstance(value, str) else value)))


def _require_table(site: str, value: object) -> Toml:
    if not isinstance(value, Mapping):
        raise DomainError(f"{site}: expected a table, got {value!r}")
    return value


def _require_list(site: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise DomainError(f"{site}: expected a list, got {value!r}")
    return value


def _check_keys(site: str, entry: Toml, allowed_keys: tuple[str, ...]) -> None:
    for key in entry:
        if key not in allowed_keys:
            raise DomainError(f"{site}: unknown entry '{key}'. {did_you_mean(key, allowed_keys)}")


MAX_LETTERS = 20_000  # letters of a text
MAX_LISTED_VALUES = 200_000  # values of a condition that is no range
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
_CONDITION_HELP = (
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
        if len(text) > MAX_LETTERS:
            raise DomainError(f"has {len(text):,} letters; {MAX_LETTERS:,} at most are read")
        matches, unread = _match_conditions(text.strip())
        if not unread:
            return [_read_words(domain, match) for match in matches]
        try:
            document = parse_toml(f"conditions = {{ {text} }}")
            _check_keys("conditions", document, ("conditions",))
            return list(_parse_conditions("conditions", document["conditions"]).items())
        except DomainError:
            raise DomainError(f"cannot be read from '{unread[:20]}' on. {_CONDITION_HELP}") from None
    except DomainError as error:
        reason = error.reason if isinstance(error, CellError) else error
        raise DomainError(f"where '{text}': {reason}") from None


def allowed_codes(domain: TableDomain, text: str) -> tuple[Tensor, ...]:
    """Return for each attribute which of its codes meet all conditions of a text: bool, (size,)."""
    # Not copied until it is restricted: an attribute may have more values than fit into memory.
    allowed = [torch.ones(1, dtype=torch.bool).expand(a.size) for a in domain.attributes]
    for name, condition in read_conditions(domain, text):
        try:
            attribute = _find_attribute(domain, name)
            column = domain.column(name)
            allowed[column] = allowed[column] & find_meeting_codes(attribute, condition)
            _check_remaining(attribute, bool(allowed[column].any()))
        except DomainError as error:
            raise DomainError(f"where '{text}': {error}") from None
    return tuple(allowed)


def format_condition(attribute: Attribute, mask: Mask) -> str:
    """Return the condition that some codes of an attribute meet, in the form of a rule.

    >>> age = Attribute("age", "ordinal", low=17, high=90)
    >>> format_condition(age, np.arange(74) >= 3), format_condition(age, np.arange(74) % 50 == 0)
    ('age = { min = 20.0, max = 90.0 }', 'age = [17, 67]')
    """
    return f"{toml_key(attribute.name)} = {toml_value(_make_condition(attribute, mask))}"


def _match_conditions(text: str) -> tuple[list[re.Match[str]], str]:
    """Return the conditions in words, and the rest of the text that could not be read."""
    matches, start, expects_condition = list[re.Match[str]](), 0, False
    while start < len(text) or expects_condition:
        match = _CONDITION.match(text, start)
        if match is None:
            return matches, text[start:].strip() or "and"
        matches.append(match)
        start, expects_condition = match.end(), bool(match["next"])
    return matches, ""


def _read_words(domain: TableDomain, match: re.Match[str]) -> tuple[str, RuleCondition]:
    name = _unquote(match["name"])
    attribute = _find_attribute(domain, name)
    if match["sign"] is None:
        mask = np.zeros(attribute.size, dtype=bool)
        for low, high in _RANGE.findall(match["list"]):
            ends = (
                _compare_codes(attribute, ">=", _unquote(low)) & _compare_codes(attribute, "<=", _unquote(high))
                if high
                else None
            )
            mask |= _match_codes(attribute, _unquote(low)) if ends is None else ends
        mask = ~mask if match["negated"] else mask
    elif match["sign"] in ("==", "=", "!="):
        mask = _match_codes(attribute, _unquote(match["value"]))
        mask = ~mask if match["sign"] == "!=" else mask
    else:
        mask = _compare_codes(attribute, match["sign"], _unquote(match["value"]))
    return name, _make_condition(attribute, mask)


def _find_attribute(domain: TableDomain, name: str) -> Attribute:
    if name not in domain.names:
        raise DomainError(f"no attribute '{name}'. {did_you_mean(name, domain.names)}")
    attribute = domain.attributes[domain.column(name)]
    if attribute.size > MAX_RULE_VALUES:
        raise DomainError(f"attribute '{name}' has too many values for a condition. Use a larger step")
    return attribute


def _unquote(word: str) -> str:
    return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL) if word[0] in "\"'" else word


def _match_codes(attribute: Attribute, text: str) -> Mask:
    """Return which code is that of a value; a label must be one of the attribute's values."""
    _check_label(attribute, text)
    mask: Mask = np.arange(attribute.size) == attribute.codes([text])[0]
    return mask


def _compare_codes(attribute: Attribute, sign: str, text: str) -> Mask:
    """Return which codes lie on one side of a value; an empty cell lies on neither."""
    if not attribute.is_ordered:
        raise DomainError(f"'{attribute.name}' has no order. Name the values that are meant: {attribute.name} in […]")
    _check_label(attribute, text)
    if attribute.values:
        threshold = float(attribute.values.index(text))
    else:
        number = attribute.number(text)
        if number is None or not math.isfinite(number):
            expected = "a number" if attribute.date is None else f"a date such as {attribute.value(0)}"
            raise DomainError(f"attribute '{attribute.name}': expected {expected}, got {text!r}")
        threshold = (number - attribute.low) / attribute.step
    codes = np.arange(attribute.size)
    mask: Mask = codes >= threshold - GRID_TOLERANCE if sign in (">=", "<") else codes <= threshold + GRID_TOLERANCE
    return (~mask if sign in ("<", ">") else mask) & (codes < attribute.grid_size)


def _check_label(attribute: Attribute, text: str) -> None:
    if attribute.values and text not in attribute.values:
        suggestion = did_you_mean(text, attribute.values)
        raise DomainError(f"attribute '{attribute.name}': unknown value '{text}'. {suggestion}")


def _make_condition(attribute: Attribute, mask: Mask) -> RuleCondition:
    """Return the condition that some codes meet: a range of numbers, or a list of values."""
    codes = np.flatnonzero(mask)
    _check_remaining(attribute, len(codes) > 0)
    if not attribute.values and len(codes) == codes[-1] - codes[0] + 1 and codes[-1] < attribute.grid_size:
        return Span(*(float(attribute.low + attribute.step * code) for code in (codes[0], codes[-1])))
    if len(codes) > MAX_LISTED_VALUES:
        raise DomainError(f"attribute '{attribute.name}': a condition leaves too many values that are no range")
    values = tuple(attribute.value(int(code)) for code in codes)
    if attribute.decimal == ".":
        return values
    return tuple(repr(v).replace(".", attribute.decimal) if isinstance(v, float) else v for v in values)


def _check_remaining(attribute: Attribute, has_values: bool) -> None:
    if has_values:
        return
    suggestion = did_you_mean("", attribute.values) if attribute.values else None
    missing = f", or is {MISSING}" if attribute.empty is not None else ""
    ends = f"It runs from {attribute.value(0)} to {attribute.value(attribute.grid_size - 1)}{missing}"
    raise DomainError(f"no value of '{attribute.name}' is left. {suggestion or ends}")
