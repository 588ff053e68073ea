"""What an audit concludes: the level of each attribute and of the whole, computed here only, and its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from neuronfair.audits.report import Gate, GateCheck, Report, ThresholdState, Verdict, find_worst_attribute
from neuronfair.audits.report.attribute import SYNTHETIC, AttributeReport, Conclusion, FlipRateReport, is_constant
from neuronfair.audits.report.counterfactual import UNTESTED
from neuronfair.audits.wording.summary import list_sensitive
from neuronfair.formatting import (
    ALSO_OF,
    POPULATIONS,
    format_count,
    format_points,
    join_words,
    percent,
    pluralise,
    spell,
)

PENDING = Verdict("not assessable", "")  # of a report whose facts are not complete
NO_THRESHOLD = "No threshold was set, so this report does not pass or fail the model."
# Of several attributes the first of these speaks for the model: a known dependence matters more than an unknown.
_ORDER: tuple[Conclusion, ...] = (
    "above the threshold", "dependence found", "proxy evidence", "not assessable", "no dependence found"
)  # fmt: skip


def conclude(report: Report, *, thresholds_set: bool = False) -> Report:
    """Return a report with the level and the headline of each attribute and with its verdict, all from its facts.

    `thresholds_set` says that there are thresholds, which may not have been evaluated.
    """
    entries = tuple(
        replace(attribute, level=_find_level(attribute, report), headline=_write_headline(attribute, report.data.rows))
        for attribute in report.attributes
    )
    report = replace(report, attributes=entries)
    state, state_text = find_threshold_state(report.gate, thresholds_set)
    level: Conclusion = min((attribute.level for attribute in entries), key=_ORDER.index, default="not assessable")
    if state == "failed":
        level = "above the threshold"
    headline, details = _write_verdict(report, level)
    return replace(report, verdict=Verdict(level, headline, details, state, state_text))


def _find_level(attribute: AttributeReport, report: Report) -> Conclusion:
    """Return what is concluded about one choice of sensitive attributes. No level but the threshold's is an alarm."""
    checks = () if report.gate is None else report.gate.checks
    if any(check.fired and check.attribute == attribute.name for check in checks):
        return "above the threshold"
    if _explain_unassessable(report) or not (attribute.rates.available or attribute.searches):
        return "not assessable"
    if attribute.depends:
        return "dependence found"
    if attribute.lacks_twins and not attribute.has_proxy_evidence:
        return "not assessable"
    return "proxy evidence" if attribute.has_proxy_evidence else "no dependence found"


def _explain_unassessable(report: Report) -> str:
    """Return why nothing can be concluded about any attribute; nothing where it can."""
    if report.encoding_check is not None and report.fails_encoding_check:
        return f"The input encoding check failed. {report.encoding_check.text}"
    if is_constant(report.attributes):
        return "The model gave the same decision to every record, so dependence cannot be assessed."
    if not any(attribute.rates.available or attribute.searches for attribute in report.attributes):
        return "Nothing was measured."
    return ""


def find_threshold_state(gate: Gate | None, thresholds_set: bool) -> tuple[ThresholdState, str]:
    """Return whether the thresholds of an audit failed, and a sentence about it; without a gate none was evaluated."""
    if gate is None:
        return ("not evaluated", "The thresholds were not evaluated.") if thresholds_set else ("none set", NO_THRESHOLD)
    fired = [check for check in gate.checks if check.fired]
    failed = list(dict.fromkeys(check.expression for check in fired))
    expressions = list(dict.fromkeys(check.expression for check in gate.checks))
    if not failed:
        return "passed", f"No threshold breached ({', '.join(expressions)})."
    failure = "breached" if any(check.exceeded for check in fired) else "not ruled out by so few records"
    count = "Threshold" if len(expressions) == 1 else f"{len(failed)} of {len(expressions)} thresholds"
    population = _format_population(fired[0]) if len({check.figure for check in fired}) == 1 else ""
    return "failed", f"{count} {failure}: {', '.join(failed)}{population}."


def _format_population(check: GateCheck) -> str:
    """Return the population of a flip rate that failed a threshold, in brackets; empty for other metrics."""
    of = next((text for population, text in POPULATIONS.items() if check.figure == f"{population}.rate"), "")
    return f" ({of})" if of else ""


def _write_verdict(report: Report, level: Conclusion) -> tuple[str, tuple[str, ...]]:
    """Return the headline and the details of the verdict, a paragraph each."""
    attributes, interrupted = report.attributes, report.reproduction.interrupted
    last = "The audit was interrupted: this is what was measured until then." if interrupted else ""
    reason = _explain_unassessable(report)
    if reason and not any(attribute.rates.available or attribute.searches for attribute in attributes):
        return reason, (last,) if last else ()
    worst = find_worst_attribute(attributes)
    details = [
        *([worst.headline] if reason else []),
        *_describe_raw_rate(worst),
        *_describe_synthetic_rates(worst),
        _describe_other_attributes(attributes, worst),
        _describe_searches(worst),
        *_describe_untested(attributes, worst),
        *_describe_counterfactuals(attributes, worst),
        _describe_certificates(attributes),
        _describe_doubt(report, level),
        last,
    ]
    return reason or worst.headline, tuple(filter(None, details))


