"""Encodings: from rows of codes to network inputs, from input gradients to moves of attributes, and to seed rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.draws import draw_order
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import Domain
from neuronfair.errors import NeuronFairError
from neuronfair.limits import check_size

ROWS_PER_PASS = 1 << 15
ROWS_PER_PASS_GPU = 1 << 18  # fewer do not use it fully
NUMBERS_PER_PASS = 1 << 20  # on a CPU: they fit into its cache; with 400 columns a pass is a third faster
_CPU = torch.device("cpu")


class Encoding(Protocol):
    """How a model reads rows of codes. It belongs to the model, not to the domain."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the input of one row."""

    @property
    def rows_per_pass(self) -> int:
        """How many rows one pass takes: enough to be fast, few enough for constant memory."""

    @property
    def example(self) -> Tensor:
        """Two rows to try a model on: (2, d)."""

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the network input of rows: (n, *shape)."""

    def effects(self, gradient: Tensor, rows: Tensor, columns: Tensor | None, codes: Tensor) -> Tensor:
        """Return the first-order effect of single moves, from a gradient by the network input: (n, m).

        Without `columns` there is one move of each code in turn.
        """

    def step_uphill(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the codes that one step uphill leads to, perhaps out of their bounds: (n, d)."""

    def step_where_agreed(self, gradient: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        """Return the codes that both gradients lead to, uphill, and the old ones where they disagree: (n, d)."""

    def influence(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return how much one step of each code changes at most, to first order and without sign: (n, d)."""


def split_families(encoding: Encoding, domain: Domain, *tensors: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """Split tensors of one length into parts whose rows, twins included, fill one pass of a model each."""
    rows = encoding.rows_per_pass // len(domain.sensitive_values)
    return tuple(torch.split(t, max(1, rows)) for t in tensors)


class TableEncoding:
    """A fixed map from codes to network inputs: raw numbers, scaled numbers, one-hot blocks, or nothing at all.

    It is linear in every number and a table lookup in every block, so the first-order effect of moving one attribute
    to another value is exact in the gradient: `effects`. A network reads no NaN: an empty cell that is a value of its
    own becomes the attribute's `center`, if that is within its bounds, or else their middle. An attribute with encode
    "none" has no inputs: its line is zero, and its offset is that of another.

    >>> from neuronfair.domain.tables.dataset import catalog_domain
    >>> TableEncoding.of(catalog_domain("adult", "paper")).width
    13
    """

    def __init__(self, attributes: Sequence[Attribute], device: torch.device = _CPU) -> None:
        blocks = [a.encode == "onehot" for a in attributes]
        widths = [a.size if block else int(a.is_input) for a, block in zip(attributes, blocks, strict=True)]
        self.lines = [_find_line(a) for a in attributes]  # factor and shift from a code to a number
        factor, shift = zip(*self.lines, strict=True)
        self.attributes, self.device = tuple(attributes), device
        self.width = sum(widths)
        self.shape = (self.width,)
        on_cpu = device.type == "cpu"
        self.rows_per_pass = min(ROWS_PER_PASS, max(1, NUMBERS_PER_PASS // self.width)) if on_cpu else ROWS_PER_PASS_GPU
        self.is_block = torch.tensor(blocks, device=device)
        starts = [0, *accumulate(widths[:-1])]
        self.offset = torch.tensor([s if width else 0 for s, width in zip(starts, widths, strict=True)], device=device)
        self.size = torch.tensor([a.size for a in attributes], device=device)
        self._empty_cells = [
            (column, a.empty, find_middle(a))
            for column, a in enumerate(attributes)
            if a.empty is not None and a.is_input and not blocks[column]  # a block has an input for it
        ]
        self._lines_by_dtype = {torch.float64: torch.tensor([factor, shift], dtype=torch.float64, device=device)}
        # Whether every attribute is one input, in the same order; then there are no lookups.
        self._is_plain = not any(blocks) and all(widths)
        self._columns = torch.arange(len(attributes), device=device)
        single = [column for column, a in enumerate(attributes) if a.is_input and not blocks[column]]
        self._number_columns = torch.tensor(single, dtype=torch.int64, device=device)
        self._block_columns = self.is_block.nonzero()[:, 0]
        self._number_inputs = self.offset[self._number_columns]
        self._block_offset, self._block_size = self.offset[self._block_columns], self.size[self._block_columns]
        # For every block the inputs of its values, and which of these exist: (blocks, values of the largest block).
        largest = max([1, *(a.size for a, b in zip(attributes, blocks, strict=True) if b)])
        check_size(largest * sum(blocks), "the one-hot blocks of the domain", times=32)
        values = torch.arange(largest, device=device)
        self._exists = values < self._block_size[:, None]
        self._block_inputs = self._block_offset[:, None] + torch.where(self._exists, values, 0)

    @staticmethod
    def of(domain: TableDomain) -> TableEncoding:
        """Return the encoding that a domain file declares: encode, center and scale of its attributes."""
        return TableEncoding(domain.attributes, domain.device)

    @property
    def example(self) -> Tensor:
        """Two rows to try a model on, the first values of all attributes: (2, d)."""
        return torch.zeros(2, len(self.size), dtype=torch.int64, device=self.device)

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the network input of rows, (…, d) codes to (…, width) numbers.

        A code outside a one-hot block leaves the block empty.
        """
        factor, shift = self._lines_as(dtype).unbind(0)
        rows = self._place_empty_cells(rows)
        if self._is_plain:
            return rows.to(dtype) * factor + shift
        x = torch.zeros(*rows.shape[:-1], self.width, dtype=dtype, device=rows.device)
        numbers, blocks = self._number_columns, self._block_columns
        x[..., self._number_inputs] = rows[..., numbers].to(dtype) * factor[numbers] + shift[numbers]
        block_codes = rows[..., blocks].long()
        in_block = (block_codes >= 0) & (block_codes < self._block_size)
        input_index = self._block_offset + torch.where(in_block, block_codes, 0)
        return x.scatter_add_(-1, input_index, in_block.to(dtype))

    def effects(self, gradient: Tensor, rows: Tensor, columns: Tensor | None, codes: Tensor) -> Tensor:
        """Return the first-order effect of each single move on the quantity with this gradient.

        Move m of row i takes the attribute `columns[i, m]` to the code `codes[i, m]`; all are (n, m), the gradient is
        (n, width) and the result is (n, m). Without `columns` there is one move of each attribute in turn.
        """
        factor, simple = self._lines_as(gradient.dtype)[0], self._is_plain and not self._empty_cells
        if columns is None:
            if simple:
                return gradient * factor * (codes - rows)
            columns = self._columns.expand(rows.shape)
        current_codes = rows.gather(1, columns)
        change = codes - current_codes
        if simple:
            return (gradient * factor).gather(1, columns) * change
        block = self.is_block[columns]
        for column, empty, middle in self._empty_cells:
            positions = [torch.where(part == empty, middle, part.double()) for part in (codes, current_codes)]
            change = torch.where(columns == column, positions[0] - positions[1], change).to(gradient.dtype)
        offset = self.offset[columns]
        slope_at_code = gradient.gather(1, offset + torch.where(block, codes, 0))
        slope_at_row = gradient.gather(1, offset + torch.where(block, current_codes, 0))
        return torch.where(block, slope_at_code - slope_at_row, slope_at_row * factor[columns] * change)

    def step_uphill(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the code that the smallest step uphill leads each attribute to: (n, d).

        A number goes one step up or down, perhaps out of its bounds; a block goes to the value with the largest effect.
        Where no step gains anything the code stays.
        """
        codes = rows + self._slopes(gradient).sign().long()
        for column, empty, _ in self._empty_cells:  # no step leads to an empty cell or away from it
            codes[:, column] = torch.where(rows[:, column] == empty, empty, codes[:, column].clamp(max=empty - 1))
        if len(self._block_columns):
            effects = self._block_effects(gradient, rows)
            best = effects.max(2)
            codes[:, self._block_columns] = torch.where(best.values > 0, best.indices, rows[:, self._block_columns])
        return codes

    def step_where_agreed(self, gradient: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        """Return the codes that both gradients lead to, uphill, and the old ones where they disagree: (n, d)."""
        codes = self.step_uphill(gradient, rows)
        return torch.where(codes == self.step_uphill(other, rows), codes, rows)

    def influence(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return how much one step of each attribute changes at most, to first order and without sign: (n, d)."""
        size = self._slopes(gradient).abs()
        if len(self._block_columns):
            effects = self._block_effects(gradient, rows)
            size[:, self._block_columns] = effects.masked_fill(~self._exists, 0.0).abs().amax(2)
        return size

    def _lines_as(self, dtype: torch.dtype) -> Tensor:
        """Return factor and shift of every attribute in a type, cached: (2, d)."""
        if dtype not in self._lines_by_dtype:
            self._lines_by_dtype[dtype] = self._lines_by_dtype[torch.float64].to(dtype)
        return self._lines_by_dtype[dtype]

    def _slopes(self, gradient: Tensor) -> Tensor:
        """Return the slope of each attribute that is a number, per code: (n, d)."""
        return (gradient if self._is_plain else gradient[:, self.offset]) * self._lines_as(gradient.dtype)[0]

    def _place_empty_cells(self, rows: Tensor) -> Tensor:
        """Return the codes with those of empty cells in the middle of their attribute."""
        if not self._empty_cells:
            return rows
        rows = rows.double()
        for column, empty, middle in self._empty_cells:
            rows[..., column] = torch.where(rows[..., column] == empty, middle, rows[..., column])
        return rows

    def _block_effects(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the effect of moving each block to each of its values: (n, blocks, values of the largest block)."""
        per_value = gradient[:, self._block_inputs]
        at_row = per_value.gather(2, rows[:, self._block_columns, None])
        return (per_value - at_row).masked_fill(~self._exists, -torch.inf)


def _find_line(attribute: Attribute) -> tuple[float, float]:
    """Return factor and shift of the straight line from a code to the network's number."""
    if not attribute.is_input:
        return 0.0, 0.0
    low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
    if attribute.encode == "scaled":
        return step / attribute.scale, (low - attribute.center) / attribute.scale
    return step, low


def find_middle(attribute: Attribute) -> float:
    """Return the position of an empty cell among the codes of numbers: the center, or the middle."""
    center = (attribute.center - attribute.low) / attribute.step
    return center if 0 <= center <= attribute.grid_size - 1 else (attribute.grid_size - 1) / 2


SEED_CLUSTERS = 4  # N_c of the paper


def cluster_seeds(encoding: Encoding, rows: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Return rows to search from, taken in turn from the k-means clusters of a table to include all kinds of records.

    Distances are those of the encoding. If there are fewer rows than seeds, rows repeat: their chains draw
    different random numbers.
    """
    if len(rows) == 0:
        raise NeuronFairError("no rows to choose seeds from")
    from sklearn.cluster import KMeans

    points = encoding.encode(rows).cpu().numpy()
    clusters = min(SEED_CLUSTERS, len({point.tobytes() for point in points}))
    labels = torch.from_numpy(KMeans(clusters, n_init=1, random_state=seed).fit_predict(points)).long()
    order = draw_order(len(rows), seed)
    labels = labels[order]
    # The k-th row of its cluster comes in round k; within a round the clusters take turns.
    turn = torch.empty(len(rows), dtype=torch.int64)
    for cluster in range(clusters):
        members = labels == cluster
        turn[members] = torch.arange(int(members.sum()))
    round_robin = order[torch.argsort(turn * clusters + labels)]
    return rows[round_robin[torch.arange(count) % len(rows)].to(rows.device)]
