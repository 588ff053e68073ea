"""The command that tests a detector on images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli.app import AUDIT, INTERRUPTED, app, command, option
from neuronfair.cli.options import DeviceOption, ForceOption, QuietOption, SeedOption, check_device
from neuronfair.parameters import BUDGET, INPUT, OUTPUT


@command(app, "audit-images", panel=AUDIT)
def audit_images(
    source: Annotated[str, option("Folder or zip of images, or drawn.", metavar="DIR", positional=True)],
    sensitive: Annotated[str, option("Column of the labels, such as gender or race.", panel=INPUT)],
    out: Annotated[Path, option("Folder to make, or to resume after an interruption.", panel=OUTPUT, metavar="FOLDER")],
    force: ForceOption = False,
    labels: Annotated[
        Path | None, option("CSV with a column file, the attribute and, optionally, is_face.", panel=INPUT)
    ] = None,
    model: Annotated[
        Path | None, option("Detector file from an earlier audit. Default: train one.", panel=INPUT)
    ] = None,
    own_body: Annotated[bool, option("Train a separate body for the attribute classifier.")] = False,
    faces: Annotated[int | None, option("Number of faces to use. Default: all.", least=20, panel=BUDGET)] = None,
    steps: Annotated[int, option("Steps of each search chain.", least=0, panel=BUDGET)] = 40,
    epochs: Annotated[int, option("Epochs of training.", least=1, panel=BUDGET)] = 12,
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
    from neuronfair.images.audit import PictureSettings, audit_pictures
    from neuronfair.images.report import FIGURES, PAGE, PAIRS, sentences, write_results
    from neuronfair.render.terminal import make_console, stage_progress
    from neuronfair.store.ledger import check_discardable

    decoder()
    if force:
        check_writable(out)
        check_discardable(out, (source, labels, model))
    else:
        check_audit_folder(out)
    check_device(device)
    console = make_console(quiet=quiet)
    pictures = open_pictures(source, labels, faces=faces, seed=seed)
    settings = PictureSettings(own_body=own_body, epochs=epochs, steps=steps, seed=seed)
    try:
        with stage_progress("Reading", quiet=quiet) as show:
            audit = audit_pictures(
                pictures, sensitive, detector=model, settings=settings, device=device, folder=out, force=force,
                progress=show,
            )  # fmt: skip
    except KeyboardInterrupt:
        console.print("Interrupted. The same command resumes after the last finished step.")
        raise typer.Exit(INTERRUPTED) from None
    write_results(out, audit)
    for line in (*(f"Note: {note}" for note in pictures.notes), *sentences(audit.report)):
        console.print(line)
    console.print(f"Pairs side by side: {out / PAGE}. Figures: {out / FIGURES}. Pictures: {out / PAIRS}")
