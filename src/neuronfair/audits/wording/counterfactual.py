"""Counterfactual twins in words: how many get a different decision, which group loses, and through what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from neuronfair.audits.report.counterfactual import (
    ASSUMED,
    UNTESTED,
    Assumptions,
    CounterfactualReport,
    Interval,
    MediatorReport,
    MoveReport,
    ResolvingAttribute,
    SensitivityReport,
)
from neuronfair.domain.attribute import graph
from neuronfair.domain.population.trees import caused
from neuronfair.domain.table import TableDomain
from neuronfair.formatting import listed, number, part_of, percent, plain, together
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, Sensitivity
from neuronfair.measure.twin_decisions import Mediator, Move

NAMED = 3  # mediating attributes in a sentence
ENOUGH = 0.9  # of what all carriers together carry: more names would say little more
PLACEBOS = 20  # shuffles below which a sentence says how few there were


def counterfactual_report(
    domain: TableDomain, rows: Tensor, effect: CounterfactualEffect, confidence: float
) -> CounterfactualReport:
    """Return the counterfactual test of a data set as metrics and sentences."""
    rate, placebo, change = (Interval(*one) for one in (effect.rate, effect.placebo, effect.effect))
    claimed = effect.claimed
    kept = [(c, a) for c, a in enumerate(domain.attributes) if c not in domain.sensitive_columns]
    moves = sorted(effect.moves, key=lambda move: -move.people)
    return CounterfactualReport(
        **vars(rate),
        of=effect.of,
        draws=effect.draws,
        placebo=placebo,
        effect=change,
        claimed=claimed,
        sentence=_sentence(domain, effect),
        excess=_excess(effect, confidence),
        placebos=effect.placebos,
        confidence=confidence,
        assumptions=assumptions(domain),
        assumed=f"{ASSUMED[assumptions(domain)]}. {UNTESTED}.",
        lost=effect.lost,
        gained=effect.gained,
        moves=tuple(_moves(domain, moves, effect)),
        hurt=_disadvantaged(domain, moves) if claimed and effect.lost is not None else "",
        carriers=tuple(MediatorReport(_names(domain, one), one.share) for one in effect.mediators),
        carried=_carried(domain, effect.mediators) if claimed else "",
        sensitivity=_sensitivity(domain, effect.sensitivity) if claimed else None,
        auc=effect.auc,
        told=_told(domain, effect.auc),
        fixed=tuple(a.name for _, a in kept if a.fixed),
        legitimate=tuple(
            ResolvingAttribute(a.name, _differs(domain, rows, c, effect.left_out)) for c, a in kept if a.legitimate
        ),
        graph=_graph(domain),
        unmoved=_unmoved(domain),
        without=effect.without,
        left_out=tuple(_group(domain, codes) for codes in effect.left_out),
    )


def assumptions(domain: TableDomain) -> Assumptions:
    """Return what a user declared about causes: a graph, attributes that the group does not change, or nothing."""
    if graph(domain.attributes) is not None:
        return "graph declared"
    return (
        "held fixed" if any(a.fixed for a in domain.attributes if a.name not in domain.sensitive) else "none declared"
    )


def _sentence(domain: TableDomain, effect: CounterfactualEffect) -> str:
    """Return how many twins get a different decision: as a causal statement only where causes were declared."""
    other = "the other" if len(domain.sensitive_values) == 2 else "another"
    rate, declared = percent(effect.rate.rate), assumptions(domain)
    if declared == "none declared":
        place = f"People at the same place of {other} group's distribution"
        said = f"{place} get a different decision in {rate} of cases"
    else:
        by = "by the declared causal graph" if declared == "graph declared" else "with what is fixed held fixed"
        said = f"Had they been of {other} group, {rate} of people would get a different decision, {by}"
    versus = "versus" if effect.claimed else "not clearly more than"
    return f"{said}, {versus} {percent(effect.placebo.rate)} with shuffled groups (permutation baseline)."


def _excess(effect: CounterfactualEffect, confidence: float) -> str:
    """Return the excess with its interval, and how many shuffles the baseline has where they are few."""
    excess, low, high = together(effect.effect.rate, effect.effect.low, effect.effect.high)
    few = "" if effect.placebos >= PLACEBOS else f" The permutation baseline has {effect.placebos} shuffles only."
    none = "" if effect.claimed else " No excess is claimed."
    return f"The excess is {excess} percentage points ({percent(confidence)} CI {low} to {high}).{none}{few}"


def _sensitivity(domain: TableDomain, found: Sensitivity | None) -> SensitivityReport | None:
    if found is None:
        return None
    classes = domain.target.classes if domain.target is not None else ()
    outcome = str(classes[found.outcome]) if found.outcome < len(classes) else f"class {found.outcome}"
    more, less = _group(domain, found.more), _group(domain, found.less)
    sentence = (
        f"At the places of {more} people get '{outcome}' {found.ratio:.2f} times as often as at those of {less}. To "
        f"explain that away, a hidden confounder would have to make both the group and '{outcome}' at least "
        f"{found.e_value:.1f} times as likely (E-value; {found.e_value_low:.1f} at the lower end of the CI)."
    )
    return SensitivityReport(more, less, outcome, found.ratio, found.e_value, found.e_value_low, sentence)


def _graph(domain: TableDomain) -> tuple[str, ...]:
    """Return the declared causal graph, a line for each attribute; nothing where none is declared."""
    if graph(domain.attributes) is None:
        return ()
    return tuple(f"{a.name} <- {', '.join(a.causes or ())}".rstrip() for a in domain.attributes)


def _unmoved(domain: TableDomain) -> str:
    """Return that by the declared graph nothing that twins may change depends on the group; empty if something does."""
    parents = graph(domain.attributes)
    if parents is None:
        return ""
    moved = set(domain.sensitive_columns)
    for column in caused(parents, domain.sensitive_columns):
        attribute = domain.attributes[column]
        if moved & set(parents[column]) and not (attribute.fixed or attribute.legitimate):
            moved.add(column)
    if len(moved) > len(domain.sensitive_columns):
        return ""
    by = listed([plain(name) for name in domain.sensitive])
    empty = "so twins differ in nothing else and this test is empty."
    return f"By the declared causal graph no attribute that twins may change depends on {by}, {empty}"


def _moves(domain: TableDomain, moves: Sequence[Move], effect: CounterfactualEffect) -> Iterator[MoveReport]:
    shuffled = {(move.own, move.other): move for move in effect.placebo_moves}
    for move in moves:
        report = MoveReport(_group(domain, move.own), _group(domain, move.other), move.people, move.flips)
        if effect.lost is not None:  # else no class is favourable
            report = replace(report, lost=move.lost, gained=move.gained)
            placebo = shuffled.get((move.own, move.other))
            if placebo is not None:
                report = replace(report, placebo_lost=placebo.lost, placebo_gained=placebo.gained)
        yield report


def _disadvantaged(domain: TableDomain, moves: Sequence[Move]) -> str:
    """Name the group that most people, on balance, would lose by being in."""
    clear = max(moves, key=lambda move: abs(move.lost - move.gained) * move.people, default=None)
    if clear is None or clear.lost == clear.gained:
        return ""
    own, other = _group(domain, clear.own), _group(domain, clear.other)
    loser = other if clear.lost > clear.gained else own
    return (
        f"Disadvantaged group: {loser}. With {listed([plain(name) for name in domain.sensitive])} {other} instead of "
        f"{own}, people lose '{domain.favourable}' in {percent(clear.lost)} of cases and gain it in "
        f"{percent(clear.gained)}."
    )


def _carried(domain: TableDomain, carriers: Sequence[Mediator]) -> str:
    """Name the few attributes through which most of the excess goes."""
    most = max((one.share for one in carriers), default=0.0)
    if most <= 0:
        return ""
    named = carriers[:NAMED]
    one = next((one for one in named if one.share >= ENOUGH * most), max(named, key=lambda one: one.share))
    if one.share <= 0:
        return ""
    names = listed([plain(name) for name in _names(domain, one)])
    return f"Holding {names} fixed removes {part_of(one.share)} of the excess."


def _told(domain: TableDomain, auc: float | None) -> str:
    if auc is None:
        return ""
    by = listed([plain(name) for name in domain.sensitive])
    return f"The model's other inputs predict {by} with an AUC of {auc:.2f} (0.5: no better than chance)."


def _differs(domain: TableDomain, rows: Tensor, column: int, left_out: Sequence[tuple[int, ...]]) -> str:
    """Return how the groups of a data set differ in an attribute that twins keep; empty cells do not count."""
    attribute = domain.attributes[column]
    numbers, codes = domain.combinations.number(rows), domain.clip(rows)[:, column]
    there = codes < attribute.points
    known = {
        _group(domain, values): codes[there & (numbers == i)].double()
        for i, values in enumerate(domain.sensitive_values.tolist())
        if tuple(values) not in left_out
    }
    known = {name: group for name, group in known.items() if len(group)}
    kept = f"Twins keep {plain(attribute.name)}, which is declared as resolving (legitimate)"
    if not known:
        return f"{kept}."
    if attribute.values:
        shares = {
            name: torch.bincount(group.long(), minlength=attribute.size) / len(group) for name, group in known.items()
        }
        every = torch.stack(list(shares.values()))
        label = int((every.amax(0) - every.amin(0)).argmax())
        figures, what = {name: float(share[label]) for name, share in shares.items()}, attribute.value(label)
        told = [f"for {percent(figures[name])} of {name}" for name in _ends(figures)]
        return f"{kept}: it is {what} {' and '.join(told)}."
    figures = {name: float(attribute.low + attribute.step * group.mean()) for name, group in known.items()}
    told = [f"{number(figures[name])} for {name}" for name in _ends(figures)]
    return f"{kept}: on average it is {' and '.join(told)}."


def _ends(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Return whose figure is largest and whose is smallest; one alone where all are the same group."""
    return tuple(dict.fromkeys((max(figures, key=figures.__getitem__), min(figures, key=figures.__getitem__))))


def _group(domain: TableDomain, codes: Sequence[int]) -> str:
    columns = (domain.attributes[c] for c in domain.sensitive_columns)
    return ", ".join(str(a.value(code)) for a, code in zip(columns, codes, strict=True))


def _names(domain: TableDomain, carrier: Mediator) -> tuple[str, ...]:
    return tuple(domain.names[column] for column in carrier.columns)
