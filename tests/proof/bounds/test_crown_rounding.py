from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from neuronfair.model.operators import Affine, Curve
from neuronfair.proof.bounds.activations import Relaxation, relax
from neuronfair.proof.bounds.crown import bound_errors

Array = np.ndarray[Any, Any]


def _network(widths: Sequence[int], seed: int, scale: float = 1.0) -> list[Affine]:
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [Affine(drawn(b, a), drawn(b)) for a, b in pairwise(widths)]


def _size(first: Affine, x: Tensor) -> Tensor:
    return first.weight.abs() @ x + first.bias.abs() * (1 + x.sum())


def _exact(x: Tensor) -> Array:
    return np.vectorize(Fraction, otypes=[object])(x.numpy())


def _rectified(x: Array, leak: float) -> Array:
    return np.where(x > 0, x, x * (Fraction(leak) if x.dtype == object else leak))


def _encode_rows(affines: Sequence[Affine], leak: float, x: Array) -> list[Array]:
    """What each layer is given, in exact arithmetic."""
    given = []
    for affine in affines:
        given.append(_exact(affine.weight) @ x + _exact(affine.bias))
        x = _rectified(given[-1], leak)
    return given


def _back(affines: Sequence[tuple[Array, Array]], relaxed: Sequence[tuple[Array, ...]]) -> tuple[Array, Array]:
    """The lines below the last layer's numbers, carried back to the input: slopes and constants."""
    slopes, at = affines[-1]
    for (weight, bias), (low, low_at, high, high_at) in zip(affines[-2::-1], relaxed[::-1], strict=True):
        up, down = np.where(slopes > 0, slopes, 0 * slopes), np.where(slopes < 0, slopes, 0 * slopes)
        at = at + up @ low_at + down @ high_at
        slopes = up * low + down * high
        at, slopes = at + slopes @ bias, slopes @ weight
    return slopes, at


def _parts(lines: Relaxation) -> tuple[Tensor, ...]:
    return lines.low_slope, lines.low_offset, lines.high_slope, lines.high_offset


@pytest.mark.parametrize("leak", [0.0, 0.1, -1.5])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_neither_numbers_nor_lines_are_further_off_than_said(leak: float, scale: float) -> None:
    curve = Curve("leaky_relu", leak) if leak else Curve("relu")
    for seed in range(6):
        affines = _network((5, 7, 6, 2), seed, scale)
        x = 10 * torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        errors = bound_errors(affines, [curve, curve], _size(affines[0], x))
        given, y = [], x
        for affine in affines:
            given.append(affine(y[None])[0])
            y = curve(given[-1])
        exact = _encode_rows(affines, leak, _exact(x))
        for found, true, error in zip(given, exact, errors, strict=True):
            assert bool((np.abs(_exact(found) - true) <= _exact(error)).all())
        relaxed = [_parts(relax(curve, z - z.abs(), z + 2 * z.abs(), "adaptive")) for z in given[:-1]]
        floating = _back(
            [(a.weight.numpy(), a.bias.numpy()) for a in affines], [tuple(p.numpy() for p in r) for r in relaxed]
        )
        real = _back([(_exact(a.weight), _exact(a.bias)) for a in affines], [tuple(map(_exact, r)) for r in relaxed])
        slopes, at = (_exact(torch.from_numpy(part)) for part in floating)
        off = np.abs(slopes - real[0]) @ _exact(x) + np.abs(at - real[1])
        assert bool((off <= _exact(errors[-1])).all())
        assert bool((errors[-1] <= 1e-8 * scale**3).all())


def test_weights_found_by_asking_are_covered() -> None:
    for seed in range(20):
        (first,) = _network((4, 3), seed)
        bias = 1e6 * first.bias
        asked = torch.stack(
            [(first.weight[:, i] + bias) - bias for i in range(4)], 1
        )  # as images of units, less that of 0
        x = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        (error,) = bound_errors([Affine(asked, bias)], [], _size(Affine(asked, bias), x))
        off = np.abs((_exact(asked) - _exact(first.weight)) @ _exact(x))
        assert bool((off > 0).any())
        assert bool((off <= _exact(error)).all())


@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "silu", "elu", "softplus"])
def test_slopes_values_and_constants_of_lines_are_as_large_as_said(name: str) -> None:
    curve, one = Curve(name), torch.eye(300, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    ends = 10 * torch.randn(300, 2, generator=generator, dtype=torch.float64)
    low, high = ends.amin(1), ends.amax(1)
    size = ends.abs().amax(1)
    lines = relax(curve, low, high, "adaptive")
    layer = Affine(one, torch.zeros(300, dtype=torch.float64))
    first, second = bound_errors([layer, layer], [curve], size)
    assert bool((second > 0).all())
    assert bool((first > 0).all())
    reach = torch.maximum(
        lines.high_slope.abs() * size + lines.high_offset.abs(), lines.low_slope.abs() * size + lines.low_offset.abs()
    )
    assert bool((second >= 2 * 300 * 2.0**-53 * reach).all())


def test_the_papers_classifiers_lose_next_to_nothing(shared_models: Path) -> None:
    for file in sorted((shared_models / "neuronfair").glob("*.npz")):
        with np.load(file) as found:
            parts = {name: torch.from_numpy(found[name]).double() for name in found}
        affines = [Affine(parts[f"W{i}"].T, parts[f"b{i}"]) for i in range(len(parts) // 2)]
        curves = [Curve("relu")] * (len(affines) - 1)
        largest = torch.full((len(parts["W0"]),), 40.0, dtype=torch.float64)
        error = bound_errors(affines, curves, _size(affines[0], largest))[-1]
        y = largest * torch.rand(2000, len(largest), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for affine in affines[:-1]:
            y = torch.relu(affine(y))
        scores = affines[-1](y)
        assert float(error.amax() / (scores.amax() - scores.amin())) < 1e-6
