"""Our own weights files: fully connected networks in safetensors, or the published .npz."""

from __future__ import annotations

from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.request import Opened, Request
from neuronfair.model.train import read_model


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read weights and make sure that they were made for rows of this domain in this encoding."""
    fewer = request.fewer(lambda others: TableEncoding(others).width)
    return request.white_box("neuronfair", read_model(request.path, request.domain, fewer))
