"""How well the scores of a model fit labels: Brier score, calibration error and ROC AUC with its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
import torch

from neuronfair.model.decision import Decision

_TINY = 1e-12
CALIBRATION_BINS = 10  # of confidence, in which it is compared with what comes true


@dataclass(frozen=True)
class Fit:
    """Predicted probabilities and the true labels.

    >>> one = Fit.of(np.array([[0.9], [0.6], [0.7], [0.2]]), np.array([1, 1, 0, 0]), Decision("threshold", 0.5))
    >>> one.auc()[0]  # one of four pairs is in the wrong order
    0.75
    """

    probability: np.ndarray  # (n, classes)
    labels: np.ndarray  # (n,)
    decided: np.ndarray  # (n,): the decisions, which need not be the likeliest classes
    placements: (
        np.ndarray
    )  # (classes, n): the share of rows of the other side that each row is ranked correctly against

    @staticmethod
    def of(scores: np.ndarray, labels: np.ndarray, decision: Decision) -> Fit:
        """Compare scores (n, outputs) with labels."""
        from scipy.special import logsumexp, softmax

        logits = logits_of(scores, decision)
        classes = range(logits.shape[1])
        lead = [logits[:, k] - logsumexp(np.delete(logits, k, 1), axis=1) for k in classes]
        placements = np.stack([_placements(lead[k], labels == k) for k in classes])
        decided = decision.chosen(torch.as_tensor(scores)).numpy()
        return Fit(softmax(logits, 1), labels, decided, placements)

    @cached_property
    def error(self) -> np.ndarray:
        """The Brier score of each row: the squared distance of its probabilities from its label."""
        true = np.eye(self.probability.shape[1])[self.labels]
        return np.asarray(((self.probability - true) ** 2).sum(1))

    @property
    def confidence(self) -> np.ndarray:
        """The probability of the likeliest class of each row."""
        return np.asarray(self.probability.max(1))

    @property
    def calibration(self) -> float:
        """The expected calibration error: mean gap between confidence and accuracy over bins of equal size."""
        right = self.probability.argmax(1) == self.labels
        parts = np.array_split(np.argsort(self.confidence, kind="stable"), min(CALIBRATION_BINS, len(right)))
        gaps = [abs(self.confidence[part].mean() - right[part].mean()) * len(part) for part in parts]
        return float(sum(gaps) / len(right))

    def auc(self, than: Fit | None = None) -> tuple[float, float]:
        """Return the mean ROC AUC of the classes, or how much larger it is `than` another's, and its standard error.

        The standard error is DeLong's. The classes' errors are averaged, since those of two classes are equal.
        """
        values = self.placements if than is None else self.placements - than.placements
        areas, errors = [], []
        for k, value in enumerate(values):
            sides = [value[self.labels == k], value[self.labels != k]]
            if min(map(len, sides)) > 1:
                areas.append(sides[0].mean())
                errors.append(sqrt(sum(side.var(ddof=1) / len(side) for side in sides)))
        return (float(np.mean(areas)), float(np.mean(errors))) if areas else (0.5 if than is None else 0.0, 0.0)


def logits_of(scores: np.ndarray, decision: Decision) -> np.ndarray:
    """Return scores, which may be probabilities, as one logit per class: (n, classes)."""
    scores = scores.astype(np.float64)
    if decision.kind == "threshold":
        own = scores[:, -1]
        if own.min() >= 0 and own.max() <= 1:
            own = np.log(own.clip(_TINY, 1)) - np.log((1 - own).clip(_TINY, 1))
        return np.stack([np.zeros(len(own)), own], 1)
    if scores.min() >= 0 and np.allclose(scores.sum(1), 1, atol=1e-3):
        return np.asarray(np.log(scores.clip(_TINY, 1)))
    return scores


def _placements(lead: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Return for each row the share of rows of the other side that are ranked correctly: the mean is the AUC."""
    from scipy.stats import rankdata

    found = np.zeros(len(lead))
    for side, sign in ((inside, 1.0), (~inside, -1.0)):
        if side.any() and not side.all():
            below = rankdata(sign * lead)[side] - rankdata(sign * lead[side])
            found[side] = below / (~side).sum()
    return found
