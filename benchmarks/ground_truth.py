"""Everybody is asked, and then: what do searches find, rates say, rules name and proofs claim of the truth?

    python benchmarks/ground_truth.py --json truth.json
    python benchmarks/ground_truth.py --quick --case drawn

The domains are small enough to know the decision on every person in them: coarser grids and fewer attributes of Adult,
German, COMPAS and Bank (the last two are read from NEURONFAIR_DATA), and people that are made up. Of trees one is asked
of all those whom no tree tells apart, so that nearly 10⁹ people are counted exactly.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.errors import DataError

import torch
from truth import figures
from truth.cases import CASES
from truth.everybody import everybody

PARTS = ("recall", "coverage", "subgroups", "certificate")
SIZES = {False: ((1_000, 10_000, 50_000), 1_000, 10, 20.0), True: ((2_000,), 100, 2, 2.0)}


def note(text: str) -> None:
    print(f"\r\033[K{text}" if sys.stderr.isatty() else text, end="", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        print(file=sys.stderr)


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def shown(value: object, name: str = "") -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.1f}" if name in ("seconds", "lift") else f"{value:.2%}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(lines: Sequence[Any]) -> None:
    if lines:
        names = [field.name.replace("_", " ") for field in fields(lines[0])]
        print(f"\n{type(lines[0]).__name__}\n\n{row(names)}\n{row('---' for _ in names)}")
        for line in lines:
            print(row(shown(value, name) for name, value in asdict(line).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", action="append", choices=list(CASES), help="may be given several times; default: all")
    parser.add_argument("--part", action="append", choices=PARTS, help="may be given several times; default: all")
    parser.add_argument("--quick", action="store_true", help="small domains and few repeats: less than a minute")
    parser.add_argument("--seconds", type=float, help="for each proof")
    parser.add_argument("--json", type=Path, help="the figures, for programs")
    options = parser.parse_args()
    budgets, repeats, draws, seconds = SIZES[options.quick]
    seconds = options.seconds or seconds
    chosen, parts = options.case or (["drawn", "german"] if options.quick else list(CASES)), options.part or PARTS
    kept: dict[str, list[Any]] = {name: [] for name in ("everybody", *PARTS)}
    print(row(("case", "model", "sensitive", "rules", "people", "asked", "discriminatory", "rate", "close", "seconds")))
    print(row("---" for _ in range(10)), flush=True)
    for name in chosen:
        note(f"{name}: the model")
        try:
            case = CASES[name](options.quick)
        except DataError as error:
            note(f"{name} is left out: {error}")
            continue
        begun = time.perf_counter()
        truth = everybody(case.asked, case.domain, case.decision)
        if truth.people != case.domain.count:
            sys.exit(f"{name}: {truth.people:,} people were counted, and the domain says {case.domain.count:,}")
        about = {
            "case": name,
            "model": case.what,
            "sensitive": ", ".join(case.domain.sensitive),
            "rules": len(case.domain.rules),
            "people": truth.people,
            "asked": math.prod(truth.shape) * len(case.domain.sensitive_values),
            "discriminatory": truth.discriminatory,
            "rate": truth.rate,
            "close": int(truth.close.sum()),
            "seconds": round(time.perf_counter() - begun),
        }
        kept["everybody"].append(about)
        note("")
        print(row(map(shown, about.values())), flush=True)
        if "recall" in parts:
            kept["recall"] += figures.recall(name, case, truth, budgets, note)
        if "coverage" in parts:
            kept["coverage"] += figures.coverage(name, case, truth, repeats, note)
        if "subgroups" in parts:
            kept["subgroups"] += filter(None, [figures.groups(name, case, truth, draws, note)])
        if "certificate" in parts:
            kept["certificate"] += filter(None, [figures.certificate(name, case, truth, seconds, note)])
        if options.json is not None:  # after every case: what is there is not lost
            plain = {
                part: [line if isinstance(line, dict) else asdict(line) for line in lines]
                for part, lines in kept.items()
            }
            options.json.write_text(json.dumps({"torch": torch.__version__, **plain}, indent=1), encoding="utf-8")
    note("")
    for part in PARTS:
        table(kept[part])


if __name__ == "__main__":
    main()
