"""Table 10 (and the data of Table 11): findings of face detectors by method, next to controls and the paper's figures.

    python experiments/table10_image.py --device cuda --images DATA/images --sets lfw_in --out out/images

With the files in `experiments/h200`, `neuronfair reproduce images` makes the tables (images.py). This program needs
torch, numpy, scipy, scikit-learn, safetensors, Pillow and this source tree (PYTHONPATH=src). `--faces 200 --bodies
small` tries everything on a CPU. It writes one JSON file per set, body and run seed to --out.

The paper's findings divided by its success rates are fewer than its faces in all twelve cases (3,950 at 61.4% are
6,433 of 10,000), so it counts one instance per face. The tables therefore have shares of faces first, next to the
paper's findings as a share of its faces, and then the share of all images evaluated (GSR).
"""

from __future__ import annotations

import argparse
import json
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import experiments.image_bodies  # noqa: F401  # VGG16 and ResNet50
from experiments.image_retraining import retrain, state
from experiments.image_sets import SETS, load_images
from neuronfair import __version__
from neuronfair.images.archive import ImageSet
from neuronfair.images.audit import DetectorSubject, ImageSplit, find_subject
from neuronfair.images.detector import BODIES, Detector, fit_attribute, fit_detector, measure_accuracies
from neuronfair.images.search import ImageSearch, ImageSettings, list_image_methods, report_search, search_with_controls

import torch

