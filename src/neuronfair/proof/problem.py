"""A model and a domain as what a prover takes: axes of positions, bounds of margins, and the records there are."""

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

MAX_VALUES = 10_000_000  # of one attribute
BOUNDARY_TOLERANCE = 1e-9  # how near to the boundary the score of a network in float64 says nothing
MEMBERS_PER_PASS = 1 << 18  # records and twins that are evaluated at once
MAX_ENUMERATED_RECORDS = 5_000_000  # records of a model whose inside is not known
Bounder = Crown | TreeBounds  # whose margins can be bounded, with one or several strategies


@dataclass(frozen=True)
class ProofProblem:
    """What is proved about: the records of a region, and a model that decides on them."""

    domain: TableDomain
    decision: Decision
    condition: str
    space: Space
    valid_records: ValidRecords
    margins: Margins
    compute_margins: Callable[[Tensor], Tensor]  # of records at points (n, axes), with every sensitive value
    slack: Tensor  # how far these may be off
    bounder: Bounder | None  # None: the records are enumerated
    method: str

    @cached_property
    def count(self) -> int:
        """How many records there are, exactly."""
        return sum(self.valid_records.count(self.space, self.valid_records.boxes, self.valid_records.pattern))

    @cached_property
    def total_share(self) -> Tensor:
        """All records as a share of all combinations of codes, about."""
        return self.valid_records.share(self.space, self.valid_records.boxes, self.valid_records.pattern).sum()

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.space.device


def build_problem(
    model: OpenedModel | Model,
    domain: TableDomain,
    *,
    decision: Decision | None = None,
    condition: str = "",
    device: str | torch.device = "cpu",
) -> ProofProblem:
    """Return a model ready for a proof; one about which nothing can be proved is refused with the reason.

    Networks that are chains of layers and ensembles of trees are bounded; the records of other models are enumerated if
    there are few enough.
    """
    opened_model = model if isinstance(model, OpenedModel) else None
    inner_model: Model = model.model if isinstance(model, OpenedModel) else model
    decision = decision or (opened_model.decision if opened_model is not None else Decision())
    domain = domain.to("cpu")
    oversized = next((a.name for a in domain.attributes if a.size > MAX_VALUES), None)
    if oversized is not None:
        raise Unprovable(f"attribute '{oversized}' has more than {MAX_VALUES:,} values. Use a larger step")
    if domain.has_bands:
        raise Unprovable("a sensitive attribute is in bands, which are for the attribute-flip test only")
    if len(domain.sensitive) == len(domain.attributes):
        raise Unprovable("all attributes are sensitive, so everybody is a twin of everybody. Ask the model about all")
    allowed = allowed_codes(domain, condition)
    classes = refine_classes(domain, allowed)
    device = torch.device(device)
    try:
        bounder, margins, method = _build_bounder(opened_model, inner_model, domain, classes, decision, device)
    except ModelError as error:
        return _build_enumerable(inner_model, domain, allowed, classes, decision, condition, one_line(error))
    records = _find_comparable_records(domain, Space(bounder.space.axes), allowed).to(device)
    space, slack = bounder.space, bounder.slack
    return ProofProblem(
        domain, decision, condition, space, records, margins, bounder.compute_margins, slack, bounder, method
    )


