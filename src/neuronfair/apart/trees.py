"""Reads the trees of XGBoost, whose reader can crash, or ask for all memory, on a damaged file."""

from __future__ import annotations

import sys

if "neuronfair" not in sys.modules:  # in a process of its own these are not needed, and slow to import
    sys.modules |= {"sklearn": None, "pandas": None}  # type: ignore[dict-item]

import xgboost


def read(content: bytes, memory: int) -> bytes:
    """Return a model as XGBoost itself writes it, in JSON."""
    try:
        return bytes(xgboost.Booster(model_file=bytearray(content)).save_raw("json"))
    except xgboost.core.XGBoostError as error:
        text = str(error).partition("Stack trace")[0]
        raise ValueError(text.partition("] ")[2] or text) from None  # without the time
