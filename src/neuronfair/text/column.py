"""The texts of a column: which are tested, and why the others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neuronfair.domain.draws import random_order
from neuronfair.errors import DataError
from neuronfair.text import report as reports
from neuronfair.text.domain import TextDomain
from neuronfair.text.lexicon import Lexicon
from neuronfair.text.mentions import REASONS, Reason, examine
from neuronfair.text.replacements import read_replacements

MAX_TEXT = 100_000  # characters; longer ones are cut off


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
        seen: dict[str, str] = {}
        empty = shortened = 0
        for number, cell in enumerate(texts):
            text = cell if isinstance(cell, str) else "" if cell is None or cell != cell else str(cell)
            if not any(map(str.isalpha, text)):
                empty += 1
                continue
            if len(text) > MAX_TEXT:
                text, shortened = text[:MAX_TEXT], shortened + 1
            label = "" if labels is None else str(labels[number])
            seen.setdefault(text, label)
        if not seen:
            raise DataError("no text has a letter: all cells of the column are empty")
        return TextColumn(list(seen), None if labels is None else list(seen.values()), empty, shortened)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels, sorted."""
        return () if self.labels is None else tuple(sorted(set(self.labels)))


def tested(read: TextColumn, lexicon: Lexicon, name: str, most: int, seed: int) -> tuple[TextDomain, dict[Reason, int]]:
    """Return the texts whose identity can be swapped, at most so many, and how many others there are by reason."""
    counts: Counter[Reason] = Counter()
    found = []
    for text in read.texts:
        one = examine(text, lexicon)
        if isinstance(one, str):
            counts[one] += 1
        else:
            found.append(one)
    counted = {reason: counts[reason] for reason in REASONS if counts[reason]}
    if not found:
        why = ", ".join(f"{count:,} {reports.REASON_TEXT[reason]}" for reason, count in counted.items())
        raise DataError(
            f"no text mentions {lexicon.name} so that it can be swapped ({why}). Try another attribute, or a lexicon "
            "of your own: a CSV file with concept,use,GROUP,…"
        )
    if len(found) > most:
        order = random_order(len(found), seed)
        found = [found[i] for i in sorted(order[:most].tolist())]
    return TextDomain(name, tuple(found), lexicon, read_replacements()), counted
