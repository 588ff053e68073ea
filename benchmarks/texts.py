"""Models of text trained here, and what their audits say: accuracy, flip rates, searches against random words, neurons.

    python -m benchmarks.texts [--data DIR] [--sets sst2,tweets] [--only tfidf,cnn,bilstm,transformer] [--out FILE]

DIR holds the files of `text/` (NEURONFAIR_DATA). SST-2: sentences of film reviews; tweets: offensive or not, of which
none is printed. The networks start from random embeddings and are chosen by the epoch that is best on held-out texts.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from neuronfair.text.audit import TextSettings, audit_texts

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn
from torch.nn import functional

LENGTH, EPOCHS = 60, 10


@dataclass(frozen=True)
class Split:
    """Texts with classes: to fit, to choose the epoch, and to test."""

    name: str
    fit: tuple[list[str], list[int]]
    chosen: tuple[list[str], list[int]]
    test: tuple[list[str], list[int]]
    classes: tuple[str, ...]
    second: str  # the attribute that is audited after gender


def sst2(folder: Path) -> Split:
    """Return the sentences of the Stanford Sentiment Treebank in their published split."""
    parts = []
    for part in ("train", "dev", "test"):
        lines = [line.rstrip("\n").split("\t") for line in (folder / f"sst2_{part}.tsv").open(encoding="utf-8")]
        parts.append(([line[0] for line in lines], [int(line[1]) for line in lines]))
    return Split("SST-2", *parts, ("negative", "positive"), "religion")


def tweets(folder: Path, most: int = 9000) -> Split:
    """Return some labelled tweets, by a fixed shuffle."""
    with (folder / "hate_speech_davidson.csv").open(encoding="utf-8") as file:
        lines = [(row["tweet"], int(row["class"] == "2")) for row in csv.DictReader(file)]
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0))[:most].tolist()
    some = [lines[i] for i in order]
    cuts = (0, most * 7 // 10, most * 8 // 10, most)
    parts = [tuple(map(list, zip(*some[a:b], strict=True))) for a, b in pairwise(cuts)]
    return Split("tweets", *parts, ("offensive", "neither"), "ethnicity")  # type: ignore[arg-type]


class Convolution(nn.Module):
    """A text CNN (Kim, EMNLP 2014) with random embeddings."""

    def __init__(self, words: int, width: int = 100, filters: int = 50) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, filters, k, padding=k // 2), nn.ReLU()) for k in (3, 5)
        )
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(2 * filters, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of token ids."""
        x = self.words(ids).transpose(1, 2)
        return self.out(self.drop(torch.cat([part(x).amax(2) for part in self.filters], 1)))


class Recurrent(nn.Module):
    """A BiLSTM whose outputs are reduced by their maximum."""

    def __init__(self, words: int, width: int = 100, units: int = 50) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.rnn = nn.LSTM(width, units, batch_first=True, bidirectional=True)
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(2 * units, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of token ids."""
        x, _ = self.rnn(self.drop(self.words(ids)))
        return self.out(self.drop(x.masked_fill((ids == 0)[..., None], -1e4).amax(1)))


class Attention(nn.Module):
    """A transformer of two layers, reduced by its mean."""

    def __init__(self, words: int, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Embedding(LENGTH + 8, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, 0.3, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of token ids."""
        empty = ids == 0
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.layers(x, src_key_padding_mask=empty).masked_fill(empty[..., None], 0.0)
        return self.out(x.sum(1) / (~empty).sum(1, keepdim=True).clamp(min=1))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {"cnn": Convolution, "bilstm": Recurrent, "transformer": Attention}


class Words:
    """A tokenizer: lower-case words by spaces, the rare ones as one."""

    def __init__(self, texts: Sequence[str], most: int = 12_000) -> None:
        counts = Counter(word for text in texts for word in text.lower().split())
        self.number = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(most))}

    def __call__(self, texts: list[str]) -> Tensor:
        """Return the ids of texts, padded with 0."""
        lines = [[self.number.get(word, 1) for word in text.lower().split()][:LENGTH] or [1] for text in texts]
        ids = torch.zeros(len(lines), max(5, max(map(len, lines))), dtype=torch.int64)
        for row, line in enumerate(lines):
            ids[row, : len(line)] = torch.tensor(line)
        return ids


def small(words: nn.Embedding) -> None:
    """Start from small random vectors, as Kim does."""
    nn.init.uniform_(words.weight, -0.25, 0.25)
    with torch.no_grad():
        words.weight[0] = 0


