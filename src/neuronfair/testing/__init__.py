"""What every search method promises, as checks that whoever writes one can run.

    import pytest
    from neuronfair.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_my_method(check):
        check("my-method")

The method is known by the name under which its package registers it. Each check fails with an AssertionError, or with
what the method or the engine raises.
"""

from __future__ import annotations

from neuronfair.testing.checks import CHECKS, MethodCheck

__all__ = ["CHECKS", "MethodCheck", "check_method"]


def check_method(name: str) -> None:
    """Ask a method everything that is asked of ours; the first promise that it breaks is an AssertionError."""
    for check in CHECKS:
        check(name)
