"""Texts as rows: which text, which group it mentions, and which word stands in each place that may be replaced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from neuronfair.domain.interface import TwinRows
from neuronfair.domain.twins import key_coefficients
from neuronfair.errors import DomainError
from neuronfair.text.lexicon import Lexicon
from neuronfair.text.mentions import IdentityText, replaced
from neuronfair.text.replacements import CHOICES, POSITIONS, Replacements, Slot

TEXT, GROUP, WORDS = 0, 1, 2  # columns: number of the text, of the group, and the first of its words


@dataclass(frozen=True, eq=False)
class TextDomain:
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
    def device(self) -> torch.device:
        """Where the rows are: on the CPU, since texts are."""
        return torch.device("cpu")

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
        counts = torch.ones(len(self.texts), POSITIONS, dtype=torch.int64)
        for number, slots in enumerate(self.slots):
            for place, slot in enumerate(slots):
                counts[number, place] = len(slot.words)
        return counts

    @cached_property
    def swappable(self) -> Tensor:
        """Which groups each text can be swapped to, its own included: bool, (texts, groups)."""
        found = torch.zeros(len(self.texts), len(self.lexicon.groups), dtype=torch.bool)
        for number, text in enumerate(self.texts):
            found[number, list(text.groups)] = True
        return found

    @cached_property
    def groups(self) -> Tensor:
        """The group that each text mentions: (texts,)."""
        return torch.tensor([text.group for text in self.texts])

    @property
    def rows(self) -> Tensor:
        """The texts as they are: (texts, d)."""
        numbers = torch.arange(len(self.texts))
        return torch.cat([numbers[:, None], self.groups[:, None], torch.zeros(len(numbers), POSITIONS).long()], 1)

    # What the codes are

    @property
    def codes_per_row(self) -> int:
        """How many codes a row has."""
        return WORDS + POSITIONS

    @property
    def draws_per_row(self) -> int:
        """How many random numbers `rows_at` takes for one row."""
        return self.codes_per_row

    @property
    def restricted(self) -> bool:
        """Whether rows must keep more than the bounds of their codes: each text has its own groups and words."""
        return True

    @property
    def sensitive_columns(self) -> tuple[int, ...]:
        """The position of the group."""
        return (GROUP,)

    @property
    def twin_columns(self) -> tuple[int, ...]:
        """The position of the group."""
        return (GROUP,)

    @property
    def twins_are_mutual(self) -> bool:
        """Whether the twins of a row are one another's twins: they are."""
        return True

    @cached_property
    def sensitive_values(self) -> Tensor:
        """The groups: (groups, 1)."""
        return torch.arange(len(self.lexicon.groups))[:, None]

    @cached_property
    def sizes(self) -> Tensor:
        """How many values each code may take: (d,)."""
        return torch.tensor([len(self.texts), len(self.lexicon.groups), *[CHOICES] * POSITIONS])

    @property
    def points(self) -> Tensor:
        """How many values of each code have an order: as many as there are; none has neighbours."""
        return self.sizes

    @cached_property
    def free(self) -> Tensor:
        """Which codes a search may change: the words, bool (d,)."""
        return torch.arange(self.codes_per_row) >= WORDS

    @cached_property
    def ordered(self) -> Tensor:
        """Which codes have an order: none, bool (d,)."""
        return torch.zeros(self.codes_per_row, dtype=torch.bool)

    # Which rows exist

    def valid(self, rows: Tensor) -> Tensor:
        """Return for each row whether it is a text in a group that it can be swapped to: bool, (n,)."""
        inside = ((rows >= 0) & (rows < self.sizes)).all(-1)
        text, group = rows[:, TEXT].clamp(0, len(self.texts) - 1), rows[:, GROUP].clamp(0, len(self.lexicon.groups) - 1)
        words = (rows[:, WORDS:] < self.choices[text]).all(-1)
        return inside & words & self.swappable[text, group]

    def clip(self, rows: Tensor) -> Tensor:
        """Return the nearest valid rows: a word that does not exist becomes the text's own, and so does a group."""
        text = rows[:, TEXT].clamp(0, len(self.texts) - 1)
        group = rows[:, GROUP].clamp(0, len(self.lexicon.groups) - 1)
        group = torch.where(self.swappable[text, group], group, self.groups[text])
        words = rows[:, WORDS:]
        words = torch.where((words >= 0) & (words < self.choices[text]), words, 0)
        return torch.cat([text[:, None], group[:, None], words], 1)

    def move(self, rows: Tensor, codes: Tensor) -> Tensor:
        """Return the nearest valid rows to `codes` that keep the text and the group of `rows`."""
        return self.clip(torch.cat([rows[:, :WORDS], codes[:, WORDS:]], 1))

    def rows_at(self, u: Tensor) -> Tensor:
        """Return the valid rows at random places u: numbers in [0, 1), (n, d)."""
        text = (u[:, TEXT] * len(self.texts)).long()
        can = self.swappable[text]
        place = (u[:, GROUP] * can.sum(1)).long()  # of the groups that the text can be swapped to
        group = ((can.cumsum(1) - 1 == place[:, None]) & can).int().argmax(1)
        words = (u[:, WORDS:] * self.choices[text]).long()
        return torch.cat([text[:, None], group[:, None], words], 1)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n rows, each text with the same chance."""
        return self.rows_at(torch.rand(n, self.draws_per_row, dtype=torch.float64, generator=generator))

    def neighbours(self, rows: Tensor, u: Tensor) -> Tensor:
        """Return for each place another word, from numbers u in [0, 1): (n, d) each; text and group stay."""
        choices = self.choices[rows[:, TEXT]]
        ahead = 1 + (u[:, WORDS:] * (choices - 1)).long()
        words = torch.where(choices > 1, (rows[:, WORDS:] + ahead) % choices, rows[:, WORDS:])
        return torch.cat([rows[:, :WORDS], words], 1)

    # Who is the same text

    def twins(self, rows: Tensor) -> TwinRows:
        """Return each row with every other group, in order after its own: (n, k, d)."""
        groups = len(self.lexicon.groups)
        twins = rows[:, None].repeat(1, groups - 1, 1)
        twins[..., GROUP] = (rows[:, None, GROUP] + torch.arange(1, groups)) % groups
        return TwinRows(twins, self.swappable[rows[:, None, TEXT], twins[..., GROUP]])

    def member(self, rows: Tensor, number: Tensor) -> Tensor:
        """Return one member of each row's family: 0 is the row itself, 1, 2, … its twins in their order: (n, d)."""
        rows = rows.clone()
        rows[:, GROUP] = (rows[:, GROUP] + number) % len(self.lexicon.groups)
        return rows

    def key(self, rows: Tensor) -> Tensor:
        """Return one 64-bit number per row, equal for a row and its twins."""
        return (rows * self._key_coefficients).sum(-1)

    @cached_property
    def _key_coefficients(self) -> Tensor:
        sizes = self.sizes.tolist()
        sizes[GROUP] = 1
        return key_coefficients(sizes)

    # What a model reads

    def write(self, rows: Tensor) -> list[str]:
        """Return the texts of rows."""
        return [self._written(*row) for row in rows.tolist()]

    def _written(self, number: int, group: int, *words: int) -> str:
        text = self.texts[number]
        parts = text.parts(self.lexicon, group) if self.swappable[number, group] else []
        slots: Sequence[Slot] = self.slots[number]
        parts += [(s.start, s.end, s.words[w]) for s, w in zip(slots, words, strict=False) if w]
        return replaced(text.text, parts) if parts else text.text
