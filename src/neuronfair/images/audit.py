"""The audit of a detector: whom it misses when only the attribute changes, beside controls, and what training helps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from neuronfair.audits.folder import check_audit_folder, check_same, claim, kept
from neuronfair.errors import DataError, did_you_mean
from neuronfair.images.archive import Pictures
from neuronfair.images.detector import (
    DetectorCard,
    accuracies,
    fit_attribute,
    fit_detector,
    load_detector,
    save_detector,
)
from neuronfair.images.domain import ImageDomain
from neuronfair.images.folder import ATTRIBUTE, WEIGHTS, keep, latent_once, once, search_once
from neuronfair.images.latent_shift import fit_latent
from neuronfair.images.measures import walk_report
from neuronfair.images.networks import Detector
from neuronfair.images.repair import retrain, state
from neuronfair.images.report import Improvement, PictureReport
from neuronfair.images.search import PictureSearch, PictureSettings
from neuronfair.images.subject import LATENT, SHIFTS, DetectorSubject, ImageSplit, compare, subject
from neuronfair.model.weights import fingerprint
from neuronfair.progress import Progress, silent
from neuronfair.searches.methods import HALVING, picture_methods
from neuronfair.store.discard import discard
from neuronfair.store.manifest import rows_digest, versions


@dataclass(frozen=True, eq=False)
class PictureAudit:
    """What the audit of a detector came to, and what each search found."""

    report: PictureReport
    subject: DetectorSubject
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
    force: bool = False,
    progress: Progress | None = None,
) -> PictureAudit:
    """Audit a detector with pictures: how often does its decision flip when only a sensitive attribute changes?

    The detector is one that an earlier audit left in its folder, or is trained now. With a folder, it is kept there,
    and so is what each search finds: after a kill the same audit goes on from there, or with `force` begins anew.
    """
    settings, show = settings or PictureSettings(), progress or silent
    if settings.shift not in SHIFTS:
        raise DataError(f"no shift '{settings.shift}'. {did_you_mean(settings.shift, SHIFTS)}")
    split, (classes, _) = ImageSplit.of(pictures, sensitive, device, settings.seed), pictures.attribute(sensitive)
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
    if folder is not None and not force:
        check_audit_folder(folder)
        check_same(folder, manifest)
    there = None if folder is None or force else kept(folder, WEIGHTS)
    if given is None:
        given = _trained(split, settings, show) if there is None else _loaded(there, split, trained=True)
    module, card = given
    if folder is not None and force:  # not before all that can be wrong was read
        discard(folder)
    _lock = None if folder is None else claim(folder, manifest)  # until the audit ends
    if folder is not None and there is None:
        keep(folder, WEIGHTS, lambda path: save_detector(path, module, card))
    classifier = _classifier(module, DetectorCard(card.body, card.side, classes), split, settings, folder)
    latent = None
    if settings.shift == LATENT:
        latent = latent_once(
            folder, split.pixels.device, lambda: fit_latent(*split.faces(held=False), seed=settings.seed)
        )
    under_test = subject(
        module, classifier, split, name=pictures.name, sensitive=sensitive, latent=latent, seed=settings.seed
    )

    def look(name: str, where: ImageDomain, search: Callable[[], PictureSearch]) -> PictureSearch:
        show(f"Searching: {name}", 0, None)
        return search_once(folder, name, where, search)

    found = compare(under_test, list(picture_methods()), settings, look)
    improvement = None
    if settings.retraining and not bool(split.is_face.all()):
        show("Retraining", 0, None)
        before = state(under_test, module, settings)
        improvement = Improvement(before, retrain(under_test, found[HALVING].findings, settings)[1])
    right, balanced = accuracies(classifier, *split.faces(held=True))
    worst, layers = under_test.profile.worst, under_test.profile.layers
    report = PictureReport(
        pictures=len(pictures),
        notes=pictures.notes,
        sensitive=sensitive,
        classes=classes,
        body=card.body,
        detection_rate=accuracies(module, *split.part(held=True))[0],
        classifier_accuracy=right,
        classifier_balanced_accuracy=balanced,
        own_body=settings.own_body,
        shift=under_test.report(),
        worst_layer=worst.name,
        auc=worst.auc,
        auc_by_layer={layer.name: layer.auc for layer in layers},
        methods={name: walk_report(classifier, one) for name, one in found.items()},
        improvement=improvement,
    )
    files = tuple(pictures.files[i] for i in under_test.numbers.tolist())
    return PictureAudit(report, under_test, found, card.classes, files)


def _trained(split: ImageSplit, settings: PictureSettings, show: Progress) -> tuple[Detector, DetectorCard]:
    module = fit_detector(
        settings.body,
        *split.part(held=False),
        epochs=settings.epochs,
        seed=settings.seed,
        weights=settings.weights,
        progress=lambda done, total, loss: show("Training the detector", done, total, f"loss {loss:.4f}"),
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
    detector: Detector, card: DetectorCard, split: ImageSplit, settings: PictureSettings, folder: Path | None
) -> Detector:
    """Return the attribute classifier: trained now, or as it was kept."""
    pixels, labels = split.faces(held=False)
    card = replace(card, classes=card.classes[: int(labels.max()) + 1])  # those that it can learn

    def make() -> Detector:
        given = (detector, card.body, pixels, labels)
        return fit_attribute(*given, own_body=settings.own_body, epochs=settings.epochs, seed=settings.seed)

    def load(path: Path) -> Detector:
        module, _ = _loaded(path, split, trained=True)
        return module if settings.own_body else Detector(detector.body, module.head).eval()

    return once(folder, ATTRIBUTE, make, lambda path, module: save_detector(path, module, card), load)
