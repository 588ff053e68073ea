"""Training pairs from findings: which findings may be used, and the label of both records of a pair."""

from __future__ import annotations

from experiments.repairs.stacks import train_stack
from neuronfair.domain.tables.dataset import Split
from neuronfair.errors import NeuronFairError
from neuronfair.model.encoding import TableEncoding, split_families
from neuronfair.model.train import Stack
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import fully_connected
from neuronfair.searches.findings import Findings

import torch
from torch import Tensor

MEMBERS = 5  # of the ensemble; odd, so that two classes cannot tie
HIDDEN = (32, 16)
# Quicker than the training of a classifier: five voters correct each other.
QUICK = TrainingSettings(epochs=100, batch=256, lr=0.003, patience=5)


class Ensemble:
    """Small networks that do not see the sensitive attributes and label records by majority vote."""

    def __init__(self, parts: Split, *, seed: int = 0) -> None:
        self.domain = parts.train.domain
        self.encoding = TableEncoding.of(self.domain)
        target = self.domain.target
        assert target is not None
        x, y = self._inputs(parts.train.rows), parts.train.labels
        # Each voter learns from its own draw of the rows, so that they do not all err alike.
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(len(x), (MEMBERS, len(x)), generator=generator)
        held = self._inputs(parts.validation.rows), parts.validation.labels
        results = train_stack(
            lambda: fully_connected(self.encoding.width, HIDDEN, len(target.classes)),
            (x, y),
            chosen=drawn,
            validation=held,
            settings=QUICK,
            seed=seed,
        )
        self.stack = Stack([result.module for result in results]).to(x.device).eval()

    def labels(self, rows: Tensor) -> Tensor:
        """Return the class that most members decide for: (n,)."""
        parts = split_families(self.encoding, self.domain, rows)
        return torch.cat([self._votes(part) for (part,) in zip(*parts, strict=True)])

    @torch.no_grad()
    def _votes(self, rows: Tensor) -> Tensor:
        scores = self.stack(self._inputs(rows)).transpose(0, 1)  # (n, members, classes)
        votes = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).sum(1)
        # The mean probability breaks a tie among several classes.
        labels: Tensor = (votes + 1e-4 * scores.softmax(-1).mean(1)).argmax(1)
        return labels

    def _inputs(self, rows: Tensor) -> Tensor:
        """Return the network input of records that all have the same sensitive values."""
        blind = rows.clone()
        blind[:, list(self.domain.sensitive_columns)] = 0
        return self.encoding.encode(blind)


def from_training_rows(parts: Split, findings: Findings, seeds: Tensor) -> Findings:
    """Return the findings that have nothing to do with a held-out row, on which the result is evaluated.

    A finding is left out if its search started from a validation or test row, or if one of its two records is such a
    row. A row that the training part has, too, is a training row.
    """
    domain, train = parts.train.domain, parts.train.rows
    held = torch.cat([domain.clip(part.rows) for part in (parts.validation, parts.test)])
    pairs = torch.cat([findings.rows, findings.twins(domain)]).to(train.device)
    rows = torch.cat([domain.clip(train), held, domain.clip(seeds.to(train.device)), pairs])
    _, same = torch.unique(rows, dim=0, return_inverse=True)
    learned, held_out, started, met = same.split([len(train), len(held), len(seeds), len(pairs)])
    held_out = held_out[~torch.isin(held_out, learned)]
    leaks = torch.isin(met, held_out).view(2, -1).any(0)
    if len(seeds):
        origin = findings.origin.to(leaks.device)
        leaks |= torch.isin(started, held_out)[origin.clamp(min=0)] & (origin >= 0)
    kept = findings[~leaks]
    if len(findings) and not len(kept):
        raise NeuronFairError(
            "every finding was reached from a validation or test row, so none can be trained with. "
            "Search from more seeds"
        )
    return kept
