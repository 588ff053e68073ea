"""Pairs of texts to read: is each correct English, and is the identity the only difference?

    python -m benchmarks.text_validity [--data DIR] [--pairs 100] [--seed 0] [--out pairs.tsv]

DIR holds the files of `text/` (NEURONFAIR_DATA). Half of the lines are random twins, half texts with other words
replaced, as searches try them, each with a twin. Most come from film reviews (SST-2), the others from identity
sentences, by several attributes. The tweets are left out: what is read may be shown. A reader fills in the column `ok`.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from neuronfair.text.domain import WORDS, TextColumn, TextDomain, build_text_domain, read_replacements
from neuronfair.text.lexicon import read_lexicon

import torch

SOURCES = (
    *(("identity", attribute) for attribute in ("gender", "religion", "orientation", "ethnicity", "age", "disability")),
    *(("SST-2", attribute) for attribute in ("religion", "nationality", "ethnicity", "gender")),
)
PAIRS_PER_SOURCE = 7  # the last source fills up


def read_source(folder: Path, name: str) -> list[str]:
    """Return the texts of a source."""
    if name == "SST-2":
        lines = [(folder / f"sst2_{part}.tsv").read_text(encoding="utf-8").splitlines() for part in ("train", "test")]
        return [line.partition("\t")[0] for part in lines for line in part]
    with (folder / "identity_sentences_en.csv").open(encoding="utf-8") as file:
        return [row["phrase"] for row in csv.DictReader(file)]


def draw_pairs(domain: TextDomain, count: int, generator: torch.Generator, *, replaced: bool) -> Iterator[list[str]]:
    """Yield random texts with a random twin; `replaced`: texts of which another word is replaced."""
    draws = torch.rand(20_000, domain.draws_per_row, dtype=torch.float64, generator=generator)
    rows = domain.rows_at(draws)
    rows = rows[(rows[:, WORDS:] > 0).any(1)] if replaced else torch.cat([rows[:, :WORDS], 0 * rows[:, WORDS:]], 1)
    seen = set[int]()
    for row in rows:
        if len(seen) == count:
            return
        if int(row[0]) in seen:
            continue
        seen.add(int(row[0]))
        twins, valid = domain.twins(row[None])
        choices = valid[0].nonzero()[:, 0]
        twin = twins[0, choices[torch.randint(len(choices), (), generator=generator)]]
        yield [*domain.write(row[None]), *domain.write(twin[None]), domain.texts[int(row[0])].text]


def main() -> None:
    """Draw the pairs and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("NEURONFAIR_DATA", ".")) / "text")
    parser.add_argument("--pairs", type=int, default=100, help="Of each kind.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    texts = {name: read_source(arguments.data, name) for name in ("SST-2", "identity")}
    generator = torch.Generator().manual_seed(arguments.seed)
    lines = [["ok", "kind", "source", "attribute", "text", "twin", "original"]]
    for kind in ("twin", "replaced"):
        remaining = arguments.pairs
        for name, attribute in SOURCES:
            column, lexicon = TextColumn.of(texts[name], None), read_lexicon(attribute)
            domain, _ = build_text_domain(column, lexicon, read_replacements(), name, 5_000, arguments.seed)
            count = remaining if (name, attribute) == SOURCES[-1] else PAIRS_PER_SOURCE
            pairs = list(draw_pairs(domain, count, generator, replaced=kind == "replaced"))
            lines += [["", kind, name, attribute, *pair] for pair in pairs]
            remaining -= len(pairs)
    with arguments.out.open("w", encoding="utf-8", newline="") if arguments.out else sys.stdout as file:
        csv.writer(file, delimiter="\t").writerows(lines)


if __name__ == "__main__":
    main()
