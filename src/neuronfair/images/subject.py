"""A detector under test: its training and held-out images, its seeds with their attribute shifts, its searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.domain.draws import Draws, random_order
from neuronfair.errors import DataError
from neuronfair.images.archive import Pictures
from neuronfair.images.detector import FACE, Detector, as_input, predictions
from neuronfair.images.domain import FLAG, PASS, PIXELS, SEED, ImageDomain, PictureEncoding
from neuronfair.images.report import RANDOM_SHIFT, ShiftReport, WalkReport
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.measure.rate import Rate
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network, evaluating
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.evaluate import evaluate
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import World
from neuronfair.searches.methods import HALVING, Setting, image_rule

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


def walk_report(classifier: nn.Module, search: PictureSearch) -> WalkReport:
    """Return the figures of one search; the classifier says what the attribute is."""
    found, domain = search.findings, search.domain
    rows, some = found.rows, len(found) > 0
    share = Rate(len(set(found.origin.tolist())), max(1, search.seeds), "table")
    return WalkReport(
        seeds=search.seeds,
        faces_found=share.found,
        share_of_faces=share.rate,
        share_low=share.interval[0],
        share_high=share.interval[1],
        findings=len(found),
        gsr=found.gsr,
        tried=found.tried,
        rejected=found.rejected,
        found_at_once=int((found.step == 0).sum()),
        bias_l2=float(walk_norms(domain, rows).mean()) if some else None,
        shift_l2=float(shift_norms(domain, rows).mean()) if some else None,
        attribute_still_flips=still_flips(classifier, domain, rows) if some else None,
        median_step=float(found.step.double().median()) if some else None,
        seconds=search.seconds,
        seconds_per_1000=1000 * search.seconds / len(found) if some else None,
    )


def shift_norms(domain: ImageDomain, rows: Tensor) -> Tensor:
    """Return the L2 norm of Δ_senatt as it is in the pictures, pixels in [0, 1]: float64, (n,)."""
    return _norms(domain, rows, domain.twins(rows).rows[:, 0])


def walk_norms(domain: ImageDomain, rows: Tensor) -> Tensor:
    """Return the L2 norm of Δ_bias, from the seed picture to the finding, pixels in [0, 1]: float64, (n,)."""
    start = domain.rows(rows[:, SEED].long()).to(rows.dtype)
    return _norms(domain, torch.cat([rows[:, :FLAG], rows[:, FLAG:PIXELS] * 0, rows[:, PIXELS:]], 1), start)


def _norms(domain: ImageDomain, rows: Tensor, others: Tensor) -> Tensor:
    view = PictureEncoding(domain)
    norms = [torch.empty(0, dtype=torch.float64, device=rows.device)]
    for a, b in zip(torch.split(rows, PASS), torch.split(others, PASS), strict=True):
        difference = view.encode(a, torch.float64) - view.encode(b, torch.float64)
        norms.append(difference.flatten(1).norm(dim=1))
    return torch.cat(norms)


def score_gap(network: Network, domain: ImageDomain, rows: Tensor) -> float:
    """Return how far the shift moves the scores of pictures, in the mean: compare it with that of a random shift."""
    network = network.reading(PictureEncoding(domain))
    gaps = [evaluate(network, domain, part).gaps[:, 0] for part in torch.split(rows, PASS)]
    return float(torch.cat(gaps).mean())


def still_flips(classifier: nn.Module, domain: ImageDomain, rows: Tensor) -> float:
    """Return the share of findings whose two pictures the attribute classifier still tells apart.

    The shift was made for the seed picture; after a long walk it may no longer flip the attribute.
    """
    apart = 0
    for part in torch.split(rows, PASS):
        own, other = part, domain.twins(part).rows[:, 0]
        classes = [predictions(classifier, domain.levels(r)) for r in (own, other)]
        apart += int((classes[0] != classes[1]).sum())
    return apart / len(rows)


PROFILE_ROWS = 2000  # seed pictures whose activations are compared; the AUC of a layer hardly moves with more
CONTROLLED = ("neuronfair", HALVING)
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