def _write_headline(attribute: AttributeReport, rows: int) -> str:
    """Return what was found about one choice of attributes: first for the data set, then for synthetic records."""
    either, table, pairs = _list_alternatives(attribute), attribute.rates.table, attribute.rates.pairs
    has_omission = pairs is not None and bool(pairs.omission)
    if has_omission and pairs is not None and pairs.discriminated:
        people = f"people with a plausible twin ({_format_count(pairs)}){_describe_disadvantage(attribute, pairs)}"
        return f"Decisions depend on {either} for {percent(pairs.rate)} of {people}."
    if table is not None and table.discriminated:
        part = "" if table.of >= rows else f" records drawn from {rows:,}"
        restriction = ", but only against twins that are not plausible" if has_omission else ""
        people = f"{percent(table.rate)} of people ({_format_count(table)}{part})"
        return f"Decisions depend on {either} for {people}{restriction or _describe_disadvantage(attribute, table)}."
    if attribute.depends:
        data_set_text = "" if table is None else f"No decision in the data set depends on {either}"
        if table is not None and table.of < rows:
            data_set_text = f"No decision for {table.of:,} of {rows:,} records in the data set depends on {either}"
        synthetic = [rate for rate in attribute.rates.available if rate.population in SYNTHETIC and rate.rate]
        if not synthetic and not attribute.people_found and attribute.proved is not None:
            count, total = int(attribute.proved.proved_discriminatory.count), int(attribute.proved.people)
            records = f"{format_count(count)} of all {format_count(total)} records of the declared input space do"
            return f"{data_set_text}; {records}." if data_set_text else f"Decisions depend on {either}: for {records}."
        if not synthetic:
            records = f"a search found {pluralise(attribute.people_found, 'synthetic record')} for which it does"
            return f"{data_set_text}; {records}." if data_set_text else f"Decisions may depend on {either}: {records}."
        flips, verb = join_words([f"{_format_count(rate)} {POPULATIONS[rate.population]}" for rate in synthetic]), "do"
        if len(synthetic) == synthetic[0].discriminated == 1:
            verb = "does"
        return f"{data_set_text}; {flips} {verb}." if data_set_text else f"Decisions depend on {either} for {flips}."
    if attribute.is_unused and attribute.claimed_effect is not None:
        excess = format_points(attribute.claimed_effect.rate).replace("pp", "percentage points more often")
        proxies = f"there is proxy evidence: counterfactual twins get a different decision {excess} than by chance"
        return f"The model does not use {either}, but {proxies}."
    if attribute.is_unused:
        return f"The model does not use {either}, so no decision depends on it directly."
    if attribute.lacks_twins:
        return f"The rules leave nobody in the data set a plausible twin, so nothing can be said about {either}."
    if attribute.is_cleared:
        return f"No decision depends on {either}: this is certified for the whole declared input space."
    return f"No decision was found that depends on {either}."


def _describe_disadvantage(attribute: AttributeReport, rate: FlipRateReport) -> str:
    """Return the group that these decisions mostly disadvantage, as the end of a sentence; empty without one."""
    direction = next((entry for entry in attribute.direction if entry.population == rate.population), None)
    if direction is None:
        return ""
    if len(direction.sides) != 2:
        tendency = f"mostly to the disadvantage of {ALSO_OF.join(direction.losers)}"
        return f", {tendency if direction.losers else 'with no group clearly at a disadvantage'}"
    loser = max(direction.sides, key=lambda side: side.loses)
    if 2 * loser.loses <= direction.people:
        return ""
    part = "all" if loser.loses == direction.people else f"{loser.loses:,}"
    cases = "these" if direction.people == rate.discriminated else f"{direction.people:,} pairs"
    return f"; in {part} of {cases} the decision is worse for {list_sensitive(attribute)} {loser.values}"


def _find_real_rate(attribute: AttributeReport) -> FlipRateReport | None:
    """Return the first rate of the data set that is not 0; None where no decision in it depends on the attribute."""
    return next((rate for rate in attribute.data_set_rates if rate.discriminated), None)


def _format_count(rate: FlipRateReport) -> str:
    return f"{rate.discriminated:,} of {rate.of:,}"


def _describe_raw_rate(attribute: AttributeReport) -> list[str]:
    """Return the raw flip rate of the data set, impossible twins included, where plausible pairs leave people out."""
    pairs = attribute.rates.pairs
    if pairs is None or not pairs.omission:
        return []
    flips, of = pairs.discriminated + pairs.left_out, pairs.of + pairs.alone
    return [f"With implausible twins as well, the flip rate is {percent(flips / of)} of people ({flips:,} of {of:,})."]


