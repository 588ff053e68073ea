"""Checks that every search method must pass; authors of methods can run them.

    import pytest
    from neuronfair.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_my_method(check):
        check("my-method")

The name is the one under which a package registers its method. A check fails with an AssertionError, or with the
exception of the method or the engine.
"""

from __future__ import annotations

from neuronfair.testing.checks import CHECKS, MethodCheck

__all__ = ["CHECKS", "MethodCheck", "check_method"]


def check_method(name: str) -> None:
    """Run all checks on a method; the first failure is an AssertionError."""
    for check in CHECKS:
        check(name)
