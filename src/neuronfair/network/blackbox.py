"""Models that answer and show nothing of themselves, and what every model has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from neuronfair.errors import ModelError, one_line


class Model(Protocol):
    """Whatever can be judged: a network or a black box."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of numbers it takes."""

    @property
    def outputs(self) -> int:
        """How many scores it gives for a row."""

    @property
    def rows_forward(self) -> int:
        """How many rows it has scored so far."""

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of encoded rows: (n, outputs)."""

    def double(self) -> Model:
        """Return this model computing in float64."""


class BlackBox:
    """A function from encoded rows to scores, such as `predict_proba` of a scikit-learn classifier.

    It is called with a float64 array (n, width) and returns one score per row, or one per class: (n,) or (n, classes).
    `example` is a small batch of encoded rows, tried at once to see that it works. Methods that need no gradients
    can search it; nothing inside it can be interpreted.

    >>> older = BlackBox(lambda x: x[:, 0] - 40, torch.tensor([[39.0, 1.0], [41.0, 0.0]]))
    >>> older.outputs, older.scores(torch.tensor([[45.0, 1.0]])).tolist()
    (1, [[5.0]])
    """

    dtype = torch.float64

    def __init__(self, predict: Callable[[np.ndarray], Any], example: Tensor) -> None:
        self.predict = predict
        self.rows_forward = 0
        self.outputs = self._ask(example).shape[1]

    def scores(self, x: Tensor) -> Tensor:
        """Return what the function says of the rows x: float64, (n, outputs)."""
        if len(x) == 0:  # many functions refuse to be asked about nobody
            return torch.empty(0, self.outputs, dtype=self.dtype, device=x.device)
        scores = self._ask(x)
        if scores.shape[1] != self.outputs:
            raise ModelError(f"the black box gave {self.outputs} scores a row at first and {scores.shape[1]} now")
        self.rows_forward += len(x)
        return scores

    def double(self) -> BlackBox:
        """Return the same black box: it is given float64 already."""
        return self

    def _ask(self, x: Tensor) -> Tensor:
        try:
            given = x.detach().to("cpu", torch.float64, copy=True)  # the function may write into it
            answer = np.asarray(self.predict(given.numpy()), dtype=np.float64)
        except Exception as error:
            raise ModelError(f"the black box failed on rows of shape {tuple(x.shape)}: {one_line(error)}") from error
        answer = answer[:, None] if answer.ndim == 1 else answer
        if answer.ndim != 2 or len(answer) != len(x):
            raise ModelError(f"the black box must return {len(x)} scores or rows of scores, got {answer.shape}")
        return torch.from_numpy(answer.copy()).to(x.device)  # it may be a view that torch cannot hold
