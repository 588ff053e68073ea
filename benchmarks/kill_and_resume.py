"""Kill commands with SIGKILL in each of their stages, run them again, and compare with an undisturbed run byte by byte.

    python benchmarks/kill_and_resume.py --kills 300 --json kills.json

`search`, `audit`, `repair` and `reproduce` each do a small job on rows of German credit, in forks of this process,
which has imported everything. Half of the kills come exactly before a call that changes files or at the beginning of a
stage, the others a random while later, some at a random time; some resumed runs are killed as well. The clocks of the
commands stand still, so that all their files must be the same. What must not be lost, nor done again: every part that a
journal names, and every result that `reproduce` has written.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import multiprocessing
import os
import pkgutil
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import neuronfair

import stages
from same import differences, finished, losses
from stages import Order

ROOT = Path(__file__).parents[1]
ENOUGH = 10  # kills in every stage
AGAIN = 0.25  # share of the trials in which the resumed run is killed, too
ROUNDS = 8  # of trials, until every stage was hit often enough
ROWS, COLUMNS = 160, ("duration", "purpose", "credit_amount", "savings_status", "employment", "sex", "age", "housing")
# Loaded before the fork, as each would take a while in every run.
AHEAD = ("torch._dynamo", "sklearn.cluster", "sklearn.tree", "sklearn.pipeline", "pyarrow.parquet", "matplotlib.figure")
PAGE = ("table3_accuracy", "figure5_diversity")


@dataclass(frozen=True)
class Kill:
    """One kill: what was aimed at, the stage that it hit, and what came of it when the command was run again."""

    command: str
    aim: str
    event: int
    seconds: float
    hit: str
    number: int  # 1, or 2 for the kill of a resumed run
    different: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A command that is killed once or twice and then run to its end."""

    number: int
    command: str
    orders: tuple[Order, ...]


@dataclass(frozen=True)
class Work:
    """Where everything is, what the commands are, and when the undisturbed ones were in which stage."""

    folder: Path
    commands: dict[str, list[str]]
    moments: dict[str, dict[str, list[tuple[int, float]]]]  # an event of the stage, seconds until the next event
    seconds: dict[str, float]


def attempt(work: Work, trial: Trial) -> list[Kill]:
    """Kill a command as ordered, run it to its end, and compare."""
    folder = work.folder / f"trial-{trial.number}"
    folder.mkdir()
    output, kills, done = folder.with_suffix(".txt"), list[Kill](), dict[Path, int]()
    for order in (*trial.orders, Order(trial.command, trial.orders[0].mark)):
        status, stage = stages.run(work.commands[trial.command], order, folder, output)
        lost = losses(done)
        kills = [replace(kill, lost=(*kill.lost, *lost)) for kill in kills]
        if status != -9:
            break
        done = finished(folder)
        aim = (trial.command, order.stage, order.event, order.seconds or 0.0)
        kills.append(Kill(*aim, stage, len(kills) + 1))
    different = differences(work.folder / trial.command, folder)
    if status != 0:
        different = (f"exit status {status}: {output.read_text(encoding='utf-8')[-500:].strip()}", *different)
    if not different:
        shutil.rmtree(folder)
    elif not kills:  # it came to its end before the kill, and is different all the same
        kills = [Kill(trial.command, trial.orders[0].stage, 0, 0.0, "not killed", 0)]
    return [replace(kill, different=different) for kill in kills]


def small_table(path: Path) -> None:
    """Write some rows and columns of German credit."""
    data = neuronfair.load_dataset("german")
    target = data.domain.target
    assert target is not None
    cells = data.domain.to_table(data.rows[:ROWS])
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*COLUMNS, target.column])
        labels = [target.classes[int(label)] for label in data.labels[:ROWS]]
        lines.writerows(zip(*(cells[name] for name in COLUMNS), labels, strict=True))


