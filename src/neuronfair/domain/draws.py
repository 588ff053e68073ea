"""Randomness by address: every draw is a function of where it is used, not of what was drawn before.

The number for walker `origin` at step `t` of a phase depends on (seed, phase, t, origin) alone. Retiring a walker,
splitting the seeds into batches, resuming after a kill or using another device changes no other walker's path.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

# The constants of the splitmix64 generator (Steele, Lea and Flood 2014), as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64


@dataclass(frozen=True)
class Draws:
    """The random numbers of one phase of one run."""

    seed: int
    phase: str

    def uniform(self, t: int, origin: Tensor, count: int, *, use: str) -> Tensor:
        """Return float64 numbers in [0, 1) for each walker: (n, count).

        `use` names what they are for, so that two uses in one step do not share numbers.
        """
        return _to_unit(self._bits(t, origin, count, use))

    def below(self, limit: Tensor, t: int, origin: Tensor, *, use: str) -> Tensor:
        """Return whole numbers in 0 … limit - 1: int64, of the shape of `limit`, (n, count)."""
        return (self.uniform(t, origin, limit.shape[1], use=use) * limit).long()

    def normal(self, t: int, origin: Tensor, count: int, *, use: str) -> Tensor:
        """Return standard normal numbers for each walker: float64, (n, count)."""
        u = self.uniform(t, origin, 2 * count, use=use)
        radius = torch.sqrt(-2 * torch.log1p(-u[:, :count]))  # Box and Muller
        return radius * torch.cos(2 * torch.pi * u[:, count:])

    def _bits(self, t: int, origin: Tensor, count: int, use: str) -> Tensor:
        columns = torch.arange(1, count + 1, device=origin.device) * _GOLDEN
        return _mix(_mix(origin * _GOLDEN + self.start(t, use))[:, None] + columns)

    def start(self, t: int, use: str) -> int | Tensor:
        """Return the number that stands for an address: where its sequence begins."""
        address = f"{self.seed}/{self.phase}/{t}/{use}".encode()
        return int.from_bytes(hashlib.blake2b(address, digest_size=8).digest(), "little", signed=True)


def _mix(x: Tensor) -> Tensor:
    """Scramble 64-bit numbers (the finaliser of splitmix64)."""
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift as if the numbers had no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _to_unit(bits: Tensor) -> Tensor:
    return _shift_right(bits, 11).to(torch.float64) * 2.0**-53
