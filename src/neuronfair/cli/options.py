"""Settings that several commands share, what their options say, and the files they write."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from neuronfair import __version__
from neuronfair.cli.app import option
from neuronfair.errors import DataError, NeuronFairError, did_you_mean
from neuronfair.formatting import join_words, percent, printable
from neuronfair.model.formats import find_reader
from neuronfair.parameters import INPUT, OUTPUT, common_parameter, parameter
from neuronfair.scale.pool import Pool, Processes, Serial, cluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from torch import nn

    from neuronfair.audits.inputs import AuditInput, ModelSource
    from neuronfair.domain.tables import Sheet
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.decision import Decision
    from neuronfair.model.open import OpenedModel
    from neuronfair.model.training_loop import TrainingSettings
    from neuronfair.model.weights import Card

# Settings that several commands share

SEED = "Random seed."
RayOption = Annotated[
    str | None, option("Ray cluster: all cores of this machine, auto, HOST:PORT or ray://….", metavar="[ADDR]")
]
ForceOption = Annotated[bool, option("Delete what is in --out, then start.", "--force", panel=OUTPUT)]
DeviceOption = Annotated[str, option("Compute on cpu or cuda.")]
SeedOption = Annotated[int, option(SEED)]
QuietOption = Annotated[bool, option("Print errors only.", "--quiet", "-q", panel=OUTPUT)]
FavourableOption = Annotated[str | None, option("Favourable outcome: a class of the target.", panel=INPUT)]


@dataclass(frozen=True)
class OutputOptions:
    """Options for the output of a command."""

    json: Path | None = parameter(None, "Write results as JSON; '-' prints them.", panel=OUTPUT)
    quiet: bool = parameter(False, "Print errors only.", "--quiet", "-q", panel=OUTPUT)

    def console(self) -> Console:
        """Return the console, silent if the JSON goes to standard output; refuse a file that cannot be written."""
        from neuronfair.render.terminal import make_console

        check_out(self.json, or_stdout=True)
        return make_console(quiet=self.quiet or is_stdout(self.json))

    def write(self, results: Mapping[str, object]) -> None:
        """Write the results if --json is set."""
        if self.json is not None:
            write_json(self.json, results)


@dataclass(frozen=True)
class ModelOptions:
    """Options that name and open the model under test."""

    model: str | None = common_parameter(
        None,
        "Model file (.onnx, .skops, .ubj, …) or package.module:name. Default: train one.",
        panel=INPUT,
        metavar="SOURCE",
    )
    weights: Path | None = parameter(None, "Weights (.safetensors) of the model.")
    preprocess: str | None = common_parameter(None, "Function (package.module:name) from records to model inputs.")
    trust_pickle: bool = common_parameter(False, "Open pickle files, which can run any code.", panel=INPUT)
    decision: str | None = common_parameter(None, "Decision: argmax, threshold=0.5 or tolerance=0.1.")
    columns: str | None = parameter(None, "The model's inputs, in order.", metavar="A,B,…")
    device: str = parameter("cpu", "Compute on cpu or cuda.")

    def check(self) -> None:
        """Refuse a model that no reader can open."""
        if self.model is not None:
            find_reader(self.model, weights=self.weights, trust_pickle=self.trust_pickle)
        elif self.weights is not None:
            raise NeuronFairError("--weights belongs to a --model given as package.module:name")
        elif self.preprocess is not None:
            raise NeuronFairError("--preprocess belongs to a --model that was trained with it")

    @property
    def source(self) -> ModelSource:
        """The model and how it is opened."""
        from neuronfair.audits.inputs import ModelSource

        return ModelSource(
            self.model,
            weights=self.weights,
            trust_pickle=self.trust_pickle,
            decision=read_decision(self.decision),
            device=self.device,
            preprocess=self.preprocess,
            columns=split_names(self.columns),
        )

    def train(
        self, data: Dataset, console: Console, seed: int, settings: TrainingSettings | None = None
    ) -> tuple[OpenedModel, Card]:
        """Train a classifier and open it."""
        from neuronfair.model.open.opened import OpenRequest, make_white_box

        module, card = fit_classifier(data, console, seed, settings=settings)
        decision = read_decision(self.decision)
        request = OpenRequest(f"trained on {data.name}", data.domain, data.rows, device=self.device, decision=decision)
        return make_white_box(request, "neuronfair", module), card


@dataclass(frozen=True)
class TableOptions:
    """Options that name and read the data set."""

    data: str = common_parameter(
        "adult",
        "Data set (adult, german, bank, compas, meps), or a CSV, Parquet, Feather, Excel, SQLite or JSONL file.",
        positional=True,
        metavar="DATA",
    )
    sensitive: str | None = common_parameter(
        None, "Sensitive attributes, such as sex or sex,race. Default: those of the domain file.", panel=INPUT
    )
    target: str | None = common_parameter(None, "Column to predict; not with --domain.", panel=INPUT, metavar="COLUMN")
    domain: Path | None = parameter(
        None, "Input schema of your table; 'neuronfair domain infer' drafts one.", panel=INPUT
    )
    encoding: str = parameter("default", "Built-in data sets: default or paper.")
    attributes_file: Path | None = parameter(None, "Sensitive columns not in DATA.")
    key: str | None = parameter(None, "Column to join it by. Default: row by row.")

    @property
    def join_arguments(self) -> tuple[str, ...]:
        """--attributes-file and --key as typed on the command line."""
        if self.attributes_file is None:
            return ()
        return ("--attributes-file", str(self.attributes_file), *(() if self.key is None else ("--key", self.key)))

    def join_attributes(self, table: Path) -> Path | Sheet:
        """Return the table with the sensitive columns and other columns of --attributes-file that are no inputs."""
        if self.attributes_file is None:
            return table
        from neuronfair.domain.schema.toml import read_domain
        from neuronfair.domain.tables import join_columns
        from neuronfair.domain.tables.files import read_sheet

        domain = None if self.domain is None else read_domain(self.domain)
        joined_names = split_names(self.sensitive) or ([] if domain is None else list(domain.sensitive))
        if domain is not None:
            joined_names += [attribute.name for attribute in domain.attributes if not attribute.is_input]
        return join_columns(
            read_sheet(table), read_sheet(self.attributes_file), list(dict.fromkeys(joined_names)), self.key
        )

    def check(self) -> None:
        """Refuse a missing table, and options that do not fit it."""
        from neuronfair.domain.tables.dataset import DATASETS
        from neuronfair.domain.tables.files import split_table_name

        name, domain, target = self.data, self.domain, self.target
        if self.key is not None and self.attributes_file is None:
            raise DataError(f"--key {self.key}: belongs to an --attributes-file")
        if name in DATASETS:
            if domain is not None or target is not None:
                raise DataError(
                    f"{name}: has its own domain and target; --domain and --target are for tables of your own"
                )
            if self.attributes_file is not None:
                raise DataError(f"{name}: has all its columns; --attributes-file is for tables of your own")
            return
        if not split_table_name(name)[0].exists():
            raise DataError(f"{name}: neither a file nor a data set. {did_you_mean(name, DATASETS)}")
        if split_table_name(name)[0].is_dir():
            raise DataError(f"{name}: is a folder. Name the file of a table, such as {name}/table.csv")
        if self.encoding != "default":
            raise DataError(
                f"--encoding {self.encoding}: for the data sets of the paper only. Set encode = … in a --domain file"
            )
        if domain is not None and target is not None:
            raise DataError(f"--target {target}: the domain file {domain} names the target. Leave one of the two out")
        if domain is None and not split_names(self.sensitive):
            raise DataError(f"{name}: name a --domain file, or --sensitive and --target so that one can be inferred")

    def load(
        self, model: ModelOptions | None = None, take_rules: Literal["none", "free", "all"] = "none"
    ) -> AuditInput:
        """Return the data set, with the columns that the model uses.

        The model matters when the domain is inferred: a tolerance needs a quantity, and empty cells stay empty for
        models that read them, as trees do.
        """
        from neuronfair.audits.inputs import read_input
        from neuronfair.domain.tables.dataset import DATASETS, load_dataset

        self.check()
        name, chosen = self.data, split_names(self.sensitive)
        model = model or ModelOptions()
        if model.model is None and self.domain is None and self.target is None and name not in DATASETS:
            raise DataError(f"{name}: without --target there are no labels to train on. Name it, or a --model")
        if name in DATASETS:
            if model.columns is not None:
                raise DataError(
                    f"--columns {model.columns}: for tables of your own; the domain of {name} has the order"
                )
            data = load_dataset(name, self.encoding, sensitive=chosen)
            return read_input(data, model.source, take_rules=take_rules)
        return read_input(
            self.join_attributes(Path(name)),
            model.source,
            domain=self.domain,
            sensitive=chosen,
            target=self.target,
            take_rules=take_rules,
        )


def open_model_and_data(
    table: TableOptions, model: ModelOptions, console: Console, seed: int
) -> tuple[OpenedModel, Dataset, Card | None]:
    """Return the model, the data set on its device, and the card if the model was trained now."""
    model.check()
    check_device(model.device)
    data = table.load(model).data
    is_trained = model.model is None
    opened_model, card = model.train(data, console, seed) if is_trained else (model.source.open(data), None)
    if outside := [attribute.name for attribute in data.domain.attributes if not attribute.is_input]:
        console.print(f"The model does not use {join_words(outside)}.")
    return opened_model, data.to(model.device), card


def make_result_header(data: Dataset, opened_model: OpenedModel | None = None) -> dict[str, object]:
    """Return the first keys of a JSON result: data set, sensitive attributes and, of a model, its fingerprint."""
    header: dict[str, object] = {
        "data": data.name,
        "encoding": data.domain.encoding,
        "sensitive": list(data.domain.sensitive),
    }
    if opened_model is None:
        return header
    return {"version": __version__, **header, "model_fingerprint": opened_model.fingerprint}


def warn_of_encoding_problem(opened_model: OpenedModel, data: Dataset, console: Console) -> None:
    """Print a warning if the input encoding check finds a problem."""
    from neuronfair.audits.stages.encoding_check import check_encoding

    check = check_encoding(opened_model, data)
    if check.level not in ("ok", "not assessable"):
        console.print(printable(check.text), style="bold yellow")


def fit_classifier(
    data: Dataset,
    console: Console,
    seed: int,
    hidden: list[int] | None = None,
    settings: TrainingSettings | None = None,
) -> tuple[nn.Sequential, Card]:
    """Train a classifier with a progress bar and print its accuracy."""
    from neuronfair.model.train import train
    from neuronfair.render.terminal import progress_bar

    with progress_bar(f"Training on {data.name}", quiet=console.quiet) as show:
        losses = []

        def note_epoch(start: int, epoch: int, loss: float) -> None:
            losses.append(loss)
            show(epoch, None, f"epochs, best validation loss {min(losses):.4f}")

        module, card = train(data, hidden=hidden, settings=settings, seed=seed, progress=note_epoch)
    layers = "-".join(map(str, (card.inputs, *card.hidden, card.outputs)))
    console.print(f"Trained {layers} on {data.name}: accuracy {percent(card.accuracy['test'])} on test records.")
    return module, card


def make_pool(ray: str | None, workers: int | None = 1) -> AbstractContextManager[Pool]:
    """Return the pool of --ray or --workers: a cluster, this process, or processes (None: one per core)."""
    if ray is None:
        return nullcontext(Serial() if workers == 1 else Processes(workers) if workers else Processes())
    if workers not in (1, None):
        raise NeuronFairError("--workers starts processes on this machine, --ray uses a cluster. Set only one of them")
    return cluster(ray)


# Values of options


def split_names(text: str | None) -> list[str] | None:
    """Return the names in a text such as sex,race."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def read_decision(text: str | None) -> Decision | None:
    """Return the decision of --decision; None if it is not set."""
    from neuronfair.model.decision import Decision

    if text is None:
        return None
    kind, equals, number = text.partition("=")
    if kind == "argmax" and not equals:
        return Decision()
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if kind == "threshold" and math.isfinite(value):
        return Decision("threshold", value)
    if kind == "tolerance" and math.isfinite(value) and value >= 0:
        return Decision("tolerance", value)
    raise NeuronFairError(f"--decision {text}: expected argmax, threshold=0.5 or tolerance=0.1")