ATTRIBUTES = ("gender", "race")
METHODS = tuple(list_image_methods())
PAPER = tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of the zip archives; default $NEURONFAIR_DATA/images")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--bodies", nargs="+", default=["vgg16", "resnet50"], choices=list(BODIES))
    parser.add_argument("--attributes", nargs="+", default=list(ATTRIBUTES), choices=ATTRIBUTES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--weights", type=Path, help="pretrained resnet50 body (safetensors): convert_resnet50.py")
    parser.add_argument("--own-body", action="store_true", help="train a body of its own for the attribute classifier")
    parser.add_argument("--faces", type=int, help="use so many faces only, and non-faces in proportion")
    parser.add_argument("--seeds", type=int, default=0, help="seed pictures per search; 0: all detected faces")
    parser.add_argument("--control-seeds", type=int, default=500)
    parser.add_argument("--search-seconds", type=float, help="begin no further batch of walkers after so long")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--walkers", type=int, help="that go together; default 1024 on a GPU, 128 on a CPU")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--repair-epochs", type=int, default=3)
    parser.add_argument("--no-repair", action="store_true", help="leave out what Table 11 needs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=1, help="run seeds, from --seed on; each trains a detector")
    parser.add_argument("--out", type=Path, default=Path("out/images"))
    options = parser.parse_args()
    options.walkers = options.walkers or (1024 if options.device.startswith("cuda") else 128)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.sets:
        clock = time.perf_counter()
        pictures = load_images(name, options.images)
        if options.faces:
            pictures = pictures.sample(options.faces, seed=options.seed)
        print(f"{name}: {len(pictures):,} pictures, read in {time.perf_counter() - clock:.1f} s", flush=True)
        first = options.seed
        for body in options.bodies:
            for seed in range(first, first + options.repeats):
                options.seed = seed
                one_body(pictures, body, options)
        options.seed = first


def one_body(pictures: ImageSet, body: str, options: argparse.Namespace) -> None:
    """Train a detector and test it for every attribute of the set."""
    clock = time.perf_counter()
    device = torch.device(options.device)
    attributes = [name for name in options.attributes if any(pictures.columns.get(name, ()))]
    splits = {name: ImageSplit.of(pictures, name, device, options.seed) for name in attributes}
    if not splits:
        return
    split = splits[attributes[0]]
    weights = options.weights if body == "resnet50" else None
    detector = fit_detector(
        body, *split.part(held_out=False), epochs=options.epochs, seed=options.seed, weights=weights
    )
    rate, _ = measure_accuracies(detector, *split.part(held_out=True))
    paper = PAPER["accuracy"].get(pictures.name)
    result: dict[str, Any] = {
        "set": pictures.name,
        "body": body,
        "pretrained": weights is not None,
        "torch": torch.__version__,
        "version": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "options": {key: value for key, value in vars(options).items() if isinstance(value, int | str | bool)},
        "detection_rate": rate,
        "detection_rate_paper": paper and paper[0],
        "training_seconds": time.perf_counter() - clock,
        "attributes": {},
    }
    print(f"{pictures.name} {body}: detection rate {rate:.2%} held out (paper: {_percent(paper and paper[0])}), "
          f"trained in {result['training_seconds']:.1f} s", flush=True)  # fmt: skip
    for attribute, split in splits.items():
        result["attributes"][attribute] = one_attribute(pictures, detector, body, attribute, split, options)
        result["seconds"] = time.perf_counter() - clock
        path = options.out / f"{pictures.name}-{body}{f'-seed{options.seed}' if options.seed else ''}.json"
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")  # a kill loses one attribute at most
        print(f"  {attribute}: {result['attributes'][attribute]['seconds']:.0f} s; written: {path}", flush=True)
    print(f"{pictures.name} {body}: {time.perf_counter() - clock:.0f} s in all", flush=True)


def one_attribute(
    pictures: ImageSet,
    detector: Detector,
    body: str,
    attribute: str,
    split: ImageSplit,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Train the attribute classifier, search with all methods and controls, retrain with the findings of each."""
    clock = time.perf_counter()
    case = f"{pictures.name}-{attribute}"
    classes, _ = pictures.attribute(attribute)
    classifier = fit_attribute(
        detector,
        body,
        *split.faces(held_out=False),
        own_body=options.own_body,
        epochs=options.epochs,
        seed=options.seed,
    )
    faces, labels = split.faces(held_out=True)
    right, balanced = measure_accuracies(classifier, faces, labels)
    paper = PAPER["accuracy"].get(pictures.name)
    paper_right = paper and paper[1 + ATTRIBUTES.index(attribute)]
    majority = float(torch.bincount(labels).max() / len(labels))
    print(f"  {case}: {len(classes)} classes, attribute classifier {right:.2%} held out, balanced {balanced:.2%}, "
          f"always the largest class {majority:.2%} (paper: {_percent(paper_right)})", flush=True)  # fmt: skip
    under_test = find_subject(detector, classifier, split, name=case, sensitive=attribute, seed=options.seed)
    worst = under_test.profile.worst
    settings = ImageSettings(
        steps=options.steps, seeds=options.seeds or None,
        control_seeds=options.control_seeds, chains=options.walkers, seconds=options.search_seconds, seed=options.seed,
    )  # fmt: skip
    found = search_with_controls(under_test, options.methods, settings)
    figures = searched(under_test, found)
    improvement: dict[str, Any] = {}
    if not options.no_repair:
        again = partial(retrain, under_test, settings=settings, epochs=options.repair_epochs)
        states = {"before": state(under_test, detector, settings), "more training": again(None)[1]}
        states |= {method: again(found[method].findings)[1] for method in options.methods}
        for method, line in states.items():
            improvement[method] = asdict(line)
            print(f"  {method:16} AUC {line.auc:.3f} (same layer {line.auc_same_layer:.3f}), detection rate "
                  f"{line.detection_rate:.2%}, found again {line.found_again:,} of {line.seeds_again:,}",
                  flush=True)  # fmt: skip
    return {
        "classes": list(classes),
        "classifier_accuracy": right,
        "classifier_balanced_accuracy": balanced,
        "classifier_majority": majority,
        "classifier_accuracy_paper": paper_right,
        **figures,
        "worst_layer": worst.name,
        "auc": worst.auc,
        "auc_by_layer": {layer.name: layer.auc for layer in under_test.profile.layers},
        "improvement": improvement,
        "improvement_paper": PAPER["image_improvement"].get(case),
        "seconds": time.perf_counter() - clock,
    }


def searched(under_test: DetectorSubject, found: Mapping[str, ImageSearch]) -> dict[str, Any]:
    """Print and return how large the shift is and what each search found: by faces, then by pictures."""
    shift, (name, _, attribute) = under_test.report(), under_test.domain.name.partition("-")
    print(f"  {shift.detected:,} of {shift.faces:,} faces detected, {shift.attribute_flips:,} flip; "
          f"ε {shift.epsilon_mean:.4f}, L2 {shift.l2:.2f}; score gap {shift.score_gap:.2f}, random "
          f"{shift.score_gap_random_shift:.2f}", flush=True)  # fmt: skip
    print(f"  {'':28} {'of faces':>8} {'interval':>13} {'IDIs':>7} {'GSR':>8} {'at once':>7} {'L2 bias':>7} "
          f"{'L2 sens':>7} {'flips':>7} {'s/1000':>7}   paper")  # fmt: skip
    methods: dict[str, Any] = {}
    for method, search in found.items():
        walk = report_search(under_test.attribute, search)
        printed = PAPER["image_total"].get(method, {}).get(f"{name}-{attribute}")
        methods[method] = {**asdict(walk), "paper": printed}
        beside = f"{printed['idis'] / PAPER['image_faces'][name]:.1%} of faces" if printed else ""
        print(f"  {method:28} {walk.share_of_faces:8.1%} {walk.share_low:6.1%}–{walk.share_high:6.1%} "
              f"{walk.findings:7,} {walk.gsr:8.2%} {walk.found_at_once:7,} {_number(walk.bias_l2)} "
              f"{_number(walk.shift_l2)} {_percent(walk.attribute_still_flips):>7} "
              f"{_number(walk.seconds_per_1000)}   {beside}", flush=True)  # fmt: skip
    return {"shift": asdict(shift), "methods": methods}


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{share:.2%}"


def _number(value: float | None) -> str:
    return f"{'none':>7}" if value is None else f"{value:7.2f}"


if __name__ == "__main__":
    main()
