"""Figures as people read them: enough digits to compare, no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

UNKNOWN = "not known"
SPACE = "\N{NARROW NO-BREAK SPACE}"  # between a figure and its unit


def known(value: object) -> TypeGuard[float]:
    """Return whether there is a figure to show: not None, not NaN, not infinite."""
    return isinstance(value, int | float) and math.isfinite(value)


def plain(value: object) -> str:
    """Return a word or a value as it is."""
    return UNKNOWN if value is None else str(value)


def share(value: object) -> str:
    """Return a share as a percentage with three digits that tell, counted from the nearer of 0 and 100.

    >>> [share(x).replace(SPACE, " ") for x in (0, 0.0182, 0.3817, 0.99982, 1, 1e-9, None)]
    ['0 %', '1.82 %', '38.2 %', '99.982 %', '100 %', 'below 0.0001 %', 'not known']
    """
    if not known(value):
        return UNKNOWN
    percent = 100 * value
    edge = min(abs(percent), abs(100 - percent))
    if 0 < abs(percent) < 0.5e-4:
        return f"below 0.0001{SPACE}%"
    digits = 0 if edge == 0 else min(4, max(0, 2 - math.floor(math.log10(edge))))
    return f"{_trimmed(f'{percent:,.{digits}f}')}{SPACE}%"


_PEOPLE = {
    "valid": "valid people, equally likely",
    "domain": "all combinations of values, equally likely",
    "data": "rows of the table",
}


def people(distribution: object) -> str:
    """Return in words whom a distribution draws.

    >>> people("data")
    'rows of the table'
    """
    return _PEOPLE.get(plain(distribution), plain(distribution))


def between(rate: Mapping[str, Any]) -> str:
    """Return the interval of a rate in words.

    >>> between({"low": 0.0158, "high": 0.0209}).replace(SPACE, " ")
    '1.58 % to 2.09 %'
    """
    return f"{share(rate['low'])} to {share(rate['high'])}"


def count(value: object) -> str:
    """Return a whole number with commas."""
    return f"{round(value):,}" if known(value) else UNKNOWN


def number(value: object) -> str:
    """Return a figure with three digits that tell, two where it is small; tiny ones as powers of ten.

    >>> [number(x) for x in (0.123456, 5.0, 1234.5, -0.0000673, 1.2e-9, None)]
    ['0.123', '5', '1,234', '−0.000067', '1.2e−09', 'not known']
    """
    if not known(value):
        return UNKNOWN
    size = abs(value)
    if size >= 1000:
        digits = f"{value:,.0f}"
    elif 1e-6 <= size < 1e-3:
        digits = f"{value:.{1 - math.floor(math.log10(size))}f}"
    else:
        digits = f"{value:.3g}" if size >= 1e-3 else f"{value:.2g}"
    return digits.replace("-", "\N{MINUS SIGN}")


def times(value: object) -> str:
    """Return a ratio: two digits that tell below 10, whole above.

    >>> times(5.234), times(61.7), times(0.4166)
    ('× 5.2', '× 62', '× 0.42')
    """
    if not known(value):
        return UNKNOWN
    return f"× {value:,.0f}" if abs(value) >= 10 else f"× {value:.2g}"


def duration(value: object) -> str:
    """Return seconds as people say them.

    >>> [duration(x).replace(SPACE, " ") for x in (0.0312, 8.04, 125.2, 7322)]
    ['0.031 s', '8 s', '2 min 5 s', '2 h 2 min']
    """
    if not known(value):
        return UNKNOWN
    whole = round(value)
    if whole >= 3600:
        return f"{whole // 3600}{SPACE}h {whole % 3600 // 60}{SPACE}min"
    if whole >= 60:
        return f"{whole // 60}{SPACE}min {whole % 60}{SPACE}s"
    return f"{value:.2g}{SPACE}s"


def listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    >>> listed(["sex", "race", "age"])
    'sex, race and age'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def plural(value: object, one: str, many: str | None = None) -> str:
    """Return a count with its noun.

    >>> plural(1, "finding"), plural(2000, "finding")
    ('1 finding', '2,000 findings')
    """
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def _trimmed(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
