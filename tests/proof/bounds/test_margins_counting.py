import pytest
import torch
from torch import Tensor

from neuronfair.proof.bounds.margins import bound_share
from neuronfair.proof.bounds.space import Axis, Boxes, Space


def _space(*axes: int | list[int]) -> Space:
    """A number: a linear axis of so many places; a list: how many codes stand at each place of another one."""
    made = []
    for column, kind in enumerate(axes):
        count = torch.ones(kind, dtype=torch.int64) if isinstance(kind, int) else torch.tensor(kind)
        place = torch.repeat_interleave(torch.arange(len(count)), count)
        made.append(Axis(column, place, count.cumsum(0) - count, count, isinstance(kind, int)))
    return Space(tuple(made))


def _truth(space: Space, boxes: Boxes, slopes: Tensor, at: Tensor) -> Tensor:
    """The share of each box's people above 0, one by one."""
    result = []
    for low, high, line, constant in zip(boxes.low, boxes.high, slopes, at, strict=True):
        total, people = constant.reshape(1), torch.ones(1, dtype=torch.float64)
        for i, axis in enumerate(space.axes):
            places = torch.arange(int(low[i]), int(high[i]) + 1)
            own = line[space.first_features[i]] * places if axis.linear else line[space.first_features[i] + places]
            total = (total[:, None] + own).flatten()
            people = (people[:, None] * axis.count[places]).flatten()
        result.append(people[total > 1e-12].sum() / people.sum())
    return torch.stack(result)


def _random(space: Space, n: int, seed: int) -> tuple[Boxes, Tensor, Tensor]:
    """Boxes of all widths, and lines of which most cross them near the middle."""
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.randint(0, len(axis), (n, 2), generator=generator).sort(-1)[0] for axis in space.axes]
    boxes = Boxes(torch.stack([e[:, 0] for e in ends], 1), torch.stack([e[:, 1] for e in ends], 1))
    slopes = torch.randn(n, space.features, generator=generator, dtype=torch.float64)
    slopes[:, space.linear_features] /= (boxes.high - boxes.low)[:, space.linear_axes].clamp(min=1)
    slopes[: n // 4] = (slopes[: n // 4] * 4).round() / 4  # many people on the line itself, and slopes of 0
    mean, variance = space.find_moments(boxes, slopes[:, None])
    where = 3 * torch.randn(n, generator=generator, dtype=torch.float64)
    at = where * variance[:, 0].sqrt() - mean[:, 0]
    at[: n // 4] = at[: n // 4].round()
    return boxes, slopes, at


@pytest.mark.parametrize(
    "axes",
    [
        (9, 7, 5, 4, 3),
        (40, 30, 20),
        (900,),
        ([1, 3, 2], [5, 1], [1, 1, 1, 1, 9]),
        (8, [2, 1, 7, 1], 6, [1, 4, 4], 1, [3]),
        (2, 2, 2, 2, 2, 2, 2, 2),
    ],
)
def test_no_more_people_are_counted_than_there_are_and_not_many_less(axes: tuple[int | list[int], ...]) -> None:
    space = _space(*axes)
    boxes, slopes, at = _random(space, 400, len(axes))
    found, truth = bound_share(space, boxes, slopes, at), _truth(space, boxes, slopes, at)
    assert bool((found <= truth).all())
    assert bool(((found == 1) <= (truth == 1)).all())
    assert (truth - found)[100:].mean() < 0.03  # where few people make a box, those near the line are a large share
    assert ((truth > 0.02) & (truth < 0.98)).double().mean() > 0.2  # of lines for which it is no matter of course


def test_a_line_across_one_wide_axis_is_counted_almost_exactly() -> None:
    space = _space(5000, 5000)
    everything = Boxes(torch.zeros(4, 2, dtype=torch.int64), torch.full((4, 2), 4999))
    slopes = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    at = torch.tensor([-2499.5, 1249.5, -4998.5, 0.5], dtype=torch.float64)
    n = 5000
    truth = [0.5, 0.25, (n * n - n * (n - 1) / 2) / n**2, (n + n * (n - 1) / 2) / n**2]  # sums ≥ 4999; first ≥ second
    found = bound_share(space, everything, slopes, at)
    for share, exact in zip(found.tolist(), truth, strict=True):
        assert exact - 0.01 < share <= exact


def test_lines_above_and_below_everybody_are_counted_exactly() -> None:
    space = _space(5, [2, 1])
    boxes = Boxes(torch.tensor([[1, 0]]).expand(5, 2), torch.tensor([[3, 1]]).expand(5, 2))
    slopes = torch.tensor([[2.0, 0.5, -1.0]] * 3 + [[0.0, 0.0, 0.0]] * 2, dtype=torch.float64)
    at = torch.tensor([-0.9, -1.0, -6.5, 1.0, 0.0], dtype=torch.float64)  # least value 1, largest 6.5
    found = bound_share(space, boxes, slopes, at).tolist()
    assert found[0] == 1.0
    assert 0.5 < found[1] <= 1 - 1 / 9  # only one of the nine people, place 1 and table place 1, stands at 0
    assert found[2] == 0.0  # the largest value is 0, which is not above it
    assert found[3:] == [1.0, 0.0]


def test_a_line_that_rounding_could_put_on_either_side_is_not_above() -> None:
    space = _space(2)
    boxes = Boxes(torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 1, dtype=torch.int64))
    at = torch.tensor([1e-320, 1e-3], dtype=torch.float64)
    assert bound_share(space, boxes, torch.tensor([[1e9], [1e9]], dtype=torch.float64), at).tolist() == [1.0, 1.0]
    boxes = Boxes(torch.ones(2, 1, dtype=torch.int64), torch.ones(2, 1, dtype=torch.int64))
    at = torch.tensor([-1e9 + 1e-7, -1e9 + 1e-3], dtype=torch.float64)
    assert bound_share(space, boxes, torch.tensor([[1e9], [1e9]], dtype=torch.float64), at).tolist() == [0.0, 1.0]


def test_no_boxes_are_no_shares() -> None:
    space = _space(3)
    none = Boxes(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, 1, dtype=torch.int64))
    assert bound_share(space, none, torch.zeros(0, 1).double(), torch.zeros(0).double()).shape == (0,)


def test_lines_whose_squares_are_too_small_for_float64_are_counted_from_below() -> None:
    space = _space(3, [1, 2])
    everybody = space.full_box()
    for tiny in (1e-170, 1e-250, 1e-300):
        slopes = torch.tensor([[tiny, 0.0, tiny]], dtype=torch.float64)
        share = bound_share(space, everybody, slopes, torch.tensor([-tiny / 2], dtype=torch.float64))
        assert 0 <= float(share) <= 8 / 9  # one of nine people has a sum of 0
