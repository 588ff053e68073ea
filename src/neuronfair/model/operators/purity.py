"""Checks that a module is a function of its input alone, by what forward() calls, reads and changes.

An operator graph holds one path through forward(). It is the only path if no number of a tensor reaches Python, so that
no branch can depend on one, and if no call changes anything that a later call could read.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
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
from neuronfair.model.network import evaluating
from neuronfair.model.operators.reader import is_known, name_of, refused

_TAKES_OUT = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "unique", "_unique2"}
_NUMBERS_OUT = {"numpy", "tolist", "item", "__array__", "data_ptr", "untyped_storage", "storage"}
_OUTSIDE = {"time", "_datetime", "datetime", "posix", "nt", "_io", "_socket", "select", "signal", "_random"}
# Functions that tell forward() in which mode it is called.
_MODES = {"is_grad_enabled", "is_inference_mode_enabled", "is_inference", "is_autocast_enabled"}
# Names that tell forward() that it is traced.
_WATCHERS = {
    *("is_compiling", "is_dynamo_compiling", "is_exporting", "is_tracing", "is_scripting", "is_fx_tracing"),
    *("is_in_onnx_export", "is_fake", "FakeTensor", "FunctionalTensor", "fake_mode", "__class__", "__torch_dispatch__"),
    *("_len_torch_dispatch_stack", "_get_current_dispatch_mode", "getprofile", "gettrace", "_getframe", "currentframe"),
    *("current_thread", "main_thread", "get_ident", "get_native_id"),
}
_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), "<frozen")
_STANDARD = str(Path(random.__file__).parent)
Readable = dict[str, object]  # values by the place where a call could read them
CALLS = (1, 3, 3, 3)  # rows of the calls that are watched
DEEPEST = 20  # steps into objects whose state is compared
LARGEST = 100_000  # things that are compared


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
        name = name_of(func)
        self.names.append(name)
        read = any(id(leaf) in self._of_rows for leaf in tree_leaves((args, kwargs)))
        if name in _TAKES_OUT:
            why = "takes a number out of a tensor, so that a branch of forward() can depend on the rows"
            self._refused.append((0, refused(str(func), why)))
        elif torch.Tag.nondeterministic_seeded in func.tags:
            self._refused.append((1, refused(str(func), "is random")))
        elif not is_known(name, on_constants=not read):
            self._refused.append((2, refused(str(func))))
        result = func(*args, **(kwargs or {}))
        if read:
            self._of_rows |= {id(leaf): leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


def _is_users(frame: FrameType | None) -> bool:
    """Return whether the user's code made a call, directly or through the standard library."""
    while frame is not None and _is_standard(frame.f_code.co_filename):
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(_OWN)


def _is_standard(file: str) -> bool:
    return file.startswith("<frozen") or (file.startswith(_STANDARD) and "site-packages" not in file)


class _Python:
    """Records where the user's functions could keep state, and refuses calls that take numbers to Python."""

    def __init__(self) -> None:
        self.left: ModelError | None = None
        self._globals: dict[CodeType, Readable] = {}
        self._held: Readable = {}

    def note(self, frame: FrameType, event: str, function: Any) -> None:
        """Record a call of a function."""
        file, code = frame.f_code.co_filename, frame.f_code
        own = file.startswith(_OWN) or _is_standard(file)
        if event == "call" and not own:
            self._globals[code] = frame.f_globals
            if self.left is None and (found := _tracing_check_in(code)):
                self.left = refused(found, "tells forward() how it is called, so that it may compute other things here")
            held = {name: frame.f_locals.get(name) for name in code.co_freevars}  # as it is now: it may be set anew
            self._held |= {f"{name}, which {code.co_name}() holds": value for name, value in held.items()}
        if event == "c_call" and self.left is None:
            bound = getattr(function, "__self__", None)
            name, home = getattr(function, "__name__", ""), getattr(function, "__module__", None)
            home = home or getattr(bound, "__module__", None)  # of a method of a class
            tensor = isinstance(bound, Tensor)
            outside = home in _OUTSIDE or name in _MODES or isinstance(bound, ContextVar)
            if (tensor and name in _NUMBERS_OUT) or "dlpack" in name or (outside and _is_users(frame)):
                whole = name if home is None or tensor else f"{home}.{name}"
                self.left = refused(whole, "takes numbers out of tensors, or reads what is not in them")

    @property
    def roots(self) -> Readable:
        """The objects that the functions could read besides their arguments, by name."""
        found = dict(self._held)
        for code, names in self._globals.items():
            for name in code.co_names:
                thing = names.get(name, sys.modules.get(name))  # it may be imported inside
                found[f"the global {name}"] = thing
                if isinstance(thing, ModuleType) and _users(thing.__name__):
                    found |= {f"{name}.{one}": vars(thing)[one] for one in code.co_names if one in vars(thing)}
        return found


