"""Models from a user's own Python code: a torch module, a scikit-learn model, or any function of a table."""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from neuronfair.errors import did_you_mean, one_line
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.formats import ModelFile
from neuronfair.model.network import Network
from neuronfair.model.open.estimators import FittedModel, PredictMethod, ignore_warnings, is_estimator, open_estimator
from neuronfair.model.open.frames import function_inputs
from neuronfair.model.open.graphs import keras_file
from neuronfair.model.open.names import list_input_names
from neuronfair.model.open.opened import (
    ModelInputs,
    OpenedModel,
    OpenRequest,
    digest_estimator,
    fingerprint_by_scores,
    make_black_box,
    make_white_box,
    read_source_code,
)
from neuronfair.model.open.torch_modules import open_module
from neuronfair.model.weights import fingerprint, read_safetensors


def open_source(request: OpenRequest) -> OpenedModel:
    """Import `package.module:name`: a module or a function that makes one, a fitted model, or a function of a table."""
    model = import_object(request, request.source)
    if makes_model(model):
        make = model
        try:
            model = make()
            second = make() if request.weights is None and isinstance(model, nn.Module) else model
        except Exception as error:  # the user's own code
            raise request.error(f"calling it failed ({type(error).__name__}: {one_line(error)})") from error
        if second is not model and fingerprint(second) != fingerprint(model):
            raise request.error(
                "makes different weights in each call. Name those of the trained network: --weights FILE"
            )
    if request.weights is not None:
        if not isinstance(model, nn.Module):
            raise request.error(f"--weights is for a torch module, but this is {_kind(model)}")
        state, _ = read_safetensors(request.weights)
        try:
            model.load_state_dict(state, strict=True)
        except RuntimeError as error:
            reason = f"the weights in {request.weights} are not those of this module"
            raise request.error(f"{reason} ({one_line(error)})") from error
    return open_object(request, model)


def open_object(request: OpenRequest, model: Any) -> OpenedModel:
    """Open a model in memory by its type: a torch module or network, a fitted estimator, or a function."""
    if keras_file.is_keras(model):
        return keras_file.open_object(request, model)
    if isinstance(model, nn.Module):
        return open_module(request, "torch", model)
    if isinstance(model, Network):  # kept, since the user may have chosen its layers
        encoding = model.encoding if isinstance(model.encoding, TableEncoding) else None
        return replace(make_white_box(request, "torch", model.module, encoding=encoding), model=model)
    if isinstance(model, BlackBox):
        reason, code = "a function has no weights to read", read_source_code(model.predict)
        scores = ModelInputs(model.predict, of_numbers=model.inputs)
        result = make_black_box(request, "Python function", scores, reason, digest=code)
        return fingerprint_by_scores(request, result, model.predict)
    if is_estimator(model):
        return open_estimator(request, model, digest_estimator(model))
    if not callable(model):
        raise request.error(
            f"expected a torch module, a function that makes one, or a function of a table, got {_kind(model)}"
        )
    return open_function(request, model)


def open_function(request: OpenRequest, function: Any) -> OpenedModel:
    """Return a function of a table as a black box; its fingerprint covers its source code and its scores."""
    columns = list_input_names(function)
    columns = columns if columns is not None and set(columns) <= set(request.domain.names) else None
    method = PredictMethod(ignore_warnings(function) if inspect.ismethod(function) else function)
    model = FittedModel.of(request, "Python function", method, function_inputs(request, columns))
    reason = "a Python function has no weights to read; it gets tables of labels and numbers"
    return fingerprint_by_scores(request, model.make_black_box(model.note(reason), None), function)


def list_names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that a model reads; a function that makes a model is not called."""
    model = import_object(file, file.source)
    return None if isinstance(model, type) else list_input_names(model)


def import_object(request: ModelFile, name: str) -> Any:
    """Return the object `package.module:name`; its module may be in the working folder."""
    module_name, _, name = name.partition(":")
    _check_not_shadowed(request, module_name.partition(".")[0])
    importlib.invalidate_caches()
    try:
        with _WORKING_FOLDER.open(Path.cwd()):
            value: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # importing runs the user's own code
        raise request.error(
            f"'{module_name}' cannot be imported ({type(error).__name__}: {one_line(error)})"
        ) from error
    for part in name.split("."):
        if not hasattr(value, part):
            public = [word for word in dir(value) if not word.startswith("_")]
            raise request.error(f"there is no '{part}' in it. {did_you_mean(part, public)}")
        value = getattr(value, part)
    return value


def unpickle(content: bytes) -> Any:
    """Return what another process of this program has pickled; its modules may be in the working folder."""
    with _WORKING_FOLDER.open(Path.cwd()):
        return pickle.loads(content)


def _check_not_shadowed(request: ModelFile, name: str) -> None:
    """Refuse a module in the working folder that has the name of an installed package."""
    own_spec = PathFinder.find_spec(name, [str(Path.cwd())])
    if own_spec is None or not own_spec.has_location:  # not there, or a folder without __init__.py
        return
    loaded_spec = getattr(sys.modules.get(name), "__spec__", None)
    other_folders = [folder for folder in sys.path if Path(folder).resolve() != Path.cwd().resolve()]
    installed_spec = loaded_spec or PathFinder.find_spec(name, other_folders)
    if installed_spec is not None and installed_spec.origin != own_spec.origin:
        raise request.error(
            f"'{name}' is {own_spec.origin}, and also the name of the package {installed_spec.origin}. Rename the file "
            "of your own"
        )


class _WorkingFolder(MetaPathFinder):
    """Finds modules in the working folder, for imports of the user's own modules alone.

    With the folder on `sys.path`, any import of pandas would take a file pandas.py in it. This finder comes last, so
    that an installed package goes before a file of the same name.
    """

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self._opened: list[Path] = []  # while `import_object` imports the module that the user has named

    @contextmanager
    def open(self, folder: Path) -> Iterator[None]:
        """Let imports in this context, and later those of modules in the folder, find modules there."""
        folder = folder.resolve()
        if folder not in self._folders:
            self._folders.append(folder)
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        self._opened.append(folder)
        try:
            yield
        finally:
            self._opened.pop()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return the place of a module, if a module in the folder, or this file, imports it."""
        if path is not None:  # inside a package
            return None
        importer = _find_importer()
        if importer == Path(__file__):
            folders = self._opened[-1:]
        else:
            folders = [folder for folder in self._folders if importer is not None and importer.is_relative_to(folder)]
        search_path = [str(folder) for folder in folders]
        return PathFinder.find_spec(fullname, search_path) if search_path else None


def _find_importer() -> Path | None:
    """Return the file whose code runs the current import; None for code without a file."""
    frame: FrameType | None = sys._getframe(1)
    machinery = (importlib.__file__, "<frozen importlib")
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(machinery) and frame.f_code.co_name not in ("find_spec", "_find_importer"):
            return None if file.startswith("<") else Path(file).resolve()
        frame = frame.f_back
    return None


_WORKING_FOLDER = _WorkingFolder()


def makes_model(value: Any) -> bool:
    """Return whether something is a class or a function without arguments, which makes a model."""
    if isinstance(value, type) or not callable(value) or isinstance(value, nn.Module):
        return isinstance(value, type)
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in optional for p in parameters)


def _kind(value: Any) -> str:
    return f"{'an' if type(value).__name__[0] in 'aeiouAEIOU' else 'a'} {type(value).__name__}"
