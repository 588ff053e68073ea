"""Attributes that no model is given: readers see a domain without them, and what they open takes rows with them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from neuronfair.domain.data import limited
from neuronfair.domain.table import TableDomain
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.forest import Forest
from neuronfair.model.network import Network
from neuronfair.model.open.opened import Opened, Request
from neuronfair.words import listed


def of_inputs(request: Request) -> Request:
    """Return what is asked of a reader: the same, about the attributes that the model is given."""
    domain, kept = request.domain, _given(request.domain)
    if len(kept) == len(domain.attributes):
        return request
    varied = [domain.names[column] for column in kept if domain.attributes[column].size > 1]
    if not varied:
        raise request.error("every attribute that it would be given has one value only")
    # A domain has sensitive attributes; readers do not ask which.
    inputs = limited(domain.with_sensitive(varied[0]), [domain.names[column] for column in kept])
    outside = tuple(name for name in domain.names if name not in inputs.names)
    return replace(request, domain=inputs, rows=request.rows[:, kept], outside=outside)


def with_outside(request: Request, opened: Opened) -> Opened:
    """Return what a reader has opened for `of_inputs(request)` as a model of the rows of the whole domain."""
    domain, kept = request.domain.to(request.device), _given(request.domain)
    model = opened.model
    if len(kept) == len(domain.attributes):
        return opened
    outside = [name for column, name in enumerate(domain.names) if column not in kept]
    opened = replace(opened, note=f"{opened.note} It is not given {listed(outside)}.")
    refit = opened.refit
    if refit is not None:
        again = refit
        refit = lambda rows, labels, seed: with_outside(request, again(rows[:, kept], labels, seed))  # noqa: E731
    if isinstance(model, Network):
        assert isinstance(model.encoding, TableEncoding)
        read = dict(zip(kept, model.encoding.attributes, strict=True))
        attributes = [read.get(column, attribute) for column, attribute in enumerate(domain.attributes)]
        encoding = TableEncoding(attributes, model.encoding.device)
        network = Network(model.module, encoding, layers=None if model.layers else ())
        return replace(opened, model=network, refit=refit)
    ask, trees = model.ask, opened.trees
    found = replace(opened, model=BlackBox(lambda rows: ask(rows[:, kept]), domain), refit=refit)
    return found if trees is None else found.with_trees(lambda: _widened(trees(), domain, kept))


def _given(domain: TableDomain) -> list[int]:
    return [column for column, attribute in enumerate(domain.attributes) if attribute.given]


def _widened(forest: Forest, domain: TableDomain, kept: list[int]) -> Forest:
    """Return trees over the columns that are given as trees over all: of the others, all codes are one cell."""
    own = dict(zip(kept, forest.cells, strict=True))
    alike: list[Tensor] = [torch.zeros(a.size, dtype=torch.int64) for a in domain.attributes]
    place = torch.tensor(kept)[forest.attribute.clamp(min=0)]
    return replace(
        forest,
        attribute=torch.where(forest.attribute < 0, -1, place),
        cells=tuple(own.get(column, cell) for column, cell in enumerate(alike)),
    )
