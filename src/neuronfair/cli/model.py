"""Commands about one model: train it, interpret it, measure its flip rate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from neuronfair import __version__
from neuronfair.cli import files, options
from neuronfair.cli.app import AUDIT, RESEARCH, app, command, option
from neuronfair.cli.options import ModelOptions, OutputOptions, QuietOption, SeedOption, TableOptions
from neuronfair.errors import ModelError, NeuronFairError
from neuronfair.formatting import POPULATIONS, Population, listed, percent
from neuronfair.parameters import BUDGET, INPUT, OUTPUT

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.report.counterfactual import CounterfactualReport
    from neuronfair.audits.report.rates import RateOf
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import Opened


@command(app, panel=RESEARCH, defaults={"data": ...})
def train(
    table: TableOptions,
    out: Annotated[Path, option("Weights file to write (.safetensors), with a card in JSON.", panel=OUTPUT)],
    hidden: Annotated[
        str | None, option("Neurons of each hidden layer, such as 64,32,16. Default: as in the paper.", panel=INPUT)
    ] = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Train a classifier on 70% of a data set and report its accuracy on the rest.

    Example: `neuronfair train adult --out adult.safetensors`
    """
    from neuronfair.model.weights import save
    from neuronfair.render.terminal import make_console

    out = files.check_weights(out)
    console = make_console(quiet=quiet)
    module, card = options.fit_classifier(table.load().data, console, seed, _sizes(hidden))
    save(out, module, card)
    console.print(f"Wrote {out} and {out.with_suffix('.json')}.", soft_wrap=True)


@command(app, panel=RESEARCH, defaults={"data": ...}, omit=("columns",))
def interpret(
    table: TableOptions,
    model: ModelOptions,
    output: OutputOptions,
    plot: Annotated[Path | None, option("Draw the AS curves (.png, .svg or .pdf).", panel=OUTPUT)] = None,
    seed: SeedOption = 0,
) -> None:
    """Show which layers and neurons react when only the sensitive attribute changes.

    Examples:

    `neuronfair interpret adult --sensitive sex --plot curves.png`

    `neuronfair interpret table.csv --target income --sensitive sex,race --model mine.safetensors --json -`
    """
    model.check()
    from neuronfair.interpretation.profile import interpret as run
    from neuronfair.measure.neurons import ablate
    from neuronfair.model.network import Network
    from neuronfair.render.plots import PICTURES, drawing, plot_as_curves
    from neuronfair.render.terminal import interpretation_json, layer_table, progress_bar, verdict

    files.check_out(plot, PICTURES)
    if plot is not None:
        drawing()
    output.check()
    console = output.console()
    opened, data, _ = options.open_all(table, model, console, seed)
    network = opened.model
    if not isinstance(network, Network):
        raise ModelError(
            f"{model.model}: a black box shows no neurons, so there is nothing to interpret. {opened.note}"
        )
    if model.model is not None:
        options.warn_of_encoding(opened, data, console)
    with progress_bar("Comparing rows with their twins", quiet=console.quiet) as show:
        profile = run(network, data.domain, data.rows, progress=show)
    worst = profile.worst
    ablation = ablate(network, data, worst.name, worst.biased, decision=opened.decision, seed=seed)
    console.print(layer_table(profile, data.domain))
    console.print(verdict(profile, ablation, data.domain))
    if plot is not None:
        title = f"{data.name}: reaction of the neurons to {listed(data.domain.sensitive)}"
        plot_as_curves(profile, plot, title=title)
        console.print(f"AS curves: {plot}", soft_wrap=True)
    output.write(
        {
            "version": __version__,
            "data": data.name,
            "encoding": data.domain.encoding,
            "sensitive": list(data.domain.sensitive),
            "rows": len(data),
            "domain_fingerprint": data.domain.fingerprint,
            "model_fingerprint": opened.fingerprint,
            **interpretation_json(profile, ablation),
        }
    )


