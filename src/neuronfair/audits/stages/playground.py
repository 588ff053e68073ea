"""What a page needs to let its reader try the model: the model itself, the attributes, and people to begin with."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.domain.rules import RuleBook
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.model.decision import DecisionKind
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.forest import Forest, Link
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.operators.chain import Chain, chain_of

MAX_RECORDS = 200  # of the table, at most
LARGEST = 1 << 20  # bytes of a model
DAYS = 20_000  # dates, or numbers of which some cells are empty, that are listed one by one, at most
CLOSE = 1e-5  # what a page computes must be as near as this to the model's own scores
Stretches = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Field:
    """An attribute, as far as a page must know it."""

    name: str
    sensitive: bool
    values: tuple[str, ...]  # labels; else numbers:
    low: float
    step: float
    size: int


@dataclass(frozen=True)
class Matrix:
    """float32 numbers, row by row, in base64."""

    rows: int
    columns: int
    numbers: str


@dataclass(frozen=True)
class PlaygroundLayer:
    """An affine map, and the curve behind it; none behind the last."""

    weight: Matrix
    bias: tuple[float, ...]
    curve: str | None = None
    leak: float = 0.0


@dataclass(frozen=True)
class PlaygroundInput:
    """How an attribute becomes numbers: one, factor · code + shift, or a block with a 1 at its code."""

    offset: int
    block: bool
    factor: float
    shift: float
    empty: int | None = None  # the code of an empty cell, which becomes another number
    filled: float = 0.0


@dataclass(frozen=True)
class PlaygroundTrees:
    """All nodes; a leaf has attribute -1. `sides` are strings of 0 and 1, one for each cell: 1 goes left."""

    roots: tuple[int, ...]
    attribute: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[tuple[float, ...], ...]  # empty for an inner node
    sides: tuple[str, ...]
    cells: tuple[Stretches, ...]  # per attribute: from which code on which cell, in turn
    base: tuple[float, ...]


@dataclass(frozen=True)
class Law:
    """A rule: conditions on attributes, by the codes from which on they are met (1) or not (0), in turn."""

    name: str
    when: tuple[tuple[int, Stretches], ...]
    then: tuple[tuple[int, Stretches], ...]


@dataclass(frozen=True)
class Playground:
    """Everything that the page's script reads."""

    fields: tuple[Field, ...]
    classes: tuple[str, ...]
    decision: DecisionKind
    limit: float  # the threshold, or the tolerance
    shown: int  # the class whose probability is shown: the favourable one, or the last
    people: tuple[tuple[int, ...], ...]  # rows of the table, as codes
    laws: tuple[Law, ...]
    link: Link  # from the model's last numbers to its scores
    inputs: tuple[PlaygroundInput, ...] = ()
    layers: tuple[PlaygroundLayer, ...] = ()
    trees: PlaygroundTrees | None = None


def playground(opened: Opened, data: Dataset, *, seed: int = 0) -> Playground:
    """Return what lets a page compute the model's scores; a model that no page can hold is refused with the reason."""
    domain, model = data.domain.to("cpu"), opened.model
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:MAX_RECORDS]
    people = domain.clip(data.rows[order.to(data.rows.device)].cpu().long())
    drawn = domain.sample(MAX_RECORDS, torch.Generator().manual_seed(seed))
    tried = torch.cat([people, drawn])
    try:
        trees: PlaygroundTrees | None = None
        inputs: tuple[PlaygroundInput, ...] = ()
        layers: tuple[PlaygroundLayer, ...] = ()
        if isinstance(model, Network) and isinstance(model.encoding, TableEncoding):
            chain = chain_of(model, tried.to(model.device))
            link: Link = chain.end
            ours = chain.scores(model.encoding.encode(tried.to(model.device), torch.float64))
            inputs, layers = _inputs(model.encoding), _layers(chain)
            size = sum(len(layer.weight.numbers) for layer in layers)
        elif opened.trees is not None:
            forest = opened.trees()
            link, ours, trees = forest.link, forest.scores(tried), _trees(forest)
            size = sum(map(len, trees.sides)) + 24 * len(trees.sides)
        else:
            raise ModelError("it is neither a network nor trees whose nodes are known")
        if size > LARGEST:
            raise ModelError(f"it takes {size / 2**20:.1f} MB, and a page may hold a model of 1 MB")
        theirs = model.double().scores(tried.to(model.encoding.device)).cpu()
        if not torch.allclose(ours.cpu(), theirs, rtol=CLOSE, atol=CLOSE):
            raise ModelError("its scores could not be reproduced")
        fields = tuple(_field(domain, column) for column in range(len(domain.attributes)))
    except ModelError as error:
        raise ModelError(f"--interactive: the model cannot be put into the page: {error}") from error
    classes = domain.target.classes if domain.target is not None else ()
    return Playground(
        fields=fields,
        classes=classes,
        decision=opened.decision.kind,
        limit=opened.decision.value,
        shown=classes.index(domain.favourable) if domain.favourable else max(1, len(classes) - 1),
        people=tuple(map(tuple, people.tolist())),
        laws=_laws(domain),
        link=link,
        inputs=inputs,
        layers=layers,
        trees=trees,
    )


