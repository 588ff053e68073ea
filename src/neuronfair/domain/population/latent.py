"""Shifts of ordered columns with the group and with earlier columns: a regression of scores, and trees of residuals.

An ordered column is put on a scale of normal scores (its rank among all records). The score is regressed on the group
and on earlier columns, as in an ordered probit model; the spread of the residuals depends on the group. Trees then
learn how else the residuals depend on other columns. A twin keeps the rank of its residual. Trees alone would miss weak
dependences, since a split must gain more than a random one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.population.bins import Bins, Coupling, find_max_bins
from neuronfair.domain.population.model import PopulationLayout
from neuronfair.domain.population.trees import ChanceForest, ChanceTree, SplitOrder, TreeTarget, grow_tree, take_rows
from neuronfair.domain.table import TableDomain

MIN_RANK = 1e-6  # distance of ranks from 0 and 1: scores stay within 4.8
RESIDUAL_STEPS, RESIDUAL_REACH = 128, 8  # codes of a residual per standard deviation, and deviations on either side
MAX_TABLED_CODES = 4_096  # codes of a column whose scores are computed once
EM_ROUNDS = 8  # of the EM algorithm
CUT_MARGIN = 1e-6  # distance of cuts from frequent expected scores: rounding moves no record across
NARROW_CELL, MIN_CHANCE = (
    1e-3,
    1e-12,
)  # width of a cell that is replaced by its middle, and the smallest probability of one
SCORE_KNOTS = (-1.0, 0.0, 1.0)  # scores at which a slope may change
RESIDUAL_BINS, SCORE_CUTS = 16, 15  # bins of the residuals, and cuts of the expected score, in a tree
MAIN_PENALTY = 1e-3  # penalty of the slopes of other columns, per record
PENALTIES = (1e-3, 1e-2, 0.1, 1.0, 10.0)  # of changes of slope and of differences between the groups
MAX_TERMS = 200  # of a regression; with more, slopes do not depend on the group
RESIDUAL_GRID = Attribute("rest", "ordinal", high=2 * RESIDUAL_STEPS * RESIDUAL_REACH)

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupShift:
    """The mean and the spread of the score of one column, by the group and the earlier columns."""

    level: Tensor  # (groups,)
    slopes: Tensor  # (groups, d, terms): of the scores of ordered columns, and of their excess over each knot
    labels: Mapping[int, Tensor]  # effects of the bins of nominal columns
    spread: Tensor  # (groups,)
    cuts: Tensor  # of the expected score, for the tree of the residuals
    residual_bins: Bins  # of the residuals

    def mean(self, group: Tensor, scores: Tensor, bins: Tensor) -> Tensor:
        """Return the expected score of rows: their groups (n,), scores (d, n) and bins of nominal columns (d, n)."""
        total = take_rows(self.level, group)
        for column in self.parents:
            if column in self.labels:
                total = total + take_rows(self.labels[column], bins[column])
            else:
                slopes = take_rows(self.slopes[:, column], group).unbind(1)
                total = total + slopes[0] * scores[column]
                for knot, slope in zip(SCORE_KNOTS, slopes[1:], strict=True):
                    total = total + slope * (scores[column] - knot).clamp(min=0)
        return total

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The columns that it depends on, besides the group."""
        return (*(self.slopes != 0).any(0).any(1).nonzero()[:, 0].tolist(), *self.labels)

    @property
    def by_group(self) -> bool:
        """Whether it depends on the group itself."""
        parts = (self.level, self.slopes, self.spread)
        return any(bool((part != part[:1]).any()) for part in parts)


