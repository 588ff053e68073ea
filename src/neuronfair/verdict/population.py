"""Who is usual: the population of an audit, fitted to its table or of the user's own, and how good it is."""

from __future__ import annotations

from torch import Tensor

from neuronfair.domain.data import Data
from neuronfair.domain.own_population import own_population
from neuronfair.domain.plausible import plausible
from neuronfair.domain.population import PopulationModel, fit_population
from neuronfair.errors import NeuronFairError
from neuronfair.verdict.entries import USUAL
from neuronfair.verdict.report import PopulationReport


def who_is_usual(
    data: Data, own: Tensor | None, seed: int, *, measured: bool = True
) -> tuple[PopulationModel | None, PopulationReport]:
    """Return the population of plausible people, and what is said of it; None where none can be fitted.

    `own` are people from a sampler of the user's own, who then stand for all plausible people. `measured`: whether to
    look how well drawn people can be told from real ones, too.
    """
    rows = data.rows if own is None else own.to(data.rows.device)
    try:
        fit = fit_population if own is None else own_population
        model: PopulationModel = fit(data.domain, rows, seed=seed)
        plausible(data.domain, model, USUAL, data.domain.clip(data.rows))  # or nobody of the table is
    except NeuronFairError as error:
        text = f"Nothing is said of plausible people, since who is usual is not known: {error}"
        return None, PopulationReport("none", len(rows), text)
    if own is not None:
        text = "Plausible people are those of the population that was given."
        return model, PopulationReport("own", len(rows), text)
    quality = _quality(data, seed) if measured else (None, None)
    text = "Plausible people are drawn from a model of the table"
    if quality[0] is not None:
        text += f"; a classifier tells them from real ones with an AUC of {quality[0]:.2f} (0.5: not at all)"
    return model, PopulationReport("table", len(rows), f"{text}.", *quality)


def _quality(data: Data, seed: int) -> tuple[float | None, float | None]:
    """Return the AUC of drawn against real people, and the mean log-likelihood of held-out ones, where known."""
    return None, None
