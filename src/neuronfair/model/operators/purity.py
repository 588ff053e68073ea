"""Checks that a module is a function of its input alone, by what forward() calls, reads and changes.

An operator graph holds one path through forward(). It is the only path if no number of a tensor reaches Python, so that
no branch can depend on one, and if no call changes anything that a later call could read.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dis import get_instructions
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neuronfair.errors import ModelError, NeuronFairError, one_line
from neuronfair.model.network import eval_mode
from neuronfair.model.operators.reader import get_name, is_known, refuse_operator

_SCALAR_OPERATORS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "unique", "_unique2"}
_SCALAR_METHODS = {"numpy", "tolist", "item", "__array__", "data_ptr", "untyped_storage", "storage"}
_OUTSIDE_MODULES = {"time", "_datetime", "datetime", "posix", "nt", "_io", "_socket", "select", "signal", "_random"}
# Functions that tell forward() in which mode it is called.
_MODE_FUNCTIONS = {"is_grad_enabled", "is_inference_mode_enabled", "is_inference", "is_autocast_enabled"}
# Names that tell forward() that it is traced.
_WATCHERS = {
    *("is_compiling", "is_dynamo_compiling", "is_exporting", "is_tracing", "is_scripting", "is_fx_tracing"),
    *("is_in_onnx_export", "is_fake", "FakeTensor", "FunctionalTensor", "fake_mode", "__class__", "__torch_dispatch__"),
    *("_len_torch_dispatch_stack", "_get_current_dispatch_mode", "getprofile", "gettrace", "_getframe", "currentframe"),
    *("current_thread", "main_thread", "get_ident", "get_native_id"),
}
_LIBRARY_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), "<frozen")
_STANDARD_FOLDER = str(Path(random.__file__).parent)
Readable = dict[str, object]  # values by the place where a call could read them
CALL_ROWS = (1, 3, 3, 3)  # rows of the calls that are watched
MAX_DEPTH = 20  # steps into objects whose state is compared
MAX_VALUES = 100_000  # things that are compared


class _OperatorRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators of a run, and the unknown ones. It raises nothing, since forward() might catch it."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self._refused: list[tuple[int, ModelError]] = []
        self._of_rows = {id(rows): rows}  # tensors are kept, so that no id is used again

    def check(self) -> None:
        """Refuse unknown operators: first branches and random numbers, since they explain the others."""
        for _, error in sorted(self._refused, key=lambda found: found[0]):
            raise error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = get_name(func)
        self.names.append(name)
        read = any(id(leaf) in self._of_rows for leaf in tree_leaves((args, kwargs)))
        if name in _SCALAR_OPERATORS:
            reason = "takes a number out of a tensor, so that a branch of forward() can depend on the rows"
            self._refused.append((0, refuse_operator(str(func), reason)))
        elif torch.Tag.nondeterministic_seeded in func.tags:
            self._refused.append((1, refuse_operator(str(func), "is random")))
        elif not is_known(name, on_constants=not read):
            self._refused.append((2, refuse_operator(str(func))))
        result = func(*args, **(kwargs or {}))
        if read:
            self._of_rows |= {id(leaf): leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


def _is_called_by_user(frame: FrameType | None) -> bool:
    """Return whether the user's code made a call, directly or through the standard library."""
    while frame is not None and _is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS)


def _is_standard(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_STANDARD_FOLDER) and "site-packages" not in file)


