"""Domains as TOML files: what a user writes, checked word by word."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from neuronfair.domain.attribute import MAX_VALUES, Attribute, as_days, check_graph
from neuronfair.domain.rules import Condition, Rule, Span
from neuronfair.domain.table import TableDomain, Target
from neuronfair.errors import DomainError, did_you_mean
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
    """Read a domain from a TOML file; every mistake is reported with the file and the entry it is in."""
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
    """Return the domain that the values of a TOML file describe."""
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


def parse_conditions(text: str) -> dict[str, Condition]:
    """Read conditions on attributes as a rule has them: age = { min = 30 }, education = ["Masters", "Doctorate"]."""
    try:
        if _DEEP.search(text):
            raise ValueError("a key has too many parts")
        document = tomllib.loads(f"conditions = {{ {text} }}")
    except (ValueError, RecursionError) as error:
        raise DomainError(f"cannot be read as the conditions of a rule: {error}") from None
    _check_keys("conditions", document, ("conditions",))
    return _conditions("conditions", document["conditions"])


def format_condition(name: str, condition: Condition) -> str:
    """Return a condition on an attribute as a rule has it: the inverse of `parse_conditions`."""
    return f"{name if _BARE.fullmatch(name) else quoted(name)} = {toml_value(condition)}"


def format_domain(domain: TableDomain) -> str:
    """Return the TOML text of a domain: the inverse of `parse_domain`."""
    lines = [f"{key} = {toml_value(getattr(domain, key))}" for key in ("name", "encoding", "description", "outside")]
    lines.append(f"sensitive = {toml_value(domain.sensitive)}")
    if domain.target is not None:
        classes = {"classes": domain.target.classes} if domain.target.classes else {}
        lines.append(f"target = {toml_value({'column': domain.target.column} | classes)}")
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
        lines.append(f"{toml_value(a.name)} = {toml_value(entry)}")
    for rule in domain.rules:
        lines += ["\n[[rules]]", f"name = {toml_value(rule.name)}"]
        if rule.then:
            lines += [f"if = {toml_value(rule.when)}", f"then = {toml_value(rule.then)}"]
        else:
            lines.append(f"forbid = {toml_value(rule.when)}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Span):
        ends = {"min": value.low, "max": value.high}
        return toml_value({key: end for key, end in ends.items() if math.isfinite(end)})
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{quoted(str(key))} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return value.isoformat()
    return quoted(value) if isinstance(value, str) else repr(value)


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


def _conditions(where: str, part: Any) -> dict[str, Condition]:
    return {name: _condition(f"{where}: '{name}'", value) for name, value in _table(where, part).items()}


def _condition(where: str, value: Any) -> Condition:
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


# Words for the same answer, and for its opposite. The first pair says nothing without a question: see `_GOOD`.
_ANSWERS = ({"yes", "y", "true", "t"}, {"no", "n", "false", "f"})
_OPPOSITES = (
    ({"good"}, {"bad"}),
    (
        {"approve", "approved", "accept", "accepted", "grant", "granted", "admit", "admitted", "hire", "hired"}
        | {"offer", "offered", "select", "selected", "invite", "invited"},
        {"deny", "denied", "reject", "rejected", "decline", "declined", "refuse", "refused"},
    ),
    ({"paid", "repaid", "fully paid", "paid off"}, {"default", "defaulted", "unpaid", "charged off", "not repaid"}),
    ({"pass", "passed"}, {"fail", "failed"}),
    ({"eligible"}, {"ineligible"}),
    ({"qualified"}, {"unqualified", "disqualified"}),
    ({"success", "successful"}, {"failure", "unsuccessful"}),
)
# A yes to one of these is good news, if nothing harmful is said as well.
_GOOD = re.compile(
    r"\b(?:accept(?:ed|ance)?|admit(?:ted)?|admission|approv(?:e|ed|al)|award(?:ed)?|benefits?|eligible|grant(?:ed)?|hired?|"
    r"invit(?:e|ed)|offer(?:ed)?|pass(?:ed)?|promot(?:ed|ion)|qualified|repaid|selected|shortlisted|success|"
    r"successful)\b"
)
# A yes to one of these is no good news. Short beginnings of words, and long ones anywhere: "loandefault".
_HARM = re.compile(
    r"\b(?:bad|ban|claim|dead|death|debt|deni|deny|die|fail|fine|fire|flag|icu|ill|jail|late|left|leav|loss|lost|miss|not|"
    r"no|quit|sick|sue)|default|fraud|risk|churn|arrest|reject|recid|delinq|crim|offen|violat|violen|bankrupt|mortal|"
    r"diseas|cancer|diabet|stroke|attack|readmi|readmit|terminat|layoff|attrition|lapse|cancel|dropout|drop.out|"
    r"suspen|expel|expul|evict|penal|guilt|convict|complain|hazard|injur|accident|abus|spam|unpaid|charge|foreclos|"
    r"delay|declin|refus|block|suspic|detain|detent|prison|hospital|problem|overdue|arrear|warn|threat|stop|search|withdr|revok|rescin|away|"
    r"sanction|infect|malign|exited"
)


def favourable_line(column: str, classes: Sequence[str]) -> str:
    """Return the comment of a domain file that suggests the favourable outcome.

    >>> print(favourable_line("loan", ["denied", "approved"]))
    # favourable = "approved"  # the favourable outcome: needed for disparate impact
    """
    guess = suggested(column, classes) or _guess(column, classes)[0]
    return f"# favourable = {quoted(guess)}  # the favourable outcome: needed for disparate impact"


def with_favourable(text: str, favourable: str) -> str:
    """Return the text of a domain file that names no favourable outcome with this one."""
    return f"favourable = {quoted(favourable)}\n{text}"  # before the first table, whose key it would be


def suggested(column: str, classes: Sequence[str]) -> str | None:
    """Return the class whose words say that it is the favourable outcome; None where they leave a doubt.

    >>> suggested("loan", ["denied", "approved"]), suggested("two_year_recid", ["no", "yes"])
    ('approved', None)
    """
    guess, sure = _guess(column, classes)
    return guess if sure else None


def _guess(column: str, classes: Sequence[str]) -> tuple[str, bool]:
    """Return a class, and whether its words and those of the other class leave no doubt."""
    for one, other in (classes, classes[::-1]) if len(classes) == 2 else ():
        hoped, feared = _words(one), _words(other)
        if hoped in _ANSWERS[0] and feared in _ANSWERS[1]:
            harmful = _HARM.search(_words(column)) is not None
            return (other, False) if harmful else (one, _GOOD.search(_words(column)) is not None)
        for good, bad in _OPPOSITES:
            opposite = feared in bad or (hoped in good and re.fullmatch(rf"(?:not|no|non|un) ?{hoped}", feared))
            if hoped in good and opposite:
                return one, True
    return classes[-1], False


def _words(text: str) -> str:
    """Return a name as lower-case words: "LoanDefault" and "loan_default" are "loan default"."""
    return " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).casefold().split())
