"""How often decisions flip with the sensitive attribute, how surely, for whom, and with neurons switched off."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from neuronfair.domain.draws import draw_order
from neuronfair.domain.population.model import PopulationModel, UserPopulation
from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.domain.twins import ATTRIBUTE_FLIPS
from neuronfair.errors import ModelError, NeuronFairError, did_you_mean
from neuronfair.formatting import POPULATIONS, Population
from neuronfair.measure.stats import clopper_pearson
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision, include_row
from neuronfair.model.encoding import split_families
from neuronfair.model.network import Network
from neuronfair.model.open.opened import OpenedModel
from neuronfair.model.records import Records, prepare_records
from neuronfair.parameters import renamed_field
from neuronfair.searches.evaluate import Evaluation, Pairs, evaluate


class GroupOutcomes(NamedTuple):
    """How one combination of sensitive values fares against the others."""

    codes: tuple[int, ...]  # in the order of the domain's sensitive attributes
    gets: int  # records that get the favourable outcome with these values, but not with all others
    loses: int  # records that do not get it with these values, but with others


@dataclass(frozen=True)
class Direction:
    """For how many records the favourable outcome depends on the sensitive attributes, and which values get it."""

    records: int
    sides: tuple[GroupOutcomes, ...]  # values that get or lose it for any record, the largest difference first


def find_favourable_class(domain: TableDomain, decision: Decision, outputs: int) -> int | None:
    """Return the number of the favourable class; None where none is named, or the model has other classes."""
    classes = domain.target.classes if domain.target is not None else ()
    if domain.favourable is None or len(classes) != decision.classes(outputs):
        return None
    return classes.index(domain.favourable)


class DirectionTally:
    """A count of who gets the favourable class, batch by batch; nothing is counted where no class is favourable."""

    def __init__(self, domain: TableDomain, favourable: int | None) -> None:
        self.domain, self.favourable, self.records = domain, favourable, 0
        self._counts = torch.zeros(2, len(domain.sensitive_values), dtype=torch.int64)

    def add(self, evaluation: Evaluation) -> None:
        """Count the families of evaluated rows."""
        if self.favourable is None:
            return
        combinations, rows = self.domain.combinations, evaluation.rows
        exists = include_row(evaluation.valid)
        columns = list(self.domain.sensitive_columns)
        # A row outside the bounds belongs to no combination of sensitive values.
        exists[:, 0] &= ((rows >= 0) & (rows < self.domain.sizes))[:, columns].all(1)
        offsets = torch.arange(exists.shape[1], device=rows.device)
        numbers = (combinations.number(rows)[:, None] + offsets) % len(combinations.values)
        self._add(numbers, evaluation.decision.decide(evaluation.family) == self.favourable, exists)

    def add_pairs(self, pairs: Pairs, decision: Decision) -> None:
        """Count pairs: two records each."""
        if self.favourable is None:
            return
        numbers = torch.stack([self.domain.combinations.number(rows) for rows in pairs[:2]], 1)
        gets = torch.stack([decision.decide(scores) == self.favourable for scores in pairs[2:]], 1)
        self._add(numbers, gets, torch.ones_like(gets))

    def _add(self, numbers: Tensor, gets: Tensor, exists: Tensor) -> None:
        disagree = (gets & exists).any(1) & (~gets & exists).any(1)
        self.records += int(disagree.sum())
        for count, members in zip(self._counts, (gets, ~gets), strict=True):
            count += torch.bincount(numbers[members & exists & disagree[:, None]], minlength=len(count)).cpu()

    def direction(self) -> Direction | None:
        """Return the counts so far; None where no class is favourable."""
        if self.favourable is None:
            return None
        values, counts = self.domain.sensitive_values.tolist(), self._counts.T.tolist()
        sides = [GroupOutcomes(tuple(codes), *pair) for codes, pair in zip(values, counts, strict=True) if any(pair)]
        return Direction(self.records, order_sides(sides))


def order_sides(sides: Iterable[GroupOutcomes]) -> tuple[GroupOutcomes, ...]:
    """Return the largest difference first, and of a tie the side that loses."""
    return tuple(sorted(sides, key=lambda side: (-abs(side.gets - side.loses), side.gets)))


_PopulationType = TypeVar("_PopulationType", bound=Population | Tensor | PopulationModel)
FIRST_LOOK_SAMPLES = 1_000  # samples before the first look at the error; each further look doubles them


@dataclass(frozen=True)
class Rate:
    """A flip rate: the share of discriminatory instances among sampled records (DM-RS) of a named population.

    `looks` is the number of sample sizes at which sampling could stop, or of rates that are compared. The confidence
    interval spends an equal part of 1 - confidence on each (Bonferroni), so it holds with the stated confidence
    wherever sampling stopped, and for all those rates together.

    >>> Rate(3, 100, "domain")
    Rate(flips=3, sampled=100, population='domain', confidence=0.95, looks=1)
    >>> [round(end, 4) for end in Rate(3, 100, "domain").interval]
    [0.0062, 0.0852]
    """

    flips: int
    sampled: int
    population: Population
    confidence: float = 0.95
    looks: int = 1
    direction: Direction | None = field(default=None, repr=False, compare=False)  # None: no class is favourable

    def __post_init__(self) -> None:
        if not 0 <= self.flips <= self.sampled or self.sampled < 1:
            raise NeuronFairError(f"a rate needs 0 <= flips <= sampled >= 1, got {self.flips} of {self.sampled}")
        if not 0 < self.confidence < 1:
            raise NeuronFairError(f"confidence must lie between 0 and 1, got {self.confidence}")

    found = renamed_field("found", "flips")

    @property
    def rate(self) -> float:
        """The share of flips."""
        return self.flips / self.sampled

    @cached_property
    def interval(self) -> tuple[float, float]:
        """The exact confidence interval of Clopper and Pearson (1934)."""
        _, low, high = clopper_pearson(self.flips, self.sampled, self.confidence, looks=self.looks)
        return low, high

    @property
    def error(self) -> float:
        """Half the width of the interval."""
        low, high = self.interval
        return (high - low) / 2


@dataclass(frozen=True)
class Until:
    """A stopping rule: half the width of the interval is at most `error`, or `samples` records were drawn."""

    error: float
    samples: int = 10_000

    def __post_init__(self) -> None:
        if not self.error > 0:
            raise NeuronFairError(f"error must be more than 0, got {self.error}")


def flip_rate(
    model: Model | OpenedModel,
    domain: TableDomain,
    *,
    population: Population | Tensor | PopulationModel | Dataset | Records = "domain",
    samples: int | Until = 10_000,
    confidence: float = 0.95,
    decision: Decision | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Rate:
    """Estimate the share of records that have a twin with a different decision (DM-RS; the score of Themis).

    A rate means nothing without its population:

    - "domain" draws uniformly from the valid rows of the domain;
    - "combinations" draws every attribute uniformly and ignores the rules, as the published tools do;
    - a data set ("table") gives its records in random order, each once. The interval is that of the population from
      which the data set is a sample. The model reads the original cells where it can (`prepare_records`); rows of codes
      are used as they are;
    - a model of a population, such as that of `fit_population`, draws realistic records ("plausible"); records of your
      own sampler are used like those of a data set. The interval is conditional on the fitted model.

    Records without a valid twin count as not discriminated. With `Until(error, samples)`, sampling stops once half the
    width of the interval is at most the error: the stopping rule of Themis (Galhotra, Brun and Meliou, FSE 2017).
    Repeated looks would spoil the confidence, so they happen only at 1,000 samples, 2,000, 4,000, … and each gets an
    equal part of 1 - confidence (Bonferroni).
    """
    limit, error = (samples.samples, samples.error) if isinstance(samples, Until) else (samples, None)
    if limit < 1:
        raise NeuronFairError(f"samples must be 1 or more, got {limit}")
    model, domain, population = _read_original_cells(model, domain, population)
    name, draw, total = _open_population(domain, population, limit, seed)
    looks = (total,) if error is None else _plan_looks(total)
    tally = DirectionTally(domain, find_favourable_class(domain, decision or Decision(), model.outputs))
    flips = sampled = 0
    for sample_size in looks:
        for (part,) in zip(*split_families(model.encoding, domain, torch.arange(sampled, sample_size)), strict=True):
            evaluation = evaluate(model, domain, draw(part), decision)
            flips += int(evaluation.discriminates.sum())
            tally.add(evaluation)
            sampled += len(part)
            if progress:
                progress(sampled, total)
        rate = Rate(flips, sampled, name, confidence, len(looks), tally.direction())
        if error is not None and rate.error <= error:
            break
    return rate


@dataclass(frozen=True)
class PairRate:
    """The flip rate over plausible pairs, and the records that it leaves out."""

    rate: Rate  # of the records in the data set with a plausible twin
    implausible_only: int  # records whose decision differs from that of implausible twins only
    without_twin: int  # records without a plausible twin


def plausible_pair_rate(
    model: Model | OpenedModel,
    pairs: TableDomain,
    population: Tensor | Dataset | Records,
    *,
    samples: int = 10_000,
    confidence: float = 0.95,
    decision: Decision | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> PairRate | None:
    """Estimate the flip rate over plausible pairs; None where no record has a plausible twin.

    Of the records in the data set with at least one plausible twin, it is the share whose decision differs from that of
    a plausible twin. `pairs` is a domain with plausible twins (`with_plausible_twins`). Records are sampled and
    scored as in `flip_rate`.
    """
    model, domain, rows = _read_original_cells(model, replace(pairs, twinning=ATTRIBUTE_FLIPS), population)
    check_rows(domain, rows, "flip rate over plausible pairs")
    tally = DirectionTally(domain, find_favourable_class(domain, decision or Decision(), model.outputs))
    flip_domain = replace(domain, rules=(), twinning=ATTRIBUTE_FLIPS)  # also the invalid twins, to count them
    order = draw_order(len(rows), seed)[:samples]
    flips = with_twin = implausible_only = sampled = 0
    for (part,) in zip(*split_families(model.encoding, flip_domain, order), strict=True):
        records = rows[part.to(rows.device)].to(pairs.device)
        codes = records[:, : len(pairs.attributes)]  # a record has its number behind them
        evaluation, plausible = evaluate(model, flip_domain, records, decision), pairs.twins(codes).valid
        differs = evaluation.twin_differs & plausible
        flipped = differs.any(1)
        flips, with_twin = flips + int(flipped.sum()), with_twin + int(plausible.any(1).sum())
        implausible_only += int((evaluation.twin_differs.any(1) & ~flipped).sum())
        tally.add(replace(evaluation, valid=plausible, twin_differs=differs, discriminates=flipped))
        sampled += len(part)
        if progress:
            progress(sampled, len(order))
    if not with_twin:
        return None
    rate = Rate(flips, with_twin, "pairs", confidence, direction=tally.direction())
    return PairRate(rate, implausible_only, sampled - with_twin)


def _read_original_cells(
    model: Model | OpenedModel, domain: TableDomain, population: _PopulationType | Dataset | Records
) -> tuple[Model, TableDomain, _PopulationType | Tensor]:
    """Return what measures a population: for a data set, a model that reads its original cells where it can."""
    if isinstance(population, Dataset):
        population = prepare_records(model, replace(population, domain=domain))
    if isinstance(population, Records):
        return population.model, population.data.domain, population.data.rows
    return model.model if isinstance(model, OpenedModel) else model, domain, population


def _plan_looks(total: int) -> tuple[int, ...]:
    """Return the sample sizes at which sampling may stop: they double, up to the total."""
    doublings = max(0, math.ceil(math.log2(total / FIRST_LOOK_SAMPLES)))
    return (*(FIRST_LOOK_SAMPLES << i for i in range(doublings)), total)


def _open_population(
    domain: TableDomain, population: Population | Tensor | PopulationModel, samples: int, seed: int
) -> tuple[Population, Callable[[Tensor], Tensor], int]:
    """Return the name of a population, a function that draws its records by number, and how many are drawn."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(population, Tensor | UserPopulation):
        rows = population if isinstance(population, Tensor) else population.rows
        name: Population = "table" if isinstance(population, Tensor) else "plausible"
        check_rows(domain, rows, "discrimination rate")
        if len(rows) == 0:
            raise NeuronFairError("no rows to evaluate. Give the rows of a table, or another population")
        order = torch.randperm(len(rows), generator=generator)
        return name, lambda numbers: rows[order[numbers].to(rows.device)].to(domain.device), min(samples, len(rows))
    if not isinstance(population, str):
        model = population
        return "plausible", lambda numbers: model.sample(len(numbers), generator), samples
    if population == "table":
        raise NeuronFairError("the population 'table' is given by the data set: population=data")
    if population == "pairs":
        raise NeuronFairError("the population 'pairs' is measured by plausible_pair_rate")
    if population == "plausible":
        raise NeuronFairError("the population 'plausible' is given by a model: population=fit_population(domain, rows)")
    if population not in POPULATIONS:
        raise NeuronFairError(f"no population '{population}'. {did_you_mean(population, POPULATIONS)}")
    if population == "domain":
        return population, lambda numbers: domain.sample(len(numbers), generator), samples

    def any_row(numbers: Tensor) -> Tensor:
        u = torch.rand(len(numbers), len(domain.attributes), dtype=torch.float64, generator=generator)
        return (u.to(domain.device) * domain.sizes).long()

    return population, any_row, samples


