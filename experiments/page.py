"""The page of results: which claims held, then every table and picture with the command that makes it.

The page is its own memory: sections of experiments that are not made now stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.lab import Report
from neuronfair.errors import NeuronFairError

# In the order of the page.
EXPERIMENTS = (
    "table3_accuracy",
    "figure3_as_curve",
    "table4_totals",
    "table5_equal_time",
    "table6_phases",
    "table7_improvement",
    "neuron_repair",
    "figure5_diversity",
    "figure6_coverage",
    "populations",
    "counterparts",
    "ablation_neuronfair",
    "black_boxes",
    "peers",
)
HEAD = (
    "# Results\n\n"
    "The paper's experiments on structured data, repeated, and some of our own. This page is written by a program, "
    "`neuronfair reproduce --docs docs`; the last line of a section says by which command, on which machine, by which "
    "version and when. `neuronfair-printed` is NeuronFair to the letter of the paper, `neuronfair` the paper's "
    "algorithm with what it needs to reach the printed counts, `neuronfair-plus` our redesign, and `frontier` our own "
    "method ([methods.md](methods.md)). Names are those of version 0.3: the sections made by version 0.1 measured "
    "`neuronfair`, those made by 0.2 `neuronfair-plus`. `neuronfair` has not been measured at the budget of Table 4 in "
    "this version. In sections made by version 0.1, `frontier` is an earlier form. "
    "A dash stands for what was not computed or, among the paper's figures, for what it does not print; the notes "
    "say how many runs a table rests on. "
    "Speed, memory, kills and GPU are in [measurements.md](measurements.md), departures from the paper in "
    "[deviations.md](deviations.md)."
)
QUICK = "**Quick run: small budgets. It shows that everything works, not what the paper claims.**"
CLAIMS = "Which claims of the paper held"
MADE = re.compile(r"Made by `neuronfair reproduce (\w+)")  # the last line of a section
DECIDES = re.compile(r"\(`(\w+)`\)$")  # the end of a claim


@dataclass(frozen=True)
class Section:
    """What the page says of one experiment: the lines of its claims, and its section."""

    claims: tuple[str, ...]
    text: str


def section(name: str, report: Report, pictures: list[Path], options: str, made: str) -> Section:
    """Return the section of an experiment; pictures are named relative to the page, `made` says when and where."""
    parts = [f"## {report.title}", *([QUICK] if "--quick" in options else []), report.text]
    parts += [table.markdown().rstrip() for table in report.tables.values()]
    parts += [f"![{report.title}]({path.as_posix()})" for path in pictures]
    parts.append(f"Made by `neuronfair reproduce {name}{options}` (`experiments/{name}.py`){made}.")
    return Section(tuple(f"{claim.line()} (`{name}`)" for claim in report.claims), "\n\n".join(parts))


def page(sections: Mapping[str, Section]) -> str:
    """Return the page as Markdown."""
    known = [sections[name] for name in EXPERIMENTS if name in sections]
    claims = [line for one in known for line in one.claims]
    parts = [HEAD, *([f"## {CLAIMS}", "\n".join(claims)] if claims else []), *(one.text for one in known)]
    return "\n\n".join(parts) + "\n"


def sections_of(text: str) -> dict[str, Section]:
    """Return the sections of a page, by the name of the experiment."""
    claims: dict[str, list[str]] = {}
    sections = {}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        if title == CLAIMS:
            for line in body.strip().splitlines():
                claims.setdefault(_name(DECIDES, line, line), []).append(line)
        else:
            name = _name(MADE, body.strip().splitlines()[-1] if body.strip() else "", title)
            sections[name] = f"## {part.strip()}"
    return {name: Section(tuple(claims.get(name, ())), text) for name, text in sections.items()}


def _name(pattern: re.Pattern[str], line: str, what: str) -> str:
    found = pattern.search(line)
    if found is None:
        raise NeuronFairError(f"the page of results: '{what[:60]}' does not say which experiment made it. Move it away")
    return found.group(1)
