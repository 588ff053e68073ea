"""Who is usual: the population of an audit, fitted to its table or of the user's own, and how good it is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from neuronfair.audits.report.report import PopulationReport
from neuronfair.domain.population.model import PopulationModel, fit_population, own_population, population_quality
from neuronfair.domain.population.plausible import PLAUSIBLE, plausible
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import NeuronFairError
from neuronfair.formatting import percent


def fit_plausible_population(
    data: Dataset, own: Tensor | None, seed: int, progress: Callable[[int, int], None] | None = None
) -> PopulationModel:
    """Return the population of plausible people; refused where nobody of the table is plausible in it.

    `own` are people from a sampler of the user's own, who then stand for all plausible people. `progress` is called
    with the number of columns fitted so far, and of all.
    """
    data = data.compared
    model: PopulationModel
    if own is None:
        model = fit_population(data.domain, data.rows, seed=seed, progress=progress)
    else:
        model = own_population(data.domain, own.to(data.rows.device), seed=seed)
    plausible(data.domain, model, PLAUSIBLE, data.domain.clip(data.rows))
    return model


def population_if_plausible(data: Dataset, seed: int) -> PopulationModel | None:
    """Return the population of a table; None where nobody in it is plausible, such as in one of a few rows."""
    try:
        return fit_plausible_population(data, None, seed)
    except NeuronFairError:
        return None


def audited_population(
    data: Dataset, own: Tensor | None, seed: int, least: float, progress: Callable[[int, int], None] | None = None
) -> tuple[PopulationModel | None, PopulationReport]:
    """Return the population of an audit, and what is said of it; None where who is usual cannot be known.

    `least` is the plausibility that the searches keep to.
    """
    rows = len(data if own is None else own)
    try:
        model = fit_plausible_population(data, own, seed, progress)
    except NeuronFairError as error:
        if least:
            raise
        return None, PopulationReport("none", rows, f"Nothing is said of plausible people. {error}")
    kept = f" The searches kept to records at or above the {percent(least)} likelihood percentile." if least else ""
    if own is not None:
        text = f"Plausible people are those of the population that was given.{kept}"
        return model, PopulationReport("own", rows, text, least=least)
    text = "Plausible people are drawn from a model of the table"
    quality = population_quality(data.domain, data.compared.rows, seed=seed)
    if quality is None:
        return model, PopulationReport("table", rows, f"{text}.{kept}", least=least)
    told = f"; a classifier tells them from real ones with an AUC of {quality.auc:.2f} (0.5: not at all)"
    return model, PopulationReport("table", rows, f"{text}{told}.{kept}", quality.auc, quality.log_likelihood, least)
