"""The audit of a detector: how often its decision flips when only the attribute changes, next to controls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import torch

from neuronfair.atomic import replacing
from neuronfair.audits.folder import check_audit_folder, check_same, claim, enter, kept
from neuronfair.errors import DataError
from neuronfair.images.archive import Pictures
from neuronfair.images.detector import (
    Detector,
    DetectorCard,
    accuracies,
    fit_attribute,
    fit_detector,
    load_detector,
    save_detector,
)
from neuronfair.images.domain import ImageDomain
from neuronfair.images.report import PictureReport
from neuronfair.images.subject import (
    DetectorSubject,
    ImageSplit,
    PictureSearch,
    PictureSettings,
    compare,
    subject,
    walk_report,
)
from neuronfair.model.weights import fingerprint
from neuronfair.progress import Progress, silent
from neuronfair.searches.findings import Findings
from neuronfair.searches.methods import image_methods
from neuronfair.store.files import load_state, save_state, writing
from neuronfair.store.ledger import discard
from neuronfair.store.manifest import rows_digest, versions

WEIGHTS, ATTRIBUTE = "detector.safetensors", "attribute.safetensors"
_COUNTS = [field.name for field in fields(Findings) if field.type == "int"]
_TENSORS = [field.name for field in fields(Findings) if field.name not in _COUNTS]
T = TypeVar("T")


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
    under_test = subject(module, classifier, split, name=pictures.name, sensitive=sensitive, seed=settings.seed)

    def look(name: str, where: ImageDomain, search: Callable[[], PictureSearch]) -> PictureSearch:
        show(f"Searching: {name}", 0, None)
        return search_once(folder, name, where, search)

    found = compare(under_test, list(image_methods()), settings, look)
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


def once(
    folder: Path | None, name: str, make: Callable[[], T], save: Callable[[Path, T], None], load: Callable[[Path], T]
) -> T:
    """Return what the file of this name keeps; where there is none yet, make it and keep it."""
    there = None if folder is None else kept(folder, name)
    if there is not None:
        return load(there)
    made = make()
    if folder is not None:
        keep(folder, name, lambda path: save(path, made))
    return made


def keep(folder: Path, name: str, save: Callable[[Path], None]) -> None:
    """Write a file, and enter it into the manifest: from then on it is known."""
    with writing(folder):
        save(folder / name)
        enter(folder, name)


def search_once(
    folder: Path | None, name: str, domain: ImageDomain, make: Callable[[], PictureSearch]
) -> PictureSearch:
    """Return what a search has found, from the folder or now."""
    name = re.sub(r"\W+", "-", name)
    file = f"found-{name}.safetensors"
    return once(folder, file, make, _save, lambda path: _load(path, domain))


def _save(path: Path, search: PictureSearch) -> None:
    found = search.findings
    lines = {name: getattr(found, name) for name in _TENSORS}
    lines["counts"] = torch.tensor([*(getattr(found, name) for name in _COUNTS), search.seeds])
    lines["seconds"] = torch.tensor(search.seconds, dtype=torch.float64)
    with replacing(path) as temporary:
        save_state(lines, temporary)


def _load(path: Path, domain: ImageDomain) -> PictureSearch:
    lines = load_state(path, domain.device)
    *counts, seeds = lines["counts"].tolist()
    held = {name: lines[name] for name in _TENSORS} | dict(zip(_COUNTS, counts, strict=True))
    found = replace(Findings.empty(domain, lines["scores"].shape[1]), **held)
    return PictureSearch(domain, found, seeds, float(lines["seconds"]))
