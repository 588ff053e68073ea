"""The page of results, made from a folder of records: one record for each experiment.

`neuronfair reproduce` writes records: `results/NAME.json` with the words and claims of an experiment, and
`results/NAME-TABLE.csv` with the cells of each of its tables. The page is a function of all records of a folder, so
experiments that are not repeated keep their sections.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.lab import Claim, Made, Report, Table
from neuronfair.atomic import write_text
from neuronfair.errors import NeuronFairError

# In the order of the page.
EXPERIMENTS = (
    "table3_accuracy",
    "figure3_as_curve",
    "table4_totals",
    "table5_equal_time",
    "table6_phases",
    "table7_improvement",
    "figure5_diversity",
    "figure6_coverage",
    "images",
    "peers",
    "neuron_repair",
    "ablation_neuronfair",
    "black_boxes",
    "populations",
    "counterparts",
)
RECORDS, PICTURES = "results", "img"  # folders next to the page
RUNGS = {  # the columns of the first table
    "neuronfair-printed": "NeuronFair as printed (`neuronfair-printed`)",
    "neuronfair": "with four changes (`neuronfair`)",
    "neuronfair-plus": "our redesign (`neuronfair-plus`)",
}
HEAD = """\
# Results

Which claims of the NeuronFair paper held when we repeated its experiments, and what else was measured? For researchers.

{summary}

## Which claims of the paper held

{overview}

**Held**: in all cases. **Held in part**: in at least half of them, or the findings bring only part of the effect. In \
brackets: the version of neuronfair that measured it. Only the first column is the paper's algorithm as printed (with \
our [readings](deviations.md) where the text is silent), so only it judges the paper. The \
[four changes](methods.md#neuronfair): one attribute in a local step, a random sign, a random step where a chain is \
stuck, a return after a miss. The last column is our own redesign. A dash: the claim needs no search by NeuronFair. \
The sections on Tables 4, 6 and 7 compare further statements of the paper, which are not counted here.

## What else was measured

{ours}

## How to read the sections

`neuronfair reproduce --docs docs` writes this page from the records in `docs/results`. A section begins with its \
version, day and command. A command measures with the installed version: for version 0.1 check out commit e418326, for \
0.2 commit 8d3c9c0. Methods have their present names; `frontier` of version 0.1 is an earlier form. ± is the \
half-width of a 95% confidence interval over repeats. A dash: not computed, or not printed in the paper.

`--repeats` sets the run seeds: a third of it for long searches, at most 3 for compas and meps; Tables 3 and 7 have 5 \
in any case. A table names the numbers that were finished, which can be fewer."""
MINUS = re.compile(r"(?<![\w.])-(?=[0-9])")  # a hyphen before a number
QUICK = "**Quick run: small budgets. It shows that everything works, not what the paper claims.**"


@dataclass(frozen=True)
class Record:
    """What is kept of one experiment: the words, claims and tables of its report, and how it was made."""

    title: str
    text: str
    claims: Sequence[Claim]
    tables: Mapping[str, Table]
    pictures: Sequence[str]  # names of files
    command: str
    made: Made
    remark: str = ""  # what a reader must know of an older record


def record(report: Report, pictures: Sequence[Path], command: str, made: Made) -> Record:
    """Return what is kept of a report."""
    names = [path.name for path in pictures]
    return Record(report.title, report.text, report.claims, report.tables, names, command, made)


def check_made_here(folder: Path) -> None:
    """Refuse a folder with a page of results that was not made from records."""
    if (folder / "results.md").exists() and not read_records(folder / RECORDS):
        raise NeuronFairError(f"{folder / 'results.md'}: this page was not made from records. Move it away")


def write_record(folder: Path, name: str, kept: Record) -> None:
    """Write a record: its tables as CSV, the rest as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"{name}-*.csv"):
        path.unlink()
    for key, table in kept.tables.items():
        write_text(folder / f"{name}-{key}.csv", table.csv())
    tables = {key: {"note": table.note, "on_page": table.on_page} for key, table in kept.tables.items()}
    write_text(
        folder / f"{name}.json", json.dumps(asdict(kept) | {"tables": tables}, indent=1, ensure_ascii=False) + "\n"
    )


