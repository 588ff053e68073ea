"""Read a file in a process of its own, because the library that reads it may crash, hang or fill all memory."""

from __future__ import annotations

import subprocess
import sys

from neuronfair.network.bridges.opened import Request

SECONDS = 20  # for a small file; a large one gets a second more for every 10 MB

_LIMITS = """
import sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
except (ImportError, ValueError):  # not a Unix system, or a lower limit already
    pass
"""


def read_apart(request: Request, code: str, what: str) -> bytes:
    """Run Python code that reads the file sys.argv[1], and return what it prints; refuse the file if it fails."""
    # -P: a file h5py.py in the working folder must not be taken for the package.
    command = [sys.executable, "-P", "-c", _LIMITS + code, str(request.path)]
    seconds = SECONDS + request.path.stat().st_size / 1e7
    try:
        return subprocess.run(command, capture_output=True, timeout=seconds, check=True).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise request.error(f"not a readable {what}: it is damaged, or something else") from None
