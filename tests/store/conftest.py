from __future__ import annotations

import itertools
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from neuronfair.searches import campaign, engine
from neuronfair.searches.methods import frontier
from neuronfair.store.run import Run
from tests.store.runs import DOMAIN_OF_RUN, PLAN, killed_at, make_manifest


@pytest.fixture(autouse=True, scope="module")
def small_steps():
    """A checkpoint every three steps, a short pilot, and no waiting for what is not tested here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign, "PhaseRecording", partial(engine.PhaseRecording, interval=3))
        patch.setattr(frontier, "PILOT_STEPS", 3)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        patch.setattr(campaign, "cluster_seeds", lambda _, rows, count, seed: rows[:count])
        patch.setattr(campaign, "check_health", lambda *_: ())
        yield
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, small_steps) -> Path:
    """A run that was killed in the local phase, tidied up."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    for call in itertools.count(40):
        shutil.rmtree(folder, ignore_errors=True)
        assert killed_at(call, folder, PLAN)
        if [line.get("phase") for line in Run.open(folder).lines].count("local") == 2:
            break
    Run.create_or_open(folder, make_manifest(PLAN), DOMAIN_OF_RUN)
    return folder


@pytest.fixture
def halfway(tmp_path, interrupted) -> Path:
    """A copy of a run that was killed in the local phase, to be damaged."""
    return Path(shutil.copytree(interrupted, tmp_path / "run"))