def _describe_synthetic_rates(attribute: AttributeReport) -> list[str]:
    """Return the flip rates of synthetic records next to that of the data set; the upper bounds where none flips."""
    if attribute.is_unused:
        return []
    if _find_real_rate(attribute):
        synthetic = [rate for rate in attribute.rates.available if rate.population in SYNTHETIC]
        rates = [f"{percent(rate.rate)} of {_format_records(rate)}" for rate in synthetic]
        return [f"Decisions also depend on {list_sensitive(attribute)} for {join_words(rates)}."] if rates else []
    assessed = [rate for rate in attribute.rates.available if rate.population != "pairs" or rate.omission]
    zero_rates = [rate for rate in assessed if not rate.rate and rate.high > 0]
    return [
        f"None of {rate.people}: the upper {percent(rate.confidence)} confidence bound is {percent(rate.high)}."
        for rate in zero_rates
    ]


def _format_records(rate: FlipRateReport) -> str:
    return "people with a plausible twin" if rate.population == "pairs" else POPULATIONS[rate.population]


def _describe_other_attributes(attributes: Sequence[AttributeReport], worst: AttributeReport) -> str:
    """Return the other attributes on which decisions in the data set depend, or else those of synthetic records."""
    dependent = [attribute for attribute in attributes if attribute is not worst and attribute.depends]
    real_names = [
        f"{list_sensitive(attribute)} ({percent(hit.rate)} of {_format_records(hit)})"
        for attribute in dependent
        if (hit := _find_real_rate(attribute))
    ]
    synthetic_names = [list_sensitive(attribute) for attribute in dependent if not _find_real_rate(attribute)]
    sentences = [f"Decisions also depend on {join_words(real_names)}."] if real_names else []
    if synthetic_names:
        sentences.append(f"For synthetic records only, decisions also depend on {join_words(synthetic_names)}.")
    return " ".join(sentences)


def _describe_searches(attribute: AttributeReport) -> str:
    """Return what the searches of flips found, which are synthetic records."""
    if attribute.search_twins != "flip":
        return ""
    if not attribute.people_found:
        count = sum(search.tried for search in attribute.searches)
        return f"The searches tried {count:,} synthetic records and found none." if count else ""
    all_realistic = ", which is realistic" if attribute.people_found == 1 else ", all of them realistic"
    texts = {None: "", 0: ", none of them realistic", attribute.people_found: all_realistic}
    realistic = texts.get(attribute.plausible_found, f", {attribute.plausible_found or 0:,} of them realistic")
    return f"The searches found {pluralise(attribute.people_found, 'discriminatory input')} (synthetic){realistic}."


def _describe_untested(attributes: Sequence[AttributeReport], worst: AttributeReport) -> list[str]:
    """Return of which other attributes the flip test can say nothing."""
    unread = [attribute for attribute in attributes if len(attribute.sensitive) == 1 and not attribute.is_read]
    unused = [list_sensitive(attribute) for attribute in unread if attribute.is_unused and attribute is not worst]
    unmoved = [list_sensitive(attribute) for attribute in unread if not attribute.is_unused]
    untested = any(attribute.counterfactual is None for attribute in unread)
    return [
        *([f"The model does not use {join_words(unused)}."] if unused else []),
        *([f"No score in the data set changes with {join_words(unmoved)}."] if unmoved else []),
        *(["Without a counterfactual test nothing is known about proxies."] if untested else []),
    ]


def _describe_counterfactuals(attributes: Sequence[AttributeReport], worst: AttributeReport) -> list[str]:
    """Return what the counterfactual test says: of unread attributes, and the claim of the headline or the largest."""
    unread = [entry for entry in attributes if entry.leads_with_counterfactuals and len(entry.sensitive) == 1]
    claimed = [
        (attribute is not worst, -excess.rate, attribute)
        for attribute in attributes
        if (excess := attribute.claimed_effect) is not None
    ]
    largest = [attribute for *_, attribute in sorted(claimed, key=lambda entry: entry[:2])][:1]
    parts = []
    for attribute in (*largest, *(attribute for attribute in unread if attribute not in largest)):
        if (report := attribute.counterfactual) is not None:
            parts += [f"Counterfactual test ({list_sensitive(attribute)}): {report.sentence}", report.excess]
            parts += [] if attribute.is_read else [report.disadvantaged, report.mediators_text]  # this test leads
    return [*parts, f"{UNTESTED}."] if parts else []


def _describe_certificates(attributes: Sequence[AttributeReport]) -> str:
    """Return the smallest certified share of the attributes that the model reads; nothing where all is certified."""
    tested = [attribute for attribute in attributes if not attribute.leads_with_counterfactuals]
    proofs = [attribute.proved for attribute in tested if attribute.proved is not None and attribute.proved.method]
    if not proofs or all(attribute.is_cleared for attribute in tested):
        return ""
    return min(proofs, key=lambda attribute: attribute.certified_share).sentence


def _describe_doubt(report: Report, level: Conclusion) -> str:
    """Return what the input encoding check says where it does not decide the level: a doubt, or one that is trusted."""
    check = report.encoding_check
    if check is None or check.level in ("ok", "not assessable") or level == "not assessable":
        return ""
    if check.accuracy is None and not check.refused:
        return ""
    return f"Caution: {check.text}"


def _list_alternatives(attribute: AttributeReport) -> str:
    """Return the attributes as alternatives: twins of several differ in at least one of them."""
    names = [spell(name) for name in attribute.sensitive]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
