"""Test trained models for individual discrimination, with evidence you can show an auditor."""

from __future__ import annotations

import os
import sys

# `python -m neuronfair.cli` puts the working folder first on the path, where a file json.py would replace the module
# json. Remove it before any other import.
if (
    getattr(sys, "argv", [])[:1] == ["-m"]
    and sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1][-1].endswith("neuronfair.cli")
    and sys.path[:1] in ([""], [os.getcwd()])  # noqa: PTH109 - pathlib would be imported from that folder
):
    del sys.path[0]

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Spinning OpenMP threads make small networks up to 40 times slower when another program uses a core. OpenMP reads this
# variable once, when torch is imported (see the note of `audit`).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from neuronfair.alternative_models import AlternativesSettings
    from neuronfair.alternative_models.session import alternatives
    from neuronfair.api import Audit, audit, certify, rate, search
    from neuronfair.audits.comparison import compare_methods
    from neuronfair.audits.gate.checks import Checks
    from neuronfair.audits.report import Report
    from neuronfair.audits.settings import AuditSettings
    from neuronfair.domain.schema.infer import infer_domain
    from neuronfair.domain.schema.toml import parse_domain, read_domain
    from neuronfair.domain.table import TableDomain
    from neuronfair.domain.tables.dataset import Dataset, load_dataset, read_table
    from neuronfair.errors import NeuronFairError
    from neuronfair.model.blackbox import BlackBox
    from neuronfair.model.decision import Decision
    from neuronfair.model.encoding import TableEncoding
    from neuronfair.model.network import Network
    from neuronfair.model.open import wrap_model
    from neuronfair.model.profile import interpret
    from neuronfair.model.train import train
    from neuronfair.searches.config import SearchConfig
    from neuronfair.searches.evaluate import evaluate
    from neuronfair.searches.shrink import shrink
    from neuronfair.store.run import Run
    from neuronfair.text.audit import TextAudit, TextRepair, TextSettings, repair_texts
    from neuronfair.text.domain import Templates, read_templates

# The module of each public name. Names are imported on first use, so that `neuronfair --help` does not wait for torch.
_HOME = {
    "AlternativesSettings": "alternative_models",
    "Audit": "api",
    "AuditSettings": "audits.settings",
    "BlackBox": "model.blackbox",
    "Checks": "audits.gate.checks",
    "Dataset": "domain.tables.dataset",
    "Decision": "model.decision",
    "Network": "model.network",
    "NeuronFairError": "errors",
    "Report": "audits.report",
    "Run": "store.run",
    "SearchConfig": "searches.config",
    "TableDomain": "domain.table",
    "TableEncoding": "model.encoding",
    "Templates": "text.domain",
    "TextAudit": "text.audit",
    "TextRepair": "text.audit",
    "TextSettings": "text.audit",
    "alternatives": "alternative_models.session",
    "audit": "api",
    "certify": "api",
    "compare_methods": "audits.comparison",
    "evaluate": "searches.evaluate",
    "flag_flips": "api",
    "infer_domain": "domain.schema.infer",
    "interpret": "model.profile",
    "load_dataset": "domain.tables.dataset",
    "parse_domain": "domain.schema.toml",
    "rate": "api",
    "read_domain": "domain.schema.toml",
    "read_table": "domain.tables.dataset",
    "read_templates": "text.domain",
    "repair_texts": "text.audit",
    "search": "api",
    "shrink": "searches.shrink",
    "train": "model.train",
    "wrap_model": "model.open",
}

# Old names work with a warning until 0.4.
_RENAMED = {
    "Data": "Dataset",
    "Plan": "SearchConfig",
    "compare": "compare_methods",
    "discrimination_rate": "rate",
    "find": "search",
    "fit": "train",
    "judge": "evaluate",
    "load": "load_dataset",
    "open_model": "wrap_model",
    "prove": "certify",
}

__all__ = [
    "AlternativesSettings",
    "Audit",
    "AuditSettings",
    "BlackBox",
    "Checks",
    "Dataset",
    "Decision",
    "Network",
    "NeuronFairError",
    "Report",
    "Run",
    "SearchConfig",
    "TableDomain",
    "TableEncoding",
    "Templates",
    "TextAudit",
    "TextRepair",
    "TextSettings",
    "alternatives",
    "audit",
    "certify",
    "compare_methods",
    "evaluate",
    "flag_flips",
    "infer_domain",
    "interpret",
    "load_dataset",
    "parse_domain",
    "rate",
    "read_domain",
    "read_table",
    "read_templates",
    "repair_texts",
    "search",
    "shrink",
    "train",
    "wrap_model",
]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"neuronfair.{name} is now neuronfair.{new}", DeprecationWarning, stacklevel=2)
        name = new
    if name == "audit_page":
        warnings.warn("neuronfair.audit_page(result) is now result.to_html()", DeprecationWarning, stacklevel=2)
        return lambda audit: import_module("neuronfair.render.page").render_audit(getattr(audit, "report", audit))
    if name not in _HOME:
        raise AttributeError(f"module 'neuronfair' has no attribute '{name}'")
    return getattr(import_module(f"neuronfair.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
