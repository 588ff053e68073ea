"""A model and a domain as what a prover takes: axes of places, bounds of margins, and the people there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, one_line
from neuronfair.model.blackbox import Model
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.open import Opened
from neuronfair.model.operators.chain import chain_of
from neuronfair.proof.bounds.lines import Bounder, Unprovable
from neuronfair.proof.bounds.margins import Margins, question_of
from neuronfair.proof.bounds.network_axes import crown_of
from neuronfair.proof.bounds.trees import trees_of
from neuronfair.proof.boxes.people import People, people_of, refined
from neuronfair.proof.boxes.space import Axis, Space
from neuronfair.proof.where import allowed_codes

MOST_VALUES = 10_000_000  # of one attribute
NEAR = 1e-9  # how near to the boundary the answer of a network in float64 says nothing
MOST_ASKED = 5_000_000  # people of a model of which nothing is known but its answers


@dataclass(frozen=True)
class Problem:
    """What is proved about: the people of a region, and a model that decides on them."""

    domain: TableDomain
    decision: Decision
    where: str
    space: Space
    people: People
    question: Margins
    margins: Callable[[Tensor], Tensor]  # of people at places (n, axes), with every sensitive value
    slack: Tensor  # how far these may be off
    bounder: Bounder | None  # None: everybody is asked
    method: str

    @cached_property
    def count(self) -> int:
        """How many people there are, exactly."""
        return sum(self.people.count(self.space, self.people.boxes, self.people.pattern))

    @cached_property
    def whole(self) -> Tensor:
        """All people as a share of all combinations of codes, about."""
        return self.people.share(self.space, self.people.boxes, self.people.pattern).sum()

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.space.device


def problem_of(
    model: Opened | Model,
    domain: TableDomain,
    *,
    decision: Decision | None = None,
    where: str = "",
    device: str | torch.device = "cpu",
) -> Problem:
    """Return a model ready for a proof; one that nothing can be proved about is refused with the reason.

    Networks that are chains of layers and ensembles of trees are bounded; of other models everybody is asked, if there
    are few enough.
    """
    opened = model if isinstance(model, Opened) else None
    asked: Model = model.model if isinstance(model, Opened) else model
    decision = decision or (opened.decision if opened is not None else Decision())
    domain = domain.to("cpu")
    wide = next((a.name for a in domain.attributes if a.size > MOST_VALUES), None)
    if wide is not None:
        raise Unprovable(f"attribute '{wide}' has more than {MOST_VALUES:,} values. Use a larger step")
    if domain.has_bands:
        raise Unprovable("a sensitive attribute is in bands, which are for the attribute-flip test only")
    if len(domain.sensitive) == len(domain.attributes):
        raise Unprovable("all attributes are sensitive, so everybody is a twin of everybody. Ask the model about all")
    allowed = allowed_codes(domain, where)
    classes = refined(domain, allowed)
    place = torch.device(device)
    whole = partial(Problem, domain, decision, where)
    try:
        if isinstance(asked, Network):
            rows = domain.sample(64, torch.Generator().manual_seed(0))
            chain = chain_of(asked, rows)
            question = question_of(decision, asked.outputs, chain.end)
            crown = crown_of(chain, asked.encoding, domain, classes, question, place)
            people = _compared(domain, Space(crown.space.axes), allowed).to(place)
            return whole(crown.space, people, question, crown.margins, crown.slack, crown, "bounds of a network")
        if opened is not None and opened.trees is not None:
            forest = opened.trees()
            question = question_of(decision, asked.outputs, forest.link)
            trees = trees_of(forest, domain, classes, question, place)
            people = _compared(domain, Space(trees.space.axes), allowed).to(place)
            return whole(trees.space, people, question, trees.margins, trees.slack, trees, "bounds of trees")
        why = "it shows nothing of itself"
    except ModelError as error:
        why = one_line(error)
    return _everybody(whole, asked, domain, allowed, classes, decision, why)


def _compared(domain: TableDomain, space: Space, allowed: Sequence[Tensor]) -> People:
    """Return the people of a region; rules that leave nobody a twin are refused: no flip would then say nothing."""
    people = people_of(domain, space, allowed)
    if bool(people.valid.any()) and not bool((people.valid.sum(1) > 1).any()):
        names = ", ".join(domain.sensitive)
        raise Unprovable(f"the rules leave nobody another value of {names}, so there is nobody to compare with")
    return people


def unread(domain: TableDomain) -> bool:
    """Return whether models are not given any sensitive attribute: then nobody's decision can flip."""
    return not any(domain.attributes[column].given for column in domain.sensitive_columns)


def _everybody(
    whole: Callable[..., Problem],
    model: Model,
    domain: TableDomain,
    allowed: Sequence[Tensor],
    classes: Sequence[Tensor],
    decision: Decision,
    why: str,
) -> Problem:
    """Return a model of which everybody is asked, or refuse it."""
    space = Space(tuple(_axis(column, classes[column]) for column in _free(domain)))
    people = _compared(domain, space, allowed)
    question, margins, slack = answers(model, domain, decision, space)
    method = "asking nobody" if unread(domain) else "asking everybody"
    subject = whole(space, people, question, margins, slack, None, method)
    if subject.count > MOST_ASKED and not unread(domain):
        raise Unprovable(
            f"nothing can be proved about this model: {why}; and its {subject.count:,} people are more than can be "
            f"asked ({MOST_ASKED:,}). Ask about a region with --where"
        )
    return subject


def answers(
    model: Model, domain: TableDomain, decision: Decision, space: Space
) -> tuple[Margins, Callable[[Tensor], Tensor], Tensor]:
    """Return what a decision asks of a model's own scores, these for people at places, and how far they may be off."""
    question = question_of(decision, model.outputs, "none")
    exact = model.double()
    means_it = not isinstance(model, Network) and decision.kind != "tolerance"  # a black box, also where it is a tie
    sides = max(2, decision.classes(model.outputs))
    pairs = question_of(Decision(), sides, "none").matrix

    def margins(places: Tensor) -> Tensor:
        rows = rows_at(domain, space, places)
        scores = exact.scores(rows.flatten(0, 1).to(model.encoding.device)).cpu().double()
        scores = scores.view(*rows.shape[:2], -1)
        if means_it:
            return functional.one_hot(decision.chosen(scores), sides).double() @ pairs.T
        return question.margins(scores)

    off = NEAR if isinstance(model, Network) else 0.0
    return question, margins, torch.full((len(question.matrix),), off, dtype=torch.float64)


def rows_at(domain: TableDomain, space: Space, places: Tensor) -> Tensor:
    """Return people at places (n, axes) with every sensitive value as rows of codes: (n, values, attributes)."""
    values = domain.sensitive_values.to(places.device)
    rows = torch.zeros(len(places), len(values), len(domain.attributes), dtype=torch.int64, device=places.device)
    for number, axis in enumerate(space.axes):
        rows[:, :, axis.column] = axis.codes.to(places.device)[places[:, number]][:, None]
    rows[:, :, list(domain.sensitive_columns)] = values
    return rows


def _free(domain: TableDomain) -> list[int]:
    return [column for column in range(len(domain.attributes)) if column not in domain.sensitive_columns]


def _axis(column: int, classes: Tensor) -> Axis:
    """Return an axis with one place for every code of the region."""
    codes = (classes >= 0).nonzero()[:, 0]
    place = torch.full_like(classes, -1)
    place[codes] = torch.arange(len(codes))
    return Axis(column, place, codes, torch.ones_like(codes), bool(len(codes) == codes[-1] - codes[0] + 1))
