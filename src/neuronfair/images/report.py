"""What the audit of a detector came to: metrics as plain values, and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neuronfair.formatting import percent, plain, spanned
from neuronfair.images.detector import predictions
from neuronfair.images.domain import FLAG, PASS, PIXELS, SEED, ImageDomain, PictureEncoding
from neuronfair.images.search import PictureSearch
from neuronfair.measure.rate import Rate
from neuronfair.model.network import Network
from neuronfair.searches.evaluate import evaluate

SCHEMA = 3  # as of audit.json


@dataclass(frozen=True)
class ShiftReport:
    """Δ_senatt: the faces it was looked for, how large it is, and how far it moves the scores."""

    faces: int  # whose attribute is known
    detected: int
    attribute_flips: int  # detected faces for which a shift flips the attribute classifier: the seeds
    attribute_never_flips: int  # detected faces that are left out
    epsilon_median: float  # largest change of a pixel, in [0, 1]
    epsilon_mean: float
    l2: float  # in the mean
    score_gap: float  # how far the shift moves the scores, in the mean
    score_gap_random_shift: float  # how far one of equal size with random signs does


@dataclass(frozen=True)
class WalkReport:
    """What one method, or one control, found: first by faces, then by pictures."""

    seeds: int  # faces that it walked from
    faces_found: int  # of these, how many led to a picture whose decision flips, to one or to several
    share_of_faces: float  # faces_found / seeds, as the paper counts
    share_low: float  # the interval of that share at 95%
    share_high: float
    findings: int  # pictures
    gsr: float  # findings / tried
    tried: int  # different pictures judged
    rejected: int  # that did not stand the second judgement in float64
    found_at_once: int  # without a walk: the shift alone flips the decision on the seed picture
    bias_l2: float | None  # of Δ_bias, pixels in [0, 1], in the mean; null without findings, as below
    shift_l2: float | None  # of Δ_senatt
    attribute_still_flips: float | None  # share of pairs that the attribute classifier tells apart after the walk
    median_step: float | None
    seconds: float
    seconds_per_1000: float | None


@dataclass(frozen=True)
class PictureReport:
    """The whole audit of a detector."""

    pictures: int
    notes: tuple[str, ...]  # what was changed or left out when the pictures were read
    sensitive: str
    classes: tuple[str, ...]  # of the sensitive attribute
    body: str  # of the detector
    detection_rate: float  # share of held-out pictures that are decided rightly
    classifier_accuracy: float  # of the attribute classifier, on held-out faces
    classifier_balanced_accuracy: float  # the same, as a mean over the classes
    own_body: bool  # whether the attribute classifier has a body of its own
    shift: ShiftReport
    worst_layer: str
    auc: float  # of that layer
    auc_by_layer: Mapping[str, float]
    methods: Mapping[str, WalkReport]  # and controls, such as "halving, random shift"
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the content of figures.json."""
        from neuronfair.audits.report.report import as_json  # a machine that only computes has no msgspec

        return as_json(self)

    @staticmethod
    def from_json(text: str | bytes, source: object = "figures.json") -> PictureReport:
        """Read the content of a figures.json; what is damaged, or of another form, is refused with its place."""
        from neuronfair.audits.report.report import read_json

        return read_json(text, PictureReport, source, "a figures.json")


ENOUGH = 0.6  # of the way from guessing to certainty: below, an attribute classifier knows little


def sentences(report: PictureReport) -> list[str]:
    """Return what was found, a paragraph each."""
    shift, walks, sensitive = report.shift, report.methods, plain(report.sensitive)
    lines = [
        f"Detector ({report.body}): {percent(report.detection_rate)} of held-out pictures decided rightly. Classifier "
        f"of {sensitive}: {percent(report.classifier_accuracy)} held out, "
        f"{percent(report.classifier_balanced_accuracy)} balanced over {len(report.classes)} classes.",
        f"{shift.detected:,} of {shift.faces:,} faces are detected; a shift of {shift.epsilon_mean * 255:.1f} "
        f"grey levels in the mean flips the {sensitive} of {shift.attribute_flips:,} of them, "
        f"{shift.attribute_never_flips:,} never flip and are left out.",
        f"NeuronFair finds a pair whose decision flips for {_found(walks, 'neuronfair')}.",
        f"With steps that are halved at the boundary, for {_found(walks, 'halving')}.",
        f"The shift moves the scores by {shift.score_gap:.3f} in the mean, a random shift of equal size by "
        f"{shift.score_gap_random_shift:.3f}. Most biased layer: {report.worst_layer}, AUC {report.auc:.3f}.",
    ]
    chance = 1 / len(report.classes)
    if not report.own_body and report.classifier_balanced_accuracy - chance < ENOUGH * (1 - chance):
        lines[0] += f" The detector's frozen body tells little of {sensitive}: --own-body trains a body for it."
    return lines


def _found(walks: Mapping[str, WalkReport], method: str) -> str:
    """Return for how many faces a method and its controls found a pair, and then how many pictures that took."""
    own, blind, random = (walks[f"{method}{name}"] for name in ("", ", random direction", ", random shift"))
    return (
        f"{spanned(own.share_of_faces, own.share_low, own.share_high)} of {own.seeds:,} faces; the same walk in random "
        f"directions for {percent(blind.share_of_faces)}, with a random shift of equal size instead of the attribute "
        f"for {percent(random.share_of_faces)}"
        f". Of {own.tried:,} pictures on its way, {own.findings:,} flip (GSR {percent(own.gsr)})"
    )


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
