"""The command line: each command is a few lines around one function of the package."""

from neuronfair.cli import compare, data, images, model, rate, repair, reproduce, search
from neuronfair.cli.app import app, main

__all__ = ["app", "compare", "data", "images", "main", "model", "rate", "repair", "reproduce", "search"]