class _CallRecorder:
    """Records where the user's functions could keep state, and refuses calls that take numbers to Python."""

    def __init__(self) -> None:
        self.refusal: ModelError | None = None
        self._globals: dict[CodeType, Readable] = {}
        self._free_variables: Readable = {}

    def note(self, frame: FrameType, event: str, function: Any) -> None:
        """Record a call of a function."""
        file, code = frame.f_code.co_filename, frame.f_code
        is_library = file.startswith(_LIBRARY_FOLDERS) or _is_standard(file)
        if event == "call" and not is_library:
            self._globals[code] = frame.f_globals
            if self.refusal is None and (name_found := _find_tracing_check(code)):
                self.refusal = refuse_operator(
                    name_found, "tells forward() how it is called, so that it may compute other things here"
                )
            values = {name: frame.f_locals.get(name) for name in code.co_freevars}  # as now: it may be set anew
            self._free_variables |= {f"{name}, which {code.co_name}() holds": value for name, value in values.items()}
        if event == "c_call" and self.refusal is None:
            bound = getattr(function, "__self__", None)
            name, module_name = getattr(function, "__name__", ""), getattr(function, "__module__", None)
            module_name = module_name or getattr(bound, "__module__", None)  # of a method of a class
            tensor = isinstance(bound, Tensor)
            outside = module_name in _OUTSIDE_MODULES or name in _MODE_FUNCTIONS or isinstance(bound, ContextVar)
            if (tensor and name in _SCALAR_METHODS) or "dlpack" in name or (outside and _is_called_by_user(frame)):
                full_name = name if module_name is None or tensor else f"{module_name}.{name}"
                self.refusal = refuse_operator(full_name, "takes numbers out of tensors, or reads what is not in them")

    @property
    def roots(self) -> Readable:
        """The objects that the functions could read besides their arguments, by name."""
        objects = dict(self._free_variables)
        for code, names in self._globals.items():
            for name in code.co_names:
                value = names.get(name, sys.modules.get(name))  # it may be imported inside
                objects[f"the global {name}"] = value
                if isinstance(value, ModuleType) and _is_user_module(value.__name__):
                    objects |= {f"{name}.{key}": vars(value)[key] for key in code.co_names if key in vars(value)}
        return objects


@cache
def _find_tracing_check(code: CodeType) -> str | None:
    """Return a name in the code of a function by which it could notice that it is traced."""
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}  # hasattr(x, "fake_mode")
    watched = _WATCHERS & {*code.co_names, *texts}
    if "type" in code.co_names:
        steps = pairwise(get_instructions(code))
        if any(a.argval == "type" and "LOAD_GLOBAL" in a.opname and b.argval != "self" for a, b in steps):
            watched = {*watched, "type"}  # of another thing than the module itself
    nested = (name for part in code.co_consts if isinstance(part, CodeType) and (name := _find_tracing_check(part)))
    return min(watched, default=next(nested, None))


@contextmanager
def _without_collections() -> Iterator[None]:
    """Disable the garbage collector: callbacks of a collection would be taken for code of the module."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _watch(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[list[list[str]], list[Readable], ModelError | None]:
    """Call a module with a profiler; the thread must have no other profiler.

    Returned are the operators of each call, everything that a later call could read, and an error about numbers taken
    out of tensors or about code that may notice tracing.
    """
    names, states, refusal = list[list[str]](), list[Readable](), None
    for number, x in enumerate(inputs):
        recorder = _CallRecorder()
        with torch.no_grad(), eval_mode(module.modules()), _without_collections(), _OperatorRecorder(x) as operators:
            sys.setprofile(recorder.note)
            try:
                module(x)
            finally:
                sys.setprofile(None)
        operators.check()
        names.append(operators.names)
        if number > 0:  # the first call may import things
            states.append(_take_snapshot(module, recorder.roots))
            refusal = refusal or recorder.refusal
    return names, states, refusal


def check_pure(module: nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a module that is not a function of its input alone, or in which numbers of rows reach Python."""
    import torch._dynamo  # a watched call imports it otherwise, three times as slowly

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(count, width, generator=generator).to(device, dtype) for count in CALL_ROWS]
    try:
        with ThreadPoolExecutor(1) as thread:
            names, states, refusal = thread.submit(_watch, module, inputs).result()
    except NeuronFairError:
        raise
    except Exception as error:  # its own code
        raise ModelError(f"it does not take numbers that no row gives ({one_line(error)})") from error
    if refusal is not None:
        raise refusal
    *_, before, after = states
    if changed := next((name for name, value in after.items() if _differs(before.get(name), value)), None):
        raise ModelError(f"forward() changes {changed}, so one call may give other scores than the next")
    if any(operators != names[-1] for operators in names):
        raise ModelError("forward() computes other things for one row than for several, or from call to call")


def check_parts(module: nn.Module) -> None:
    """Refuse compiled modules, preprocessing with unknown code, and tensors of other types."""
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelError(
                f"its part '{name or type(part).__name__}' is compiled (TorchScript). Use the module itself"
            )
        if (program := getattr(part, "unknown_program", None)) is not None:
            raise ModelError(f"{program} has unknown code: only its outputs for the tried values are known")
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
            raise ModelError(f"its weights '{name}' are no plain tensor but {type(tensor).__name__}")
        if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(f"its weights '{name}' are {kind}, which rounds too much for a proof. Use float32")