def make_commands(folder: Path) -> dict[str, list[str]]:
    table = folder / "german.csv"
    small_table(table)
    own = [str(table), "--target", "credit", "--sensitive", "sex", "--quiet"]
    shown = ["--json", "figures.json", "--junit", "junit.xml", "--markdown", "summary.md"]
    repair = [str(folder / "search" / "run"), "--data", str(table), "--quiet", "--repeats", "2", "--max-loss", "0.2"]
    return {
        "search": [*own, "--seeds", "32", "--steps", "101", "--out", "run", "--json", "figures.json"],
        "audit": [*own, "--seeds", "8", "--steps", "51", "--samples", "2000", "--prove", "0", "--out", "audit", *shown],
        "repair": [*repair, "--out", "fair.safetensors", "--json", "figures.json"],
        "reproduce": [*PAGE, "--quick", "--workers", "1", "--quiet", "--out", "out", "--docs", "docs"],
    }


def make_ready() -> None:
    """Import everything, and make what cannot be made small on the command line small: nothing is computed yet."""
    sys.path.insert(0, str(ROOT))  # of the experiments
    for name in ("NEURONFAIR_DATA", "NEURONFAIR_MODELS"):
        os.environ.pop(name, None)  # the data in the package are enough
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # for the dates in pictures
    own = [module.name for module in pkgutil.walk_packages(neuronfair.__path__, "neuronfair.")]
    for name in AHEAD:
        importlib.import_module(name)
    stages.stop_clocks()
    for name in own:
        if not {"__main__", "sandbox"} & set(name.split(".")):  # programs of their own, or not needed
            importlib.import_module(name)
    importlib.import_module("matplotlib").rcParams["svg.hashsalt"] = "the same"
    cases, _, figure = (importlib.import_module(f"experiments.{name}") for name in ("cases", *PAGE))
    for case in [case for case in cases.CASES if case != "german-sex"]:
        del cases.CASES[case]
    frontier = sys.modules["neuronfair.searches.methods.frontier"]
    repairing = importlib.import_module("experiments.repairs.evaluate")
    small: list[tuple[Any, str, Any]] = [
        (figure, "CASES", ("german-sex",)),
        (frontier, "PILOT_STEPS", 40),
        (repairing, "SAMPLES", 500),
        # Forked processes need not import everything again; killed they are with the others all the same.
        (sys.modules["neuronfair.scale.pool"], "get_context", lambda _: multiprocessing.get_context("fork")),
    ]
    for module, name, value in small:
        getattr(module, name)  # it must be there
        setattr(module, name, value)


def undisturbed(folder: Path, chosen: Sequence[str]) -> Work:
    """Run each command once to its end and note its moments."""
    work = Work(folder, make_commands(folder), {}, {})
    needed = {*chosen, "search"} if "repair" in chosen else set(chosen)  # which repairs with its findings
    for command in [name for name in work.commands if name in needed]:
        place, events = folder / command, folder / f"{command}.events"
        place.mkdir()
        order = Order(command, str(folder / f"{command}.mark"), events=str(events))
        begun, output = time.monotonic(), folder / f"{command}.txt"
        status, _ = stages.run(work.commands[command], order, place, output)
        if status != 0:
            sys.exit(f"{command} ended with status {status}: {output.read_text(encoding='utf-8')}")
        work.seconds[command] = time.monotonic() - begun
        moments = defaultdict[str, list[tuple[int, float]]](list)
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        for i, (at, process, stage, number) in enumerate(lines):
            after = next((line[0] for line in lines[i + 1 :] if line[1] == process), at)
            moments[stage].append((number, after - at))
        work.moments[command] = dict(moments)
    return work


