"""The command line: each command is a few lines around one function of the package."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from neuronfair.cli import audit, files, rate_certify_alternatives, research
from neuronfair.cli.app import app, main

__all__ = ["app", "audit", "files", "main", "rate_certify_alternatives", "research"]

# A checkout of the source has more commands than an installed package: those of the paper's experiments.
if (_file := Path(__file__).parents[3] / "experiments" / "commands.py").is_file():
    _spec = spec_from_file_location("neuronfair_experiments", _file)
    if _spec is not None and _spec.loader is not None:
        sys.modules[_spec.name] = _module = module_from_spec(_spec)  # where its settings classes are looked up
        _spec.loader.exec_module(_module)
