"""A search by this source and by another one, in turn, in one run: seconds per 1,000 findings, store included.

    git worktree add ../before COMMIT
    python benchmarks/against.py --other ../before/src --method neuronfair --method frontier
    python benchmarks/against.py --other ../before/src --part audit
    python benchmarks/against.py --other ../before/src --part start

Each search starts in a process of its own and takes as many as it does for a user: the published Adult classifier, sex,
1,000 seeds x 1,000 steps unless other numbers are given, with a run folder and the second evaluation in float64,
without controls; the best of `--repeats` counts.
`same` says whether both found the same people, in the same order. On a GPU (`--device cuda`) kernels is the share of
the time of both phases, without a store, in which kernels ran: their time is taken from another search, by a profiler.

`--part audit` runs the default audit and `--quick` of the same classifier, with the seconds of each stage; stages that
run side by side may add up to more than the whole. `same` says whether all figures but times and proofs are the same.
Modules are compiled before they are timed, as those of an installed package.
`--part start` measures imports, `--help`, and a new process until an audit of a CSV file reports its first progress.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


def child(options: argparse.Namespace) -> None:
    from neuronfair import search  # before torch: it keeps idle threads from spinning

    # isort: split
    from neuronfair.domain.population.model import fit_population
    from neuronfair.domain.tables.dataset import load_dataset
    from neuronfair.model import weights
    from neuronfair.model.network import Network
    from neuronfair.searches.config import SearchConfig
    from neuronfair.store import ledger
    from neuronfair.store.run import Run

    import torch

    method, seeds, steps = options.method[0], options.seeds, options.steps
    data = load_dataset("adult", "paper", sensitive=["sex"]).to(torch.device(options.device))
    path = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models")) / "neuronfair" / "census.npz"
    network = Network(weights.load_weights(path)[0], data.domain)
    usual = fit_population(data.domain, data.rows) if options.store else None
    search(network, data.domain, data.rows, SearchConfig(method, seeds=100, steps=20, controls=False))  # warm up
    config = SearchConfig(method, seeds=seeds, steps=steps, controls=False)
    with tempfile.TemporaryDirectory() as folder:
        run = None
        if options.store:
            place = ledger if hasattr(ledger, "make_manifest") else importlib.import_module("neuronfair.store.manifest")
            manifest = place.make_manifest(config, data, model=str(path), weights="w", outputs=network.outputs)
            older = (network.outputs,) if "outputs" in inspect.signature(Run.create_or_open).parameters else ()
            run = Run.create_or_open(Path(folder) / "run", manifest, data.domain, *older)
        outcome = search(network, data.domain, data.rows, config, recorder=run, population=usual)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    figures = outcome.summary()
    found = outcome.findings
    digest = hashlib.sha256()
    for tensor in (found.packed, found.origin, found.step, found.scores):
        digest.update(tensor.cpu().numpy().tobytes())
    figures["rows_evaluated"] = figures.get("rows_evaluated", figures.get("rows_judged"))  # the name in older versions
    result = {name: figures[name] for name in ("seconds", "findings", "tried", "rows_evaluated", "rejected_on_recheck")}
    result |= {"digest": digest.hexdigest()[:16], "bytes": size}
    if options.kernels:
        plain = search(network, data.domain, data.rows, config).summary()
        result["kernels"] = kernels(lambda: search(network, data.domain, data.rows, config)) / plain["seconds"]
    print(json.dumps(result), flush=True)


def kernels(work: Callable[[], object]) -> float:
    """Return the seconds in which kernels ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        work()
    return float(sum(event.self_device_time_total for event in watched.key_averages()) / 1e6)


AUDITS = {"default": (), "quick": ("--quick",)}
WHOLE, PROCESSOR = "whole", "processor"
FIRST = """
import sys, neuronfair
def first(*_, **__):
    import os
    os._exit(0)
neuronfair.audit(lambda table: table.age > 40, "people.csv", sensitive="sex", target="income", progress=first)
"""
STARTS = {
    "import neuronfair": ("-c", "import neuronfair"),
    "neuronfair --help": ("-m", "neuronfair.cli", "--help"),
    "neuronfair audit --help": ("-m", "neuronfair.cli", "audit", "--help"),
    "neuronfair.audit imported": ("-c", "import neuronfair; neuronfair.audit"),
    "first progress of an audit": ("-c", FIRST),
}
Timed = tuple[dict[str, float], str]  # seconds by what took them, and a digest of the figures


