"""Messages stay short, whatever they quote."""

from __future__ import annotations

import pytest

from neuronfair.errors import LONGEST, CellError, DataError, did_you_mean, one_line, repeated


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    text = str(DataError(f"table.csv: {'x' * 10**6}. Correct the cell"))
    assert len(text) < LONGEST + 10
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
    assert repeated([]) is None
    assert repeated(["", "a"]) is None
    assert repeated(["a", "", "b", "", "a"]) == ""
