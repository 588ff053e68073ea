"""Identity terms by group, read from a CSV file, and whether a text can be swapped so that nothing else changes."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import unescape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from neuronfair.errors import DataError, did_you_mean
from neuronfair.limits import read_bytes
from neuronfair.text.english import (
    WORD,
    WORDS,
    Use,
    are_people,
    in_case_of,
    is_unclear,
    is_used_as,
    points_at_a_person,
    with_article,
)

BUNDLED = ("age", "disability", "ethnicity", "gender", "nationality", "orientation", "religion")
ALIASES = {"race": "ethnicity", "sex": "gender", "sexuality": "orientation"}
MAX_TERMS, MAX_GROUPS, MAX_TERM_LENGTH = 20_000, 64, 60
_USES = get_args(Use)
_PREFIX = re.compile(r"\b(?:ex|half|step|great)-$", re.IGNORECASE)  # ex-wife
_NAME, _HANDLE = re.compile(r"(?<![\w@#])([^\W\d_]{2,})(?!\w)"), re.compile(r"[@#](\w+)")
_PART = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])")  # of a handle in camel case
_PRONOUNS = ("he", "she", "him", "her", "his", "hers")


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
    used to count, see `english.is_used_as`.

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
        return any(_hash_word(word) in self.explicit for word in words)

    def has_name(self, text: str) -> bool:
        """Return whether a text has such a name: alone, in lower case unless it is also a word, or in a handle."""
        if not self.names:
            return False
        for match in _NAME.finditer(text):
            word = match[1]
            if word.lower() in self.names and (word[0].isupper() or word not in WORDS["names_and_words"]):
                return True
        handles = _HANDLE.findall(text)
        starts = (handle[:size].lower() for handle in handles for size in range(5, 12) if size <= len(handle))
        parts = (part.lower() for handle in handles for part in _PART.findall(handle))
        return not self._handle_parts.isdisjoint([*starts, *parts]) or any(
            handle.lower().endswith(("him", "her")) for handle in handles
        )

    @cached_property
    def _handle_parts(self) -> set[str]:
        name_concepts = (cells for cells, use in zip(self.concepts, self.uses, strict=True) if use == "name")
        return {*self.names, *_PRONOUNS, *(name.casefold() for cells in name_concepts for name in cells)}

    @cached_property
    def terms(self) -> Mapping[str, Sequence[Term]]:
        """The terms by their text in lower case; several where the use decides."""
        terms_by_text: dict[str, list[Term]] = {}
        for number, (cells, use) in enumerate(zip(self.concepts, self.uses, strict=True)):
            for group, text in enumerate(cells):
                if text and text not in self.targets:
                    terms_by_text.setdefault(text.casefold(), []).append(Term(text, group, number, use))
        return terms_by_text

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What finds every term as whole words, the longest first."""
        words = sorted(self.terms, key=lambda text: (-len(text), text))
        spaced = (re.escape(word).replace(r"\ ", r"\s+").replace("'", "['’]") for word in words)
        before = r"(?:(?<![\w@#'’-])|(?<=\bex-)|(?<=\bhalf-)|(?<=\bstep-)|(?<=\bgreat-))"
        after = r"(?!\w|-(?!in-law\b)|['’](?!(?:s|d|ll|ve)\b|\s|$|\W))"
        return re.compile(f"{before}(?:{'|'.join(spaced)}){after}", re.IGNORECASE)

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
        first_names = (name for line in lines for name in line[1].split("|"))
        hashes = data.joinpath("explicit_en.txt").read_text(encoding="utf-8").split()
        return replace(lexicon, names=frozenset(map(str.lower, first_names)) - {"names"}, explicit=frozenset(hashes))
    path = Path(source)
    if not path.suffix:
        raise DataError(
            f"no lexicon '{name}'. {did_you_mean(name, (*BUNDLED, *ALIASES))} Or name a CSV file: concept,use,GROUP,…"
        )
    try:
        return parse_lexicon(read_bytes(path).decode("utf-8-sig"), str(path), path.stem)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: expected a CSV file in UTF-8 ({error.reason})") from error