@dataclass(frozen=True, eq=False)
class Latent:
    """The scale of each ordered column, and the shifts of some of these columns."""

    scales: Mapping[int, Coupling]  # of each ordered column: the distribution of all records, alone
    shifts: Mapping[int, GroupShift]
    trees: ChanceForest  # of residuals; a column without a shift has a root only

    def scores(self, codes: Tensor) -> Tensor:
        """Return the score in the middle of each code: (d, n), 0 where a column has no order."""
        scores = torch.zeros(codes.shape[1], len(codes), dtype=torch.float64, device=codes.device)
        for column in self.scales:
            scores[column] = self.score(column, codes[:, column])
        return scores

    def score(self, column: int, codes: Tensor, at: float = 0.5) -> Tensor:
        """Return the score of codes, `at` of the way from the begin of their cells to the end."""
        if self.scales[column].bins.size > MAX_TABLED_CODES:
            return self._computed_score(column, codes, at)
        if (column, at) not in self._tables:
            all_codes = torch.arange(self.scales[column].bins.size, device=codes.device)
            self._tables[column, at] = self._computed_score(column, all_codes, at)
        return take_rows(self._tables[column, at], codes)

    def _computed_score(self, column: int, codes: Tensor, at: float) -> Tensor:
        score: Tensor = torch.special.ndtri(self.scales[column].rank(codes, at).clamp(MIN_RANK, 1 - MIN_RANK))
        return score

    @cached_property
    def _tables(self) -> dict[tuple[int, float], Tensor]:
        return {}

    def within(self, column: int, codes: Tensor, mean: Tensor, spread: Tensor, u: Tensor | None) -> Tensor:
        """Return the residuals of codes in standard deviations, at quantiles u of their cells."""
        low, high = (torch.special.ndtr((self.score(column, codes, at) - mean) / spread) for at in (0.0, 1.0))
        at = 0.5 if u is None else u
        residual: Tensor = torch.special.ndtri((low + at * (high - low)).clamp(MIN_CHANCE, 1 - MIN_CHANCE))
        return residual

    def leaves(self, column: int, mean: Tensor, bins: Tensor) -> Tensor:
        """Return the leaves of a column's residuals; the last of the `bins`, (d + 2, n), is of the expected score."""
        bins[-1] = torch.bucketize(mean, self.shifts[column].cuts, right=True)
        return self.trees.leaves_of(column, bins)

    def transport_residuals(self, column: int, residual: Tensor, old: Tensor, new: Tensor) -> Tensor:
        """Return the residuals that keep their rank in another leaf."""
        code = ((residual + RESIDUAL_REACH) * RESIDUAL_STEPS).clamp(0, RESIDUAL_GRID.grid_size - 1)
        whole_code = code.long()
        coupled = self._couplings[column].transport(whole_code, old, new, code - whole_code)
        return torch.where(old == new, residual, (coupled + 0.5) / RESIDUAL_STEPS - RESIDUAL_REACH)

    def code(self, column: int, scores: Tensor) -> Tensor:
        """Return the codes of some scores."""
        return self.scales[column].code(torch.special.ndtr(scores))

    @cached_property
    def _couplings(self) -> dict[int, Coupling]:
        return {c: Coupling(shift.residual_bins, True, None, self.trees.table(c)) for c, shift in self.shifts.items()}


def fit_scale(bins: Bins, bins_of_records: Numbers) -> Coupling:
    """Return the distribution of an ordered column over all records, from their bins."""
    counts = torch.from_numpy(np.bincount(bins_of_records, minlength=len(bins)).astype(np.float64))
    return Coupling(bins, True, None, ((counts + 0.5 / len(counts)) / (counts.sum() + 0.5))[None])


