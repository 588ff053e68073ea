"""Reads the trees of XGBoost, whose reader can crash, or ask for all memory, on a damaged file."""

from __future__ import annotations

import sys

if "neuronfair" not in sys.modules:  # in a process of its own these are not needed, and slow to import
    sys.modules |= {"sklearn": None, "pandas": None}  # type: ignore[dict-item]

import contextlib

import numpy as np
import xgboost


def read(content: bytes, memory: int) -> bytes:
    """Return a model as XGBoost itself writes it, in JSON; it has been asked once, lest asking it ends the process."""
    try:
        booster = xgboost.Booster(model_file=bytearray(content))
        with contextlib.suppress(xgboost.core.XGBoostError):  # these are no rows of its table
            booster.predict(xgboost.DMatrix(np.zeros((2, booster.num_features()))), validate_features=False)
        made = booster.save_raw("json")
        xgboost.Booster(model_file=made)  # a name with an odd character is written and cannot be read
        return bytes(made)
    except xgboost.core.XGBoostError as error:
        text = str(error).partition("Stack trace")[0]
        raise ValueError(text.partition("] ")[2] or text) from None  # without the time
