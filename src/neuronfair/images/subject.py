"""A detector under test: its training and held-out images, its seeds with their attribute shifts, its searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.domain.draws import random_order
from neuronfair.errors import DataError
from neuronfair.images.archive import Pictures
from neuronfair.images.detector import FACE, Detector, as_input, predictions
from neuronfair.images.domain import ImageDomain, PictureEncoding
from neuronfair.images.report import ShiftReport, score_gap, shift_norms
from neuronfair.images.search import PictureSearch, PictureSettings, search_pictures
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.layers import evaluating
from neuronfair.model.network import Network
from neuronfair.searches.methods import HALVING

PROFILE_ROWS = 2000  # seed pictures whose activations are compared; the AUC of a layer hardly moves with more
CONTROLLED = ("neuronfair", HALVING)
RANDOM_SHIFT = "random shift"
Look = Callable[[str, ImageDomain, Callable[[], PictureSearch]], PictureSearch]
MIN_FACES = 20  # faces with a known attribute: with fewer there is nothing to learn or to measure
SCHEDULE: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)  # ε in grey levels; 20 of 255 is 0.078
BATCH = 256


@dataclass(frozen=True, eq=False)
class AttributeShift:
    """The shift of every picture, and the largest change of a pixel in it, 0 for a picture that nothing flips."""

    levels: Tensor  # (n, c, h, w), int8
    size: Tensor  # (n,), int64

    @property
    def flips(self) -> Tensor:
        """Whether the attribute of each picture flips: bool, (n,)."""
        return self.size > 0


def flip(classifier: nn.Module, pictures: Tensor, schedule: Sequence[int] = SCHEDULE) -> AttributeShift:
    """Return the smallest change of each 8-bit picture that flips its attribute, as the attribute classifier sees it.

    FGSM (Goodfellow, Shlens and Szegedy 2015): Δ = ε · sign(∇_x J(x, y)), with y the predicted class.
    The paper takes the true class; on a picture that the classifier gets wrong, that would push it further away from
    flipping. ε is the smallest of a schedule of whole grey levels with f(x) ≠ f(x + Δ), so that x + Δ is an 8-bit
    picture too. With more than two classes any other class will do.
    """
    parts = [_flip(classifier, part, sorted(schedule)) for part in torch.split(pictures, BATCH)]
    return AttributeShift(torch.cat([part.levels for part in parts]), torch.cat([part.size for part in parts]))


def _flip(classifier: nn.Module, pictures: Tensor, schedule: Sequence[int]) -> AttributeShift:
    before = predictions(classifier, pictures)
    x = as_input(pictures).requires_grad_()
    with evaluating(classifier.modules()):
        (gradient,) = torch.autograd.grad(functional.cross_entropy(classifier(x), before, reduction="sum"), x)
    direction = gradient.sign().to(torch.int8)
    levels = torch.zeros(pictures.shape, dtype=torch.int8, device=pictures.device)
    left = torch.arange(len(pictures), device=pictures.device)
    for epsilon in schedule:
        tried = epsilon * direction[left]
        after = predictions(classifier, (pictures[left].to(torch.int16) + tried).clamp(0, 255))
        flips = after != before[left]
        levels[left[flips]] = tried[flips]
        left = left[~flips]
        if len(left) == 0:
            break
    return AttributeShift(levels, levels.to(torch.int64).abs().amax((1, 2, 3)))


def random_like(shift: AttributeShift, *, seed: int = 0) -> Tensor:
    """Return shifts of the same size in random directions: the control. int8, (n, c, h, w).

    Every pixel goes up or down by ε at random where the shift changes it, so that the norms are the same.
    """
    generator = torch.Generator().manual_seed(seed)
    up = torch.randint(0, 2, shift.levels.shape, generator=generator, dtype=torch.int8)
    return shift.levels.abs() * (2 * up - 1).to(shift.levels.device)


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Pictures with the classes of an attribute, -1 where it is not known; some are held out of all training."""

    pixels: Tensor  # (n, 3, side, side), uint8
    is_face: Tensor  # (n,), bool
    labels: Tensor  # (n,), int64
    held: Tensor  # (n,), bool

    @staticmethod
    def of(pictures: Pictures, sensitive: str, device: str | torch.device, seed: int) -> ImageSplit:
        """Hold out one picture in five at random."""
        labels, held = pictures.attribute(sensitive)[1], torch.zeros(len(pictures), dtype=torch.bool)
        held[random_order(len(held), seed)[: len(held) // 5]] = True
        split = ImageSplit(*(t.to(device) for t in (pictures.pixels, pictures.is_face, labels, held)))
        known = int(split.known.sum())
        if known < MIN_FACES:
            raise DataError(f"{pictures.name}: {known} faces have a '{sensitive}'. At least {MIN_FACES} are needed")
        if not bool((split.known & split.held).any()):
            raise DataError(f"{pictures.name}: no face with a '{sensitive}' is held out. Try another --seed")
        return split

    @property
    def known(self) -> Tensor:
        """Which pictures are faces whose attribute is known: bool, (n,)."""
        return self.is_face & (self.labels >= 0)

    def part(self, *, held: bool) -> tuple[Tensor, Tensor]:
        """Return the pictures held out, or the others, and which of them are faces: 0 and 1."""
        chosen = self.held == held
        return self.pixels[chosen], self.is_face[chosen].long()

    def faces(self, *, held: bool) -> tuple[Tensor, Tensor]:
        """Return the faces whose attribute is known, those held out or the others, and its classes."""
        chosen = self.known & (self.held == held)
        return self.pixels[chosen], self.labels[chosen]


@dataclass(frozen=True, eq=False)
class DetectorSubject:
    """A detector under test, the classifier that says what the attribute is, and the faces to walk from."""

    detector: Detector
    attribute: Detector
    split: ImageSplit
    network: Network
    domain: ImageDomain  # faces that are detected and whose attribute flips
    shift: AttributeShift
    random: ImageDomain  # the same faces with a random shift of equal size: the control
    numbers: Tensor  # of these faces among all pictures
    detected: int
    profile: BiasProfile

    @property
    def held(self) -> Tensor:
        """Which of the faces the detector was not trained on: bool, (faces,)."""
        return self.split.held[self.numbers]

    @property
    def measured(self) -> Tensor:
        """The numbers of the faces to measure with: those held out, or all where none is."""
        return _measured(self.held)

    def report(self) -> ShiftReport:
        """Return how many faces there are, and how large their shifts."""
        sizes, flips = self.shift.size.double(), len(self.domain.pictures)
        look = self.domain.rows(torch.arange(min(flips, PROFILE_ROWS), device=self.domain.device))
        return ShiftReport(
            faces=int(self.split.known.sum()),
            detected=self.detected,
            attribute_flips=flips,
            attribute_never_flips=self.detected - flips,
            epsilon_median=float(sizes.median()) / 255,
            epsilon_mean=float(sizes.mean()) / 255,
            l2=float(shift_norms(self.domain, self.domain.seeds).mean()),
            score_gap=score_gap(self.network, self.domain, look),
            score_gap_random_shift=score_gap(self.network, self.random, look),
        )


def subject(
    detector: Detector,
    classifier: Detector,
    split: ImageSplit,
    *,
    name: str,
    sensitive: str,
    seed: int = 0,
) -> DetectorSubject:
    """Find the shift of every detected face and where the detector reacts to it; leave out faces that never flip.

    The seed is that of the random shifts.
    """
    faces = split.known.nonzero()[:, 0]
    seen = faces[predictions(detector, split.pixels[faces]) == FACE]
    if len(seen) == 0:
        raise DataError(f"{name}: the detector finds no face in any of {len(faces):,} pictures, so there is no seed")
    shift = flip(classifier, split.pixels[seen])
    numbers = seen[shift.flips]
    if len(numbers) == 0:
        raise DataError(f"{name}: no shift flips '{sensitive}' in any of {len(seen):,} faces, so nobody has a twin")
    shift = AttributeShift(shift.levels[shift.flips], shift.size[shift.flips])
    domain = ImageDomain(name, split.pixels[numbers], shift.levels, (sensitive,))
    random = replace(domain, shift=random_like(shift, seed=seed))
    network = Network(detector, PictureEncoding(domain))
    profile = interpret(network, domain, domain.rows(_measured(split.held[numbers])[:PROFILE_ROWS]))
    return DetectorSubject(detector, classifier, split, network, domain, shift, random, numbers, len(seen), profile)


def _measured(held: Tensor) -> Tensor:
    return (held if bool(held.any()) else ~held).nonzero()[:, 0]


def compare(
    subject: DetectorSubject,
    methods: Sequence[str],
    settings: PictureSettings,
    look: Look = lambda name, domain, search: search(),
) -> dict[str, PictureSearch]:
    """Search with each method from all seeds, and with controls from some.

    `…, random direction` is the same walk with noise in the place of gradients; `…, random shift` is the same walk
    with a shift of equal size in a random direction, so that what flips there is not the attribute.
    `look` gets each search with its name and domain, and may return what an earlier run kept.
    """
    domain = subject.domain
    order = random_order(len(domain.pictures), settings.seed)
    numbers = order[: settings.seeds].to(domain.device)
    some = numbers[: settings.control_seeds]
    jobs = [(method, method, domain, numbers, False) for method in methods]
    for method in (method for method in CONTROLLED if method in methods):
        jobs.append((f"{method}, random direction", method, domain, some, True))
        jobs.append((f"{method}, {RANDOM_SHIFT}", method, subject.random, some, False))
    found: dict[str, PictureSearch] = {}
    for name, method, where, seeds, blind in jobs:
        given = (subject.network, where, method, seeds, settings)
        found[name] = look(name, where, partial(search_pictures, *given, profile=subject.profile, blind=blind))
    return found