def read_records(folder: Path) -> dict[str, Record]:
    """Return the records of a folder by the name of the experiment, in the order of the page."""
    return {name: _read(folder, name) for name in EXPERIMENTS if (folder / f"{name}.json").exists()}


def _read(folder: Path, name: str) -> Record:
    kept = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    tables = {}
    for key, words in kept["tables"].items():
        heading, *lines = csv.reader((folder / f"{name}-{key}.csv").read_text(encoding="utf-8").splitlines())
        tables[key] = Table(heading, lines, **words)
    claims = [Claim(**claim) for claim in kept["claims"]]
    return Record(**kept | {"tables": tables, "claims": claims, "made": Made(**kept["made"])})


def page(records: Mapping[str, Record]) -> str:
    """Return the page as Markdown."""
    claims = [
        (claim, claim.version or " and ".join(one.made.versions)) for one in records.values() for claim in one.claims
    ]
    of_paper = [known for known in claims if known[0].of_paper]
    head = HEAD.format(
        summary=_summary([claim for claim, _ in of_paper]),
        overview=_overview(of_paper),
        ours="\n".join(f"* {c.text}: {_verdict(c)} ({_short(version)})." for c, version in claims if not c.of_paper)
        or "–",
    )
    return "\n\n".join([head, *(_section(name, one) for name, one in records.items())]) + "\n"


def _summary(claims: Sequence[Claim]) -> str:
    """Return how many claims of the paper held, for the algorithm as printed and with four changes."""
    printed = _counts([claim for claim in claims if claim.rung in ("", "neuronfair-printed")])
    changed = _counts([claim for claim in claims if claim.rung == "neuronfair"])
    return f"**As printed, {printed}.** With four changes (`neuronfair`), {changed}."


def _counts(claims: Sequence[Claim]) -> str:
    yes, part, no = (sum(claim.held is held for claim in claims) for held in (True, None, False))
    return f"{yes} of {len(claims)} measured claims held, {part} held in part and {no} did not hold"


def _overview(claims: Sequence[tuple[Claim, str]]) -> str:
    """Return a line for each claim of the paper, with a column for each rung."""
    first, *_ = RUNGS
    lines: dict[str, dict[str, str]] = {}
    for claim, version in claims:
        empty = "not measured" if claim.rung else "–"
        cells = lines.setdefault(claim.text, dict.fromkeys(RUNGS, empty))
        cells[claim.rung or first] = f"{_verdict(claim)} ({_short(version)})"
    table = [["claim", *RUNGS.values()], *([text, *cells.values()] for text, cells in lines.items())]
    heading, *body = (" | ".join(line) for line in table)
    return "\n".join([heading, "|".join(["---"] * len(table[0])), *body])


def _verdict(claim: Claim) -> str:
    words = {True: "**held**", False: "**did not hold**", None: "**held in part**"}
    if claim.rung == "neuronfair-plus" and claim.of_paper:
        words = {True: "yes", False: "no", None: "in part"}
    return f"{words[claim.held]}: {MINUS.sub('−', claim.evidence)}"


def _short(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _section(name: str, kept: Record) -> str:
    """Return the section of an experiment."""
    made = kept.made
    how = [*(f"Version {version}" for version in made.versions), *made.days, f"`{kept.command}`", *made.machines]
    parts = [f"## {kept.title}", f"*{' · '.join(how)}*", *([QUICK] if "--quick" in kept.command else [])]
    parts += [text for text in (kept.remark, kept.text) if text]
    parts += [table.markdown().rstrip() for table in kept.tables.values() if table.on_page]
    parts += [f"![{kept.title}]({PICTURES}/{picture})" for picture in kept.pictures]
    files = [f"[{key}]({RECORDS}/{name}-{key}.csv)" for key, table in kept.tables.items() if not table.on_page]
    return "\n\n".join([*parts, *([f"Numbers: {', '.join(files)}."] if files else [])])
