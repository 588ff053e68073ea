"""Counterparts in a search: domains that compare people with them, and how many of somebody's are decided otherwise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.population.counterfactuals import Counterparts, fit_counterparts, with_counterparts
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import TwinKind
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import families


def comparing(
    domain: TableDomain, rows: Tensor, twins: TwinKind, counterparts: Counterparts | None = None
) -> TableDomain:
    """Return a domain whose people are compared with twins of a kind; one that has counterparts stays as it is.

    Counterparts are fitted to the rows of the table if none are given.
    """
    if twins == "flip" or counterparts_of(domain) is not None:
        return domain
    return with_counterparts(domain, counterparts or fit_counterparts(domain, rows))


def counterparts_of(domain: TableDomain) -> Counterparts | None:
    """Return how the counterparts of a domain's people are made; None where twins differ in their group only."""
    return domain.twinning if isinstance(domain.twinning, Counterparts) else None


class Drawn(NamedTuple):
    """How many counterparts were drawn for each person, and how many of them are decided otherwise: (n,) both."""

    otherwise: Tensor
    of: Tensor


def drawn_otherwise(network: Model, domain: TableDomain, rows: Tensor, decision: Decision) -> Drawn | None:
    """Count the drawn counterparts of each person who are decided otherwise; None in a domain without counterparts."""
    counterparts = counterparts_of(domain)
    if counterparts is None:
        return None
    parts = [Drawn(rows.new_zeros(0), rows.new_zeros(0))]
    for (some,) in zip(*families(network.encoding, domain, rows), strict=True):
        own, otherwise, of = network.scores(some), some.new_zeros(len(some)), some.new_zeros(len(some))
        for others, valid in counterparts.drawn(domain, some):
            scores = network.scores(others.flatten(0, 1)).view(*valid.shape, network.outputs)
            otherwise += (decision.differ(own[:, None], scores) & valid).sum(1)
            of += valid.sum(1)
        parts.append(Drawn(otherwise, of))
    return Drawn(*map(torch.cat, zip(*parts, strict=True)))
