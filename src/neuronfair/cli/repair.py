"""The command that repairs one of our own networks with the findings of a run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from neuronfair.cli import files, options
from neuronfair.cli.app import AUDIT, app, command, option
from neuronfair.cli.options import JoinOptions, OutputOptions
from neuronfair.cli.show import own_model
from neuronfair.errors import DataError, ModelError, NeuronFairError
from neuronfair.limits import TEXT, read_bytes
from neuronfair.parameters import BUDGET, INPUT, OUTPUT, parameter

if TYPE_CHECKING:
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.store.run import Run

OWN = (".safetensors", ".npz")


@dataclass(frozen=True)
class RepairOptions:
    """How a network is repaired."""

    how: Literal["retrain", "neurons"] = parameter(
        "retrain", "Retrain with findings, or weaken the biased neurons.", panel=INPUT
    )
    share: float = parameter(0.1, "Share of the findings to train with.")
    repeats: int = parameter(5, "Number of retrainings, of which the best is kept.", panel=BUDGET, least=1)
    max_loss: float = parameter(0.01, "Largest loss of accuracy on validation rows.", panel=BUDGET, least=0, most=1)
    seed: int = parameter(0, options.SEED)


@command(app, panel=AUDIT)
def repair(
    asked: RepairOptions,
    output: OutputOptions,
    run_folder: Annotated[
        Path,
        option("Run folder of 'neuronfair search' or 'neuronfair audit'.", metavar="RUN", positional=True),
    ],
    out: Annotated[Path, option("File for the repaired network.", panel=OUTPUT)],
    model: Annotated[
        Path | None, option("The network (.safetensors, .npz). Default: the one that was searched.", panel=INPUT)
    ] = None,
    data: Annotated[Path | None, option("Your table, if the run searched one.", panel=INPUT)] = None,
    attributes_file: Annotated[Path | None, option("Table with sensitive columns that the model does not use.")] = None,
    key: Annotated[
        str | None, option("Column that joins the attributes file to the data. Default: row by row.")
    ] = None,
) -> None:
    """Repair a network of 'neuronfair train' with the findings of a run: the retraining of the paper.

    The result is not written if the flip rate does not fall, or if the accuracy on validation rows cannot be kept. To
    search for a better model of any kind, use `neuronfair alternatives`.

    Examples:

    `neuronfair repair run --out fair.safetensors`

    `neuronfair repair run --model mine.safetensors --data table.csv --how neurons --out fair.safetensors`
    """
    source = str(model) if model is not None else _recorded(run_folder)
    if source is not None and Path(source).suffix.lower() not in OWN:
        raise ModelError(
            f"{source}: only networks of 'neuronfair train' ({' or '.join(OWN)}) are repaired. Search for a better "
            "model of this kind with 'neuronfair alternatives'"
        )
    out = files.check_weights(out)
    output.check()
    if output.json is not None and output.json.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {output.json}: is where the card of {out} is written. Choose another name")
    run, table = _read(run_folder, data, JoinOptions.of(attributes_file, key))
    path = Path(own_model(run) if model is None else model)  # which refuses one that has changed
    if out.exists() and path.exists() and out.samefile(path):
        raise ModelError(f"--out {out}: is the network to be repaired, which is not overwritten. Choose another name")
    from neuronfair.render.repair import repair_json, repair_report
    from neuronfair.render.terminal import stage_progress
    from neuronfair.repairs.retrain import RepairSettings
    from neuronfair.repairs.session import repair as work

    console = output.console()
    settings = RepairSettings(asked.share, asked.repeats, asked.max_loss, seed=asked.seed)
    with stage_progress("Repairing", quiet=console.quiet) as show:
        done = work(
            run,
            path,
            table,
            asked.how,
            settings,
            show=show,
        )
    done.write(out)
    console.print(repair_report(done, table.domain))
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)
    facts = {"run": str(run.folder), "data": table.name, "encoding": table.domain.encoding, "how": asked.how}
    output.write({**facts, "sensitive": list(table.domain.sensitive), "seed": asked.seed, **repair_json(done)})


def _read(run_folder: Path, data: Path | None, join: JoinOptions | None) -> tuple[Run, Dataset]:
    """Return the run and the table that it has searched."""
    from neuronfair.repairs.session import searched_table
    from neuronfair.store.run import Run

    if join is not None and data is None:
        raise DataError(f"--attributes-file {join.file}: stands beside a table; name that with --data")
    run = Run.open(run_folder)
    sheet = data if data is None or join is None else join.joined(data, (), run.domain)
    return run, searched_table(run, sheet)


def _recorded(run_folder: Path) -> str | None:
    """Return the model that a run folder names, at a glance; None where `Run.open` will say what is wrong."""
    try:
        manifest: Any = json.loads(read_bytes(run_folder / "manifest.json", times=TEXT))
        return str(manifest["model"])
    except (OSError, ValueError, LookupError, TypeError, NeuronFairError):
        return None
