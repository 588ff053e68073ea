"""Which texts mention an identity, and whether it can be swapped so that nothing else about the text changes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from itertools import pairwise
from typing import Literal

from neuronfair.text.english import WORD, are_people, in_case_of, is_unclear, points_at_a_person, use_of, with_article
from neuronfair.text.lexicon import Lexicon, Term

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
NEAR = 30  # characters between two mentions that may be contrasted
QUOTED_WORDS = 10  # a quotation of at most so many words may be a title

_CONTRAST = re.compile(
    r"^\W*(?:and|or|nor|but|vs\.?|versus|meets|to|than|not|[/&,+])\W*(?:(?:a|an|the|not|other)\s+)?$"
)
_NEGATED = re.compile(
    r"(?:\bnot|n['’ ]?t|\bnever|\bneither|\bnor|\bunlike|\binstead of|\brather than|\bno|\bnon)\s+"
    r"(?:(?:a|an|the|any)\s+)?$",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"` [^`']{1,200} '|“[^”]{1,200}”|``[^']{1,200}''|\"[^\"]{1,200}\"|«[^»]{1,200}»")
_SPLIT_WORD = re.compile(r"(?:\(\w+\)|lrb(?: \w){1,3} rrb )(?:he|her|his|him)\b", re.IGNORECASE)  # (T)he
_MAN = re.compile(r"\b[^\W\d_]{2,}m[ae]n\b", re.IGNORECASE)
_NO_MAN = frozenset("human superhuman inhuman german roman ottoman women woman omen specimen regimen acumen".split())  # noqa: SIM905
_TITLED = re.compile(r"(?:^|\s)[A-Z][\w'’.]*\s+$")  # a capitalised word just before
_TITLE_AFTER = re.compile(r"^\s+(?:of\s+)?[A-Z]\w")


@dataclass(frozen=True)
class Mention:
    """One identity term in a text."""

    start: int
    end: int
    term: Term
    seen: str  # as it is written


@dataclass(frozen=True)
class IdentityText:
    """A text with identity terms, which can be swapped together to every group in `groups`.

    `group` is the group that the text mentions; of two groups that it mentions both, that of the first mention: then
    swapping exchanges the two. `words` are the positions of other words that may be replaced by one of some words.
    """

    text: str
    mentions: tuple[Mention, ...]
    group: int
    groups: tuple[int, ...]  # the groups that it can be swapped to, its own included

    def parts(self, lexicon: Lexicon, group: int) -> list[tuple[int, int, str]]:
        """Return what is replaced when the text is swapped to a group: start, end and the new term."""
        if group == self.group:
            return []
        found = []
        for mention in self.mentions:
            other = group if mention.term.group == self.group else self.group
            new = lexicon.counterpart(mention.term, other)
            own = mention.term.text
            if mention.seen.islower() and new[:1].isupper() and not self.text.islower():
                found.append((mention.start, mention.end, new))  # a cased text: Asian keeps its capital
            else:
                found.append((mention.start, mention.end, in_case_of(mention.seen, own, new)))
        return found


def replaced(text: str, parts: Sequence[tuple[int, int, str]]) -> str:
    """Return a text with parts of it replaced, the article before each made to agree."""
    done, at = "", 0
    for start, end, new in sorted(parts):
        done += with_article(text[at:start], new) + new
        at = end
    return done + text[at:]


def examine(text: str, lexicon: Lexicon) -> IdentityText | Reason:
    """Return a text whose identity terms can be swapped, or why they cannot.

    >>> from neuronfair.text.lexicon import read_lexicon
    >>> gender = read_lexicon("gender")
    >>> found = examine("She told her brother that an actress had called.", gender)
    >>> replaced(found.text, found.parts(gender, 1))
    'He told his sister that an actor had called.'
    >>> examine("Men and women liked it.", gender), examine("It rained.", gender)
    ('contrasted or negated', 'no identity term')
    """
    mentions, unsound = _mentions(text, lexicon)
    if unsound is not None:
        return unsound
    if not mentions:
        return "no identity term"
    groups = Counter(mention.term.group for mention in mentions)
    if len(groups) > 1 and len(lexicon.groups) > 2:
        return "several groups"
    if _is_contrasted(text, mentions):
        return "contrasted or negated"
    own = mentions[0].term.group
    can = [g for g in range(len(lexicon.groups)) if g == own or _has_all(lexicon, mentions, own, g)]
    if len(can) < 2:
        return "ambiguous"
    return IdentityText(text, tuple(mentions), own, tuple(can))


def _has_all(lexicon: Lexicon, mentions: Sequence[Mention], own: int, group: int) -> bool:
    """Return whether all mentions have a counterpart when a text of one group is swapped to another."""
    return all(lexicon.counterpart(m.term, group if m.term.group == own else own) for m in mentions)


def _mentions(text: str, lexicon: Lexicon) -> tuple[list[Mention], Reason | None]:
    """Return the identity terms in a text, and why they must not be swapped, if so."""
    mentions = list[Mention]()
    for found in lexicon.pattern.finditer(text):
        before, after = (unescape(some) for some in (text[max(0, found.start() - 80) : found.start()],
                                                     text[found.end() : found.end() + 80]))  # fmt: skip
        term = _used(lexicon.find(found[0]), found[0], before, after)
        if isinstance(term, str):
            return [], term
        if term is None:
            continue
        reason = _unsound(text, found, term, before, after) if _is_whole(lexicon, term) else _alone(term)
        if reason is not None:
            return [], reason
        mentions.append(Mention(found.start(), found.end(), term, found[0]))
    if not mentions:
        return [], None
    if _SPLIT_WORD.search(text) or lexicon.is_explicit(text):
        return [], "ambiguous"
    if lexicon.names_in(text) or (lexicon.names and _has_unknown_man(text, lexicon)):
        return [], "part of a name"
    quotes = [found.span() for found in _QUOTES.finditer(text) if len(WORD.findall(found[0])) <= QUOTED_WORDS]
    if any(start <= one.start < end for one in mentions for start, end in quotes):
        return [], "quoted"
    return mentions, None


def _used(terms: Sequence[Term], seen: str, before: str, after: str) -> Term | Reason | None:
    """Return the term that is meant by its use, or why that is unknown; None for another meaning, such as white wine."""
    fitting = [term for term in terms if use_of(term.use, seen, before, after)]
    if not fitting:
        return None if all(term.use == "person" for term in terms) else "ambiguous"
    if fitting[0].use in ("object", "possessive", "pronoun") and is_unclear(fitting[0].use, seen, before, after):
        return "ambiguous"
    return fitting[0]


def _is_whole(lexicon: Lexicon, term: Term) -> bool:
    """Return whether another group has such a word."""
    return sum(map(bool, lexicon.concepts[term.concept])) > 1


def _alone(term: Term) -> Reason:
    return "part of a name" if term.use == "name" else "ambiguous"


def _unsound(text: str, found: re.Match[str], term: Term, before: str, after: str) -> Reason | None:
    """Return why a term must not be swapped here, if so."""
    seen, shouted = found[0], text.isupper()
    if term.use == "name":
        if not seen[0].isupper() or shouted or _is_name(before, after):
            return "part of a name"
    elif not shouted and (
        _is_titled(seen, term, before, after) or (term.use in ("adjective", "person") and _TITLE_AFTER.match(after))
    ):
        return "part of a name"
    if (term.use == "human" and not points_at_a_person(seen, before)) or (
        term.use == "humans" and not are_people(seen, before)
    ):
        return "part of a name"
    return "contrasted or negated" if _NEGATED.search(before) else None


def _has_unknown_man(text: str, lexicon: Lexicon) -> bool:
    """Return whether a word ends in man or woman that the lexicon does not know: strongman, Newman."""
    found = (word.lower() for word in _MAN.findall(text))
    return any(word not in _NO_MAN and not lexicon.find(word) for word in found)


def _is_name(before: str, after: str) -> bool:
    """Return whether a first name belongs to the full name of somebody, who may be known."""
    return bool(_TITLE_AFTER.match(after)) or bool(_TITLED.search(before) and not _ends_sentence(before.rstrip()))


def _is_titled(seen: str, term: Term, before: str, after: str) -> bool:
    """Return whether a common word is written with a capital in the middle of a sentence, as in names of films."""
    if not seen[0].isupper() or (seen.isupper() and len(seen) > 1):
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
    for one, other in pairwise(mentions):
        between = text[one.end : other.start]
        if one.term.group != other.term.group and len(between) <= NEAR and _CONTRAST.match(between.lower()):
            return True
    return False
