"""What an audit concludes: the level of each attribute and of the whole, computed here only, and its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuronfair.audits.report import Gate, GateCheck, Report, ThresholdState, Verdict, find_worst_attribute
from neuronfair.audits.report.attribute import SYNTHETIC, AttributeReport, Conclusion, RateOf, is_constant
from neuronfair.audits.report.counterfactual import UNTESTED
from neuronfair.audits.wording.summary import by
from neuronfair.formatting import ALSO_OF, POPULATIONS, listing, percent, plural, pp, spell, tally

PENDING = Verdict("not assessable", "")  # of a report whose facts are not complete
SET_ONE = "No threshold was set, so this report does not pass or fail the model."
# Of several attributes the first of these speaks for the model: a known dependence matters more than an unknown.
_ORDER: tuple[Conclusion, ...] = (
    "above the threshold", "dependence found", "proxy evidence", "not assessable", "no dependence found"
)  # fmt: skip


def conclude(report: Report, *, thresholds_set: bool = False) -> Report:
    """Return a report with the level and the headline of each attribute and with its verdict, all from its facts.

    `thresholds_set` says that there are thresholds, which may not have been evaluated.
    """
    entries = tuple(
        replace(one, level=_level(one, report), headline=_headline(one, report.data.rows)) for one in report.attributes
    )
    report = replace(report, attributes=entries)
    state, said = threshold_state(report.gate, thresholds_set)
    level: Conclusion = min((one.level for one in entries), key=_ORDER.index, default="not assessable")
    if state == "failed":
        level = "above the threshold"
    headline, details = _sentences(report, level)
    return replace(report, verdict=Verdict(level, headline, details, state, said))


def _level(one: AttributeReport, report: Report) -> Conclusion:
    """Return what is concluded about one choice of sensitive attributes. No level but the threshold's is an alarm."""
    if report.gate is not None and any(check.fired and check.attribute == one.name for check in report.gate.checks):
        return "above the threshold"
    if _unassessable(report) or not (one.rates.measured or one.searches):
        return "not assessable"
    if one.depends:
        return "dependence found"
    if one.lacks_twins and not one.has_proxy_evidence:
        return "not assessable"
    return "proxy evidence" if one.has_proxy_evidence else "no dependence found"


def _unassessable(report: Report) -> str:
    """Return why nothing can be concluded about any attribute; nothing where it can."""
    if report.encoding_check is not None and report.fails_encoding_check:
        return f"The input encoding check failed. {report.encoding_check.text}"
    if is_constant(report.attributes):
        return "The model gave the same decision to every record, so dependence cannot be assessed."
    if not any(one.rates.measured or one.searches for one in report.attributes):
        return "Nothing was measured."
    return ""


def threshold_state(gate: Gate | None, thresholds_set: bool) -> tuple[ThresholdState, str]:
    """Return whether the thresholds of an audit failed, and a sentence about it; without a gate none was evaluated."""
    if gate is None:
        return ("not evaluated", "The thresholds were not evaluated.") if thresholds_set else ("none set", SET_ONE)
    fired = [check for check in gate.checks if check.fired]
    failed = list(dict.fromkeys(check.expression for check in fired))
    expressions = list(dict.fromkeys(check.expression for check in gate.checks))
    if not failed:
        return "passed", f"No threshold breached ({', '.join(expressions)})."
    what = "breached" if any(check.exceeded for check in fired) else "not ruled out by so few records"
    count = "Threshold" if len(expressions) == 1 else f"{len(failed)} of {len(expressions)} thresholds"
    population = _population(fired[0]) if len({check.figure for check in fired}) == 1 else ""
    return "failed", f"{count} {what}: {', '.join(failed)}{population}."


def _population(check: GateCheck) -> str:
    """Return the population of a flip rate that failed a threshold, in brackets; empty for other metrics."""
    of = next((words for one, words in POPULATIONS.items() if check.figure == f"{one}.rate"), "")
    return f" ({of})" if of else ""


def _sentences(report: Report, level: Conclusion) -> tuple[str, tuple[str, ...]]:
    """Return the headline and the details of the verdict, a paragraph each."""
    attributes, interrupted = report.attributes, report.reproduction.interrupted
    last = "The audit was interrupted: this is what was measured until then." if interrupted else ""
    why = _unassessable(report)
    if why and not any(one.rates.measured or one.searches for one in attributes):
        return why, (last,) if last else ()
    worst = find_worst_attribute(attributes)
    details = [
        *([worst.headline] if why else []),
        *_raw(worst),
        *_synthetic(worst),
        _others(attributes, worst),
        _found(worst),
        *_untested(attributes, worst),
        *_counterfactuals(attributes, worst),
        _certified(attributes),
        _doubt(report, level),
        last,
    ]
    return why or worst.headline, tuple(filter(None, details))


