"""What a user's own Python code defines: a torch module, a scikit-learn model, or any function of a table."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from neuronfair.errors import did_you_mean, needs, one_line
from neuronfair.model.blackbox import BlackBox
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.network import Network
from neuronfair.model.open import keras_file, scikit
from neuronfair.model.open.columns import input_names
from neuronfair.model.open.frames import Frames
from neuronfair.model.open.inputs import open_module
from neuronfair.model.open.opened import File, Opened, Request
from neuronfair.model.weights import fingerprint, read_safetensors

DIGITS = 6  # of the answers that a function is known by


def open(request: Request) -> Opened:  # noqa: A001 - each reader has a function of this name
    """Import `package.module:name` and take what it is: a module or something that makes one, a model, a function."""
    found = imported(request, request.source)
    if isinstance(found, type) or (callable(found) and not isinstance(found, nn.Module) and _takes_nothing(found)):
        make = found
        try:
            found = make()
            again = make() if request.weights is None and isinstance(found, nn.Module) else found
        except Exception as error:  # the user's own code
            raise request.error(f"calling it failed ({type(error).__name__}: {one_line(error)})") from error
        if again is not found and fingerprint(again) != fingerprint(found):
            raise request.error("makes other weights each time. Name those of the trained network: --weights FILE")
    if request.weights is not None:
        if not isinstance(found, nn.Module):
            raise request.error(f"--weights is for a torch module, but this is {_kind(found)}")
        _load_weights(request, found)
    return open_object(request, found)


def open_object(request: Request, thing: Any) -> Opened:
    """Take a model that is in memory for what it is: a torch module or network, a fitted estimator, a function."""
    if keras_file.is_keras(thing):
        return keras_file.open_object(request, thing)
    if isinstance(thing, nn.Module):
        return open_module(request, "torch", thing)
    if isinstance(thing, Network):  # it may have been made with layers of the user's own choice, so it is kept
        encoding = thing.encoding if isinstance(thing.encoding, TableEncoding) else None
        return replace(request.white_box("torch", thing.module, encoding=encoding), model=thing)
    if isinstance(thing, BlackBox):
        found = _answering(request, thing.ask, thing.ask, "a function shows nothing of itself")
        return replace(found, inputs=thing.inputs)
    if scikit.is_estimator(thing):
        content = needs("joblib", "sklearn").hash(thing)
        return scikit.open_estimator(request, thing, hashlib.sha256(content.encode()).hexdigest())
    if not callable(thing):
        raise request.error(
            f"expected a torch module, a function that makes one, or a function of a table, got {_kind(thing)}"
        )
    return _function(request, thing)


def names(file: File) -> list[str] | None:
    """Return the names of the columns that a model reads; nothing is called that would make one."""
    found = imported(file, file.source)
    return None if isinstance(found, type) else input_names(found)


def imported(request: File, what: str) -> Any:
    """Return what `package.module:name` stands for; the folder that the user is in is importable."""
    module_name, _, name = what.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
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


def _takes_nothing(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(p.default is not p.empty or p.kind in optional for p in parameters)


def _load_weights(request: Request, module: nn.Module) -> None:
    path = Path(str(request.weights))
    state, _ = read_safetensors(path)
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise request.error(f"the weights in {path} are not those of this module ({one_line(error)})") from error


def _function(request: Request, function: Any) -> Opened:
    frames = Frames(request.domain)

    def ask(rows: Tensor) -> Any:
        table = frames.of_rows(rows)
        answer = function(table if request.preprocess is None else request.preprocess(table))
        return answer.detach().cpu().numpy() if isinstance(answer, torch.Tensor) else answer

    why = "a Python function shows nothing of itself; it is given tables of labels and numbers"
    return _answering(request, function, ask, why)


def _answering(request: Request, function: Any, ask: Callable[[Tensor], Any], why: str) -> Opened:
    """Return a function as a black box, known by its source code and by its answers.

    The code alone is not enough: it may read a file or call other functions, which can change. The answers are those
    to rows that are the same for every table, and in a batch of their own.
    """
    found = request.black_box("Python function", ask, why, print_of=source_code(function))
    scores = found.model.scores(request.drawn.to(request.device)).cpu().numpy()
    found.model.rows_forward = 0
    answers = (scores.round(DIGITS) + 0.0).tobytes()  # 0.0 turns -0.0 into 0.0
    return replace(found, fingerprint=hashlib.sha256(found.fingerprint.encode() + answers).hexdigest())


def source_code(function: Any) -> str:
    """Return the source code of a function, or the name of its type where there is none to read."""
    try:
        return inspect.getsource(function)
    except (TypeError, OSError):
        return repr(type(function))


def _kind(thing: Any) -> str:
    return f"{'an' if type(thing).__name__[0] in 'aeiouAEIOU' else 'a'} {type(thing).__name__}"
