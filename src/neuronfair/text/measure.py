"""How often decisions on texts depend on the identity, by pair of groups, next to swaps of neutral words."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neuronfair.domain.draws import random_order
from neuronfair.domain.twins import TwinRows
from neuronfair.measure.stats import Estimate, clopper_pearson
from neuronfair.progress import Progress, show_nothing
from neuronfair.text.domain import GROUP, TEXT, TextDomain
from neuronfair.text.english import WORD, in_case_of
from neuronfair.text.lexicon import IdentityText, replaced
from neuronfair.text.models import NO_ANSWER, CallsSpent, TextModel
from neuronfair.text.report import GroupPairReport, NeutralWordsReport, Share, TopicReport

TEXTS_PER_BATCH, TEXTS_PER_LIMITED_BATCH = 64, 4  # that are measured together; the second where calls are limited
NEUTRAL_SWAPS_PER_TWIN = 10
BOOTSTRAP_SAMPLES = 2000
MIN_TEXTS_PER_TOPIC = 10  # texts with a word from which it can be a topic
_LETTERS = re.compile(r"[a-z]{3,}")

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TextPairs:
    """What a model says of texts and of their twins, a line for each pair that was answered."""

    text: Ints  # (p,) number of the text
    own: Ints  # group that the text mentions
    other: Ints  # group of the twin
    decision: Ints
    twin_decision: Ints
    score: Floats  # of the last class or the favourable one
    twin_score: Floats
    measured: int  # texts that were measured
    unanswered: int = 0  # pairs without an answer

    @property
    def flips(self) -> Bools:
        """Which twins get a different decision."""
        return np.asarray(self.decision != self.twin_decision)

    @property
    def is_constant(self) -> bool:
        """Whether all texts and twins got the same decision."""
        return len(np.unique(np.concatenate([self.decision, self.twin_decision]))) == 1

    @cached_property
    def by_text(self) -> tuple[Ints, Bools]:
        """The texts with an answered twin, and whether any of their twins gets a different decision."""
        texts = np.unique(self.text)
        flipped = np.isin(texts, self.text[self.flips])
        return texts, flipped

    @property
    def flip_rate(self) -> Share | None:
        """The share of texts with a twin that gets a different decision; None if no pair was answered."""
        texts, flipped = self.by_text
        return share(int(flipped.sum()), len(texts)) if len(texts) else None


def compare_with_twins(
    model: TextModel, domain: TextDomain, *, favourable: int, seed: int = 0, progress: Progress = show_nothing
) -> Iterator[TextPairs]:
    """Ask a model about all texts and their twins, in random order, and yield the pairs of each batch.

    What was yielded when the calls are spent, or after Ctrl-C, is a random sample of the texts.
    """
    order, measured = random_order(len(domain.texts), seed), 0
    for some in torch.split(order, TEXTS_PER_BATCH if model.service.max_calls is None else TEXTS_PER_LIMITED_BATCH):
        progress("Comparing texts with their twins", measured, len(order))
        yield _pairs(model, domain, some, favourable)
        measured += len(some)


def _pairs(model: TextModel, domain: TextDomain, some: torch.Tensor, favourable: int) -> TextPairs:
    rows = domain.rows[some]
    twins: TwinRows = domain.twins(rows)
    line, place = twins.valid.nonzero().unbind(1)
    others = twins.rows[line, place]
    own = model.answer(domain.write(rows))
    theirs = model.answer(domain.write(others))
    number = line.numpy()
    known = (own.decisions[number] != NO_ANSWER) & (theirs.decisions != NO_ANSWER)
    scores = [model.score_of(answers, favourable) for answers in (own, theirs)]
    decided = own.decisions[number][known], theirs.decisions[known], scores[0][number][known], scores[1][known]
    groups = [side.numpy()[known] for side in (others[:, TEXT], rows[line, GROUP], others[:, GROUP])]
    return TextPairs(groups[0], groups[1], groups[2], *decided, len(some), int((~known).sum()))


def joined(parts: Sequence[TextPairs]) -> TextPairs:
    """Return the pairs of several batches as one."""
    kinds = [np.int64] * 5 + [np.float64] * 2
    names = ("text", "own", "other", "decision", "twin_decision", "score", "twin_score")
    columns: dict[str, Any] = {
        name: np.concatenate([np.empty(0, dtype=kind), *(getattr(part, name) for part in parts)])
        for name, kind in zip(names, kinds, strict=True)
    }
    measured, unanswered = (sum(getattr(part, name) for part in parts) for name in ("measured", "unanswered"))
    return TextPairs(**columns, measured=measured, unanswered=unanswered)


def share(count: int, of: int) -> Share:
    """Return a share with its confidence interval."""
    return Share(count, of, *clopper_pearson(count, of))


def group_pairs(pairs: TextPairs, groups: Sequence[str], favourable: int) -> list[GroupPairReport]:
    """Return the figures of every ordered pair of groups that occurs."""
    before, after = pairs.decision == favourable, pairs.twin_decision == favourable
    found = []
    for own, other in itertools.permutations(range(len(groups)), 2):
        here = (pairs.own == own) & (pairs.other == other)
        if here.any():
            flips = share(int((here & pairs.flips).sum()), int(here.sum()))
            lost, gained = int((here & before & ~after).sum()), int((here & ~before & after).sum())
            shift = float((pairs.twin_score - pairs.score)[here].mean())
            found.append(GroupPairReport(groups[own], groups[other], flips, lost, gained, shift))
    return found


def bootstrap_mean(values: Floats, seed: int = 0, confidence: float = 0.95) -> Estimate:
    """Return the mean of one number per text, with the percentile interval of resampled texts."""
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [
            values[generator.integers(0, len(values), (100, len(values)))].mean(1)
            for _ in range(BOOTSTRAP_SAMPLES // 100)
        ]
    )
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(float(values.mean()), float(low), float(high))


def score_changes(pairs: TextPairs) -> Floats:
    """Return for each text the mean change of its score over its twins, without sign (Garg et al., AIES 2019)."""
    texts, place = np.unique(pairs.text, return_inverse=True)
    gaps = np.abs(pairs.twin_score - pairs.score)
    sums = np.bincount(place, gaps, minlength=len(texts))
    return np.asarray(sums / np.bincount(place, minlength=len(texts)))


# Neutral words of equal frequency: is the model unfair, or just unstable?


class NeutralSwaps:
    """Swaps of as many neutral words as identity terms, each by a word of the same frequency and ending."""

    def __init__(self, domain: TextDomain, texts: Sequence[str]) -> None:
        self._domain = domain
        counts = Counter(word for text in texts for word in _LETTERS.findall(text.lower()))
        self._counts = counts
        self._alike: dict[tuple[int, str], list[str]] = {}
        for word in sorted(counts):
            if counts[word] > 1 and not domain.lexicon.find(word):
                self._alike.setdefault((self._class(word), word[-2:]), []).append(word)

    def _class(self, word: str) -> int:
        """Return how frequent a word is, in powers of two."""
        return int(self._counts.get(word.lower(), 0)).bit_length()

    def swapped(self, text: IdentityText, generator: np.random.Generator) -> str | None:
        """Return a text with as many neutral words swapped as it has identity terms; None where it has too few."""
        words = [
            (found.start(), found.end(), found[0], options)
            for found in WORD.finditer(text.text)
            if not any(m.start < found.end() and found.start() < m.end for m in text.mentions)
            and (options := self._options(found[0]))
        ]
        if len(words) < len(text.mentions):
            return None
        parts, left = [], words
        for mention in text.mentions:
            wanted = self._class(mention.seen)
            near = np.array([abs(self._class(word[2]) - wanted) for word in left]) + generator.random(len(left))
            start, end, seen, options = left.pop(int(near.argmin()))
            parts.append((start, end, in_case_of(seen, seen.lower(), options[int(generator.integers(len(options)))])))
        return replaced(text.text, parts)

    def _options(self, word: str) -> list[str]:
        lower = word.lower()
        alike = self._alike.get((self._class(lower), lower[-2:]), []) if _LETTERS.fullmatch(lower) else []
        return [other for other in alike if other != lower]


def measure_baseline(
    model: TextModel,
    domain: TextDomain,
    pairs: TextPairs,
    texts: Sequence[str],
    *,
    favourable: int,
    rounds: int = NEUTRAL_SWAPS_PER_TWIN,
    seed: int = 0,
    progress: Progress = show_nothing,
) -> tuple[NeutralWordsReport | None, bool]:
    """Swap neutral words of the texts that were measured, as many times as each has twins.

    Returns None where no text could be measured, and whether the calls were spent before the last text.
    """
    swaps, generator = NeutralSwaps(domain, texts), np.random.default_rng(seed)
    measured, flipped = pairs.by_text
    twins = np.bincount(pairs.text, minlength=len(domain.texts))
    first = dict(zip(pairs.text.tolist(), range(len(pairs.text)), strict=True))
    flips, changes, lines, spent = list[float](), list[float](), list[int](), False
    for start in range(0, len(measured), TEXTS_PER_BATCH):
        progress("Swapping neutral words", start, len(measured))
        some, variants, owner = measured[start : start + TEXTS_PER_BATCH], list[str](), list[int]()
        for number in some.tolist():
            made = [swaps.swapped(domain.texts[number], generator) for _ in range(rounds * twins[number])]
            if None not in made:
                variants += [one for one in made if one is not None]
                owner += [number] * len(made)
        try:
            answers = model.answer(variants)
        except CallsSpent:
            spent = True
            break
        scores, at = model.score_of(answers, favourable) if variants else np.empty(0), 0
        for number in dict.fromkeys(owner):
            size = rounds * int(twins[number])
            here = slice(at, at + size)
            at += size
            own, answered = first[number], answers.decisions[here] != NO_ANSWER
            if not answered.any():
                continue
            other = (answers.decisions[here] != pairs.decision[own]) & answered
            flips.append(float(other.reshape(rounds, -1).any(1).mean()))
            changes.append(float(np.nanmean(np.abs(scores[here] - pairs.score[own]))))
            lines.append(int(np.searchsorted(measured, number)))
    if not lines:
        return None, spent
    identity, neutral = flipped[lines].astype(float), np.array(flips)
    own, other, excess = (bootstrap_mean(values, seed) for values in (identity, neutral, identity - neutral))
    gaps = score_changes(pairs)[lines]
    changed = float(gaps.mean()), float(np.mean(changes))
    return NeutralWordsReport(len(lines), own, other, excess, *changed, claimed=own.low > other.high), spent


def topics(domain: TextDomain, pairs: TextPairs, most: int = 5) -> list[TopicReport]:
    """Return words whose texts depend on the identity more often than the rest, with corrected p-values below 5%."""
    from scipy.stats import hypergeom  # here: it takes most of a second to import

    texts, flipped = pairs.by_text
    where: dict[str, list[int]] = {}
    for place, number in enumerate(texts.tolist()):
        text = domain.texts[number]
        words = {word.lower() for word in WORD.findall(text.text) if len(word) > 3}
        for word in words - {mention.seen.lower() for mention in text.mentions}:
            where.setdefault(word, []).append(place)
    tried = {word: places for word, places in where.items() if MIN_TEXTS_PER_TOPIC <= len(places) <= len(texts) // 2}
    found = []
    for word, places in tried.items():
        flips = int(flipped[places].sum())
        p_value = float(hypergeom.sf(flips - 1, len(texts), int(flipped.sum()), len(places)))
        if p_value * len(tried) < 0.05:
            found.append(TopicReport(word, len(places), flips, p_value * len(tried)))
    return sorted(found, key=lambda topic: topic.p_value)[:most]
