"""Write the pages of reference/ that come from the program itself: `python docs/reference/make.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import typer

import neuronfair
from neuronfair import cli
from neuronfair.audits.report import attribute, counterfactual, index, proved, rates, report
from neuronfair.model.decision import Decision, DecisionKind
from neuronfair.proof import report as proof

HERE = Path(__file__).parent
STAGES = {
    "api": "Audits and proofs in one call",
    "audits": "Audits",
    "render": "The report",
    "domain": "Tables and domains",
    "model": "Models",
    "interpretation": "Interpretation",
    "searches": "Searches",
    "measure": "Metrics",
    "store": "Run folders",
    "proof": "Proofs",
    "errors": "Errors",
}
# What public functions take or return, and the pytest fixture: imported from where it is.
FURTHER = {
    "api": ("AuditOptions", "CertifyOptions", "RateOptions", "ModelKeywords"),
    "proof.report": ("ProofReport", "Part"),
    "audits.pytest_check": ("Fairness", "CheckSettings", "FairnessResult", "Demands"),
    "audits.comparison": ("Comparison",),
    "domain.attribute": ("Attribute",),
    "domain.rules": ("Rule", "Span"),
    "domain.table": ("Target",),
    "model.open.opened": ("Opened",),
    "model.training_loop": ("TrainingSettings",),
    "model.weights": ("Card",),
    "interpretation.profile": ("BiasProfile", "LayerBias"),
    "searches.evaluate": ("Evaluation",),
    "searches.config": ("SearchResult",),
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
                lines += [f"## {heading}\n", *(f"::: {place}\n{options}" for place in own)]
    return "\n".join(lines).rstrip() + "\n"


def command_line() -> str:
    """Return the page of the command line: every command with its arguments and options."""
    lines = [
        "# Command line\n",
        "`neuronfair --help` and `neuronfair COMMAND --help` show the same.",
        "Errors are one line on standard error and exit status 2; an internal error, a defect of neuronfair, has 3.",
        "`--json -` prints JSON alone, `--quiet` nothing but errors, `NO_COLOR` is honoured.\n",
    ]
    for name, command in _commands("neuronfair", typer.main.get_command(cli.app)):
        lines += [f"## {name}\n", f"{command.help.strip()}\n", *_table(command)]
    return "\n".join(lines).rstrip() + "\n"


def _commands(name: str, command: Any) -> list[tuple[str, Any]]:
    inside = getattr(command, "commands", None)
    if inside is None:
        return [(name, command)]
    shown = {word: part for word, part in inside.items() if not part.hidden}
    return [pair for word, part in shown.items() for pair in _commands(f"{name} {word}", part)]


def _table(command: Any) -> list[str]:
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        if parameter.opts[0].startswith("-"):
            spelled = ", ".join(f"`{opt}`" for opt in (*parameter.opts, *parameter.secondary_opts))
        else:
            spelled = f"`{parameter.metavar or parameter.name.upper()}`"
        notes = [parameter.help or ""]
        if parameter.required:
            notes.append("Required.")
        elif (
            parameter.default not in (None, "")
            and not isinstance(parameter.default, bool)
            and "default" not in notes[0].lower()
        ):
            notes.append(f"Default: `{parameter.default}`.")
        text = " ".join(notes).strip().replace("|", "\\|").replace("<", "&lt;")
        rows.append(f"| {spelled} | {text} |")
    return ["| | |", "| --- | --- |", *rows, ""] if rows else []


TYPES = {
    name: kind
    for module in (report, attribute, counterfactual, attribute, rates, proved, index)
    for name, kind in vars(module).items()
    if is_dataclass(kind)
}
TYPES |= {kind.__name__: kind for kind in (proof.ProofReport, proof.Part, Decision)}
FIELD = re.compile(r"^    (?P<name>\w+): (?P<form>.+?)(?: = .+?)?(?:  # (?P<words>.+))?$", re.M)
FORMS = (
    (r"tuple\[(.+), \.\.\.\]", r"list of \1"), (r"Mapping\[str, (.+)\]", r"object of \1"), (r" \| None", " or null"),
    (r"Literal\[(.+)\]", r"\1"), (r"\bstr\b", "text"), (r"\b(int|float)\b", "number"), (r"\bbool\b", "true or false"),
    (r"tuple\[number, number\]", "two numbers"), (r"\bCell\b", "text or number"), (r"\bLevel\b", str(report.Level)),
    (r"\bPopulation\b", str(attribute.Population)), (r"\bScale\b", str(report.Scale)),
    (r"\bDecisionKind\b", str(DecisionKind)),
    (r"\bMethod\b", str(proved.Method)), (r"\bState\b", str(index.State)),
    (r"\bThresholdState\b", str(report.ThresholdState)),
    (r"\bEncodingLevel\b", str(report.EncodingLevel)),
    (r"typing\.Literal\[(.+)\]", r"\1"), (r"[\"']", "`"),
)  # fmt: skip


def json_files() -> str:
    """Return the page of the JSON files: the fields of each record, with the comments behind them in the source."""
    lines = [
        "# JSON files\n",
        "Which fields do audit.json, proof.json and index.json have? For programs that read results.\n",
        "- `audit.json` is a [Report](#report): `neuronfair audit` writes it to the run folder and to `--json`; in "
        "Python `nf.audit(…).report.to_json()`, and `Report.from_json` reads it.",
        "- `proof.json` is a [ProofReport](#proofreport): `neuronfair certify` writes it to the run folder and to "
        "`--json`.",
        "- `index.json` is an [AuditIndex](#auditindex): `neuronfair audit-all` writes it to its folder and to "
        "`--json`.\n",
        "Shares lie between 0 and 1. What is not known is `null`. Exact counts that may exceed 2⁵³ are text. A file "
        "in a run folder ends with a `digest`, the SHA-256 of the text before it; a changed file is refused.\n",
    ]
    return "\n".join([*lines, *_entries("Report", "ProofReport", "AuditIndex")]).rstrip() + "\n"


def _entries(*whole: str) -> Iterator[str]:
    """Yield a table for each type and each type inside it."""
    for name in dict.fromkeys(inner for one in whole for inner in _within(one)):
        yield from (f"## {name}\n", f"{(TYPES[name].__doc__ or '').splitlines()[0]}\n", "| entry | form | meaning |")
        yield from ("| --- | --- | --- |", *(_entry(*found) for found in _fields(name)), "")


def _fields(name: str) -> list[tuple[str, str, str]]:
    return [
        (found["name"], found["form"], found["words"] or "") for found in FIELD.finditer(inspect.getsource(TYPES[name]))
    ]


def _within(name: str) -> Iterator[str]:
    """Yield a type and all types of its fields, in the order of a report."""
    yield name
    for _, form, _ in _fields(name):
        for word in re.findall(r"\w+", form):
            if word in TYPES:
                yield from _within(word)


def _entry(name: str, form: str, words: str) -> str:
    for old, new in FORMS:
        form = re.sub(old, new, form)
    form = re.sub(r"\w+", lambda word: f"[{word[0]}](#{word[0].lower()})" if word[0] in TYPES else word[0], form)
    return f"| `{name}` | {form} | {words} |"


PAGES = {HERE / "cli.md": command_line, HERE / "api.md": api, HERE / "json.md": json_files}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
