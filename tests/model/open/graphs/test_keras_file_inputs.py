"""Keras models of several inputs, with preprocessing layers and embeddings, from files and in memory."""

from __future__ import annotations

import json
import os
import warnings

import numpy as np
import pytest

import neuronfair as nf
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError, read_members
from neuronfair.model.open import wrap_model
from tests.bombs import zipped
from tests.model.open.conftest import check_black_box, check_white_box
from tests.model.open.graphs.keras_models import save
from tests.model.open.test_torch_modules import check_effects, codes, numbers, prepare, raw_numbers

os.environ.setdefault("KERAS_BACKEND", "torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Keras imports has warnings of its own
    keras = pytest.importorskip("keras", reason="the package keras is not installed")
    layers = keras.layers
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def columns(crowd):
    """What the table holds; labels as their places."""
    rows = crowd.rows
    names = {"age": rows[:, 0] + 17, "sex": rows[:, 1], "race": rows[:, 4], "gain": rows[:, 5] / 2, "loss": rows[:, 6]}
    return {name: column[:, None].numpy().astype("float32") for name, column in names.items()}


def functional(crowd, *, named=True, slope=0.0):
    """One input for each of some columns: normalised, embedded, encoded as categories, cut into bins, rescaled."""
    kinds = {"age": "float32", "sex": "int32", "race": "int64", "gain": "float32", "loss": "float32"}
    given = {name: keras.Input((1,), name=name, dtype=kind) for name, kind in kinds.items()}
    normal = layers.Normalization()
    normal.adapt(columns(crowd)["age"])
    parts = [
        normal(given["age"]),
        layers.CategoryEncoding(2, output_mode="one_hot")(given["sex"]),
        layers.Flatten()(layers.Embedding(3, 4)(given["race"])),
        layers.Rescaling(0.1, offset=-1.0)(given["gain"]),
        layers.Discretization([3.0, 5.0, 10.0], output_mode="one_hot")(given["loss"]),
    ]
    hidden = layers.LeakyReLU(negative_slope=slope)(layers.Dense(6)(layers.Concatenate()(parts)))
    return keras.Model(given if named else list(given.values()), layers.Dense(1)(hidden))


@pytest.mark.parametrize("suffix", [".keras", ".h5", None])
def test_one_input_for_each_column(suffix, crowd, tmp_path):
    model = functional(crowd, named=suffix != ".h5")
    found = wrap_model(save(model, tmp_path / f"net{suffix}") if suffix else model, crowd.domain, crowd.rows)
    given = columns(crowd)
    answers = model.predict(given if suffix != ".h5" else list(given.values()), verbose=0)
    check_white_box(found, crowd.rows, answers, [6])
    assert found.kind == "Keras"
    assert "each input is the column of its name, with labels as their positions in the domain" in found.note
    assert not any(isinstance(part, keras.Layer) for part in found.module.modules())


def test_the_gradient_is_the_effect_of_each_value(crowd):
    """Through an embedding, categories, bins and scales; the columns that the model does not read have none."""
    opened = wrap_model(functional(crowd, slope=1.0), crowd.domain, crowd.rows)
    check_effects(opened, crowd.rows, [0, 1, 4, 5, 6])


def codes_and_numbers():
    cat, num = keras.Input((4,), name="cat", dtype="int32"), keras.Input((3,), name="num")
    tables = layers.Flatten()(layers.Embedding(4, 3)(cat))
    joined = layers.Concatenate()([tables, layers.BatchNormalization()(num)])
    return keras.Model([cat, num], layers.Dense(2)(layers.Dense(5, activation="relu")(joined)))


def test_codes_and_numbers_apart(crowd, tmp_path):
    model = codes_and_numbers()
    path = save(model, tmp_path / "net.keras")
    found = wrap_model(path, crowd.domain, crowd.rows)
    answers = model.predict([codes(crowd.rows).numpy(), numbers(crowd.rows).numpy()], verbose=0)
    check_white_box(found, crowd.rows, answers, [5])
    assert "'num' is age, gain, loss as the domain declares them" in found.note
    found = wrap_model(path, crowd.domain, crowd.rows, preprocess=prepare)
    answers = model.predict([codes(crowd.rows).numpy(), raw_numbers(crowd.rows).numpy()], verbose=0)
    check_white_box(found, crowd.rows, answers, [5])


def test_inputs_that_fit_nothing(crowd):
    one, two = keras.Input((2,), name="one"), keras.Input((3,), name="two")
    model = keras.Model([one, two], layers.Dense(1)(layers.Concatenate()([one, two])))
    with pytest.raises(
        ModelError, match=r"'one' \(2 numbers\), 'two' .* 4 columns of labels and 3 of numbers. Say how"
    ):
        wrap_model(model, crowd.domain, crowd.rows)


def test_joined_in_other_ways(crowd, tmp_path):
    given = keras.Input((crowd.x.shape[1],))
    a, b, c = (layers.Dense(4, activation="tanh")(given) for _ in range(3))
    parts = [layers.Subtract()([a, b]), layers.Multiply()([a, c]), layers.Average()([a, b, c])]
    parts += [layers.Maximum()([a, b]), layers.Minimum()([b, c]), layers.Add()([a, b, c])]
    shared = layers.Dense(2)
    model = keras.Model(
        given, layers.Add()([shared(layers.Concatenate()(parts)), shared(layers.Concatenate()(parts[::-1]))])
    )
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, model.predict(crowd.x.numpy(), verbose=0), [4, 4, 4])


