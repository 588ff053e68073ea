"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from neuronfair.errors import DataError, NeuronFairError
from neuronfair.formatting import listed, percent, visible
from neuronfair.model.formats import reader_of
from neuronfair.scale.pool import Pool, Serial
from neuronfair.scale.ray_cluster import ADDRESS, LOCAL, check_address, cluster

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from neuronfair.audits.inputs import ModelSource
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.decision import Decision
    from neuronfair.model.open import Opened
    from neuronfair.model.training_loop import TrainingSettings
    from neuronfair.model.weights import Card


class TwinsKind(StrEnum):
    """Whom people are compared with."""

    flip = "flip"
    counterpart = "counterpart"


TwinsOption = Annotated[
    TwinsKind,
    typer.Option(
        help="Compare people with themselves when only the sensitive attribute changes (flip), or with their "
        "counterparts: who they would be in another group, by what the table says of both (counterpart)."
    ),
]


RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Work side by side on a Ray cluster: on all cores of this machine, or at ADDRESS (auto, HOST:PORT, "
        "ray://HOST:PORT).",
    ),
]


class Commands(TyperGroup):
    """The commands; --ray may stand alone, which options of typer that have a value cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the address of a cluster of our own behind an --ray without one."""
        return super().parse_args(ctx, with_address(args))


def with_address(args: list[str]) -> list[str]:
    """Return a command line with an address behind --ray.

    >>> with_address(["search", "--ray", "adult", "--ray"]), with_address(["search", "--ray", "here:6379"])
    (['search', '--ray', 'local', 'adult', '--ray', 'local'], ['search', '--ray', 'here:6379'])
    """
    end = args.index("--") if "--" in args else len(args)
    followed = [bool(ADDRESS.fullmatch(word)) for word in (*args[1:], "")]
    lone = {place for place, word in enumerate(args[:end]) if word == "--ray" and not followed[place]}
    return [word for place, one in enumerate(args) for word in ((one, LOCAL) if place in lone else (one,))]


def check_ray(ray: str | None) -> None:
    """Refuse an --ray that cannot be followed, before any work is done."""
    if ray is not None:
        check_address(ray)


@contextmanager
def pool_of(ray: str | None) -> Iterator[Pool]:
    """Give who does the work: this process, or the cluster of --ray, which ends with the block if it is ours."""
    if ray is None:
        yield Serial()
    else:
        with cluster(ray) as pool:
            yield pool


DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="adult, german, bank, compas, meps, or a table: CSV, Parquet, Feather, Excel, SQLite, JSON lines.",
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name from 'neuronfair data list'.")]
EncodingOption = Annotated[
    str,
    typer.Option(help="For the data sets of the paper: 'default' (readable, with rules) or 'paper' (its numbers)."),
]
SensitiveOption = Annotated[
    str | None, typer.Option(help="Sensitive attribute, or several: sex,race. Default: the one the domain names.")
]
DomainOption = Annotated[
    Path | None,
    typer.Option("--domain", help="Domain file (TOML) for a table of your own; see 'neuronfair domain infer'."),
]
TargetOption = Annotated[
    str | None,
    typer.Option(
        help="For a table of your own without a domain file: the column to predict. Without it accuracy is unknown."
    ),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="A,B,…", help="The model's inputs in their order, where it has no names for them: age,sex,income."
    ),
]
FavourableOption = Annotated[
    str | None,
    typer.Option(metavar="CLASS", help="The favourable outcome, a class of the target: needed for disparate impact."),
]
TakeRulesOption = Annotated[
    Literal["none", "free", "all"],
    typer.Option(help="Rules that the table suggests to take over: free are those that name no sensitive attribute."),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="A model file (.safetensors, .onnx, .keras, .skops, .ubj, .txt, .cbm, …), or package.module:name. "
        "Default: train one now.",
    ),
]
WeightsOption = Annotated[
    Path | None, typer.Option(help="Weights (.safetensors) for the torch module that package.module:name makes.")
]
PreprocessOption = Annotated[
    str | None,
    typer.Option(help="package.module:name of your function from a table (DataFrame) to the model's inputs."),
]
TrustOption = Annotated[
    bool, typer.Option("--trust-pickle", help="Open pickles too. Opening one runs any program hidden in it.")
]
DecisionOption = Annotated[
    str | None,
    typer.Option(
        help="What counts as another decision: argmax, threshold=0.5 or tolerance=0.1. Default: as the outputs suggest."
    ),
]
PlausibleOption = Annotated[
    float,
    typer.Option(help="Search only among people than whom this share of the table is less usual: 0.05."),
]
PopulationOption = Annotated[
    Path | None, typer.Option(help="A table of people from your own sampler: who is plausible. Default: fit a model.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON; '-' prints them alone.")]
