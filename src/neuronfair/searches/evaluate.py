"""Whether records get the same decision as their twins: Definition 1, if only the sensitive attributes differ."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.population.counterfactuals import CounterfactualTwins, fit_counterfactuals, with_counterfactuals
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import Domain
from neuronfair.errors import ModelError
from neuronfair.formatting import TwinKind
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision, compute_margins, include_row
from neuronfair.model.encoding import ROWS_PER_PASS, ROWS_PER_PASS_GPU, split_families
from neuronfair.parameters import named_options, renamed_field

MAX_NUMBERS_PER_PASS = 1 << 27  # inputs of a pass at most, where rows are very wide
ROW_MULTIPLE = 16  # rows that a processor computes at a time; it rounds the remaining rows of a batch differently


@dataclass(frozen=True)
class Evaluation:
    """The scores of rows and of all their twins, and which twins get a different decision.

    The codes of the twins are computed on demand: there may be thousands for each row.
    """

    domain: Domain
    decision: Decision
    rows: Tensor  # (n, d)
    family: Tensor  # (n, 1 + k, outputs): the scores of each row, then those of its twins
    valid: Tensor  # (n, k): whether such a twin exists
    twin_differs: Tensor  # (n, k): whether it does and gets a different decision than the row
    discriminates: Tensor  # (n,): whether members of the family get different decisions
    single_twins: Tensor | None = None  # (n, d): the twins themselves, where each row has one
    differs = renamed_field("differs", "twin_explains_finding")

    def __getitem__(self, chosen: Tensor | slice) -> Evaluation:
        """Return the evaluation of some of the rows."""
        names = ("rows", "family", "valid", "twin_differs", "discriminates")
        single_twins = None if self.single_twins is None else self.single_twins[chosen]
        return replace(self, **{name: getattr(self, name)[chosen] for name in names}, single_twins=single_twins)

    @property
    def scores(self) -> Tensor:
        """The scores of the rows: (n, outputs)."""
        return self.family[:, 0]

    @property
    def twin_scores(self) -> Tensor:
        """The scores of the twins: (n, k, outputs)."""
        return self.family[:, 1:]

    @property
    def twins(self) -> Tensor:
        """The twins themselves: (n, k, d)."""
        return self.domain.twins(self.rows).rows

    @property
    def finite(self) -> Tensor:
        """Whether no score is NaN or infinite: bool, ()."""
        return ~(self.family * 0).any()

    @cached_property
    def gaps(self) -> Tensor:
        """How far each twin's scores are from those of its row, negative for a twin that does not exist: (n, k)."""
        return torch.where(self.valid, self.decision.gap(self.family[:, :1], self.family[:, 1:]), -1.0)

    @cached_property
    def twin_explains_finding(self) -> Tensor:
        """Which twins get a different decision than their row; none if the row does not discriminate: bool, (n, k)."""
        return self.twin_differs & self.discriminates[:, None]

    @cached_property
    def partner(self) -> Tensor:
        """The twin to compare each row with, (n,): the farthest of those with another decision, or else of all."""
        if self.single_twins is not None:
            return torch.zeros_like(self.rows[:, 0])
        explains = self.twin_explains_finding
        gaps = torch.where(explains.any(1, keepdim=True) & ~explains, -1.0, self.gaps)
        return gaps.argmax(1)

    @cached_property
    def twin(self) -> Tensor:
        """The row of that partner: (n, d)."""
        return self.domain.member(self.rows, self.partner + 1) if self.single_twins is None else self.single_twins

    @cached_property
    def ends(self) -> Ends:
        """The two ends of each family: how far it reaches to both sides of the boundary, and with which members."""
        exists = include_row(self.valid)
        weights = self.decision.find_margin_weights(self.family, exists)
        margins = compute_margins(self.family, weights)
        high = torch.where(exists, margins, -torch.inf).max(1)
        low = torch.where(exists, margins, torch.inf).min(1)
        return Ends(weights, high.values, low.values, high.indices, low.indices)

    @cached_property
    def pair(self) -> Pair:
        """The two members of each family to compare, with different decisions if possible: the row and its partner.

        With a tolerance, they are the two ends of the family if no twin is too far from the row itself.
        """
        partner = self.partner + 1
        member = torch.zeros_like(partner)
        if self.single_twins is not None:
            return Pair(member, partner, self.family[:, 0], self.family[:, 1])
        if self.decision.kind == "tolerance":
            by_ends = self.discriminates & ~self.twin_explains_finding.any(1)
            partner = torch.where(by_ends, self.ends.lowest, partner)
            member = torch.where(by_ends, self.ends.highest, member)
        indices = torch.arange(len(member), device=member.device)
        # Copies, not views: a pair may be kept for long, and must not keep the whole family.
        return Pair(member, partner, self.family[indices, member], self.family[indices, partner])

    def pairs(self) -> Pairs:
        """Return the rows of these two members, and their scores."""
        member, partner, scores, twin_scores = self.pair
        if self.decision.kind != "tolerance" or self.single_twins is not None:
            return Pairs(self.rows, self.twin, scores, twin_scores)
        return Pairs(self.domain.member(self.rows, member), self.domain.member(self.rows, partner), scores, twin_scores)


class Pair(NamedTuple):
    """Two members of each family, by number (0 is the row itself), and their scores."""

    member: Tensor  # (n,)
    other: Tensor  # (n,)
    scores: Tensor  # (n, outputs)
    twin_scores: Tensor  # (n, outputs)


