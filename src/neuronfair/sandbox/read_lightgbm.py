"""Reads the trees of LightGBM, whose reader can crash on a damaged file."""

from __future__ import annotations

import sys

if "neuronfair" not in sys.modules:  # in a process of its own these are not needed, and slow to import
    sys.modules |= {"sklearn": None, "pandas": None, "matplotlib": None}  # type: ignore[dict-item]

import lightgbm
import numpy as np


def read(content: bytes, memory: int) -> bytes:
    """Return a model as LightGBM itself writes it; it has been asked once, lest asking it ends the process."""
    booster = lightgbm.Booster(model_str=content.decode("utf-8"))
    booster.predict(np.zeros((2, booster.num_feature())), num_threads=1)
    made: str = booster.model_to_string(num_iteration=-1)
    return made.encode()
