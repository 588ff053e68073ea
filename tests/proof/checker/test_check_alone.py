"""The checker shares with the prover what its documents say, and no more: the imports tell."""

from __future__ import annotations

import ast
from pathlib import Path

import neuronfair

SOURCE = Path(neuronfair.__file__).parent
# All that the checker imports of this package, itself or through others of its folder.
SHARED = {
    # what people there are, as data
    "domain.attribute": {"Attribute", "MISSING"},
    "domain.rules": {"Rule", "RuleCondition", "Span"},
    "domain.table": {"TableDomain"},
    "domain.schema.toml": {"format_domain", "parse_domain", "read_conditions"},
    # the model as it was opened
    "model.blackbox": {"BlackBox"},
    "model.decision": {"Decision"},
    "model.encoding": {"TableEncoding"},
    "model.forest": {"Forest"},
    "model.network": {"Network"},
    "model.open": {"OpenedModel"},
    "model.weights": {"fingerprint"},
    # files and errors
    "errors": {"DataError", "DomainError", "NeuronFairError", "RunError", "one_line"},
    "limits": {"TREE_FACTOR", "check_size"},
    "store.files": {"decode"},
    "store.tables": {"DictionaryColumn", "read_columns", "write_columns"},
}
OWN = {"proof.certificate"}  # the file and what it holds, beside the modules of proof/checker


def imported(path: Path) -> dict[str, set[str]]:
    """What a file imports of this package, but for names that only a reader of types needs."""
    found: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for part in ast.walk(node) if not isinstance(node, ast.If) else ():
            if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("neuronfair"):
                found.setdefault(part.module or "", set()).update(alias.name for alias in part.names)
            assert not isinstance(part, ast.Import) or not any(a.name.startswith("neuronfair") for a in part.names)
    return found


def test_the_checker_imports_nothing_of_the_prover():
    waiting, seen, shared = ["proof.checker.check"], set(), dict[str, set[str]]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        assert name in OWN or name.startswith("proof.checker."), f"the checker uses {name}, which is the prover's"
        for module, names in imported(SOURCE / f"{name.replace('.', '/')}.py").items():
            inner = module.removeprefix("neuronfair").removeprefix(".")
            if inner.startswith("proof"):
                waiting.append(inner)
            elif inner:  # the package itself gives its version
                shared.setdefault(inner, set()).update(names)
    assert shared == SHARED
