"""The rules of English that keep a sentence correct when a word in it is replaced: articles, case, her and his."""

from __future__ import annotations

import re
from typing import Literal

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
Use = Literal["", "object", "possessive", "pronoun", "adjective", "noun", "person", "name", "human", "humans"]

# After her, these words begin another part of the sentence: "saw her in the park", "told her that".
_AFTER_OBJECT = frozenset(
    """a about after again against also although an and any are as at away because been before being both but by can
    could did do does during each either every finally for from had has have he here how if in instead into is it like
    may me much my no nor not now of off often on only or our out over perhaps she should since some than that the their
    them then there these they this those through to together too toward towards under until up was we were what when
    where whether which while who whom why will with without would yesterday yet you your""".split()  # noqa: SIM905
)
# After her, these words may be either: "gave her back the bag" and "gave her back a rest".
_UNCLEAR = frozenset(
    """alive all alone around asleep back best better crazy dead deep down even ever everyday first further hard home
    inside just last long love mad maybe might more most naked never next once one outside past pretty quickly really
    right rite simply slowly so still super tight today tomorrow tonight two upside very well wet wide
    wrong""".split()  # noqa: SIM905
)
_AFTER_HIS = frozenset("and are because but had has if is or that was were when while who".split())  # noqa: SIM905
_BEFORE = frozenset(  # a word that her follows as a possessive, if a noun comes next
    """about across against all and around as at behind beyond both but by despite for from has if in into is like near
    of off on or out over than that through to toward towards under upon was when where while with
    without""".split()  # noqa: SIM905
)
_TAKES_TWO = re.compile(  # "called her names", "saw her leave", "got her going"
    r"(?:ask|call|watch|help|want|need|show|teach|hand|offer|order|wish|allow|cost|owe|pay|assign|refus|grant)"
    r"(?:s|es|ed|ing)?"
    r"|(?:giv|mak|hav|writ|serv|promis|envy)(?:e|es|ed|ing)|sav(?:e|es|ed|ing)|lets?|letting|g[eo]ts?|getting|gotten"
    r"|gave|given|made|had|wrote|written|sees?|saw|seen|seeing|finds?|found|finding|keeps?|kept|keeping|leaves?"
    r"|left|leaving|tells?|told|telling|sends?|sent|sending|buys?|bought|buying|brings?|brought|bringing|taught|paid"
    r"|lends?|lent|feeds?|fed|costs?|denied|denies|hears?|heard|feels?|felt|reads?|shown|threw|throws?|does|do|did"
)
_DETERMINERS = [[word] for word in "a an another any each every no one that this".split()]  # noqa: SIM905
_IS = frozenset("am are be became become been being is was were".split())  # noqa: SIM905
_SHE_IS = frozenset("i'm he's she's who's you're they're we're im".split())  # noqa: SIM905
_PRONOUNS = frozenset("i he she we you they who".split())  # noqa: SIM905
_DEGREES = frozenset("a also an both not openly proudly really the very".split())  # noqa: SIM905
_AFTER_PREDICATE = frozenset(
    "and as but or because if so since then though too when while who now anyway however".split()  # noqa: SIM905
)
PERSON_NOUNS = frozenset(
    """aunt boyfriend brother brothers cousin girlfriend sister sisters uncle
    activist activists actor actors actress actresses adult adults applicant applicants artist artists athlete
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


def _following(after: str) -> str:
    """Return the word that comes next, after a space, in lower case; nothing where the sentence or a part of it ends."""
    found = re.match(rf"\s+[('‘“\"`]*({WORD.pattern})", after)
    return "" if found is None else found[1].lower()


def _words(before: str) -> list[str]:
    """Return the words of the part of a sentence before a term, in lower case."""
    clause = re.split(r"[.!?;:,()\"“”|*~]|\s-+\s", before.lower().replace("’", "'"))[-1]
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]*)?|'s?|(?<![\w@#])\d+", clause)


def is_unclear(use: Use, seen: str, before: str, after: str) -> bool:
    """Return whether her or his may be an object or a possessive: "called her names", "his.teacher"."""
    if re.match(r"[.,;:!?][^\W\d_]", after):
        return True
    if seen.lower() != "her":
        return seen.lower() == "his" and _following(after) in ("that", "had", "so", "too", "alone", "as", "only")
    word, last = _following(after), (_words(before) or [""])[-1]
    if not word:
        return bool(re.match(r"\s*[^\s\w.,;:!?)\]'’\"”…/–—-]|\s*['’]s?\b|-", after))  # her <b>dog, her 's, her-self
    if word in ("is", "was", "has"):  # Talk to Her is a film
        return True
    if word in PERSON_NOUNS or word == "own":  # told her brother
        return False
    if word in _AFTER_OBJECT:
        return word in ("over", "in", "off", "up", "like", "any") and last in _BEFORE
    if word in _UNCLEAR or word.endswith(("in'", "goin", "ingly")):
        return last not in _BEFORE or word in ("all", "alone", "even", "just", "never", "once", "still", "back")
    return bool(_TAKES_TWO.fullmatch(last)) or (word.endswith("ing") and last not in _BEFORE)


# Words that show that a person is meant and no title or nickname: "the old man", "his wife's".
_POINTERS = frozenset(
    """a an the this that these those my your his her our their its one another each every any some no both all many few
    several two three four five six seven eight nine ten other own which what whose yo ya ur da dat dis my""".split()  # noqa: SIM905
)
_POSSESSIVES = frozenset("my your yo ya ur his her our their the".split()) - {"the"}  # noqa: SIM905
_COMPANIONS = frozenset(
    "boy boys gentleman gentlemen girl girls guy guys ladies lady man men queen king prince princess woman women".split()  # noqa: SIM905
)
_ADJECTIVE = re.compile(
    r"[a-z]{2,}(?:ous|ful|less|ive|ish|ic|al|able|ible|ed|ing|ent|ant|ese|ian|ean|ite|ary|worn)|young(?:er|est)?"
    r"|old(?:er|est)?|big(?:ger)?|elder(?:ly)?|little|half|step|twin|small|tall|short|good|great|bad|nice|poor|rich"
    r"|strong|weak|smart|wise|kind|brave|happy|sad|angry|lonely|lovely|pretty|beauti|handsome|ugly|crazy|blind|deaf"
    r"|black|white|asian|brown|gay|straight|modern|holy|new|first|second|third|last|only|same|next|whole|real|true"
    r"|middle|devout|neat|fat|thin|hot|cool|cute|sweet|funny|sexy|boring|dumb|stupid|colou?red|german|american|african|italian"
    r"|french|dutch|muslim|hindu|fine|grown|single|ex|late|dear|very|hard|well|self|up|unborn|teenage|wealthy|healthy"
    r"|guilty|busy|lucky|silly|friendly|homeless|unlucky|ordinary|near|certain|mature|naked|dying|shy|thirty|forty"
    r"|fifty|sixty|seventy|eighty|year|fellow|better|best|average|decent|honest|proud|quiet|loud|mere|former|other"
)


def _after_adjectives(words: list[str]) -> list[str]:
    """Return the words before the adjectives that they end in."""
    while words and words[-1] not in _POINTERS and _ADJECTIVE.fullmatch(words[-1]):
        words = words[:-1]
    return words


def points_at_a_person(term: str, before: str) -> bool:
    """Return whether a determiner or a possessive stands before a noun for a person, as before no nickname or title.

    Only adjectives may stand between them. "My girl" and "your man" are idioms.

    >>> points_at_a_person("man", "the old "), points_at_a_person("man", "Spider "), points_at_a_person("man", "my ")
    (True, False, False)
    """
    words = _after_adjectives(_words(before))
    if not words:
        return False
    last = words[-1]
    if last in _POSSESSIVES and term.lower() in _COMPANIONS:
        return False
    return last in _POINTERS or last.isdecimal() or last.endswith(("'s", "s'", "'"))


_LEADS = frozenset(
    """about against all among and as at between but by for from if in like most nor of on or than that to when where
    while with without because are were how do can make makes see sees love treat""".split()  # noqa: SIM905
)


def are_people(term: str, before: str) -> bool:
    """Return whether a noun stands where people are meant: after a determiner, a preposition, or at the start.

    >>> are_people("girls", "two "), are_people("guys", "a fan of Knockaround "), are_people("Women", "")
    (True, False, True)
    """
    words = _after_adjectives(_words(before))
    return not words or words[-1] in _LEADS or points_at_a_person(term, before)


def use_of(use: Use, seen: str, before: str, after: str) -> bool:
    """Return whether a term is used in this way, by the words before and after it.

    `object`, `possessive` and `pronoun` tell the uses of her and his apart, `adjective` and `noun` those of Christian;
    `person` is an adjective that speaks of people: before a word such as man, or after is.

    >>> use_of("possessive", "her", "saw ", " dog"), use_of("object", "her", "saw ", " in town")
    (True, True)
    """
    word = _following(after)
    words = _words(before)
    last = words[-1] if words and re.search(r"[\w'’]\s+$", before) else ""
    continues = bool(word) and word not in _AFTER_OBJECT
    if use in ("", "name", "human", "humans"):
        return True
    if use in ("object", "possessive", "pronoun"):
        if seen.lower() == "his":
            return (use == "pronoun") == (not word or word in _AFTER_HIS)
        return seen.lower() != "her" or (use == "possessive") == continues
    if use in ("noun", "adjective"):  # a devout Muslim, but a devout Muslim family
        if continues:
            return use == "adjective"
        if use == "noun":
            return _after_adjectives(words)[-1:] in _DETERMINERS
        return not last or last in _IS or last in _SHE_IS or last in _DEGREES - {"a", "an", "the"}
    if last in ("year", "years", "yr", "yrs", "tone", "color", "colour"):  # ten year old, tone deaf
        return False
    if word in PERSON_NOUNS:
        return True
    ends = (not word and not re.match(r"\s*[-&#@]", after)) or word in _AFTER_PREDICATE
    return ends and _is_said_of_a_person(words)


def _is_said_of_a_person(words: list[str]) -> bool:
    """Return whether the last words are a person, a form of "be" and words of degree: "she is also"."""
    rest = list(words)
    while rest and rest[-1] in _DEGREES:
        rest.pop()
    if rest and rest[-1].replace("’", "'") in _SHE_IS:
        return True
    return len(rest) > 1 and rest[-1] in _IS and (rest[-2] in _PRONOUNS or rest[-2] in PERSON_NOUNS)
