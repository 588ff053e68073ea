"""The constraints hold every version that is installed, and the bounds of the package allow them."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT
from tests.oldest import oldest

LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = [Requirement(line) for line in LINES if not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def asked(extra: str | None = None) -> list[Requirement]:
    """What the package, or one of its extras, asks for; other extras of ours are followed."""
    found = []
    for text in PROJECT["dependencies"] if extra is None else EXTRAS[extra]:
        requirement = Requirement(text)
        ours = requirement.name == PROJECT["name"]
        found += [one for other in sorted(requirement.extras) for one in asked(other)] if ours else [requirement]
    return found


def pin(name: str) -> Requirement:
    """The version that is to be installed here."""
    pins = [one for one in PINS if canonicalize_name(one.name) == canonicalize_name(name)]
    (found,) = [one for one in pins if one.marker is None or one.marker.evaluate()] or [None]
    assert found is not None, f"{name} is not in constraints.txt: make it anew with pip freeze"
    return found


def test_everything_that_is_asked_for_is_pinned_within_its_bounds():
    for requirement in (*asked(), *asked("dev")):
        if requirement.marker is None or requirement.marker.evaluate():
            (version,) = pin(requirement.name).specifier
            assert version.operator == "=="
            assert requirement.specifier.contains(version.version, prereleases=True), requirement


def test_so_is_everything_that_comes_with_it():
    waiting, seen = [*asked(), *asked("dev")], set()
    while waiting:
        one = waiting.pop()
        key = (canonicalize_name(one.name), *sorted(one.extras))
        if key in seen or not (one.marker is None or one.marker.evaluate({"extra": ""})):
            continue
        if one.name == "setuptools" and sys.version_info < (3, 12):
            continue  # such a venv has it from the beginning
        seen.add(key)
        pin(one.name)
        try:
            further = map(Requirement, distribution(one.name).requires or [])
        except PackageNotFoundError:
            pytest.skip(f"{one.name} is not installed: make test installs everything")
        for other in further:
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in (*one.extras, "")):
                waiting.append(Requirement(re.sub(";.*", "", str(other))))
    assert len(seen) > 50


def test_no_address_is_named():
    assert [line for line in LINES if "://" in line or "@" in line] == []


def test_the_oldest_versions_are_the_bounds():
    text = """
        [project]
        dependencies = ["torch>=2.9", "numpy>=1.26"]
        [project.optional-dependencies]
        some = ["odd-one>=3.1.1; sys_platform != 'darwin'", "free", "ours[some]"]
        more = ["numpy>=1.26"]
    """
    pins = ["numpy==1.26", "odd-one==3.1.1; sys_platform != 'darwin'"]
    assert oldest(text) == [*pins, "torch==2.9"]
    assert oldest(text, "torch==2.13.0") == [*pins, "torch==2.13.0"]
