"""Files of fitted models: .skops and pickles of scikit-learn, and the own formats of XGBoost, LightGBM and CatBoost."""

from __future__ import annotations

import json
import warnings
from typing import Any

from torch import nn

from neuronfair.errors import NeuronFairError, needs, one_line
from neuronfair.limits import TREE, check_array, check_size, members, repacked
from neuronfair.model.open.request import ModelFile
from neuronfair.model.open.trees import catboost, lightgbm, xgboost

# Types in the files of ordinary perceptrons that skops does not list as safe; none of them runs anything when opened.
_PLAIN = {
    "numpy.dtype",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
    "sklearn.compose._column_transformer._RemainderColsList",
}


def read(file: ModelFile) -> tuple[Any, str]:
    """Return the model in a file, and a remark for the user; a pickle is opened whoever has made it."""
    suffix = file.path.suffix.lower()
    if suffix in (".ubj", ".json"):
        return xgboost.read(file)
    if suffix in (".txt", ".cbm"):
        return (lightgbm.read if suffix == ".txt" else catboost.read)(file), ""
    needs("sklearn", "sklearn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            estimator = _read_skops(file) if suffix == ".skops" else needs("joblib", "sklearn").load(file.path)
        except (Exception, SystemExit) as error:
            if isinstance(error, NeuronFairError):
                raise
            raise file.error(f"cannot be read ({type(error).__name__}: {one_line(error)})") from error
    if not is_estimator(estimator):
        raise file.error(f"holds no model with a method predict, but {type(estimator).__name__}")
    old = next((w.message for w in caught if w.category.__name__ == "InconsistentVersionWarning"), None)
    version = getattr(old, "original_sklearn_version", None)
    return estimator, f"it was saved by scikit-learn {version}, which is not the version used here" if version else ""


def is_estimator(thing: Any) -> bool:
    """Return whether something is a fitted model in the manner of scikit-learn."""
    return not isinstance(thing, (type, nn.Module)) and callable(getattr(thing, "predict", None))


def _read_skops(file: ModelFile) -> Any:
    skops = needs("skops.io", "sklearn")
    content = _checked(file)
    unknown = skops.get_untrusted_types(data=content)
    doubtful = [name for name in unknown if name not in _PLAIN]
    if doubtful and not file.trust_pickle:
        names = ", ".join(doubtful[:6]) + (", …" if len(doubtful) > 6 else "")
        raise file.error(f"holds types that can run a program when opened: {names}. If you trust it: --trust-pickle")
    return skops.loads(content, trusted=unknown)


def _checked(file: ModelFile) -> bytes:
    """Return a .skops archive, unpacked, after a look at how large it and the arrays in it are."""
    files = members(file.content, file.source)
    check_size(len(files["schema.json"]), file.source, times=TREE)
    total = sum(map(len, files.values()))
    for name, content in files.items():
        arrays = {name: content}
        if name.endswith(".npz"):  # a sparse matrix: an archive in the archive
            arrays = members(content, file.source, besides=total)
            total += sum(map(len, arrays.values()))
            files[name] = repacked(arrays)
        for array in arrays:
            if array.endswith(".npy"):
                check_array(arrays[array])
    read = 0

    def note(entry: dict[str, Any]) -> None:
        nonlocal read
        read += len(files.get(entry.get("file", ""), ""))

    json.loads(files["schema.json"], object_hook=note)
    check_size(read, file.source, times=2)  # an array that is named twice is read twice
    return repacked(files)
