"""One proof about a planted model, held against the truth."""

from __future__ import annotations

import random
from dataclasses import dataclass
from unittest.mock import patch

from neuronfair.domain.schema.toml import allowed_codes
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.proof import prove as proving
from neuronfair.proof.certificate import Region
from neuronfair.proof.problem import ProofProblem, build_problem, locate_rows
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.proof.records import Evidence, ProofRecords
from neuronfair.proof.regions import find_largest_regions, find_region
from neuronfair.proof.state import DEPENDS, FAIR

import torch
from torch import Tensor

from .certified_boxes import truth_of
from .everybody import Truth, everybody
from .planted import planted

GUIDES, LOOKED_AT = 300, 2_000  # rows that guide a proof, and records about which it is asked afterwards
REGIONS = 2  # that are grown around single rows


@dataclass(frozen=True)
class Claims:
    """How many boxes a proof has, which are wrong, and how many are other than the model's own rounding."""

    name: str
    boxes: int
    wrong: tuple[str, ...]
    rounded: int
    share: float  # of people who are decided
    records: int  # about which it says something

    @property
    def kind(self) -> str:
        """What kind of model it is about."""
        return self.name.partition(" ")[0]


def held(seed: int, *, kind: str | None = None, people: int = 50_000, steps: int = 30) -> Claims:
    """Return what a proof of a few steps about a planted model claims, and what of it is wrong.

    In some of them everybody is asked in large boxes, in others in hardly any, so that bounds must do it. Half of them
    follow guides, some of which are drawn on the way. What the proof says about single records is compared, too: about
    drawn ones, about each row of a data set some rows of which are no record of the domain, and about regions.
    """
    case = planted(seed, kind=kind, people=people)
    draw = random.Random(seed)
    left = draw.randint(1, steps)

    def stop(_: ProofProgress) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt  # the proof so far is kept

    truth = everybody(case.asked, case.domain, case.decision, doubt=case.doubt)
    problem = build_problem(case.model, case.domain, decision=case.decision)
    small, records = draw.choice((1, 1, 8, 512)), _records(problem, seed) if draw.random() < 0.5 else None
    few = patch.dict(proving.DRAWN_GUIDES, cpu=GUIDES), patch.object(proving, "MAX_DRAWING_TIME", 1e9)
    with patch.object(proving, "MAX_ENUMERATED", small), few[0], few[1]:
        proof = prove(problem, seconds=600, progress=stop, guides=records and records.guides)
    certified = proof.certified
    told = truth_of(certified, problem.space, truth)
    wrong = [] if told.covered else ["its boxes do not cover the domain once"]
    if not proof.record_count == truth.people == case.domain.count:
        wrong.append(f"{proof.record_count} people instead of {truth.people}")
    wrong += [
        f"box {box} claims {certified.fair[box]} fair and {certified.discriminatory[box]} not, in truth "
        f"{told.fair[box]} and {told.discriminatory[box]}, of whom near a boundary "
        f"{told.near_fair[box]} and {told.near_discriminatory[box]}"
        for box in told.wrong(certified).tolist()
    ]
    share = (proof.fair + proof.discriminatory) / proof.record_count
    assert proof.state is not None
    evidence = Evidence(problem, proof.state)
    decided, contradicted = _contradicted(evidence, truth, _drawn(case.domain, LOOKED_AT, seed))
    wrong += [f"what it says about record {row} is false" for row in contradicted.tolist()]
    if records is not None:
        wrong += _wrong_rows(records, evidence, truth, complete=proof.complete)
        rows = records.in_region.nonzero()[:REGIONS, 0] + 1
        regions = [*(find_region(records, int(row)) for row in rows), *find_largest_regions(records, evidence)]
        wrong += [f"the region '{region.rule}' is false" for region in regions if region and _is_wrong(region, truth)]
    return Claims(case.name, len(certified), tuple(wrong), len(told.rounded(certified)), share, decided)


def _drawn(domain: TableDomain, count: int, seed: int) -> Tensor:
    return domain.sample(count, torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class _Uniform:
    """A population of all records of a domain alike."""

    domain: TableDomain

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        return self.domain.sample(count, generator)


def _records(problem: ProofProblem, seed: int) -> ProofRecords:
    """Return rows of which some occur twice, some break a rule, and some have a code that the domain does not have."""
    domain = problem.domain
    rows = _drawn(domain, GUIDES, seed + 1)
    sizes = torch.tensor([attribute.size for attribute in domain.attributes])
    any_codes = (torch.rand(GUIDES // 3, len(sizes), generator=torch.Generator().manual_seed(seed)) * sizes).long()
    strange = rows[:3].clone()
    strange[0, 0], strange[1, -1], strange[2, 1] = -1, sizes[-1], sizes[1] + 5
    rows = torch.cat([rows, any_codes, strange, rows[::5]])
    data = Dataset("planted", domain, rows, torch.full((len(rows),), -1))
    return ProofRecords.of(problem, data, _Uniform(domain), "records")  # type: ignore[arg-type]


def _wrong_rows(records: ProofRecords, evidence: Evidence, truth: Truth, *, complete: bool) -> list[str]:
    """Return what is wrong about the rows of a data set, one by one and in all."""
    rows, claims, status = records.rows, records.find_claims(evidence), records.status(evidence)
    sizes = torch.tensor([attribute.size for attribute in truth.domain.attributes])
    known = ((rows >= 0) & (rows < sizes)).all(1)
    exists = known & truth.domain.valid(torch.where(known[:, None], rows, 0))
    family = truth.place(torch.where(exists[:, None], rows, 0))
    flips, sure = truth.flips[family], ~truth.close[family]
    false = ((status == FAIR) & flips & sure) | ((status == DEPENDS) & ~flips & sure) | ((status > 0) & ~exists)
    wrong = [f"what it says about row {row} is false" for row in rows[false].tolist()]
    counts = [int((status == one).sum()) for one in (FAIR, DEPENDS)]
    assert claims is not None
    said = [claims.certified_fair.count, claims.certified_discriminatory.count, claims.undecided.count]
    if said != [*counts, len(rows) - sum(counts)] or claims.outside_domain != int((~exists).sum()):
        wrong.append(f"it counts {said} of {len(rows)} rows, {claims.outside_domain} of them outside the domain")
    if complete and bool((exists & sure & (status == 0)).any()):
        wrong.append("nothing is undecided, but some rows are")
    return wrong


def _is_wrong(region: Region, truth: Truth) -> bool:
    """Return whether a region has other people than it says, or one who is not decided as it says."""
    allowed = allowed_codes(truth.domain, region.rule)
    met = {column: allowed[column] for column in truth.columns}
    others = truth.members * (truth.flips != region.depends) * ~truth.close
    return truth.total(truth.members, met) != int(region.size.count) or truth.total(others, met) > 0


def _contradicted(evidence: Evidence, truth: Truth, rows: Tensor) -> tuple[int, Tensor]:
    """Return about how many records, guides included, a proof says something, and the rows that it is wrong about."""
    status = evidence.find_status(locate_rows(evidence.problem, rows))
    family = truth.place(rows)
    flips, close = truth.flips[family], truth.close[family]
    wrong = (((status == FAIR) & flips) | ((status == DEPENDS) & ~flips)) & ~close
    return int(((status == FAIR) | (status == DEPENDS)).sum()), rows[wrong]
