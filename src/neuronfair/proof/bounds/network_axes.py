"""A chain of layers over a domain: which values are places, and what each adds to the first layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.limits import check_size
from neuronfair.model.encoding import Encoding, TableEncoding
from neuronfair.model.operators.chain import Affine, Chain, Curve
from neuronfair.proof.bounds.crown import Crown
from neuronfair.proof.bounds.lines import Unprovable
from neuronfair.proof.bounds.margins import Margins
from neuronfair.proof.bounds.rounding import errors_of
from neuronfair.proof.boxes.space import Axis, Space

MOST_PLACES = 5_000  # of an attribute whose values have no order to the network
LISTED = 1 << 17  # codes up to which the numbers of all are looked at


@dataclass(frozen=True)
class _Read:
    """An attribute as the network reads it."""

    axis: Axis
    effects: Tensor  # (features, neurons) what a place more, or each place, adds to the first layer
    first: Tensor  # (neurons,) what the first place of a linear axis adds
    size: Tensor  # (inputs,) how large the network's inputs can be by it, without sign


def crown_of(
    chain: Chain,
    encoding: Encoding,
    domain: TableDomain,
    classes: Sequence[Tensor],
    question: Margins,
    device: torch.device,
) -> Crown:
    """Return the bounds of a chain. `classes` says which codes of each attribute rules tell apart; -1: outside."""
    affines = [Affine(a.weight.cpu(), a.bias.cpu()) for a in chain.affines]
    curves = list(chain.curves)
    last = affines.pop()
    matrix = question.matrix
    affines.append(Affine(matrix @ last.weight, matrix @ last.bias + question.offset))
    if question.squash:
        one = torch.ones(1, 1, dtype=torch.float64)
        curves.append(Curve("sigmoid"))
        affines.append(Affine(one, torch.zeros(1, dtype=torch.float64)))
    base = torch.zeros(len(domain.attributes), dtype=torch.int64)
    free = [c for c in range(len(domain.attributes)) if c not in domain.sensitive_columns]
    slope = _slope(affines)
    read = [_read(encoding, base, c, classes[c], affines[0].weight, slope) for c in free]
    rows = base.repeat(len(domain.sensitive_values), 1)
    rows[:, list(domain.sensitive_columns)] = domain.sensitive_values
    inputs = _numbers(encoding, rows)
    first = affines[0]
    start = first(inputs) + sum((r.first for r in read), torch.zeros(len(first.bias), dtype=torch.float64))
    largest = sum((r.size for r in read), inputs.abs().amax(0))
    # Weights may be off by a rounding of the bias, too, for each input: see rounding.
    unread = not bool(((inputs - inputs[:1]).abs().amax(0) @ first.weight.abs().T).any())
    size = largest @ first.weight.abs().T + first.bias.abs() * (1 + largest.sum())
    affines[0] = Affine(torch.cat([r.effects for r in read]).T.contiguous(), first.bias)
    sizes = list(affines)
    if len(chain.affines) > 1:  # the model rounds its scores one by one, however near they are to each other
        both = Affine(matrix.abs() @ last.weight.abs(), matrix.abs() @ last.bias.abs() + question.offset.abs())
        sizes[len(chain.affines) - 1] = both
    rounding = errors_of(sizes, curves, size)
    space = Space(tuple(r.axis for r in read), device)
    return Crown(
        space,
        tuple(Affine(a.weight.to(device), a.bias.to(device)) for a in affines),
        start.to(device),
        tuple(curves),
        tuple(error.to(device) for error in rounding),
        unread,
    )


def _read(encoding: Encoding, base: Tensor, column: int, classes: Tensor, weight: Tensor, slope: Tensor) -> _Read:
    codes = (classes >= 0).nonzero()[:, 0]
    at_base = _numbers(encoding, base[None])[0]

    def added(some: Tensor) -> Tensor:
        rows = base.repeat(len(some), 1)
        rows[:, column] = some
        return (_numbers(encoding, rows) - at_base) @ weight.T

    def size(some: Tensor) -> Tensor:
        rows = base.repeat(len(some), 1)
        rows[:, column] = some
        return _numbers(encoding, rows).abs().amax(0) + at_base.abs()

    ends = codes[[0, len(codes) // 2, -1]]
    unbroken = int(codes[-1] - codes[0]) + 1 == len(codes)
    two = len(codes) == 2  # which always lie on a line
    if unbroken and (two or (len(codes) > 2 and _is_line(encoding, column, codes, added))):
        first, _, last = added(ends)
        step = (last - first) / (len(codes) - 1)
        if bool(step.any()):
            place = torch.where(classes >= 0, torch.arange(len(classes)) - codes[0], -1)
            axis = Axis(column, place, codes, torch.ones_like(codes), True)
            return _Read(axis, step[None], first, size(ends))
    if len(codes) > LISTED:
        number = isinstance(encoding, TableEncoding) and not bool(encoding.is_block[column])
        if number and bool((added(ends) == added(ends)[:1]).all()):
            effects, inverse = added(codes[:1]), torch.zeros_like(codes)
        else:
            raise Unprovable(f"an attribute has {len(codes):,} values that it reads one by one; {LISTED:,} at most")
    else:
        check_size(len(codes) * (weight.shape[1] + weight.shape[0]), "the values of an attribute", times=24)
        effects, inverse = torch.unique(added(codes), dim=0, return_inverse=True)
    together, place_of = torch.unique(classes[codes] * len(effects) + inverse, return_inverse=True)
    if len(together) > MOST_PLACES:
        raise Unprovable(f"an attribute has {len(together):,} values that it reads one by one; {MOST_PLACES:,} at most")
    own = effects[together % len(effects)]
    order = torch.argsort(own @ slope, stable=True)
    alike = (together // len(effects))[order]
    order = order[torch.argsort(alike, stable=True)]  # those that rules treat alike side by side
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    place = torch.full_like(classes, -1)
    place[codes] = rank[place_of]
    example = torch.empty_like(order)
    example[rank[place_of]] = codes
    axis = Axis(column, place, example, torch.bincount(rank[place_of], minlength=len(order)), False)
    largest = size(codes) if len(codes) <= LISTED else size(ends)
    return _Read(axis, own[order], torch.zeros(weight.shape[0], dtype=torch.float64), largest)


def _is_line(encoding: Encoding, column: int, codes: Tensor, added: Callable[[Tensor], Tensor]) -> bool:
    """Return whether the numbers of codes lie on a line."""
    if isinstance(encoding, TableEncoding):
        attribute = encoding.attributes[column]
        return not bool(encoding.is_block[column]) and (attribute.empty is None or attribute.empty not in codes[-1:])
    if len(codes) > LISTED:
        return False
    all_of = added(codes)
    step = (all_of[-1] - all_of[0]) / (len(codes) - 1)
    line = all_of[0] + step * torch.arange(len(codes), dtype=torch.float64)[:, None]
    return torch.allclose(line, all_of, rtol=1e-13, atol=1e-13 * float(all_of.abs().max()))


def _numbers(encoding: Encoding, rows: Tensor) -> Tensor:
    return encoding.encode(rows.to(encoding.device), torch.float64).flatten(1).cpu()


def _slope(affines: Sequence[Affine]) -> Tensor:
    """Return about how much each neuron of the first layer adds to the first margin: the network without its curves."""
    product = torch.eye(len(affines[0].bias), dtype=torch.float64)
    for affine in affines[1:]:
        product = affine.weight @ product
    return product[0]
