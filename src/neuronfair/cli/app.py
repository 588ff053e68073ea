"""The tree of commands: how functions become commands, and how errors are shown."""

from __future__ import annotations

import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from neuronfair import __version__
from neuronfair.errors import DEBUG_VARIABLE, NeuronFairError, internal_message
from neuronfair.formatting import printable
from neuronfair.parameters import (
    BUDGET,
    EXPERT,
    GATE,
    INPUT,
    OUTPUT,
    Parameter,
    Values,
    build_settings,
    find_parameters,
    flag_of,
    out_of_bounds,
    value_text,
)
from neuronfair.scale.pool import ADDRESS, LOCAL

AUDIT, RESEARCH, DATA = "Audit", "Research", "Data"  # panels of the commands
GATE_FAILED, WRONG, INTERNAL, INTERRUPTED = 1, 2, 3, 130  # exit statuses
_RENAMED = {
    "--seeds": "--starts",
    "--trust-feeding": "--skip-encoding-check",
    "--corpus": "--regression-set",
    "--no-corpus-add": "--no-regression-set-add",
}  # old spellings of options
_RENAMED_VALUES = {("--twins", "counterpart"): "counterfactual"}  # old values of options
_RENAMED_COMMANDS = {"replay": "show RUN N", "export": "show RUN --out FILE"}
_FIRST = ("audit", "audit-all", "show", "rate", "certify", "alternatives")  # in the help text


class Commands(TyperGroup):
    """The commands; --ray may stand alone, which options of typer that have a value cannot."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all commands, the most used ones first."""
        others = [name for name in super().list_commands(ctx) if name not in _FIRST]
        return [*_FIRST, *others]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add an address after a lone --ray, and replace old spellings."""
        if args and (new := _RENAMED_COMMANDS.get(args[0])):
            complain(f"'{args[0]}' is now 'neuronfair {new}'. The old name goes with the next version")
            args = [new.partition(" ")[0], *args[1:]]
        return super().parse_args(ctx, with_address(renamed(args)))


def renamed(args: list[str]) -> list[str]:
    """Return a command line with the present spelling of every option.

    >>> renamed(["audit", "--seeds", "5", "--seeds=7", "--", "--seeds"])
    ['audit', '--starts', '5', '--starts=7', '--', '--seeds']
    >>> renamed(["rate", "--twins", "counterpart", "--twins=counterpart"])
    ['rate', '--twins', 'counterfactual', '--twins=counterfactual']
    """
    end = args.index("--") if "--" in args else len(args)
    words = list[str]()
    for word in args[:end]:
        name, equals, value = word.partition("=")
        word = f"{_RENAMED.get(name, name)}{equals}{_RENAMED_VALUES.get((name, value), value)}"
        words.append(_RENAMED_VALUES.get((words[-1] if words else "", word), word))
    return words + args[end:]


def with_address(args: list[str]) -> list[str]:
    """Return a command line with an address after --ray.

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
data_app = typer.Typer(help="List, download and locate the data sets of the paper.", no_args_is_help=True)
domain_app = typer.Typer(help="Draft the input schema (domain file) of a table.", no_args_is_help=True)
app.add_typer(data_app, name="data", rich_help_panel=DATA)
app.add_typer(domain_app, name="domain", rich_help_panel=DATA)


# Functions become commands


