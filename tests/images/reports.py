"""Reports of picture audits, made by hand."""

from __future__ import annotations

from neuronfair.images.report import ImageReport, ImageSearchReport, ShiftReport

WALK = ImageSearchReport(4, 1, 0.25, 0.006, 0.806, 1, 0.5, 2, 0, 0, 0.1, 0.2, None, 1.0, 3.0, None)
NAMES = [f"{name}{kind}" for name in ("neuronfair", "halving") for kind in ("", ", random direction", ", random shift")]
REPORT = ImageReport(
    pictures=2,
    notes=("One note.",),
    sensitive="<gender>",
    classes=("f", "m"),
    body="small",
    detection_rate=1.0,
    classifier_accuracy=0.5,
    classifier_balanced_accuracy=0.5,
    own_body=False,
    shift=ShiftReport(2, 2, 1, 1, 0.1, 0.1, 1.0, 0.3, 0.1),
    worst_layer="a<b",
    auc=0.2,
    auc_by_layer={"a<b": 0.2},
    methods=dict.fromkeys(NAMES, WALK),
)
