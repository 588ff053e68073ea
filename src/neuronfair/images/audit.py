"""The audit of a detector: the faces and their attribute shifts, the searches next to controls, and the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from neuronfair.audits.folder import check_audit_folder, check_same_audit, find_recorded_file, hold_folder, record_file
from neuronfair.domain.draws import draw_order
from neuronfair.errors import DataError
from neuronfair.images.archive import ImageSet
from neuronfair.images.detector import (
    FACE,
    AttributeShift,
    Detector,
    DetectorCard,
    draw_random_shift,
    find_attribute_shift,
    fit_attribute,
    fit_detector,
    load_detector,
    measure_accuracies,
    predict_classes,
    save_detector,
)
from neuronfair.images.domain import ImageDomain, ImageEncoding
from neuronfair.images.report import ImageReport, ShiftReport
from neuronfair.images.search import (
    ImageSearch,
    ImageSettings,
    list_image_methods,
    load_search,
    measure_score_gap,
    measure_shift_norms,
    report_search,
    save_search,
    search_with_controls,
)
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.model.weights import fingerprint
from neuronfair.progress import Progress, show_nothing
from neuronfair.store.files import writing
from neuronfair.store.ledger import discard, rows_digest, versions

PROFILE_ROWS = 2000  # seed pictures whose activations are compared; the AUC of a layer hardly moves with more
MIN_FACES = 20  # faces with a known attribute: with fewer there is nothing to learn or to measure


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Pictures with the classes of an attribute, -1 where it is not known; some are held out of all training."""

    pixels: Tensor  # (n, 3, side, side), uint8
    is_face: Tensor  # (n,), bool
    labels: Tensor  # (n,), int64
    held_out: Tensor  # (n,), bool

    @staticmethod
    def of(images: ImageSet, sensitive: str, device: str | torch.device, seed: int) -> ImageSplit:
        """Hold out one picture in five at random."""
        labels, held_out = images.attribute(sensitive)[1], torch.zeros(len(images), dtype=torch.bool)
        held_out[draw_order(len(held_out), seed)[: len(held_out) // 5]] = True
        split = ImageSplit(*(t.to(device) for t in (images.pixels, images.is_face, labels, held_out)))
        known_faces = int(split.known_faces.sum())
        if known_faces < MIN_FACES:
            raise DataError(f"{images.name}: {known_faces} faces have a '{sensitive}'. At least {MIN_FACES} are needed")
        if not bool((split.known_faces & split.held_out).any()):
            raise DataError(f"{images.name}: no face with a '{sensitive}' is held out. Try another --seed")
        return split

    @property
    def known_faces(self) -> Tensor:
        """Which pictures are faces whose attribute is known: bool, (n,)."""
        return self.is_face & (self.labels >= 0)

    def part(self, *, held_out: bool) -> tuple[Tensor, Tensor]:
        """Return the pictures held out, or the others, and which of them are faces: 0 and 1."""
        mask = self.held_out == held_out
        return self.pixels[mask], self.is_face[mask].long()

    def faces(self, *, held_out: bool) -> tuple[Tensor, Tensor]:
        """Return the faces whose attribute is known, those held out or the others, and its classes."""
        mask = self.known_faces & (self.held_out == held_out)
        return self.pixels[mask], self.labels[mask]


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
    face_indices: Tensor  # where the faces of `domain` are among all pictures
    detected: int
    profile: BiasProfile

    @property
    def held_out(self) -> Tensor:
        """Which of the faces the detector was not trained on: bool, (faces,)."""
        return self.split.held_out[self.face_indices]

    @property
    def measured_faces(self) -> Tensor:
        """The numbers of the faces to measure with: those held out, or all where none is."""
        return _choose_measured(self.held_out)

    def report(self) -> ShiftReport:
        """Return how many faces there are, and how large their shifts."""
        sizes, flips = self.shift.size.double(), len(self.domain.pictures)
        rows = self.domain.rows(torch.arange(min(flips, PROFILE_ROWS), device=self.domain.device))
        return ShiftReport(
            faces=int(self.split.known_faces.sum()),
            detected=self.detected,
            attribute_flips=flips,
            attribute_never_flips=self.detected - flips,
            epsilon_median=float(sizes.median()) / 255,
            epsilon_mean=float(sizes.mean()) / 255,
            l2=float(measure_shift_norms(self.domain, self.domain.seeds).mean()),
            score_gap=measure_score_gap(self.network, self.domain, rows),
            score_gap_random_shift=measure_score_gap(self.network, self.random, rows),
        )


def find_subject(
    detector: Detector, classifier: Detector, split: ImageSplit, *, name: str, sensitive: str, seed: int = 0
) -> DetectorSubject:
    """Find the shift of every detected face and where the detector reacts to it; leave out faces that never flip.

    The seed is that of the random shifts.
    """
    faces = split.known_faces.nonzero()[:, 0]
    detected = faces[predict_classes(detector, split.pixels[faces]) == FACE]
    if len(detected) == 0:
        raise DataError(f"{name}: the detector finds no face in any of {len(faces):,} pictures, so there is no seed")
    shift = find_attribute_shift(classifier, split.pixels[detected])
    seeds = detected[shift.flips]
    if len(seeds) == 0:
        raise DataError(f"{name}: no shift flips '{sensitive}' in any of {len(detected):,} faces, so nobody has a twin")
    shift = AttributeShift(shift.levels[shift.flips], shift.size[shift.flips])
    domain = ImageDomain(name, split.pixels[seeds], shift.levels, (sensitive,))
    random = replace(domain, shift=draw_random_shift(shift, seed=seed))
    network = Network(detector, ImageEncoding(domain))
    profile = interpret(network, domain, domain.rows(_choose_measured(split.held_out[seeds])[:PROFILE_ROWS]))
    return DetectorSubject(detector, classifier, split, network, domain, shift, random, seeds, len(detected), profile)


def _choose_measured(held_out: Tensor) -> Tensor:
    return (held_out if bool(held_out.any()) else ~held_out).nonzero()[:, 0]


DETECTOR_FILE, CLASSIFIER_FILE = "detector.safetensors", "attribute.safetensors"
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ImageAudit:
    """What the audit of a detector came to, and what each search found."""

    report: ImageReport
    subject: DetectorSubject
    searches: Mapping[str, ImageSearch]
    classes: tuple[str, ...]  # what the detector decides
    files: tuple[str, ...]  # of the seed pictures


def audit_images(
    images: ImageSet,
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
    split, (classes, _) = ImageSplit.of(images, sensitive, device, settings.seed), images.attribute(sensitive)
    loaded = None if detector is None else _load_matching(detector, split)
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
    weights_file = None if folder is None or force else find_recorded_file(folder, DETECTOR_FILE)
    if loaded is None:
        loaded = (
            _train_detector(split, settings, show)
            if weights_file is None
            else _load_matching(weights_file, split, trained=True)
        )
    module, card = loaded
    if folder is not None and force:  # not before all that can be wrong was read
        discard(folder)
    with hold_folder(folder, manifest):
        if folder is not None and weights_file is None:
            save_recorded(folder, DETECTOR_FILE, lambda path: save_detector(path, module, card))
        classifier = _find_classifier(module, DetectorCard(card.body, card.side, classes), split, settings, folder)
        subject = find_subject(module, classifier, split, name=images.name, sensitive=sensitive, seed=settings.seed)

        def run_once(name: str, domain: ImageDomain, search: Callable[[], ImageSearch]) -> ImageSearch:
            show(f"Searching: {name}", 0, None)
            file_stem = re.sub(r"\W+", "-", name)
            return load_or_make(
                folder, f"found-{file_stem}.safetensors", search, save_search, lambda path: load_search(path, domain)
            )

        searches = search_with_controls(subject, list(list_image_methods()), settings, run_once)
        report = _make_report(images, subject, card, searches, own_body=settings.own_body)
        files = tuple(images.files[i] for i in subject.face_indices.tolist())
        return ImageAudit(report, subject, searches, card.classes, files)


def _make_report(
    pictures: ImageSet,
    subject: DetectorSubject,
    card: DetectorCard,
    searches: Mapping[str, ImageSearch],
    *,
    own_body: bool,
) -> ImageReport:
    """Return the report of an audit: the detector, the classifier of the attribute, and what the searches found."""
    sensitive = subject.domain.sensitive[0]
    accuracy, balanced_accuracy = measure_accuracies(subject.attribute, *subject.split.faces(held_out=True))
    worst, layers = subject.profile.worst, subject.profile.layers
    return ImageReport(
        pictures=len(pictures),
        notes=pictures.notes,
        sensitive=sensitive,
        classes=pictures.attribute(sensitive)[0],
        body=card.body,
        detection_rate=measure_accuracies(subject.detector, *subject.split.part(held_out=True))[0],
        classifier_accuracy=accuracy,
        classifier_balanced_accuracy=balanced_accuracy,
        own_body=own_body,
        shift=subject.report(),
        worst_layer=worst.name,
        auc=worst.auc,
        auc_by_layer={layer.name: layer.auc for layer in layers},
        methods={name: report_search(subject.attribute, search) for name, search in searches.items()},
    )


def _train_detector(split: ImageSplit, settings: ImageSettings, show: Progress) -> tuple[Detector, DetectorCard]:
    module = fit_detector(
        settings.body,
        *split.part(held_out=False),
        epochs=settings.epochs,
        seed=settings.seed,
        weights=settings.weights,
        progress=show,
    )
    return module, DetectorCard(settings.body, split.pixels.shape[-1])


def _load_matching(path: Path, split: ImageSplit, *, trained: bool = False) -> tuple[Detector, DetectorCard]:
    """Read a detector; one that was `trained` here is as its training left it, lest the last digits differ."""
    module, card = load_detector(path)
    side = split.pixels.shape[-1]
    if card.side != side:
        raise DataError(f"{path}: sees pictures of {card.side} x {card.side}, these are {side} wide")
    if trained:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return module.to(split.pixels.device), card


def _find_classifier(
    detector: Detector, card: DetectorCard, split: ImageSplit, settings: ImageSettings, folder: Path | None
) -> Detector:
    """Return the attribute classifier: trained now, or as it was kept."""
    pixels, labels = split.faces(held_out=False)
    card = replace(card, classes=card.classes[: int(labels.max()) + 1])  # those that it can learn

    def make() -> Detector:
        body = card.body
        return fit_attribute(
            detector, body, pixels, labels, own_body=settings.own_body, epochs=settings.epochs, seed=settings.seed
        )

    def load(path: Path) -> Detector:
        module, _ = _load_matching(path, split, trained=True)
        return module if settings.own_body else Detector(detector.body, module.head).eval()

    return load_or_make(folder, CLASSIFIER_FILE, make, lambda path, module: save_detector(path, module, card), load)


def load_or_make(
    folder: Path | None,
    name: str,
    make: Callable[[], T],
    save: Callable[[Path, T], None],
    load: Callable[[Path], T],
) -> T:
    """Return what the file of this name keeps; where there is none yet, make it and keep it."""
    path = None if folder is None else find_recorded_file(folder, name)
    if path is not None:
        return load(path)
    result = make()
    if folder is not None:
        save_recorded(folder, name, lambda path: save(path, result))
    return result


def save_recorded(folder: Path, name: str, save: Callable[[Path], None]) -> None:
    """Write a file, and enter it into the manifest: from then on it is known."""
    with writing(folder):
        save(folder / name)
        record_file(folder, name)
