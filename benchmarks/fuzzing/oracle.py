"""What may come of reading a damaged file: a result, or an error in one line; and nothing beside it."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from neuronfair.errors import NeuronFairError

from .mutate import MARK, MARKER, Files
from .readings import OddMessage, fit_to_show

ALLOWED = 50_000_000  # bytes that a file may take, told to the package
MOST = 600_000_000  # bytes by which a try may grow before it counts as out of bounds
GOOD = ("accepted", "refused")
BAD = ("traceback", "message", "printed", "outside", "memory", "hang", "crash", "mutator")


@dataclass(frozen=True)
class Outcome:
    """What came of a try: `kind` is one of GOOD or BAD, `detail` says more, `peak` is the memory it took, in bytes."""

    kind: str
    detail: str = ""
    seconds: float = 0.0
    peak: int = 0


class Home:
    """The folder of one worker: the try, temporary files, and a canary that nobody may open or change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.place, self.work, self.said = (self.folder / name for name in ("try", "work", "said"))
        for path in (self.work, self.folder / "tmp"):
            path.mkdir(parents=True)
        self.canary = self.folder / "canary.h5"
        self.canary.write_bytes(b"\x89HDF\r\n\x1a\n" + MARK.encode() * 9)
        self.said.touch()
        self._watch = _watch(self.canary)
        self._before = self._seen()

    def settle(self) -> None:
        """Make this process live in the folder: whatever it writes by a relative or a temporary name is seen."""
        os.chdir(self.work)
        names = {"HOME": "work", "TMPDIR": "tmp", "XDG_CACHE_HOME": "work", "XDG_CONFIG_HOME": "work"}
        os.environ.update({name: str(self.folder / part) for name, part in names.items()})
        tempfile.tempdir = str(self.folder / "tmp")
        handle = os.open(self.said, os.O_WRONLY | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)

    def lay(self, files: Files) -> None:
        """Put the files of a try into its folder, in the place of those of the last one."""
        shutil.rmtree(self.place, ignore_errors=True)
        for name, content in files.items():
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def stray(self, files: Files) -> str:
        """Return what has become of other files than it should, and put it right."""
        there = {str(p.relative_to(self.place)): p for p in self.place.rglob("*") if not p.is_dir()}
        bad = [f"{name} made or gone in the try" for name in there.keys() ^ files.keys()]
        bad += [f"{name} changed" for name, path in there.items() if name in files and path.read_bytes() != files[name]]
        now = self._seen()
        others = sorted({str(path.relative_to(self.folder)) for path, _ in now.items() ^ self._before.items()})
        bad += [f"{name} made, changed or gone" for name in others]
        for path in now.keys() - self._before.keys():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if MARKER.exists():
            bad.append(f"{MARKER} was written")
            MARKER.unlink(missing_ok=True)
        if self._watch is not None and _events(self._watch):
            bad.append("a file outside was opened (the canary)")
        return "; ".join(bad)

    def close(self) -> None:
        """Stop watching the canary."""
        if self._watch is not None:
            os.close(self._watch)

    def printed(self) -> str:
        """Return what was written to the terminal, and forget it."""
        if not self.said.stat().st_size:
            return ""
        text = self.said.read_bytes()[-600:]
        os.truncate(self.said, 0)
        return repr(text)

    def _seen(self) -> dict[Path, tuple[int, int]]:
        seen = {}
        for path in self.folder.iterdir():
            for part in (path, *path.rglob("*")) if path.name in ("work", "tmp") else (path,):
                if part not in (self.place, self.said):
                    about = part.stat()
                    seen[part] = (about.st_size, 0 if part.is_dir() else about.st_mtime_ns)
        return seen


def attempt(reads: tuple[Callable[[Path], object], ...], files: Files, home: Home) -> Outcome:
    """Lay the files of a try and read them; say what came of it."""
    home.lay(files)
    state, start_memory = _state(), _reset_peak()
    begun = time.monotonic()
    _acts.clear()
    came = [_read(read, home) for read in reads]
    seconds = time.monotonic() - begun
    peak = max(0, _memory("VmHWM") - start_memory)
    now = _state()
    altered = [f"{name} altered" for name in state.keys() & now.keys() if state[name] != now[name]]
    outside = "; ".join(filter(None, (*_acts, *altered, home.stray(files))))
    printed = home.printed()
    kind, detail = next((one for one in came if one[0] not in GOOD), max(came, key=lambda one: one[0] == "accepted"))
    if outside:
        kind, detail = "outside", outside
    elif printed and kind in GOOD:
        kind, detail = "printed", printed
    return Outcome(kind, detail, seconds, peak)


