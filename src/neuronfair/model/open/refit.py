"""Fitted estimators, fitted anew in their own framework: the same settings, other rows; and written as they came."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from neuronfair.errors import ModelError, needs, one_line
from neuronfair.model.open.opened import Opened, Refit


def refitting(
    estimator: Any, final: Any, given: Callable[[Tensor], Any], classes: np.ndarray, reopen: Callable[[Any], Opened]
) -> Refit:
    """Return what fits a copy of an estimator to rows and labels; `classes` are its own, in the order of the domain's.

    `final` stands at the end of it, `given` turns rows into what it is given, and `reopen` opens the copy.
    """

    def refit(rows: Tensor, labels: Tensor, seed: int) -> Opened:
        try:
            again = needs("sklearn.base", "sklearn").clone(estimator)
            last = again.steps[-1][1] if hasattr(again, "steps") else again
            if type(final).__module__.startswith("catboost") and hasattr(last, "set_params"):
                last.set_params(allow_writing_files=False)  # or it leaves a folder where the user stands
            with _quiet(seed):
                again.fit(given(rows), classes[labels.cpu().numpy()])
        except Exception as error:  # the estimator's own code
            raise ModelError(
                f"{type(final).__name__} cannot be fitted again with rows and labels alone ({one_line(error)}). Add "
                "the pairs to your own training data: --augment pairs.csv"
            ) from error
        return reopen(again)

    return refit


@contextmanager
def _quiet(seed: int) -> Iterator[None]:
    """Let nothing be printed, and start what draws from numpy's common random state at a known place."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(state)


def dump(estimator: Any, path: Path) -> None:
    """Write an estimator in the format that the name of the file says."""
    suffix = path.suffix.lower()
    if suffix == ".skops":
        needs("skops.io", "sklearn").dump(estimator, path)
    elif suffix == ".joblib":
        needs("joblib", "sklearn").dump(estimator, path)
    else:  # whoever reads it with pickle could not read what joblib writes
        path.write_bytes(pickle.dumps(estimator))
