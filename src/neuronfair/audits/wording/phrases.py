"""Pairs, decisions, disadvantaged groups, subgroups and counterfactual tests in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neuronfair.audits.report.attribute import (
    Cell,
    Change,
    Condition,
    DirectionReport,
    Finding,
    RateOf,
    SideReport,
    SubgroupReport,
)
from neuronfair.audits.report.counterfactual import (
    ASSUMED,
    UNTESTED,
    Assumptions,
    CounterfactualReport,
    Interval,
    MediatorReport,
    MoveReport,
    ResolvingAttribute,
    SensitivityReport,
)
from neuronfair.domain.attribute import Attribute, find_parents
from neuronfair.domain.population.plausible import PlausibleTwins
from neuronfair.domain.population.trees import parents_from_graph
from neuronfair.domain.table import TableDomain
from neuronfair.formatting import (
    ALSO_OF,
    aligned_percents,
    distinct_numbers,
    distinct_percents,
    exact_number,
    fraction_words,
    listing,
    percent,
    plural,
    short_number,
    spell,
)
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, Sensitivity
from neuronfair.measure.groups import Cut, Subgroup
from neuronfair.measure.rate import Direction as Counted
from neuronfair.measure.rate import PairRate, Rate, find_favourable_class
from neuronfair.measure.rate import Side as Count
from neuronfair.measure.twin_decisions import Mediator, Move
from neuronfair.model.decision import Decision, Scale, find_probabilities
from neuronfair.searches.evaluate import counterfactuals_of

NAMED = 7  # attributes of a person that a sentence names; the others are in the row
MOVED = 5  # attributes of a counterfactual twin that a sentence names in addition to the group
ADULT = 40  # an age that goes no farther is the number of a bin, and no years


def class_names(domain: TableDomain, decision: Decision, outputs: int) -> Sequence[str]:
    """Return what each class that a model decides is called; nothing for a tolerance, which decides none."""
    classes, count = domain.target.classes if domain.target is not None else (), decision.classes(outputs)
    if len(classes) == count:
        return classes
    if decision.kind == "threshold":
        return f"below {exact_number(decision.value)}", f"at least {exact_number(decision.value)}"
    return [f"class {number}" for number in range(count)]


def decision_phrase(domain: TableDomain, decision: Decision, scores: Tensor, others: Tensor) -> tuple[str, str]:
    """Return the decisions for two people in words: names of classes where there are any."""
    if decision.kind == "tolerance":
        one, other = distinct_numbers(float(scores[-1]), float(others[-1]))
        return f"a score of {one}", f"a score of {other}"
    names = class_names(domain, decision, len(scores))
    return names[int(decision.decide(scores))], names[int(decision.decide(others))]


def leading_scores(decision: Decision, scores: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores, (…, outputs), of people and of their twins as one number each: (…) both.

    For classes it is how far the person's class leads the twin's; else it is the score itself.
    """
    if decision.kind != "argmax":
        return scores[..., -1], others[..., -1]
    own, other = scores.argmax(-1, keepdim=True), others.argmax(-1, keepdim=True)
    first, second = (s.gather(-1, own)[..., 0] - s.gather(-1, other)[..., 0] for s in (scores, others))
    return first, second


def person(domain: TableDomain, row: Mapping[str, Cell], named: Sequence[str], left: int) -> str:
    """Return a person in words: the named attributes, and that there are `left` more."""
    ages = (domain.attributes[domain.column(n)] for n in named if n.casefold() == "age" and not isinstance(row[n], str))
    age = next((a.name for a in ages if not a.values and a.high >= ADULT), None)
    others = [n for n in named if n != age]
    parts = [f"{spell(n)} {row[n]}" for n in others]
    if left > 0:
        parts.append(f"{left} more attribute{'s' if left > 1 else ''}")
    an = "an" if age is not None and (str(row[age])[:1] == "8" or row[age] in (11, 18)) else "a"
    who = "a person" if age is None else f"{an} {row[age]}-year-old"
    return f"{who} with {listing(parts)}" if parts else who