def run_timed(source: Path, words: tuple[str, ...], folder: str) -> dict[str, float]:
    """Run Python with a source, and return its seconds and those of the processors."""
    before = os.environ.get("PYTHONPATH")
    path = f"{source.resolve()}{os.pathsep}{before}" if before else str(source.resolve())
    used, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "against"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled once
    done = subprocess.run([sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{source}: {done.stderr[-2000:]}")
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {WHOLE: seconds, PROCESSOR: processor}


def timed_audit(source: Path, name: str) -> Timed:
    """Audit the published Adult classifier."""
    model = Path(os.environ.get("NEURONFAIR_MODELS", "../shared/models")).resolve() / "neuronfair" / "census.npz"
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "neuronfair.cli", "audit", "adult", "--encoding", "paper", "--sensitive", "sex")
        found = run_timed(source, (*words, "--model", str(model), "--out", "run", *AUDITS[name]), folder)
        report = json.loads((Path(folder) / "run" / "audit.json").read_bytes())
    stages = report["seconds"]
    found["start and end"] = found[WHOLE] - stages.pop("total")
    for one in report["attributes"]:
        one["proved"] = one["repair"] = None
        for search in one["searches"]:
            search["seconds"] = search["findings_per_second"] = None
    check = report.get("encoding_check", report.get("feeding"))  # its name before
    figures = sorted(numbers([report["data"], report["model"], check, report["attributes"]]))
    return found | stages, hashlib.sha256(repr(figures).encode()).hexdigest()


def numbers(entry: object) -> Iterator[float]:
    """Yield all numbers of a report; sentences may be worded anew."""
    if isinstance(entry, dict):
        entry = list(entry.values())
    if isinstance(entry, list):
        for one in entry:
            yield from numbers(one)
    elif isinstance(entry, (int, float)):
        yield float(entry)


def timed_start(source: Path, name: str) -> Timed:
    """Start a process."""
    with tempfile.TemporaryDirectory() as folder:
        lines = (f"{20 + i % 50},{'fm'[i % 2]},{('low', 'high')[i % 3 > 0]}" for i in range(1_000))
        (Path(folder) / "people.csv").write_text("\n".join(["age,sex,income", *lines]) + "\n", encoding="utf-8")
        return run_timed(source, STARTS[name], folder), ""


def compare(options: argparse.Namespace, names: Iterable[str], once: Callable[[Path, str], Timed]) -> None:
    """Print the best of some runs of both sources, in turn."""
    print("| what | seconds of | other | this | ratio | same |")
    print("| --- | --- | ---: | ---: | ---: | --- |", flush=True)
    for name in names:
        runs: dict[Path, list[Timed]] = {options.other: [], ROOT / "src": []}
        for source in runs:
            once(source, name)  # modules are compiled, files read
        for _ in range(options.repeats):
            for source, found in runs.items():
                found.append(once(source, name))
        other, this = (min((seconds for seconds, _ in found), key=lambda s: s[WHOLE]) for found in runs.values())
        same = len({digest for found in runs.values() for _, digest in found}) == 1
        for part in {**this, **other}:
            before, now = other.get(part, 0.0), this.get(part, 0.0)
            ratio = f"{before / now:.2f}" if now else ""
            told = str(same) if part == WHOLE else ""
            print(f"| {name} | {part} | {before:.2f} | {now:.2f} | {ratio} | {told} |", flush=True)


def measured(source: Path, options: argparse.Namespace, method: str) -> dict[str, float]:
    words = [sys.executable, __file__, "--child", "--method", method, "--seeds", str(options.seeds)]
    words += ["--steps", str(options.steps), "--device", options.device] + ([] if options.store else ["--no-store"])
    words += ["--kernels"] if options.device != "cpu" and source == ROOT / "src" else []
    before = os.environ.get("PYTHONPATH")
    path = f"{source}{os.pathsep}{before}" if before else str(source)
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{source}: {done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--other", type=Path, help="the src folder of another commit")
    parser.add_argument("--part", choices=("search", "audit", "start"), default="search")
    parser.add_argument("--method", action="append", default=None)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-store", dest="store", action="store_false")
    parser.add_argument("--kernels", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.method = options.method or ["neuronfair-plus", "frontier"]
    if options.child:
        child(options)
        return
    if options.other is None:
        parser.error("name another source with --other")
    if options.part != "search":
        audit = options.part == "audit"
        compare(options, AUDITS if audit else STARTS, timed_audit if audit else timed_start)
        return
    print("| method | source | seconds | findings | s per 1,000 | rows per second | kernels | ratio | same |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |", flush=True)
    for method in options.method:
        runs: dict[str, list[dict[str, float]]] = {"other": [], "this": []}
        for _ in range(options.repeats):
            runs["other"].append(measured(options.other, options, method))
            runs["this"].append(measured(ROOT / "src", options, method))
        best = {name: min(results, key=lambda r: r["seconds"]) for name, results in runs.items()}
        for name, r in best.items():
            cost = 1000 * r["seconds"] / max(1, r["findings"])
            other = 1000 * best["other"]["seconds"] / max(1, best["other"]["findings"])
            same = "" if name == "other" else str(r["digest"] == best["other"]["digest"])
            share = f"{r['kernels']:.0%}" if "kernels" in r else ""
            print(
                f"| {method} | {name} | {r['seconds']:.2f} | {r['findings']:,} | {cost:.5f} | "
                f"{r['rows_evaluated'] / r['seconds']:,.0f} | {share} | {other / cost:.2f} | {same} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
