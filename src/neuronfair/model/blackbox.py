"""Black boxes, models of which only the scores are known, and the protocol of all models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, NeuronFairError, one_line
from neuronfair.model.encoding import Encoding, TableEncoding
from neuronfair.model.forest import Forest


class Model(Protocol):
    """What can be evaluated: a network or a black box."""

    @property
    def encoding(self) -> Encoding:
        """How it reads rows; for a black box, how distances between rows are measured."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of its scores."""

    @property
    def outputs(self) -> int:
        """How many scores it gives for a row."""

    rows_forward: int  # how many rows it has scored so far

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of rows of codes: (n, outputs)."""

    def double(self) -> Model:
        """Return this model computing in float64."""


@contextmanager
def uncounted(model: Model) -> Iterator[None]:
    """Leave the count of scored rows unchanged by what is scored within this context."""
    before = model.rows_forward
    try:
        yield
    finally:
        model.rows_forward = before


def score_in_batches(model: Model, rows: Tensor) -> Tensor:
    """Return the scores of any number of rows, computed in batches of constant memory: (n, outputs)."""
    return torch.cat([model.scores(part) for part in torch.split(rows, model.encoding.rows_per_pass)])


class BlackBox:
    """A function from rows to scores; `BlackBox.of_inputs` takes one of encoded rows, such as `predict_proba`.

    It is called with rows of codes and returns one score per row, or one per class: (n,) or (n, classes). The
    constructor tries it on two rows. Methods that need no gradients can search it; it has no neurons to interpret.

    >>> from neuronfair.domain.tables.dataset import catalog_domain
    >>> older = BlackBox.of_inputs(lambda x: x[:, 0] - 4, catalog_domain("adult", "paper"))
    >>> older.outputs, older.scores(torch.ones(1, 13, dtype=torch.int64)).tolist()
    (1, [[-2.0]])
    """

    dtype = torch.float64

    def __init__(self, predict: Callable[[Tensor], Any], encoding: Encoding | TableDomain) -> None:
        self.predict = predict
        self.encoding: Encoding = TableEncoding.of(encoding) if isinstance(encoding, TableDomain) else encoding
        self.inputs: Callable[[np.ndarray], Any] | None = None  # the same function of encoded rows, where there is one
        self.trees: Callable[[], Forest] | None = None  # makes its trees over codes, where it has trees
        self.rows_forward = 0
        self.outputs = self._compute_scores(self.encoding.example).shape[1]

    @staticmethod
    def of_inputs(predict: Callable[[np.ndarray], Any], encoding: Encoding | TableDomain) -> BlackBox:
        """Return a function of encoded rows, float64 arrays (n, width), as a black box."""
        reader: Encoding = TableEncoding.of(encoding) if isinstance(encoding, TableDomain) else encoding
        box = BlackBox(lambda rows: predict(reader.encode(rows, torch.float64).cpu().numpy()), reader)
        box.inputs = predict
        return box

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of rows: float64, (n, outputs)."""
        if len(rows) == 0:  # many functions refuse an empty table
            return torch.empty(0, self.outputs, dtype=self.dtype, device=rows.device)
        scores = self._compute_scores(rows)
        if scores.shape[1] != self.outputs:
            raise ModelError(f"the black box gave {self.outputs} scores a row at first and {scores.shape[1]} now")
        self.rows_forward += len(rows)
        return scores

    @cached_property
    def cells(self) -> tuple[Tensor, ...] | None:
        """For each attribute the cell of every code: the trees treat codes of one cell alike. None without trees."""
        try:
            return None if self.trees is None else self.trees().cells
        except ModelError:  # too many trees, or preprocessing that combines attributes
            return None

    def double(self) -> BlackBox:
        """Return the same black box: its scores are float64 already."""
        return self

    def _compute_scores(self, rows: Tensor) -> Tensor:
        try:
            scores = as_scores(self.predict(rows.clone()))  # the function may change them
        except NeuronFairError:
            raise
        except Exception as error:
            raise ModelError(f"the black box failed on rows of shape {tuple(rows.shape)}: {one_line(error)}") from error
        if scores.ndim != 2 or len(scores) != len(rows):
            raise ModelError(f"the black box must return {len(rows)} scores or rows of scores, got {scores.shape}")
        return torch.from_numpy(scores.copy()).to(rows.device)  # it may be a view that torch does not support


def as_scores(output: Any) -> np.ndarray:
    """Return scores as float64, (n, outputs); a single score per row may come as (n,)."""
    scores = np.asarray(output, dtype=np.float64)
    return scores[:, None] if scores.ndim == 1 else scores
