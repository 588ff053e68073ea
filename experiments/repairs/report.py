"""A repair as a table of before and after, in words, and as JSON."""

from __future__ import annotations

from dataclasses import fields

from experiments.repairs.evaluate import FairnessMeasurement, RepairOutcome
from experiments.repairs.neurons import NeuronRepair
from experiments.repairs.retrain import Retraining
from experiments.repairs.session import Repaired
from neuronfair.domain.table import TableDomain
from neuronfair.formatting import join_words, percent, pluralise, with_interval
from neuronfair.measure.groups import Group
from neuronfair.measure.rate import Rate
from neuronfair.store.files import Json

import msgspec
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table

GROUPS = 8  # shown in the table; all of them are in the JSON


def repair_report(done: Repaired, domain: TableDomain) -> RenderableType:
    """Return a table of before and after, and in words what was done and how its control did."""
    sensitive = join_words(domain.sensitive)
    table = Table(title=f"Repair of the flip rate by {sensitive}: before and after")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    for label, was, now in _lines(done.before, done.after, domain):
        table.add_row(label, was, now)
    return Lines(table, verdict(done.before, done.after), *_words(done.work, sensitive), *done.notes)


def verdict(before: FairnessMeasurement, after: FairnessMeasurement) -> str:
    """Return in one sentence how the flip rates and the accuracy changed."""
    lost = 100 * (before.accuracy["test"] - after.accuracy["test"])
    accuracy = f"loses {lost:.1f} points" if lost >= 0.05 else f"gains {-lost:.1f} points" if lost <= -0.05 else "stays"
    test, drawn = _change(before.test, after.test), _change(before.rate, after.rate)
    return (
        f"Of the {before.test.sampled:,} test rows, held-out records of the data set, the flip rate {test}; of records "
        f"drawn uniformly from the domain it {drawn}; accuracy on the test rows {accuracy}."
    )


def _change(before: Rate, after: Rate) -> str:
    was, now = before.rate, after.rate
    if was <= 0:
        return f"was {percent(was)} and is {percent(now)}"
    if now >= was:
        return f"did not fall ({percent(was)} before, {percent(now)} after)"
    sure = "" if after.interval[1] < before.interval[0] else ", the intervals overlap"
    return f"fell by {percent(round(1 - now / was, 2))} ({percent(was)} to {percent(now)}{sure})"


def _lines(before: FairnessMeasurement, after: FairnessMeasurement, domain: TableDomain) -> list[tuple[str, str, str]]:
    """Return the rows of the table: a label and the cells before and after."""
    both = (before, after)
    cells = [
        ("flip rate of the test rows", *(with_interval(one.test.rate, *one.test.interval) for one in both)),
        ("flip rate, uniform (DM-RS)", *(with_interval(one.rate.rate, *one.rate.interval) for one in both)),
        ("AS-AUC of the worst layer", *(f"{one.auc:.3f} ({one.layer})" for one in both)),
        *(
            (f"accuracy, {part} rows", *(percent(one.accuracy[part]) for one in both))
            for part in ("train", "validation", "test")
        ),
    ]
    classes = domain.target.classes if domain.target is not None else ()
    positive = classes.index(domain.favourable) if domain.favourable is not None else -1
    outcome = classes[positive] if classes else "the last class"
    largest = sorted(range(len(before.groups)), key=lambda i: -before.groups[i].rows)[:GROUPS]
    for i in sorted(largest):
        label = f"{outcome} if {_who(before.groups[i], domain)}"
        cells.append((label, *(percent(one.groups[i].selection[positive]) for one in both)))
    return [(label, was, now) for label, was, now in cells]


def _who(group: Group, domain: TableDomain) -> str:
    """Return the sensitive values of a group in words."""
    columns = zip(domain.sensitive_columns, group.codes, strict=True)
    return ", ".join(
        f"{domain.attributes[column].name} {domain.attributes[column].value(code)}" for column, code in columns
    )


def _words(work: Retraining | NeuronRepair, sensitive: str) -> list[str]:
    """Return what was done, and how its control did."""
    if isinstance(work, Retraining):
        helped = "" if work.after.rate < work.without.rate else " It flips as few or fewer: the pairs did not help."
        return [
            f"Trained again with {work.pairs:,} pairs, labelled by the vote of networks that do not see {sensitive} "
            f"({percent(work.ensemble)} of test rows right). {pluralise(len(work.repeats), 'repeat')}: "
            f"{_spread(work.repeats)}.",
            f"Control: the same retraining without findings: {_spread((work.without,))}.{helped}",
        ]
    better = sum(outcome.rate <= work.after.rate for outcome in work.random)
    return [
        f"Turned down to {percent(work.turn.factor)}: {len(work.turn.neurons)} of the neurons of layer "
        f"{work.turn.layer + 1} that react most to {sensitive} ({', '.join(map(str, work.turn.neurons))}). On other "
        f"records than above: {_spread((work.after,))}.",
        f"Control: as many random neurons of the same layer instead, {len(work.random)} draws: {_spread(work.random)}; "
        f"{better} of them have the same flip rate or less.",
    ]


def _spread(results: tuple[RepairOutcome, ...]) -> str:
    """Return the mean of several outcomes, and the extremes where there are several."""
    rates, hits = [r.rate for r in results], [r.accuracy for r in results]
    rate = sum(rates) / len(rates)
    shown = with_interval(rate, min(rates), max(rates)) if len(results) > 1 else percent(rate)
    return f"DM-RS {shown}, accuracy {percent(sum(hits) / len(hits))}"


def repair_json(done: Repaired) -> Json:
    """Return a repair as plain values."""
    before, after = done.before, done.after
    work = {field.name: getattr(done.work, field.name) for field in fields(done.work) if field.name != "module"}
    return {
        "before": _measured(before),
        "after": _measured(after),
        "test_rate_drop": 1 - after.test.rate / before.test.rate if before.test.flips else None,
        "rate_drop": 1 - after.rate.rate / before.rate.rate if before.rate.flips else None,
        "accuracy_lost": before.accuracy["test"] - after.accuracy["test"],
        "repair": msgspec.to_builtins(work),
        "notes": list(done.notes),
    }


def _measured(one: FairnessMeasurement) -> Json:
    whole: Json = msgspec.to_builtins(one)
    for name, rate in (("test_rate", one.test), ("rate", one.rate)):
        whole |= {name: rate.rate, f"{name}_interval": list(rate.interval), f"{name}_records": rate.sampled}
    return whole
