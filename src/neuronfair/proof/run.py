"""The folder of a proof: it survives a kill as the folder of a search does, and goes on where it stood."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from neuronfair.domain.tables.dataset import Dataset
from neuronfair.limits import check_size
from neuronfair.model.decision import Decision
from neuronfair.proof.decide.queue import State, recovered
from neuronfair.store.files import load_state, save_state
from neuronfair.store.journal import PROOF
from neuronfair.store.ledger import Ledger
from neuronfair.store.manifest import make_manifest
from neuronfair.store.sealed_json import Json

CERTIFICATE, FIGURES = "certificate.parquet", "proof.json"  # made of the last state: no line names them
SHARDS = "shards"  # what pieces of the last state have done since, while several workers prove


@dataclass(frozen=True)
class ProofRequest:
    """What must be the same when a proof goes on; it may be given more time, or other rows."""

    decision: Decision
    where: str = ""
    seed: int = 0  # which rows of the table are looked at


@dataclass(frozen=True)
class ProofRun:
    """An open folder of a proof."""

    ledger: Ledger

    @staticmethod
    def create_or_open(folder: Path, data: Dataset, asked: ProofRequest, **model: object) -> ProofRun:
        """Make the folder of a proof, or open the one that is there if it belongs to the same question."""
        manifest = {**make_manifest(asked, data, **model), "kind": "proof"}  # type: ignore[arg-type]
        run = ProofRun(Ledger.create_or_open(folder, manifest, data.domain, "proof"))
        if not run.ledger.lines:
            run.ledger.begin({})
        return run

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.ledger.folder

    def result(self) -> Json | None:
        """Return what was asked last and what came of it; None if that is unfinished, or the certificate is gone."""
        return self.ledger.summary if (self.folder / CERTIFICATE).is_file() else None

    def state(self, device: torch.device) -> State | None:
        """Return where the proof stood."""
        parts = self.ledger.journal.parts[PROOF]
        if not parts:
            return None
        last = parts[-1]
        path = self.ledger.path(last["state"])
        check_size(path.stat().st_size, path, times=2)
        tensors = load_state(path, device)
        return recovered(State.of(tensors, last["boxes"], last["seconds"]), self._pieces)

    def keep(self, state: State) -> Path:
        """Keep where the proof stands, and return the folder in which pieces of it may keep theirs."""
        entry = {"boxes": state.boxes, "seconds": state.seconds}
        self.ledger.part(PROOF, entry, {"state": partial(save_state, state.tensors)})
        shutil.rmtree(self.folder / SHARDS, ignore_errors=True)  # a lost worker may still write there; nobody reads it
        return self._pieces

    @property
    def _pieces(self) -> Path:
        """Where pieces of the last state keep theirs: no other state has such a name."""
        last = self.ledger.journal.parts[PROOF][-1]
        return self.folder / SHARDS / f"{Path(last['state']).stem}-{last['crc32']['state']:08x}"
