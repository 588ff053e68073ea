"""How numbers and dates are written in tables: 1234.5, $1,234.50, 1.234,5 €, 12.5%, 31.12.1999."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date, datetime

_SIGN = r"(?:[$€£¥₹]|EUR|USD|GBP|CHF)"
_GROUP = {".": r"[,'’ \u00a0\u202f]", ",": r"[.'’ \u00a0\u202f]"}  # between thousands, by the decimal mark
_FORMS = {
    mark: re.compile(
        rf"(\()?([+-]?) ?{_SIGN}?\s?([+-]?)(\d+|[1-9]\d{{0,2}}(?:{group}\d{{3}})+)?"
        rf"(?:{re.escape(mark)}(\d*))?([eE][+-]?\d+)?\s?(?:%|{_SIGN})?(?(1)\))"
    )
    for mark, group in _GROUP.items()
}
DECIMALS = tuple(_FORMS)

ISO = "iso"  # 1999-12-31, with or without a time
_DAYS = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%B %d, %Y")
_TIMES = ("", " %H:%M", " %H:%M:%S")
_EPOCH = date(1970, 1, 1).toordinal()


def number(text: str, decimal: str = ".") -> float | None:
    """Return the number that is written, without its unit, or None if it is none.

    >>> number("$1,234.50"), number("(3)"), number("12.5%"), number("1.234,5 €", ","), number("1,5")
    (1234.5, -3.0, 12.5, 1234.5, None)
    """
    if decimal == ".":
        try:
            return float(text)
        except ValueError:
            pass
    found = _FORMS[decimal].fullmatch(text)
    if found is None:
        return None
    bracket, before, after, whole, part, power = found.groups()
    if not (whole or part) or (before and after):
        return None
    size = float(f"{re.sub('[^0-9]', '', whole or '0')}.{part or '0'}{power or ''}")
    return -size if bracket or "-" in (before, after) else size


def days(text: str, form: str) -> int | None:
    """Return a date as days since 1970-01-01, or None if it is not written in this form; a time of day is dropped.

    >>> days("31.12.1999", "%d.%m.%Y"), days("1970-01-02 10:30", ISO), days("Monday", ISO)
    (10956, 1, None)
    """
    try:
        moment = datetime.fromisoformat(text) if form == ISO else datetime.strptime(text, form)
    except ValueError:
        return None
    return moment.toordinal() - _EPOCH


def day(number: float, form: str) -> str:
    """Return the date that lies so many days after 1970-01-01, in the form of the table.

    >>> day(10956, "%d.%m.%Y")
    '31.12.1999'
    """
    found = date.fromordinal(_EPOCH + int(number))
    return found.isoformat() if form == ISO else found.strftime(form)


def as_days(moment: date) -> int:
    """Return a date as days since 1970-01-01."""
    return moment.toordinal() - _EPOCH


def is_day(number: float) -> bool:
    """Return whether there is such a day."""
    return float(number).is_integer() and 0 < number + _EPOCH <= date.max.toordinal()


def is_form(form: str) -> bool:
    """Return whether dates can be written and read in a form."""
    try:
        return days(day(0, form), form) == 0
    except (ValueError, re.error):  # the latter if a part is there twice
        return False


def date_forms(texts: Sequence[str]) -> list[str]:
    """Return the forms in which all of the texts are dates.

    >>> date_forms(["03/04/2020", "12/11/2021"])
    ['%m/%d/%Y', '%d/%m/%Y']
    """
    forms = [ISO, *(form + time for form in _DAYS for time in _TIMES)]
    for some in (texts[:1], texts[:100], texts):  # most columns are no dates, as their first cells show
        forms = [form for form in forms if all(days(text, form) is not None for text in some)]
    return forms
