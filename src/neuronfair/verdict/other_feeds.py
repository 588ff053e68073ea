"""Another way to make numbers of the rows that suits a model better: chosen on some rows, confirmed on the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from neuronfair.domain.data import Data
from neuronfair.measure.skill import Fit, logits_of
from neuronfair.model.decision import Decision
from neuronfair.model.open import Opened
from neuronfair.model.other_encodings import CODES, ORDERS, SCALES, Feeder, OtherEncoding
from neuronfair.verdict.report import BetterFeed

TRIED = 1_000  # rows that another feed is chosen on, at most half of them; the others confirm the choice
SWAPPED, COLUMNS = 400, 24  # rows and columns, at most, with which columns are exchanged in pairs
CERTAIN = 3.3  # standard errors that are evidence: one time in 2,000 by chance
GAIN, PART = 0.03, 1 / 3  # by which another feed must raise the AUC, also as a part of what is missing to a forest's
CLOSER = 0.95  # of the own error that another feed may have at most
BETTER = 0.98  # of the error, that makes a step of the search worth taking
_MOST = 1e6  # that a score may be


@dataclass(frozen=True)
class Fed:
    """A model as it is fed: rows with labels, and its scores for them."""

    opened: Opened
    data: Data
    scores: np.ndarray  # (n, outputs)

    @property
    def labels(self) -> np.ndarray:
        """The classes of the rows."""
        return self.data.labels.cpu().numpy()

    @cached_property
    def fit(self) -> Fit:
        """How well the scores fit the labels."""
        return Fit.of(self.scores, self.labels, self.opened.decision)


def better_feed(fed: Fed, missing: float) -> BetterFeed | None:
    """Return another feed that fits the labels clearly better, chosen on some rows and confirmed on the others."""
    if _comes_true(fed.fit) and not _certain(fed.fit.error - fed.fit.promised):
        return None  # it keeps its promises: a weak model might suit other columns better, but was not trained on them
    search = _Search(fed, min(TRIED, len(fed.labels) // 2))
    own, found = search.own(search.rest), [search.turned()]
    if fed.opened.inputs is not None:
        found.append(search.of(search.named()))
        left = missing - found[-1][1].auc(own)[0]
        if left > GAIN:
            found.append(search.of(search.swapped()))
    found.sort(key=lambda one: float(one[1].error.mean()))
    for text, fit in found:
        gain, deviation = fit.auc(own)
        closer = fit.error.mean() <= CLOSER * own.error.mean() and _certain(own.error - fit.error)
        clear = gain >= max(GAIN, PART * missing) and gain > CERTAIN * deviation
        same = gain > -GAIN / 3 and _comes_true(fit) and not _comes_true(own)
        if text and closer and (clear or same):
            return BetterFeed(text, float((fit.decided == fit.labels).mean()), fit.auc()[0])
    return None


def _certain(values: np.ndarray) -> bool:
    return bool(values.mean() > CERTAIN * values.std() / sqrt(len(values)))


def _comes_true(fit: Fit) -> bool:
    """Return whether the mean probability of each class is about its share."""
    off = fit.probability - np.eye(fit.probability.shape[1])[fit.labels]
    return bool((abs(off.mean(0)) <= 0.01 + CERTAIN * off.std(0) / sqrt(len(off))).all())


class _Search:
    """Tries feeds on the first rows of a table."""

    def __init__(self, fed: Fed, tried: int) -> None:
        self.fed, self.labels = fed, fed.labels
        self.feeder = Feeder(fed.data.domain.attributes, fed.data.rows)
        self.tried, self.rest = slice(0, tried), slice(tried, None)

    def own(self, chosen: slice) -> Fit:
        """Return the fit of the model as it is fed, on some rows only."""
        return Fit.of(self.fed.scores[chosen], self.labels[chosen], self.fed.opened.decision)

    def of(self, feed: OtherEncoding) -> tuple[str, Fit]:
        """Return a feed in words and its fit on the rows that it was not chosen on."""
        return feed.text, self.fit(self.feeder.numbers(feed, self.rest), self.labels[self.rest])

    def fit(self, numbers: np.ndarray, labels: np.ndarray) -> Fit:
        """Return how the model fits labels when it is given these numbers; one that refuses them says nothing."""
        ask, outputs = self.fed.opened.inputs, self.fed.scores.shape[1]
        assert ask is not None
        try:
            scores = torch.as_tensor(ask(numbers)).cpu().double().numpy().reshape(len(labels), outputs)
        except Exception:  # the model's own code
            scores = np.zeros((len(labels), outputs))
        scores = np.nan_to_num(scores, posinf=_MOST, neginf=-_MOST).clip(-_MOST, _MOST)
        return Fit.of(scores, labels, self.fed.opened.decision)

    def error(self, feed: OtherEncoding) -> float:
        """Return the mean error of a feed on the rows that one is chosen on."""
        return float(self.fit(self.feeder.numbers(feed, self.tried), self.labels[self.tried]).error.mean())

    def turned(self) -> tuple[str, Fit]:
        """Return the classes in the order that fits best."""
        own, logits = self.own(self.tried), logits_of(self.fed.scores[self.rest], self.fed.opened.decision)
        classes = np.arange(logits.shape[1])
        order = linear_sum_assignment([-own.probability[own.labels == k].sum(0) for k in classes])[1]
        text = "" if (order == classes).all() else "the classes in another order"
        fit = Fit.of(logits[:, order], self.labels[self.rest], Decision())
        return text, replace(fit, decided=np.argsort(order)[self.own(self.rest).decided])

    def named(self) -> OtherEncoding:
        """Return the best of the feeds that have a name: scale, codes and order, one after the other."""
        best, least = OtherEncoding(), self.error(OtherEncoding())
        for kind in ("scale", "codes", "order", "scale"):
            options = {
                "scale": [replace(best, scale=name) for name in ("", *SCALES)],
                "codes": [replace(best, codes=name) for name in CODES],
                "order": [replace(best, order=self.feeder.order(name), moved=name) for name in ORDERS],
            }[kind]
            for feed in options:
                error = self.error(feed)
                if error < BETTER * least:
                    best, least = feed, error
        return best

    def swapped(self) -> OtherEncoding:
        """Return the columns in another order, found by exchanging two of them as long as it helps."""
        chosen = slice(0, min(SWAPPED, self.tried.stop))
        labels, count = self.labels[chosen], len(self.feeder.attributes)
        order = begun = tuple(range(count))
        least = float(self.own(chosen).error.mean())
        for _ in range(count if count <= COLUMNS else 0):
            errors: dict[tuple[int, ...], float] = {}
            for first in range(count - 1):
                orders = [_exchanged(order, first, second) for second in range(first + 1, count)]
                made = [self.feeder.numbers(OtherEncoding(order=one), chosen) for one in orders]
                fit = self.fit(np.concatenate(made), np.tile(labels, len(orders)))
                errors |= zip(orders, fit.error.reshape(len(orders), -1).mean(1).tolist(), strict=True)
            best = min(errors, key=lambda one: errors[one])
            if errors[best] > BETTER * least:
                break
            order, least = best, errors[best]
        return OtherEncoding() if order == begun else OtherEncoding(order=order, moved="the columns in another order")


def _exchanged(order: tuple[int, ...], first: int, second: int) -> tuple[int, ...]:
    changed = list(order)
    changed[first], changed[second] = changed[second], changed[first]
    return tuple(changed)
