"""Estimators of a search: where they come from, their hyper-parameters, and what is changed in them before a fit."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from neuronfair.alternative_models.networks import NetworkClassifier
from neuronfair.alternative_models.parts import SearchTable
from neuronfair.errors import ModelError, did_you_mean, needs, one_line
from neuronfair.model import weights
from neuronfair.model.formats import REFITTED
from neuronfair.model.open.estimators import is_estimator, read_file
from neuronfair.model.open.opened import ModelFile
from neuronfair.model.open.user_code import imported
from neuronfair.model.train import linear_layers

NAMES = ("logistic", "boosting", "forest", "lightgbm", "network")
OWN = (".safetensors", ".npz")
CONSTRAINTS = ("monotone_constraints", "monotonic_cst")
CLASSIFIER = "model"  # the step of a pipeline around an estimator of the user's


@dataclass(frozen=True)
class Dimension:
    """A parameter of candidates: its range, the value of the baseline, and values that are tried first."""

    name: str
    low: float
    high: float
    usual: float
    step: float | None = None
    planned: tuple[float, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it is a whole number."""
        return all(isinstance(one, int) for one in (self.low, self.high, self.usual))

    @property
    def log(self) -> bool:
        """Whether its logarithm is drawn: there is no step, and all values are above 0."""
        return self.step is None and self.low > 0

    def drawn(self, trial: Any) -> int | float:
        """Return the value that a trial of Optuna proposes."""
        suggest, how = trial.suggest_int if self.whole else trial.suggest_float, {"step": self.step}
        value: int | float = suggest(self.name, self.low, self.high, **({"log": True} if self.log else how))
        return value

    def random(self, generator: np.random.Generator, kept: float) -> int | float:
        """Return a value at random: with the chance `kept` that of the baseline, else any."""
        share, keep = generator.random(), generator.random() < kept
        if keep:
            value: float = self.usual
        elif self.log:
            value = float(self.low * (self.high / self.low) ** share)
        else:
            value = self.low + (self.high - self.low) * share
        if self.step is not None:
            value = self.low + round((value - self.low) / self.step) * self.step
        return round(value) if self.whole else float(value)


@dataclass(frozen=True)
class Recipe:
    """An estimator that is not fitted yet, the columns that it is given, and how its models are written."""

    estimator: Any
    columns: tuple[str, ...]
    name: str
    suffix: str = ".skops"

    def reads(self, names: Collection[str]) -> tuple[str, ...]:
        """Return which of some attributes it is given."""
        return tuple(name for name in self.columns if name in names)

    @property
    def is_network(self) -> bool:
        """Whether it is one of our own networks, which are given whole records and leave columns out themselves."""
        return isinstance(self.estimator, NetworkClassifier)


def recipe(source: Any, table: SearchTable, columns: Sequence[str], *, trust_pickle: bool = False) -> Recipe:
    """Return the recipe of a name, `package.module:make`, a file of a fitted model, an estimator or a function.

    What is fitted already is cloned with its parameters.
    """
    names = tuple(columns)
    if isinstance(source, str) and source in NAMES:
        made = _named(source, table, names)
        return Recipe(made, names, source, ".safetensors" if source == "network" else ".skops")
    if isinstance(source, (str, Path)):
        return _of_file(str(source), table, names, trust_pickle)
    made = source() if callable(source) and not hasattr(source, "fit") else source
    if not hasattr(made, "fit") or not hasattr(made, "get_params"):
        raise ModelError(
            f"expected an estimator of scikit-learn, a function that makes one or a name ({', '.join(NAMES)}), got "
            f"{type(made).__name__}"
        )
    return Recipe(needs("sklearn.base", "sklearn").clone(made), names, type(last_of(made)).__name__)


def _of_file(source: str, table: SearchTable, names: tuple[str, ...], trust_pickle: bool) -> Recipe:
    path = Path(source)
    if ":" in source and not path.exists():
        made = imported(ModelFile(source), source)
        found = recipe(made, table, names) if not isinstance(made, type) else recipe(made(), table, names)
        return Recipe(found.estimator, names, source)
    if not path.exists():
        raise ModelError(f"{source}: neither a file nor a name. {did_you_mean(source, NAMES)}")
    suffix = path.suffix.lower()
    if suffix in OWN:
        layers = linear_layers(weights.load(path)[0])
        hidden = tuple(layer.out_features for layer in layers[:-1])
        return Recipe(NetworkClassifier(table.data.domain, hidden=hidden), names, source, ".safetensors")
    if suffix not in REFITTED:
        raise ModelError(
            f"{source}: a model of this kind cannot be fitted again from its file. Name what makes it: "
            f"--estimator package.module:make or one of {', '.join(NAMES)}"
        )
    estimator = read_file(ModelFile(source, trust_pickle=trust_pickle))[0]
    estimator = getattr(estimator, "best_estimator_", estimator)
    if not is_estimator(estimator) or not hasattr(estimator, "get_params"):
        raise ModelError(f"{source}: is no estimator of scikit-learn, so it cannot be cloned and fitted again")
    return Recipe(needs("sklearn.base", "sklearn").clone(estimator), names, source, suffix)


