"""What an audit is compared with: an earlier audit, thresholds, and a regression set of past counterexamples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neuronfair.audits.gate.regression_set import RegressionSet, extend, read_regression_set, replay_regression_set
from neuronfair.audits.gate.thresholds import CHANGES, CORPUS, GROUP_METRICS, LABELLED, PROVED, check, read_expressions
from neuronfair.audits.report.attribute import AUDITED, AttributeReport, RateOf
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval
from neuronfair.audits.report.report import BaselineReport, FigureChange, RegressionSetReport, Report
from neuronfair.audits.stages.rates import favourable_missing
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import TwinKind
from neuronfair.errors import DataError, EncodingError, NeuronFairError
from neuronfair.formatting import exact, listed, percent, spanned
from neuronfair.limits import TREE, read_bytes
from neuronfair.model.open import Opened
from neuronfair.store.files import is_sealed, unseal

RateWithInterval = RateOf | CounterfactualReport | Interval


def read_baseline(path: str | Path) -> Report:
    """Read the audit.json of an earlier audit."""
    path = Path(path)
    try:
        content = read_bytes(path, times=TREE)
        if is_sealed(content):
            unseal(content)
        return Report.from_json(content, path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: damaged or edited. Expected the audit.json of an audit") from None


def compare_with(report: Report, earlier: Report, file: str | Path = "") -> BaselineReport:
    """Return what changed since an earlier audit: the figures that both have, with a sentence each.

    A rate is said to have changed only if the two intervals do not overlap; `low` and `high` are the smallest and the
    largest change that they allow. Other figures have no interval. Audits of another domain, or by another rule of
    decision, mean something else: then nothing is compared and `text` says why.
    """
    why = _incomparable(report, earlier)
    if why:
        return BaselineReport(str(file), (), why)
    before = {attribute.name: attribute for attribute in earlier.attributes}
    after = {attribute.name: attribute for attribute in report.attributes}
    changes = [c for name in after if name in before for c in _changes(name, before[name], after[name])]
    then, now = earlier.model.accuracy or {}, report.model.accuracy or {}
    for part in ("test", "table"):
        changes += _plain(f"accuracy.{part}", then.get(part), now.get(part))
    sentences = [" ".join(c.text for c in changes if c.significant) or "No rate changed by more than chance explains."]
    if report.reproduction.rows != earlier.reproduction.rows:
        sentences.append("The table has other rows than then, so its own rate is that of other people.")
    for name in (name for name in after if name in before):
        if declared := _otherwise_declared(before[name], after[name]):
            sentences.append(
                f"The counterfactual metrics of {name} are not compared: the two audits declare other "
                f"{listed(declared)} attributes."
            )
    for names, what in ((after.keys() - before.keys(), "now only"), (before.keys() - after.keys(), "then only")):
        if names:
            sentences.append(f"Audited {what}: {', '.join(sorted(names))}.")
    return BaselineReport(str(file), tuple(changes), " ".join(sentences))


def _incomparable(report: Report, earlier: Report) -> str | None:
    if report.reproduction.domain != earlier.reproduction.domain:
        return (
            f"The earlier audit was made on another domain ('{earlier.data.name}'): its figures speak of other "
            "people, so nothing is compared. Give the domain.toml of that audit as --domain."
        )
    now, then = (f"{one.decision.kind} {exact(one.decision.value)}" for one in (report, earlier))
    if now != then:
        return f"The earlier audit took decisions by {then}, this one by {now}, so nothing is compared."
    return None


def _changes(name: str, before: AttributeReport, after: AttributeReport) -> Iterator[FigureChange]:
    for population in AUDITED:
        yield from _rates(f"{name}.{population}.rate", *(getattr(one.rates, population) for one in (before, after)))
    if before.counterpart is not None and after.counterpart is not None and not _otherwise_declared(before, after):
        yield from _rates(f"{name}.counterpart.rate", before.counterpart, after.counterpart)
        yield from _rates(f"{name}.counterpart.effect", before.counterpart.effect, after.counterpart.effect)
    if before.proved is not None and after.proved is not None:
        for part in ("proved_fair", "open", "proved_discriminatory"):
            was, now = (getattr(proved, part).share for proved in (before.proved, after.proved))
            yield from _plain(f"{name}.{part}", was, now)
        rows = [proved.data_set for proved in (before.proved, after.proved)]
        yield from _plain(f"{name}.certified", *(None if one is None else one.certified_fair.share for one in rows))
    then = {search.method: search for search in before.searches}
    for search in after.searches:
        method = search.method
        if method in then:
            yield from _plain(f"{name}.findings.{method}", then[method].findings, search.findings)
            yield from _plain(f"{name}.gsr.{method}", then[method].gsr, search.gsr)
    gaps = [one.severity.p95 if one.severity is not None else None for one in (before, after)]
    yield from _plain(f"{name}.severity.p95", *gaps)
    areas = [one.interpretation.worst_auc if one.interpretation is not None else None for one in (before, after)]
    yield from _plain(f"{name}.worst_auc", *areas)


def _otherwise_declared(before: AttributeReport, after: AttributeReport) -> list[str]:
    """Return what was declared otherwise about twins: they are then others, and their metrics cannot be compared."""
    then, now = before.counterpart, after.counterpart
    if then is None or now is None:
        return []
    resolving = [{one.attribute for one in report.legitimate} for report in (then, now)]
    different = {
        "fixed": set(then.fixed) != set(now.fixed),
        "legitimate": resolving[0] != resolving[1],
        "causes": set(then.graph) != set(now.graph),
    }
    return [name for name, is_different in different.items() if is_different]


def _rates(figure: str, before: RateWithInterval | None, after: RateWithInterval | None) -> Iterator[FigureChange]:
    if before is None or after is None:
        return
    low, high = after.low - before.high, after.high - before.low
    word = "rose" if low > 0 else "fell" if high < 0 else ""
    spans = [spanned(rate.rate, rate.low, rate.high) for rate in (before, after)]
    text = f"{figure} {word or 'was'} {'from ' if word else ''}{spans[0]} {'to' if word else 'and is'} {spans[1]}"
    text += "." if word else ": the intervals overlap, so this may be chance."
    yield FigureChange(figure, before.rate, after.rate, low, high, bool(word), text)


def _plain(figure: str, before: float | None, after: float | None) -> Iterator[FigureChange]:
    """Yield a figure without an interval, if it is known on both sides and not the same."""
    if before is None or after is None or before == after:
        return
    is_share = ".gsr" in figure or figure.startswith("accuracy") or figure.endswith(PROVED)
    then, now = (percent(x) if is_share else f"{x:,.4g}" for x in (before, after))
    yield FigureChange(figure, before, after, None, None, False, f"{figure} went from {then} to {now}.")


@dataclass(frozen=True)
class Checks:
    """What an audit is compared with: thresholds such as "flip_rate > 1%", a regression set, and an earlier audit.

    Everybody in the regression set (`corpus`) is evaluated again; unless `add` is false, the worst findings are added
    to the file. Thresholds are not evaluated, and there is no verdict, for a model that fails the input encoding check,
    unless `trust_feeding` is set.
    """

    fail_if: Sequence[str] = ()
    corpus: str | Path | None = None
    add: bool = True
    baseline: str | Path | None = None
    trust_feeding: bool = False

    def read(self, domain: TableDomain) -> LoadedChecks:
        """Read the files, so that a damaged one is refused before any work is done."""
        return LoadedChecks(
            checks=self,
            domain=domain,
            corpus=None if self.corpus is None else read_regression_set(self.corpus, domain),
            earlier=None if self.baseline is None else read_baseline(self.baseline),
        )


@dataclass(frozen=True)
class LoadedChecks:
    """Checks whose files have been read."""

    checks: Checks = field(default_factory=Checks)
    domain: TableDomain | None = None  # None: there is nothing to check
    corpus: RegressionSet | None = None
    earlier: Report | None = None

    @property
    def fail_if(self) -> tuple[str, ...]:
        """The thresholds, as they were written."""
        return tuple(self.checks.fail_if)

    def refuse(self, sensitive: Sequence[str], methods: Sequence[str], twins: TwinKind | None = None) -> None:
        """Refuse a threshold that cannot be evaluated, and an audit that cannot be compared with."""
        names = ["+".join(choice) for choice in attribute_sets(sensitive)]
        target = None if self.domain is None else self.domain.target
        favourable = None if self.domain is None else self.domain.favourable
        for limit in read_expressions(self.fail_if, names, methods):
            why = ""
            if limit.figure in CORPUS and self.corpus is None:
                why = "needs --corpus FILE"
            elif limit.figure == LABELLED and not (target and target.classes):
                why = "needs labels. Name the target in the domain file"
            elif limit.figure in GROUP_METRICS and (missing := favourable_missing(limit.figure, target, favourable)):
                why = f"{limit.figure} {missing}"
            elif twins == "flip" and limit.figure.startswith("counterpart."):
                why = "needs counterparts, not --twins flip"
            elif limit.figure in CHANGES and self.earlier is None:
                why = "needs --baseline FILE"
            if why:
                raise NeuronFairError(f"--fail-if '{limit.expression}': {why}")
        made_for = None if self.earlier is None else self.earlier.reproduction.domain
        if made_for is not None and self.domain is not None and made_for != self.domain.fingerprint:
            raise NeuronFairError(
                "--baseline: that audit was made on another domain. Give its domain.toml as --domain, or leave it out"
            )

    def replay(self, opened: Opened) -> RegressionSetReport | None:
        """Evaluate every counterexample in the regression set again."""
        if self.corpus is None:
            return None
        return replay_regression_set(self.corpus, opened.model, opened.decision)

    def evaluate(self, report: Report, past: RegressionSetReport | None) -> tuple[Report, NeuronFairError | None]:
        """Return a report with all checks, or with those before one that could not be evaluated, and why.

        The audit itself is done by then, and worth its report all the same.
        """
        report = replace(report, corpus=past)
        if report.feeding is not None:
            report = replace(report, feeding=replace(report.feeding, trusted=self.checks.trust_feeding))
        try:
            if self.earlier is not None:
                report = replace(report, baseline=compare_with(report, self.earlier, str(self.checks.baseline)))
            if not report.reproduction.interrupted:
                self._refuse_encoding(report)
            if self.fail_if and not report.reproduction.interrupted:
                report = replace(report, gate=check(report, self.fail_if))
            if self.corpus is not None and past is not None and self.checks.add:
                report = replace(report, corpus=replace(past, added=extend(self.corpus, report, write=False)))
        except NeuronFairError as error:
            return report, error
        return report, None

    def _refuse_encoding(self, report: Report) -> None:
        if report.feeding is not None and report.is_misfed:
            expressions = " ".join(f"--fail-if '{one}'" for one in self.fail_if)
            what = f"{expressions}: not evaluated" if expressions else "No verdict"
            raise EncodingError(f"{what}. {report.feeding.text} If the encoding is right: --skip-encoding-check")

    def extend(self, report: Report) -> None:
        """Add the worst findings to the file: last, so that after a kill the same audit replays the same people."""
        if self.corpus is not None and self.checks.add:
            extend(self.corpus, report)


def attribute_sets(sensitive: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each attribute alone and, if there are several, all together.

    >>> attribute_sets(["sex", "race"])
    [('sex',), ('race',), ('sex', 'race')]
    """
    names = tuple(dict.fromkeys(sensitive))
    return [*((name,) for name in names), *([names] if len(names) > 1 else [])]
