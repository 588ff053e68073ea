"""What the audit of a detector came to: metrics as plain values, and sentences."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.atomic import replace_file, write_text
from neuronfair.audits.report import SCHEMA, format_json, read_json
from neuronfair.domain.twins import GROUP, SAMPLE
from neuronfair.formatting import percent, spell, with_interval
from neuronfair.images.archive import import_pillow
from neuronfair.images.detector import predict_classes
from neuronfair.images.domain import IMAGES_PER_PASS, ImageDomain
from neuronfair.render.page import render_template
from neuronfair.searches.findings import Findings
from neuronfair.store.files import writing

if TYPE_CHECKING:
    from neuronfair.images.audit import DetectorSubject, ImageAudit

HALVING, RANDOM_SHIFT = "halving", "random shift"  # a method, and a control


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
class ImageSearchReport:
    """What one method, or one control, found: first by faces, then by pictures."""

    seeds: int  # faces that it walked from
    faces_found: int  # how many of the seeds led to a picture whose decision flips, to one or to several
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
class ImageReport:
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
    auc: float  # of the worst layer
    auc_by_layer: Mapping[str, float]
    methods: Mapping[str, ImageSearchReport]  # searches by method, and controls, such as "halving, random shift"
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the content of figures.json."""
        return format_json(self)

    @staticmethod
    def from_json(text: str | bytes, source: object = "figures.json") -> ImageReport:
        """Read the content of a figures.json; what is damaged, or of another form, is refused with its place."""
        return read_json(text, ImageReport, source, "a figures.json")


MIN_ATTRIBUTE_SKILL = 0.6  # of the way from guessing to certainty: below, an attribute classifier knows little


def describe_image_audit(report: ImageReport) -> list[str]:
    """Return what was found, a paragraph each."""
    shift, searches, sensitive = report.shift, report.methods, spell(report.sensitive)
    lines = [
        f"The detector ({report.body}) classifies {percent(report.detection_rate)} of held-out images correctly. The "
        f"classifier of {sensitive} is right for {percent(report.classifier_accuracy)} of held-out faces, and its "
        f"balanced accuracy is {percent(report.classifier_balanced_accuracy)}.",
        f"{shift.detected:,} of {shift.faces:,} faces are detected. A shift of {shift.epsilon_mean * 255:.1f} grey "
        f"levels on average flips the {sensitive} of {shift.attribute_flips:,} of them; "
        f"{shift.attribute_never_flips:,} never flip and are left out.",
        f"NeuronFair finds a pair with different decisions for {_describe_search(searches, 'neuronfair')}",
        f"With steps that are halved at the decision boundary, it does for {_describe_search(searches, 'halving')}",
        f"The shift changes the scores by {shift.score_gap:.3f} on average, a random shift of equal size by "
        f"{shift.score_gap_random_shift:.3f}. Most biased layer: {report.worst_layer} (AS-AUC {report.auc:.3f}).",
    ]
    chance = 1 / len(report.classes)
    if not report.own_body and report.classifier_balanced_accuracy - chance < MIN_ATTRIBUTE_SKILL * (1 - chance):
        lines[0] += f" The detector's frozen body tells little of {sensitive}: --own-body trains a body for it."
    return lines


def _describe_search(searches: Mapping[str, ImageSearchReport], method: str) -> str:
    """Return for how many faces a method and its controls found a pair, and how many images on the way flip."""
    search, blind, shifted = (searches[f"{method}{name}"] for name in ("", ", random direction", ", random shift"))
    return (
        f"{with_interval(search.share_of_faces, search.share_low, search.share_high)} of {search.seeds:,} faces. In "
        f"random directions the share is {percent(blind.share_of_faces)}, and with a random shift of equal size "
        f"{percent(shifted.share_of_faces)}. {search.findings:,} of {search.tried:,} images on the way flip."
    )


Panels = list[list[tuple[Tensor, str]]]  # rows of pictures, each with a line of text
REPORT_FILE, PAGE, PAIRS = "figures.json", "report.html", "pairs.npz"
PAIRS_SHOWN, FACES_SHOWN = 12, 6  # pairs on the page, and faces with the twins that each shift makes
ENLARGEMENT = 3  # times, so that single pixels can be seen
MAX_AMPLIFIED_LEVELS = 127  # levels that the largest difference is amplified to


