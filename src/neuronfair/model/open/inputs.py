"""How rows of codes become what a model is given: a table, numbers or tensors, and the same for original cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.errors import did_you_mean, one_line
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.columns import input_names, picked
from neuronfair.model.open.frames import (
    EMPTY_FLAGS,
    CategoryColumn,
    CodeColumn,
    FlagColumn,
    FrameColumn,
    Frames,
    NumberColumn,
    Table,
    cells,
)
from neuronfair.model.open.request import Request

SHOWN = 30  # names of columns in a note
PREPROCESSED = "rows go through preprocess"
MOST_FLAGS = 256  # values of a number that may each have a column of their own


@dataclass(frozen=True)
class ModelInputs:
    """What a model is given for rows of codes, and for a DataFrame of original cells where it is given a table.

    The note is for the user. `declared` says that it is given the numbers that the domain file declares, `by_position`
    whether columns are matched by their order alone (None: that has to be tried). A network is given several tensors by
    `names`, or in their order if there are none; `program` names what makes them if that may be any program.
    """

    of_rows: Callable[[Tensor], Any]
    of_frame: Callable[[Any], Any] | None = None
    note: str = ""
    declared: bool = False
    by_position: bool | None = False
    names: tuple[str, ...] = ()
    program: str | None = None

    def then(self, function: Callable[[Any], Any], **changes: Any) -> ModelInputs:
        """Return what a function makes of these inputs."""
        of_rows, of_frame = self.of_rows, self.of_frame
        made = None if of_frame is None else (lambda table: function(of_frame(table)))
        return replace(self, of_rows=lambda rows: function(of_rows(rows)), of_frame=made, **changes)


@dataclass(frozen=True)
class TreeColumns:
    """The columns of boosted trees: their names, and which are categories, with a list of these or of any text."""

    names: tuple[str, ...]
    categories: Mapping[str, Sequence[Any] | None]
    named: bool  # by the user, and not by their places


def table_inputs(request: Request, columns: Sequence[str] | None = None, **options: Any) -> ModelInputs:
    """Return the table itself, with the names and dtypes that it had."""
    frames = Frames(request.domain.to("cpu"), columns, types=request.types, **options)
    return ModelInputs(frames.of_rows, frames.of_frame)


def declared_numbers(request: Request, note: str = "") -> ModelInputs:
    """Return the numbers that the domain file declares, as one tensor."""
    encoding = TableEncoding.of(request.domain.to("cpu"))
    return ModelInputs(lambda rows: [encoding.encode(rows.cpu())], None, note, declared=True, by_position=True)


def preprocessed(request: Request) -> ModelInputs:
    """Return what the user's own function makes of the table."""
    function = request.preprocess
    assert function is not None
    return table_inputs(request).then(function, note=PREPROCESSED, program="the function preprocess")


def estimator_inputs(
    request: Request,
    estimator: Any,
    *,
    bare: bool,
    names: list[str] | None = None,
    trees: TreeColumns | None = None,
) -> list[ModelInputs]:
    """Return the inputs that fit what an estimator says of them, the most likely first.

    `bare` says that no preprocessing belongs to it. `names` are the columns that it reads together with others, and
    `trees` those of boosted trees.
    """
    if request.preprocess is not None:
        return [preprocessed(request)]
    if trees is not None:
        return [_of_trees(request, trees)]
    names = names or input_names(estimator)
    if names is None:
        return _by_place(request, estimator, bare)
    if set(names) <= set(request.domain.names):
        known = _categories(estimator, names)
        ways = [table_inputs(request, names, known=known, categorical=bare)]
        return [*ways, *([number_columns(request, names)] if bare else []), *_other_forms(request, ways[0], names)]
    if bare:
        return [number_columns(request, names)]
    missing = next(name for name in names if name not in request.domain.names)
    raise request.error(
        f"reads a column '{missing}', which the domain does not have. Add it to the domain file. "
        f"{did_you_mean(missing, request.domain.names)}"
    )


def _other_forms(request: Request, table: ModelInputs, names: Sequence[str] | None) -> list[ModelInputs]:
    """Return a table with dates where a text file has texts, and the table as an array."""
    dated = any(attribute.date is not None for attribute in request.domain.attributes)
    others = [replace(table_inputs(request, names, dates=True), by_position=table.by_position)] if dated else []
    return [*others, table.then(lambda frame: frame.to_numpy(), by_position=names is None)]


def function_inputs(request: Request, names: Sequence[str] | None) -> list[ModelInputs]:
    """Return the inputs of a function: the table, or what `preprocess` makes of it."""
    if request.preprocess is not None:
        return [preprocessed(request)]
    table = replace(table_inputs(request, names), by_position=None if names is None else False)
    return [table, *_other_forms(request, table, names)]


def _by_place(request: Request, estimator: Any, bare: bool) -> list[ModelInputs]:
    """Return the inputs of an estimator without column names.

    A pipeline is given the table's cells. So is what does not say how many inputs it has, and any estimator if the
    domain was read off the table: nobody has declared other numbers then.
    """
    domain, width, count = request.domain, TableEncoding.of(request.domain).width, _stated(estimator, "n_features_in_")
    ways = []
    if (request.inferred or not bare or count is None) and count in (None, len(domain.names)):
        table = table_inputs(request, known=_categories(estimator, domain.names))
        table = replace(table, by_position=None if count is None else True)
        ways = [table, *_other_forms(request, table, None)]
    if bare and count in (None, width):
        ways.append(_declared_array(request))
    if ways:
        return ways
    if bare:
        raise request.error(f"expects {count} inputs. {request.widths()}")
    has = f"{len(domain.names)}{request.fewer(len)}"
    raise request.error(f"expects {count} columns, but the domain '{domain.name}' has {has}")


