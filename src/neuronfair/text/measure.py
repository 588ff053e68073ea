"""How often decisions on texts depend on the identity, by pair of groups, next to swaps of neutral words."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from neuronfair.domain.draws import draw_order
from neuronfair.domain.twins import GROUP, SAMPLE, TwinRows
from neuronfair.measure.stats import Estimate, clopper_pearson
from neuronfair.progress import Progress, show_nothing
from neuronfair.text.domain import TextDomain, WordClasses
from neuronfair.text.english import WORD, in_case_of
from neuronfair.text.lexicon import IdentityText, replace_parts
from neuronfair.text.models import NO_ANSWER, CallsSpent, TextModel
from neuronfair.text.report import GroupPairReport, NeutralWordsReport, Share, TopicReport

TEXTS_PER_BATCH, TEXTS_PER_LIMITED_BATCH = 64, 4  # texts that are measured together; the second where calls are limited
NEUTRAL_SWAPS_PER_TWIN = 10
BOOTSTRAP_SAMPLES = 2000
MIN_TEXTS_PER_TOPIC = 10  # texts with a word from which it can be a topic

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TextPairs:
    """What a model says of texts and of their twins, a line for each pair that was answered."""

    text: Ints  # (p,) number of the text
    group: Ints  # group that the text mentions
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
    order, measured = draw_order(len(domain.texts), seed), 0
    for batch in torch.split(order, TEXTS_PER_BATCH if model.service.max_calls is None else TEXTS_PER_LIMITED_BATCH):
        progress("Comparing texts with their twins", measured, len(order))
        yield _compare_batch(model, domain, batch, favourable)
        measured += len(batch)


def _compare_batch(model: TextModel, domain: TextDomain, batch: torch.Tensor, favourable: int) -> TextPairs:
    rows = domain.rows[batch]
    twins: TwinRows = domain.twins(rows)
    line, twin_index = twins.valid.nonzero().unbind(1)
    others = twins.rows[line, twin_index]
    answers = model.answer(domain.write(rows))
    twin_answers = model.answer(domain.write(others))
    number = line.numpy()
    is_answered = (answers.decisions[number] != NO_ANSWER) & (twin_answers.decisions != NO_ANSWER)
    scores = [model.score_of(side, favourable) for side in (answers, twin_answers)]
    columns: list[Any] = [side.numpy() for side in (others[:, SAMPLE], rows[line, GROUP], others[:, GROUP])]
    columns += [answers.decisions[number], twin_answers.decisions, scores[0][number], scores[1]]
    counts: list[Any] = [len(batch), int((~is_answered).sum())]
    return TextPairs(*(column[is_answered] for column in columns), *counts)


def join_pairs(parts: Sequence[TextPairs]) -> TextPairs:
    """Return the pairs of several batches as one."""
    kinds = [np.int64] * 5 + [np.float64] * 2
    names = ("text", "group", "other", "decision", "twin_decision", "score", "twin_score")
    columns: dict[str, Any] = {
        name: np.concatenate([np.empty(0, dtype=kind), *(getattr(part, name) for part in parts)])
        for name, kind in zip(names, kinds, strict=True)
    }
    measured, unanswered = (sum(getattr(part, name) for part in parts) for name in ("measured", "unanswered"))
    return TextPairs(**columns, measured=measured, unanswered=unanswered)


def share(count: int, of: int) -> Share:
    """Return a share with its confidence interval."""
    return Share(count, of, *clopper_pearson(count, of))


def count_by_group_pair(pairs: TextPairs, groups: Sequence[str], favourable: int) -> list[GroupPairReport]:
    """Return the figures of every ordered pair of groups that occurs."""
    before, after = pairs.decision == favourable, pairs.twin_decision == favourable
    reports = []
    for group, other in itertools.permutations(range(len(groups)), 2):
        of_pair = (pairs.group == group) & (pairs.other == other)
        if of_pair.any():
            flips = share(int((of_pair & pairs.flips).sum()), int(of_pair.sum()))
            shift = float((pairs.twin_score - pairs.score)[of_pair].mean())
            changes = int((of_pair & before & ~after).sum()), int((of_pair & ~before & after).sum())
            reports.append(GroupPairReport(groups[group], groups[other], flips, *changes, shift))
    return reports


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
    texts, indices = np.unique(pairs.text, return_inverse=True)
    gaps = np.abs(pairs.twin_score - pairs.score)
    sums = np.bincount(indices, gaps, minlength=len(texts))
    return np.asarray(sums / np.bincount(indices, minlength=len(texts)))


# Neutral words of equal frequency: is the model unfair, or just unstable?


class NeutralSwaps:
    """Swaps of as many neutral words as identity terms, each by a word of the same frequency and ending."""

    def __init__(self, domain: TextDomain, texts: Sequence[str]) -> None:
        self._classes = WordClasses(texts, domain.lexicon)

    def swap(self, text: IdentityText, generator: np.random.Generator) -> str | None:
        """Return a text with as many neutral words swapped as it has identity terms; None where it has too few."""
        remaining = [
            (match.start(), match.end(), match[0], alternatives)
            for match in WORD.finditer(text.text)
            if not any(m.start < match.end() and match.start() < m.end for m in text.mentions)
            and (alternatives := self._classes.find_alternatives(match[0]))
        ]
        if len(remaining) < len(text.mentions):
            return None
        parts = []
        for mention in text.mentions:
            frequency = self._classes.frequency_class(mention.spelling)
            gaps = np.array([abs(self._classes.frequency_class(word[2]) - frequency) for word in remaining])
            start, end, spelling, words = remaining.pop(int((gaps + generator.random(len(remaining))).argmin()))
            word = words[int(generator.integers(len(words)))]
            parts.append((start, end, in_case_of(spelling, spelling.lower(), word)))
        return replace_parts(text.text, parts)


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
    flips, changes, lines, is_spent = list[float](), list[float](), list[int](), False
    for start in range(0, len(measured), TEXTS_PER_BATCH):
        progress("Swapping neutral words", start, len(measured))
        batch, variants, owner = measured[start : start + TEXTS_PER_BATCH], list[str](), list[int]()
        for number in batch.tolist():
            swapped_texts = [swaps.swap(domain.texts[number], generator) for _ in range(rounds * twins[number])]
            if None not in swapped_texts:
                variants += [text for text in swapped_texts if text is not None]
                owner += [number] * len(swapped_texts)
        try:
            answers = model.answer(variants)
        except CallsSpent:
            is_spent = True
            break
        scores, position = model.score_of(answers, favourable) if variants else np.empty(0), 0
        for number in dict.fromkeys(owner):
            size = rounds * int(twins[number])
            part = slice(position, position + size)
            position += size
            pair_index, answered = first[number], answers.decisions[part] != NO_ANSWER
            if not answered.any():
                continue
            is_flip = (answers.decisions[part] != pairs.decision[pair_index]) & answered
            flips.append(float(is_flip.reshape(rounds, -1).any(1).mean()))
            changes.append(float(np.nanmean(np.abs(scores[part] - pairs.score[pair_index]))))
            lines.append(int(np.searchsorted(measured, number)))
    if not lines:
        return None, is_spent
    identity, neutral = flipped[lines].astype(float), np.array(flips)
    by_identity, by_neutral, excess = (
        bootstrap_mean(values, seed) for values in (identity, neutral, identity - neutral)
    )
    gaps = score_changes(pairs)[lines]
    changed = float(gaps.mean()), float(np.mean(changes))
    claimed = by_identity.low > by_neutral.high
    return NeutralWordsReport(len(lines), by_identity, by_neutral, excess, *changed, claimed), is_spent


def find_topics(domain: TextDomain, pairs: TextPairs, max_topics: int = 5) -> list[TopicReport]:
    """Return words whose texts depend on the identity more often than the rest, with corrected p-values below 5%."""
    from scipy.stats import hypergeom  # here: it takes most of a second to import

    texts, flipped = pairs.by_text
    indices_by_word: dict[str, list[int]] = {}
    for text_index, number in enumerate(texts.tolist()):
        text = domain.texts[number]
        words = {word.lower() for word in WORD.findall(text.text) if len(word) > 3}
        for word in words - {mention.spelling.lower() for mention in text.mentions}:
            indices_by_word.setdefault(word, []).append(text_index)
    sizes = range(MIN_TEXTS_PER_TOPIC, len(texts) // 2 + 1)
    candidates = {word: indices for word, indices in indices_by_word.items() if len(indices) in sizes}
    reports = []
    for word, indices in candidates.items():
        flips = int(flipped[indices].sum())
        p_value = float(hypergeom.sf(flips - 1, len(texts), int(flipped.sum()), len(indices)))
        if p_value * len(candidates) < 0.05:
            reports.append(TopicReport(word, len(indices), flips, p_value * len(candidates)))
    return sorted(reports, key=lambda topic: topic.p_value)[:max_topics]
