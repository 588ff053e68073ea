"""Tables 10 and 11 of the paper: findings on face detectors, and what retraining does.

The measurements take GPUs and photographs, so they have a program of their own: `table10_image.py` writes JSON files,
and this module makes tables of those in `experiments/h200`, measured on one NVIDIA H200.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from experiments.cases import PAPER
from experiments.lab import FOLDER, Claim, Job, Made, Report, Results, Scale, Table, held_in
from neuronfair.measure.rate import Rate

METHODS = ("neuronfair", "eidig", "adf", "halving")
CONTROLS = ("random direction", "random shift")
WALKS = (*METHODS, *(f"halving, {control}" for control in CONTROLS))
NAMES = ["NeuronFair", "EIDIG", "ADF", "halving", "its random direction", "its random shift"]
AFTER = ("before", "more training", "neuronfair", "adf", "eidig", "halving")
PAPER_ORDER = ("before", "adf", "eidig", "neuronfair")
RUNG = "neuronfair-printed"  # on images, NeuronFair is the global phase as printed


class Tested(NamedTuple):
    """One run: a detector, and the searches for one attribute."""

    name: str
    file: dict[str, Any]
    part: dict[str, Any]  # of the file: what was measured for the attribute

    @property
    def paper(self) -> float | None:
        """The paper's findings as a share of its faces."""
        printed = self.part["methods"]["neuronfair"].get("paper")
        return printed["idis"] / PAPER["image_faces"][self.file["set"]] if printed else None

    def share(self, method: str) -> float:
        """Return the share of the faces from which a search starts for which it finds a pair."""
        return float(self.part["methods"][method]["share_of_faces"])

    @property
    def of_all(self) -> float:
        """The share of all faces: those that are not detected or whose attribute never flips count as not found."""
        shift = self.part["shift"]
        return self.share("neuronfair") * float(shift["attribute_flips"]) / float(shift["faces"])


def jobs(scale: Scale) -> list[Job]:
    """Return no jobs: the measurements are files."""
    return []


