"""Small runs to kill and to damage: what their tests share."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from neuronfair import Network
from neuronfair.searches import campaign
from neuronfair.searches.config import SearchConfig
from neuronfair.searches.findings import Findings
from neuronfair.store.files import unseal
from neuronfair.store.ledger import JOURNAL, MANIFEST, METHOD_NAMES, write_manifest
from neuronfair.store.run import Run
from tests.planted import networks
from tests.store.test_tables import assert_same

DOMAIN_OF_RUN = networks.domain()
ROWS = networks.uniform_rows(DOMAIN_OF_RUN, 400)
ROWS = ROWS[(ROWS[:, :4].sum(1) - 19.5).abs() < 3]  # not far from the boundary, so that both phases find some
PLANS = {
    "neuronfair-plus": SearchConfig(method="neuronfair-plus", seeds=12, steps=4, global_steps=4),
    "frontier": SearchConfig(method="frontier", seeds=4, steps=5, global_steps=4, controls=False),
}
PLAN = PLANS["neuronfair-plus"]


def planted() -> Network:
    return networks.network(networks.one_biased_neuron(), DOMAIN_OF_RUN)


def make_manifest(config: SearchConfig, **other: Any) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        "model": "m.safetensors",
        "weights": "w",
        "domain": DOMAIN_OF_RUN.fingerprint,
        "rows": "r",
        "outputs": 2,
    }
    fixed["method_names"] = METHOD_NAMES
    return fixed | {"plan": {"sensitive": ["s"], **asdict(config)}} | other


def search(folder: Path, config: SearchConfig) -> dict[str, Any]:
    """What `neuronfair search` does around a campaign."""
    run = Run.create_or_open(folder, make_manifest(config), DOMAIN_OF_RUN)
    outcome = campaign.search(planted(), DOMAIN_OF_RUN, ROWS, config, recorder=run)
    run.finish(outcome.summary())
    return outcome.summary()


def untimed(summary: dict[str, Any] | None) -> dict[str, Any]:
    assert summary is not None
    return {name: value for name, value in summary.items() if not name.startswith("seconds")}


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def assert_same_run(folder: Path, reference: Path) -> None:
    one, other = Run.open(folder), Run.open(reference)
    assert_same(one.findings(), other.findings())
    assert untimed(one.summary) == untimed(other.summary)
    assert torch.equal(one.seeds, other.seeds)
    assert listing(folder) == listing(reference)


def assert_beginning(findings: Findings, whole: Findings) -> None:
    """Every finding is among those of the whole run."""
    lines = {tuple(line) for line in whole.rows.tolist()}
    assert {tuple(line) for line in findings.rows.tolist()} <= lines


class Killed(BaseException):
    """Stands for SIGKILL: from here on the process does nothing any more."""


class Killer:
    """Lets so many calls that change files through and kills the process at the next one."""

    CALLS = ((os, "fsync"), (os, "replace"), (os, "unlink"))

    def __init__(self, patch: pytest.MonkeyPatch, after: int) -> None:
        self.left, self.dead = after, False
        for module, name in self.CALLS:
            patch.setattr(module, name, self.deadly(getattr(module, name)))

    def deadly(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*values: Any, **options: Any) -> Any:
            self.dead = self.dead or self.left == 0
            if self.dead:
                raise Killed
            self.left -= 1
            return call(*values, **options)

        return instead


def killed_at(call: int, folder: Path, config: SearchConfig) -> bool:
    """Search and be killed before the given call; return whether the search was still going on."""
    with pytest.MonkeyPatch.context() as patch:
        Killer(patch, call)
        try:
            search(folder, config)
        except Killed:
            return True
    return False


def forged(folder: Path, name: str, was: str, now: str) -> None:
    """Change the text of the manifest or the journal and make all digests and checksums right again."""
    manifest = unseal((folder / MANIFEST).read_bytes())
    lines = [json.loads(line) for line in (folder / JOURNAL).read_text(encoding="utf-8").splitlines()]
    text = json.dumps(manifest if name == MANIFEST else lines)
    assert was in text
    changed = json.loads(text.replace(was, now, 1))
    write_manifest(folder, changed if name == MANIFEST else manifest)
    check, text = zlib.crc32((folder / MANIFEST).read_bytes()), ""
    for line in lines if name == MANIFEST else changed:
        body = json.dumps({key: value for key, value in line.items() if key != "check"})[:-1]
        check = zlib.crc32(body.encode(), check)
        text += f'{body}, "check": "{check:08x}"}}\n'
    (folder / JOURNAL).write_text(text, encoding="utf-8")
