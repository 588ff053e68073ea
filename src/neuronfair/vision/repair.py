"""Retraining a detector with the picture pairs for which its decision flips."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from neuronfair.search.findings import Findings
from neuronfair.vision.bodies import Detector
from neuronfair.vision.detector import learn
from neuronfair.vision.domain import ImageDomain
from neuronfair.vision.encoding import PASS

FACE = 1


def finding_pictures(domain: ImageDomain, findings: Findings) -> Tensor:
    """Return both pictures of every finding, as 8-bit pictures: (2 f, c, h, w)."""
    parts = [domain.pictures[:0]]
    for part in torch.split(torch.cat([findings.rows, findings.twins(domain)]), PASS):
        parts.append(domain.levels(part).to(torch.uint8))
    return torch.cat(parts)


def retrained(
    detector: Detector,
    domain: ImageDomain,
    findings: Findings,
    pixels: Tensor,
    is_face: Tensor,
    *,
    epochs: int,
    seed: int = 0,
) -> Detector:
    """Return a copy of the detector, trained on with all findings as faces beside the pictures it was trained on.

    Both pictures of a pair show a face, so both are labelled so. The original is not touched.
    """
    module = copy.deepcopy(detector)
    added = finding_pictures(domain, findings)
    labels = torch.cat([is_face.long(), torch.full((len(added),), FACE, device=pixels.device)])
    learn(module, torch.cat([pixels, added]), labels, epochs=epochs, seed=seed)
    return module
