"""The model that a run folder names: opened by itself only if that runs no program."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from neuronfair.errors import RunError

if TYPE_CHECKING:
    from neuronfair.store.run import Run


def own_model(run: Run) -> str:
    """Return the file of the model that a run was made with, if it is still the same to the bit.

    A run folder may come from elsewhere. What it names is opened by itself only if that runs no program; Python code,
    pickles and other files must be named by the user.
    """
    from neuronfair.model.formats import PICKLE_SUFFIXES
    from neuronfair.store.files import sha256

    source = run.model
    path, say = Path(source), f"say --model {shlex.quote(source)}"
    if not path.is_file() and re.fullmatch(r"[\w.]+:[\w.]+", source):
        raise RunError(
            f"{run.folder}: its model is Python code, {source}, which is not imported just because a run folder names "
            f"it. If you know that code, {say}"
        )
    if not path.is_file():
        raise RunError(f"{source}: there is no such file. {run.folder} was made with it; name a model with --model")
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise RunError(
            f"{run.folder}: its model is a pickle, {source}, which is not opened just because a run folder names it: "
            f"that runs any program hidden in it. If you trust it, {say} --trust-pickle"
        )
    if sha256(path) != run.model_digest:
        raise RunError(f"{source}: is not the file that {run.folder} was made with. To open it all the same, {say}")
    return source
