"""The rules of English that keep a sentence correct when a word in it is replaced: articles, case, her and his."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Literal

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
Use = Literal["", "object", "possessive", "pronoun", "adjective", "noun", "person", "name", "human", "humans"]

_LISTS = tomllib.loads(files(__package__).joinpath("data", "english.toml").read_text(encoding="utf-8"))
_PATTERNS = ("takes_two", "adjective")
WORDS = {name: frozenset(words.split()) for name, words in _LISTS.items() if name not in _PATTERNS}
_TAKES_TWO, _ADJECTIVE = (re.compile(re.sub(r"\s", "", _LISTS[name])) for name in _PATTERNS)
_DETERMINERS = [[word] for word in ("a", "an", "another", "any", "each", "every", "no", "one", "that", "this")]
# Words whose first sound is not that of their first letter.
_AN = re.compile(r"(?:hour|honest|honou?r|heir|[aefhilmnorsx]-|[AEFHILMNORSX](?=[A-Z\d]))")
_A = re.compile(r"(?:uni(?!n|m|d)|use|usu|util|eu|ewe|one\b|once\b|u-|U(?=[A-Z]))")


def takes_an(word: str) -> bool:
    """Return whether the indefinite article before a word is "an".

    >>> [takes_an(word) for word in ("Asian", "Muslim", "hour", "university", "umbrella", "European")]
    [True, False, True, False, True, False]
    """
    if _AN.match(word if word.isupper() else word.lower()):
        return True
    return word[:1].lower() in "aeiou" and not _A.match(word if word.isupper() else word.lower())


def with_article(before: str, word: str) -> str:
    """Return the text before a replaced word with its indefinite article, if it ends in one, made to agree.

    >>> with_article("I met a ", "Asian"), with_article("An ", "young"), with_article("the ", "elderly")
    ('I met an ', 'A ', 'the ')
    """
    match = re.search(r"(?<![\w'’-])(a|an)(\s+)$", before, re.IGNORECASE)
    if match is None:
        return before
    article = match[1]
    agreeing = "an" if takes_an(word) else "a"
    if article[0].isupper():
        agreeing = agreeing.upper() if article.isupper() and len(article) > 1 else agreeing.capitalize()
    return f"{before[: match.start()]}{agreeing}{match[2]}"


def in_case_of(term: str, listed_term: str, new_term: str) -> str:
    """Return a term in the case of the one that it replaces; `own` is how a lexicon writes the replaced one.

    >>> in_case_of("SHE", "she", "he"), in_case_of("She", "she", "he"), in_case_of("muslim", "Muslim", "Jewish")
    ('HE', 'He', 'jewish')
    """
    if term.isupper() and (len(term) > 1 or new_term == new_term.upper()):
        return new_term.upper()
    if term == listed_term:
        return new_term
    if term.islower():
        return new_term.lower()
    return new_term[:1].upper() + new_term[1:]


def _next_word(after: str) -> str:
    """Return the next word, after a space, in lower case; nothing where a part of the sentence ends."""
    match = re.match(rf"\s+[('‘“\"`]*({WORD.pattern})", after)
    return "" if match is None else match[1].lower()


def _clause_words(before: str) -> list[str]:
    """Return the words of the part of a sentence before a term, in lower case."""
    clause = re.split(r"[.!?;:,()\"“”|*~]|\s-+\s", before.lower().replace("’", "'"))[-1]
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]*)?|'s?|(?<![\w@#])\d+", clause)


def is_unclear(term: str, before: str, after: str) -> bool:
    """Return whether her or his may be an object or a possessive: "called her names", "his.teacher"."""
    if re.match(r"[.,;:!?][^\W\d_]", after):
        return True
    words = _clause_words(before)
    if term.lower() == "his":  # a friend of his called
        is_partitive = words[-1:] == ["of"] and words[-3:-2] != [] and words[-3] in WORDS["partitives"]
        return is_partitive or _next_word(after) in ("that", "had", "so", "too", "alone", "as", "only")
    if term.lower() != "her" or before.endswith("/"):
        return False
    if words[-1:] == ["and"] and words[-2:-1] != [] and words[-2] in ("me", "you", "him", "us", "them"):
        return True  # me and her went
    word, last = _next_word(after), (words or [""])[-1]
    if word in WORDS["before_times"] and _next_word(after[after.lower().find(word) + len(word) :]) in WORDS["times"]:
        return True  # gave it to her last week
    if not word:
        return bool(re.match(r"\s*[^\s\w.,;:!?)\]'’\"”…/–—-]|\s*['’]s?\b|-", after))  # her <b>dog, her 's, her-self
    if word in ("is", "was", "has"):  # Talk to Her is a film
        return True
    if word in WORDS["person_nouns"] or word == "own":  # told her brother
        return False
    if word in WORDS["after_object"]:
        return word in ("over", "in", "off", "up", "like", "any") and last in WORDS["before_possessive"]
    if word in WORDS["after_either"] or word.endswith(("in'", "goin", "ingly")):
        return last not in WORDS["before_possessive"] or word in WORDS["after_object_often"]
    return bool(_TAKES_TWO.fullmatch(last)) or (word.endswith("ing") and last not in WORDS["before_possessive"])


def _strip_adjectives(words: list[str]) -> list[str]:
    """Return the words before the adjectives that they end in."""
    while words and words[-1] not in WORDS["pointers"] and _ADJECTIVE.fullmatch(words[-1]):
        words = words[:-1]
    return words


def points_at_a_person(term: str, before: str) -> bool:
    """Return whether a determiner or a possessive stands before a noun for a person, as before no nickname or title.

    Only adjectives may stand between them. "My girl" and "your man" are idioms.

    >>> points_at_a_person("man", "the old "), points_at_a_person("man", "Spider "), points_at_a_person("man", "my ")
    (True, False, False)
    """
    words = _strip_adjectives(_clause_words(before))
    if not words:
        return False
    last = words[-1]
    if last in WORDS["possessives"] and term.lower() in WORDS["companions"]:
        return False
    return last in WORDS["pointers"] or last.isdecimal() or last.endswith(("'s", "s'", "'"))


def are_people(term: str, before: str) -> bool:
    """Return whether a noun stands where people are meant: after a determiner, a preposition, or at the start.

    >>> are_people("girls", "two "), are_people("guys", "a fan of Knockaround "), are_people("Women", "")
    (True, False, True)
    """
    words = _strip_adjectives(_clause_words(before))
    return not words or words[-1] in WORDS["leads"] or points_at_a_person(term, before)


def is_used_as(use: Use, term: str, before: str, after: str) -> bool:
    """Return whether a term is used in this way, by the words before and after it.

    `object`, `possessive` and `pronoun` tell the uses of her and his apart, `adjective` and `noun` those of Christian;
    `person` is an adjective that speaks of people: before a word such as man, or after is.

    >>> is_used_as("possessive", "her", "saw ", " dog"), is_used_as("object", "her", "saw ", " in town")
    (True, True)
    """
    word = "" if before.endswith("/") else _next_word(after)  # she/her
    words = _clause_words(before)
    last = words[-1] if words and re.search(r"[\w'’]\s+$", before) else ""
    continues = bool(word) and word not in WORDS["after_object"]
    if use in ("", "name", "human", "humans"):
        return True
    if use in ("object", "possessive", "pronoun"):
        if term.lower() == "his":
            return (use == "pronoun") == (not word or word in WORDS["after_pronoun"])
        return term.lower() != "her" or (use == "possessive") == continues
    if use in ("noun", "adjective"):  # a devout Muslim, but a devout Muslim family
        follows_determiner = _strip_adjectives(words)[-1:] in _DETERMINERS
        ends_like_a_verb = re.fullmatch(r"[a-z]+(?:[a-rtv-z]s|ed)", word) is not None and word not in WORDS["no_verbs"]
        if follows_determiner and (ends_like_a_verb or word in WORDS["verbs"]):  # a Muslim prays
            return use == "noun"
        if continues:
            return use == "adjective"
        if use == "noun":
            return follows_determiner
        return (
            not last or last in WORDS["is"] or last in WORDS["she_is"] or last in WORDS["degrees"] - {"a", "an", "the"}
        )
    if last in ("year", "years", "yr", "yrs", "tone", "color", "colour"):  # ten year old, tone deaf
        return False
    if word in WORDS["person_nouns"]:
        return True
    ends = (not word and not re.match(r"\s*[-&#@]", after)) or word in WORDS["after_predicate"]
    return ends and _is_said_of_a_person(words)


def _is_said_of_a_person(words: list[str]) -> bool:
    """Return whether the last words are a person, a form of "be" and words of degree: "she is also"."""
    remaining = list(words)
    while remaining and remaining[-1] in WORDS["degrees"]:
        remaining.pop()
    if remaining and remaining[-1].replace("’", "'") in WORDS["she_is"]:
        return True
    return (
        len(remaining) > 1
        and remaining[-1] in WORDS["is"]
        and (remaining[-2] in WORDS["pronouns"] or remaining[-2] in WORDS["person_nouns"])
    )