def _named(name: str, table: SearchTable, columns: Sequence[str]) -> Any:
    """Return an estimator by its name, with ordinary preprocessing of words and numbers."""
    if name == "network":
        return NetworkClassifier(table.data.domain)
    compose, preprocessing = needs("sklearn.compose", "sklearn"), needs("sklearn.preprocessing", "sklearn")
    frame = table.frame[list(columns)]
    numbers = list(frame.select_dtypes("number"))
    words = [column for column in frame if column not in numbers]
    if name == "logistic":
        scaled = needs("sklearn.pipeline", "sklearn").make_pipeline(
            needs("sklearn.impute", "sklearn").SimpleImputer(), preprocessing.StandardScaler()
        )
        flags = preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        before = [("words", flags, words), ("numbers", scaled, numbers)]
        last = needs("sklearn.linear_model", "sklearn").LogisticRegression(max_iter=1000)
    else:
        codes = preprocessing.OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
        )
        before = [("words", codes, words), ("numbers", "passthrough", numbers)]
        ensemble = needs("sklearn.ensemble", "sklearn")
        if name == "forest":
            last = ensemble.RandomForestClassifier(n_estimators=100, min_samples_leaf=5)
        elif name == "boosting":
            last = ensemble.HistGradientBoostingClassifier()
        else:
            last = needs("lightgbm", "lightgbm").LGBMClassifier(verbosity=-1, n_jobs=1)
    columns_before = compose.ColumnTransformer(before, verbose_feature_names_out=False).set_output(transform="pandas")
    return needs("sklearn.pipeline", "sklearn").Pipeline([("columns", columns_before), ("model", last)])


def last_of(estimator: Any) -> Any:
    """Return the estimator at the end of a pipeline."""
    return last_of(estimator.steps[-1][1]) if hasattr(estimator, "steps") else estimator


def _prefix(estimator: Any) -> str:
    """Return how the parameters of the last estimator are addressed."""
    if not hasattr(estimator, "steps"):
        return ""
    name, inner = estimator.steps[-1]
    return f"{name}__{_prefix(inner)}"


