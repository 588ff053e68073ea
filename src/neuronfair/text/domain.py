"""Texts as rows: which text, which group, which other words; and sentence templates as a table."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.draws import draw_order
from neuronfair.domain.rules import Rule
from neuronfair.domain.schema.toml import build_domain, read_conditions, read_toml
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import UNKNOWN, Dataset
from neuronfair.domain.tables.files import read_sheet
from neuronfair.domain.twins import CONTENT, GROUP, SAMPLE, SampleDomain, TwinRows
from neuronfair.errors import DataError, DomainError, did_you_mean
from neuronfair.limits import read_bytes
from neuronfair.text.english import WORD, in_case_of, with_article
from neuronfair.text.lexicon import REASON_TEXT, REASONS, IdentityText, Lexicon, Reason, examine, replace_parts

MAX_SLOTS, WORDS_PER_SLOT = 8, 8  # words of a text that may be replaced, and words for each, its own included


@dataclass(frozen=True)
class Slot:
    """A word of a text, and all words that may stand there; the first is the text's own."""

    start: int
    end: int
    words: tuple[str, ...]


@dataclass(frozen=True)
class WordKind:
    """Words that may stand for each other, and where they may not: "an awful lot", "Angry Birds", "quickly than"."""

    words: tuple[str, ...]
    never_after: re.Pattern[str]
    never_before: re.Pattern[str]
    only_after: re.Pattern[str]

    def fits(self, before: str, word: str, after: str) -> bool:
        """Return whether another word of this kind fits here: not in names, titles, idioms and compounds."""
        is_titled = word[0].isupper() and before.strip() and before.rstrip()[-1] not in ".!?"
        if (is_titled and not self.words[0][0].isupper()) or re.search(r"[\w-]$", before):
            return False
        is_unfit = self.never_after.search(before) or self.never_before.match(after)
        return not is_unfit and self.only_after.search(before) is not None


@dataclass(frozen=True)
class Replacements:
    """Words by kind; within a kind each may stand for any other, with the meaning of the text about kept.

    `near_words` are further words for a word that has no kind, the nearest first.
    """

    kinds: tuple[WordKind, ...]
    near_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def kind_by_word(self) -> Mapping[str, WordKind]:
        """The kind of every word, by the word in lower case; of a word of two kinds the first."""
        near = {word: _parse_kind(["", "|".join([word, *others])]) for word, others in self.near_words.items()}
        return near | {word.casefold(): kind for kind in reversed(self.kinds) for word in kind.words}

    def slots(self, text: IdentityText) -> tuple[Slot, ...]:
        """Return the words of a text that may be replaced, at most `MAX_SLOTS`; identity terms are not among them."""
        slots = []
        for match in WORD.finditer(text.text):
            kind = self.kind_by_word.get(match[0].casefold())
            is_identity = any(m.start < match.end() and match.start() < m.end for m in text.mentions)
            if kind is None or is_identity:
                continue
            if not kind.fits(text.text[: match.start()], match[0], text.text[match.end() :]):
                continue
            listed_word = next(word for word in kind.words if word.casefold() == match[0].casefold())
            others = [in_case_of(match[0], listed_word, word) for word in kind.words if word != listed_word]
            slots.append(Slot(match.start(), match.end(), (match[0], *others[: WORDS_PER_SLOT - 1])))
        step = max(1.0, len(slots) / MAX_SLOTS)  # evenly spread over a long text
        return tuple(slots[int(i * step)] for i in range(min(MAX_SLOTS, len(slots))))


def read_replacements(source: str | Path | None = None) -> Replacements:
    """Read a list of words that may stand for each other: the bundled English one, or a CSV file of your own.

    A line is a kind: its words with | between them and, optionally, what may not stand before or after them and what
    must stand before them, as regular expressions.

    >>> read_replacements().kind_by_word["film"].words
    ('film', 'movie')
    """
    path = files(__package__).joinpath("data", "replacements_en.csv") if source is None else Path(source)
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
        if not lines or lines[0][:2] != ["kind", "words"]:
            raise DataError(f"{path}: expected a first line kind,words,never_after,never_before,only_after")
        return Replacements(tuple(_parse_kind(line) for line in lines[1:] if len(line) > 1 and line[1].strip()))
    except (OSError, UnicodeDecodeError, csv.Error, re.error) as error:
        raise DataError(f"{path}: cannot be read as a list of words ({error})") from error


