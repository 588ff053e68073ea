"""The command that repairs one of our own networks with the findings of a run; the work is in `experiments/repairs`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from neuronfair.cli import files, options
from neuronfair.cli.app import AUDIT, app, command, option
from neuronfair.cli.options import OutputOptions
from neuronfair.cli.search import find_experiments
from neuronfair.cli.show import own_model
from neuronfair.errors import DataError, ModelError
from neuronfair.parameters import BUDGET, INPUT, OUTPUT, parameter

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
) -> None:
    """Repair a network of 'neuronfair train' with the findings of a run: the retraining of the paper.

    This needs a checkout of the source. The result is not written if the flip rate does not fall, or if the accuracy on
    validation rows cannot be kept. To search for a better model of any kind, use `neuronfair alternatives`.

    Examples:

    `neuronfair repair run --out fair.safetensors`

    `neuronfair repair run --model mine.safetensors --data table.csv --how neurons --out fair.safetensors`
    """
    find_experiments()
    out = files.check_weights(out)
    output.check()
    if output.json is not None and output.json.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {output.json}: is where the card of {out} is written. Choose another name")
    from experiments.repairs.report import repair_json, repair_report
    from experiments.repairs.retrain import RepairSettings
    from experiments.repairs.session import repair as work
    from experiments.repairs.session import searched_table
    from neuronfair.render.terminal import stage_progress
    from neuronfair.store.run import Run

    run = Run.open(run_folder)
    if Path(model or run.model).suffix.lower() not in OWN:
        raise ModelError(
            f"{model or run.model}: only networks of 'neuronfair train' ({' or '.join(OWN)}) are repaired. Search for "
            "a better model of this kind with 'neuronfair alternatives'"
        )
    path = Path(own_model(run) if model is None else model)  # which refuses one that has changed
    if out.exists() and path.exists() and out.samefile(path):
        raise ModelError(f"--out {out}: is the network to be repaired, which is not overwritten. Choose another name")
    table, console = searched_table(run, data), output.console()
    settings = RepairSettings(asked.share, asked.repeats, asked.max_loss, seed=asked.seed)
    with stage_progress("Repairing", quiet=console.quiet) as show:
        done = work(run, path, table, asked.how, settings, show=show)
    done.write(out)
    console.print(repair_report(done, table.domain))
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)
    facts = {"run": str(run.folder), "data": table.name, "encoding": table.domain.encoding, "how": asked.how}
    output.write({**facts, "sensitive": list(table.domain.sensitive), "seed": asked.seed, **repair_json(done)})