def _build_bounder(
    opened_model: OpenedModel | None,
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
    if opened_model is not None and opened_model.trees is not None:
        forest = opened_model.trees()
        margins = build_margins(decision, model.outputs, forest.link)
        return build_tree_bounds(forest, domain, classes, margins, device), margins, "bounds of trees"
    raise Unprovable("its inside is not known")


def _find_comparable_records(domain: TableDomain, space: Space, allowed: Sequence[Tensor]) -> ValidRecords:
    """Return the records of a region; rules that leave no record a twin are refused, as no decision could flip."""
    records = find_valid_records(domain, space, allowed)
    if bool(records.valid.any()) and not bool((records.valid.sum(1) > 1).any()):
        names = ", ".join(domain.sensitive)
        raise Unprovable(f"the rules leave nobody another value of {names}, so there is nobody to compare with")
    return records


def ignores_sensitive(domain: TableDomain) -> bool:
    """Return whether models are given no sensitive attribute: then no decision can flip."""
    return not any(domain.attributes[column].is_input for column in domain.sensitive_columns)


def _build_enumerable(
    model: Model,
    domain: TableDomain,
    allowed: Sequence[Tensor],
    classes: Sequence[Tensor],
    decision: Decision,
    condition: str,
    reason: str,
) -> ProofProblem:
    """Return a model whose records can be enumerated, or refuse it."""
    columns = (column for column in range(len(domain.attributes)) if column not in domain.sensitive_columns)
    space = Space(tuple(_list_positions(column, classes[column]) for column in columns))
    records = _find_comparable_records(domain, space, allowed)
    margins = build_margins(decision, model.outputs, "none")
    tolerance = BOUNDARY_TOLERANCE if isinstance(model, Network) else 0.0
    slack = torch.full((len(margins.matrix),), tolerance, dtype=torch.float64)
    method = "attribute not given" if ignores_sensitive(domain) else "enumeration"
    compute_margins = _make_score_margins(model, domain, decision, space, margins)
    problem = ProofProblem(domain, decision, condition, space, records, margins, compute_margins, slack, None, method)
    if problem.count > MAX_ENUMERATED_RECORDS and not ignores_sensitive(domain):
        raise Unprovable(
            f"nothing can be proved about this model: {reason}; and its {problem.count:,} people are more than can be "
            f"enumerated ({MAX_ENUMERATED_RECORDS:,}). Name a region with --where"
        )
    return problem


def _make_score_margins(
    model: Model, domain: TableDomain, decision: Decision, space: Space, margins: Margins
) -> Callable[[Tensor], Tensor]:
    """Return the function that gives the margins of records at points by the model's own scores."""
    exact_model = model.double()
    by_class = not isinstance(model, Network) and decision.kind != "tolerance"  # a black box means a tie, too
    class_count = max(2, decision.classes(model.outputs))
    pairs = build_margins(Decision(), class_count, "none").matrix

    def compute_margins(points: Tensor) -> Tensor:
        rows = build_rows(domain, space, points)
        scores = exact_model.scores(rows.flatten(0, 1).to(model.encoding.device)).cpu().double()
        scores = scores.view(*rows.shape[:2], -1)
        if by_class:
            return functional.one_hot(decision.decide(scores), class_count).double() @ pairs.T
        return margins.compute(scores)

    return compute_margins


def build_rows(domain: TableDomain, space: Space, points: Tensor) -> Tensor:
    """Return records at points (n, axes) with every sensitive value as rows of codes: (n, values, attributes)."""
    values = domain.sensitive_values.to(points.device)
    rows = torch.zeros(len(points), len(values), len(domain.attributes), dtype=torch.int64, device=points.device)
    for axis_index, axis in enumerate(space.axes):
        rows[:, :, axis.column] = axis.codes.to(points.device)[points[:, axis_index]][:, None]
    rows[:, :, list(domain.sensitive_columns)] = values
    return rows


def locate_rows(problem: ProofProblem, rows: Tensor) -> Tensor:
    """Return the points of rows of codes, (n, axes), on the CPU; -1 throughout for a row that is not in the region."""
    domain, rows = problem.domain, rows.cpu().long()
    has_codes = ((rows >= 0) & (rows < domain.sizes)).all(1)
    rows = torch.where(has_codes[:, None], rows, 0)
    points = torch.stack([axis.position_of_code.cpu()[rows[:, axis.column]] for axis in problem.space.axes], 1)
    in_region = has_codes & domain.valid(rows) & (points >= 0).all(1) & _has_value_in_region(problem, rows)
    return torch.where(in_region[:, None], points, -1)


def _has_value_in_region(problem: ProofProblem, rows: Tensor) -> Tensor:
    """Return which rows have sensitive values that belong to the region."""
    values, in_region = problem.domain.sensitive_values.cpu(), problem.valid_records.in_region.any(0).cpu()
    has_value = torch.zeros(len(rows), dtype=torch.bool)
    for value in values[in_region]:
        has_value |= (rows[:, list(problem.domain.sensitive_columns)] == value).all(1)
    return has_value


def _list_positions(column: int, classes: Tensor) -> Axis:
    """Return an axis with one position for every code of the region."""
    codes = (classes >= 0).nonzero()[:, 0]
    position_of_code = torch.full_like(classes, -1)
    position_of_code[codes] = torch.arange(len(codes))
    return Axis(column, position_of_code, codes, torch.ones_like(codes), bool(len(codes) == codes[-1] - codes[0] + 1))


def enumerate_records(problem: ProofProblem, boxes: Boxes, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many combinations of codes do not flip, and how many do: int64 (n,) each.

    Only axes of which a box has several positions are counted: with the others each count multiplies. Records whose
    margin is within rounding of the boundary are neither.
    """
    counts = torch.zeros(2, len(boxes), dtype=torch.int64, device=boxes.low.device)
    per_pass = max(1, MEMBERS_PER_PASS // problem.valid_records.valid.shape[1])
    groups = ((count_points(boxes).long().cumsum(0) - 1) // per_pass).cpu()
    for part in torch.split(torch.arange(len(boxes), device=boxes.low.device), torch.bincount(groups).tolist()):
        if not len(part):
            continue
        part_boxes = boxes[part]
        owner, points = enumerate_points(part_boxes)
        weight = torch.ones_like(owner)
        for axis, _, _ in problem.space.tables:
            count = problem.space.axes[axis].count.to(owner.device)[points[:, axis]]
            weight = weight * torch.where((part_boxes.high > part_boxes.low)[owner, axis], count, 1)
        valid = problem.valid_records.valid[pattern[part][owner]]
        zero = torch.zeros(len(part), dtype=torch.int64, device=owner.device)
        for kind, decided in enumerate(problem.margins.decide(problem.compute_margins(points), problem.slack, valid)):
            counts[kind, part] = zero.scatter_add(0, owner, torch.where(decided, weight, 0))
    return counts[0], counts[1]


def describe_box(problem: ProofProblem, low: Tensor, high: Tensor) -> str:
    """Return the conditions of a box and of its region, as `--where` takes them; an empty text has no condition."""
    allowed, sensitive = allowed_codes(problem.domain, problem.condition), problem.domain.sensitive_columns
    masks = {column: allowed[column].numpy() for column in sensitive if not bool(allowed[column].all())}
    for axis_index, axis in enumerate(problem.space.axes):
        positions = axis.position_of_code.cpu().numpy()
        if (int(low[axis_index]), int(high[axis_index])) != (0, len(axis) - 1) or not (positions >= 0).all():
            masks[axis.column] = (positions >= int(low[axis_index])) & (positions <= int(high[axis_index]))
    attributes = problem.domain.attributes
    text = " and ".join(_describe_codes(attributes[column], mask) for column, mask in masks.items())
    try:
        codes = allowed_codes(problem.domain, text)
        if all(np.array_equal(codes[column].numpy(), mask) for column, mask in masks.items()):
            return text
    except DomainError:
        pass
    return ", ".join(format_condition(attributes[column], mask) for column, mask in masks.items())


def _describe_codes(attribute: Attribute, mask: npt.NDArray[np.bool_]) -> str:
    """Return the condition that some codes of an attribute meet: a comparison, or a list of values."""
    name, codes, last = _quote(attribute.name), np.flatnonzero(mask), attribute.grid_size - 1
    first, end = int(codes[0]), int(codes[-1])
    if attribute.is_ordered and not attribute.values and len(codes) == end - first + 1 and end <= last:
        low, high = (_quote(str(attribute.value(code))) for code in (first, end))
        if first == end:
            return f"{name} == {low}"
        ends = [f"{name} >= {low}"] * (first > 0) + [f"{name} <= {high}"] * (end < last or attribute.size > last + 1)
        return " and ".join(ends)
    others = np.flatnonzero(~mask)
    negated, listed = ("not ", others) if 0 < len(others) < len(codes) else ("", codes)
    return f"{name} {negated}in [{', '.join(_quote(str(attribute.value(int(code)))) for code in listed)}]"


def _quote(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return word if re.fullmatch(r"[\w.+-]+", word) and word.lower() != "and" else f'"{escaped}"'
