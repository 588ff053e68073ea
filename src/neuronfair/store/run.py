"""The folder of a search: its findings as Parquet parts, and the last state of its chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from neuronfair.domain.population.counterfactuals import CounterfactualTwins, with_counterfactuals
from neuronfair.domain.population.model import PopulationModel, TablePopulation
from neuronfair.domain.population.storage import (
    load_counterfactuals,
    load_population,
    save_counterfactuals,
    save_population,
)
from neuronfair.domain.table import TableDomain
from neuronfair.errors import DataError, OtherRunError, RunError
from neuronfair.searches.campaign import SearchCounts
from neuronfair.searches.engine import Checkpoint
from neuronfair.searches.evaluate import counterfactuals_of
from neuronfair.searches.findings import Findings
from neuronfair.store import files
from neuronfair.store.ledger import COUNTERFACTUALS, PHASES, POPULATION, SEEDS, STARTING_FILES, Ledger, Writers
from neuronfair.store.tables import read_findings, write_findings

_Known = TypeVar("_Known")


def population_writers(population: PopulationModel | None, counterfactuals: CounterfactualTwins | None) -> Writers:
    """Return what writes a population and counterfactual twins to their files; nothing for a user's own population."""
    writers: dict[str, tuple[str, Callable[[Path], None]]] = {}
    if isinstance(population, TablePopulation):
        writers["population"] = POPULATION, partial(save_population, population)
    if counterfactuals is not None:
        writers["counterfactuals"] = COUNTERFACTUALS, partial(save_counterfactuals, counterfactuals)
    return writers


def read_back(load: Callable[[Path, TableDomain], _Known], path: Path, domain: TableDomain) -> _Known:
    """Read a population or counterfactual twins that a run has saved."""
    try:
        return load(path, domain)
    except DataError as error:
        raise RunError(f"{error}. What was found is still there") from None


@dataclass(frozen=True)
class Run(Ledger):
    """An open run folder. It is the recorder of one search."""

    @property
    def outputs(self) -> int:
        """How many scores the model gives."""
        return int(self.manifest["outputs"])

    @property
    def domain(self) -> TableDomain:
        """The domain that was searched, with its twins."""
        has_counterfactuals = self._has("counterfactuals") or self._has("counterparts")
        return self._with_counterfactuals if has_counterfactuals else self.declared

    @cached_property
    def _with_counterfactuals(self) -> TableDomain:
        kind = "counterfactuals" if self._has("counterfactuals") else "counterparts"
        saved = read_back(load_counterfactuals, self.path(STARTING_FILES[kind]), self.declared)
        return with_counterfactuals(self.declared, saved)

    def findings(self) -> Findings:
        """Return all findings of the run, phase by phase."""
        return Findings.join([self._join_findings(phase) for phase in PHASES])

    def parts(self, phase: str) -> Iterator[Findings]:
        """Yield the findings of a phase, part by part."""
        for line in self.journal.parts[phase]:
            part = read_findings(self.path(line["part"]), self.domain, self.outputs)
            misses = files.load_array(self.path(line["misses"]), len(self.domain.attributes))
            counts = {name: line[name] for name in ("tried", "evaluated", "rejected")}
            yield replace(part, misses=misses.to(self.domain.device), **counts)

    def evaluated_keys(self, phase: str) -> list[Path]:
        """Return the files with the keys of the records that a phase has evaluated, in their order."""
        return [self.path(line["keys"]) for line in self.journal.parts[phase]]

    def is_in_one_piece(self, phase: str) -> bool:
        """Return whether a phase was started in one piece, not in shards: then its state has chains."""
        lines = self.journal.parts[phase]
        return bool(lines) and bool(files.load_state(self.path(lines[-1]["state"]), self.domain.device))

    @property
    def model_digest(self) -> str | None:
        """The SHA-256 of the model's file when the search began; None if the model was not a file."""
        return self.lines[0]["model"] if self.lines else None

    @property
    def seeds(self) -> Tensor:
        """The rows that the chains started from, by the origin of a finding."""
        return files.load_array(self.path(SEEDS), len(self.domain.attributes)).long().to(self.domain.device)

    @property
    def population(self) -> PopulationModel | None:
        """The population that gives the plausibility of records; None if the run has not saved one."""
        if not self._has("population"):
            return None
        return read_back(load_population, self.path(POPULATION), self.declared)

    @property
    def counterfactuals(self) -> CounterfactualTwins | None:
        """The model of counterfactual twins; None if twins differ in the sensitive attributes only."""
        return counterfactuals_of(self.domain)

    def _has(self, kind: str) -> bool:
        return bool(self.lines) and kind in self.lines[0]

    # The protocol of a recorder

    def begin(
        self,
        seeds: Tensor,
        population: PopulationModel | None = None,
        counterfactuals: CounterfactualTwins | None = None,
    ) -> None:
        """Save the rows that the chains start from, the population, and the counterfactual twins, if there are any."""
        # Chains start within the bounds; a code beyond them may not fit the compact type.
        seeds = self.domain.clip(seeds).to(self.domain.compact)
        if not self.lines:
            self.begin_with(
                {"seeds": (SEEDS, partial(files.save_array, seeds)), **population_writers(population, counterfactuals)}
            )
        elif not torch.equal(self.seeds, seeds.long()):
            raise OtherRunError(
                f"{self.folder}: this run was begun with other rows to start from. Choose another --out"
            )

    def resume(self, phase: str) -> Checkpoint | None:
        """Return the last checkpoint of a phase, with all its findings."""
        lines = self.journal.parts[phase]
        if not lines:
            return None
        last, device = lines[-1], self.domain.device
        state = files.load_state(self.path(last["state"]), device)
        if last["stop"] is None and not state:
            raise RunError(
                f"{self.folder}: its phase '{phase}' was searched in shards that are not all merged yet. Use the same "
                "--ray and --shards as before"
            )
        if state and "place" not in state:  # the log of evaluated records had another form then, too
            raise OtherRunError(
                f"{self.folder}: this search was started by another version of neuronfair, so it cannot be resumed. "
                "Start a new one; its findings can still be read"
            )
        evaluated = torch.cat([files.load_array(path, 2) for path in self.evaluated_keys(phase)]).to(device)
        return Checkpoint(last["t"], state, self._join_findings(phase), evaluated, last["seconds"], last["stop"])

    def checkpoint(self, phase: str, checkpoint: Checkpoint) -> None:
        """Save the findings since the last checkpoint, and the current chains."""
        findings = checkpoint.findings
        writers: dict[str, Callable[[Path], None]] = {
            "part": lambda path: write_findings(path, findings, self.domain),
            "keys": partial(files.save_array, checkpoint.lines),
            "misses": partial(files.save_array, findings.misses),
            "state": partial(files.save_state, checkpoint.state),
        }
        entry = {"t": checkpoint.t, "findings": len(findings)}
        entry |= {"tried": findings.tried, "evaluated": findings.evaluated, "rejected": findings.rejected}
        self.part(phase, {**entry, "seconds": checkpoint.seconds, "stop": checkpoint.stop}, writers)

    def control(self, name: str) -> SearchCounts | None:
        """Return the counts of a finished control."""
        counts = [line for line in self.lines if line["event"] == "control" and line["name"] == name]
        return SearchCounts(**counts[-1]["count"]) if counts else None

    def keep_control(self, name: str, count: SearchCounts) -> None:
        """Save the counts of a control."""
        self.commit({"event": "control", "name": name, "count": asdict(count)})

    def _join_findings(self, phase: str) -> Findings:
        return Findings.join([Findings.empty(self.domain, self.outputs), *self.parts(phase)])
