from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronfair.render.proof import strip
from tests.reports import proved, rate


@pytest.mark.parametrize(
    ("fair", "unfair", "strip_of_ten"),
    [
        (1000, 0, "██████████"),
        (0, 1000, "▓▓▓▓▓▓▓▓▓▓"),
        (0, 0, "░░░░░░░░░░"),
        (500, 200, "█████░░░▓▓"),
        (998, 1, "████████░▓"),  # whoever there is has a character
    ],
)
def test_the_parts_of_a_strip(fair, unfair, strip_of_ten):
    assert strip(proved(fair, unfair), width=10) == strip_of_ten


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_a_strip_is_as_wide_as_it_should_be(fair, unfair, found):
    unfair = min(unfair, 1000 - fair)
    drawn = strip(proved(fair, unfair), rate(found, 1000), width=20)
    assert len(drawn) == 21
    assert [sign in drawn for sign in "█░▓│"] == [fair > 0, fair + unfair < 1000, unfair > 0, True]
    assert drawn.index("│") == round(20 * (1 - found / 1000))