class Regression:
    """The scores of a column, regressed on the group and on earlier columns."""

    def __init__(self, group: Numbers, scores: Floats, bins: Numbers, earlier: Mapping[int, int]) -> None:
        """Prepare the terms from groups (n,), with -1 for unknown, and scores and bins (n, d).

        `earlier` are the columns that the score may depend on: the number of bins of a nominal one, 0 for an ordered
        one.
        """
        self.known, self.columns = np.flatnonzero(group >= 0), scores.shape[1]
        self.earlier, self.group, self.groups = dict(earlier), group[self.known], int(group.max()) + 1
        self.ordered = [c for c, count in earlier.items() if not count]
        side = np.eye(self.groups)[self.group]
        linear = scores[self.known][:, self.ordered]
        bent = np.concatenate([linear, *(np.maximum(linear - knot, 0) for knot in SCORE_KNOTS)], 1)
        term_count = self.groups * (1 + linear.shape[1]) + bent.shape[1] + sum(earlier.values())
        self.by_group = self.groups > 1 and term_count <= MAX_TERMS
        terms = [side, bent]
        if self.by_group:
            terms += [linear * (side[:, [g]] - side[:, g].mean()) for g in range(self.groups)]
        terms += [np.eye(count)[bins[self.known, c]] for c, count in earlier.items() if count]
        self.terms = np.concatenate(terms, 1)
        centred = self.terms - side @ (side.T @ self.terms / side.sum(0)[:, None])  # within the groups
        weight, at = np.maximum(centred.var(0), 1e-4), np.arange(self.terms.shape[1])
        main = (at < self.groups + len(self.ordered)) | (at >= len(at) - sum(earlier.values()))
        # The group is not penalised, other main terms hardly, changes of slope and slopes by group as predicts best.
        self.main, self.fine = np.where(main & (at >= self.groups), weight, 0.0), np.where(main, 0.0, weight)
        self.gram = self.terms.T @ self.terms

    def penalised(self, target: Floats) -> Floats:
        """Return the Gram matrix with the best penalty for a target (generalised cross-validation)."""
        n, products = len(self.known), self.terms.T @ target
        best_gram: Floats = self.gram
        least_error = np.inf
        for penalty in PENALTIES:
            gram = self.gram + n * np.diag(MAIN_PENALTY * self.main + penalty * self.fine + 1e-9)
            solved = np.linalg.solve(gram, np.column_stack([products, self.gram]))
            error = ((target - self.terms @ solved[:, 0]) ** 2).mean() / (
                1 - min(0.9, np.trace(solved[:, 1:]) / n)
            ) ** 2
            if error < least_error:
                best_gram, least_error = gram, error
        return best_gram

    def shift(self, coefficients: Floats, spreads: Floats, key: Numbers, cuts: Floats, bins: Bins) -> GroupShift:
        """Return the shift of these coefficients; `key` is the group of each combination of sensitive values, or -1."""
        wide = len(self.ordered)
        sizes = [self.groups, (1 + len(SCORE_KNOTS)) * wide, wide * self.groups * self.by_group]
        level, bent, by_group, labels = np.split(coefficients, np.cumsum(sizes))
        slopes = np.zeros((self.groups, self.columns, 1 + len(SCORE_KNOTS)))
        slopes[:, self.ordered] = bent.reshape(1 + len(SCORE_KNOTS), wide).T
        if self.by_group:
            group_slopes = by_group.reshape(self.groups, wide)
            share = np.bincount(self.group, minlength=self.groups) / len(self.group)
            slopes[:, self.ordered, 0] += group_slopes - share @ group_slopes
        nominal = {c: size for c, size in self.earlier.items() if size}
        tables = np.split(labels, np.cumsum(list(nominal.values())))
        key = np.maximum(key, 0)
        return GroupShift(
            torch.from_numpy(level[key]),
            torch.from_numpy(slopes[key]),
            {c: torch.from_numpy(table.copy()) for c, table in zip(nominal, tables, strict=False)},
            torch.from_numpy(spreads[key]),
            torch.from_numpy(cuts),
            bins,
        )


