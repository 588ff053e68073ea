"""Other words of a text that a search may replace by one of the same kind, so that it can move away from the text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from neuronfair.errors import DataError
from neuronfair.limits import read_bytes
from neuronfair.text.english import WORD, in_case_of
from neuronfair.text.mentions import IdentityText

POSITIONS, CHOICES = 8, 8  # words of a text that may be replaced, and words for each, its own included
MAX_KINDS = 10_000
_NOT_COUNTED = re.compile(r"\b(?:either|both|between|and|to|or|number|part|chapter)\s*$", re.IGNORECASE)
_RELATED = re.compile(r"\b(?:my|your|his|her|its|our|their|writer|actor|co|and)\s+$", re.IGNORECASE)  # my teacher
_POINTED = re.compile(
    r"\b(?:a|an|the|this|that|his|her|its|my|every|each|another|any|whole|new|first)\s+$", re.IGNORECASE
)


def _fits(before: str, word: str, after: str, kind: str) -> bool:
    """Return whether another word of its kind fits here: not in names, titles and compounds."""
    if word[0].isupper() and before.strip() and before.rstrip()[-1] not in ".!?" and kind != "Monday":
        return False
    if kind == "two":  # a number counts what follows it
        return re.match(r" [a-z]+s\b", after) is not None and not _NOT_COUNTED.search(before)
    if kind == "Monday":
        return re.match(r"\s+the\b", after) is None
    if kind in ("doctor", "doctors", "director", "directors") and _RELATED.search(before):
        return False
    if kind in ("film", "doctor"):
        return _POINTED.search(before) is not None and re.match(r"\s?['’]s\b|\s+(?:of|noir|school)\b", after) is None
    return True


@dataclass(frozen=True)
class Slot:
    """A word of a text, and all words that may stand there; the first is the text's own."""

    start: int
    end: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class Replacements:
    """Kinds of words: each word of a kind may stand where another one does, in the same form."""

    kinds: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        words: dict[str, tuple[str, ...]] = {}
        for kind in self.kinds:
            for word in kind:
                words.setdefault(word.casefold(), kind)
        object.__setattr__(self, "_of", words)

    @property
    def of(self) -> Mapping[str, tuple[str, ...]]:
        """The kind of every word, by the word in lower case."""
        words: Mapping[str, tuple[str, ...]] = self.__dict__["_of"]
        return words

    def slots(self, text: IdentityText) -> tuple[Slot, ...]:
        """Return the words of a text that may be replaced, at most `POSITIONS`; identity terms are not among them."""
        found = []
        for word in WORD.finditer(text.text):
            kind = self.of.get(word[0].casefold())
            taken = any(m.start < word.end() and word.start() < m.end for m in text.mentions)
            if kind is None or taken or re.search(r"[\w-]$", text.text[max(0, word.start() - 1) : word.start()]):
                continue
            if not _fits(text.text[: word.start()], word[0], text.text[word.end() :], kind[0]):
                continue
            own = next(one for one in kind if one.casefold() == word[0].casefold())
            others = [in_case_of(word[0], own, one) for one in kind if one != own]
            found.append(Slot(word.start(), word.end(), (word[0], *others[: CHOICES - 1])))
        step = max(1.0, len(found) / POSITIONS)  # evenly spread over a long text
        return tuple(found[int(i * step)] for i in range(min(POSITIONS, len(found))))


def read_replacements(path: str | Path | None = None) -> Replacements:
    """Read the kinds of words: a bundled list of English words, or a CSV file of your own with lines `kind,one|two|…`.

    >>> read_replacements().of["film"]
    ('film', 'movie')
    """
    try:
        text = (
            files(__package__).joinpath("data", "replacements_en.csv").read_text(encoding="utf-8")
            if path is None
            else read_bytes(Path(path)).decode("utf-8-sig")
        )
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a CSV file in UTF-8 ({error.reason})") from error
    lines = [line for line in csv.reader(io.StringIO(text)) if any(map(str.strip, line))]
    if not lines or [cell.strip() for cell in lines[0]] != ["kind", "words"]:
        raise DataError(f"{path or 'the bundled list'}: expected a first line kind,words")
    kinds = []
    for number, line in enumerate(lines[1:], 2):
        words = tuple(dict.fromkeys(filter(None, map(str.strip, line[1].split("|"))))) if len(line) == 2 else ()
        if len(words) < 2:
            raise DataError(f"{path}: line {number}: expected a kind and two words or more, separated by |")
        kinds.append(words)
    if len(kinds) > MAX_KINDS:
        raise DataError(f"{path}: at most {MAX_KINDS:,} kinds of words, got {len(kinds):,}")
    return Replacements(tuple(kinds))
