"""Ways in which a program is wrong without a word: numbers rounded into names, errors taken for success, True for 1.

Each list says where such a thing is right, and why; a new one is a decision.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import neuronfair

SOURCE = Path(neuronfair.__file__).parent
TREES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")
}
ROUNDING = re.compile(r"\.?\d*[gG]$")

# Numbers rounded to some digits that tell: a metric or a bound as people read it, never what something is known by.
SHOWN_ONLY = {
    "formatting.py": "metrics in sentences",
    "render/tables.py": "sentences",
    "render/terminal.py": "sentences",
    "model/profile.py": "labels of curves, and the repr",
    "render/search.py": "labels of bars",
    "alternative_models/report.py": "sentences",
    "text/report.py": "sentences",
    "render/page.py": "places in a drawing",
    "audits/gate/checks.py": "sentences",
    "audits/pytest_check.py": "sentences",
    "audits/gate/thresholds.py": "sentences",
    "audits/stages/run_searches.py": "metrics in audit.json",
    "audits/wording/phrases.py": "sentences",
    "parameters.py": "errors",
    "proof/checker/check.py": "errors",
    "proof/records.py": "errors",
    "proof/checker/region.py": "errors",
    "proof/bounds/margins.py": "errors",
    "domain/attribute.py": "errors",
    "domain/population/plausible.py": "errors",
    "domain/schema/column_types.py": "twelve digits of the bounds that are proposed, and what a cell is read as",
    "domain/schema/rule_mining.py": "twelve digits of the ends of a range: undoes the rounding of low + step * code",
    "model/open/frames.py": "twelve digits, only where no category is the number itself and just one rounds to it",
    "model/open/opened.py": "a tolerance that is chosen, to two digits, and then used as it is said",
}

# Handlers of any error that do not raise another, and why what follows is right.
GOES_ON = {
    "sandbox/server.py attempt": "the error is the answer, which the parent raises",
    "cli/app.py main": "ends with exit status 3",
    "cli/audit_batch.py audit_one": "the error is the line of that audit",
    "cli/audit_batch.py _find_code_file": "only takes the digest of a file; the audit itself says what is wrong",
    "model/open/estimators.py ignores_names": "a model that fails with other names reads columns by name",
    "model/open/names.py _get_attribute": "an attribute that an unfitted model does not have is not said",
    "model/open/torch_modules.py with_input_layer": "an untraceable network has gradients as a whole",
    "model/open/graphs/__init__.py check_full_pass": "measures memory only; the rows fail next, with the reason",
    "model/open/torch_modules.py open_module": "it is opened as it is, and what fails then is raised",
    "model/open/estimators.py _find_accepted_inputs": "the first error is raised if none is accepted",
    "model/open/estimators.py _open_network": "the estimator is a black box, whose note has the reason",
    "model/open/estimators.py _predict_differs": "predict fails, so only the scores decide",
    "searches/config.py load_registered": "a warning names the method; the others can be used",
    "alternative_models/candidates.py __getstate__": "an estimator that cannot be sent is refused with the reason",
    "text/models.py save": "it counts by its type; on resuming, some answers are compared anew",
    "text/models.py _request": "the call is tried again; then the text has no answer, which is counted",
    "scale/tasks.py _run_task": "the error is raised where the result of the task is asked for",
    "scale/tasks.py _can_be_sent": "a task whose error cannot be sent is done again by the caller, which raises it",
    "searches/forked.py _work": "the error is sent to the process that counts, which raises it",
    "searches/forked.py _pickle_error": "an error that cannot be sent is raised with its text",
    "images/archive.py _decode_file": "the image is counted as damaged",
}


def with_function(tree: ast.AST, inside: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Yield all nodes of a tree, each with the name of the function that it is in."""
    for node in ast.iter_child_nodes(tree):
        name = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else inside
        yield node, name
        yield from with_function(node, name)


def test_numbers_are_rounded_for_people_only():
    found = {
        path
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None
        if ROUNDING.search(ast.unparse(node.format_spec).strip("f'\""))
    }
    found |= {
        path
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "format" and len(node.args) == 2
    }
    assert found <= set(SHOWN_ONLY), "a name, a key or a command is written with words.exact, which rounds nothing"


def test_an_error_of_any_kind_is_never_success():
    found = set()
    for path, tree in TREES.items():
        for node, function in with_function(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            assert node.type is not None, f"{path} {function}: a bare except"
            names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
            if names & {"Exception", "BaseException"} and not any(isinstance(n, ast.Raise) for n in ast.walk(node)):
                found.add(f"{path} {function}")
    assert found <= set(GOES_ON), "say why what follows is right"


def test_the_lists_name_what_is_there():
    functions = {f"{path} {name}" for path, tree in TREES.items() for _, name in with_function(tree)}
    assert set(SHOWN_ONLY) - set(TREES) == set()
    assert set(GOES_ON) - functions == set()


def test_truth_is_not_taken_out_of_sets():
    """Without False, a set of numbers loses its 0."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        for operation in ast.walk(tree)
        if isinstance(operation, ast.BinOp)
        for node in (operation.left, operation.right)
        if isinstance(node, ast.Set)
        if any(isinstance(one, ast.Constant) and isinstance(one.value, bool) for one in node.elts)
    ]
    assert found == []
