"""What an audit is judged by: limits, past counterexamples, and an earlier audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neuronfair.audits.gate.baseline import compare_with, read_baseline
from neuronfair.audits.gate.expressions import CHANGES, CORPUS, LABELLED, OF_GROUPS, read_expressions
from neuronfair.audits.gate.gate import check
from neuronfair.audits.gate.regression_set import Corpus, extend, read_regression_set, replay_regression_set
from neuronfair.audits.report.report import RegressionSetReport, Report
from neuronfair.audits.stages.groups import favourable_missing
from neuronfair.domain.table import TableDomain, Target
from neuronfair.domain.twins import TwinKind
from neuronfair.errors import EncodingError, NeuronFairError
from neuronfair.model.open import Opened


@dataclass(frozen=True)
class Checks:
    """What an audit is judged by: limits such as "rate > 0.01", and the files of a corpus and of an earlier audit.

    Everybody in the corpus is judged again; unless `add` is false, the worst findings are added to the file. Limits are
    not judged, and there is no verdict, for a model that fails the input encoding check, unless `trust_feeding` is set.
    """

    fail_if: Sequence[str] = ()
    corpus: str | Path | None = None
    add: bool = True
    baseline: str | Path | None = None
    trust_feeding: bool = False

    def read(self, domain: TableDomain) -> Ready:
        """Read the files, so that a damaged one is refused before any work is done."""
        return Ready(
            domain=domain.fingerprint,
            has_target=bool(domain.target and domain.target.classes),
            target=domain.target,
            favourable=domain.favourable,
            fail_if=tuple(self.fail_if),
            corpus=None if self.corpus is None else read_regression_set(self.corpus, domain),
            add=self.add,
            earlier=None if self.baseline is None else read_baseline(self.baseline),
            file=str(self.baseline),
            trust_feeding=self.trust_feeding,
        )


@dataclass(frozen=True)
class Ready:
    """Checks whose files have been read."""

    domain: str = ""  # fingerprint
    has_target: bool = True  # whether people have labels: a quantity is none
    target: Target | None = None
    favourable: str | None = None
    fail_if: tuple[str, ...] = ()
    corpus: Corpus | None = None
    add: bool = True
    earlier: Report | None = None
    file: str = ""
    trust_feeding: bool = False

    def refuse(self, sensitive: Sequence[str], methods: Sequence[str], twins: TwinKind | None = None) -> None:
        """Refuse a limit that cannot be judged, and an audit that cannot be compared with."""
        names = ["+".join(choice) for choice in attribute_sets(sensitive)]
        for limit in read_expressions(self.fail_if, names, methods):
            if limit.figure in CORPUS and self.corpus is None:
                raise NeuronFairError(f"--fail-if '{limit.expression}': needs --corpus FILE")
            if limit.figure == LABELLED and not self.has_target:
                raise NeuronFairError(
                    f"--fail-if '{limit.expression}': needs labels. Name the target in the domain file"
                )
            if limit.figure in OF_GROUPS and (why := favourable_missing(limit.figure, self.target, self.favourable)):
                raise NeuronFairError(f"--fail-if '{limit.expression}': {limit.figure} {why}")
            if twins == "flip" and limit.figure.startswith("counterpart."):
                raise NeuronFairError(f"--fail-if '{limit.expression}': needs counterparts, not --twins flip")
            if limit.figure in CHANGES and self.earlier is None:
                raise NeuronFairError(f"--fail-if '{limit.expression}': needs --baseline FILE")
        if self.earlier is not None and self.earlier.reproduction.domain != self.domain:
            raise NeuronFairError(
                "--baseline: that audit was made on another domain. Give its domain.toml as --domain, or leave it out"
            )

    def replay(self, opened: Opened) -> RegressionSetReport | None:
        """Judge everybody in the corpus again."""
        if self.corpus is None:
            return None
        return replay_regression_set(self.corpus, opened.model, opened.decision)

    def evaluate(self, report: Report, past: RegressionSetReport | None) -> tuple[Report, NeuronFairError | None]:
        """Return a report with all checks, or with those before one that could not be judged, and why.

        The audit itself is done by then, and worth its page all the same.
        """
        report = replace(report, corpus=past)
        if report.feeding is not None:
            report = replace(report, feeding=replace(report.feeding, trusted=self.trust_feeding))
        try:
            if self.earlier is not None:
                report = replace(report, baseline=compare_with(report, self.earlier, self.file))
            if not report.reproduction.interrupted:
                self._refuse_feeding(report)
            if self.fail_if and not report.reproduction.interrupted:
                report = replace(report, gate=check(report, self.fail_if))
            if self.corpus is not None and past is not None and self.add:
                report = replace(report, corpus=replace(past, added=extend(self.corpus, report, write=False)))
        except NeuronFairError as error:
            return report, error
        return report, None

    def _refuse_feeding(self, report: Report) -> None:
        if report.feeding is not None and report.is_misfed:
            expressions = " ".join(f"--fail-if '{one}'" for one in self.fail_if)
            what = f"{expressions}: not judged" if expressions else "No verdict"
            raise EncodingError(f"{what}. {report.feeding.text} If the encoding is right: --trust-feeding")

    def extend(self, report: Report) -> None:
        """Add the worst findings to the corpus: last, so that after a kill the same audit replays the same people."""
        if self.corpus is not None and self.add:
            extend(self.corpus, report)


def attribute_sets(sensitive: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each attribute alone and, if there are several, all together.

    >>> attribute_sets(["sex", "race"])
    [('sex',), ('race',), ('sex', 'race')]
    """
    names = tuple(dict.fromkeys(sensitive))
    return [*((name,) for name in names), *([names] if len(names) > 1 else [])]
