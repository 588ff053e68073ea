"""A detector under test: the pictures it learned from and those held out, its seeds, and the shift of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from neuronfair.errors import DataError
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.network import Network
from neuronfair.vision.archive import Pictures
from neuronfair.vision.bodies import Detector
from neuronfair.vision.detector import FACE, predictions
from neuronfair.vision.domain import ImageDomain
from neuronfair.vision.encoding import PictureEncoding
from neuronfair.vision.fgsm import Shift, flip, random_like
from neuronfair.vision.quality import score_gap, shift_norms
from neuronfair.vision.report import ShiftReport

PROFILE_ROWS = 2000  # seed pictures whose activations are compared; the AUC of a layer hardly moves with more
FEW = 20  # faces with a known attribute: with fewer there is nothing to learn or to measure


@dataclass(frozen=True, eq=False)
class Split:
    """Pictures with the classes of an attribute, -1 where it is not known; some are held out of all training."""

    pixels: Tensor  # (n, 3, side, side), uint8
    is_face: Tensor  # (n,), bool
    labels: Tensor  # (n,), int64
    held: Tensor  # (n,), bool

    @staticmethod
    def of(pictures: Pictures, sensitive: str, device: str | torch.device, seed: int) -> Split:
        """Hold out one picture in five at random."""
        labels, held = pictures.attribute(sensitive)[1], torch.zeros(len(pictures), dtype=torch.bool)
        held[torch.randperm(len(held), generator=torch.Generator().manual_seed(seed))[: len(held) // 5]] = True
        split = Split(*(t.to(device) for t in (pictures.pixels, pictures.is_face, labels, held)))
        known = int(split.known.sum())
        if known < FEW:
            raise DataError(f"{pictures.name}: {known} faces have a '{sensitive}'. At least {FEW} are needed")
        return split

    @property
    def known(self) -> Tensor:
        """Which pictures are faces whose attribute is known: bool, (n,)."""
        return self.is_face & (self.labels >= 0)

    def part(self, *, held: bool) -> tuple[Tensor, Tensor]:
        """Return the pictures held out, or the others, and which of them are faces."""
        chosen = self.held == held
        return self.pixels[chosen], self.is_face[chosen]

    def faces(self, *, held: bool) -> tuple[Tensor, Tensor]:
        """Return the faces whose attribute is known, those held out or the others, and its classes."""
        chosen = self.known & (self.held == held)
        return self.pixels[chosen], self.labels[chosen]


@dataclass(frozen=True, eq=False)
class Subject:
    """A detector under test, the classifier that says what the attribute is, and the faces to walk from."""

    detector: Detector
    network: Network
    attribute: Detector
    domain: ImageDomain  # faces that are detected and whose attribute flips
    shift: Shift
    numbers: Tensor  # of these faces among all faces
    held: Tensor  # bool: which of them the detector was not trained on
    faces: int
    detected: int
    profile: BiasProfile

    @property
    def measured(self) -> Tensor:
        """The numbers of the seeds to measure with: those held out, or all where none is."""
        return _measured(self.held)

    def report(self) -> ShiftReport:
        """Return how many faces there are, and how large their shifts."""
        sizes, flips = self.shift.size.double(), len(self.domain.pictures)
        other = self.domain.with_shift(random_like(self.shift).levels)
        look = self.domain.rows(torch.arange(min(flips, PROFILE_ROWS), device=self.domain.device))
        return ShiftReport(
            faces=self.faces,
            detected=self.detected,
            attribute_flips=flips,
            attribute_never_flips=self.detected - flips,
            epsilon_median=float(sizes.median()) / 255,
            epsilon_mean=float(sizes.mean()) / 255,
            l2=float(shift_norms(self.domain, self.domain.seeds).mean()),
            score_gap=score_gap(self.network, self.domain, look),
            score_gap_random_shift=score_gap(self.network, other, look),
        )


def subject(
    detector: Detector, classifier: Detector, faces: Tensor, held: Tensor, *, name: str, sensitive: str
) -> Subject:
    """Find the shift of every detected face and where the detector reacts to it; leave out faces that never flip."""
    seen = (predictions(detector, faces) == FACE).nonzero()[:, 0]
    if len(seen) == 0:
        raise DataError(f"{name}: the detector finds no face in any of {len(faces):,} pictures, so there is no seed")
    shift = flip(classifier, faces[seen])
    flips = shift.flips.nonzero()[:, 0]
    if len(flips) == 0:
        raise DataError(f"{name}: no shift flips '{sensitive}' in any of {len(seen):,} faces, so nobody has a twin")
    numbers = seen[flips]
    shift = Shift(shift.levels[flips], shift.size[flips])
    domain = ImageDomain(name, faces[numbers], shift.levels, (sensitive,))
    network = Network(detector, PictureEncoding(domain))
    out = held[numbers]
    profile = interpret(network, domain, domain.rows(_measured(out)[:PROFILE_ROWS]))
    return Subject(detector, network, classifier, domain, shift, numbers, out, len(faces), len(seen), profile)


def _measured(held: Tensor) -> Tensor:
    return (held if bool(held.any()) else ~held).nonzero()[:, 0]
