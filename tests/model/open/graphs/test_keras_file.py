"""Keras files, compared with Keras itself."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError, read_members
from neuronfair.model.decision import Decision
from neuronfair.model.open import wrap_model
from neuronfair.model.open.graphs import keras_layers
from tests.bombs import zipped
from tests.model.open.conftest import check_black_box, check_white_box
from tests.model.open.graphs.keras_models import save

os.environ.setdefault("KERAS_BACKEND", "torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Keras imports has warnings of its own
    keras = pytest.importorskip("keras", reason="the package keras is not installed")
    layers = keras.layers
    import h5py
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


def trained(crowd, *parts, loss="sparse_categorical_crossentropy"):
    model = keras.Sequential([keras.Input((crowd.x.shape[1],)), *parts])
    model.compile("adam", loss)
    model.fit(crowd.x.numpy(), crowd.labels.numpy(), epochs=2, verbose=0)
    return model


def predictions(model, crowd) -> np.ndarray:
    return model.predict(crowd.x.numpy(), verbose=0)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_a_dense_network_with_preprocessing(suffix, crowd, tmp_path):
    normalize = layers.Normalization()
    normalize.adapt(crowd.x.numpy())
    model = trained(
        crowd,
        normalize,
        layers.Dense(8, activation="relu"),
        layers.BatchNormalization(),
        layers.Dropout(0.5),
        layers.Dense(6, activation="tanh", use_bias=False),
        layers.LayerNormalization(),
        layers.Dense(1, activation="sigmoid"),
        loss="binary_crossentropy",
    )
    found = wrap_model(save(model, tmp_path / f"net{suffix}"), crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, predictions(model, crowd), [8, 6])
    assert (found.kind, found.decision) == ("Keras", Decision("threshold", 0.5))
    assert not any(isinstance(part, keras.Layer) for part in found.module.modules())


def test_a_convolutional_network(crowd, tmp_path):
    model = trained(
        crowd,
        layers.Dense(32),
        layers.LeakyReLU(negative_slope=0.1),
        layers.Rescaling(2.0, offset=0.5),
        layers.Reshape((4, 4, 2)),
        layers.Conv2D(4, 3, padding="same", activation="elu"),
        layers.AveragePooling2D(2, strides=1),
        layers.Conv2D(4, (2, 1), strides=(1, 2), groups=2),
        layers.BatchNormalization(center=False),
        layers.ReLU(max_value=6.0),
        layers.MaxPooling2D((2, 1)),
        layers.Flatten(),
        layers.Dense(3, activation="linear"),
        layers.Softmax(),
    )
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, predictions(model, crowd), [32, 64, 16])
    assert found.decision == Decision()


def test_a_straight_functional_model_with_a_model_inside(crowd, tmp_path):
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(5), layers.Activation("gelu")])
    given = keras.Input((crowd.x.shape[1],))
    hidden = inner(layers.ELU(alpha=0.5)(layers.Dense(6)(given)))
    pooled = layers.GlobalAveragePooling2D(keepdims=True)(layers.Reshape((1, 1, 5))(hidden))
    model = keras.Model(given, layers.Dense(2)(layers.Flatten()(pooled)))
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, predictions(model, crowd), [6, 5])


@pytest.mark.parametrize(
    "name",
    ["relu6", "leaky_relu", "selu", "silu", "mish", "sigmoid", "softplus", "softsign", "hard_sigmoid"],
)
def test_activations_mean_the_same(name, crowd, tmp_path):
    model = trained(crowd, layers.Dense(5, activation=name), layers.Dense(2, activation="log_softmax"), loss=LOGITS)
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, predictions(model, crowd), [5])


def test_a_branched_model(crowd, tmp_path):
    given = keras.Input((crowd.x.shape[1],))
    hidden = layers.Dense(4, activation="relu")(given)
    model = keras.Model(given, layers.Dense(1, activation="sigmoid")(layers.Add()([hidden, layers.Dense(4)(given)])))
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, predictions(model, crowd), [4])
    assert found.decision == Decision("threshold", 0.5)


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (lambda: layers.UnitNormalization(name="unit"), "layer 'unit' (UnitNormalization) has no counterpart"),
        (
            lambda: layers.Dense(4, activation="exponential", name="dense_e"),
            "'dense_e' has the activation 'exponential'",
        ),
        (lambda: layers.ReLU(threshold=0.3, name="late"), "'late' has a threshold"),
        (lambda: layers.ReLU(negative_slope=0.1, max_value=1.0, name="both"), "'both' has both"),
    ],
)
def test_other_layers_are_named(part, says, crowd, tmp_path):
    model = trained(crowd, layers.Dense(4, activation="relu"), part(), layers.Dense(2, activation="softmax"))
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, predictions(model, crowd), says)


@pytest.mark.parametrize(
    "parts",
    [
        lambda: [layers.Reshape((4, 4, 1)), layers.Conv2D(2, 3, strides=2, padding="same"), layers.Flatten()],
        lambda: [layers.Reshape((4, 4, 1)), layers.MaxPooling2D(3, padding="same"), layers.Flatten()],
        lambda: [layers.Reshape((4, 4)), layers.LayerNormalization(axis=1), layers.Flatten()],
        lambda: [layers.Reshape((4, 4)), layers.Softmax(axis=1), layers.Flatten()],
    ],
    ids=["strided same", "pool same", "norm axis", "softmax axis"],
)
def test_variants_that_torch_does_otherwise_are_black_boxes(parts, crowd, tmp_path):
    model = trained(crowd, layers.Dense(16, activation="relu"), *parts(), layers.Dense(2, activation="softmax"))
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, predictions(model, crowd), "its layer '")


def test_flattening_of_channels_that_come_first(crowd, tmp_path):
    parts = layers.Reshape((2, 2, 4)), layers.Flatten(data_format="channels_first")
    model = trained(crowd, layers.Dense(16, activation="relu"), *parts, layers.Dense(2, activation="softmax"))
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    check_white_box(found, crowd.rows, predictions(model, crowd), [16])


def test_what_changes_a_layer_is_not_left_out(crowd):
    """Even where no row of the table shows it, as here: all scores are those of the plain layers."""

    class Dropout(layers.Layer):  # not Keras's own
        def call(self, x):
            return x

    low_rank = layers.Dense(2)
    given = keras.Input((crowd.x.shape[1],))
    hidden = layers.Dense(4, activation="relu")(given)
    models = {
        "its layer 'other' is of another class": low_rank(Dropout(name="other")(hidden)),
        "its layer 'always' is called with training=": layers.Dense(2)(
            layers.Dropout(0.0, name="always")(hidden, training=True)
        ),
        "quantized or has LoRA weights": low_rank(hidden),
    }
    low_rank.enable_lora(1)
    for says, result in models.items():
        model = keras.Model(given, result)
        check_black_box(wrap_model(model, crowd.domain, crowd.rows), crowd.rows, predictions(model, crowd), says)


def test_one_input_for_each_column(crowd, tmp_path):
    given = [keras.Input((1,), name=name) for name in ("age", "gain")]
    model = keras.Model(given, layers.Dense(1)(layers.Concatenate()(given)))
    found = wrap_model(save(model, tmp_path / "net.keras"), crowd.domain, crowd.rows)
    age, gain = crowd.rows[:, :1] + 17, crowd.rows[:, 5:6] * 0.5
    answers = model.predict({"age": age.numpy(), "gain": gain.numpy()}, verbose=0)
    check_black_box(found, crowd.rows, answers, "each input is the column of its name")
    assert found.decision == Decision("threshold", 0.0)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_python_code_inside_is_refused(suffix, crowd, tmp_path):
    model = trained(crowd, layers.Lambda(lambda x: x * 2), layers.Dense(2, activation="softmax"))
    path = save(model, tmp_path / f"net{suffix}")
    with pytest.raises(ModelError, match=r"Python code .*--trust-pickle"):
        wrap_model(path, crowd.domain, crowd.rows)
    found = wrap_model(path, crowd.domain, crowd.rows, trust_pickle=True)
    check_black_box(found, crowd.rows, predictions(model, crowd), "(Lambda) has no counterpart")


def test_refusals(crowd, tmp_path):
    narrow = keras.Sequential([keras.Input((5,)), layers.Dense(3, activation="relu"), layers.Dense(2)])
    with pytest.raises(ModelError, match=r"expects 5 inputs. .*gives 14 numbers a row"):
        wrap_model(save(narrow, tmp_path / "narrow.keras"), crowd.domain, crowd.rows)
    path = tmp_path / "cut.keras"
    path.write_bytes((tmp_path / "narrow.keras").read_bytes()[:4000])
    with pytest.raises(ModelError, match="not a readable Keras file"):
        wrap_model(path, crowd.domain, crowd.rows)
    sick = keras.Sequential([keras.Input((14,)), layers.Dense(3, activation="relu"), layers.Dense(2)])
    sick.layers[0].set_weights([np.full((14, 3), np.nan), np.zeros(3)])
    with pytest.raises(ModelError, match="NaN"):
        wrap_model(save(sick, tmp_path / "sick.keras"), crowd.domain, crowd.rows)


def test_a_model_that_torch_computes_otherwise_is_a_black_box(crowd, tmp_path, monkeypatch):
    model = trained(crowd, layers.Dense(4, activation="gelu"), layers.Dense(2, activation="softmax"))
    path = save(model, tmp_path / "net.keras")
    assert wrap_model(path, crowd.domain, crowd.rows).model.rows_forward == 0
    monkeypatch.setitem(keras_layers._ACTIVATIONS, "gelu", keras_layers._ACTIVATIONS["silu"])
    found = wrap_model(path, crowd.domain, crowd.rows)
    check_black_box(found, crowd.rows, predictions(model, crowd), "its scores could not be reproduced in torch")


def test_weights_inside_an_archive_are_read_apart_first(crowd, tmp_path):
    """The archive's own checksums are right, but what stands in it is no HDF5 file, on which the library could hang."""
    model = trained(crowd, layers.Dense(4, activation="relu"), layers.Dense(2, activation="softmax"))
    path = save(model, tmp_path / "net.keras")
    weights = read_members(path.read_bytes(), path)["model.weights.h5"]
    rewritten(path, {"model.weights.h5": weights[:900]})
    with pytest.raises(ModelError, match=r"not a readable Keras file .*truncated file"):
        wrap_model(path, crowd.domain, crowd.rows)