def _hash_word(word: str) -> str:
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
    line_of_term: dict[tuple[str, int, str], int] = {}
    for number, (_, use, *cells) in enumerate(lines[1:], 2):
        if len(cells) != len(groups) or use not in _USES:
            raise DataError(
                f"{source}: line {number}: expected a concept, a use ({', '.join(filter(None, _USES))} or nothing) and "
                f"{len(groups)} terms, got {','.join(lines[number - 1])}"
            )
        if any(len(cell) > MAX_TERM_LENGTH for cell in cells):
            raise DataError(f"{source}: line {number}: a term has more than {MAX_TERM_LENGTH} characters")
        targets |= {cell.strip("()") for cell in cells if cell.startswith("(")}
        cells = [cell.strip("()") for cell in cells]
        for group, cell in enumerate(cells):
            first_line = line_of_term.setdefault((cell.casefold(), group, use), number)
            if cell and first_line != number and sum(map(bool, cells)) == 1:
                raise DataError(f"{source}: line {number}: '{cell}' stands in line {first_line} already")
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


# Texts that mention them

Reason = Literal["no identity term", "several groups", "contrasted or negated", "quoted", "part of a name", "ambiguous"]
REASON_TEXT: dict[Reason, str] = {
    "no identity term": "mention no identity term",
    "several groups": "mention several groups",
    "contrasted or negated": "contrast or negate the term",
    "quoted": "quote it, perhaps as a title",
    "part of a name": "name somebody",
    "ambiguous": "use a term without a clear counterpart",
}
REASONS: tuple[Reason, ...] = tuple(REASON_TEXT)
MAX_CHARACTERS_BETWEEN = 30  # two mentions that may be contrasted
MAX_WORDS_OF_TITLE = 10  # a quotation of at most so many words may be a title

_CONTRAST = re.compile(
    r"^\W*(?:and|or|nor|but|vs\.?|versus|meets|to|than|not|[/&,+])\W*(?:(?:a|an|the|not|other)\s+)?$"
)
_NEGATED = re.compile(
    r"(?:\bnot|n['’ ]t|\b(?:ca|wo|do|does|did|is|are|was|were)nt"
    r"|\bnever|\bneither|\bnor|\bunlike|\binstead of|\brather than|\bno|\bnon)\s+"
    r"(?:(?:a|an|the|any)\s+)?$",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"` [^`']{1,200} '|“[^”]{1,200}”|``[^']{1,200}''|\"[^\"]{1,200}\"|«[^»]{1,200}»")
_SPLIT_WORD = re.compile(r"(?:\(\w+\)|\bs/|lrb(?: \w){1,3} rrb )(?:he|her|his|him)\b", re.IGNORECASE)  # (T)he, s/he
_COMPOUND = re.compile(r"(?<![\w@#'’-])\w+(?:-\w+)+")
_POSSESSIVE = re.compile(r"['’]s?(?=\s+\w)")
_MAN = re.compile(r"\b[^\W\d_]{2,}m[ae]n\b", re.IGNORECASE)
_TITLED = re.compile(r"(?:^|\s)[A-Z][\w'’.]*\s+$")  # a capitalised word just before
_TITLE_AFTER = re.compile(r"^\s+(?:of\s+)?[A-Z]\w")


@dataclass(frozen=True)
class Mention:
    """One identity term in a text."""

    start: int
    end: int
    term: Term
    spelling: str  # as it is written


