"""The command line: each command is a few lines around one function of the package."""

from neuronfair.cli import (
    audit,
    audit_all,
    certify,
    compare,
    data,
    export,
    images,
    model,
    rate,
    repair,
    reproduce,
    search,
)
from neuronfair.cli.app import app, main

__all__ = [
    "app",
    "audit",
    "audit_all",
    "certify",
    "compare",
    "data",
    "export",
    "images",
    "main",
    "model",
    "rate",
    "repair",
    "reproduce",
    "search",
]
