"""Scores of the records of a data set from their original cells.

A cell of the table may lie between two values of the domain, or be a label that the domain merges with another. Metrics
of the data set must not depend on such rounding. So a record is a row of codes with a record number: where a code is
the record's own, the model reads the original cell, and elsewhere the value of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.cells import cell_text
from neuronfair.domain.tables.dataset import Dataset, Original
from neuronfair.domain.twins import ATTRIBUTE_FLIPS
from neuronfair.errors import ModelError, one_line, require
from neuronfair.model.blackbox import Model
from neuronfair.model.encoding import Encoding, TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open.estimator_networks import FeatureCurve
from neuronfair.model.open.opened import OpenedModel

RECORD = "number of the record"
REFUSES_EMPTY = "the model refuses empty cells, so they are read as the domain says"
RecordForm = Literal["cells", "numbers", "codes"]  # the inputs for a record: see `prepare_records`
RecordScores = Callable[[np.ndarray, Tensor], Tensor]  # from numbers of records and rows of codes to scores


@dataclass(frozen=True)
class Records:
    """A data set whose rows have one more column, the record number, and a model of such rows.

    `form` says what the model reads: the original "cells", the original "numbers" by its encoding, or "codes". `reason`
    says why some original cells are not used: the model reads codes only, or refuses these cells.
    """

    model: Model
    data: Dataset
    form: RecordForm
    reason: str = ""


def prepare_records(source: OpenedModel | Model, data: Dataset) -> Records:
    """Return a data set ready for its own metrics.

    A model that reads DataFrames gets the original cells. One that reads the domain's encoding gets the original
    numbers, and codes for labels. All others, and models that refuse the original cells, get codes.
    """
    model: Model = source.model if isinstance(source, OpenedModel) else source
    original, domain = data.original, data.domain
    if original is None or domain.twinning != ATTRIBUTE_FLIPS or len(original.rows) != len(data):
        return Records(model, data, "codes")
    reason = ""
    if isinstance(source, OpenedModel) and source.scores_of_frame is not None:
        for filled in (False, True):
            cells = OriginalCells(original, data, filled=filled)
            by_cells = RecordModel(model, data.rows, _score_by_frame(cells, source.scores_of_frame, model))
            try:
                _ = by_cells.record_scores  # a model may refuse them
            except ModelError as error:
                reason = reason or f"the model refuses the original cells ({one_line(error)})"
                continue
            return replace(_number_records(by_cells, data, "cells"), reason=REFUSES_EMPTY if filled else "")
    off_grid = original.off_grid(domain, data.rows.cpu().numpy())
    encoding = model.encoding
    if isinstance(encoding, TableEncoding):
        off_grid &= _find_number_columns(encoding)
        predict = _score_by_numbers(model, encoding, original, data) if off_grid.any() else None
        if predict is not None:
            return _number_records(RecordModel(model, data.rows, predict), data, "numbers")
    return Records(
        model, data, "codes", (reason or "the model reads values of the domain only") if off_grid.any() else ""
    )


def _number_records(model: RecordModel, data: Dataset, form: RecordForm) -> Records:
    numbers = torch.arange(len(data), device=data.rows.device)[:, None]
    number = Attribute(RECORD, "ordinal", low=0, high=max(1, len(data) - 1), encode="none")  # no input of the model
    domain = replace(data.domain, attributes=(*data.domain.attributes, number))
    return Records(model, replace(data, domain=domain, rows=torch.cat([data.rows, numbers], 1)), form)


class RecordModel:
    """A model of rows of codes whose last column is a record number."""

    def __init__(self, model: Model, rows: Tensor, predict: RecordScores) -> None:
        self._rows, self._predict = rows, predict
        self.encoding: Encoding = model.encoding
        self.dtype, self.outputs, self.rows_forward = torch.float64, model.outputs, 0

    def scores(self, rows: Tensor) -> Tensor:
        """Return the scores of rows: float64, (n, outputs). Those of the records themselves are computed once."""
        codes, numbers = rows[:, :-1].long(), rows[:, -1].long()
        changed = (codes != self._rows[numbers]).any(1)
        scores = self.record_scores[numbers]
        if bool(changed.any()):
            scores[changed] = self._compute_scores(numbers[changed], codes[changed])
        return scores

    @cached_property
    def record_scores(self) -> Tensor:
        """The scores of the records themselves: (records, outputs)."""
        return self._compute_scores(torch.arange(len(self._rows), device=self._rows.device), self._rows)

    def double(self) -> RecordModel:
        """Return the same model: its scores are float64 already."""
        return self

    def _compute_scores(self, numbers: Tensor, codes: Tensor) -> Tensor:
        size = self.encoding.rows_per_pass
        parts = zip(torch.split(numbers, size), torch.split(codes, size), strict=True)
        scores = torch.cat([self._predict(part.cpu().numpy(), part_codes).double() for part, part_codes in parts])
        self.rows_forward += len(numbers)
        return scores.to(codes.device)


class OriginalCells:
    """The records of a data set as a DataFrame of original cells, in which codes can replace cells.

    With `filled`, an empty cell is the number that the domain declares for it.
    """

    def __init__(self, original: Original, data: Dataset, *, filled: bool = False) -> None:
        self._codes = data.rows.cpu().numpy()
        self._record_of_code: dict[tuple[int, int], int | None] = {}  # records that have a code, by column and code
        if original.frame is None:
            self._frame = require("pandas", "sklearn").DataFrame(
                {a.name: _read_column(original, a) for a in data.domain.attributes}
            )
        else:
            self._frame = original.frame.iloc[original.rows].reset_index(drop=True)
            self._frame.columns = list(map(str, self._frame.columns))
        positions = {name: position for position, name in enumerate(self._frame.columns)}
        # Joined attributes are no columns of the table and no inputs of a model.
        attributes = enumerate(data.domain.attributes)
        self._columns = {i: (positions[a.name], a) for i, a in attributes if a.is_input and a.name in positions}
        for position, attribute in self._columns.values() if filled else ():
            if isinstance(attribute.missing, (int, float)) and not attribute.values:
                self._frame.isetitem(position, self._frame.iloc[:, position].fillna(attribute.missing))

    def of(self, numbers: np.ndarray, codes: np.ndarray) -> Any:
        """Return the DataFrame of some records, with the values of codes where these differ from the record's own."""
        table = self._frame.iloc[numbers].reset_index(drop=True)
        changed = codes != self._codes[numbers]
        for column, (position, _) in self._columns.items():
            if changed[:, column].any():
                table.isetitem(position, self._replace_cells(column, numbers, codes[:, column], changed[:, column]))
        return table

    def _replace_cells(self, column: int, numbers: np.ndarray, codes: np.ndarray, changed: np.ndarray) -> Any:
        """Return a column of some records in which codes replace the changed cells, with the same type if possible."""
        position, attribute = self._columns[column]
        cells = self._frame.iloc[numbers, position].reset_index(drop=True)
        distinct, inverse = np.unique(codes[changed], return_inverse=True)
        if attribute.values or attribute.date is not None or cells.dtype.kind not in "iuf":
            record_of_code = {code: self._find_record(column, code) for code in distinct.tolist()}
            if None not in record_of_code.values():  # a record has each of them, so its cell is taken
                sources = numbers.copy()
                sources[changed] = np.array(list(record_of_code.values()))[inverse]
                return self._frame.iloc[sources, position].reset_index(drop=True)
            cells = cells.astype(object)
        values = [np.nan if code == attribute.empty else attribute.value(code) for code in distinct.tolist()]
        if cells.dtype.kind in "iu" and not all(isinstance(value, int) for value in values):
            cells = cells.astype(np.float64)
        cells[changed] = require("pandas", "sklearn").Series(values, dtype=cells.dtype).to_numpy()[inverse]
        return cells

    def _find_record(self, column: int, code: int) -> int | None:
        """Return the first record with a code, preferably not one with a merged label."""
        position, attribute = self._columns[column]
        if (column, code) not in self._record_of_code:
            candidates = np.flatnonzero(self._codes[:, column] == code)
            is_unmerged = self._frame.iloc[candidates, position].map(cell_text).to_numpy() == str(attribute.value(code))
            self._record_of_code[column, code] = int(candidates[is_unmerged.argmax()]) if len(candidates) else None
        return self._record_of_code[column, code]


