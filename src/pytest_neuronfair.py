"""The pytest plugin: a fixture `fairness` that fails a test if a model decides too many people by their sex, say.

    def test_my_model_is_fair(fairness):
        fairness.check("model.onnx", "domain.toml", sensitive="sex", max_rate=0.01)

pytest loads it in every session of an environment, so it stands beside the package: importing that one sets
OMP_WAIT_POLICY, which is no business of other people's tests. Nothing is imported before a test asks for the fixture.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("neuronfair.testing")  # its checks say what they compared

if TYPE_CHECKING:
    from neuronfair.audits.pytest_check import Fairness


@pytest.fixture
def fairness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Fairness:
    """Check models for discrimination: `fairness.check(model, domain, sensitive="sex", max_rate=0.01)`."""
    from neuronfair.audits.pytest_check import Fairness

    # The cache outlives the tests, so that what was found can be seen again.
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    place = cache.mkdir("neuronfair") if cache is not None else tmp_path_factory.mktemp("neuronfair")
    # Two tests may have these letters in common; the number tells them apart.
    test = request.node.nodeid
    letters = re.sub(r"[^\w-]+", "_", test)[-100:]
    return Fairness(place / f"{letters}-{zlib.crc32(test.encode()):08x}")