def amplify(difference: Tensor) -> tuple[Tensor, int]:
    """Return a difference as a picture around middle grey, and how many times it is amplified: a whole number."""
    largest = int(difference.abs().max())
    times = max(1, MAX_AMPLIFIED_LEVELS // largest) if largest else 1
    return (128 + difference.to(torch.int16) * times).clamp(0, 255).to(torch.uint8), times


def make_finding_panels(domain: ImageDomain, findings: Findings, classes: Sequence[str]) -> Panels:
    """Return for each finding five pictures with a line of text each: seed, picture, twin and both differences."""
    rows = findings.rows.clone()
    seeds = domain.rows(rows[:, SAMPLE].long())
    twins = findings.twins(domain)
    decisions = findings.scores.argmax(1), findings.twin_scores.argmax(1)
    panels = []
    for i in range(len(rows)):
        seed, picture, twin = (domain.levels(r[i : i + 1])[0] for r in (seeds, rows, twins))
        change, change_times = amplify(picture - seed)
        shift, shift_times = amplify(twin - picture if int(rows[i, GROUP]) == 0 else picture - twin)
        panels.append(
            [
                (seed.to(torch.uint8), "seed"),
                (picture.to(torch.uint8), f"picture: {classes[int(decisions[0][i])]}"),
                (twin.to(torch.uint8), f"twin: {classes[int(decisions[1][i])]}"),
                (change, f"Δ bias × {change_times}"),
                (shift, f"Δ {domain.sensitive[0]} × {shift_times}"),
            ]
        )
    return panels


def make_shift_panels(subject: DetectorSubject, classes: Sequence[str], max_faces: int) -> Panels:
    """Return for some faces the seed, its twin and the same face with a random shift, with the attribute of each.

    The attribute is the classifier's answer: people may see another one.
    """
    domains = {"attribute shift": subject.domain, RANDOM_SHIFT: subject.random}
    rows = subject.domain.rows(torch.arange(min(max_faces, len(subject.domain.pictures)), device=subject.domain.device))
    levels = {"seed": subject.domain.levels(rows)}
    levels |= {name: domain.levels(domain.twins(rows).rows[:, 0]) for name, domain in domains.items()}
    answers = {name: predict_classes(subject.attribute, images).tolist() for name, images in levels.items()}
    return [
        [(pixels[i].to(torch.uint8), f"{name}: {classes[answers[name][i]]}") for name, pixels in levels.items()]
        for i in range(len(rows))
    ]


def decode_findings(domain: ImageDomain, findings: Findings) -> Tensor:
    """Return both pictures of every finding, as 8-bit pictures: (2 f, c, h, w)."""
    rows = torch.cat([findings.rows, findings.twins(domain)])
    return torch.cat([domain.levels(part).to(torch.uint8) for part in torch.split(rows, IMAGES_PER_PASS)])


def render_image_audit(audit: ImageAudit) -> str:
    """Return the audit of a detector as one self-contained HTML page: sentences, figures, and pairs side by side."""
    report, subject = audit.report, audit.subject
    findings = audit.searches[HALVING].findings[:PAIRS_SHOWN]
    faces = make_shift_panels(subject, report.classes, FACES_SHOWN)
    panels = faces, make_finding_panels(subject.domain, findings, audit.classes)
    twins, pairs = ([[(_encode_png(picture), text) for picture, text in row] for row in rows] for rows in panels)
    lines = describe_image_audit(report)
    return render_template("pictures.html", report=report, lines=lines, spanned=with_interval, twins=twins, pairs=pairs)


def write_results(folder: Path, audit: ImageAudit) -> None:
    """Write the figures of an audit, its page, and all pairs that halving has found as 8-bit pictures."""
    findings, domain = audit.searches[HALVING].findings, audit.subject.domain
    pictures, twins = decode_findings(domain, findings).cpu().chunk(2)
    with writing(folder), replace_file(folder / PAIRS) as temporary:
        write_text(folder / REPORT_FILE, audit.report.to_json())
        write_text(folder / PAGE, render_image_audit(audit))
        np.savez_compressed(
            temporary,
            pictures=pictures.numpy(),
            twins=twins.numpy(),
            scores=findings.scores.cpu().numpy(),
            twin_scores=findings.twin_scores.cpu().numpy(),
            seeds=np.array([audit.files[i] for i in findings.origin.tolist()], dtype=str),
        )


def enlarge(picture: Tensor) -> Any:
    """Return a picture as one of Pillow's, so large that single pixels can be seen."""
    pillow = import_pillow()
    array = np.ascontiguousarray(picture.cpu().numpy().transpose(1, 2, 0))
    image = pillow.fromarray(array)
    return image.resize((image.width * ENLARGEMENT, image.height * ENLARGEMENT), pillow.Resampling.NEAREST)


def _encode_png(picture: Tensor) -> str:
    buffer = io.BytesIO()
    enlarge(picture).save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
