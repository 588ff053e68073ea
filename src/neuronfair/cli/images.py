"""The command that tests a detector on pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli.app import app
from neuronfair.cli.options import DeviceOption, ForceOption, QuietOption, SeedOption, check_device

INTERRUPTED = 130


@app.command("audit-images")
def audit_images(
    source: Annotated[
        str, typer.Argument(metavar="DIR", help="Folder or zip of pictures, or lfw_in, clba_in, utk_in, or drawn.")
    ],
    sensitive: Annotated[str, typer.Option(help="Column of the labels: gender, race, …")],
    out: Annotated[Path, typer.Option(help="Folder to make, or to go on with after an interruption.")],
    force: ForceOption = False,
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
    faces: Annotated[int | None, typer.Option(min=20, help="Use so many faces only.")] = None,
    steps: Annotated[int, typer.Option(min=0, help="Steps of each walk.")] = 40,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 12,
    repair: Annotated[bool, typer.Option(help="Also retrain with the findings and measure again.")] = True,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Test whether the decision of a detector of pictures flips when only a sensitive attribute changes.

    After Ctrl-C or a kill the same command goes on. Exit status: 0, 2 for an error, 130 after Ctrl-C.

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
        console.print("Interrupted. The same command goes on after the last step that was finished.")
        raise typer.Exit(INTERRUPTED) from None
    write_results(out, audit)
    for line in (*(f"Note: {note}" for note in pictures.notes), *sentences(audit.report)):
        console.print(line)
    console.print(f"Pairs side by side: {out / PAGE}. Figures: {out / FIGURES}. Pictures: {out / PAIRS}")
