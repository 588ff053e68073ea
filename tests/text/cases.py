"""Texts and small networks whose bias is known."""

import torch
from torch import nn

from neuronfair.text.domain import TextDomain, read_replacements
from neuronfair.text.lexicon import examine, read_lexicon

SENTENCES = (
    "She is a good teacher.",
    "He said the film was funny.",
    "The actress was brilliant in a sad story.",
    "My father likes a quiet city.",
    "His sister hates the boring job.",
    "A girl found money on Monday.",
)
WORDS = sorted(
    {w.strip(".,").lower() for s in SENTENCES for w in s.split()}
    | {w.lower() for kind in read_replacements().kinds for w in kind.words}
    | {t for terms in read_lexicon("gender").terms for t in terms}
)
VOCABULARY = {word: number + 1 for number, word in enumerate(WORDS)}


def tokenizer(texts):
    return [[VOCABULARY.get(word.strip(".,").lower(), 0) for word in text.split()] for text in texts]


def made_domain(texts=SENTENCES, lexicon="gender"):
    gender = read_lexicon(lexicon)
    found = [one for one in (examine(text, gender) for text in texts) if not isinstance(one, str)]
    return TextDomain("made", tuple(found), gender, read_replacements())


class Bag(nn.Module):
    """Scores are linear in the mean of the embeddings: first-order effects are exact."""

    def __init__(self, width=4, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(len(VOCABULARY) + 1, width)
        self.out = nn.Linear(width, 2)

    def forward(self, ids):
        return self.out(self.words(ids).sum(1))


class Convolution(nn.Module):
    """Two layers with tokens, as convolutions have them."""

    def __init__(self, width=4, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(len(VOCABULARY) + 1, width)
        self.conv = nn.Conv1d(width, 6, 3, padding=1)
        self.act = nn.ReLU()
        self.out = nn.Linear(6, 2)

    def forward(self, ids):
        return self.out(self.act(self.conv(self.words(ids).transpose(1, 2))).amax(2))
