"""Finds the inputs of a model by what it states about them: columns of a table, numbers or tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.domain.attribute import Attribute
from neuronfair.errors import ModelError, did_you_mean, one_line
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.frames import (
    EMPTY_FLAGS,
    FrameColumn,
    ModelInputs,
    category_cells,
    cells_of,
    code_cells,
    flag_cells,
    inputs_of_columns,
    number_cells,
    table_inputs,
)
from neuronfair.model.open.opened import Request

# Attributes with the names of inputs: of scikit-learn and XGBoost, LightGBM, CatBoost, and of boosters.
_NAMES = ("feature_names_in_", "feature_name_", "feature_names_", "feature_names", "feature_name")
CONSTANTS = ("const", "Intercept")  # what statsmodels calls a column of ones
# The attribute with the fitted model that reads the rows, or with several of them.
WRAPPERS = {
    "FixedThresholdClassifier": "estimator_",
    "TunedThresholdClassifierCV": "estimator_",
    "FrozenEstimator": "estimator",
    "TransformedTargetRegressor": "regressor_",
    "CalibratedClassifierCV": "calibrated_classifiers_",
    "_CalibratedClassifier": "estimator",
    "VotingClassifier": "estimators_",
    "VotingRegressor": "estimators_",
    "StackingClassifier": "estimators_",
    "StackingRegressor": "estimators_",
    "ThresholdOptimizer": "estimator_",  # of Fairlearn, as the next two
    "ExponentiatedGradient": "predictors_",
    "GridSearch": "predictors_",
}


def matched_columns(
    model: Any, names: Sequence[str] | None, known: Sequence[str], place: Literal["table", "domain"] = "table"
) -> tuple[str, ...] | None:
    """Return the columns that the names of a model's inputs refer to; None if none of them is known.

    An indicator of one value, such as 'sex_Male', refers to its column. A model that reads some of these columns and
    an unknown one is refused.

    >>> matched_columns("model.ubj", ["age", "sex_Male", "sex_Female"], ["id", "age", "sex"])
    ('age', 'sex')
    """
    spelled = {"_".join(column.split()): column for column in known}  # LightGBM writes _ for a blank
    spelled |= {column: column for column in known}
    found = {name: next((spelled[part] for part in _beginnings(name) if part in spelled), None) for name in names or ()}
    missing = [name for name, column in found.items() if column is None]
    if len(missing) == len(found):
        return None
    if missing:
        remedy = "Add it to the domain file. " if place == "domain" else ""
        raise ModelError(
            f"{source_of(model)}: reads a column '{missing[0]}', which the {place} does not have. {remedy}"
            f"{did_you_mean(missing[0], known)}"
        )
    return tuple(dict.fromkeys(column for column in found.values() if column is not None))


def source_of(model: Any) -> str:
    """Return the name of a model in an error: its file, or its type."""
    return str(model) if isinstance(model, (str, Path)) else getattr(model, "__qualname__", type(model).__name__)


def _beginnings(name: str) -> Iterator[str]:
    """Yield a name, and its part before each _, the longest first."""
    while name:
        yield name
        name = name.rpartition("_")[0]


def input_names(model: Any) -> list[str] | None:
    """Return the names of the columns that a fitted model reads, also inside pipelines and wrappers."""
    if type(model).__module__.partition(".")[0] == "keras":
        return single_columns((tensor.name, tensor.shape[1:]) for tensor in _attribute(model, "inputs") or ())
    if isinstance(model, nn.Module):
        return None
    if inspect.ismethod(model):
        return input_names(model.__self__)
    if _attribute(model, "transformers_") is not None:
        return _transformed(model)
    for parts in _parts(model):
        every = [names for names in map(input_names, parts) if names is not None]
        if every and len(every) == len(parts):  # the longest list is in the right order
            return list(dict.fromkeys(name for names in sorted(every, key=len, reverse=True) for name in names))
    exogenous = _attribute(_attribute(model, "model"), "exog_names")
    if exogenous is not None and not hasattr(model.model, "formula"):  # of statsmodels
        return [name for name in exogenous if name not in CONSTANTS]
    for name in _NAMES:
        stated = _attribute(model, name)
        stated = stated() if name == "feature_name" and callable(stated) else stated  # a method of LightGBM's Booster
        words = list(stated) if isinstance(stated, (list, tuple, np.ndarray)) else []
        if words and all(isinstance(word, str) for word in words):
            return None if _numbered(words) else list(map(str, words))
    return None


def single_columns(inputs: Iterable[tuple[str, Sequence[int | None]]]) -> list[str] | None:
    """Return the names of the inputs of a graph, given by name and shape, if each is a single number."""
    known = list(inputs)
    single = all(size in (1, None) for _, shape in known for size in shape) and all(len(s) < 2 for _, s in known)
    return [name for name, _ in known] if len(known) > 1 and single else None


def selected_columns(names: Sequence[str], chosen: Any) -> list[str]:
    """Return the columns that a ColumnTransformer selects: by name, position, mask or slice."""
    if isinstance(chosen, str):
        return [chosen]
    if isinstance(chosen, slice) and any(isinstance(end, str) for end in (chosen.start, chosen.stop)):
        start = None if chosen.start is None else list(names).index(chosen.start)
        chosen = slice(start, None if chosen.stop is None else list(names).index(chosen.stop) + 1)
    if not isinstance(chosen, slice) and all(isinstance(name, str) for name in chosen):
        return list(chosen)
    return [str(name) for name in np.asarray(names, dtype=object)[chosen]]


def _transformed(transformer: Any) -> list[str] | None:
    """Return the columns that a ColumnTransformer reads: those that it does not drop."""
    names = _attribute(transformer, "feature_names_in_")
    if names is None:
        return None
    steps = [chosen for _, step, chosen in transformer.transformers_ if not (isinstance(step, str) and step == "drop")]
    read = {name for chosen in steps for name in selected_columns(names, chosen)}
    return [str(name) for name in names if name in read]


def steps_of(model: Any) -> list[Any]:
    """Return the steps of a pipeline that change or predict; none of another model."""
    return [step for _, step in _attribute(model, "steps") or () if step not in (None, "passthrough")]


def _parts(model: Any) -> Iterator[list[Any]]:
    """Yield the parts of a model that read the rows: the first step of a pipeline, the models in a wrapper."""
    yield steps_of(model)[:1]
    for place in ("best_estimator_", *filter(None, [WRAPPERS.get(type(model).__name__)])):
        part = _attribute(model, place)
        if part is not None and _attribute(model, "passthrough") is not True:  # else the last model gets all columns
            yield list(part) if isinstance(part, list) or hasattr(part, "iloc") else [part]


def _attribute(model: Any, what: str) -> Any:
    try:
        return getattr(model, what, None)
    except Exception:  # one that is not fitted
        return None


def _numbered(names: list[str]) -> bool:
    """Return whether LightGBM or CatBoost has numbered the columns, because they had no names."""
    return any(names == [f"{word}{i}" for i in range(len(names))] for word in ("Column_", ""))


SHOWN = 30  # names of columns in a note
PREPROCESSED = "rows go through preprocess"
MOST_FLAGS = 256  # values of a number that may each have a column of their own


@dataclass(frozen=True)
class TreeColumns:
    """The columns of boosted trees: their names, and the values of those that are categories; None: any text."""

    names: tuple[str, ...]
    categories: Mapping[str, Sequence[Any] | None]
    named: bool  # by the user, not by their position


def _table(request: Request, columns: Sequence[str] | None = None, **options: Any) -> ModelInputs:
    """Return the table itself, with the names and dtypes that it had."""
    return table_inputs(request.domain.to("cpu"), columns, types=request.types, **options)


def declared_numbers(request: Request, note: str = "") -> ModelInputs:
    """Return the numbers that the domain file declares, as one tensor."""
    encoding = TableEncoding.of(request.domain.to("cpu"))
    return ModelInputs(lambda rows: [encoding.encode(rows.cpu())], None, note, declared=True, by_position=True)


def preprocessed(request: Request) -> ModelInputs:
    """Return the table after the user's own preprocessing."""
    assert request.preprocess is not None
    return _table(request).then(request.preprocess, note=PREPROCESSED, program="the function preprocess")


