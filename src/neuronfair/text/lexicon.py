"""Identity terms by group, read from a CSV file: which word of one group stands for which of another."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import get_args

from neuronfair.errors import DataError, did_you_mean
from neuronfair.limits import read_bytes
from neuronfair.text.english import Use

BUNDLED = ("age", "disability", "ethnicity", "gender", "nationality", "orientation", "religion")
ALIASES = {"race": "ethnicity", "sex": "gender", "sexuality": "orientation"}
ALONE = "no counterpart"  # the concept of terms that only one group has
MAX_TERMS, MAX_GROUPS, MAX_TERM = 20_000, 64, 60
_USES = get_args(Use)
_NAME, _HANDLE = re.compile(r"(?<![\w@#])([^\W\d_]{2,})(?!\w)"), re.compile(r"[@#](\w+)")
_PART = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])")  # of a handle in camel case
_PRONOUNS = ("he", "she", "him", "her", "his", "hers")
_ALSO_WORDS = frozenset(  # names that are mostly something else in lower case
    """al ali art basil bill blanche buddy burt carol casey chad che chelsea cher clay cliff conan crystal daisy dale
    dean don drake drew earl eve florence frank franco francs gene georgia grace grant guy harry hazel homer hope
    ira iris jack jackson jasmine jay jean joy june kent lance len lily lois luke max mercedes miles moses
    nelson norm pam paris pat pearl penny pierce pole polly ray regina robin rock rod rosa rose rosemary rosie
    ross rusty sally sasha skip sol spencer spike stan stella sue tad toby troy ty victor victoria vin viola
    virginia wallace warren will woody zoe""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Term:
    """A word or several words that name a group; `concept` is the number of its line, shared with its counterparts."""

    text: str
    group: int
    concept: int
    use: Use


