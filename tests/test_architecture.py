"""The folders are the data flow: a stage imports only from earlier stages, and the core imports little else."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import neuronfair
from tests.conftest import ROOT

SOURCE = Path(neuronfair.__file__).parent
STAGES = {
    "domain": 1,
    "model": 2,
    "searches": 3,
    "store": 4,
    "measure": 5,
    "proof": 6,
    "audits": 7,
    "render": 8,
    "alternative_models": 9,
    "images": 9,
    "text": 9,
}
FREE = {
    "errors",
    "atomic",
    "limits",
    "formatting",
    "parameters",
    "plots",
    "progress",
    "sandbox",
    "scale",
}  # any stage may use these
CORE_STAGES = {"searches", "measure", "proof"}
CORE_MODULES = {
    *(f"domain/{name}.py" for name in ("attribute", "twins", "rules", "table", "schema/toml")),
    *(
        f"model/{name}.py"
        for name in ("blackbox", "decision", "encoding", "network", "profile", "train", "training_loop")
    ),
}
CORE_LIBRARIES = {"torch", "numpy", "scipy", "sklearn", "neuronfair"} | set(sys.stdlib_module_names)
MOST_LINES, MOST_FUNCTION_LINES, MOST_ARGUMENTS = 600, 80, 8
# Of the whole package, with texts and alternatives: these numbers may only fall. The goal of lines is 33,000.
MOST_LINES_IN_ALL, MOST_MODULES, MOST_UNTYPED_LINES = 54_958, 200, 18
UNTYPED = re.compile(r"(dict|Mapping)\[str, Any\]")
MODULES = sorted(SOURCE.rglob("*.py"))
# A user reads the options of these in the signature, so options with a default do not count: grouping would hide them.
PUBLIC_FUNCTIONS = {name for name in neuronfair.__all__ if name.islower()} | {"check"}  # of the pytest fixture


def imports(path: Path) -> set[str]:
    """Every module a file imports, at the top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def test_a_stage_imports_only_from_earlier_stages():
    upward = []
    for path in MODULES:
        stage = path.relative_to(SOURCE).parts[0]
        for name in imports(path) if stage in STAGES else ():
            parts = name.split(".")
            if parts[0] != "neuronfair" or len(parts) == 1 or parts[1] in FREE:
                continue
            if STAGES.get(parts[1], 99) > STAGES[stage]:
                upward.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert upward == []


def test_the_numerical_core_needs_little():
    foreign = {}
    for path in MODULES:
        relative = path.relative_to(SOURCE)
        if relative.parts[0] in CORE_STAGES or relative.as_posix() in CORE_MODULES:
            foreign[str(relative)] = {name.split(".")[0] for name in imports(path)} - CORE_LIBRARIES
    assert {path: names for path, names in foreign.items() if names} == {}


def arguments(node: ast.AST) -> int:
    """How many arguments a function takes, self not counted; 0 for a command, whose arguments are the command line."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return 0
    if any(
        isinstance(call, ast.Call) and ast.unparse(call.func) in ("command", "app.command")
        for call in node.decorator_list
    ):
        return 0
    required = [
        option for option, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if not default
    ]
    options = required if node.name in PUBLIC_FUNCTIONS else node.args.kwonlyargs
    named = [*node.args.posonlyargs, *node.args.args, *options]
    return len([argument for argument in named if argument.arg not in ("self", "cls")])


def test_nothing_is_too_large():
    long, wide = [], []
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        if len(text.splitlines()) > MOST_LINES:
            long.append(str(path.relative_to(SOURCE)))
        for node in ast.walk(ast.parse(text)):
            if arguments(node) > MOST_ARGUMENTS:
                wide.append(node.name)
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            if is_function and (node.end_lineno or 0) - node.lineno >= MOST_FUNCTION_LINES:
                long.append(node.name)
    assert long == []
    assert wide == [], f"these take more than {MOST_ARGUMENTS} arguments: group those that belong together"


def definitions(path: Path) -> Iterator[tuple[str, str]]:
    """The public classes and type aliases of a module, with the text that defines them."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name, str(path)
        elif isinstance(node, ast.Assign) and re.fullmatch(r"[A-Z]\w*[a-z]\w*", ast.unparse(node.targets[0])):
            yield ast.unparse(node.targets[0]), ast.unparse(node.value)


def test_one_name_means_one_thing():
    meanings: dict[str, set[str]] = {}
    for name, meaning in (pair for path in MODULES for pair in definitions(path)):
        meanings.setdefault(name, set()).add(meaning)
    assert {name: found for name, found in meanings.items() if len(found) > 1 and not name.startswith("_")} == {}


def test_the_package_does_not_grow():
    texts = [path.read_text(encoding="utf-8") for path in MODULES]
    assert len(texts) <= MOST_MODULES
    assert sum(len(text.splitlines()) for text in texts) <= MOST_LINES_IN_ALL
    assert sum(bool(UNTYPED.search(line)) for text in texts for line in text.splitlines()) <= MOST_UNTYPED_LINES


def test_the_listed_core_modules_exist():
    assert {m for m in CORE_MODULES if not (SOURCE / m).exists()} == set()


def test_benchmarks_and_experiments_import_what_exists():
    """Nothing else runs most of them, so an import of a name that was removed would stay unseen."""
    missing = [
        f"{path.relative_to(ROOT)}: {node.module}.{name.name}"
        for path in sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "neuronfair"
        for name in node.names
        if not hasattr(importlib.import_module(node.module), name.name)
        and importlib.util.find_spec(f"{node.module}.{name.name}") is None
    ]
    assert missing == []


def test_public_names_resolve_and_are_documented():
    assert set(neuronfair.__all__) == set(neuronfair._HOME)
    for name in neuronfair.__all__:
        assert getattr(neuronfair, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        neuronfair.serach  # noqa: B018


@pytest.mark.parametrize(("old", "new"), neuronfair._RENAMED.items())
def test_old_public_names_still_work_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=f"neuronfair.{old} is now neuronfair.{new}"):
        assert getattr(neuronfair, old) is getattr(neuronfair, new)


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_idle_threads_do_not_spin():
    code = """
import os, sys
os.environ.pop("OMP_WAIT_POLICY", None)
import neuronfair
print(os.environ["OMP_WAIT_POLICY"], "torch" in sys.modules)
"""
    assert fresh(code) == "PASSIVE False"


def test_help_and_refusals_do_not_wait_for_torch():
    code = """
import sys
import neuronfair.cli
import neuronfair.model.formats
print({"torch", "sklearn", "scipy", "matplotlib", "pyarrow"} & set(sys.modules))
"""
    assert fresh(code) == "set()"
