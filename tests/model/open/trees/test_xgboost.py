"""XGBoost files, compared with XGBoost itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.model.open.frames import table_inputs
from neuronfair.model.open.trees.xgboost import find_best_rounds
from tests.model.open.conftest import check_black_box

xgboost = pytest.importorskip("xgboost", reason="the package xgboost is not installed")


def trees(crowd, labels=None, **options):
    """Trees that read the table itself, text as categories in an order of their own."""
    table = table_inputs(crowd.domain).of_rows(crowd.rows)
    for name in ("sex", "relationship", "marital", "race"):
        table[name] = table[name].astype("category").cat.reorder_categories(sorted(set(table[name]), reverse=True))
    labels = crowd.labels if labels is None else labels
    data = xgboost.DMatrix(table, label=labels.numpy(), enable_categorical=True)
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1} | options, data, 5)
    return booster, data


@pytest.mark.parametrize("suffix", [".ubj", ".json"])
def test_trees_of_a_table(suffix, crowd, tmp_path):
    booster, data = trees(crowd)
    booster.save_model(tmp_path / f"trees{suffix}")
    found = wrap_model(tmp_path / f"trees{suffix}", crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, booster.predict(data), "boosted trees")
    assert (found.kind, found.decision) == ("XGBoost", Decision("threshold", 0.5))


def test_logits_and_several_classes(crowd, tmp_path):
    path = tmp_path / "trees.json"
    booster, data = trees(crowd, objective="binary:logitraw")
    booster.save_model(path)
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, booster.predict(data), "boosted trees")
    assert found.decision == Decision("threshold", 0.0)
    booster, data = trees(crowd, crowd.rows[:, 4], objective="multi:softmax", num_class=3)
    booster.save_model(path)
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, booster.predict(data, output_margin=True), "boosted trees")
    assert found.decision == Decision()
    assert (found.model.scores(crowd.rows).argmax(1) == crowd.rows[:, 4]).all()


def test_trees_without_names_read_the_encoding(crowd, tmp_path):
    data = xgboost.DMatrix(crowd.x.numpy(), label=crowd.labels.numpy())
    booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, data, 3)
    booster.save_model(tmp_path / "trees.ubj")
    found = wrap_model(tmp_path / "trees.ubj", crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, booster.predict(data), "numbers of the domain's encoding")


def test_numbers_as_categories(crowd, tmp_path):
    """XGBoost keeps categories that are numbers without offsets."""
    pandas = pytest.importorskip("pandas")
    table = table_inputs(crowd.domain).of_rows(crowd.rows)
    for name in ("sex", "relationship", "marital", "race"):
        table[name] = table[name].astype("category")
    numbers = [name for name in table if str(table[name].dtype) != "category"]
    table[numbers[0]] = pandas.Categorical(table[numbers[0]])
    data = xgboost.DMatrix(table, label=crowd.labels.numpy(), enable_categorical=True)
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 3, "nthread": 1}, data, 5)
    booster.save_model(tmp_path / "trees.ubj")
    found = wrap_model(tmp_path / "trees.ubj", crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, booster.predict(data), "boosted trees")


def test_damaged_files_do_not_crash(crowd, tmp_path):
    """XGBoost's own reader ends the process on some of these."""
    booster, _ = trees(crowd)
    path = tmp_path / "trees.json"
    booster.save_model(path)
    text = path.read_text()

    def refused(content: str, says: str) -> None:
        path.write_text(content)
        with pytest.raises(ModelError, match=says) as error:
            wrap_model(path, crowd.domain, crowd.rows)
        assert "\n" not in str(error.value)

    refused("{}", "does not begin with the entry 'learner'")
    refused(text[:2000], "not a readable XGBoost model")
    model = json.loads(text)
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    for entry, value in (("left_children", 10**6), ("right_children", 0), ("split_indices", 999)):
        old, tree[entry] = tree[entry], [value, *tree[entry][1:]]
        refused(json.dumps(model), "not a readable XGBoost model")
        tree[entry] = old
    whole = json.dumps(model)
    for name in ("tree_info", "iteration_indptr", "cats/sorted_idx", "cats/feature_segments", "cats/enc/3/offsets"):
        for place, value in ((0, 2**31 - 1), (-1, -1), (1, 255)):
            part = model = json.loads(whole)
            for step in ("learner", "gradient_booster", "model", *name.split("/")):
                part = part[int(step) if isinstance(part, list) else step]
            part[place] = value
            refused(json.dumps(model), "not a readable XGBoost model")
    path = tmp_path / "trees.ubj"
    booster.save_model(path)
    content = bytearray(path.read_bytes())
    content[200:260] = np.random.default_rng(0).integers(0, 256, 60, dtype=np.uint8).tobytes()
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not a readable XGBoost model"):
        wrap_model(path, crowd.domain, crowd.rows)


def test_a_regression_has_a_tolerance(crowd, tmp_path):
    path = tmp_path / "trees.json"
    booster, data = trees(crowd, crowd.rows[:, 0] + 17, objective="reg:squarederror")
    booster.save_model(path)
    found = wrap_model(path, crowd.domain, crowd.rows)
    assert found.decision.kind == "tolerance"
    assert "a fifth of their robust standard deviation (interquartile range / 1.349)" in found.note
    found = wrap_model(path, crowd.domain, crowd.rows, decision=Decision("tolerance", 5.0))
    check_black_box(found, crowd.rows, booster.predict(data), "boosted trees")
    assert found.decision == Decision("tolerance", 5.0)
    booster, _ = trees(crowd, objective="reg:squarederror")  # of 0 and 1
    booster.save_model(path)
    assert wrap_model(path, crowd.domain, crowd.rows).decision == Decision("threshold", 0.5)


