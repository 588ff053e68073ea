"""Flip single bits in a run folder and in the folder of an audit: each must be found, and nothing may change for it.

    python benchmarks/bit_flips.py

A network is trained on a small made-up table and searched by frontier, with a pilot, both phases and controls; another
folder is that of a small audit. One bit is flipped in every byte of the journal, the manifests, the domains and the
seeds, and in 500 random bytes of every other file (50 in the runs of the audit), one at a time. Each time the folder is
opened as `replay` and the reports read it, and as the same command goes on with it. A flip is noticed if an error names
the file; harmless if everything that was read is the same; else unnoticed. Then files are taken away, emptied, cut,
made longer and exchanged, and lines of the journal taken out, doubled and swapped. The files on the disk must stay
exactly as they are.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from neuronfair.audits import run as audit
from neuronfair.audits.folder import (
    REPORT_FILE,
    WEIGHTS,
    WORST_FINDINGS,
    begin_audit,
    find_recorded_file,
    read_report,
    read_shrunk_pair,
)
from neuronfair.audits.provenance import Provenance
from neuronfair.audits.settings import AuditSettings
from neuronfair.cli.files import read_own_model
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.errors import NeuronFairError
from neuronfair.model.network import Network
from neuronfair.model.open import OpenedModel, wrap_model
from neuronfair.model.train import train
from neuronfair.model.training_loop import TrainingSettings
from neuronfair.model.weights import Card, save_weights
from neuronfair.searches.campaign import search
from neuronfair.searches.config import SearchConfig
from neuronfair.store.ledger import JOURNAL, MANIFEST, PHASES, make_manifest
from neuronfair.store.run import Run

import torch

DOMAIN = """
name = "loans"
sensitive = ["sex"]
target = { column = "loan", classes = ["no", "yes"] }

[attributes]
age = { kind = "ordinal", low = 18, high = 80, center = 45, scale = 15 }
income = { kind = "ordinal", low = 0, high = 40, center = 20, scale = 10 }
debt = { kind = "continuous", low = 0, high = 10, step = 0.5, center = 5, scale = 3 }
housing = { kind = "nominal", values = ["own", "rent", "free"] }
sex = { kind = "flag", values = ["female", "male"] }
"""
EYE = ("model.json", "report.html")  # copies for the eye, never read back
WHOLLY = (JOURNAL, MANIFEST, "domain.toml", "seeds.npy")


@dataclass(frozen=True)
class Way:
    """One way of opening a folder, and which files it reads."""

    name: str
    open: Callable[[], Any]
    reads: Callable[[Path], bool]


def plain(value: Any) -> Any:
    """Return a value that can be compared: tensors as lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, (tuple, list)) else value


def looked_at(folder: Path) -> Any:
    """Return all that `replay` and the reports read of a run."""
    run = Run.open(folder)
    model = read_own_model(run)
    nearer = next((pair for pair in map(partial(read_shrunk_pair, run), range(1000)) if pair is not None), None)
    return plain([astuple_of(run.findings()), run.summary, run.seeds, run.domain.fingerprint, model, nearer])


def astuple_of(findings: Any) -> Any:
    return [getattr(findings, name) for name in findings.__dataclass_fields__]


def gone_on(run: Run) -> Any:
    """Return all that a search needs to go on."""
    states = [run.resume(phase) for phase in PHASES]
    kept = [state and (state.t, state.lines.tolist(), sorted(state.state)) for state in states]
    return [kept, run.summary, run.control("random"), run.seeds.tolist()]


def make_run(folder: Path, opened: OpenedModel, card: Card, data: Dataset, config: SearchConfig) -> list[Way]:
    manifest = make_manifest(config, data, model=WEIGHTS, weights=opened.fingerprint, outputs=2)
    assert isinstance(opened.model, Network)
    assert opened.module is not None
    run = Run.create_or_open(folder, manifest, data.domain)
    save_weights(folder / WEIGHTS, opened.module, card)
    run.finish(search(opened.model, data.domain, data.rows, config, recorder=run).summary())
    return [
        Way("looking", lambda: looked_at(folder), lambda path: path.name not in EYE),
        Way(
            "going on",
            lambda: (read_own_model(Run.open(folder)), gone_on(Run.create_or_open(folder, manifest, data.domain))),
            lambda path: path.name not in EYE,
        ),
    ]


def make_audit(folder: Path, opened: OpenedModel, card: Card, data: Dataset) -> list[Way]:
    provenance = Provenance(trained_here=True, card=card)
    audit.run(opened, data, settings=AuditSettings.quick(seeds=10, steps=60), folder=folder, provenance=provenance)
    text = format_domain(data.domain)
    runs = [path.parent for path in folder.glob("*/*/manifest.json")]

    def own(path: Path) -> bool:
        return path.parent == folder and path.name != REPORT_FILE and path.name not in EYE

    ways = [
        Way(
            "going on",
            lambda: (begin_audit(folder, {}, text, "loans") and None, find_recorded_file(folder, WEIGHTS)),
            own,
        ),
        Way("as a baseline", lambda: read_report(folder / REPORT_FILE), lambda p: p.name == REPORT_FILE),
    ]
    return [*ways, *map(looking, runs)]


def looking(run: Path) -> Way:
    return Way(
        "looking", lambda: looked_at(run), lambda path: path.parent == run or path.name in (WORST_FINDINGS, WEIGHTS)
    )


def loans() -> Dataset:
    """Return people who get a loan by income, debt and sex."""
    domain = parse_domain(DOMAIN)
    rows = domain.sample(600, torch.Generator().manual_seed(0))
    labels = (rows[:, 1] - rows[:, 2] + 6 * rows[:, 4] > 10).long()
    return Dataset("loans", domain, rows, labels)