class DescribedPair(NamedTuple):
    """A record and the twin with a different decision, (d,) each, and the scores of both."""

    row: Tensor
    twin: Tensor
    scores: Tensor
    twin_scores: Tensor


def changes(domain: TableDomain, row: Tensor, twin: Tensor) -> tuple[Change, ...]:
    """Return what differs between a person and the twin."""
    table = domain.to_table(torch.stack([row, twin]))
    return tuple(Change(name, own, other) for name, (own, other) in table.items() if own != other)


def twin_phrase(domain: TableDomain, changed: Sequence[Change], most: int = MOVED) -> str:
    """Return in words who the twin is: the same record in another group, or a counterfactual twin that differs in more.

    At most `most` other attributes of a counterfactual twin are named.
    """
    said = {change.attribute: f"{spell(change.attribute)} {change.twin} instead of {change.own}" for change in changed}
    group = f"with {listing([said.pop(name) for name in domain.sensitive if name in said])}"
    if not said and counterfactuals_of(domain) is None:
        return group
    others = [*said.values()][:most]
    if (left := len(said) - len(others)) > 0:
        others.append(plural(left, "more attribute"))
    return f"the counterfactual twin {group} ({'also ' + listing(others) if others else 'nothing else differs'})"


def finding(
    domain: TableDomain,
    decision: Decision,
    pair: DescribedPair,
    columns: Sequence[int],
    number: int,
    method: str,
    scale: Scale = "numbers",
) -> Finding:
    """Return a person and the twin as values and as a sentence.

    `columns` are the attributes to name, the most telling first; `scale` is what the scores are. Of several sensitive
    attributes, those that are the same for both are named as well: the twin has them too.
    """
    table = domain.to_table(torch.stack([pair.row, pair.twin]))
    row = {name: values[0] for name, values in table.items()}
    changed = changes(domain, pair.row, pair.twin)
    moved = {domain.column(change.attribute) for change in changed}
    both = [c for c in domain.sensitive_columns if table[domain.names[c]][0] == table[domain.names[c]][1]]
    named = sorted([*both, *[c for c in columns if bool(domain.changeable[c]) and c not in moved][:NAMED]])
    one, other = decision_phrase(domain, decision, pair.scores, pair.twin_scores)
    quote = "" if decision.kind == "tolerance" else "'"
    who = person(domain, row, [domain.names[c] for c in named], len(table) - len(changed) - len(named))
    score, twin_score = leading_scores(decision, pair.scores, pair.twin_scores)
    likely = likelihood(domain, decision, scale, pair)
    odds = f" (probability of '{likely[0]}' {' → '.join(distinct_percents(*likely[1:]))})" if likely is not None else ""
    outcome, probability, twin_probability = likely or (None, None, None)
    return Finding(
        number=number,
        method=method,
        row=row,
        changed=changed,
        decision=one,
        twin_decision=other,
        score=float(score),
        twin_score=float(twin_score),
        gap=float(decision.gap(pair.scores, pair.twin_scores)),
        sentence=f"{who[0].upper()}{who[1:]} gets {quote}{one}{quote}; "
        f"{twin_phrase(domain, changed)}: {quote}{other}{quote}{odds}.",
        outcome=outcome,
        probability=probability,
        twin_probability=twin_probability,
    )


def likelihood(
    domain: TableDomain, decision: Decision, scale: Scale, pair: DescribedPair
) -> tuple[str, float, float] | None:
    """Return a class and how probable it is for a person and for the twin; None where scores are only numbers.

    The class is the favourable one, or where that is not at stake the one decided for the person.
    """
    outputs = len(pair.scores)
    found = find_probabilities(
        decision, scale, pair.scores[None], pair.twin_scores[None], find_favourable_class(domain, decision, outputs)
    )
    if found is None:
        return None
    return class_names(domain, decision, outputs)[int(found.label)], float(found.row), float(found.twin)


