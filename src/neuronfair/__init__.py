"""Fairness testing of neural networks: where bias lives and whom it hits."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Idle OpenMP threads that spin make small networks up to 40 times slower when another program uses a core.
# It must stand before the first import of torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

if TYPE_CHECKING:
    from neuronfair.domain.attribute import Attribute
    from neuronfair.domain.data import Data, load, read_table
    from neuronfair.domain.infer import infer_domain
    from neuronfair.domain.rules import Rule, Span
    from neuronfair.domain.table import TableDomain, Target
    from neuronfair.domain.toml import read_domain
    from neuronfair.errors import DataError, DomainError, ModelError, NeuronFairError, RunError
    from neuronfair.generation.campaign import Outcome, Plan, find
    from neuronfair.generation.findings import Findings
    from neuronfair.generation.shrink import shrink
    from neuronfair.interpretation.ablate import ablate
    from neuronfair.interpretation.profile import BiasProfile, interpret
    from neuronfair.measure.compare import Comparison, compare
    from neuronfair.measure.rate import Rate, discrimination_rate
    from neuronfair.network.adapter import Network
    from neuronfair.network.blackbox import BlackBox
    from neuronfair.network.fit import fit, read_model
    from neuronfair.network.judge import Decision, judge
    from neuronfair.store.run import Run

# Where each public name lives. Names are imported on first use, so that `neuronfair --help` does not wait for torch.
_HOME = {
    "Attribute": "domain.attribute",
    "BiasProfile": "interpretation.profile",
    "BlackBox": "network.blackbox",
    "Comparison": "measure.compare",
    "Data": "domain.data",
    "DataError": "errors",
    "Decision": "network.judge",
    "DomainError": "errors",
    "ModelError": "errors",
    "Findings": "generation.findings",
    "Network": "network.adapter",
    "NeuronFairError": "errors",
    "Outcome": "generation.campaign",
    "Plan": "generation.campaign",
    "Rate": "measure.rate",
    "Rule": "domain.rules",
    "Run": "store.run",
    "RunError": "errors",
    "Span": "domain.rules",
    "TableDomain": "domain.table",
    "Target": "domain.table",
    "ablate": "interpretation.ablate",
    "compare": "measure.compare",
    "discrimination_rate": "measure.rate",
    "find": "generation.campaign",
    "fit": "network.fit",
    "infer_domain": "domain.infer",
    "interpret": "interpretation.profile",
    "judge": "network.judge",
    "load": "domain.data",
    "read_domain": "domain.toml",
    "read_model": "network.fit",
    "read_table": "domain.data",
    "shrink": "generation.shrink",
}

__all__ = [
    "Attribute",
    "BiasProfile",
    "BlackBox",
    "Comparison",
    "Data",
    "DataError",
    "Decision",
    "DomainError",
    "Findings",
    "ModelError",
    "Network",
    "NeuronFairError",
    "Outcome",
    "Plan",
    "Rate",
    "Rule",
    "Run",
    "RunError",
    "Span",
    "TableDomain",
    "Target",
    "ablate",
    "compare",
    "discrimination_rate",
    "find",
    "fit",
    "infer_domain",
    "interpret",
    "judge",
    "load",
    "read_domain",
    "read_model",
    "read_table",
    "shrink",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'neuronfair' has no attribute '{name}'")
    return getattr(import_module(f"neuronfair.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