def plain(crowd, suffix, tmp_path):
    model = trained(crowd, layers.Dense(4, activation="relu"), layers.Dense(2, activation="softmax"))
    return save(model, tmp_path / f"net{suffix}")


def external(file):
    file["more"] = h5py.ExternalLink("other.h5", "/weights")


def soft(file):
    file["model_weights"]["more"] = h5py.SoftLink("/model_weights")


def stored_elsewhere(file):
    file.create_dataset("more", (10,), "u1", external=[("/etc/hostname", 0, 10)])


def virtual(file):
    layout = h5py.VirtualLayout((10,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "weights", (10,))
    file.create_virtual_dataset("more", layout)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (external, "'more' is a link to another place"),
        (soft, "'model_weights/more' is a link to another place"),
        (stored_elsewhere, "'/more' lies in another file"),
        (virtual, "'/more' lies in another file"),
    ],
)
def test_what_leads_out_of_the_file_is_refused(change, says, crowd, tmp_path):
    path = plain(crowd, ".h5", tmp_path)
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(ModelError, match=says):
        wrap_model(path, crowd.domain, crowd.rows)


def huge(file):
    file.create_dataset("more", (100_000, 100_000), "f4", chunks=True, compression="gzip")


def many(file):
    for i in range(30):
        file.create_dataset(f"more{i}", (1000, 1000), "f4", chunks=True, compression="gzip")


