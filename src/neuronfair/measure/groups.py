"""Metrics of demographic groups, and subgroups: short rules under which the flip rate is high."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.population.model import PopulationModel, UserPopulation
from neuronfair.domain.rules import Rule, RuleCondition, Span
from neuronfair.domain.table import TableDomain, check_rows
from neuronfair.errors import DataError, ModelError
from neuronfair.formatting import Population
from neuronfair.measure.rate import Rate, flip_rate
from neuronfair.model.blackbox import Model, score_in_batches
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import split_families
from neuronfair.searches.evaluate import evaluate


@dataclass(frozen=True)
class Group:
    """A demographic group of a data set, and the decisions for it."""

    codes: tuple[int, ...]  # the sensitive values, in the order of the domain's sensitive attributes
    rows: int
    selection: tuple[float, ...]  # selection rate of each class; they add up to 1
    accuracy: float | None  # None without labels
    confusion: tuple[tuple[int, ...], ...] = ()  # confusion matrix: rows by label and decision; empty without labels


def measure_groups(
    model: Model, domain: TableDomain, rows: Tensor, labels: Tensor | None = None, *, decision: Decision | None = None
) -> tuple[Group, ...]:
    """Return the selection rates and the accuracy of each demographic group in the rows.

    With a threshold there are two classes, below it and from it on. These are group metrics: equal rates do not exclude
    individual discrimination, nor the other way round.
    """
    decision = decision or Decision()
    decision.check(model.outputs)
    classes = decision.classes(model.outputs)
    if not classes:
        raise ModelError("a tolerance compares two scores and decides nothing by itself. Use argmax or a threshold")
    check_rows(domain, rows, "groups")
    if labels is not None and (len(labels) != len(rows) or bool(((labels < 0) | (labels >= classes)).any())):
        raise DataError(
            f"expected one label from 0 to {classes - 1} for each of {len(rows)} rows. Leave the labels out where they "
            "are not known"
        )
    if len(rows) == 0:
        return ()
    decisions = decision.decide(score_in_batches(model, rows.long())).cpu()
    sensitive = rows[:, list(domain.sensitive_columns)]
    if domain.has_bands:
        sensitive = domain.sensitive_values[domain.combinations.number(rows.long())]
    codes, group = torch.unique(sensitive.cpu(), dim=0, return_inverse=True)
    labels_per_group = classes if labels is not None else 1  # of a group: by label
    cell_index = group * labels_per_group + (labels.cpu() if labels is not None else 0)
    counts = torch.bincount(cell_index * classes + decisions, minlength=len(codes) * labels_per_group * classes)
    result = []
    for group_codes, table in zip(codes.tolist(), counts.view(-1, labels_per_group, classes), strict=True):
        size = int(table.sum())
        selection = tuple((table.sum(0).double() / size).tolist())
        by_label = None if labels is None else (int(table.diagonal().sum()) / size, tuple(map(tuple, table.tolist())))
        result.append(Group(tuple(group_codes), size, selection, *(by_label or (None,))))
    return tuple(result)


@dataclass(frozen=True)
class RateComparison:
    """A ratio or a difference of the smallest and the largest rate, with its confidence interval.

    The interval combines those of the rates: the worst and the best case of any two. It is conservative, and holds with
    at least their confidence where they hold together (`Rate.looks`).
    """

    value: float
    low: float
    high: float
    lowest: int  # which rate is the smallest
    highest: int


def compare_by_ratio(rates: Sequence[Rate]) -> RateComparison | None:
    """Return the ratio of the smallest to the largest of two rates or more; None where all are 0.

    >>> compare_by_ratio([Rate(30, 100, "table", looks=2), Rate(60, 100, "table", looks=2)]).value
    0.5
    """
    lowest, highest = _find_extremes(rates)
    if rates[highest].flips == 0:
        return None
    first, second = _pair_intervals(rates)
    low, high = float((first[:, 0] / second[:, 1]).min()), float((first[:, 1] / second[:, 0]).min())
    return RateComparison(rates[lowest].rate / rates[highest].rate, low, min(1.0, high), lowest, highest)


def compare_by_difference(rates: Sequence[Rate]) -> RateComparison:
    """Return the difference of the largest and the smallest of two rates or more.

    >>> round(compare_by_difference([Rate(30, 100, "table", looks=2), Rate(60, 100, "table", looks=2)]).value, 3)
    0.3
    """
    lowest, highest = _find_extremes(rates)
    first, second = _pair_intervals(rates)
    low, high = float((first[:, 0] - second[:, 1]).max()), float((first[:, 1] - second[:, 0]).max())
    return RateComparison(rates[highest].rate - rates[lowest].rate, max(0.0, low), high, lowest, highest)


def _find_extremes(rates: Sequence[Rate]) -> tuple[int, int]:
    """Return which rate is the smallest and which the largest: two different ones even if all are equal."""
    order = sorted(range(len(rates)), key=lambda i: rates[i].rate)
    return order[0], order[-1]


def _pair_intervals(rates: Sequence[Rate]) -> tuple[Tensor, Tensor]:
    """Return the intervals of every two different rates, (k (k - 1), 2) each."""
    intervals = torch.tensor([rate.interval for rate in rates], dtype=torch.float64)
    first, second = (~torch.eye(len(rates), dtype=torch.bool)).nonzero().T
    return intervals[first], intervals[second]


MAX_RULES, MAX_CONDITIONS = 5, 3  # rules in a list, and conditions in a rule
BEAM_WIDTH = 6  # rules that are made longer at a time
CUTS_PER_ATTRIBUTE = 16  # places where a range may begin or end, for an attribute with many values
MAX_ATTRIBUTE_SIZE = 1_000_000  # values of an attribute that conditions are made of: each is a table over all of them
MAX_LABELS = 5  # labels in one condition, at most: more are not read
MIN_LEARNING_RECORDS = 400  # discriminated records to learn from; findings are added where fewer were drawn
MIN_SUPPORT = 0.03  # share of the discriminated records that a rule must hold for
MAX_OTHERS = 5_000  # records that are not discriminated: enough to see a share of 0.1%
MAX_SAMPLES_DRAWN = 5  # times the sample size that is drawn from a population to find records that meet a rule
MIN_GAIN = 1.1  # factor by which a further condition must raise the worth of a rule, against overfitting
MIN_LIFT = 1.5  # how much more often a rule must hold for discriminated records than for others


class RuleTerm(NamedTuple):
    """One condition: the codes of one column that meet it."""

    column: int
    mask: Tensor  # (size,) bool; for an ordered attribute the codes are neighbours


@dataclass(frozen=True)
class Subgroup:
    """Records that meet a few conditions, and their flip rate."""

    conditions: tuple[RuleTerm, ...]
    population_share: float  # share of the population, or of the declared input space, that meets them
    findings_share: float  # share of the findings that meet them
    rate: Rate  # among records that were not used to choose the conditions
    lift: float | None  # over the overall rate; None where that is 0


def learn_subgroups(
    model: Model,
    domain: TableDomain,
    findings: Tensor,
    overall: Rate,
    *,
    population: PopulationModel | None = None,
    samples: int = 20_000,
    decision: Decision | None = None,
    seed: int = 0,
) -> tuple[Subgroup, ...]:
    """Return up to five rules of up to three conditions each under which the flip rate is high.

    The rules separate discriminated records of a population (by default the declared input space) from the others;
    findings are added where few were drawn. Each rule is then measured on new records that meet it, and kept if its
    interval lies above that of `overall`, the rate of the same population. All intervals hold together with the stated
    confidence. Rules never name sensitive attributes.

    Records of the declared input space that meet a rule are drawn uniformly. For a population, records are drawn and
    filtered, so that a rule that hardly any record meets has a wide interval and is dropped. Of the records of a user's
    own sampler, one half is for learning rules, and the other half for measuring them.
    """
    check_rows(domain, findings, "subgroups")
    generator = torch.Generator().manual_seed(seed)
    others: Tensor | None = None
    if isinstance(population, UserPopulation):
        order = torch.randperm(len(population.rows), generator=generator).to(population.rows.device)
        records, others = (population.rows[half] for half in order.tensor_split(2))
        records = records[:samples]
    else:
        records = (population or domain).sample(samples, generator)
    parts = zip(*split_families(model.encoding, domain, records), strict=True)
    discriminated = torch.cat([evaluate(model, domain, part, decision).discriminates for (part,) in parts])
    rules = _learn_rules(domain, records, discriminated, findings, generator)
    sources: list[tuple[TableDomain, Population | Tensor, float]]
    if others is not None:
        held_back_rows = (others[_meets_all(terms, others)] for terms in rules)
        sources = [(domain, rows, len(rows) / max(1, len(others))) for rows in held_back_rows]
    elif population is None:
        views = [_restrict_domain(domain, terms) for terms in rules]
        sources = [(view, "domain", view.count / domain.count) for view in views]
    else:
        sources = [(domain, *match) for match in _draw_records_that_meet(population, rules, samples, generator)]
    result = []
    for number, (terms, (view, population_source, share)) in enumerate(zip(rules, sources, strict=True)):
        if not share:  # no record meets it
            continue
        rate = flip_rate(
            model,
            view,
            population=population_source,
            samples=samples,
            confidence=overall.confidence,
            decision=decision,
            seed=seed + 1 + number,
        )
        # So that the intervals of all rules hold together.
        rate = replace(rate, looks=MAX_RULES, population=overall.population)
        if rate.interval[0] > overall.interval[1]:
            meets = _meets_all(terms, findings.long())
            findings_share = float(meets.double().mean()) if len(findings) else 0.0
            lift = rate.rate / overall.rate if overall.flips else None
            result.append(Subgroup(terms, share, findings_share, rate, lift))
    return tuple(sorted(result, key=lambda group: -group.rate.rate))


def _learn_rules(
    domain: TableDomain, records: Tensor, discriminated: Tensor, findings: Tensor, generator: torch.Generator
) -> list[tuple[RuleTerm, ...]]:
    """Return rules that separate discriminated records from the others; findings are added where these are few."""
    targets = records[discriminated]
    if len(targets) < MIN_LEARNING_RECORDS:
        added = torch.randperm(len(findings), generator=generator)[: MIN_LEARNING_RECORDS - len(targets)]
        targets = torch.cat([targets, findings[added.to(findings.device)].long()])
    return list(_generate_rules(domain, targets, records[~discriminated][:MAX_OTHERS]))


def _draw_records_that_meet(
    population: PopulationModel, rules: list[tuple[RuleTerm, ...]], samples: int, generator: torch.Generator
) -> list[tuple[Tensor, float]]:
    """Return new records of a population that meet each rule, and their share of all drawn."""
    records_by_rule: list[list[Tensor]] = [[] for _ in rules]
    total = 0
    while total < MAX_SAMPLES_DRAWN * samples and any(sum(map(len, parts)) < samples for parts in records_by_rule):
        records = population.sample(samples, generator)
        total += samples
        for matches, terms in zip(records_by_rule, rules, strict=True):
            matches.append(records[_meets_all(terms, records)])
    return [(rows, len(rows) / total) for rows in map(torch.cat, records_by_rule)]


def _generate_rules(domain: TableDomain, targets: Tensor, others: Tensor) -> Iterator[tuple[RuleTerm, ...]]:
    """Yield rules that hold for many of the targets and few of the others; each next one for the rest."""
    min_support = MIN_SUPPORT * len(targets)
    for _ in range(MAX_RULES):
        if len(targets) < max(1.0, min_support) or len(others) == 0:
            return
        rule = _find_best_rule(_list_conditions(domain, targets, others), targets, others, min_support)
        if not rule:
            return
        yield tuple(sorted(rule, key=lambda term: term.column))
        targets = targets[~_meets_all(rule, targets)]


def _find_best_rule(terms: list[RuleTerm], targets: Tensor, others: Tensor, min_support: float) -> tuple[RuleTerm, ...]:
    """Return the best rule of a beam search over conditions; () where none is good.

    A rule is worth p log(p / q)²: p is the share of the targets it holds for, and q that of the others. A rule
    that holds for all records or for none is worth nothing. The square keeps broad rules from winning.
    """
    if not terms:
        return ()
    meets = [torch.stack([mask[rows[:, column]] for column, mask in terms]).float() for rows in (targets, others)]
    beam: list[tuple[int, ...]] = [()]
    best: tuple[int, ...] = ()
    best_worth = 0.0
    for _ in range(MAX_CONDITIONS):
        worth_by_rule: dict[tuple[int, ...], float] = {}
        distinctive: set[tuple[int, ...]] = set()
        for rule in beam:
            # How many records meet the rule and each further condition, in one product.
            true_counts, false_counts = (m @ m[list(rule)].prod(0) if rule else m.sum(1) for m in meets)
            p, q = true_counts / len(targets), (false_counts + 0.5) / (len(others) + 1)
            worth = torch.where((true_counts >= min_support) & (p > q), p * torch.log(p / q) ** 2, -torch.inf)
            for i in worth.topk(min(len(worth), 2 * BEAM_WIDTH)).indices.tolist():
                key: tuple[int, ...] = tuple(sorted({*rule, i}))
                if len(key) == len(rule) + 1 and worth[i] > 0:
                    worth_by_rule[key] = float(worth[i])
                    if p[i] >= MIN_LIFT * q[i]:  # one condition alone need not be
                        distinctive.add(key)
        ranked = sorted(worth_by_rule, key=lambda key: -worth_by_rule[key])
        first = next((key for key in ranked if key in distinctive), None)
        if first is not None and worth_by_rule[first] > MIN_GAIN * best_worth:
            best, best_worth = first, worth_by_rule[first]
        beam = ranked[:BEAM_WIDTH]
    return _merge_conditions([terms[i] for i in best])


def _merge_conditions(terms: list[RuleTerm]) -> tuple[RuleTerm, ...]:
    """Join the conditions on one attribute: at least 20 and at most 30 is one range."""
    masks: dict[int, Tensor] = {}
    for column, mask in terms:
        masks[column] = mask & masks[column] if column in masks else mask
    return tuple(RuleTerm(column, mask) for column, mask in masks.items())


def _list_conditions(domain: TableDomain, targets: Tensor, others: Tensor) -> list[RuleTerm]:
    terms = []
    for column in domain.changeable.nonzero()[:, 0].tolist():
        attribute = domain.attributes[column]
        if not 2 <= attribute.size <= MAX_ATTRIBUTE_SIZE:
            continue
        list_masks = _list_ranges if attribute.is_ordered else _list_label_sets
        masks = list_masks(targets[:, column], others[:, column], attribute.size)
        if attribute.empty is not None:  # it is no number: a record that lacks one is a group of its own
            number = torch.arange(attribute.size, device=targets.device) != attribute.empty
            masks = [mask & number for mask in masks if 0 < int((mask & number).sum()) < attribute.grid_size]
            masks.append(~number)
        terms += [RuleTerm(column, mask) for mask in masks]
    return terms


def _list_ranges(targets: Tensor, others: Tensor, size: int) -> list[Tensor]:
    """Return the codes from each cut on, and those below it."""
    codes = torch.arange(size, device=targets.device)
    cuts = codes[1:]
    if size > 2 * CUTS_PER_ATTRIBUTE:
        levels = torch.linspace(0, 1, CUTS_PER_ATTRIBUTE + 2, dtype=torch.float64, device=targets.device)[1:-1]
        quantiles = [torch.quantile(part.double(), levels, interpolation="higher") for part in (targets, others)]
        ends = torch.stack([targets.min(), targets.max() + 1])
        cuts = torch.unique(torch.cat([*quantiles, ends.double()]).long())
        cuts = cuts[(cuts > 0) & (cuts < size)]
    return [mask for cut in cuts for mask in (codes >= cut, codes < cut)]


def _list_label_sets(targets: Tensor, others: Tensor, size: int) -> list[Tensor]:
    """Return the sets of the labels that are most frequent among the targets, compared with the others.

    Among all sets of one size these tell the two best apart (Breiman et al., 1984).
    """
    p, q = (torch.bincount(part, minlength=size)[:size] / len(part) for part in (targets, others))
    order = torch.argsort((p + 1e-9) / (q + 1 / (len(others) + 1)), descending=True)
    masks = []
    for count in range(1, min(MAX_LABELS, size - 1) + 1):
        mask = torch.zeros(size, dtype=torch.bool, device=targets.device)
        mask[order[:count]] = True
        masks.append(mask)
    return masks


def _meets_all(terms: tuple[RuleTerm, ...], rows: Tensor) -> Tensor:
    """Return for each row whether it meets all conditions: bool, (n,)."""
    meets = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for column, mask in terms:
        meets &= mask[rows[:, column]]
    return meets


def _restrict_domain(domain: TableDomain, terms: tuple[RuleTerm, ...]) -> TableDomain:
    """Return the domain of the valid rows that meet all conditions, so that they can be drawn and counted exactly."""
    rules = [
        Rule(f"subgroup {i}", {domain.names[column]: part}, {})
        for i, (column, mask) in enumerate(terms)
        for part in _conditions_outside(domain.attributes[column], mask)
    ]
    return replace(domain, rules=(*domain.rules, *rules))


def _conditions_outside(attribute: Attribute, mask: Tensor) -> list[RuleCondition]:
    """Return conditions that together hold for exactly the codes outside a mask."""
    if attribute.values:
        return [tuple(str(attribute.value(code)) for code in (~mask).nonzero()[:, 0].tolist())]
    if bool(mask[attribute.grid_size :].any()):  # an empty cell: no range includes it
        return [Span()]
    low, high = (attribute.low + attribute.step * int(mask.nonzero()[end, 0]) for end in (0, -1))
    half = attribute.step / 2  # between two points of the grid, whatever rounding does
    ends = [Span(high=low - half), Span(low=high + half)]
    empty: list[RuleCondition] = [] if attribute.empty is None else [(MISSING,)]
    return [*(end for end in ends if end.high >= attribute.low and end.low <= attribute.high), *empty]
