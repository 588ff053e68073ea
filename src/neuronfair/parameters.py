"""Parameters of a job, declared once: fields of a settings class with the metadata for command line and TOML files.

A settings class is a dataclass whose fields are made by `parameter`. Python callers see an ordinary dataclass; the
commands of `neuronfair.cli` make an option of each of these fields, and files such as that of `audit-all` have a key
for each.

>>> @dataclass(frozen=True)
... class Settings:
...     steps: int = parameter(100, "Steps of the search.", panel=BUDGET, low=0)
>>> Settings().steps, find_parameters(Settings)["steps"].text
(100, 'Steps of the search.')
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from dataclasses import replace as _replace
from functools import wraps
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, get_origin, get_overloads, get_type_hints

from neuronfair.errors import did_you_mean, refuse_unknown

INPUT, BUDGET, OUTPUT, GATE, EXPERT = "Input", "Budget", "Output", "Gate", "Expert"  # panels of a help text
Values = dict[str, Any]  # of parameters, by the names of their fields
RENAMED = {  # old names, which work with a warning until 0.4
    "corpus": "regression_set",
    "corpus_add": "regression_set_add",
    "trust_feeding": "skip_encoding_check",
    "placebos": "permutations",
}
T = TypeVar("T")
_METADATA_KEY = "parameter"
P = ParamSpec("P")


@dataclass(frozen=True)
class Parameter:
    """What a field means outside Python."""

    text: str  # the help text: one plain sentence
    flags: tuple[str, ...] = ()  # as options, where they are not called like the field
    panel: str = EXPERT
    metavar: str | None = None
    low: float | None = None
    high: float | None = None
    positional: bool = False  # an argument of the command line, and no option
    hint: Any = None  # the type
    default: Any = None
    default_text: str | None = None  # the default as a help text shows it
    for_texts: bool = False  # whether audits of texts take it, too


def parameter(default: Any, text: str, *flags: str, **attributes: Any) -> Any:
    """Return a field of a settings class with the metadata for command line and TOML files: those of `Parameter`."""
    return field(default=default, metadata={_METADATA_KEY: Parameter(text, flags, default=default, **attributes)})


def common_parameter(default: Any, text: str, *flags: str, **attributes: Any) -> Any:
    """Return a field that audits of texts take as well as those of tables."""
    return parameter(default, text, *flags, for_texts=True, **attributes)


def find_groups(kind: Any) -> Values:
    """Return the fields of a settings class that are settings classes themselves."""
    return {member.name: member.default_factory for member in fields(kind) if is_dataclass(member.default_factory)}


def find_parameters(kind: Any) -> dict[str, Parameter]:
    """Return the parameters of a settings class, those of its groups included, by the names of their fields.

    A class with `QUICK` has two sets of defaults. Its parameters are None unless they are given, and the help text
    shows both.
    """
    declared: dict[str, Parameter] = {}
    nested = find_groups(kind)
    # Other fields may have types that are imported for type checkers only.
    typed = SimpleNamespace(__annotations__={m.name: m.type for m in fields(kind) if _METADATA_KEY in m.metadata})
    hints = get_type_hints(typed, vars(sys.modules[kind.__module__]))
    for member in fields(kind):
        if member.name in nested:
            declared |= find_parameters(nested[member.name])
        elif _METADATA_KEY in member.metadata:
            declared[member.name] = _replace(member.metadata[_METADATA_KEY], hint=hints[member.name])
    if hasattr(kind, "QUICK"):
        for name, entry in declared.items():
            default_text = _both_defaults(entry.default, kind.QUICK.get(name, entry.default))
            declared[name] = _replace(entry, hint=entry.hint | None, default=None, default_text=default_text)
    return declared


def flag_of(name: str, declared: Parameter) -> str:
    """Return a parameter as an option of the command line."""
    return declared.flags[0] if declared.flags else f"--{name.replace('_', '-')}"


def build_settings(kind: Any, values: Values) -> Any:
    """Return a settings class with these values, its groups included. None stands for the default."""
    defaults = kind.quick() if hasattr(kind, "QUICK") and values.get("quick") else kind()
    arguments = {name: build_settings(nested, values) for name, nested in find_groups(kind).items()}
    field_names = {member.name for member in fields(kind) if _METADATA_KEY in member.metadata}
    arguments |= {name: value for name, value in values.items() if name in field_names and value is not None}
    return _replace(defaults, **arguments)


def values_of(settings: Any) -> Values:
    """Return the values of all parameters of a settings class, by the names of their fields."""
    values: Values = {}
    for member in fields(settings):
        value = getattr(settings, member.name)
        if is_dataclass(member.default_factory):
            values |= values_of(value)
        elif member.metadata:
            values[member.name] = value
    return values


def with_current_names(values: Mapping[str, Any], renamed: Mapping[str, str] = RENAMED) -> Values:
    """Return keyword arguments by their current names; an old name gives a warning."""
    for old in values.keys() & renamed.keys():
        warnings.warn(f"{old} is now {renamed[old]}. The old name goes with 0.4", DeprecationWarning, stacklevel=3)
    return {renamed.get(name, name): value for name, value in values.items()}


def renamed_field(old: str, new: str) -> Any:
    """Return a property that gives a field under its name of version 0.2, with a warning."""

    def read(self: object) -> Any:
        name = type(self).__name__
        warnings.warn(f"{name}.{old} is now {name}.{new}. The old name goes with 0.4", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(read)


def accept_old_names(kind: type[T], renamed: Mapping[str, str] = RENAMED) -> type[T]:
    """Let a class take arguments by the names that they had in version 0.2, with a warning."""
    patched_class: Any = kind
    original_init = patched_class.__init__

    @wraps(original_init)
    def init(self: Any, *arguments: Any, **values: Any) -> None:
        original_init(self, *arguments, **with_current_names(values, renamed))

    patched_class.__init__ = init
    return kind


def named_options(renamed: Mapping[str, str] = RENAMED) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function refuse unknown options by the nearest known name, and take old names with a warning.

    A function with overloads gets a signature with the options of all of them, those of the last one first.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        own = signature(function)
        declared = {name: option for name, option in own.parameters.items() if option.kind is not option.VAR_KEYWORD}
        for overload in reversed(get_overloads(function)):
            declared |= {
                name: option for name, option in signature(overload).parameters.items() if name not in declared
            }

        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> T:
            __tracebackhide__ = True  # pytest then shows the line of the test
            current: Any = with_current_names(options, renamed)
            refuse_unknown(current, declared)
            return function(*arguments, **current)

        vars(call)["__signature__"] = own.replace(parameters=[*declared.values()])
        return call

    return decorate


def _both_defaults(default: Any, quick: Any) -> str | None:
    """Return the defaults of a parameter with and without `quick`, as a help text shows them."""
    text, quick_text = value_text(default), value_text(quick)
    return text if text == quick_text else f"{text}, with --quick {quick_text}"


def value_text(value: Any) -> str | None:
    """Return a default as a help text shows it; None where there is none.

    >>> [value_text(value) for value in (True, 50_000, 0.5, "cpu", None)]
    ['yes', '50,000', '0.5', 'cpu', None]
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
    return None if value is None else str(value)


