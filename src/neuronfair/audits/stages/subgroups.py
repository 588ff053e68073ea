"""Subgroups in which flips are frequent, as short rules."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuronfair.audits.report.attribute import (
    Note,
)
from neuronfair.audits.stages.case import AttributeAudit, AttributeCase
from neuronfair.audits.wording import phrases
from neuronfair.errors import DomainError
from neuronfair.measure.subgroups import subgroups
from neuronfair.progress import Progress

MAX_FINDINGS = 20_000  # findings that rules for groups are learned from, at most


def find_subgroups(case: AttributeCase, audit: AttributeAudit, progress: Progress) -> None:
    """Look for short rules under which discrimination is frequent, in plausible pairs if they are known."""
    rate, found = audit.rate, [o.findings.packed for o in audit.outcomes]
    if rate is None or not found:
        return
    progress("Looking for groups", 0, None)
    rows = torch.cat(found)
    rows = rows[case.plausible(rows)]
    if len(rows) == 0 and rate.found == 0:
        return
    if case.pairs is not case.domain:  # the rate of the same people, compared with plausible twins only
        rate = case.rate(case.population or "domain", case.pairs)
    generator = torch.Generator().manual_seed(case.seed)
    rows = rows[torch.randperm(len(rows), generator=generator)[:MAX_FINDINGS].to(rows.device)]
    try:
        result = subgroups(
            case.model,
            case.pairs,
            rows,
            rate,
            population=case.population,
            samples=case.samples,
            decision=case.decision,
            seed=case.seed + 1,
        )
    except DomainError as error:  # a rule on top of many others may not fit their table of combinations
        seen = f"Groups in which discrimination is frequent could not be looked for: {error}"
        audit.note(Note("no-groups", seen, "Use fewer or simpler rules."))
        return
    audit.report = replace(audit.report, subgroups=tuple(phrases.subgroup(case.pairs, group) for group in result))
