"""Tables 10 and 11 as Markdown, beside the paper's figures: how detectors do, what is found, what retraining mends.

    python experiments/table11_image_improvement.py experiments/h200

Reads the JSON files that table10_image.py writes: all tables come from one run. Those of one H200 are in this folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

METHODS = ("neuronfair", "eidig", "adf", "halving")
AFTER = ("before", "more training", "neuronfair", "adf", "eidig", "halving")
PAPER_ORDER = ("before", "adf", "eidig", "neuronfair")


def main() -> None:
    files = sorted(Path(sys.argv[1] if len(sys.argv) > 1 else "out/images").glob("*.json"))
    if not files:
        sys.exit("no results: run experiments/table10_image.py first")
    results = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    tested = [(_name(result, attribute), result, line) for result in results
              for attribute, line in result["attributes"].items()]  # fmt: skip
    _table(
        "detection, held out|attribute head, held out|balanced|largest class|heads flipped by FGSM|"
        "score gap of the shift|of a random shift",
        [(name, f"{r['detection_rate']:.2%}", f"{t['classifier_accuracy']:.1%}",
          f"{t['classifier_balanced_accuracy']:.1%}", f"{t['classifier_majority']:.1%}",
          f"{t['shift']['attribute_flips']:,} of {t['shift']['detected']:,}", f"{t['shift']['score_gap']:.2f}",
          f"{t['shift']['score_gap_random_shift']:.2f}") for name, r, t in tested],
    )  # fmt: skip
    _table(
        "seeds|paper: NeuronFair|NeuronFair|EIDIG|ADF|halving|halving, of seeds|its random direction|"
        "its random shift|halving, s per 1,000",
        [(name, f"{t['methods']['halving']['seeds']:,}", _share(t["methods"]["neuronfair"].get("paper")),
          *(f"{m['findings']:,} at {m['gsr']:.2%}" for m in map(t["methods"].get, METHODS)),
          *(f"{t['methods'][m]['share_of_seeds']:.0%}" for m in
            ("halving", "halving, random direction", "halving, random shift")),
          f"{t['methods']['halving']['seconds_per_1000']:.1f}") for name, _, t in tested],
    )  # fmt: skip
    _table("|".join(AFTER), [(name, *_after(t)) for name, _, t in tested if t["improvement"]])


def _name(result: dict[str, Any], attribute: str) -> str:
    more = ", pretrained" if result["pretrained"] else "" if result["options"]["seeds"] else ", all faces"
    return f"{result['set']}, {attribute}, {result['body']}{more}"


def _after(tested: dict[str, Any]) -> list[str]:
    """Return AUC and detection rate after each retraining, the paper's in brackets."""
    paper = dict(zip(PAPER_ORDER, tested["improvement_paper"] or (), strict=False))
    lines = [(name, tested["improvement"][name]) for name in AFTER]
    return [
        f"{line['auc']:.3f}, {line['detection_rate']:.2%}"
        + (f" ({paper[name][0]:.3f}, {paper[name][1]:.2%})" if name in paper else "")
        for name, line in lines
    ]


def _share(paper: dict[str, float] | None) -> str:
    return f"{paper['gsr']:.1%}" if paper else "–"


def _table(heading: str, lines: list[tuple[str, ...]]) -> None:
    print("| set, attribute, body |", heading.replace("|", " | "), "|")
    print("| --- |", " | ".join(["---:"] * (heading.count("|") + 1)), "|")
    for line in lines:
        print("|", " | ".join(line), "|")
    print()


if __name__ == "__main__":
    main()
