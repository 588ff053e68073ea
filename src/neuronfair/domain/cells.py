"""Cells as text, and the numbers and dates in texts: one rule for tables in files, in memory and in models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np

MISSING_WORDS = frozenset({"", "?", "nan", "na", "n/a", "null", "none", "<na>"})
_LONGEST_MISSING = max(map(len, MISSING_WORDS))

_CURRENCY = r"(?:[$€£¥₹]|EUR|USD|GBP|CHF)"
_THOUSANDS_MARK = {".": r"[,'’ \u00a0\u202f]", ",": r"[.'’ \u00a0\u202f]"}  # between thousands, by the decimal mark
_NUMBER_FORMS = {
    mark: re.compile(
        rf"(\()?([+-]?) ?{_CURRENCY}?\s?([+-]?)(\d+|[1-9]\d{{0,2}}(?:{group}\d{{3}})+)?"
        rf"(?:{re.escape(mark)}(\d*))?([eE][+-]?\d+)?\s?(?:%|{_CURRENCY})?(?(1)\))"
    )
    for mark, group in _THOUSANDS_MARK.items()
}
DECIMAL_MARKS = tuple(_NUMBER_FORMS)

ISO = "iso"  # 1999-12-31, with or without a time
_DAYS = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%B %d, %Y")
_TIMES = ("", " %H:%M", " %H:%M:%S")
_EPOCH = date(1970, 1, 1).toordinal()


def cell_text(value: Any) -> str:
    """Return a value as the text of a cell, without blanks at its ends.

    An empty value is '', a whole number has no point, midnight is a date, and a duration is its seconds.

    >>> [cell_text(value) for value in (1.0, 1e16, 0.5, " F ", None, float("nan"), True, datetime(2020, 1, 31))]
    ['1', '10000000000000000', '0.5', 'F', '', '', 'True', '2020-01-31']
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, timedelta):
        value = value.total_seconds()
    text = str(value)
    if value is None or text in ("nan", "NaT", "<NA>"):
        return ""
    if isinstance(value, datetime) and value.time() == time.min:
        return value.date().isoformat()
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return text.strip().removesuffix(".0")


def canonical_number(cell: Any) -> str:
    """Return a cell as text, so that 1, 1.0 and "1" are one, and two different numbers never.

    >>> canonical_number(1.0), canonical_number("1"), canonical_number(-0.0), canonical_number(True)
    ('1', '1', '0', 'True')
    >>> canonical_number(1000001), canonical_number("1e16"), canonical_number("1_2")
    ('1000001', '1E+16', '1_2')
    """
    text = str(cell).strip()
    try:
        number = Decimal(_python_number(text))
    except (ValueError, InvalidOperation):
        return text
    if not number.is_finite():
        return text.casefold()
    exact = Context(prec=max(1, len(number.as_tuple().digits)), Emax=MAX_EMAX, Emin=MIN_EMIN)
    return str(number.normalize(exact)) if number else "0"


def is_missing(text: str) -> bool:
    """Return whether a cell is empty or holds a word for that, such as n/a."""
    return len(text) <= _LONGEST_MISSING and text.casefold() in MISSING_WORDS


def plain_float(text: str) -> float:
    """Return the number that a text is, without a unit; raise a ValueError for any other text.

    >>> plain_float("1e3")
    1000.0
    """
    return float(_python_number(text))


def plain_int(text: str) -> int:
    """Return the whole number that a text is; raise a ValueError for any other text."""
    return int(_python_number(text))


def _python_number(text: str) -> str:
    """Return a text that Python may read as a number; refuse 1_2, which Python reads as 12."""
    if "_" in text:
        raise ValueError(f"'{text}' is no number")
    return text


def size_sort_key(text: str) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by size, before all other texts."""
    try:
        return False, plain_float(text), text
    except ValueError:
        return True, 0.0, text


def parse_number(text: str, decimal: str = ".") -> float | None:
    """Return the number in a text, without its unit, or None.

    >>> parse_number("$1,234.50"), parse_number("(3)"), parse_number("12.5%"), parse_number("1,5"), parse_number("1_2")
    (1234.5, -3.0, 12.5, None, None)
    >>> parse_number("1.234,5 €", ",")
    1234.5
    """
    if decimal == ".":
        try:
            return plain_float(text)
        except ValueError:
            pass
    match = _NUMBER_FORMS[decimal].fullmatch(text)
    if match is None:
        return None
    bracket, before, after, digits, decimals, power = match.groups()
    if not (digits or decimals) or (before and after):
        return None
    size = float(f"{re.sub('[^0-9]', '', digits or '0')}.{decimals or '0'}{power or ''}")
    return -size if bracket or "-" in (before, after) else size


def parse_days(text: str, form: str) -> int | None:
    """Return a date as days since 1970-01-01, or None for a text in another form; a time of day is dropped.

    >>> parse_days("31.12.1999", "%d.%m.%Y"), parse_days("1970-01-02 10:30", ISO), parse_days("Monday", ISO)
    (10956, 1, None)
    """
    try:
        moment = datetime.fromisoformat(text) if form == ISO else datetime.strptime(text, form)
    except ValueError:
        return None
    return count_days(moment)


def format_day(number: float, form: str) -> str:
    """Return the date a number of days after 1970-01-01, in a form.

    >>> format_day(10956, "%d.%m.%Y")
    '31.12.1999'
    """
    moment = date.fromordinal(_EPOCH + int(number))
    return moment.isoformat() if form == ISO else moment.strftime(form)


def count_days(moment: date) -> int:
    """Return a date as days since 1970-01-01."""
    return moment.toordinal() - _EPOCH


def is_day(number: float) -> bool:
    """Return whether a number of days gives a date."""
    return float(number).is_integer() and 0 < number + _EPOCH <= date.max.toordinal()


def is_date_form(form: str) -> bool:
    """Return whether dates can be written and read in a form."""
    try:
        return parse_days(format_day(0, form), form) == 0
    except (ValueError, re.error):  # the latter if a part occurs twice
        return False


def find_date_forms(texts: Sequence[str]) -> list[str]:
    """Return the forms that read all texts as dates.

    >>> find_date_forms(["03/04/2020", "12/11/2021"])
    ['%m/%d/%Y', '%d/%m/%Y']
    """
    forms = [ISO, *(form + time for form in _DAYS for time in _TIMES)]
    for sample in (texts[:1], texts[:100], texts):  # the first cells exclude most columns
        forms = [form for form in forms if all(parse_days(text, form) is not None for text in sample)]
    return forms
