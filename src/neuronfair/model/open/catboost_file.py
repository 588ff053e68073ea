"""CatBoost model files (.cbm): black boxes that are given the columns they were trained on."""

from __future__ import annotations

from neuronfair.apart import Unreadable, read_apart
from neuronfair.errors import needs, one_line
from neuronfair.model.open import scikit
from neuronfair.model.open.opened import Opened, Request


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Read trees that CatBoost has saved in its own format."""
    catboost = needs("catboost", "catboost")
    if not request.content.startswith(b"CBM1"):
        raise request.error("not a CatBoost model: it does not begin with 'CBM1'")
    try:
        content = read_apart("oblivious", request.content, request.source)
        model = catboost.CatBoost().load_model(blob=content)
    except (Unreadable, catboost.CatBoostError) as error:
        raise request.error(f"not a readable CatBoost model ({one_line(error)})") from None
    kind = catboost.CatBoostClassifier if len(model.classes_) else catboost.CatBoostRegressor
    return scikit.open_estimator(request, kind().load_model(blob=content), request.digest)
