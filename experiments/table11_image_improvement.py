"""Tables 10 and 11 as Markdown, beside the paper's figures: how detectors do, what is found, what retraining mends.

    python experiments/table11_image_improvement.py experiments/h200

Reads the JSON files that table10_image.py writes: all tables come from one run. Those of one H200 are in this folder.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from neuronfair.measure.rate import Rate

METHODS = ("neuronfair", "eidig", "adf", "halving")
CONTROLS = ("random direction", "random shift")
COMPARED = METHODS[:3]  # in the paper
WALKS = (*METHODS, *(f"halving, {control}" for control in CONTROLS))
AFTER = ("before", "more training", "neuronfair", "adf", "eidig", "halving")
PAPER_ORDER = ("before", "adf", "eidig", "neuronfair")
FACES = tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))["image_faces"]

Tested = tuple[str, dict[str, Any], dict[str, Any]]  # what it is called, the file, and its part for one attribute


def main() -> None:
    files = sorted(Path(sys.argv[1] if len(sys.argv) > 1 else "out/images").glob("*.json"))
    if not files:
        sys.exit("no results: run experiments/table10_image.py first")
    results = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    every = [(_name(result, attribute), result, line) for result in results
             for attribute, line in result["attributes"].items()]  # fmt: skip
    first = [one for one in every if not one[1]["options"]["seed"]]
    detectors(first)
    by_face(first)
    claims(first, every)
    by_picture(first)
    repeats(every)
    _table("|".join(AFTER), [(name, *_after(t)) for name, _, t in first if t["improvement"]])


def detectors(tested: Sequence[Tested]) -> None:
    """Print how detectors and attribute classifiers do, and how far the shift moves the scores."""
    _table(
        "detection, held out|attribute head, held out|balanced|largest class|heads flipped by FGSM|"
        "score gap of the shift|of a random shift",
        [(name, f"{r['detection_rate']:.2%}", f"{t['classifier_accuracy']:.1%}",
          f"{t['classifier_balanced_accuracy']:.1%}", f"{t['classifier_majority']:.1%}",
          f"{t['shift']['attribute_flips']:,} of {t['shift']['detected']:,}", f"{t['shift']['score_gap']:.2f}",
          f"{t['shift']['score_gap_random_shift']:.2f}") for name, r, t in tested],
    )  # fmt: skip


def by_face(tested: Sequence[Tested]) -> None:
    """Print for which share of the faces each method and control finds a pair, beside the paper's."""
    _table(
        "faces|paper: NeuronFair, of all faces|NeuronFair, of all faces|NeuronFair|EIDIG|ADF|halving|"
        "its random direction|its random shift",
        [(name, f"{t['methods']['halving']['seeds']:,}", _percent(_paper(r, t)), f"{_of_all(t):.1%}",
          *(_interval(t["methods"][walk]) for walk in WALKS)) for name, r, t in tested],
    )  # fmt: skip


def claims(tested: Sequence[Tested], every: Sequence[Tested]) -> None:
    """Print what Table 10 claims and what came out, all as shares of all faces."""

    walks = [t["methods"] for _, _, t in every]

    def ahead(of: str) -> str:
        more = sum(walk["neuronfair"]["share_of_faces"] > walk[of]["share_of_faces"] for walk in walks)
        return f"{more}"

    for case in sorted({", ".join(name.split(", ")[:2]) for name, r, t in tested if _paper(r, t) is not None}):
        here = [(name.removeprefix(f"{case}, "), r, t) for name, r, t in tested if name.startswith(f"{case}, ")]
        printed = ", ".join(_percent(_paper(*here[0][1:], method)) for method in COMPARED)
        told = "; ".join(f"{body} {', '.join(f'{_of_all(t, m):.1%}' for m in COMPARED)}" for body, _, t in here)
        print(f"* {case}, NeuronFair, EIDIG and ADF, of all faces: the paper {printed}; here {told}.")
    print(f"* In {len(walks)} runs, all run seeds counted, NeuronFair finds a pair for more faces than EIDIG in "
          f"{ahead('eidig')}, than ADF in {ahead('adf')}, than its own walk in random directions in "
          f"{ahead('neuronfair, random direction')}.")  # fmt: skip
    print()


