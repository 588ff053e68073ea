"""A model of a data set: draws realistic synthetic records and gives the likelihood of records."""

# ruff: noqa: D102 - the members of `PopulationModel` have comments

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.draws import draw_order
from neuronfair.domain.population.bins import Bins, draw_bin, find_max_bins
from neuronfair.domain.population.trees import (
    ChanceForest,
    SplitOrder,
    TreeTarget,
    find_splits,
    grow_tree,
    order_columns,
    parents_from_graph,
    take_rows,
    to_device,
)
from neuronfair.domain.rules import CompletionStep, RuleBook, TiedColumns, make_completion_steps
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import Sheet
from neuronfair.domain.tables.dataset import read_table
from neuronfair.domain.tables.files import read_sheet
from neuronfair.errors import DataError, DomainError, one_line

FOLDS = 5  # parts of the table, each of which is scored by a model of the others
MIN_SCORED = 2_000  # records that are scored at least: the first percentile is then known to a fifth of a percent
MAX_SAMPLE_CELLS = 400_000  # cells of the records with which trees are grown, in all columns together
MIN_RECORDS, MAX_RECORDS = 2_000, 10_000  # records with which trees are grown
BATCH_ROWS = 16_384  # rows drawn in one batch: bounds the memory
EQUAL_NATS = 0.1  # nats: records whose log-likelihoods differ by less count as equally likely


