"""The command line: each command is a few lines around one function of the package."""

from neuronfair.cli import alternatives, audit, certify, data, images, model, repair, search, show
from neuronfair.cli.app import app, main

__all__ = [
    "alternatives",
    "app",
    "audit",
    "certify",
    "data",
    "images",
    "main",
    "model",
    "repair",
    "search",
    "show",
]