def test_a_file_in_the_working_folder_is_not_taken_for_a_package(crowd, tmp_path, monkeypatch):
    booster, _ = trees(crowd)
    booster.save_model(tmp_path / "trees.ubj")
    (tmp_path / "xgboost.py").write_text("__import__('pathlib').Path('trap').touch()\nfrom nowhere import Booster\n")
    monkeypatch.chdir(tmp_path)
    assert wrap_model("trees.ubj", crowd.domain, crowd.rows).kind == "XGBoost"
    assert not (tmp_path / "trap").exists()


def test_a_length_that_cannot_be_does_not_fill_our_memory(crowd, tmp_path):
    booster, _ = trees(crowd)
    path = tmp_path / "trees.ubj"
    booster.save_model(path)
    content = path.read_bytes()
    place = content.index(b"#L", content.index(b"left_children")) + 2
    path.write_bytes(content[:place] + (2**60).to_bytes(8, "big") + content[place + 8 :])
    with pytest.raises(ModelError, match="not a readable XGBoost model"):
        wrap_model(path, crowd.domain, crowd.rows)


def test_a_model_that_is_too_large_is_refused(crowd, tmp_path, monkeypatch):
    booster, _ = trees(crowd)
    path = tmp_path / "trees.ubj"
    booster.save_model(path)
    size = path.stat().st_size
    for limit in (size - 1, 2 * size):  # the file itself, and then what is made of it
        monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(limit))
        with pytest.raises(TooLargeError, match=r"trees\.ubj"):
            wrap_model(path, crowd.domain, crowd.rows)


def test_a_json_file_without_end_is_refused(crowd, tmp_path):
    path = tmp_path / "trees.json"
    path.write_text('{"learner":' + "[" * 100_000)
    with pytest.raises(ModelError, match="not a readable XGBoost model"):
        wrap_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize("suffix", [".ubj", ".json"])
@pytest.mark.parametrize("options", [{}, {"booster": "dart"}, {"num_parallel_tree": 3, "subsample": 0.5}], ids=str)
def test_after_early_stopping_the_best_rounds_count(options, suffix, crowd, tmp_path):
    """As `XGBClassifier.load_model` and `predict_proba` do; the rounds after the best one are in the file, too."""
    table = table_inputs(crowd.domain).of_rows(crowd.rows)
    for name in ("sex", "relationship", "marital", "race"):
        table[name] = table[name].astype("category")
    noise = np.random.default_rng(0).random(len(table)) < 0.3
    labels = np.where(noise, 1 - crowd.labels.numpy(), crowd.labels.numpy())
    model = xgboost.XGBClassifier(n_estimators=60, max_depth=4, early_stopping_rounds=10, n_jobs=1, **options)
    model.set_params(enable_categorical=True)
    model.fit(table[:150], labels[:150], eval_set=[(table[150:], labels[150:])], verbose=False)
    rounds, best = model.get_booster().num_boosted_rounds(), model.best_iteration + 1
    assert best < rounds
    path = tmp_path / f"trees{suffix}"
    model.save_model(path)
    again = xgboost.XGBClassifier()
    again.load_model(path)
    expected = again.predict_proba(table)[:, 1]
    found = wrap_model(path, crowd.domain, crowd.rows)
    every = model.get_booster().predict(xgboost.DMatrix(table, enable_categorical=True))
    assert np.abs(expected - every).max() > 0
    check_black_box(found, crowd.rows, expected, f"its first {best} of {rounds} rounds count")
    if not options.get("booster"):
        np.testing.assert_allclose(found.trees().scores(crowd.rows)[:, 0].numpy(), expected, atol=1e-6)
    memory = wrap_model(model, crowd.domain, crowd.rows)
    np.testing.assert_allclose(memory.model.scores(crowd.rows)[:, 1].numpy(), expected, atol=1e-6)
    if not options.get("booster"):
        np.testing.assert_allclose(memory.trees().scores(crowd.rows)[:, 1].numpy(), expected, atol=1e-6)
    booster = wrap_model(model.get_booster(), crowd.domain, crowd.rows)
    check_black_box(booster, crowd.rows, every, f"all {rounds} rounds count")


def test_a_linear_model_has_no_best_rounds():
    """XGBClassifier asks all of it, whatever its file says."""
    learner = {"attributes": {"best_iteration": "3"}, "gradient_booster": {"model": {"weights": [1.0]}}}
    assert find_best_rounds(learner) is None


def test_a_best_round_that_does_not_exist_is_refused(crowd, tmp_path):
    booster, _ = trees(crowd)
    path = tmp_path / "trees.json"
    for wrong in ("99", "-3", "second"):
        booster.set_attr(best_iteration=wrong)
        booster.save_model(path)
        with pytest.raises(ModelError, match="not a readable XGBoost model"):
            wrap_model(path, crowd.domain, crowd.rows)
