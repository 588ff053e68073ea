"""The command line: each command is a few lines around one function of the package."""

from neuronfair.cli import alternatives, audit, certify, data, images, rate, research, runs
from neuronfair.cli.app import app, main

__all__ = ["alternatives", "app", "audit", "certify", "data", "images", "main", "rate", "research", "runs"]
