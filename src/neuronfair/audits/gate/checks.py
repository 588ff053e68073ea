"""What an audit is compared with: thresholds, a regression set of past counterexamples, and an earlier audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neuronfair.audits.gate.baseline import compare_with, read_baseline
from neuronfair.audits.gate.regression_set import RegressionSet, extend, read_regression_set, replay_regression_set
from neuronfair.audits.gate.thresholds import CHANGES, CORPUS, GROUP_METRICS, LABELLED, check, read_expressions
from neuronfair.audits.report.report import RegressionSetReport, Report
from neuronfair.audits.stages.groups import favourable_missing
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import TwinKind
from neuronfair.errors import EncodingError, NeuronFairError
from neuronfair.model.open import Opened


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
        """Evaluate everybody in the regression set again."""
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
            what = f"{expressions}: not judged" if expressions else "No verdict"
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
