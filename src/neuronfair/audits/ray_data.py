"""Flip rates of tables that do not fit one machine: a `ray.data.Dataset`, batch by batch on all machines of a cluster.

Each batch is read with the same input schema, and only counts come back, so memory stays flat. The rate is that of all
records, and equal to the rate of the same table on one machine.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neuronfair.audits.inputs import ModelSource, prepare
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import read_table
from neuronfair.errors import NeuronFairError, require
from neuronfair.measure.rate import Direction, GroupOutcomes, Rate, flip_rate, order_sides
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import split_families
from neuronfair.model.open.opened import OpenedModel
from neuronfair.model.records import prepare_records
from neuronfair.searches.evaluate import evaluate

BATCH_RECORDS = 1 << 16
DECISION, FLIPS = "decision", "flips"  # the columns that `flag` adds


def is_ray_dataset(table: Any) -> bool:
    """Return whether a table is a `ray.data.Dataset`."""
    return type(table).__module__.split(".")[:2] == ["ray", "data"] and hasattr(table, "map_batches")


@dataclass(frozen=True)
class BatchTest:
    """The attribute-flip test of batches of records. It can be sent to another process if the model can."""

    source: ModelSource
    head: Any  # a DataFrame of some records, for which the model is opened
    domain: TableDomain

    @cached_property
    def model(self) -> OpenedModel:
        """The model, opened once in each process."""
        return prepare(self.head, self.source, domain=self.domain).opened_model

    @property
    def decision(self) -> Decision:
        """What counts as a different decision."""
        return self.source.decision or self.model.decision

    def rate(self, batch: Any) -> dict[str, np.ndarray]:
        """Return the flip rate of a batch as one row."""
        table = read_table(batch, self.domain)
        rate = flip_rate(self.model, self.domain, population=table, samples=len(table), decision=self.decision)
        return {"rate": np.array([pickle.dumps(rate)], dtype=object)}

    def flag(self, batch: Any) -> Any:
        """Return a batch with the decision for each record, and whether it flips with the sensitive attribute."""
        records = prepare_records(self.model, read_table(batch, self.domain))
        model, domain = records.model, records.data.domain
        decisions, flips = [], []
        for (rows,) in zip(*split_families(model.encoding, domain, records.data.rows), strict=True):
            evaluation = evaluate(model, domain, rows, self.decision)
            decisions.append(self._decisions(evaluation.scores))
            flips.append(evaluation.discriminates.cpu().numpy())
        return batch.assign(**{DECISION: np.concatenate(decisions), FLIPS: np.concatenate(flips)})

    def _decisions(self, scores: Tensor) -> np.ndarray:
        """Return the classes by their names where these are known; for a tolerance, the scores."""
        if not self.decision.classes(scores.shape[1]):
            return scores[:, -1].cpu().numpy()
        numbers = self.decision.decide(scores).cpu().numpy()
        names = self.domain.target.classes if self.domain.target is not None else ()
        return (
            np.array(names, dtype=object)[numbers] if len(names) == self.decision.classes(scores.shape[1]) else numbers
        )


class BatchWorker:
    """A process of the cluster that does one kind of work for one batch after the other."""

    def __init__(self, test: BatchTest, kind: Literal["rate", "flag"]) -> None:
        torch.set_num_threads(1)  # there is a worker for each core
        self._work: Callable[[Any], Any] = test.rate if kind == "rate" else test.flag

    def __call__(self, batch: Any) -> Any:
        """Return what the work makes of a batch."""
        return self._work(batch)


def _map_batches(table: Any, test: BatchTest, kind: Literal["rate", "flag"]) -> Any:
    ray = require("ray", "ray")
    workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
    options = {
        "batch_size": BATCH_RECORDS,
        "batch_format": "pandas",
        "compute": ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
    }
    return table.map_batches(BatchWorker, fn_constructor_args=(test, kind), **options)


def measure_rate(
    test: BatchTest, table: Any, confidence: float = 0.95, progress: Callable[[int, int], None] | None = None
) -> Rate:
    """Return the flip rate of all records of a `ray.data.Dataset`; `progress` gets the records so far, and 0."""
    flips = sampled = 0
    directions = []
    for row in _stream(_map_batches(table, test, "rate")):
        rate: Rate = pickle.loads(row["rate"])  # of our own worker
        flips, sampled = flips + rate.flips, sampled + rate.sampled
        directions.append(rate.direction)
        if progress is not None:
            progress(sampled, 0)
    return Rate(flips, sampled, "table", confidence, direction=add_directions(directions))


def _stream(table: Any) -> Iterator[Any]:
    """Yield rows as they are computed; raise an error of ours in a worker as it is."""
    try:
        yield from table.iter_rows()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NeuronFairError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


def flag_records(test: BatchTest, table: Any) -> Any:
    """Return a `ray.data.Dataset` with two more columns; nothing is computed before it is used."""
    return _map_batches(table, test, "flag")


def add_directions(directions: Sequence[Direction | None]) -> Direction | None:
    """Return the direction of all records from those of batches; None where no outcome is favourable."""
    counted = [direction for direction in directions if direction is not None]
    if not counted:
        return None
    sides: dict[tuple[int, ...], GroupOutcomes] = {}
    for side in (side for direction in counted for side in direction.sides):
        codes, gets, loses = sides.get(side.codes, GroupOutcomes(side.codes, 0, 0))
        sides[codes] = GroupOutcomes(codes, gets + side.gets, loses + side.loses)
    return Direction(sum(direction.records for direction in counted), order_sides(sides.values()))
