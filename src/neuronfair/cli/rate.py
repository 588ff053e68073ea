"""The command that says how often a network discriminates."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair import __version__
from neuronfair.cli import options, tables
from neuronfair.cli.app import app, warn_of_feeding
from neuronfair.cli.twins import Twins, TwinsOption
from neuronfair.errors import NeuronFairError
from neuronfair.words import POPULATIONS, listed, percent

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.domain.data import Data
    from neuronfair.measure.rate import Rate
    from neuronfair.model.open import Opened
    from neuronfair.verdict.counterpart import CounterpartReport


class _Population(StrEnum):
    table = "table"
    plausible = "plausible"
    domain = "domain"
    combinations = "combinations"


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
    attributes_file: tables.AttributesFileOption = None,
    key: tables.KeyOption = None,
    population: Annotated[
        _Population | None,
        typer.Option(
            help="Whom to judge: the table's rows, plausible people, people of the domain, or all combinations of "
            "values. Default: each of the first three."
        ),
    ] = None,
    twins: TwinsOption = Twins.flip,
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
    was drawn from: the rows of the table, plausible people (drawn from a model of the table), or all whom the domain
    allows. With --population it is measured for one of these only.

    With --twins counterpart the people of the table are compared with who they would be in another group, beside the
    same with shuffled groups; the options about populations, errors and samples play no part then.

    Examples:

    `neuronfair rate adult --sensitive sex --model adult.safetensors --population table`

    `neuronfair rate adult --sensitive sex --model adult.safetensors --twins counterpart`
    """
    source = options.Source(model, weights, trust_pickle, decision, device, preprocess)
    from neuronfair.measure.rate import Until, discrimination_rate
    from neuronfair.render.console import make_console, progress_bar
    from neuronfair.verdict.population import who_is_usual
    from neuronfair.verdict.rates import AUDITED
    from neuronfair.verdict.words import rate_of

    options.check_out(json_file, or_stdout=True)
    options.check_device(device)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    beside = tables.Beside.of(attributes_file, key)
    table = tables.load_data(data, encoding, domain, sensitive, target, source, beside=beside).data
    opened, table, _ = source.open_or_train(table, console, seed)
    if model is not None:
        warn_of_feeding(opened, table, console)
    about: dict[str, Any] = {
        "version": __version__,
        "data": table.name,
        "encoding": table.domain.encoding,
        "sensitive": list(table.domain.sensitive),
        "model_fingerprint": opened.fingerprint,
        "confidence": confidence,
    }
    if twins is Twins.counterpart:
        report = _counterparts(opened, table, confidence, seed, console)
        if json_file is not None:
            options.write_json(json_file, about | {"counterpart": asdict(report)})
        return
    people = AUDITED if population is None else (population.value,)
    rates: dict[str, Rate] = {}
    for name in people:
        try:
            whom = table.rows if name == "table" else who_is_usual(table, None, seed) if name == "plausible" else name
        except NeuronFairError as why:
            if population is not None:
                raise
            console.print(f"Nothing is said of plausible people. {why}")
            continue
        with progress_bar(f"Judging {POPULATIONS[name]}", quiet=console.quiet) as show:
            rates[name] = discrimination_rate(
                opened.model,
                table.domain,
                population=whom,
                samples=Until(error, samples),
                confidence=confidence,
                decision=opened.decision,
                seed=seed,
                progress=show,
            )
    for measured in rates.values():
        _say(console, table, measured, error)
    if json_file is not None:
        entries = {name: {**asdict(rate_of(one)), "error": one.error} for name, one in rates.items()}
        result = about | {"rates": {name: entries.get(name) for name in people}}
        options.write_json(json_file, result | (_alone(rates[population.value]) if population is not None else {}))


def _counterparts(opened: Opened, table: Data, confidence: float, seed: int, console: Console) -> CounterpartReport:
    """Compare the people of the table with their counterparts, and say what came of it."""
    from neuronfair.measure.counterparts import counterpart_effect
    from neuronfair.render.console import progress_bar
    from neuronfair.verdict.counterpart_words import counterpart_report

    with progress_bar("Comparing people with their counterparts", quiet=console.quiet) as show:
        effect = counterpart_effect(
            opened.model,
            table.domain,
            table.rows,
            decision=opened.decision,
            confidence=confidence,
            seed=seed,
            progress=show,
        )
    report = counterpart_report(table.domain, table.rows, effect, confidence)
    for sentence in report.sentences:
        console.print(sentence)
    return report


def _say(console: Console, table: Data, rate: Rate, error: float) -> None:
    low, high = rate.interval
    console.print(
        f"The decision flips with {listed(table.domain.sensitive)} for {rate.found:,} of {rate.sampled:,} "
        f"{POPULATIONS[rate.population]}: {percent(rate.rate)}, between {percent(low)} and "
        f"{percent(high)} with {percent(rate.confidence)} confidence."
    )
    if rate.error > error:
        why = "nobody was left to judge" if rate.population == "table" else "more people than --samples are needed"
        console.print(f"The error of {percent(rate.error)} is above the {percent(error)} asked for: {why}.")


def _alone(rate: Rate) -> dict[str, Any]:
    """Return the figures of the only population that was asked for, as they were called when there was always one."""
    figures = {"population": rate.population, "rate": rate.rate, "interval": list(rate.interval)}
    return {**figures, "error": rate.error, "found": rate.found, "sampled": rate.sampled}