def test_an_operation_without_a_counterpart_is_named(crowd):
    given = keras.Input((crowd.x.shape[1],))
    model = keras.Model(given, layers.Dense(2)(keras.ops.sin(layers.Dense(3)(given))))
    found = wrap_model(model, crowd.domain, crowd.rows)
    check_black_box(
        found, crowd.rows, model.predict(crowd.x.numpy(), verbose=0), "its operation 'sin' has no counterpart"
    )


def test_a_model_class_of_ones_own_in_memory(crowd):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    model = Own()
    answers = model.predict(crowd.x.numpy(), verbose=0)
    check_black_box(wrap_model(model, crowd.domain, crowd.rows), crowd.rows, answers, "of the class 'Own'")


def lookups(tmp_path, *, vocabulary=None, asset=None, **settings):
    """A file as Keras with TensorFlow writes it: words and years are looked up in vocabularies."""
    from neuronfair.model.open.graphs.keras_layers import make_stand_ins

    made = make_stand_ins(keras)
    race, age = keras.Input((1,), name="race", dtype="string"), keras.Input((1,), name="age", dtype="int64")
    word = {"num_oov_indices": 1, "oov_token": "[UNK]", "mask_token": None, "vocabulary": vocabulary} | settings
    year = {"num_oov_indices": 2, "oov_token": -1, "mask_token": None, "vocabulary": [30, 20, 40], "vocabulary_size": 5}
    text = made["StringLookup"](name="words", **word)(race)
    if word.get("output_mode", "int") == "int":
        text = layers.Flatten()(layers.Embedding(4, 2)(text))
    years = made["IntegerLookup"](name="years", output_mode="one_hot", **year)(age)
    hidden = layers.Dense(4, activation="relu")(layers.Concatenate()([text, years]))
    model = keras.Model({"race": race, "age": age}, layers.Dense(1)(hidden))
    path = save(model, tmp_path / "net.keras")
    files = read_members(path.read_bytes(), path)
    config = json.loads(files["config.json"])
    for layer in config["config"]["layers"]:
        if layer["class_name"] in made:
            layer |= {"module": "keras.layers", "registered_name": None}
    files["config.json"] = json.dumps(config).encode()
    if asset is not None:
        files["assets/layers/string_lookup/vocabulary.txt"] = asset.encode()
    path.write_bytes(zipped(files))
    return model, path


def by_hand(model, crowd, word):
    """What the model computes, with the numbers of each race as `word` gives them."""
    age = crowd.rows[:, 0].numpy() + 17
    places = [{30: 2, 20: 3, 40: 4}.get(int(year), int(year) % 2) for year in age]  # others share two places
    race = [word["ABC"[code]] for code in crowd.rows[:, 4].tolist()]
    x = np.concatenate([np.array(race), np.eye(5)[places]], 1)
    first, second = (layer for layer in model.layers if type(layer).__name__ == "Dense")
    (a, b), (c, d) = first.get_weights(), second.get_weights()
    return np.maximum(x @ a + b, 0) @ c + d


