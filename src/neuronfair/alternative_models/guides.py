"""What candidates may use of the fit part: proxies of the sensitive attribute, counterfactual twins and findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from neuronfair.alternative_models.parts import Integers, SearchTable
from neuronfair.alternative_models.settings import AlternativesSettings
from neuronfair.domain.population.counterfactuals import CounterfactualTwins, fit_counterfactuals
from neuronfair.errors import NeuronFairError
from neuronfair.measure.counterfactual_effect import Thoroughness, counterfactual_effect
from neuronfair.model.open import Opened
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig

MOST_PROXIES = 6  # attributes that a candidate leaves out, at most
BINS = 10  # of a number, by which its tie to the group is computed
COMPARED = 2_000  # records of the fit part whose twins show the mediated shares
STARTS, STEPS = 100, 15  # of the search for findings
NUMBERS_OF = 20  # different values from which on a number can be put into bands


@dataclass(frozen=True)
class FitGuides:
    """What was learned from the fit part.

    `proxies` are attributes in the order in which they are left out: those that mediate the effect of the sensitive
    attribute first. `twins` are counterfactual twins of some records, which are numbered in `twinned`; their label is
    that of the record. `pairs` are findings and their twins, with the label of the record that a search started from.
    """

    proxies: tuple[str, ...]
    mediated: tuple[float, ...]  # the share of the excess that each of the first proxies mediates
    numbers: tuple[str, ...]  # proxies that can be put into bands
    signs: dict[str, int]  # how numbers go with the positive class, 1 or -1
    twinned: Integers
    twins: Any
    pairs: Any
    pair_labels: Integers
    notes: tuple[str, ...] = ()


def guides(
    table: SearchTable, columns: Sequence[str], baseline: Opened | None, settings: AlternativesSettings
) -> FitGuides:
    """Return what the fit part teaches; `baseline` is the model that was fitted to it, None if it cannot be opened."""
    domain, fit = table.data.domain, torch.from_numpy(table.fit)
    rows = domain.clip(table.data.rows[fit])
    others = [name for name in columns if name not in table.sensitive]
    notes = []
    mediated: dict[str, float] = {}
    twinned, twins, how = np.empty(0, dtype=np.int64), None, None
    if settings.tries("leave-out") or settings.tries("counterfactuals") or settings.tries("findings"):
        try:
            how = fit_counterfactuals(domain, rows)
        except NeuronFairError as error:
            notes.append(f"No counterfactual twins: {error}.")
    if how is not None and baseline is not None and settings.tries("leave-out"):
        try:
            mediated = _mediated(table, baseline, rows, settings.seed)
        except NeuronFairError as error:
            notes.append(f"No mediated shares: {error}.")
    if how is not None and settings.tries("counterfactuals"):
        codes, exists = _drawn(table, how, rows, settings.seed)
        twinned = table.fit[exists.numpy()]
        twins = table.cells.of(twinned, codes[exists].numpy())[list(columns)]
    pairs, labels = None, np.empty(0, dtype=np.int64)
    if how is not None and baseline is not None and settings.tries("findings"):
        pairs, labels = _findings(table, baseline, rows, columns, settings.seed)
    tied = sorted(others, key=lambda name: -_tie(table, name))
    first = sorted((name for name in mediated if name in others), key=lambda name: -mediated[name])
    proxies = tuple(dict.fromkeys([*first, *tied]))[: min(MOST_PROXIES, len(others) - 1)]
    numeric = table.frame.iloc[table.fit].select_dtypes("number")
    numbers = [n for n in others if n in numeric and numeric[n].notna().all() and numeric[n].nunique() >= NUMBERS_OF]
    return FitGuides(
        proxies,
        tuple(mediated[name] for name in proxies if name in mediated),
        tuple(name for name in proxies if name in numbers),
        _signs(table, [name for name in others if name in numeric]),
        twinned,
        twins,
        pairs,
        labels,
        tuple(notes),
    )


def _mediated(table: SearchTable, baseline: Opened, rows: Tensor, seed: int) -> dict[str, float]:
    """Return which share of the excess of counterfactual flips each attribute mediates."""
    domain = table.data.domain
    found = counterfactual_effect(
        baseline.model,
        domain,
        rows,
        decision=baseline.decision,
        thorough=Thoroughness(draws=4, placebos=4, people=min(COMPARED, len(rows))),
        seed=seed,
    )
    shares: dict[str, float] = {}
    for one in found.mediators:  # several attributes that mediate together share what they do
        for column in one.columns:
            name = domain.names[column]
            shares[name] = max(shares.get(name, 0.0), one.share / len(one.columns))
    return {name: share for name, share in shares.items() if share > 0}


def _drawn(table: SearchTable, how: CounterfactualTwins, rows: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return one counterfactual twin of each row, of a group drawn by its size, and which rows have one."""
    domain, generator = table.data.domain, torch.Generator().manual_seed(seed)
    own = domain.combinations.number(rows)
    chances = (torch.bincount(own, minlength=len(domain.sensitive_values)) * how.groups).double() + 1e-9
    others = chances.expand(len(rows), -1).scatter(1, own[:, None], 0.0)
    ahead = (torch.multinomial(others, 1, generator=generator) - own[:, None]) % len(chances)
    u = torch.rand(rows.shape, generator=generator, dtype=torch.float64)
    found = how.transported(domain, rows, ahead, u)
    return found.rows[:, 0], found.valid[:, 0]


