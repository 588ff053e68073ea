"""Write the pages of reference/ that come from the program itself: `python docs/reference/make.py`."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_overloads, get_type_hints

import msgspec
import typer

import neuronfair
from neuronfair import cli
from neuronfair.audits import report
from neuronfair.audits.report import attribute, counterfactual
from neuronfair.cli.app import list_typed_flags
from neuronfair.model.decision import Decision
from neuronfair.parameters import find_parameters
from neuronfair.proof import certificate as proof

HERE = Path(__file__).parent
STAGES = {
    "api": "Audits and proofs in one call",
    "audits": "Audits",
    "alternative_models": "Alternatives",
    "render": "The report",
    "text": "Texts",
    "domain": "Tables and domains",
    "model": "Models",
    "searches": "Searches",
    "measure": "Metrics",
    "store": "Run folders",
    "proof": "Proofs",
    "errors": "Errors",
}
# What public functions take or return, and the pytest fixture: imported from where it is.
FURTHER = {
    "text.report": ("TextReport",),
    "alternative_models.session": ("Alternatives", "AlternativesReport"),
    "proof.certificate": ("ProofReport", "RowShare"),
    "audits.pytest_check": ("Fairness", "CheckSettings", "FairnessResult"),
    "audits.comparison": ("Comparison",),
    "domain.attribute": ("Attribute",),
    "domain.rules": ("Rule", "Span"),
    "domain.table": ("Target",),
    "model.open.opened": ("OpenedModel",),
    "model.training_loop": ("TrainingSettings",),
    "model.weights": ("Card",),
    "model.profile": ("BiasProfile", "LayerBias"),
    "searches.evaluate": ("Evaluation",),
    "searches.campaign": ("SearchResult",),
    "searches.findings": ("Findings",),
    "measure.rate": ("Rate", "Until"),
    "errors": ("DataError", "DomainError", "ModelError", "RunError"),
}
FULL_PATH = "    options:\n      show_root_full_path: true\n"


def api() -> str:
    """Return the page of the Python reference: every public name, then what else they take and return."""
    places = {f"{getattr(neuronfair, name).__module__}.{name}" for name in neuronfair.__all__ if name[0] != "_"}
    more = {f"neuronfair.{module}.{name}" for module, names in FURTHER.items() for name in names} - places
    lines = [
        "# Python\n",
        "`import neuronfair as nf`. These names are the public interface: `nf.load_dataset`, `nf.search`, …",
        'Names under "Also" are what they take and return; import those from the module that is shown.\n',
    ]
    for stage, title in STAGES.items():
        for heading, chosen, options in ((title, places, ""), (f"Also: {title.lower()}", more, FULL_PATH)):
            own = sorted(place for place in chosen if place.split(".")[1] == stage)
            if own:
                lines += [f"## {heading}\n"]
                for place in own:
                    lines += [f"::: {place}\n{options}", *_option_table(place)]
    return "\n".join(lines).rstrip() + "\n"


OPTION = re.compile(r"^ +(?P<name>\w+): .+,  # (?P<words>.+)$", re.M)


def _option_words(function: Any) -> dict[str, str]:
    """Return the meaning of each option of a function, from the comments in its signature and in those of overloads."""
    sources = [inspect.getsource(kind) for kind in (*get_overloads(function), function)]
    return {option["name"]: option["words"] for source in sources for option in OPTION.finditer(source)}


def _option_table(place: str) -> list[str]:
    """Return the keyword options of a function with their defaults; without a comment they mean the same in `audit`."""
    module, _, name = place.rpartition(".")
    function = getattr(import_module(module), name)
    own = _option_words(function) if inspect.isfunction(function) else {}
    if not own:
        return []
    settings = find_parameters(neuronfair.AuditSettings)
    words = {name: setting.text for name, setting in settings.items()} | _option_words(neuronfair.audit) | own
    lines = ["|option|default|meaning|", "|-|-|-|"]
    for option in inspect.signature(function).parameters.values():
        if option.kind is option.KEYWORD_ONLY:
            default = f"`{option.default!r}`"
            if function is neuronfair.audit and option.name in settings:
                default = f"that of `settings` ({settings[option.name].default_text or 'none'})"
            lines.append(f"|`{option.name}`|{default}|{words[option.name]}|")
    return [*lines, ""]


SHARED = 4  # an option of so many commands is described once
BAR = "\\|"


def command_line() -> str:
    """Return the page of the command line: shared options once, then every command with its own."""
    commands = dict(_commands("neuronfair", typer.main.get_command(cli.app)))
    rows = {name: _rows(command) for name, command in commands.items()}
    uses = Counter(row for own in rows.values() for row in own)
    shared = [row for row, count in uses.items() if count >= SHARED]
    lines = [
        "# Command line\n",
        "Which commands and options are there? `neuronfair COMMAND --help` shows the same, with examples.\n",
        "Errors are one line on standard error. Exit status: 0 success, 1 a failed threshold or certificate, "
        "2 wrong use, 3 a defect of neuronfair, 130 after Ctrl-C. `NO_COLOR` is honoured. "
        "`[tool.neuronfair]` in `pyproject.toml` sets defaults of `audit`.\n",
        "## Shared options\n",
        f"Each has the same meaning in at least {SHARED} commands.\n",
        *_table(shared),
    ]
    for name, command in commands.items():
        also = [spelled.split(",")[0] for spelled, text in rows[name] if (spelled, text) in shared]
        lines += [f"## {name}\n", f"{command.help}\n"]
        lines += _table([row for row in rows[name] if row not in shared])
        lines += [f"Shared: {', '.join(also)}.\n"] if also else []
    return "\n".join(lines).rstrip() + "\n"


def _commands(name: str, command: Any) -> list[tuple[str, Any]]:
    inside = getattr(command, "commands", None)
    if inside is None:
        return [(name, command)]
    shown = {word: part for word, part in inside.items() if not part.hidden}
    return [pair for word, part in shown.items() for pair in _commands(f"{name} {word}", part)]


def _rows(command: Any) -> list[tuple[str, str]]:
    """Return each parameter of a command as spelled on the command line, with its help text."""
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        text = parameter.help or ""
        if parameter.opts[0].startswith("-"):
            spelled = ", ".join(f"`{option}`" for option in list_typed_flags(parameter))
        else:
            spelled = f"`{parameter.metavar or parameter.name.upper()}`"
        if parameter.required:
            text += " Required."
        rows.append((spelled, text.strip()))
    return rows


def _table(rows: list[tuple[str, str]]) -> list[str]:
    """Return a table of two columns without a header."""
    cells = [f"|{spelled}|{text.replace('|', BAR).replace('<', '&lt;')}|" for spelled, text in rows]
    return ["|||", "|-|-|", *cells, ""] if cells else []


TYPES: dict[str, Any] = {
    name: kind
    for module in (report, attribute, counterfactual, proof)
    for name, kind in vars(module).items()
    if is_dataclass(kind)
}
TYPES |= {"Decision": Decision}
COMMENT = re.compile(r"^    (?P<name>\w+): [^#\n]+?(?:  # (?P<words>.+))?$", re.M)
PLAIN = {str: "text", int: "number", float: "number", bool: "bool"}


JSON = "## JSON files\n"
WHOLE = (report.Report, proof.ProofReport, report.AuditIndex)  # a file each
SHOWN: tuple[str, ...] = (
    "Report",
    "Verdict",
    "AttributeReport",
    "Rates",
    "FlipRateReport",
    "Finding",
    "Gate",
    "GateCheck",
    "ProofReport",
    "AuditIndex",
)
SHOWN += ("AuditLine", "RowShare")  # the others are in the schema only


def files() -> str:
    """Return the page of folders and files: what is written there by hand, then the keys of the main JSON objects."""
    lines = [
        PAGE_OF_FILES.read_text(encoding="utf-8").partition(JSON)[0] + JSON,
        "[results.schema.json](results.schema.json) is the JSON Schema of all three files, with the meaning of every "
        "key; the main objects are below.\n",
        "- `audit.json` is a [Report](#report), from `neuronfair audit`; in Python `nf.audit(…).report.to_json()` "
        "writes it and `Report.from_json` reads it.",
        "- `proof.json` is a [ProofReport](#proofreport), from `neuronfair certify`.",
        "- `index.json` is an [AuditIndex](#auditindex), from `neuronfair audit-all`.\n",
        "Types: `X?` may be null, which means not known or not measured; `X[]` is a list; `{X}` is an object of X by "
        "name. Shares lie between 0 and 1. Counts that may exceed 2⁵³ are text. `low` and `high` are the ends of the "
        "confidence interval. A `sentence` says the same in words.\n",
    ]
    return "\n".join([*lines, *_objects()]).rstrip() + "\n"


def schema() -> str:
    """Return the JSON Schema of the results; the comments behind the fields in the source are the descriptions."""
    _, found = msgspec.json.schema_components(WHOLE, ref_template="#/$defs/{name}")
    for name, one in found.items():
        words = _meanings(name)
        one["properties"] = {key: {**value, "description": words[key]} for key, value in one["properties"].items()}
    whole = [{"$ref": f"#/$defs/{kind.__name__}"} for kind in WHOLE]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Results of neuronfair", "anyOf": whole}
    return json.dumps({**head, "$defs": found}, indent=1, ensure_ascii=False) + "\n"


def _meanings(name: str) -> dict[str, str]:
    """Return the meaning of each key of an object; the comment on `low` also is that on `high`."""
    words = {one["name"]: one["words"] or "" for one in COMMENT.finditer(inspect.getsource(TYPES[name]))}
    for key in words:
        low = key.removesuffix("high") + "low"
        if key.endswith("high") and low in words:
            words[low] = words[key] = words[low].replace("lower end", "ends")
    return words


def _objects() -> Iterator[str]:
    """Yield a table for each of the main objects."""
    seen: dict[Any, str] = {}  # where the values of a Literal are listed
    for name in SHOWN:
        yield from (f"### {name}\n", "|key|type|meaning|", "|-|-|-|")
        words, hints = _meanings(name), get_type_hints(TYPES[name])
        rows: dict[tuple[str, str], list[str]] = {}  # the keys of each type and meaning
        for one in fields(TYPES[name]):
            shown = _type(hints[one.name], f"`{one.name}` of [{name}](#{name.lower()})", seen)
            rows.setdefault((shown, words[one.name]), []).append(f"`{one.name}`")
        yield from (f"|{', '.join(keys)}|{shown}|{meaning}|" for (shown, meaning), keys in rows.items())
        yield ""


def _type(hint: Any, place: str, seen: dict[Any, str]) -> str:
    """Return a type as the page shows it; the values of a Literal only where they are met first."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        known = seen.setdefault(hint, place)
        return ", ".join(f"`{value}`" for value in inside) if known == place else f"as {known}"
    if origin is tuple:
        return f"{_type(inside[0], place, seen)}[]"
    if origin is Mapping:
        return f"{{{_type(inside[1], place, seen)}}}"
    if inside:  # of a union
        shown = dict.fromkeys(_type(one, place, seen) for one in inside if one is not type(None))
        return " or ".join(shown) + ("?" if type(None) in inside else "")
    name = hint.__name__
    return PLAIN.get(hint) or (f"[{name}](#{name.lower()})" if name in SHOWN else name)


PAGE_OF_FILES = HERE / "run-folder.md"
PAGES = {
    HERE / "cli.md": command_line,
    HERE / "api.md": api,
    PAGE_OF_FILES: files,
    HERE / "results.schema.json": schema,
}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
