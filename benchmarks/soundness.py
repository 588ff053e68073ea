"""Proofs about small random models, against everybody asked: how many boxes claim more than the truth?

    python benchmarks/soundness.py --boxes 1000000

Networks of all activations, with large weights, nearly cancelling margins, dead neurons and exact ties, and trees, over
domains with one-hot blocks, scaled numbers, empty cells and rules. A proof is stopped early, so that its boxes hold
half-spaces; each box is compared with the people in it, and so is what the proof says about single records. Half of the
proofs follow guides. Every wrong claim is printed with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from truth.claims import held
from truth.planted import KINDS


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--boxes", type=int, default=1_000_000, help="stop when so many boxes are compared")
    parser.add_argument("--minutes", type=float, help="or after so long")
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--every", type=int, default=1, help="from one seed to the next")
    parser.add_argument("--models", type=int, help="or after so many models")
    parser.add_argument("--kind", choices=KINDS, help="one kind of model only")
    options = parser.parse_args()
    begun, seed, failed = time.monotonic(), options.seed, 0
    models, boxes, records, wrong, rounded = (Counter[str]() for _ in range(5))
    decided: defaultdict[str, float] = defaultdict(float)
    while sum(boxes.values()) < options.boxes and sum(models.values()) < (options.models or 1 << 62):
        if options.minutes is not None and time.monotonic() - begun > 60 * options.minutes:
            break
        try:
            claims = held(seed, kind=options.kind)
        except Exception as error:  # no proof is no wrong proof, but must be looked at
            print(f"FAILED: seed {seed}, {type(error).__name__}: {error}", flush=True)
            failed, seed = failed + 1, seed + options.every
            continue
        kind = claims.kind
        models[kind] += 1
        boxes[kind] += claims.boxes
        records[kind] += claims.records
        wrong[kind] += len(claims.wrong)
        rounded[kind] += claims.rounded
        decided[kind] += claims.share
        for line in claims.wrong[:3]:
            print(f"WRONG: seed {seed}, {claims.name}: {line}", flush=True)
        if sys.stderr.isatty() or seed % 50 == 0:
            print(f"\r{sum(boxes.values()):,} boxes, {sum(wrong.values())} wrong", end="", file=sys.stderr, flush=True)
        seed += options.every
    print(file=sys.stderr)
    print("| models | how many | boxes | records | wrong | other than float64 rounds | decided |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for kind in models:
        share = 100 * decided[kind] / models[kind]
        counts = f"{models[kind]:,} | {boxes[kind]:,} | {records[kind]:,} | {wrong[kind]} | {rounded[kind]}"
        print(f"| {kind} | {counts} | {share:.1f} % |")
    total = [sum(counter.values()) for counter in (models, boxes, records, wrong, rounded)]
    print(f"| all | {total[0]:,} | {total[1]:,} | {total[2]:,} | {total[3]} | {total[4]} | |")
    sys.exit(1 if total[3] or failed else 0)


if __name__ == "__main__":
    main()
