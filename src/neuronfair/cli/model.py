"""Commands about one network: train it, look into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronfair import __version__
from neuronfair.cli import options, tables
from neuronfair.cli.app import app, warn_of_encoding
from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.formatting import listed


@app.command()
def train(
    data: options.DataArgument,
    out: Annotated[Path, typer.Option(help="Weights file to write (.safetensors); a JSON card is put beside it.")],
    encoding: options.EncodingOption = "default",
    domain: options.DomainOption = None,
    sensitive: options.SensitiveOption = None,
    target: options.TargetOption = None,
    attributes_file: tables.AttributesFileOption = None,
    key: tables.KeyOption = None,
    hidden: Annotated[
        str | None, typer.Option(help="Neurons per hidden layer, e.g. 64,32,16. Default: the paper's.")
    ] = None,
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Train a classifier on 70% of a table and report its accuracy on the rest.

    Example: `neuronfair train adult --out adult.safetensors`
    """
    from neuronfair.model.weights import save
    from neuronfair.render.terminal import make_console

    out = options.check_weights(out)
    console = make_console(quiet=quiet)
    beside = tables.JoinOptions.of(attributes_file, key)
    table = tables.load_data(data, encoding, domain, sensitive, target, beside=beside).data
    module, card = options.fit_classifier(table, console, seed, _sizes(hidden))
    save(out, module, card)
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)


@app.command()
def interpret(
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
    json_file: options.JsonOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the AS curves (.png, .svg or .pdf).")] = None,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Show which layers and neurons react when only the sensitive attribute changes.

    Examples:

    `neuronfair interpret adult --sensitive sex --plot curves.png`

    `neuronfair interpret table.csv --target income --sensitive sex,race --model mine.safetensors --json -`
    """
    source = options.ModelOptions(model, weights, trust_pickle, decision, device, preprocess)
    from neuronfair.interpretation.profile import interpret as run
    from neuronfair.measure.neurons import ablate
    from neuronfair.model.network import Network
    from neuronfair.render.plots import PICTURES, drawing, plot_as_curves
    from neuronfair.render.terminal import interpretation_json, layer_table, make_console, progress_bar, verdict

    options.check_out(plot, PICTURES)
    if plot is not None:
        drawing()
    options.check_out(json_file, or_stdout=True)
    options.check_device(device)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    beside = tables.JoinOptions.of(attributes_file, key)
    table = tables.load_data(data, encoding, domain, sensitive, target, source, beside=beside).data
    opened, table, _ = source.open_or_train(table, console, seed)
    network = opened.model
    if not isinstance(network, Network):
        raise ModelError(f"{model}: a black box shows no neurons, so there is nothing to interpret. {opened.note}")
    if model is not None:
        warn_of_encoding(opened, table, console)
    with progress_bar("Comparing rows with their twins", quiet=console.quiet) as show:
        profile = run(network, table.domain, table.rows, progress=show)
    worst = profile.worst
    ablation = ablate(network, table, worst.name, worst.biased, decision=opened.decision, seed=seed)
    console.print(layer_table(profile, table.domain))
    console.print(verdict(profile, ablation, table.domain))
    if plot is not None:
        title = f"{table.name}: reaction of the neurons to {listed(table.domain.sensitive)}"
        plot_as_curves(profile, plot, title=title)
        console.print(f"AS curves: {plot}", soft_wrap=True)
    if json_file is not None:
        result = {
            "version": __version__,
            "data": table.name,
            "encoding": table.domain.encoding,
            "sensitive": list(table.domain.sensitive),
            "rows": len(table),
            "domain_fingerprint": table.domain.fingerprint,
            "model_fingerprint": opened.fingerprint,
            **interpretation_json(profile, ablation),
        }
        options.write_json(json_file, result)


def _sizes(text: str | None) -> list[int] | None:
    """Return the numbers of neurons in a list with commas; None where none was given."""
    try:
        numbers = [int(n) for n in options.names(text) or []]
    except ValueError:
        numbers = [0]
    if any(n < 1 for n in numbers):
        raise NeuronFairError(f"--hidden {text}: expected whole numbers above 0, such as 64,32,16")
    return numbers or None
