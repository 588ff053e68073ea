"""Estimators of a search: where they come from, our own networks among them, and what is changed before a fit."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor, nn

from neuronfair.alternative_models.parts import SearchTable
from neuronfair.atomic import write_text
from neuronfair.domain.population.counterfactuals import fit_counterfactuals, with_counterfactuals
from neuronfair.domain.schema.toml import format_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.errors import ModelError, did_you_mean, one_line, require
from neuronfair.model import weights
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.formats import REFITTED, ModelFile
from neuronfair.model.network import Network
from neuronfair.model.open.estimators import is_estimator, read_file
from neuronfair.model.open.user_code import import_object
from neuronfair.model.profile import interpret
from neuronfair.model.train import list_linear_layers, train_module
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import Card, fingerprint, fully_connected

SEED_PARAMETERS = ("random_state", "random_seed")
VALIDATION_EVERY = 10  # one row in so many stops the training
MAX_COMPARED_RECORDS = 2_000  # rows that show which neurons react


class NetworkClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fully connected ReLU network of the records of a domain.

    After training, it silences `silenced_share` of the neurons of `layer`, by weights of 0 in the next layer: those
    that react most to the sensitive attribute or to what goes with it. It does not read the attributes in `without`.
    """

    def __init__(
        self,
        domain: TableDomain,
        *,
        hidden: tuple[int, ...] = (32, 16),
        epochs: int = 20,
        lr: float = 0.003,
        without: tuple[str, ...] = (),
        layer: int = 0,
        silenced_share: float = 0.0,
        random_state: int = 0,
    ) -> None:
        self.domain, self.hidden, self.epochs, self.lr, self.without = domain, hidden, epochs, lr, without
        self.layer, self.silenced_share, self.random_state = layer, silenced_share, random_state

    def fit(self, table: Any, y: Any) -> NetworkClassifier:
        """Train the network."""
        target = self.domain.target
        assert target is not None
        attributes = [replace(a, encode="none") if a.name in self.without else a for a in self.domain.attributes]
        self.domain_ = replace(self.domain, attributes=tuple(attributes))
        self.classes_ = np.unique(np.asarray(y))
        rows, texts = self._rows(table), [str(value) for value in np.asarray(y)]
        labels = torch.tensor([target.classes.index(text) for text in texts])
        encoding = TableEncoding.of(self.domain_)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.random_state))
        validation, training = (
            order[: max(1, len(rows) // VALIDATION_EVERY)],
            order[max(1, len(rows) // VALIDATION_EVERY) :],
        )
        x = encoding.encode(rows)
        self.module_ = train_module(
            lambda: fully_connected(encoding.width, self.hidden, len(target.classes)),
            x[training],
            labels[training],
            validation=(x[validation], labels[validation]),
            settings=TrainingSettings(restarts=1, epochs=self.epochs, lr=self.lr, batch=256, patience=3),
            seed=self.random_state,
        ).module
        if self.silenced_share > 0:
            self.module_ = self._silence(self.module_, rows)
        return self

    def predict_proba(self, table: Any) -> Any:
        """Return the probabilities of the classes, in the order of `classes_`."""
        target = self.domain.target
        assert target is not None
        scores = Network(self.module_, self.domain_).scores(self._rows(table)).double().softmax(1).numpy()
        return scores[:, [target.classes.index(str(value)) for value in self.classes_]]

    def predict(self, table: Any) -> Any:
        """Return the likeliest classes."""
        return self.classes_[self.predict_proba(table).argmax(1)]

    def shifted(self, threshold: float, positive: int) -> NetworkClassifier:
        """Return a copy of a network of two classes with another threshold for one of them, as part of its weights."""
        network = copy.deepcopy(self)
        with torch.no_grad():
            list_linear_layers(network.module_)[-1].bias[positive] -= float(np.log(threshold / (1 - threshold)))
        return network

    def save(self, path: Path, accuracy: float) -> None:
        """Write the weights, their card, and the domain file that leaves out what the network does not read."""
        target = self.domain_.target
        assert target is not None
        card = Card(
            domain=self.domain_.name,
            encoding=self.domain_.encoding,
            domain_fingerprint=self.domain_.input_fingerprint,
            inputs=TableEncoding.of(self.domain_).width,
            hidden=tuple(self.hidden),
            outputs=len(target.classes),
            classes=target.classes,
            accuracy={"test": accuracy},
            seed=self.random_state,
            fingerprint=fingerprint(self.module_),
        )
        weights.save_weights(path, self.module_, card)
        write_text(path.with_suffix(".toml"), format_domain(self.domain_))

    def _rows(self, table: Any) -> Tensor:
        return read_table(table, self.domain).rows

    def _silence(self, module: nn.Sequential, rows: Tensor) -> nn.Sequential:
        """Silence the neurons that differ most between records and their counterfactual twins."""
        sample = rows[:MAX_COMPARED_RECORDS]
        twins = with_counterfactuals(self.domain_, fit_counterfactuals(self.domain_, sample))
        profile = interpret(Network(module, self.domain_), twins, sample)
        layer = min(self.layer, len(profile.layers) - 1)
        order = torch.argsort(profile.layers[layer].act_diff, descending=True)
        with torch.no_grad():
            silenced = order[: max(1, round(self.silenced_share * len(order)))]
            list_linear_layers(module)[layer + 1].weight[:, silenced] = 0.0
        return module


ESTIMATOR_NAMES = ("logistic", "boosting", "forest", "lightgbm", "network")
NETWORK_SUFFIXES = (".safetensors", ".npz")
CONSTRAINTS = ("monotone_constraints", "monotonic_cst")
CLASSIFIER_STEP = "model"  # the step of a pipeline around an estimator of the user's


@dataclass(frozen=True)
class Dimension:
    """A parameter of candidates: its range, the value of the baseline, and values that are tried first."""

    name: str
    low: float
    high: float
    default: float
    step: float | None = None
    planned: tuple[float, ...] = ()

    @property
    def is_integer(self) -> bool:
        """Whether it is a whole number."""
        return all(isinstance(value, int) for value in (self.low, self.high, self.default))

    @property
    def log(self) -> bool:
        """Whether its logarithm is drawn: there is no step, and all values are above 0."""
        return self.step is None and self.low > 0

    def drawn(self, trial: Any) -> int | float:
        """Return the value that a trial of Optuna proposes."""
        suggest, how = trial.suggest_int if self.is_integer else trial.suggest_float, {"step": self.step}
        value: int | float = suggest(self.name, self.low, self.high, **({"log": True} if self.log else how))
        return value

    def random(self, generator: np.random.Generator, keep_chance: float) -> int | float:
        """Return a value at random: with the chance `keep_chance` that of the baseline, else any."""
        position, keep = generator.random(), generator.random() < keep_chance
        if keep:
            value: float = self.default
        elif self.log:
            value = float(self.low * (self.high / self.low) ** position)
        else:
            value = self.low + (self.high - self.low) * position
        if self.step is not None:
            value = self.low + round((value - self.low) / self.step) * self.step
        return round(value) if self.is_integer else float(value)


@dataclass(frozen=True)
class Recipe:
    """An estimator that is not fitted yet, the columns that it is given, and how its models are written."""

    estimator: Any
    columns: tuple[str, ...]
    name: str
    suffix: str = ".skops"

    def reads(self, names: Collection[str]) -> tuple[str, ...]:
        """Return which of some attributes it decides by; a network of ours is given all, and leaves some out itself."""
        hidden = self.estimator.without if self.is_network else ()
        return tuple(name for name in self.columns if name in names and name not in hidden)

    @property
    def is_network(self) -> bool:
        """Whether it is one of our own networks, which are given whole records and leave columns out themselves."""
        return isinstance(self.estimator, NetworkClassifier)


def make_recipe(source: Any, table: SearchTable, columns: Sequence[str], *, trust_pickle: bool = False) -> Recipe:
    """Return the recipe of a name, `package.module:make`, a file of a fitted model, an estimator or a function.

    What is fitted already is cloned with its parameters.
    """
    names = tuple(columns)
    if isinstance(source, str) and source in ESTIMATOR_NAMES:
        estimator = _make_named(source, table, names)
        return Recipe(estimator, names, source, ".safetensors" if source == "network" else ".skops")
    if isinstance(source, (str, Path)):
        return _read_recipe(str(source), table, names, trust_pickle)
    estimator = source() if isinstance(source, type) or (callable(source) and not hasattr(source, "fit")) else source
    if not hasattr(estimator, "fit") or not hasattr(estimator, "get_params"):
        raise ModelError(
            f"expected an estimator of scikit-learn, a function that makes one or a name "
            f"({', '.join(ESTIMATOR_NAMES)}), got {type(estimator).__name__}"
        )
    return Recipe(clone_unfitted(estimator), names, type(find_last_step(estimator)).__name__)


def _read_recipe(source: str, table: SearchTable, names: tuple[str, ...], trust_pickle: bool) -> Recipe:
    path = Path(source)
    if ":" in source and not path.exists():
        return replace(make_recipe(import_object(ModelFile(source), source), table, names), name=source)
    if not path.exists():
        raise ModelError(f"{source}: neither a file nor a name. {did_you_mean(source, ESTIMATOR_NAMES)}")
    suffix = path.suffix.lower()
    if suffix in NETWORK_SUFFIXES:
        layers = list_linear_layers(weights.load_weights(path)[0])
        hidden = tuple(layer.out_features for layer in layers[:-1])
        return Recipe(NetworkClassifier(table.data.domain, hidden=hidden), names, source, ".safetensors")
    if suffix not in REFITTED:
        raise ModelError(
            f"{source}: a model of this kind cannot be fitted again from its file. Name what makes it: "
            f"--estimator package.module:make or one of {', '.join(ESTIMATOR_NAMES)}"
        )
    estimator = read_file(ModelFile(source, trust_pickle=trust_pickle))[0]
    estimator = getattr(estimator, "best_estimator_", estimator)
    if not is_estimator(estimator) or not hasattr(estimator, "get_params"):
        raise ModelError(f"{source}: is no estimator of scikit-learn, so it cannot be cloned and fitted again")
    return Recipe(clone_unfitted(estimator), names, source, suffix)


def _make_named(name: str, table: SearchTable, columns: Sequence[str]) -> Any:
    """Return an estimator by its name, with ordinary preprocessing of words and numbers."""
    if name == "network":
        return NetworkClassifier(table.data.domain)
    frame = table.frame[list(columns)]
    numbers = list(frame.select_dtypes("number"))
    coding = {"handle_unknown": "use_encoded_value", "unknown_value": -1, "encoded_missing_value": -2}
    coded, scaled = OrdinalEncoder(**coding), "passthrough"
    if name == "logistic":
        coded = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        scaled = make_pipeline(SimpleImputer(), StandardScaler())
        last = LogisticRegression(max_iter=1000)
    elif name == "forest":
        last = RandomForestClassifier(n_estimators=100, min_samples_leaf=5)
    elif name == "boosting":
        last = HistGradientBoostingClassifier()
    else:
        last = require("lightgbm", "lightgbm").LGBMClassifier(verbosity=-1, n_jobs=1)
    before = [("words", coded, [column for column in frame if column not in numbers]), ("numbers", scaled, numbers)]
    columns_before = ColumnTransformer(before, verbose_feature_names_out=False).set_output(transform="pandas")
    return Pipeline([("columns", columns_before), ("model", last)])


def find_last_step(estimator: Any) -> Any:
    """Return the estimator at the end of a pipeline."""
    return find_last_step(estimator.steps[-1][1]) if hasattr(estimator, "steps") else estimator


def _prefix(estimator: Any) -> str:
    """Return how the parameters of the last estimator are addressed."""
    if not hasattr(estimator, "steps"):
        return ""
    name, inner = estimator.steps[-1]
    return f"{name}__{_prefix(inner)}"


#: How far hyper-parameters may lie from those of the baseline: factors.
PARAMETER_FACTORS: Mapping[str, tuple[float, float]] = {
    "learning_rate": (0.3, 3.0),
    "lr": (0.5, 2.0),
    "n_estimators": (0.5, 2.0),
    "max_iter": (0.5, 2.0),
    "iterations": (0.5, 2.0),
    "num_leaves": (0.25, 2.0),
    "max_leaf_nodes": (0.25, 2.0),
    "min_child_samples": (0.5, 10.0),
    "min_samples_leaf": (0.5, 10.0),
    "C": (0.01, 10.0),
    "alpha": (0.1, 100.0),
    "epochs": (0.5, 1.5),
}
#: Penalties, which are often 0: up to so much.
MAX_PENALTIES: Mapping[str, float] = {"reg_lambda": 20.0, "reg_alpha": 5.0, "l2_regularization": 20.0}


def list_hyperparameters(estimator: Any) -> list[Dimension]:
    """Return the hyper-parameters that a search varies, around the values that the estimator has."""
    prefix, last, results = _prefix(estimator), find_last_step(estimator), []
    for name, value in last.get_params(deep=False).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if name in MAX_PENALTIES and value >= 0:
            results.append(Dimension(prefix + name, 0.0, max(MAX_PENALTIES[name], float(value)), float(value)))
        elif (
            name in PARAMETER_FACTORS and value > 0 and not (name == "max_iter" and not hasattr(last, "learning_rate"))
        ):
            low, high = (value * factor for factor in PARAMETER_FACTORS[name])
            if isinstance(value, int):
                low, high = max(1, round(low)), round(high)
            results.append(Dimension(prefix + name, low, high, value))
    return results


def clone_unfitted(estimator: Any) -> Any:
    """Return an estimator with the same parameters that is not fitted."""
    if type(estimator).__module__.startswith("catboost"):  # copies its lists, which scikit-learn takes for a mistake
        return type(estimator)(**estimator.get_params())
    return clone(estimator)


def clone_with_seed(estimator: Any, seed: int, hyper: Mapping[str, float]) -> Any:
    """Return a clone with other hyper-parameters, all of whose random states are set."""
    copied = clone_unfitted(estimator)
    names = [name for name in copied.get_params(deep=True) if name.rpartition("__")[2] in SEED_PARAMETERS]
    copied.set_params(**dict.fromkeys(names, seed % 2**31), **hyper)
    last = find_last_step(copied)
    if type(last).__module__.startswith("catboost"):
        last.set_params(allow_writing_files=False)  # or it leaves a folder where the user stands
        if not {*last.get_params()} & {*SEED_PARAMETERS}:  # it lists only parameters that were set
            last.set_params(random_seed=seed % 2**31)
    return copied


def drop_columns(estimator: Any, names: Collection[str]) -> None:
    """Take columns out of an estimator that names them; others see in the table that they are gone."""
    if isinstance(estimator, NetworkClassifier):
        estimator.set_params(without=tuple(sorted({*estimator.without, *names})))
    for _, step in getattr(estimator, "steps", ()):
        drop_columns(step, names)
    if not hasattr(estimator, "transformers"):
        return
    transformers = []
    for name, transformer, columns in estimator.transformers:
        if isinstance(columns, str):
            columns = [] if columns in names else columns
        elif isinstance(columns, (list, tuple)) and all(isinstance(column, str) for column in columns):
            columns = [column for column in columns if column not in names]
        elif not callable(columns):
            raise ModelError("a ColumnTransformer that chooses columns by their places cannot do without some of them")
        if callable(columns) or len(columns):
            transformers.append((name, transformer, columns))
    estimator.set_params(transformers=transformers)


def put_into_bands(estimator: Any, names: Sequence[str], bands: int) -> Any:
    """Return an estimator that is given some numbers in a few bands of equal size."""
    bins = KBinsDiscretizer(bands, encode="ordinal", strategy="quantile", quantile_method="averaged_inverted_cdf")
    columns = ColumnTransformer(
        [("bands", bins, list(names))], remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    return Pipeline([("bands", columns), (CLASSIFIER_STEP, estimator)])


def set_monotone(estimator: Any, frame: Any, y: Any, signs: Mapping[str, int]) -> None:
    """Set the monotone constraints of the last estimator, by the names of the columns that the steps before it make."""
    last = find_last_step(estimator)
    name = next(name for name in CONSTRAINTS if name in last.get_params(deep=False))
    columns = list(frame.columns)
    if hasattr(estimator, "steps"):
        features = clone(estimator[:-1]).fit_transform(frame, y)
        columns = list(getattr(features, "columns", range(features.shape[1])))
    rules = [signs.get(str(column), 0) for column in columns]
    last.set_params(**{name: tuple(rules) if "XGB" in type(last).__name__ else rules})


def fit_estimator(estimator: Any, frame: Any, y: Any, weights: Any | None, seed: int) -> Any:
    """Fit an estimator. Where it takes no weights of records, as many records are drawn by their weights instead."""
    last, extra = find_last_step(estimator), {}
    if weights is not None:
        if has_fit_parameter(last, "sample_weight"):
            extra[f"{_prefix(estimator)}sample_weight"] = weights
        else:
            indices = np.random.default_rng(seed).choice(len(y), len(y), p=weights / weights.sum())
            frame, y = frame.iloc[indices].reset_index(drop=True), y[indices]
    state = np.random.get_state()
    np.random.seed(seed % 2**32)  # what draws from numpy's common random state starts at a known place
    try:
        with redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            return estimator.fit(frame, y, **extra)
    except Exception as error:  # the estimator's own code
        raise ModelError(f"{type(last).__name__} cannot be fitted ({one_line(error)})") from error
    finally:
        np.random.set_state(state)


def with_threshold(estimator: Any, threshold: float, values: Sequence[Any], positive: int) -> Any:
    """Return a fitted classifier of two classes that chooses the positive one from a probability on, for all alike."""
    if isinstance(estimator, NetworkClassifier):
        return estimator.shifted(threshold, positive)
    options = {"threshold": threshold, "pos_label": values[positive], "response_method": "predict_proba"}
    return FixedThresholdClassifier(FrozenEstimator(estimator), **options).fit(None, np.asarray(values))


def write_model(estimator: Any, path: Path, accuracy: float) -> None:
    """Write a fitted estimator in the format that the name of the file says."""
    if isinstance(estimator, NetworkClassifier):
        estimator.save(path, accuracy)
    elif path.suffix in (".skops", ".joblib"):
        require("skops.io" if path.suffix == ".skops" else "joblib", "sklearn").dump(estimator, path)
    else:
        path.write_bytes(pickle.dumps(estimator))