@cache
def _tracing_check_in(code: CodeType) -> str | None:
    """Return a name in the code of a function by which it could notice that it is traced."""
    texts = {one for one in code.co_consts if isinstance(one, str)}  # hasattr(x, "fake_mode")
    watched = _WATCHERS & {*code.co_names, *texts}
    if "type" in code.co_names:
        steps = pairwise(get_instructions(code))
        if any(one.argval == "type" and "LOAD_GLOBAL" in one.opname and two.argval != "self" for one, two in steps):
            watched = {*watched, "type"}  # of another thing than the module itself
    inner = (found for part in code.co_consts if isinstance(part, CodeType) and (found := _tracing_check_in(part)))
    return min(watched, default=next(inner, None))


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


def _watched(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[list[list[str]], list[Readable], ModelError | None]:
    """Call a module with a profiler; the thread must have no other profiler.

    Returned are the operators of each call, everything that a later call could read, and an error about numbers taken
    out of tensors or about code that may notice tracing.
    """
    names, states, left = list[list[str]](), list[Readable](), None
    for number, x in enumerate(inputs):
        python = _Python()
        with torch.no_grad(), evaluating(module.modules()), _without_collections(), _Operators(x) as operators:
            sys.setprofile(python.note)
            try:
                module(x)
            finally:
                sys.setprofile(None)
        operators.check()
        names.append(operators.names)
        if number > 0:  # the first call may import things
            states.append(_state(module, python.roots))
            left = left or python.left
    return names, states, left


def check_pure(module: nn.Module, width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a module that is not a function of its input alone, or in which numbers of rows reach Python."""
    import torch._dynamo  # a watched call imports it otherwise, three times as slowly

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(count, width, generator=generator).to(device, dtype) for count in CALLS]
    try:
        with ThreadPoolExecutor(1) as thread:
            names, states, left = thread.submit(_watched, module, inputs).result()
    except NeuronFairError:
        raise
    except Exception as error:  # its own code
        raise ModelError(f"it does not take numbers that no row gives ({one_line(error)})") from error
    if left is not None:
        raise left
    *_, before, after = states
    if changed := next((place for place, value in after.items() if _differs(before.get(place), value)), None):
        raise ModelError(f"forward() changes {changed}, so one call may give other scores than the next")
    if any(those != names[-1] for those in names):
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


def _state(module: nn.Module, roots: Readable) -> Readable:
    """Return everything that a later call could read: attributes of the parts, closures, random states."""
    snapshot = _Snapshot()
    for name, part in reversed([*module.named_modules()]):  # each part by its own name
        snapshot.add(f"its part '{name}'" if name else "the module", part)
    for name, thing in roots.items():
        snapshot.add(name, thing)
    return snapshot.values


class _Snapshot:
    """The values of objects and of all that they refer to, by their place, for a comparison with later values."""

    def __init__(self) -> None:
        self.values: Readable = {
            "the state of random": random.getstate(),
            "the state of numpy.random": repr(np.random.get_state()),
            "the state of torch's random numbers": torch.get_rng_state(),
        }
        self._seen: dict[int, Any] = {}  # objects are kept, so that no id is used again

    def add(self, place: str, thing: Any, depth: int = 0) -> None:
        """Add an object and all that it refers to; `depth` counts the steps that led to it."""
        if _is_constant(thing):
            return
        if depth > DEEPEST or len(self.values) > LARGEST:
            self.values["more than can be compared"] = object()  # which is never the same
            return
        if isinstance(thing, _PLAIN):
            self.values[place] = thing
            return
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        for matches, record in _RECORDERS:
            if matches(thing):
                record(self, place, thing, depth)
                return
        self.values[place] = repr(thing)

    def add_mapping(self, place: str, mapping: dict[Any, Any], depth: int) -> None:
        self.values[f"{place} (its length)"] = len(mapping)
        for key, value in [*mapping.items()]:
            self.add(f"{place}.{key}" if isinstance(key, str) else f"{place}[{key!r}]", value, depth + 1)

    def add_items(self, place: str, items: Collection[Any], depth: int) -> None:
        self.values[f"{place} (its length)"] = len(items)
        for number, value in enumerate(items):
            self.add(f"{place}[{number}]", value, depth + 1)

    def add_class(self, place: str, kind: type, depth: int) -> None:
        """Add the attributes of a class and of those that it inherits from."""
        attributes = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
        self.add(f"the class {kind.__name__}", attributes, depth + 1)
        self.add(place, kind.__bases__, depth + 1)

    def add_function(self, place: str, function: FunctionType, depth: int) -> None:
        """Add the variables that a function holds, its defaults and its attributes."""
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if cell != type(cell)():
                self.add(f"{name}, which {function.__name__}() holds", cell.cell_contents, depth + 1)
        self.add(f"the defaults of {function.__name__}()", (function.__defaults__, function.__dict__), depth + 1)

    def add_attributes(self, place: str, thing: Any, depth: int) -> None:
        """Add the class and the attributes of an object, with or without slots."""
        self.add(place, type(thing), depth + 1)
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        attributes = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
        self.add(place, attributes | getattr(thing, "__dict__", {}), depth + 1)


_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def _is_constant(thing: Any) -> bool:
    """Return whether an object is not followed: modules, code, and what belongs to Python or torch itself."""
    if isinstance(thing, (ModuleType, CodeType)):
        return True
    if isinstance(thing, (type, FunctionType)) and not _users(thing.__module__ or ""):
        return True
    of_torch = str(type(thing).__module__).partition(".")[0] == "torch"
    return of_torch and not isinstance(thing, (Tensor, nn.Module, Mapping, Sequence))


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda thing: isinstance(thing, kinds)


def _value(read: Callable[[Any], Any]) -> Callable[[_Snapshot, str, Any, int], None]:
    """Return what records one value of an object."""

    def record(snapshot: _Snapshot, place: str, thing: Any, _depth: int) -> None:
        snapshot.values[place] = read(thing)

    return record


def _parts(*names: str) -> Callable[[_Snapshot, str, Any, int], None]:
    """Return what records some attributes of an object."""

    def record(snapshot: _Snapshot, place: str, thing: Any, depth: int) -> None:
        snapshot.add(place, tuple(getattr(thing, name) for name in names), depth + 1)

    return record


# How an object is recorded: by the first line that matches it. Order matters, for a class may match several.
_RECORDERS: tuple[tuple[Callable[[Any], bool], Callable[[_Snapshot, str, Any, int], None]], ...] = (
    (_is(Tensor), _value(lambda tensor: tensor.detach().clone())),
    (_is(np.ndarray), _value(lambda x: torch.from_numpy(x.copy()) if x.dtype.kind in "fiub" else repr(x))),
    (_is(dict), _Snapshot.add_mapping),
    (_is(list, tuple, set, frozenset), _Snapshot.add_items),
    (_is(random.Random), _value(lambda generator: repr(generator.getstate()))),
    (_is(np.random.RandomState), _value(lambda generator: repr(generator.get_state()))),
    (_is(np.random.Generator), _value(lambda generator: repr(generator.bit_generator.state))),
    (lambda thing: hasattr(thing, "cache_info"), _value(lambda function: repr(function.cache_info()))),
    (_is(Generator), _value(lambda _: object())),  # its next value is unknown, so it is never the same
    (_is(type), _Snapshot.add_class),
    (_is(partial), _parts("func", "args", "keywords")),
    (_is(MethodType), _parts("__self__", "__func__")),
    (_is(FunctionType), _Snapshot.add_function),
    (lambda thing: hasattr(thing, "__dict__") or hasattr(type(thing), "__slots__"), _Snapshot.add_attributes),
)


def _users(module: str) -> bool:
    """Return whether a module is none of Python, torch, NumPy or this package."""
    return str(module).partition(".")[0] not in (*sys.stdlib_module_names, "torch", "numpy", "neuronfair")


def _differs(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        same = before.shape == after.shape and before.dtype == after.dtype
        return not (same and torch.equal(before.nan_to_num(), after.nan_to_num()))
    return type(before) is not type(after) or before != after
