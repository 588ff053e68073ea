"""What the audit of a detector came to: a tree of plain values that figures.json, page and terminal show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = 3  # as of audit.json


@dataclass(frozen=True)
class ShiftReport:
    """Δ_senatt: the faces it was looked for, how large it is, and how far it moves the scores."""

    kind: str  # "fgsm" or "latent"
    faces: int  # whose attribute is known
    detected: int
    attribute_flips: int  # detected faces for which a shift flips the attribute classifier: the seeds
    attribute_never_flips: int  # detected faces that are left out
    epsilon_median: float  # largest change of a pixel, in [0, 1]
    epsilon_mean: float
    l2: float  # in the mean
    score_gap: float  # how far the shift moves the scores, in the mean
    score_gap_random_shift: float  # how far one of equal size does: random signs, or a random latent direction
    score_gap_fgsm_shift: float | None = None  # beside a latent shift: how far that of FGSM does


@dataclass(frozen=True)
class WalkReport:
    """What one method, or one control, found: first by faces, then by pictures."""

    seeds: int  # faces that it walked from
    faces_found: int  # of these, how many led to a picture whose decision flips, to one or to several
    share_of_faces: float  # faces_found / seeds, as the paper counts
    share_low: float  # the interval of that share at 95 %
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


@dataclass(frozen=True)
class Improvement:
    """What a retraining with the findings did."""

    before: StateReport
    after: StateReport


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
    improvement: Improvement | None = None  # null without a retraining
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Return the content of figures.json."""
        from neuronfair.verdict.report import as_json  # a machine that only computes has no msgspec

        return as_json(self)

    @staticmethod
    def from_json(text: str | bytes, source: object = "figures.json") -> PictureReport:
        """Read the content of a figures.json; what is damaged, or of another form, is refused with its place."""
        from neuronfair.verdict.report import read_json

        return read_json(text, PictureReport, source, "a figures.json")
