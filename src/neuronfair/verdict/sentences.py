"""The verdict of an audit: one word for the level, and a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from neuronfair.search.health import GUIDED
from neuronfair.verdict.entries import AttributeReport, measured_populations
from neuronfair.verdict.rates import RateOf
from neuronfair.verdict.report import Level, Verdict
from neuronfair.words import POPULATIONS, listed, percent, plain


def verdict(attributes: Sequence[AttributeReport], rows: int, *, interrupted: bool = False) -> Verdict:
    """Return the level and the text of a verdict about a table of so many rows.

    A model "discriminates" where decisions flip among the rows of the table, plausible people or people drawn from the
    domain, or where more counterparts are decided otherwise than with shuffled groups; is "suspicious" where only a
    search for flips found somebody, and otherwise "nothing found"; but "interrupted" where nothing was measured by
    then. Whom a search found by counterparts is no ground for suspicion: with shuffled groups it finds people, too.
    """
    hit = [one for one in attributes if one.rates.largest > 0]
    carried = [one for one in attributes if one.counterpart is not None and one.counterpart.claimed]
    found = [one for one in attributes if one.people_found > 0 and one.search_twins == "flip"]
    tested = [one for one in attributes if not one.leads_with_counterparts]  # by flips, and not in vain
    measured = any(one.rates.measured or one.searches for one in attributes)
    level: Level
    if hit:
        level, flips = "discriminates", _discriminates(max(hit, key=lambda one: one.rates.largest), hit, rows)
    elif found:
        level, flips = "suspicious", _suspicious(found)
    elif interrupted and not measured:
        level, flips = "interrupted", "Nothing was measured, so nothing can be said."
    else:
        level, flips = "nothing found", _nothing(tested) if tested or not attributes else ""
    told = _counterparts(attributes, carried)
    if carried and not hit:
        level, texts = "discriminates", [told, flips]
    else:
        texts = [flips, told]
    text = " ".join(filter(None, texts))
    if any(one.is_constant for one in attributes):
        text += " But it decided alike for everybody looked at: such a model cannot be judged."
    unread = [_by(one) for one in tested if len(one.sensitive) == 1 and not one.is_read]
    if unread:
        text += f" The model does not read {listed(unread)}, so its decision cannot flip with it: that says nothing."
    text += _unguided(attributes)
    proofs = [one.proved for one in tested if one.proved is not None and one.proved.method]
    if proofs and not all(one.is_cleared for one in tested):
        text += f" {min(proofs, key=lambda one: one.proved_fair.share).sentence}"
    if interrupted:
        text += " The audit was interrupted: this is what was seen until then."
    return Verdict(level, text)


def _counterparts(attributes: Sequence[AttributeReport], carried: Sequence[AttributeReport]) -> str:
    """Return what counterparts say: of each attribute that the model does not read, and of the largest effect."""
    empty = [one for one in attributes if one.leads_with_counterparts and len(one.sensitive) == 1]
    largest = sorted(carried, key=lambda one: -one.counterpart.effect.rate if one.counterpart else 0.0)[:1]
    parts = []
    for one in (*largest, *(one for one in empty if one not in largest)):
        lead = f"The model does not read {_by(one)}, so the flip test is empty."
        if one.is_read:
            lead = f"Counterparts ({_by(one)}):"
        if (report := one.counterpart) is not None:
            more = () if one.is_read else (report.hurt, report.carried)  # else the flip test leads
            parts += [lead, report.sentence, *more]
    return " ".join(filter(None, [*parts, "That is evidence, no proof." if parts else ""]))


def _discriminates(worst: AttributeReport, hit: Sequence[AttributeReport], rows: int) -> str:
    parts = [_share(rate, rows) for rate in worst.rates.measured]
    text = f"This model discriminates by {_by(worst)}: the decision flips for {listed(parts)} if only that changes."
    rest = [one for one in hit if one is not worst]
    for population in measured_populations(rest):
        rates = [(one, rate) for one in rest for rate in one.rates.measured if rate.population == population]
        others = [f"{_by(one)} ({percent(rate.rate)})" for one, rate in rates if rate.rate]
        if others:
            text += f" Among {POPULATIONS[population]} also by {listed(others)}."
    if not worst.people_found:
        return text
    usual = {None: "", 0: ", none of them plausible", worst.people_found: ", all of them plausible"}
    plausible = usual.get(worst.plausible_found, f", {worst.plausible_found or 0:,} of them plausible")
    return f"{text} The searches found {worst.people_found:,} such people{plausible}."


def _share(rate: RateOf, rows: int) -> str:
    if rate.population == "table":  # nobody was left out, or that is said
        return f"{percent(rate.rate)} of {'the people in' if rate.of >= rows else f'{rate.of:,} people of'} the table"
    return (
        f"{percent(rate.rate)} of {POPULATIONS[rate.population]} (between {percent(rate.low)} and {percent(rate.high)})"
    )


def _suspicious(found: Sequence[AttributeReport]) -> str:
    counts = listed([f"{one.people_found:,} by {_by(one)}" for one in found])
    return f"A search found people whose decision flips: {counts}. They are rare{_bound(found)}."


def _nothing(attributes: Sequence[AttributeReport]) -> str:
    if not attributes:
        return "Nothing was looked at."
    names = listed([_by(one) for one in attributes if len(one.sensitive) == 1] or [_by(attributes[0])])
    tried = sum(search.tried for one in attributes for search in one.searches)
    known = "That is no proof that there is nobody."
    if all(one.is_cleared for one in attributes):
        known = "It is proved that there is nobody in the domain."
    return (
        f"Nobody was found whose decision flips with {names}{_bound(attributes)}. {tried:,} people were tried by "
        f"search. {known}"
    )


def _bound(attributes: Sequence[AttributeReport]) -> str:
    """Return how many people were looked at in vain, and what share of such people is still possible."""
    rates = [rate for one in attributes for rate in one.rates.measured]
    widest = [
        max((rate for rate in rates if rate.population == population), key=lambda rate: rate.high)
        for population in measured_populations(attributes)
    ]
    if not widest:
        return ""
    none = [f"none of {r.people} (so at most {percent(r.high)})" if r.of else f"none of {r.people}" for r in widest]
    return f": {listed(none)}, with {percent(widest[0].confidence)} confidence"


def _unguided(attributes: Sequence[AttributeReport]) -> str:
    """Return which searches their gradients hardly helped."""
    weak = [
        f"{search.method} by {_by(one)} ({search.lift_over_random_direction:.2f} times)"
        for one in attributes
        for search in one.searches
        if search.lift_over_random_direction is not None and search.lift_over_random_direction < GUIDED
    ]
    return f" A search hardly more successful than in random directions: {listed(weak)}." if weak else ""


def _by(attribute: AttributeReport) -> str:
    return listed([plain(name) for name in attribute.sensitive])
