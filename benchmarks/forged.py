"""Forged certificates: is each refused, how soon, and in how much memory?

    python benchmarks/forged.py                  # about ten minutes on two cores
    python benchmarks/forged.py --boxes 2000     # a quick look

A certificate about a network over the input space of Adult, with 65,536 boxes or more, is forged in one place at a
time, and checked in a process of its own for the user's domain and decision. The first line is the right certificate.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import neuronfair  # noqa: F401 - before torch: it keeps idle threads from spinning

# isort: split
from neuronfair.domain.schema.toml import format_domain, parse_domain
from neuronfair.domain.tables.dataset import catalog_domain
from neuronfair.errors import NeuronFairError
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.weights import fingerprint
from neuronfair.proof.certificate import AxisCodes, Certificate, CertifiedBoxes, fingerprint_model, write_certificate
from neuronfair.proof.checker.check import check
from neuronfair.proof.problem import build_problem
from neuronfair.proof.prove import ProofProgress, prove
from neuronfair.testing.cases import random_module

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEED = 2  # of a network of which both decisions, and flips, are frequent
Forgery = Callable[[Certificate], Certificate]


def network_of() -> Network:
    domain = catalog_domain("adult")
    return Network(random_module(domain, seed=SEED).eval(), domain)


def right(boxes: int, seconds: float) -> Certificate:
    """Return a certificate of so many boxes at least."""
    network = network_of()
    domain = catalog_domain("adult")
    problem = build_problem(network, domain)

    def stop(now: ProofProgress) -> None:
        if now.boxes > 2 * boxes:  # about half of them are leaves
            raise KeyboardInterrupt  # the proof so far is kept

    proof = prove(problem, seconds=seconds, progress=stop)
    axes = tuple(AxisCodes.of(axis, domain.names[axis.column]) for axis in problem.space.axes)
    return Certificate(
        domain, problem.decision, "", fingerprint_model(fingerprint(network.module), network.module), axes, proof
    )


def with_boxes(certificate: Certificate, **columns: object) -> Certificate:
    """Return a certificate with other boxes, and totals that fit them."""
    boxes = replace(certificate.proof.certified, **columns)  # type: ignore[arg-type]
    proof = replace(certificate.proof, certified=boxes, fair=sum(boxes.fair), discriminatory=sum(boxes.discriminatory))
    return replace(certificate, proof=proof)


def rows(certificate: Certificate, some: list[int]) -> Certificate:
    boxes = certificate.proof.certified
    fair, flips = ([column[i] for i in some] for column in (boxes.fair, boxes.discriminatory))
    return with_boxes(certificate, low=boxes.low[some], high=boxes.high[some], fair=fair, discriminatory=flips)


def moved(certificate: Certificate, *, back: bool = False) -> Certificate:
    """Let one box reach one place farther, and let another, of the same size elsewhere, lose as much."""
    boxes = certificate.proof.certified
    high, last = boxes.high.copy(), [len(axis) - 1 for axis in certificate.axes]
    can_move = (high < last) & (high > boxes.low)
    axis = int(can_move.sum(0).argmax())
    across = ((high - boxes.low + 1).astype(object).prod(1) // (high[:, axis] - boxes.low[:, axis] + 1)).tolist()
    some = np.flatnonzero(can_move[:, axis]).tolist()
    one, other = next((i, j) for i in some for j in some if i != j and across[i] == across[j])
    high[one, axis] += 1
    if back:
        high[other, axis] -= 1
    return with_boxes(certificate, high=high)


def beyond(certificate: Certificate, fair: int, flips: int) -> Certificate:
    """Change what is claimed of the last box in which nobody flips."""
    boxes = certificate.proof.certified
    box = max(i for i, number in enumerate(boxes.discriminatory) if boxes.fair[i] and not number and whole(boxes, i))
    claims = [*boxes.fair], [*boxes.discriminatory]
    claims[0][box] += fair
    claims[1][box] += flips
    return with_boxes(certificate, fair=claims[0], discriminatory=claims[1])


def whole(boxes: CertifiedBoxes, box: int) -> bool:
    """Return whether a box claims so many records that it can be no more: few rules hold within a box."""
    sizes = (boxes.high[box] - boxes.low[box] + 1).astype(object)
    return bool(boxes.fair[box] >= 2 * sizes.prod())


def one_box(certificate: Certificate) -> Certificate:
    """Claim of everybody at once that no decision flips: it would have to be cut into very many parts."""
    high = np.array([[len(axis) - 1 for axis in certificate.axes]], dtype=np.int32)
    return with_boxes(certificate, low=high * 0, high=high, fair=[certificate.proof.record_count], discriminatory=[0])


def reworded(certificate: Certificate, pattern: str, by: str) -> Certificate:
    """Return a certificate about a domain in whose text something is changed."""
    text, count = re.subn(pattern, by, format_domain(certificate.domain), count=1)
    assert count == 1
    return replace(certificate, domain=parse_domain(text))


def outside(certificate: Certificate) -> Certificate:
    high = certificate.proof.certified.high.copy()
    high[0, 0] = len(certificate.axes[0])
    return with_boxes(certificate, high=high)


def other_total(certificate: Certificate) -> Certificate:
    return replace(certificate, proof=replace(certificate.proof, fair=certificate.proof.fair + 1))


FORGERIES: dict[str, Forgery] = {
    "none": lambda c: c,
    "a box one wider": moved,
    "two boxes overlap, sizes kept": lambda c: moved(c, back=True),
    "a box outside": outside,
    "a box doubled": lambda c: rows(c, [*range(len(c.proof.certified)), 7]),
    "a box missing": lambda c: rows(c, [*range(1, len(c.proof.certified))]),
    "one certified too many": lambda c: beyond(c, 1, 0),
    "one too many to depend": lambda c: beyond(c, -1, 1),
    "another total": other_total,
    "one box claims all": one_box,
    "decision": lambda c: replace(c, decision=Decision("threshold", 0.4)),
    "scale": lambda c: reworded(c, r"center = ([\d.]+)", r"center = 1\1"),
    "labels": lambda c: reworded(c, r'"Female", "Male"', '"Male", "Female"'),
    "rules": lambda c: replace(c, domain=replace(c.domain, rules=c.domain.rules[1:])),
    "region": lambda c: replace(c, where="age >= 30"),
    "weights": lambda c: replace(c, fingerprint="0" * 64),
}
DIGITS = ("٣", "+5", " 5", "5_0", "1e3", "007", "-1", "５", "0x5", "5.0", "")  # in place of a count


def digits(certificate: Certificate, path: Path, text: str) -> None:
    """Write a certificate in which a count is written otherwise."""
    write_certificate(path, certificate)
    table = pq.read_table(path)
    fair = table["fair"].to_pylist()
    fair[-1] = text
    table = table.set_column(table.schema.get_field_index("fair"), "fair", pa.array(fair))
    pq.write_table(table, path, compression="zstd")


def checked(path: Path) -> None:
    """Check a certificate in this process, and print what came of it."""
    import resource
    import time

    network, begun, before = network_of(), time.perf_counter(), time.process_time()
    try:
        check(path, network, domain=catalog_domain("adult"), decision=Decision())
        said = "verified"
    except NeuronFairError as error:
        said = str(error)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps([time.perf_counter() - begun, time.process_time() - before, memory, said]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--boxes", type=int, default=1 << 16)
    parser.add_argument("--seconds", type=float, default=600.0, help="for the proof")
    parser.add_argument("--check", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check is not None:
        checked(options.check)
        return
    certificate = right(options.boxes, options.seconds)
    print(f"{len(certificate.proof.certified):,} boxes\n")
    print("forged | seconds | of a processor | GB | answer\n---|---:|---:|---:|---")
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.parquet"
        made: dict[str, Callable[[], None]] = {
            **{name: (lambda f=f: write_certificate(path, f(certificate))) for name, f in FORGERIES.items()},  # type: ignore[misc]
            **{f"count {t!r}": (lambda t=t: digits(certificate, path, t)) for t in DIGITS},  # type: ignore[misc]
        }
        for name, make in made.items():
            make()
            command = [sys.executable, __file__, "--check", str(path)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            seconds, used, memory, said = json.loads(out.splitlines()[-1])
            said = said.replace(f"{path}: ", "")
            print(f"{name} | {seconds:.1f} | {used:.1f} | {memory:.2f} | {said[:90]}", flush=True)
            failed |= (said == "verified") != (name == "none")
    sys.exit(failed)


if __name__ == "__main__":
    main()
