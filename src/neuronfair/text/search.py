"""Searches of texts: words are replaced until the decision depends on the identity, on the one search engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from neuronfair.model.blackbox import BlackBox, Model
from neuronfair.progress import Progress, show_nothing
from neuronfair.searches import campaign
from neuronfair.searches.engine import Budget, PhaseResult, run_phase
from neuronfair.searches.findings import Findings
from neuronfair.searches.keys import KeySet
from neuronfair.searches.method import SearchContext
from neuronfair.searches.methods import METHODS, Setting
from neuronfair.searches.methods.aequitas import Uniform
from neuronfair.text.domain import TextDomain
from neuronfair.text.models import NO_ANSWER, TextModel
from neuronfair.text.network import TEXTS_PER_PASS


@dataclass(frozen=True, eq=False)
class TextSearch:
    """What one method found, next to its controls at an equal number of texts."""

    method: str
    findings: Findings
    count: campaign.SearchCounts
    random: campaign.SearchCounts | None = None  # random words in the same texts
    random_direction: campaign.SearchCounts | None = None  # the same walk along noise instead of gradients
    interrupted: bool = False


class RowScores:
    """A function from rows of a domain to scores: what a black box of texts is for a search."""

    def __init__(self, model: TextModel, domain: TextDomain) -> None:
        self.model, self.domain = model, domain

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the scores of rows; where there is no answer, zeros: `answered` tells."""
        return torch.from_numpy(self.model.answer(self.domain.write(rows)).scores).nan_to_num()

    def answered(self, rows: Tensor) -> Tensor:
        """Return for each row whether the model gave an answer: bool, (n,)."""
        return torch.from_numpy(self.model.answer(self.domain.write(rows)).decisions) != NO_ANSWER


class RowNumbers:
    """The encoding of a black box of texts: it reads the texts themselves, so that rows are just numbers here."""

    def __init__(self, domain: TextDomain) -> None:
        self.domain = domain
        self.shape = (domain.codes_per_row,)
        self.device, self.rows_per_pass = domain.device, TEXTS_PER_PASS
        self.example = domain.rows[:1].repeat(2, 1)

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the codes as numbers."""
        return rows.to(dtype)

    def effects(self, *_: object) -> Tensor:
        """There are no gradients of a black box."""
        raise NotImplementedError

    step_uphill = step_where_agreed = influence = effects


def rows_model(model: TextModel, domain: TextDomain) -> Model:
    """Return a model of texts as a model of the rows of a domain: a network, or a black box."""
    if model.tokens is not None:
        return model.tokens.network(domain)
    return BlackBox(RowScores(model, domain), RowNumbers(domain))


def search_texts(
    context: SearchContext, method: str, seeds: Tensor, *, steps: int, progress: Progress = show_nothing
) -> TextSearch:
    """Search from seed texts with a method, and with its controls at an equal number of texts.

    The controls are random words in the same texts and, for a method that follows gradients, the same walk along
    noise. Ctrl-C ends the search and keeps what was found.
    """
    findings, is_interrupted = _run_both_phases(context, method, seeds, steps, progress)
    search = TextSearch(method, findings, campaign.SearchCounts.of(findings), interrupted=is_interrupted)
    if not search.interrupted:
        random_words, is_interrupted = _try_random_words(context, seeds, findings.tried, progress)
        search = replace(search, random=random_words, interrupted=is_interrupted)
    if METHODS[method].gradients and not search.interrupted:
        random_walk, is_interrupted = _run_both_phases(replace(context, blind=True), method, seeds, steps, show_nothing)
        direction = None if is_interrupted else campaign.SearchCounts.of(random_walk)
        search = replace(search, random_direction=direction, interrupted=is_interrupted)
    return search


def _run_both_phases(
    context: SearchContext, method: str, seeds: Tensor, steps: int, progress: Progress
) -> tuple[Findings, bool]:
    """Run the global and the local phase of a method; return all findings, and whether Ctrl-C ended it."""
    evaluated = KeySet(context.domain.device)
    phases = METHODS[method].make(Setting(context, evaluated, len(seeds) * steps))
    parts = [] if phases.pilot is None else [phases.pilot.findings]

    def show_progress(completed: int, total: int, findings: int) -> None:
        progress(f"{method}: searching", completed, total, f"{findings:,} found")

    budget = Budget(steps, findings_per_seed=1)
    first = run_phase(context, phases.global_phase, seeds, budget=budget, key_set=evaluated, progress=show_progress)
    parts.append(first.findings)
    local: PhaseResult | None = None
    if first.stop != "interrupted" and len(first.findings):
        starts, origin = first.findings.rows, first.findings.origin
        budget = Budget(steps)
        local = run_phase(
            context, phases.local_phase, starts, budget=budget, origin=origin, key_set=evaluated, progress=show_progress
        )
        parts.append(local.findings)
    return Findings.join(parts), "interrupted" in (first.stop, local and local.stop)


def _try_random_words(
    context: SearchContext, seeds: Tensor, texts: int, progress: Progress
) -> tuple[campaign.SearchCounts | None, bool]:
    """Evaluate about as many texts with random words, all from the same seed texts; say whether Ctrl-C ended it."""
    steps = math.ceil(texts / max(1, len(seeds)))
    if not steps:
        return None, False
    progress("control: random words", 0, None)
    budget = Budget(steps, instances=texts)
    phase = run_phase(context, _RandomWords(), seeds, budget=budget, key_set=KeySet(context.domain.device))
    is_interrupted = phase.stop == "interrupted"
    return None if is_interrupted else campaign.SearchCounts.of(phase.findings), is_interrupted


class _RandomWords(Uniform):
    """Random words in the text of each seed."""

    def ask(self, context: SearchContext, state: dict[str, Tensor], t: int) -> Tensor:
        """Return the seeds first, and then each with other words."""
        if t == 0:
            return state["rows"]
        rows = context.domain.rows_at(
            context.draws.uniform(t, state["origin"], context.domain.draws_per_row, use="row")
        )
        return context.domain.move(state["rows"], rows)
