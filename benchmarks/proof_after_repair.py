"""Does a repair make more of the domain provable? The demo's network on Adult, before and after, in the same time.

    python benchmarks/proof_after_repair.py --seconds 60 --out out/proof-after-repair

Prints a table: accuracy and rate as the repair measures them, and what is proved of everybody in the domain. What is in
the folder already is not done again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from neuronfair.cli import app
from neuronfair.formatting import percent

HEAD = "| | accuracy | rate | proved fair | proved discriminatory | open | boxes |"


def call(*words: object) -> None:
    """Run a command of neuronfair."""
    app(list(map(str, words)), standalone_mode=False)


def proved(weights: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a proof about a network."""
    what = (options.data, "--sensitive", options.sensitive, "--model", weights, "--device", options.device)
    call("certify", *what, "--seconds", options.seconds, "--out", folder, "--quiet")
    figures: dict[str, Any] = json.loads((folder / "proof.json").read_text(encoding="utf-8"))
    return figures


def line(name: str, repaired: dict[str, Any], proof: dict[str, Any]) -> str:
    """Return the line of a network."""
    parts = [proof[part]["share"] for part in ("proved_fair", "proved_discriminatory", "undecided")]
    shares = [repaired["accuracy"]["test"], repaired["rate"], *parts]
    return f"| {name} | {' | '.join(map(percent, shares))} | {proof['boxes']:,} |"


def main() -> None:
    """Train and audit, repair, prove twice, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="adult")
    parser.add_argument("--sensitive", default="sex")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    audit, fair, figures = (options.out / name for name in ("audit", "fair.safetensors", "repair.json"))
    options.out.mkdir(parents=True, exist_ok=True)
    call("audit", options.data, "--sensitive", options.sensitive, "--out", audit, "--quiet")
    if not fair.exists():
        call("repair", audit / options.sensitive / "frontier", "--out", fair, "--json", figures, "--quiet")
    repair = json.loads(figures.read_text(encoding="utf-8"))
    print(f"{options.data}, {options.sensitive}, {options.seconds:g} s on {options.device}\n\n{HEAD}")
    print("| --- |" + " ---: |" * (HEAD.count("|") - 2))
    for name, weights in (("before", audit / "model.safetensors"), ("after", fair)):
        print(line(name, repair[name], proved(weights, options.out / name, options)), flush=True)


if __name__ == "__main__":
    main()
