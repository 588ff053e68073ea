"""What a decision asks of a model's sums, as a checker sees it: signed margins, and what their least values prove."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from neuronfair.model.decision import Decision
from neuronfair.proof.certificate import CertificateError
from neuronfair.proof.checker.conditions import Bools
from neuronfair.proof.checker.ground import Floats

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Signed:
    """Margins with their sign: row r of `matrix` times the sums, plus `offset`. Each comes both ways.

    Class c is chosen where all rows `classes[c]` are positive. With a tolerance the rows are the score and its
    negative, and there are no classes.
    """

    matrix: Floats  # (rows, outputs)
    offset: Floats  # (rows,) less how far it may be off
    classes: tuple[tuple[int, ...], ...]
    against: tuple[
        tuple[int, ...], ...
    ]  # for each class the same rows the other way: one is positive for another class
    tolerance: float = math.nan
    squash: bool = False  # the score is a sigmoid of the sum

    def decided(self, least: Floats, valid: Bools) -> tuple[Bools, Bools]:
        """Return who is surely decided alike and who surely is not, by the least values of rows, (n, values, rows)."""
        off = ~valid
        if not self.classes:
            low, high = least[..., 0], -least[..., 1]
            slack = 8 * EPS * (np.where(off, 0, np.abs(low) + np.abs(high)).max(1) + abs(self.tolerance))
            top = np.where(off, -np.inf, high).max(1) - np.where(off, np.inf, low).min(1)
            gap = np.where(off, -np.inf, low).max(1) - np.where(off, np.inf, high).min(1)
            return top + slack <= self.tolerance, gap - slack > self.tolerance
        above = least > 0
        fair, flips = np.zeros(len(least), bool), np.zeros(len(least), bool)
        for rows, against in zip(self.classes, self.against, strict=True):
            sure, never = above[..., rows].all(-1), above[..., against].any(-1)
            fair |= (sure | off).all(1)
            flips |= (sure & valid).any(1) & (never & valid).any(1)
        return fair, flips


def signed(decision: Decision, outputs: int, end: str) -> Signed:
    """Return what a decision asks of the sums that a model has before its end."""
    decision.check(outputs)
    one = np.eye(outputs)
    if end == "sigmoid" and decision.kind == "argmax":
        raise CertificateError(
            "a choice among sigmoids cannot be checked: rounding makes them equal where they are near 1"
        )
    if decision.kind == "argmax":
        pairs = [(c, j) for c in range(outputs) for j in range(outputs) if c != j]
        classes, against = (
            tuple(tuple(i for i, pair in enumerate(pairs) if pair[side] == c) for c in range(outputs))
            for side in (0, 1)
        )
        return Signed(np.array([one[c] - one[j] for c, j in pairs]), np.zeros(len(pairs)), classes, against)
    if end == "softmax" and outputs != 2:
        raise CertificateError("a score that is one of several probabilities cannot be checked")
    score = one[-1] - one[0] if end == "softmax" else one[-1]
    both = np.array([score, -score])
    if decision.kind == "tolerance":
        return Signed(both, np.zeros(2), (), (), decision.value, end != "none")
    either = ((1,), (0,))
    limit, slack = decision.value, 0.0
    if end != "none":
        if 1 - 1e-9 <= limit <= 1:
            raise CertificateError(f"a threshold of {limit:g} is so near 1 that rounding decides who reaches it")
        if not 0 < limit < 1:  # everybody lies on one side; the sums do not matter
            sign = 1.0 if limit <= 0 else -1.0
            return Signed(0 * both, np.array([sign, -sign]), either, either[::-1])
        limit = math.log(decision.value) - math.log1p(-decision.value)
        slack = 8 * EPS * (abs(math.log(decision.value)) + abs(math.log1p(-decision.value)))
    return Signed(both, np.array([-limit, limit]) - slack, either, either[::-1])