@command(app, panel=AUDIT, defaults={"data": ...}, omit=("columns",))
def rate(
    table: TableOptions,
    model: ModelOptions,
    output: OutputOptions,
    population: Annotated[
        Population | None,
        option("Population to measure. Default: all but combinations.", panel=INPUT),
    ] = None,
    twins: Annotated[
        Literal["flip", "counterpart"], option("Attribute-flip test, or counterfactual test.", panel=INPUT)
    ] = "flip",
    error: Annotated[float, option("Sample until the confidence interval is ± this at most.", panel=BUDGET)] = 0.001,
    confidence: Annotated[float, option("Level of the confidence interval.", panel=BUDGET)] = 0.95,
    samples: Annotated[int, option("Maximum number of records.", least=1, panel=BUDGET)] = 1_000_000,
    seed: SeedOption = 0,
) -> None:
    """Estimate the flip rate: how often the decision changes with the attribute (Themis).

    Populations: records of the data set with a plausible twin (pairs), all its records (table), realistic synthetic
    records (plausible), records drawn uniformly from the input schema (domain), and the same without its rules
    (combinations).

    --twins counterpart compares records with their counterfactual twins, next to a permutation baseline; --population,
    --error and --samples have no effect then.

    Examples:

    `neuronfair rate adult --sensitive sex --model adult.safetensors --population table`

    `neuronfair rate adult --sensitive sex --model adult.safetensors --twins counterpart`
    """
    model.check()
    output.check()
    console = output.console()
    opened, data, _ = options.open_all(table, model, console, seed)
    if model.model is not None:
        options.warn_of_encoding(opened, data, console)
    about: dict[str, Any] = {
        "version": __version__,
        "data": data.name,
        "encoding": data.domain.encoding,
        "sensitive": list(data.domain.sensitive),
        "model_fingerprint": opened.fingerprint,
        "confidence": confidence,
    }
    if twins == "counterpart":
        report = _counterfactuals(opened, data, confidence, seed, console)
        output.write(about | {"counterpart": asdict(report)})
        return
    rates, errors = _rates(opened, data, population, Sampling(error, confidence, samples, seed), console)
    for measured in rates.values():
        _say(console, data, measured, errors[measured.population], error)
    entries = {one.population: {**asdict(one), "error": errors[one.population]} for one in rates.values()}
    alone = None if population is None else rates.get(population)
    output.write(
        about
        | {"rates": {name: entries.get(name) for name in _populations(population)}}
        | ({} if alone is None else _alone(alone, errors[alone.population]))
    )


class Sampling(NamedTuple):
    """How exactly a rate is measured."""

    error: float
    confidence: float
    samples: int
    seed: int


def _populations(chosen: Population | None) -> tuple[Population, ...]:
    from neuronfair.audits.report.rates import AUDITED

    return AUDITED if chosen is None else (chosen,)


def _rates(
    opened: Opened, data: Dataset, chosen: Population | None, sampling: Sampling, console: Console
) -> tuple[dict[Population, RateOf], dict[Population, float]]:
    """Return the flip rate of the chosen population, or of all, and how exactly each is known."""
    from neuronfair.audits.report.rates import covering
    from neuronfair.audits.stages.population import fit_plausible_population
    from neuronfair.audits.wording.phrases import pair_rate_of, rate_of
    from neuronfair.domain.population.plausible import plausible_twins
    from neuronfair.measure.rate import Until, flip_rate, plausible_pair_rate
    from neuronfair.render.terminal import progress_bar

    usual, populations = None, _populations(chosen)
    if {"pairs", "plausible"} & {*populations}:
        try:
            usual = fit_plausible_population(data, None, sampling.seed)
        except NeuronFairError as why:
            if chosen is not None:
                raise
            console.print(f"Nothing is said of plausible people. {why}")
    asked: dict[str, Any] = {"confidence": sampling.confidence, "decision": opened.decision, "seed": sampling.seed}
    rates: dict[Population, RateOf] = {}
    errors: dict[Population, float] = {}
    for name in populations:
        with progress_bar(f"Judging {POPULATIONS[name]}", quiet=console.quiet) as show:
            if name == "pairs":
                if usual is not None:
                    fits = plausible_twins(data.domain, usual, data.rows)
                    found = plausible_pair_rate(opened, fits, data, samples=sampling.samples, progress=show, **asked)
                    if found is not None:
                        rates[name], errors[name] = pair_rate_of(found), found.rate.error
                continue
            whom = data if name == "table" else usual if name == "plausible" else name
            if whom is not None:
                until = Until(sampling.error, sampling.samples)
                one = flip_rate(opened, data.domain, population=whom, samples=until, progress=show, **asked)
                rates[name], errors[name] = rate_of(one), one.error
    if "table" in rates and "plausible" in rates:
        rates["plausible"] = covering(rates["plausible"], rates["table"])
    return rates, errors


def _counterfactuals(
    opened: Opened, data: Dataset, confidence: float, seed: int, console: Console
) -> CounterfactualReport:
    """Compare the data set with its counterfactual twins, and return the result."""
    from neuronfair.audits.wording.counterfactual import counterfactual_report
    from neuronfair.measure.counterfactual_effect import counterfactual_effect
    from neuronfair.render.terminal import progress_bar

    with progress_bar("Comparing people with their counterparts", quiet=console.quiet) as show:
        effect = counterfactual_effect(
            opened.model,
            data.domain,
            data.rows,
            decision=opened.decision,
            confidence=confidence,
            seed=seed,
            progress=show,
        )
    report = counterfactual_report(data.domain, data.rows, effect, confidence)
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


def _sizes(text: str | None) -> list[int] | None:
    """Return the numbers of neurons in a list with commas; None where none was given."""
    try:
        numbers = [int(n) for n in options.names(text) or []]
    except ValueError:
        numbers = [0]
    if any(n < 1 for n in numbers):
        raise NeuronFairError(f"--hidden {text}: expected whole numbers above 0, such as 64,32,16")
    return numbers or None
