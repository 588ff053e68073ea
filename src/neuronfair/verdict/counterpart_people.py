"""A few people of the table beside their counterparts: who they are, who they would be, and how both are decided."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronfair.domain.counterpart_fit import with_counterparts
from neuronfair.measure.counterparts import CounterpartEffect
from neuronfair.verdict import words
from neuronfair.verdict.entries import TABLE, CounterpartPerson
from neuronfair.verdict.inquiry import Case
from neuronfair.verdict.worst import partners

SHOWN = 4
LOOK = 400  # people among whom they are looked for


def beside_counterparts(case: Case, effect: CounterpartEffect) -> tuple[CounterpartPerson, ...]:
    """Return people of whose counterparts most are decided otherwise, each with the typical one; of each group in turn.

    Nobody where no effect is claimed: with shuffled groups there would be such people, too.
    """
    if not effect.claimed:
        return ()
    order = effect.shares.argsort(descending=True, stable=True)[:LOOK]
    domain = with_counterparts(case.domain, effect.counterparts)
    people = effect.people[order]
    pairs = partners(replace(case, data=replace(case.data, domain=domain)), people)
    group = domain.combinations.number(people)
    # With a tolerance the two who lie farthest apart may both be counterparts.
    flips = case.decision.differ(pairs.scores, pairs.twin_scores) & (pairs.rows == people).all(1)
    same = (group[:, None] == group) & flips
    turn = torch.where(flips, same.tril(-1).sum(1), len(order))  # who is the first, second, … of a group
    chosen = turn.argsort(stable=True)[: min(SHOWN, int(flips.sum()))]
    table = case.domain.clip(case.data.rows)
    told = []
    for i in chosen.tolist():
        row = int((table == pairs.rows[i]).all(1).nonzero()[0])
        pair = words.Pair(*(part[i] for part in pairs))
        moved = (pair.row != pair.twin).nonzero()[:, 0].tolist()
        named = [*moved, *(c for c in case.telling if c not in moved)]
        person = words.finding(domain, case.decision, pair, named, row, TABLE, case.scale)
        told.append(CounterpartPerson(person, float(effect.shares[order[i]])))
    return tuple(told)
