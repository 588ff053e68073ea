"""What the audit of a detector found, in words."""

from __future__ import annotations

from neuronfair.vision.report import PictureReport
from neuronfair.words import percent, plain

ENOUGH = 0.6  # of the way from guessing to certainty: below, an attribute classifier knows little


def sentences(report: PictureReport) -> list[str]:
    """Return what was found, a paragraph each."""
    shift, walks, sensitive = report.shift, report.methods, plain(report.sensitive)
    ours, blind, random = (walks[f"neuronfair{name}"] for name in ("", ", random direction", ", random shift"))
    close, close_random = walks["halving"], walks["halving, random shift"]
    lines = [
        f"Detector ({report.body}): {percent(report.detection_rate)} of held-out pictures decided rightly. Classifier "
        f"of {sensitive}: {percent(report.classifier_accuracy)} held out, "
        f"{percent(report.classifier_balanced_accuracy)} balanced over {len(report.classes)} classes.",
        f"{shift.detected:,} of {shift.faces:,} faces are detected; a shift of {shift.epsilon_mean * 255:.1f} grey "
        f"levels in the mean flips the {sensitive} of {shift.attribute_flips:,} of them, "
        f"{shift.attribute_never_flips:,} never flip and are left out.",
        f"NeuronFair finds {ours.findings:,} pairs whose decision flips, from {percent(ours.share_of_seeds)} of the "
        f"seeds (GSR {percent(ours.gsr)}); the same walk in random directions from {percent(blind.share_of_seeds)} of "
        f"its seeds; with a random shift of equal size instead of the attribute from {percent(random.share_of_seeds)}.",
        f"With steps that are halved at the boundary it finds {close.findings:,} pairs, from "
        f"{percent(close.share_of_seeds)} of the seeds (GSR {percent(close.gsr)}), and with the random shift from "
        f"{percent(close_random.share_of_seeds)}.",
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
