"""The pytest plugin: a fixture `fairness` that fails a test if decisions of a model depend on a sensitive attribute.

    def test_my_model_is_fair(fairness):
        fairness.check("model.onnx", "domain.toml", sensitive="sex", max_rate=0.01)

pytest loads this module in every session, also of other projects. It is outside the package because importing the
package sets OMP_WAIT_POLICY. The package is imported only when a test uses the fixture.
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
    from neuronfair.text.audit import check_texts

    # Findings in the cache of pytest can be shown after the tests.
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    folder = cache.mkdir("neuronfair") if cache is not None else tmp_path_factory.mktemp("neuronfair")
    # Two names may be the same after shortening; the checksum keeps them apart.
    test = request.node.nodeid
    letters = re.sub(r"[^\w-]+", "_", test)[-100:]
    return Fairness(folder / f"{letters}-{zlib.crc32(test.encode()):08x}", check_texts)
