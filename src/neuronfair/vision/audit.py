"""The audit of a detector: whom it misses when only the attribute changes, beside controls, and what training helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from neuronfair.errors import DataError
from neuronfair.model.weights import fingerprint
from neuronfair.search.methods import HALVING, picture_methods
from neuronfair.store.manifest import rows_digest, versions
from neuronfair.verdict.case import Progress
from neuronfair.verdict.folder import check_audit_folder, check_same, claim, kept
from neuronfair.vision import detector as training
from neuronfair.vision.archive import Pictures
from neuronfair.vision.bodies import Detector
from neuronfair.vision.detector import DetectorCard, accuracies, load_detector, save_detector
from neuronfair.vision.fgsm import random_like
from neuronfair.vision.folder import ATTRIBUTE, WEIGHTS, keep, once, search_once
from neuronfair.vision.quality import walk_report
from neuronfair.vision.repair import retrain, state
from neuronfair.vision.report import Improvement, PictureReport
from neuronfair.vision.search import PictureSearch, search_pictures
from neuronfair.vision.settings import PictureSettings
from neuronfair.vision.subject import Split, Subject, subject

CONTROLLED = ("neuronfair", HALVING)


@dataclass(frozen=True, eq=False)
class PictureAudit:
    """What the audit of a detector came to, and what each search found."""

    report: PictureReport
    subject: Subject
    found: Mapping[str, PictureSearch]
    classes: tuple[str, ...]  # what the detector decides
    files: tuple[str, ...]  # of the seed pictures


def audit_pictures(
    pictures: Pictures,
    sensitive: str,
    *,
    detector: Path | None = None,
    settings: PictureSettings | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    progress: Progress | None = None,
) -> PictureAudit:
    """Audit a detector with pictures: how often does its decision flip when only a sensitive attribute changes?

    The detector is one that an earlier audit left in its folder, or is trained now. With a folder, it is kept there,
    and so is what each search finds: after a kill the same audit goes on from there.
    """
    settings, show = settings or PictureSettings(), progress or _silent
    split = Split.of(pictures, sensitive, device, settings.seed)
    given = None if detector is None else _loaded(detector, split)
    manifest = {
        "audit": "pictures",
        **versions(),
        "pictures": rows_digest(split.pixels),
        "labels": rows_digest(torch.stack([split.labels, split.is_face.long()])),
        "weights": None if given is None else fingerprint(given[0]),
        "sensitive": [sensitive],
        "settings": settings.of_searches,
    }
    if folder is not None:
        check_audit_folder(folder)
        check_same(folder, manifest)
    there = None if folder is None else kept(folder, WEIGHTS)
    if given is not None:
        module, card = given
    elif there is not None:
        module, card = _loaded(there, split)
        module = _as_trained(module)
    else:
        module, card = _trained(split, settings, show)
    _lock = None if folder is None else claim(folder, manifest)  # until the audit ends
    if folder is not None and there is None:
        keep(folder, WEIGHTS, lambda path: save_detector(path, module, card))
    classes = pictures.attribute(sensitive)[0]
    classifier = _classifier(module, DetectorCard(card.body, card.side, classes), split, settings, folder)
    faces = split.known.nonzero()[:, 0]
    under_test = subject(
        module, classifier, split.pixels[faces], split.held[faces], name=pictures.name, sensitive=sensitive
    )
    found = compare(under_test, list(picture_methods()), settings, folder=folder, progress=show)
    improvement = None
    if settings.retraining and not bool(split.is_face.all()):
        show("Retraining", 0, None)
        before = state(under_test, module, split, settings)
        improvement = Improvement(before, retrain(under_test, found[HALVING].findings, split, settings)[1])
    pixels, is_face = split.part(held=True)
    right, balanced = accuracies(classifier, *split.faces(held=True))
    profile = under_test.profile
    report = PictureReport(
        pictures=len(pictures),
        notes=pictures.notes,
        sensitive=sensitive,
        classes=classes,
        body=card.body,
        detection_rate=accuracies(module, pixels, is_face.long())[0],
        classifier_accuracy=right,
        classifier_balanced_accuracy=balanced,
        own_body=settings.own_body,
        shift=under_test.report(),
        worst_layer=profile.worst.name,
        auc=profile.worst.auc,
        auc_by_layer={layer.name: layer.auc for layer in profile.layers},
        methods={name: walk_report(classifier, one) for name, one in found.items()},
        improvement=improvement,
    )
    files = tuple(pictures.files[i] for i in faces[under_test.numbers].tolist())
    return PictureAudit(report, under_test, found, card.classes, files)


def compare(
    subject: Subject,
    methods: Sequence[str],
    settings: PictureSettings,
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, PictureSearch]:
    """Search with each method from all seeds, and with controls from some; in a folder each search is done once.

    `…, random direction` is the same walk with noise in the place of gradients; `…, random shift` is the same walk
    with a shift of equal size in a random direction, so that what flips there is not the attribute.
    """
    domain, other = subject.domain, subject.domain.with_shift(random_like(subject.shift, seed=settings.seed).levels)
    order = torch.randperm(len(domain.pictures), generator=torch.Generator().manual_seed(settings.seed))
    numbers = order[: settings.seeds].to(domain.device)
    some = numbers[: settings.control_seeds]
    jobs = [(method, method, domain, numbers, False) for method in methods]
    for method in (method for method in CONTROLLED if method in methods):
        jobs.append((f"{method}, random direction", method, domain, some, True))
        jobs.append((f"{method}, random shift", method, other, some, False))
    found: dict[str, PictureSearch] = {}
    for name, method, where, seeds, blind in jobs:
        (progress or _silent)(f"Searching: {name}", len(found), len(jobs))
        make = partial(
            search_pictures, subject.network, where, method, seeds, settings, profile=subject.profile, blind=blind
        )
        found[name] = search_once(folder, name, where, make)
    return found


def _silent(what: str, done: int, total: int | None, note: str = "") -> None:
    """Show nothing."""


def _trained(split: Split, settings: PictureSettings, show: Progress) -> tuple[Detector, DetectorCard]:
    module = training.fit_detector(
        settings.body,
        *split.part(held=False),
        epochs=settings.epochs,
        seed=settings.seed,
        weights=settings.weights,
        progress=lambda done, total, loss: show("Training the detector", done, total, f"loss {loss:.4f}"),
    )
    return module, DetectorCard(settings.body, split.pixels.shape[-1])


def _loaded(path: Path, split: Split) -> tuple[Detector, DetectorCard]:
    module, card = load_detector(path)
    side = split.pixels.shape[-1]
    if card.side != side:
        raise DataError(f"{path}: sees pictures of {card.side} x {card.side}, these are {side} wide")
    return module.to(split.pixels.device), card


def _as_trained(module: Detector) -> Detector:
    """Return a network that was read from a file as its training left it, lest the last digits differ."""
    return module.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _classifier(
    detector: Detector, card: DetectorCard, split: Split, settings: PictureSettings, folder: Path | None
) -> Detector:
    """Return the attribute classifier: trained now, or as it was kept."""

    def load(path: Path) -> Detector:
        module = _loaded(path, split)[0]
        return _as_trained(module) if settings.own_body else Detector(detector.body, module.head).eval()

    make = partial(
        training.fit_attribute,
        detector,
        card.body,
        *split.faces(held=False),
        own_body=settings.own_body,
        epochs=settings.epochs,
        seed=settings.seed,
    )
    return once(folder, ATTRIBUTE, make, lambda path, module: save_detector(path, module, card), load)
