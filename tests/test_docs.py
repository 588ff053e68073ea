"""The documentation is true: its code runs, its lists are complete, and what is generated is up to date.

Pages are run block by block, in order, in an empty folder:

- `python` runs; with a title it is written to that file instead, and so is every other block with a title
  ("domain.toml, at the end" adds to a file);
- `sh` runs line by line; `# exit status 1` at the end of a line says what is expected;
- `<!-- not run: reason -->` before a block leaves it out, and `<!-- needs: keras -->` skips a page without the package.
"""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import neuronfair
from neuronfair import cli
from neuronfair.searches.methods import METHODS
from tests.conftest import ROOT, shorten

DOCS = ROOT / "docs"
RUN = [ROOT / "README.md", DOCS / "index.md", DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md"))]
BLOCK = re.compile(
    r'^(?:<!-- not run: (?P<why>[^\n]+) -->\n+)?```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<code>.*?)^```$',
    re.S | re.M,
)
AT_THE_END = ", at the end"
METHODS_PAGE = (DOCS / "methods.md").read_text(encoding="utf-8")


class Block(NamedTuple):
    language: str
    title: str | None
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are run or written."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["title"], found["code"], text.count("\n", 0, found.start("code")))
        for found in BLOCK.finditer(text)
        if not found["why"]
    ]


@pytest.fixture
def shell(monkeypatch, tmp_path, forgotten_modules):
    """Run lines as a shell would, but in this process, which is quicker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def call(line: str) -> int:
        words = shlex.split(line, comments=True)
        if words[0] == "neuronfair":
            monkeypatch.setattr(sys, "argv", words)
            try:
                cli.main()
            except SystemExit as end:
                return end.code if isinstance(end.code, int) else 0
        elif words[0] == "python":
            monkeypatch.setattr(sys, "argv", words[1:])
            runpy.run_path(words[1], run_name="__main__")
        elif words[0] == "pytest":
            return pytest.main([*words[1:], "--rootdir", str(tmp_path)])
        elif words[0] == "cp":
            shutil.copy(*words[1:])
        else:
            pytest.fail(f"the tests do not know how to run: {line}")
        return 0

    return call


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of other packages
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page, shell, monkeypatch):
    if page.name != "tutorial.md":  # whose model must pass a gate that asks what a whole search found
        shorten(monkeypatch, epochs=200 if page.name == "torch.md" else 15)  # a repair must keep the accuracy
    for package in re.findall(r"^<!-- needs: (\w+) -->$", page.read_text(encoding="utf-8"), re.M):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{page.name} needs the package {package}")
    names = {"__name__": "docs"}
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.title:
            file = Path(block.title.removesuffix(AT_THE_END))
            file.parent.mkdir(parents=True, exist_ok=True)
            earlier = file.read_text(encoding="utf-8") if block.title.endswith(AT_THE_END) else ""
            file.write_text(earlier + block.code, encoding="utf-8")
        elif block.language == "python":
            exec(compile("\n" * block.line + block.code, where, "exec"), names)
        elif block.language == "sh":
            for line in block.code.replace("\\\n", "").splitlines():
                expected = re.search(r"# exit status (\d+)", line)
                if not line.startswith("#") and line.strip():
                    assert shell(line) == (int(expected[1]) if expected else 0), f"{where}: {line}"


def test_a_block_is_left_out_only_for_a_reason():
    for page in RUN:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- not run") == len([b for b in BLOCK.finditer(text) if b["why"]]), page
        known = {"python", "sh", "toml", "yaml", "text", "console"}
        assert {found["language"] for found in BLOCK.finditer(text)} <= known, page


@pytest.mark.parametrize("name", list(METHODS))
def test_every_method_is_described(name):
    assert f"`{name}`" in METHODS_PAGE


def test_every_described_method_exists():
    table = METHODS_PAGE.partition("---|")[2].partition("\n\n")[0]
    listed = {name for line in table.splitlines()[1:] for name in re.findall(r"`([\w-]+)`", line.split("|")[0])}
    assert listed == set(METHODS)


# The reference


def test_the_generated_pages_are_up_to_date():
    make = runpy.run_path(str(DOCS / "reference" / "make.py"))
    stale = [path.name for path, page in make["PAGES"].items() if path.read_text(encoding="utf-8") != page()]
    assert stale == [], "run: python docs/reference/make.py"


def test_every_key_of_the_results_has_a_meaning():
    schema = json.loads((DOCS / "reference" / "results.schema.json").read_text(encoding="utf-8"))
    keys = [(key, one) for kind in schema["$defs"].values() for key, one in kind["properties"].items()]
    assert [key for key, one in keys if not one["description"]] == []


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    listed = {place.rpartition(".")[2] for place in re.findall(r"^::: (\S+)$", page, re.M)}
    assert {name for name in neuronfair.__all__ if not name.startswith("_")} <= listed


def test_every_name_of_the_reference_exists():
    page = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    listed = [place.rpartition(".") for place in re.findall(r"^::: (\S+)$", page, re.M)]
    assert [f"{module}.{name}" for module, _, name in listed if not hasattr(import_module(module), name)] == []


def test_every_figure_of_the_gate_is_in_the_reference():
    from neuronfair.audits.gate import thresholds as gate

    page = (DOCS / "reference" / "gate.md").read_text(encoding="utf-8")
    figures = {*gate.ATTRIBUTE_METRICS, *gate.AUDIT_METRICS, *(f"{figure}.METHOD" for figure in gate.SEARCH_METRICS)}
    assert [figure for figure in sorted(figures) if f"`{figure}`" not in page] == []


def test_every_entry_of_a_domain_file_is_in_the_reference():
    from neuronfair.domain.schema import toml

    page = (DOCS / "reference" / "domain-file.md").read_text(encoding="utf-8")
    entries = {*toml._TOP_KEYS, *toml._ENTRY_CHECKS, "column", "classes", "if", "then", "forbid", "min", "max"}
    assert [entry for entry in sorted(entries) if not re.search(rf"\b{entry}\b", page)] == []
    (example,) = [block for block in blocks(DOCS / "reference" / "domain-file.md") if block.language == "toml"]
    assert toml.parse_domain(example.code).count > 0


def test_every_environment_variable_is_in_the_reference():
    page = (DOCS / "reference" / "run-folder.md").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r'environ(?:\.get|\.setdefault)?[(\[]"(\w+)"', code))
    assert "NEURONFAIR_DATA" in read
    assert [name for name in sorted(read) if f"`{name}`" not in page] == []


# The site


def test_the_readme_is_short_and_the_pictures_small():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
    assert [picture.name for picture in (DOCS / "img").iterdir() if picture.stat().st_size > 200_000] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as pages; any warning is an error."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("the site needs mkdocs: pip install 'neuronfair[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_no_page_of_the_site_asks_for_anything_from_elsewhere(site):
    outside = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=["\']?(?:https?:)?//[^"\'\s>]+')
    pages = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert len(pages) > 25
    assert [found for page in pages for found in outside.findall(page)] == []
    assert [found for style in styles for found in re.findall(r'url\(["\']?(?:https?:)?//[^)]*', style)] == []


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    assert listed == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
