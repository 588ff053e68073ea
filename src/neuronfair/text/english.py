"""The rules of English that keep a sentence correct when a word in it is replaced: articles, case, her and his."""

from __future__ import annotations

import re
from typing import Literal

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
Use = Literal["", "object", "possessive", "pronoun", "adjective", "noun", "person", "name", "human", "humans"]

# After her or his, these words begin another part of the sentence: "saw her in the park", "told her that".
_AFTER_OBJECT = frozenset(
    """a about after again against all also although an and any are as at away back be because been before being both
    but by can could did do does down during each either every everyday finally for from had has have he here how if in
    instead into is it just like may me might more much my never no nor not now of off often on once only or our out
    over perhaps quickly she should since slowly so some still than that the their them then there these they this those
    through to today together tomorrow too toward towards under until up was we were what when where whether which
    while who whom why will with without would yesterday yet you your""".split()  # noqa: SIM905
)
_TAKES_TWO = frozenset(
    """ask asks asked asking call calls called calling give gives gave giving make makes made making let lets letting
    see sees saw seeing watch watches watched help helps helped find finds found keep keeps kept""".split()  # noqa: SIM905
)
_DETERMINERS = frozenset("a an the another any each every no one some that this".split())  # noqa: SIM905
_IS = frozenset("am are is was were".split())  # noqa: SIM905
_SHE_IS = frozenset("i'm he's she's who's you're they're we're".split())  # noqa: SIM905
_PRONOUNS = frozenset("i he she we you they who".split())  # noqa: SIM905
_DEGREES = frozenset("a also an both not openly proudly really the very".split())  # noqa: SIM905
PERSON_NOUNS = frozenset(
    """activist activists actor actors actress actresses adult adults applicant applicants artist artists athlete
    athletes author authors boss boy boys businessman businesswoman candidate candidates child children citizen citizens
    colleague colleagues comedian comedians couple couples customer customers dad daughter director directors doctor
    doctors driver drivers employee employees engineer engineers families family father fathers female females folks
    friend friends gentleman girl girls guest guests guy guys husband immigrant immigrants kid kids ladies lady lawyer
    lawyers leader leaders male males man manager men mom mother mothers musician musicians neighbour neighbours
    neighbor neighbors nurse nurses parent parents patient patients people person persons player players poet poets
    police
    politician politicians professor refugee refugees resident residents rapper rappers scientist scientists singer
    singers soldier soldiers son sons student students teacher teachers teenager teenagers tourist tourists voter voters
    wife woman women worker workers writer writers youth""".split()  # noqa: SIM905
)
# Words whose first sound is not that of their first letter.
_AN = re.compile(r"(?:hour|honest|honou?r|heir|[aefhilmnorsx]-|[AEFHILMNORSX](?=[A-Z\d]))")
_A = re.compile(r"(?:uni(?!n|m|d)|use|usu|util|eu|ewe|one\b|once\b|u-|U(?=[A-Z]))")
_ARTICLE = re.compile(r"\b(an?)(\s+)(?=([^\W_]+))", re.IGNORECASE)


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
    found = re.search(r"(?<![\w'’-])(a|an)(\s+)$", before, re.IGNORECASE)
    if found is None:
        return before
    article = found[1]
    right = "an" if takes_an(word) else "a"
    if article[0].isupper():
        right = right.upper() if article.isupper() and len(article) > 1 else right.capitalize()
    return f"{before[: found.start()]}{right}{found[2]}"


def in_case_of(seen: str, own: str, other: str) -> str:
    """Return a term in the case of the one that it replaces; `own` is how a lexicon writes the replaced one.

    >>> in_case_of("SHE", "she", "he"), in_case_of("She", "she", "he"), in_case_of("muslim", "Muslim", "Jewish")
    ('HE', 'He', 'jewish')
    """
    if seen.isupper() and (len(seen) > 1 or other == other.upper()):
        return other.upper()
    if seen == own:
        return other
    if seen.islower():
        return other.lower()
    return other[:1].upper() + other[1:]


