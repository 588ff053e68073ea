"""Candidates: what a search may change in the making of a model, and how one is made and asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from neuronfair.alternative_models import estimators
from neuronfair.alternative_models.estimators import Dimension, Recipe
from neuronfair.alternative_models.guides import FitGuides
from neuronfair.alternative_models.objectives import Floats, ModelAnswers, QualityFunction, Yardstick
from neuronfair.alternative_models.parts import Integers, SearchTable
from neuronfair.alternative_models.settings import AlternativesSettings
from neuronfair.errors import ModelError, needs

Kind = Literal["baseline", "candidate", "control"]
Value = int | float
CONTROL_ROWS = 0.9  # of the fit part, of which the seed of a control draws its rows


@dataclass(frozen=True)
class Candidate:
    """One fit of a search: its parameters and its seed give the same model again."""

    kind: Kind
    number: int
    seed: int
    parameters: Mapping[str, Value]
    drawn: bool = False  # whether the parameters were drawn at random, and not planned or proposed by earlier fits

    @staticmethod
    def of(seed: int, kind: Kind, number: int, parameters: Mapping[str, Value], drawn: bool = False) -> Candidate:
        """Return a fit whose seed follows from that of the search, its kind and its number."""
        address = [seed, ("baseline", "candidate", "control").index(kind), number]
        own = int(np.random.SeedSequence(address).generate_state(1)[0])
        return Candidate(kind, number, own, parameters, drawn)

    @property
    def name(self) -> str:
        """What it is called in files and reports."""
        return self.kind if self.kind == "baseline" else f"{self.kind}-{self.number}"


@dataclass(frozen=True)
class MadeModel:
    """A fitted candidate."""

    estimator: Any
    columns: tuple[str, ...]  # of the table that it is given
    reads: tuple[str, ...]  # the sensitive attributes that it reads


@dataclass(frozen=True)
class Workshop:
    """Makes candidates from the fit part and asks them about other parts."""

    table: SearchTable
    recipe: Recipe
    settings: AlternativesSettings
    guides: FitGuides | None = None  # None: baseline and controls only
    own: QualityFunction | None = None  # a quality function of the user's

    @cached_property
    def hyper(self) -> list[Dimension]:
        """The hyper-parameters that candidates vary."""
        return estimators.dimensions(self.recipe.estimator) if self.settings.tries("hyperparameters") else []

    def make(self, candidate: Candidate) -> MadeModel:
        """Fit a candidate to the fit part."""
        table, recipe, wanted = self.table, self.recipe, candidate.parameters
        blind = candidate.kind == "candidate" and not self.settings.allow_disparate_treatment
        gone = list(recipe.reads(table.sensitive)) if blind else []
        gone += self.guides.proxies[: int(wanted.get("leave_out", 0))] if self.guides is not None else []
        hyper = {one.name: wanted[one.name] for one in self.hyper if one.name in wanted}
        estimator = estimators.seeded(recipe.estimator, candidate.seed, hyper)
        if recipe.is_network and wanted.get("turned", 0):
            estimator.set_params(turned=float(wanted["turned"]), layer=int(wanted.get("layer", 0)))
        if gone:
            estimators.without(estimator, gone)
        columns = recipe.columns if recipe.is_network else tuple(c for c in recipe.columns if c not in gone)
        if not columns:
            raise ModelError("no attribute is left")
        frame, labels, weights = self._lesson(candidate, columns)
        bands = [name for name in self.banded if name in columns]
        if wanted.get("bands", 0) and bands:
            estimator = estimators.banded(estimator, bands, int(wanted["bands"]))
        y = np.array(table.values, dtype=table.y.dtype)[labels]
        if wanted.get("monotone", 0) and self.guides is not None:
            estimators.constrain(estimator, frame, y, self.guides.signs)
        estimator = estimators.fitted(estimator, frame, y, weights, candidate.seed)
        if (threshold := float(wanted.get("threshold", 0.5))) != 0.5:
            estimator = estimators.at_threshold(estimator, threshold, table.values, table.positive)
        return MadeModel(estimator, columns, tuple(n for n in recipe.reads(table.sensitive) if n not in gone))

    @property
    def banded(self) -> tuple[str, ...]:
        """The numbers that candidates may be given in bands."""
        return self.guides.numbers if self.guides is not None and not self.recipe.is_network else ()

    def _lesson(self, candidate: Candidate, columns: tuple[str, ...]) -> tuple[Any, Integers, Floats | None]:
        """Return the rows that a candidate learns from, the numbers of their classes, and their weights."""
        table, wanted, guides = self.table, candidate.parameters, self.guides
        random = np.random.default_rng(candidate.seed)
        share = float(wanted.get("rows", CONTROL_ROWS if candidate.kind == "control" else 1.0))
        fit = table.fit
        if share < 1:
            fit = fit[np.sort(random.permutation(len(fit))[: max(1, round(share * len(fit)))])]
        frames, labels = [table.frame.iloc[fit][list(columns)]], [table.labels[fit]]
        power = float(wanted.get("reweight", 0.0))
        weights = [self._weights(fit, power)]
        if guides is not None:
            added = (
                ("twins", guides.twins, table.labels[guides.twinned]),
                ("pairs", guides.pairs, guides.pair_labels),
            )
            for name, rows, classes in added:
                count = round(float(wanted.get(name, 0.0)) * len(classes))
                if rows is not None and count:
                    drawn = random.permutation(len(classes))[:count]
                    frames.append(rows.iloc[drawn][list(columns)])
                    labels.append(classes[drawn])
                    weights.append(np.ones(count))

        frame = (
            needs("pandas", "sklearn").concat(frames, ignore_index=True)
            if len(frames) > 1
            else frames[0].reset_index(drop=True)
        )
        return frame, np.concatenate(labels), np.concatenate(weights) if power else None

    def _weights(self, rows: Integers, power: float) -> Floats:
        """Return weights that make label and group independent (Kamiran and Calders 2012), to a power."""
        _, group = np.unique(self.table.group[rows], return_inverse=True)
        label = self.table.labels[rows]
        both = np.zeros((group.max() + 1, label.max() + 1))
        np.add.at(both, (group, label), 1 / len(rows))
        expected = both.sum(1, keepdims=True) * both.sum(0, keepdims=True)
        return np.asarray((expected[group, label] / both[group, label]) ** power)

    def ask(self, made: MadeModel, rows: Integers) -> ModelAnswers:
        """Return a model's answers for some records."""
        decided, scores = self._answers(made, self.table.frame.iloc[rows])
        flips = np.zeros(len(rows), dtype=bool)
        if made.reads:
            codes = self.table.data.rows[rows]
            twins, valid = self.table.data.domain.twins(codes)
            for place in range(twins.shape[1]):
                other = self.table.cells.of(rows, twins[:, place].numpy())
                flips |= (self._answers(made, other)[0] != decided) & valid[:, place].numpy()
        return ModelAnswers(decided, scores, flips)

    def _answers(self, made: MadeModel, frame: Any) -> tuple[Integers, Floats | None]:
        """Return the class that a model decides for each record, and the probabilities of the classes if it has any."""
        number = {value: place for place, value in enumerate(self.table.values)}
        frame = frame[list(made.columns)]
        try:
            chosen = np.asarray(estimators.quiet(made.estimator.predict)(frame)).reshape(-1)
            decided = np.array([number[value] for value in chosen.tolist()])
            if not hasattr(made.estimator, "predict_proba"):
                return decided, None
            given = np.asarray(estimators.quiet(made.estimator.predict_proba)(frame), dtype=np.float64)
            classes = [number[value] for value in np.asarray(made.estimator.classes_).tolist()]
        except Exception as error:  # the estimator's own code
            raise ModelError(f"the model cannot be asked ({type(error).__name__}: {error})") from error
        scores = np.zeros((len(frame), len(number)))
        scores[:, classes] = given
        if not np.isfinite(scores).all():
            raise ModelError("the model gives NaN or infinite probabilities")
        return decided, scores

    def yardstick(self, part: str) -> Yardstick:
        """Return what measures answers for a part."""
        return Yardstick.of(self.table, part, self.settings, self.own)

    @property
    def thresholded(self) -> bool:
        """Whether candidates may have another threshold: there are two classes and probabilities."""
        last = estimators.last_of(self.recipe.estimator)
        return len(self.table.values) == 2 and hasattr(last, "predict_proba")
