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
from neuronfair.model.network import Network
from neuronfair.model.open.estimators import is_estimator, open_estimator, open_function
from neuronfair.model.open.graphs import keras_file
from neuronfair.model.open.names import input_names
from neuronfair.model.open.opened import (
    ModelFile,
    ModelInputs,
    OpenedModel,
    Request,
    black_box,
    estimator_digest,
    fingerprinted_by_scores,
    source_code,
    white_box,
)
from neuronfair.model.open.torch_modules import open_module
from neuronfair.model.weights import fingerprint, read_safetensors


def open(request: Request) -> OpenedModel:  # noqa: A001 - each reader has a function of this name
    """Import `package.module:name`: a module or a function that makes one, a fitted model, or a function of a table."""
    found = import_object(request, request.source)
    if makes_model(found):
        make = found
        try:
            found = make()
            again = make() if request.weights is None and isinstance(found, nn.Module) else found
        except Exception as error:  # the user's own code
            raise request.error(f"calling it failed ({type(error).__name__}: {one_line(error)})") from error
        if again is not found and fingerprint(again) != fingerprint(found):
            raise request.error(
                "makes different weights in each call. Name those of the trained network: --weights FILE"
            )
    if request.weights is not None:
        if not isinstance(found, nn.Module):
            raise request.error(f"--weights is for a torch module, but this is {_kind(found)}")
        state, _ = read_safetensors(request.weights)
        try:
            found.load_state_dict(state, strict=True)
        except RuntimeError as error:
            why = f"the weights in {request.weights} are not those of this module"
            raise request.error(f"{why} ({one_line(error)})") from error
    return open_object(request, found)


def open_object(request: Request, thing: Any) -> OpenedModel:
    """Open a model in memory by its type: a torch module or network, a fitted estimator, or a function."""
    if keras_file.is_keras(thing):
        return keras_file.open_object(request, thing)
    if isinstance(thing, nn.Module):
        return open_module(request, "torch", thing)
    if isinstance(thing, Network):  # kept, since the user may have chosen its layers
        encoding = thing.encoding if isinstance(thing.encoding, TableEncoding) else None
        return replace(white_box(request, "torch", thing.module, encoding=encoding), model=thing)
    if isinstance(thing, BlackBox):
        why, code = "a function has no weights to read", source_code(thing.predict)
        scores = ModelInputs(thing.predict, of_numbers=thing.inputs)
        found = black_box(request, "Python function", scores, why, digest=code)
        return fingerprinted_by_scores(request, found, thing.predict)
    if is_estimator(thing):
        return open_estimator(request, thing, estimator_digest(thing))
    if not callable(thing):
        raise request.error(
            f"expected a torch module, a function that makes one, or a function of a table, got {_kind(thing)}"
        )
    return open_function(request, thing)


def names(file: ModelFile) -> list[str] | None:
    """Return the names of the columns that a model reads; a function that makes a model is not called."""
    found = import_object(file, file.source)
    return None if isinstance(found, type) else input_names(found)


def import_object(request: ModelFile, what: str) -> Any:
    """Return the object `package.module:name`; its module may be in the working folder."""
    module_name, _, name = what.partition(":")
    _check_clear(request, module_name.partition(".")[0])
    importlib.invalidate_caches()
    try:
        with _WORKING_FOLDER.open(Path.cwd()):
            found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # importing runs the user's own code
        raise request.error(
            f"'{module_name}' cannot be imported ({type(error).__name__}: {one_line(error)})"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [word for word in dir(found) if not word.startswith("_")]
            raise request.error(f"there is no '{part}' in it. {did_you_mean(part, public)}")
        found = getattr(found, part)
    return found


def unpickle(content: bytes) -> Any:
    """Return what another process of this program has pickled; its modules may be in the working folder."""
    with _WORKING_FOLDER.open(Path.cwd()):
        return pickle.loads(content)


def _check_clear(request: ModelFile, name: str) -> None:
    """Refuse a module in the working folder that has the name of an installed package."""
    here = PathFinder.find_spec(name, [str(Path.cwd())])
    if here is None or not here.has_location:  # not there, or a folder without __init__.py
        return
    known = getattr(sys.modules.get(name), "__spec__", None)
    elsewhere = [place for place in sys.path if Path(place).resolve() != Path.cwd().resolve()]
    other = known or PathFinder.find_spec(name, elsewhere)
    if other is not None and other.origin != here.origin:
        raise request.error(
            f"'{name}' is {here.origin}, and also the name of the package {other.origin}. Rename the file of your own"
        )


class _WorkingFolder(MetaPathFinder):
    """Finds modules in the working folder, for imports of the user's own modules alone.

    With the folder on `sys.path`, any import of pandas would take a file pandas.py in it. This finder comes last, so
    that an installed package goes before a file of the same name.
    """

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self._opened: list[Path] = []  # while `imported` imports the module that the user has named

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
        """Return the place of a module, if a module in the folder, or `imported`, imports it."""
        if path is not None:  # inside a package
            return None
        importer = _importer()
        if importer == Path(__file__):
            folders = self._opened[-1:]
        else:
            folders = [folder for folder in self._folders if importer is not None and importer.is_relative_to(folder)]
        places = [str(folder) for folder in folders]
        return PathFinder.find_spec(fullname, places) if places else None


def _importer() -> Path | None:
    """Return the file whose code runs the current import; None for code without a file."""
    frame: FrameType | None = sys._getframe(1)
    machinery = (importlib.__file__, "<frozen importlib")
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(machinery) and frame.f_code.co_name not in ("find_spec", "_importer"):
            return None if file.startswith("<") else Path(file).resolve()
        frame = frame.f_back
    return None


_WORKING_FOLDER = _WorkingFolder()


def makes_model(found: Any) -> bool:
    """Return whether something is a class or a function without arguments, which makes a model."""
    if isinstance(found, type) or not callable(found) or isinstance(found, nn.Module):
        return isinstance(found, type)
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in optional for p in parameters)


def _kind(thing: Any) -> str:
    return f"{'an' if type(thing).__name__[0] in 'aeiouAEIOU' else 'a'} {type(thing).__name__}"