def fit_shift(
    regression: Regression, edges: tuple[Floats, Floats], rng: np.random.Generator
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return coefficients, the spread of each group, and means and residuals of records whose group is known.

    `edges` are the bounds of each record's score. The EM algorithm replaces the score by its expectation between them:
    the middle of a wide cell would weaken the dependences.
    """
    low, high = (edge[regression.known] for edge in edges)
    mean, spread, gram = np.zeros(len(low)), np.ones(len(low)), np.zeros(0)
    size = np.bincount(regression.group, minlength=regression.groups)
    for _ in range(EM_ROUNDS):
        middle, variance = _truncated_moments((low - mean) / spread, (high - mean) / spread)
        score = mean + spread * middle
        gram = gram if gram.size else regression.penalised(score)
        coefficients = np.linalg.solve(gram, regression.terms.T @ score).astype(np.float64)
        mean = regression.terms @ coefficients
        squares = (score - mean) ** 2 + variance * spread**2
        spreads: Floats = np.sqrt(np.maximum(np.bincount(regression.group, squares, regression.groups) / size, 1e-4))
        spread = spreads[regression.group]
    below, above = ndtr((low - mean) / spread), ndtr((high - mean) / spread)
    residual: Floats = ndtri(np.clip(below + rng.random(len(low)) * (above - below), MIN_CHANCE, 1 - MIN_CHANCE))
    return coefficients, spreads, mean, residual


def _truncated_moments(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance of a standard normal distribution truncated to intervals."""
    mass = ndtr(high) - ndtr(low)
    wide = (high - low > NARROW_CELL) & (mass > MIN_CHANCE)
    mass = np.where(wide, mass, 1.0)
    at_low, at_high = (np.exp(-(edge**2) / 2) / np.sqrt(2 * np.pi) for edge in (low, high))
    mean = (at_low - at_high) / mass
    variance = 1 + (low * at_low - high * at_high) / mass - mean**2
    return np.where(wide, mean, (low + high) / 2), np.where(wide, np.clip(variance, 0, 1), 0.0)


def grow_residual_tree(
    residual: Floats, expected: Numbers, bins: Numbers, orders: Sequence[SplitOrder], sample: Numbers
) -> tuple[Bins, ChanceTree]:
    """Return the bins of residuals, and a tree of their dependence on columns and on the expected score."""
    codes = np.clip((residual + RESIDUAL_REACH) * RESIDUAL_STEPS, 0, RESIDUAL_GRID.grid_size - 1).astype(np.int64)
    rest_bins = Bins.of(RESIDUAL_GRID, codes, None, min(RESIDUAL_BINS, find_max_bins(len(codes))))
    target, d = rest_bins.bins_of(torch.from_numpy(codes)).numpy(), bins.shape[1]
    orders = [*orders, SplitOrder(d + 1, np.arange(SCORE_CUTS + 1, dtype=np.float64))]
    leaf_bins = TreeTarget(d, len(rest_bins), ordered=True)
    return rest_bins, grow_tree(
        np.column_stack([bins, target, expected]), leaf_bins, orders, sample, significant_only=True
    )


def fit_latent(
    layout: PopulationLayout,
    domain: TableDomain,
    records: Tensor,
    modelled: Tensor,
    shifted: Collection[int],
    *,
    from_graph: bool,
    seed: int,
) -> Latent:
    """Fit the shifts of some columns to the records of a layout.

    `modelled` are the groups with enough records, (combinations,). If `from_graph`, a column depends on the group only
    where the causal graph says so.
    """
    rng = np.random.default_rng([seed, *b"latent"])  # independent of a table that was made with the same seed
    ordered = [c for c, a in enumerate(domain.attributes) if a.is_ordered and a.empty is None]
    scales = {c: fit_scale(layout.columns[c], layout.bins[:, c]) for c in ordered}
    plain = Latent(scales, {}, ChanceForest.of([_make_root(bins) for bins in layout.columns]))
    codes, scores = records.cpu(), plain.scores(records.cpu()).numpy().T
    number = domain.combinations.number(records).cpu().numpy()
    shifts, trees = dict[int, GroupShift](), [_make_root(bins) for bins in layout.columns]
    for column in (c for c in layout.after if c in shifted):
        earlier = [int(c) for c in layout.after[column]]
        key = _find_groups(domain, modelled, earlier if from_graph else domain.sensitive_columns)
        bin_counts = {
            c: 0 if c in scales else len(layout.columns[c]) for c in earlier if c not in domain.sensitive_columns
        }
        regression = Regression(key[number], scores, layout.bins, bin_counts)
        edges = [plain.score(column, codes[:, column], at).numpy() for at in (0.0, 1.0)]
        coefficients, spreads, mean, residual = fit_shift(regression, (edges[0], edges[1]), rng)
        cuts = np.quantile(mean, np.arange(1, SCORE_CUTS + 1) / (SCORE_CUTS + 1)) - CUT_MARGIN
        at, known_bins = np.flatnonzero(np.isin(regression.known, layout.sample)), layout.bins[regression.known]
        expected = np.searchsorted(cuts, mean, side="right")
        bins, trees[column] = grow_residual_tree(
            residual, expected, known_bins, layout.split_candidates(domain, column), at
        )
        shifts[column] = regression.shift(coefficients, spreads, key, cuts, bins)
    return Latent(scales, shifts, ChanceForest.of(trees))


def _make_root(bins: Bins) -> ChanceTree:
    return ChanceTree(np.array([-1]), (np.zeros(0, dtype=np.int64),), np.full((1, len(bins)), 1 / len(bins)))


def _find_groups(domain: TableDomain, modelled: Tensor, columns: Collection[int]) -> Numbers:
    """Return the group of each combination of sensitive values if only some columns count; -1 where unknown."""
    positions = [i for i, column in enumerate(domain.sensitive_columns) if column in columns]
    values, large = domain.sensitive_values[:, positions].cpu().numpy(), modelled.cpu().numpy()
    _, key = np.unique(values, axis=0, return_inverse=True)
    numbers = np.full(len(values), -1)
    _, numbers[large] = np.unique(key.ravel()[large], return_inverse=True)
    return numbers
