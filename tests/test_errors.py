"""Messages stay short, whatever they quote."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import typer
from torch import nn

import neuronfair
from neuronfair import Network, parse_domain
from neuronfair.cli import app
from neuronfair.cli.app import _RENAMED_OPTIONS
from neuronfair.errors import MAX_LETTERS, CellError, DataError, ModelError, did_you_mean, find_repeated, one_line


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    text = str(DataError(f"table.csv: {'x' * 10**6}. Correct the cell"))
    assert len(text) < MAX_LETTERS + 10
    assert text.startswith("table.csv: xxx")
    assert text.endswith("xxx. Correct the cell")
    assert str(DataError("short")) == "short"
    assert str(CellError(0, "y" * 5000)).startswith("row 1: yyy")


def test_the_nearest_of_many_names_is_found() -> None:
    names = [f"column {i}" for i in range(3000)]
    text = did_you_mean("colum 77", names)
    assert text.startswith("Known: column 0, column 1, ")
    assert "(3000 in all)" in text
    assert text.endswith("Did you mean 'column 77'?")


@pytest.mark.parametrize("word", ["x" * 10**6, 5, None])
def test_words_that_are_like_no_other(word: object) -> None:
    assert did_you_mean(word, ["age", "x" * 10**6]).startswith("Known: age, xxx")  # type: ignore[arg-type]
    assert did_you_mean(word, ["age"]) == "Known: age."  # type: ignore[arg-type]


def test_errors_of_others_become_one_short_line() -> None:
    assert one_line(ValueError("two\n  lines")) == "two lines"
    assert one_line(ValueError()) == "ValueError"
    assert len(one_line(ValueError("x" * 10**6))) == 300


def test_repeated_words() -> None:
    assert find_repeated([]) is None
    assert find_repeated(["", "a"]) is None
    assert find_repeated(["a", "", "b", "", "a"]) == ""


def test_every_option_that_a_message_names_exists():
    """In all texts of the source, so that no advice is of an option that was renamed or never made."""
    command = typer.main.get_command(app)
    parts = [command, *command.commands.values()]
    parts += [one for part in parts[1:] for one in getattr(part, "commands", {}).values()]
    options = {word for part in parts for one in part.params for word in (*one.opts, *one.secondary_opts)} | {"--help"}
    unknown = {}
    for path in Path(neuronfair.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        named = {word for text in texts for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", text)}
        known = (
            options | {*_RENAMED_OPTIONS} if path.name == "app.py" else options
        )  # where old spellings are translated
        unknown |= {str(path.name): named - known} if named - known else {}
    assert unknown == {}


def test_the_advice_on_layers_can_be_followed():
    domain = parse_domain("""
sensitive = ["sex"]
[attributes]
age = { kind = "ordinal", low = 0, high = 9 }
sex = { kind = "flag", values = ["f", "m"] }
""")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.last(self.first(x) if x.sum() != 0.123 else x)

    with pytest.raises(ModelError, match=r"Network\(module, domain, layers=\[…\]\)"):
        Network(Net(), domain)
    assert Network(Net(), domain, layers=["first"]).layers == ("first",)
