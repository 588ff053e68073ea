"""Numbers, lists and names for readers: enough digits to compare, and no control characters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

UNKNOWN = "not known"
ALSO_OF = " and, separately, of "  # joins groups by different attributes, which are not one group
_MINUS = "\N{MINUS SIGN}"
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_FRACTION_WORDS = {1 / 4: "a quarter", 1 / 3: "a third", 1 / 2: "half", 2 / 3: "two thirds", 3 / 4: "three quarters"}
Population = Literal["pairs", "table", "plausible", "domain", "combinations"]
POPULATIONS: dict[Population, str] = {  # the records of a rate
    "pairs": "people in the data set with a plausible twin",
    "table": "records in the data set",
    "plausible": "realistic synthetic records",
    "domain": "synthetic records drawn uniformly from the declared input space",
    "combinations": "combinations of values drawn uniformly, rules ignored",
}
TwinKind = Literal["flip", "counterfactual"]  # the same record in another group, or its counterfactual twin
# which twins the records of a rate are compared with
TWINS_OF_POPULATION = {"pairs": "plausible twins only; people without one are not counted"}
TWINS_OF_POPULATION |= dict.fromkeys(("table", "plausible", "domain"), "all twins that the rules allow")
SHARE_OF: dict[Population, str] = {  # the same behind a share, where there is little room
    "pairs": "of realistic pairs",
    "table": "of the data set",
    "plausible": "of realistic synthetic records",
    "domain": "of the declared input space",
    "combinations": "of all combinations",
}


def percent(share: float | None) -> str:
    """Return a share as a percentage: one decimal from 1% on, two significant digits below; exact ones are shorter.

    Only 0 is shown as 0%, and only 1 as 100%.

    >>> [percent(x) for x in (0, 0.00563, 0.0103, 0.02, 0.99107, 0.99982, 1, 1e-9, 1 - 1e-9, -0.02, None)]
    ['0%', '0.56%', '1.0%', '2%', '99.1%', '99.98%', '100%', 'below 0.0001%', 'above 99.9999%', '−2%', 'not known']
    """
    if share is None or not math.isfinite(100 * share):
        return UNKNOWN
    if 0 < share < 0.5e-6:
        return "below 0.0001%"
    if 0 < 1 - share < 0.5e-6:
        return "above 99.9999%"
    value = 100 * share
    text = _decimal(value, _decimals(value))
    short_text = text.rstrip("0").rstrip(".") if "." in text else text
    is_exact = math.isclose(float(short_text.replace(",", "").replace(_MINUS, "-")), value, rel_tol=1e-9)
    return f"{short_text if is_exact else text}%"


def aligned_percents(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Return a share and the ends of its interval as percentages without the sign, all with the same decimals.

    The decimals are those of the largest; they are more where one would look like 0 or 100 without being it.

    >>> aligned_percents(0.0103, 0.0085, 0.0124), aligned_percents(0.0728, -0.00899, 0.13)
    (('1.0', '0.9', '1.2'), ('7.3', '−0.9', '13.0'))
    >>> aligned_percents(0.0, 0.0, 0.000369)
    ('0', '0', '0.037')
    """
    shares = [100 * share for share in (value, low, high)]
    decimals = _decimals(max(shares, key=abs))
    while decimals < 4 and any(_looks_extreme(share, decimals) for share in shares):
        decimals += 1
    texts = ["0" if share == 0 else _decimal(share, decimals) for share in shares]
    return texts[0], texts[1], texts[2]


def _decimals(value: float) -> int:
    """Return how many decimals a percentage has: one from 1% on, else enough for two significant digits, at most 4."""
    if value == 0 or abs(value) >= 0.995:
        return next(d for d in (1, 2, 3, 4) if d == 4 or not _looks_extreme(value, d))
    return min(4, 1 - math.floor(math.log10(abs(value))))


def _looks_extreme(value: float, decimals: int) -> bool:
    """Return whether a percentage would look like 0 or 100 without being it."""
    rounded_value = round(value, decimals)
    return rounded_value in (0, 100) and rounded_value != value


def _decimal(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}".replace("-", _MINUS)


