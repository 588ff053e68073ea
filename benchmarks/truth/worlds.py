"""Made-up people of whom it is known who they would be in the other group: the same noise, another group.

Every attribute is a function of the group, of earlier attributes and of noise of its own. A number adds its noise, a
flag is up where its noise lies below the chance (inverse distribution function), a label is the one whose score with
its Gumbel noise is the largest. A person's true counterfactual has the same noise throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, logit, logsumexp, ndtr, ndtri
from torch import Tensor

Kind = Literal["linear", "curved", "mixed", "weak", "apart"]
KINDS: tuple[Kind, ...] = ("linear", "curved", "mixed", "weak")
HIGHEST = 40  # of a number's codes
STEPS = 5  # codes per standard deviation of a number's noise
LABELS = 4
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


class World:
    """People, who they would be in the other group, and a model that does not read the group.

    "linear": numbers only, sums. "curved": numbers, whose sums are bent, and spread by the group. "mixed": numbers,
    flags and labels, curved. "weak": mixed, a quarter of the effect. "apart": mixed, nothing depends on the group.
    """

    def __init__(self, kind: Kind, people: int, seed: int, columns: int = 8) -> None:
        g = np.random.default_rng(seed)
        mixed = ("number", "flag", "label")
        self.kinds = ["number" if kind in ("linear", "curved") else mixed[j % 3] for j in range(columns)]
        self.bent = kind != "linear"
        size = {"weak": 0.25, "apart": 0.0}.get(kind, 1.0)
        links = np.tril(g.random((columns, columns)) < 0.4, -1)
        self.effect = size * g.normal(0, 1.2, columns) * (g.random(columns) < 0.6)
        self.spread = size * g.normal(0, 0.3, columns) * self.bent
        self.weights = g.normal(0, 0.7, (columns, columns)) * links
        self.twist = size * g.normal(0, 0.4, (columns, columns)) * links
        self.sides = g.normal(0, 1, (columns, LABELS))  # which labels the group and earlier attributes favour
        self.worth = g.normal(0, 1, (columns, LABELS))  # what a label counts for later attributes and the model
        self.says, self.pair = g.normal(0, 1, columns), g.normal(0, 0.5) * self.bent
        group = (g.random(people) < 0.4).astype(np.int64)
        draw = {"number": g.normal, "flag": g.logistic, "label": g.gumbel}
        noise = [draw[kind](0, 1, (people, LABELS) if kind == "label" else people) for kind in self.kinds]
        self.domain = _domain(self.kinds)
        self.rows = self._lived(group, noise)  # (n, d); the first column is the group
        self.truth = self._lived(1 - group, noise)  # (n, d): the same people in the other group
        self.bar = 0.0
        self.bar = float(self.score(self.rows).quantile(0.6))

    def score(self, rows: Tensor) -> Tensor:
        """Return the model's scores of rows (…, d)."""
        codes = rows.cpu().numpy()
        values = np.stack([self._value(j, codes[..., j + 1]) for j in range(len(self.kinds))], -1)
        return torch.from_numpy(values @ self.says + self.pair * values[..., 0] * values[..., -1] - self.bar)

    def decided(self, rows: Tensor) -> Tensor:
        """Return who gets the favourable decision: (…)."""
        return self.score(rows) > 0

    def again(self, seed: int) -> Tensor:
        """Return counterfactuals as drawn by who knows all laws of this world, but nobody's noise: (n, d)."""
        g = np.random.default_rng(seed)
        codes = self.rows.numpy()
        side = codes[:, 0] - 0.5
        values = [self._value(j, codes[:, j + 1]) for j in range(len(self.kinds))]
        noise = [self._noise(j, self._total(j, side, values[:j]), side, codes[:, j + 1], g) for j in range(len(values))]
        return self._lived(1 - codes[:, 0], noise)

    def _lived(self, group: Numbers, noise: Sequence[Floats]) -> Tensor:
        """Return the people who have this noise, in these groups."""
        codes, values, side = [group], [], group - 0.5
        for j, kind in enumerate(self.kinds):
            total = self._total(j, side, values)
            if kind == "number":
                number = total + noise[j] * np.exp(self.spread[j] * side)
                code = np.clip(np.round(HIGHEST / 2 + STEPS * number), 0, HIGHEST)
            elif kind == "flag":
                code = total + noise[j] > 0
            else:
                code = (total[:, None] * self.sides[j] + noise[j]).argmax(1)
            codes.append(code.astype(np.int64))
            values.append(self._value(j, codes[-1]))
        return torch.from_numpy(np.stack(codes, 1))

    def _noise(self, j: int, total: Floats, side: Floats, code: Numbers, g: np.random.Generator) -> Floats:
        """Return noise of an attribute, drawn among that which gives these codes."""
        u = g.random(len(code))
        if self.kinds[j] == "number":
            scale = np.exp(self.spread[j] * side)
            low = np.where(code > 0, ((code - 0.5 - HIGHEST / 2) / STEPS - total) / scale, -np.inf)
            high = np.where(code < HIGHEST, ((code + 0.5 - HIGHEST / 2) / STEPS - total) / scale, np.inf)
            flip = np.where(low > 0, -1, 1)  # the tail is exact below 0 only
            return flip * ndtri(ndtr(flip * low) + u * (ndtr(flip * high) - ndtr(flip * low)))
        if self.kinds[j] == "flag":
            down = expit(-total)
            return logit(np.where(code == 1, down + u * (1 - down), u * down))
        scores = total[:, None] * self.sides[j]
        top = logsumexp(scores, axis=1) - np.log(-np.log(u))  # the largest, then the others below it
        below = -np.logaddexp(-top[:, None], -scores - g.gumbel(0, 1, scores.shape))
        return np.where(np.arange(LABELS) == code[:, None], top[:, None], below) - scores

    def _total(self, j: int, side: Floats, values: Sequence[Floats]) -> Floats:
        """Return what the group and earlier attributes say of an attribute."""
        earlier = np.array(values).reshape(j, len(side))
        total = self.effect[j] * side + self.weights[j, :j] @ earlier
        return 1.5 * np.tanh(total + side * (self.twist[j, :j] @ earlier)) if self.bent else total

    def _value(self, j: int, codes: Numbers) -> Floats:
        """Return what codes of an attribute count for."""
        if self.kinds[j] == "label":
            return self.worth[j][codes]
        return (codes - HIGHEST / 2) / 8 if self.kinds[j] == "number" else codes * 2.0 - 1


def _domain(kinds: list[str]) -> TableDomain:
    made = {
        "number": Attribute("", "ordinal", high=HIGHEST),
        "flag": Attribute("", "flag", values=("no", "yes")),
        "label": Attribute("", "nominal", values=tuple("abcdefgh"[:LABELS])),
    }
    named = (replace(made[kind], name=f"{kind} {j}") for j, kind in enumerate(kinds))
    return TableDomain("world", (Attribute("group", "nominal", values=("a", "b")), *named), ("group",))
