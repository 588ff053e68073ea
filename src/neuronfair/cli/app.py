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
from neuronfair.scale.pool import ADDRESS, LOCAL_ADDRESS

AUDIT, RESEARCH, DATA = "Audit", "Research", "Data"  # panels of the commands
GATE_FAILED, ERROR, DEFECT, INTERRUPTED = 1, 2, 3, 130  # exit statuses
_RENAMED_OPTIONS = {
    "--seeds": "--starts",
    "--trust-feeding": "--skip-encoding-check",
    "--corpus": "--regression-set",
    "--no-corpus-add": "--no-regression-set-add",
}  # old spellings of options
_RENAMED_VALUES = {("--twins", "counterpart"): "counterfactual"}  # old values of options
_RENAMED_COMMANDS = {"replay": "show RUN N", "export": "show RUN --out FILE"}
_FIRST_COMMANDS = ("audit", "audit-all", "show", "rate", "certify", "alternatives")  # in the help text


class Commands(TyperGroup):
    """The commands; --ray may stand alone, which options of typer that have a value cannot."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all commands, the most used ones first."""
        others = [name for name in super().list_commands(ctx) if name not in _FIRST_COMMANDS]
        return [*_FIRST_COMMANDS, *others]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Add an address after a lone --ray, and replace old spellings."""
        if args and (new := _RENAMED_COMMANDS.get(args[0])):
            complain(f"'{args[0]}' is now 'neuronfair {new}'. The old name goes with the next version")
            args = [new.partition(" ")[0], *args[1:]]
        return super().parse_args(ctx, add_ray_address(replace_old_spellings(args)))


def replace_old_spellings(args: list[str]) -> list[str]:
    """Return a command line with the present spelling of every option.

    >>> replace_old_spellings(["audit", "--seeds", "5", "--seeds=7", "--", "--seeds"])
    ['audit', '--starts', '5', '--starts=7', '--', '--seeds']
    >>> replace_old_spellings(["rate", "--twins", "counterpart", "--twins=counterpart"])
    ['rate', '--twins', 'counterfactual', '--twins=counterfactual']
    """
    end = args.index("--") if "--" in args else len(args)
    words = list[str]()
    for word in args[:end]:
        name, equals, value = word.partition("=")
        word = f"{_RENAMED_OPTIONS.get(name, name)}{equals}{_RENAMED_VALUES.get((name, value), value)}"
        words.append(_RENAMED_VALUES.get((words[-1] if words else "", word), word))
    return words + args[end:]


def add_ray_address(args: list[str]) -> list[str]:
    """Return a command line with an address after --ray.

    >>> add_ray_address(["search", "--ray", "adult", "--ray"]), add_ray_address(["search", "--ray", "here:6379"])
    (['search', '--ray', 'local', 'adult', '--ray', 'local'], ['search', '--ray', 'here:6379'])
    """
    end = args.index("--") if "--" in args else len(args)
    words = list[str]()
    for index, word in enumerate(args):
        is_lone = word == "--ray" and index < end and not ADDRESS.fullmatch("".join(args[index + 1 : index + 2]))
        words += [word, LOCAL_ADDRESS] if is_lone else [word]
    return words


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
        help_option = super().get_help_option(ctx)
        if help_option is not None:
            help_option.rich_help_panel, help_option.metavar = EXPERT, " "
        return help_option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show each flag as people type it, and arguments without their Python type."""
        flags_by_parameter = [(parameter, parameter.opts, parameter.secondary_opts) for parameter in self.params]
        for parameter, _, _ in flags_by_parameter:
            parameter.opts, parameter.secondary_opts = list_typed_flags(parameter), []
            if isinstance(parameter, TyperArgument):
                parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        try:
            super().format_help(ctx, formatter)
        finally:
            for parameter, flags, off_flags in flags_by_parameter:
                parameter.opts, parameter.secondary_opts = flags, off_flags


def list_typed_flags(option: Any) -> list[str]:
    """Return the spellings of an option that people type: of a flag that is on by default, those that turn it off."""
    off_flags = option.secondary_opts
    return list(off_flags) if off_flags and option.default else [*option.opts, *off_flags]