def condition(domain: TableDomain, cut: Cut) -> Condition:
    """Return one condition of a subgroup: the labels, or the ends that matter."""
    attribute = domain.attributes[cut.column]
    codes = cut.table.nonzero()[:, 0].tolist()
    if attribute.values or codes[0] == attribute.empty:
        return Condition(attribute.name, values=tuple(attribute.value(code) for code in codes))
    low, high = codes[0] > 0, codes[-1] < attribute.grid_size - 1
    return Condition(
        attribute.name,
        min=attribute.value(codes[0]) if low else None,
        max=attribute.value(codes[-1]) if high else None,
    )


def _condition_text(attribute: Attribute, cut: Cut) -> str:
    codes = cut.table.nonzero()[:, 0].tolist()
    name = spell(attribute.name)
    if attribute.values and not (attribute.is_ordered and len(codes) > 2):
        labels = [str(attribute.value(code)) for code in codes]
        return f"{name} {' or '.join([', '.join(labels[:-1]), labels[-1]] if len(labels) > 1 else labels)}"
    low, high = attribute.value(codes[0]), attribute.value(codes[-1])
    if codes[0] == codes[-1]:
        return f"{name} {low}"
    if codes[0] == 0:
        return f"{name} at most {high}"
    return f"{name} at least {low}" if codes[-1] == attribute.grid_size - 1 else f"{name} {low} to {high}"


def subgroup(domain: TableDomain, group: Subgroup) -> SubgroupReport:
    """Return a subgroup as values and as a sentence."""
    text = listing([_condition_text(domain.attributes[cut.column], cut) for cut in group.conditions])
    by = listing([spell(name) for name in domain.sensitive])
    times = f", {group.lift:.2g} times the overall rate" if group.lift is not None else ""
    flips = f"the decision depends on {by}"
    if counterfactuals_of(domain) is not None:
        flips = f"a counterfactual twin by {by} gets a different decision"
    if isinstance(domain.twinning, PlausibleTwins):
        flips = f"a plausible twin by {by} gets a different decision"
    who = "Realistic records" if group.rate.population == "plausible" else "Records"
    return SubgroupReport(
        text=text,
        conditions=tuple(condition(domain, cut) for cut in group.conditions),
        people=group.population_share,
        findings=group.findings_share,
        rate=rate_of(group.rate),
        lift=group.lift,
        sentence=f"{who} with {text}: {flips} for {percent(group.rate.rate)} of them{times}.",
    )


def pair_rate_of(pairs: PairRate) -> RateOf:
    """Return the flip rate over plausible pairs with its interval, and who was left out, as plain values."""
    return replace(rate_of(pairs.rate), left_out=pairs.implausible_only, alone=pairs.without_twin)


def rate_of(rate: Rate) -> RateOf:
    """Return a rate with its interval as plain values."""
    return RateOf(rate.population, rate.rate, *rate.interval, rate.sampled, rate.flips, rate.confidence)


KEPT = 20  # sides in the report
NO_LOSER = "with no group clearly at a disadvantage"
CLEAR = 0.05  # part by which a group must lose more often than all to be named
AMONG = {
    "pairs": "in the data set (plausible twins)",
    "table": "in the data set (all allowed twins)",
    "plausible": "of realistic synthetic records",
    "domain": "drawn uniformly from the declared input space",
    "findings": "that the searches found",
}


def direction(
    domain: TableDomain,
    population: Literal["pairs", "table", "plausible", "domain", "findings"],
    counted: Counted | None,
) -> tuple[DirectionReport, ...]:
    """Return who gains and who loses the favourable outcome in a population; nothing where no decision flips."""
    if counted is None or not counted.records:
        return ()
    columns = [domain.attributes[c] for c in domain.sensitive_columns]
    values = [[a.group_name(code) for a, code in zip(columns, side.codes, strict=True)] for side in counted.sides]
    names = [listing([f"{spell(a.name)} {value}" for a, value in zip(columns, own, strict=True)]) for own in values]
    said = list(zip(names, counted.sides, strict=True))
    losers = _losers(columns, counted.sides) if len(said) > 2 else ()
    outcome, among = f"'{domain.favourable}'", AMONG[population]
    if len(said) == 2:
        loser, side = max(said, key=lambda one: one[1].loses)
        pairs = f"{side.loses:,} of {plural(counted.records, 'pair')} {among}"
        sentence = f"In {pairs}, the decision is worse for {loser}: not {outcome}."
    else:
        by = listing([spell(name) for name in domain.sensitive])
        most = f"mostly to the disadvantage of {ALSO_OF.join(losers)}" if losers else NO_LOSER
        sentence = f"In {plural(counted.records, 'case')} {among}, {outcome} depends on {by}, {most}."
    sides = [SideReport(", ".join(own), side.gets, side.loses) for own, side in zip(values, counted.sides, strict=True)]
    return (DirectionReport(population, counted.records, tuple(sides[:KEPT]), sentence, losers),)