def _field(domain: TableDomain, column: int) -> Field:
    """Return an attribute; one that is not all numbers, or dates, as labels."""
    a = domain.attributes[column]
    values = a.values
    if not values and (a.date is not None or a.empty is not None):
        if a.size > DAYS:
            raise ModelError(f"attribute '{a.name}' has too many values with dates or empty cells to list them")
        values = tuple(str(a.value(code)) for code in range(a.size))
    return Field(a.name, a.name in domain.sensitive, values, float(a.low), float(a.step), a.size)


def _laws(domain: TableDomain) -> tuple[Law, ...]:
    def told(part: list[tuple[int, Tensor]]) -> tuple[tuple[int, Stretches], ...]:
        return tuple((column, _stretches(table.long())) for column, table in part)

    conditions = RuleBook(domain.attributes, domain.rules).conditions
    return tuple(Law(r.name, told(w), told(t)) for r, (w, t) in zip(domain.rules, conditions, strict=True))


def _inputs(encoding: TableEncoding) -> tuple[PlaygroundInput, ...]:
    inputs = list[PlaygroundInput]()
    for column, (a, (factor, shift)) in enumerate(zip(encoding.attributes, encoding.lines, strict=True)):
        if not a.is_input:
            inputs.append(PlaygroundInput(encoding.width, False, 0.0, 0.0))  # behind the last: nobody reads it
            continue
        offset, block = int(encoding.offset[column]), bool(encoding.is_block[column])
        row = encoding.example[:1].clone()
        row[:, column] = 0 if a.empty is None else a.empty
        filled = float(encoding.encode(row, torch.float64)[0, offset])
        inputs.append(PlaygroundInput(offset, block, factor, shift, None if block else a.empty, filled))
    return tuple(inputs)


def _layers(chain: Chain) -> tuple[PlaygroundLayer, ...]:
    return tuple(
        PlaygroundLayer(
            _matrix(affine.weight),
            tuple(affine.bias.tolist()),
            chain.curves[number].name if number < len(chain.curves) else None,
            chain.curves[number].leak if number < len(chain.curves) else 0.0,
        )
        for number, affine in enumerate(chain.affines)
    )


def _matrix(weight: Tensor) -> Matrix:
    numbers = weight.to("cpu", torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return Matrix(len(weight), weight.shape[1], base64.b64encode(numbers).decode())


def _trees(forest: Forest) -> PlaygroundTrees:
    inner = (forest.attribute >= 0).tolist()
    counts = [int(cell.max()) + 1 for cell in forest.cells]
    return PlaygroundTrees(
        roots=tuple(forest.roots.tolist()),
        attribute=tuple(forest.attribute.tolist()),
        left=tuple(forest.left.tolist()),
        right=tuple(forest.right.tolist()),
        value=tuple(() if i else tuple(v) for i, v in zip(inner, forest.value.tolist(), strict=True)),
        sides=tuple(
            "".join("01"[mark] for mark in side[: counts[a]]) if a >= 0 else ""
            for a, side in zip(forest.attribute.tolist(), forest.side.int().tolist(), strict=True)
        ),
        cells=tuple(map(_stretches, forest.cells)),
        base=tuple(forest.base.tolist()),
    )


def _stretches(cell: Tensor) -> Stretches:
    """Return from which code on which cell follows, where it changes."""
    begins = torch.cat([torch.ones(1, dtype=torch.bool), cell[1:] != cell[:-1]]).nonzero()[:, 0]
    return tuple(zip(begins.tolist(), cell[begins].tolist(), strict=True))
