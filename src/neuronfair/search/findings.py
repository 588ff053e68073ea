"""What a search found: pairs of a person and a twin who are decided differently."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from neuronfair.domain.base import Domain
from neuronfair.model.decision import Decision
from neuronfair.model.probability import Scale, scale_of


@dataclass(frozen=True)
class Findings:
    """Individual discriminatory instances, one per line of every tensor, and what it took to find them.

    `tried` counts the different people judged, `judged` all of them, duplicates included; `rejected` counts those that
    did not stand the second judgement in float64 and are not here. The success rate (GSR) is findings over tried.
    """

    packed: Tensor  # (f, d) codes, in the domain's compact type
    twin_values: Tensor  # (f, s) codes of the twin for whom the decision flips, where it may differ: `twin_columns`
    scores: Tensor  # (f, outputs)
    twin_scores: Tensor  # (f, outputs)
    origin: Tensor  # (f,) which seed the walker came from
    step: Tensor  # (f,)
    misses: Tensor  # (m, d) a sample of the people judged alike, in the compact type too
    tried: int = 0
    judged: int = 0
    rejected: int = 0
    plausibility: Tensor = field(default_factory=lambda: torch.empty(0))  # (f,) of each person; NaN: not known

    def __post_init__(self) -> None:
        if len(self.plausibility) == 0:  # nobody has said
            unknown = torch.full((len(self.packed),), torch.nan, device=self.packed.device)
            object.__setattr__(self, "plausibility", unknown)

    def __len__(self) -> int:
        return len(self.packed)

    @property
    def rows(self) -> Tensor:
        """The codes of the findings: int64, (f, d)."""
        return self.packed.long()

    @property
    def gsr(self) -> float:
        """The share of different people judged who are findings; 0 where nobody was judged."""
        return len(self) / self.tried if self.tried else 0.0

    def twins(self, domain: Domain) -> Tensor:
        """Return the other person of each pair: (f, d)."""
        twins = self.rows.clone()
        twins[:, list(domain.twin_columns)] = self.twin_values
        return twins

    def scale(self, decision: Decision, known: Scale | None) -> Scale:
        """Return what the scores are; where that is not known, judged by those of people and twins."""
        return known or scale_of(decision, torch.cat([self.scores, self.twin_scores]))

    def __getitem__(self, chosen: Tensor | slice) -> Findings:
        """Return some of the findings; the counts and the misses stay those of the whole search."""
        parts = {name: getattr(self, name)[chosen] for name in _LINES}
        return replace(self, **parts)

    @staticmethod
    def empty(domain: Domain, outputs: int) -> Findings:
        """Return a search that found nobody."""
        rows = torch.empty(0, domain.codes_per_row, dtype=domain.compact, device=domain.device)
        number = torch.empty(0, dtype=torch.int64, device=domain.device)
        scores = torch.empty(0, outputs, device=domain.device)
        return Findings(rows, rows[:, list(domain.twin_columns)].long(), scores, scores, number, number, rows)

    @staticmethod
    def join(parts: list[Findings]) -> Findings:
        """Return several parts of one search as one; their counts add up."""
        lines: dict[str, Any] = {name: torch.cat([getattr(p, name) for p in parts]) for name in (*_LINES, "misses")}
        counts = {name: sum(getattr(p, name) for p in parts) for name in ("tried", "judged", "rejected")}
        return Findings(**lines, **counts)


_LINES = ("packed", "twin_values", "scores", "twin_scores", "origin", "step", "plausibility")