def _losers(attributes: Sequence[Attribute], sides: Sequence[Count]) -> tuple[str, ...]:
    """Return for each sensitive attribute the group that clearly loses most often: a label, or lower or higher numbers.

    A label loses clearly if its share of losses exceeds that of all groups by a twentieth or more; numbers do if the
    means of those who lose and of those who gain lie a twentieth of the range apart.
    """
    lost, every = sum(side.loses for side in sides), sum(side.loses + side.gets for side in sides)
    found = []
    for place, attribute in enumerate(attributes):
        losses, gains = Counter[int](), Counter[int]()
        for side in sides:
            losses[side.codes[place]] += side.loses
            gains[side.codes[place]] += side.gets
        if attribute.values:
            beyond = {code: n - (n + gains[code]) * lost / every for code, n in losses.items()}
            code = max(beyond, key=lambda one: beyond[one])
            if beyond[code] >= CLEAR * (losses[code] + gains[code]):
                found.append(f"{spell(attribute.name)} {attribute.group_name(code)}")
        elif losses.total() and gains.total():
            means = [sum(code * n for code, n in part.items()) / part.total() for part in (losses, gains)]
            if abs(means[0] - means[1]) >= CLEAR * (attribute.grid_size - 1):
                found.append(f"{'lower' if means[0] < means[1] else 'higher'} {spell(attribute.name)}")
    return tuple(found)


NAMED_MEDIATORS = 3  # mediating attributes in a sentence
ENOUGH = 0.9  # of what all mediators explain together: more names would say little more
FEW_PERMUTATIONS = 20  # shuffles below which a sentence says how few there were


def counterfactual_report(
    domain: TableDomain, rows: Tensor, effect: CounterfactualEffect, confidence: float
) -> CounterfactualReport:
    """Return the counterfactual test of a data set as metrics and sentences."""
    rate, baseline, change = (Interval(*one) for one in (effect.rate, effect.permutation_baseline, effect.effect))
    claimed = effect.has_excess
    kept = [(c, a) for c, a in enumerate(domain.attributes) if c not in domain.sensitive_columns]
    moves = sorted(effect.moves, key=lambda move: -move.records)
    return CounterfactualReport(
        **vars(rate),
        of=effect.with_twin,
        draws=effect.draws,
        permutation_baseline=baseline,
        effect=change,
        claimed=claimed,
        sentence=_sentence(domain, effect),
        excess=_excess(effect, confidence),
        permutations=effect.permutations,
        confidence=confidence,
        assumptions=assumptions(domain),
        assumed=f"{ASSUMED[assumptions(domain)]}. {UNTESTED}.",
        lost=effect.losses,
        gained=effect.gains,
        moves=tuple(_moves(domain, moves, effect)),
        disadvantaged=_disadvantaged(domain, moves) if claimed and effect.losses is not None else "",
        mediators=tuple(MediatorReport(_names(domain, one), one.share) for one in effect.mediators),
        mediators_text=_mediators_text(domain, effect.mediators) if claimed else "",
        sensitivity=_sensitivity(domain, effect.sensitivity) if claimed else None,
        auc=effect.auc,
        predictability_text=_group_predictability(domain, effect.auc),
        fixed=tuple(a.name for _, a in kept if a.fixed),
        legitimate=tuple(
            ResolvingAttribute(a.name, _differs(domain, rows, c, effect.small_groups)) for c, a in kept if a.legitimate
        ),
        graph=_graph(domain),
        graph_note=_graph_note(domain),
        without=effect.without_twin,
        left_out=tuple(_group(domain, codes) for codes in effect.small_groups),
    )


