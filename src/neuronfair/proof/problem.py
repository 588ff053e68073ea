"""A model and a domain as what a prover takes: axes of places, bounds of margins, and the records there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.schema.toml import allowed_codes, format_condition
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError, ModelError, Unprovable, one_line
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel
from neuronfair.model.operators import read_chain
from neuronfair.proof.bounds.crown import Crown, build_crown
from neuronfair.proof.bounds.margins import Margins, build_margins
from neuronfair.proof.bounds.space import (
    Axis,
    Boxes,
    Space,
    ValidRecords,
    count_points,
    enumerate_points,
    find_valid_records,
    refine_classes,
)
from neuronfair.proof.bounds.trees import TreeBounds, build_tree_bounds

MOST_VALUES = 10_000_000  # of one attribute
BOUNDARY_TOLERANCE = 1e-9  # how near to the boundary the score of a network in float64 says nothing
MEMBERS_PER_PASS = 1 << 18  # records and twins that are evaluated at once
MOST_ENUMERATED = 5_000_000  # records of a model whose inside is not known
Bounder = Crown | TreeBounds  # whose margins can be bounded, with one or several strategies


@dataclass(frozen=True)
class Problem:
    """What is proved about: the records of a region, and a model that decides on them."""

    domain: TableDomain
    decision: Decision
    condition: str
    space: Space
    records: ValidRecords
    margins: Margins
    compute_margins: Callable[[Tensor], Tensor]  # of records at places (n, axes), with every sensitive value
    slack: Tensor  # how far these may be off
    bounder: Bounder | None  # None: the records are enumerated
    method: str

    @cached_property
    def count(self) -> int:
        """How many records there are, exactly."""
        return sum(self.records.count(self.space, self.records.boxes, self.records.pattern))

    @cached_property
    def whole(self) -> Tensor:
        """All records as a share of all combinations of codes, about."""
        return self.records.share(self.space, self.records.boxes, self.records.pattern).sum()

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.space.device


def problem_of(
    model: OpenedModel | Model,
    domain: TableDomain,
    *,
    decision: Decision | None = None,
    condition: str = "",
    device: str | torch.device = "cpu",
) -> Problem:
    """Return a model ready for a proof; one about which nothing can be proved is refused with the reason.

    Networks that are chains of layers and ensembles of trees are bounded; the records of other models are enumerated if
    there are few enough.
    """
    opened = model if isinstance(model, OpenedModel) else None
    inner: Model = model.model if isinstance(model, OpenedModel) else model
    decision = decision or (opened.decision if opened is not None else Decision())
    domain = domain.to("cpu")
    wide = next((a.name for a in domain.attributes if a.size > MOST_VALUES), None)
    if wide is not None:
        raise Unprovable(f"attribute '{wide}' has more than {MOST_VALUES:,} values. Use a larger step")
    if domain.has_bands:
        raise Unprovable("a sensitive attribute is in bands, which are for the attribute-flip test only")
    if len(domain.sensitive) == len(domain.attributes):
        raise Unprovable("all attributes are sensitive, so everybody is a twin of everybody. Ask the model about all")
    allowed = allowed_codes(domain, condition)
    classes = refine_classes(domain, allowed)
    device = torch.device(device)
    try:
        bounder, margins, method = _bounder(opened, inner, domain, classes, decision, device)
    except ModelError as error:
        return _enumerable(inner, domain, allowed, classes, decision, condition, one_line(error))
    records = _comparable_records(domain, Space(bounder.space.axes), allowed).to(device)
    space, slack = bounder.space, bounder.slack
    return Problem(
        domain, decision, condition, space, records, margins, bounder.compute_margins, slack, bounder, method
    )


def _bounder(
    opened: OpenedModel | None,
    model: Model,
    domain: TableDomain,
    classes: Sequence[Tensor],
    decision: Decision,
    device: torch.device,
) -> tuple[Bounder, Margins, str]:
    """Return the bounds of a network or of trees, the margins of the decision, and the method's name."""
    if isinstance(model, Network):
        chain = read_chain(model, domain.sample(64, torch.Generator().manual_seed(0)))
        margins = build_margins(decision, model.outputs, chain.end)
        return build_crown(chain, model.encoding, domain, classes, margins, device), margins, "bounds of a network"
    if opened is not None and opened.trees is not None:
        forest = opened.trees()
        margins = build_margins(decision, model.outputs, forest.link)
        return build_tree_bounds(forest, domain, classes, margins, device), margins, "bounds of trees"
    raise Unprovable("its inside is not known")