def _parse_kind(line: Sequence[str]) -> WordKind:
    after, before, only = (*line[2:5], "", "", "")[:3]
    patterns = (after or "(?!)", before or "(?!)", only)
    return WordKind(tuple(line[1].split("|")), *(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


_LETTERS = re.compile(r"[a-z]{3,}")


class WordClasses:
    """The words of some texts, no identity terms, by how frequent they are and by their last two letters."""

    def __init__(self, texts: Sequence[str], lexicon: Lexicon) -> None:
        self._counts = Counter(word for text in texts for word in _LETTERS.findall(text.lower()))
        self.words: dict[tuple[int, str], list[str]] = {}
        for word in sorted(self._counts):
            if self._counts[word] > 1 and not lexicon.find(word):
                self.words.setdefault((self.frequency_class(word), word[-2:]), []).append(word)

    def frequency_class(self, word: str) -> int:
        """Return how frequent a word is, in powers of two."""
        return int(self._counts.get(word.lower(), 0)).bit_length()

    def find_alternatives(self, word: str) -> list[str]:
        """Return the other words of the same frequency class and ending."""
        lower = word.lower()
        key = self.frequency_class(lower), lower[-2:]
        words = self.words.get(key, []) if _LETTERS.fullmatch(lower) else []
        return [other for other in words if other != lower]


WORDS = CONTENT  # the first column of the words


@dataclass(frozen=True, eq=False)
class TextDomain(SampleDomain):
    """Texts with identity terms, each with its twins of other groups and with words that may be replaced.

    A row is whole numbers: the number of the text, that of the group it mentions, and for each place the word that
    stands there, 0 for the text's own. A twin is the same row with another group. A group that a text cannot be swapped
    to gives no valid row.
    """

    name: str
    texts: tuple[IdentityText, ...]
    lexicon: Lexicon
    replacements: Replacements | None = None
    encoding: str = "text"

    def __post_init__(self) -> None:
        if not self.texts:
            raise DomainError(f"{self.name}: no text mentions an identity of {self.lexicon.name} that can be swapped")

    @property
    def sensitive(self) -> tuple[str, ...]:
        """The name of the attribute."""
        return (self.lexicon.name,)

    @property
    def compact(self) -> torch.dtype:
        """The smallest type that holds every code."""
        return torch.int32

    @cached_property
    def slots(self) -> tuple[tuple[Slot, ...], ...]:
        """The words of each text that may be replaced."""
        if self.replacements is None:
            return tuple(() for _ in self.texts)
        return tuple(self.replacements.slots(text) for text in self.texts)

    @cached_property
    def choices(self) -> Tensor:
        """How many words may stand in each place of each text, 1 where nothing may be replaced: (texts, places)."""
        counts = torch.ones(len(self.texts), MAX_SLOTS, dtype=torch.int64)
        for number, slots in enumerate(self.slots):
            for index, slot in enumerate(slots):
                counts[number, index] = len(slot.words)
        return counts

    @cached_property
    def swappable(self) -> Tensor:
        """Which groups each text can be swapped to, its own included: bool, (texts, groups)."""
        swappable = torch.zeros(len(self.texts), len(self.lexicon.groups), dtype=torch.bool)
        for number, text in enumerate(self.texts):
            swappable[number, list(text.groups)] = True
        return swappable

    @cached_property
    def groups(self) -> Tensor:
        """The group that each text mentions: (texts,)."""
        return torch.tensor([text.group for text in self.texts])

    @property
    def rows(self) -> Tensor:
        """The texts as they are: (texts, d)."""
        numbers = torch.arange(len(self.texts))
        return torch.cat([numbers[:, None], self.groups[:, None], torch.zeros(len(numbers), MAX_SLOTS).long()], 1)

    # What the codes are

    @property
    def is_restricted(self) -> bool:
        """Whether rows must keep more than the bounds of their codes: each text has its own groups and words."""
        return True

    @cached_property
    def sizes(self) -> Tensor:
        """How many values each code may take: (d,)."""
        return torch.tensor([len(self.texts), len(self.lexicon.groups), *[WORDS_PER_SLOT] * MAX_SLOTS])

    @cached_property
    def is_ordered(self) -> Tensor:
        """Which codes have an order: none, bool (d,)."""
        return torch.zeros(self.codes_per_row, dtype=torch.bool)

    # Which rows exist

    def valid(self, rows: Tensor) -> Tensor:
        """Return for each row whether it is a text in a group that it can be swapped to: bool, (n,)."""
        is_within_sizes = ((rows >= 0) & (rows < self.sizes)).all(-1)
        text = rows[:, SAMPLE].clamp(0, len(self.texts) - 1)
        group = rows[:, GROUP].clamp(0, len(self.lexicon.groups) - 1)
        words = (rows[:, WORDS:] < self.choices[text]).all(-1)
        return is_within_sizes & words & self.swappable[text, group]

    def clip(self, rows: Tensor) -> Tensor:
        """Return the nearest valid rows: a word that does not exist becomes the text's own, and so does a group."""
        text = rows[:, SAMPLE].clamp(0, len(self.texts) - 1)
        group = rows[:, GROUP].clamp(0, len(self.lexicon.groups) - 1)
        group = torch.where(self.swappable[text, group], group, self.groups[text])
        words = rows[:, WORDS:]
        words = torch.where((words >= 0) & (words < self.choices[text]), words, 0)
        return torch.cat([text[:, None], group[:, None], words], 1)

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the valid rows from random numbers u: numbers in [0, 1), (n, d)."""
        text = (u[:, SAMPLE] * len(self.texts)).long()
        swappable = self.swappable[text]
        rank = (u[:, GROUP] * swappable.sum(1)).long()  # of the groups that the text can be swapped to
        group = ((swappable.cumsum(1) - 1 == rank[:, None]) & swappable).int().argmax(1)
        words = (u[:, WORDS:] * self.choices[text]).long()
        return torch.cat([text[:, None], group[:, None], words], 1)

    def neighbours(self, rows: Tensor, u: Tensor) -> Tensor:
        """Return for each place another word, from numbers u in [0, 1): (n, d) each; text and group stay."""
        choices = self.choices[rows[:, SAMPLE]]
        steps = 1 + (u[:, WORDS:] * (choices - 1)).long()
        words = torch.where(choices > 1, (rows[:, WORDS:] + steps) % choices, rows[:, WORDS:])
        return torch.cat([rows[:, :WORDS], words], 1)

    # Who is the same text

    def twins(self, rows: Tensor) -> TwinRows:
        """Return each row with every other group, in order after its own: (n, k, d)."""
        twins = super().twins(rows).rows
        return TwinRows(twins, self.swappable[rows[:, None, SAMPLE], twins[..., GROUP]])

    # What a model reads

    def write(self, rows: Tensor) -> list[str]:
        """Return the texts of rows."""
        return [self._write_row(*row) for row in rows.tolist()]

    def _write_row(self, number: int, group: int, *words: int) -> str:
        text = self.texts[number]
        parts = text.find_parts(self.lexicon, group) if self.swappable[number, group] else []
        slots: Sequence[Slot] = self.slots[number]
        parts += [(s.start, s.end, s.words[w]) for s, w in zip(slots, words, strict=False) if w]
        return replace_parts(text.text, parts) if parts else text.text


def read_texts(data: Any, text: str, target: str | None = None) -> tuple[list[Any], list[Any] | None]:
    """Return a column of texts of a table and, if a target is named, the labels."""
    columns = read_sheet(data).columns
    for name in filter(None, (text, target)):
        if name not in columns:
            raise DataError(f"there is no column '{name}'. {did_you_mean(name, columns)}")
    return list(columns[text]), None if target is None else list(columns[target])


MAX_TEXT_LENGTH = 100_000  # characters; longer ones are cut off


@dataclass(frozen=True)
class TextColumn:
    """The different texts of a column, with their labels."""

    texts: list[str]
    labels: list[str] | None
    empty: int
    shortened: int

    @staticmethod
    def of(texts: Sequence[Any], labels: Sequence[Any] | None) -> TextColumn:
        """Read a column: empty cells and doubles are left out."""
        if labels is not None and len(labels) != len(texts):
            raise DataError(f"{len(texts):,} texts but {len(labels):,} labels")
        label_by_text: dict[str, str] = {}
        empty = shortened = 0
        for cell, label in zip(texts, labels if labels is not None else [""] * len(texts), strict=True):
            text = cell if isinstance(cell, str) else "" if cell is None or cell != cell else str(cell)
            if not any(map(str.isalpha, text)):
                empty += 1
                continue
            if len(text) > MAX_TEXT_LENGTH:
                text, shortened = text[:MAX_TEXT_LENGTH], shortened + 1
            label_by_text.setdefault(text, str(label))
        if not label_by_text:
            raise DataError("no text has a letter: all cells of the column are empty")
        known_labels = None if labels is None else list(label_by_text.values())
        return TextColumn(list(label_by_text), known_labels, empty, shortened)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels, sorted."""
        return () if self.labels is None else tuple(sorted(set(self.labels)))


def build_text_domain(
    column: TextColumn, lexicon: Lexicon, replacements: Replacements, name: str, max_texts: int, seed: int
) -> tuple[TextDomain, dict[Reason, int]]:
    """Return the texts whose identity can be swapped, at most so many, and how many others there are by reason."""
    counts: Counter[Reason] = Counter()
    texts = []
    for text in column.texts:
        result = examine(text, lexicon)
        if isinstance(result, str):
            counts[result] += 1
        else:
            texts.append(result)
    count_by_reason = {reason: counts[reason] for reason in REASONS if counts[reason]}
    if not texts:
        reasons = ", ".join(f"{count:,} {REASON_TEXT[reason]}" for reason, count in count_by_reason.items())
        raise DataError(
            f"no text mentions {lexicon.name} so that it can be swapped ({reasons}). Try another attribute, or a "
            "lexicon of your own: a CSV file with concept,use,GROUP,…"
        )
    if len(texts) > max_texts:
        order = draw_order(len(texts), seed)
        texts = [texts[i] for i in sorted(order[:max_texts].tolist())]
    return TextDomain(name, tuple(texts), lexicon, replacements), count_by_reason


# Texts with their labels, to fit a model to them and to their twins


def split_labelled(
    labelled: Mapping[str, str], lexicon: Lexicon, held_out: float, seed: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return two random parts of texts with labels, to fit and to test; twins of each other stay together."""
    family_of = {text: next(iter(_write_family(text, lexicon)), text) for text in labelled}
    families = sorted(set(family_of.values()))
    order = draw_order(len(families), seed).tolist()
    test_families = {families[number] for number in order[: round(held_out * len(families))]}
    train = {text: label for text, label in labelled.items() if family_of[text] not in test_families}
    return train, {text: label for text, label in labelled.items() if text not in train}


def with_twins(labelled: dict[str, str], lexicon: Lexicon) -> dict[str, str]:
    """Return texts with labels and all their twins, each with the label of its original; known texts keep theirs.

    >>> from neuronfair.text.lexicon import read_lexicon
    >>> with_twins({"She left.": "no", "It rained.": "yes"}, read_lexicon("gender"))
    {'She left.': 'no', 'It rained.': 'yes', 'He left.': 'no'}
    """
    twins = {twin: label for text, label in labelled.items() for twin in _write_family(text, lexicon)}
    return labelled | twins | labelled


def _write_family(text: str, lexicon: Lexicon) -> list[str]:
    """Return a text swapped to every group that it can be swapped to, in the order of the groups, its own included."""
    result = examine(text, lexicon)
    if isinstance(result, str):
        return []
    return [replace_parts(text, result.find_parts(lexicon, group)) for group in result.groups]


# Sentence templates: slots are nominal attributes, a row is a sentence

TEMPLATE = "template"  # the attribute that says which template a row fills
MAX_TEMPLATES, MAX_WORDS = 1_000, 2_000
MAX_TABLE_ROWS = 100_000  # of more sentences the table is a sample
_SLOT = re.compile(r"\{([^{}|:]*)\}")
_AGREEMENT = re.compile(r"\{(?:([^{}|:]*):)?([^{}|]*)\|([^{}|]*)\}")  # {is|are}, {slot:is|are}
_CSV_KINDS = ("template", "sensitive", "word", "plural", "forbid")


@dataclass(frozen=True)
class Templates:
    """Templates such as "The {job} {is|are} {how}.", with the words of each slot.

    {singular|plural} agrees with the word in the slot before it, or else after it; {job:singular|plural} with the slot
    that it names. Words in `plural` count as plural. Articles before a slot are made to agree with the word in it. A
    rule applies to the templates that have all its slots; what it forbids is no sentence and no twin. A template that
    does not use a slot has its first word there, so that no sentence counts twice.
    """

    name: str
    sentences: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    sensitive: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    plural: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= len(self.sentences) <= MAX_TEMPLATES or len(set(self.sentences)) < len(self.sentences):
            raise DomainError(f"{self.name}: expected 1 to {MAX_TEMPLATES:,} different templates")
        for name, words in self.slots.items():
            if not 1 <= len(words) <= MAX_WORDS or len(set(words)) < len(words):
                raise DomainError(f"{self.name}: slot '{name}': expected 1 to {MAX_WORDS:,} different words")
        if TEMPLATE in self.slots:
            raise DomainError(f"{self.name}: a slot cannot be called '{TEMPLATE}'")
        for name in self.sensitive:
            if name not in self.slots:
                raise DomainError(f"{self.name}: sensitive slot '{name}'. {did_you_mean(name, self.slots)}")
        for word in self.plural - {word for words in self.slots.values() for word in words}:
            raise DomainError(f"{self.name}: the plural '{word}' is a word of no slot")
        for sentence in self.sentences:
            self._check_sentence(sentence)

    def _check_sentence(self, sentence: str) -> None:
        names, agreements = _SLOT.findall(sentence), _AGREEMENT.findall(sentence)
        for name in (*names, *(name for name, _, _ in agreements if name)):
            if name not in self.slots:
                raise DomainError(f"{self.name}: '{sentence}': slot '{name}'. {did_you_mean(name, self.slots)}")
        if not set(names) & set(self.sensitive):
            raise DomainError(f"{self.name}: '{sentence}' has no sensitive slot, so it has no twins")
        if agreements and not self.plural:
            raise DomainError(f"{self.name}: '{sentence}': no word is listed as plural, so that nothing agrees with it")

    @property
    def domain(self) -> TableDomain:
        """The sentences as an input space: an attribute for the template and one for each slot."""
        numbers = tuple(map(str, range(len(self.sentences))))
        attributes = [Attribute(TEMPLATE, "nominal", values=numbers)]
        attributes += [Attribute(name, "nominal", values=words) for name, words in self.slots.items()]
        rules = []
        used = [set(_SLOT.findall(sentence)) for sentence in self.sentences]
        for name, words in self.slots.items():
            unused = tuple(number for number, names in zip(numbers, used, strict=True) if name not in names)
            if unused and len(words) > 1:
                rules.append(Rule(f"no {name}", {TEMPLATE: unused}, {name: (words[0],)}))
        for rule in self.rules:
            concerned = tuple(n for n, names in zip(numbers, used, strict=True) if {*rule.when, *rule.then} <= names)
            if concerned:
                rules.append(replace(rule, when={TEMPLATE: concerned, **rule.when}))
        return TableDomain(self.name, tuple(attributes), sensitive=self.sensitive, rules=tuple(rules))

    def dataset(self, max_rows: int = MAX_TABLE_ROWS, seed: int = 0) -> Dataset:
        """Return all sentences as a data set, or a random sample of so many."""
        domain = self.domain
        sizes = [attribute.size for attribute in domain.attributes]
        if np.prod([float(size) for size in sizes]) <= 4 * max_rows:
            rows = torch.tensor(list(itertools.product(*map(range, sizes))))
            rows = rows[domain.valid(rows)][:max_rows]
        else:
            rows = torch.unique(domain.sample(max_rows, torch.Generator().manual_seed(seed)), dim=0)
        return Dataset(self.name, domain, rows, torch.full((len(rows),), UNKNOWN))

    def render(self, frame: Any) -> list[str]:
        """Return the sentences of a table with the columns of the domain.

        >>> words, plural = {"job": ("doctor", "engineers")}, frozenset(["engineers"])
        >>> templates = Templates("t", ("The {job} {was|were} late.",), words, ("job",), plural=plural)
        >>> templates.render({"template": ["0", "0"], "job": ["doctor", "engineers"]})
        ['The doctor was late.', 'The engineers were late.']
        """
        columns = {name: list(map(str, frame[name])) for name in (TEMPLATE, *self.slots)}
        return [
            self.sentence(int(number), {name: columns[name][row] for name in self.slots})
            for row, number in enumerate(columns[TEMPLATE])
        ]

    def sentence(self, number: int, words: dict[str, str]) -> str:
        """Return a template with words in its slots; a word that begins a sentence gets a capital."""
        template = self.sentences[number]
        slots = list(_SLOT.finditer(template))

        def agree(match: re.Match[str]) -> str:
            nearest = [slot[1] for slot in slots if slot.end() <= match.start()][-1:] or [slots[0][1]]
            return match[3] if words[match[1] or nearest[0]] in self.plural else match[2]

        parts = re.split(_SLOT, _AGREEMENT.sub(agree, template))  # text, slot, text, …
        result = parts[0]
        for slot, text in zip(parts[1::2], parts[2::2], strict=True):
            word = words[slot]
            if not result.strip() or re.search(r"[.!?]\s+$", result):
                word = word[:1].upper() + word[1:]
            result = with_article(result, word) + word + text
        return result

    def model(self, function: Callable[[list[str]], Any]) -> Callable[[Any], Any]:
        """Return a function of texts as a model of the data set: `nf.audit(t.model(f), t.dataset())`."""
        return lambda frame: function(self.render(frame))


def read_templates(path: str | Path) -> Templates:
    """Read templates from a TOML file, or from a CSV file with the columns kind, slot and text.

    The TOML file has `templates`, `sensitive`, the words of each slot under `[slots]` and, optionally, `plural` and the
    `rules` of a domain file. A line of the CSV file is a template, a word or a plural of a slot, the name of a
    sensitive slot, or a combination to forbid, in words such as "name == Kim and job == nurse".
    """
    path = Path(path)
    return _read_csv_templates(path) if path.suffix.lower() == ".csv" else _read_toml_templates(path)


def _read_toml_templates(path: Path) -> Templates:
    document = read_toml(path)
    keys = ("name", "templates", "sensitive", "slots", "plural", "rules")
    unknown = next((key for key in document if key not in keys), None)
    if unknown is not None:
        raise DomainError(f"{path}: unknown key '{unknown}'. Known: {', '.join(keys)}")
    table = document.get("slots")
    if not isinstance(table, dict):
        raise DomainError(f"{path}: expected [slots] with a list of words for each slot")
    slots = {name: _read_words(path, f"slots.{name}", words) for name, words in table.items()}
    templates = Templates(
        str(document.get("name", path.stem)),
        _read_words(path, "templates", document.get("templates")),
        slots,
        _read_words(path, "sensitive", document.get("sensitive")),
        plural=frozenset(_read_words(path, "plural", document["plural"]) if "plural" in document else ()),
    )
    if "rules" not in document:
        return templates
    attributes = {name: {"kind": "nominal", "values": list(words)} for name, words in slots.items()}
    table = {"attributes": attributes, "sensitive": list(templates.sensitive), "rules": document["rules"]}
    try:
        return replace(templates, rules=build_domain(table).rules)
    except DomainError as error:
        raise DomainError(f"{path}: {error}") from None


def _read_words(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) and word.strip() for word in value):
        raise DomainError(f"{path}: {key}: expected a list of texts")
    return tuple(value)


def _read_csv_templates(path: Path) -> Templates:
    try:
        lines = list(csv.reader(io.StringIO(read_bytes(path).decode("utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DomainError(f"{path}: cannot be read as CSV ({error})") from error
    if not lines or [cell.strip() for cell in lines[0]] != ["kind", "slot", "text"]:
        raise DomainError(f"{path}: expected a first line kind,slot,text")
    entries: dict[str, list[tuple[str, str]]] = {kind: [] for kind in _CSV_KINDS}
    slots: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(lines[1:], 2):
        if not any(map(str.strip, line)):
            continue
        kind, slot, text = (*map(str.strip, line), "", "", "")[:3]
        if len(line) > 3 or kind not in entries or not (slot if kind == "sensitive" else text):
            raise DomainError(f"{path}: line {number}: expected one of {', '.join(_CSV_KINDS)}, a slot and a text")
        entries[kind].append((slot, text))
        if kind in ("word", "plural"):
            slots[slot] = (*slots.get(slot, ()), text)
    sentences = tuple(text for _, text in entries["template"])
    sensitive = tuple(slot for slot, _ in entries["sensitive"])
    templates = Templates(path.stem, sentences, slots, sensitive, plural=frozenset(t for _, t in entries["plural"]))
    try:
        return replace(templates, rules=tuple(_forbid(templates.domain, text) for _, text in entries["forbid"]))
    except DomainError as error:
        raise DomainError(f"{path}: {error}") from None


def _forbid(domain: TableDomain, text: str) -> Rule:
    """Return the rule that a combination of words, written as conditions, is no sentence."""
    conditions = read_conditions(domain, text)
    if len(dict(conditions)) < len(conditions):
        raise DomainError(f"'{text}' names a slot twice. Write: slot in [word, word]")
    return Rule(text, dict(conditions), {})