@dataclass(frozen=True)
class IdentityText:
    """A text with identity terms, which can be swapped together to every group in `groups`.

    `group` is the group that the text mentions; of two, that of the first mention: then swapping exchanges the two.
    """

    text: str
    mentions: tuple[Mention, ...]
    group: int
    groups: tuple[int, ...]  # the groups that it can be swapped to, its own included

    def find_parts(self, lexicon: Lexicon, group: int) -> list[tuple[int, int, str]]:
        """Return what is replaced when the text is swapped to a group: start, end and the new term."""
        if group == self.group:
            return []
        parts = []
        for mention in self.mentions:
            other = group if mention.term.group == self.group else self.group
            counterpart = lexicon.counterpart(mention.term, other)
            spelling = in_case_of(mention.spelling, mention.term.text, counterpart)
            if self.text.islower():
                spelling = spelling.lower()
            elif mention.spelling.islower() and counterpart[:1].isupper():  # Asian keeps its capital
                spelling = counterpart
            if mention.spelling[0].isupper() and _ends_sentence(self.text[: mention.start].rstrip()):  # Latino voters
                spelling = spelling[:1].upper() + spelling[1:]
            ending = self._possessive(mention, counterpart)
            spelling += ending and _write_possessive(counterpart, ending)
            parts.append((mention.start, mention.end + len(ending), spelling))
        return parts

    def _possessive(self, mention: Mention, new: str) -> str:
        """Return the possessive ending after a plural whose twin has another one: ladies' and gentlemen's."""
        ending = _POSSESSIVE.match(self.text, mention.end)
        differs = mention.term.use == "humans" and mention.term.text.endswith("s") != new.endswith("s")
        is_quotation = re.search(r"(?:^|\s)['‘]\w[^'’]*$", self.text[: mention.start]) is not None
        return ending[0] if ending and differs and not is_quotation else ""


def _write_possessive(plural: str, ending: str) -> str:
    return ending[0] if plural.endswith("s") else f"{ending[0]}s"


def replace_parts(text: str, parts: Sequence[tuple[int, int, str]]) -> str:
    """Return a text with parts of it replaced, the article before each made to agree."""
    result, position = "", 0
    for start, end, new in sorted(parts):
        result += with_article(text[position:start], new) + new
        position = end
    return result + text[position:]


def examine(text: str, lexicon: Lexicon) -> IdentityText | Reason:
    """Return a text whose identity terms can be swapped, or why they cannot.

    >>> from neuronfair.text.lexicon import read_lexicon
    >>> gender = read_lexicon("gender")
    >>> found = examine("She told her brother that an actress had called.", gender)
    >>> replace_parts(found.text, found.find_parts(gender, 1))
    'He told his sister that an actor had called.'
    >>> examine("Men and women liked it.", gender), examine("It rained.", gender)
    ('contrasted or negated', 'no identity term')
    """
    mentions, unsound = _find_mentions(text, lexicon)
    if unsound is not None:
        return unsound
    if not mentions:
        return "no identity term"
    mentioned_groups = Counter(mention.term.group for mention in mentions)
    if len(mentioned_groups) > 1 and len(lexicon.groups) > 2:
        return "several groups"
    if _is_contrasted(text, mentions):
        return "contrasted or negated"
    own_group = mentions[0].term.group
    groups = range(len(lexicon.groups))
    reachable = [g for g in groups if g == own_group or _has_all_counterparts(lexicon, mentions, own_group, g)]
    if len(reachable) < 2:
        return "ambiguous"
    return IdentityText(text, tuple(mentions), own_group, tuple(reachable))


def _has_all_counterparts(lexicon: Lexicon, mentions: Sequence[Mention], own_group: int, group: int) -> bool:
    """Return whether all mentions have a counterpart when a text of one group is swapped to another."""
    return all(lexicon.counterpart(m.term, group if m.term.group == own_group else own_group) for m in mentions)


def _find_mentions(text: str, lexicon: Lexicon) -> tuple[list[Mention], Reason | None]:
    """Return the identity terms in a text, and why they must not be swapped, if so."""
    mentions = list[Mention]()
    for match in lexicon.pattern.finditer(text):
        before = _PREFIX.sub("", unescape(text[max(0, match.start() - 80) : match.start()]))
        after = unescape(text[match.end() : match.end() + 80])
        term = _choose_term(lexicon.find(match[0]), match[0], before, after)
        if isinstance(term, str):
            return [], term
        if term is None:
            continue
        has_no_counterpart = sum(map(bool, lexicon.concepts[term.concept])) < 2  # no other group has such a word
        reason = "ambiguous" if has_no_counterpart else _find_unsoundness(text, match[0], term, before, after)
        if reason is not None:
            return [], reason
        mentions.append(Mention(match.start(), match.end(), term, match[0]))
    if not mentions:
        return [], None
    if _SPLIT_WORD.search(text) or lexicon.is_explicit(text) or _is_left_in_compound(text, mentions, lexicon):
        return [], "ambiguous"
    if lexicon.has_name(text) or (lexicon.names and _has_unknown_man(text, lexicon)):
        return [], "part of a name"
    quotes = [match.span() for match in _QUOTES.finditer(text) if len(WORD.findall(match[0])) <= MAX_WORDS_OF_TITLE]
    if any(start <= mention.start < end for mention in mentions for start, end in quotes):
        return [], "quoted"
    return mentions, None


