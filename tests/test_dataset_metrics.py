"""The metrics of a data set are those of a plain loop that asks the user's own model with the original cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import neuronfair as nf
from neuronfair.domain.population.counterfactuals import fit_counterfactuals
from neuronfair.domain.schema.infer import infer_domain
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.errors import DomainError, Unprovable
from neuronfair.model.open import wrap_model
from neuronfair.model.records import prepare_records
from neuronfair.proof.problem import build_problem

pd = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier  # noqa: E402
from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import OneHotEncoder, StandardScaler  # noqa: E402

SMALL = nf.AuditSettings.quick(samples=5_000, seeds=5, steps=5)
WORDS = np.array(["late", "paid", "default", "house", "car", "shop", "rent", "loan", "cash", "debt"])
GROUPS = {"text": ("f", "m"), "number": (0, 1), "truth": (False, True), "category": ("f", "m")}


def table(seed, sex="text", n=400):
    """Return records with decimals and outliers, rare labels, text and empty cells, and a target."""
    draw = np.random.default_rng(seed)
    group = draw.integers(0, 2, n)
    util = draw.random(n)
    util[: n // 50] = draw.random(n // 50) * 50_000
    age = draw.integers(18, 80, n).astype(float)
    age[draw.random(n) < 0.05] = np.nan
    income = np.round(draw.lognormal(8, 1.5, n), 2)
    income[draw.random(n) < 0.05] = np.nan
    place = draw.integers(0, 250, n)
    text = [" ".join(draw.choice(WORDS, 4)) for _ in range(n)]
    score = 0.4 * group + np.clip(util, 0, 1) + 0.6 * np.sin(place) + np.array(["late" in t for t in text]) - 0.9
    frame = pd.DataFrame(
        {
            "sex": np.array(GROUPS[sex])[group],
            "util": util,
            "age": age,
            "income": income,
            "place": [f"p{number:03d}" for number in place],
            "note": text,
            "hired": np.where(score + draw.normal(0, 0.2, n) > 0, "yes", "no"),
        }
    )
    return frame.astype({"sex": "category"}) if sex == "category" else frame


def truth(decide, frame, sex):
    """Return how many records flip, the accuracy and the selection rates, by a plain loop over the original cells."""
    own = decide(frame)
    first, second = GROUPS[sex]
    twins = frame.assign(sex=frame["sex"].map({first: second, second: first}).astype(frame["sex"].dtype))
    flips = int((decide(twins) != own).sum())
    rates = {str(value): float((own[frame["sex"] == value] == "yes").mean()) for value in (first, second)}
    return flips, float((own == frame["hired"]).mean()), rates


def measured(model, frame, **how):
    """Return the same from an audit."""
    found = nf.audit(model, frame, sensitive="sex", target="hired", settings=SMALL, prove=0, twins="flip", **how).report
    one = found.attributes[0]
    assert found.model.accuracy == {"table": found.encoding_check.accuracy}  # which the gate reads
    rates = {group.values: group.selection_rate for group in one.groups}
    return one.rates.table.discriminated, found.encoding_check.accuracy, rates


NUMBERS = ["util", "age", "income"]


def pipeline(final, *, text=True):
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    parts = [(OneHotEncoder(handle_unknown="ignore"), ["sex", "place"]), (numbers, NUMBERS)]
    parts += [(TfidfVectorizer(), "note")] if text else []
    return make_pipeline(make_column_transformer(*parts, sparse_threshold=0), final)


FINAL = {
    "logistic": lambda: LogisticRegression(max_iter=300),
    "forest": lambda: RandomForestClassifier(10, random_state=0),
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=10, random_state=0),
    "perceptron": lambda: MLPClassifier((8,), max_iter=60, random_state=0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("final", "sex", "seed"),
    [("logistic", "text", 0), ("forest", "number", 1), ("boosting", "truth", 2), ("perceptron", "category", 3)],
)
def test_pipelines_are_asked_with_the_original_cells(final, sex, seed):
    frame = table(seed, sex)
    model = pipeline(FINAL[final]()).fit(frame.drop(columns="hired"), frame["hired"])
    expected = truth(lambda one: model.predict(one.drop(columns="hired")), frame, sex)
    assert expected[0] > 0
    found = measured(model, frame)
    assert found[:2] == expected[:2]
    assert found[2] == pytest.approx(expected[2])


@pytest.mark.filterwarnings("ignore")
def test_a_file_gives_the_metrics_of_the_frame_that_it_was_written_from(tmp_path):
    frame = table(4)
    model = pipeline(FINAL["logistic"]()).fit(frame.drop(columns="hired"), frame["hired"])
    path = tmp_path / "people.csv"
    frame.to_csv(path, index=False)
    expected = truth(lambda one: model.predict(one.drop(columns="hired")), pd.read_csv(path), "text")
    assert measured(model, path)[:2] == expected[:2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [5, 6])
def test_lightgbm_is_asked_with_the_original_cells(seed):
    lightgbm = pytest.importorskip("lightgbm")
    frame = table(seed, "category").astype({"place": "category"}).drop(columns="note")
    inputs = frame.drop(columns="hired")
    model = lightgbm.LGBMClassifier(n_estimators=20, min_child_samples=5, verbose=-1).fit(inputs, frame["hired"])
    expected = truth(lambda one: model.predict(one[inputs.columns]), frame, "category")
    found = measured(model, frame)
    assert expected[0] > 0
    assert found[:2] == expected[:2]


@pytest.mark.parametrize("seed", [7, 8])
def test_a_torch_network_is_asked_with_what_its_own_function_makes_of_the_original_cells(seed):
    frame = table(seed, n=800)

    def preprocess(cells):
        util = np.log1p(cells["util"].to_numpy(float))
        age = cells["age"].fillna(40).to_numpy(float) / 80
        place = cells["place"].map(lambda name: np.sin(int(name[1:]))).to_numpy(float)
        sex = (cells["sex"] == "m").to_numpy(float)
        return torch.tensor(np.stack([util, age, place, sex], 1), dtype=torch.float32)

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight[:, 3] += 0.5

    def decide(cells):
        with torch.no_grad():
            return np.array(["no", "yes"])[model(preprocess(cells)).argmax(1).numpy()]

    expected = truth(decide, frame, "text")
    domain = infer_domain(frame, sensitive=["sex"], target="hired")
    found = measured(model, frame, preprocess=preprocess)
    assert expected[0] > 0
    assert found[:2] == pytest.approx(expected[:2])
    data = read_table(frame, domain)
    opened = wrap_model(model, domain, data, preprocess=preprocess)
    assert prepare_records(opened, data).form == "cells"
    assert nf.rate(opened, domain, population=data).flips == expected[0]


@pytest.mark.filterwarnings("ignore")
def test_what_the_grid_changes_about_decisions_is_counted():
    frame = table(9)
    model = pipeline(FINAL["logistic"]()).fit(frame.drop(columns="hired"), frame["hired"])
    report = nf.audit(model, frame, sensitive="sex", target="hired", settings=SMALL, prove=0, twins="flip").report
    notes = {note.name: note.seen for note in report.attributes[0].health}
    count = int(notes["rounded-records"].split(" of ")[0])
    assert 0.01 * len(frame) < count < len(frame)
    assert "400 records get another decision after rounding to the grid" in notes["rounded-records"]


def test_a_group_of_a_few_records_is_no_twin_unless_the_domain_lists_it():
    draw = np.random.default_rng(10)
    race = draw.choice(["a", "b"], 600).astype(object)
    race[:5], race[5:20] = "tiny", None
    frame = pd.DataFrame({"race": race, "age": draw.integers(20, 70, 600), "hired": draw.choice(["no", "yes"], 600)})

    def model(table):
        least = table["race"].map({"a": 45, "b": 40, "tiny": 30}).astype(float).fillna(45)
        return (table["age"] > least).to_numpy(float)

    def flips(groups):
        own = model(frame)
        return int(np.any([model(frame.assign(race=group)) != own for group in groups], 0).sum())

    report = nf.audit(model, frame, sensitive="race", target="hired", settings=SMALL, prove=0, twins="flip").report
    assert report.attributes[0].rates.table.discriminated == flips("ab")
    notes = {note.name: note.seen for note in report.attributes[0].health}
    assert "race tiny (5 records) and race missing (15 records)" in notes["groups-left-out"]
    assert "rows-break-rules" not in notes

    draft = infer_domain(frame, sensitive=["race"], target="hired").to_toml()
    domain = replace(parse_domain(draft), rules=())
    report = nf.audit(model, read_table(frame, domain), settings=SMALL, prove=0, twins="flip").report
    assert report.attributes[0].rates.table.discriminated == flips(["a", "b", "tiny", None]) > flips("ab")
    notes = {note.name: note.seen for note in report.attributes[0].health}
    assert "race tiny (5 records) and race missing (15 records)" in notes["small-groups"]


def test_age_bands_are_compared_by_their_medians():
    draw = np.random.default_rng(11)
    ages, income = draw.integers(18, 80, 500), draw.normal(50, 10, 500).round(2)
    frame = pd.DataFrame({"age": ages, "income": income, "hired": draw.choice(["no", "yes"], 500)})
    draft = infer_domain(frame, sensitive=["age"], target="hired").to_toml()
    domain = parse_domain(draft.replace('"age" = { ', '"age" = { bands = [25, 40, 60], '))

    def model(table):
        return (table["income"] + 0.3 * table["age"] > 63).to_numpy(float)

    band = np.digitize(ages, [25, 40, 60])
    medians = [int(np.quantile(ages[band == number], 0.5, method="lower")) for number in range(4)]
    own = model(frame)
    flips = np.any([(model(frame.assign(age=m)) != own) & (band != i) for i, m in enumerate(medians)], 0)
    data = read_table(frame, domain)
    one = nf.audit(model, data, settings=SMALL).report.attributes[0]
    assert one.rates.table.discriminated == flips.sum() > 0
    assert one.twins == 3
    rows = {group.values: group.rows for group in one.groups}
    names = ["below 25", "25 to below 40", "40 to below 60", "60 or more"]
    assert rows == dict(zip(names, np.bincount(band).tolist(), strict=True))
    with pytest.raises(Unprovable, match="in bands"):
        build_problem(wrap_model(model, data.domain, data.rows), data.domain)
    with pytest.raises(DomainError, match="for the attribute-flip test only"):
        fit_counterfactuals(data.domain, data.rows)
    assert parse_domain(format_domain(data.domain)).fingerprint == data.domain.fingerprint != domain.fingerprint
