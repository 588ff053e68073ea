"""Table 11: AUC and detection rate of face detectors before and after retraining, beside the paper's figures.

    python experiments/table11_image_improvement.py out/images

Reads the JSON files that table10_image.py writes: both tables come from one run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PAPER_ORDER = ("before", "adf", "eidig", "neuronfair")


def main() -> None:
    files = sorted(Path(sys.argv[1] if len(sys.argv) > 1 else "out/images").glob("*.json"))
    if not files:
        sys.exit("no results: run experiments/table10_image.py first")
    print("case | body | after | AUC | AUC paper | AUC same layer | detection rate | DR paper | found again | used")
    for path in files:
        result = json.loads(path.read_text(encoding="utf-8"))
        for attribute, figures in result["attributes"].items():
            printed = dict(zip(PAPER_ORDER, figures["improvement_paper"] or (), strict=False))
            for name, line in figures["improvement"].items():
                auc, rate = printed.get(name, (None, None))
                cells = (
                    f"{result['set']}-{attribute}", result["body"], name, f"{line['auc']:.4f}", auc or "",
                    f"{line['auc_same_layer']:.4f}", f"{line['detection_rate']:.4f}", rate or "",
                    f"{line['found_again']} of {line['seeds_again']}", line.get("used", ""),
                )  # fmt: skip
                print(" | ".join(map(str, cells)))


if __name__ == "__main__":
    main()
