"""Names and values that try to give a terminal orders, or to hide, are written out."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuronfair.formatting import printable

# Worked out by hand from the Unicode charts.
HOSTILE = {
    "\x00": r"\u0000",
    "\x07": r"\u0007",
    "\n": r"\u000a",
    "\x1b": r"\u001b",
    "\x7f": r"\u007f",
    "\x85": r"\u0085",
    "\x9b": r"\u009b",
    "\u200b": r"\u200b",
    "\u2028": r"\u2028",
    "\u202e": r"\u202e",
    "\u2066": r"\u2066",
    "\u2069": r"\u2069",
    "\ufeff": r"\ufeff",
    "\uffff": r"\uffff",
    "\ud800": r"\ud800",
    "\U000e0041": r"\U000e0041",
}


@pytest.mark.parametrize(("sign", "shown"), HOSTILE.items(), ids=HOSTILE.values())
def test_what_cannot_be_seen_is_written_out(sign, shown):
    assert printable(f"a{sign}b") == f"a{shown}b"


@pytest.mark.parametrize(
    "text", ["größe", "年齢", "می‌خواهم", "שלום", "क्‍ष", "👩‍🚒", "e\u0301", "[bold]x[/bold]", r"C:\x1b", " ~\xa0"]
)
def test_what_can_be_seen_stays(text):
    assert printable(text) == text


def test_some_may_be_kept():
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\u001b"


@given(st.text())
def test_nothing_is_left_to_write_out(text):
    once = printable(text)
    assert not any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 or 0xD800 <= ord(sign) < 0xE000 for sign in once)
    assert printable(once) == once


@given(st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])))
def test_strings_of_json_and_toml_keep_their_meaning(text):
    written = printable(json.dumps(text, ensure_ascii=False))
    assert json.loads(written) == text
    assert tomllib.loads(f"a = {written}") == {"a": text}
