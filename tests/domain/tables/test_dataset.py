"""Loading, splitting, the rules counted on real people, and a user's own files."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from neuronfair.domain.rules import RuleCondition, Span
from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables import sources
from neuronfair.domain.tables.dataset import DATASETS, Dataset, catalog_domain, load_dataset, read_table
from neuronfair.errors import DataError, DomainError
from neuronfair.model.encoding import TableEncoding

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("NEURONFAIR_DATA", ROOT.parent / "shared" / "data"))
MODELS = Path(os.environ.get("NEURONFAIR_MODELS", ROOT.parent / "shared" / "models"))
needs_models = pytest.mark.skipif(not MODELS.is_dir(), reason=f"the published models are not at {MODELS}")

PEOPLE = parse_domain("""
name = "people"
sensitive = ["sex"]
target = { column = "income", classes = ["low", "high"] }
[attributes]
age = { kind = "ordinal", low = 17, high = 90, center = 40, scale = 10 }
job = { kind = "nominal", values = ["clerk", "farmer", "unknown"], missing = "unknown" }
sex = { kind = "flag", values = ["female", "male"] }
""")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONFAIR_DATA", str(DATA))


def load_or_skip(name: str, encoding: str = "default") -> Dataset:
    if sources.find_local_files(name) is None:
        pytest.skip(f"the raw file of {name} is not on this machine")
    return load_dataset(name, encoding)


def test_sizes_and_classes():
    adult = load_dataset("adult")
    assert (len(adult), len(adult.domain.names), int(adult.labels.sum())) == (48_842, 12, 11_687)
    assert adult.rows.dtype == adult.labels.dtype == torch.int64
    german = load_dataset("german", sensitive=["age", "sex"])
    assert german.domain.sensitive == ("age", "sex")
    assert german.labels.bincount().tolist() == [300, 700]


@pytest.mark.parametrize(
    ("name", "rows", "attributes"), [("bank", 45_211, 16), ("compas", 6_167, 9), ("meps", 15_675, 40)]
)
def test_sizes_of_data_that_is_not_bundled(name, rows, attributes):
    data = load_or_skip(name)
    assert tuple(data.rows.shape) == (rows, attributes)
    assert data.labelled


@pytest.mark.parametrize("name", DATASETS)
def test_default_rows_lie_within_the_bounds_and_round_trip(name):
    data = load_or_skip(name)
    domain, rows = data.domain, data.rows
    assert bool(((rows >= 0) & (rows < domain.sizes)).all())
    assert torch.equal(domain.from_table(domain.to_table(rows)), rows)


@pytest.mark.parametrize("name", DATASETS)
def test_numbers_are_scaled_by_their_mean_and_deviation(name):
    data = load_or_skip(name)
    scaled = [i for i, a in enumerate(data.domain.attributes) if a.encode == "scaled"]
    assert scaled
    for i in scaled:
        attribute = data.domain.attributes[i]
        low, step = (0, 1) if attribute.values else (attribute.low, attribute.step)
        value = low + step * data.rows[:, i].double()
        assert attribute.center == float(f"{value.mean():.4g}"), attribute.name
        assert attribute.scale == float(f"{value.std(correction=0):.4g}"), attribute.name


@pytest.mark.parametrize("name", DATASETS)
def test_rules_are_counted_on_the_data(name):
    data = load_or_skip(name)
    text = (sources.CATALOG / f"{name}.default.toml").read_text(encoding="utf-8")
    noted = re.findall(r'# applies to ([\d,]+) rows, broken by ([\d,]+)\n\[\[rules\]\]\nname = "(.*)"', text)
    table = data.domain.to_table(data.rows)
    broken = data.domain.broken(data.rows).sum(0).tolist()
    assert len(noted) == len(data.domain.rules) > 0
    for (applies, breaks, title), rule, count in zip(noted, data.domain.rules, broken, strict=True):
        met = np.ones(len(data), dtype=bool)
        for attribute, condition in rule.when.items():
            met &= np.array([meets(value, condition) for value in table[attribute]])
        assert title == rule.name
        assert (applies, breaks) == (f"{met.sum():,}", f"{count:,}"), rule.name
        assert count <= 0.02 * met.sum()


def meets(value: str | float, condition: RuleCondition) -> bool:
    if isinstance(condition, Span):
        return condition.low <= float(value) <= condition.high
    return value in condition


@pytest.mark.parametrize("name", DATASETS)
def test_only_rules_that_nearly_nobody_breaks_name_sex_and_none_names_race(name):
    named = {"adult": ["a husband is male", "a wife is female"], "meps": ["who is pregnant is female"]}
    rules = catalog_domain(name).rules
    assert [rule.name for rule in rules if "sex" in (*rule.when, *rule.then)] == named.get(name, [])
    assert not any("race" in (*rule.when, *rule.then) for rule in rules)
    assert catalog_domain(name, "paper").rules == ()


@pytest.mark.parametrize("name", DATASETS)
def test_samples_keep_the_rules(name):
    domain = catalog_domain(name)
    assert bool(domain.valid(domain.sample(20_000, torch.Generator().manual_seed(0))).all())


@needs_models
@pytest.mark.parametrize(
    ("name", "model", "percent"),
    [("adult", "census", 86.00), ("german", "credit", 99.67), ("bank", "bank", 91.42), ("compas", "compas", 88.20)],
)
def test_published_models_reach_their_accuracy(name, model, percent):
    data = load_or_skip(name, "paper")
    weights = np.load(MODELS / "neuronfair" / f"{model}.npz")
    x = TableEncoding.of(data.domain).encode(data.rows).numpy()
    layers = len(weights.files) // 2
    for i in range(layers):
        x = x @ weights[f"W{i}"] + weights[f"b{i}"]
        x = np.maximum(x, 0) if i < layers - 1 else x
    accuracy = 100 * float((x.argmax(1) == data.labels.numpy()).mean())
    assert math.isclose(accuracy, percent, abs_tol=0.01)


def test_split_is_fixed_by_the_seed_and_loses_nobody():
    data = load_dataset("german")
    marked = Dataset(data.name, data.domain, torch.arange(1000)[:, None], data.labels)
    train, validation, test = marked.split(seed=3)
    assert (len(train), len(validation), len(test)) == (700, 100, 200)
    everyone = torch.cat([train.rows, validation.rows, test.rows])
    assert torch.equal(everyone.flatten().sort().values, torch.arange(1000))
    assert torch.equal(train.labels, data.labels[train.rows[:, 0]])
    assert torch.equal(marked.split(seed=3).test.rows, test.rows)
    assert not torch.equal(marked.split(seed=4).test.rows, test.rows)


def test_unknown_names():
    with pytest.raises(DataError, match=r"no data set 'adlt'.*Did you mean 'adult'"):
        load_dataset("adlt")
    with pytest.raises(DataError, match=r"no encoding 'papr'.*Did you mean 'paper'"):
        load_dataset("adult", "papr")
    with pytest.raises(DomainError, match="'gender' is not a column"):
        load_dataset("german", sensitive=["gender"])


def write(folder: Path, text: str, name: str = "people.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_read_table_with_any_separator(tmp_path, separator):
    text = "id,sex,age,job,income\n7,male,39,clerk,high\n8,female,17,,low\n".replace(",", separator)
    data = read_table(write(tmp_path, text), PEOPLE)
    assert data.name == "people"
    assert data.rows.tolist() == [[22, 0, 1], [0, 2, 0]]
    assert data.labels.tolist() == [1, 0]


def test_read_table_without_labels(tmp_path):
    data = read_table(write(tmp_path, "sex,age,job\nmale,39,clerk\n"), PEOPLE)
    assert data.labels.tolist() == [-1]
    assert not data.labelled


def test_read_table_from_parquet(tmp_path):
    people = {"age": [39, 40], "job": ["clerk", None], "sex": ["male", "female"], "income": ["low", "high"]}
    pyarrow.parquet.write_table(pyarrow.table(people), tmp_path / "people.parquet")
    assert read_table(tmp_path / "people.parquet", PEOPLE).rows.tolist() == [[22, 0, 1], [23, 2, 0]]
    pyarrow.parquet.write_table(pyarrow.table(people | {"age": [39, 400]}), tmp_path / "people.parquet")
    with pytest.raises(DataError, match=r"row 2: .*'age': 400 is outside"):
        read_table(tmp_path / "people.parquet", PEOPLE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("age,job,sex\n", "no rows"),
        ("age,job,sexx\n39,clerk,male\n", "column 'sex' is missing.*Did you mean 'sexx'"),
        ("age,job,sex\n39,clerk,male\n40,clrk,male\n", "line 3: .*'job': unknown value 'clrk'.*clerk, farmer"),
        ("age,job,sex\n39,clerk,male\n,clerk,male\n", "line 3: .*'age'.*empty.*missing"),
        ("age,job,sex\nNaN,clerk,male\n", "line 2: .*'age'.*missing"),
        ("age,job,sex\n12,clerk,male\n", "line 2: .*'age': 12 is outside 17 to 90"),
        ("age,job,sex\n39.5,clerk,male\n", "line 2: .*'age': 39.5 is not on the grid"),
        ("age,job,sex\nold,clerk,male\n", "line 2: .*'age': expected a number"),
        ("age,job,sex,income\n39,clerk,male,hihg\n", "line 2: target 'income': unknown class 'hihg'.*'high'"),
        ("age,job,sex,income\n39,clerk,male,\n", "line 2: target 'income': unknown class ''"),
    ],
)
def test_read_table_says_what_is_wrong_and_where(tmp_path, text, message):
    path = write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_table(path, PEOPLE)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_read_table_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"absent\.csv"):
        read_table(tmp_path / "absent.csv", PEOPLE)
    (tmp_path / "noise.csv").write_bytes(bytes(range(128, 256)) * 8)
    with pytest.raises(DataError, match=r"noise\.csv"):
        read_table(tmp_path / "noise.csv", PEOPLE)


def test_paper_bounds_are_the_published_ones():
    def bounds(domain: TableDomain) -> list[tuple[int, int]]:
        low = [0 if a.values else int(a.low) for a in domain.attributes]
        return [(first, first + a.size - 1) for first, a in zip(low, domain.attributes, strict=True)]

    assert bounds(catalog_domain("adult", "paper")) == [
        (1, 9), (0, 7), (0, 39), (0, 15), (0, 6), (0, 13), (0, 5), (0, 4), (0, 1), (0, 99), (0, 39), (0, 99), (0, 39),
    ]  # fmt: skip
    assert bounds(catalog_domain("german", "paper")) == [
        (0, 3), (1, 80), (0, 4), (0, 10), (1, 200), (0, 4), (0, 4), (1, 4), (0, 1), (0, 2),
        (1, 4), (0, 3), (1, 8), (0, 2), (0, 2), (1, 4), (0, 3), (1, 2), (0, 1), (0, 1),
    ]  # fmt: skip
    assert bounds(catalog_domain("bank", "paper")) == [
        (1, 9), (0, 11), (0, 2), (0, 3), (0, 1), (-20, 179), (0, 1), (0, 1), (0, 2), (1, 31),
        (0, 11), (0, 99), (1, 63), (-1, 39), (0, 1), (0, 3),
    ]  # fmt: skip
