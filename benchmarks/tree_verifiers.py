"""How soon are regions around single rows verified: here, and by Veritas?

    pip install dtai-veritas
    python benchmarks/tree_verifiers.py --rows 200

XGBoost with 100 trees of depth 4 on German credit, sex. Around every row that no other region holds a region is grown
in which no decision flips. Then both are asked about the same regions: here by the bounds of trees; there whether all
scores have one sign, and whether the scores of both sexes are the same, either of which suffices. Veritas knows no
one-hot blocks: it may combine values that exclude each other.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import neuronfair as nf
from neuronfair.domain.schema.toml import allowed_codes
from neuronfair.domain.table import TableDomain
from neuronfair.model.encoding import TableEncoding
from neuronfair.proof.problem import build_problem, describe_box
from neuronfair.proof.records import ProofRecords
from neuronfair.proof.regions import RegionGrower

import numpy as np
import torch
import veritas
from torch import Tensor
from truth.cases import boosted
from xgboost import XGBClassifier

SECONDS, EQUAL = 3.0, 1e-5  # for one search of Veritas; scores that are the same but for rounding


def intervals(domain: TableDomain, allowed: list[Tensor], sensitive: int) -> dict[int, Any]:
    """Return between which numbers each input of the trees lies in a region, for one sensitive value."""
    encoding, found = TableEncoding.of(domain), {}
    for column, codes in enumerate(allowed):
        if column in domain.sensitive_columns:
            codes = torch.arange(len(codes)) == sensitive
        rows = torch.zeros(int(codes.sum()), len(allowed), dtype=torch.int64)
        rows[:, column] = codes.nonzero()[:, 0]
        numbers = encoding.encode(rows, torch.float32).double().numpy()
        others = rows.clone()
        others[:, column] = (rows[:, column] + 1) % len(codes)
        changes = (numbers != encoding.encode(others, torch.float32).double().numpy()).any(0)
        for place in np.flatnonzero(changes).tolist():
            low, high = np.float32(numbers[:, place].min()), np.float32(numbers[:, place].max())
            found[place] = veritas.Interval(float(low), float(np.nextafter(high, np.float32(np.inf))))
    return found


def is_one_sided(trees: Any, box: dict[int, Any], sign: int, room: float = 0.0) -> bool:
    """Return whether all scores of a box surely have a sign, but for some room, as soon as their bound says so."""
    kind = veritas.HeuristicType.MIN_OUTPUT if sign > 0 else veritas.HeuristicType.MAX_OUTPUT
    search = veritas.Config(kind).get_search(trees, box)
    begun = time.process_time()
    while time.process_time() - begun < SECONDS and not search.is_optimal():
        search.steps(100)
        if search.num_solutions() and sign * search.get_solution(0).output <= -room:
            return False
        if sign * search.current_bounds().top_of_open > -room:
            return True
    return search.is_optimal() and sign * search.get_solution(0).output > -room


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200)
    options = parser.parse_args()
    table = nf.load_dataset("german", sensitive=["sex"])
    model = XGBClassifier(n_estimators=100, max_depth=4, n_jobs=1)
    opened = boosted(table, model, "XGBoost").opened
    problem = build_problem(opened, table.domain)
    records = ProofRecords.of(problem, table)
    trees = veritas.get_addtree(model, silent=True)
    numbers = TableEncoding.of(table.domain).encode(table.rows).numpy()
    score = np.asarray(trees.eval(numbers)).ravel()
    print("largest difference of scores:", np.abs(score - model.predict(numbers, output_margin=True)).max())
    grower = RegionGrower(problem, records.row_points)
    begun, boxes = time.process_time(), []
    for row in range(options.rows):
        box = grower.grow(records.row_points[row], fair=True)
        boxes += [] if box is None else [box]
    print(f"grown: {len(boxes)} regions around {options.rows} rows in {time.process_time() - begun:.1f} s")
    begun = time.process_time()
    again = [bool(grower.find_proved(box, fair=True)) for box in boxes]
    print(f"verified again here: {sum(again)} in {time.process_time() - begun:.2f} s")
    begun, one_sided, alike = time.process_time(), 0, 0
    for box in boxes:
        allowed = allowed_codes(table.domain, describe_box(problem, box.low[0], box.high[0]))
        where = [intervals(table.domain, allowed, value) for value in range(len(problem.domain.sensitive_values))]
        one_sided += any(all(is_one_sided(trees, one, sign) for one in where) for sign in (1, -1))
        one, other = (trees.prune(box) for box in where)
        shared = {place: both for place, both in where[0].items() if where[1].get(place) == both}
        gaps = one.concat_negated(other), other.concat_negated(one)
        alike += all(is_one_sided(each, shared, -1, EQUAL) for each in gaps)
    took = time.process_time() - begun
    print(f"verified by Veritas: {one_sided} with one decision, {alike} with equal scores, in {took:.2f} s")


if __name__ == "__main__":
    main()
