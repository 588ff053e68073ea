"""Methods of other packages, which register themselves through an entry point.

Without torch: the command line lists their names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from neuronfair.errors import one_line

GROUP = "neuronfair.methods"


def registered() -> list[EntryPoint]:
    """Return the entry points of other packages; none is imported."""
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def loaded(kind: type, taken: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield the registered objects by name; one that is broken, or whose name is taken, is left out with a warning."""
    for point in registered():
        try:
            if point.name in taken:
                raise ValueError("there is a method of this name already")
            if not re.fullmatch(r"[\w-]+", point.name):  # it becomes the name of a folder
                raise ValueError("expected a name of letters, digits, - and _")
            thing = point.load()
            if not isinstance(thing, kind):
                raise TypeError(f"expected a neuronfair.methods.{kind.__name__}, got {type(thing).__name__}")
        except (Exception, SystemExit) as error:  # a broken package must not disable the others
            origin = point.dist.name if point.dist is not None else point.value
            warnings.warn(
                f"the method '{point.name}' of {origin} is left out ({type(error).__name__}: {one_line(error)})",
                stacklevel=2,
            )
        else:
            taken = taken | {point.name}
            yield point.name, thing
