"""An audit beside an earlier one: what changed, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neuronfair.audits.gate.thresholds import PROVED
from neuronfair.audits.report.attribute import AttributeReport
from neuronfair.audits.report.counterfactual import CounterfactualReport, Interval
from neuronfair.audits.report.rates import AUDITED, RateOf
from neuronfair.audits.report.report import BaselineReport, FigureChange, Report
from neuronfair.errors import DataError
from neuronfair.formatting import exact, listed, percent, spanned
from neuronfair.limits import TREE, read_bytes
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