def _declared_array(request: Request) -> ModelInputs:
    width = TableEncoding.of(request.domain).width
    note = f"it is given the {width} numbers of the domain's encoding, because it has no column names"
    return declared_numbers(request, note).then(lambda tensors: tensors[0].numpy())


def _of_trees(request: Request, trees: TreeColumns) -> ModelInputs:
    domain, names = request.domain, trees.names
    if trees.named:
        return number_columns(request, names, trees.categories)
    if len(names) == len(domain.names):
        known = {own: trees.categories[n] for own, n in zip(domain.names, names, strict=True) if n in trees.categories}
        note = "it is given the columns in the domain's order, because it has no column names"
        return replace(number_columns(request, domain.names, known, note), by_position=True)
    if len(names) == TableEncoding.of(domain).width and not trees.categories:
        return _declared_array(request)
    raise request.error(f"expects {len(names)} inputs. {request.widths()}")


def number_columns(
    request: Request,
    names: Sequence[str],
    categories: Mapping[str, Sequence[Any] | None] | None = None,
    note: str = "",
) -> ModelInputs:
    """Return columns of numbers: an attribute by its name, or whether it has one value, as in 'sex_Male'.

    Those with `categories` are given as these, or as texts. LightGBM writes '_' for every blank in a name.
    """
    domain, categories = request.domain.to("cpu"), categories or {}
    flags = {
        f"{attribute.name}_{label}": (place, label, code)
        for place, attribute in enumerate(domain.attributes)
        for code, label in _labels(attribute)
    }
    own, coded = set(domain.names), False
    blanks = {name.replace(" ", "_"): name for name in (*flags, *domain.names)}
    columns = []
    for label in names:
        name = label if label in own or label in flags else blanks.get(label, label)
        if name not in own and name not in flags:
            raise request.error(
                f"reads a column '{name}', which is neither an attribute of the domain nor one of its values. "
                f"{did_you_mean(name, [*domain.names, *flags])}"
            )
        place = domain.column(name) if name in own else flags[name][0]
        attribute = domain.attributes[place]
        column: CategoryColumn | CodeColumn | NumberColumn | FlagColumn
        if name not in own:
            column = FlagColumn(attribute, *flags[name][1:])
        elif label in categories:
            column = CategoryColumn(attribute, categories[label])
        elif any(isinstance(cell, str) for cell in cells(attribute).values()):
            column, coded = CodeColumn(attribute), True
        else:
            column = NumberColumn(attribute)
        columns.append(FrameColumn(label, attribute.name, place, column))
    table = Table(columns)
    remark = "labels are given as their places in the domain" if coded else ""
    return ModelInputs(table.of_rows, table.of_frame, "; ".join(filter(None, (note, remark))))


def _labels(attribute: Attribute) -> list[tuple[int, str]]:
    """Return the codes and labels of an attribute that flags may stand for, also those of an empty cell."""
    if not attribute.values:
        few = attribute.size <= MOST_FLAGS
        return [(code, str(attribute.value(code))) for code in range(attribute.size)] if few else []
    labels = [*((code, label) for label, code in attribute.extra.items()), *enumerate(attribute.values)]
    if attribute.missing is not None:
        labels += [(int(attribute.codes([None])[0]), mark) for mark in EMPTY_FLAGS]
    return labels


def first_accepted(request: Request, ways: Sequence[ModelInputs], ask: Callable[[Any], Any]) -> tuple[ModelInputs, Any]:
    """Return the first inputs that a model accepts, and its answers to the tried rows."""
    first: Exception | None = None
    for inputs in ways:
        try:
            return inputs, ask(inputs.of_rows(request.tried))
        except Exception as error:  # the model's own code
            first = first or error
    assert first is not None
    raise request.error(f"it refuses rows of the table ({type(first).__name__}: {one_line(first)})") from first


def positions(request: Request) -> str:
    """Return a remark on columns that were matched by position."""
    names = request.domain.names
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"its inputs have no names, so columns are matched by position, in the order of the table: {shown}"


def _stated(estimator: Any, what: str) -> Any:
    """Return what an estimator states of its inputs, or the first step of a pipeline that states something."""
    steps = (step for _, step in getattr(estimator, "steps", ()) if step not in (None, "passthrough"))
    found = getattr(estimator, what, None)
    return _stated(next(steps), what) if found is None and hasattr(estimator, "steps") else found


def _categories(part: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the categories that the encoders inside an estimator know, by column, as far as they state them."""
    if hasattr(part, "categories_"):
        return dict(zip(columns, map(list, part.categories_), strict=False))
    found: dict[str, list[Any]] = {}
    if hasattr(part, "_preprocessor"):  # the encoder inside histogram-based boosting
        return _categories(part._preprocessor, columns)
    for _, step in getattr(part, "steps", ()):
        found = _categories(step, columns) | found  # the first encoder reads the table itself
    for _, step, chosen in getattr(part, "transformers_", ()):
        found |= _categories(step, picked(getattr(part, "feature_names_in_", columns), chosen))
    return found


def as_array(answer: Any) -> np.ndarray:
    """Return a model's answer as an array."""
    found: np.ndarray = np.asarray(answer.detach().cpu() if isinstance(answer, torch.Tensor) else answer)
    if found.ndim == 0:
        raise ValueError(f"expected one score or label for each row, got {type(answer).__name__}")
    return found
