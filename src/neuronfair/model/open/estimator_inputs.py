"""Ways to give rows to a fitted estimator: the table itself, numbers by column name, or the domain's encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import did_you_mean, needs, one_line
from neuronfair.model.blackbox import as_scores
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.columns import input_names, picked
from neuronfair.model.open.frames import FrameColumn, Frames, TypedColumn, as_text, cells
from neuronfair.model.open.request import Opened, Request
from neuronfair.model.open.trees.columns import TreeColumns

SHOWN = 30  # names of columns in a note
_EMPTY = ("?", "nan", "NaN", "NA", "None")  # how a column of dummies for an empty cell may end


@dataclass(frozen=True)
class EstimatorInputs:
    """One way to turn rows of codes into what an estimator is given; the note is for the user."""

    given: Callable[[Tensor], Any]
    note: str = ""
    declared: bool = False  # it is given the numbers that the domain file declares
    of_frame: Callable[[Any], Any] | None = None  # the same of a DataFrame of original cells
    by_position: bool | None = False  # whether columns are matched by their order alone; None: that has to be tried


def readings(request: Request, estimator: Any, *, bare: bool, names: list[str] | None = None) -> list[EstimatorInputs]:
    """Return the ways that fit what an estimator says of its inputs, the most likely first.

    `names` are the columns that are read by it and others beside it, where there are some.
    """
    domain = request.domain.to("cpu")
    if request.preprocess is not None:
        function, table = request.preprocess, Frames(domain, types=request.types)
        return [
            EstimatorInputs(
                lambda rows: function(table.of_rows(rows)),
                "rows go through preprocess",
                of_frame=lambda frame: function(table.of_frame(frame)),
            )
        ]
    if isinstance(estimator, TreeColumns):
        return _of_trees(request, domain, estimator)
    names = names or input_names(estimator)
    if names is not None:
        return _by_name(request, domain, names, estimator, bare)
    return _by_place(request, domain, estimator, bare)


def _by_place(request: Request, domain: TableDomain, estimator: Any, bare: bool) -> list[EstimatorInputs]:
    """Return the ways to give rows to an estimator without column names.

    A pipeline is given the table's cells. So is what does not say how many inputs it has, and any estimator if the
    domain was read off the table: nobody has declared other numbers then.
    """
    encoding, said = TableEncoding.of(domain), _said(estimator, "n_features_in_")
    ways = []
    if (request.inferred or not bare or said is None) and said in (None, len(domain.names)):
        frames = Frames(domain, known=_categories(estimator, domain.names), types=request.types)
        ways = [
            EstimatorInputs(frames.of_rows, of_frame=frames.of_frame, by_position=said is not None or None),
            EstimatorInputs(
                lambda rows: frames.of_rows(rows).to_numpy(),
                of_frame=lambda frame: frames.of_frame(frame).to_numpy(),
                by_position=True,
            ),
        ]
    if bare and said in (None, encoding.width):
        note = f"it is given the {encoding.width} numbers of the domain's encoding, because it has no column names"
        ways.append(
            EstimatorInputs(lambda rows: encoding.encode(rows.cpu()).numpy(), note, declared=True, by_position=True)
        )
    if ways:
        return ways
    if bare:
        raise request.error(f"expects {said} inputs. {request.widths()}")
    has = f"{len(domain.names)}{request.fewer(len)}"
    raise request.error(f"expects {said} columns, but the domain '{domain.name}' has {has}")


def _of_trees(request: Request, domain: TableDomain, known: TreeColumns) -> list[EstimatorInputs]:
    encoding, names = TableEncoding.of(domain), list(known.names)
    if known.named:
        return [_numbers(request, domain, names, known.typed)]
    if len(names) == len(domain.names):
        note = "it is given the columns in the domain's order, because it has no column names"
        typed = {own: known.typed[name] for own, name in zip(domain.names, names, strict=True) if name in known.typed}
        return [replace(_numbers(request, domain, list(domain.names), typed, note), by_position=True)]
    if len(names) == encoding.width and not known.typed:
        note = f"it is given the {len(names)} numbers of the domain's encoding, because it has no column names"
        return [
            EstimatorInputs(lambda rows: encoding.encode(rows.cpu()).numpy(), note, declared=True, by_position=True)
        ]
    raise request.error(f"expects {len(names)} inputs. {request.widths()}")


def _said(estimator: Any, what: str) -> Any:
    """Return what an estimator says of its inputs, or the first step of a pipeline that says something."""
    steps = (step for _, step in getattr(estimator, "steps", ()) if step not in (None, "passthrough"))
    found = getattr(estimator, what, None)
    return _said(next(steps), what) if found is None and hasattr(estimator, "steps") else found


def first_that_works(
    request: Request, ways: Sequence[EstimatorInputs], ask: Callable[[Any], np.ndarray]
) -> tuple[EstimatorInputs, np.ndarray]:
    """Return the first way to give rows to the estimator that it accepts, and its answers to the tried rows."""
    first: Exception | None = None
    for reading in ways:
        try:
            answers = ask(reading.given(request.tried)).astype(np.float64)
            return reading, answers[:, None] if answers.ndim == 1 else answers
        except Exception as error:  # the estimator's own code
            first = first or error
    assert first is not None
    raise request.error(f"it refuses rows of the table ({type(first).__name__}: {one_line(first)})") from first


def positions(request: Request) -> str:
    """Return a remark on columns that were matched by position."""
    names = request.domain.names
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"its inputs have no names, so columns are matched by position, in the order of the table: {shown}"


def with_frames(opened: Opened, ask: Callable[[Any], np.ndarray], reading: EstimatorInputs) -> Opened:
    """Return a model that can be asked about original cells, if it is given the table and not numbers made of it."""
    given = reading.of_frame
    return opened if given is None else replace(opened, scores_of_frame=lambda table: as_scores(ask(given(table))))


def _by_name(
    request: Request, domain: TableDomain, names: list[str], estimator: Any, bare: bool
) -> list[EstimatorInputs]:
    if set(names) <= set(domain.names):
        frames = Frames(domain, names, _categories(estimator, names), categorical=bare, types=request.types)
        if not bare:
            return [EstimatorInputs(frames.of_rows, of_frame=frames.of_frame)]
        return [
            EstimatorInputs(frames.of_rows, of_frame=frames.of_frame),
            _numbers(request, domain, names),
        ]
    if not bare:
        missing = next(name for name in names if name not in domain.names)
        raise request.error(
            f"reads a column '{missing}', which the domain does not have. Add it to the domain file. "
            f"{did_you_mean(missing, domain.names)}"
        )
    return [_numbers(request, domain, names)]


def _numbers(
    request: Request,
    domain: TableDomain,
    names: list[str],
    typed: Mapping[str, Sequence[Any] | None] | None = None,
    note: str = "",
) -> EstimatorInputs:
    """Return columns of numbers: an attribute by its name, or whether it has one value, as in 'sex_Male'.

    The `typed` among them are categories or texts. LightGBM writes '_' for every blank in a name.
    """
    pandas = needs("pandas", "sklearn")
    values = [(place, a.name, _labels(a)) for place, a in enumerate(domain.attributes)]
    flags = {f"{name}_{label}": (place, code) for place, name, labels in values for code, label in labels}
    flags |= {
        f"{a.name}_{mark}": (place, code)
        for place, a in enumerate(domain.attributes)
        for mark in _EMPTY
        for code in _empty_code(a)
    }
    columns: list[tuple[int, Callable[[np.ndarray], Any], Callable[[Any], Any]]] = []  # of codes, and of cells
    own, typed, places = set(domain.names), typed or {}, False
    blanks = {name.replace(" ", "_"): name for name in (*flags, *domain.names)}
    for said in names:
        name = said if said in own or said in flags else blanks.get(said, said)
        if name in own:
            place = domain.column(name)
            content = cells(domain.attributes[place])
            if said in typed:
                column = TypedColumn(domain.attributes[place], typed[said])
                columns.append((place, column.of, column.of_cells))
            elif any(isinstance(cell, str) for cell in content.values()):
                places = True
                columns.append((place, lambda codes: codes, domain.attributes[place].codes))
            else:
                numbers = np.array(list(content.values()), dtype=np.float64)
                of_codes = FrameColumn(domain.attributes[place], content, pandas.array(numbers)).of
                columns.append((place, of_codes, partial(_as_floats, domain.attributes[place])))
        elif name in flags:
            place, code = flags[name]
            columns.append((place, partial(np.equal, code), partial(_is_value, name, domain.attributes[place])))
        else:
            raise request.error(
                f"reads a column '{name}', which is neither an attribute of the domain nor one of its values. "
                f"{did_you_mean(name, [*domain.names, *flags])}"
            )

    def given(rows: Tensor) -> Any:
        codes = rows.cpu().numpy()
        return table_of([of_codes(codes[:, place]) for place, of_codes, _ in columns])

    def of_frame(table: Any) -> Any:
        return table_of([of_cells(table[domain.names[place]]) for place, _, of_cells in columns])

    def table_of(made: Sequence[Any]) -> Any:
        numbers = [
            np.zeros(len(cells)) if name in typed else np.asarray(cells, dtype=np.float64)
            for name, cells in zip(names, made, strict=True)
        ]
        table = pandas.DataFrame(np.stack(numbers, 1), columns=names)
        return table.assign(**{name: cells for name, cells in zip(names, made, strict=True) if name in typed})

    labels = "labels are given as their places in the domain" if places else ""
    return EstimatorInputs(given, "; ".join(filter(None, (note, labels))), of_frame=of_frame)


def _as_floats(attribute: Attribute, column: Any) -> np.ndarray:
    """Return original cells, a Series, as numbers; an empty one is NaN."""
    if column.dtype.kind == "m":  # durations are read as seconds
        column = column.dt.total_seconds()
    if column.dtype.kind in "iufb":
        numbers: np.ndarray = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return numbers
    found = [None if cell is None or cell != cell else attribute.number(as_text(cell)) for cell in column]
    return np.array([np.nan if number is None else number for number in found])


def _is_value(name: str, attribute: Attribute, column: Any) -> np.ndarray:
    """Return which original cells, a Series, a column of dummies such as 'sex_Male' is one for."""
    value = name.removeprefix(f"{attribute.name}_")
    if value in _EMPTY and value not in attribute.values:
        return np.asarray(column.isna() | column.map(as_text).isin(_EMPTY))
    return np.asarray(column.map(as_text) == value)


def _labels(attribute: Attribute) -> list[tuple[int, Any]]:
    if attribute.values:
        return [*((code, label) for label, code in attribute.extra.items()), *enumerate(attribute.values)]
    return [(code, attribute.value(code)) for code in range(attribute.size)] if attribute.size <= 256 else []


def _empty_code(attribute: Attribute) -> list[int]:
    """Return the code that an empty cell has among labels, if it has one."""
    return [int(attribute.codes([None])[0])] if attribute.values and attribute.missing is not None else []


def _categories(part: Any, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Return the categories that the encoders inside an estimator know, by column, as far as they can be told."""
    if hasattr(part, "categories_"):
        return dict(zip(columns, map(list, part.categories_), strict=False))
    found: dict[str, list[Any]] = {}
    if hasattr(part, "_preprocessor"):  # the encoder inside histogram-based boosting
        return _categories(part._preprocessor, columns)
    for _, step in getattr(part, "steps", ()):
        found = _categories(step, columns) | found  # the first encoder sees the table itself
    for _, step, chosen in getattr(part, "transformers_", ()):
        found |= _categories(step, picked(getattr(part, "feature_names_in_", columns), chosen))
    return found
