"""What tests of Keras models share."""

from __future__ import annotations

import warnings


def save(model, path):
    """Write a model and return where; Keras would rather not write .h5."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(path)
    return path
