from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neuronfair.domain.twins import GROUP, SAMPLE
from neuronfair.errors import DomainError
from neuronfair.images.domain import PIXELS, STEP_SHARE, ImageDomain, ImageEncoding


def domain() -> ImageDomain:
    """Two pictures of 2 x 2: the first is shifted by +3 in its first pixel, the second by -4 everywhere."""
    pictures = torch.tensor([10, 254, 0, 128] * 3, dtype=torch.uint8).view(1, 3, 2, 2).repeat(2, 1, 1, 1)
    shift = torch.zeros(2, 3, 2, 2, dtype=torch.int8)
    shift[0, 0, 0, 0] = 3
    shift[1] = -4
    return ImageDomain("tiny", pictures, shift, ("cast",))


def random_rows(seed: int, n: int = 5) -> torch.Tensor:
    return domain().sample(n, torch.Generator().manual_seed(seed))


def test_a_row_is_its_seed_number_a_flag_and_the_pixels():
    d = domain()
    assert d.seeds[1].tolist() == [1, 0, *([10, 254, 0, 128] * 3)]
    assert d.seeds.dtype == torch.int16
    assert d.codes_per_row == 14
    assert d.valid(d.seeds).all()


def test_encode_adds_the_shift_of_the_seed_where_the_flag_is_set_and_stays_a_picture():
    d = domain()
    rows = d.seeds.clone()
    view = ImageEncoding(d)
    assert view.encode(rows)[0, 0].flatten().tolist() == pytest.approx([10 / 255, 254 / 255, 0, 128 / 255])
    rows[:, GROUP] = 1
    assert d.levels(rows)[0].flatten().tolist()[:4] == [13, 254, 0, 128]
    assert d.levels(rows)[1].flatten().tolist()[:4] == [6, 250, 0, 124]  # 0 - 4 is black, not white
    assert view.encode(rows, torch.float64).dtype == torch.float64
    assert view.encode(rows[:, None]).shape == (2, 1, 3, 2, 2)


@given(st.integers(0, 2**31))
def test_twins_differ_in_the_flag_only_and_share_the_key(seed):
    d, rows = domain(), random_rows(seed)
    twins, valid = d.twins(rows)
    assert valid.all()
    assert twins.shape == (5, 1, 14)
    assert ((twins[:, 0] != rows).nonzero()[:, 1] == GROUP).all()
    assert (twins[:, 0, GROUP] == 1 - rows[:, GROUP]).all()
    assert torch.equal(d.key(twins[:, 0]), d.key(rows))
    assert torch.equal(d.member(rows, torch.ones(5, dtype=torch.int64)), twins[:, 0])
    assert torch.equal(d.member(rows, torch.zeros(5, dtype=torch.int64)), rows)
    other = rows.clone()
    other[:, PIXELS] = (other[:, PIXELS] + 1) % 256
    assert (d.key(other) != d.key(rows)).all()


def test_equal_pixels_of_other_seeds_are_other_instances():
    keys = domain().key(domain().seeds)
    assert keys[0] != keys[1]


@given(st.integers(0, 2**31))
def test_clip_keeps_valid_rows_and_brings_others_inside(seed):
    d, rows = domain(), random_rows(seed)
    assert torch.equal(d.clip(rows), rows)
    wild = rows * 3 - 300
    assert not d.valid(wild).any()
    assert d.valid(d.clip(wild)).all()
    assert torch.equal(d.clip(d.clip(wild)), d.clip(wild))


def test_a_step_goes_along_the_gradient_without_its_sign_alone():
    d = domain()
    gradient = torch.zeros(2, 12)
    gradient[0, 0], gradient[0, 1], gradient[0, 3] = 2.0, -1.0, 0.02
    codes = ImageEncoding(d).step_uphill(gradient, d.seeds)
    full = STEP_SHARE * 255
    assert (codes - d.seeds)[0, PIXELS:].tolist() == [round(full), -round(full / 2), 0, 0] + [0] * 8
    assert torch.equal(codes[1], d.seeds[1])  # no gradient, no step and no NaN
    moved = d.move(d.seeds, codes)
    assert moved[0, PIXELS : PIXELS + 2].tolist() == [10 + 38, 254 - 19]
    far = d.move(d.seeds, codes + 500)
    assert far[:, [SAMPLE, GROUP]].tolist() == [[0, 0], [1, 0]]
    assert (far[:, PIXELS:] == 255).all()


def test_agreed_moves_only_pixels_on_which_both_gradients_point_the_same_way():
    d = domain()
    own, other = torch.zeros(2, 12), torch.zeros(2, 12)
    own[:, 0], other[:, 0] = 1.0, 3.0
    own[:, 1], other[:, 1] = 5.0, -5.0
    own[:, 2], other[:, 2] = -1e-30, -1e-30  # their product would be 0 in float32
    step = (ImageEncoding(d).step_where_agreed(own, other, d.seeds) - d.seeds)[0, PIXELS:]
    assert step.tolist() == [38] + [0] * 11
    own[:, 0] = other[:, 0] = 0.0
    assert (ImageEncoding(d).step_where_agreed(own, other, d.seeds) - d.seeds)[0, PIXELS:].tolist() == [0, 0, -38] + [
        0
    ] * 9


def test_effects_influence_and_neighbours_count_in_levels():
    d = domain()
    gradient = torch.zeros(2, 12)
    gradient[:, 3] = -2.55
    column = torch.full((2, 1), PIXELS + 3)
    assert ImageEncoding(d).effects(gradient, d.seeds, column, column * 0 + 138)[0, 0] == pytest.approx(-0.1)
    assert ImageEncoding(d).influence(gradient, d.seeds)[0].tolist() == pytest.approx([0] * 5 + [0.01] + [0] * 8)
    near = d.neighbours(d.seeds, torch.full((2, 14), 0.9))
    assert (near - d.seeds)[0, PIXELS:].tolist() == [1, 1, 1, 1] * 3
    down = d.neighbours(d.seeds, torch.full((2, 14), 0.1))
    assert (down - d.seeds)[0, PIXELS : PIXELS + 4].tolist() == [-1, -1, 1, -1]  # black goes up


def test_wrong_tensors_are_refused():
    d = domain()
    with pytest.raises(DomainError, match="8-bit pictures"):
        ImageDomain("x", d.pictures.float(), d.shift)
    with pytest.raises(DomainError, match="one int8 shift per picture"):
        ImageDomain("x", d.pictures, d.shift[:1])
