"""How much is certified in which time: networks of our own, of the paper and of Fairify, and boosted trees.

    python benchmarks/proofs.py                     # about 12 minutes: all cases of CASES
    python benchmarks/proofs.py --seconds 10 AC-1 bank-age
    python benchmarks/proofs.py --device cuda --seconds 60 adult-demo adult-sex

The cases of Fairify have no data set, so they are proved by volume. Of the others, the rows of the data set are
counted, those without a twin apart, and 5,000 fresh records of a population model. Published networks are found
through NEURONFAIR_MODELS. Every count of rows and of the input space is proved, none is an estimate.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import neuronfair as nf
from neuronfair.domain.schema.toml import read_domain
from neuronfair.model.decision import Decision
from neuronfair.model.weights import load_weights
from neuronfair.proof.problem import ProofProblem, build_problem
from neuronfair.proof.prove import prove
from neuronfair.proof.records import Evidence, ProofRecords

import torch

# Proved fair in percent, and seconds: FairQuant, C, one thread of an idle machine.
FAIRQUANT = {
    "AC-1": (90.68, 1.8), "AC-2": (79.93, 18.6), "AC-6": (58.82, 3.9), "AC-8": (66.50, 6.3), "AC-9": (91.13, 1.7),
    "AC-10": (87.65, 2.7), "AC-12": (70.82, 0.5), "BM-1": (94.23, 2.9), "BM-2": (93.41, 2.2), "BM-3": (95.69, 0.7),
    "BM-5": (96.27, 0.7), "BM-6": (96.44, 0.2), "BM-8": (90.75, 12.4),
}  # fmt: skip
FILES = {"adult": "census", "german": "credit", "bank": "bank"}
TREES = {"adult": "sex", "german": "sex", "compas": "race"}
CASES = {  # and the seconds of each
    "adult-demo": (6.0, 60.0),
    **dict.fromkeys(("adult-sex", "bank-age", "german-sex"), (60.0,)),
    **{name: (max(10.0, 10 * FAIRQUANT[name][1]),) for name in ("AC-1", "AC-9", "AC-12", "BM-3", "BM-5", "BM-6")},
    **{f"{data}-{kind}": (60.0,) for data in TREES for kind in ("xgboost", "lightgbm")},
}
HEADS = (
    *("case", "seconds", "boxes", "rows: certified", "to depend", "with a twin: certified", "to depend"),
    *("fresh: certified", "to depend", "input space: certified", "to depend", "undecided"),
)


@dataclass(frozen=True)
class Case:
    """A model ready for a proof, and its data set."""

    problem: ProofProblem
    data: nf.Dataset | None = None


@cache
def case(name: str, device: str) -> Case:
    """Return a case by its name."""
    models = Path(os.environ.get("NEURONFAIR_MODELS", "models"))
    if name in FAIRQUANT:
        domain = read_domain(models / "fairify" / ("adult.toml" if name.startswith("AC") else "bank.toml"))
        module, _ = load_weights(models / "fairify" / f"{name}.npz")
        return Case(
            build_problem(nf.Network(module, domain), domain, decision=Decision("threshold", 0.0), device=device)
        )
    data, kind = name.split("-")
    if kind in ("xgboost", "lightgbm"):
        return _trees(nf.load_dataset(data, sensitive=[TREES[data]]), kind, device)
    if kind == "demo":
        table = nf.load_dataset(data)
        module = nf.train(table)[0]
        return Case(build_problem(nf.Network(module.eval(), table.domain), table.domain, device=device), table)
    table = nf.load_dataset(data, "paper", sensitive=[kind])
    module, _ = load_weights(models / "neuronfair" / f"{FILES[data]}.npz")
    return Case(build_problem(nf.Network(module, table.domain), table.domain, device=device), table)


def _trees(table: nf.Dataset, kind: str, device: str) -> Case:
    """Return XGBoost with 100 trees of depth 4, or LightGBM with 200 trees of 31 leaves, trained on a table."""
    from truth.cases import boosted

    if kind == "xgboost":
        from xgboost import XGBClassifier

        model: Any = XGBClassifier(n_estimators=100, max_depth=4, n_jobs=2)
    else:
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_estimators=200, num_leaves=31, n_jobs=2, verbose=-1)
    return Case(build_problem(boosted(table, model, kind).opened, table.domain, device=device), table)


def measured(name: str, seconds: float, device: str, order: Any) -> dict[str, Any]:
    """Return the figures of one proof, shares in percent."""
    one = case(name, device)
    nobody = ProofRecords.none(one.problem, name)
    records = nobody if one.data is None else ProofRecords.of(one.problem, one.data, order=order)
    proof = prove(one.problem, seconds=seconds, guides=records.guides)
    figures: dict[str, Any] = {"case": name, "seconds": round(proof.seconds, 1), "boxes": proof.boxes}
    assert proof.state is not None
    evidence = Evidence(one.problem, proof.state)
    rows, fresh = records.find_claims(evidence), records.find_fresh_claims(evidence)
    if rows is not None:
        fair, flips = rows.certified_fair.count, rows.certified_discriminatory.count
        twins = max(1, rows.of - rows.without_twin)
        figures["rows"] = [100 * fair / rows.of, 100 * flips / rows.of]
        figures["with a twin"] = [100 * (fair - rows.without_twin) / twins, 100 * flips / twins]
    if fresh is not None:
        figures["fresh"] = [100 * fresh.certified_fair.share, 100 * fresh.certified_discriminatory.share]
    counts = proof.fair, proof.discriminatory, proof.undecided
    figures["space"] = [100 * count / proof.record_count for count in counts]
    return figures


def line(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of a line."""
    yield from (figures["case"], f"{figures['seconds']}", f"{figures['boxes']:,}")
    for name, count in (("rows", 2), ("with a twin", 2), ("fresh", 2), ("space", 3)):
        yield from (f"{share:.2f}%" for share in figures[name]) if name in figures else [""] * count


def main() -> None:
    """Print a table, a line as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(CASES), help=", ".join({*CASES, *FAIRQUANT}))
    parser.add_argument("--seconds", type=float, help="default: as CASES says, or ten times FairQuant's")
    parser.add_argument("--order", default="records", choices=("records", "volume"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(
        f"{given.device}, {torch.get_num_threads()} threads, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n"
    )
    print(f"| {' | '.join(HEADS)} |\n| --- |{' ---: |' * (len(HEADS) - 1)}")
    results = []
    for name in given.names:
        usual = CASES[name] if name in CASES else (10 * FAIRQUANT[name][1] if name in FAIRQUANT else 60.0,)
        for seconds in (given.seconds,) if given.seconds else usual:
            results.append(measured(name, seconds, given.device, given.order))
            print(f"| {' | '.join(line(results[-1]))} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
