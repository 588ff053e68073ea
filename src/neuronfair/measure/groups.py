"""Metrics of demographic groups, and subgroups: short rules under which the flip rate is high."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from neuronfair.domain.attribute import MISSING, Attribute
from neuronfair.domain.population.model import OwnPopulation, PopulationModel
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
    labelled: tuple[tuple[int, ...], ...] = ()  # confusion matrix: rows by label and decision; empty without labels


def groups(
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
    decided = decision.decide(score_in_batches(model, rows.long())).cpu()
    sensitive = rows[:, list(domain.sensitive_columns)]
    if domain.has_bands:
        sensitive = domain.sensitive_values[domain.combinations.number(rows.long())]
    codes, group = torch.unique(sensitive.cpu(), dim=0, return_inverse=True)
    parts = classes if labels is not None else 1  # of a group: by label
    place = group * parts + (labels.cpu() if labels is not None else 0)
    counts = torch.bincount(place * classes + decided, minlength=len(codes) * parts * classes)
    result = []
    for group_codes, table in zip(codes.tolist(), counts.view(-1, parts, classes), strict=True):
        size = int(table.sum())
        selection = tuple((table.sum(0).double() / size).tolist())
        known = None if labels is None else (int(table.diagonal().sum()) / size, tuple(map(tuple, table.tolist())))
        result.append(Group(tuple(group_codes), size, selection, *(known or (None,))))
    return tuple(result)


@dataclass(frozen=True)
class Spread:
    """A ratio or a difference of the smallest and the largest rate, with its confidence interval.

    The interval combines those of the rates: the worst and the best case of any two. It is conservative, and holds with
    at least their confidence where they hold together (`Rate.looks`).
    """

    value: float
    low: float
    high: float
    least: int  # which rate is the smallest
    most: int


def ratio(rates: Sequence[Rate]) -> Spread | None:
    """Return the ratio of the smallest to the largest of two rates or more; None where all are 0.

    >>> ratio([Rate(30, 100, "table", looks=2), Rate(60, 100, "table", looks=2)]).value
    0.5
    """
    least, most = _places(rates)
    if rates[most].found == 0:
        return None
    one, other = _pairs(rates)
    low, high = float((one[:, 0] / other[:, 1]).min()), float((one[:, 1] / other[:, 0]).min())
    return Spread(rates[least].rate / rates[most].rate, low, min(1.0, high), least, most)


def difference(rates: Sequence[Rate]) -> Spread:
    """Return the difference of the largest and the smallest of two rates or more.

    >>> round(difference([Rate(30, 100, "table", looks=2), Rate(60, 100, "table", looks=2)]).value, 3)
    0.3
    """
    least, most = _places(rates)
    one, other = _pairs(rates)
    low, high = float((one[:, 0] - other[:, 1]).max()), float((one[:, 1] - other[:, 0]).max())
    return Spread(rates[most].rate - rates[least].rate, max(0.0, low), high, least, most)


def _places(rates: Sequence[Rate]) -> tuple[int, int]:
    """Return which rate is the smallest and which the largest: two different ones even if all are equal."""
    order = sorted(range(len(rates)), key=lambda i: rates[i].rate)
    return order[0], order[-1]


def _pairs(rates: Sequence[Rate]) -> tuple[Tensor, Tensor]:
    """Return the intervals of every two different rates, (k (k - 1), 2) each."""
    ends = torch.tensor([rate.interval for rate in rates], dtype=torch.float64)
    one, other = (~torch.eye(len(rates), dtype=torch.bool)).nonzero().T
    return ends[one], ends[other]


MAX_RULES, MAX_CONDITIONS = 5, 3  # and conditions in each rule
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


class Cut(NamedTuple):
    """One condition: the codes of one column that meet it."""

    column: int
    table: Tensor  # (size,) bool; for an ordered attribute the codes are neighbours


@dataclass(frozen=True)
class Subgroup:
    """Records that meet a few conditions, and their flip rate."""

    conditions: tuple[Cut, ...]
    people: float  # share of the population, or of the declared input space, that meets them
    findings: float  # share of the findings that meet them
    rate: Rate  # among records that were not used to choose the conditions
    lift: float | None  # over the overall rate; None where that is 0


def subgroups(
    network: Model,
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
    if isinstance(population, OwnPopulation):
        order = torch.randperm(len(population.rows), generator=generator).to(population.rows.device)
        records, others = (population.rows[part] for part in order.tensor_split(2))
        records = records[:samples]
    else:
        records = (population or domain).sample(samples, generator)
    parts = zip(*split_families(network.encoding, domain, records), strict=True)
    hit = torch.cat([evaluate(network, domain, part, decision).discriminates for (part,) in parts])
    rules = _learned_rules(domain, records, hit, findings, generator)
    inside: list[tuple[TableDomain, Population | Tensor, float]]
    if others is not None:
        met = (others[_meet(cuts, others)] for cuts in rules)
        inside = [(domain, rows, len(rows) / max(1, len(others))) for rows in met]
    elif population is None:
        inside = [(view, "domain", view.count / domain.count) for view in (_inside(domain, cuts) for cuts in rules)]
    else:
        inside = [(domain, *some) for some in _people_who_meet(population, rules, samples, generator)]
    result = []
    for number, (cuts, (view, source, part)) in enumerate(zip(rules, inside, strict=True)):
        if not part:  # no record meets it
            continue
        rate = flip_rate(
            network,
            view,
            population=source,
            samples=samples,
            confidence=overall.confidence,
            decision=decision,
            seed=seed + 1 + number,
        )
        # So that the intervals of all rules hold together.
        rate = replace(rate, looks=MAX_RULES, population=overall.population)
        if rate.interval[0] > overall.interval[1]:
            held = _meet(cuts, findings.long())
            share = float(held.double().mean()) if len(findings) else 0.0
            lift = rate.rate / overall.rate if overall.found else None
            result.append(Subgroup(cuts, part, share, rate, lift))
    return tuple(sorted(result, key=lambda group: -group.rate.rate))


def _learned_rules(
    domain: TableDomain, records: Tensor, hit: Tensor, findings: Tensor, generator: torch.Generator
) -> list[tuple[Cut, ...]]:
    """Return rules that separate discriminated records from the others; findings are added where these are few."""
    wanted = records[hit]
    if len(wanted) < MIN_LEARNING_RECORDS:
        drawn = torch.randperm(len(findings), generator=generator)[: MIN_LEARNING_RECORDS - len(wanted)]
        wanted = torch.cat([wanted, findings[drawn.to(findings.device)].long()])
    return list(_rules(domain, wanted, records[~hit][:MAX_OTHERS]))


def _people_who_meet(
    population: PopulationModel, rules: list[tuple[Cut, ...]], samples: int, generator: torch.Generator
) -> list[tuple[Tensor, float]]:
    """Return new records of a population that meet each rule, and their share of all drawn."""
    kept: list[list[Tensor]] = [[] for _ in rules]
    drawn = 0
    while drawn < MAX_SAMPLES_DRAWN * samples and any(sum(map(len, own)) < samples for own in kept):
        records = population.sample(samples, generator)
        drawn += samples
        for own, cuts in zip(kept, rules, strict=True):
            own.append(records[_meet(cuts, records)])
    return [(rows, len(rows) / drawn) for rows in map(torch.cat, kept)]


def _rules(domain: TableDomain, wanted: Tensor, others: Tensor) -> Iterator[tuple[Cut, ...]]:
    """Yield rules that hold for many of the wanted records and few of the others; each next one for the rest."""
    enough = MIN_SUPPORT * len(wanted)
    for _ in range(MAX_RULES):
        if len(wanted) < max(1.0, enough) or len(others) == 0:
            return
        rule = _best_rule(_candidates(domain, wanted, others), wanted, others, enough)
        if not rule:
            return
        yield tuple(sorted(rule, key=lambda cut: cut.column))
        wanted = wanted[~_meet(rule, wanted)]


def _best_rule(cuts: list[Cut], wanted: Tensor, others: Tensor, enough: float) -> tuple[Cut, ...]:
    """Return the best rule of a beam search over conditions; () where none is good.

    A rule is worth p log(p / q)²: p is the share of the wanted records it holds for, and q that of the others. A rule
    that holds for all records or for none is worth nothing. The square keeps broad rules from winning.
    """
    if not cuts:
        return ()
    meets = [torch.stack([table[rows[:, column]] for column, table in cuts]).float() for rows in (wanted, others)]
    beam: list[tuple[int, ...]] = [()]
    best: tuple[int, ...] = ()
    most = 0.0
    for _ in range(MAX_CONDITIONS):
        longer: dict[tuple[int, ...], float] = {}
        telling: set[tuple[int, ...]] = set()
        for rule in beam:
            # How many records meet the rule and each further condition, in one product.
            held, false = (m @ m[list(rule)].prod(0) if rule else m.sum(1) for m in meets)
            p, q = held / len(wanted), (false + 0.5) / (len(others) + 1)
            worth = torch.where((held >= enough) & (p > q), p * torch.log(p / q) ** 2, -torch.inf)
            for i in worth.topk(min(len(worth), 2 * BEAM_WIDTH)).indices.tolist():
                key: tuple[int, ...] = tuple(sorted({*rule, i}))
                if len(key) == len(rule) + 1 and worth[i] > 0:
                    longer[key] = float(worth[i])
                    if p[i] >= MIN_LIFT * q[i]:  # one condition alone need not be
                        telling.add(key)
        ranked = sorted(longer, key=lambda key: -longer[key])
        first = next((key for key in ranked if key in telling), None)
        if first is not None and longer[first] > MIN_GAIN * most:
            best, most = first, longer[first]
        beam = ranked[:BEAM_WIDTH]
    return _merged([cuts[i] for i in best])


def _merged(cuts: list[Cut]) -> tuple[Cut, ...]:
    """Join the conditions on one attribute: at least 20 and at most 30 is one range."""
    tables: dict[int, Tensor] = {}
    for column, table in cuts:
        tables[column] = table & tables[column] if column in tables else table
    return tuple(Cut(column, table) for column, table in tables.items())


def _candidates(domain: TableDomain, wanted: Tensor, others: Tensor) -> list[Cut]:
    cuts = []
    for column in domain.free.nonzero()[:, 0].tolist():
        attribute = domain.attributes[column]
        if not 2 <= attribute.size <= MAX_ATTRIBUTE_SIZE:
            continue
        tables = _ranges if attribute.ordered else _sets
        found = tables(wanted[:, column], others[:, column], attribute.size)
        if attribute.empty is not None:  # it is no number: a record that lacks one is a group of its own
            number = torch.arange(attribute.size, device=wanted.device) != attribute.empty
            found = [table & number for table in found if 0 < int((table & number).sum()) < attribute.points]
            found.append(~number)
        cuts += [Cut(column, table) for table in found]
    return cuts


def _ranges(wanted: Tensor, others: Tensor, size: int) -> list[Tensor]:
    """Return the codes from each cut on, and those below it."""
    codes = torch.arange(size, device=wanted.device)
    places = codes[1:]
    if size > 2 * CUTS_PER_ATTRIBUTE:
        levels = torch.linspace(0, 1, CUTS_PER_ATTRIBUTE + 2, dtype=torch.float64, device=wanted.device)[1:-1]
        quantiles = [torch.quantile(part.double(), levels, interpolation="higher") for part in (wanted, others)]
        ends = torch.stack([wanted.min(), wanted.max() + 1])
        places = torch.unique(torch.cat([*quantiles, ends.double()]).long())
        places = places[(places > 0) & (places < size)]
    return [table for place in places for table in (codes >= place, codes < place)]


def _sets(wanted: Tensor, others: Tensor, size: int) -> list[Tensor]:
    """Return the sets of the labels that are most frequent among the wanted records, compared with the others.

    Among all sets of one size these tell the two best apart (Breiman et al., 1984).
    """
    p, q = (torch.bincount(part, minlength=size)[:size] / len(part) for part in (wanted, others))
    order = torch.argsort((p + 1e-9) / (q + 1 / (len(others) + 1)), descending=True)
    tables = []
    for count in range(1, min(MAX_LABELS, size - 1) + 1):
        table = torch.zeros(size, dtype=torch.bool, device=wanted.device)
        table[order[:count]] = True
        tables.append(table)
    return tables


def _meet(cuts: tuple[Cut, ...], rows: Tensor) -> Tensor:
    """Return for each row whether it meets all conditions: bool, (n,)."""
    held = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for column, table in cuts:
        held &= table[rows[:, column]]
    return held


def _inside(domain: TableDomain, cuts: tuple[Cut, ...]) -> TableDomain:
    """Return the domain of the valid rows that meet all conditions, so that they can be drawn and counted exactly."""
    rules = [
        Rule(f"subgroup {i}", {domain.names[column]: part}, {})
        for i, (column, table) in enumerate(cuts)
        for part in _outside(domain.attributes[column], table)
    ]
    return replace(domain, rules=(*domain.rules, *rules))


def _outside(attribute: Attribute, table: Tensor) -> list[RuleCondition]:
    """Return conditions that together hold for exactly the codes outside a cut."""
    if attribute.values:
        return [tuple(str(attribute.value(code)) for code in (~table).nonzero()[:, 0].tolist())]
    if bool(table[attribute.points :].any()):  # an empty cell: no range includes it
        return [Span()]
    low, high = (attribute.low + attribute.step * int(table.nonzero()[end, 0]) for end in (0, -1))
    half = attribute.step / 2  # between two points of the grid, whatever rounding does
    ends = [Span(high=low - half), Span(low=high + half)]
    empty: list[RuleCondition] = [] if attribute.empty is None else [(MISSING,)]
    return [*(end for end in ends if end.high >= attribute.low and end.low <= attribute.high), *empty]