def by_picture(tested: Sequence[Tested]) -> None:
    """Print findings and GSR: every picture on the way counts."""
    _table(
        "paper: NeuronFair|NeuronFair|EIDIG|ADF|halving|halving, s per 1,000",
        [(name, _percent((t["methods"]["neuronfair"].get("paper") or {}).get("gsr")),
          *(f"{m['findings']:,} at {m['gsr']:.2%}" for m in map(t["methods"].get, METHODS)),
          f"{t['methods']['halving']['seconds_per_1000']:.1f}") for name, _, t in tested],
    )  # fmt: skip


def repeats(tested: Sequence[Tested]) -> None:
    """Print the mean, least and most over run seeds, each with a detector of its own: shares of faces."""
    lines = []
    for name, group in groupby(sorted(tested, key=lambda one: one[0]), lambda one: one[0]):
        runs = list(group)
        if len(runs) > 1:
            spread = [_spread([t["methods"][walk]["share_of_faces"] for _, _, t in runs]) for walk in WALKS]
            of_all = _spread([_of_all(t) for _, _, t in runs])
            lines.append((name, f"{len(runs)}", _percent(_paper(*runs[0][1:])), of_all, *spread))
    if lines:
        _table("run seeds|paper: NeuronFair, of all faces|NeuronFair, of all faces|NeuronFair|EIDIG|ADF|halving|"
               "its random direction|its random shift", lines)  # fmt: skip


def _name(result: dict[str, Any], attribute: str) -> str:
    more = ", pretrained" if result["pretrained"] else "" if result["options"]["seeds"] else ", all faces"
    return f"{result['set']}, {attribute}, {result['body']}{more}"


def _paper(result: dict[str, Any], tested: dict[str, Any], method: str = "neuronfair") -> float | None:
    """Return the paper's findings as a share of its faces."""
    printed = tested["methods"][method].get("paper")
    return printed["idis"] / FACES[result["set"]] if printed else None


def _of_all(tested: dict[str, Any], method: str = "neuronfair") -> float:
    """Return for which share of all faces a method finds a pair, if those it did not start from are like the others.

    Faces that are not detected, or whose attribute never flips, count as not found.
    """
    shift, walk = tested["shift"], tested["methods"][method]
    return float(walk["share_of_faces"] * shift["attribute_flips"] / shift["faces"])


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _interval(walk: dict[str, Any]) -> str:
    rate = Rate(round(walk["share_of_faces"] * walk["seeds"]), walk["seeds"], "table")
    return f"{rate.rate:.1%} ({rate.interval[0]:.0%}–{rate.interval[1]:.0%})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float]) -> str:
    return f"{_mean(values):.0%} ({min(values):.0%}–{max(values):.0%})"


def _after(tested: dict[str, Any]) -> list[str]:
    """Return AUC and detection rate after each retraining, the paper's in brackets."""
    paper = dict(zip(PAPER_ORDER, tested["improvement_paper"] or (), strict=False))
    lines = [(name, tested["improvement"][name]) for name in AFTER]
    return [
        f"{line['auc']:.3f}, {line['detection_rate']:.2%}"
        + (f" ({paper[name][0]:.3f}, {paper[name][1]:.2%})" if name in paper else "")
        for name, line in lines
    ]


def _table(heading: str, lines: Sequence[Sequence[str]]) -> None:
    print("| set, attribute, body |", heading.replace("|", " | "), "|")
    print("| --- |", " | ".join(["---:"] * (heading.count("|") + 1)), "|")
    for line in lines:
        print("|", " | ".join(line), "|")
    print()


if __name__ == "__main__":
    main()
