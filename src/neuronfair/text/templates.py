"""Sentence templates as a table: slots are nominal attributes, identity slots are sensitive, a row is a sentence."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neuronfair.domain.attribute import Attribute
from neuronfair.domain.rules import Rule
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import UNKNOWN, Dataset
from neuronfair.errors import DomainError, did_you_mean
from neuronfair.limits import read_text
from neuronfair.text.english import with_article

TEMPLATE = "template"  # the attribute that says which template a row fills
MAX_TEMPLATES, MAX_WORDS = 1_000, 2_000
MOST_ROWS = 100_000  # of the table; of more sentences it is a sample
_SLOT = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Templates:
    """Templates such as "{name} is a {adjective} {identity}", with the words of each slot.

    A template that does not use a slot has its first word there, so that no sentence counts twice. Articles before a
    slot are made to agree with the word in it.
    """

    name: str
    sentences: tuple[str, ...]
    slots: dict[str, tuple[str, ...]]
    sensitive: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.sentences) <= MAX_TEMPLATES or len(set(self.sentences)) < len(self.sentences):
            raise DomainError(f"{self.name}: expected 1 to {MAX_TEMPLATES:,} different templates")
        for name, words in self.slots.items():
            if not 1 <= len(words) <= MAX_WORDS or len(set(words)) < len(words):
                raise DomainError(f"{self.name}: slot '{name}': expected 1 to {MAX_WORDS:,} different words")
        for name in self.sensitive:
            if name not in self.slots:
                raise DomainError(f"{self.name}: sensitive slot '{name}'. {did_you_mean(name, self.slots)}")
        for sentence in self.sentences:
            names = _SLOT.findall(sentence)
            unknown = next((name for name in names if name not in self.slots), None)
            if unknown is not None:
                raise DomainError(f"{self.name}: '{sentence}': slot '{unknown}'. {did_you_mean(unknown, self.slots)}")
            if not set(names) & set(self.sensitive):
                raise DomainError(f"{self.name}: '{sentence}' has no sensitive slot, so it has no twins")

    @property
    def domain(self) -> TableDomain:
        """The sentences as an input space: an attribute for the template and one for each slot."""
        attributes = [Attribute(TEMPLATE, "nominal", values=tuple(map(str, range(len(self.sentences)))))]
        attributes += [Attribute(name, "nominal", values=words) for name, words in self.slots.items()]
        rules = []
        for name, words in self.slots.items():
            without = tuple(str(i) for i, s in enumerate(self.sentences) if name not in _SLOT.findall(s))
            if without and len(words) > 1 and name not in self.sensitive:
                rules.append(Rule(f"no {name}", {TEMPLATE: without}, {name: (words[0],)}))
        return TableDomain(self.name, tuple(attributes), sensitive=self.sensitive, rules=tuple(rules))

    def dataset(self, most: int = MOST_ROWS, seed: int = 0) -> Dataset:
        """Return all sentences as a data set, or a random sample of so many."""
        domain = self.domain
        sizes = [attribute.size for attribute in domain.attributes]
        if np.prod([float(size) for size in sizes]) <= 4 * most:
            rows = torch.tensor(list(itertools.product(*map(range, sizes))))
            rows = rows[domain.valid(rows)][:most]
        else:
            rows = torch.unique(domain.sample(most, torch.Generator().manual_seed(seed)), dim=0)
        return Dataset(self.name, domain, rows, torch.full((len(rows),), UNKNOWN))

    def render(self, frame: Any) -> list[str]:
        """Return the sentences of a table with the columns of the domain.

        >>> templates = Templates("t", ("She met a {job}.",), {"job": ("doctor", "engineer")}, ("job",))
        >>> templates.render({"template": ["0", "0"], "job": ["doctor", "engineer"]})
        ['She met a doctor.', 'She met an engineer.']
        """
        columns = {name: list(map(str, frame[name])) for name in (TEMPLATE, *self.slots)}
        return [
            self.sentence(int(number), {name: columns[name][row] for name in self.slots})
            for row, number in enumerate(columns[TEMPLATE])
        ]

    def sentence(self, number: int, words: dict[str, str]) -> str:
        """Return a template with words in its slots; a word that begins a sentence gets a capital."""
        template, done, at = self.sentences[number], "", 0
        for found in _SLOT.finditer(template):
            word = words[found[1]]
            before = template[at : found.start()]
            if not (done + before).strip() or re.search(r"[.!?]\s+$", done + before):
                word = word[:1].upper() + word[1:]
            done += with_article(before, word) + word
            at = found.end()
        return done + template[at:]

    def model(self, function: Callable[[list[str]], Any]) -> Callable[[Any], Any]:
        """Return a function of texts as a model of the data set: `nf.audit(t.model(f), t.dataset())`."""
        return lambda frame: function(self.render(frame))


def read_templates(path: str | Path) -> Templates:
    """Read templates from a TOML file: `templates`, `sensitive` and the words of each slot under `[slots]`."""
    path = Path(path)
    try:
        found = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DomainError(f"{path}: not TOML in UTF-8: {error}") from error
    unknown = next((key for key in found if key not in ("name", "templates", "sensitive", "slots")), None)
    if unknown is not None:
        raise DomainError(f"{path}: unknown key '{unknown}'. Known: name, templates, sensitive, slots")
    slots = found.get("slots")
    if not isinstance(slots, dict):
        raise DomainError(f"{path}: expected [slots] with a list of words for each slot")
    return Templates(
        str(found.get("name", path.stem)),
        _words(path, "templates", found.get("templates")),
        {name: _words(path, f"slots.{name}", words) for name, words in slots.items()},
        _words(path, "sensitive", found.get("sensitive")),
    )


def _words(path: Path, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one.strip() for one in value):
        raise DomainError(f"{path}: {key}: expected a list of texts")
    return tuple(value)
