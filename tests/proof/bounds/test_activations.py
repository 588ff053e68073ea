import math

import pytest
import torch
from torch import Tensor

from neuronfair.model.operators import Curve
from neuronfair.proof.bounds.activations import Relaxation, bound_values, relax

CURVES = [
    Curve("relu"),
    *(Curve("leaky_relu", leak) for leak in (0.01, 0.3, -0.5, 1.0, 2.5)),
    *map(Curve, ("sigmoid", "tanh", "gelu", "silu", "elu", "softplus")),
]


def _intervals(n: int) -> tuple[Tensor, Tensor]:
    """Tiny, usual, wide and huge ones; around 0, and on one side of it."""
    generator = torch.Generator().manual_seed(0)
    middle = 6 * torch.randn(n, generator=generator, dtype=torch.float64)
    width = 10 ** (14 * torch.rand(n, generator=generator, dtype=torch.float64) - 10)
    width[::2] = 12 * torch.rand(n // 2, generator=generator, dtype=torch.float64)
    width[-1] = 0.0
    middle[1::3] = width[1::3] * (torch.rand(len(middle[1::3]), generator=generator) - 0.5)
    huge = torch.tensor(
        [[-1e8, 1e8], [-1e8, 3.0], [-2.0, 1e8], [1e7, 1e8], [-1e8, -1e7], [0.0, 0.0], [-1e-310, 1e-310]]
    )
    low, high = middle - width / 2, middle + width / 2
    return torch.cat([low, huge[:, 0].double()]), torch.cat([high, huge[:, 1].double()])


def _points(low: Tensor, high: Tensor, n: int) -> Tensor:
    """Points of each interval, also where a function bends: (intervals, points)."""
    even = low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, n, dtype=torch.float64)
    bends = torch.linspace(-8, 8, n, dtype=torch.float64).expand(len(low), -1)
    return torch.minimum(torch.maximum(torch.cat([even, bends], 1), low[:, None]), high[:, None])


def _gaps(lines: Relaxation, curve: Curve, x: Tensor) -> tuple[Tensor, Tensor]:
    y = curve(x)
    below = y - (lines.low_slope[:, None] * x + lines.low_offset[:, None])
    return below, lines.high_slope[:, None] * x + lines.high_offset[:, None] - y


@pytest.mark.parametrize("policy", ["adaptive", "flat"])
@pytest.mark.parametrize("curve", CURVES, ids=lambda c: f"{c.name} {c.leak}")
def test_lines_hold_everywhere_between_the_ends(curve: Curve, policy: str) -> None:
    low, high = _intervals(600)
    x = _points(low, high, 1500)
    size = 1 + torch.maximum(low.abs(), high.abs())[:, None] * (1 + abs(curve.leak))
    for gap in _gaps(relax(curve, low, high, policy), curve, x):
        assert bool((gap >= -1e-15 * size).all())


@pytest.mark.parametrize("curve", CURVES, ids=lambda c: f"{c.name} {c.leak}")
def test_lines_leave_little_more_room_than_the_best_parallel_ones(curve: Curve) -> None:
    low, high = _intervals(600)
    usual = (high - low > 1e-3) & (high - low < 30)
    low, high = low[usual], high[usual]
    x = _points(low, high, 1500)
    y = curve(x)
    slope = ((curve(high) - curve(low)) / (high - low))[:, None]
    best = (y - slope * x).amax(-1) - (y - slope * x).amin(-1)
    below, above = _gaps(relax(curve, low, high, "adaptive"), curve, x)
    middle = _gaps(relax(curve, low, high, "adaptive"), curve, ((low + high) / 2)[:, None])
    room = middle[0][:, 0] + middle[1][:, 0]
    assert bool((below.amin(-1) < 2e-4).all())  # both touch it
    assert bool((above.amin(-1) < 2e-4).all())
    assert bool((room <= 1.02 * best + 2e-4).all())
    assert room.mean() <= best.mean() * 1.001 + 1e-9


def test_an_undecided_relu_has_its_chord_above_and_a_slope_of_0_or_1_below() -> None:
    low, high = torch.tensor([-1.0, -3.0, 1.0, -2.0]).double(), torch.tensor([3.0, 1.0, 2.0, -1.0]).double()
    lines = relax(Curve("relu"), low, high, "adaptive")
    assert lines.low_slope.tolist() == [1, 0, 1, 0]
    assert lines.high_slope.tolist() == [0.75, 0.25, 1, 0]
    assert lines.high_offset.tolist() == pytest.approx([0.75, 0.75, 0, 0], abs=1e-14)
    assert lines.low_offset.tolist() == [0, 0, 0, 0]
    assert relax(Curve("relu"), low, high, "flat").low_slope.tolist() == [0, 0, 1, 0]


def test_a_sigmoid_is_touched_by_the_tangent_through_its_other_end() -> None:
    low, high = torch.tensor([-6.0]).double(), torch.tensor([5.0]).double()
    lines = relax(Curve("sigmoid"), low, high, "adaptive")
    at_low = float(lines.high_slope * low + lines.high_offset)
    assert at_low == pytest.approx(1 / (1 + math.exp(6)), abs=5e-4)
    assert 0.109 < float(lines.high_slope) < 0.111  # the chord has 0.09


def test_a_softplus_is_also_bounded_where_torch_leaves_it_out() -> None:
    low, high = torch.tensor([19.0]).double(), torch.tensor([20.0 + 1e-9]).double()
    lines = relax(Curve("softplus"), low, high, "adaptive")
    assert float(lines.low_slope * high + lines.low_offset) <= float(Curve("softplus")(high))


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_values_hold_the_function_and_are_met_at_the_ends(curve):
    generator = torch.Generator().manual_seed(0)
    low = 4 * torch.randn(500, dtype=torch.float64, generator=generator)
    high = low + 6 * torch.rand(500, dtype=torch.float64, generator=generator)
    seen = curve(low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, 200, dtype=torch.float64))
    least, most = bound_values(curve, low, high)
    assert bool((least <= seen.amin(1) + 1e-12).all())
    assert bool((most >= seen.amax(1) - 1e-12).all())
    assert bool((most - seen.amax(1) < 1e-12).all())
    rising = low > 0
    assert bool((seen.amin(1) - least < 1e-12)[rising].all())
