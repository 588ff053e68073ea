"""How much is proved of published networks, and in which time: beside FairQuant's figures where there are some.

    python benchmarks/api.py     # all networks of Fairify, ten times FairQuant's seconds (10 at least)
    python benchmarks/api.py --seconds 60 adult-sex bank-age german-sex
    python benchmarks/api.py --device cuda --seconds 12 AC-2 AC-6

The networks are found through NEURONFAIR_MODELS. Every figure is a sound count: no estimate.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import neuronfair as nf
from neuronfair.domain.schema.toml import read_domain
from neuronfair.domain.tables.dataset import catalog_domain
from neuronfair.model.decision import Decision
from neuronfair.model.weights import load
from neuronfair.proof.decide.prove import prove
from neuronfair.proof.problem import Problem, problem_of

import torch

# Proved fair in percent, and seconds: FairQuant, C, one thread of an idle machine.
FAIRQUANT = {
    "AC-1": (90.68, 1.8), "AC-2": (79.93, 18.6), "AC-6": (58.82, 3.9), "AC-8": (66.50, 6.3), "AC-9": (91.13, 1.7),
    "AC-10": (87.65, 2.7), "AC-12": (70.82, 0.5), "BM-1": (94.23, 2.9), "BM-2": (93.41, 2.2), "BM-3": (95.69, 0.7),
    "BM-5": (96.27, 0.7), "BM-6": (96.44, 0.2), "BM-8": (90.75, 12.4),
}  # fmt: skip
FILES = {"adult": "census", "german": "credit", "bank": "bank"}


def problem(name: str, device: str) -> Problem:
    """Return a network of Fairify (AC-1), or one of the paper's with a sensitive attribute (adult-sex)."""
    models = Path(os.environ["NEURONFAIR_MODELS"])
    if name in FAIRQUANT:
        domain = read_domain(models / "fairify" / ("adult.toml" if name.startswith("AC") else "bank.toml"))
        module, _ = load(models / "fairify" / f"{name}.npz")
        return problem_of(nf.Network(module, domain), domain, decision=Decision("threshold", 0.0), device=device)
    data, sensitive = name.split("-")
    domain = catalog_domain(data, "paper").with_sensitive(sensitive)
    module, _ = load(models / "neuronfair" / f"{FILES[data]}.npz")
    return problem_of(nf.Network(module, domain), domain, device=device)


def main() -> None:
    """Print a table, a line as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(FAIRQUANT))
    parser.add_argument("--seconds", type=float, help="default: ten times FairQuant's, 10 at least")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print(f"{given.device}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| network | seconds | boxes | proved fair | proved discriminatory | open | FairQuant: open |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    results = []
    for name in given.names:
        theirs = FAIRQUANT.get(name)
        seconds = given.seconds or max(10.0, 10 * theirs[1] if theirs else 60.0)
        proof = prove(problem(name, given.device), seconds=seconds)
        counts = proof.fair, proof.discriminatory, proof.undecided
        fair, unfair, left = (100 * count / proof.people for count in counts)
        shares = (f"{share:.2f} %" for share in (fair, unfair, left, *((100 - theirs[0],) if theirs else ())))
        print(f"| {name} | {proof.seconds:.1f} | {proof.boxes:,} | {' | '.join(shares)} |", flush=True)
        results.append({"network": name, "seconds": proof.seconds, "boxes": proof.boxes, "fair": fair, "open": left})
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