def _read_column(original: Original, attribute: Attribute) -> Any:
    """Return a column of a file as pandas reads one: numbers, or texts; an empty cell is NaN."""
    if attribute.values or attribute.date is not None:
        return original.texts(attribute)
    numbers = original.numbers(attribute)
    are_integers = bool((numbers == np.round(numbers)).all()) and bool((np.abs(numbers) < 2**53).all())
    return numbers.astype(np.int64) if are_integers else numbers


def _score_by_frame(cells: OriginalCells, scores_of_frame: Callable[[Any], Any], model: Model) -> RecordScores:
    """Return the scores of records by a model that reads a DataFrame."""

    def predict(numbers: np.ndarray, codes: Tensor) -> Tensor:
        table = cells.of(numbers, codes.cpu().numpy())
        try:
            scores = torch.from_numpy(np.array(scores_of_frame(table), dtype=np.float64))
        except Exception as error:  # the model's own code
            raise ModelError(f"the model failed on records of the data set: {one_line(error)}") from error
        if scores.shape != (len(numbers), model.outputs):
            expected = f"{len(numbers)} rows of {model.outputs} scores"
            raise ModelError(f"the model must give {expected} for a DataFrame, and gave {tuple(scores.shape)}")
        if not bool(scores.isfinite().all()):
            raise ModelError("the model gives NaN or infinite scores for records of the data set")
        return scores

    return predict


def _score_by_numbers(model: Model, encoding: TableEncoding, original: Original, data: Dataset) -> RecordScores | None:
    """Return the scores of records by a model that reads encoded numbers, which may lie between those of two codes."""
    scores_of_inputs: Callable[[Any], Any] | None = (
        model.scores_of_inputs if isinstance(model, Network) else getattr(model, "inputs", None)
    )
    if isinstance(model, Network) and any(isinstance(part, FeatureCurve) for part in model.module.modules()):
        return None  # its curves are known for the values of the domain only
    if scores_of_inputs is None:
        return None
    data_codes = data.rows.cpu()
    positions = data_codes.double()  # where among the codes the numbers lie
    for column in np.flatnonzero(_find_number_columns(encoding)).tolist():
        attribute = data.domain.attributes[column]
        position = torch.from_numpy((original.numbers(attribute) - attribute.low) / attribute.step)
        positions[:, column] = torch.where(position.isnan(), positions[:, column], position)

    def predict(numbers: np.ndarray, codes: Tensor) -> Tensor:
        index, codes = torch.from_numpy(numbers), codes.cpu()
        encoded = encoding.encode(
            torch.where(codes == data_codes[index], positions[index], codes.double()).to(encoding.device), torch.float64
        )
        scores = scores_of_inputs(encoded if isinstance(model, Network) else encoded.cpu().numpy())
        return torch.as_tensor(scores).reshape(len(codes), model.outputs)

    return predict


def _find_number_columns(encoding: TableEncoding) -> np.ndarray:
    """Return which attributes are numbers and no one-hot blocks, so that values between codes exist: bool, (d,)."""
    return np.array([a.is_input and not a.values and a.encode != "onehot" for a in encoding.attributes])
