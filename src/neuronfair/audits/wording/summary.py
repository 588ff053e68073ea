"""The first screen of an audit, which every renderer shows: four metrics, what limits them, and what to do next.

Also what a proof certifies, in the words of reports and of `neuronfair certify`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from neuronfair.audits.report import Report, Tone, find_worst_attribute
from neuronfair.audits.report.attribute import AttributeReport, Finding, list_notes, list_worst_findings
from neuronfair.formatting import (
    aligned_percents,
    duration,
    format_count,
    interval_ends,
    join_words,
    percent,
    pluralise,
    spell,
)
from neuronfair.proof.certificate import DataSetClaims, FreshClaims, ProofReport

NOT_MEASURED = "–"
MAX_STEPS = 3  # next steps that are proposed
CAUSAL_REMARK = "rests on untested causal assumptions"
SIGNS: dict[Tone, str] = {"alarm": "▲", "caution": "◆", "calm": "●", "neutral": "○"}  # so that nothing needs a colour


@dataclass(frozen=True)
class Metric:
    """One metric of the model: its value, its confidence interval, and its population."""

    name: str
    value: str
    of: str
    range: str = ""  # the ends of its confidence interval; empty where there is none
    confidence: float | None = None
    note: str = ""  # what it rests on

    @property
    def interval(self) -> str:
        """Its confidence interval; empty where there is none."""
        return f"{percent(self.confidence)} CI {self.range}" if self.range else ""

    @property
    def with_range(self) -> str:
        """The value and the ends of its interval."""
        return f"{self.value} ({self.range})" if self.range else self.value

    @property
    def text(self) -> str:
        """All of it in one paragraph but the name."""
        sure = f"{self.value} ({self.interval})" if self.range else self.value
        colon = "" if self.of.startswith(("of ", "more ")) else ":"
        value = "" if self.value == NOT_MEASURED else f"{sure}{colon} "
        return f"{value}{self.of}{'; ' if self.note and self.of[-1] != '.' else ' '}{self.note}".rstrip()


@dataclass(frozen=True)
class Step:
    """Something to do next, and the command that does it."""

    text: str
    command: str | None = None


def metrics(attribute: AttributeReport) -> tuple[Metric, Metric, Metric, Metric]:
    """Return the four metrics of one choice of sensitive attributes: what every renderer shows first."""
    return (
        _flip_rate_metric(attribute),
        _disparate_impact_metric(attribute),
        _proxy_excess_metric(attribute),
        _certified_metric(attribute),
    )


def list_sensitive(attribute: AttributeReport) -> str:
    """Return the sensitive attributes in words."""
    return join_words([spell(name) for name in attribute.sensitive])


def explain_twin(attributes: Sequence[AttributeReport]) -> str:
    """Return what a plausible twin is; empty where there are none, or where the model does not use the attribute."""
    if not attributes or (worst := find_worst_attribute(attributes)).rates.pairs is None or worst.is_unused:
        return ""
    count_text = f"; of up to {worst.twins:,} such twins, one different decision is enough"
    remark = count_text if worst.twins > 1 else " (no female husband)"
    return f"Plausible twin: the same record with another {_list_alternatives(worst)} that fits the rest{remark}."


def status(report: Report) -> str:
    """Return what the thresholds say, with the sign of its tone."""
    verdict = report.verdict
    unknown = "Not assessable. " if verdict.level == "not assessable" else ""
    return f"{SIGNS[verdict.tone]} {unknown}{verdict.threshold_text}".rstrip()


def list_limits(report: Report) -> list[str]:
    """Return what a reader must know before believing the metrics."""
    limits = []
    if report.reproduction.interrupted:
        limits.append("The audit was interrupted: this is what was measured until then.")
    if (check := report.encoding_check) is not None and not report.fails_encoding_check:
        if check.level not in ("ok", "not assessable"):
            limits.append(f"Input encoding check: {check.text}")
        elif check.accuracy is None:
            limits.append(check.text)
    if report.data.domain_inferred:
        limits.append("The input schema was inferred from the data set. Correct domain.toml and audit again.")
    if report.reproduction.reduced:
        limits.append(f"A quick look (budget used/default): {', '.join(report.reproduction.reduced)}.")
    return [*limits, *list_notes(report.attributes)]


def propose_steps(report: Report) -> tuple[Step, ...]:
    """Return up to three things to do next, the most useful first."""
    return tuple(islice(_list_steps(report), MAX_STEPS))


def select_realistic_pairs(attributes: Sequence[AttributeReport], limit: int) -> list[Finding]:
    """Return the worst pairs in which both people are plausible; the worst of all where none is."""
    worst = list_worst_findings(attributes, limit)
    return [finding for finding in worst if finding.is_plausible] or worst


def describe_pair(finding: Finding) -> str:
    """Return a pair in words: both decisions, whether the record is real, and how realistic it is."""
    kind = "real" if finding.is_real else "synthetic"
    return f"{kind} record: {finding.sentence} {finding.plausibility_text}".rstrip()


def _list_steps(report: Report) -> list[Step]:
    verdict, reproduction = report.verdict, report.reproduction
    steps = []
    if (
        replay := next(
            (attribute.replay for attribute in list_worst_findings(report.attributes) if attribute.replay), None
        )
    ) is not None:
        steps.append(Step("Look at the worst synthetic pair: is the difference justified?", replay))
    if reproduction.alternatives and any(
        attribute.depends or attribute.has_proxy_evidence for attribute in report.attributes
    ):
        steps.append(Step("Search for a model that is as good and less discriminatory.", reproduction.alternatives))
    if verdict.thresholds == "none set" and reproduction.command:
        proxies = all(attribute.leads_with_counterfactuals for attribute in report.attributes)  # a flip rate would be 0
        threshold = "counterfactual.excess > 5%" if proxies else "flip_rate > 1%"
        steps.append(Step("Set a threshold for your build.", f"{reproduction.command} --fail-if '{threshold}'"))
    if reproduction.export and any(attribute.people_found for attribute in report.attributes):
        steps.append(Step("Export all findings as a table.", reproduction.export))
    if reproduction.command and verdict.thresholds != "none set":
        steps.append(Step("Audit the model again after a change.", reproduction.command))
    return steps


def _flip_rate_metric(attribute: AttributeReport) -> Metric:
    rate = next(iter((*attribute.data_set_rates, *attribute.rates.available)), None)
    if rate is None:
        return Metric("Flip rate", NOT_MEASURED, "Not measured.")
    lone_text = f"{rate.alone:,} more have none" if rate.alone else ""
    note = f"the model does not use {list_sensitive(attribute)}" if attribute.is_unused else lone_text
    range_ = "" if rate.low == rate.high else interval_ends(rate.rate, rate.low, rate.high)
    value = f"{aligned_percents(rate.rate, rate.low, rate.high)[0]}%" if range_ else percent(rate.rate)
    return Metric("Flip rate", value, f"of {rate.people}", range_, rate.confidence, note)


def _disparate_impact_metric(attribute: AttributeReport) -> Metric:
    name, disparity = "Disparate-impact ratio", attribute.disparity
    if disparity is None:
        return Metric(name, NOT_MEASURED, "The model decides between no classes.")
    gap = disparity.disparate_impact
    if gap is None:
        remedy = "Set `favourable`, the outcome that people want, to compute it."
        reason = f"Not known: {disparity.unknown.get('disparate_impact', 'too few records')}."
        return Metric(name, NOT_MEASURED, reason if disparity.favourable else remedy)
    shares = {group.values: group.selection_rate for group in attribute.groups}
    group = "({})" if len(attribute.sensitive) > 1 else "{}"  # the values of several attributes
    rates = " versus ".join(f"{percent(shares.get(name))} of {group.format(name)}" for name in (gap.least, gap.most))
    records = pluralise(sum(group.rows for group in attribute.groups), "record")
    of = f"the model decides '{disparity.selected}' for {rates}, of {records}"
    return Metric(name, f"{gap.value:.2f}", of, f"{gap.low:.2f}–{gap.high:.2f}", disparity.confidence)


def _proxy_excess_metric(attribute: AttributeReport) -> Metric:
    name, report = "Proxy excess", attribute.counterfactual
    if report is None:
        return Metric(name, NOT_MEASURED, "No counterfactual test.")
    effect = (report.effect.rate, report.effect.low, report.effect.high)
    range_ = interval_ends(*effect, " pp")
    changed = f"more decisions than by chance change if values that go with {_list_alternatives(attribute)} change too"
    people = f"{changed}, of {report.of:,} people"
    chance = "" if report.claimed else "this may be chance; "
    return Metric(
        name, f"{aligned_percents(*effect)[0]} pp", people, range_, report.confidence, f"{chance}{CAUSAL_REMARK}"
    )


def _certified_metric(attribute: AttributeReport) -> Metric:
    proof = attribute.proved
    name = "Certified share"
    if proof is None:
        return Metric(name, NOT_MEASURED, "Certification was not tried.")
    if not proof.method:
        return Metric(name, NOT_MEASURED, proof.sentence)
    claim = f"proved not to depend on {_list_alternatives(attribute)}"
    if proof.data_set is None:
        space = f"of the declared input space ({format_count(int(proof.people))} records) {claim}"
        undecided = percent(proof.undecided.share)
        return Metric(name, percent(proof.proved_fair.share), space, note=f"{undecided} undecided")
    rows = proof.data_set
    of = rows.of - rows.without_twin
    if not of:
        return Metric(
            name, NOT_MEASURED, f"None of {pluralise(rows.of, 'record')} in the data set has an allowed twin."
        )
    records = f"{pluralise(of, 'record')} in the data set"
    without_twin = f"the rules allow no twin of {rows.without_twin:,} more" if rows.without_twin else ""
    undecided, flips = percent(rows.undecided.count / of), percent(rows.certified_discriminatory.count / of)
    depends = f"{flips} proved to depend" if rows.certified_discriminatory.count else ""
    if not rows.with_twin.count and rows.undecided.count:  # 0% would read as a verdict
        note = "; ".join(filter(None, (depends, without_twin)))
        return Metric(name, "Undecided", f"{undecided if depends else 'all'} of {records}", note=note)
    note = "; ".join(filter(None, (f"{undecided} undecided", depends, without_twin)))
    return Metric(name, percent(rows.with_twin.share), f"of {records} {claim}", note=note)


def _list_alternatives(attribute: AttributeReport) -> str:
    return list_sensitive(attribute).replace(" and ", " or ")


def describe_certificate(report: ProofReport) -> list[str]:
    """Return what a proof certifies, for the data set, the input space and synthetic records.

    The first sentence says most: what holds for the whole input space, or else what holds for the data set.
    """
    by_name = join_words([spell(name) for name in report.sensitive])
    space = f"the records where {report.where}" if report.where else "the declared input space"
    fair, flips, undecided = report.proved_fair, report.proved_discriminatory, report.undecided
    rows = [] if report.data_set is None else [_describe_certified_rows(report.data_set, by_name, report.seconds)]
    fresh = [] if report.fresh is None else [_describe_certified_fresh(report.fresh, by_name)]
    for part, depend in ((fair, "do not depend"), (flips, "depend")):
        if part.count == report.people.count != "0":
            return [f"Certified for all of {space}: decisions {depend} on {by_name}.", *rows, *fresh]
    if fair.count == flips.count == "0":
        return [*rows, f"No decision was certified in {duration(report.seconds)}, for any part of {space}.", *fresh]
    shares = ("" if part.count == "0" else percent(part.share) for part in (fair, flips))
    remaining = "" if undecided.count == "0" else f"; {percent(undecided.share)} is undecided"
    return [*rows, f"{_format_claim(by_name, space, *shares)}{remaining}.", *fresh]


def _describe_certified_rows(rows: DataSetClaims, by_name: str, seconds: float) -> str:
    """Return what is certified for the records of a data set that have an allowed twin."""
    count = rows.of - rows.without_twin
    records, remark = f"{pluralise(count, 'record')} in the data set", ""
    if rows.without_twin:
        records, remark = f"{records} with an allowed twin", f" {rows.without_twin:,} more have none."
    if not rows.with_twin.count and not rows.certified_discriminatory.count:
        return f"No decision was certified in {duration(seconds)}, for any of {records}.{remark}"
    parts = (rows.with_twin, rows.certified_discriminatory, rows.undecided)
    fair, flips, undecided = (percent(part.count / count) if part.count else "" for part in parts)
    return (
        f"{_format_claim(by_name, records, fair, flips)}{f'; {undecided} are undecided' if undecided else ''}.{remark}"
    )


def _describe_certified_fresh(fresh: FreshClaims, by_name: str) -> str:
    """Return what is certified for synthetic records, with confidence intervals."""
    fair, flips = (
        f"{percent(claim.share)} (95% CI {interval_ends(claim.share, claim.low, claim.high)})"
        for claim in (fresh.certified_fair, fresh.certified_discriminatory)
    )
    return f"{_format_claim(by_name, f'{fresh.of:,} realistic synthetic records, drawn after the proof', fair, flips)}."


def _format_claim(by_name: str, population: str, fair: str, flips: str) -> str:
    """Return the shares of a population that are certified, and certified to depend; an empty one is left out."""
    if not fair:
        return f"Decisions are certified to depend on {by_name} for {flips} of {population}"
    depends = f", and to depend on it for {flips}" if flips else ""
    return f"Decisions are certified not to depend on {by_name} for {fair} of {population}{depends}"
