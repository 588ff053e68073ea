"""CatBoost model files (.cbm): black boxes that are given the columns they were trained on."""

from __future__ import annotations

from typing import Any

from neuronfair.errors import needs, one_line
from neuronfair.model.open.columns import input_names
from neuronfair.model.open.request import ModelFile, Opened, Request
from neuronfair.model.open.sklearn import estimators
from neuronfair.sandbox import Unreadable, read_apart


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read trees that CatBoost has saved in its own format."""
    model, content = _read(request)
    kind = _catboost().CatBoostClassifier if len(model.classes_) else _catboost().CatBoostRegressor
    return estimators.open_estimator(request, kind().load_model(blob=content), request.digest)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that the trees were trained on, unless CatBoost has numbered them."""
    return input_names(_read(file)[0])


def _catboost() -> Any:
    return needs("catboost", "catboost")


def _read(request: ModelFile) -> tuple[Any, bytes]:
    """Return a model, and its content as CatBoost has written it again in another process."""
    catboost = _catboost()
    if not request.content.startswith(b"CBM1"):
        raise request.error("not a CatBoost model: it does not begin with 'CBM1'")
    try:
        content = read_apart("read_catboost", request.content, request.source)
        model = catboost.CatBoost().load_model(blob=content)
    except (Unreadable, catboost.CatBoostError) as error:
        raise request.error(f"not a readable CatBoost model ({one_line(error)})") from None
    return model, content