@dataclass(frozen=True)
class Lexicon:
    """The identity terms of one attribute.

    A line of its CSV file is a concept, with the term of each group: `subject,,she,he`. An empty cell says that a group
    has no such term: a text with this concept is not swapped to that group. A term in brackets only replaces others and
    names no group where it stands: `performer,,actress,(actor)`. `use` says how an ambiguous term must be
    used to count, see `english.use_of`.

    >>> gender = read_lexicon("gender")
    >>> gender.groups, gender.counterpart(gender.find("Queen")[0], gender.groups.index("male"))
    (('female', 'male'), 'king')
    """

    name: str
    groups: tuple[str, ...]
    concepts: tuple[tuple[str, ...], ...]  # the term of each group; "" where there is none
    uses: tuple[Use, ...]
    names: frozenset[str] = frozenset()  # first names, in lower case, that say the group and are not swapped
    targets: frozenset[str] = frozenset()  # terms that others become and that name no group themselves: actor
    explicit: frozenset[str] = frozenset()  # words with which a swap would contradict the body, as hashes

    def is_explicit(self, text: str) -> bool:
        """Return whether a text has a word, in any form, with which a swap would contradict itself."""
        words = set(re.findall(r"[a-z]{3,}", text.lower())) if self.explicit else ()
        return any(_hash(word) in self.explicit for word in words)

    def names_in(self, text: str) -> bool:
        """Return whether a text has such a name: alone, in lower case unless it is also a word, or in a handle."""
        if not self.names:
            return False
        for found in _NAME.finditer(text):
            word = found[1]
            if word.lower() in self.names and (word[0].isupper() or word not in _ALSO_WORDS):
                return True
        handles = _HANDLE.findall(text)
        starts = (handle[:size].lower() for handle in handles for size in range(5, 12) if size <= len(handle))
        parts = (part.lower() for handle in handles for part in _PART.findall(handle))
        swapped = (
            name.casefold()
            for cells, use in zip(self.concepts, self.uses, strict=True)
            if use == "name"
            for name in cells
        )
        if any(handle.lower().endswith(("him", "her")) for handle in handles):
            return True
        return not {*starts, *parts}.isdisjoint({*self.names, *swapped, *_PRONOUNS})

    @cached_property
    def terms(self) -> Mapping[str, Sequence[Term]]:
        """The terms by their text in lower case; several where the use decides."""
        found: dict[str, list[Term]] = {}
        for number, (cells, use) in enumerate(zip(self.concepts, self.uses, strict=True)):
            for group, text in enumerate(cells):
                if text and text not in self.targets:
                    found.setdefault(text.casefold(), []).append(Term(text, group, number, use))
        return found

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What finds every term as whole words, the longest first."""
        words = sorted(self.terms, key=lambda text: (-len(text), text))
        spaced = (re.escape(word).replace(r"\ ", r"\s+").replace("'", "['’]") for word in words)
        return re.compile(rf"(?<![\w@#'’-])(?:{'|'.join(spaced)})(?![\w-]|['’](?!s\b|\s|$|\W))", re.IGNORECASE)

    def find(self, text: str) -> Sequence[Term]:
        """Return the terms that are written like this."""
        return self.terms.get(re.sub(r"\s+", " ", text).replace("’", "'").casefold(), ())

    def counterpart(self, term: Term, group: int) -> str:
        """Return the term of another group for the same concept; empty where there is none."""
        return self.concepts[term.concept][group]


def read_lexicon(source: str | Path) -> Lexicon:
    """Read a lexicon: the name of a bundled one (gender, religion, …), or a CSV file of your own."""
    name = str(source)
    bundled = ALIASES.get(name, name)
    if bundled in BUNDLED:
        data = files(__package__).joinpath("data")
        lexicon = parse_lexicon(data.joinpath(f"{bundled}_en.csv").read_text(encoding="utf-8"), name)
        if bundled != "gender":
            return lexicon
        lines = csv.reader(io.StringIO(data.joinpath("names_en.csv").read_text(encoding="utf-8")))
        known = (name for line in lines for name in line[1].split("|"))
        hashes = data.joinpath("explicit_en.txt").read_text(encoding="utf-8").split()
        return replace(lexicon, names=frozenset(map(str.lower, known)) - {"names"}, explicit=frozenset(hashes))
    path = Path(source)
    if not path.suffix:
        raise DataError(
            f"no lexicon '{name}'. {did_you_mean(name, (*BUNDLED, *ALIASES))} Or name a CSV file: concept,use,GROUP,…"
        )
    try:
        return parse_lexicon(read_bytes(path).decode("utf-8-sig"), str(path), path.stem)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a CSV file in UTF-8 ({error.reason})") from error


def _hash(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()[:12]


def parse_lexicon(text: str, source: str, name: str | None = None) -> Lexicon:
    """Read the content of a lexicon file."""
    lines = [[cell.strip() for cell in line] for line in csv.reader(io.StringIO(text)) if any(map(str.strip, line))]
    if not lines or lines[0][:2] != ["concept", "use"]:
        raise DataError(f"{source}: expected a first line such as concept,use,female,male")
    groups = tuple(lines[0][2:])
    if not 2 <= len(groups) <= MAX_GROUPS or len(set(groups)) < len(groups) or "" in groups:
        raise DataError(f"{source}: expected 2 to {MAX_GROUPS} groups with different names, got {', '.join(groups)}")
    concepts, uses, targets = list[tuple[str, ...]](), list[Use](), set[str]()
    seen: dict[tuple[str, int, str], int] = {}
    for number, (_, use, *cells) in enumerate(lines[1:], 2):
        if len(cells) != len(groups) or use not in _USES:
            raise DataError(
                f"{source}: line {number}: expected a concept, a use ({', '.join(filter(None, _USES))} or nothing) and "
                f"{len(groups)} terms, got {','.join(lines[number - 1])}"
            )
        if any(len(cell) > MAX_TERM for cell in cells):
            raise DataError(f"{source}: line {number}: a term has more than {MAX_TERM} characters")
        targets |= {cell.strip("()") for cell in cells if cell.startswith("(")}
        cells = [cell.strip("()") for cell in cells]
        for group, cell in enumerate(cells):
            first = seen.setdefault((cell.casefold(), group, use), number)
            if cell and first != number and sum(map(bool, cells)) == 1:
                raise DataError(f"{source}: line {number}: '{cell}' stands in line {first} already")
        concepts.append(tuple(cells))
        uses.append(use)  # type: ignore[arg-type]  # checked above
    if not concepts or len(concepts) * len(groups) > MAX_TERMS:
        raise DataError(f"{source}: expected 1 to {MAX_TERMS // len(groups):,} lines of terms, got {len(concepts):,}")
    for term in (cell for cells in concepts for cell in cells if cell):
        groups_of = {g for cells in concepts for g, cell in enumerate(cells) if cell.casefold() == term.casefold()}
        if len(groups_of) > 1:
            listed = " and ".join(groups[g] for g in sorted(groups_of))
            raise DataError(f"{source}: '{term}' names {listed}. Leave it out, or keep it for one group")
    return Lexicon(name or source, groups, tuple(concepts), tuple(uses), targets=frozenset(targets))
