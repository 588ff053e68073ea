"""The command line: each command is a few lines around one function of the package."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair import __version__
from neuronfair.errors import DataError, NeuronFairError

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from neuronfair.domain.data import Data
    from neuronfair.network.adapter import Network
    from neuronfair.network.weights import Card

app = typer.Typer(
    help="Fairness testing of neural networks: where bias lives, whom it hits, how to repair it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The data sets of the paper: list them, fetch them, find them.", no_args_is_help=True)
domain_app = typer.Typer(help="Descriptions of what an input may be.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(domain_app, name="domain")

DataArgument = Annotated[
    str, typer.Argument(metavar="DATA", help="adult, german, bank, compas, meps, or a CSV or Parquet file of your own.")
]
EncodingOption = Annotated[
    str,
    typer.Option(help="For the data sets of the paper: 'default' (readable, valid people) or 'paper' (its numbers)."),
]
SensitiveOption = Annotated[
    str | None, typer.Option(help="Sensitive attribute, or several: sex,race. Default: the one the domain names.")
]
DomainOption = Annotated[
    Path | None,
    typer.Option("--domain", help="Domain file (TOML) for a table of your own; see 'neuronfair domain infer'."),
]
TargetOption = Annotated[
    str | None, typer.Option(help="For a table of your own without a domain file: the column to predict.")
]
SeedOption = Annotated[int, typer.Option(help="Seed of everything random.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables; errors only.")]


def main() -> None:
    """Run the command line; every expected error becomes one line and exit status 2."""
    try:
        app()
    except NeuronFairError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")


def _fail(message: str) -> None:
    print(f"neuronfair: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"neuronfair {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@data_app.command("list")
def data_list() -> None:
    """Show the data sets, their sensitive attributes, and whether they are at hand."""
    from rich.console import Console
    from rich.table import Table

    from neuronfair.domain.data import DATASETS
    from neuronfair.domain.sources import source, where

    table = Table()
    for heading in ("name", "at hand", "licence", "page"):
        table.add_column(heading)
    for name in DATASETS:
        found = where(name)
        table.add_row(
            name, "yes" if found else f"no: neuronfair data get {name}", source(name).licence, source(name).page
        )
    Console().print(table)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A name from 'neuronfair data list'.")], quiet: QuietOption = False
) -> None:
    """Download a data set into the user cache, checked against its checksum."""
    from neuronfair.domain.sources import get
    from neuronfair.report.console import make_console, progress_bar

    with progress_bar(make_console(quiet=quiet), f"Fetching {name}") as show:
        paths = get(name, progress=show)
    for path in paths:
        print(path)


@data_app.command("where")
def data_where(name: Annotated[str, typer.Argument(help="A name from 'neuronfair data list'.")]) -> None:
    """Print where the files of a data set lie."""
    from neuronfair.domain.sources import where

    paths = where(name)
    if paths is None:
        raise DataError(f"{name} is not at hand. Fetch it: neuronfair data get {name}")
    for path in paths:
        print(path)


@domain_app.command("infer")
def domain_infer(
    file: Annotated[Path, typer.Argument(help="CSV or Parquet file with a header.")],
    sensitive: Annotated[str, typer.Option(help="Sensitive attribute, or several: sex,race.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write it; '-' prints it. Default: FILE with .toml.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a first draft of a domain file, read off a table, for you to correct."""
    from neuronfair.atomic import write_text
    from neuronfair.domain.infer import infer_domain
    from neuronfair.domain.toml import parse_domain

    text = infer_domain(file, sensitive=_names(sensitive) or [], target=target)
    parse_domain(text)
    if _is_stdout(out):
        print(text, end="")
        return
    out = out or file.with_suffix(".toml")
    if out.exists() and not force:
        raise DataError(f"{out} exists. Choose another --out, or overwrite it with --force")
    write_text(out, text)
    print(f"Wrote {out}. Please read it: kinds, bounds and rules decide what is tested.")