def estimator_inputs(
    request: Request,
    estimator: Any,
    *,
    bare: bool,
    names: list[str] | None = None,
    trees: TreeColumns | None = None,
) -> list[ModelInputs]:
    """Return the inputs that fit what an estimator states about them, the most likely first.

    `bare` says that it has no preprocessing of its own. `names` are the columns that it reads, and `trees` those of
    boosted trees.
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
        ways = [_table(request, names, known=known, categorical=bare)]
        return [*ways, *([number_columns(request, names)] if bare else []), *_other_forms(request, ways[0], names)]
    if bare:
        return [number_columns(request, names)]
    missing = next(name for name in names if name not in request.domain.names)
    raise request.error(
        f"reads a column '{missing}', which the domain does not have. Add it to the domain file. "
        f"{did_you_mean(missing, request.domain.names)}"
    )


def _other_forms(request: Request, table: ModelInputs, names: Sequence[str] | None) -> list[ModelInputs]:
    """Return the table with dates parsed, and the table as an array."""
    dated = any(attribute.date is not None for attribute in request.domain.attributes)
    others = [replace(_table(request, names, dates=True), by_position=table.by_position)] if dated else []
    return [*others, table.then(lambda frame: frame.to_numpy(), by_position=names is None)]


def function_inputs(request: Request, names: Sequence[str] | None) -> list[ModelInputs]:
    """Return the inputs of a function: the table, or what `preprocess` makes of it."""
    if request.preprocess is not None:
        return [preprocessed(request)]
    table = replace(_table(request, names), by_position=None if names is None else False)
    return [table, *_other_forms(request, table, names)]


def _by_place(request: Request, estimator: Any, bare: bool) -> list[ModelInputs]:
    """Return the inputs of an estimator without column names.

    A pipeline gets the table's cells. So does an estimator that does not state how many inputs it has, and any one if
    the domain was inferred from the table, since no other encoding is declared then.
    """
    domain, count = request.domain, _count_of(estimator)
    width = TableEncoding.of(domain).width
    ways = []
    if (request.inferred or not bare or count is None) and count in (None, len(domain.names)):
        table = _table(request, known=_categories(estimator, domain.names))
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
    note = f"it gets the {width} numbers of the domain's encoding, because it has no column names"
    return declared_numbers(request, note).then(lambda tensors: tensors[0].numpy())


def _of_trees(request: Request, trees: TreeColumns) -> ModelInputs:
    domain, names = request.domain, trees.names
    if trees.named:
        return number_columns(request, names, trees.categories)
    if len(names) == len(domain.names):
        known = {own: trees.categories[n] for own, n in zip(domain.names, names, strict=True) if n in trees.categories}
        note = "it gets the columns in the domain's order, because it has no column names"
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
    """Return columns of numbers: an attribute by its name, or an indicator of one value, as in 'sex_Male'.

    Columns in `categories` become these categories, or texts. LightGBM writes '_' for every blank in a name.
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
        if name not in own:
            cells = flag_cells(attribute, *flags[name][1:])
        elif label in categories:
            cells = category_cells(attribute, categories[label])
        elif any(isinstance(cell, str) for cell in cells_of(attribute).values()):
            cells, coded = code_cells(attribute), True
        else:
            cells = number_cells(attribute)
        columns.append(FrameColumn(label, attribute.name, place, cells))
    remark = "labels become their positions in the domain" if coded else ""
    return inputs_of_columns(columns, "; ".join(filter(None, (note, remark))))


