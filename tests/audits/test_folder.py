from __future__ import annotations

import errno
import os

import pytest

from neuronfair.audits import folder
from neuronfair.errors import RunError


def test_a_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path):
    says = r"run: cannot be written \(No space left on device\)\. Choose another --out"
    with pytest.raises(RunError, match=says), folder._report_write_errors(tmp_path / "run"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(RunError, match=r"worst\.json: cannot be written \(No such file or directory\)"):
        folder._write_sealed(tmp_path / "gone" / "worst.json", {"findings": []})
