"""Counterparts in words: how many would be decided otherwise, whom it hurts, and what carries it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.measure.carriers import Carrier
from neuronfair.measure.counterparts import CounterpartEffect
from neuronfair.measure.moves import Move
from neuronfair.verdict.counterpart import CarrierReport, CounterpartReport, Interval, Legitimate, MoveReport
from neuronfair.words import listed, number, part_of, percent, plain, plural

TOLD, NAMED = 2, 3  # moves in a sentence; carriers in one
ENOUGH = 0.9  # of what all carriers together carry: more names would say little more
PLACEBOS = 20  # shuffles below which a sentence says how few there were


def counterpart_report(
    domain: TableDomain, rows: Tensor, effect: CounterpartEffect, confidence: float
) -> CounterpartReport:
    """Return what the counterparts of a table's people came to, in figures and in words."""
    rate, placebo, change = (Interval(*one) for one in (effect.rate, effect.placebo, effect.effect))
    claimed = effect.claimed
    kept = [(c, a) for c, a in enumerate(domain.attributes) if c not in domain.sensitive_columns]
    moves = sorted(effect.moves, key=lambda move: -move.people)
    return CounterpartReport(
        **vars(rate),
        of=effect.of,
        draws=effect.draws,
        placebo=placebo,
        effect=change,
        claimed=claimed,
        sentence=_sentence(domain, effect),
        placebos=effect.placebos,
        confidence=confidence,
        lost=effect.lost,
        gained=effect.gained,
        moves=tuple(_moves(domain, moves, effect)),
        hurt=_hurt(domain, moves) if claimed and effect.lost is not None else "",
        carriers=tuple(CarrierReport(_names(domain, one), one.share) for one in effect.carriers),
        carried=_carried(domain, effect.carriers) if claimed else "",
        auc=effect.auc,
        told=_told(domain, effect.auc),
        fixed=tuple(a.name for _, a in kept if a.fixed),
        legitimate=tuple(
            Legitimate(a.name, _differs(domain, rows, c, effect.left_out)) for c, a in kept if a.legitimate
        ),
        left_out=tuple(_group(domain, codes) for codes in effect.left_out),
    )


def _sentence(domain: TableDomain, effect: CounterpartEffect) -> str:
    other = "the other" if len(domain.sensitive_values) == 2 else "another"
    few = "" if effect.placebos >= PLACEBOS else f" ({plural(effect.placebos, 'shuffle')} only)"
    flips = f"{percent(effect.rate.rate)} of {plural(effect.of, 'person', 'people')} would be decided otherwise"
    had, shuffled = f"Had they been of {other} group, {flips}", percent(effect.placebo.rate)
    points = f"{_points(effect.effect.rate)} points ({_points(effect.effect.low)} to {_points(effect.effect.high)})"
    if effect.claimed:
        return f"{had}; with shuffled groups {shuffled}{few}. The effect is {points}."
    more = "not clearly more" if effect.effect.rate > 0 else "no more"
    return f"{had}, {more} than with shuffled groups ({shuffled}{few}): no effect is claimed. It is {points}."


def _moves(domain: TableDomain, moves: Sequence[Move], effect: CounterpartEffect) -> Iterator[MoveReport]:
    shuffled = {(move.own, move.other): move for move in effect.placebo_moves}
    for move in moves:
        report = MoveReport(_group(domain, move.own), _group(domain, move.other), move.people, move.flips)
        if effect.lost is not None:  # else no class is favourable
            report = replace(report, lost=move.lost, gained=move.gained)
            placebo = shuffled.get((move.own, move.other))
            if placebo is not None:
                report = replace(report, placebo_lost=placebo.lost, placebo_gained=placebo.gained)
        yield report


def _hurt(domain: TableDomain, moves: Sequence[Move]) -> str:
    """Name the moves that most people, on balance, lose or gain by."""
    clear = sorted(moves, key=lambda move: -abs(move.lost - move.gained) * move.people)[:TOLD]
    told = [
        f"{_group(domain, move.own)} as {_group(domain, move.other)} lose '{domain.favourable}' in "
        f"{percent(move.lost)} of cases and gain it in {percent(move.gained)}"
        for move in clear
    ]
    return f"People with {listed([plain(name) for name in domain.sensitive])} {'; '.join(told)}."


def _carried(domain: TableDomain, carriers: Sequence[Carrier]) -> str:
    """Name the few attributes through which most of the effect goes."""
    most = max((one.share for one in carriers), default=0.0)
    if most <= 0:
        return ""
    named = carriers[:NAMED]
    one = next((one for one in named if one.share >= ENOUGH * most), max(named, key=lambda one: one.share))
    if one.share <= 0:
        return ""
    names = listed([plain(name) for name in _names(domain, one)])
    it = "that" if len(one.columns) == 1 else "these"
    share = part_of(one.share)
    return (
        f"{share[0].upper()}{share[1:]} of the effect goes through {names}: so much is gone if counterparts keep {it}."
    )


def _told(domain: TableDomain, auc: float | None) -> str:
    if auc is None:
        return ""
    by = listed([plain(name) for name in domain.sensitive])
    return f"The model's other inputs tell {by} with an AUC of {auc:.2f} (0.5: not at all, 1: always)."


def _differs(domain: TableDomain, rows: Tensor, column: int, left_out: Sequence[tuple[int, ...]]) -> str:
    """Return how the groups of a table differ in an attribute that counterparts keep; empty cells do not count."""
    attribute = domain.attributes[column]
    numbers, codes = domain.combinations.number(rows), domain.clip(rows)[:, column]
    there = codes < attribute.points
    known = {
        _group(domain, values): codes[there & (numbers == i)].double()
        for i, values in enumerate(domain.sensitive_values.tolist())
        if tuple(values) not in left_out
    }
    known = {name: group for name, group in known.items() if len(group)}
    kept = f"Counterparts keep {plain(attribute.name)}, since it is legitimate"
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


def _names(domain: TableDomain, carrier: Carrier) -> tuple[str, ...]:
    return tuple(domain.names[column] for column in carrier.columns)


def _points(share: float) -> str:
    return percent(share).removesuffix(" %")