def assumptions(domain: TableDomain) -> Assumptions:
    """Return what a user declared about causes: a graph, attributes that the group does not change, or nothing."""
    if find_parents(domain.attributes) is not None:
        return "graph declared"
    return (
        "held fixed" if any(a.fixed for a in domain.attributes if a.name not in domain.sensitive) else "none declared"
    )


def _sentence(domain: TableDomain, effect: CounterfactualEffect) -> str:
    """Return how many twins get a different decision: as a causal statement only where causes were declared."""
    other = "the other" if len(domain.sensitive_values) == 2 else "another"
    rate, baseline = (f"{aligned_percents(*one)[0]}%" for one in (effect.rate, effect.permutation_baseline))
    declared = assumptions(domain)
    if declared == "none declared":
        said = f"{rate} of counterfactual twins (same place in {other} group's distribution) get a different decision"
    else:
        by = "by the declared causal graph" if declared == "graph declared" else "with what is fixed held fixed"
        said = f"Had they been of {other} group, {rate} of people would get a different decision, {by}"
    versus = "versus" if effect.has_excess else "not clearly more than"
    return f"{said}, {versus} {baseline} with shuffled groups (permutation baseline)."


def _excess(effect: CounterfactualEffect, confidence: float) -> str:
    """Return the excess with its interval, and how many shuffles the baseline has where they are few."""
    excess, low, high = aligned_percents(*effect.effect)
    few = (
        ""
        if effect.permutations >= FEW_PERMUTATIONS
        else f" The permutation baseline has {effect.permutations} shuffles only."
    )
    none = "" if effect.has_excess else " No excess is claimed."
    why = f"CI {low} to {high}). It is not the plain difference: the further twins move, the less chance adds."
    return f"The excess is {excess} percentage points ({percent(confidence)} {why}{none}{few}"


def _sensitivity(domain: TableDomain, found: Sensitivity | None) -> SensitivityReport | None:
    if found is None:
        return None
    classes = domain.target.classes if domain.target is not None else ()
    outcome = str(classes[found.outcome]) if found.outcome < len(classes) else f"class {found.outcome}"
    more, less = _group(domain, found.likelier_group), _group(domain, found.rarer_group)
    sentence = (
        f"'{outcome}' is {found.ratio:.2f} times as frequent for twins in {more} as for twins in {less}. "
        f"To explain this away, a hidden confounder needs a risk ratio of at least {found.e_value:.1f} with both the "
        f"group and '{outcome}' (E-value; {found.e_value_low:.1f} at the lower end of the CI)."
    )
    return SensitivityReport(more, less, outcome, found.ratio, found.e_value, found.e_value_low, sentence)


def _graph(domain: TableDomain) -> tuple[str, ...]:
    """Return the declared causal graph, a line for each attribute; nothing where none is declared."""
    if find_parents(domain.attributes) is None:
        return ()
    return tuple(f"{a.name} <- {', '.join(a.causes or ())}".rstrip() for a in domain.attributes)


def _graph_note(domain: TableDomain) -> str:
    """Return that by the declared graph nothing that twins may change depends on the group; empty if something does."""
    parents = find_parents(domain.attributes)
    if parents is None:
        return ""
    moved = set(domain.sensitive_columns)
    for column in parents_from_graph(parents, domain.sensitive_columns):
        attribute = domain.attributes[column]
        if moved & set(parents[column]) and not (attribute.fixed or attribute.legitimate):
            moved.add(column)
    if len(moved) > len(domain.sensitive_columns):
        return ""
    by = listing([spell(name) for name in domain.sensitive])
    empty = "so twins differ in nothing else and this test is empty."
    return f"By the declared causal graph no attribute that twins may change depends on {by}, {empty}"


