"""Counter-based random numbers: every draw is a function of its address, not of earlier draws.

The number for search chain `origin` at step `t` of a phase depends on (seed, phase, t, origin) only. Ending a chain,
splitting the seeds into batches, resuming after a kill or using another device changes no other chain.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

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

    def uniform(self, t: int, origin: Tensor, count: int | tuple[int, ...], *, use: str, interval: int = 1) -> Tensor:
        """Return float64 numbers in [0, 1) for each search chain: (n, count), or only those at the given indices.

        `use` is their purpose, so that two uses in one step do not share numbers. They change every `interval` steps.
        """
        chains = _mix(origin * _GOLDEN + self.start(t - t % interval, use))
        bits = (
            _mix(chains[:, None] + _offset(count, origin.device)).bitwise_right_shift_(11).bitwise_and_((1 << 53) - 1)
        )
        return bits.to(torch.float64).mul_(2.0**-53)

    def below(self, limit: Tensor, t: int, origin: Tensor, *, use: str) -> Tensor:
        """Return whole numbers in 0 … limit - 1: int64, of the shape of `limit`, (n, count)."""
        return (self.uniform(t, origin, limit.shape[1], use=use) * limit).long()

    def normal(self, t: int, origin: Tensor, count: int, *, use: str) -> Tensor:
        """Return standard normal numbers for each search chain: float64, (n, count)."""
        u = self.uniform(t, origin, 2 * count, use=use)
        radius = torch.sqrt(-2 * torch.log1p(-u[:, :count]))  # Box and Muller
        return radius * torch.cos(2 * torch.pi * u[:, count:])

    def start(self, t: int, use: str) -> int | Tensor:
        """Return the start of the numbers of an address; a tensor where a recorded step is replayed."""
        address = f"{self.seed}/{self.phase}/{t}/{use}".encode()
        return int.from_bytes(hashlib.blake2b(address, digest_size=8).digest(), "little", signed=True)


@lru_cache(maxsize=64)
def _offset(count: int | tuple[int, ...], device: torch.device) -> Tensor:
    """Return the offset of each of a chain's numbers; cached, since making it may wait for a GPU."""
    indices = torch.arange(count) if isinstance(count, int) else torch.tensor(count)
    return ((indices + 1) * _GOLDEN).to(device)


def _mix(x: Tensor) -> Tensor:
    """Scramble 64-bit numbers in place (the finaliser of splitmix64), which takes two thirds of the time of a copy.

    Shifts are unsigned.
    """
    y = x >> 30
    y.bitwise_and_((1 << 34) - 1).bitwise_xor_(x).mul_(_MIX_1)
    torch.bitwise_right_shift(y, 27, out=x)
    x.bitwise_and_((1 << 37) - 1).bitwise_xor_(y).mul_(_MIX_2)
    torch.bitwise_right_shift(x, 31, out=y)
    return y.bitwise_and_((1 << 33) - 1).bitwise_xor_(x)


def draw_order(count: int, seed: int) -> Tensor:
    """Return the numbers 0 … count - 1 in random order; its beginning is a random sample."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
