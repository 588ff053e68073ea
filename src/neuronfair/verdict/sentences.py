"""The verdict of an audit: one word for the level, and a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from neuronfair.verdict.entries import AttributeReport
from neuronfair.verdict.report import Level, Verdict
from neuronfair.words import listed, percent, plain


def verdict(attributes: Sequence[AttributeReport], rows: int, *, interrupted: bool = False) -> Verdict:
    """Return the level and the text of a verdict about a table of so many rows.

    A model "discriminates" where decisions flip among the rows of the table or people drawn from the domain, is
    "suspicious" where only a search found somebody, and otherwise "nothing found"; but "interrupted" where nothing was
    measured by then.
    """
    hit = [one for one in attributes if _rate(one) > 0]
    found = [one for one in attributes if one.people_found > 0]
    measured = any(one.rates.domain is not None or one.searches for one in attributes)
    level: Level
    if hit:
        level, text = "discriminates", _discriminates(max(hit, key=_rate), hit, rows)
    elif found:
        level, text = "suspicious", _suspicious(found)
    elif interrupted and not measured:
        level, text = "interrupted", "Nothing was measured, so nothing can be said."
    else:
        level, text = "nothing found", _nothing(attributes)
    if any(one.is_constant for one in attributes):
        text += " But it decided alike for everybody looked at: such a model cannot be judged."
    unread = [_by(one) for one in attributes if len(one.sensitive) == 1 and not one.is_read]
    if unread:
        text += f" The model does not read {listed(unread)}, so its decision cannot flip with it: that says nothing."
    if interrupted:
        text += " The audit was interrupted: this is what was seen until then."
    return Verdict(level, text)


def _discriminates(worst: AttributeReport, hit: Sequence[AttributeReport], rows: int) -> str:
    table, domain = worst.rates.table, worst.rates.domain
    parts = []
    if table is not None and table.discriminated:
        whom = "the people in the table" if table.of >= rows else f"{table.of:,} people of the table"
        parts.append(f"{percent(table.rate)} of {whom}")
    if domain is not None and domain.discriminated:
        ends = f"between {percent(domain.low)} and {percent(domain.high)}"
        parts.append(f"{percent(domain.rate)} of people drawn uniformly from the domain ({ends})")
    text = f"This model discriminates by {_by(worst)}: the decision flips for {listed(parts)} if only that changes."
    rest = [one for one in hit if one is not worst]
    for whom, rates in (
        ("people of the table", [(one, one.rates.table) for one in rest]),
        ("people drawn uniformly from the domain", [(one, one.rates.domain) for one in rest]),
    ):
        others = [f"{_by(one)} ({percent(rate.rate)})" for one, rate in rates if rate and rate.discriminated]
        if others:
            text += f" Among {whom} also by {listed(others)}."
    return text + (f" The searches found {worst.people_found:,} such people." if worst.people_found else "")


def _suspicious(found: Sequence[AttributeReport]) -> str:
    counts = listed([f"{one.people_found:,} by {_by(one)}" for one in found])
    return f"A search found people whose decision flips: {counts}. They are rare{_bound(found)}."


def _nothing(attributes: Sequence[AttributeReport]) -> str:
    if not attributes:
        return "Nothing was looked at."
    names = listed([_by(one) for one in attributes if len(one.sensitive) == 1] or [_by(attributes[0])])
    tried = sum(search.tried for one in attributes for search in one.searches)
    return (
        f"Nobody was found whose decision flips with {names}{_bound(attributes)}. {tried:,} people were tried by "
        "search. That is no proof that there is nobody."
    )


def _bound(attributes: Sequence[AttributeReport]) -> str:
    rates = [one.rates.domain for one in attributes if one.rates.domain is not None]
    if not rates:
        return ""
    widest = max(rates, key=lambda rate: rate.high)
    return (
        f": none of {widest.of:,} people drawn uniformly from the domain, so at most {percent(widest.high)} of all "
        f"({percent(widest.confidence)} confidence)"
    )


def _by(attribute: AttributeReport) -> str:
    return listed([plain(name) for name in attribute.sensitive])


def _rate(attribute: AttributeReport) -> float:
    """Return the larger of the two rates that were measured."""
    return max((rate.rate for rate in attribute.rates.measured), default=0.0)
