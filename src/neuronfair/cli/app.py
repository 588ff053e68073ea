"""The command line itself: the tree of commands, and how errors are shown."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from neuronfair import __version__
from neuronfair.cli.options import DATA
from neuronfair.errors import DEBUG, NeuronFairError, internal
from neuronfair.formatting import visible
from neuronfair.scale.ray_cluster import ADDRESS, LOCAL

INTERNAL = 3  # the exit status of an error that nobody expected
_RENAMED = {"--seeds": "--starts", "--trust-feeding": "--skip-encoding-check"}  # old spellings of options


_FIRST = ("audit", "audit-all", "show", "rate", "certify", "repair")  # of the help text


class Commands(TyperGroup):
    """The commands; --ray may stand alone, which options of typer that have a value cannot."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all commands, those that people use first before the others."""
        others = [name for name in super().list_commands(ctx) if name not in _FIRST]
        return [*_FIRST, *others]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the address of a cluster of our own behind an --ray without one, and new names for old ones."""
        return super().parse_args(ctx, with_address(renamed(args)))


def renamed(args: list[str]) -> list[str]:
    """Return a command line with the present spelling of every option.

    >>> renamed(["audit", "--seeds", "5", "--seeds=7", "--", "--seeds"])
    ['audit', '--starts', '5', '--starts=7', '--', '--seeds']
    """
    end = args.index("--") if "--" in args else len(args)
    parts = [word.partition("=") for word in args[:end]]
    return ["".join((_RENAMED.get(name, name), *rest)) for name, *rest in parts] + args[end:]


def with_address(args: list[str]) -> list[str]:
    """Return a command line with an address behind --ray.

    >>> with_address(["search", "--ray", "adult", "--ray"]), with_address(["search", "--ray", "here:6379"])
    (['search', '--ray', 'local', 'adult', '--ray', 'local'], ['search', '--ray', 'here:6379'])
    """
    end = args.index("--") if "--" in args else len(args)
    followed = [bool(ADDRESS.fullmatch(word)) for word in (*args[1:], "")]
    lone = {place for place, word in enumerate(args[:end]) if word == "--ray" and not followed[place]}
    return [word for place, one in enumerate(args) for word in ((one, LOCAL) if place in lone else (one,))]


app = typer.Typer(
    cls=Commands,
    help="Test trained models for individual discrimination, with evidence you can show an auditor.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="List, fetch and find the data sets of the paper.", no_args_is_help=True)
domain_app = typer.Typer(help="Draft the input schema (domain file) of a table.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=DATA)
app.add_typer(domain_app, name="domain", rich_help_panel=DATA)


def main() -> None:
    """Run the command line; an expected error becomes one line and exit status 2, any other one line and 3."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of failing
    warnings.showwarning = _warn
    try:
        status = _run()
        if sys.stdout is not None:  # as after >&-
            sys.stdout.flush()  # a closed pipe or a full disk shows here, not while Python exits
        sys.exit(status)
    except NeuronFairError as error:
        _fail(str(error), error.status)
    except _UsageError as error:
        _explain(error)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except Exception as error:
        _fail_inside(error)


def _run() -> Any:
    """Run the command; return its exit status."""
    try:
        return app(prog_name="neuronfair", standalone_mode=False)
    except SystemExit as error:  # not of ours
        if error.code not in (None, 0, 1):  # which would be taken for a verdict
            raise
        raise RuntimeError(f"the code of the model or a package ended the program with status {error.code}") from error


def _fail_inside(error: Exception) -> None:
    """Say in one line that an error was not expected: with status 1 it would be taken for a failed gate."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    complain(internal(error))
    sys.exit(INTERNAL)


# The parent of what typer raises for wrong options; typer has no public name for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _explain(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else "neuronfair"
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(2)
    _fail(f"{error.format_message()} See: {command} --help")


def complain(message: str) -> None:
    """Print one line on standard error; whatever names are in it."""
    print(f"neuronfair: {visible(' '.join(message.split()))}", file=sys.stderr)


def _fail(message: str, status: int = 2) -> None:
    complain(f"error: {message}")
    sys.exit(status)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(f"warning: {message}")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"neuronfair {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an internal error.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
