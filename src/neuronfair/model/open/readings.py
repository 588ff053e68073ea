"""Ways to give rows to a fitted estimator: the table itself, numbers by column name, or the domain's encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.table import TableDomain
from neuronfair.errors import did_you_mean, needs, one_line
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open.columns import input_names, picked
from neuronfair.model.open.frames import Column, Frames, TypedColumn, cells
from neuronfair.model.open.opened import Request
from neuronfair.model.open.trees import TreeColumns

_EMPTY = ("?", "nan", "NaN", "NA", "None")  # how a column of dummies for an empty cell may end


@dataclass(frozen=True)
class Reading:
    """One way to turn rows of codes into what an estimator is given; the note is for the user."""

    given: Callable[[Tensor], Any]
    note: str = ""
    declared: bool = False  # it is given the numbers that the domain file declares


def readings(request: Request, estimator: Any, *, bare: bool, names: list[str] | None = None) -> list[Reading]:
    """Return the ways that fit what an estimator says of its inputs, the most likely first.

    `names` are the columns that are read by it and others beside it, where there are some.
    """
    domain = request.domain.to("cpu")
    if request.preprocess is not None:
        function, table = request.preprocess, Frames(domain)
        return [Reading(lambda rows: function(table.of_rows(rows)), "rows go through preprocess")]
    if isinstance(estimator, TreeColumns):
        return _of_trees(request, domain, estimator)
    names = names or input_names(estimator)
    if names is not None:
        return _by_name(request, domain, names, estimator, bare)
    encoding = TableEncoding.of(domain)
    width = _said(estimator, "n_features_in_") or (encoding.width if bare else len(domain.names))
    if bare and width == encoding.width:
        note = f"it is given the {width} numbers of the domain's encoding, because it has no column names"
        return [Reading(lambda rows: encoding.encode(rows.cpu()).numpy(), note, declared=True)]
    if not bare and width == len(domain.names):
        frames = Frames(domain, known=_categories(estimator, domain.names))
        note = "it is given the columns in the domain's order, because it has no column names"
        return [Reading(lambda rows: frames.of_rows(rows).to_numpy(), note)]
    if bare:
        raise request.error(f"expects {width} inputs. {request.widths()}")
    has = f"{len(domain.names)}{request.fewer(len)}"
    raise request.error(f"expects {width} columns, but the domain '{domain.name}' has {has}")


def _of_trees(request: Request, domain: TableDomain, known: TreeColumns) -> list[Reading]:
    encoding, names = TableEncoding.of(domain), list(known.names)
    if known.named:
        return [_numbers(request, domain, names, known.typed)]
    if len(names) == len(domain.names):
        note = "it is given the columns in the domain's order, because it has no column names"
        typed = {own: known.typed[name] for own, name in zip(domain.names, names, strict=True) if name in known.typed}
        return [_numbers(request, domain, list(domain.names), typed, note)]
    if len(names) == encoding.width and not known.typed:
        note = f"it is given the {len(names)} numbers of the domain's encoding, because it has no column names"
        return [Reading(lambda rows: encoding.encode(rows.cpu()).numpy(), note, declared=True)]
    raise request.error(f"expects {len(names)} inputs. {request.widths()}")


def _said(estimator: Any, what: str) -> Any:
    """Return what an estimator says of its inputs, or the first step of a pipeline that says something."""
    steps = (step for _, step in getattr(estimator, "steps", ()) if step not in (None, "passthrough"))
    found = getattr(estimator, what, None)
    return _said(next(steps), what) if found is None and hasattr(estimator, "steps") else found


def first_that_works(
    request: Request, ways: Sequence[Reading], ask: Callable[[Any], np.ndarray]
) -> tuple[Reading, np.ndarray]:
    """Return the first way to give rows to the estimator that it accepts, and its answers to the tried rows."""
    for reading in ways:
        try:
            answers = ask(reading.given(request.tried)).astype(np.float64)
            return reading, answers[:, None] if answers.ndim == 1 else answers
        except Exception as error:  # the estimator's own code
            last = error
    raise request.error(
        f"it refuses rows of the domain ({one_line(last)}). Take out of the domain file what it was not trained for"
    ) from last


def _by_name(request: Request, domain: TableDomain, names: list[str], estimator: Any, bare: bool) -> list[Reading]:
    if set(names) <= set(domain.names):
        frames = Frames(domain, names, _categories(estimator, names), categorical=bare)
        if not bare:
            return [Reading(frames.of_rows)]
        return [
            Reading(frames.of_rows),
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
) -> Reading:
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
    columns: list[tuple[int, Callable[[np.ndarray], Any]]] = []
    own, typed, places = set(domain.names), typed or {}, False
    blanks = {name.replace(" ", "_"): name for name in (*flags, *domain.names)}
    for said in names:
        name = said if said in own or said in flags else blanks.get(said, said)
        if name in own:
            place = domain.column(name)
            content = cells(domain.attributes[place])
            if said in typed:
                columns.append((place, TypedColumn(domain.attributes[place], typed[said]).of))
            elif any(isinstance(cell, str) for cell in content.values()):
                places = True
                columns.append((place, lambda codes: codes))
            else:
                numbers = np.array(list(content.values()), dtype=np.float64)
                columns.append((place, Column(domain.attributes[place], content, pandas.array(numbers)).of))
        elif name in flags:
            place, code = flags[name]
            columns.append((place, partial(np.equal, code)))
        else:
            raise request.error(
                f"reads a column '{name}', which is neither an attribute of the domain nor one of its values. "
                f"{did_you_mean(name, [*domain.names, *flags])}"
            )

    def given(rows: Tensor) -> Any:
        codes = rows.cpu().numpy()
        made = [column(codes[:, place]) for place, column in columns]
        numbers = [
            np.zeros(len(codes)) if name in typed else np.asarray(cells, dtype=np.float64)
            for name, cells in zip(names, made, strict=True)
        ]
        table = pandas.DataFrame(np.stack(numbers, 1), columns=names)
        return table.assign(**{name: cells for name, cells in zip(names, made, strict=True) if name in typed})

    labels = "labels are given as their places in the domain" if places else ""
    return Reading(given, "; ".join(filter(None, (note, labels))))


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
