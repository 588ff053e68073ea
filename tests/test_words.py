"""Documents, messages and docstrings use the words of the field, not those of a private dialect."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronfair import cli
from tests.conftest import ROOT

SOURCE = ROOT / "src"
DIALECT = (
    *("decided otherwise", "decided alike", "would be decided", "whom it h", "hoped for", "fed what"),
    *("less usual", "people of the table", "take along", "mended", "goes on with", "beside it"),
)
FOUND = re.compile("|".join(rf"\b{phrase}".replace(" ", r"\s+") for phrase in DIALECT), re.IGNORECASE)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def places(text: str, name: object, line: int = 1) -> list[str]:
    return [f"{name}:{line + text.count(chr(10), 0, found.start())}: {found[0]}" for found in FOUND.finditer(text)]


def texts(path: Path) -> Iterator[tuple[str, int]]:
    """The string literals of a module, docstrings and f-strings included, with their lines; the whole of a template."""
    content = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield content, 1
        return
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_use_the_words_of_the_field(path):
    assert places(path.read_text(encoding="utf-8"), path.name) == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in SOURCE.rglob("*.py")}), ids=lambda path: path.name)
def test_strings_and_templates_use_the_words_of_the_field(folder):
    files = [path for path in sorted(folder.iterdir()) if path.suffix in (".py", ".html", ".js")]
    assert [place for path in files for text, line in texts(path) for place in places(text, path.name, line)] == []


def test_help_uses_the_words_of_the_field(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["neuronfair", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert places(capsys.readouterr().out, "--help") == []


def test_the_words_are_found():
    assert places("They\nare decided\n  otherwise.", "page") == ["page:2: decided\n  otherwise"]
    assert places("recommended, amended", "page") == []


QUOTED = re.compile(r"(?<!`)`([a-z_][a-z0-9_]*)`(?!`)")
# A metric, a fixture, a column, a method of scikit-learn, and an argument of the search.
ELSEWHERE = {"disparate_impact", "fairness", "flips", "predict_proba", "runner"}
Definition = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((SOURCE / "neuronfair").rglob("*.py"))}
CLASSES = {node.name: node for tree in TREES.values() for node in tree.body if isinstance(node, ast.ClassDef)}
PUBLIC = {node.name for tree in TREES.values() for node in tree.body if isinstance(node, Definition)}
PUBLIC |= {name for path in TREES for name in (path.stem, path.parent.name)}


def identifiers(code: ast.AST) -> set[str]:
    """The names, attributes, parameters and keywords in some code."""
    kinds = ("id", "attr", "arg", "name")
    return {name for node in ast.walk(code) for kind in kinds if isinstance(name := getattr(node, kind, None), str)}


def declared(code: ast.AST) -> set[str]:
    """The functions, classes, fields and parameters of overloads that some code defines, and its strings."""
    fields = {ast.unparse(node.target) for node in ast.walk(code) if isinstance(node, ast.AnnAssign)}
    definitions = [node for node in ast.walk(code) if isinstance(node, Definition)]
    overloads = [node for node in definitions if "overload" in map(ast.unparse, node.decorator_list)]
    names = {node.name for node in definitions}.union(*map(identifiers, overloads))
    return fields | names | {str(node.value) for node in ast.walk(code) if isinstance(node, ast.Constant)}


def unknown_words(code: ast.AST, owner: ast.AST, of_module: set[str]) -> Iterator[str]:
    """Yield the `word`s of docstrings that are no names near them, in classes named there, or of public things."""
    is_documented = isinstance(code, (ast.Module, *Definition))
    for part in ast.iter_child_nodes(code):
        yield from unknown_words(part, code if isinstance(code, ast.ClassDef) else owner, of_module)
    if is_documented and (words := QUOTED.findall(ast.get_docstring(code) or "")):
        near = identifiers(code) | identifiers(owner)
        near |= {name for kind in near & CLASSES.keys() for name in declared(CLASSES[kind])}
        yield from (word for word in words if word not in near | of_module | PUBLIC | ELSEWHERE)


@pytest.mark.parametrize("path", TREES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_docstrings_and_comments_name_what_there_is(path):
    tree = TREES[path]
    assert list(unknown_words(tree, ast.Pass(), declared(tree))) == []
    with tokenize.open(path) as lines:
        tokens = tokenize.generate_tokens(lines.readline)
        comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    known = identifiers(tree) | declared(tree) | PUBLIC
    assert [word for comment in comments for word in QUOTED.findall(comment) if word not in known] == []


def test_a_stale_name_in_a_docstring_is_found():
    tree = ast.parse('def draw(size):\n    """Draw `size` rows, at most `most`, as `audit` does."""')
    assert list(unknown_words(tree, ast.Pass(), declared(tree))) == ["most"]
