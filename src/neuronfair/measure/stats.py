"""Statistics: values with their confidence intervals, the excess of a rate, and how well scores fit labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
import torch

from neuronfair.model.decision import Decision

_TINY = 1e-12
CALIBRATION_BINS = 10  # of confidence, in which it is compared with what comes true


@dataclass(frozen=True)
class Estimate:
    """A value and its confidence interval."""

    value: float
    low: float  # lower end
    high: float  # upper end

    def __iter__(self) -> Iterator[float]:
        return iter((self.value, self.low, self.high))


def clopper_pearson(count: int, of: int, confidence: float = 0.95, *, looks: int = 1) -> Estimate:
    """Return a share with the exact interval of Clopper and Pearson (1934), one of `looks` that hold together.

    >>> print("{:.2f} ({:.4f} to {:.4f})".format(*clopper_pearson(3, 100)))
    0.03 (0.0062 to 0.0852)
    """
    from scipy.stats import beta  # here: it takes most of a second to import

    tail = (1 - confidence) / looks / 2
    low = float(beta.ppf(tail, count, of - count + 1)) if count else 0.0
    high = float(beta.isf(tail, count + 1, of - count)) if count < of else 1.0
    return Estimate(count / of, low, high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float | None, float | None]:
    """Return the mean of repeated measurements and the half-width of its interval (Student's t).

    Both are None for no values, and the half-width is None for a single value.

    >>> mean, half = mean_interval([1.0, 2.0, 3.0])
    >>> round(mean, 3), round(half, 3)
    (2.0, 2.484)
    """
    n = len(values)
    if n == 0:
        return None, None
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    deviation = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (n - 1))
    return mean, student_quantile(confidence, n) * deviation / math.sqrt(n)


MEAN_ABSOLUTE_NORMAL = sqrt(2 / math.pi)  # the mean size of a standard normal number


def excess(rate: float, baseline: float) -> float:
    """Return the share of different decisions that is not due to estimation error, from `rate - baseline` to `rate`.

    The shift between a record and a twin is known up to an error. Without a shift, the error alone gives the baseline;
    a shift much larger than the error gains as many different decisions from it as it loses. Between the two, a shift s
    with a normal error of standard deviation 1 has the mean size h(s) = s (2 Phi(s) - 1) + 2 phi(s) (folded normal
    distribution); the excess is the s for which h(s) / h(0) = rate / baseline, in shares.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    if rate <= baseline:
        return 0.0
    if baseline <= 0:
        return rate
    size = MEAN_ABSOLUTE_NORMAL * rate / baseline
    shift = brentq(lambda s: s * (2 * norm.cdf(s) - 1) + 2 * norm.pdf(s) - size, 0.0, size + 1)
    return min(rate, float(shift * baseline / MEAN_ABSOLUTE_NORMAL))


def student_quantile(confidence: float, tables: int) -> float:
    """Return the half-width of an interval in standard deviations that were estimated from so many tables."""
    from scipy.stats import t

    return float(t.isf((1 - confidence) / 2, tables - 1))


@dataclass(frozen=True)
class Fit:
    """Predicted probabilities and the true labels.

    >>> fit = Fit.of(np.array([[0.9], [0.6], [0.7], [0.2]]), np.array([1, 1, 0, 0]), Decision("threshold", 0.5))
    >>> fit.auc()[0]  # one of four pairs is in the wrong order
    0.75
    """

    probability: np.ndarray  # (n, classes)
    labels: np.ndarray  # (n,)
    decisions: np.ndarray  # (n,): the decisions, which need not be the likeliest classes
    placements: np.ndarray  # (classes, n): the share of the other side that each row is ranked correctly against

    @staticmethod
    def of(scores: np.ndarray, labels: np.ndarray, decision: Decision) -> Fit:
        """Compare scores (n, outputs) with labels."""
        from scipy.special import logsumexp, softmax

        logits = scores_to_logits(scores, decision)
        classes = range(logits.shape[1])
        lead = [logits[:, k] - logsumexp(np.delete(logits, k, 1), axis=1) for k in classes]
        placements = np.stack([_rank_shares(lead[k], labels == k) for k in classes])
        decisions = decision.decide(torch.as_tensor(scores)).numpy()
        return Fit(softmax(logits, 1), labels, decisions, placements)

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
        correct = self.probability.argmax(1) == self.labels
        parts = np.array_split(np.argsort(self.confidence, kind="stable"), min(CALIBRATION_BINS, len(correct)))
        gaps = [abs(self.confidence[part].mean() - correct[part].mean()) * len(part) for part in parts]
        return float(sum(gaps) / len(correct))

    def auc(self, reference: Fit | None = None) -> tuple[float, float]:
        """Return the mean ROC AUC of the classes, or its difference from that of a reference, and its standard error.

        The standard error is DeLong's. The classes' errors are averaged, since those of two classes are equal.
        """
        values = self.placements if reference is None else self.placements - reference.placements
        areas, errors = [], []
        for k, value in enumerate(values):
            sides = [value[self.labels == k], value[self.labels != k]]
            if min(map(len, sides)) > 1:
                areas.append(sides[0].mean())
                errors.append(sqrt(sum(side.var(ddof=1) / len(side) for side in sides)))
        return (float(np.mean(areas)), float(np.mean(errors))) if areas else (0.5 if reference is None else 0.0, 0.0)


def scores_to_logits(scores: np.ndarray, decision: Decision) -> np.ndarray:
    """Return scores, which may be probabilities, as one logit per class: (n, classes)."""
    scores = scores.astype(np.float64)
    if decision.kind == "threshold":
        last_scores = scores[:, -1]
        if last_scores.min() >= 0 and last_scores.max() <= 1:
            last_scores = np.log(last_scores.clip(_TINY, 1)) - np.log((1 - last_scores).clip(_TINY, 1))
        return np.stack([np.zeros(len(last_scores)), last_scores], 1)
    if scores.min() >= 0 and np.allclose(scores.sum(1), 1, atol=1e-3):
        return np.asarray(np.log(scores.clip(_TINY, 1)))
    return scores


def _rank_shares(lead: np.ndarray, in_class: np.ndarray) -> np.ndarray:
    """Return for each row the share of rows of the other side that are ranked correctly: the mean is the AUC."""
    from scipy.stats import rankdata

    shares = np.zeros(len(lead))
    for side, sign in ((in_class, 1.0), (~in_class, -1.0)):
        if side.any() and not side.all():
            outranked = rankdata(sign * lead)[side] - rankdata(sign * lead[side])
            shares[side] = outranked / (~side).sum()
    return shares
