"""Who is the same person, and what is the same domain: numbers that identify them."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

_SEED = 0x6E66  # fixes the coefficients of hashed keys; a key means the same in every process


def exact(sizes: Sequence[int]) -> bool:
    """Return whether all combinations of so many values per column fit a 64-bit number."""
    return all(number < 2**63 for number in accumulate(sizes, operator.mul))


def key_coefficients(sizes: Sequence[int]) -> Tensor:
    """Return one coefficient per column, so that the sum of code times coefficient identifies a row: int64, (d,).

    Where all combinations fit they are the place values of a mixed-radix number, and otherwise odd random numbers. A
    column with one value gets 0.
    """
    if exact(sizes):
        places = list(accumulate(sizes[:-1], operator.mul, initial=1))
        coefficients = torch.tensor(places, dtype=torch.int64)
    else:
        halves = torch.randint(2**32, (2, len(sizes)), generator=torch.Generator().manual_seed(_SEED))
        coefficients = (halves[0] << 32) | halves[1] | 1
    return torch.where(torch.tensor(sizes) > 1, coefficients, 0)


def digest(*parts: object) -> str:
    """Return the SHA-256 of dataclasses of plain values, which print all of them in the order of their fields."""
    return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()
