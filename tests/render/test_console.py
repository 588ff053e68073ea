"""The consoles: names cannot give the terminal orders, nor pass for rich's markup, and our own colours stay."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from neuronfair.render.terminal import make_console, progress_bar

NAME = "a\x1b[31m\x1b]0;owned\x07[bold]\x9b\u202e:smile:[/bold]"
SHOWN = r"a\u001b[31m\u001b]0;owned\u0007[bold]\u009b\u202e:smile:[/bold]"


@pytest.fixture
def printed(monkeypatch):
    """Print on a terminal of 100 columns and return what reaches it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    def call(thing, *, colours: bool = False) -> str:
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("FORCE_COLOR" if colours else "NO_COLOR", "1")
        console = make_console()
        console.file = StringIO()
        console.print(thing)
        return console.file.getvalue()

    return call


def in_a_table(**options) -> Table:
    table = Table(title=NAME, caption=NAME, **options)
    table.add_column(NAME)
    table.add_row(NAME)
    return table


@pytest.mark.parametrize(
    ("thing", "times"), [(NAME, 1), (Group(NAME, NAME), 2), (in_a_table(), 4)], ids=["text", "group", "table"]
)
def test_a_name_is_shown_as_it_is(printed, thing, times):
    text = printed(thing)
    assert text.count(SHOWN) == times
    assert [sign for sign in text if not sign.isprintable() and sign != "\n"] == []


def test_a_styled_text_is_coloured_by_us_alone(printed):
    text = printed(Text(NAME, style="bold red"), colours=True)
    assert text.startswith("\x1b[1;31ma")
    assert text.count("\x1b") == 2  # to colour, and back
    assert "\\u001b[31m" in text


def test_tables_stay_straight(printed):
    lines = [line for line in printed(in_a_table()).splitlines() if line[:1] in "┏┃┡│└"]
    assert len({len(line) for line in lines}) == 1


def test_a_name_with_a_line_break_does_not_make_a_line(printed):
    text = printed("sex\nFAILED\tno\rpassed")
    assert text == "sex\\u000aFAILED\\u0009no\\u000dpassed\n"
    assert printed(Text("two\nlines")) == "two\nlines\n"  # ours may


def test_names_in_a_progress_bar(monkeypatch, capsys):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    with progress_bar(NAME) as show:
        show(1, 2, NAME, what=NAME)
    text = capsys.readouterr().err
    assert text.count(SHOWN) >= 2  # what and note
    assert not {"\x07", "\x9b", "\u202e"} & set(text)
    assert "\x1b]" not in text
