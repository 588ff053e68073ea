"""The command that makes a network fairer."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli import options
from neuronfair.cli.app import app
from neuronfair.cli.own import own_model
from neuronfair.errors import DataError, ModelError

OWN = (".safetensors", ".npz")  # weights that can be trained again and saved


class _How(StrEnum):
    retrain = "retrain"
    neurons = "neurons"


class _Label(StrEnum):
    ensemble = "ensemble"
    seed = "seed"
    twins = "twins"


@app.command()
def repair(
    run_folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder of 'neuronfair search' or 'neuronfair audit'.")
    ],
    out: Annotated[Path, typer.Option(help="Weights file to write (.safetensors); a JSON card is put beside it.")],
    model: Annotated[Path | None, typer.Option(help="Weights to repair. Default: those of the run.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The table that was searched, if it was one of your own (CSV, Parquet).")
    ] = None,
    how: Annotated[
        _How, typer.Option(help="Train again with findings, or turn down the biased neurons.")
    ] = _How.retrain,
    share: Annotated[float, typer.Option(help="Share of the findings that joins the training rows.")] = 0.1,
    label: Annotated[
        _Label,
        typer.Option(help="Label of a finding: vote of networks blind to the attribute, its seed's, its twins'."),
    ] = _Label.ensemble,
    repeats: Annotated[int, typer.Option(min=1, help="Retrainings with other draws; the best one is kept.")] = 5,
    max_loss: Annotated[float, typer.Option(min=0, max=1, help="Accuracy that may be lost on validation rows.")] = 0.01,
    json_file: options.JsonOption = None,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Repair a network with the findings of a run, and show it before and after.

    Nothing is written if the rate does not fall, or if the accuracy on validation rows cannot
    be kept.

    Examples:

    `neuronfair repair run --out fair.safetensors`

    `neuronfair repair run --model mine.safetensors --data table.csv --how neurons --out fair.safetensors`
    """
    from neuronfair.model.weights import save
    from neuronfair.render.console import make_console, progress_bar
    from neuronfair.render.repair import repair_json, repair_report
    from neuronfair.repair.retrain import RepairSettings
    from neuronfair.repair.run import repair as work
    from neuronfair.repair.run import searched_table
    from neuronfair.store.run import Run

    out = options.check_weights(out)
    options.check_out(json_file, or_stdout=True)
    if json_file is not None and json_file.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {json_file}: is where the card of {out} is written. Choose another name")
    options.check_device(device)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    run = Run.open(run_folder)
    path = model or Path(run.model)
    if path.suffix not in OWN:
        raise ModelError(
            f"{path}: only fully connected networks ({' or '.join(OWN)}) can be repaired here. Add the pairs of the "
            "run to the training data of yours, both people of a pair with the same label, and train it again"
        )
    if model is None:
        own_model(run)  # refuses one that is not that of the run
    if out.exists() and path.exists() and out.samefile(path):
        raise ModelError(f"--out {out}: is the network to be repaired, which is not overwritten. Choose another name")
    table = searched_table(run, data)
    settings = RepairSettings(share, label.value, repeats, max_loss, seed=seed)
    with progress_bar("Repairing", quiet=console.quiet) as show:
        done = work(
            run,
            path,
            table,
            how.value,
            settings,
            device=device,
            show=lambda what, done, total, note="": show(done, total, note, what=what),
        )
    save(out, done.work.module, done.card)
    console.print(repair_report(done.work, done.before, done.after, table.domain, list(done.notes)))
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)
    if json_file is not None:
        about = {
            "run": str(run_folder),
            "data": table.name,
            "encoding": table.domain.encoding,
            "how": how.value,
            "sensitive": list(table.domain.sensitive),
            "seed": seed,
            "notes": list(done.notes),
        }
        options.write_json(json_file, {**about, **repair_json(done.work, done.before, done.after)})
