"""The command that makes a network fairer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair.cli.app import app
from neuronfair.cli.options import (
    DeviceOption,
    JsonOption,
    QuietOption,
    SeedOption,
    Source,
    check_device,
    check_out,
    check_weights,
    is_stdout,
    own_model,
    write_json,
)
from neuronfair.errors import DataError, ModelError, NeuronFairError, RunError
from neuronfair.words import percent

if TYPE_CHECKING:
    from torch import nn

    from neuronfair.domain.data import Data
    from neuronfair.model.open import Opened
    from neuronfair.model.weights import Card
    from neuronfair.repair.neurons import NeuronRepair
    from neuronfair.repair.retrain import Retraining
    from neuronfair.store.run import Run


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
    json_file: JsonOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Repair a network with the findings of a run, and show it before and after.

    Nothing is written if the rate does not fall, or if the accuracy on validation rows cannot
    be kept.

    Examples:

    `neuronfair repair run --out fair.safetensors`

    `neuronfair repair run --model mine.safetensors --data table.csv --how neurons --out fair.safetensors`
    """
    from neuronfair.interpretation.profile import interpret
    from neuronfair.model.network import Network
    from neuronfair.model.weights import save
    from neuronfair.render.console import make_console, progress_bar
    from neuronfair.render.repair import repair_json, repair_report
    from neuronfair.repair.evaluate import stand
    from neuronfair.repair.neurons import repair_neurons
    from neuronfair.repair.retrain import retrain
    from neuronfair.store.run import Run

    out = check_weights(out)
    check_out(json_file, or_stdout=True)
    if json_file is not None and json_file.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {json_file}: is where the card of {out} is written. Choose another name")
    check_device(device)
    console = make_console(quiet=quiet or is_stdout(json_file))
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
    table = _table(run, data)
    opened, module, card, notes = _module(path, run, table, device)
    network, table = opened.model, table.to(device)
    run = replace(run, domain=table.domain)  # reads its findings to the device
    findings = run.findings()
    if len(findings) == 0:
        raise RunError(f"{run_folder}: nothing was found, so there is nothing to repair with. Search longer first")
    split_seed = seed if card is None else card.seed
    parts = table.split(split_seed)
    work: Retraining | NeuronRepair
    if how is _How.retrain:
        with progress_bar("Training again", quiet=console.quiet) as show:

            def note(epoch: int, losses: dict[int, float]) -> None:
                show(epoch, None, f"epochs, validation loss {sum(losses.values()) / len(losses):.4f}")

            work = retrain(
                module,
                table,
                parts,
                findings,
                run.seeds,
                share=share,
                label=str(label),
                repeats=repeats,
                max_loss=max_loss,
                seed=seed,
                progress=note,
            )
    else:
        with progress_bar("Turning neurons down", quiet=console.quiet) as show:
            assert isinstance(network, Network)
            profile = interpret(network, table.domain, parts.train.rows)
            work = repair_neurons(module, profile, parts, max_loss=max_loss, seed=seed, progress=show)
    standings = []
    for what, one in (("before", module), ("after", work.module)):
        with progress_bar(f"Measuring {what}", quiet=console.quiet) as show:

            def count(phase: str, done: int, total: int, found: int, show: Callable[..., None] = show) -> None:
                show(done, total, f"{found:,} findings")

            # With the seed of the run, the search would go the ways again that gave the findings.
            other = int(run.manifest["plan"]["seed"]) + 1 + seed
            standings.append(stand(one, parts, seed=other, progress=count))
    before, after = standings
    if after.rate.rate >= before.rate.rate:
        raise NeuronFairError(
            f"the rate did not fall ({percent(before.rate.rate)} before, {percent(after.rate.rate)} "
            "after), so nothing was written. Search longer for more findings, or repair otherwise with --how"
        )
    save(out, work.module, _card(work.module, table, after.accuracy, split_seed))
    console.print(repair_report(work, before, after, table.domain, notes))
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)
    if json_file is not None:
        about: dict[str, Any] = {
            "run": str(run_folder),
            "data": table.name,
            "encoding": table.domain.encoding,
            "how": str(how),
        }
        about |= {"sensitive": list(table.domain.sensitive), "seed": seed, "notes": notes}
        write_json(json_file, {**about, **repair_json(work, before, after)})


def _table(run: Run, path: Path | None) -> Data:
    """Return the table that a run has searched."""
    from neuronfair.domain.data import DATASETS, load, read_table

    name = str(run.manifest.get("data"))
    if path is not None:
        table = read_table(path, run.domain)
    elif name in DATASETS:
        table = load(name, run.domain.encoding, sensitive=run.domain.sensitive)
    else:
        raise DataError(f"{run.folder}: it was made with a table of your own, '{name}'. Name its file with --data")
    rows = hashlib.sha256(table.rows.numpy().tobytes()).hexdigest()
    if table.domain.fingerprint != run.manifest["domain"] or rows != run.manifest["rows"]:
        raise DataError(
            f"{run.folder}: was made with other rows than {path or name} holds. Name their file with --data"
        )
    if table.domain.target is None or not table.labelled:
        raise DataError(f"{path or name}: the rows have no labels, so no accuracy can be kept. Give the target column")
    return table


def _module(path: Path, run: Run, table: Data, device: str) -> tuple[Opened, nn.Sequential, Card | None, list[str]]:
    """Return the network to repair, its card, and what a reader must know about it."""
    from torch import nn

    from neuronfair.model.stacked import linear_layers
    from neuronfair.model.weights import load

    card = load(path)[1]  # comes first: it takes files only, never a name of Python code
    opened = Source(str(path), device=device).open(table)
    module = opened.module
    assert isinstance(module, nn.Sequential)
    assert table.domain.target is not None
    outputs, classes = linear_layers(module)[-1].out_features, len(table.domain.target.classes)
    if outputs != classes:
        raise ModelError(f"{path}: has {outputs} outputs, but {table.name} has {classes} classes")
    if run.manifest["plan"].get("decision", {}).get("kind", "argmax") != "argmax":
        raise RunError(f"{run.folder}: decides by scores. Only networks that choose a class can be repaired")
    notes = []
    if card is None:
        notes.append(
            "These weights have no card: they may have seen the test rows, so the accuracy before may be too good."
        )
    if opened.fingerprint != run.manifest["weights"]:
        notes.append("The findings of this run were made with other weights.")
    return opened, module, card, notes


def _card(module: nn.Sequential, table: Data, accuracy: dict[str, float], seed: int) -> Card:
    """Return the card of a repaired network; its seed is that of the split, so that the test rows stay the same."""
    from neuronfair.model.encoding import TableEncoding
    from neuronfair.model.stacked import linear_layers
    from neuronfair.model.weights import Card, fingerprint

    domain = table.domain
    assert domain.target is not None
    *hidden, outputs = [layer.out_features for layer in linear_layers(module)]
    return Card(
        domain=domain.name,
        encoding=domain.encoding,
        domain_fingerprint=domain.input_fingerprint,
        inputs=TableEncoding.of(domain).width,
        hidden=tuple(hidden),
        outputs=outputs,
        classes=domain.target.classes,
        accuracy=accuracy,
        seed=seed,
        fingerprint=fingerprint(module),
    )