class Aims:
    """Draws what to kill next: the stages that were hit the least, then anything at a random time."""

    def __init__(self, work: Work, chosen: Sequence[str], kills: int, seed: int) -> None:
        self.work, self.kills, self.draw, self.trials = work, kills, random.Random(seed), 0
        self.stages = [(command, stage) for command in chosen for stage in work.moments[command]]
        self.enough = min(ENOUGH, kills // len(self.stages))

    def missing(self, hits: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return commands and stages that are to be hit, the empty stage for a random time."""
        aims = [aim for aim in self.stages for _ in range(self.enough - hits[aim])]
        for _ in range(self.kills - hits.total() - len(aims)):
            aims.append((self.draw.choice(self.stages)[0], ""))
        self.draw.shuffle(aims)
        return aims

    def trials_for(self, aims: list[tuple[str, str]]) -> Iterator[Trial]:
        """Give trials that hit all of them; some hit two, one after the other."""
        while aims:
            command, stage = aims.pop()
            both = [stage]
            later = [other for name, other in aims if name == command and other]
            if later and self.draw.random() < AGAIN:
                both.append(self.draw.choice(later))
                aims.remove((command, both[1]))
                order = [*self.work.moments[command], ""]
                both.sort(key=order.index)  # the second one is to be reached after the first
            self.trials += 1
            yield Trial(self.trials, command, tuple(self.order(command, stage) for stage in both))

    def order(self, command: str, stage: str) -> Order:
        """Return a random moment of a stage."""
        mark = str(self.work.folder / f"trial-{self.trials}.mark")
        if not stage:
            return Order(command, mark, seconds=self.draw.uniform(0.01, self.work.seconds[command]))
        event, gap = self.draw.choice(self.work.moments[command][stage])
        return Order(command, mark, stage, event, self.draw.choice((0.0, self.draw.uniform(0, gap))))


def table(kills: list[Kill], aims: Aims) -> str:
    lines = ["| command: stage | kills | resumed the same | different | lost |", "| --- | ---: | ---: | ---: | ---: |"]
    groups = [(f"{command}: {stage}", [(command, stage)]) for command, stage in aims.stages]
    for name, places in (*groups, ("all", aims.stages)):
        here = [kill for kill in kills if (kill.command, kill.hit) in places]
        same = sum(not kill.different and not kill.lost for kill in here)
        wrong = sum(bool(kill.different) for kill in here)
        lines.append(f"| {name} | {len(here)} | {same} | {wrong} | {sum(bool(kill.lost) for kill in here)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--command", action="append", choices=list(stages.STAGES), help="may be repeated; default: all")
    parser.add_argument("--kills", type=int, default=300, help=f"at least; {ENOUGH} in every stage if there are enough")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--folder", type=Path, help="to work in; what differs stays there. Default: a temporary one")
    parser.add_argument("--json", type=Path, help="where to write every kill")
    options = parser.parse_args()
    chosen = [name for name in stages.STAGES if name in (options.command or stages.STAGES)]
    begun, kills = time.monotonic(), list[Kill]()
    make_ready()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        work = undisturbed(folder, chosen)
        aims = Aims(work, chosen, options.kills, options.seed)
        with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("fork")) as pool:
            for _ in range(ROUNDS):
                hits = Counter((kill.command, kill.hit) for kill in kills)
                trials = list(aims.trials_for(aims.missing(hits)))
                for found in pool.map(partial(attempt, work), trials):
                    kills += found
                    for kill in found:
                        print(f"{len(kills)}: {kill.command}, {kill.hit}", *kill.different, *kill.lost, file=sys.stderr)
    bad = [kill for kill in kills if kill.different or kill.lost]
    print(table(kills, aims))
    print(f"\n{len(kills)} kills in {aims.trials} trials, {time.monotonic() - begun:.0f} s, seed {options.seed}")
    short = [
        aim for aim, n in Counter(aims.missing(Counter((k.command, k.hit) for k in kills))).items() if n and aim[1]
    ]
    if short:
        print(f"Hit less than {aims.enough} times: {', '.join(map(': '.join, short))}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(kill) for kill in kills], indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if bad or short else 0)


if __name__ == "__main__":
    main()
