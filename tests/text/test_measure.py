import zlib

import numpy as np
import pytest

from neuronfair.text.lexicon import examine, read_lexicon, replace_parts
from neuronfair.text.measure import (
    NeutralSwaps,
    bootstrap_mean,
    compare_with_twins,
    count_by_group_pair,
    find_topics,
    join_pairs,
    measure_baseline,
    score_changes,
)
from neuronfair.text.models import open_text_model
from tests.text.cases import SENTENCES, made_domain


def opened(function, texts=SENTENCES, **more):
    return open_text_model(function, list(texts), **more)


def compared(model, domain):
    return join_pairs(list(compare_with_twins(model, domain, favourable=1)))


def test_the_flip_rate_is_that_of_an_independent_enumeration():
    words = ["good", "film", "sad", "quiet", "job", "money"]
    texts = [f"{who} likes the {word} number {i}" for i in range(20) for who in ("she", "he") for word in words]

    def score(text):
        return ((hash_of(text) % 100) / 100 + 0.3 * text.startswith("he")) / 1.3

    def hash_of(text):
        return sum(ord(c) * (i + 7) for i, c in enumerate(text.replace("she", "x").replace("he", "x")))

    domain = made_domain(texts)
    model = opened(lambda texts: [score(text) for text in texts], texts)
    pairs = compared(model, domain)
    swap = {"she": "he", "he": "she"}
    flips = 0
    for text in texts:
        first, rest = text.split(" ", 1)
        flips += (score(text) >= 0.5) != (score(f"{swap[first]} {rest}") >= 0.5)
    rate = pairs.flip_rate
    assert (rate.count, rate.of) == (flips, len(texts))
    lost, gained = (
        sum(getattr(p, name) for p in count_by_group_pair(pairs, domain.lexicon.groups, 1))
        for name in ("lost", "gained")
    )
    assert lost + gained == flips
    women = next(p for p in count_by_group_pair(pairs, domain.lexicon.groups, 1) if p.group == "female")
    assert women.lost == 0
    assert women.gained == women.flips.count == flips // 2


def test_several_groups_give_a_matrix():
    texts = ["a christian man spoke", "a muslim woman spoke", "a hindu man spoke", "two Jews met", "two Buddhists met"]
    domain = made_domain(texts, "religion")
    model = opened(lambda texts: [float("muslim" in t.lower()) for t in texts], texts)
    pairs = compared(model, domain)
    names = read_lexicon("religion").groups
    flipped = {(p.group, p.other) for p in count_by_group_pair(pairs, names, 1) if p.flips.count}
    assert flipped == {(a, b) for a in names for b in names if a != b and "Muslim" in (a, b)}
    assert pairs.flip_rate.value == 1


def test_the_score_change_is_the_mean_over_twins():
    domain = made_domain(["she left", "he left"])
    model = opened(lambda texts: [0.9 if "he" in t.split() else 0.2 for t in texts], ["she left", "he left"])
    pairs = compared(model, domain)
    assert score_changes(pairs) == pytest.approx([0.7, 0.7])


def test_the_bootstrap_covers_and_narrows():
    values = np.random.default_rng(0).random(400)
    mean = bootstrap_mean(values)
    assert mean.low < values.mean() == mean.value < mean.high
    assert mean.high - mean.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


TEXTS = [
    f"{who} saw the {a} garden near the {b} river {i}"
    for i in range(12)
    for who in ("she", "he")
    for a in ("green", "broken", "golden")
    for b in ("wooden", "sunken")
]


def test_neutral_swaps_change_as_many_other_words_of_equal_ending():
    domain = made_domain(TEXTS)
    swaps, generator = NeutralSwaps(domain, TEXTS), np.random.default_rng(0)
    for text in domain.texts[:20]:
        new = swaps.swap(text, generator)
        changed = [(a, b) for a, b in zip(text.text.split(), new.split(), strict=True) if a != b]
        assert len(changed) == 1
        assert changed[0][0][-2:] == changed[0][1][-2:]
        assert changed[0][1] not in ("she", "he")


def test_a_model_that_reads_the_identity_exceeds_the_baseline():
    domain, model = made_domain(TEXTS), opened(lambda texts: [float(t.startswith("he")) for t in texts], TEXTS)
    pairs = compared(model, domain)
    baseline, _ = measure_baseline(model, domain, pairs, TEXTS, favourable=1)
    assert (baseline.identity.value, baseline.neutral.value) == (1.0, 0.0)
    assert baseline.claimed


def test_an_unstable_model_does_not():
    def model(texts):
        return [float(zlib.crc32(t.encode()) % 2) for t in texts]  # any change may flip it

    domain, unstable = made_domain(TEXTS), opened(model, TEXTS)
    pairs = compared(unstable, domain)
    baseline, _ = measure_baseline(unstable, domain, pairs, TEXTS, favourable=1)
    assert baseline.neutral.value > 0.3
    assert baseline.excess.value == pytest.approx(baseline.identity.value - baseline.neutral.value)


def test_topics_are_words_that_go_with_flips():
    domain = made_domain(TEXTS)
    model = opened(lambda texts: [float("golden" in t and t.startswith("he")) for t in texts], TEXTS)
    pairs = compared(model, domain)
    assert [topic.word for topic in find_topics(domain, pairs)] == ["golden"]


def test_a_text_without_enough_neutral_words_is_left_out():
    text = examine("she left", read_lexicon("gender"))
    assert NeutralSwaps(made_domain(["she left"]), ["she left"]).swap(text, np.random.default_rng(0)) is None
    assert replace_parts(text.text, []) == "she left"


def test_whether_scores_are_logits_is_decided_once_for_a_model():
    def model(texts):  # logits, all of them between 0 and 1 in some batches
        return [[0.2, 0.9] if "he" in text.split() else [0.1, 3.0] for text in texts]

    texts = ["he left", "she left"]
    opened_model = opened(model, texts)
    alone = [opened_model.score_of(opened_model.answer([text]), 1)[0] for text in texts]
    together = opened_model.score_of(opened_model.answer(texts), 1)
    assert alone == pytest.approx(together)
    assert alone == pytest.approx([1 / (1 + np.exp(-0.7)), 1 / (1 + np.exp(-2.9))])
    shares = opened(lambda texts: [[0.3, 0.7]] * len(texts), texts)
    assert shares.score_of(shares.answer(texts), 1) == pytest.approx([0.7, 0.7])


def test_texts_whose_neutral_twins_got_no_answer_are_no_part_of_the_baseline():
    words = ["green", "broken", "golden", "wooden", "sunken"]
    texts = [f"{who} saw the {word} garden {i % 5}" for who in ("she", "he") for i, word in enumerate(words * 3)]
    domain = made_domain(texts)
    model = opened(lambda asked: [0.9 if text in texts else None for text in asked], texts)
    assert measure_baseline(model, domain, compared(model, domain), texts, favourable=1) == (None, False)
