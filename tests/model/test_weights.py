"""Weights files: round trips to the bit, and nothing believed that should not be."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import pickle
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from neuronfair.errors import ModelError
from neuronfair.limits import TooLargeError
from neuronfair.model import weights
from neuronfair.model.weights import HFCN, LFCN, Card, fingerprint, fully_connected, load_weights, save_weights
from tests.bombs import lying_archive, npy, zipped

MODELS = Path(os.environ.get("NEURONFAIR_MODELS", Path(__file__).parents[2] / ".." / "shared" / "models"))


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return fully_connected(3, (5, 4), 2)


def card(module: nn.Module, **changes: object) -> Card:
    plain = Card(
        domain="adult",
        encoding="codes",
        domain_fingerprint=None,
        inputs=3,
        hidden=(5, 4),
        outputs=2,
        classes=("<=50K", ">50K €"),
        accuracy={"train": 0.9, "validation": 0.85, "test": 0.84},
        seed=7,
        fingerprint=fingerprint(module),
    )
    return dataclasses.replace(plain, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_round_trip_is_equal_to_the_bit(path: Path) -> None:
    module = network()
    save_weights(path, module, card(module))
    state = torch.get_rng_state()
    loaded, read = load_weights(str(path))
    assert torch.equal(torch.get_rng_state(), state)
    assert read == card(module)
    assert not loaded.training
    assert list(loaded.state_dict()) == list(module.state_dict())
    assert all(torch.equal(value, module.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert all(p.requires_grad and p.device.type == "cpu" for p in loaded.parameters())
    x = torch.randn(4, 3)
    assert torch.equal(loaded(x), module(x))
    assert sorted(p.name for p in path.parent.iterdir()) == ["model.json", "model.safetensors"]
    assert json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["classes"] == ["<=50K", ">50K €"]


def test_double_weights_stay_double(path: Path) -> None:
    module = network().double()
    save_weights(path, module, card(module))
    assert load_weights(path)[0].output.weight.dtype == torch.float64


def test_the_fingerprint_depends_on_every_weight_and_nothing_else(path: Path) -> None:
    module = network()
    before = fingerprint(module)
    assert before == fingerprint(network().train())
    assert before != fingerprint(network(1))
    assert before != fingerprint(network().double())
    with torch.no_grad():
        module.output.bias[1] = torch.nextafter(module.output.bias[1], torch.tensor(1.0))
    assert before != fingerprint(module)


def test_without_a_card_the_shapes_tell_the_structure(path: Path) -> None:
    module = network()
    save_file(module.state_dict(), path)
    loaded, read = load_weights(path)
    assert read is None
    x = torch.randn(4, 3)
    assert torch.equal(loaded(x), module(x))


def test_a_header_whose_length_looks_like_a_pickle_is_read(path: Path) -> None:
    module = network()
    for pad in range(1, 900):
        save_file(module.state_dict(), path, metadata={"pad": "x" * pad})
        if path.read_bytes()[0] == 0x80:
            break
    assert path.read_bytes()[0] == 0x80
    assert 2 <= path.read_bytes()[1] <= 5
    assert load_weights(path)[1] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": 4}, "the card says"),
        ({"hidden": (4, 5)}, "the card says"),
        ({"classes": ("a",)}, "1 classes for 2 outputs"),
        ({"fingerprint": "0" * 64}, "other weights"),
    ],
)
def test_a_card_that_does_not_fit_is_not_saved(path: Path, change: dict[str, object], message: str) -> None:
    module = network()
    with pytest.raises(ModelError, match=message):
        save_weights(path, module, card(module, **change))
    assert not list(path.parent.iterdir())


def test_only_what_load_can_rebuild_is_saved(path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(ModelError, match="expected the tensors"):
        save_weights(path, module, card(module))
    with pytest.raises(ModelError, match="safetensors"):
        save_weights(path.with_suffix(".pt"), network(), card(network()))


def test_weights_that_were_edited_do_not_match_their_card(path: Path) -> None:
    module = network()
    save_weights(path, module, card(module))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match="damaged or edited"):
        load_weights(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "null",
        '{"version": 1}',
        '{"version": 1, "hidden": 3, "classes": [], "accuracy": {}}',
        '{"version": 2}',
    ],
)
def test_broken_cards_are_refused(path: Path, text: str) -> None:
    save_file(network().state_dict(), path, metadata={weights.CARD_KEY: text})
    with pytest.raises(ModelError, match="card"):
        load_weights(path)


def arrays(*sizes: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    made = {}
    for i, (before, after) in enumerate(pairwise(sizes)):
        made[f"W{i}"] = generator.normal(size=(before, after)).astype(np.float32)
        made[f"b{i}"] = generator.normal(size=after).astype(np.float32)
    return made


def numpy_forward(parts: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    last = len(parts) // 2 - 1
    for i in range(last + 1):
        x = x @ parts[f"W{i}"] + parts[f"b{i}"]
        x = np.maximum(x, 0) if i < last else x
    return x


def test_npz_gives_the_scores_of_a_numpy_forward_pass(tmp_path: Path) -> None:
    parts = arrays(3, 6, 4, 2)
    np.savez(tmp_path / "m.npz", **parts)
    module, read = load_weights(tmp_path / "m.npz")
    assert read is None
    x = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    np.testing.assert_allclose(
        module(torch.from_numpy(x)).detach().numpy(), numpy_forward(parts, x), rtol=1e-5, atol=1e-5
    )


@pytest.mark.skipif(not MODELS.is_dir(), reason=f"no published models at {MODELS}; set NEURONFAIR_MODELS")
def test_published_models_load_and_agree_with_numpy() -> None:
    files = sorted(MODELS.glob("*/*.npz"))
    assert files
    for file in files:
        with np.load(file) as found:
            parts = dict(found)
        module, _ = load_weights(file)
        x = np.random.default_rng(0).integers(0, 10, size=(50, len(parts["W0"]))).astype(np.float32)
        expected = numpy_forward({k: v.astype(np.float64) for k, v in parts.items()}, x)
        np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W1": np.zeros((5, 2), np.float32)}, "after 6 units"),
        ({"b0": np.zeros(5, np.float32)}, r"layer1\.0 has shapes"),
        ({"W0": np.zeros(6, np.float32)}, r"layer1\.0 has shapes"),
        ({"W0": np.zeros((3, 6), np.int64)}, "floating-point"),
        ({"W0": np.zeros((3, 6), np.float64)}, "one floating-point type"),
        ({"W3": np.zeros((2, 2), np.float32)}, "expected arrays W0, b0"),
        ({"W0": np.array([[None]])}, "plain arrays"),
    ],
)
def test_npz_that_is_no_network_is_refused(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    file = tmp_path / "odd.npz"
    np.savez(file, **{**arrays(3, 6, 2), **change})
    with pytest.raises(ModelError, match=message) as caught:
        load_weights(file)
    assert_one_line(caught.value, file)


def assert_one_line(error: Exception, file: Path) -> None:
    assert str(file) in str(error)
    assert "\n" not in str(error)


def torch_zip() -> bytes:
    buffer = io.BytesIO()
    torch.save(network().state_dict(), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("content", [pickle.dumps({"a": 1}, protocol) for protocol in (2, 3, 4, 5)] + [torch_zip()])
@pytest.mark.parametrize("name", ["m.pt", "m.safetensors", "m.weights"])
def test_pickles_are_refused_with_the_remedy(tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"pickled models are refused.*safetensors") as caught:
        load_weights(file)
    assert_one_line(caught.value, file)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pkl", ".joblib"])
def test_the_names_of_pickles_are_enough(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"m{suffix}"
    file.write_bytes(b"anything")
    with pytest.raises(ModelError, match="refused"):
        load_weights(file)


def test_a_pickle_inside_an_npz_never_runs(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    np.savez(tmp_path / "m.npz", W0=np.array([Trap()], dtype=object), b0=np.zeros(1))
    with pytest.raises(ModelError):
        load_weights(tmp_path / "m.npz")
    assert not (tmp_path / "sprung").exists()


def test_absent_files_and_folders_are_named(tmp_path: Path) -> None:
    for file in (tmp_path / "no.safetensors", tmp_path):
        with pytest.raises(ModelError, match="no such file") as caught:
            load_weights(file)
        assert_one_line(caught.value, file)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    whole, file = tmp_path / f"whole{suffix}", tmp_path / f"part{suffix}"
    if suffix == ".npz":
        np.savez_compressed(whole, **arrays(3, 6, 2))
    else:
        save_weights(whole, network(), card(network()))
    content = whole.read_bytes()
    for length in {0, 1, 2, 8, 9, len(content) // 2, len(content) - 1}:
        file.write_bytes(content[:length])
        with pytest.raises(ModelError) as caught:
            load_weights(file)
        assert_one_line(caught.value, file)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), suffix=st.sampled_from([".safetensors", ".npz", ".model"]))
@example(content=struct.pack("<Q", 2) + b"{}", suffix=".safetensors")
@example(content=struct.pack("<Q", 2**63) + b"{}", suffix=".safetensors")
@example(content=b"PK\x03\x04", suffix=".npz")
@example(content=b"\x93NUMPY\x01\x00", suffix=".npz")
def test_random_bytes_are_refused_in_one_line(tmp_path: Path, content: bytes, suffix: str) -> None:
    file = tmp_path / f"noise{suffix}"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_weights(file)
    assert_one_line(caught.value, file)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), suffix=st.sampled_from([".safetensors", ".npz"]))
def test_a_flipped_bit_is_never_loaded_silently(tmp_path: Path, place: float, bit: int, suffix: str) -> None:
    file = tmp_path / f"flipped{suffix}"
    module = network()
    if suffix == ".npz":
        np.savez(file, **arrays(3, 5, 4, 2))
    else:
        save_weights(file, module, card(module))
    whole = load_weights(file)
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    file.write_bytes(content)
    try:
        loaded, _ = load_weights(file)
    except (ModelError, TooLargeError) as error:
        assert_one_line(error, file)
    else:  # the bit lies where it means nothing to the weights: a date, or the words of the card
        assert fingerprint(loaded) == fingerprint(whole[0])


def full_disk(*args: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_full_disk_leaves_the_old_files_and_no_debris(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    old, new = network(), network(1)
    save_weights(path, old, card(old))
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    monkeypatch.setattr(os, call, full_disk)
    with pytest.raises(ModelError, match="No space left") as caught:
        save_weights(path, new, card(new))
    monkeypatch.undo()
    assert_one_line(caught.value, path.with_suffix(""))
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before
    save_weights(path, new, card(new))
    assert load_weights(path)[1] == card(new)


def test_whoever_finds_the_weights_after_a_kill_finds_the_card_beside_them(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (order.append(Path(b).suffix), real(a, b))[1])
    module = network()
    save_weights(path, module, card(module))
    assert order == [".json", ".safetensors"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    module = network()
    with pytest.raises(ModelError, match="cannot be written: No such file"):
        save_weights(tmp_path / "no" / "m.safetensors", module, card(module))


def test_an_npz_that_unpacks_to_more_than_allowed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.npz"
    np.savez_compressed(file, W0=np.zeros((5, 200_000), "f"), b0=np.zeros(200_000, "f"))
    assert file.stat().st_size < 10_000
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "10000000")
    with pytest.raises(TooLargeError, match=r"m\.npz"):
        load_weights(file)


@pytest.mark.parametrize("shape", [(10**12, 10**6), (5, 10**9)])
def test_an_array_that_declares_more_than_it_holds_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    file = tmp_path / "m.npz"
    file.write_bytes(zipped({"W0.npy": npy(shape, 4, 80), "b0.npy": npy((4,), 4, 16)}))
    with pytest.raises(ModelError, match="is declared") as caught:
        load_weights(file)
    assert_one_line(caught.value, file)


def test_a_header_without_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.npz"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 40_000 + b")}"
    content = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header
    file.write_bytes(zipped({"W0.npy": content, "b0.npy": npy((4,), 4, 16)}))
    with pytest.raises(ModelError, match="not a readable npz file"):
        load_weights(file)


def test_a_member_that_is_larger_than_it_says_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "1000000")
    file = tmp_path / "m.npz"
    file.write_bytes(lying_archive("W0.npy", npy((2, 10**7), 4, 8 * 10**7), said=600))
    with pytest.raises(ModelError, match="not a readable npz file"):
        load_weights(file)


def test_a_safetensors_file_that_is_too_large_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_weights(path, network(), card(network()))
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(3 * path.stat().st_size))
    load_weights(path)
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", str(3 * path.stat().st_size - 1))
    with pytest.raises(TooLargeError):
        load_weights(path)


def test_the_light_network_has_the_published_sizes() -> None:
    module = fully_connected(13)
    shapes = [tuple(p.shape) for name, p in module.named_parameters() if name.endswith("weight")]
    assert shapes == [(64, 13), (32, 64), (16, 32), (8, 16), (4, 8), (2, 4)]
    assert [name for name, _ in module.named_children()] == [*(f"layer{i}" for i in range(1, 6)), "output"]
    assert LFCN == (64, 32, 16, 8, 4)


def test_every_hidden_layer_ends_in_a_relu_and_the_output_does_not() -> None:
    module = fully_connected(3, (5, 4), 3)
    x = torch.randn(6, 3)
    h = (x @ module.layer1[0].weight.T + module.layer1[0].bias).clamp(min=0)
    h = (h @ module.layer2[0].weight.T + module.layer2[0].bias).clamp(min=0)
    torch.testing.assert_close(module(x), h @ module.output.weight.T + module.output.bias)


@torch.no_grad()
def test_the_signal_survives_the_heavy_network() -> None:
    torch.manual_seed(0)
    spreads = [float(fully_connected(40, HFCN)(torch.randn(500, 40)).std()) for _ in range(5)]
    assert sorted(spreads)[2] > 0.1


def test_torch_seeds_make_it_repeatable() -> None:
    torch.manual_seed(1)
    one = fully_connected(4).state_dict()
    torch.manual_seed(1)
    two = fully_connected(4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_network_without_hidden_layers_is_linear() -> None:
    assert [name for name, _ in fully_connected(4, ()).named_children()] == ["output"]


def test_empty_layers_are_refused() -> None:
    with pytest.raises(ModelError, match="3-4-0-2"):
        fully_connected(3, (4, 0))
