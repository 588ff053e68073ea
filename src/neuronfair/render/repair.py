"""What a repair did and what it cost, as metrics and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table

from neuronfair.domain.table import TableDomain
from neuronfair.formatting import POPULATIONS, listed, percent, spanned
from neuronfair.measure.counterfactual_effect import CounterfactualEffect
from neuronfair.measure.groups import Group
from neuronfair.measure.rate import Rate
from neuronfair.repairs.evaluate import FairnessMeasurement, RepairOutcome
from neuronfair.repairs.neurons import NeuronRepair
from neuronfair.repairs.retrain import OWN, Retraining
from neuronfair.store.files import Json

GROUPS = 8  # shown in the table; all of them are in the JSON
_RULES = {
    "ensemble": "by the vote of networks that do not see {sensitive}",
    "seed": "as the record that each was reached from",
    "twins": "by the majority of the twins",
    OWN: "as the person whose twin it is",
}
_COUNTERPART = {
    "rate": "twins with a different decision",
    "placebo": "permutation baseline",
    "effect": "excess: their difference",
}
DEAR = 1.0  # points of accuracy, from which a repair is called a trade


def repair_report(
    work: Retraining | NeuronRepair,
    before: FairnessMeasurement,
    after: FairnessMeasurement,
    domain: TableDomain,
    notes: list[str],
    without: CounterfactualEffect | None = None,
) -> RenderableType:
    """Return a table of before and after, and in words what was done and what its control came to.

    `without` is the effect of counterparts in the control.
    """
    sensitive = listed(domain.sensitive)
    alike = before.counterpart is not None
    what = f"counterfactual twins by {sensitive}" if alike else f"the flip rate by {sensitive}"
    table = Table(title=f"Repair of {what}: before and after")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="right" if heading else "left")
    for label, cells in _lines(before, after, domain):
        table.add_row(label, *cells)
    words = _retraining(work, sensitive) if isinstance(work, Retraining) else _neurons(work, before, sensitive)
    control = work.without if isinstance(work, Retraining) and work.anew else None
    if without is not None:
        words.append(f"Without the twins the excess is {_effect(without)}.")
    return Lines(table, verdict(before, after, control), *words, *notes)


def verdict(before: FairnessMeasurement, after: FairnessMeasurement, control: RepairOutcome | None = None) -> str:
    """Return in one sentence what became of discrimination and accuracy, compared with a control if there is one."""
    lost = 100 * ((control.accuracy if control is not None else before.accuracy["test"]) - after.accuracy["test"])
    accuracy = f"loses {lost:.1f} points" if lost >= 0.05 else f"gains {-lost:.1f} points" if lost <= -0.05 else "stays"
    alike = before.counterpart is not None
    beside = f" compared with the same fit without {'twins' if alike else 'findings'}" if control is not None else ""
    if before.counterpart is not None and after.counterpart is not None:
        change = f"The excess {_change(before.counterpart.effect, after.counterpart.effect)}"
    else:
        test, drawn = (
            _change(*((rate.rate, *rate.interval) for rate in rates))
            for rates in ((before.test, after.test), (before.rate, after.rate))
        )
        change = (
            f"Of the {before.test.sampled:,} test rows, held-out records of the data set, the flip rate {test}; of "
            f"{POPULATIONS[before.rate.population]} it {drawn}"
        )
    sentence = f"{change}; accuracy on the test rows {accuracy}{beside}."
    dear = (
        " That is a trade-off: what the model gave up carried information about the outcome."
        if alike and lost >= DEAR
        else ""
    )
    return sentence + dear


def _change(before: Sequence[float], after: Sequence[float]) -> str:
    """Return how a figure changed; both are a value and the ends of its interval."""
    (was, begin, _), (now, _, end) = before, after
    if was <= 0:
        return f"was {percent(was)} and is {percent(now)}"
    if now >= was:
        return f"did not fall ({percent(was)} before, {percent(now)} after)"
    sure = "" if end < begin else ", the intervals overlap"
    return f"fell by {percent(round(1 - now / was, 2))} ({percent(was)} to {percent(now)}{sure})"


def _spanned(rate: Rate) -> str:
    return spanned(rate.rate, *rate.interval)


def _effect(effect: CounterfactualEffect) -> str:
    return spanned(*effect.effect)


def _lines(
    before: FairnessMeasurement, after: FairnessMeasurement, domain: TableDomain
) -> list[tuple[str, tuple[str, str]]]:
    """Return the rows of the table: a label and the cells before and after."""
    both = (before, after)
    areas = [
        [area for standing in both for area in standing.areas if area.layer == worst.layer]
        for worst in (before.worst,)
        if worst is not None
    ]
    found = [s.search for s in both if s.search is not None]
    effects = [s.counterpart for s in both if s.counterpart is not None]
    people = "rate, uniform (DM-RS)" if not effects else "typical twin with a different decision"
    held_out = [] if effects else [("flip rate of the test rows", tuple(_spanned(s.test) for s in both))]
    lines = [
        *held_out,
        *(
            (label, tuple(spanned(*getattr(one, part)) for one in effects))
            for part, label in _COUNTERPART.items()
            if len(effects) == len(both)
        ),
        (people, tuple(_spanned(s.rate) for s in both)),
        *(
            (f"AUC of {a[0].layer}", tuple(f"{area.auc:.3f} ({area.low:.3f} to {area.high:.3f})" for area in a))
            for a in areas
            if len(a) == len(both)
        ),
        *(
            [("found by another search", tuple(f"{one.findings:,} at {percent(one.gsr)}" for one in found))]
            if len(found) == len(both)
            else []
        ),
        *(
            (f"accuracy, {part} rows", tuple(percent(s.accuracy[part]) for s in both))
            for part in ("train", "validation", "test")
        ),
    ]
    classes = domain.target.classes if domain.target is not None else ()
    positive = classes.index(domain.favourable) if domain.favourable is not None else -1
    outcome = classes[positive] if classes else "the last class"
    largest = sorted(range(len(before.groups)), key=lambda i: -before.groups[i].rows)[:GROUPS]
    for i in sorted(largest):
        label = f"{outcome} if {_who(before.groups[i], domain)}"
        lines.append((label, tuple(percent(s.groups[i].selection[positive]) for s in both)))
    return [(label, (cells[0], cells[1])) for label, cells in lines]


def _who(group: Group, domain: TableDomain) -> str:
    """Return the sensitive values of a group in words."""
    columns = zip(domain.sensitive_columns, group.codes, strict=True)
    return ", ".join(
        f"{domain.attributes[column].name} {domain.attributes[column].value(code)}" for column, code in columns
    )


def _retraining(work: Retraining, sensitive: str) -> list[str]:
    count, alike = len(work.repeats), work.label == OWN
    rate, pairs = ("typical twin differs", "twins") if alike else ("DM-RS", "findings")
    lines = [
        f"Trained again with {work.pairs:,} pairs, labelled {_RULES[work.label].format(sensitive=sensitive)}. "
        f"{count} {'repeat' if count == 1 else 'repeats'}: {_spread(work.repeats, rate)}.",
        f"Control: the same retraining without {pairs}: {_spread((work.without,), rate)}.",
    ]
    if work.without.rate <= work.after.rate:
        lines.append("That is as fair or fairer, so the pairs did not help.")
    if work.ensemble is not None:
        lines.append(f"Accuracy of the networks that do not see {sensitive}: {percent(work.ensemble)} of test rows.")
    return lines


def _neurons(work: NeuronRepair, before: FairnessMeasurement, sensitive: str) -> list[str]:
    count, layer = len(work.turn.neurons), before.areas[work.turn.layer].layer
    better = sum(outcome.rate <= work.after.rate for outcome in work.random)
    return [
        f"Turned down to {percent(work.turn.factor)}: {count} of the neurons of {layer} that react most to {sensitive} "
        f"({', '.join(map(str, work.turn.neurons))}). On other records than above: {_spread((work.after,))}.",
        f"Control: as many random neurons of the same layer instead, {len(work.random)} draws: {_spread(work.random)}; "
        f"{better} of them have the same flip rate or less.",
    ]


def _spread(results: tuple[RepairOutcome, ...], name: str = "DM-RS") -> str:
    """Return the mean of several outcomes, and the extremes where there are several."""
    rates, hits = [r.rate for r in results], [r.accuracy for r in results]
    rate = sum(rates) / len(rates)
    shown = spanned(rate, min(rates), max(rates)) if len(results) > 1 else percent(rate)
    return f"{name} {shown}, accuracy {percent(sum(hits) / len(hits))}"


def repair_json(
    work: Retraining | NeuronRepair,
    before: FairnessMeasurement,
    after: FairnessMeasurement,
    without: CounterfactualEffect | None = None,
) -> Json:
    """Return a repair as plain values; `without` is the effect of counterparts in the control."""
    result: Json = {"before": _standing(before), "after": _standing(after)}
    result["test_rate_drop"] = 1 - after.test.rate / before.test.rate if before.test.found else None
    result["rate_drop"] = 1 - after.rate.rate / before.rate.rate if before.rate.found else None
    if before.counterpart is not None:
        was, now = before.unfair, after.unfair
        result["effect_drop"] = 1 - now / was if was > 0 else None
    kept = work.without.accuracy if isinstance(work, Retraining) and work.anew else before.accuracy["test"]
    result["accuracy_lost"] = kept - after.accuracy["test"]
    if isinstance(work, Retraining):
        figures = {
            "label": work.label,
            "pairs": work.pairs,
            "chosen": work.chosen,
            "before": asdict(work.before),
            "repeats": [asdict(outcome) for outcome in work.repeats],
            "without_findings": asdict(work.without),
            "ensemble_accuracy": work.ensemble,
        }
        if without is not None:
            figures["without_counterparts"] = _counterpart(without)
    else:
        figures = {
            "layer": before.areas[work.turn.layer].layer,
            "neurons": list(work.turn.neurons),
            "factor": work.turn.factor,
            "before": asdict(work.before),
            "after": asdict(work.after),
            "random": [asdict(outcome) for outcome in work.random],
        }
    return {**result, "repair": figures}


def _standing(standing: FairnessMeasurement) -> Json:
    rate, search = standing.rate, standing.search
    return {
        "rate": rate.rate,
        "rate_interval": list(rate.interval),
        "sampled": rate.sampled,
        "test_rate": standing.test.rate,
        "test_rate_interval": list(standing.test.interval),
        "test_rows": standing.test.sampled,
        "confidence": rate.confidence,
        "auc": {area.layer: {"auc": area.auc, "interval": [area.low, area.high]} for area in standing.areas},
        "accuracy": standing.accuracy,
        "groups": [asdict(group) for group in standing.groups],
        "search": None if search is None else {**asdict(search), "gsr": search.gsr},
        **({} if standing.counterpart is None else {"counterpart": _counterpart(standing.counterpart)}),
    }


def _counterpart(effect: CounterfactualEffect) -> Json:
    return {
        **effect.rate._asdict(),
        "of": effect.of,
        "draws": effect.draws,
        "placebo": effect.placebo._asdict(),
        "effect": effect.effect._asdict(),
        "claimed": effect.claimed,
        "lost": effect.lost,
        "gained": effect.gained,
    }
