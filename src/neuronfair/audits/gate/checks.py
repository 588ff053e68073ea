"""What an audit is compared with: an earlier audit, thresholds, and a regression set of past counterexamples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neuronfair.audits.folder import read_report
from neuronfair.audits.gate.regression_set import RegressionSet, extend, read_regression_set, replay_regression_set
from neuronfair.audits.gate.thresholds import (
    CHANGE_METRICS,
    ERROR_RATE_GAP,
    GROUP_METRICS,
    METRIC_TITLES,
    METRICS,
    REGRESSION_METRICS,
    check_thresholds,
    read_expressions,
)
from neuronfair.audits.report import BaselineReport, FigureChange, RegressionSetReport, Report
from neuronfair.audits.report.attribute import AUDITED, AttributeReport, FlipRateReport
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval
from neuronfair.audits.stages.rates import explain_missing_favourable
from neuronfair.domain.table import TableDomain
from neuronfair.errors import EncodingError, NeuronFairError
from neuronfair.formatting import POPULATIONS, TwinKind, exact_number, join_words, percent, with_interval
from neuronfair.model.open import OpenedModel
from neuronfair.parameters import accept_old_names

RateWithInterval = FlipRateReport | CounterfactualReport | Interval


def compare_with(report: Report, earlier: Report, file: str | Path = "") -> BaselineReport:
    """Return what changed since an earlier audit: the metrics that both have, with a sentence each.

    A rate is said to have changed only if the two intervals do not overlap; `low` and `high` are the smallest and the
    largest change that they allow. Other metrics have no interval. Audits of another domain, or by another decision
    rule, mean something else: then nothing is compared and `text` says why.
    """
    if reason := _explain_incomparable(report, earlier):
        return BaselineReport(str(file), (), reason)
    before = {attribute.name: attribute for attribute in earlier.attributes}
    after = {attribute.name: attribute for attribute in report.attributes}
    shared_names = [name for name in after if name in before]
    differences = {name: _find_different_declarations(before[name], after[name]) for name in shared_names}
    changes: list[FigureChange] = []
    for name in shared_names:
        is_other = bool(differences[name])
        metrics = (_collect_metrics(attributes[name], skip_twins=is_other) for attributes in (before, after))
        changes += _compare_metrics(f"{name}.", *metrics)
    accuracies = [audit.model.accuracy or {} for audit in (earlier, report)]
    parts = ({f"accuracy.{part}": shares.get(part) for part in ("test", "table")} for shares in accuracies)
    changes += _compare_metrics("", *parts)
    sentences = [" ".join(c.text for c in changes if c.significant) or "No rate changed significantly."]
    if report.reproduction.rows != earlier.reproduction.rows:
        sentences.append("The data set has other records than then, so its flip rates are those of other people.")
    sentences += [
        f"The counterfactual metrics of {name} are not compared: the two audits declare different {join_words(keys)} "
        "attributes."
        for name, keys in differences.items()
        if keys
    ]
    for unmatched, date in ((after.keys() - before.keys(), "now"), (before.keys() - after.keys(), "then")):
        if unmatched:
            sentences.append(f"Audited only {date}: {', '.join(sorted(unmatched))}.")
    return BaselineReport(str(file), tuple(changes), " ".join(sentences))


def _explain_incomparable(report: Report, earlier: Report) -> str:
    if report.reproduction.domain != earlier.reproduction.domain:
        return (
            f"The earlier audit used another input schema ('{earlier.data.name}'), so nothing is compared. Set "
            "--domain to the domain.toml of that audit."
        )
    decisions = [audit.decision for audit in (earlier, report)]
    earlier_rule, rule = (
        audit.kind if audit.kind == "argmax" else f"{audit.kind} {exact_number(audit.value)}" for audit in decisions
    )
    return (
        ""
        if rule == earlier_rule
        else f"The decision rule was {earlier_rule} and is now {rule}, so nothing is compared."
    )


def _collect_metrics(attribute: AttributeReport, *, skip_twins: bool) -> dict[str, RateWithInterval | float | None]:
    """Return what is compared of one choice of sensitive attributes, by the names of the gate."""
    metrics: dict[str, RateWithInterval | float | None] = {
        f"{population}.rate": getattr(attribute.rates, population) for population in AUDITED
    }
    if attribute.counterfactual is not None and not skip_twins:
        metrics |= {
            "counterfactual.rate": attribute.counterfactual,
            "counterfactual.excess": attribute.counterfactual.effect,
        }
    if (proved := attribute.proved) is not None:
        metrics |= {part: getattr(proved, part).share for part in ("proved_fair", "undecided", "proved_discriminatory")}
        metrics["certified"] = None if proved.data_set is None else proved.data_set.certified_fair.share
    for search in attribute.searches:
        metrics |= {f"findings.{search.method}": search.findings, f"gsr.{search.method}": search.gsr}
    metrics["severity.p95"] = None if attribute.severity is None else attribute.severity.p95
    metrics["worst_auc"] = None if attribute.interpretation is None else attribute.interpretation.worst_auc
    return metrics


def _find_different_declarations(before: AttributeReport, after: AttributeReport) -> list[str]:
    """Return which declarations about twins differ: the twins are then others, and cannot be compared."""
    if before.counterfactual is None or after.counterfactual is None:
        return []
    earlier_declarations, declarations = (
        {
            "fixed": set(report.fixed),
            "legitimate": {r.attribute for r in report.legitimate},
            "causes": set(report.graph),
        }
        for report in (before.counterfactual, after.counterfactual)
    )
    return [key for key in earlier_declarations if earlier_declarations[key] != declarations[key]]


def _describe_metric(attribute: str, name: str) -> str:
    """Return a metric in words, with the attribute that it is about."""
    first, _, last = name.partition(".")
    titles = {"gsr": f"Success rate of {last}", "findings": f"Findings of {last}"}
    if last == "rate" and first in AUDITED:
        titles[first] = f"Flip rate of {POPULATIONS[first]}"
    title = METRIC_TITLES.get(name) or titles.get(first, name)
    return f"{title} ({attribute})" if attribute else title


def _compare_metrics(
    prefix: str,
    earlier_metrics: Mapping[str, RateWithInterval | float | None],
    metrics: Mapping[str, RateWithInterval | float | None],
) -> Iterator[FigureChange]:
    """Yield the changes of the metrics that are known on both sides; of those without an interval, only real ones."""
    for name, after in metrics.items():
        before, metric = earlier_metrics.get(name), prefix + name
        title = _describe_metric(prefix.removesuffix("."), name)
        if isinstance(before, RateWithInterval) and isinstance(after, RateWithInterval):
            low, high = after.low - before.high, after.high - before.low
            verb = "rose" if low > 0 else "fell" if high < 0 else ""
            first, last = (with_interval(rate.rate, rate.low, rate.high) for rate in (before, after))
            text = f"{title} was {first} and is {last}: the intervals overlap, so this may be chance."
            if verb:
                text = f"{title} {verb} from {first} to {last}."
            yield FigureChange(metric, before.rate, after.rate, low, high, bool(verb), text)
        elif isinstance(before, float | int) and isinstance(after, float | int) and before != after:
            is_share = (METRICS.get(name) or METRICS[name.partition(".")[0]]).is_share
            values = [percent(x) if is_share else f"{x:,.4g}" for x in (before, after)]
            text = f"{title} went from {values[0]} to {values[1]}."
            yield FigureChange(metric, before, after, None, None, False, text)


@accept_old_names
@dataclass(frozen=True)
class Checks:
    """What an audit is compared with: thresholds such as "flip_rate > 1%", a regression set, and an earlier audit.

    Every record of the regression set is evaluated again; unless `add` is false, the worst findings are added to it.
    Thresholds are not evaluated, and there is no verdict, for a model that fails the input encoding check, unless
    `skip_encoding_check` is set.
    """

    fail_if: Sequence[str] = ()
    regression_set: str | Path | None = None
    add: bool = True
    baseline: str | Path | None = None
    skip_encoding_check: bool = False

    def read(self, domain: TableDomain) -> LoadedChecks:
        """Read the files, so that a damaged one is refused before any work is done."""
        return LoadedChecks(
            checks=self,
            domain=domain,
            regression_set=None if self.regression_set is None else read_regression_set(self.regression_set, domain),
            earlier=None if self.baseline is None else read_report(self.baseline),
        )


@dataclass(frozen=True)
class LoadedChecks:
    """Checks whose files have been read."""

    checks: Checks = field(default_factory=Checks)
    domain: TableDomain | None = None  # None: there is nothing to check
    regression_set: RegressionSet | None = None
    earlier: Report | None = None

    @property
    def fail_if(self) -> tuple[str, ...]:
        """The thresholds, as they were written."""
        return tuple(self.checks.fail_if)

    def refuse(self, sensitive: Sequence[str], methods: Sequence[str], twins: TwinKind | None = None) -> None:
        """Refuse a threshold that cannot be evaluated, and an audit that cannot be compared with."""
        names = ["+".join(choice) for choice in list_attribute_sets(sensitive)]
        target = None if self.domain is None else self.domain.target
        favourable = None if self.domain is None else self.domain.favourable
        for threshold in read_expressions(self.fail_if, names, methods):
            reason = ""
            if threshold.metric in REGRESSION_METRICS and self.regression_set is None:
                reason = "needs --regression-set FILE"
            elif threshold.metric == ERROR_RATE_GAP and not (target and target.classes):
                reason = "needs labels. Name the target in the domain file"
            elif threshold.metric in GROUP_METRICS and (
                hint := explain_missing_favourable(threshold.metric, target, favourable)
            ):
                reason = f"{threshold.metric} {hint}"
            elif twins == "flip" and threshold.metric.startswith("counterfactual."):
                reason = "needs the counterfactual test, not --twins flip"
            elif threshold.metric in CHANGE_METRICS and self.earlier is None:
                reason = "needs --baseline FILE"
            if reason:
                raise NeuronFairError(f"--fail-if '{threshold.expression}': {reason}")
        domain = None if self.earlier is None else self.earlier.reproduction.domain
        if domain is not None and self.domain is not None and domain != self.domain.fingerprint:
            raise NeuronFairError(
                "--baseline: that audit was made on another domain. Give its domain.toml as --domain, or leave it out"
            )

    def replay(self, opened_model: OpenedModel) -> RegressionSetReport | None:
        """Evaluate every counterexample in the regression set again."""
        if self.regression_set is None:
            return None
        return replay_regression_set(self.regression_set, opened_model.model, opened_model.decision)

    def evaluate(self, report: Report, replayed: RegressionSetReport | None) -> tuple[Report, NeuronFairError | None]:
        """Return a report with all checks, or with those before one that could not be evaluated, and why.

        The audit itself is done by then, and worth its report all the same.
        """
        report = replace(report, regression_set=replayed)
        if (encoding := report.encoding_check) is not None:
            report = replace(report, encoding_check=replace(encoding, trusted=self.checks.skip_encoding_check))
        try:
            if self.earlier is not None:
                report = replace(report, baseline=compare_with(report, self.earlier, str(self.checks.baseline)))
            is_complete = not report.reproduction.interrupted
            if is_complete and report.encoding_check is not None and report.fails_encoding_check:
                expressions = " ".join(f"--fail-if '{expression}'" for expression in self.fail_if)
                reason = f"{report.encoding_check.text} If the encoding is right: --skip-encoding-check"
                raise EncodingError(f"{f'{expressions}: not evaluated' if expressions else 'No verdict'}. {reason}")
            if self.fail_if and is_complete:
                report = replace(report, gate=check_thresholds(report, self.fail_if))
            if self.regression_set is not None and replayed is not None and self.checks.add:
                report = replace(
                    report, regression_set=replace(replayed, added=extend(self.regression_set, report, write=False))
                )
        except NeuronFairError as error:
            return report, error
        return report, None

    def extend(self, report: Report) -> None:
        """Add the worst findings to the file: last, so that after a kill the same audit replays the same people."""
        if self.regression_set is not None and self.checks.add:
            extend(self.regression_set, report)


def list_attribute_sets(sensitive: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each attribute alone and, if there are several, all together.

    >>> list_attribute_sets(["sex", "race"])
    [('sex',), ('race',), ('sex', 'race')]
    """
    names = tuple(dict.fromkeys(sensitive))
    return [*((name,) for name in names), *([names] if len(names) > 1 else [])]