DeviceOption = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")]
ForceOption = Annotated[bool, typer.Option("--force", help="Throw away the audit or run in --out, and begin anew.")]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables; errors only.")]


def names(text: str | None) -> list[str] | None:
    """Return the names in a list with commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def read_decision(text: str | None) -> Decision | None:
    """Return what --decision says; None where nothing was said."""
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


def fit_classifier(
    data: Dataset,
    console: Console,
    seed: int,
    hidden: list[int] | None = None,
    settings: TrainingSettings | None = None,
) -> tuple[nn.Sequential, Card]:
    """Train a classifier with a progress bar and say how well it does."""
    from neuronfair.model.train import fit
    from neuronfair.render.terminal import progress_bar

    with progress_bar(f"Training on {data.name}", quiet=console.quiet) as show:
        losses = []

        def note(start: int, epoch: int, loss: float) -> None:
            losses.append(loss)
            show(epoch, None, f"epochs, best validation loss {min(losses):.4f}")

        module, card = fit(data, hidden=hidden, settings=settings, seed=seed, progress=note)
    shares = ", ".join(f"{part} {percent(share)}" for part, share in card.accuracy.items())
    console.print(
        f"Trained {'-'.join(map(str, (card.inputs, *card.hidden, card.outputs)))} on {data.name}: accuracy {shares}."
    )
    return module, card


@dataclass(frozen=True)
class ModelOptions:
    """What --model and its companions say about the model, refused at once if no reader takes it; or train one."""

    model: str | None = None
    weights: Path | None = None
    trust_pickle: bool = False
    decision: str | None = None
    device: str = "cpu"
    preprocess: str | None = None
    columns: str | None = None  # its inputs in their order, where it has no names for them

    @property
    def source(self) -> ModelSource:
        """The model and how it is opened."""
        from neuronfair.audits.inputs import ModelSource

        said = (self.weights, self.trust_pickle, read_decision(self.decision), self.device, self.preprocess)
        return ModelSource(self.model, *said, names(self.columns))

    def __post_init__(self) -> None:
        if self.model is not None:
            reader_of(self.model, weights=self.weights, trust_pickle=self.trust_pickle)
        elif self.weights is not None:
            raise NeuronFairError("--weights belongs to a --model given as package.module:name")
        elif self.preprocess is not None:
            raise NeuronFairError("--preprocess belongs to a --model that was trained with it")

    def open(self, data: Dataset) -> Opened:
        """Open the model that is named."""
        return self.source.open(data)

    def train(
        self, data: Dataset, console: Console, seed: int, settings: TrainingSettings | None = None
    ) -> tuple[Opened, Card]:
        """Train a classifier and open it."""
        from neuronfair.model.open.opened import white_box
        from neuronfair.model.open.request import Request

        decision = read_decision(self.decision)
        module, card = fit_classifier(data, console, seed, settings=settings)
        request = Request(f"trained on {data.name}", data.domain, data.rows, device=self.device, decision=decision)
        return white_box(request, "neuronfair", module), card

    def open_or_train(self, data: Dataset, console: Console, seed: int) -> tuple[Opened, Dataset, Card | None]:
        """Return the model, the table on its device, and the card of one trained just now."""
        opened, card = (self.open(data), None) if self.model is not None else self.train(data, console, seed)
        if outside := [attribute.name for attribute in data.domain.attributes if not attribute.given]:
            console.print(f"The model is not given {listed(outside)}.")
        return opened, data.to(self.device), card


def check_device(device: str) -> None:
    """Refuse a device that cannot be used here."""
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
    target = Path(os.path.realpath(path))  # of a link, what it stands for
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
    """Return where a network and its card are written, of a link what it stands for; refuse what cannot be written."""
    check_out(path, (".safetensors",))
    path = path.resolve() if path.is_symlink() else path
    check_out(path.with_suffix(".json"))
    return path


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Write figures as JSON to a file or to standard output."""
    text = visible(json.dumps(result, indent=2, allow_nan=False) + "\n", keep="\n")  # DEL; the rest is ASCII
    if is_stdout(path):
        sys.stdout.write(text)
    else:
        write_file(path, text)


def write_file(path: Path, text: str) -> None:
    """Write a file that the user has named, of a link what it stands for; if that fails, the error names it."""
    from neuronfair.atomic import write_text

    try:
        write_text(path.resolve(), text)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
