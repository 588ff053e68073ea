"""The command that tests a detector on images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli.app import app
from neuronfair.cli.options import (
    AUDIT,
    DeviceOption,
    ForceOption,
    QuietOption,
    SeedOption,
    check_device,
    command,
    option,
)
from neuronfair.parameters import BUDGET, INPUT, OUTPUT

INTERRUPTED = 130


@command(app, "audit-images", panel=AUDIT)
def audit_images(
    source: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder or zip of images, or lfw_in, clba_in, utk_in, or drawn.")
    ],
    sensitive: Annotated[str, option("Column of the labels: gender, race, …", panel=INPUT)],
    out: Annotated[Path, option("Folder to make, or to resume after an interruption.", panel=OUTPUT)],
    force: ForceOption = False,
    labels: Annotated[
        Path | None, option("CSV with the columns file, the attribute and, if there is one, is_face.", panel=INPUT)
    ] = None,
    model: Annotated[
        Path | None, option("Detector that an earlier call wrote. Default: train one now.", panel=INPUT)
    ] = None,
    body: Annotated[str, option("Detector to train: small, vgg16 or resnet50.", panel=INPUT)] = "small",
    weights: Annotated[Path | None, option("Pretrained body (safetensors) to start training from.")] = None,
    own_body: Annotated[bool, option("Train a separate body for the attribute classifier.")] = False,
    faces: Annotated[int | None, option("Number of faces to use. Default: all.", min=20, panel=BUDGET)] = None,
    steps: Annotated[int, option("Steps of each search chain.", min=0, panel=BUDGET)] = 40,
    epochs: Annotated[int, option("Epochs of training.", min=1, panel=BUDGET)] = 12,
    repair: Annotated[bool, option("Also retrain with the findings and measure again.", panel=BUDGET)] = True,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Test whether decisions of an image detector depend on a sensitive attribute.

    After Ctrl-C or a kill the same command resumes. Exit status: 0, 2 for an error, 130 after Ctrl-C.

    Example: `neuronfair audit-images photos --labels photos.csv --sensitive gender --out run`
    """
    from neuronfair.audits.folder import check_audit_folder, check_writable
    from neuronfair.images.archive import decoder, open_pictures
    from neuronfair.images.audit import audit_pictures
    from neuronfair.images.page import FIGURES, PAGE, PAIRS, write_results
    from neuronfair.images.report import sentences
    from neuronfair.images.search import PictureSettings
    from neuronfair.render.terminal import make_console, progress_bar
    from neuronfair.store.ledger import check_discardable

    decoder()
    if force:
        check_writable(out)
        check_discardable(out, (source, labels, model, weights))
    else:
        check_audit_folder(out)
    check_device(device)
    console = make_console(quiet=quiet)
    pictures = open_pictures(source, labels, faces=faces, seed=seed)
    settings = PictureSettings(body, weights, own_body, epochs, None if repair else 0, steps, seed=seed)
    try:
        with progress_bar("Reading", quiet=quiet) as show:
            audit = audit_pictures(
                pictures, sensitive, detector=model, settings=settings, device=device, folder=out, force=force,
                progress=lambda what, done, total, note="": show(done, total, note, what),
            )  # fmt: skip
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes after the last step that was finished.")
        raise typer.Exit(INTERRUPTED) from None
    write_results(out, audit)
    for line in (*(f"Note: {note}" for note in pictures.notes), *sentences(audit.report)):
        console.print(line)
    console.print(f"Pairs side by side: {out / PAGE}. Figures: {out / FIGURES}. Pictures: {out / PAIRS}")
