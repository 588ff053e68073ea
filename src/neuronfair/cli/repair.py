"""The command that makes a network fairer."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair.cli import options, tables
from neuronfair.cli.app import app
from neuronfair.cli.options import TwinsKind
from neuronfair.cli.trust import own_model
from neuronfair.errors import DataError, ModelError, NeuronFairError
from neuronfair.limits import TEXT, read_bytes
from neuronfair.model.formats import reader_of, returned_as

if TYPE_CHECKING:
    from neuronfair.model.open import Opened

OWN = (".safetensors", ".npz")  # networks whose neurons can be turned down


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
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder of 'neuronfair search' or 'neuronfair audit'; none is needed with --twins counterpart.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write the repaired model to, in the format that it came in.")
    ] = None,
    augment: Annotated[
        Path | None,
        typer.Option(help="Write pairs with labels for your own training (.csv, .parquet); every kind of model."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Model to repair. Default: that of the run.")
    ] = None,
    weights: options.WeightsOption = None,
    trust_pickle: options.TrustOption = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="The table that was searched, if it was one of your own (CSV, Parquet); without a run, the table."
        ),
    ] = None,
    twins: Annotated[
        TwinsKind | None,
        typer.Option(
            help="Learn from findings, or that people are decided as their counterparts in other groups. Default: as "
            "in the run."
        ),
    ] = None,
    sensitive: options.SensitiveOption = None,
    domain: options.DomainOption = None,
    target: options.TargetOption = None,
    attributes_file: tables.AttributesFileOption = None,
    key: tables.KeyOption = None,
    how: Annotated[
        _How, typer.Option(help="Train again with findings, or turn down the biased neurons.")
    ] = _How.retrain,
    share: Annotated[
        float | None, typer.Option(help="Share of the findings that joins the training rows. Default: 0.1.")
    ] = None,
    label: Annotated[
        _Label | None,
        typer.Option(
            help="Label of a finding: vote of networks blind to the attribute (the default), its seed's, its twins'. A "
            "counterpart has its person's."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Retrainings with other draws; the best one is kept.")] = 5,
    max_loss: Annotated[float, typer.Option(min=0, max=1, help="Accuracy that may be lost on validation rows.")] = 0.01,
    json_file: options.JsonOption = None,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Repair a model with the findings of a run, and show it before and after; or write the pairs to train with.

    Networks are trained on, estimators of scikit-learn fitted anew. The model is not written if the
    rate does not fall, or if the accuracy on validation rows cannot be kept. With counterparts a model learns to do
    without what stands in for an attribute that it need not read; no search is needed.

    Examples:

    `neuronfair repair run --out fair.safetensors`

    `neuronfair repair run --data table.csv --augment pairs.csv`

    `neuronfair repair --twins counterpart --data table.csv --domain table.toml --model m.skops --out fair.skops`

    `neuronfair repair run --model mine.safetensors --data table.csv --how neurons --out fair.safetensors`
    """
    source = model or (None if run_folder is None else _recorded(run_folder))
    if out is None and augment is None:
        raise DataError("name what to write: --out for the repaired model, --augment for the pairs, or both")
    out = None if out is None else _checked(out, source, weights, how)
    options.check_out(augment, (".csv", ".parquet"))
    options.check_out(json_file, or_stdout=True)
    if model is not None:
        reader_of(model, weights=weights, trust_pickle=trust_pickle)
    elif trust_pickle:
        raise DataError("--trust-pickle: name the file that you trust with --model")
    beside = tables.JoinOptions.of(attributes_file, key)
    if beside is not None and data is None:
        raise DataError(f"--attributes-file {attributes_file}: stands beside a table; name that with --data")

    from neuronfair.model.decision import Decision
    from neuronfair.model.open import open_model
    from neuronfair.render.repair import repair_json, repair_report
    from neuronfair.render.terminal import make_console, progress_bar
    from neuronfair.repairs.labels import training_table, write_training_table
    from neuronfair.repairs.retrain import RepairSettings
    from neuronfair.repairs.session import pairs_to_join, searched_table
    from neuronfair.repairs.session import repair as work
    from neuronfair.searches.evaluate import comparing, counterparts_of
    from neuronfair.store.run import Run

    if out is not None and json_file is not None and json_file.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {json_file}: is where the card of {out} is written. Choose another name")
    options.check_device(device)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    rule = (label or _Label.ensemble).value
    settings = RepairSettings(0.1 if share is None else share, rule, repeats, max_loss, seed=seed)
    run, decision = None, None
    if run_folder is not None:
        for name, said in (("sensitive", sensitive), ("domain", domain), ("target", target)):
            if said is not None:
                raise DataError(f"--{name} {said}: the run says it. Leave it out, or do without the run")
        run = Run.open(run_folder)
        if model is None and (out is not None or label is _Label.twins):
            source = own_model(run)  # refuses one that is not that of the run
        table = searched_table(run, data if data is None or beside is None else beside.joined(data, (), run.domain))
        decision = Decision(**run.manifest["plan"]["decision"])
    else:
        if twins is not TwinsKind.counterpart or data is None or (out is not None and model is None):
            raise DataError("name a run folder; or --twins counterpart with --data and, for --out, the --model")
        asked = options.ModelOptions(model, weights, trust_pickle, device=device)
        given = tables.load_data(str(data), "default", domain, sensitive, target, asked, beside=beside)
        table = given.data
    if twins is TwinsKind.flip and counterparts_of(table.domain) is not None:
        raise DataError(f"--twins flip: {run_folder} holds no flips, but people and their counterparts")
    table = replace(table, domain=comparing(table.domain, table.rows, "flip" if twins is None else twins.value))
    alike = counterparts_of(table.domain) is not None
    for name, unused in (("share", share), ("label", label)):
        if alike and unused is not None:
            raise DataError(f"--{name}: for findings. A counterpart of each training row joins, with the row's label")
    if out is not None and out.exists() and Path(str(source)).exists() and out.samefile(str(source)):
        raise ModelError(f"--out {out}: is the network to be repaired, which is not overwritten. Choose another name")
    opening = partial(open_model, domain=table.domain, rows=table.rows, device=device, decision=decision)
    opened = cache(lambda: opening(str(source), weights=weights, trust_pickle=trust_pickle))
    if augment is not None:
        pairs, labels = pairs_to_join(run, table, settings, opened)
        write_training_table(augment.resolve(), training_table(table.domain, pairs, labels))
        console.print(f"Wrote {len(pairs):,} pairs, {2 * len(pairs):,} rows with labels: {augment}.", soft_wrap=True)
        if alike:
            console.print("Each person of the table is among them: train with them in place of the table's rows.")
    if out is None:
        return
    with progress_bar("Repairing", quiet=console.quiet) as show:
        done = work(
            run,
            opened(),
            table,
            how.value,
            settings,
            show=lambda what, done, total, note="": show(done, total, note, what=what),
        )

    def reopen(file: Path) -> Opened:
        return opening(str(file), trust_pickle=True) if weights is None else opening(str(source), weights=file)

    done.write(out, reopen)
    console.print(repair_report(done.work, done.before, done.after, table.domain, list(done.notes), done.without))
    written = f"{out} and {out.with_suffix('.json')}" if done.card is not None else f"{out}, opened again and compared"
    console.print(f"Wrote {written}.", soft_wrap=True)
    if json_file is not None:
        about = {
            "run": None if run_folder is None else str(run_folder),
            "data": table.name,
            "encoding": table.domain.encoding,
            "how": how.value,
            "twins": "counterpart" if alike else "flip",
            "sensitive": list(table.domain.sensitive),
            "seed": seed,
            "notes": list(done.notes),
        }
        options.write_json(json_file, {**about, **repair_json(done.work, done.before, done.after, done.without)})


def _recorded(run_folder: Path) -> str | None:
    """Return the model that a run folder names, at a glance; None where `Run.open` will say what is wrong."""
    try:
        manifest: Any = json.loads(read_bytes(run_folder / "manifest.json", times=TEXT))
        return str(manifest["model"])
    except (OSError, ValueError, LookupError, TypeError, NeuronFairError):
        return None


def _checked(out: Path, source: str | None, weights: Path | None, how: _How) -> Path:
    """Return where the repaired model is written; refuse at once a model of a kind that is not trained again here."""
    suffix = ".safetensors" if source is None else returned_as(source, weights=weights is not None)
    if suffix is None:
        raise ModelError(
            f"{source}: a model of this kind cannot be trained again and written here. Write the pairs instead and "
            "train it with them: --augment pairs.csv"
        )
    if how is _How.neurons and source is not None and Path(source).suffix not in OWN:
        raise ModelError(f"--how neurons: only in networks of our own files ({' or '.join(OWN)}), not in {source}")
    if suffix == ".safetensors" and weights is None:
        return options.check_weights(out)
    options.check_out(out, (suffix,))
    return out.resolve() if out.is_symlink() else out
