"""What the audit of a detector found, in words."""

from __future__ import annotations

from collections.abc import Mapping

from neuronfair.vision.report import PictureReport, WalkReport
from neuronfair.words import percent, plain, spanned

ENOUGH = 0.6  # of the way from guessing to certainty: below, an attribute classifier knows little


def sentences(report: PictureReport) -> list[str]:
    """Return what was found, a paragraph each."""
    shift, walks, sensitive = report.shift, report.methods, plain(report.sensitive)
    by_step = "" if shift.kind == "fgsm" else "along the groups of the faces' latent space "
    lines = [
        f"Detector ({report.body}): {percent(report.detection_rate)} of held-out pictures decided rightly. Classifier "
        f"of {sensitive}: {percent(report.classifier_accuracy)} held out, "
        f"{percent(report.classifier_balanced_accuracy)} balanced over {len(report.classes)} classes.",
        f"{shift.detected:,} of {shift.faces:,} faces are detected; a shift {by_step}of {shift.epsilon_mean * 255:.1f} "
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
    if report.improvement is not None:
        before, after = report.improvement.before, report.improvement.after
        lines.append(
            f"Retrained with {after.used:,} pairs that halving found: AUC {before.auc:.3f} to {after.auc:.3f}, "
            f"detection rate {percent(before.detection_rate)} to {percent(after.detection_rate)}, "
            f"found again on held-out faces {before.found_again:,} of {before.seeds_again:,} to "
            f"{after.found_again:,} of {after.seeds_again:,}."
        )
    return lines


def _found(walks: Mapping[str, WalkReport], method: str) -> str:
    """Return for how many faces a method and its controls found a pair, and then how many pictures that took."""
    own, blind, random = (walks[f"{method}{name}"] for name in ("", ", random direction", ", random shift"))
    fgsm = walks.get(f"{method}, fgsm shift")
    return (
        f"{spanned(own.share_of_faces, own.share_low, own.share_high)} of {own.seeds:,} faces; the same walk in random "
        f"directions for {percent(blind.share_of_faces)}, with a random shift of equal size instead of the attribute "
        f"for {percent(random.share_of_faces)}"
        + ("" if fgsm is None else f", with the FGSM shift for {percent(fgsm.share_of_faces)}")
        + f". Of {own.tried:,} pictures on its way, {own.findings:,} flip (GSR {percent(own.gsr)})"
    )
