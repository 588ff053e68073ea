"""Searching pictures: the global phase of a method from every seed picture, in batches, on the one engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.interpretation.profile import BiasProfile
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.search.budget import Budget
from neuronfair.search.draws import Draws
from neuronfair.search.engine import search
from neuronfair.search.findings import Findings
from neuronfair.search.keys import KeySet
from neuronfair.search.method import World
from neuronfair.search.methods import Setting, picture_walk
from neuronfair.vision.domain import ImageDomain
from neuronfair.vision.encoding import PictureEncoding

STEPS = 40  # max_iter_g of the paper


@dataclass(frozen=True)
class ImageSearch:
    """What one method found from the seed pictures, and how long it took."""

    method: str
    findings: Findings
    seeds: int
    seconds: float
    at_once: int  # findings that need no walk: the shift alone turns the decision on the seed picture

    @property
    def seconds_per_1000(self) -> float | None:
        """Seconds per 1,000 findings; None where nothing was found."""
        return 1000 * self.seconds / len(self.findings) if len(self.findings) else None


def search_pictures(
    network: Network,
    domain: ImageDomain,
    method: str,
    numbers: Tensor,
    *,
    profile: BiasProfile | None = None,
    steps: int = STEPS,
    blind: bool = False,
    walkers: int = 512,
    seconds: float | None = None,
    seed: int = 0,
) -> ImageSearch:
    """Walk from the seed pictures with these numbers until each has met one discriminatory picture.

    `walkers` go together, which bounds the memory; the batches do not change what is found. `blind` replaces every
    gradient by noise: the same walk in random directions. After so many `seconds` no further batch is begun.
    """
    reader = network.reading(PictureEncoding(domain))
    world = World(reader, domain, Decision(), Draws(seed, "global"), profile=profile, blind=blind)
    seen = KeySet(domain.device)
    walk = picture_walk(method, Setting(world, seen, len(numbers) * steps))
    budget = Budget(steps=steps, findings_per_seed=1)
    parts = [Findings.empty(domain, network.outputs)]
    spent, begun = 0.0, 0
    for part in torch.split(numbers, walkers):
        result = search(world, walk, domain.rows(part), budget=budget, origin=part, seen=seen)
        parts.append(result.findings)
        spent, begun = spent + result.seconds, begun + len(part)
        if result.stop == "interrupted" or (seconds is not None and spent >= seconds):
            break
    findings = Findings.join(parts)
    return ImageSearch(method, findings, begun, spent, int((findings.step == 0).sum()))
