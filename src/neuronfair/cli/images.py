"""The command that tests a detector on pictures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair.cli.app import app
from neuronfair.cli.options import DeviceOption, QuietOption, SeedOption, check_device
from neuronfair.errors import DataError, RunError, did_you_mean
from neuronfair.words import percent

if TYPE_CHECKING:
    from torch import Tensor

    from neuronfair.vision.archive import Pictures
    from neuronfair.vision.bodies import Detector
    from neuronfair.vision.detector import DetectorCard

FIGURES, PAGE, PAIRS, WEIGHTS = "figures.json", "report.html", "pairs.npz", "detector.safetensors"
FEW = 20  # faces with a known attribute: with fewer there is nothing to learn or to measure
SHOWN = 12  # pairs on the page
CONTROL_SEEDS = 200  # from which the controls walk: enough to tell 5 % from 15 %
ENOUGH = 0.6  # of the way from guessing to certainty: below, an attribute classifier knows little
COLUMNS = {"idis": "findings", "gsr": "GSR", "share_of_seeds": "of seeds", "bias_l2": "L2 of Δ bias",
           "shift_l2": "L2 of Δ attribute", "attribute_still_turned": "attribute turned"}  # fmt: skip


@app.command("audit-images")
def audit_images(
    source: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder or zip of pictures, or lfw_in, clba_in, utk_in, or drawn.")
    ],
    sensitive: Annotated[str, typer.Option(help="Column of the labels: gender, race, …")],
    out: Annotated[Path, typer.Option(help="Folder to make for figures, pairs and the report page.")],
    labels: Annotated[
        Path | None, typer.Option(help="CSV with the columns file, the attribute and, if there is one, is_face.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Detector that an earlier call wrote. Default: train one now.")
    ] = None,
    body: Annotated[str, typer.Option(help="Detector to train: small, vgg16 or resnet50.")] = "small",
    weights: Annotated[Path | None, typer.Option(help="Pretrained body (safetensors) to start training from.")] = None,
    own_body: Annotated[
        bool, typer.Option(help="Train a body of its own for the attribute classifier, not the detector's, frozen.")
    ] = False,
    faces: Annotated[int | None, typer.Option(min=FEW, help="Use so many faces only.")] = None,
    steps: Annotated[int, typer.Option(min=0, help="Steps of each walk.")] = 40,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 12,
    repair: Annotated[bool, typer.Option(help="Also retrain with the findings and measure again.")] = True,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Test whether the decision of a detector of pictures flips when only a sensitive attribute changes.

    Example: `neuronfair audit-images photos --labels photos.csv --sensitive gender --out run`
    """
    from neuronfair.atomic import write_text
    from neuronfair.render.console import make_console
    from neuronfair.verdict.folder import check_writable
    from neuronfair.vision.archive import decoder
    from neuronfair.vision.audit import after, compare, improve, subject
    from neuronfair.vision.detector import accuracies, fit_attribute, save_detector

    decoder()
    check_device(device)
    if os.path.lexists(out):
        raise RunError(f"{out} exists already. Choose another --out")
    check_writable(out)
    console = make_console(quiet=quiet)
    pictures = _pictures(source, labels, faces, seed)
    classes, values = pictures.attribute(sensitive)
    values = values.to(device)
    pixels, is_face = pictures.pixels.to(device), pictures.is_face.to(device)
    known = is_face & (values >= 0)
    if int(known.sum()) < FEW:
        raise DataError(f"{source}: {int(known.sum())} faces have a '{sensitive}'. At least {FEW} are needed")
    held = _held(len(pictures), seed).to(device)
    detector, card = _detector(model, body, weights, pixels[~held], is_face[~held], epochs, seed, console)
    for note in pictures.notes:
        console.print(f"Note: {note}")
    rate, _ = accuracies(detector, pixels[held], is_face[held].long())
    train, test = known & ~held, known & held
    classifier = fit_attribute(
        detector, card.body, pixels[train], values[train], own_body=own_body, epochs=epochs, seed=seed
    )
    right, balanced = accuracies(classifier, pixels[test], values[test])
    console.print(f"Detector ({card.body}): {percent(rate)} of held-out pictures decided rightly.")
    console.print(
        f"Classifier of {sensitive}: {percent(right)} held out, {percent(balanced)} balanced over {len(classes)} "
        "classes."
    )
    chance = 1 / len(classes)
    if not own_body and balanced - chance < ENOUGH * (1 - chance):
        console.print(f"The detector's frozen body tells little of {sensitive}. --own-body trains a body for it.")
    under_test = subject(detector, classifier, pixels[known], held[known], name=pictures.name, sensitive=sensitive)
    shared: dict[str, Any] = {"steps": steps, "seed": seed, "walkers": 512 if device != "cpu" else 128}
    found, figures = compare(
        under_test, ("neuronfair", "adf", "eidig", "halving"), control_seeds=CONTROL_SEEDS, **shared
    )
    improvement: dict[str, Any] = {}
    if repair and not bool(is_face.all()):
        improvement["before"] = after(under_test, detector, pixels[held], is_face[held], **shared)
        _, improvement["after"] = improve(
            under_test, found["halving"], pixels[~held], is_face[~held], pixels[held], is_face[held],
            epochs=max(1, epochs // 3), **shared,
        )  # fmt: skip
    result = {
        "pictures": len(pictures),
        "notes": list(pictures.notes),
        "sensitive": sensitive,
        "classes": list(classes),
        "detection_rate": rate,
        "classifier_accuracy": right,
        "classifier_balanced_accuracy": balanced,
        **under_test.figures(),
        "methods": figures,
        "improvement": improvement,
    }
    lines = _sentences(result)
    out.mkdir(parents=True)
    save_detector(out / WEIGHTS, detector, card)
    write_text(out / FIGURES, json.dumps(result, indent=2) + "\n")
    files = [pictures.files[i] for i in known.nonzero()[:, 0].tolist()]
    _write_pairs(out, under_test, found, files, lines, card, figures)
    for line in lines:
        console.print(line)
    console.print(f"Pairs side by side: {out / PAGE}. Figures: {out / FIGURES}. Pictures: {out / PAIRS}")


def _pictures(source: str, labels: Path | None, faces: int | None, seed: int) -> Pictures:
    from neuronfair.vision.archive import SETS, load_pictures, read_pictures
    from neuronfair.vision.drawn import drawn_pictures

    if source == "drawn":
        return drawn_pictures(faces or 400, faces or 400, seed=seed)
    if source in SETS:
        pictures = load_pictures(source)
    elif not Path(source).exists():
        raise DataError(
            f"{source}: neither a folder, a zip archive nor a set. {did_you_mean(source, [*SETS, 'drawn'])}"
        )
    elif labels is None:
        raise DataError(f"{source}: give --labels, a CSV file with the columns file and the sensitive attribute")
    else:
        pictures = read_pictures(source, labels)
    return pictures if faces is None else pictures.some(faces, seed=seed)


def _held(count: int, seed: int) -> Tensor:
    """Return which pictures are held out: one in five at random."""
    import torch

    held = torch.zeros(count, dtype=torch.bool)
    held[torch.randperm(count, generator=torch.Generator().manual_seed(seed))[: count // 5]] = True
    return held


def _detector(
    model: Path | None, body: str, weights: Path | None, pixels: Tensor, is_face: Tensor, epochs: int, seed: int,
    console: Any,
) -> tuple[Detector, DetectorCard]:  # fmt: skip
    from neuronfair.render.console import progress_bar
    from neuronfair.vision.detector import DetectorCard, fit_detector, load_detector

    if model is None:
        with progress_bar("Training the detector", quiet=console.quiet) as show:
            module = fit_detector(
                body, pixels, is_face, epochs=epochs, seed=seed, weights=weights,
                progress=lambda done, total, loss: show(done, total, f"loss {loss:.4f}"),
            )  # fmt: skip
        return module, DetectorCard(body, pixels.shape[-1])
    module, card = load_detector(model)
    if card.side != pixels.shape[-1]:
        raise DataError(f"{model}: sees pictures of {card.side} x {card.side}, these are {pixels.shape[-1]} wide")
    return module.to(pixels.device), card


def _sentences(result: dict[str, Any]) -> list[str]:
    """Return what was found, in words."""
    figures = result["methods"]
    ours, walk, shift = (figures[f"neuronfair{name}"] for name in ("", ", random direction", ", random shift"))
    close, close_shift = figures["halving"], figures["halving, random shift"]
    lines = [
        f"{result['detected']:,} of {result['faces']:,} faces are detected; a shift of "
        f"{result['epsilon_mean'] * 255:.1f} grey levels in the mean turns the {result['sensitive']} of "
        f"{result['attribute_turns']:,} of them, "
        f"{result['attribute_never_turns']:,} never turn and are left out.",
        f"NeuronFair finds {ours['idis']:,} pairs whose decision flips, from {percent(ours['share_of_seeds'])} of the "
        f"seeds (GSR {percent(ours['gsr'])}); the same walk in random directions from "
        f"{percent(walk['share_of_seeds'])} of its seeds; with a random shift of equal size instead of the attribute "
        f"from {percent(shift['share_of_seeds'])}.",
        f"With steps that are halved at the boundary it finds {close['idis']:,} pairs, from "
        f"{percent(close['share_of_seeds'])} of the seeds (GSR {percent(close['gsr'])}), and with the random shift "
        f"from {percent(close_shift['share_of_seeds'])}. These pairs are shown and used for retraining.",
        f"The shift moves the scores by {result['score_gap']:.3f} in the mean, a random shift of equal size by "
        f"{result['score_gap_random_shift']:.3f}. Most biased layer: {result['worst_layer']}, AUC {result['auc']:.3f}.",
    ]
    if result["improvement"]:
        before, after = result["improvement"]["before"], result["improvement"]["after"]
        lines.append(
            f"Retrained with {after['used']:,} findings: AUC {before['auc']:.3f} to {after['auc']:.3f}, detection rate "
            f"{percent(before['detection_rate'])} to {percent(after['detection_rate'])}, found again on held-out faces "
            f"{before['found_again']:,} of {before['seeds_again']:,} to {after['found_again']:,} of "
            f"{after['seeds_again']:,}."
        )
    return lines


def _write_pairs(
    out: Path, under_test: Any, found: dict[str, Any], files: list[str], lines: list[str], card: DetectorCard,
    figures: dict[str, dict[str, Any]],
) -> None:  # fmt: skip
    import numpy as np

    from neuronfair.atomic import replacing
    from neuronfair.vision.page import write_page

    findings, domain = found["halving"].findings, under_test.domain
    numbers = under_test.numbers[findings.origin].tolist()
    with replacing(out / PAIRS) as temporary:
        np.savez_compressed(
            temporary,
            pictures=domain.levels(findings.packed).to("cpu").numpy().astype(np.uint8),
            twins=domain.levels(findings.twins(domain)).to("cpu").numpy().astype(np.uint8),
            scores=findings.scores.cpu().numpy(),
            twin_scores=findings.twin_scores.cpu().numpy(),
            seeds=np.array([files[i] for i in numbers], dtype=str),
        )
    table = {name: {title: _cell(key, line[key]) for key, title in COLUMNS.items()} for name, line in figures.items()}
    title = f"Pictures whose decision flips when only {domain.sensitive[0]} changes"
    write_page(
        out / PAGE, domain, findings[:SHOWN], title=title, lines=lines, table=table, classes=card.classes
    )  # fmt: skip


def _cell(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key in ("gsr", "share_of_seeds", "attribute_still_turned"):
        return percent(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
