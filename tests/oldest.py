"""Print the oldest versions that pyproject.toml allows, as constraints for pip: `python tests/oldest.py`.

`python tests/oldest.py torch==2.13.0`: what is given replaces the bound of the same package.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

BOUND = re.compile(r"([\w-]+)>=([\w.]+)(.*)")


def oldest(pyproject: str, *instead: str) -> list[str]:
    """Return the lower bounds of all requirements as pins, with their markers."""
    project = tomllib.loads(pyproject)["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    given = {pin.partition("==")[0] for pin in instead}
    bounds = {match.groups() for match in map(BOUND.fullmatch, asked) if match and match[1] not in given}
    return sorted([f"{name}=={version}{marker}" for name, version, marker in bounds] + list(instead))


if __name__ == "__main__":
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    print(*oldest(text, *sys.argv[1:]), sep="\n")
