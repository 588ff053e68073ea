"""Keras layers that join tensors, or look labels and numbers up, in torch; vocabularies are read as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neuronfair.limits import check_size
from neuronfair.model.open.graph import Unsupported

LOOKUPS = ("IntegerLookup", "StringLookup")


MERGES: dict[str, Callable[[Sequence[Tensor], int], Tensor]] = {
    "Concatenate": lambda parts, axis: torch.cat(list(parts), axis),
    "Add": lambda parts, axis: reduce(torch.add, parts),
    "Subtract": lambda parts, axis: reduce(torch.sub, parts),
    "Multiply": lambda parts, axis: reduce(torch.mul, parts),
    "Maximum": lambda parts, axis: reduce(torch.maximum, parts),
    "Minimum": lambda parts, axis: reduce(torch.minimum, parts),
    "Average": lambda parts, axis: reduce(torch.add, parts) / len(parts),
}


class Merge(nn.Module):
    """Joins tensors: one after the other along an axis, or number by number."""

    def __init__(self, kind: str, axis: int) -> None:
        super().__init__()
        self.kind, self.axis = kind, axis

    def forward(self, *parts: Tensor) -> Tensor:
        """Return the parts as one; whole numbers become what the others are."""
        kind = reduce(torch.promote_types, (part.dtype for part in parts))
        return MERGES[self.kind]([part.to(kind) for part in parts], self.axis)


class Embedded(nn.Module):
    """Gives each whole number its own numbers; others are cut to whole ones, as Keras does."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, …, numbers)."""
        return functional.embedding(x.long(), self.weight)