@app.command()
def train(
    data: DataArgument,
    out: Annotated[Path, typer.Option(help="Weights file to write (.safetensors); a JSON card is put beside it.")],
    encoding: EncodingOption = "default",
    domain: DomainOption = None,
    sensitive: SensitiveOption = None,
    target: TargetOption = None,
    hidden: Annotated[
        str | None, typer.Option(help="Neurons per hidden layer, e.g. 64,32,16. Default: the paper's.")
    ] = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Train a classifier on 70 % of a table and report its accuracy on the rest.

    Example: `neuronfair train adult --out adult.safetensors`
    """
    from neuronfair.network.weights import save
    from neuronfair.report.console import make_console

    _check_out(out, (".safetensors",))
    console = make_console(quiet=quiet)
    module, card = _fit(_load(data, encoding, domain, sensitive, target), console, seed, _sizes(hidden))
    save(out, module, card)
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.")


@app.command()
def interpret(
    data: DataArgument,
    sensitive: SensitiveOption = None,
    encoding: EncodingOption = "default",
    model: Annotated[
        Path | None, typer.Option(help="Weights (.safetensors, or the published .npz). Default: train one now.")
    ] = None,
    domain: DomainOption = None,
    target: TargetOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures as JSON; '-' prints them alone.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the AS curves (.png, .svg or .pdf).")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda, …")] = "cpu",
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Show which layers and neurons react when only the sensitive attribute changes.

    Examples:

    `neuronfair interpret adult --sensitive sex --plot curves.png`

    `neuronfair interpret table.csv --target income --sensitive sex,race --model mine.safetensors --json -`
    """
    from neuronfair.interpretation.ablate import ablate
    from neuronfair.interpretation.profile import interpret as run
    from neuronfair.network.weights import fingerprint
    from neuronfair.report.console import interpretation_json, layer_table, make_console, progress_bar, verdict
    from neuronfair.report.plots import PICTURES, plot_as_curves

    _check_out(plot, PICTURES)
    _check_out(json_file)
    console = make_console(quiet=quiet or _is_stdout(json_file))
    table = _load(data, encoding, domain, sensitive, target)
    network, table = _network(model, table, console, device, seed)
    with progress_bar(console, "Comparing rows with their twins") as show:
        profile = run(network, table.domain, table.rows, progress=show)
    ablation = ablate(
        network, table.domain, table.rows, table.labels, profile.worst.name, profile.worst.biased, seed=seed
    )
    console.print(layer_table(profile, table.domain))
    console.print(verdict(profile, ablation, table.domain))
    if plot is not None:
        named = " and ".join(table.domain.sensitive)
        plot_as_curves(profile, plot, title=f"{table.name}: reaction of the neurons to {named}")
        console.print(f"AS curves: {plot}")
    if json_file is not None:
        result = {
            "version": __version__,
            "data": table.name,
            "encoding": table.domain.encoding,
            "sensitive": list(table.domain.sensitive),
            "rows": len(table),
            "domain_fingerprint": table.domain.fingerprint,
            "model_fingerprint": fingerprint(network.module),
            **interpretation_json(profile, ablation),
        }
        _write_json(json_file, result)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str | None) -> list[int] | None:
    try:
        sizes = [int(n) for n in _names(text) or []]
    except ValueError:
        sizes = [0]
    if any(n < 1 for n in sizes):
        raise NeuronFairError(f"--hidden {text}: expected whole numbers above 0, such as 64,32,16")
    return sizes or None


def _load(name: str, encoding: str, domain: Path | None, sensitive: str | None, target: str | None) -> Data:
    """Return a data set of the paper, or a user's table with its domain file or an inferred domain."""
    from neuronfair.domain.data import DATASETS, load, read_table
    from neuronfair.domain.infer import infer_domain
    from neuronfair.domain.toml import parse_domain, read_domain

    names = _names(sensitive)
    path = Path(name)
    if name in DATASETS or not path.exists():
        return load(name, encoding, sensitive=names)
    if domain is not None:
        described = read_domain(domain)
    elif target is not None and names:
        described = parse_domain(infer_domain(path, sensitive=names, target=target), default_name=path.stem)
    else:
        raise DataError(f"{name}: name a --domain file, or both --target and --sensitive so that one can be inferred")
    return read_table(path, described.with_sensitive(*names) if names else described)


def _fit(data: Data, console: Console, seed: int, hidden: list[int] | None = None) -> tuple[nn.Sequential, Card]:
    from neuronfair.network.fit import fit
    from neuronfair.report.console import progress_bar

    with progress_bar(console, f"Training on {data.name}") as show:

        def note(start: int, epoch: int, loss: float) -> None:
            show(epoch, None, f"epochs of start {start}, validation loss {loss:.4f}")

        module, card = fit(data, hidden=hidden, seed=seed, progress=note)
    shares = ", ".join(f"{part} {share:.2%}" for part, share in card.accuracy.items())
    console.print(
        f"Trained {'-'.join(map(str, (card.inputs, *card.hidden, card.outputs)))} on {data.name}: accuracy {shares}."
    )
    return module, card


def _network(path: Path | None, data: Data, console: Console, device: str, seed: int) -> tuple[Network, Data]:
    """Read the weights, or train a classifier where none are given, and move it and the data to the device."""
    import torch

    from neuronfair.network.adapter import Network
    from neuronfair.network.fit import read_model

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise NeuronFairError(f"--device {device}: not usable here ({str(error).splitlines()[0]})") from None
    module = _fit(data, console, seed)[0] if path is None else read_model(path, data.domain)
    domain = data.domain.to(device)
    moved = replace(data, domain=domain, rows=data.rows.to(device), labels=data.labels.to(device))
    return Network(module, domain.encode(moved.rows[:1]), device=device), moved


def _is_stdout(path: Path | None) -> bool:
    return path is not None and str(path) == "-"


def _check_out(path: Path | None, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse an output file that cannot be written, before any work is done for it."""
    if path is None or _is_stdout(path):
        return
    if suffixes and path.suffix.lower() not in suffixes:
        raise DataError(f"{path}: expected a name that ends in {' or '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise DataError(f"{path}: there is no folder {path.absolute().parent}")


def _write_json(path: Path, result: dict[str, Any]) -> None:
    from neuronfair.atomic import write_text

    text = json.dumps(result, indent=2, allow_nan=False) + "\n"
    if _is_stdout(path):
        sys.stdout.write(text)
    else:
        write_text(path, text)


if __name__ == "__main__":
    main()
