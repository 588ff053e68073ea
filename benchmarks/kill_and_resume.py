"""Kill a search at random moments, let it go on each time, and compare it with an undisturbed one bit for bit.

    python benchmarks/kill_and_resume.py --method frontier --method neuronfair

The killed process gets SIGKILL, at a moment drawn from the time that the whole search takes, and cannot tidy up. When
a killed run comes to its end before all kills are done, it is compared and another one begins. Everything must be
equal: rows, twins, scores, origins, steps, misses, all figures but the seconds, and the names of the files.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from neuronfair.generation.findings import Findings
from neuronfair.store.run import SEEDS, Run

import torch

LINES = ("packed", "twin_values", "scores", "twin_scores", "origin", "step", "misses")
COUNTS = ("tried", "judged", "rejected")
UNTIMED = ("seconds", "seconds_per_1000")


def make_command(method: str, seeds: int, steps: int, model: Path) -> list[str]:
    words = ["search", "adult", "--encoding", "paper", "--sensitive", "sex", "--model", str(model), "--quiet"]
    words += ["--method", method, "--seeds", str(seeds), "--steps", str(steps), "--no-controls"]
    return [sys.executable, "-m", "neuronfair.cli", *words]


def find_model(folder: Path) -> tuple[Path, str]:
    published = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models")) / "neuronfair" / "census.npz"
    if published.is_file():
        return published, "published weights"
    own = folder / "adult.safetensors"
    train = ["train", "adult", "--encoding", "paper", "--quiet", "--out", str(own)]
    subprocess.run([sys.executable, "-m", "neuronfair.cli", *train], check=True)
    return own, "weights trained now (the published ones are not here)"


def started(command: list[str], out: Path) -> subprocess.Popen[bytes]:
    """Start or resume the run and return when it is about to search: it writes its seeds then, each time."""
    before = stamp(out)
    process = subprocess.Popen([*command, "--out", str(out)])
    while process.poll() is None and stamp(out) == before:
        time.sleep(0.005)
    return process


def stamp(out: Path) -> int | None:
    return (out / SEEDS).stat().st_mtime_ns if (out / SEEDS).exists() else None


def survived(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Kill a process after so many seconds; return whether it had come to its end before."""
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    if status != 0:
        sys.exit(f"a run ended with status {status}")
    return True


def where(out: Path) -> str:
    """Return how far a killed run had come, in words."""
    lines = Run.open(out).lines
    if not lines:
        return "before the first checkpoint"
    last = lines[-1]
    if last["event"] != "part":
        return "after it"
    if last["phase"] == "local":
        return "after it" if last["stop"] else "in the local phase"
    return "in the local phase" if last["stop"] else "in the global phase"


def differences(a: Path, b: Path) -> list[str]:
    """Return what is not the same in two finished runs."""
    first, second = Run.open(a), Run.open(b)
    one, other = first.findings(), second.findings()
    different = [name for name in LINES if not same(one, other, name)]
    different += [name for name in COUNTS if getattr(one, name) != getattr(other, name)]
    figures, others = ({k: v for k, v in figures_of(run).items() if k not in UNTIMED} for run in (first, second))
    different += [name for name in figures if figures[name] != others.get(name)]
    if sorted(p.name for p in a.iterdir()) != sorted(p.name for p in b.iterdir()):
        different.append("the files in the folder")
    return different


def same(one: Findings, other: Findings, name: str) -> bool:
    x, y = getattr(one, name), getattr(other, name)
    return x.dtype == y.dtype and torch.equal(x, y)


def figures_of(run: Run) -> dict[str, Any]:
    if run.summary is None:
        sys.exit(f"{run.folder} has no summary")
    return run.summary


def trial(method: str, options: argparse.Namespace, model: Path, folder: Path) -> bool:
    command = make_command(method, options.seeds, options.steps, model)
    draw = random.Random(options.seed)
    reference = folder / method
    process = started(command, reference)
    begun = time.perf_counter()
    survived(process, 3600)
    span = time.perf_counter() - begun
    kills, runs, different, places = 0, 0, [], Counter[str]()
    while kills < options.kills:
        out = folder / f"{method}-{runs}"
        runs += 1
        while not survived(started(command, out), draw.uniform(0, span) if kills < options.kills else 3600):
            kills += 1
            places[where(out)] += 1
        different += differences(reference, out)
    found = figures_of(Run.open(reference))
    verdict = f"DIFFERENT in {', '.join(sorted(set(different)))}" if different else "the same, bit for bit"
    print(
        f"| {method} | {found['findings']:,} | {found['rows_judged']:,} | {span:.1f} | {kills} in {runs} runs: "
        f"{', '.join(f'{n} {place}' for place, n in places.most_common())} | {verdict} |",
        flush=True,
    )
    return not different


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--method", action="append", help="may be given several times; default: frontier, neuronfair")
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, which = find_model(folder)
        print(f"adult, paper encoding, sex, {which}, {options.seeds} seeds x {options.steps} steps\n")
        print("| method | findings | judged rows | seconds of search | kills | compared with the undisturbed run |")
        print("| --- | ---: | ---: | ---: | --- | --- |", flush=True)
        good = [trial(method, options, model, folder) for method in options.method or ("frontier", "neuronfair")]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