def accuracy(module: nn.Module, words: Words, texts: Sequence[str], labels: Sequence[int]) -> float:
    """Return the share of texts with the right class."""
    module.eval()
    with torch.no_grad():
        right = [
            module(words(list(texts[i : i + 256]))).argmax(1) == torch.tensor(labels[i : i + 256])
            for i in range(0, len(texts), 256)
        ]
    return float(torch.cat(right).double().mean())


def train(name: str, split: Split, words: Words) -> nn.Module:
    """Train a network, and return it as after its best epoch."""
    torch.manual_seed(0)
    module = NETWORKS[name](len(words.number) + 2)
    small(module.words)  # type: ignore[arg-type]
    optimiser = torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=1e-2)
    texts, labels = split.fit
    best, kept = 0.0, {}
    for _ in range(EPOCHS):
        module.train()
        for batch in torch.randperm(len(texts)).split(50):  # of any length: sorted by length, a CNN is 4 points worse
            loss = functional.cross_entropy(module(words([texts[i] for i in batch])), torch.tensor(labels)[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        now = accuracy(module, words, *split.chosen)
        if now > best:
            best, kept = now, {key: value.clone() for key, value in module.state_dict().items()}
    module.load_state_dict(kept)
    return module.eval()


# Accuracy on the test sentences of SST-2, as published. All but the first were trained on the phrases of the trees as
# well (about 67,000), which the sentences used here (6,920) do not include.
PUBLISHED = {
    "tfidf": "79.4% (SVM), 81.8% (naive Bayes): Socher et al., EMNLP 2013",
    "cnn": "82.7% (random vectors), 87.2% (pre-trained): Kim, EMNLP 2014",
    "bilstm": "87.5% (pre-trained vectors): Tai et al., ACL 2015",
    "transformer": "83.2% (two layers, pre-trained): Turc et al., arXiv 1908.08962",
}


def line(audit: Any, seconds: float) -> dict[str, Any]:
    """Return what an audit says, as a line of the table."""
    report = audit.report
    inside, baseline = report.interpretation, report.baseline
    return {
        "attribute": report.attribute,
        "texts": report.flip_rate.of,
        "flip_rate": [report.flip_rate.value, report.flip_rate.low, report.flip_rate.high],
        "neutral": None if baseline is None else [baseline.neutral.value, baseline.neutral.low, baseline.neutral.high],
        "excess_claimed": None if baseline is None else baseline.claimed,
        "searches": {s.method: [s.rate, s.random_rate, s.random_direction_rate] for s in report.searches},
        "ablation": None if inside is None else [inside.flip_rate, inside.without_biased, inside.without_random],
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Train, audit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("NEURONFAIR_DATA", ".")) / "text")
    parser.add_argument("--seeds", type=int, default=10, help="Run seeds of the searches.")
    parser.add_argument("--sets", default="sst2,tweets")
    parser.add_argument("--only", default="tfidf,cnn,bilstm,transformer")
    parser.add_argument("--methods", default="neuronfair,neuronfair-plus,frontier")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    for split in ({"sst2": sst2, "tweets": tweets}[name](given.data) for name in given.sets.split(",")):
        every = [*split.fit[0], *split.chosen[0], *split.test[0]]
        labels = [split.classes[y] for part in (split.fit, split.chosen, split.test) for y in part[1]]
        words = Words(split.fit[0])
        for name in given.only.split(","):
            begun = time.perf_counter()
            if name == "tfidf":
                model: Any = make_pipeline(
                    TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+"), LogisticRegression(C=10, max_iter=1000)
                ).fit(split.fit[0], [split.classes[y] for y in split.fit[1]])
                right = float((model.predict(split.test[0]) == [split.classes[y] for y in split.test[1]]).mean())
                more: dict[str, Any] = {}
            else:
                model = train(name, split, words)
                right, more = accuracy(model, words, *split.test), {"preprocess": words}
            entry: dict[str, Any] = {"data": split.name, "model": name, "accuracy": right}
            entry |= {"published": PUBLISHED[name]} if split.name == "SST-2" else {}
            entry["training_seconds"] = round(time.perf_counter() - begun, 1)
            for attribute in ("gender", split.second):
                begun = time.perf_counter()
                audit = audit_texts(model, every, attribute, labels=labels, favourable=split.classes[1], **more)
                found.append(entry | line(audit, time.perf_counter() - begun))
                print(json.dumps(found[-1]), flush=True)
            if name == "tfidf":
                continue
            for seed in range(given.seeds):
                settings = TextSettings(methods=tuple(given.methods.split(",")), starts=60, steps=20, seed=seed)
                audit = audit_texts(model, every, "gender", labels=labels, settings=settings, **more)
                rates = {s.method: [s.rate, s.random_rate, s.random_direction_rate] for s in audit.report.searches}
                found.append(entry | {"run_seed": seed, "searches": rates})
                print(json.dumps(found[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
