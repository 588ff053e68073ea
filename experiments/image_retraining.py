"""Retraining a detector with the picture pairs for which its decision flips, and what that did."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace

from neuronfair.images.audit import PROFILE_ROWS, DetectorSubject
from neuronfair.images.detector import FACE, Detector, measure_accuracies, predict_classes, train_on_images
from neuronfair.images.domain import ImageEncoding
from neuronfair.images.report import decode_findings
from neuronfair.images.search import HALVING, ImageSettings, search_images
from neuronfair.model.network import Network
from neuronfair.model.profile import interpret
from neuronfair.searches.findings import Findings

import torch

AGAIN_SEEDS = 500  # held-out faces from which a retrained detector is searched again


@dataclass(frozen=True)
class StateReport:
    """A detector before or after a retraining, on held-out pictures."""

    auc: float  # of the most biased layer
    auc_same_layer: float  # of the layer that was the most biased one before
    auc_mean: float  # over all layers
    detection_rate: float
    found_again: int  # by a new search with halving
    seeds_again: int
    gsr_again: float
    used: int = 0  # findings in the retraining
    seconds: float = 0.0  # of the retraining


def retrain(
    subject: DetectorSubject, findings: Findings | None, settings: ImageSettings, *, epochs: int = 4
) -> tuple[Detector, StateReport]:
    """Train a copy of the detector on with its pictures and findings, and measure it again on pictures held out.

    Both pictures of a pair show a face, so both are labelled so. Findings that come from held-out faces are not used:
    what is measured was never seen. Without findings the training continues with the same pictures: the control.
    """
    clock = time.perf_counter()
    if findings is None:
        findings = Findings.empty(subject.domain, subject.network.outputs)
    findings = findings[~subject.held_out[findings.origin]]
    module, (pixels, labels) = copy.deepcopy(subject.detector), subject.split.part(held_out=False)
    added = decode_findings(subject.domain, findings)
    labels = torch.cat([labels, torch.full((len(added),), FACE, device=pixels.device)])
    train_on_images(module, torch.cat([pixels, added]), labels, epochs=epochs, seed=settings.seed)
    seconds = time.perf_counter() - clock
    return module, replace(state(subject, module, settings), used=len(findings), seconds=seconds)


def state(subject: DetectorSubject, detector: Detector, settings: ImageSettings) -> StateReport:
    """Return AUC, detection rate and a new search (halving) of a detector, all on held-out pictures.

    The shifts stay those of the detector under test, so that before and after are asked the same question.
    """
    domain, out = subject.domain, subject.measured_faces
    network = Network(detector, ImageEncoding(domain))
    seen = predict_classes(detector, domain.pictures) == FACE
    profile = interpret(network, domain, domain.rows(out[:PROFILE_ROWS]))
    seeds, settings = out[seen[out]][:AGAIN_SEEDS], replace(settings, seconds=None)
    again = search_images(network, domain, HALVING, seeds, settings, profile=profile)
    aucs = {layer.name: layer.auc for layer in profile.layers}
    return StateReport(
        auc=profile.worst.auc,
        auc_same_layer=aucs[subject.profile.worst.name],
        auc_mean=sum(aucs.values()) / len(aucs),
        detection_rate=measure_accuracies(detector, *subject.split.part(held_out=True))[0],
        found_again=len(again.findings),
        seeds_again=again.seeds,
        gsr_again=again.findings.success_rate,
    )
