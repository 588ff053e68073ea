"""The command line: each command is a few lines around one function of the package."""

from neuronfair.cli import audit, data, model, research, runs
from neuronfair.cli.app import app, main

__all__ = ["app", "audit", "data", "main", "model", "research", "runs"]
