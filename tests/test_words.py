"""Documents, messages and docstrings use the words of the field, not those of a private dialect."""

from __future__ import annotations

import ast
import re
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
