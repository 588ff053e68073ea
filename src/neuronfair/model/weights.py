"""Weights files: safetensors with a card that says what the network is; pickles are refused."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from neuronfair.atomic import replace_file
from neuronfair.domain.table import TableDomain
from neuronfair.errors import ModelError, one_line
from neuronfair.limits import TooLargeError, check_array, check_size, check_tensors, read_bytes, read_members
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.formats import is_pickle

#: Hidden layers of the paper's light fully connected network.
LFCN: tuple[int, ...] = (64, 32, 16, 8, 4)
#: Hidden layers of the paper's heavy fully connected network.
HFCN: tuple[int, ...] = (256, 256, 64, 64, 32, 32, 16, 8)


def fully_connected(inputs: int, hidden: Sequence[int] = LFCN, outputs: int = 2) -> nn.Sequential:
    """Build an untrained fully connected ReLU network with layers named layer1, layer2, …, output.

    The weights are drawn from torch's global generator, so `torch.manual_seed` makes them repeatable.

    >>> [name for name, _ in fully_connected(13, (8, 4)).named_children()]
    ['layer1', 'layer2', 'output']
    """
    sizes = (inputs, *hidden, outputs)
    if min(sizes) < 1:
        raise ModelError(f"a network needs at least one unit per layer, got {'-'.join(map(str, sizes))}")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, after) in enumerate(pairwise(sizes[:-1]), start=1):
        layers[f"layer{number}"] = nn.Sequential(_build_linear(before, after), nn.ReLU())
    layers["output"] = _build_linear(sizes[-2], sizes[-1])
    return nn.Sequential(layers)


def _build_linear(inputs: int, outputs: int) -> nn.Linear:
    # He initialisation: torch's default shrinks the signal about 2.4 times in every ReLU layer, so the
    # eight layers of HFCN would start as an almost constant function.
    layer = nn.Linear(inputs, outputs)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.zeros_(layer.bias)
    return layer


CARD_KEY = "neuronfair"
CARD_VERSION = 1


@dataclass(frozen=True)
class Card:
    """What a weights file says about its network: which inputs it takes, which classes it tells apart, how well.

    `accuracy` holds the shares of correct labels by part (train, validation, test); `fingerprint` is that of the
    weights, `domain_fingerprint` that of the domain they were trained for.
    """

    domain: str
    encoding: str
    domain_fingerprint: str | None
    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    classes: tuple[str, ...]
    accuracy: Mapping[str, float]
    seed: int
    fingerprint: str
    version: int = CARD_VERSION


def fingerprint(module: nn.Module) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of the module's tensors; files play no part in it."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_weights(path: str | Path, module: nn.Module, card: Card) -> None:
    """Write a fully connected network and its card to FILE.safetensors, and a readable copy of the card to FILE.json.

    Either everything is written or the old files stay as they were.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ModelError(f"{path}: weights are saved as safetensors; end the name with .safetensors")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    _check_card(card, _find_sizes(state, path), path)
    if card.fingerprint != fingerprint(module):
        raise ModelError(f"{path}: the card describes other weights; set its fingerprint to fingerprint(module)")
    text = json.dumps(dataclasses.asdict(card), indent=2, ensure_ascii=False)
    try:
        # The weights are put in place last: whoever finds them after a kill finds the copy of their card, too.
        with replace_file(path) as weights, replace_file(path.with_suffix(".json")) as card_copy:
            card_copy.write_text(f"{text}\n", encoding="utf-8")
            weights.write_bytes(to_bytes(state, metadata={CARD_KEY: text}))
    except OSError as error:
        raise ModelError(f"{path}: cannot be written: {error.strerror or error}") from error


