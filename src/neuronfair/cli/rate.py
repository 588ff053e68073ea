"""The command that says how often a network discriminates."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from neuronfair import __version__
from neuronfair.cli import options
from neuronfair.cli.app import app, warn_of_feeding
from neuronfair.words import POPULATIONS, listed, percent


class _Population(StrEnum):
    domain = "domain"
    combinations = "combinations"
    table = "table"


@app.command()
def rate(
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
    population: Annotated[
        _Population, typer.Option(help="Whom to judge: people of the domain, all combinations, or the table's rows.")
    ] = _Population.domain,
    error: Annotated[float, typer.Option(help="Go on until the rate is known to this much, up or down.")] = 0.001,
    confidence: Annotated[float, typer.Option(help="… with this confidence.")] = 0.95,
    samples: Annotated[int, typer.Option(min=1, help="People to judge, at most.")] = 1_000_000,
    json_file: options.JsonOption = None,
    device: options.DeviceOption = "cpu",
    seed: options.SeedOption = 0,
    quiet: options.QuietOption = False,
) -> None:
    """Estimate for how many people the decision flips when only the sensitive attribute changes (Themis).

    People are drawn and judged until the error bound holds at the confidence asked for. A rate speaks of the people it
    was drawn from: name them with --population.

    Example: `neuronfair rate adult --sensitive sex --model adult.safetensors --population table`
    """
    source = options.Source(model, weights, trust_pickle, decision, device, preprocess)
    from neuronfair.measure.rate import Until, discrimination_rate
    from neuronfair.render.console import make_console, progress_bar

    options.check_out(json_file, or_stdout=True)
    options.check_device(device)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    table = options.load_data(data, encoding, domain, sensitive, target, source).data
    opened, table, _ = source.open_or_train(table, console, seed)
    if model is not None:
        warn_of_feeding(opened, table, console)
    with progress_bar("Judging people", quiet=console.quiet) as show:
        result = discrimination_rate(
            opened.model,
            table.domain,
            population=table.rows if population.value == "table" else population.value,
            samples=Until(error, samples),
            confidence=confidence,
            decision=opened.decision,
            seed=seed,
            progress=show,
        )
    low, high = result.interval
    console.print(
        f"The decision flips with {listed(table.domain.sensitive)} for {result.found:,} of {result.sampled:,} "
        f"{POPULATIONS[result.population]}: {percent(result.rate)}, between {percent(low)} and "
        f"{percent(high)} with {percent(confidence)} confidence."
    )
    if result.error > error:
        console.print(
            f"The error of {percent(result.error)} is above the {percent(error)} asked for: nobody was left to judge."
        )
    if json_file is not None:
        options.write_json(
            json_file,
            {
                "version": __version__,
                "data": table.name,
                "encoding": table.domain.encoding,
                "sensitive": list(table.domain.sensitive),
                "model_fingerprint": opened.fingerprint,
                "population": population.value,
                "rate": result.rate,
                "interval": [low, high],
                "confidence": confidence,
                "error": result.error,
                "found": result.found,
                "sampled": result.sampled,
            },
        )
