"""The stages of an audit of texts after the flip rate: baseline, neurons, searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from neuronfair.domain.draws import Draws
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.blackbox import Model, batched_scores
from neuronfair.model.network import Network
from neuronfair.progress import Progress
from neuronfair.searches.method import World
from neuronfair.searches.methods import check_method
from neuronfair.text import measure
from neuronfair.text import report as reports
from neuronfair.text.column import TextColumn
from neuronfair.text.domain import TextDomain
from neuronfair.text.models import NO_ANSWER, TextModel
from neuronfair.text.search import TextSearch, rows_model, search_texts
from neuronfair.text.service import CallsSpent

WHITE, BLACK = ("frontier", "neuronfair-plus"), ("aequitas",)
ABLATIONS = 5  # random sets of neurons that are silenced for comparison


@dataclass(frozen=True)
class TextSettings:
    """How thorough an audit of texts is; the defaults suit two minutes on two cores."""

    methods: tuple[str, ...] | None = None  # None: two for a network, one for a black box
    starts: int = 100  # texts that each search starts from
    steps: int = 30  # of each search; 0: no search
    max_texts: int = 5_000  # with an identity that are measured; a random sample of more
    max_calls: int | None = None  # texts that are sent to a function
    batch: int = 32  # texts in a call of a function
    seed: int = 0


class Stages:
    """The stages after the flip rate, and their results so far: Ctrl-C may end them anywhere."""

    def __init__(
        self, opened: TextModel, domain: TextDomain, settings: TextSettings, favourable: int, show: Progress
    ) -> None:
        self.opened, self.domain, self.settings = opened, domain, settings
        self.favourable, self._show = favourable, show
        self.baseline: measure.NeutralBaseline | None = None
        self.topics: list[reports.TopicReport] = []
        self.interpretation: reports.TextInterpretation | None = None
        self.searches: list[TextSearch] = []
        self.padding_changes = 0  # texts whose decision depends on padding
        self.interrupted = False

    def run(self, pairs: measure.TextPairs, texts: Sequence[str]) -> None:
        """Measure the baseline, look inside and search."""
        self.topics = measure.topics(self.domain, pairs)
        self.baseline = measure.measure_baseline(
            self.opened, self.domain, pairs, texts, favourable=self.favourable, seed=self.settings.seed,
            progress=self._show,
        )  # fmt: skip
        model = rows_model(self.opened, self.domain)
        profile = None
        if isinstance(model, Network) and model.layers:
            self._show("Reading the neurons", 0, None)
            padded = self._decisions(model, self.domain.rows).numpy()
            alone = self.opened.answer(self.domain.write(self.domain.rows)).decisions
            self.padding_changes = int((padded != alone).sum())
            profile = interpret(model, self.domain, self.domain.rows)
            self.interpretation = self._interpretation(model, profile)
        if self.settings.steps:
            self._search(model, profile, pairs)

    def _interpretation(self, network: Network, profile: BiasProfile) -> reports.TextInterpretation:
        """Return how the layers react, and how often decisions flip when neurons are silenced."""
        worst, size = profile.worst, len(profile.worst.act_diff)
        generator = torch.Generator().manual_seed(self.settings.seed)
        random = [torch.randperm(size, generator=generator)[: len(worst.biased)] for _ in range(ABLATIONS)]
        rates = [self._flip_rate(network, worst.name, chosen) for chosen in random]
        layers = tuple(
            reports.TextLayerReport(_named(layer.name), len(layer.act_diff), layer.auc, layer.biased)
            for layer in profile.layers
        )
        return reports.TextInterpretation(
            worst=_named(worst.name),
            layers=layers,
            flip_rate=self._flip_rate(network, worst.name, torch.empty(0, dtype=torch.int64)),
            without_biased=self._flip_rate(network, worst.name, torch.tensor(worst.biased)),
            without_random=sum(rates) / len(rates),
        )

    def _flip_rate(self, network: Network, layer: str, silenced: Tensor) -> float:
        rows = self.domain.rows
        twins, valid = self.domain.twins(rows)
        with network.ablated(layer, silenced):
            own = self._decisions(network, rows)
            others = self._decisions(network, twins.flatten(0, 1)).view(valid.shape)
        return float(((own[:, None] != others) & valid).any(1).double().mean())

    def _decisions(self, network: Network, rows: Tensor) -> Tensor:
        return self.opened.decision.chosen(batched_scores(network, rows))

    def _search(self, model: Model, profile: BiasProfile | None, pairs: measure.TextPairs) -> None:
        """Search from texts with a place to replace, those that do not flip first."""
        can_move = (self.domain.choices > 1).any(1)
        flips = torch.zeros(len(self.domain.texts), dtype=torch.bool)
        flips[torch.from_numpy(pairs.text[pairs.flips])] = True
        order = sorted(can_move.nonzero()[:, 0].tolist(), key=lambda number: (bool(flips[number]), number))
        seeds = self.domain.rows[order[: self.settings.starts]]
        if not len(seeds):
            return
        methods = self.settings.methods or (WHITE if profile is not None else BLACK)
        for method in methods:
            check_method(method, model, self.opened.decision)
        for method in methods:
            world = World(
                model, self.domain, self.opened.decision, Draws(self.settings.seed, "global"), profile=profile
            )
            found = search_texts(world, method, seeds, steps=self.settings.steps, progress=self._show)
            self.searches.append(self._confirmed(found))
            if found.interrupted:
                raise KeyboardInterrupt

    def _confirmed(self, search: TextSearch) -> TextSearch:
        """Return a search with those findings whose two texts, asked about alone, get different decisions.

        A network may decide otherwise for padded texts, and a service may give no answer.
        """
        if not len(search.findings):
            return search
        both = (search.findings.rows, search.findings.twins(self.domain))
        own, other = (self.opened.answer(self.domain.write(rows)).decisions for rows in both)
        differ = (own != other) & (own != NO_ANSWER) & (other != NO_ANSWER)
        findings = search.findings[torch.from_numpy(differ)]
        return replace(search, findings=findings, own=replace(search.own, findings=len(findings)))

    def accuracy(self, read: TextColumn) -> float | None:
        """Return the share of texts with the decision of their label, of those that were measured."""
        if read.labels is None:
            return None
        label = dict(zip(read.texts, read.labels, strict=True))
        texts = [text.text for text in self.domain.texts]
        try:
            decisions = self.opened.answer(texts).decisions
        except CallsSpent:
            return None
        names = [self.opened.classes[d] if d != NO_ANSWER else None for d in decisions]
        return float(np.mean([name == label[text] for name, text in zip(names, texts, strict=True)]))


def _named(layer: str) -> str:
    return layer.removeprefix("module.") or layer