def talkative(file):
    file.attrs["more"] = "[" * 60_000
    for i in range(60):
        file.create_group(f"more{i}").attrs["more"] = "[" * 60_000


@pytest.mark.parametrize("change", [huge, many, talkative])
def test_what_a_file_declares_is_limited(change, crowd, tmp_path, monkeypatch):
    path = plain(crowd, ".h5", tmp_path)
    with h5py.File(path, "a") as file:
        change(file)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "100000000")
    with pytest.raises(TooLargeError, match=r"net\.h5: takes more than"):
        wrap_model(path, crowd.domain, crowd.rows)


def rewritten(path, changes):
    """Put other members into an archive."""
    path.write_bytes(zipped(read_members(path.read_bytes(), path) | changes))
    return path


@pytest.mark.parametrize(
    ("name", "says"),
    [("../words", "leads out"), ("assets/../../words", "leads out"), ("model.weights.npz", "the archive holds")],
)
def test_members_of_an_archive_that_do_not_belong_there(name, says, crowd, tmp_path):
    path = rewritten(plain(crowd, ".keras", tmp_path), {"assets/words": b"x"})
    wrap_model(path, crowd.domain, crowd.rows)
    rewritten(path, {name: b"x"})
    with pytest.raises(ModelError, match=f"not a readable Keras file .*{says}"):
        wrap_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize(("name", "limit"), [("config.json", 100_000_000), ("assets/more", 30_000_000)])
def test_an_archive_is_limited(name, limit, crowd, tmp_path, monkeypatch):
    path = rewritten(plain(crowd, ".keras", tmp_path), {name: b" " * 20_000_000})
    assert path.stat().st_size < 200_000
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(limit))
    with pytest.raises(TooLargeError, match=r"net\.keras"):
        wrap_model(path, crowd.domain, crowd.rows)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_layers_that_are_larger_than_their_weights_are_never_made(suffix, crowd, tmp_path):
    """Two layers of 10,000,000 x 10,000,000 would take 800 TB; the error is that the weights do not fit."""
    path = plain(crowd, suffix, tmp_path)
    if suffix == ".keras":
        config = read_members(path.read_bytes(), path)["config.json"]
        rewritten(path, {"config.json": config.replace(b'"units": 4', b'"units": 10000000')})
    else:
        with h5py.File(path, "a") as file:
            file.attrs["model_config"] = file.attrs["model_config"].replace('"units": 4', '"units": 10000000')
    with pytest.raises(ModelError, match=r"not a readable Keras file .*shape"):
        wrap_model(path, crowd.domain, crowd.rows)


def test_a_layer_that_makes_very_many_numbers_of_a_row_is_refused(crowd, tmp_path):
    given = keras.Input((crowd.x.shape[1],))
    wide = keras.Sequential([layers.RepeatVector(10**9), layers.GlobalAveragePooling1D()])
    path = save(keras.Model(given, layers.Dense(2)(wide(given))), tmp_path / "net.keras")
    with pytest.raises(TooLargeError, match=r"net\.keras, one row: would take about 112\.0 GB"):
        wrap_model(path, crowd.domain, crowd.rows)