def _comparable_records(domain: TableDomain, space: Space, allowed: Sequence[Tensor]) -> ValidRecords:
    """Return the records of a region; rules that leave no record a twin are refused, as no decision could flip."""
    records = find_valid_records(domain, space, allowed)
    if bool(records.valid.any()) and not bool((records.valid.sum(1) > 1).any()):
        names = ", ".join(domain.sensitive)
        raise Unprovable(f"the rules leave nobody another value of {names}, so there is nobody to compare with")
    return records


def unread(domain: TableDomain) -> bool:
    """Return whether models are given no sensitive attribute: then no decision can flip."""
    return not any(domain.attributes[column].is_input for column in domain.sensitive_columns)


def _enumerable(
    model: Model,
    domain: TableDomain,
    allowed: Sequence[Tensor],
    classes: Sequence[Tensor],
    decision: Decision,
    condition: str,
    why: str,
) -> Problem:
    """Return a model whose records can be enumerated, or refuse it."""
    free = (column for column in range(len(domain.attributes)) if column not in domain.sensitive_columns)
    space = Space(tuple(_axis(column, classes[column]) for column in free))
    records = _comparable_records(domain, space, allowed)
    margins = build_margins(decision, model.outputs, "none")
    off = BOUNDARY_TOLERANCE if isinstance(model, Network) else 0.0
    slack = torch.full((len(margins.matrix),), off, dtype=torch.float64)
    method = "attribute not given" if unread(domain) else "enumeration"
    compute_margins = _margins_by_scores(model, domain, decision, space, margins)
    problem = Problem(domain, decision, condition, space, records, margins, compute_margins, slack, None, method)
    if problem.count > MOST_ENUMERATED and not unread(domain):
        raise Unprovable(
            f"nothing can be proved about this model: {why}; and its {problem.count:,} people are more than can be "
            f"enumerated ({MOST_ENUMERATED:,}). Name a region with --where"
        )
    return problem


def _margins_by_scores(
    model: Model, domain: TableDomain, decision: Decision, space: Space, margins: Margins
) -> Callable[[Tensor], Tensor]:
    """Return the function that gives the margins of records at places by the model's own scores."""
    exact = model.double()
    by_class = not isinstance(model, Network) and decision.kind != "tolerance"  # a black box means a tie, too
    sides = max(2, decision.classes(model.outputs))
    pairs = build_margins(Decision(), sides, "none").matrix

    def compute_margins(places: Tensor) -> Tensor:
        rows = rows_at(domain, space, places)
        scores = exact.scores(rows.flatten(0, 1).to(model.encoding.device)).cpu().double()
        scores = scores.view(*rows.shape[:2], -1)
        if by_class:
            return functional.one_hot(decision.decide(scores), sides).double() @ pairs.T
        return margins.compute(scores)

    return compute_margins


def rows_at(domain: TableDomain, space: Space, places: Tensor) -> Tensor:
    """Return records at places (n, axes) with every sensitive value as rows of codes: (n, values, attributes)."""
    values = domain.sensitive_values.to(places.device)
    rows = torch.zeros(len(places), len(values), len(domain.attributes), dtype=torch.int64, device=places.device)
    for number, axis in enumerate(space.axes):
        rows[:, :, axis.column] = axis.codes.to(places.device)[places[:, number]][:, None]
    rows[:, :, list(domain.sensitive_columns)] = values
    return rows


def places_of(problem: Problem, rows: Tensor) -> Tensor:
    """Return the places of rows of codes, (n, axes), on the CPU; -1 throughout for a row that is not in the region."""
    domain, rows = problem.domain, rows.cpu().long()
    known = ((rows >= 0) & (rows < domain.sizes)).all(1)
    rows = torch.where(known[:, None], rows, 0)
    places = torch.stack([axis.position_of_code.cpu()[rows[:, axis.column]] for axis in problem.space.axes], 1)
    inside = known & domain.valid(rows) & (places >= 0).all(1) & _has_value_inside(problem, rows)
    return torch.where(inside[:, None], places, -1)