def _headline(one: AttributeReport, rows: int) -> str:
    """Return what was found about one choice of attributes: first for the data set, then for synthetic records."""
    either, table, pairs = _either(one), one.rates.table, one.rates.pairs
    some_alone = pairs is not None and bool(pairs.omission)
    if some_alone and pairs is not None and pairs.discriminated:
        people = f"people with a plausible twin ({_count(pairs)})"
        return f"Decisions depend on {either} for {percent(pairs.rate)} of {people}{_against(one, pairs)}."
    if table is not None and table.discriminated:
        part = "" if table.of >= rows else f" records drawn from {rows:,}"
        but = ", but only against twins that are not plausible" if some_alone else ""
        people = f"{percent(table.rate)} of people ({_count(table)}{part})"
        return f"Decisions depend on {either} for {people}{but or _against(one, table)}."
    if one.depends:
        known = "" if table is None else f"No decision in the data set depends on {either}"
        if table is not None and table.of < rows:
            known = f"No decision for {table.of:,} of {rows:,} records in the data set depends on {either}"
        drawn = [rate for rate in one.rates.measured if rate.population in SYNTHETIC and rate.rate]
        if not drawn and not one.people_found and one.proved is not None:
            count, every = int(one.proved.proved_discriminatory.count), int(one.proved.people)
            records = f"{tally(count)} of all {tally(every)} records of the declared input space do"
            return f"{known}; {records}." if known else f"Decisions depend on {either}: for {records}."
        if not drawn:
            records = f"a search found {plural(one.people_found, 'synthetic record')} for which it does"
            return f"{known}; {records}." if known else f"Decisions may depend on {either}: {records}."
        flips, does = listing([f"{_count(rate)} {POPULATIONS[rate.population]}" for rate in drawn]), "do"
        if len(drawn) == drawn[0].discriminated == 1:
            does = "does"
        return f"{known}; {flips} {does}." if known else f"Decisions depend on {either} for {flips}."
    if one.is_unused and one.claimed_effect is not None:
        more = f"{pp(one.claimed_effect.rate).replace('pp', 'percentage points')} more often than by chance"
        proxies = f"there is proxy evidence: counterfactual twins get a different decision {more}"
        return f"The model does not use {either}, but {proxies}."
    if one.is_unused:
        return f"The model does not use {either}, so no decision depends on it directly."
    if one.lacks_twins:
        return f"The rules leave nobody in the data set a plausible twin, so nothing can be said about {either}."
    if one.is_cleared:
        return f"No decision depends on {either}: this is certified for the whole declared input space."
    return f"No decision was found that depends on {either}."


def _against(one: AttributeReport, rate: RateOf) -> str:
    """Return the group that these decisions mostly disadvantage, as the end of a sentence; empty without one."""
    found = next((entry for entry in one.direction if entry.population == rate.population), None)
    if found is None:
        return ""
    if len(found.sides) != 2:
        most = f"mostly to the disadvantage of {ALSO_OF.join(found.losers)}"
        return f", {most if found.losers else 'with no group clearly at a disadvantage'}"
    loser = max(found.sides, key=lambda side: side.loses)
    if 2 * loser.loses <= found.people:
        return ""
    part = "all" if loser.loses == found.people else f"{loser.loses:,}"
    these = "these" if found.people == rate.discriminated else f"{found.people:,} pairs"
    return f"; in {part} of {these} the decision is worse for {by(one)} {loser.values}"


def _hit(one: AttributeReport) -> RateOf | None:
    """Return the first rate of the data set that is not 0; None where no decision in it depends on the attribute."""
    return next((rate for rate in one.data_set_rates if rate.discriminated), None)


def _count(rate: RateOf) -> str:
    return f"{rate.discriminated:,} of {rate.of:,}"


def _raw(one: AttributeReport) -> list[str]:
    """Return the raw flip rate of the data set, impossible twins included, where plausible pairs leave people out."""
    pairs = one.rates.pairs
    if pairs is None or not pairs.omission:
        return []
    flips, of = pairs.discriminated + pairs.left_out, pairs.of + pairs.alone
    return [f"With implausible twins as well, the flip rate is {percent(flips / of)} of people ({flips:,} of {of:,})."]