def _findings(
    table: SearchTable, baseline: Opened, rows: Tensor, columns: Sequence[str], seed: int
) -> tuple[Any, Integers]:
    """Return pairs of records for which the decision of the baseline differs, and the label of each record.

    They are found from records of the fit part, whose labels they take. A baseline that does not read the attribute is
    searched for counterfactual twins.
    """
    domain = table.data.domain
    chosen = np.random.default_rng(seed).permutation(len(rows))[:STARTS]
    method = "frontier" if baseline.white_box else "frontier-free"
    reads = any(name in table.sensitive for name in columns)
    config = SearchConfig(
        method,
        seeds=len(chosen),
        steps=STEPS,
        global_steps=5,
        seed=seed,
        decision=baseline.decision,
        controls=False,
        twins="flip" if reads else "counterpart",
    )
    try:
        result = search(baseline.model, domain, rows, config, seeds=rows[chosen])
    except NeuronFairError:
        return None, np.empty(0, dtype=np.int64)
    found = result.findings
    found = found[found.origin >= 0]
    if not len(found):
        return None, np.empty(0, dtype=np.int64)
    codes = torch.stack([found.rows, found.twins(result.domain)], 1).flatten(0, 1).numpy()
    labels = table.labels[table.fit[chosen[found.origin.numpy()]]].repeat(2)
    return table.cells.of(np.zeros(len(codes), dtype=np.int64), codes)[list(columns)], labels


def _tie(table: SearchTable, name: str) -> float:
    """Return how much an attribute tells of the demographic group: their mutual information in the fit part."""
    column = table.data.rows[table.fit, table.data.domain.column(name)].numpy()
    group = table.group[table.fit]
    if len(np.unique(column)) > BINS and not table.data.domain.attributes[table.data.domain.column(name)].values:
        column = np.searchsorted(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]), column)
    _, column = np.unique(column, return_inverse=True)
    _, group = np.unique(group, return_inverse=True)
    both = np.zeros((column.max() + 1, group.max() + 1))
    np.add.at(both, (column, group), 1 / len(column))
    expected = both.sum(1, keepdims=True) * both.sum(0, keepdims=True)
    return float((both[both > 0] * np.log(both[both > 0] / expected[both > 0])).sum())


def _signs(table: SearchTable, names: Sequence[str]) -> dict[str, int]:
    """Return in which direction numbers go with the positive class, of those that clearly do."""
    positive = table.labels[table.fit] == table.positive
    found = {}
    for name in names:
        test = spearmanr(table.frame[name].to_numpy()[table.fit], positive, nan_policy="omit")
        if np.isfinite(test.statistic) and test.pvalue < 0.001:
            found[name] = 1 if test.statistic > 0 else -1
    return found