class Command(TyperCommand):
    """A command with a short help text: --help comes last, and each flag is shown as people type it."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, in the last panel."""
        shown = super().get_help_option(ctx)
        if shown is not None:
            shown.rich_help_panel, shown.metavar = EXPERT, " "
        return shown

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show each flag as people type it, and arguments without their Python type."""
        whole = [(one, one.opts, one.secondary_opts) for one in self.params]
        for one, _, _ in whole:
            one.opts, one.secondary_opts = used_flags(one), []
            if isinstance(one, TyperArgument):
                one.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        try:
            super().format_help(ctx, formatter)
        finally:
            for one, on, off in whole:
                one.opts, one.secondary_opts = on, off


def used_flags(option: Any) -> list[str]:
    """Return the spellings of an option that people type: of a flag that is on by default, those that turn it off."""
    off = option.secondary_opts
    return list(off) if off and option.default else [*option.opts, *off]


def option(text: str, *flags: str, panel: str = EXPERT, **more: Any) -> Parameter:
    """Return an option or argument of one command alone, for `Annotated`."""
    return Parameter(text, flags, panel, **more)


def command(
    app: typer.Typer,
    name: str | None = None,
    *,
    panel: str | None = None,
    defaults: Values | None = None,
    omit: tuple[str, ...] = (),
    cls: type[TyperCommand] = Command,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function. Its arguments are options, or settings classes whose parameters become options.

    `defaults` replaces defaults of the classes; ... makes an option required. `omit` names parameters to leave out. An
    option that several arguments have is one option.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        declared = _declared(function)
        known: dict[str, Parameter] = {}
        for one in declared.values():
            inside = {} if isinstance(one, Parameter) else find_parameters(one)
            known |= {key: own for key, own in inside.items() if key not in omit and key not in known}
        known |= {key: replace(known[key], default=default) for key, default in (defaults or {}).items()}
        known |= {key: one for key, one in declared.items() if isinstance(one, Parameter)}

        def call(**values: Any) -> None:
            values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
            for name, why in out_of_bounds(values, known):
                raise typer.BadParameter(f"{flag_of(name, known[name])}: {why}.")
            function(
                **{
                    key: values[key] if isinstance(one, Parameter) else build_settings(one, values)
                    for key, one in declared.items()
                }
            )

        order = [_typer_parameter(key, one) for key, one in sorted(known.items(), key=_place)]
        call.__signature__ = inspect.Signature(order)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in order}
        text, examples, more = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample")  # come last
        call.__name__, call.__doc__ = function.__name__, text
        app.command(name, cls=cls, rich_help_panel=panel, epilog=(examples + more).strip())(call)
        return function

    return register


def _declared(function: Callable[..., None]) -> dict[str, type | Parameter]:
    """Return the arguments of a function: settings classes, and options of this command alone."""
    hints = get_type_hints(function, include_extras=True)
    found: dict[str, type | Parameter] = {}
    for key, one in inspect.signature(function).parameters.items():
        if is_dataclass(hints[key]):
            found[key] = hints[key]
        else:
            hint, known = get_args(hints[key])
            found[key] = replace(known, hint=hint, default=... if one.default is one.empty else one.default)
    return found


def _place(item: tuple[str, Parameter]) -> tuple[bool, int]:
    """Return where an option belongs: arguments first, then panel by panel, Expert last."""
    known = item[1]
    return not known.positional, (INPUT, BUDGET, OUTPUT, GATE, EXPERT).index(known.panel)


def _typer_parameter(name: str, known: Parameter) -> inspect.Parameter:
    """Return a parameter as typer declares an option or an argument."""
    hint, flags, text, default = known.hint, known.flags, known.text, known.default
    shown = known.default_text or (None if isinstance(default, bool) or default in (..., ()) else value_text(default))
    if shown and hint is not bool and "default" not in text.lower():
        text = f"{text.removesuffix('.')} (default {shown})."
    if get_origin(hint) is tuple:
        hint, default = list[get_args(hint)[0]], default or None  # type: ignore[misc]
    if hint is bool and default is False and not flags:
        flags = (f"--{name.replace('_', '-')}",)  # without --no-…
    declared = (
        typer.Argument(metavar=known.metavar, help=text, show_default=False)
        if known.positional
        else typer.Option(*flags, help=text, metavar=_metavar(known), rich_help_panel=known.panel, show_default=False)
    )
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, declared]
    )


def _metavar(known: Parameter) -> str | None:
    """Return the placeholder of a value in a help text; None where the choices are listed instead."""
    kinds = {bool: " ", int: "N", float: "X", str: "TEXT", Path: "FILE"}
    one = next((kind for kind in (known.hint, *get_args(known.hint)) if kind in kinds), None)
    return known.metavar or (None if one is None else kinds[one])


# Errors become one line and an exit status


def main() -> None:
    """Run the command line; an error becomes one line and exit status 2, a defect of this program 3."""
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
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exception(error)
        _fail(internal_message(error), INTERNAL, "")  # status 1 could be mistaken for a failed gate


def _run() -> Any:
    """Run the command; return its exit status."""
    try:
        return app(prog_name="neuronfair", standalone_mode=False)
    except SystemExit as error:  # raised by code of the model, not by ours
        if isinstance(error.__context__, BrokenPipeError):  # rich ends so when its output is closed
            raise error.__context__ from None
        if error.code not in (None, 0, 1):  # other codes could be mistaken for a verdict
            raise
        raise RuntimeError(f"the code of the model or a package ended the program with status {error.code}") from error


# The parent of what typer raises for wrong options; typer has no public name for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _explain(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else "neuronfair"
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(WRONG)
    _fail(f"{error.format_message()} See: {command} --help")


def complain(message: str) -> None:
    """Print one line on standard error, with control characters written out."""
    print(f"neuronfair: {printable(' '.join(message.split()))}", file=sys.stderr)


def _fail(message: str, status: int = WRONG, kind: str = "error: ") -> None:
    complain(f"{kind}{message}")
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
        bool, typer.Option("--version", callback=_version, is_eager=True, metavar=" ", help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", metavar=" ", help="Show the traceback of an internal error.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
