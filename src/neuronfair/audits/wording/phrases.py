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
    FlipRateReport,
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
    join_words,
    percent,
    pluralise,
    short_number,
    spell,
)
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, Sensitivity
from neuronfair.measure.groups import RuleTerm, Subgroup
from neuronfair.measure.rate import Direction as Counted
from neuronfair.measure.rate import GroupOutcomes, PairRate, Rate, find_favourable_class
from neuronfair.measure.twin_decisions import GroupTransition, Mediator
from neuronfair.model.decision import Decision, Scale, find_probabilities
from neuronfair.searches.evaluate import counterfactuals_of

MAX_NAMED_ATTRIBUTES = 7  # attributes of a person that a sentence names; the others are in the row
MAX_TWIN_ATTRIBUTES = 5  # attributes of a counterfactual twin that a sentence names in addition to the group
MIN_ADULT_AGE = 40  # an age that goes no farther is the number of a bin, and no years


def list_class_names(domain: TableDomain, decision: Decision, outputs: int) -> Sequence[str]:
    """Return what each class that a model decides is called; nothing for a tolerance, which decides none."""
    classes, count = domain.target.classes if domain.target is not None else (), decision.classes(outputs)
    if len(classes) == count:
        return classes
    if decision.kind == "threshold":
        return f"below {exact_number(decision.value)}", f"at least {exact_number(decision.value)}"
    return [f"class {number}" for number in range(count)]


def describe_decisions(domain: TableDomain, decision: Decision, scores: Tensor, twin_scores: Tensor) -> tuple[str, str]:
    """Return the decisions for two people in words: names of classes where there are any."""
    if decision.kind == "tolerance":
        score_text, twin_score_text = distinct_numbers(float(scores[-1]), float(twin_scores[-1]))
        return f"a score of {score_text}", f"a score of {twin_score_text}"
    names = list_class_names(domain, decision, len(scores))
    return names[int(decision.decide(scores))], names[int(decision.decide(twin_scores))]