def fraction_words(share: float) -> str:
    """Return a share of a whole in everyday words.

    >>> [fraction_words(share) for share in (1.02, 0.96, 0.68, 0.5, 0.58)]
    ['all', 'nearly all', 'two thirds', 'half', '58%']
    """
    if share >= 0.9:
        return "all" if share >= 0.995 else "nearly all"
    return next((text for fraction, text in _FRACTION_WORDS.items() if abs(share - fraction) < 0.03), percent(share))


def with_interval(share: float, low: float, high: float, unit: str = "%") -> str:
    """Return a share with the ends of its interval, with the same decimals; an exact share has no interval.

    >>> with_interval(0.0471, 0.0442, 0.0501), with_interval(0.002, -0.001, 0.005), with_interval(0.5, 0.5, 0.5)
    ('4.7% (4.4–5.0%)', '0.20% (−0.10 to 0.50%)', '50%')
    >>> with_interval(0.101, 0.0132, 0.14, " pp")
    '10.1 pp (1.3–14.0)'
    """
    if low == high:
        return percent(share) if unit == "%" else f"{percent(share).removesuffix('%')}{unit}"
    value = aligned_percents(share, low, high)[0]
    return f"{value}{unit} ({interval_ends(share, low, high, '%' if unit == '%' else '')})"


def interval_ends(share: float, low: float, high: float, unit: str = "%") -> str:
    """Return the ends of the interval of a share, with as many decimals as the share next to them.

    >>> interval_ends(0.0728, -0.00899, 0.13, " pp")
    '−0.9 to 13.0 pp'
    """
    _, low_text, high_text = aligned_percents(share, low, high)
    return f"{low_text}{' to ' if low < 0 else '–'}{high_text}{unit}"


def format_points(difference: float) -> str:
    """Return a difference of shares in percentage points.

    >>> format_points(0.188)
    '18.8 pp'
    """
    return f"{percent(difference).removesuffix('%')} pp"


def whole_number(value: float | None) -> str:
    """Return a whole number with commas."""
    return UNKNOWN if value is None else f"{round(value):,}"


def format_count(count: int) -> str:
    """Return a count that may be very large: from a billion on, two significant digits and a power of ten.

    >>> format_count(45_222), format_count(1_634_000_000_000_000)
    ('45,222', '1.6 × 10¹⁵')
    """
    if count < 10**9:
        return f"{count:,}"
    digits, power = f"{Decimal(count):.1e}".split("e+")
    return f"{digits} × 10{power.translate(_SUPERSCRIPTS)}"


def short_number(value: float | None) -> str:
    """Return a figure with three significant digits, two if it is small; tiny ones as powers of ten.

    >>> [short_number(x) for x in (0.123456, 5.0, 1234.5, -0.0000673, 1.2e-9, None)]
    ['0.123', '5', '1,234', '−0.000067', '1.2e−09', 'not known']
    """
    if value is None:
        return UNKNOWN
    magnitude = abs(value)
    if magnitude >= 1000:
        digits = f"{value:,.0f}"
    elif 1e-6 <= magnitude < 1e-3:
        digits = f"{value:.{1 - math.floor(math.log10(magnitude))}f}"
    else:
        digits = f"{value:.3g}" if magnitude >= 1e-3 else f"{value:.2g}"
    return digits.replace("-", "\N{MINUS SIGN}")


def exact_number(value: float) -> str:
    """Return a number as short as it can be written without becoming another: for names, keys and commands.

    >>> [exact_number(x) for x in (0.5, 20.0, 1000001.0, 0.1234567, 1e300)]
    ['0.5', '20', '1000001', '0.1234567', '1e+300']
    """
    return str(int(value)) if abs(value) < 1e16 and float(value).is_integer() else repr(float(value))


def distinct_numbers(value: float, reference: float, digits: int = 3) -> tuple[str, str]:
    """Return two numbers with enough decimals to show their difference with some significant digits.

    >>> distinct_numbers(0.0460000000000003, 0.147), distinct_numbers(251234.56, 250000.0)
    (('0.046', '0.147'), ('251,235', '250,000'))
    """
    gap = abs(value - reference)
    decimals = min(12, max(0, digits - 1 - math.floor(math.log10(gap)))) if 0 < gap < math.inf else digits
    texts = (f"{number:,.{decimals}f}" for number in (value, reference))
    value_text, reference_text = (text.rstrip("0").rstrip(".") if "." in text else text for text in texts)
    return value_text.replace("-", "\N{MINUS SIGN}"), reference_text.replace("-", "\N{MINUS SIGN}")


