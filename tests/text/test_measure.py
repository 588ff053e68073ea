import zlib

import numpy as np
import pytest

from neuronfair.text.lexicon import examine, read_lexicon, replaced
from neuronfair.text.measure import (
    NeutralSwaps,
    bootstrap_mean,
    group_pairs,
    measure_baseline,
    measure_pairs,
    score_changes,
    topics,
)
from neuronfair.text.models import open_text_model
from tests.text.cases import SENTENCES, made_domain


def opened(function, texts=SENTENCES, **more):
    return open_text_model(function, list(texts), **more)


def test_the_flip_rate_is_that_of_an_independent_enumeration():
    words = ["good", "film", "sad", "quiet", "job", "money"]
    texts = [f"{who} likes the {word} number {i}" for i in range(20) for who in ("she", "he") for word in words]

    def score(text):
        return ((hash_of(text) % 100) / 100 + 0.3 * text.startswith("he")) / 1.3

    def hash_of(text):
        return sum(ord(c) * (i + 7) for i, c in enumerate(text.replace("she", "x").replace("he", "x")))

    domain = made_domain(texts)
    model = opened(lambda texts: [score(text) for text in texts], texts)
    pairs, spent = measure_pairs(model, domain, favourable=1)
    swap = {"she": "he", "he": "she"}
    flips = 0
    for text in texts:
        first, rest = text.split(" ", 1)
        flips += (score(text) >= 0.5) != (score(f"{swap[first]} {rest}") >= 0.5)
    rate = pairs.rate()
    assert (rate.found, rate.sampled, spent) == (flips, len(texts), False)
    lost, gained = (
        sum(getattr(p, name) for p in group_pairs(pairs, domain.lexicon.groups, 1)) for name in ("lost", "gained")
    )
    assert lost + gained == flips
    women = next(p for p in group_pairs(pairs, domain.lexicon.groups, 1) if p.group == "female")
    assert women.lost == 0
    assert women.gained == women.flips.count == flips // 2


def test_several_groups_give_a_matrix():
    texts = ["a christian man spoke", "a muslim woman spoke", "a hindu man spoke", "two Jews met", "two Buddhists met"]
    domain = made_domain(texts, "religion")
    model = opened(lambda texts: [float("muslim" in t.lower()) for t in texts], texts)
    pairs, _ = measure_pairs(model, domain, favourable=1)
    names = read_lexicon("religion").groups
    flipped = {(p.group, p.other) for p in group_pairs(pairs, names, 1) if p.flips.count}
    assert flipped == {(a, b) for a in names for b in names if a != b and "Muslim" in (a, b)}
    assert pairs.rate().rate == 1


def test_the_score_change_is_the_mean_over_twins():
    domain = made_domain(["she left", "he left"])
    model = opened(lambda texts: [0.9 if "he" in t.split() else 0.2 for t in texts], ["she left", "he left"])
    pairs, _ = measure_pairs(model, domain, favourable=1)
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
        new = swaps.swapped(text, generator)
        changed = [(a, b) for a, b in zip(text.text.split(), new.split(), strict=True) if a != b]
        assert len(changed) == 1
        assert changed[0][0][-2:] == changed[0][1][-2:]
        assert changed[0][1] not in ("she", "he")


def test_a_model_that_reads_the_identity_exceeds_the_baseline():
    domain, model = made_domain(TEXTS), opened(lambda texts: [float(t.startswith("he")) for t in texts], TEXTS)
    pairs, _ = measure_pairs(model, domain, favourable=1)
    baseline = measure_baseline(model, domain, pairs, TEXTS, favourable=1)
    assert (baseline.identity.value, baseline.neutral.value) == (1.0, 0.0)
    assert baseline.claimed


def test_an_unstable_model_does_not():
    def model(texts):
        return [float(zlib.crc32(t.encode()) % 2) for t in texts]  # any change may flip it

    domain, unstable = made_domain(TEXTS), opened(model, TEXTS)
    pairs, _ = measure_pairs(unstable, domain, favourable=1)
    baseline = measure_baseline(unstable, domain, pairs, TEXTS, favourable=1)
    assert baseline.neutral.value > 0.3
    assert baseline.excess.value == pytest.approx(baseline.identity.value - baseline.neutral.value)


def test_topics_are_words_that_go_with_flips():
    domain = made_domain(TEXTS)
    model = opened(lambda texts: [float("golden" in t and t.startswith("he")) for t in texts], TEXTS)
    pairs, _ = measure_pairs(model, domain, favourable=1)
    assert [topic.word for topic in topics(domain, pairs)] == ["golden"]


def test_a_text_without_enough_neutral_words_is_left_out():
    text = examine("she left", read_lexicon("gender"))
    assert NeutralSwaps(made_domain(["she left"]), ["she left"]).swapped(text, np.random.default_rng(0)) is None
    assert replaced(text.text, []) == "she left"