def option(text: str, *flags: str, panel: str = EXPERT, **metadata: Any) -> Parameter:
    """Return an option or argument of one command alone, for `Annotated`."""
    return Parameter(text, flags, panel, **metadata)


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
        arguments = _read_arguments(function)
        declared: dict[str, Parameter] = {}
        for argument in arguments.values():
            fields = {} if isinstance(argument, Parameter) else find_parameters(argument)
            declared |= {key: field for key, field in fields.items() if key not in omit and key not in declared}
        declared |= {key: replace(declared[key], default=default) for key, default in (defaults or {}).items()}
        declared |= {key: argument for key, argument in arguments.items() if isinstance(argument, Parameter)}

        def call(**values: Any) -> None:
            values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
            for name, reason in out_of_bounds(values, declared):
                raise typer.BadParameter(f"{flag_of(name, declared[name])}: {reason}.")
            function(
                **{
                    key: values[key] if isinstance(argument, Parameter) else build_settings(argument, values)
                    for key, argument in arguments.items()
                }
            )

        sequence = sorted(declared.items(), key=_panel_position)
        signature = inspect.Signature([_make_typer_parameter(key, parameter) for key, parameter in sequence])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: argument.annotation for name, argument in signature.parameters.items()}
        text, heading, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExample")  # come last
        call.__name__, call.__doc__ = function.__name__, text
        app.command(name, cls=cls, rich_help_panel=panel, epilog=(heading + examples).strip())(call)
        return function

    return register


def _read_arguments(function: Callable[..., None]) -> dict[str, type | Parameter]:
    """Return the arguments of a function: settings classes, and options of this command alone."""
    hints = get_type_hints(function, include_extras=True)
    arguments: dict[str, type | Parameter] = {}
    for key, argument in inspect.signature(function).parameters.items():
        if is_dataclass(hints[key]):
            arguments[key] = hints[key]
        else:
            hint, parameter = get_args(hints[key])
            default = ... if argument.default is argument.empty else argument.default
            arguments[key] = replace(parameter, hint=hint, default=default)
    return arguments


def _panel_position(item: tuple[str, Parameter]) -> tuple[bool, int]:
    """Return where an option belongs: arguments first, then panel by panel, Expert last."""
    parameter = item[1]
    return not parameter.positional, (INPUT, BUDGET, OUTPUT, GATE, EXPERT).index(parameter.panel)


def _make_typer_parameter(name: str, parameter: Parameter) -> inspect.Parameter:
    """Return a parameter as typer declares an option or an argument."""
    hint, flags, text, default = parameter.hint, parameter.flags, parameter.text, parameter.default
    has_default = not isinstance(default, bool) and default not in (..., ())
    default_text = parameter.default_text or (value_text(default) if has_default else None)
    if default_text and hint is not bool and "default" not in text.lower():
        text = f"{text.removesuffix('.')} (default {default_text})."
    if get_origin(hint) is tuple:
        hint, default = list[get_args(hint)[0]], default or None  # type: ignore[misc]
    if hint is bool and default is False and not flags:
        flags = (f"--{name.replace('_', '-')}",)  # without --no-…
    metavar, panel = _choose_metavar(parameter), parameter.panel
    typer_info = (
        typer.Argument(metavar=parameter.metavar, help=text, show_default=False)
        if parameter.positional
        else typer.Option(*flags, help=text, metavar=metavar, rich_help_panel=panel, show_default=False)
    )
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, typer_info]
    )


def _choose_metavar(parameter: Parameter) -> str | None:
    """Return the placeholder of a value in a help text; None where the choices are listed instead."""
    placeholder_by_kind = {bool: " ", int: "N", float: "X", str: "TEXT", Path: "FILE"}
    kind = next((kind for kind in (parameter.hint, *get_args(parameter.hint)) if kind in placeholder_by_kind), None)
    return parameter.metavar or (None if kind is None else placeholder_by_kind[kind])


# Errors become one line and an exit status


def main() -> None:
    """Run the command line; an error becomes one line and exit status 2, a defect of this program 3."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode shows ? instead of failing
    warnings.showwarning = _print_warning
    try:
        status = _run_command()
        if sys.stdout is not None:  # as after >&-
            sys.stdout.flush()  # a closed pipe or a full disk shows here, not while Python exits
        sys.exit(status)
    except NeuronFairError as error:
        _fail(str(error), error.status)
    except _UsageError as error:
        _fail_usage(error)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'output'}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exception(error)
        _fail(internal_message(error), DEFECT, "")  # status 1 could be mistaken for a failed gate


def _run_command() -> Any:
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


def _fail_usage(error: Any) -> None:
    command = error.ctx.command_path if error.ctx else "neuronfair"
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        sys.exit(ERROR)
    _fail(f"{error.format_message()} See: {command} --help")


def complain(message: str) -> None:
    """Print one line on standard error, with control characters written out."""
    print(f"neuronfair: {printable(' '.join(message.split()))}", file=sys.stderr)


def _fail(message: str, status: int = ERROR, kind: str = "error: ") -> None:
    complain(f"{kind}{message}")
    sys.exit(status)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(f"warning: {message}")


def _print_version(is_set: bool) -> None:
    if is_set:
        print(f"neuronfair {__version__}")
        raise typer.Exit


@app.callback()
def _read_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, metavar=" ", help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", metavar=" ", help="Show the traceback of an internal error.")
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"