# With neurons switched off


@dataclass(frozen=True)
class AblationOutcome:
    """The flip rate of a network, and its accuracy where labels are known."""

    rate: float
    accuracy: float | None


@dataclass(frozen=True)
class Ablation:
    """The network as it is, with the named neurons switched off, and with random ones instead."""

    layer: str
    neurons: tuple[int, ...]
    before: AblationOutcome
    after: AblationOutcome
    random: tuple[AblationOutcome, ...]

    @property
    def random_mean(self) -> AblationOutcome:
        """The mean over the random draws."""
        accuracies = [o.accuracy for o in self.random if o.accuracy is not None]
        return AblationOutcome(fmean(o.rate for o in self.random), fmean(accuracies) if accuracies else None)


def ablate(
    network: Network,
    data: Dataset,
    layer: str,
    neurons: Sequence[int],
    *,
    decision: Decision | None = None,
    draws: int = 10,
    seed: int = 0,
) -> Ablation:
    """Set neurons of one layer to 0 and measure discrimination and accuracy again.

    The control switches off equally many random neurons of the same layer, `draws` times. There is no accuracy where
    labels are unknown, or are not the classes of the decision.
    """
    decision = decision or Decision()
    if draws < 1:
        raise ModelError(f"the control needs at least one draw, got {draws}")
    generator = torch.Generator().manual_seed(seed)

    def measure_without(switched_off: Sequence[int]) -> AblationOutcome:
        with network.ablated(layer, switched_off) as ablated:
            return _measure_ablation(ablated, data, decision)

    orders = (torch.randperm(network.neurons[layer], generator=generator) for _ in range(draws))
    random = tuple(measure_without(order[: len(neurons)].tolist()) for order in orders)
    return Ablation(layer, tuple(neurons), measure_without(()), measure_without(neurons), random)


def _measure_ablation(network: Network, data: Dataset, decision: Decision) -> AblationOutcome:
    flips = correct = 0
    for part, labels in zip(*split_families(network.encoding, data.domain, data.rows, data.labels), strict=True):
        evaluation = evaluate(network, data.domain, part, decision)
        flips += int(evaluation.discriminates.sum())
        correct += int((decision.decide(evaluation.scores) == labels.to(part.device)).sum())
    has_labels = bool(((data.labels >= 0) & (data.labels < decision.classes(network.outputs))).all())
    return AblationOutcome(flips / len(data), correct / len(data) if has_labels else None)
