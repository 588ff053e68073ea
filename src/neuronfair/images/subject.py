"""A detector under test: what it learned from, what is held out, its seeds with their shifts, and its searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from neuronfair.errors import DataError
from neuronfair.images.archive import Pictures
from neuronfair.images.attribute_shift import AttributeShift, flip, random_like
from neuronfair.images.detector import FACE, predictions
from neuronfair.images.domain import ImageDomain, PictureEncoding
from neuronfair.images.latent_shift import LatentSpace, flip_latent, random_latent
from neuronfair.images.measures import score_gap, shift_norms
from neuronfair.images.networks import Detector
from neuronfair.images.report import ShiftReport
from neuronfair.images.search import PictureSearch, PictureSettings, search_pictures
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.network import Network
from neuronfair.searches.methods import HALVING

PROFILE_ROWS = 2000  # seed pictures whose activations are compared; the AUC of a layer hardly moves with more
CONTROLLED = ("neuronfair", HALVING)
FGSM, LATENT = SHIFTS = ("fgsm", "latent")
RANDOM_SHIFT, FGSM_SHIFT = "random shift", "fgsm shift"
Look = Callable[[str, ImageDomain, Callable[[], PictureSearch]], PictureSearch]
FEW = 20  # faces with a known attribute: with fewer there is nothing to learn or to measure


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
        held[torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))[: len(held) // 5]] = True
        split = ImageSplit(*(t.to(device) for t in (pictures.pixels, pictures.is_face, labels, held)))
        known = int(split.known.sum())
        if known < FEW:
            raise DataError(f"{pictures.name}: {known} faces have a '{sensitive}'. At least {FEW} are needed")
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
    controls: Mapping[str, ImageDomain]  # the same faces with other shifts, by name: RANDOM_SHIFT, perhaps FGSM_SHIFT
    numbers: Tensor  # of these faces among all pictures
    detected: int
    profile: BiasProfile

    @property
    def kind(self) -> str:
        """How the shift was made."""
        return LATENT if FGSM_SHIFT in self.controls else FGSM

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
        gaps = {name: score_gap(self.network, other, look) for name, other in self.controls.items()}
        return ShiftReport(
            kind=self.kind,
            faces=int(self.split.known.sum()),
            detected=self.detected,
            attribute_flips=flips,
            attribute_never_flips=self.detected - flips,
            epsilon_median=float(sizes.median()) / 255,
            epsilon_mean=float(sizes.mean()) / 255,
            l2=float(shift_norms(self.domain, self.domain.seeds).mean()),
            score_gap=score_gap(self.network, self.domain, look),
            score_gap_random_shift=gaps[RANDOM_SHIFT],
            score_gap_fgsm_shift=gaps.get(FGSM_SHIFT),
        )


def subject(
    detector: Detector,
    classifier: Detector,
    split: ImageSplit,
    *,
    name: str,
    sensitive: str,
    latent: LatentSpace | None = None,
    seed: int = 0,
) -> DetectorSubject:
    """Find the shift of every detected face and where the detector reacts to it; leave out faces that never flip.

    With a latent space the shift is a step in it, otherwise that of FGSM. The seed is that of the random shifts.
    """
    faces = split.known.nonzero()[:, 0]
    seen = faces[predictions(detector, split.pixels[faces]) == FACE]
    if len(seen) == 0:
        raise DataError(f"{name}: the detector finds no face in any of {len(faces):,} pictures, so there is no seed")
    given = (classifier, split.pixels[seen])
    shift = flip(*given) if latent is None else flip_latent(latent, *given)
    numbers = seen[shift.flips]
    if len(numbers) == 0:
        raise DataError(f"{name}: no shift flips '{sensitive}' in any of {len(seen):,} faces, so nobody has a twin")
    shift = AttributeShift(shift.levels[shift.flips], shift.size[shift.flips])
    domain = ImageDomain(name, split.pixels[numbers], shift.levels, (sensitive,))
    if latent is None:
        others = {RANDOM_SHIFT: random_like(shift, seed=seed)}
    else:
        plain = flip(classifier, domain.pictures).levels
        others = {RANDOM_SHIFT: random_latent(latent, shift, seed=seed), FGSM_SHIFT: plain}
    controls = {what: domain.with_shift(levels) for what, levels in others.items()}
    network = Network(detector, PictureEncoding(domain))
    profile = interpret(network, domain, domain.rows(_measured(split.held[numbers])[:PROFILE_ROWS]))
    return DetectorSubject(detector, classifier, split, network, domain, shift, controls, numbers, len(seen), profile)


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
    with a shift of equal size in a random direction, so that what flips there is not the attribute; beside a latent
    shift, `…, fgsm shift` is the same walk with that of FGSM. `look` is given each search with its name and domain; it
    may know already what the search finds.
    """
    domain = subject.domain
    order = torch.randperm(len(domain.pictures), generator=torch.Generator().manual_seed(settings.seed))
    numbers = order[: settings.seeds].to(domain.device)
    some = numbers[: settings.control_seeds]
    jobs = [(method, method, domain, numbers, False) for method in methods]
    for method in (method for method in CONTROLLED if method in methods):
        jobs.append((f"{method}, random direction", method, domain, some, True))
        jobs += [(f"{method}, {what}", method, other, some, False) for what, other in subject.controls.items()]
    found: dict[str, PictureSearch] = {}
    for name, method, where, seeds, blind in jobs:
        given = (subject.network, where, method, seeds, settings)
        found[name] = look(name, where, partial(search_pictures, *given, profile=subject.profile, blind=blind))
    return found