def _has_value_inside(problem: Problem, rows: Tensor) -> Tensor:
    """Return which rows have sensitive values that belong to the region."""
    values, some = problem.domain.sensitive_values.cpu(), problem.records.in_region.any(0).cpu()
    result = torch.zeros(len(rows), dtype=torch.bool)
    for value in values[some]:
        result |= (rows[:, list(problem.domain.sensitive_columns)] == value).all(1)
    return result


def _axis(column: int, classes: Tensor) -> Axis:
    """Return an axis with one place for every code of the region."""
    codes = (classes >= 0).nonzero()[:, 0]
    place = torch.full_like(classes, -1)
    place[codes] = torch.arange(len(codes))
    return Axis(column, place, codes, torch.ones_like(codes), bool(len(codes) == codes[-1] - codes[0] + 1))


def enumerated_records(problem: Problem, boxes: Boxes, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many combinations of codes do not flip, and how many do: int64 (n,) each.

    Only axes of which a box has several places are counted: with the others each count multiplies. Records whose margin
    is within rounding of the boundary are neither.
    """
    counts = torch.zeros(2, len(boxes), dtype=torch.int64, device=boxes.low.device)
    per_pass = max(1, MEMBERS_PER_PASS // problem.records.valid.shape[1])
    groups = ((count_points(boxes).long().cumsum(0) - 1) // per_pass).cpu()
    for part in torch.split(torch.arange(len(boxes), device=boxes.low.device), torch.bincount(groups).tolist()):
        if not len(part):
            continue
        some = boxes[part]
        owner, places = enumerate_points(some)
        weight = torch.ones_like(owner)
        for axis, _, _ in problem.space.tables:
            count = problem.space.axes[axis].count.to(owner.device)[places[:, axis]]
            weight = weight * torch.where((some.high > some.low)[owner, axis], count, 1)
        valid = problem.records.valid[pattern[part][owner]]
        zero = torch.zeros(len(part), dtype=torch.int64, device=owner.device)
        for number, who in enumerate(problem.margins.decide(problem.compute_margins(places), problem.slack, valid)):
            counts[number, part] = zero.scatter_add(0, owner, torch.where(who, weight, 0))
    return counts[0], counts[1]


def rule_of(problem: Problem, low: Tensor, high: Tensor) -> str:
    """Return the conditions of a box and of its region, as `--where` takes them; an empty text has no condition."""
    allowed, sensitive = allowed_codes(problem.domain, problem.condition), problem.domain.sensitive_columns
    met = {column: allowed[column].numpy() for column in sensitive if not bool(allowed[column].all())}
    for number, axis in enumerate(problem.space.axes):
        place = axis.position_of_code.cpu().numpy()
        if (int(low[number]), int(high[number])) != (0, len(axis) - 1) or not (place >= 0).all():
            met[axis.column] = (place >= int(low[number])) & (place <= int(high[number]))
    attributes = problem.domain.attributes
    words = " and ".join(_in_words(attributes[column], mask) for column, mask in met.items())
    try:
        codes = allowed_codes(problem.domain, words)
        if all(np.array_equal(codes[column].numpy(), mask) for column, mask in met.items()):
            return words
    except DomainError:
        pass
    return ", ".join(format_condition(attributes[column], mask) for column, mask in met.items())


def _in_words(attribute: Attribute, met: npt.NDArray[np.bool_]) -> str:
    """Return the condition that some codes of an attribute meet: a comparison, or a list of values."""
    name, codes, last = _quoted(attribute.name), np.flatnonzero(met), attribute.grid_size - 1
    first, end = int(codes[0]), int(codes[-1])
    if attribute.is_ordered and not attribute.values and len(codes) == end - first + 1 and end <= last:
        low, high = (_quoted(str(attribute.value(code))) for code in (first, end))
        if first == end:
            return f"{name} == {low}"
        ends = [f"{name} >= {low}"] * (first > 0) + [f"{name} <= {high}"] * (end < last or attribute.size > last + 1)
        return " and ".join(ends)
    others = np.flatnonzero(~met)
    negated, listed = ("not ", others) if 0 < len(others) < len(codes) else ("", codes)
    return f"{name} {negated}in [{', '.join(_quoted(str(attribute.value(int(code)))) for code in listed)}]"


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return word if re.fullmatch(r"[\w.+-]+", word) and word.lower() != "and" else f'"{escaped}"'
