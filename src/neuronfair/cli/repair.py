"""The command that makes a model fairer."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from neuronfair.cli import files, options
from neuronfair.cli.app import app
from neuronfair.cli.options import AUDIT, ModelOptions, OutputOptions, TableOptions, command, option
from neuronfair.cli.show import own_model
from neuronfair.errors import DataError, ModelError, NeuronFairError
from neuronfair.limits import TEXT, read_bytes
from neuronfair.model.formats import reader_of, returned_as
from neuronfair.parameters import BUDGET, INPUT, OUTPUT, parameter

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import Opened
    from neuronfair.repairs.retrain import RepairSettings
    from neuronfair.store.run import Run

OWN = (".safetensors", ".npz")  # networks whose neurons can be turned down


@dataclass(frozen=True)
class RepairOptions:
    """How a model is repaired."""

    how: Literal["retrain", "neurons"] = parameter(
        "retrain", "Train again with findings, or turn down the biased neurons.", panel=INPUT
    )
    share: float | None = parameter(None, "Share of the findings that joins the training rows. Default: 0.1.")
    label: Literal["ensemble", "seed", "twins"] | None = parameter(
        None, "Label of a finding: vote of networks without the attribute, its seed's, its twins'. Default: ensemble."
    )
    repeats: int = parameter(5, "Retrainings with other draws; the best is kept.", panel=BUDGET, least=1)
    max_loss: float = parameter(0.01, "Accuracy that may be lost on validation rows.", panel=BUDGET, least=0, most=1)
    seed: int = parameter(0, options.SEED)


@command(
    app,
    panel=AUDIT,
    omit=("data", "encoding", "preprocess", "decision", "columns"),
)
def repair(
    table: TableOptions,
    source: ModelOptions,
    asked: RepairOptions,
    output: OutputOptions,
    run_folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder of 'neuronfair search' or 'neuronfair audit'; none is needed with --twins counterpart.",
        ),
    ] = None,
    out: Annotated[Path | None, option("File for the repaired model, in the format it came in.", panel=OUTPUT)] = None,
    augment: Annotated[
        Path | None, option("Write pairs with labels for your own training (.csv, .parquet).", panel=OUTPUT)
    ] = None,
    data: Annotated[Path | None, option("The table that was searched, if it is your own.", panel=INPUT)] = None,
    twins: Annotated[
        Literal["flip", "counterpart"] | None,
        option("Learn from findings, or from counterfactual twins. Default: as in the run.", panel=INPUT),
    ] = None,
) -> None:
    """Repair a model with the findings of a run, or write pairs to train it with.

    Networks are trained on, estimators of scikit-learn fitted anew. The model is not written if the flip rate does not
    fall, or if the accuracy on validation rows cannot be kept. With counterfactual twins a model learns to do without
    proxies of an attribute that it need not read; no search is needed.

    Examples:

    `neuronfair repair run --out fair.safetensors`

    `neuronfair repair run --data table.csv --augment pairs.csv`

    `neuronfair repair --twins counterpart --data table.csv --domain table.toml --model m.skops --out fair.skops`

    `neuronfair repair run --model mine.safetensors --data table.csv --how neurons --out fair.safetensors`
    """
    path = source.model or (None if run_folder is None else _recorded(run_folder))
    if out is None and augment is None:
        raise DataError("name what to write: --out for the repaired model, --augment for the pairs, or both")
    out = None if out is None else _checked(out, path, source.weights, asked.how)
    files.check_out(augment, (".csv", ".parquet"))
    output.check()
    if source.model is not None:
        reader_of(source.model, weights=source.weights, trust_pickle=source.trust_pickle)
    elif source.trust_pickle:
        raise DataError("--trust-pickle: name the file that you trust with --model")
    if table.join is not None and data is None:
        raise DataError(f"--attributes-file {table.attributes_file}: stands beside a table; name that with --data")
    if out is not None and output.json is not None and output.json.absolute() == out.with_suffix(".json").absolute():
        raise DataError(f"--json {output.json}: is where the card of {out} is written. Choose another name")
    if run_folder is None and (twins != "counterpart" or data is None or (out is not None and source.model is None)):
        raise DataError("name a run folder; or --twins counterpart with --data and, for --out, the --model")
    options.check_device(source.device)
    case = _read_case(run_folder, replace(table, data=str(data or "")), replace(source, model=path), twins)
    if source.model is None and case.run is not None and (out is not None or asked.label == "twins"):
        case = replace(case, source=replace(case.source, model=own_model(case.run)))  # refuses one that has changed
    for name in ("share", "label"):
        if case.by_counterparts and getattr(asked, name) is not None:
            raise DataError(f"--{name}: for findings. A counterpart of each training row joins, with the row's label")
    if out is not None and out.exists() and Path(case.model).exists() and out.samefile(case.model):
        raise ModelError(f"--out {out}: is the network to be repaired, which is not overwritten. Choose another name")
    console = output.console()
    if augment is not None:
        _write_pairs(case, asked, augment, console)
    if out is not None:
        output.write(_repair(case, asked, out, console))


@dataclass(frozen=True)
class _Case:
    """What is repaired: a model, the table, and the run that has searched it, if there is one."""

    source: ModelOptions
    data: Dataset
    run: Run | None

    @property
    def model(self) -> str:
        """Where the model is."""
        return str(self.source.model)

    @property
    def by_counterparts(self) -> bool:
        """Whether it learns from counterfactual twins, and not from findings."""
        from neuronfair.searches.evaluate import counterparts_of

        return counterparts_of(self.data.domain) is not None

    def open(self, file: Path | None = None) -> Opened:
        """Open the model, or the repaired one in a file."""
        from neuronfair.model.decision import Decision
        from neuronfair.model.open import wrap_model

        source, repaired = self.source, file is not None
        return wrap_model(
            str(file) if repaired and source.weights is None else self.model,
            self.data.domain,
            self.data.rows,
            weights=file if repaired and source.weights is not None else source.weights,
            trust_pickle=source.trust_pickle or (repaired and source.weights is None),
            device=source.device,
            decision=None if self.run is None else Decision(**self.run.manifest["plan"]["decision"]),
        )


def _read_case(
    run_folder: Path | None, table: TableOptions, source: ModelOptions, twins: Literal["flip", "counterpart"] | None
) -> _Case:
    """Return the run and the table; its domain says with whom people are compared."""
    from neuronfair.repairs.session import searched_table
    from neuronfair.searches.evaluate import comparing, counterparts_of
    from neuronfair.store.run import Run

    run = None
    if run_folder is None:
        data = table.load(source).data
    else:
        for name in ("sensitive", "domain", "target"):
            if getattr(table, name) is not None:
                raise DataError(
                    f"--{name} {getattr(table, name)}: the run says it. Leave it out, or do without the run"
                )
        run, path = Run.open(run_folder), Path(table.data) if table.data else None
        sheet = path if path is None or table.join is None else table.join.joined(path, (), run.domain)
        data = searched_table(run, sheet)
    if twins == "flip" and counterparts_of(data.domain) is not None:
        raise DataError(f"--twins flip: {run_folder} holds no flips, but people and their counterparts")
    data = replace(data, domain=comparing(data.domain, data.rows, twins or "flip"))
    return _Case(source, data, run)


def _settings(asked: RepairOptions) -> RepairSettings:
    from neuronfair.repairs.retrain import RepairSettings

    share = 0.1 if asked.share is None else asked.share
    return RepairSettings(share, asked.label or "ensemble", asked.repeats, asked.max_loss, seed=asked.seed)


def _write_pairs(case: _Case, asked: RepairOptions, path: Path, console: Console) -> None:
    """Write pairs with labels for the user's own training."""
    from neuronfair.repairs.labels import training_table, write_training_table
    from neuronfair.repairs.session import training_pairs

    pairs, labels = training_pairs(case.run, case.data, _settings(asked), case.open)
    write_training_table(path.resolve(), training_table(case.data.domain, pairs, labels))
    console.print(f"Wrote {len(pairs):,} pairs, {2 * len(pairs):,} rows with labels: {path}.", soft_wrap=True)
    if case.by_counterparts:
        console.print("Each person of the table is among them: train with them in place of the table's rows.")