def _read(read: Callable[[Path], object], home: Home) -> tuple[str, str]:
    global _inside
    _inside = str(home.folder)
    try:
        read(home.place)
    except NeuronFairError as error:
        _inside = None
        try:
            fit_to_show(error)
        except OddMessage as odd:
            return "message", f"{_where(error)}: {odd}"
        return "refused", str(error)
    except OddMessage as odd:
        return "message", f"{_where(odd.__cause__ or odd)}: {odd}"
    except BaseException as error:
        _inside = None
        return "traceback", f"{type(error).__name__} {_where(error)}: {str(error)[:300]!r}"
    finally:
        _inside = None
    return "accepted", ""


def _state() -> dict[str, object]:
    """Return what a file may not change in the process that reads it."""
    state: dict[str, object] = {"folder": Path.cwd(), **{f"${name}": value for name, value in os.environ.items()}}
    torch, saving = (sys.modules.get(name) for name in ("torch", "keras.src.saving.serialization_lib"))
    if torch is not None:
        state["seed of torch"] = torch.initial_seed()  # numbers may be drawn
        state["torch's settings"] = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    if saving is not None:
        state["safe mode of Keras"] = saving.in_safe_mode()
    return state


def _where(error: BaseException) -> str:
    """Return the last place in the package that an error came through, and the one where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "neuronfair" in frame.filename]
    return " < ".join(dict.fromkeys(f"{Path(f.filename).name}:{f.lineno}" for f in (*frames[-1:], *ours[-1:])))


# What a process does is seen by a hook, which Python calls on every such act. It cannot be taken out again.
_inside: str | None = None  # the folder that may be written to; None while nothing is being read
_acts: list[str] = []
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.symlink", "os.link", "os.truncate"}
_NEVER = {"os.system", "os.exec", "os.spawn", "os.startfile", "pty.spawn", "webbrowser.open", "urllib.Request"}
_ABROAD = {"socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"}


def watch_this_process() -> None:
    """Take note of every write, program, connection and planted name from now on, while a file is being read."""
    sys.addaudithook(_hook)


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if _inside is not None and (what := _judged(event, given)):
        _acts.append(f"{event} {what}"[:300])


def _judged(event: str, given: tuple[Any, ...]) -> str:
    """Return what is wrong with an act, if anything is."""
    if event == "open":
        path, _, flags = given
        wrong = isinstance(path, (str, bytes)) and flags & _WRITES and _outside(path)
        return f"for writing {path!r}" if wrong else ""
    if event in _CHANGES:
        return repr(given) if isinstance(given[0], (str, bytes, Path)) and _outside(given[0]) else ""
    if event in _ABROAD and len(given) == 2 and isinstance(given[1], (str, bytes)):
        return ""  # not abroad: a socket of this machine's own files
    if event in _NEVER | _ABROAD:
        return repr(given)[:200]
    if event == "subprocess.Popen":
        return "" if str(given[0]) == sys.executable else repr(given)[:200]
    if event == "exec" and isinstance(given[0], CodeType):
        return "planted code" if _planted(given[0]) else ""
    if event == "import":
        return f"of a planted name {given[0]!r}" if MARK in given[0] else ""
    if event == "pickle.find_class":
        return repr(given) if given[0] in ("os", "posix", "nt", "builtins", "subprocess", MARK) else ""
    return ""


def _outside(path: Any) -> bool:
    full = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - without a look at the links on the way
    return full != os.devnull and not full.startswith(f"{_inside}{os.sep}")


def _planted(code: CodeType) -> bool:
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return MARK in repr((code.co_names, [c for c in code.co_consts if isinstance(c, str)])) or any(map(_planted, inner))


def _memory(field: str) -> int:
    """Return a figure of this process in bytes, 0 where the system does not tell."""
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024


def _reset_peak() -> int:
    """Forget the largest memory so far; return the present one."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _memory("VmHWM")  # growth beyond the old peak is all that can be seen
    return _memory("VmRSS")


def _watch(path: Path) -> int | None:
    """Have the system note whoever opens a file, also from another process; None where it cannot."""
    try:
        library = ctypes.CDLL(None)
        handle = library.inotify_init1(os.O_NONBLOCK)
        opened = library.inotify_add_watch(handle, os.fsencode(path), 0x20)
    except (AttributeError, OSError):
        return None
    return int(handle) if handle >= 0 and opened >= 0 else None


def _events(handle: int) -> bool:
    try:
        return bool(os.read(handle, 4096))
    except BlockingIOError:
        return False