class PopulationModel(Protocol):
    """A source of records with likelihoods: a fitted model, or records of the user's own sampler."""

    @property
    def draws_per_row(self) -> int: ...  # how many random numbers `rows_at` takes for one row
    def rows_at(self, u: Tensor) -> Tensor: ...  # at random bins u: numbers in [0, 1), (n, draws_per_row)
    def sample(self, n: int, generator: torch.Generator) -> Tensor: ...  # n valid records; the generator is on the CPU

    # The logarithm of each row's probability, float64 (n,), minus infinity for what is not valid; and the share of real
    # records that are less likely: float64 in [0, 1], (n,).
    def log_likelihood(self, rows: Tensor) -> Tensor: ...
    def plausibility(self, rows: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class TablePopulation:
    """A population fitted to the rows of a table, drawn column by column.

    Each column depends on earlier ones through a small classification tree over its bins. Values from which no valid
    row can be completed get probability 0: every drawn row is valid, and every valid row has a positive probability.
    """

    domain: TableDomain
    order: tuple[int, ...]  # the columns as they are drawn
    bins: tuple[Bins, ...]  # per column
    trees: ChanceForest
    reference: Tensor  # sorted log-likelihoods of held-out real records
    tied: tuple[TiedColumns, ...]  # the columns that rules tie together

    @property
    def draws_per_row(self) -> int:
        return len(self.bins)

    def rows_at(self, u: Tensor) -> Tensor:
        return torch.cat([self._rows_at(part) for part in torch.split(u, BATCH_ROWS)])

    def _rows_at(self, u: Tensor) -> Tensor:
        rows = torch.empty(u.shape, dtype=torch.int64, device=u.device)
        bins, states = rows.new_zeros(len(self.bins) + 1, len(u)), rows.new_zeros(self.groups, len(u))
        for column in self.order:
            bins[column], within = draw_bin(self._chances(column, bins, states), u[:, column])
            rows[:, column] = self.bins[column].code_at(bins[column], within)
            self.advance(column, bins, states)
        return rows

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(n, self.draws_per_row, dtype=torch.float64, generator=generator)
        return self.rows_at(u.to(self.domain.device))

    def log_likelihood(self, rows: Tensor) -> Tensor:
        bins, within = self.binned(rows)
        leaves = self.trees.leaves(bins)
        total = self.trees.log_chances(leaves, bins).sum(0) + within
        states = rows.new_zeros(self.groups, len(rows))
        valid = ((rows >= 0) & (rows < self.domain.sizes)).all(1)
        for column, step in self.steps.items():
            mass = take_rows(self._class_mass[column], leaves[column])
            total -= (mass * step.allowed(states[step.group])).sum(1).log()
            valid &= self.advance(column, bins, states)
        return total.masked_fill(~valid, -torch.inf)

    def plausibility(self, rows: Tensor) -> Tensor:
        """Return for each row the share of real records that are less likely: float64 in [0, 1], (n,).

        Equally likely records count half, so that the percentile of held-out real records is uniform.
        """
        score = self.log_likelihood(rows)
        less_likely = torch.searchsorted(self.reference, score - EQUAL_NATS)
        at_most_equal = torch.searchsorted(self.reference, score + EQUAL_NATS, right=True)
        return (less_likely + at_most_equal).double() / (2 * len(self.reference))

    def to(self, device: str | torch.device) -> TablePopulation:
        """Return this population with its tables on another device."""
        bins, trees, reference = to_device((self.bins, self.trees, self.reference), device)
        return replace(self, domain=self.domain.to(device), bins=bins, trees=trees, reference=reference)

    def binned(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bin of each code, (d + 1, n) with 0 at the end, and the log chance of the codes there, (n,)."""
        codes = torch.minimum(rows.clamp(min=0), self.domain.sizes - 1)
        bins = codes.new_zeros(len(self.bins) + 1, len(rows))
        within = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        for i, column in enumerate(self.bins):
            runs = column.runs_of(codes[:, i])
            bins[i] = take_rows(column.bin_of_run, runs)
            within += take_rows(column.chance, runs)
        return bins, within

    def _chances(self, column: int, bins: Tensor, states: Tensor) -> Tensor:
        """Return the unnormalised chances of a column's bins, 0 where no valid row can be completed: (n, bins)."""
        chances = take_rows(self.trees.table(column), self.trees.leaves_of(column, bins))
        if column in self.steps:
            step = self.steps[column]
            chances = chances * step.allowed(states[step.group])[:, self.bins[column].classes]
        return chances

    def advance(self, column: int, bins: Tensor, states: Tensor) -> Tensor | bool:
        """Move the states on by a column's bins; return for each row whether a valid row can still be completed."""
        if column not in self.steps:
            return True
        step = self.steps[column]
        state = step.follow[states[step.group], take_rows(self.bins[column].classes, bins[column])]
        states[step.group] = state.clamp(min=0)
        return state >= 0

    @cached_property
    def groups(self) -> int:
        """How many groups of columns rules tie together."""
        return 1 + max((step.group for step in self.steps.values()), default=-1)

    @cached_property
    def steps(self) -> dict[int, CompletionStep]:
        """The allowed completions of each column that rules name."""
        return make_completion_steps(self.tied, self.order, self.domain.device)

    @cached_property
    def _class_mass(self) -> dict[int, Tensor]:
        """For each column that rules name, the chance of each class in each node: (nodes, classes)."""
        masses = {}
        for column, step in self.steps.items():
            table = self.trees.table(column)
            mass = table.new_zeros(len(table), step.follow.shape[1])
            masses[column] = mass.index_add_(1, self.bins[column].classes, table)
        return masses


def fit_population(
    domain: TableDomain, rows: Tensor, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> TablePopulation:
    """Fit a model to the records of a table; records that are not valid count as the nearest valid ones.

    `progress` is called with the number of columns fitted so far, and in all: the model is fitted once for each fold of
    the table, and once to all records.
    """
    if len(rows) == 0:
        raise DomainError(f"{domain.name}: a population needs people, and the table has no row")
    records = domain.clip(rows)
    parts = draw_order(len(records), seed).to(rows.device) % FOLDS
    folds = min(FOLDS, len(records), math.ceil(FOLDS * MIN_SCORED / len(records)))
    width = len(domain.attributes)

    def fit(part: Tensor, number: int) -> TablePopulation:
        def note(column_count: int) -> None:
            if progress:
                progress(number * width + column_count, (folds + 1) * width)

        return fit_likelihood(domain, part, seed=seed, progress=note)

    scores = []
    for fold in range(folds):
        model = fit(records[parts != fold] if len(records) > 1 else records, fold)
        scores.append(model.log_likelihood(records[parts == fold]))
    return replace(fit(records, folds), reference=torch.cat(scores).sort().values)


def fit_likelihood(
    domain: TableDomain, records: Tensor, *, seed: int = 0, progress: Callable[[int], None] | None = None
) -> TablePopulation:
    """Fit a model to valid records without likelihood percentiles.

    `progress` is called with the number of columns fitted so far.
    """
    return grow_population(domain, PopulationLayout.of(domain, records, seed=seed), progress=progress)


@dataclass(frozen=True)
class PopulationLayout:
    """Binned records, and the earlier columns that each column may depend on."""

    columns: tuple[Bins, ...]
    bins: npt.NDArray[np.int64]  # (n, d)
    sample: npt.NDArray[np.int64]  # the records with which trees are grown
    after: Mapping[int, npt.NDArray[np.int64]]  # of each column, in the order in which columns are drawn
    tied: tuple[TiedColumns, ...]

    @classmethod
    def of(
        cls,
        domain: TableDomain,
        records: Tensor,
        *,
        seed: int = 0,
        first: Sequence[str] = (),
        causes: Mapping[int, Sequence[int]] | None = None,
    ) -> PopulationLayout:
        """Return the layout of valid records.

        The columns named `first` are drawn first, in this order. `causes` are the columns that each column may depend
        on; without them these are learned.
        """
        rows = records.cpu().numpy()
        tied = RuleBook(domain.attributes, domain.rules).tied
        classes = {c: k.numpy() for group in tied for c, k in zip(group.columns, group.class_of, strict=True)}
        max_bins = find_max_bins(len(rows))
        columns = tuple(Bins.of(a, rows[:, i], classes.get(i), max_bins) for i, a in enumerate(domain.attributes))
        bins = np.stack([column.bins_of(torch.from_numpy(rows[:, i].copy())) for i, column in enumerate(columns)], 1)
        sizes = [len(p) for p in columns]
        sample_size = min(max(MIN_RECORDS, MAX_SAMPLE_CELLS // len(sizes)), MAX_RECORDS, len(rows))
        sample = np.sort(np.random.default_rng(seed).choice(len(rows), sample_size, replace=False))
        leading = [domain.column(name) for name in first]
        ordered = [a.is_ordered for a in domain.attributes]
        after = (
            order_columns(bins[sample], sizes, ordered, leading)
            if causes is None
            else parents_from_graph(causes, leading)
        )
        return cls(columns, bins, sample, after, tied)

    def split_candidates(self, domain: TableDomain, column: int) -> list[SplitOrder]:
        """Return the orders in which the bins of the columns that a column may depend on can be split."""
        sizes = [len(bins) for bins in self.columns]
        kinds = [(int(c), domain.attributes[c].is_ordered) for c in self.after[column]]
        return [q for c, ordered in kinds for q in find_splits(self.bins, sizes, c, column, ordered)]


def grow_population(
    domain: TableDomain,
    layout: PopulationLayout,
    *,
    significant_only: bool = False,
    roots: Collection[int] = (),
    progress: Callable[[int], None] | None = None,
) -> TablePopulation:
    """Grow the trees of a layout. The columns `roots` depend on no other.

    If `significant_only`, a column depends on another only where that is significant, even if more splits would predict
    better.
    """
    trees = {}
    for column in layout.after:
        orders = [] if column in roots else layout.split_candidates(domain, column)
        target = TreeTarget(column, len(layout.columns[column]), domain.attributes[column].is_ordered)
        trees[column] = grow_tree(layout.bins, target, orders, layout.sample, significant_only=significant_only)
        if progress:
            progress(len(trees))
    forest = ChanceForest.of([trees[column] for column in range(len(layout.columns))])
    reference = torch.zeros(1, dtype=torch.float64)
    model = TablePopulation(domain.to("cpu"), tuple(layout.after), layout.columns, forest, reference, layout.tied)
    return replace(model.to(domain.device), domain=domain)


MAX_COMPARED = 5_000  # records of each kind that the classifier sees
AUC_FOLDS = 3


@dataclass(frozen=True)
class PopulationQuality:
    """How well a population fitted to 70% of the records describes the other 30%."""

    log_likelihood: float  # mean per record, in nats
    auc: float  # the real-vs-synthetic AUC: 0.5 if the two cannot be told apart


def measure_quality(domain: TableDomain, rows: Tensor, *, seed: int = 0) -> PopulationQuality | None:
    """Return how well a model of these records describes held-out ones; None for fewer than ten."""
    if len(rows) < 10:
        return None
    records = domain.clip(rows)
    order = draw_order(len(records), seed).to(records.device)
    cut = len(records) * 7 // 10
    model, test = fit_likelihood(domain, records[order[:cut]], seed=seed), records[order[cut:]]
    draws = model.sample(min(len(test), MAX_COMPARED), torch.Generator().manual_seed(seed + 1))
    return PopulationQuality(float(model.log_likelihood(test).mean()), real_synthetic_auc(domain, test, draws))


def real_synthetic_auc(domain: TableDomain, real: Tensor, draws: Tensor) -> float:
    """Return the ROC AUC with which boosted trees separate real records from drawn ones: 0.5 if they cannot."""
    n = min(len(real), len(draws), MAX_COMPARED)
    return cross_validated_auc(domain.attributes, torch.cat([real[:n], draws[:n]]), np.repeat([1, 0], n))


def cross_validated_auc(attributes: Sequence[Attribute], rows: Tensor, labels: npt.NDArray[np.int64]) -> float:
    """Return the cross-validated ROC AUC with which boosted trees predict labels from the codes of attributes.

    For more than two labels it is the mean of one against the others.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    nominal = [i for i, a in enumerate(attributes) if not a.is_ordered and a.size <= 255]
    trees = HistGradientBoostingClassifier(
        max_iter=60, categorical_features=nominal, early_stopping=False, random_state=0
    )
    folds = StratifiedKFold(AUC_FOLDS, shuffle=True, random_state=0)
    codes = rows.cpu().numpy().astype(np.float64)
    chances = cross_val_predict(trees, codes, labels, cv=folds, method="predict_proba")
    if chances.shape[1] == 2:
        return float(roc_auc_score(labels, chances[:, 1]))
    return float(roc_auc_score(labels, chances, multi_class="ovr", average="macro"))


SAMPLER_RECORDS = 50_000  # records drawn from a user's own sampler


@dataclass(frozen=True)
class UserPopulation:
    """Records of the user's own sampler, with likelihoods from a model fitted to them."""

    rows: Tensor
    model: PopulationModel

    @classmethod
    def of(cls, domain: TableDomain, rows: Tensor, *, seed: int = 0) -> UserPopulation:
        """Return the population of these records."""
        return cls(rows, fit_population(domain, rows, seed=seed))

    @property
    def draws_per_row(self) -> int:
        return 1

    def rows_at(self, u: Tensor) -> Tensor:
        return self.rows[(u[:, 0] * len(self.rows)).long()]

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        return self.rows_at(torch.rand(n, 1, dtype=torch.float64, generator=generator).to(self.rows.device))

    def log_likelihood(self, rows: Tensor) -> Tensor:
        return self.model.log_likelihood(rows)

    def plausibility(self, rows: Tensor) -> Tensor:
        return self.model.plausibility(rows)


def read_records(source: Any | Callable[[int], Any], domain: TableDomain) -> Tensor:
    """Return the valid records of a table, or of a function that draws a given number of records: (n, d).

    A table is a file, a DataFrame, or a mapping of columns, with the columns of the domain.
    """
    if callable(source):
        try:
            source = source(SAMPLER_RECORDS)
        except Exception as error:  # whatever a user's function raises
            raise DataError(
                f"population: the sampler failed when asked for {SAMPLER_RECORDS:,} people: {one_line(error)}"
            ) from None
    sheet = read_sheet(source)
    if not isinstance(source, (str, Path, Sheet)):  # errors should not name the table under test
        sheet = replace(sheet, path=Path("population"))
    rows = read_table(sheet, replace(domain, target=None, favourable=None)).rows
    rows = rows[domain.valid(rows)]
    if len(rows) == 0:
        raise DataError(f"population: expected people who keep the rules of {domain.name}, got none. Correct the table")
    return rows