def _synthetic(one: AttributeReport) -> list[str]:
    """Return the flip rates of synthetic records next to that of the data set; the upper bounds where none flips."""
    if one.is_unused:
        return []
    if _hit(one):
        rates = [f"{percent(rate.rate)} of {_who(rate)}" for rate in one.rates.measured if rate.population in SYNTHETIC]
        return [f"Decisions also depend on {by(one)} for {listing(rates)}."] if rates else []
    assessed = [rate for rate in one.rates.measured if rate.population != "pairs" or rate.omission]
    none = [rate for rate in assessed if not rate.rate and rate.high > 0]
    return [
        f"None of {rate.people}: the upper {percent(rate.confidence)} confidence bound is {percent(rate.high)}."
        for rate in none
    ]


def _who(rate: RateOf) -> str:
    return "people with a plausible twin" if rate.population == "pairs" else POPULATIONS[rate.population]


def _others(attributes: Sequence[AttributeReport], worst: AttributeReport) -> str:
    """Return the other attributes on which decisions in the data set depend, or else those of synthetic records."""
    rest = [one for one in attributes if one is not worst and one.depends]
    known = [f"{by(one)} ({percent(hit.rate)} of {_who(hit)})" for one in rest if (hit := _hit(one))]
    drawn = [by(one) for one in rest if not _hit(one)]
    real = [f"Decisions also depend on {listing(known)}."] if known else []
    return " ".join(
        [*real, f"For synthetic records only, decisions also depend on {listing(drawn)}."] if drawn else real
    )


def _found(one: AttributeReport) -> str:
    """Return what the searches of flips found, which are synthetic records."""
    if one.search_twins != "flip":
        return ""
    if not one.people_found:
        tried = sum(search.tried for search in one.searches)
        return f"The searches tried {tried:,} synthetic records and found none." if tried else ""
    every = ", which is realistic" if one.people_found == 1 else ", all of them realistic"
    usual = {None: "", 0: ", none of them realistic", one.people_found: every}
    realistic = usual.get(one.plausible_found, f", {one.plausible_found or 0:,} of them realistic")
    return f"The searches found {plural(one.people_found, 'discriminatory input')} (synthetic){realistic}."


def _untested(attributes: Sequence[AttributeReport], worst: AttributeReport) -> list[str]:
    """Return of which other attributes the flip test can say nothing."""
    unread = [one for one in attributes if len(one.sensitive) == 1 and not one.is_read]
    unused = [by(one) for one in unread if one.is_unused and one is not worst]
    unmoved = [by(one) for one in unread if not one.is_unused]
    untested = any(one.counterfactual is None for one in unread)
    return [
        *([f"The model does not use {listing(unused)}."] if unused else []),
        *([f"No score in the data set changes with {listing(unmoved)}."] if unmoved else []),
        *(["Without a counterfactual test nothing is known about proxies."] if untested else []),
    ]


def _counterfactuals(attributes: Sequence[AttributeReport], worst: AttributeReport) -> list[str]:
    """Return what the counterfactual test says: of unread attributes, and the claim of the headline or the largest."""
    empty = [one for one in attributes if one.leads_with_counterfactuals and len(one.sensitive) == 1]
    claimed = [
        (one is not worst, -excess.rate, one) for one in attributes if (excess := one.claimed_effect) is not None
    ]
    largest = [one for *_, one in sorted(claimed, key=lambda entry: entry[:2])][:1]
    parts = []
    for one in (*largest, *(one for one in empty if one not in largest)):
        if (report := one.counterfactual) is not None:
            more = () if one.is_read else (report.disadvantaged, report.mediators_text)  # else the flip test leads
            parts += [f"Counterfactual test ({by(one)}): {report.sentence}", report.excess, *more]
    return [*parts, f"{UNTESTED}."] if parts else []


def _certified(attributes: Sequence[AttributeReport]) -> str:
    """Return the smallest certified share of the attributes that the model reads; nothing where all is certified."""
    tested = [one for one in attributes if not one.leads_with_counterfactuals]
    proofs = [one.proved for one in tested if one.proved is not None and one.proved.method]
    if not proofs or all(one.is_cleared for one in tested):
        return ""
    return min(proofs, key=lambda one: one.certified_share).sentence


def _doubt(report: Report, level: Conclusion) -> str:
    """Return what the input encoding check says where it does not decide the level: a doubt, or one that is trusted."""
    check = report.encoding_check
    if check is None or check.level in ("ok", "not assessable") or level == "not assessable":
        return ""
    if check.accuracy is None and not check.refused:
        return ""
    return f"Caution: {check.text}"


def _either(attribute: AttributeReport) -> str:
    """Return the attributes as alternatives: twins of several differ in at least one of them."""
    names = [spell(name) for name in attribute.sensitive]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
