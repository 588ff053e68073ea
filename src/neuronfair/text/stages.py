"""The stages of an audit of texts after the flip rate: baseline, neurons, searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from neuronfair import __version__
from neuronfair.audits.gate.thresholds import METRICS, Threshold, read_expressions, refusal
from neuronfair.audits.report.report import Gate, GateCheck
from neuronfair.domain.draws import Draws
from neuronfair.formatting import percent
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.measure.rate import Rate
from neuronfair.model.blackbox import Model, batched_scores
from neuronfair.model.network import Network
from neuronfair.progress import Progress
from neuronfair.searches.method import World
from neuronfair.searches.methods import check_method
from neuronfair.text import measure
from neuronfair.text import report as reports
from neuronfair.text.domain import GROUP, MAX_TEXT, TEXT, TextColumn, TextDomain
from neuronfair.text.lexicon import Lexicon
from neuronfair.text.mentions import Reason
from neuronfair.text.models import NO_ANSWER, CallsSpent, TextModel
from neuronfair.text.report import TextReport
from neuronfair.text.search import TextSearch, rows_model, search_texts

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


WORST = 10
_WORDS = {">": "above", ">=": "at least", "<": "below", "<=": "at most"}


def assemble(
    read: TextColumn,
    counted: dict[Reason, int],
    work: Stages,
    pairs: measure.TextPairs,
    accuracy: float | None,
    column: str,
    *,
    spent: bool,
) -> TextReport:
    """Return the report of an audit, without its thresholds and its time."""
    opened, domain = work.opened, work.domain
    rate = pairs.rate()
    graded = opened.graded and len(pairs.text) > 0
    changes = measure.bootstrap_mean(measure.score_changes(pairs), work.settings.seed) if graded else None
    return TextReport(
        neuronfair=__version__,
        attribute=domain.lexicon.name,
        groups=domain.lexicon.groups,
        favourable=opened.classes[work.favourable],
        model=reports.TextModelReport(
            source=opened.source,
            kind=opened.kind,
            classes=opened.classes,
            white_box=opened.white_box,
            fingerprint=opened.fingerprint,
            accuracy=accuracy,
            calls=None if opened.white_box else opened.service.spent,
            unanswered=pairs.unanswered,
        ),
        texts=reports.TextsReport(
            domain.name, column, len(read.texts), len(domain.texts), pairs.asked, counted, read.empty
        ),
        flip_rate=None if rate is None else _share(rate.found, rate.sampled),
        score_change=changes,
        largest_change=float(np.abs(pairs.twin_score - pairs.score).max()) if graded else None,
        pairs=_pairs(domain.lexicon, pairs, work.favourable),
        baseline=None if work.baseline is None else _baseline(work.baseline),
        worst=tuple(_worst(work, pairs)),
        searches=tuple(_search(one) for one in work.searches),
        interpretation=work.interpretation,
        topics=tuple(work.topics),
        notes=tuple(_notes(read, work, pairs, spent=spent)),
        seed=work.settings.seed,
        interrupted=work.interrupted or spent,
    )


def _share(found: int, of: int) -> reports.Share:
    rate = Rate(found, of, "table")
    return reports.Share(found, of, rate.rate, *rate.interval)


def _pairs(lexicon: Lexicon, pairs: measure.TextPairs, favourable: int) -> tuple[reports.GroupPairReport, ...]:
    groups = lexicon.groups
    return tuple(
        reports.GroupPairReport(
            groups[one.own], groups[one.other], _share(one.flips, one.pairs), one.lost, one.gained, one.shift
        )
        for one in measure.group_pairs(pairs, len(groups), favourable)
    )


def _baseline(one: measure.NeutralBaseline) -> reports.NeutralWordsReport:
    return reports.NeutralWordsReport(
        one.texts, one.identity, one.neutral, one.excess, one.score_identity, one.score_neutral, one.is_claimed
    )


def _search(one: TextSearch) -> reports.TextSearchReport:
    return reports.TextSearchReport(
        one.method,
        one.own.findings,
        one.own.tried,
        one.own.rate,
        None if one.random is None else one.random.rate,
        None if one.random_direction is None else one.random_direction.rate,
    )


def _worst(work: Stages, pairs: measure.TextPairs) -> list[reports.TextFinding]:
    """Return the pairs of the data set with the widest change of score, then those of the searches."""
    domain, opened = work.domain, work.opened
    flips = np.flatnonzero(pairs.flips)
    order = flips[np.argsort(-np.abs(pairs.twin_score - pairs.score)[flips], kind="stable")]
    found, seen = list[reports.TextFinding](), set[int]()
    for place in order.tolist():
        if int(pairs.text[place]) in seen or len(found) == WORST:
            continue
        seen.add(int(pairs.text[place]))
        row = domain.rows[pairs.text[place] : pairs.text[place] + 1]
        twin = row.clone()
        twin[:, GROUP] = int(pairs.other[place])
        found.append(
            reports.TextFinding(
                domain.write(row)[0],
                domain.write(twin)[0],
                domain.lexicon.groups[int(pairs.own[place])],
                domain.lexicon.groups[int(pairs.other[place])],
                opened.classes[int(pairs.decision[place])],
                opened.classes[int(pairs.twin_decision[place])],
                float(pairs.score[place]),
                float(pairs.twin_score[place]),
                "data set",
            )
        )
    for search in work.searches:
        found += _found_by(work, search)[:WORST]
    return found


def _found_by(work: Stages, search: TextSearch) -> list[reports.TextFinding]:
    """Return the findings of a search that are not texts of the data set, one for each text it started from."""
    domain, opened = work.domain, work.opened
    rows, twins = search.findings.rows, search.findings.twins(domain)
    changed = (rows[:, GROUP + 1 :] > 0).any(1).nonzero()[:, 0].tolist()
    first = list({int(rows[i, TEXT]): i for i in reversed(changed)}.values())[::-1][:WORST]
    if not first:
        return []
    own, theirs = (domain.write(some[first]) for some in (rows, twins))
    answers = opened.answer(own), opened.answer(theirs)
    scores = [measure.score_of(one, work.favourable) for one in answers]
    return [
        reports.TextFinding(
            own[k],
            theirs[k],
            domain.lexicon.groups[int(rows[i, GROUP])],
            domain.lexicon.groups[int(twins[i, GROUP])],
            opened.classes[int(answers[0].decisions[k])],
            opened.classes[int(answers[1].decisions[k])],
            float(scores[0][k]),
            float(scores[1][k]),
            search.method,
            domain.texts[int(rows[i, TEXT])].text,
        )
        for k, i in enumerate(first)
        if answers[0].decisions[k] != answers[1].decisions[k]
    ]


def _notes(read: TextColumn, work: Stages, pairs: measure.TextPairs, *, spent: bool) -> list[str]:
    """Return what may mislead."""
    notes = []
    decisions = np.concatenate([pairs.decision, pairs.twin_decision])
    if len(decisions) and (decisions == decisions[0]).all():
        notes.append("The model gave the same decision for every text, so it cannot be assessed.")
    if spent:
        notes.append(
            f"All {work.settings.max_calls:,} calls were spent after {pairs.asked:,} of {len(work.domain.texts):,} "
            "texts, a random sample. Raise --max-calls to measure more."
        )
    if pairs.unanswered:
        notes.append(f"{pairs.unanswered:,} pairs of texts had no answer of the model and count as neither.")
    if work.padding_changes:
        notes.append(
            f"The decision for {work.padding_changes:,} texts changes if they are padded: the model reads its padding. "
            "Flip rates are those of unpadded texts; neurons and searches are measured on padded ones."
        )
    if read.shortened:
        notes.append(f"{read.shortened:,} texts were cut off after {MAX_TEXT:,} characters.")
    if len(pairs.by_text[0]) < 30:
        notes.append("Fewer than 30 texts were compared: the confidence intervals are wide.")
    return notes


# Thresholds


def read_threshold(text: str, attribute: str) -> Threshold:
    """Read a threshold for texts, such as flip_rate > 1%; refuse what there is not for texts."""
    limit = read_expressions([text], [attribute], [])[0]
    if limit.figure not in ("flip_rate", "findings"):
        raise refusal(text, "for texts there are flip_rate and findings")
    return limit


def check_thresholds(thresholds: Sequence[Threshold], report: TextReport) -> Gate | None:
    """Return which thresholds fail; an estimate is compared at the end of its interval that is worse for the model."""
    if not thresholds:
        return None
    checks = []
    for limit in thresholds:
        rate = report.flip_rate
        if rate is None:
            raise refusal(limit.expression, "no text was answered in both versions")
        if limit.figure == "findings":
            value, low, high = float(max([s.findings for s in report.searches], default=0)), None, None
            judged, shown = value, f"{value:,.0f}"
        else:
            value, low, high = rate.value, rate.low, rate.high
            judged, shown = high if limit.looks_up else low, f"{percent(value)} ({percent(low)} to {percent(high)})"
        fired = limit.met_by(judged)
        which: Literal["value", "lower end", "upper end"] = "value"
        if low is not None:
            which = "upper end" if limit.looks_up else "lower end"
        number = METRICS[limit.figure].shown(limit.number)
        judge = f"{'it' if which == 'value' else f'its {which}'} is {'' if fired else 'not '}"
        text = f"{limit.figure} of {report.attribute}: {shown}; {judge}{_WORDS[limit.compare]} {number}"
        checks.append(GateCheck(limit.expression, report.attribute, value, low, high, which, fired, text, limit.figure))
    return Gate(not any(c.fired for c in checks), tuple(checks))
