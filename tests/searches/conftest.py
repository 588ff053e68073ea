from __future__ import annotations

import pytest

from neuronfair.searches.methods import frontier


@pytest.fixture(autouse=True, scope="module")
def short_pilot():
    """A quarter of the pilot: enough to learn what is safe in the small networks of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontier, "PILOT_STEPS", frontier.PILOT_STEPS // 4)
        yield