def _labels(attribute: Attribute) -> list[tuple[int, str]]:
    """Return the codes and labels of an attribute that may have an indicator column, also for an empty cell."""
    if not attribute.values:
        few = attribute.size <= MOST_FLAGS
        return [(code, str(attribute.value(code))) for code in range(attribute.size)] if few else []
    labels = [*((code, label) for label, code in attribute.extra.items()), *enumerate(attribute.values)]
    if attribute.missing is not None:
        labels += [(int(attribute.codes([None])[0]), mark) for mark in EMPTY_FLAGS]
    return labels


def first_accepted(
    request: Request, ways: Sequence[ModelInputs], predict: Callable[[Any], Any]
) -> tuple[ModelInputs, Any]:
    """Return the first inputs that a model accepts, and its answers to the tried rows."""
    first: Exception | None = None
    for inputs in ways:
        try:
            return inputs, predict(inputs.of_rows(request.tried))
        except Exception as error:  # the model's own code
            first = first or error
    assert first is not None
    raise request.error(f"it refuses rows of the table ({type(first).__name__}: {one_line(first)})") from first


def position_note(request: Request) -> str:
    """Return a remark about columns that are matched by position."""
    names = request.domain.names
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"its inputs have no names, so columns are matched by position, in the order of the table: {shown}"


def _count_of(estimator: Any) -> int | None:
    """Return how many inputs an estimator has, or the first step of a pipeline that states it."""
    found: int | None = getattr(estimator, "n_features_in_", None)
    return _count_of(steps_of(estimator)[0]) if found is None and hasattr(estimator, "steps") else found