def distinct_percents(share: float, reference: float) -> tuple[str, str]:
    """Return two shares as percentages, rounded as far as they stay distinct; 0 and 100 only if they are exact.

    >>> [distinct_percents(*shares) for shares in ((0.5832, 0.3401), (0.50012, 0.49987), (0.0004, 0.93))]
    [('58%', '34%'), ('50.012%', '49.987%'), ('0.04%', '93%')]
    """
    texts = distinct_numbers(100 * share, 100 * reference, 2)
    first, second = (
        percent(percentage) if text in ("0", "100") and 0 < percentage < 1 else f"{text}%"
        for percentage, text in zip((share, reference), texts, strict=True)
    )
    return first, second


def ratio(value: float | None) -> str:
    """Return a ratio: two significant digits below 10, whole above.

    >>> ratio(5.234), ratio(61.7), ratio(0.4166)
    ('5.2×', '62×', '0.42×')
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}×" if abs(value) >= 10 else f"{value:.2g}×"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours.

    >>> [duration(x) for x in (0.0312, 8.04, 125.2, 7322)]
    ['0.031 s', '8 s', '2 min 5 s', '2 h 2 min']
    """
    rounded = round(seconds)
    if rounded >= 3600:
        return f"{rounded // 3600} h {rounded % 3600 // 60} min"
    return f"{rounded // 60} min {rounded % 60} s" if rounded >= 60 else f"{seconds:.2g} s"


def join_words(words: Sequence[str]) -> str:
    """Return words as a list in a sentence.

    >>> join_words(["sex", "race", "age"])
    'sex, race and age'
    """
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def first_few(words: Sequence[str], limit: int = 3) -> str:
    """Return the first words as a list in a sentence, and how many more there are.

    >>> first_few(["A", "B", "C", "D", "E"])
    'A, B, C and 2 more'
    """
    hidden_count = len(words) - limit
    return join_words([*words[:limit], f"{hidden_count:,} more"] if hidden_count > 0 else words)


def likelihood(plausibility: float | None) -> str:
    """Return the likelihood percentile of a record: the share of the data set that is less likely.

    >>> [likelihood(x) for x in (0.012, 0.273, 0.5, 1.0, 0.009, 0.0, None)]  # doctest: +NORMALIZE_WHITESPACE
    ['1st likelihood percentile', '27th likelihood percentile', '50th likelihood percentile',
     '99th likelihood percentile', 'below the 1st likelihood percentile', 'below the 1st likelihood percentile',
     'not known']
    """
    if plausibility is None or math.isnan(plausibility):
        return UNKNOWN
    percentile = min(99, math.floor(100 * plausibility + 1e-9))
    if percentile < 1:
        return "below the 1st likelihood percentile"
    ending = "th" if 10 < percentile < 20 else {1: "st", 2: "nd", 3: "rd"}.get(percentile % 10, "th")
    return f"{percentile}{ending} likelihood percentile"


def pluralise(value: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun.

    >>> pluralise(1, "finding"), pluralise(2000, "finding")
    ('1 finding', '2,000 findings')
    """
    return f"{value:,} {noun if value == 1 else nouns or noun + 's'}"


def spell(name: str) -> str:
    """Return the name of a column as words.

    >>> spell("marital_status")
    'marital status'
    """
    return name.replace("_", " ").strip() or name


# Control characters (C0, DEL, C1), overrides of text direction, line separators, surrogates, and invisible characters.
# Joiners and direction marks stay: names are written with them.
_HIDDEN_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str, *, keep: str = "") -> str:
    r"""Return a text in which control characters are written out, but for those to `keep`.

    The signs are those of JSON and TOML, so that a string of theirs keeps its meaning.

    >>> print(printable("sex\x1b[31m"))
    sex\u001b[31m
    """

    def escaped(match: re.Match[str]) -> str:
        character = match[0]
        if character in keep:
            return character
        return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"

    return _HIDDEN_CHARACTERS.sub(escaped, text)