def find_leads(decision: Decision, scores: Tensor, twin_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores, (…, outputs), of people and of their twins as one number each: (…) both.

    For classes it is how far the person's class leads the twin's; else it is the score itself.
    """
    if decision.kind != "argmax":
        return scores[..., -1], twin_scores[..., -1]
    classes, twin_classes = scores.argmax(-1, keepdim=True), twin_scores.argmax(-1, keepdim=True)
    leads, twin_leads = (
        s.gather(-1, classes)[..., 0] - s.gather(-1, twin_classes)[..., 0] for s in (scores, twin_scores)
    )
    return leads, twin_leads


def describe_person(domain: TableDomain, row: Mapping[str, Cell], names: Sequence[str], unnamed_count: int) -> str:
    """Return a person in words: the named attributes, and that there are `unnamed_count` more."""
    ages = (domain.attributes[domain.column(n)] for n in names if n.casefold() == "age" and not isinstance(row[n], str))
    age = next((a.name for a in ages if not a.values and a.high >= MIN_ADULT_AGE), None)
    others = [n for n in names if n != age]
    parts = [f"{spell(n)} {row[n]}" for n in others]
    if unnamed_count > 0:
        parts.append(f"{unnamed_count} more attribute{'s' if unnamed_count > 1 else ''}")
    an = "an" if age is not None and (str(row[age])[:1] == "8" or row[age] in (11, 18)) else "a"
    subject = "a person" if age is None else f"{an} {row[age]}-year-old"
    return f"{subject} with {join_words(parts)}" if parts else subject


class DescribedPair(NamedTuple):
    """A record and the twin with a different decision, (d,) each, and the scores of both."""

    row: Tensor
    twin: Tensor
    scores: Tensor
    twin_scores: Tensor


def list_changes(domain: TableDomain, row: Tensor, twin: Tensor) -> tuple[Change, ...]:
    """Return what differs between a person and the twin."""
    table = domain.to_table(torch.stack([row, twin]))
    return tuple(Change(name, value, twin_value) for name, (value, twin_value) in table.items() if value != twin_value)


def describe_twin(domain: TableDomain, changed: Sequence[Change], limit: int = MAX_TWIN_ATTRIBUTES) -> str:
    """Return in words who the twin is: the same record in another group, or a counterfactual twin that differs in more.

    At most `limit` other attributes of a counterfactual twin are named.
    """
    phrases = {c.attribute: f"{spell(c.attribute)} {c.twin} instead of {c.own}" for c in changed}
    group = f"with {join_words([phrases.pop(name) for name in domain.sensitive if name in phrases])}"
    if not phrases and counterfactuals_of(domain) is None:
        return group
    others = [*phrases.values()][:limit]
    if (unnamed_count := len(phrases) - len(others)) > 0:
        others.append(pluralise(unnamed_count, "more attribute"))
    return f"the counterfactual twin {group} ({'also ' + join_words(others) if others else 'nothing else differs'})"


def report_finding(
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
    changed = list_changes(domain, pair.row, pair.twin)
    changed_columns = {domain.column(change.attribute) for change in changed}
    shared_columns = [c for c in domain.sensitive_columns if table[domain.names[c]][0] == table[domain.names[c]][1]]
    free_columns = [c for c in columns if bool(domain.changeable[c]) and c not in changed_columns]
    named_columns = sorted([*shared_columns, *free_columns[:MAX_NAMED_ATTRIBUTES]])
    decision_text, twin_decision = describe_decisions(domain, decision, pair.scores, pair.twin_scores)
    quote = "" if decision.kind == "tolerance" else "'"
    unnamed_count = len(table) - len(changed) - len(named_columns)
    subject = describe_person(domain, row, [domain.names[c] for c in named_columns], unnamed_count)
    score, twin_score = find_leads(decision, pair.scores, pair.twin_scores)
    probabilities = find_class_probability(domain, decision, scale, pair)
    probability_text = ""
    if probabilities is not None:
        ends = " → ".join(distinct_percents(*probabilities[1:]))
        probability_text = f" (probability of '{probabilities[0]}' {ends})"
    outcome, probability, twin_probability = probabilities or (None, None, None)
    return Finding(
        number=number,
        method=method,
        row=row,
        changed=changed,
        decision=decision_text,
        twin_decision=twin_decision,
        score=float(score),
        twin_score=float(twin_score),
        gap=float(decision.gap(pair.scores, pair.twin_scores)),
        sentence=f"{subject[0].upper()}{subject[1:]} gets {quote}{decision_text}{quote}; "
        f"{describe_twin(domain, changed)}: {quote}{twin_decision}{quote}{probability_text}.",
        outcome=outcome,
        probability=probability,
        twin_probability=twin_probability,
    )


def find_class_probability(
    domain: TableDomain, decision: Decision, scale: Scale, pair: DescribedPair
) -> tuple[str, float, float] | None:
    """Return a class and how probable it is for a person and for the twin; None where scores are only numbers.

    The class is the favourable one, or where that is not at stake the one decided for the person.
    """
    outputs = len(pair.scores)
    probabilities = find_probabilities(
        decision, scale, pair.scores[None], pair.twin_scores[None], find_favourable_class(domain, decision, outputs)
    )
    if probabilities is None:
        return None
    return (
        list_class_names(domain, decision, outputs)[int(probabilities.label)],
        float(probabilities.row),
        float(probabilities.twin),
    )


def report_condition(domain: TableDomain, term: RuleTerm) -> Condition:
    """Return one condition of a subgroup: the labels, or the ends that matter."""
    attribute = domain.attributes[term.column]
    codes = term.mask.nonzero()[:, 0].tolist()
    if attribute.values or codes[0] == attribute.empty:
        return Condition(attribute.name, values=tuple(attribute.value(code) for code in codes))
    low, high = codes[0] > 0, codes[-1] < attribute.grid_size - 1
    return Condition(
        attribute.name,
        min=attribute.value(codes[0]) if low else None,
        max=attribute.value(codes[-1]) if high else None,
    )


def _format_condition(attribute: Attribute, term: RuleTerm) -> str:
    codes = term.mask.nonzero()[:, 0].tolist()
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


def report_subgroup(domain: TableDomain, group: Subgroup) -> SubgroupReport:
    """Return a subgroup as values and as a sentence."""
    text = join_words([_format_condition(domain.attributes[term.column], term) for term in group.conditions])
    by = _name_sensitive(domain)
    lift_text = f", {group.lift:.2g} times the overall rate" if group.lift is not None else ""
    flips = f"the decision depends on {by}"
    if counterfactuals_of(domain) is not None:
        flips = f"a counterfactual twin by {by} gets a different decision"
    if isinstance(domain.twinning, PlausibleTwins):
        flips = f"a plausible twin by {by} gets a different decision"
    subject = "Realistic records" if group.rate.population == "plausible" else "Records"
    return SubgroupReport(
        text=text,
        conditions=tuple(report_condition(domain, term) for term in group.conditions),
        people=group.population_share,
        findings=group.findings_share,
        rate=report_rate(group.rate),
        lift=group.lift,
        sentence=f"{subject} with {text}: {flips} for {percent(group.rate.rate)} of them{lift_text}.",
    )


def report_pair_rate(pairs: PairRate) -> FlipRateReport:
    """Return the flip rate over plausible pairs with its interval, and who was left out, as plain values."""
    return replace(report_rate(pairs.rate), left_out=pairs.implausible_only, alone=pairs.without_twin)


def report_rate(rate: Rate) -> FlipRateReport:
    """Return a rate with its interval as plain values."""
    return FlipRateReport(rate.population, rate.rate, *rate.interval, rate.sampled, rate.flips, rate.confidence)


MAX_SIDES = 20  # sides in the report
NO_LOSER = "with no group clearly at a disadvantage"
CLEAR_SHARE = 0.05  # part by which a group must lose more often than all to be named
POPULATION_PHRASES = {
    "pairs": "in the data set (plausible twins)",
    "table": "in the data set (all allowed twins)",
    "plausible": "of realistic synthetic records",
    "domain": "drawn uniformly from the declared input space",
    "findings": "that the searches found",
}


def report_direction(
    domain: TableDomain,
    population: Literal["pairs", "table", "plausible", "domain", "findings"],
    tally: Counted | None,
) -> tuple[DirectionReport, ...]:
    """Return who gains and who loses the favourable outcome in a population; nothing where no decision flips."""
    if tally is None or not tally.records:
        return ()
    columns = [domain.attributes[c] for c in domain.sensitive_columns]
    values = [[a.group_name(code) for a, code in zip(columns, side.codes, strict=True)] for side in tally.sides]
    losers = _find_losers(columns, tally.sides) if len(tally.sides) > 2 else ()
    outcome, among = f"'{domain.favourable}'", POPULATION_PHRASES[population]
    if len(tally.sides) == 2:
        group_values, side = max(zip(values, tally.sides, strict=True), key=lambda group: group[1].loses)
        loser = join_words([f"{spell(a.name)} {value}" for a, value in zip(columns, group_values, strict=True)])
        pairs = f"{side.loses:,} of {pluralise(tally.records, 'pair')} {among}"
        sentence = f"In {pairs}, the decision is worse for {loser}: not {outcome}."
    else:
        by = _name_sensitive(domain)
        tendency = f"mostly to the disadvantage of {ALSO_OF.join(losers)}" if losers else NO_LOSER
        sentence = f"In {pluralise(tally.records, 'case')} {among}, {outcome} depends on {by}, {tendency}."
    sides = [
        SideReport(", ".join(group_values), side.gets, side.loses)
        for group_values, side in zip(values, tally.sides, strict=True)
    ]
    return (DirectionReport(population, tally.records, tuple(sides[:MAX_SIDES]), sentence, losers),)


def _find_losers(attributes: Sequence[Attribute], sides: Sequence[GroupOutcomes]) -> tuple[str, ...]:
    """Return for each sensitive attribute the group that clearly loses most often: a label, or lower or higher numbers.

    A label loses clearly if its share of losses exceeds that of all groups by a twentieth or more; numbers do if the
    means of those who lose and of those who gain lie a twentieth of the range apart.
    """
    loss_count, total = sum(side.loses for side in sides), sum(side.loses + side.gets for side in sides)
    losers = []
    for index, attribute in enumerate(attributes):
        losses, gains = Counter[int](), Counter[int]()
        for side in sides:
            losses[side.codes[index]] += side.loses
            gains[side.codes[index]] += side.gets
        if attribute.values:
            excess_losses = {code: n - (n + gains[code]) * loss_count / total for code, n in losses.items()}
            code = max(excess_losses, key=excess_losses.__getitem__)
            if excess_losses[code] >= CLEAR_SHARE * (losses[code] + gains[code]):
                losers.append(f"{spell(attribute.name)} {attribute.group_name(code)}")
        elif losses.total() and gains.total():
            means = [sum(code * n for code, n in part.items()) / part.total() for part in (losses, gains)]
            if abs(means[0] - means[1]) >= CLEAR_SHARE * (attribute.grid_size - 1):
                losers.append(f"{'lower' if means[0] < means[1] else 'higher'} {spell(attribute.name)}")
    return tuple(losers)


MAX_NAMED_MEDIATORS = 3  # mediating attributes in a sentence
SUFFICIENT_SHARE = 0.9  # of what all mediators explain together: more names would say little more
MIN_PERMUTATIONS = 20  # shuffles below which a sentence says how few there were


def report_counterfactual_test(
    domain: TableDomain, rows: Tensor, effect: CounterfactualEffect, confidence: float
) -> CounterfactualReport:
    """Return the counterfactual test of a data set as metrics and sentences."""
    rate, baseline, change = (
        Interval(*mediator) for mediator in (effect.rate, effect.permutation_baseline, effect.effect)
    )
    claimed = effect.has_excess
    attributes = [(c, a) for c, a in enumerate(domain.attributes) if c not in domain.sensitive_columns]
    moves = sorted(effect.moves, key=lambda move: -move.records)
    return CounterfactualReport(
        **vars(rate),
        of=effect.with_twin,
        draws=effect.draws,
        permutation_baseline=baseline,
        effect=change,
        claimed=claimed,
        sentence=_describe_counterfactual_rate(domain, effect),
        excess=_describe_excess(effect, confidence),
        permutations=effect.permutations,
        confidence=confidence,
        assumptions=find_assumptions(domain),
        assumed=f"{ASSUMED[find_assumptions(domain)]}. {UNTESTED}.",
        lost=effect.losses,
        gained=effect.gains,
        moves=tuple(_report_moves(domain, moves, effect)),
        disadvantaged=_describe_disadvantaged(domain, moves) if claimed and effect.losses is not None else "",
        mediators=tuple(
            MediatorReport(_name_mediators(domain, mediator), mediator.share) for mediator in effect.mediators
        ),
        mediators_text=_describe_mediators(domain, effect.mediators) if claimed else "",
        sensitivity=_report_sensitivity(domain, effect.sensitivity) if claimed else None,
        auc=effect.auc,
        predictability_text=_describe_predictability(domain, effect.auc),
        fixed=tuple(a.name for _, a in attributes if a.fixed),
        legitimate=tuple(
            ResolvingAttribute(a.name, _describe_difference(domain, rows, c, effect.small_groups))
            for c, a in attributes
            if a.legitimate
        ),
        graph=_format_graph(domain),
        graph_note=_describe_empty_test(domain),
        without=effect.without_twin,
        left_out=tuple(_format_group(domain, codes) for codes in effect.small_groups),
    )


def find_assumptions(domain: TableDomain) -> Assumptions:
    """Return what a user declared about causes: a graph, attributes that the group does not change, or nothing."""
    if find_parents(domain.attributes) is not None:
        return "graph declared"
    return (
        "held fixed" if any(a.fixed for a in domain.attributes if a.name not in domain.sensitive) else "none declared"
    )


def _describe_counterfactual_rate(domain: TableDomain, effect: CounterfactualEffect) -> str:
    """Return how many twins get a different decision: as a causal statement only where causes were declared."""
    other = "the other" if len(domain.sensitive_values) == 2 else "another"
    rate, baseline = (f"{aligned_percents(*interval)[0]}%" for interval in (effect.rate, effect.permutation_baseline))
    declared = find_assumptions(domain)
    if declared == "none declared":
        claim = f"{rate} of counterfactual twins (same place in {other} group's distribution) get a different decision"
    else:
        by = "by the declared causal graph" if declared == "graph declared" else "with what is fixed held fixed"
        claim = f"Had they been of {other} group, {rate} of people would get a different decision, {by}"
    versus = "versus" if effect.has_excess else "not clearly more than"
    return f"{claim}, {versus} {baseline} with shuffled groups (permutation baseline)."


def _describe_excess(effect: CounterfactualEffect, confidence: float) -> str:
    """Return the excess with its interval, and how many shuffles the baseline has where they are few."""
    excess, low, high = aligned_percents(*effect.effect)
    remark = (
        ""
        if effect.permutations >= MIN_PERMUTATIONS
        else f" The permutation baseline has {effect.permutations} shuffles only."
    )
    no_claim = "" if effect.has_excess else " No excess is claimed."
    interval_text = (
        f"CI {low} to {high}). It is not the plain difference: the further twins move, the less chance adds."
    )
    return f"The excess is {excess} percentage points ({percent(confidence)} {interval_text}{no_claim}{remark}"


def _report_sensitivity(domain: TableDomain, sensitivity: Sensitivity | None) -> SensitivityReport | None:
    if sensitivity is None:
        return None
    classes = domain.target.classes if domain.target is not None else ()
    index = sensitivity.outcome
    outcome = str(classes[index]) if index < len(classes) else f"class {index}"
    groups = [_format_group(domain, group) for group in (sensitivity.likelier_group, sensitivity.rarer_group)]
    sentence = (
        f"'{outcome}' is {sensitivity.ratio:.2f} times as frequent for twins in {groups[0]} as for twins in "
        f"{groups[1]}. To explain this away, a hidden confounder needs a risk ratio of at least "
        f"{sensitivity.e_value:.1f} with both the group and '{outcome}' (E-value; {sensitivity.e_value_low:.1f} at the "
        "lower end of the CI)."
    )
    return SensitivityReport(
        groups[0], groups[1], outcome, sensitivity.ratio, sensitivity.e_value, sensitivity.e_value_low, sentence
    )


def _format_graph(domain: TableDomain) -> tuple[str, ...]:
    """Return the declared causal graph, a line for each attribute; nothing where none is declared."""
    if find_parents(domain.attributes) is None:
        return ()
    return tuple(f"{a.name} <- {', '.join(a.causes or ())}".rstrip() for a in domain.attributes)


def _describe_empty_test(domain: TableDomain) -> str:
    """Return that by the declared graph nothing that twins may change depends on the group; empty if something does."""
    parents = find_parents(domain.attributes)
    if parents is None:
        return ""
    affected = set(domain.sensitive_columns)
    for column in parents_from_graph(parents, domain.sensitive_columns):
        attribute = domain.attributes[column]
        if affected & set(parents[column]) and not (attribute.fixed or attribute.legitimate):
            affected.add(column)
    if len(affected) > len(domain.sensitive_columns):
        return ""
    by = _name_sensitive(domain)
    empty = "so twins differ in nothing else and this test is empty."
    return f"By the declared causal graph no attribute that twins may change depends on {by}, {empty}"


def _report_moves(
    domain: TableDomain, moves: Sequence[GroupTransition], effect: CounterfactualEffect
) -> Iterator[MoveReport]:
    permutation_moves = {(move.group, move.twin_group): move for move in effect.permutation_moves}
    for move in moves:
        report = MoveReport(
            _format_group(domain, move.group), _format_group(domain, move.twin_group), move.records, move.flips
        )
        if effect.losses is not None:  # else no class is favourable
            report = replace(report, lost=move.losses, gained=move.gains)
            baseline = permutation_moves.get((move.group, move.twin_group))
            if baseline is not None:
                report = replace(report, permutation_lost=baseline.losses, permutation_gained=baseline.gains)
        yield report


def _describe_disadvantaged(domain: TableDomain, moves: Sequence[GroupTransition]) -> str:
    """Name the group that most people, on balance, would lose by being in."""
    clearest = max(moves, key=lambda move: abs(move.losses - move.gains) * move.records, default=None)
    if clearest is None or clearest.losses == clearest.gains:
        return ""
    group, other_group = _format_group(domain, clearest.group), _format_group(domain, clearest.twin_group)
    loser = other_group if clearest.losses > clearest.gains else group
    return (
        f"Disadvantaged group: {loser}. With {_name_sensitive(domain)} {other_group} instead of {group}, people lose "
        f"'{domain.favourable}' in {percent(clearest.losses)} of cases and gain it in {percent(clearest.gains)}."
    )


def _describe_mediators(domain: TableDomain, mediators: Sequence[Mediator]) -> str:
    """Name the few attributes through which most of the excess goes."""
    largest_share = max((mediator.share for mediator in mediators), default=0.0)
    if largest_share <= 0:
        return ""
    candidates = mediators[:MAX_NAMED_MEDIATORS]
    sufficient = (mediator for mediator in candidates if mediator.share >= SUFFICIENT_SHARE * largest_share)
    mediator = next(sufficient, max(candidates, key=lambda mediator: mediator.share))
    if mediator.share <= 0:
        return ""
    names = join_words([spell(name) for name in _name_mediators(domain, mediator)])
    return f"Holding {names} fixed removes {fraction_words(mediator.share)} of the excess."


def _describe_predictability(domain: TableDomain, auc: float | None) -> str:
    if auc is None:
        return ""
    by = _name_sensitive(domain)
    return f"The model's other inputs predict {by} with an AUC of {auc:.2f} (0.5: no better than chance)."


def _describe_difference(domain: TableDomain, rows: Tensor, column: int, left_out: Sequence[tuple[int, ...]]) -> str:
    """Return how the groups of a data set differ in an attribute that twins keep; empty cells do not count."""
    attribute = domain.attributes[column]
    numbers, codes = domain.combinations.number(rows), domain.clip(rows)[:, column]
    is_present = codes < attribute.grid_size
    codes_by_group = {
        _format_group(domain, values): codes[is_present & (numbers == i)].double()
        for i, values in enumerate(domain.sensitive_values.tolist())
        if tuple(values) not in left_out
    }
    codes_by_group = {name: group for name, group in codes_by_group.items() if len(group)}
    start = f"Twins keep {spell(attribute.name)}, which is declared as resolving (legitimate)"
    if not codes_by_group:
        return f"{start}."
    if attribute.values:
        shares = {
            name: torch.bincount(group.long(), minlength=attribute.size) / len(group)
            for name, group in codes_by_group.items()
        }
        group_shares = torch.stack(list(shares.values()))
        label = int((group_shares.amax(0) - group_shares.amin(0)).argmax())
        values_by_group, label_text = (
            {name: float(share[label]) for name, share in shares.items()},
            attribute.value(label),
        )
        values = [f"for {percent(values_by_group[name])} of {name}" for name in _find_extremes(values_by_group)]
        return f"{start}: it is {label_text} {' and '.join(values)}."
    values_by_group = {
        name: float(attribute.low + attribute.step * group.mean()) for name, group in codes_by_group.items()
    }
    values = [f"{short_number(values_by_group[name])} for {name}" for name in _find_extremes(values_by_group)]
    return f"{start}: on average it is {' and '.join(values)}."


def _find_extremes(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Return whose figure is largest and whose is smallest; one alone where all are the same group."""
    return tuple(dict.fromkeys((max(figures, key=figures.__getitem__), min(figures, key=figures.__getitem__))))


def _name_sensitive(domain: TableDomain) -> str:
    return join_words([spell(name) for name in domain.sensitive])


def _format_group(domain: TableDomain, codes: Sequence[int]) -> str:
    columns = (domain.attributes[c] for c in domain.sensitive_columns)
    return ", ".join(str(a.value(code)) for a, code in zip(columns, codes, strict=True))


def _name_mediators(domain: TableDomain, mediator: Mediator) -> tuple[str, ...]:
    return tuple(domain.names[column] for column in mediator.columns)
