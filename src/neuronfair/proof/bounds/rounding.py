"""How far the numbers of a network, and lines below and above them, can be off by float64's rounding.

With u = 2^-53, a sum of n products is off by at most γ_n = nu / (1 - nu) of the sum of their sizes, in whatever order
it is taken. Of each layer two sizes are carried forward, neuron by neuron, from the sizes of its weights:

- R, the size of all that meets in a line that is carried back from it to the input. |W| (S R + A) + |b|, with S the
  steepest slope and A the largest constant of a line for the activation function between -R and R. The bounds of the
  layer lie between -R and R, too. Carrying a line back takes the sums of all layers one after the other, so it is off
  by at most γ_N R, with N all their lengths together.
- E, how far the layer's numbers, computed in float64, may lie outside exact lines: what the layer before passes on
  (S E), what its function is off by, the sum of its own products, and what the weights themselves are off by: those of
  one layer are the network's own, those of several layers in a row are multiplied out and rounded once. The network
  itself computes these one after the other; a few u of each weight and of the bias are allowed for that.

The bound is twice E + γ_N R: the terms in u² that are left out are far smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from neuronfair.model.operators.chain import Affine, Curve

U = 2.0**-53
READ = 16 * U  # of weight and bias: by how much a weight that was read may be off
MORE = 8  # sums beside the products of a layer: bias, constants, ends
STEEPEST = {"sigmoid": 0.251, "tanh": 1.001, "gelu": 1.13, "silu": 1.101, "elu": 1.001, "softplus": 1.001}


def errors_of(affines: Sequence[Affine], curves: Sequence[Curve], size: Tensor) -> list[Tensor]:
    """Return for each layer by how much bounds and lines of its numbers must give way to be sure in float64.

    `size` (neurons of the first layer) is the size of all that meets there, |W| |x| + |b| (1 + Σ|x|) at most.
    """
    length = affines[0].weight.shape[1] + MORE
    reach, error = size, (_gamma(length) + READ) * size
    errors = [2 * (error + _gamma(length) * reach)]
    for curve, affine in zip(curves, affines[1:], strict=True):
        weight, bias = affine.weight.abs(), affine.bias.abs()
        steepest, value, constant, off = _sizes(curve, reach)
        terms = affine.weight.shape[1] + MORE
        length += terms
        error = weight @ (steepest * error + off) + _gamma(terms) * (weight @ value + bias)
        error = error + READ * (weight @ value + bias * (1 + value.sum()))
        reach = weight @ (steepest * reach + constant) + bias
        errors.append(2 * (error + _gamma(length) * reach))
    return errors


def _sizes(curve: Curve, reach: Tensor) -> tuple[float, Tensor, Tensor, Tensor]:
    """Return between -reach and reach: the steepest line, the largest value, constant of a line, and rounding."""
    if curve.name in ("relu", "leaky_relu"):
        steepest = max(1.0, abs(curve.leak))
        return steepest, steepest * reach, abs(1 - curve.leak) / 2 * reach, 2 * U * steepest * reach
    steepest = STEEPEST[curve.name]
    value = (steepest * reach + 1).clamp(max=1.0 if curve.name in ("sigmoid", "tanh") else float("inf"))
    return steepest, value, value + steepest * reach + 1e-3, 8 * U * (reach + 1)


def _gamma(n: int) -> float:
    return n * U / (1 - n * U)