def _take_snapshot(module: nn.Module, roots: Readable) -> Readable:
    """Return everything that a later call could read: attributes of the parts, closures, random states."""
    snapshot = _Snapshot()
    for name, part in reversed([*module.named_modules()]):  # each part by its own name
        snapshot.add(f"its part '{name}'" if name else "the module", part)
    for name, value in roots.items():
        snapshot.add(name, value)
    return snapshot.values


class _Snapshot:
    """The values of objects and of all that they refer to, by their place, for a comparison with later values."""

    def __init__(self) -> None:
        self.values: Readable = {
            "the state of random": random.getstate(),
            "the state of numpy.random": repr(np.random.get_state()),
            "the state of torch's random numbers": torch.get_rng_state(),
        }
        self._visited: dict[int, Any] = {}  # objects are kept, so that no id is used again

    def add(self, path: str, value: Any, depth: int = 0) -> None:
        """Add an object and all that it refers to; `depth` counts the steps that led to it."""
        if _is_constant(value):
            return
        if depth > MAX_DEPTH or len(self.values) > MAX_VALUES:
            self.values["more than can be compared"] = object()  # which is never the same
            return
        if isinstance(value, _PLAIN_TYPES):
            self.values[path] = value
            return
        if id(value) in self._visited:
            return
        self._visited[id(value)] = value
        compared, parts = _copy_value(value), _list_parts(path, value)
        if compared is None and parts is None:
            compared = repr(value)
        if compared is not None:
            self.values[path] = compared
            return
        for inner, part in parts or ():
            self.add(inner, part, depth + 1)


_PLAIN_TYPES = (int, float, complex, str, bytes, bool, type(None))


def _is_constant(value: Any) -> bool:
    """Return whether an object is not followed: modules, code, and what belongs to Python or torch itself."""
    if isinstance(value, (ModuleType, CodeType)):
        return True
    if isinstance(value, (type, FunctionType)) and not _is_user_module(value.__module__ or ""):
        return True
    of_torch = str(type(value).__module__).partition(".")[0] == "torch"
    return of_torch and not isinstance(value, (Tensor, nn.Module, Mapping, Sequence))


def _copy_value(value: Any) -> object | None:
    """Return what an object without parts is compared by; None for any other object."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "fiub" else repr(value)
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, Generator):
        return object()  # its next value is unknown, so it is never the same
    return repr(value.cache_info()) if hasattr(value, "cache_info") else None


def _list_parts(path: str, value: Any) -> list[tuple[str, Any]] | None:
    """Return all that an object refers to, by its place; None for an object of which nothing is known.

    A function holds variables, defaults and attributes; a class also those of the classes that it inherits from.
    """
    if isinstance(value, dict):
        items = [(f"{path}.{k}" if isinstance(k, str) else f"{path}[{k!r}]", item) for k, item in [*value.items()]]
        return [(f"{path} (its length)", len(value)), *items]
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
        return [(f"{path} (its length)", len(value)), *items]
    if isinstance(value, type):
        attributes = {name: item for name, item in vars(value).items() if not name.startswith("__")}
        return [(f"the class {value.__name__}", attributes), (path, value.__bases__)]
    if isinstance(value, partial):
        return [(path, (value.func, value.args, value.keywords))]
    if isinstance(value, MethodType):
        return [(path, (value.__self__, value.__func__))]
    if isinstance(value, FunctionType):
        name, cells = value.__name__, zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        cell_values = [(f"{name}, which {name}() holds", c.cell_contents) for name, c in cells if c != type(c)()]
        return [*cell_values, (f"the defaults of {name}()", (value.__defaults__, value.__dict__))]
    if hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        return [(path, type(value)), (path, attributes | getattr(value, "__dict__", {}))]
    return None


def _is_user_module(module: str) -> bool:
    """Return whether a module is none of Python, torch, NumPy or this package."""
    return str(module).partition(".")[0] not in (*sys.stdlib_module_names, "torch", "numpy", "neuronfair")


def _differs(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        same_layout = before.shape == after.shape and before.dtype == after.dtype
        return not (same_layout and torch.equal(before.nan_to_num(), after.nan_to_num()))
    return type(before) is not type(after) or before != after
