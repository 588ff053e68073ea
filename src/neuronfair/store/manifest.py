"""What a run was begun with: everything that must be the same when it goes on."""

from __future__ import annotations

import hashlib
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from neuronfair import __version__
from neuronfair.domain.data import Data
from neuronfair.generation.campaign import Plan


def make_manifest(
    plan: Plan, data: Data, *, model: str, weights: str, outputs: int, extra_weights: str | None = None
) -> dict[str, Any]:
    """Return the manifest of a search of `data` by `plan`.

    `model` says where the model is, seen from the run folder, and `weights` is its fingerprint. `extra_weights` is the
    weights file of a module that Python code makes.
    """
    return {
        **versions(),
        "data": data.name,
        "encoding": data.domain.encoding,
        "model": model,
        "model_weights": extra_weights,
        "weights": weights,
        "domain": data.domain.fingerprint,
        "rows": rows_digest(data.rows),
        "outputs": outputs,
        "plan": {"sensitive": list(data.domain.sensitive), **asdict(plan)},
    }


def versions() -> dict[str, str]:
    """Return what was used, and when."""
    return {
        "neuronfair": __version__,
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def rows_digest(rows: Tensor) -> str:
    """Return the SHA-256 of the rows of a table."""
    return hashlib.sha256(rows.cpu().numpy().tobytes()).hexdigest()


def where(source: str) -> str:
    """Return where a model is, for a run folder that may be read from elsewhere: a file by its full path."""
    path = Path(source)
    return str(path.absolute()) if path.is_file() else source
