"""What a user's own Python code defines: a torch module, a scikit-learn model, or any function of a table."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

from neuronfair.errors import did_you_mean
from neuronfair.network.bridges import scikit
from neuronfair.network.bridges.opened import Opened, Request, needs, one_line
from neuronfair.network.bridges.tables import Frames


def open(request: Request) -> Opened:  # noqa: A001 - each bridge has a function of this name
    """Import `package.module:name` and take what it is: a module or something that makes one, a model, a function."""
    found = _import(request)
    if isinstance(found, type) or (callable(found) and not isinstance(found, nn.Module) and _takes_nothing(found)):
        try:
            found = found()
        except Exception as error:  # the user's own code
            raise request.error(f"calling it failed ({type(error).__name__}: {one_line(error)})") from error
    if isinstance(found, nn.Module):
        if request.weights is not None:
            _load_weights(request, found)
        return request.white_box("torch", found.eval())
    if request.weights is not None:
        raise request.error(f"--weights is for a torch module, but this is {_kind(found)}")
    if scikit.is_estimator(found):
        content = needs("joblib", "sklearn").hash(found)
        return scikit.open_estimator(request, found, hashlib.sha256(content.encode()).hexdigest())
    if not callable(found):
        raise request.error(
            f"expected a torch module, a function that makes one, or a function of a table, got {_kind(found)}"
        )
    return _function(request, found)


def _import(request: Request) -> Any:
    module_name, _, name = request.source.partition(":")
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
    if not path.is_file():
        raise request.error(f"there is no file of weights {path}")
    try:
        with safe_open(path, framework="pt") as file:
            state: dict[str, Tensor] = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # a damaged file can fail anywhere in the reader
        raise request.error(f"{path} is not a readable safetensors file ({one_line(error)})") from error
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise request.error(f"the weights in {path} are not those of this module ({one_line(error)})") from error


def _function(request: Request, function: Any) -> Opened:
    frames = Frames(request.domain)

    def predict(x: np.ndarray) -> Any:
        answer = function(frames.of_inputs(x))
        return answer.detach().cpu().numpy() if isinstance(answer, torch.Tensor) else answer

    why = "a Python function shows nothing of itself; it is given tables of labels and numbers"
    return request.black_box("Python function", predict, why, print_of=_digest(function))


def _digest(thing: Any) -> str:
    """Return a digest of the source code of a function, or of the name where there is none to read."""
    try:
        text = inspect.getsource(thing)
    except (TypeError, OSError):
        text = repr(type(thing))
    return hashlib.sha256(text.encode()).hexdigest()


def _kind(thing: Any) -> str:
    return f"{'an' if type(thing).__name__[0] in 'aeiouAEIOU' else 'a'} {type(thing).__name__}"
