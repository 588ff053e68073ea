"""Requests to open a model: the file or name, the domain, and the rows to try it on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import limited
from neuronfair.domain.tables.sheet import ColumnType
from neuronfair.errors import ModelError
from neuronfair.formatting import listed
from neuronfair.limits import read_bytes
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding

TRIED = 256  # rows of the table that a model is tried on before it is used
TOLERANCE = 1e-4  # of scores that should be the same


@dataclass(frozen=True)
class ModelFile:
    """The file of a model, or `package.module:name`, and whether it may run a program when opened."""

    source: str
    trust_pickle: bool = field(default=False, kw_only=True)

    @property
    def path(self) -> Path:
        """The source as a file."""
        return Path(self.source)

    @cached_property
    def content(self) -> bytes:
        """The content of the file, read once, so that the bytes that were checked are those that are opened."""
        return read_bytes(self.path)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.content).hexdigest()

    def error(self, what: str) -> ModelError:
        """Return an error that begins with the name of the source."""
        return ModelError(f"{self.source}: {what}")


@dataclass(frozen=True)
class Request(ModelFile):
    """What `wrap_model` opens. Each reader takes a request and ends with `white_box` or `black_box`."""

    domain: TableDomain
    rows: Tensor
    weights: Path | None = None
    device: str = "cpu"
    decision: Decision | None = None
    preprocess: Callable[[Any], Any] | None = None  # from a DataFrame to the inputs of the model
    unused: tuple[str, ...] = ()  # attributes with encode "none", which this domain does not have
    types: Mapping[str, ColumnType] = field(default_factory=dict)  # of the table's columns
    inferred: bool = False  # whether the domain was inferred, so that its encoding is not declared

    @cached_property
    def tried(self) -> Tensor:
        """Rows of the table, evenly spread, random valid rows, and some rows with values out of bounds.

        One more row for each number that may be empty has an empty cell there.
        """
        rows, domain = self.rows.cpu(), self.domain.to("cpu")
        spread = torch.linspace(0, len(rows) - 1, min(TRIED, len(rows))).long()
        beyond = ((rows < 0) | (rows >= domain.sizes)).any(1)
        places = [place for place, attribute in enumerate(domain.attributes) if attribute.empty is not None]
        empty = self.drawn[:1].repeat(len(places), 1)
        empty[range(len(places)), places] = domain.sizes[places] - 1
        return torch.cat([rows[spread], self.drawn, empty[domain.valid(empty)], rows[beyond][:TRIED]])

    @cached_property
    def drawn(self) -> Tensor:
        """Random valid rows, the same for every table."""
        return self.domain.to("cpu").sample(TRIED, torch.Generator().manual_seed(0))

    def widths(self) -> str:
        """Return how many numbers the domain gives to a network, and why so many."""
        domain, width = self.domain, TableEncoding.of(self.domain).width
        blocks = [f"{a.name} {a.size}" for a in domain.attributes if a.encode == "onehot"]
        parts = f" ({', '.join(blocks[:8])}{', …' if len(blocks) > 8 else ''} one-hot, the others 1)" if blocks else ""
        text = f"The domain '{domain.name}' gives {width} numbers a row{parts}"
        return f"{text}{self.fewer(lambda others: TableEncoding(others).width)}; change encode = … in its file"

    def fewer(self, count: Callable[[Sequence[Attribute]], int]) -> str:
        """Return the end of a sentence: the same count without the sensitive attributes."""
        if self.unused:
            return f" without {listed(self.unused)}"
        others = [attribute for attribute in self.domain.attributes if attribute.name not in self.domain.sensitive]
        return f", and {count(others)} without {listed(self.domain.sensitive)}" if others else ""


def restricted_to_inputs(request: Request) -> Request:
    """Return the same request for the attributes that are inputs of the model, without those with encode \"none\"."""
    domain, columns = request.domain, input_columns(request.domain)
    if len(columns) == len(domain.attributes):
        return request
    varied = [domain.names[column] for column in columns if domain.attributes[column].size > 1]
    if not varied:
        raise request.error("every attribute that it reads has one value only")
    # A domain needs sensitive attributes; readers do not use them.
    inputs = limited(domain.with_sensitive(varied[0]), [domain.names[column] for column in columns])
    unused = tuple(name for name in domain.names if name not in inputs.names)
    return replace(request, domain=inputs, rows=request.rows[:, columns], unused=unused)


def input_columns(domain: TableDomain) -> list[int]:
    """Return the columns that are inputs of a model."""
    return [column for column, attribute in enumerate(domain.attributes) if attribute.is_input]