def check_device(device: str) -> None:
    """Refuse a device that is not available."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise NeuronFairError(f"--device {device}: not usable here ({str(error).splitlines()[0]})") from None


def is_stdout(path: Path | None) -> bool:
    """Return whether an output file means standard output."""
    return path is not None and str(path) in ("-", "/dev/stdout")


def check_out(path: Path | None, suffixes: tuple[str, ...] = (), *, or_stdout: bool = False) -> None:
    """Refuse an output file that cannot be written, before any work is done for it."""
    if path is None or (or_stdout and is_stdout(path)):
        return
    target = Path(os.path.realpath(path))  # the target of a link
    if suffixes and target.suffix.lower() not in suffixes:
        raise DataError(f"{path}: expected a name that ends in {' or '.join(suffixes)}")
    if not target.parent.is_dir():
        raise DataError(f"{path}: there is no folder {target.parent}. Make it, or choose another place")
    if target.is_symlink() or (target.exists() and not target.is_file()):  # a device would be replaced by a file
        raise DataError(f"{path}: is a folder, a device or a link to itself, not a file. Choose another name")
    if not os.access(target.parent, os.W_OK):
        raise DataError(f"{path}: no permission to write into {target.parent}. Choose another place")
    if target.exists() and not os.access(target, os.W_OK):
        raise DataError(f"{path}: no permission to write this file. Choose another name")


def check_weights(path: Path) -> Path:
    """Return the path of a weights file, links resolved; refuse it or its card if they cannot be written."""
    check_out(path, (".safetensors",))
    path = path.resolve() if path.is_symlink() else path
    check_out(path.with_suffix(".json"))
    return path


def write_json(path: Path, results: Mapping[str, object]) -> None:
    """Write results as JSON to a file or to standard output."""
    write_text(path, printable(json.dumps(results, indent=2, allow_nan=False) + "\n", keep="\n"))  # DEL


def write_text(path: Path, text: str) -> None:
    """Write a text to a file or, with control characters written out, to standard output."""
    if is_stdout(path):
        sys.stdout.write(printable(text, keep="\n"))
    else:
        write_file(path, text)


def write_file(path: Path, text: str) -> None:
    """Write a file that the user named, following a link; an error names the file."""
    from neuronfair import atomic

    try:
        atomic.write_text(path.resolve(), text)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def check_run_folder(out: Path, force: bool, reads: Sequence[str | Path | None], *, of_audit: bool = False) -> None:
    """Refuse a run folder that cannot be written, that is not ours, or that --force may not delete."""
    from neuronfair.audits.folder import check_audit_folder, check_writable, refuse_links
    from neuronfair.store.ledger import check_discardable, check_folder

    if force:
        check_discardable(out, tuple(reads))
    elif of_audit:
        check_audit_folder(out)
    else:
        check_folder(out)
        refuse_links(out)
    check_writable(out)
