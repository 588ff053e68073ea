"""How long a search may go on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from neuronfair.errors import NeuronFairError


@dataclass(frozen=True)
class Budget:
    """The limits of one phase; whichever is reached first ends it.

    `steps` counts the rows judged for each seed. `instances` (different people judged) and `findings` count over all
    seeds. `findings_per_seed` retires a walker when it has met so many discriminatory rows, whether or not another
    walker met them before: what a walker does must not depend on the others. `seconds` is wall-clock time, the one
    limit that does not give the same findings twice.
    """

    steps: int = 1000
    instances: int | None = None
    findings: int | None = None
    findings_per_seed: int | None = None
    seconds: float | None = None

    @property
    def counts_findings(self) -> bool:
        """Whether a finding can end something: the search, or the way of its walker."""
        return self.findings is not None or self.findings_per_seed is not None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value >= 0:
                raise NeuronFairError(f"a budget of {field.name.replace('_', ' ')} must be 0 or more, got {value}")
