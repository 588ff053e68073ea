"""The command that puts methods side by side."""

from __future__ import annotations

from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair import __version__
from neuronfair.cli import options, tables
from neuronfair.cli.app import app
from neuronfair.cli.options import RayOption, TwinsKind, TwinsOption, pool_of
from neuronfair.formatting import listed

if TYPE_CHECKING:
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.blackbox import Model


@dataclass(frozen=True)
class _Opens:
    """Opens the model in a worker, as it was opened here."""

    source: options.ModelOptions
    data: Dataset
    folder: Path  # to which paths are relative

    def __call__(self) -> Model:
        """Return the model."""
        with chdir(self.folder):
            return self.source.open(self.data.to("cpu")).model


@app.command()
def compare(
    data: options.DataArgument,
    sensitive: options.SensitiveOption = None,
    encoding: options.EncodingOption = "default",
    model: options.ModelOption = None,
    weights: options.WeightsOption = None,
    preprocess: options.PreprocessOption = None,
    trust_pickle: options.TrustOption = False,
    decision: options.DecisionOption = None,
    domain: options.DomainOption = None,
    target: options.TargetOption = None,
    attributes_file: tables.AttributesFileOption = None,
    key: tables.KeyOption = None,
    methods: Annotated[str, typer.Option(help="'all', or names with commas: neuronfair,adf,eidig5.")] = "all",
    seeds: Annotated[int, typer.Option(min=1, help="How many rows to start from.")] = 100,
    steps: Annotated[
        int, typer.Option(min=0, help="Steps of the local phase, after a look at the row it starts from.")
    ] = 100,
    seconds: Annotated[float | None, typer.Option(min=0, help="Time for each method.")] = None,
    twins: TwinsOption = TwinsKind.flip,
    repeats: Annotated[int, typer.Option(min=1, help="Run seeds; with 2 or more, means and 95% intervals.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Draw the comparison (.png, .svg or .pdf).")] = None,
    json_file: options.JsonOption = None,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    ray: RayOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Search one model with several methods: same seeds, same budget, same evaluation.

    Beside each method that follows gradients it walks once more in random directions; the lift of all is over the
    strongest of these controls and of random people.

    Examples:

    `neuronfair compare adult --sensitive sex --model adult.safetensors --plot methods.png`

    `neuronfair compare adult --methods neuronfair,adf,eidig5 --seeds 1000 --repeats 10 --json -`
    """
    source = options.ModelOptions(model, weights, trust_pickle, decision, device, preprocess)
    from neuronfair.audits.comparison import compare as run
    from neuronfair.render.comparison import compare_report, plot_comparison
    from neuronfair.render.plots import PICTURES, drawing
    from neuronfair.render.terminal import make_console, progress_bar
    from neuronfair.searches.config import SearchConfig
    from neuronfair.searches.methods import able, check_method

    options.check_out(plot, PICTURES)
    if plot is not None:
        drawing()
    options.check_out(json_file, or_stdout=True)
    options.check_device(device)
    chosen = None if methods == "all" else options.names(methods) or []
    for method in chosen or ():
        check_method(method)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    beside = tables.JoinOptions.of(attributes_file, key)
    table = tables.load_data(data, encoding, domain, sensitive, target, source, beside=beside).data
    opened, table, _ = source.open_or_train(table, console, seed)
    network = opened.model
    config = SearchConfig(
        seeds=seeds,
        steps=steps,
        seconds=seconds,
        seed=seed,
        decision=opened.decision,
        twins=twins.value,
    )
    opens = None if model is None else _Opens(source, table, Path.cwd())
    with progress_bar("Comparing methods", quiet=console.quiet) as show, pool_of(ray) as pool:
        chosen = able(network) if chosen is None else chosen
        said: dict[str, Any] = {"repeats": repeats, "opens": opens}
        said["progress"] = lambda what, done, total, note="": show(done, total, note, what=what)
        apart = None if ray is None else pool
        result = run(network, table.domain, table.rows, chosen, config, pool=apart, **said)
    console.print(compare_report(result, table.domain))
    if plot is not None:
        title = f"{table.name}, {listed(table.domain.sensitive)}: {result.seeds:,} seeds"
        plot_comparison(result, plot, title=title)
        console.print(f"Picture: {plot}", soft_wrap=True)
    if json_file is not None:
        figures = {
            "version": __version__,
            "data": table.name,
            "encoding": table.domain.encoding,
            "sensitive": list(table.domain.sensitive),
            "model_fingerprint": opened.fingerprint,
            "twins": twins.value,
            "seeds": result.seeds,
            "steps": result.config.steps,
            "global_steps": result.config.global_steps,
            "run_seeds": list(range(seed, seed + repeats)),
            "rates": {
                one.population: {"rate": one.rate, "interval": one.interval, "sampled": one.sampled}
                for one in result.rates
            },
            "strongest_control": None if result.strongest is None else result.strongest._asdict(),
            "interrupted": result.interrupted,
            "methods": result.methods(),
        }
        options.write_json(json_file, figures)
