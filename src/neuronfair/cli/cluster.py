"""The option --ray: who does the pieces of a command's work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from neuronfair.scale.cluster import ADDRESS, LOCAL, check_address, cluster
from neuronfair.scale.pool import Pool, Serial

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Work side by side on a Ray cluster: on all cores of this machine, or at ADDRESS (auto, HOST:PORT, "
        "ray://HOST:PORT).",
    ),
]


class Commands(TyperGroup):
    """The commands; --ray may stand alone, which options of typer that have a value cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the address of a cluster of our own behind an --ray without one."""
        return super().parse_args(ctx, with_address(args))


def with_address(args: list[str]) -> list[str]:
    """Return a command line with an address behind --ray.

    >>> with_address(["search", "--ray", "adult", "--ray"]), with_address(["search", "--ray", "here:6379"])
    (['search', '--ray', 'local', 'adult', '--ray', 'local'], ['search', '--ray', 'here:6379'])
    """
    end = args.index("--") if "--" in args else len(args)
    followed = [bool(ADDRESS.fullmatch(word)) for word in (*args[1:], "")]
    lone = {place for place, word in enumerate(args[:end]) if word == "--ray" and not followed[place]}
    return [word for place, one in enumerate(args) for word in ((one, LOCAL) if place in lone else (one,))]


def check_ray(ray: str | None) -> None:
    """Refuse an --ray that cannot be followed, before any work is done."""
    if ray is not None:
        check_address(ray)


@contextmanager
def pool_of(ray: str | None) -> Iterator[Pool]:
    """Give who does the work: this process, or the cluster of --ray, which ends with the block if it is ours."""
    if ray is None:
        yield Serial()
    else:
        with cluster(ray) as pool:
            yield pool
