"""What a proof says about single records, and whether the model agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from neuronfair.errors import Contradiction
from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.model.open import Opened
from neuronfair.proof.bounds.margins import decided_at
from neuronfair.proof.bounds.space import Boxes, CutTree
from neuronfair.proof.certificate import CertifiedBoxes, Proof
from neuronfair.proof.problem import Problem, places_of, rule_of
from neuronfair.proof.state import FAIR, FLIPS, UNDECIDED, ProofState
from neuronfair.searches.evaluate import Evaluation, evaluate

NUMBERS = 1 << 22  # of lines that are computed at once


@dataclass(frozen=True)
class Evidence:
    """The boxes of a proof, those that are done first, and how a record finds its box."""

    problem: Problem
    state: ProofState

    @cached_property
    def boxes(self) -> Boxes:
        """All boxes."""
        return Boxes(self._column("low").long(), self._column("high").long())

    @cached_property
    def valid(self) -> Tensor:
        """Which sensitive values the records of each box may have: (n, values)."""
        return self.problem.people.valid[self._column("pattern").long()]

    @cached_property
    def inside(self) -> Tensor:
        """Which of these belong to the region: (n, values)."""
        return self.problem.people.inside[self._column("pattern").long()]

    def boxes_of(self, places: Tensor) -> Tensor:
        """Return the number of the box in which each place of the region lies; -1 for a place outside."""
        inside = ((places >= 0).all(1)).nonzero()[:, 0]
        result = torch.full((len(places),), -1, dtype=torch.int64, device=places.device)
        result[inside] = self._box_of_leaf[CutTree(self.state.cuts).leaves(places[inside])]
        return result

    def twins_of(self, places: Tensor) -> Tensor:
        """Return how many sensitive values records at places may have: (n,)."""
        return self.valid[self.boxes_of(places.long())].sum(1)

    def status_of(self, places: Tensor) -> Tensor:
        """Return what is proved of the records at places: undecided, fair or flips, as guides have it."""
        status, box = self.guide_status(places), self.boxes_of(places)
        open_ = ((status == UNDECIDED) & (box >= 0)).nonzero()[:, 0]
        fair, flips = (self._column(name)[box[open_]] == 1 for name in ("fair", "flips"))
        status[open_[fair]], status[open_[flips]] = FAIR, FLIPS
        open_ = open_[~(fair | flips)]
        counted = self._column("fair_count")[box[open_]] >= 0
        for some, decide in ((open_[counted], self._by_margins), (open_[~counted], self._by_lines)):
            if len(some):
                fair, flips = decide(box[some], places[some])
                status[some[fair]], status[some[flips & ~fair]] = FAIR, FLIPS
        return status

    def _by_margins(self, box: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        problem = self.problem
        return problem.margins.decided(problem.margins_at(places), problem.slack, self.valid[box])

    def _by_lines(self, box: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return which records do not flip and which do, by the tightest lines of their boxes."""
        problem, result = self.problem, torch.zeros(2, len(box), dtype=torch.bool, device=box.device)
        bounder = problem.bounder
        if bounder is None:
            return result[0], result[1]
        chosen, owner = torch.unique(box, return_inverse=True)
        step = max(1, NUMBERS // (self.valid.shape[1] * (problem.space.features + len(problem.space.axes))))
        for begin in range(0, len(chosen), step):
            some = chosen[begin : begin + step]
            mine = ((owner >= begin) & (owner < begin + step)).nonzero()[:, 0]
            lines = bounder.lines(self.boxes[some], way=bounder.ways - 1)
            place = owner[mine] - begin
            found = decided_at(problem.margins, problem.space, lines, place, places[mine], self.valid[some])
            result[:, mine] = torch.stack(found)
        return result[0], result[1]

    def guide_status(self, places: Tensor) -> Tensor:
        """Return what is proved of guides at the same places: undecided, fair or flips."""
        guides, status = self.state.guides["places"].long(), self.state.guides["status"]
        distinct, which = torch.unique(torch.cat([guides, places]), dim=0, return_inverse=True)
        known = torch.zeros(len(distinct), dtype=status.dtype, device=status.device)
        known.scatter_reduce_(0, which[: len(guides)], status, "amax")
        return known[which[len(guides) :]]

    @cached_property
    def _box_of_leaf(self) -> Tensor:
        node = self._column("node").long()
        boxes = torch.full((len(self.state.cuts),), -1, dtype=torch.int64, device=node.device)
        boxes[node] = torch.arange(len(node), device=node.device)
        return boxes

    def _column(self, name: str) -> Tensor:
        return torch.cat([self.state.done[name], self.state.undecided[name]])


EVALUATED = 20_000  # people of boxes, and as many rows, with all their twins; fewer where there are many twins
MEMBERS = 200_000  # people and twins together
ORIGINAL = 2_000  # people about whom the source of a rebuilt model decides
FLOAT32_TOLERANCE = 1e-4  # of the scores: how near to the boundary float32 and float64 may differ
EXACT = 1e-9  # the same for float64


@dataclass(frozen=True)
class EvaluatedPeople:
    """People who were evaluated, and why."""

    what: str
    rows: Tensor


def check_against_model(
    problem: Problem, proof: Proof, opened: Opened | Model, seen: Sequence[EvaluatedPeople] = (), *, drawn: bool = True
) -> None:
    """Refuse a proof that the model contradicts: on people seen elsewhere, or on those `drawn` from its boxes."""
    assert proof.state is not None  # it was proved here
    model = opened.model if isinstance(opened, Opened) else opened
    most = max(1, min(EVALUATED, MEMBERS // len(problem.domain.sensitive_values)))
    models: list[tuple[Model, float, int]] = [(model, FLOAT32_TOLERANCE, most)]
    if not isinstance(model, BlackBox):
        models.append((model.double(), EXACT, most))
    if isinstance(opened, Opened) and opened.original is not None:
        models.append((BlackBox(opened.original, model.encoding), FLOAT32_TOLERANCE, min(ORIGINAL, most)))
    claims = _Claims(problem, proof.certified, Evidence(problem, proof.state))
    for people in (*seen, *((EvaluatedPeople("drawn at random", claims.people(most)),) if drawn else ())):
        rows = people.rows.cpu().long()
        rows = rows[torch.from_numpy(np.random.default_rng(0).permutation(len(rows))[:most])]
        claimed = claims.of_people(rows)
        for each, near, count in models:
            claims.compare(each, claimed.first(count), near, people.what)


@dataclass(frozen=True)
class _ClaimedPeople:
    """People about whom something is proved: their boxes, and whether it is that their decision does not flip."""

    rows: Tensor
    box: Tensor
    fair: Tensor  # bool; the others' flips

    def first(self, count: int) -> _ClaimedPeople:
        return _ClaimedPeople(self.rows[:count], self.box[:count], self.fair[:count])


@dataclass(frozen=True)
class _Claims:
    """What is claimed of each box."""

    problem: Problem
    certified: CertifiedBoxes
    evidence: Evidence

    @cached_property
    def boxes(self) -> Boxes:
        """The boxes, on the CPU."""
        return Boxes(torch.from_numpy(self.certified.low).long(), torch.from_numpy(self.certified.high).long())

    @cached_property
    def inside(self) -> Tensor:
        """Which sensitive values of each box belong to the region, on the CPU: (n, values)."""
        return self.evidence.inside.cpu()

    @cached_property
    def count(self) -> npt.NDArray[np.object_]:
        """How many people each box has, exactly."""
        sizes = self.problem.space.sizes(self.boxes.to(self.problem.device)).cpu().numpy().astype(object)
        return np.asarray(sizes.prod(1) * self.inside.sum(1).numpy().astype(object), dtype=object)

    def people(self, most: int) -> Tensor:
        """Return random people of boxes of which something is proved, of each box if there are not too many."""
        fair, flips = self.certified.fair, self.certified.discriminatory
        claims = zip(fair, flips, self.count, strict=True)
        proved = np.flatnonzero([people > 0 and one + other > 0 for one, other, people in claims])
        columns = len(self.problem.domain.attributes)
        if not len(proved):
            return torch.empty(0, columns, dtype=torch.int64)
        draw = np.random.default_rng(0)
        box = np.repeat(draw.permutation(proved)[:most], max(1, most // len(proved)))
        rows = torch.empty(len(box), columns, dtype=torch.int64)
        for number, axis in enumerate(self.problem.space.axes):
            order = axis.place.cpu().argsort(stable=True)
            codes = order[len(order) - int((axis.place >= 0).sum()) :]  # by place; those outside stand first
            before = np.concatenate([[0], torch.bincount(axis.place.cpu()[codes]).cumsum(0).numpy()])
            first, last = before[self.certified.low[box, number]], before[self.certified.high[box, number] + 1]
            rows[:, axis.column] = codes[torch.from_numpy(draw.integers(first, last))]
        inside = self.inside[box]
        which = torch.from_numpy(draw.integers(0, inside.sum(1).numpy()))
        value = (inside.cumsum(1) > which[:, None]).int().argmax(1)  # the first that has so many before it
        rows[:, list(self.problem.domain.sensitive_columns)] = self.problem.domain.sensitive_values.cpu()[value]
        return rows

    def of_people(self, rows: Tensor) -> _ClaimedPeople:
        """Return those about whom something is proved."""
        places = places_of(self.problem, rows).to(self.problem.device)
        box, status = self.evidence.boxes_of(places).cpu(), self.evidence.status_of(places).cpu()
        claimed = status != UNDECIDED
        return _ClaimedPeople(rows[claimed], box[claimed], status[claimed] == FAIR)

    def compare(self, model: Model, claimed: _ClaimedPeople, near: float, what: str) -> None:
        """Refuse what is claimed of people where a model decides otherwise about them."""
        if not len(claimed.rows):
            return
        domain = self.problem.domain.to(model.encoding.device)
        found = evaluate(model, domain, claimed.rows.to(domain.device), self.problem.decision)
        flip, alike = (part.cpu() for part in _certainly(found, near))
        wrong = torch.where(claimed.fair, flip, alike)
        if bool(wrong.any()):
            number = int(wrong.nonzero()[0, 0])
            raise self._error(found[number : number + 1], int(claimed.box[number]), bool(flip[number]), what)

    def _error(self, found: Evaluation, box: int, flips: bool, what: str) -> Contradiction:
        attributes = self.problem.domain.attributes
        pair = found.pairs()
        person = ", ".join(f"{a.name} {a.value(int(code))}" for a, code in zip(attributes, pair.rows[0], strict=True))
        twin = ", ".join(
            f"{attributes[column].name} {attributes[column].value(int(pair.twins[0, column]))}"
            for column in self.problem.domain.sensitive_columns
        )
        scores = [", ".join(f"{score:.6g}" for score in part[0].tolist()) for part in pair[2:]]
        rule = rule_of(self.problem, self.boxes.low[box], self.boxes.high[box]) or self.problem.where or "anything"
        proved = "nobody's decision flips" if flips else "everybody's decision flips"
        return Contradiction(
            f"the proof and the model contradict each other, so the proof is void. Proved: where {rule}, "
            f"{proved}. But the model says of a person there ({what}): {person}, scores {scores[0]}; with {twin} "
            f"it {'gets another decision' if flips else 'gets the same decision'}, scores {scores[1]}. The model was "
            "misread, or answers differently from call to call: please report this"
        )


def _certainly(found: Evaluation, near: float) -> tuple[Tensor, Tensor]:
    """Return whose decision certainly flips, and whose certainly does not, by scores that are right but for rounding.

    `near` is that rounding, in parts of the largest score of a family, or of 1.
    """
    decision, family = found.decision, found.family.double()
    exists = torch.cat([torch.ones_like(found.valid[:, :1]), found.valid], 1)
    off = near * family.abs().amax((1, 2)).clamp(min=1.0)
    if decision.kind == "tolerance":
        score = family[..., -1]
        gap = score.masked_fill(~exists, -torch.inf).amax(1) - score.masked_fill(~exists, torch.inf).amin(1)
        return gap > decision.value + 2 * off, gap < decision.value - 2 * off
    if decision.kind == "argmax":
        best = family.topk(2, -1).values
        margin = best[..., 0] - best[..., 1]
    else:
        margin = (family[..., -1] - decision.value).abs()
    sure = (margin > 2 * off[:, None]) & exists
    chosen = decision.chosen(family)
    highest = chosen.masked_fill(~sure, -1).amax(1)
    lowest = chosen.masked_fill(~sure, 1 << 30).amin(1)
    return highest > lowest, (sure | ~exists).all(1) & (highest == lowest)