@pytest.mark.parametrize("place", ["configuration", "assets"])
def test_words_and_numbers_that_are_looked_up(place, crowd, tmp_path):
    vocabulary = ["C", "A"] if place == "configuration" else None
    asset = "[UNK]\nC\nA" if place == "assets" else None
    model, path = lookups(tmp_path, vocabulary=vocabulary, asset=asset)
    table = next(layer for layer in model.layers if type(layer).__name__ == "Embedding").get_weights()[0]
    answers = by_hand(model, crowd, {"A": table[2], "B": table[0], "C": table[1]})
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, answers, [4])


def test_words_as_one_hot_inputs(crowd, tmp_path):
    model, path = lookups(
        tmp_path, vocabulary=["C", "A"], output_mode="multi_hot", max_tokens=6, pad_to_max_tokens=True
    )
    one = np.eye(6)
    answers = by_hand(model, crowd, {"A": one[2], "B": one[0], "C": one[1]})
    check_white_box(wrap_model(path, crowd.domain, crowd.rows), crowd.rows, answers, [4])


def test_a_masked_word(crowd, tmp_path):
    model, path = lookups(tmp_path, vocabulary=["B"], mask_token="A")
    table = next(layer for layer in model.layers if type(layer).__name__ == "Embedding").get_weights()[0]
    answers = by_hand(model, crowd, {"A": table[0], "B": table[2], "C": table[1]})
    check_white_box(wrap_model(path, crowd.domain, crowd.rows), crowd.rows, answers, [4])


@pytest.mark.parametrize(
    "settings", [{"num_oov_indices": 3}, {"invert": True}, {"vocabulary": "/etc/hostname"}, {"vocabulary": None}]
)
def test_what_cannot_be_looked_up_is_said(settings, crowd, tmp_path):
    """Hashed words, and a file named as a vocabulary, which is not read; without TensorFlow nobody can ask Keras."""
    _, path = lookups(tmp_path, **{"vocabulary": ["C"]} | settings)
    with pytest.raises(ModelError, match=r"TensorFlow.* 'words' is inverted, without a vocabulary or"):
        wrap_model(path, crowd.domain, crowd.rows)


def test_an_endless_depth_is_refused(crowd, tmp_path):
    _, path = lookups(tmp_path, vocabulary=["C", "A"], output_mode="one_hot", max_tokens=6, pad_to_max_tokens=True)
    files = read_members(path.read_bytes(), path)
    files["config.json"] = files["config.json"].replace(b'"max_tokens": 6', b'"max_tokens": 600000000000')
    path.write_bytes(zipped(files))
    with pytest.raises(
        (TooLargeError, ModelError), match=r"would take about .* GB of memory|not a readable Keras file"
    ):
        wrap_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize("count", [-1, 300_000_000])
def test_an_impossible_number_of_places_is_refused(count):
    from neuronfair.model.open.graphs.keras_layers import make_stand_ins

    with pytest.raises((TooLargeError, ValueError), match=r"would take about 2\.4 GB|is -1; 0 or more were expected"):
        make_stand_ins(keras)["StringLookup"](num_oov_indices=count)


def test_an_audit_finds_planted_bias(crowd):
    """The embedding of sex decides for people between 40 and 70; sensitive is a column of its own."""
    sex, age = keras.Input((1,), name="sex", dtype="int32"), keras.Input((1,), name="age")
    table = layers.Embedding(2, 1)
    joined = layers.Concatenate()([layers.Flatten()(table(sex)), age])
    first, last = layers.Dense(2, activation="relu"), layers.Dense(1)
    model = keras.Model([sex, age], last(first(joined)))
    table.set_weights([np.array([[0.0], [30.0]])])
    first.set_weights([np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([-60.0, 0.0])])
    last.set_weights([np.array([[1.0], [0.0]]), np.array([-9.5])])
    opened = wrap_model(model, crowd.domain, crowd.rows)
    assert opened.white_box
    rate = nf.rate(opened.model, crowd.domain, samples=2000, decision=opened.decision)
    # A man is above the limit from 40 years on, a woman from 70: of 17 to 90 years 30 of 74 are affected.
    assert abs(rate.rate - 30 / 74) < 0.05
    data = Dataset("crowd", crowd.domain, crowd.rows, crowd.labels)
    plan = nf.SearchConfig(seeds=10, steps=3, decision=opened.decision)
    assert len(nf.search(opened.model, crowd.domain, data.rows, plan).findings) > 0