class Ends(NamedTuple):
    """The two members of each family whose margins lie farthest apart."""

    margin_weights: Tensor  # (n, outputs): see Decision.find_margin_weights
    high: Tensor  # (n,): the highest margin
    low: Tensor  # (n,): the lowest
    highest: Tensor  # (n,): the number of the member that has it; 0 is the row itself
    lowest: Tensor  # (n,)


class Pairs(NamedTuple):
    """Two members of each family as rows, and their scores."""

    rows: Tensor  # (n, d)
    twins: Tensor  # (n, d)
    scores: Tensor  # (n, outputs)
    twin_scores: Tensor  # (n, outputs)


@named_options({"network": "model"})
def evaluate(
    model: Model, domain: Domain, rows: Tensor, decision: Decision | None = None, *, checked: bool = True
) -> Evaluation:
    """Score rows and all their twins and compare the decisions (Definition 1).

    Passes through the model are bounded, so memory does not grow with the columns of the twins. Scores that are NaN
    or infinite are an error; the engine checks for them itself (`checked=False`).
    """
    decision = decision or Decision()
    decision.check(model.outputs)
    max_rows = ROWS_PER_PASS if rows.device.type == "cpu" else ROWS_PER_PASS_GPU
    size = min(max_rows, MAX_NUMBERS_PER_PASS // math.prod(model.encoding.shape)) // len(domain.sensitive_values)
    parts = [_family(model, domain, part) for part in torch.split(rows, in_full_batches(size))]
    family, valid, single_twins = parts[0] if len(parts) == 1 else _join_parts(parts)
    twin_differs = decision.twins_differ(family) & valid
    # Two counterfactual twins of a record that differ from each other say nothing about the record.
    if decision.kind == "tolerance" and domain.twins_are_mutual:
        discriminates = decision.splits(family, valid)
    else:
        discriminates = twin_differs[:, 0] if single_twins is not None else twin_differs.any(1)
    evaluation = Evaluation(domain, decision, rows, family, valid, twin_differs, discriminates, single_twins)
    if checked and not bool(evaluation.finite):
        raise not_finite()
    return evaluation


_Part = tuple[Tensor, Tensor, Tensor | None]


def in_full_batches(size: int) -> int:
    """Return how many rows to take at a time, not more than a size: a multiple of 16, unless that is too many.

    >>> in_full_batches(100), in_full_batches(10), in_full_batches(0)
    (96, 10, 1)
    """
    return max(1, size - size % ROW_MULTIPLE if size > ROW_MULTIPLE else size)


def _family(model: Model, domain: Domain, rows: Tensor) -> _Part:
    """Return the scores of rows and their twins, which twins exist, and the twins if each row has only one."""
    twins, valid = domain.twins(rows)
    family = torch.cat([rows[:, None], twins], 1)  # (n, 1 + k, d)
    scores = model.scores(family.flatten(0, 1)).view(*family.shape[:2], model.outputs)
    return scores, valid, twins[:, 0] if twins.shape[1] == 1 else None


def _join_parts(parts: list[_Part]) -> _Part:
    family, valid, single_twins = zip(*parts, strict=True)
    return torch.cat(family), torch.cat(valid), None if single_twins[0] is None else torch.cat(single_twins)


def not_finite() -> ModelError:
    """Return the error for scores that cannot be compared."""
    return ModelError("the network gives NaN or infinite scores. Check its weights and the scaling of the inputs")


def with_twins(
    domain: TableDomain, rows: Tensor, twins: TwinKind, counterfactuals: CounterfactualTwins | None = None
) -> TableDomain:
    """Return the domain with twins of a kind; a domain with counterfactual twins stays as it is.

    Counterfactual twins are fitted to the rows of the table unless they are given.
    """
    if twins == "flip" or counterfactuals_of(domain) is not None:
        return domain
    return with_counterfactuals(domain, counterfactuals or fit_counterfactuals(domain, rows))


def counterfactuals_of(domain: TableDomain) -> CounterfactualTwins | None:
    """Return the model of a domain's counterfactual twins; None if twins differ in the sensitive attributes only."""
    return domain.twinning if isinstance(domain.twinning, CounterfactualTwins) else None


def count_flips_of_drawn_twins(
    model: Model, domain: TableDomain, rows: Tensor, decision: Decision
) -> tuple[Tensor, Tensor] | None:
    """Return how many of the twins drawn for each record get a different decision, and how many were drawn: (n,) each.

    None without counterfactual twins.
    """
    counterfactuals = counterfactuals_of(domain)
    if counterfactuals is None:
        return None
    parts = [(rows.new_zeros(0), rows.new_zeros(0))]
    for (part,) in zip(*split_families(model.encoding, domain, rows), strict=True):
        scores, flips, drawn_counts = model.scores(part), part.new_zeros(len(part)), part.new_zeros(len(part))
        for twins, valid in counterfactuals.draw(domain, part):
            twin_scores = model.scores(twins.flatten(0, 1)).view(*valid.shape, model.outputs)
            flips += (decision.differ(scores[:, None], twin_scores) & valid).sum(1)
            drawn_counts += valid.sum(1)
        parts.append((flips, drawn_counts))
    all_flips, all_counts = zip(*parts, strict=True)
    return torch.cat(all_flips), torch.cat(all_counts)
