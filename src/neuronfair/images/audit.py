"""The audit of a detector: the faces and their attribute shifts, the searches next to controls, and the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from neuronfair.atomic import replace_file
from neuronfair.audits.folder import check_audit_folder, check_same_audit, find_recorded_file, hold_folder, record_file
from neuronfair.domain.draws import Draws, draw_order
from neuronfair.errors import DataError
from neuronfair.images.archive import ImageSet
from neuronfair.images.detector import (
    FACE,
    AttributeShift,
    Detector,
    DetectorCard,
    accuracies,
    fit_attribute,
    fit_detector,
    flip,
    load_detector,
    predictions,
    random_like,
    save_detector,
)
from neuronfair.images.domain import (
    FLAG,
    HALVING,
    PASS,
    PIXELS,
    SEED,
    ImageDomain,
    ImageEncoding,
    image_methods,
    image_rule,
)
from neuronfair.images.report import RANDOM_SHIFT, ImageReport, ImageSearchReport, ShiftReport
from neuronfair.measure.rate import Rate
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.model.weights import fingerprint
from neuronfair.progress import Progress, show_nothing
from neuronfair.searches.engine import Budget, run_phase
from neuronfair.searches.evaluate import evaluate
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import SearchContext
from neuronfair.searches.methods import Setting
from neuronfair.store.files import load_state, save_state, writing
from neuronfair.store.ledger import discard, rows_digest, versions

STEPS = 40  # max_iter_g of the paper


@dataclass(frozen=True)
class ImageSettings:
    """How a detector is trained and searched; the defaults suit minutes on two cores for 500 faces.

    `chains` go together, which bounds the memory; the batches do not change what is found. After so many `seconds` a
    search begins no further batch, so that what it finds depends on the machine.
    """

    body: str = "small"
    weights: Path | None = None  # of a pretrained body, to start training from
    own_body: bool = False  # train a body for the attribute classifier, too
    epochs: int = 12
    steps: int = STEPS
    seeds: int | None = None  # pictures that each search starts from; None: all
    control_seeds: int = 200  # that each control starts from: enough to tell 5% from 15%
    chains: int | None = None  # None: 128 on a CPU, 512 elsewhere
    seconds: float | None = None
    seed: int = 0

    @property
    def of_searches(self) -> dict[str, object]:
        """Everything that findings depend on, for a manifest."""
        rest = asdict(self) | {"weights": self.weights and str(self.weights)}
        return {name: value for name, value in rest.items() if name != "chains"}


@dataclass(frozen=True, eq=False)
class ImageSearch:
    """What one method found from the seed pictures of a domain, and how long it took."""

    domain: ImageDomain
    findings: Findings
    seeds: int
    seconds: float


def search_images(
    network: Network,
    domain: ImageDomain,
    method: str,
    numbers: Tensor,
    settings: ImageSettings | None = None,
    *,
    profile: BiasProfile | None = None,
    blind: bool = False,
) -> ImageSearch:
    """Walk from the seed pictures with these numbers until each has met one discriminatory picture.

    `blind` replaces every gradient by noise: the same walk in random directions. Ctrl-C is a KeyboardInterrupt.
    """
    settings = settings or ImageSettings()
    reader = network.with_encoding(ImageEncoding(domain))
    context = SearchContext(reader, domain, Decision(), Draws(settings.seed, "global"), profile=profile, blind=blind)
    seen = KeySet(domain.device)
    rule = image_rule(method, Setting(context, seen, len(numbers) * settings.steps))
    budget = Budget(steps=settings.steps, findings_per_seed=1)
    parts = [Findings.empty(domain, network.outputs)]
    spent, begun = 0.0, 0
    for part in torch.split(numbers, settings.chains or (128 if domain.device.type == "cpu" else 512)):
        result = run_phase(context, rule, domain.rows(part), budget=budget, origin=part, seen=seen)
        if result.stop == "interrupted":
            raise KeyboardInterrupt
        parts.append(result.findings)
        spent, begun = spent + result.seconds, begun + len(part)
        if settings.seconds is not None and spent >= settings.seconds:
            break
    return ImageSearch(domain, Findings.join(parts), begun, spent)


def image_search_report(classifier: nn.Module, search: ImageSearch) -> ImageSearchReport:
    """Return the figures of one search; the classifier says what the attribute is."""
    found, domain = search.findings, search.domain
    rows, some = found.rows, len(found) > 0
    share = Rate(len(set(found.origin.tolist())), max(1, search.seeds), "table")
    return ImageSearchReport(
        seeds=search.seeds,
        faces_found=share.flips,
        share_of_faces=share.rate,
        share_low=share.interval[0],
        share_high=share.interval[1],
        findings=len(found),
        gsr=found.gsr,
        tried=found.tried,
        rejected=found.rejected,
        found_at_once=int((found.step == 0).sum()),
        bias_l2=float(change_norms(domain, rows).mean()) if some else None,
        shift_l2=float(shift_norms(domain, rows).mean()) if some else None,
        attribute_still_flips=still_flips(classifier, domain, rows) if some else None,
        median_step=float(found.step.double().median()) if some else None,
        seconds=search.seconds,
        seconds_per_1000=1000 * search.seconds / len(found) if some else None,
    )


def shift_norms(domain: ImageDomain, rows: Tensor) -> Tensor:
    """Return the L2 norm of Δ_senatt as it is in the pictures, pixels in [0, 1]: float64, (n,)."""
    return _norms(domain, rows, domain.twins(rows).rows[:, 0])


def change_norms(domain: ImageDomain, rows: Tensor) -> Tensor:
    """Return the L2 norm of Δ_bias, from the seed picture to the finding, pixels in [0, 1]: float64, (n,)."""
    start = domain.rows(rows[:, SEED].long()).to(rows.dtype)
    return _norms(domain, torch.cat([rows[:, :FLAG], rows[:, FLAG:PIXELS] * 0, rows[:, PIXELS:]], 1), start)


def _norms(domain: ImageDomain, rows: Tensor, others: Tensor) -> Tensor:
    view = ImageEncoding(domain)
    norms = [torch.empty(0, dtype=torch.float64, device=rows.device)]
    for a, b in zip(torch.split(rows, PASS), torch.split(others, PASS), strict=True):
        difference = view.encode(a, torch.float64) - view.encode(b, torch.float64)
        norms.append(difference.flatten(1).norm(dim=1))
    return torch.cat(norms)


def score_gap(network: Network, domain: ImageDomain, rows: Tensor) -> float:
    """Return how far the shift moves the scores of pictures, in the mean: compare it with that of a random shift."""
    network = network.with_encoding(ImageEncoding(domain))
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
SearchRunner = Callable[[str, ImageDomain, Callable[[], ImageSearch]], ImageSearch]
MIN_FACES = 20  # faces with a known attribute: with fewer there is nothing to learn or to measure


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Pictures with the classes of an attribute, -1 where it is not known; some are held out of all training."""

    pixels: Tensor  # (n, 3, side, side), uint8
    is_face: Tensor  # (n,), bool
    labels: Tensor  # (n,), int64
    held: Tensor  # (n,), bool

    @staticmethod
    def of(pictures: ImageSet, sensitive: str, device: str | torch.device, seed: int) -> ImageSplit:
        """Hold out one picture in five at random."""
        labels, held = pictures.attribute(sensitive)[1], torch.zeros(len(pictures), dtype=torch.bool)
        held[draw_order(len(held), seed)[: len(held) // 5]] = True
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
        rows = self.domain.rows(torch.arange(min(flips, PROFILE_ROWS), device=self.domain.device))
        return ShiftReport(
            faces=int(self.split.known.sum()),
            detected=self.detected,
            attribute_flips=flips,
            attribute_never_flips=self.detected - flips,
            epsilon_median=float(sizes.median()) / 255,
            epsilon_mean=float(sizes.mean()) / 255,
            l2=float(shift_norms(self.domain, self.domain.seeds).mean()),
            score_gap=score_gap(self.network, self.domain, rows),
            score_gap_random_shift=score_gap(self.network, self.random, rows),
        )


def find_subject(
    detector: Detector, classifier: Detector, split: ImageSplit, *, name: str, sensitive: str, seed: int = 0
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
    network = Network(detector, ImageEncoding(domain))
    profile = interpret(network, domain, domain.rows(_measured(split.held[numbers])[:PROFILE_ROWS]))
    return DetectorSubject(detector, classifier, split, network, domain, shift, random, numbers, len(seen), profile)


def _measured(held: Tensor) -> Tensor:
    return (held if bool(held.any()) else ~held).nonzero()[:, 0]


def search_with_controls(
    subject: DetectorSubject,
    methods: Sequence[str],
    settings: ImageSettings,
    runner: SearchRunner = lambda name, domain, search: search(),
) -> dict[str, ImageSearch]:
    """Search with each method from all seeds, and with controls from some.

    `…, random direction` is the same walk with noise in the place of gradients; `…, random shift` is the same walk
    with a shift of equal size in a random direction, so that what flips there is not the attribute.
    `runner` gets each search with its name and domain, and may return what an earlier run kept.
    """
    domain = subject.domain
    order = draw_order(len(domain.pictures), settings.seed)
    numbers = order[: settings.seeds].to(domain.device)
    some = numbers[: settings.control_seeds]
    jobs = [(method, method, domain, numbers, False) for method in methods]
    for method in (method for method in CONTROLLED if method in methods):
        jobs.append((f"{method}, random direction", method, domain, some, True))
        jobs.append((f"{method}, {RANDOM_SHIFT}", method, subject.random, some, False))
    found: dict[str, ImageSearch] = {}
    for name, method, where, seeds, blind in jobs:
        job = partial(search_images, subject.network, where, method, seeds, settings, profile=subject.profile)
        found[name] = runner(name, where, partial(job, blind=blind))
    return found


WEIGHTS, ATTRIBUTE = "detector.safetensors", "attribute.safetensors"
_COUNTS = [field.name for field in fields(Findings) if field.type == "int"]
_TENSORS = [field.name for field in fields(Findings) if field.name not in _COUNTS]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ImageAudit:
    """What the audit of a detector came to, and what each search found."""

    report: ImageReport
    subject: DetectorSubject
    found: Mapping[str, ImageSearch]
    classes: tuple[str, ...]  # what the detector decides
    files: tuple[str, ...]  # of the seed pictures


def audit_images(
    pictures: ImageSet,
    sensitive: str,
    *,
    detector: Path | None = None,
    settings: ImageSettings | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ImageAudit:
    """Audit a detector with pictures: how often does its decision flip when only a sensitive attribute changes?

    The detector is one that an earlier audit left in its folder, or is trained now. With a folder, it is kept there,
    and so is what each search finds: after a kill the same audit resumes, or with `force` starts again.
    """
    settings, show = settings or ImageSettings(), progress or show_nothing
    split, (classes, _) = ImageSplit.of(pictures, sensitive, device, settings.seed), pictures.attribute(sensitive)
    loaded = None if detector is None else _loaded(detector, split)
    manifest = {
        "audit": "pictures",
        **versions(),
        "pictures": rows_digest(split.pixels),
        "labels": rows_digest(torch.stack([split.labels, split.is_face.long()])),
        "weights": None if loaded is None else fingerprint(loaded[0]),
        "sensitive": [sensitive],
        "settings": settings.of_searches,
    }
    if folder is not None and not force:
        check_audit_folder(folder)
        check_same_audit(folder, manifest)
    there = None if folder is None or force else find_recorded_file(folder, WEIGHTS)
    if loaded is None:
        loaded = _trained(split, settings, show) if there is None else _loaded(there, split, trained=True)
    module, card = loaded
    if folder is not None and force:  # not before all that can be wrong was read
        discard(folder)
    with hold_folder(folder, manifest):
        if folder is not None and there is None:
            save_recorded(folder, WEIGHTS, lambda path: save_detector(path, module, card))
        classifier = _classifier(module, DetectorCard(card.body, card.side, classes), split, settings, folder)
        under_test = find_subject(
            module, classifier, split, name=pictures.name, sensitive=sensitive, seed=settings.seed
        )

        def run_once(name: str, where: ImageDomain, search: Callable[[], ImageSearch]) -> ImageSearch:
            show(f"Searching: {name}", 0, None)
            words = re.sub(r"\W+", "-", name)
            return load_or_make(folder, f"found-{words}.safetensors", search, _save, lambda path: _load(path, where))

        found = search_with_controls(under_test, list(image_methods()), settings, run_once)
        report = _report(pictures, under_test, card, found, own_body=settings.own_body)
        files = tuple(pictures.files[i] for i in under_test.numbers.tolist())
        return ImageAudit(report, under_test, found, card.classes, files)


def _report(
    pictures: ImageSet,
    subject: DetectorSubject,
    card: DetectorCard,
    found: Mapping[str, ImageSearch],
    *,
    own_body: bool,
) -> ImageReport:
    """Return the report of an audit: the detector, the classifier of the attribute, and what the searches found."""
    sensitive = subject.domain.sensitive[0]
    right, balanced = accuracies(subject.attribute, *subject.split.faces(held=True))
    worst, layers = subject.profile.worst, subject.profile.layers
    return ImageReport(
        pictures=len(pictures),
        notes=pictures.notes,
        sensitive=sensitive,
        classes=pictures.attribute(sensitive)[0],
        body=card.body,
        detection_rate=accuracies(subject.detector, *subject.split.part(held=True))[0],
        classifier_accuracy=right,
        classifier_balanced_accuracy=balanced,
        own_body=own_body,
        shift=subject.report(),
        worst_layer=worst.name,
        auc=worst.auc,
        auc_by_layer={layer.name: layer.auc for layer in layers},
        methods={name: image_search_report(subject.attribute, one) for name, one in found.items()},
    )


def _trained(split: ImageSplit, settings: ImageSettings, show: Progress) -> tuple[Detector, DetectorCard]:
    module = fit_detector(
        settings.body,
        *split.part(held=False),
        epochs=settings.epochs,
        seed=settings.seed,
        weights=settings.weights,
        progress=show,
    )
    return module, DetectorCard(settings.body, split.pixels.shape[-1])


def _loaded(path: Path, split: ImageSplit, *, trained: bool = False) -> tuple[Detector, DetectorCard]:
    """Read a detector; one that was `trained` here is as its training left it, lest the last digits differ."""
    module, card = load_detector(path)
    side = split.pixels.shape[-1]
    if card.side != side:
        raise DataError(f"{path}: sees pictures of {card.side} x {card.side}, these are {side} wide")
    if trained:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.to(split.pixels.device), card


def _classifier(
    detector: Detector, card: DetectorCard, split: ImageSplit, settings: ImageSettings, folder: Path | None
) -> Detector:
    """Return the attribute classifier: trained now, or as it was kept."""
    pixels, labels = split.faces(held=False)
    card = replace(card, classes=card.classes[: int(labels.max()) + 1])  # those that it can learn

    def make() -> Detector:
        body = card.body
        return fit_attribute(
            detector, body, pixels, labels, own_body=settings.own_body, epochs=settings.epochs, seed=settings.seed
        )

    def load(path: Path) -> Detector:
        module, _ = _loaded(path, split, trained=True)
        return module if settings.own_body else Detector(detector.body, module.head).eval()

    return load_or_make(folder, ATTRIBUTE, make, lambda path, module: save_detector(path, module, card), load)


def load_or_make(
    folder: Path | None, name: str, make: Callable[[], T], save: Callable[[Path, T], None], load: Callable[[Path], T]
) -> T:
    """Return what the file of this name keeps; where there is none yet, make it and keep it."""
    there = None if folder is None else find_recorded_file(folder, name)
    if there is not None:
        return load(there)
    made = make()
    if folder is not None:
        save_recorded(folder, name, lambda path: save(path, made))
    return made


def save_recorded(folder: Path, name: str, save: Callable[[Path], None]) -> None:
    """Write a file, and enter it into the manifest: from then on it is known."""
    with writing(folder):
        save(folder / name)
        record_file(folder, name)


def _save(path: Path, search: ImageSearch) -> None:
    found = search.findings
    lines = {name: getattr(found, name) for name in _TENSORS}
    lines["counts"] = torch.tensor([*(getattr(found, name) for name in _COUNTS), search.seeds])
    lines["seconds"] = torch.tensor(search.seconds, dtype=torch.float64)
    with replace_file(path) as temporary:
        save_state(lines, temporary)


def _load(path: Path, domain: ImageDomain) -> ImageSearch:
    lines = load_state(path, domain.device)
    *counts, seeds = lines["counts"].tolist()
    held = {name: lines[name] for name in _TENSORS} | dict(zip(_COUNTS, counts, strict=True))
    found = replace(Findings.empty(domain, lines["scores"].shape[1]), **held)
    return ImageSearch(domain, found, seeds, float(lines["seconds"]))
