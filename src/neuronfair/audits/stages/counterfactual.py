"""The counterfactual test of an audit, and a few records next to their counterfactual twins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from neuronfair.audits.report.attribute import DATA_SET, NO_SCORE_CHANGES, NOT_USED, CounterfactualPerson, Note
from neuronfair.audits.report.counterfactual import NO_COUNTERFACTUALS
from neuronfair.audits.settings import AuditSettings
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.audits.stages.run_searches import evaluate_pairs
from neuronfair.audits.wording import phrases
from neuronfair.audits.wording.phrases import report_counterfactual_test
from neuronfair.domain.draws import draw_order
from neuronfair.domain.population.counterfactuals import with_counterfactuals
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DomainError
from neuronfair.formatting import join_words, spell
from neuronfair.measure.counterfactual_effect import CounterfactualEffect, CounterfactualTest, ResampledTable
from neuronfair.model.blackbox import Model
from neuronfair.progress import Progress

MAX_PEOPLE_SHOWN = 4
MAX_PEOPLE_SEARCHED = 400  # records among which they are searched


def select_people(case: AttributeCase, effect: CounterfactualEffect) -> tuple[CounterfactualPerson, ...]:
    """Return records most of whose twins get a different decision, each with the typical twin; of each group in turn.

    None where no effect is claimed: with shuffled groups there would be such records, too.
    """
    if not effect.has_excess:
        return ()
    order = effect.shares.argsort(descending=True, stable=True)[:MAX_PEOPLE_SEARCHED]
    domain = with_counterfactuals(case.domain, effect.counterfactuals)
    records = effect.records[order]
    pairs = evaluate_pairs(replace(case, data=replace(case.data, domain=domain)), records)
    group_numbers = domain.combinations.number(records)
    # With a tolerance, the two records that lie farthest apart may both be counterfactual twins.
    flips = case.decision.differ(pairs.scores, pairs.twin_scores) & (pairs.rows == records).all(1)
    earlier_flips = (group_numbers[:, None] == group_numbers) & flips
    rank_in_group = torch.where(
        flips, earlier_flips.tril(-1).sum(1), len(order)
    )  # the place of each record in its group
    chosen = rank_in_group.argsort(stable=True)[: min(MAX_PEOPLE_SHOWN, int(flips.sum()))]
    table = case.domain.clip(case.data.rows)
    people = []
    for i in chosen.tolist():
        record_index = int((table == pairs.rows[i]).all(1).nonzero()[0])
        pair = phrases.DescribedPair(*(part[i] for part in pairs))
        changed_columns = (pair.row != pair.twin).nonzero()[:, 0].tolist()
        columns = [*changed_columns, *(c for c in case.importance_order if c not in changed_columns)]
        person = phrases.report_finding(domain, case.decision, pair, columns, record_index, DATA_SET, case.scale)
        people.append(CounterfactualPerson(person, float(effect.shares[order[i]])))
    return tuple(people)


MAX_LEARNED_RECORDS, MAX_SECONDARY_RECORDS = (
    50_000,
    10_000,
)  # records that twins are learned from, some forty times; fewer if flips lead


def prepare_test(case: AttributeCase, settings: AuditSettings, *, leads: bool) -> CounterfactualTest | DomainError:
    """Return the counterfactual test of a data set; where such twins are impossible, why.

    It is an error if the settings require them.
    """
    rows, limit = case.data.in_compared_groups.rows, MAX_LEARNED_RECORDS if leads else MAX_SECONDARY_RECORDS
    if len(rows) > limit:
        rows = rows[draw_order(len(rows), case.seed)[:limit].to(rows.device)]
    try:
        return case.counterfactual_test(rows, settings.choose_counterfactual_settings(case.samples, leads=leads))
    except DomainError as error:
        if settings.twins == "counterfactual":
            raise
        return error


def choose_search_case(
    case: AttributeCase,
    audit: AttributeAudit,
    test: CounterfactualTest | DomainError,
    progress: Progress,
    *,
    leads: bool,
) -> AttributeCase:
    """Return the case that the searches get: with counterfactual twins where their test leads, and flips otherwise.

    Where such twins are impossible a note says so.
    """
    if isinstance(test, DomainError):
        observation = f"No record was compared with counterfactual twins. {test}."
        audit.note(Note(NO_COUNTERFACTUALS, observation, "The figures speak of flips only."))
        return case
    if not leads:
        return case
    audit.report = replace(audit.report, search_twins="counterfactual")
    configs = tuple(replace(config, twins="counterfactual") for config in case.configs)
    domain = with_counterfactuals(case.domain, test.counterfactuals)
    progress("Evaluating the counterfactual twins of realistic records", 0, None)
    audit.rate = case.rate("domain" if case.population is None else case.population, domain)  # of which subgroups speak
    return replace(case, data=replace(case.data, domain=domain), configs=configs)


def report_counterfactuals(
    case: AttributeCase, audit: AttributeAudit, test: CounterfactualTest, tables: Sequence[ResampledTable]
) -> None:
    """Report how often the decisions for counterfactual twins differ, and a few of these people."""
    effect = test.estimate_effect(tables)
    audit.report = replace(
        audit.report,
        counterfactual=report_counterfactual_test(case.domain, test.rows, effect, case.confidence),
        counterfactual_people=select_people(case, effect),
    )


def note_unused_attributes(case: AttributeCase, reads: tuple[str, ...] | None) -> list[Note]:
    """Return a note if the model does not read the sensitive attributes: by its inputs, or because no score changes."""
    by = join_words([spell(name) for name in case.domain.sensitive])
    if reads is not None and not set(case.domain.sensitive) & set(reads):
        name, observation = NOT_USED, f"The model does not use {by}, so no decision depends on it directly."
    elif _scores_change(case.model, case.domain, case.data.rows):
        return []
    else:
        name, observation = (
            NO_SCORE_CHANGES,
            f"No score of the {len(case.data):,} records in the data set changes with {by}.",
        )
    remedy = "The flip test does not see proxies: look at the counterfactual test and at the groups."
    return [Note(name, observation, remedy)]


def _scores_change(model: Model, domain: TableDomain, rows: Tensor) -> bool:
    """Return whether any score of these rows changes, however little, if only the sensitive attributes change."""
    alternatives = domain.combinations.others
    for part in torch.split(rows, max(1, model.encoding.rows_per_pass // (len(alternatives) + 1))):
        scores = model.scores(part)
        for values in alternatives:  # one after the other: rows in another place of a batch may be rounded otherwise
            if not torch.equal(scores, model.scores(domain.combinations.rows_at_offsets(part, values[None])[:, 0])):
                return True
    return False