def validate_entry(entry: Values, declared: Mapping[str, Parameter]) -> tuple[Values, list[str]]:
    """Return the valid values of a TOML table, converted to the types of parameters, and the errors of the others."""
    import msgspec  # a machine that only searches has none

    values: Values = {}
    problems = []
    for key, value in with_current_names(entry).items():
        if key not in declared:
            problems.append(f"unknown key '{key}'. {did_you_mean(key, declared)}")
            continue
        hint = declared[key].hint
        if isinstance(value, str) and get_origin(hint) in (list, tuple):
            value = [value]
        try:
            values[key] = msgspec.convert(value, hint, dec_hook=_decode_path)
        except msgspec.ValidationError as error:
            problems.append(f"{key}: {str(error).replace('`', '')}")
            continue
    return values, [*problems, *map(": ".join, out_of_bounds(values, declared))]


def out_of_bounds(values: Values, declared: Mapping[str, Parameter]) -> Iterator[tuple[str, str]]:
    """Yield the names of numbers that are too small or too large, and why."""
    for name, value in values.items():
        declaration = declared.get(name)
        if declaration is not None and isinstance(value, int | float):
            if declaration.low is not None and not value >= declaration.low:
                yield name, f"{value} is less than {declaration.low}"
            if declaration.high is not None and not value <= declaration.high:
                yield name, f"{value} is more than {declaration.high}"


def _decode_path(kind: Any, value: Any) -> Any:
    if kind is not Path or not isinstance(value, str):
        raise TypeError(f"Expected str, got {type(value).__name__}")
    return Path(value)
