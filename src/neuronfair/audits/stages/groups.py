"""How the groups of a table fare: whom a model selects, how often it errs, and how far the groups lie apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuronfair.audits.report.attribute import Disparity, Gap, GroupReport
from neuronfair.domain.schema.infer import suggested
from neuronfair.domain.table import Target
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.formatting import exact, listed
from neuronfair.measure.groups import Group as Counted
from neuronfair.measure.groups import Spread, difference, groups, ratio
from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision

MIN_GROUP_ROWS = 30  # rows that the rate of a group is made of, at least, to be compared with that of another
NO_LABELS = "the table has no labels, or not those of the classes that the model tells apart. Name the target column"


def favourable_missing(figure: str, target: Target | None, favourable: str | None) -> str:
    """Return why a metric of groups cannot be computed without the favourable outcome; empty where it can.

    Disparate impact needs it; with more than two classes the differences do, too. With two they are the same for both.
    """
    classes = target.classes if target is not None else ()
    if favourable is not None or (figure != "disparate_impact" and len(classes) <= 2):
        return ""
    needs = "needs the favourable outcome"
    if target is None or not classes:
        return (
            f"{needs}, and the data set has no target with classes. Name the target, and favourable, in a domain file"
        )
    guess = suggested(target.column, classes)
    hint = f"; probably '{guess}'" if guess is not None else ""
    names = listed([f"'{name}'" for name in classes])
    return f"{needs}. Set --favourable, or favourable in the domain file, to one of {names}{hint}"


@dataclass(frozen=True)
class _Selected:
    """One rate of every group: how many rows it is made of, and how many of them are selected."""

    rate: str
    what: str  # its rows are
    groups: Sequence[str]
    counts: Sequence[tuple[int, int]]

    @property
    def shares(self) -> list[float | None]:
        return [selected / rows if rows else None for rows, selected in self.counts]

    @property
    def large(self) -> list[int]:
        return [i for i, (rows, _) in enumerate(self.counts) if rows >= MIN_GROUP_ROWS]

    @property
    def left_out(self) -> list[str]:
        return [f"{self.groups[i]} ({n:,} {self.what})" for i, (n, _) in enumerate(self.counts) if n < MIN_GROUP_ROWS]


def group_metrics(
    model: Model, data: Dataset, decision: Decision, confidence: float = 0.95
) -> tuple[tuple[GroupReport, ...], Disparity | None]:
    """Return how each group of the table fares, and how far they lie apart; nothing for a tolerance.

    People are selected if they get the favourable outcome. Where none is set, the selection rates are those of the last
    class, and metrics that would depend on which class is the favourable one are not computed.
    """
    if decision.kind == "tolerance":
        return (), None
    domain, classes = data.domain, decision.classes(model.outputs)
    names = domain.target.classes if domain.target is not None else ()
    is_named = len(names) == classes
    chosen = names.index(domain.favourable) if is_named and domain.favourable is not None else classes - 1
    nameless = f"at least {exact(decision.value)}" if decision.kind == "threshold" else f"class {chosen}"
    selected = names[chosen] if is_named else nameless
    has_labels = is_named and data.labelled
    counted = groups(model, domain, data.rows, data.labels if has_labels else None, decision=decision)
    columns = [domain.attributes[c] for c in domain.sensitive_columns]
    values = [", ".join(a.group_name(code) for a, code in zip(columns, g.codes, strict=True)) for g in counted]
    every = [(group.rows, round(group.selection[chosen] * group.rows)) for group in counted]
    right, wrong = ([_labelled(group, chosen, own=own) for group in counted] for own in (True, False))
    selection = _Selected("selection rate", "rows", values, every)
    errors = (
        _Selected("true positive rate", f"rows labelled {selected}", values, right),
        _Selected("false positive rate", f"rows not labelled {selected}", values, wrong),
    )
    figures = {
        "disparate_impact": _gap([selection], ratio, confidence),
        "selection_rate.difference": _gap([selection], difference, confidence),
        "error_rate.difference": _gap(errors, difference, confidence) if has_labels else NO_LABELS,
    }
    favourable = domain.favourable if is_named else None
    for name in figures:
        if why := favourable_missing(name, domain.target if is_named else None, favourable):
            figures[name] = why
    known = {name.replace(".", "_"): gap for name, gap in figures.items() if isinstance(gap, Gap)}
    unknown = {name: why for name, why in figures.items() if isinstance(why, str)}
    shares = zip(values, counted, *(rates.shares for rates in errors), strict=True)
    return (
        tuple(GroupReport(value, one.rows, one.selection[chosen], one.accuracy, *rest) for value, one, *rest in shares),
        Disparity(selected, confidence, **known, unknown=unknown, favourable=favourable is not None),
    )


def _labelled(group: Counted, chosen: int, *, own: bool) -> tuple[int, int]:
    """Return how many rows have the label of the chosen class, or another, and how many of them are selected."""
    lines = [line for label, line in enumerate(group.labelled) if (label == chosen) == own]
    return sum(map(sum, lines)), sum(line[chosen] for line in lines)


def _gap(rates: Sequence[_Selected], how: Callable[[Sequence[Rate]], Spread | None], confidence: float) -> Gap | str:
    """Return how far the groups lie apart in the rate in which they do most; or why that cannot be said.

    The intervals of all rates hold together.
    """
    looks = sum(len(one.large) for one in rates)
    spreads = []
    for one in rates:
        if len(one.large) < 2:
            return f"fewer than two groups have {MIN_GROUP_ROWS} {one.what}, which a rate is made of at least"
        spread = how([Rate(one.counts[i][1], one.counts[i][0], "table", confidence, looks) for i in one.large])
        if spread is None:
            return "nobody is selected in any group"
        spreads.append(spread)
    worst = max(range(len(rates)), key=lambda i: spreads[i].value)
    least, most = (rates[worst].groups[rates[worst].large[i]] for i in (spreads[worst].least, spreads[worst].most))
    return Gap(
        rate=rates[worst].rate,
        value=spreads[worst].value,
        low=max(spread.low for spread in spreads),
        high=max(spread.high for spread in spreads),
        least=least,
        most=most,
        left_out=tuple(name for one in rates for name in one.left_out),
    )