def _choose_term(terms: Sequence[Term], spelling: str, before: str, after: str) -> Term | Reason | None:
    """Return the term that is meant, or why that is unknown; None for another meaning, such as white wine."""
    fitting = [term for term in terms if is_used_as(term.use, spelling, before, after)]
    if not fitting:
        return None if all(term.use == "person" for term in terms) else "ambiguous"
    if fitting[0].use in ("object", "possessive", "pronoun") and is_unclear(spelling, before, after):
        return "ambiguous"
    return fitting[0]


def _find_unsoundness(text: str, spelling: str, term: Term, before: str, after: str) -> Reason | None:
    """Return why a term must not be swapped here, if so."""
    is_shouted = text.isupper()
    if term.use == "name":
        if not spelling[0].isupper() or is_shouted or _is_name(before, after):
            return "part of a name"
    elif not is_shouted and (
        _is_titled(spelling, term, before, after) or (term.use in ("adjective", "person") and _TITLE_AFTER.match(after))
    ):
        return "part of a name"
    if (term.use == "human" and not points_at_a_person(spelling, before)) or (
        term.use == "humans" and not are_people(spelling, before)
    ):
        return "part of a name"
    return "contrasted or negated" if _NEGATED.search(before) else None


def _is_left_in_compound(text: str, mentions: Sequence[Mention], lexicon: Lexicon) -> bool:
    """Return whether an identity term is part of a word with a hyphen that is not swapped: woman-owned, non-Muslim."""
    for compound in _COMPOUND.finditer(text):
        is_swapped = any(mention.start < compound.end() and compound.start() < mention.end for mention in mentions)
        if not is_swapped and any(map(lexicon.find, compound[0].split("-"))):
            return True
    return False


def _has_unknown_man(text: str, lexicon: Lexicon) -> bool:
    """Return whether a word ends in man or woman that the lexicon does not know: strongman, Newman."""
    words = (word.lower() for word in _MAN.findall(text))
    return any(word not in WORDS["no_man"] and not lexicon.find(word) for word in words)


def _is_name(before: str, after: str) -> bool:
    """Return whether a first name belongs to the full name of a person, who may be known."""
    return bool(_TITLE_AFTER.match(after)) or bool(_TITLED.search(before) and not _ends_sentence(before.rstrip()))


def _is_titled(spelling: str, term: Term, before: str, after: str) -> bool:
    """Return whether a common word is written with a capital in the middle of a sentence, as in names of films."""
    if not spelling[0].isupper() or (spelling.isupper() and len(spelling) > 1):
        return False
    if term.text[0].isupper() or term.use == "person":
        return False
    if not before.strip():
        return bool(_TITLE_AFTER.match(after))
    return not _ends_sentence(before.rstrip())


def _ends_sentence(before: str) -> bool:
    return not before or before[-1] in ".!?:;\"'“”’*-–—•>)(" or before.endswith("\n")


def _is_contrasted(text: str, mentions: Sequence[Mention]) -> bool:
    """Return whether two groups are set against each other, as in "men and women"."""
    for mention, next_mention in pairwise(mentions):
        between = text[mention.end : next_mention.start]
        is_near = len(between) <= MAX_CHARACTERS_BETWEEN
        if is_near and mention.term.group != next_mention.term.group and _CONTRAST.match(between.lower()):
            return True
    return False