def runs() -> list[Tested]:
    """Return all runs in the order of their files."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / "h200").glob("*.json"))]
    return [Tested(_name(file, a), file, part) for file in files for a, part in file["attributes"].items()]


def report(scale: Scale, results: Results) -> Report:
    """Return findings by face and by image, and AUC and detection before and after retraining."""
    every = runs()
    first = [one for one in every if not one.file["options"]["seed"]]
    return Report(
        "Tables 10 and 11: face detectors",
        "`experiments/table10_image.py` trains detectors and measures; the options of every run are in "
        "`experiments/h200`. A classifier of the attribute is trained on the frozen body of the detector; FGSM finds "
        "the smallest shift of an image that changes its answer (Δ_senatt); then the global phase of NeuronFair (that "
        "of `neuronfair-printed`), ADF or EIDIG starts from every detected face, 40 steps at most. *Halving* is ours: "
        "a chain whose step crossed the boundary goes half of it back. Its controls are noise instead of gradients, "
        "and a shift of equal size with random signs. The file seeds has the mean, least and most of the run seeds, "
        "each with its own detector. FGSM is adversarial, so a pair need not look like another gender: compare with "
        "the random shift.",
        {
            "seeds": _over_seeds(every),
            "faces": _by_face(first),
            "detectors": _detectors(first),
            "images": _by_image(first),
            "retraining": _retraining(first),
        },
        _claims(every),
        made=_made(every),
    )


def _made(every: Sequence[Tested]) -> Made:
    """Return where, when and by which version the files were measured; the first ones do not say when."""
    files = [one.file for one in every]
    machines = {f"{file['device']}, torch {file['torch'].partition('+')[0]}" for file in files}
    versions, days = {f.get("version", "0.2.0.dev0") for f in files}, {f.get("date", "2026-11-16") for f in files}
    return Made(sorted(machines), sorted(versions), sorted(days))


def _claims(every: Sequence[Tested]) -> list[Claim]:
    def ahead(method: str, rival: str) -> int:
        return sum(one.share(method) > one.share(rival) for one in every)

    eidig, adf, count = ahead("neuronfair", "eidig"), ahead("neuronfair", "adf"), len(every)
    halving = sum(all(one.share("halving") > one.share(m) for m in METHODS[:3]) for one in every)
    random = sum(one.share("halving, random direction") > one.share("halving") for one in every)
    retrained = [one.part["improvement"] for one in every if one.part["improvement"]]
    with_findings, without = (
        sum(1 - after[name]["auc"] / after["before"]["auc"] for after in retrained) / len(retrained)
        for name in ("neuronfair", "more training")
    )
    return [
        Claim(
            "On faces NeuronFair finds more than EIDIG and ADF (Table 10)",
            eidig == adf == count,
            f"more faces than EIDIG in {eidig} of {count} runs, than ADF in {adf}",
            RUNG,
        ),
        Claim(
            "Retraining a face detector lowers the AUC of its most biased layer (Table 11)",
            None if without > 0 else with_findings > 0,
            f"by {with_findings:.0%} on average; without findings by {without:.0%}",
            RUNG,
        ),
        Claim(
            "On faces *halving* finds more than NeuronFair, EIDIG and ADF",
            held_in(halving, count),
            f"in {halving} of {count} runs; its own walk in random directions finds more than it in {random} of them",
            of_paper=False,
        ),
    ]


def _over_seeds(every: Sequence[Tested]) -> Table:
    lines = []
    for name, group in groupby(sorted(every, key=lambda one: one.name), lambda one: one.name):
        some = list(group)
        if len(some) > 1:
            shares = [_spread([one.share(walk) for one in some]) for walk in WALKS]
            lines.append([name, str(len(some)), _percent(some[0].paper), _spread([t.of_all for t in some]), *shares])
    heading = ["set, attribute, body", "run seeds", "paper, of all faces", "NeuronFair, of all faces", *NAMES]
    return Table(heading, lines, "Share of the faces for which a pair is found.", on_page=False)


def _by_face(tested: Sequence[Tested]) -> Table:
    lines = [
        [one.name, f"{one.part['methods']['halving']['seeds']:,}", _percent(one.paper), f"{one.of_all:.1%}"]
        + [_interval(one.part["methods"][walk]) for walk in WALKS]
        for one in tested
    ]
    heading = ["set, attribute, body", "faces", "paper, of all faces", "NeuronFair, of all faces", *NAMES]
    return Table(heading, lines, "Run seed 0, with 95% confidence intervals.", on_page=False)


def _detectors(tested: Sequence[Tested]) -> Table:
    lines = []
    for name, file, part in tested:
        shift = part["shift"]
        lines.append(
            [
                name,
                f"{file['detection_rate']:.2%}",
                *(f"{part[f'classifier_{key}']:.1%}" for key in ("accuracy", "balanced_accuracy", "majority")),
                f"{shift['attribute_flips']:,} of {shift['detected']:,}",
                f"{shift['score_gap']:.2f}",
                f"{shift['score_gap_random_shift']:.2f}",
            ]
        )
    heading = ["set, attribute, body", "detection, held out", "attribute head, held out", "balanced", "largest class"]
    heading += ["heads flipped by FGSM", "score gap of the shift", "of a random shift"]
    return Table(heading, lines, "How detectors and attribute classifiers do.", on_page=False)


def _by_image(tested: Sequence[Tested]) -> Table:
    lines = []
    for one in tested:
        found = [one.part["methods"][method] for method in METHODS]
        cells = [f"{walk['findings']:,} at {walk['gsr']:.2%}" for walk in found]
        printed = (found[0].get("paper") or {}).get("gsr")
        lines.append([one.name, _percent(printed), *cells, f"{found[-1]['seconds_per_1000']:.1f}"])
    heading = ["set, attribute, body", "paper: NeuronFair", *NAMES[:4], "halving, s per 1,000"]
    note = "Findings and GSR, the share of all distinct images evaluated. The paper's GSR is another quantity."
    return Table(heading, lines, note, on_page=False)


def _retraining(tested: Sequence[Tested]) -> Table:
    lines = []
    for one in (one for one in tested if one.part["improvement"]):
        paper = dict(zip(PAPER_ORDER, one.part["improvement_paper"] or (), strict=False))
        after = [(name, one.part["improvement"][name]) for name in AFTER]
        cells = [
            f"{line['auc']:.3f}, {line['detection_rate']:.2%}"
            + (f" ({paper[name][0]:.3f}, {paper[name][1]:.2%})" if name in paper else "")
            for name, line in after
        ]
        lines.append([one.name, *cells])
    note = "AUC of the most biased layer and detection on held-out images, the paper's in brackets."
    return Table(["set, attribute, body", *AFTER], lines, note, on_page=False)


def _name(file: dict[str, Any], attribute: str) -> str:
    more = ", pretrained" if file["pretrained"] else "" if file["options"]["seeds"] else ", all faces"
    return f"{file['set']}, {attribute}, {file['body']}{more}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _interval(walk: dict[str, Any]) -> str:
    rate = Rate(round(walk["share_of_faces"] * walk["seeds"]), walk["seeds"], "table")
    return f"{rate.rate:.1%} ({rate.interval[0]:.0%}–{rate.interval[1]:.0%})"


def _spread(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.0%} ({min(values):.0%}–{max(values):.0%})"
