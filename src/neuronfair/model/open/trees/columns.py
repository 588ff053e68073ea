"""What the models of LightGBM and CatBoost say of the columns they were trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from neuronfair.domain.table import TableDomain
from neuronfair.model.open.frames import cells, spelling

FRAMEWORKS = {"xgboost": "XGBoost", "lightgbm": "LightGBM", "catboost": "CatBoost"}
PLACE = re.compile(r"Column_\d+")  # how LightGBM calls a column without a name


@dataclass(frozen=True)
class TreeColumns:
    """The columns of a model: their names, and which of them are categories, with a list of these or of any text."""

    names: tuple[str, ...]
    typed: Mapping[str, Sequence[Any] | None]
    named: bool  # by the user, and not by their places


def framework(model: Any) -> str:
    """Return the name of the framework of boosted trees that a model belongs to, or nothing."""
    return FRAMEWORKS.get(type(model).__module__.partition(".")[0], "")


def tree_columns(model: Any, domain: TableDomain) -> TreeColumns | None:
    """Return the columns of a fitted model of LightGBM or CatBoost; None for any other."""
    kind = framework(model)
    return _of_lightgbm(model, domain) if kind == "LightGBM" else _of_catboost(model) if kind == "CatBoost" else None


def _of_catboost(model: Any) -> TreeColumns:
    names = tuple(model.feature_names_)
    typed = dict.fromkeys(names[place] for place in model.get_cat_feature_indices())
    return TreeColumns(names, typed, named=names != tuple(map(str, range(len(names)))))


def _of_lightgbm(model: Any, domain: TableDomain) -> TreeColumns:
    booster = getattr(model, "booster_", model)
    names, known = tuple(booster.feature_name()), booster.pandas_categorical or []
    places = getattr(booster, "categorical_places", None)
    places = categorical_places(booster.model_to_string(num_iteration=1)) if places is None else places
    if len(places) != len(known):  # some are numbers, or have an order, which LightGBM reads as numbers
        places = _fitting(names, known, domain)
    typed = {names[place]: values for place, values in zip(places, known, strict=True) if place < len(names)}
    return TreeColumns(names, typed, named=not all(map(PLACE.fullmatch, names)))


def entries(text: str) -> dict[str, str]:
    """Return the lines of a part of a LightGBM model, each a name and what it says."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def categorical_places(text: str) -> list[int]:
    """Return which columns were categories in the training of a LightGBM model, by the parameters in its text.

    >>> categorical_places("parameters:\\n[categorical_feature: 1,3]\\n")
    [1, 3]
    """
    found = re.search(r"^\[categorical_feature: ([\d,]*)\]", text, re.MULTILINE)
    return [int(place) for place in found[1].split(",") if place] if found else []


def _fitting(names: Sequence[str], known: Sequence[Sequence[Any]], domain: TableDomain) -> list[int]:
    """Return for each list of categories the next column that has values among them."""
    own = {name.replace(" ", "_"): attribute for name, attribute in zip(domain.names, domain.attributes, strict=True)}
    places, left = [], list(enumerate(names))
    for values in known:
        wanted = {spelling(value) for value in values}
        while left:
            place, name = left.pop(0)
            attribute = own.get(name.replace(" ", "_"))
            if attribute is not None and wanted & {spelling(cell) for cell in cells(attribute, values).values()}:
                places.append(place)
                break
        else:
            places.append(len(names))  # of a column that the domain does not have, as will be said
    return places
