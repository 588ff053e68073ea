"""Commands about one model: train it, interpret it, measure its flip rate."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from neuronfair.cli import options
from neuronfair.cli.app import AUDIT, app, command
from neuronfair.cli.options import ModelOptions, OutputOptions, TableOptions
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import POPULATIONS, Population, listed, percent
from neuronfair.parameters import BUDGET, INPUT, parameter

if TYPE_CHECKING:
    from rich.console import Console

    from neuronfair.audits.report.attribute import RateOf
    from neuronfair.audits.report.counterfactual import CounterfactualReport
    from neuronfair.domain.tables.dataset import Dataset
    from neuronfair.model.open import Opened


@dataclass(frozen=True)
class FlipRateOptions:
    """Which flip rate is measured, and how exactly."""

    population: Population | None = parameter(
        None, "Population to measure. Default: all but combinations.", panel=INPUT
    )
    twins: Literal["flip", "counterpart"] = parameter(
        "flip", "Attribute-flip test, or counterfactual test.", panel=INPUT
    )
    error: float = parameter(0.001, "Sample until the confidence interval is ± this at most.", panel=BUDGET)
    confidence: float = parameter(0.95, "Level of the confidence interval.", panel=BUDGET)
    samples: int = parameter(1_000_000, "Maximum number of records.", panel=BUDGET, least=1)
    seed: int = parameter(0, options.SEED)

    @property
    def populations(self) -> tuple[Population, ...]:
        """The populations to measure."""
        from neuronfair.audits.report.attribute import AUDITED

        return AUDITED if self.population is None else (self.population,)


@command(app, panel=AUDIT, defaults={"data": ...}, omit=("columns",))
def rate(
    table: TableOptions,
    model: ModelOptions,
    output: OutputOptions,
    settings: FlipRateOptions,
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
    opened, data, _ = options.open_all(table, model, console, settings.seed)
    if model.model is not None:
        options.warn_of_encoding(opened, data, console)
    about = options.subject(data, opened) | {"confidence": settings.confidence}
    if settings.twins == "counterpart":
        report = _counterfactuals(opened, data, settings, console)
        output.write(about | {"counterpart": asdict(report)})
        return
    measured = _rates(opened, data, settings, console)
    for one, error in measured.values():
        _print_rate(console, data, one, error, settings.error)
    entries = {name: {**asdict(one), "error": error} for name, (one, error) in measured.items()}
    output.write(about | {"rates": {name: entries.get(name) for name in settings.populations}})


def _rates(
    opened: Opened, data: Dataset, settings: FlipRateOptions, console: Console
) -> dict[Population, tuple[RateOf, float]]:
    """Return the flip rate of each population, with its error; a population that cannot be sampled is left out."""
    from neuronfair.audits.report.attribute import covering
    from neuronfair.audits.stages.rates import fit_plausible_population
    from neuronfair.audits.wording.phrases import pair_rate_of, rate_of
    from neuronfair.domain.population.plausible import plausible_twins
    from neuronfair.measure.rate import Until, flip_rate, plausible_pair_rate
    from neuronfair.render.terminal import progress_bar

    fitted = None
    if {"pairs", "plausible"} & {*settings.populations}:
        try:
            fitted = fit_plausible_population(data, None, settings.seed)
        except NeuronFairError as why:
            if settings.population is not None:
                raise
            console.print(f"No rate of plausible records. {why}")
    shared: dict[str, Any] = {"confidence": settings.confidence, "decision": opened.decision, "seed": settings.seed}
    measured: dict[Population, tuple[RateOf, float]] = {}
    for name in settings.populations:
        with progress_bar(f"Evaluating {POPULATIONS[name]}", quiet=console.quiet) as show:
            if name == "pairs":
                if fitted is not None:
                    twins = plausible_twins(data.domain, fitted, data.rows)
                    pairs = plausible_pair_rate(opened, twins, data, samples=settings.samples, progress=show, **shared)
                    if pairs is not None:
                        measured[name] = pair_rate_of(pairs), pairs.rate.error
                continue
            population = data if name == "table" else fitted if name == "plausible" else name
            if population is not None:
                until = Until(settings.error, settings.samples)
                one = flip_rate(opened, data.domain, population=population, samples=until, progress=show, **shared)
                measured[name] = rate_of(one), one.error
    if "table" in measured and "plausible" in measured:
        plausible, error = measured["plausible"]
        measured["plausible"] = covering(plausible, measured["table"][0]), error
    return measured


def _counterfactuals(
    opened: Opened, data: Dataset, settings: FlipRateOptions, console: Console
) -> CounterfactualReport:
    """Run the counterfactual test and print its result."""
    from neuronfair.audits.wording.phrases import counterfactual_report
    from neuronfair.measure.counterfactual_effect import counterfactual_effect
    from neuronfair.render.terminal import progress_bar

    with progress_bar("Comparing records with their counterfactual twins", quiet=console.quiet) as show:
        effect = counterfactual_effect(
            opened.model,
            data.domain,
            data.rows,
            decision=opened.decision,
            confidence=settings.confidence,
            seed=settings.seed,
            progress=show,
        )
    report = counterfactual_report(data.domain, data.rows, effect, settings.confidence)
    for sentence in report.sentences:
        console.print(sentence)
    return report


def _print_rate(console: Console, data: Dataset, rate: RateOf, error: float, allowed: float) -> None:
    console.print(
        f"The decision flips with {listed(data.domain.sensitive)} for {percent(rate.rate)} of "
        f"{POPULATIONS[rate.population]} ({percent(rate.confidence)} CI {percent(rate.low)} to {percent(rate.high)}; "
        f"{rate.discriminated:,} of {rate.of:,}). {rate.omission}".rstrip()
    )
    if error > allowed:
        why = "there are no more records" if rate.population in ("pairs", "table") else "raise --samples"
        console.print(f"The interval is wider than ± {percent(allowed)} (--error): {why}.")