def _repair(case: _Case, asked: RepairOptions, out: Path, console: Console) -> dict[str, Any]:
    """Repair the model, write it, show it before and after, and return that as JSON has it."""
    from neuronfair.render.repair import repair_json, repair_report
    from neuronfair.render.terminal import progress_bar
    from neuronfair.repairs.session import repair as work

    with progress_bar("Repairing", quiet=console.quiet) as show:
        done = work(
            case.run,
            case.open(),
            case.data,
            asked.how,
            _settings(asked),
            show=lambda what, done, total, note="": show(done, total, note, what=what),
        )
    done.write(out, case.open)
    console.print(repair_report(done.work, done.before, done.after, case.data.domain, list(done.notes), done.without))
    written = f"{out} and {out.with_suffix('.json')}" if done.card is not None else f"{out}, opened again and compared"
    console.print(f"Wrote {written}.", soft_wrap=True)
    return {
        "run": None if case.run is None else str(case.run.folder),
        "data": case.data.name,
        "encoding": case.data.domain.encoding,
        "how": asked.how,
        "twins": "counterpart" if case.by_counterparts else "flip",
        "sensitive": list(case.data.domain.sensitive),
        "seed": asked.seed,
        "notes": list(done.notes),
        **repair_json(done.work, done.before, done.after, done.without),
    }


def _recorded(run_folder: Path) -> str | None:
    """Return the model that a run folder names, at a glance; None where `Run.open` will say what is wrong."""
    try:
        manifest: Any = json.loads(read_bytes(run_folder / "manifest.json", times=TEXT))
        return str(manifest["model"])
    except (OSError, ValueError, LookupError, TypeError, NeuronFairError):
        return None


def _checked(out: Path, source: str | None, weights: Path | None, how: str) -> Path:
    """Return where the repaired model is written; refuse at once a model of a kind that is not trained again here."""
    suffix = ".safetensors" if source is None else returned_as(source, weights=weights is not None)
    if suffix is None:
        raise ModelError(
            f"{source}: a model of this kind cannot be trained again and written here. Write the pairs instead and "
            "train it with them: --augment pairs.csv"
        )
    if how == "neurons" and source is not None and Path(source).suffix not in OWN:
        raise ModelError(f"--how neurons: only in networks of our own files ({' or '.join(OWN)}), not in {source}")
    if suffix == ".safetensors" and weights is None:
        return files.check_weights(out)
    files.check_out(out, (suffix,))
    return out.resolve() if out.is_symlink() else out
