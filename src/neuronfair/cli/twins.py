"""The option that says whom people are compared with."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Twins(StrEnum):
    """Whom people are compared with."""

    flip = "flip"
    counterpart = "counterpart"


TwinsOption = Annotated[
    Twins,
    typer.Option(
        help="Compare people with themselves when only the sensitive attribute changes (flip), or with their "
        "counterparts: who they would be in another group, by what the table says of both (counterpart)."
    ),
]
