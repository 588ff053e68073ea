"""The folder of a proof: it survives a kill as the folder of a search does, and goes on where it stood."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from neuronfair.certify.prove import State
from neuronfair.domain.data import Data
from neuronfair.model.decision import Decision
from neuronfair.store.files import load_state, save_state
from neuronfair.store.journal import PROOF
from neuronfair.store.ledger import Ledger
from neuronfair.store.manifest import make_manifest
from neuronfair.store.seal import Json

CERTIFICATE, FIGURES = "certificate.parquet", "proof.json"  # made of the last state: no line names them


@dataclass(frozen=True)
class Asked:
    """What must be the same when a proof goes on; it may be given more time, or other rows."""

    decision: Decision
    where: str = ""
    seed: int = 0  # which rows of the table are looked at


@dataclass(frozen=True)
class ProofRun:
    """An open folder of a proof."""

    ledger: Ledger

    @staticmethod
    def create_or_open(folder: Path, data: Data, asked: Asked, **model: object) -> ProofRun:
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
        tensors = load_state(self.ledger.path(last["state"]), device)
        columns = {
            kind: {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{kind}.")}
            for kind in ("open", "done")
        }
        return State(**columns, boxes=last["boxes"], seconds=last["seconds"])

    def keep(self, state: State) -> None:
        """Keep where the proof stands."""
        tensors = {f"open.{name}": tensor for name, tensor in state.open.items()}
        tensors |= {f"done.{name}": tensor for name, tensor in state.done.items()}
        entry = {"boxes": state.boxes, "seconds": state.seconds}
        self.ledger.part(PROOF, entry, {"state": partial(save_state, tensors)})
