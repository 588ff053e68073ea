"""Searching pictures: the global phase of a method from every seed picture, in batches, on the one engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.images.domain import ImageDomain, PictureEncoding
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import World
from neuronfair.searches.methods import Setting, image_rule

STEPS = 40  # max_iter_g of the paper


@dataclass(frozen=True)
class PictureSettings:
    """How a detector is trained and searched; the defaults suit minutes on two cores for 500 faces.

    `walkers` go together, which bounds the memory; the batches do not change what is found. After so many `seconds` a
    search begins no further batch, so that what it finds depends on the machine.
    """

    body: str = "small"
    weights: Path | None = None  # of a pretrained body, to start training from
    own_body: bool = False  # train a body for the attribute classifier, too
    epochs: int = 12
    steps: int = STEPS
    seeds: int | None = None  # pictures that each search starts from; None: all
    control_seeds: int = 200  # that each control starts from: enough to tell 5% from 15%
    walkers: int | None = None  # None: 128 on a CPU, 512 elsewhere
    seconds: float | None = None
    seed: int = 0

    @property
    def of_searches(self) -> dict[str, object]:
        """Everything that findings depend on, for a manifest."""
        rest = asdict(self) | {"weights": self.weights and str(self.weights)}
        return {name: value for name, value in rest.items() if name != "walkers"}


@dataclass(frozen=True, eq=False)
class PictureSearch:
    """What one method found from the seed pictures of a domain, and how long it took."""

    domain: ImageDomain
    findings: Findings
    seeds: int
    seconds: float


def search_pictures(
    network: Network,
    domain: ImageDomain,
    method: str,
    numbers: Tensor,
    settings: PictureSettings | None = None,
    *,
    profile: BiasProfile | None = None,
    blind: bool = False,
) -> PictureSearch:
    """Walk from the seed pictures with these numbers until each has met one discriminatory picture.

    `blind` replaces every gradient by noise: the same walk in random directions. Ctrl-C is a KeyboardInterrupt.
    """
    settings = settings or PictureSettings()
    reader = network.reading(PictureEncoding(domain))
    world = World(reader, domain, Decision(), Draws(settings.seed, "global"), profile=profile, blind=blind)
    seen = KeySet(domain.device)
    walk = image_rule(method, Setting(world, seen, len(numbers) * settings.steps))
    budget = Budget(steps=settings.steps, findings_per_seed=1)
    parts = [Findings.empty(domain, network.outputs)]
    spent, begun = 0.0, 0
    for part in torch.split(numbers, settings.walkers or (128 if domain.device.type == "cpu" else 512)):
        result = run_phase(world, walk, domain.rows(part), budget=budget, origin=part, seen=seen)
        if result.stop == "interrupted":
            raise KeyboardInterrupt
        parts.append(result.findings)
        spent, begun = spent + result.seconds, begun + len(part)
        if settings.seconds is not None and spent >= settings.seconds:
            break
    return PictureSearch(domain, Findings.join(parts), begun, spent)