def _categories(part: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the categories of the fitted encoders in an estimator, by column."""
    if hasattr(part, "categories_"):
        return dict(zip(columns, map(list, part.categories_), strict=False))
    found: dict[str, list[Any]] = {}
    if hasattr(part, "_preprocessor"):  # the encoder inside histogram-based boosting
        return _categories(part._preprocessor, columns)
    for step in steps_of(part):
        found = _categories(step, columns) | found  # the first encoder reads the original table
    for _, step, chosen in getattr(part, "transformers_", ()):
        found |= _categories(step, selected_columns(getattr(part, "feature_names_in_", columns), chosen))
    return found


def as_array(answer: Any) -> np.ndarray:
    """Return a model's answer as an array."""
    found: np.ndarray = np.asarray(answer.detach().cpu() if isinstance(answer, torch.Tensor) else answer)
    if found.ndim == 0:
        raise ValueError(f"expected one score or label for each row, got {type(answer).__name__}")
    return found


SHOWN_FEW = 6  # names of columns of one input in a note
MOST_TEXTS = 1 << 17  # values of an attribute that may become text
REMEDY = (
    "Say how a table becomes its inputs: a function from a DataFrame to a tensor, a tuple or a dictionary of them, as "
    "preprocess=… or --preprocess package.module:name"
)


Raw = Literal["none", "named", "all"]  # inputs that get unscaled numbers: none, those named as columns, or all


@dataclass(frozen=True)
class NetworkInput:
    """One input of a network: its name, what it takes, and its shape for one row, () for a single number."""

    name: str
    kind: Literal["float", "whole", "text"]
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """How many cells of a row it takes."""
        return int(np.prod(self.shape))


def call(module: nn.Module, names: Sequence[str], tensors: Sequence[Tensor]) -> Any:
    """Call a module with tensors: by name, in their order, or as one dictionary."""
    if not names:
        return module(*tensors)
    named = dict(zip(names, tensors, strict=True))
    parameters = inspect.signature(module.forward).parameters
    by_name = set(names) <= set(parameters) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return module(**named) if by_name else module(named)


def preprocessed_tensors(request: Request) -> ModelInputs:
    """Return the tensors that the user's own preprocessing makes of the table."""
    function = request.preprocess
    assert function is not None

    def made(table: Any) -> Any:
        try:
            return function(table)
        except Exception as error:
            raise request.error(f"preprocess failed ({type(error).__name__}: {one_line(error)})") from error

    table = _table(request)
    first = made(table.of_rows(request.tried[:2]))
    names = tuple(map(str, first)) if isinstance(first, Mapping) else ()

    def tensors(table: Any) -> list[Tensor]:
        parts = made(table)
        if names:
            parts = [parts[name] for name in names]
        found = [_tensor(request, part) for part in (parts if isinstance(parts, (tuple, list)) else [parts])]
        if odd := [tuple(t.shape) for t in found if t.dim() == 0 or len(t) != len(table)]:
            raise request.error(f"preprocess made a tensor of shape {odd[0]} from {len(table)} rows")
        return found

    return replace(table.then(tensors), names=names, note=PREPROCESSED, program="the function preprocess")


def _tensor(request: Request, part: Any) -> Tensor:
    try:
        tensor = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
    except (TypeError, ValueError) as error:
        raise request.error(f"preprocess must make tensors or arrays of numbers ({one_line(error)})") from error
    return tensor.float() if tensor.is_floating_point() else tensor


def arguments(module: nn.Module) -> list[str]:
    """Return the names of the inputs that a module requires."""
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # compiled code
        return ["x"]
    return [p.name for p in parameters if p.default is p.empty and p.kind in plain]


def graph_inputs(
    request: Request, inputs: Sequence[NetworkInput], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> ModelInputs | None:
    """Return the inputs that a file describes; None for the numbers that the domain declares."""
    if request.preprocess is not None:
        return preprocessed_tensors(request)
    if len(inputs) == 1 and inputs[0].kind == "float" and inputs[0].name not in request.domain.names:
        return None
    return matched_inputs(request, inputs, raw=raw, texts=texts)


def column_inputs(request: Request, names: Sequence[str]) -> ModelInputs:
    """Return columns by the names of a module's arguments: labels as whole numbers (n,), other columns as (n, 1)."""
    if not set(names) <= set(request.domain.names):
        raise request.error(f"takes {', '.join(names)}, not all of which are columns of the domain. {REMEDY}")
    columns = [request.domain.attributes[request.domain.column(name)] for name in names]
    whole, number = ("whole", ()), ("float", (1,))
    return matched_inputs(request, [NetworkInput(a.name, *(whole if a.values else number)) for a in columns])


def matched_inputs(
    request: Request, inputs: Sequence[NetworkInput], *, raw: Raw = "none", texts: Sequence[str] = ()
) -> ModelInputs:
    """Return the inputs that a file describes: columns by their names, or by their types.

    An input of whole numbers gets the positions of labels among the values of the domain, or unscaled numbers. `raw`
    says which inputs get unscaled numbers throughout: none, those with the names of columns, or all. A text becomes its
    position in `texts`.
    """
    domain = request.domain.to("cpu")
    if {i.name for i in inputs} <= set(domain.names) and all(i.width == 1 for i in inputs):
        taken = [[domain.attributes[domain.column(i.name)]] for i in inputs]
        note = "each input is the column of its name"
        if any(a.values and i.kind != "text" and _numbers(a) is None for i, (a,) in zip(inputs, taken, strict=True)):
            note += ", with labels as their positions in the domain"
    else:
        taken = _by_kind(request, inputs)
        raw = "none" if raw == "named" else raw
        note = "; ".join(f"its input '{i.name}' is {_listed(i, a)}" for i, a in zip(inputs, taken, strict=True))
    as_is = raw != "none"
    makers = [[_column(request, a, i.kind, as_is, texts) for a in some] for i, some in zip(inputs, taken, strict=True)]

    def tensors(rows: Tensor) -> list[Tensor]:
        rows = rows.cpu()
        found = []
        for one, columns in zip(inputs, makers, strict=True):
            numbers = torch.stack([make(rows[:, place]) for place, make in columns], 1)
            numbers = numbers.float() if one.kind == "float" else numbers.round().long()
            found.append(numbers.reshape(len(rows), *one.shape))
        return found

    return ModelInputs(tensors, names=tuple(i.name for i in inputs), note=note)


def _by_kind(request: Request, inputs: Sequence[NetworkInput]) -> list[list[Attribute]]:
    """Return the attributes of each input, in the domain's order, if labels and numbers fill them exactly."""
    wanted = {kind: sum(i.width for i in inputs if i.kind == kind) for kind in ("whole", "float")}
    attributes = request.domain.attributes
    # Whole numbers may be all attributes with labels, or the nominal ones and flags alone.
    labelled = [a for a in attributes if a.values]
    for labels in (labelled, [a for a in attributes if a.kind in ("nominal", "flag")]):
        rest = {"whole": list(labels), "float": [a for a in attributes if a not in labels]}
        if all(i.kind in rest for i in inputs) and {kind: len(some) for kind, some in rest.items()} == wanted:
            return [[rest[i.kind].pop(0) for _ in range(i.width)] for i in inputs]
    shown = ", ".join(f"'{i.name}' ({i.width} {'numbers' if i.kind == 'float' else 'whole numbers'})" for i in inputs)
    count = len(labelled)
    raise request.error(
        f"its inputs {shown} do not fit the domain '{request.domain.name}', which has {count} columns of labels and "
        f"{len(attributes) - count} of numbers. {REMEDY}"
    )


def _column(
    request: Request, attribute: Attribute, kind: str, raw: bool, texts: Sequence[str]
) -> tuple[int, Callable[[Tensor], Tensor]]:
    """Return the position of a column, and the function from its codes to numbers."""
    place = request.domain.column(attribute.name)
    if kind == "text":
        table = torch.tensor([texts.index(text) for text in texts_of(attribute)], dtype=torch.float64)
        return place, lambda codes: table[codes.clamp(0, len(table) - 1)]
    if attribute.values:
        numbers = _numbers(attribute) if raw else None
        if numbers is None:
            return place, lambda codes: codes.double()
        return place, lambda codes: numbers[codes.clamp(0, len(numbers) - 1)]
    if raw or kind == "whole":
        return place, lambda codes: codes.double() * attribute.step + attribute.low
    number = attribute if attribute.encode == "scaled" else replace(attribute, encode="raw")
    encoding = TableEncoding([number])
    return place, lambda codes: encoding.encode(codes[:, None], torch.float64)[:, 0]


def texts_of(attribute: Attribute) -> list[str]:
    """Return all values of an attribute as texts, for a text input."""
    if attribute.size > MOST_TEXTS:
        raise ModelError(
            f"'{attribute.name}' is a text input with {attribute.size:,} values; at most {MOST_TEXTS:,} are supported"
        )
    return [str(attribute.value(code)) for code in range(attribute.size)]


def _numbers(attribute: Attribute) -> Tensor | None:
    """Return the labels of an attribute as numbers; None if one of them is none."""
    content = cells_of(attribute)
    found = [content[code] for code in range(attribute.size)]
    if any(isinstance(cell, str) or cell != cell for cell in found):
        return None
    return torch.tensor(found, dtype=torch.float64)


def _listed(one: NetworkInput, attributes: Sequence[Attribute]) -> str:
    names = ", ".join(a.name for a in attributes[:SHOWN_FEW]) + (", …" if len(attributes) > SHOWN_FEW else "")
    if one.kind == "whole":
        return f"the positions of {names} among the domain's values"
    return f"{names} as the domain declares them"