def load_weights(path: str | Path) -> tuple[nn.Sequential, Card | None]:
    """Read a fully connected network from .safetensors, or from an .npz with W0, b0, W1, b1, … (inputs, outputs).

    The network is in eval mode. The card is None where the file has none; if there is one, the weights must match it.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    if path.suffix != ".npz" and is_pickle(path):
        raise ModelError(
            f"{path}: pickled models are refused, because opening one runs any program hidden in it. Save the weights "
            "as safetensors where they come from: safetensors.torch.save_file(module.state_dict(), 'model.safetensors')"
        )
    state, metadata = (_read_npz(path), {}) if path.suffix == ".npz" else read_safetensors(path)
    card = _parse_card(metadata[CARD_KEY], path) if CARD_KEY in metadata else None
    inputs, hidden, outputs = _find_sizes(state, path)
    # Loading leaves torch's random state alone. (The meta device would too, but takes a second to import.)
    with torch.random.fork_rng(devices=[]):
        module = fully_connected(inputs, hidden, outputs)
    module.load_state_dict(state, assign=True)
    if card is not None:
        _check_card(card, (inputs, hidden, outputs), path)
        if card.fingerprint != fingerprint(module):
            raise ModelError(f"{path}: the weights are not those its card describes; the file is damaged or edited")
    return module.eval(), card


def read_model(path: Path, domain: TableDomain, fewer: str = "") -> nn.Sequential:
    """Read weights and make sure that they were made for rows of this domain in this encoding.

    `fewer` is what an error says of how many inputs there would be otherwise.
    """
    module, card = load_weights(path)
    first = next(part for part in module.modules() if isinstance(part, nn.Linear))
    width = TableEncoding.of(domain).width
    if first.in_features != width:
        made_for = f" (it was trained on {card.domain}, encoding '{card.encoding}')" if card else ""
        raise ModelError(
            f"{path}: expects {first.in_features} inputs{made_for}, but {domain.name} in encoding '{domain.encoding}' "
            f"has {width}{fewer}. Choose another --encoding, --domain or --model"
        )
    if card is not None and card.domain_fingerprint not in (None, domain.input_fingerprint):
        raise ModelError(
            f"{path}: was trained on {card.domain}, encoding '{card.encoding}', with other attributes, values, scaling "
            f"or classes than {domain.name}, encoding '{domain.encoding}'. Choose the data or the model to match"
        )
    return module


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file, and what its header says besides."""
    if not path.is_file():
        raise ModelError(f"{path}: there is no such file")
    try:
        check_size(path.stat().st_size, path, times=3)  # the file, a copy of its tensors, and a network that takes them
        with path.open("rb") as head:
            check_tensors(head.read(8), path.stat().st_size, path)
        with safe_open(path, framework="pt") as file:
            # Copies, because the tensors may be windows into a file that can change later.
            state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict
            return state, file.metadata() or {}
    except TooLargeError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise ModelError(f"{path}: not a readable safetensors file ({one_line(error)})") from error


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        content = read_bytes(path)
        arrays = {}
        for name, member in read_members(content, path, times=4).items():  # an array and a tensor of each, transposed
            check_array(member)
            arrays[name.removesuffix(".npy")] = np.load(io.BytesIO(member), allow_pickle=False)
    except TooLargeError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise ModelError(f"{path}: not a readable npz file of plain arrays ({one_line(error)})") from error
    # The zip reader trusts the lengths in the directory; one flipped bit there can hide members without an error.
    if content[-22:-18] == b"PK\x05\x06" and int.from_bytes(content[-12:-10], "little") != len(arrays):
        raise ModelError(f"{path}: not a readable npz file (its directory is damaged)")
    count = len(arrays) // 2
    if not count or set(arrays) != {f"{kind}{i}" for kind in "Wb" for i in range(count)}:
        names = ", ".join(list(arrays)[:6]) + (", …" if len(arrays) > 6 else "")
        raise ModelError(f"{path}: expected arrays W0, b0, W1, b1, …, got {names or 'none'}")
    state = {}
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise ModelError(f"{path}: weights must be floating-point numbers, got {array.dtype}")
        kind, i = name[0], int(name[1:])
        prefix = "output" if i == count - 1 else f"layer{i + 1}.0"
        transposed = np.array(array.T, dtype=array.dtype.newbyteorder("="), order="C")
        state[f"{prefix}.{'weight' if kind == 'W' else 'bias'}"] = torch.from_numpy(transposed)
    return state


def _find_sizes(state: Mapping[str, Tensor], path: Path) -> tuple[int, tuple[int, ...], int]:
    """Return (inputs, hidden, outputs) of the fully connected network with these tensors, or say what is wrong."""
    prefixes = [*(f"layer{i}.0" for i in range(1, len(state) // 2)), "output"]
    if set(state) != {f"{prefix}.{kind}" for prefix in prefixes for kind in ("weight", "bias")}:
        raise ModelError(
            f"{path}: expected the tensors layer1.0.weight, layer1.0.bias, …, output.weight, output.bias, "
            f"got {', '.join(sorted(state)[:6]) or 'none'}"
        )
    if len({t.dtype for t in state.values()}) > 1 or not state["output.weight"].is_floating_point():
        raise ModelError(f"{path}: the tensors must share one floating-point type")
    widths: list[int] = []
    for prefix in prefixes:
        weight, bias = state[f"{prefix}.weight"], state[f"{prefix}.bias"]
        fits = weight.dim() == 2 and weight.numel() > 0 and bias.shape == weight.shape[:1]
        if not fits or (widths and weight.shape[1] != widths[-1]):
            context = f" after {widths[-1]} units" if widths else ""
            raise ModelError(f"{path}: {prefix} has shapes {tuple(weight.shape)} and {tuple(bias.shape)}{context}")
        widths += [*([] if widths else [weight.shape[1]]), weight.shape[0]]
    return widths[0], tuple(widths[1:-1]), widths[-1]


def _check_card(card: Card, sizes: tuple[int, tuple[int, ...], int], path: Path) -> None:
    card_sizes = (card.inputs, tuple(card.hidden), card.outputs)
    if card_sizes != sizes:
        raise ModelError(f"{path}: the card says inputs, hidden, outputs = {card_sizes}, the tensors say {sizes}")
    if len(card.classes) != card.outputs:
        raise ModelError(f"{path}: the card names {len(card.classes)} classes for {card.outputs} outputs")


def _parse_card(text: str, path: Path) -> Card:
    try:
        fields = json.loads(text)
        if fields["version"] != CARD_VERSION:
            raise ModelError(f"{path}: card version {fields['version']}, this program reads {CARD_VERSION}; update it")
        return Card(
            **{
                **fields,
                "hidden": tuple(int(n) for n in fields["hidden"]),
                "classes": tuple(str(name) for name in fields["classes"]),
                "accuracy": {str(part): float(share) for part, share in fields["accuracy"].items()},
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelError(f"{path}: the card in this file cannot be read ({one_line(error)})") from error