def _moves(domain: TableDomain, moves: Sequence[Move], effect: CounterfactualEffect) -> Iterator[MoveReport]:
    shuffled = {(move.group, move.twin_group): move for move in effect.permutation_moves}
    for move in moves:
        report = MoveReport(_group(domain, move.group), _group(domain, move.twin_group), move.records, move.flips)
        if effect.losses is not None:  # else no class is favourable
            report = replace(report, lost=move.losses, gained=move.gains)
            baseline = shuffled.get((move.group, move.twin_group))
            if baseline is not None:
                report = replace(report, permutation_lost=baseline.losses, permutation_gained=baseline.gains)
        yield report


def _disadvantaged(domain: TableDomain, moves: Sequence[Move]) -> str:
    """Name the group that most people, on balance, would lose by being in."""
    clear = max(moves, key=lambda move: abs(move.losses - move.gains) * move.records, default=None)
    if clear is None or clear.losses == clear.gains:
        return ""
    own, other = _group(domain, clear.group), _group(domain, clear.twin_group)
    loser = other if clear.losses > clear.gains else own
    return (
        f"Disadvantaged group: {loser}. With {listing([spell(name) for name in domain.sensitive])} {other} instead of "
        f"{own}, people lose '{domain.favourable}' in {percent(clear.losses)} of cases and gain it in "
        f"{percent(clear.gains)}."
    )


def _mediators_text(domain: TableDomain, mediators: Sequence[Mediator]) -> str:
    """Name the few attributes through which most of the excess goes."""
    most = max((one.share for one in mediators), default=0.0)
    if most <= 0:
        return ""
    named = mediators[:NAMED_MEDIATORS]
    one = next((one for one in named if one.share >= ENOUGH * most), max(named, key=lambda one: one.share))
    if one.share <= 0:
        return ""
    names = listing([spell(name) for name in _names(domain, one)])
    return f"Holding {names} fixed removes {fraction_words(one.share)} of the excess."


def _group_predictability(domain: TableDomain, auc: float | None) -> str:
    if auc is None:
        return ""
    by = listing([spell(name) for name in domain.sensitive])
    return f"The model's other inputs predict {by} with an AUC of {auc:.2f} (0.5: no better than chance)."


def _differs(domain: TableDomain, rows: Tensor, column: int, left_out: Sequence[tuple[int, ...]]) -> str:
    """Return how the groups of a data set differ in an attribute that twins keep; empty cells do not count."""
    attribute = domain.attributes[column]
    numbers, codes = domain.combinations.number(rows), domain.clip(rows)[:, column]
    there = codes < attribute.grid_size
    known = {
        _group(domain, values): codes[there & (numbers == i)].double()
        for i, values in enumerate(domain.sensitive_values.tolist())
        if tuple(values) not in left_out
    }
    known = {name: group for name, group in known.items() if len(group)}
    kept = f"Twins keep {spell(attribute.name)}, which is declared as resolving (legitimate)"
    if not known:
        return f"{kept}."
    if attribute.values:
        shares = {
            name: torch.bincount(group.long(), minlength=attribute.size) / len(group) for name, group in known.items()
        }
        every = torch.stack(list(shares.values()))
        label = int((every.amax(0) - every.amin(0)).argmax())
        figures, what = {name: float(share[label]) for name, share in shares.items()}, attribute.value(label)
        values = [f"for {percent(figures[name])} of {name}" for name in _ends(figures)]
        return f"{kept}: it is {what} {' and '.join(values)}."
    figures = {name: float(attribute.low + attribute.step * group.mean()) for name, group in known.items()}
    values = [f"{short_number(figures[name])} for {name}" for name in _ends(figures)]
    return f"{kept}: on average it is {' and '.join(values)}."


def _ends(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Return whose figure is largest and whose is smallest; one alone where all are the same group."""
    return tuple(dict.fromkeys((max(figures, key=figures.__getitem__), min(figures, key=figures.__getitem__))))


def _group(domain: TableDomain, codes: Sequence[int]) -> str:
    columns = (domain.attributes[c] for c in domain.sensitive_columns)
    return ", ".join(str(a.value(code)) for a, code in zip(columns, codes, strict=True))


def _names(domain: TableDomain, mediator: Mediator) -> tuple[str, ...]:
    return tuple(domain.names[column] for column in mediator.columns)
