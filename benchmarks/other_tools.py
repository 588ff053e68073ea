"""One model and one table, by this package and by what a user would do instead: seconds, and what is known afterwards.

    python -m pip install fairlearn dice-ml aif360
    python benchmarks/other_tools.py

A scikit-learn perceptron is trained on Adult as a DataFrame. Each tool then does, once, what its documentation shows
first: Fairlearn a `MetricFrame` with 1,000 bootstrap samples, DiCE 10 counterfactuals for each of 20 people, AIF360 the
consistency of the decisions, this package its quick and its default audit. Imports and training are not timed. A tool
that is not installed is left out. The programs that papers published cannot read this model: their figures stand in
[deviations](../docs/deviations.md#other-methods).
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import neuronfair as nf  # before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.tables import sources

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

TARGET, SEX, HIGH = "income", "sex", ">50K"
PEOPLE, EACH, SAMPLES = 20, 10, 1_000


def adult() -> pd.DataFrame:
    """Return Adult as words and numbers."""
    columns = sources.RECIPES["adult", "default"](*sources.read_texts("adult"))
    table = pd.DataFrame({name: [str(cell) for cell in cells] for name, cells in columns.items()})
    for name in table.columns:
        numbers = pd.to_numeric(table[name], errors="coerce")
        if numbers.notna().all():
            table[name] = numbers
    return table


def trained(table: pd.DataFrame) -> Any:
    """Return a perceptron fitted on 70% of the table."""
    features = table.drop(columns=TARGET)
    words, numbers = make_column_selector(dtype_exclude="number"), make_column_selector(dtype_include="number")
    inputs = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), words), (StandardScaler(), numbers)
    )
    train, _, labels, _ = train_test_split(features, table[TARGET], train_size=0.7, random_state=0)
    return make_pipeline(inputs, MLPClassifier((64, 32), max_iter=15, random_state=0)).fit(train, labels)


def fairlearn(model: Any, table: pd.DataFrame) -> Callable[[], str]:
    from fairlearn.metrics import MetricFrame, false_negative_rate, false_positive_rate, selection_rate

    def work() -> str:
        decided = model.predict(table.drop(columns=TARGET)) == HIGH
        frame = MetricFrame(
            metrics={
                "accuracy": accuracy_score,
                "selection": selection_rate,
                "false positive": false_positive_rate,
                "false negative": false_negative_rate,
            },
            y_true=table[TARGET] == HIGH,
            y_pred=decided,
            sensitive_features=table[SEX],
            n_boot=SAMPLES,
            ci_quantiles=[0.025, 0.975],
        )
        low, high = (float(ends["selection"]) for ends in frame.ratio_ci())
        return f"selection ratio {frame.ratio()['selection']:.2f} (95% CI {low:.2f}–{high:.2f}), error rates by group"

    return work


def dice(model: Any, table: pd.DataFrame) -> Callable[[], str]:
    import dice_ml

    binary = table.assign(**{TARGET: (table[TARGET] == HIGH).astype(int)})
    numbers = [name for name in table.columns if pd.api.types.is_numeric_dtype(table[name])]
    data = dice_ml.Data(dataframe=binary, continuous_features=numbers, outcome_name=TARGET)
    explainer = dice_ml.Dice(data, dice_ml.Model(model=_Numbered(model), backend="sklearn"), method="random")
    people = table.drop(columns=TARGET).head(PEOPLE)

    def work() -> str:
        found = explainer.generate_counterfactuals(people, total_CFs=EACH, desired_class="opposite", random_seed=0)
        pairs = [(one.test_instance_df, one.final_cfs_df) for one in found.cf_examples_list]
        counted = sum(0 if others is None else len(others) for _, others in pairs)
        others = [name for name in people.columns if name != SEX]
        alone = sum(
            0 if cfs is None else int((cfs[others].astype(str) == own[others].iloc[0].astype(str)).all(axis=1).sum())
            for own, cfs in pairs
        )
        return f"{counted} counterfactuals of {PEOPLE} people; in {alone} only the sensitive attribute differs"

    return work


class _Numbered:
    """A model whose classes are 0 and 1, as DiCE expects."""

    def __init__(self, model: Any) -> None:
        self.model, self.classes_ = model, np.array([0, 1])

    def predict_proba(self, table: pd.DataFrame) -> Any:
        return self.model.predict_proba(table)

    def predict(self, table: pd.DataFrame) -> Any:
        return (self.model.predict(table) == HIGH).astype(int)


def aif360(model: Any, table: pd.DataFrame) -> Callable[[], str]:
    from aif360.sklearn.metrics import consistency_score

    features = table.drop(columns=TARGET)
    inputs = model[:-1].transform(features)

    def work() -> str:
        decided = (model.predict(features) == HIGH).astype(int)
        return f"consistency {consistency_score(inputs, decided, n_neighbors=5):.3f}: neighbours get like decisions"

    return work


def audit(quick: bool) -> Callable[[Any, pd.DataFrame], Callable[[], str]]:
    settings = nf.AuditSettings.quick() if quick else nf.AuditSettings()

    def tool(model: Any, table: pd.DataFrame) -> Callable[[], str]:
        def work() -> str:
            result = nf.audit(model, table, sensitive=SEX, target=TARGET, settings=settings, progress=False)
            return " ".join(repr(result).split("\n")[1:2])

        return work

    return tool


TOOLS: dict[str, tuple[str | None, Callable[[Any, pd.DataFrame], Callable[[], str]]]] = {
    f"Fairlearn, `MetricFrame`, {SAMPLES:,} bootstrap samples": ("fairlearn", fairlearn),
    f"DiCE, {EACH} counterfactuals for {PEOPLE} people": ("dice_ml", dice),
    "AIF360, consistency": ("aif360", aif360),
    "neuronfair, `--quick`": (None, audit(quick=True)),
    "neuronfair, default": (None, audit(quick=False)),
}


def main() -> None:
    warnings.simplefilter("ignore")
    table = adult()
    model = trained(table)
    print("what | seconds | what is known afterwards\n---|---:|---", flush=True)
    for name, (package, tool) in TOOLS.items():
        if package is not None and importlib.util.find_spec(package) is None:
            print(f"{name} | not installed |", flush=True)
            continue
        work = tool(model, table)
        start = time.perf_counter()
        known = work()
        print(f"{name} | {time.perf_counter() - start:.1f} | {known}", flush=True)


if __name__ == "__main__":
    main()
