"""The file formats of models: which reader opens a file, or why it is refused, before torch is imported."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from neuronfair.errors import ModelError, did_you_mean, require
from neuronfair.limits import TREE_FACTOR, check_array, check_size, read_bytes, read_members, repack

WEIGHTS_READER = "torch_modules:open_weights"
# The reader of each suffix: a module in `model/open/` and a function in it.
READERS = {
    **dict.fromkeys((".safetensors", ".npz"), WEIGHTS_READER),
    ".pt2": "torch_modules:open_exported",
    ".onnx": "graphs.onnx_file:open_source",
    **dict.fromkeys((".keras", ".h5", ".hdf5"), "graphs.keras_file:open_source"),
    **dict.fromkeys((".skops", ".joblib", ".pkl", ".pickle"), "estimators:open_source"),
    **dict.fromkeys((".ubj", ".json", ".txt", ".cbm"), "estimators:open_source"),
}
OPENABLE_PICKLES = {".joblib", ".pkl", ".pickle"}
# Models that `neuronfair alternatives` clones and fits again; of others, the code that makes them is needed.
REFITTED = (".skops", ".joblib", ".pkl", ".pickle", ".safetensors", ".npz")
_IMPORTABLE_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_PICKLED_TORCH_SUFFIXES = {".pt", ".pth", ".ckpt", ".bin"}
PICKLE_SUFFIXES = OPENABLE_PICKLES | _PICKLED_TORCH_SUFFIXES


def find_reader(source: str, *, weights: str | Path | None = None, trust_pickle: bool = False) -> str:
    """Return the reader of a model as `module:function`; refuse by its name what cannot be opened.

    >>> find_reader("package.module:make")
    'user_code:open_source'
    """
    path = Path(source)
    if _IMPORTABLE_NAME.fullmatch(source) and not path.exists():
        if weights is not None:
            _check_weights(source, Path(weights))
        return "user_code:open_source"
    if weights is not None:
        raise ModelError(f"{source}: --weights belongs to a torch module given as package.module:name")
    if path.is_dir():
        raise ModelError(f"{source}: is a folder, not a model file")
    suffix = path.suffix.lower()
    if not path.is_file():
        raise ModelError(f"{source}: there is no such file. {_name_models(path)}")
    if suffix in _PICKLED_TORCH_SUFFIXES:
        raise ModelError(
            f"{source}: pickled models are refused, because opening one runs any program hidden in it. Name the "
            "function that makes the module (package.module:name) with its weights as safetensors, or save it as ONNX. "
            f"Weights are converted by {_conversion_command(path)}"
        )
    if suffix not in READERS:
        raise ModelError(f"{source}: a file that ends in '{suffix}' is no model. {did_you_mean(suffix, READERS)}")
    if suffix in OPENABLE_PICKLES and not trust_pickle:
        raise ModelError(
            f"{source}: a pickle, and opening one runs any program hidden in it. If you trust the file: "
            "--trust-pickle. Better, save the model with skops.io.dump(model, 'model.skops')"
        )
    if suffix == ".pt2" and not trust_pickle:
        raise ModelError(
            f"{source}: a torch.export archive, and loading one can run a program hidden in it. If you trust the file: "
            "--trust-pickle. Better, save the network as ONNX, or its weights as safetensors with the function that "
            "makes the module (package.module:name)"
        )
    return READERS[suffix]


def _check_weights(source: str, weights: Path) -> None:
    """Refuse a file of weights that is a pickle, by its name or its first bytes."""
    if not weights.is_file():
        raise ModelError(f"{source}: there is no file of weights {weights}")
    if is_pickle(weights):
        raise ModelError(
            f"{weights}: expected a safetensors file, got a pickle, as torch.save writes it, and opening one can run "
            f"any program hidden in it. Convert the weights once: {_conversion_command(weights)}"
        )


def is_pickle(path: Path) -> bool:
    """Return whether a file is a pickle, or a zip around one, by its name or its first bytes."""
    with path.open("rb") as file:
        head = file.read(9)
    # A pickle begins with 0x80 and its protocol; so may the length in a safetensors file, which a brace follows.
    pickled = head.startswith((b"PK\3\4", *(bytes([0x80, protocol]) for protocol in range(2, 6)))) and head[8:] != b"{"
    return pickled or path.suffix.lower() in PICKLE_SUFFIXES


def _name_models(path: Path) -> str:
    """Say which models are in the folder of a path that is no file, or what a model is."""
    names = sorted(p.name for p in path.parent.glob("*") if p.suffix.lower() in READERS)
    if path.suffix.lower() in READERS and names:
        return did_you_mean(path.name, names)
    return f"A model is a file ({', '.join(READERS)}) or package.module:name"


def _conversion_command(path: Path) -> str:
    """Return a command that converts a state dict to safetensors; it loads tensors only."""
    target = path.with_suffix(".safetensors")
    return (
        'python -c "import torch, safetensors.torch as s; '
        f"s.save_file(torch.load('{path}', weights_only=True), '{target}')\""
    )


@dataclass(frozen=True)
class ModelFile:
    """The file of a model, or `package.module:name`, and whether it may run a program when opened."""

    source: str
    trust_pickle: bool = field(default=False, kw_only=True)

    @property
    def path(self) -> Path:
        """The source as a file."""
        return Path(self.source)

    @cached_property
    def content(self) -> bytes:
        """The content of the file, read once, so that the bytes that were checked are those that are opened."""
        return read_bytes(self.path)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return hashlib.sha256(self.content).hexdigest()

    def error(self, reason: str) -> ModelError:
        """Return an error that begins with the name of the source."""
        return ModelError(f"{self.source}: {reason}")


# Types in files of perceptrons that skops does not list as safe; opening them runs nothing.
_SAFE_SKOPS_TYPES = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.compose._column_transformer._RemainderColsList",
}


def read_skops(file: ModelFile) -> Any:
    """Return the model in a .skops archive; types that can run a program when opened need trust."""
    skops = require("skops.io", "sklearn")
    content = _unpack_skops(file)
    unknown = skops.get_untrusted_types(data=content)
    unsafe = [name for name in unknown if name not in _SAFE_SKOPS_TYPES]
    if unsafe and not file.trust_pickle:
        names = ", ".join(unsafe[:6]) + (", …" if len(unsafe) > 6 else "")
        raise file.error(f"holds types that can run a program when opened: {names}. If you trust it: --trust-pickle")
    return skops.loads(content, trusted=unknown)


def _unpack_skops(file: ModelFile) -> bytes:
    """Return an unpacked .skops archive; refuse one that is too large, or whose arrays are."""
    files = read_members(file.content, file.source)
    check_size(len(files["schema.json"]), file.source, times=TREE_FACTOR)
    total = sum(map(len, files.values()))
    for name, content in files.items():
        arrays = {name: content}
        if name.endswith(".npz"):  # a sparse matrix: an archive in the archive
            arrays = read_members(content, file.source, extra_bytes=total)
            total += sum(map(len, arrays.values()))
            files[name] = repack(arrays)
        for array in arrays:
            if array.endswith(".npy"):
                check_array(arrays[array])
    bytes_read = 0

    def count_bytes(entry: Mapping[str, str]) -> None:
        nonlocal bytes_read
        bytes_read += len(files.get(entry.get("file", ""), ""))

    json.loads(files["schema.json"], object_hook=count_bytes)
    check_size(bytes_read, file.source, times=2)  # an array that is named twice is read twice
    return repack(files)