#: How far hyper-parameters may lie from those of the baseline: factors.
FACTORS: Mapping[str, tuple[float, float]] = {
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
PENALTIES: Mapping[str, float] = {"reg_lambda": 20.0, "reg_alpha": 5.0, "l2_regularization": 20.0}


def dimensions(estimator: Any) -> list[Dimension]:
    """Return the hyper-parameters that a search varies, around the values that the estimator has."""
    prefix, last, found = _prefix(estimator), last_of(estimator), []
    for name, value in last.get_params(deep=False).items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if name in PENALTIES and value >= 0:
            found.append(Dimension(prefix + name, 0.0, max(PENALTIES[name], float(value)), float(value)))
        elif name in FACTORS and value > 0 and not (name == "max_iter" and not hasattr(last, "learning_rate")):
            low, high = (value * factor for factor in FACTORS[name])
            if isinstance(value, int):
                low, high = max(1, round(low)), round(high)
            found.append(Dimension(prefix + name, low, high, value))
    return found


def seeded(estimator: Any, seed: int, hyper: Mapping[str, float]) -> Any:
    """Return a clone with other hyper-parameters, all of whose random states are set."""
    made = needs("sklearn.base", "sklearn").clone(estimator)
    known = made.get_params(deep=True)
    states = [name for name in known if name.rpartition("__")[2] in ("random_state", "random_seed")]
    made.set_params(**dict.fromkeys(states, seed % 2**31), **hyper)
    if type(last_of(made)).__module__.startswith("catboost"):
        last_of(made).set_params(allow_writing_files=False)  # or it leaves a folder where the user stands
    return made


def without(estimator: Any, names: Collection[str]) -> None:
    """Take columns out of an estimator that names them; others see in the table that they are gone."""
    if isinstance(estimator, NetworkClassifier):
        estimator.set_params(without=tuple(sorted({*estimator.without, *names})))
    for _, step in getattr(estimator, "steps", ()):
        without(step, names)
    if not hasattr(estimator, "transformers"):
        return
    kept = []
    for name, transformer, columns in estimator.transformers:
        if isinstance(columns, str):
            columns = [] if columns in names else columns
        elif isinstance(columns, (list, tuple)) and all(isinstance(one, str) for one in columns):
            columns = [one for one in columns if one not in names]
        elif not callable(columns):
            raise ModelError("a ColumnTransformer that chooses columns by their places cannot do without some of them")
        if callable(columns) or len(columns):
            kept.append((name, transformer, columns))
    estimator.set_params(transformers=kept)


def banded(estimator: Any, names: Sequence[str], bands: int) -> Any:
    """Return an estimator that is given some numbers in a few bands of equal size."""
    bins = needs("sklearn.preprocessing", "sklearn").KBinsDiscretizer(
        n_bins=bands, encode="ordinal", strategy="quantile", quantile_method="averaged_inverted_cdf"
    )
    columns = needs("sklearn.compose", "sklearn").ColumnTransformer(
        [("bands", bins, list(names))], remainder="passthrough", verbose_feature_names_out=False
    )
    steps = [("bands", columns.set_output(transform="pandas")), (CLASSIFIER, estimator)]
    return needs("sklearn.pipeline", "sklearn").Pipeline(steps)


def constrain(estimator: Any, frame: Any, y: Any, signs: Mapping[str, int]) -> None:
    """Set the monotone constraints of the last estimator, by the names of the columns that the steps before it make."""
    last = last_of(estimator)
    name = next(name for name in CONSTRAINTS if name in last.get_params(deep=False))
    columns = list(frame.columns)
    if hasattr(estimator, "steps"):
        features = needs("sklearn.base", "sklearn").clone(estimator[:-1]).fit_transform(frame, y)
        columns = list(getattr(features, "columns", range(features.shape[1])))
    rules = [signs.get(str(column), 0) for column in columns]
    last.set_params(**{name: tuple(rules) if "XGB" in type(last).__name__ else rules})


def fitted(estimator: Any, frame: Any, y: Any, weights: Any | None, seed: int) -> Any:
    """Fit an estimator. Where it takes no weights of records, as many records are drawn by their weights instead."""
    last, extra = last_of(estimator), {}
    if weights is not None:
        if needs("sklearn.utils.validation", "sklearn").has_fit_parameter(last, "sample_weight"):
            extra[f"{_prefix(estimator)}sample_weight"] = weights
        else:
            drawn = np.random.default_rng(seed).choice(len(y), len(y), p=weights / weights.sum())
            frame, y = frame.iloc[drawn].reset_index(drop=True), y[drawn]
    state = np.random.get_state()
    np.random.seed(seed % 2**32)  # what draws from numpy's common random state starts at a known place
    try:
        with redirect_stdout(io.StringIO()):
            return quiet(estimator.fit)(frame, y, **extra)
    except Exception as error:  # the estimator's own code
        raise ModelError(f"{type(last).__name__} cannot be fitted ({one_line(error)})") from error
    finally:
        np.random.set_state(state)


def at_threshold(estimator: Any, threshold: float, values: Sequence[Any], positive: int) -> Any:
    """Return a fitted classifier of two classes that chooses the positive one from a probability on, for all alike."""
    if isinstance(estimator, NetworkClassifier):
        return estimator.shifted(threshold, positive)
    frozen = needs("sklearn.frozen", "sklearn").FrozenEstimator(estimator)
    return (
        needs("sklearn.model_selection", "sklearn")
        .FixedThresholdClassifier(
            frozen, threshold=threshold, pos_label=values[positive], response_method="predict_proba"
        )
        .fit(None, np.asarray(values))
    )


def quiet(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that does not warn."""

    def call(*arguments: Any, **named: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return method(*arguments, **named)

    return call


def write(estimator: Any, path: Path, accuracy: float) -> None:
    """Write a fitted estimator in the format that the name of the file says."""
    if isinstance(estimator, NetworkClassifier):
        estimator.save(path, accuracy)
    elif path.suffix == ".skops":
        needs("skops.io", "sklearn").dump(estimator, path)
    elif path.suffix == ".joblib":
        needs("joblib", "sklearn").dump(estimator, path)
    else:
        path.write_bytes(pickle.dumps(estimator))
