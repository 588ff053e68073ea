"""The command that says how often a network discriminates."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neuronfair import __version__
from neuronfair.cli import options, tables
from neuronfair.cli.app import app, warn_of_encoding
from neuronfair.cli.options import TwinsKind, TwinsOption
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import POPULATIONS, listed, percent

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.report.counterfactual import CounterfactualReport
    from neuronfair.audits.report.rates import RateOf
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import Opened


class _Population(StrEnum):
    pairs = "pairs"
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
            help="Whom to judge: the table's rows with plausible twins only (pairs), its rows, plausible people, "
            "people of the domain, or all combinations of values. Default: each of the first four."
        ),
    ] = None,
    twins: TwinsOption = TwinsKind.flip,
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
    was drawn from: the rows of the table that have a plausible twin (compared with plausible twins only), all rows of
    the table, plausible people (drawn from a model of the table), or all whom the domain allows. With --population it
    is measured for one of these only.

    With --twins counterpart the people of the table are compared with who they would be in another group, beside the
    same with shuffled groups; the options about populations, errors and samples play no part then.

    Examples:

    `neuronfair rate adult --sensitive sex --model adult.safetensors --population table`

    `neuronfair rate adult --sensitive sex --model adult.safetensors --twins counterpart`
    """
    source = options.ModelOptions(model, weights, trust_pickle, decision, device, preprocess)
    from neuronfair.audits.report.rates import AUDITED, covering
    from neuronfair.audits.stages.population import fit_plausible_population
    from neuronfair.audits.wording.phrases import pair_rate_of, rate_of
    from neuronfair.domain.population.plausible import plausible_twins
    from neuronfair.measure.rate import Until, discrimination_rate, plausible_pair_rate
    from neuronfair.render.terminal import make_console, progress_bar

    options.check_out(json_file, or_stdout=True)
    options.check_device(device)
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    beside = tables.JoinOptions.of(attributes_file, key)
    table = tables.load_data(data, encoding, domain, sensitive, target, source, beside=beside).data
    opened, table, _ = source.open_or_train(table, console, seed)
    if model is not None:
        warn_of_encoding(opened, table, console)
    about: dict[str, Any] = {
        "version": __version__,
        "data": table.name,
        "encoding": table.domain.encoding,
        "sensitive": list(table.domain.sensitive),
        "model_fingerprint": opened.fingerprint,
        "confidence": confidence,
    }
    if twins is TwinsKind.counterpart:
        report = _counterparts(opened, table, confidence, seed, console)
        if json_file is not None:
            options.write_json(json_file, about | {"counterpart": asdict(report)})
        return
    people = AUDITED if population is None else (population.value,)
    usual = None
    if {"pairs", "plausible"} & {*people}:
        try:
            usual = fit_plausible_population(table, None, seed)
        except NeuronFairError as why:
            if population is not None:
                raise
            console.print(f"Nothing is said of plausible people. {why}")
    asked: dict[str, Any] = {"confidence": confidence, "decision": opened.decision, "seed": seed}
    rates: dict[str, RateOf] = {}
    errors: dict[str, float] = {}
    for name in people:
        with progress_bar(f"Judging {POPULATIONS[name]}", quiet=console.quiet) as show:
            if name == "pairs":
                if usual is not None:
                    fits = plausible_twins(table.domain, usual, table.rows)
                    found = plausible_pair_rate(opened, fits, table, samples=samples, progress=show, **asked)
                    if found is not None:
                        rates[name], errors[name] = pair_rate_of(found), found.rate.error
                continue
            whom = table if name == "table" else usual if name == "plausible" else name
            if whom is not None:
                one = discrimination_rate(
                    opened, table.domain, population=whom, samples=Until(error, samples), progress=show, **asked
                )
                rates[name], errors[name] = rate_of(one), one.error
    if "table" in rates and "plausible" in rates:
        rates["plausible"] = covering(rates["plausible"], rates["table"])
    for measured in rates.values():
        _say(console, table, measured, errors[measured.population], error)
    if json_file is not None:
        entries = {one.population: {**asdict(one), "error": errors[one.population]} for one in rates.values()}
        result = about | {"rates": {name: entries.get(name) for name in people}}
        alone = None if population is None else rates.get(population.value)
        options.write_json(json_file, result | ({} if alone is None else _alone(alone, errors[alone.population])))


def _counterparts(
    opened: Opened, table: Dataset, confidence: float, seed: int, console: Console
) -> CounterfactualReport:
    """Compare the people of the table with their counterparts, and say what came of it."""
    from neuronfair.audits.wording.counterfactual import counterfactual_report
    from neuronfair.measure.counterfactual_effect import counterfactual_effect
    from neuronfair.render.terminal import progress_bar

    with progress_bar("Comparing people with their counterparts", quiet=console.quiet) as show:
        effect = counterfactual_effect(
            opened.model,
            table.domain,
            table.rows,
            decision=opened.decision,
            confidence=confidence,
            seed=seed,
            progress=show,
        )
    report = counterfactual_report(table.domain, table.rows, effect, confidence)
    for sentence in report.sentences:
        console.print(sentence)
    return report


def _say(console: Console, table: Dataset, rate: RateOf, error: float, allowed: float) -> None:
    console.print(
        f"The decision flips with {listed(table.domain.sensitive)} for {rate.discriminated:,} of {rate.of:,} "
        f"{POPULATIONS[rate.population]}: {percent(rate.rate)}, between {percent(rate.low)} and "
        f"{percent(rate.high)} with {percent(rate.confidence)} confidence. {rate.omission}".rstrip()
    )
    if error > allowed:
        whole = rate.population in ("pairs", "table")
        why = "nobody was left to judge" if whole else "more people than --samples are needed"
        console.print(f"The error of {percent(error)} is above the {percent(allowed)} asked for: {why}.")


def _alone(rate: RateOf, error: float) -> dict[str, Any]:
    """Return the figures of the only population that was asked for, as they were called when there was always one."""
    figures = {"population": rate.population, "rate": rate.rate, "interval": [rate.low, rate.high]}
    return {**figures, "error": error, "found": rate.discriminated, "sampled": rate.of}
