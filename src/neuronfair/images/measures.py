"""Figures about picture findings: how large both perturbations are, and whether the attribute still flips."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from neuronfair.images.detector import predictions
from neuronfair.images.domain import FLAG, PASS, PIXELS, SEED, ImageDomain, PictureEncoding
from neuronfair.images.report import WalkReport
from neuronfair.images.search import PictureSearch
from neuronfair.measure.rate import Rate
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import judge


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
    gaps = [judge(network, domain, part).gaps[:, 0] for part in torch.split(rows, PASS)]
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