class Encoded(nn.Module):
    """Whole numbers as one input per value: one-hot, or how often or whether they occur in a row."""

    def __init__(self, mode: str, depth: int) -> None:
        super().__init__()
        if mode not in ("one_hot", "multi_hot", "count"):
            raise Unsupported(f"the output mode '{mode}'")
        check_size(depth, "an encoding of categories", times=8)
        self.mode = mode
        self.values = nn.Parameter(torch.arange(float(depth)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, …, depth)."""
        if self.mode == "one_hot" and x.dim() > 1 and x.shape[-1] == 1:
            x = x.squeeze(-1)
        hits = (x.unsqueeze(-1) == self.values).to(self.values.dtype)
        if self.mode == "one_hot":
            return hits
        return hits.amax(-2) if self.mode == "multi_hot" else hits.sum(-2)


class Index(nn.Module):
    """The places of whole numbers in a vocabulary; those that are not in it share others, by their remainder."""

    def __init__(self, known: dict[int, int], other: int, others: int) -> None:
        super().__init__()
        self.keys: Tensor
        self.places: Tensor
        keys = sorted(known)
        self.register_buffer("keys", torch.tensor(keys or [0]))
        self.register_buffer("places", torch.tensor([known[key] for key in keys] or [other]))
        self.other, self.others = other, others

    def forward(self, x: Tensor) -> Tensor:
        """Return the place of each number."""
        x = x.long()
        place = torch.searchsorted(self.keys, x.contiguous()).clamp(max=len(self.keys) - 1)
        other = self.other + (x % self.others if self.others > 1 else 0)
        return torch.where(self.keys[place] == x, self.places[place], other)


class Bins(nn.Module):
    """The numbers of the bins that numbers fall into."""

    def __init__(self, boundaries: Sequence[float]) -> None:
        super().__init__()
        self.boundaries = nn.Parameter(torch.tensor(list(boundaries), dtype=torch.float32), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return how many boundaries each number has reached."""
        return torch.bucketize(x.to(self.boundaries.dtype).contiguous(), self.boundaries, right=True)


def discretization(layer: Any) -> nn.Module:
    """Return a Discretization layer in torch."""
    if layer.bin_boundaries is None:
        raise Unsupported(f"its layer '{layer.name}' has no boundaries")
    return _encoded(layer, Bins(layer.bin_boundaries), len(layer.bin_boundaries) + 1)


def lookup(layer: Any, texts: Sequence[str]) -> nn.Module:
    """Return an IntegerLookup or StringLookup layer in torch; what it looks up is given as its place in the texts."""
    words = list(layer.get_vocabulary(include_special_tokens=False))
    of_text = type(layer).__name__ == "StringLookup"
    if layer.invert or not words or (of_text and (layer.num_oov_indices > 1 or not texts)):
        raise Unsupported(f"its layer '{layer.name}' is inverted, without a vocabulary or hashes unknown words")
    if layer.num_oov_indices > 1 and getattr(layer, "oov_method", "floormod") != "floormod":
        raise Unsupported(f"its layer '{layer.name}' hashes unknown numbers")
    whole = layer.output_mode == "int"
    first = int(layer.mask_token is not None and whole)
    start = first + layer.num_oov_indices
    known = {word: start + place for place, word in enumerate(words)}
    if layer.mask_token is not None:
        known[layer.mask_token] = 0 if whole else -1
    if of_text:
        known = {place: known[text] for place, text in enumerate(texts) if text in known}
    # With no place for what is unknown, Keras refuses such rows; here they are an index out of range.
    part = Index(
        {int(key): place for key, place in known.items()}, first if start > first else -1, layer.num_oov_indices
    )
    return _encoded(layer, part, layer.max_tokens if layer.pad_to_max_tokens else start + len(words))


def _encoded(layer: Any, part: nn.Module, depth: int) -> nn.Module:
    return part if layer.output_mode == "int" else nn.Sequential(part, Encoded(layer.output_mode, depth))


def stand_ins(keras: Any) -> dict[str, type]:
    """Return layers in the place of those that need TensorFlow, and could name any file as their vocabulary.

    They hold what a model file says of them, and cannot be called.
    """

    class Lookup(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, **said: Any) -> None:
            super().__init__(name=said.get("name"))
            self._convert_input_args, self._allow_non_tensor_positional_args = False, True
            self.said = said
            self.mask_token, self.num_oov_indices = said.get("mask_token"), int(said.get("num_oov_indices", 1))
            if self.num_oov_indices < 0:
                raise ValueError(f"num_oov_indices is {self.num_oov_indices}; 0 or more were expected")
            check_size(self.num_oov_indices, "the places of unknown words", times=8)
            self.oov_token, self.oov_method = said.get("oov_token"), said.get("oov_method", "floormod")
            self.output_mode, self.invert = said.get("output_mode", "int"), bool(said.get("invert"))
            self.max_tokens, self.pad_to_max_tokens = said.get("max_tokens"), bool(said.get("pad_to_max_tokens"))
            words = said.get("vocabulary")
            self.vocabulary = list(words) if isinstance(words, (list, tuple)) else []
            self.built = True

        def get_config(self) -> dict[str, Any]:
            return self.said

        def get_vocabulary(self, include_special_tokens: bool = False) -> list[Any]:
            masked = self.mask_token is not None and self.output_mode == "int"
            special = [self.mask_token] * masked + [self.oov_token] * self.num_oov_indices
            count = len(special)
            return self.vocabulary[count:] if self.vocabulary[:count] == special else self.vocabulary

        def load_own_variables(self, store: Any) -> None:
            """What it weighs words with is of no use here."""

        def load_assets(self, place: str | None) -> None:
            if place is not None and not self.vocabulary:
                lines = (Path(place) / "vocabulary.txt").read_text(encoding="utf-8").splitlines()
                self.vocabulary = [self.word(line) for line in lines]

        def compute_output_spec(self, inputs: Any) -> Any:
            if self.output_mode == "int":
                return keras.KerasTensor(inputs.shape, dtype="int64")
            depth = self.max_tokens if self.pad_to_max_tokens else self.said.get("vocabulary_size")
            depth = depth or len(self.get_vocabulary()) + self.num_oov_indices
            flat = self.output_mode != "one_hot" or (len(inputs.shape) > 1 and inputs.shape[-1] == 1)
            return keras.KerasTensor((*(inputs.shape[:-1] if flat else inputs.shape), depth))

    class IntegerLookup(Lookup):
        word = int

    class StringLookup(Lookup):
        word = str

    return {"IntegerLookup": IntegerLookup, "StringLookup": StringLookup}
