"""The command line: each command is a few lines around one function of the package."""

from neuronfair.cli import data, images, model, search
from neuronfair.cli.app import app, main

__all__ = ["app", "data", "images", "main", "model", "search"]
