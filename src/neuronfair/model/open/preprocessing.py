"""The preprocessing of a pipeline as one fixed linear layer, found by asking the fitted transformers themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.model.encoding import TableEncoding

POINTS = 17  # values of a number at which a straight line is checked, both ends among them
MAX_LOOKUP = 256  # values of a number that may become a one-hot block where the transform is no straight line
STRAIGHT = 1e-6  # how far a feature may lie from the line, in parts of the size of the feature

Transform = Callable[[Tensor], np.ndarray]  # rows of codes (n, d) to features (n, f)


class NotLinear(Exception):  # noqa: N818 - not an error: the model is then a black box
    """The preprocessing is not a sum of functions of single columns that can be written as a linear layer."""


def linear_layer(transform: Transform, domain: TableDomain, row: Tensor) -> tuple[TableEncoding, nn.Linear]:
    """Return an encoding from which a linear layer computes the features, and that layer, in float64.

    Such preprocessing works column by column: features(row) = features(base) + the sum over attributes of what a
    change of that attribute alone adds. So one row is varied in one attribute at a time. A nominal attribute becomes a
    one-hot block, which can express anything; a number a multiple of itself if its features lie on straight lines, and
    a one-hot block otherwise, if it has few values. Whoever calls this compares the result on real rows.
    """
    domain = domain.to("cpu")
    base = domain.clip(row.cpu()[None])[0]
    start = transform(base[None]).astype(np.float64)[0]
    attributes, columns, bias = [], [], start.copy()
    for place, attribute in enumerate(domain.attributes):
        codes = _points(attribute)
        adds = _added(transform, base, start, place, codes)
        straight = (attribute.ordered or attribute.size <= 2) and _is_line(codes, adds)
        if not straight and len(codes) < attribute.size:
            if attribute.size > MAX_LOOKUP:
                raise NotLinear(f"the preprocessing of '{attribute.name}' is no straight line over its values")
            codes = np.arange(attribute.size)
            adds = _added(transform, base, start, place, codes)
        if straight:
            line, column, shift = _as_number(attribute, codes, adds)
            attributes.append(line)
            columns.append(column[:, None])
            bias += shift
        else:
            attributes.append(dataclasses.replace(attribute, encode="onehot"))
            columns.append(adds.T)
    weight = np.concatenate(columns, 1)
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    return TableEncoding(attributes), layer


def mixes_columns(transform: Transform, rows: Tensor) -> bool:
    """Return whether the features of rows are something else than sums of what each column alone adds to a base row."""
    start = transform(rows[:1]).astype(np.float64)
    features, total = transform(rows).astype(np.float64), start
    for place in range(rows.shape[1]):
        alone = rows[:1].repeat(len(rows), 1)
        alone[:, place] = rows[:, place]
        total = total + transform(alone) - start
    return bool((np.abs(features - total) > STRAIGHT * (1 + np.abs(features).max(0))).any())


def _points(attribute: Attribute) -> np.ndarray:
    """Return the codes to try: all of a nominal attribute, some of a number."""
    if attribute.values or attribute.size <= POINTS:
        return np.arange(attribute.size)
    return np.unique(np.linspace(0, attribute.size - 1, POINTS).astype(np.int64))


def _added(transform: Transform, base: Tensor, start: np.ndarray, place: int, codes: np.ndarray) -> np.ndarray:
    """Return what each code of one attribute adds to the features of the base row: (codes, features)."""
    rows = base.repeat(len(codes), 1)
    rows[:, place] = torch.from_numpy(codes)
    return np.asarray(transform(rows).astype(np.float64) - start)


def _is_line(codes: np.ndarray, adds: np.ndarray) -> bool:
    if len(codes) < 3:
        return True
    share = ((codes - codes[0]) / (codes[-1] - codes[0]))[:, None]
    line = adds[0] + share * (adds[-1] - adds[0])
    return bool((np.abs(adds - line) <= STRAIGHT * (1 + np.abs(adds).max(0))).all())


def _as_number(attribute: Attribute, codes: np.ndarray, adds: np.ndarray) -> tuple[Attribute, np.ndarray, np.ndarray]:
    """Return an attribute scaled to -1 … 1, the features' slopes by that number, and their values at 0."""
    low, step = (0.0, 1.0) if attribute.values else (float(attribute.low), float(attribute.step))
    half = (attribute.size - 1) / 2
    scaled = dataclasses.replace(attribute, encode="scaled", center=low + step * half, scale=step * (half or 1.0))
    return scaled, (adds[-1] - adds[0]) / 2, (adds[-1] + adds[0]) / 2