def is_unclear(use: Use, before: str, after: str) -> bool:
    """Return whether her may be an object or a possessive: "called her names", "his.teacher"."""
    if use not in ("object", "possessive", "pronoun"):
        return False
    if re.match(r"[.,;:!?][^\W\d_]", after):
        return True
    words = WORD.findall(before.lower())
    following = WORD.match(after.lstrip())
    return bool(
        words and words[-1] in _TAKES_TWO and following and following[0].lower() not in _AFTER_OBJECT
        and re.match(r"\s", after)
    )  # fmt: skip


# Words that show that a person is meant and no title or nickname, up to three words before: "the old man".
_POINTERS = frozenset(
    """a an the this that these those my your his her our their its one another each every any some no both all many few
    several two three four five six seven eight nine ten other own which what whose""".split()  # noqa: SIM905
)
_BESIDE_SIBLINGS = _POINTERS | frozenset("big elder half little older own step twin young younger".split())  # noqa: SIM905


def points_at_a_person(term: str, before: str) -> bool:
    """Return whether a determiner or a possessive stands before a noun for a person, as before no nickname or title.

    >>> points_at_a_person("man", "the old "), points_at_a_person("man", "Spider ")
    (True, False)
    """
    clause = re.split(r"[.!?;:,()\"“”]", before.lower())[-1]
    words = re.findall(r"[^\W\d_]+(?:['’]s?)?|['’]s|\d+", clause)[-3:]
    pointing = [w for w in words if w in _POINTERS or w.isdecimal() or w.endswith(("'s", "’s", "s'", "'", "’"))]
    if not pointing:
        return False
    return term.lower() not in ("brothers", "sisters") or words[-1] in _BESIDE_SIBLINGS or words[-1] in pointing


_LEADS = frozenset(
    """about against all among and as at between but by for from if in like most nor of on or than that to when where
    while with without young older younger great bad good real poor rich most""".split()  # noqa: SIM905
)


def are_people(term: str, before: str) -> bool:
    """Return whether a plural noun stands where people are meant: after a determiner, a preposition, or at the start.

    >>> are_people("girls", "two "), are_people("guys", "a fan of Knockaround "), are_people("Women", "")
    (True, False, True)
    """
    clause = re.split(r"[.!?;:,()\"“”]", before.lower())[-1]
    words = WORD.findall(clause)
    return not words or words[-1] in _LEADS or points_at_a_person(term, " ".join(words[-2:]))


def use_of(use: Use, before: str, after: str) -> bool:
    """Return whether a term is used in this way, by the words before and after it.

    `object`, `possessive` and `pronoun` tell the uses of her and his apart, `adjective` and `noun` those of Christian;
    `person` is an adjective that speaks of people: before a word such as man, or after is.

    >>> use_of("possessive", "he saw ", " dog"), use_of("object", "he saw ", " in town"), use_of("object", "saw ", ".")
    (True, True, True)
    """
    following = WORD.match(after.lstrip()) if re.match(r"[\s]+\w", after) else None
    word = "" if following is None else following[0].lower()
    words = WORD.findall(before.lower())
    last = words[-1] if words and re.search(r"[\w'’]\s+$", before) else ""
    continues = bool(word) and word not in _AFTER_OBJECT
    if use in ("", "name", "human", "humans"):
        return True
    if use == "possessive":
        return continues
    if use in ("object", "pronoun"):
        return not continues
    if use == "noun":
        return not continues and last in _DETERMINERS
    if use == "adjective":
        return continues or last not in _DETERMINERS
    if last in ("year", "years"):  # ten year old
        return False
    return word in PERSON_NOUNS or (not continues and _is_said_of_a_person(words))


def _is_said_of_a_person(words: list[str]) -> bool:
    """Return whether the last words are a person, a form of "be" and words of degree: "she is also"."""
    rest = list(words)
    while rest and rest[-1] in _DEGREES:
        rest.pop()
    if rest and rest[-1].replace("’", "'") in _SHE_IS:
        return True
    return len(rest) > 1 and rest[-1] in _IS and (rest[-2] in _PRONOUNS or rest[-2] in PERSON_NOUNS)
