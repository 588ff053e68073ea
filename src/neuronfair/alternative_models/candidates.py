"""Candidates: what they may use of the fit part, what they change in the making of a model, and how they are scored."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import spearmanr
from sklearn.metrics import mutual_info_score
from torch import Tensor

from neuronfair.alternative_models import AlternativesSettings, Measure, estimators
from neuronfair.alternative_models.estimators import Dimension, Recipe
from neuronfair.alternative_models.objectives import Floats, ModelAnswers, PartEvaluator, QualityFunction
from neuronfair.alternative_models.parts import Integers, SearchTable
from neuronfair.domain.population.counterfactuals import CounterfactualTwins, fit_counterfactuals, shuffle_groups
from neuronfair.domain.population.model import fit_population
from neuronfair.domain.population.plausible import with_plausible_twins
from neuronfair.domain.table import TableDomain
from neuronfair.domain.twins import TwinRows
from neuronfair.errors import ModelError, NeuronFairError, one_line, require
from neuronfair.measure.counterfactual_effect import CounterfactualSettings, CounterfactualTest
from neuronfair.model.open import OpenedModel
from neuronfair.model.open.user_code import unpickle
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig

MAX_PROXIES = 6  # attributes that a candidate leaves out, at most
TIE_BINS = 10  # of a number, by which its tie to the group is computed
MAX_COMPARED_RECORDS = 2_000  # records of the fit part whose twins show the mediated shares
SEARCH_STARTS, SEARCH_STEPS = 100, 15  # of the search for findings
TWINS, PERMUTATIONS = 4, 4  # counterfactual twins of each record and group; tables with shuffled groups
NO_PAIRS: tuple[Any, Integers] = (None, np.empty(0, dtype=np.int64))
MIN_BAND_VALUES = 20  # different values from which on a number can be put into bands


@dataclass(frozen=True)
class CandidateHints:
    """What was learned from the fit part.

    `proxies` are attributes in the order in which they are left out: those that mediate the effect of the sensitive
    attribute first. `twins` are counterfactual twins of some records, which are numbered in `twinned`; their label is
    that of the record. `pairs` are findings and their twins, with the label of the record that a search started from.
    """

    proxies: tuple[str, ...]
    mediated: tuple[float, ...]  # the share of the excess that each of the first proxies mediates
    numbers: tuple[str, ...]  # proxies that can be put into bands
    signs: dict[str, int]  # how numbers go with the positive class, 1 or -1
    twinned: Integers
    twins: Any
    pairs: Any
    pair_labels: Integers
    notes: tuple[str, ...] = ()


def learn_hints(
    table: SearchTable, columns: Sequence[str], baseline: OpenedModel | None, settings: AlternativesSettings
) -> CandidateHints:
    """Return what the fit part teaches; `baseline` is the model that was fitted to it, None if it cannot be opened."""
    domain, fit = table.data.domain, torch.from_numpy(table.fit)
    rows = domain.clip(table.data.rows[fit])
    others = [name for name in columns if name not in table.sensitive]
    notes, mediated = list[str](), dict[str, float]()
    twinned, twins, counterfactuals = np.empty(0, dtype=np.int64), None, None
    if settings.tries("leave-out") or settings.tries("counterfactuals") or settings.tries("findings"):
        try:
            counterfactuals = fit_counterfactuals(domain, rows)
        except NeuronFairError as error:
            notes.append(f"No counterfactual twins: {error}.")
    if counterfactuals is not None and baseline is not None and settings.tries("leave-out"):
        try:
            mediated = _measure_mediation(table, baseline, rows, settings.seed)
        except NeuronFairError as error:
            notes.append(f"No mediated shares: {error}.")
    if counterfactuals is not None and settings.tries("counterfactuals"):
        codes, exists = _draw_counterfactuals(table, counterfactuals, rows, settings.seed)
        twinned = table.fit[exists.numpy()]
        twins = table.cells.of(twinned, codes[exists].numpy())[list(columns)]
    needs_findings = counterfactuals is not None and settings.tries("findings")
    pairs, labels = (
        _find_pairs(table, baseline, rows, columns, settings.seed) if baseline and needs_findings else NO_PAIRS
    )
    by_tie = sorted(others, key=lambda name: -_measure_tie(table, name))
    by_mediation = sorted((name for name in mediated if name in others), key=lambda name: -mediated[name])
    proxies = tuple(dict.fromkeys([*by_mediation, *by_tie]))[: min(MAX_PROXIES, len(others) - 1)]
    numeric = table.frame.iloc[table.fit].select_dtypes("number")
    numbers = [
        n for n in others if n in numeric and numeric[n].notna().all() and numeric[n].nunique() >= MIN_BAND_VALUES
    ]
    return CandidateHints(
        proxies,
        tuple(mediated[name] for name in proxies if name in mediated),
        tuple(name for name in proxies if name in numbers),
        _find_signs(table, [name for name in others if name in numeric]),
        twinned,
        twins,
        pairs,
        labels,
        tuple(notes),
    )


def _measure_mediation(table: SearchTable, baseline: OpenedModel, rows: Tensor, seed: int) -> dict[str, float]:
    """Return which share of the excess of counterfactual flips each attribute mediates."""
    domain = table.data.domain
    thoroughness = CounterfactualSettings(draws=4, permutations=4, records=min(MAX_COMPARED_RECORDS, len(rows)))
    decision = baseline.decision
    effect = CounterfactualTest(
        baseline.model, domain, rows, decision=decision, settings=thoroughness, seed=seed
    ).measure()
    shares: dict[str, float] = {}
    for mediator in effect.mediators:  # several attributes that mediate together share what they do
        for column in mediator.columns:
            name = domain.names[column]
            shares[name] = max(shares.get(name, 0.0), mediator.share / len(mediator.columns))
    return {name: share for name, share in shares.items() if share > 0}


def _draw_counterfactuals(
    table: SearchTable, counterfactuals: CounterfactualTwins, rows: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """Return one counterfactual twin of each row, of a group drawn by its size, and which rows have one."""
    domain, generator = table.data.domain, torch.Generator().manual_seed(seed)
    groups = domain.combinations.number(rows)
    chances = (torch.bincount(groups, minlength=len(domain.sensitive_values)) * counterfactuals.groups).double() + 1e-9
    others = chances.expand(len(rows), -1).scatter(1, groups[:, None], 0.0)
    ahead = (torch.multinomial(others, 1, generator=generator) - groups[:, None]) % len(chances)
    u = torch.rand(rows.shape, generator=generator, dtype=torch.float64)
    twins = counterfactuals.transport(domain, rows, ahead, u)
    return twins.rows[:, 0], twins.valid[:, 0]


def _find_pairs(
    table: SearchTable, baseline: OpenedModel, rows: Tensor, columns: Sequence[str], seed: int
) -> tuple[Any, Integers]:
    """Return pairs of records for which the decision of the baseline differs, and the label of each record.

    They are found from records of the fit part, whose labels they take. A baseline that does not read the attribute is
    searched for counterfactual twins.
    """
    domain = table.data.domain
    start_indices = np.random.default_rng(seed).permutation(len(rows))[:SEARCH_STARTS]
    method = "frontier" if baseline.white_box else "frontier-free"
    reads = any(name in table.sensitive for name in columns)
    config = SearchConfig(
        method, seeds=len(start_indices), steps=SEARCH_STEPS, global_steps=5, seed=seed, controls=False
    )
    config = replace(config, decision=baseline.decision, twins="flip" if reads else "counterfactual")
    try:
        result = search(baseline.model, domain, rows, config, seeds=rows[start_indices])
    except NeuronFairError:
        return NO_PAIRS
    findings = result.findings
    findings = findings[findings.origin >= 0]
    if not len(findings):
        return NO_PAIRS
    codes = torch.stack([findings.rows, findings.twins(result.domain)], 1).flatten(0, 1).numpy()
    labels = table.labels[table.fit[start_indices[findings.origin.numpy()]]].repeat(2)
    return table.cells.of(np.zeros(len(codes), dtype=np.int64), codes)[list(columns)], labels


def _measure_tie(table: SearchTable, name: str) -> float:
    """Return how much an attribute tells of the demographic group: their mutual information in the fit part."""
    column_index = table.data.domain.column(name)
    codes, group = table.data.rows[table.fit, column_index].numpy(), table.group[table.fit]
    if len(np.unique(codes)) > TIE_BINS and not table.data.domain.attributes[column_index].values:
        codes = np.searchsorted(np.quantile(codes, np.linspace(0, 1, TIE_BINS + 1)[1:-1]), codes)
    return float(mutual_info_score(group, codes))


def _find_signs(table: SearchTable, names: Sequence[str]) -> dict[str, int]:
    """Return in which direction numbers go with the positive class, of those that clearly do."""
    positive = table.labels[table.fit] == table.positive
    signs = {}
    for name in names:
        correlation = spearmanr(table.frame[name].to_numpy()[table.fit], positive, nan_policy="omit")
        if np.isfinite(correlation.statistic) and correlation.pvalue < 0.001:
            signs[name] = 1 if correlation.statistic > 0 else -1
    return signs


@dataclass(frozen=True)
class TwinGuide:
    """How the twins of a record are found that a measure compares with it: learned from the fit part only."""

    plausible: TableDomain | None = None  # whose twins are the plausible ones
    counterfactuals: tuple[CounterfactualTwins, ...] = ()  # from the groups as they are, then from shuffled ones

    @staticmethod
    def learn(table: SearchTable, measure: Measure) -> TwinGuide | None:
        """Return what a measure needs; None for one that needs no guide."""
        domain, rows = table.data.domain, table.data.rows[table.fit]
        if measure == "plausible_flip_rate":
            return TwinGuide(with_plausible_twins(domain, fit_population(domain, rows), rows))
        if measure != "counterfactual_excess":
            return None
        clipped = domain.clip(rows)
        learned = [fit_counterfactuals(domain, clipped)]
        for number in range(PERMUTATIONS):
            free, shuffled = shuffle_groups(domain, clipped, number)
            learned.append(fit_counterfactuals(free, shuffled, groups=learned[0].groups))
        return TwinGuide(counterfactuals=tuple(learned))

    def draw_twins(self, domain: TableDomain, rows: Tensor) -> Iterator[Iterable[TwinRows]]:
        """Yield counterfactual twins of records: first as their groups are, then with shuffled groups.

        The model is given a twin of a shuffled group with the sensitive values of the record.
        """
        clipped, columns = domain.clip(rows), list(domain.sensitive_columns)
        yield self.counterfactuals[0].draw(domain, clipped, TWINS)
        for number, counterfactuals in enumerate(self.counterfactuals[1:]):
            free, shuffled = shuffle_groups(domain, clipped, number)
            families = list(counterfactuals.draw(free, shuffled, TWINS))
            for twins, _ in families:
                twins[..., columns] = rows[:, None, columns]
            yield families


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
    def of(seed: int, kind: Kind, number: int, parameters: Mapping[str, Value], is_random: bool = False) -> Candidate:
        """Return a fit whose seed follows from that of the search, its kind and its number."""
        address = [seed, ("baseline", "candidate", "control").index(kind), number]
        own_seed = int(np.random.SeedSequence(address).generate_state(1)[0])
        return Candidate(kind, number, own_seed, parameters, is_random)

    @property
    def name(self) -> str:
        """What it is called in files and reports."""
        return self.kind if self.kind == "baseline" else f"{self.kind}-{self.number}"


@dataclass(frozen=True)
class FittedCandidate:
    """A fitted candidate."""

    estimator: Any
    columns: tuple[str, ...]  # of the table that it is given
    reads: tuple[str, ...]  # the sensitive attributes that it reads


@dataclass(frozen=True)
class CandidateFitter:
    """Fits candidates to the fit part and computes their answers for other parts."""

    table: SearchTable
    recipe: Recipe
    settings: AlternativesSettings
    hints: CandidateHints | None = None  # None: baseline and controls only
    own: QualityFunction | None = None  # a quality function of the user's
    guide: TwinGuide | None = None  # to the twins that the measure compares

    def __getstate__(self) -> bytes:
        """Return what another process needs; refuse an estimator that it could not load."""
        reason = "is defined in a notebook or an interactive session"
        try:
            content = pickle.dumps(self.__dict__)
        except Exception as error:  # a lambda, a function inside a function, or the estimator's own code
            reason, content = one_line(error), b""
        script = getattr(sys.modules["__main__"], "__file__", "")
        if not content or (b"__main__" in content and not Path(script).is_file()):
            raise ModelError(
                f"the estimator or the quality function cannot be sent to other processes ({reason}). Define it in a "
                "module, by a name, or leave out --workers"
            )
        return content

    def __setstate__(self, content: bytes) -> None:
        self.__dict__.update(unpickle(content))

    @cached_property
    def hyper(self) -> list[Dimension]:
        """The hyper-parameters that candidates vary."""
        return estimators.list_hyperparameters(self.recipe.estimator) if self.settings.tries("hyperparameters") else []

    def make(self, candidate: Candidate) -> FittedCandidate:
        """Fit a candidate to the fit part."""
        table, recipe, parameters = self.table, self.recipe, candidate.parameters
        hides_sensitive = candidate.kind == "candidate" and not self.settings.allow_disparate_treatment
        left_out = list(recipe.reads(table.sensitive)) if hides_sensitive else []
        left_out += self.hints.proxies[: int(parameters.get("leave_out", 0))] if self.hints is not None else []
        hyper = {dimension.name: parameters[dimension.name] for dimension in self.hyper if dimension.name in parameters}
        estimator = estimators.clone_with_seed(recipe.estimator, candidate.seed, hyper)
        if recipe.is_network and parameters.get("silenced_share", 0):
            estimator.set_params(
                silenced_share=float(parameters["silenced_share"]), layer=int(parameters.get("layer", 0))
            )
        if left_out:
            estimators.drop_columns(estimator, left_out)
        columns = recipe.columns if recipe.is_network else tuple(c for c in recipe.columns if c not in left_out)
        if not columns:
            raise ModelError("no attribute is left")
        frame, labels, weights = self._training_rows(candidate, columns)
        bands = [name for name in self.banded if name in columns]
        if parameters.get("bands", 0) and bands:
            estimator = estimators.put_into_bands(estimator, bands, int(parameters["bands"]))
        y = np.array(table.values, dtype=table.y.dtype)[labels]
        if parameters.get("monotone", 0) and self.hints is not None:
            estimators.set_monotone(estimator, frame, y, self.hints.signs)
        estimator = estimators.fit_estimator(estimator, frame, y, weights, candidate.seed)
        if (threshold := float(parameters.get("threshold", 0.5))) != 0.5:
            estimator = estimators.with_threshold(estimator, threshold, table.values, table.positive)
        return FittedCandidate(estimator, columns, tuple(n for n in recipe.reads(table.sensitive) if n not in left_out))

    @property
    def banded(self) -> tuple[str, ...]:
        """The numbers that candidates may be given in bands."""
        return self.hints.numbers if self.hints is not None and not self.recipe.is_network else ()

    def _training_rows(self, candidate: Candidate, columns: tuple[str, ...]) -> tuple[Any, Integers, Floats | None]:
        """Return the rows that a candidate learns from, the numbers of their classes, and their weights."""
        table, parameters, hints = self.table, candidate.parameters, self.hints
        random = np.random.default_rng(candidate.seed)
        share = float(parameters.get("rows", CONTROL_ROWS if candidate.kind == "control" else 1.0))
        fit = table.fit
        if share < 1:
            fit = fit[np.sort(random.permutation(len(fit))[: max(1, round(share * len(fit)))])]
        frames, labels = [table.frame.iloc[fit][list(columns)]], [table.labels[fit]]
        power = float(parameters.get("reweight", 0.0))
        weights = [self._weights(fit, power)]
        if hints is not None:
            twins = ("twins", hints.twins, table.labels[hints.twinned])
            for name, rows, classes in (twins, ("pairs", hints.pairs, hints.pair_labels)):
                count = round(float(parameters.get(name, 0.0)) * len(classes))
                if rows is not None and count:
                    extra_rows = random.permutation(len(classes))[:count]
                    frames.append(rows.iloc[extra_rows][list(columns)])
                    labels.append(classes[extra_rows])
                    weights.append(np.ones(count))

        frame = require("pandas", "sklearn").concat(frames, ignore_index=True)
        return frame, np.concatenate(labels), np.concatenate(weights) if power else None

    def _weights(self, rows: Integers, power: float) -> Floats:
        """Return weights that make label and group independent (Kamiran and Calders 2012), to a power."""
        _, group = np.unique(self.table.group[rows], return_inverse=True)
        label = self.table.labels[rows]
        joint = np.zeros((group.max() + 1, label.max() + 1))
        np.add.at(joint, (group, label), 1 / len(rows))
        expected = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        return np.asarray((expected[group, label] / joint[group, label]) ** power)

    def answer(self, model: FittedCandidate, rows: Integers) -> ModelAnswers:
        """Return a model's answers for some records, and for those of their twins that a measure compares."""
        decided, scores = self._predict(model, self.table.frame.iloc[rows])
        codes, reads = self.table.data.rows[rows], bool(model.reads)

        def share_flips(families: Iterable[TwinRows], reads: bool = True) -> Floats:
            """Return the share of each record's twins with another decision, NaN without any twin."""
            flips, count = np.zeros(len(rows)), np.zeros(len(rows))
            for twins, exists in families:
                for k, valid in enumerate(exists.numpy().T):
                    count += valid
                    if reads:  # or no decision differs
                        twin_decisions = self._predict(model, self.table.cells.of(rows, twins[:, k].numpy()))[0]
                        flips += (twin_decisions != decided) & valid
            return np.asarray(np.where(count > 0, flips / count.clip(1), np.nan))

        flipped = np.nan_to_num(np.sign(share_flips([self.table.data.domain.twins(codes)], reads)))
        flips: dict[Measure, Floats] = {"flip_rate": np.stack([flipped, np.zeros(len(rows))])}
        if self.guide is not None and self.guide.plausible is not None:
            flipped = np.sign(share_flips([self.guide.plausible.twins(codes)], reads))
            flips["plausible_flip_rate"] = np.stack([flipped, np.zeros(len(rows))])
        if self.guide is not None and self.guide.counterfactuals:
            shares = [share_flips(families) for families in self.guide.draw_twins(self.table.data.domain, codes)]
            flips["counterfactual_excess"] = np.stack([shares[0], np.mean(shares[1:], axis=0)])
        return ModelAnswers(decided, scores, flips)

    def _predict(self, model: FittedCandidate, frame: Any) -> tuple[Integers, Floats | None]:
        """Return the class that a model decides for each record, and the probabilities of the classes if it has any."""
        class_indices = {value: index for index, value in enumerate(self.table.values)}
        frame = frame[list(model.columns)]
        try:
            with warnings.catch_warnings(action="ignore"):
                predictions = np.asarray(model.estimator.predict(frame)).reshape(-1)
                decided = np.array([class_indices[value] for value in predictions.tolist()])
                if not hasattr(model.estimator, "predict_proba"):
                    return decided, None
                probabilities = np.asarray(model.estimator.predict_proba(frame), dtype=np.float64)
            classes = [class_indices[value] for value in np.asarray(model.estimator.classes_).tolist()]
        except Exception as error:  # the estimator's own code
            raise ModelError(f"the model fails on these records ({type(error).__name__}: {error})") from error
        scores = np.zeros((len(frame), len(class_indices)))
        scores[:, classes] = probabilities
        if not np.isfinite(scores).all():
            raise ModelError("the model gives NaN or infinite probabilities")
        return decided, scores

    def evaluator(self, part: str) -> PartEvaluator:
        """Return the evaluator of a part."""
        return PartEvaluator.of(self.table, part, self.settings, self.own)