def stamps(folder: Path) -> dict[Path, tuple[int, ...]]:
    found = [(path, path.stat()) for path in folder.rglob("*")]
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found}


@contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """Change a file for a while; None takes it away."""
    whole = path.read_bytes()
    path.unlink() if content is None else path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(whole)


class Trial:
    """Opens a folder in all ways that read a file, and counts what happens."""

    def __init__(self, folder: Path, ways: list[Way]) -> None:
        self.folder, self.ways = folder, ways
        self.before = {way: way.open() for way in ways}

    def opened(self, path: Path) -> Iterator[str]:
        """Yield what each way makes of a changed file."""
        for way in (way for way in self.ways if way.reads(path)):
            there = stamps(self.folder)
            try:
                outcome = "harmless" if way.open() == self.before[way] else "UNNOTICED"
            except NeuronFairError as error:
                outcome = "noticed" if path.name in str(error) else "noticed, not named"
            yield outcome
            if stamps(self.folder) != there:
                yield "CHANGED"

    def flips(self, path: Path, draw: random.Random, many: int) -> Counter[str]:
        """Flip one bit in every byte, or in so many bytes of a file."""
        whole, seen = path.read_bytes(), Counter[str]()
        inner = path.parent.parent.parent == self.folder  # a run of an audit
        many = many // 10 if inner else many
        every = (path.name in WHOLLY and not inner) or len(whole) <= many
        for place in range(len(whole)) if every else draw.sample(range(len(whole)), many):
            content = bytearray(whole)
            content[place] ^= 1 << draw.randrange(8)
            with changed(path, bytes(content)):
                seen.update(self.opened(path))
            seen["flips"] += 1
        return seen

    def damages(self, path: Path) -> Counter[str]:
        """Take a file away, empty it, cut it, make it longer, and put another in its place."""
        whole, seen = path.read_bytes(), Counter[str]()
        others = [p for p in path.parent.iterdir() if p.suffixes == path.suffixes and p.read_bytes() != whole]
        contents = [None, b"", whole[: len(whole) // 2], whole + b"\0", *(other.read_bytes() for other in others[:2])]
        if path.name == WORST_FINDINGS:  # gone is the same as not written yet
            del contents[0]
        if path.name == JOURNAL:
            lines = whole.splitlines(keepends=True)
            contents = [None, b"", whole + b"\0", whole + lines[-1]]
            for i in range(len(lines) - 1):
                contents.append(b"".join(lines[:i] + lines[i + 1 :]))
                contents.append(b"".join(lines[: i + 1] + lines[i:]))
                contents.append(b"".join([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]]))
        for content in contents:
            with changed(path, content):
                seen.update(self.opened(path))
            seen["flips"] += 1
        return seen


OUTCOMES = ("noticed", "noticed, not named", "harmless", "UNNOTICED", "CHANGED")


def kind(path: Path) -> str:
    """Return the kind of a file: all parts of a run are one line of the table."""
    numbered = "-0" in path.name
    return f"*.{path.name.partition('.')[2]}" if numbered else path.name


def table(title: str, trial: Trial, count: Callable[[Path], Counter[str]]) -> Counter[str]:
    """Print what came of one kind of damage, by kind of file, and return the sums."""
    rows: dict[str, Counter[str]] = {}
    sizes, begun = Counter[str](), time.perf_counter()
    for path in sorted(trial.folder.rglob("*")):
        if path.is_file() and any(way.reads(path) for way in trial.ways):
            sizes[kind(path)] += path.stat().st_size
            rows.setdefault(kind(path), Counter()).update(count(path))
    total = sum(rows.values(), Counter[str]())
    print(f"\n{title}: {total['flips']:,} in {time.perf_counter() - begun:.0f} seconds\n")
    print(f"| file | bytes | times | opened | {' | '.join(OUTCOMES)} |")
    print("| --- |" + " ---: |" * (3 + len(OUTCOMES)))
    for name, row in rows.items():
        opened = sum(row[outcome] for outcome in OUTCOMES[:-1])
        cells = (f"{row[outcome]:,}" for outcome in OUTCOMES)
        print(f"| `{name}` | {sizes[name]:,} | {row['flips']:,} | {opened:,} | {' | '.join(cells)} |", flush=True)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=500, help="of each file that is not flipped wholly")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, bad = random.Random(options.seed), Counter[str]()
    data = loans()
    module, card = train(data, hidden=[16, 8], settings=TrainingSettings(restarts=1, epochs=30))
    opened = wrap_model(module, data.domain, data.rows)
    with tempfile.TemporaryDirectory() as name:
        run, audited = Path(name, "run"), Path(name, "audit")
        ways = make_run(run, opened, card, data, SearchConfig(seeds=20, steps=120))
        trials = {"run": Trial(run, ways), "audit": Trial(audited, make_audit(audited, opened, card, data))}
        for what, trial in trials.items():
            bad += table(
                f"Flips in the folder of the {what}", trial, partial(trial.flips, draw=draw, many=options.bytes)
            )
            bad += table(f"Other damage in the folder of the {what}", trial, trial.damages)
            assert all(way.open() == trial.before[way] for way in trial.ways)  # all is as it was
    wrong = bad["UNNOTICED"] + bad["CHANGED"]
    print(f"\n{'FAILED' if wrong else 'Passed'}: {bad['UNNOTICED']} unnoticed, {bad['CHANGED']} changed on the disk")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
