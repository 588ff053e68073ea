"""The audit of a model of texts: swap identities, count different decisions, look inside, search, report."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from neuronfair import __version__
from neuronfair.atomic import replace_file, write_text
from neuronfair.audits.folder import PAGE, REPORT_FILE, hold_folder
from neuronfair.audits.wording.summary import NOT_MEASURED
from neuronfair.domain.draws import Draws, draw_order
from neuronfair.domain.twins import GROUP, SAMPLE, digest_values
from neuronfair.errors import DataError, NeuronFairError, did_you_mean, require
from neuronfair.formatting import exact_number, percent, pluralise, printable
from neuronfair.model.blackbox import Model, score_in_batches
from neuronfair.model.decision import Decision
from neuronfair.model.network import Network
from neuronfair.model.profile import BiasProfile, interpret
from neuronfair.progress import Progress, show_nothing
from neuronfair.render.export import disarm, save_as
from neuronfair.searches.method import SearchContext
from neuronfair.searches.methods import check_method
from neuronfair.store.ledger import versions
from neuronfair.text import domain as domains
from neuronfair.text import measure
from neuronfair.text import report as reports
from neuronfair.text.domain import MAX_TEXT_LENGTH, TextColumn, TextDomain, WordClasses, build_text_domain
from neuronfair.text.lexicon import Lexicon, Reason, read_lexicon
from neuronfair.text.models import NO_ANSWER, CallsSpent, Service, TextModel, open_text_model
from neuronfair.text.network import TextNetwork
from neuronfair.text.report import TextReport
from neuronfair.text.search import TextSearch, rows_model, search_texts

WHITE_BOX_METHODS, BLACK_BOX_METHODS = ("frontier", "neuronfair-plus"), ("aequitas",)
FINDINGS = "findings.csv"
SHOWN_PAIRS = 10  # of the data set, and of each search
EMBEDDING = "embedding"  # as replacements: near words of the model's own
RANDOM_ABLATIONS = 5  # random sets of neurons that are silenced for comparison


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

    QUICK: ClassVar[Mapping[str, int]] = {"starts": 30, "steps": 10, "max_texts": 500}


class TextStages:
    """The stages of an audit of texts and their results so far: Ctrl-C, or the last call, may end them anywhere."""

    def __init__(
        self, model: TextModel, domain: TextDomain, settings: TextSettings, favourable: int, show: Progress
    ) -> None:
        self.model, self.domain, self.settings = model, domain, settings
        self.favourable, self._show = favourable, show
        self._batches: list[measure.TextPairs] = []
        self.baseline: reports.NeutralWordsReport | None = None
        self.topics: list[reports.TopicReport] = []
        self.interpretation: reports.TextInterpretation | None = None
        self.searches: list[TextSearch] = []
        self.padding_changes = 0  # texts whose decision depends on padding
        self.equal_twins = 0  # texts whose tokens are those of a twin
        self.interrupted = False  # by Ctrl-C
        self.calls_spent = False  # before the last stage

    def run(self, texts: Sequence[str]) -> None:
        """Compare the texts with their twins, measure the baseline, look inside and search."""
        try:
            for batch in measure.compare_with_twins(
                self.model, self.domain, favourable=self.favourable, seed=self.settings.seed, progress=self._show
            ):
                self._batches.append(batch)
            self._measure_stages(self.pairs, texts)
        except KeyboardInterrupt:
            self.interrupted = True
        except CallsSpent:
            self.calls_spent = True

    @cached_property
    def pairs(self) -> measure.TextPairs:
        """The texts and twins that were compared."""
        return measure.join_pairs(self._batches)

    def _measure_stages(self, pairs: measure.TextPairs, texts: Sequence[str]) -> None:
        """Measure the baseline, look inside and search."""
        self.topics = measure.find_topics(self.domain, pairs)
        self.baseline, self.calls_spent = measure.measure_baseline(
            self.model,
            self.domain,
            pairs,
            texts,
            favourable=self.favourable,
            seed=self.settings.seed,
            progress=self._show,
        )
        if self.calls_spent:
            return
        model = rows_model(self.model, self.domain)
        profile = None
        if isinstance(model, TextNetwork):
            self.equal_twins = model.encoding.count_equal_twins()
        if isinstance(model, TextNetwork) and model.layers:
            self._show("Reading the neurons", 0, None)
            padded_decisions = self._decisions(model, self.domain.rows).numpy()
            unpadded = self.model.answer(self.domain.write(self.domain.rows)).decisions
            self.padding_changes = int((padded_decisions != unpadded).sum())
            profile = interpret(model, self.domain, self.domain.rows)
            self.interpretation = self._interpret(model, profile)
        if self.settings.steps:
            self._search_from_texts(model, profile, pairs)

    def _interpret(self, network: Network, profile: BiasProfile) -> reports.TextInterpretation:
        """Return how the layers react, and how often decisions flip when neurons are silenced."""
        worst, size = profile.worst, len(profile.worst.act_diff)
        generator = torch.Generator().manual_seed(self.settings.seed)
        random = [torch.randperm(size, generator=generator)[: len(worst.biased)] for _ in range(RANDOM_ABLATIONS)]
        rates = [self._flip_rate(network, worst.name, chosen) for chosen in random]
        layers = tuple(
            reports.TextLayerReport(_plain_layer_name(layer.name), len(layer.act_diff), layer.auc, layer.biased)
            for layer in profile.layers
        )
        flip_rate = self._flip_rate(network, worst.name, torch.empty(0, dtype=torch.int64))
        without = self._flip_rate(network, worst.name, torch.tensor(worst.biased))
        layer = _plain_layer_name(worst.name)
        return reports.TextInterpretation(layer, layers, flip_rate, without, sum(rates) / len(rates))

    def _flip_rate(self, network: Network, layer: str, silenced: Tensor) -> float:
        rows = self.domain.rows
        twins, valid = self.domain.twins(rows)
        with network.ablated(layer, silenced):
            decisions = self._decisions(network, rows)
            others = self._decisions(network, twins.flatten(0, 1)).view(valid.shape)
        return float(((decisions[:, None] != others) & valid).any(1).double().mean())

    def _decisions(self, network: Network, rows: Tensor) -> Tensor:
        return self.model.decision.decide(score_in_batches(network, rows))

    def _search_from_texts(self, model: Model, profile: BiasProfile | None, pairs: measure.TextPairs) -> None:
        """Search from texts with a place to replace, those that do not flip first."""
        can_move = (self.domain.choices > 1).any(1)
        flips = torch.zeros(len(self.domain.texts), dtype=torch.bool)
        flips[torch.from_numpy(pairs.text[pairs.flips])] = True
        order = sorted(can_move.nonzero()[:, 0].tolist(), key=lambda number: (bool(flips[number]), number))
        seeds = self.domain.rows[order[: self.settings.starts]]
        if not len(seeds):
            return
        methods = self.settings.methods or (WHITE_BOX_METHODS if profile is not None else BLACK_BOX_METHODS)
        for method in methods:
            check_method(method, model, self.model.decision)
        for method in methods:
            draws = Draws(self.settings.seed, "global")
            context = SearchContext(model, self.domain, self.model.decision, draws, profile=profile)
            search = search_texts(context, method, seeds, steps=self.settings.steps, progress=self._show)
            self.searches.append(self._confirm_findings(search))
            if search.interrupted:
                raise KeyboardInterrupt

    def _confirm_findings(self, search: TextSearch) -> TextSearch:
        """Return a search with those findings whose two texts, asked about alone, get different decisions.

        A network may decide otherwise for padded texts, and a service may give no answer.
        """
        if not len(search.findings):
            return search
        sides = (search.findings.rows, search.findings.twins(self.domain))
        decisions, others = (self.model.answer(self.domain.write(rows)).decisions for rows in sides)
        differ = (decisions != others) & (decisions != NO_ANSWER) & (others != NO_ANSWER)
        findings = search.findings[torch.from_numpy(differ)]
        return replace(search, findings=findings, count=replace(search.count, findings=len(findings)))

    def measure_accuracy(self, text_column: TextColumn) -> float | None:
        """Return the share of texts with the decision of their label, of those with an answer."""
        if text_column.labels is None:
            return None
        labels = dict(zip(text_column.texts, text_column.labels, strict=True))
        order = draw_order(len(self.domain.texts), self.settings.seed)[: self.pairs.measured].tolist()
        texts = [self.domain.texts[number].text for number in order]
        return self.model.accuracy(texts, [labels[text] for text in texts])


def _plain_layer_name(layer: str) -> str:
    return layer.removeprefix("module.") or layer


class TextOptions(TypedDict, total=False):
    """Keyword options of `audit_texts`."""

    preprocess: Callable[[list[str]], Any] | str | None  # the tokenizer of a torch module: from texts to token ids
    favourable: str | None  # favourable outcome; default: the last class
    fail_if: Sequence[str]  # thresholds on flip_rate and findings
    decision: Decision | None  # what counts as a different decision; default: chosen from the outputs
    trust_pickle: bool  # open pickle files, which can run any code
    name: str  # of the table
    replacements: str | Path | None  # CSV file of words to replace, or "embedding"; default: the bundled English ones


@dataclass(frozen=True, eq=False)
class TextAudit:
    """The result of an audit of texts; `report` holds all figures."""

    report: TextReport
    domain: TextDomain
    searches: tuple[TextSearch, ...] = ()
    folder: Path | None = None
    failure: NeuronFairError | None = None  # why the thresholds could not be evaluated

    @property
    def verdict(self) -> str:
        """The headline."""
        return reports.headline(self.report)

    @property
    def interrupted(self) -> bool:
        """Whether the audit ended early."""
        return self.report.interrupted

    def to_html(self) -> str:
        """Return the report as one HTML page."""
        return reports.text_page(self.report)

    def to_frame(self) -> Any:
        """Return the figures of every pair of groups, a line each, as a DataFrame of pandas."""
        lines = [
            {"group": p.group, "other": p.other, "pairs": p.flips.of, "flips": p.flips.count, "rate": p.flips.value}
            | {"low": p.flips.low, "high": p.flips.high, "lost": p.lost, "gained": p.gained, "shift": p.shift}
            for p in self.report.pairs
        ]
        return require("pandas", "sklearn", "to_frame()").DataFrame(lines)

    def to_junit(self) -> str:
        """Return the thresholds as JUnit XML."""
        return self.report.to_junit(self.failure)

    def save(self, path: str | Path) -> Path:
        """Write the report (.html) or all figures (.json) and return where."""
        return save_as(path, {".html": self.to_html, ".json": self.report.to_json})

    def __repr__(self) -> str:
        return "\n".join(reports.lines(self.report)[:10])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def audit_texts(
    model: Any,
    texts: Sequence[Any],
    sensitive: str | Path | Lexicon,
    *,
    labels: Sequence[Any] | None = None,
    settings: TextSettings | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    column: str = "text",
    **options: Unpack[TextOptions],
) -> TextAudit:
    """Audit a model of texts: swap the identity terms of an attribute and count different decisions.

    `sensitive` is the name of a bundled lexicon (gender, religion, ethnicity, …), a CSV file, or a `Lexicon`. The model
    is a torch module with its tokenizer as `preprocess`, a fitted pipeline that takes texts, a function from a list of
    texts to scores or names of classes, or the name of one. `labels` name the classes and give the accuracy. With a
    folder, answers of a function are kept there, so that after a kill no text is scored twice.

    >>> texts = ["She is a kind neighbour.", "He is a kind neighbour.", "The weather is kind to all."] * 9
    >>> audit_texts(lambda texts: [float(text.startswith("He")) for text in texts], texts, "gender").verdict
    'Decisions depend on gender for 100% of texts that mention it (2 of 2); 100% of these flips disadvantage female.'
    """
    started, settings, show = time.perf_counter(), settings or TextSettings(), progress or show_nothing
    lexicon = sensitive if isinstance(sensitive, Lexicon) else read_lexicon(sensitive)
    thresholds = [
        reports.read_threshold(text, lexicon.name, searches=settings.steps > 0) for text in options.get("fail_if", ())
    ]
    show("Looking for identity terms", 0, None)
    text_column = TextColumn.of(texts, labels)
    words_from, name = options.get("replacements"), options.get("name", "texts")
    replacements = domains.read_replacements(None if words_from == EMBEDDING else words_from)
    domain, count_by_reason = build_text_domain(
        text_column, lexicon, replacements, name, settings.max_texts, settings.seed
    )
    run_folder = None if folder is None else Path(folder)
    with hold_folder(run_folder, _write_manifest(settings, lexicon, texts)):
        text_model = open_text_model(
            model,
            [text.text for text in domain.texts[: settings.max_calls]],
            classes=text_column.classes,
            tokenizer=options.get("preprocess"),
            decision=options.get("decision"),
            trust_pickle=options.get("trust_pickle", False),
            service=Service(list, settings.max_calls, run_folder, settings.batch),
        )
        if words_from == EMBEDDING:
            domain = _add_near_words(domain, text_model, text_column.texts)
        stages = TextStages(text_model, domain, settings, _find_favourable(text_model, options.get("favourable")), show)
        stages.run(text_column.texts)
        if stages.calls_spent and not stages.pairs.measured:
            raise DataError(f"--max-calls {settings.max_calls}: too few to ask about a text and its twins")
        report = assemble(text_column, count_by_reason, stages, column)
        report, failure = reports.evaluate(report, thresholds, is_constant=stages.pairs.is_constant)
        report = replace(report, seconds=time.perf_counter() - started)
        audit = TextAudit(report, domain, tuple(stages.searches), run_folder, failure)
        if run_folder is not None:
            write_results(run_folder, audit)
    return audit


@dataclass(frozen=True, eq=False)
class TextRepair:
    """A model before and after counterfactual augmentation, both audited on the same held-out texts."""

    model: Any  # fitted to the training texts and their twins
    before: TextAudit  # of the model that was fitted to the training texts only
    after: TextAudit
    accuracy_before: float | None  # on all held-out texts
    accuracy_after: float | None
    added: int  # twins that were added to the training texts

    def __repr__(self) -> str:
        rates = (audit.report.flip_rate for audit in (self.before, self.after))
        shares = [None if rate is None else rate.value for rate in rates] + [self.accuracy_before, self.accuracy_after]
        cells = [NOT_MEASURED if share is None else percent(share) for share in shares]
        return (
            f"{pluralise(self.added, 'twin')} added to the training texts. On held-out texts: flip rate {cells[0]} → "
            f"{cells[1]}, accuracy {cells[2]} → {cells[3]}"
        )


def repair_texts(
    fit: Callable[[list[str], list[str]], Any],
    texts: Sequence[Any],
    labels: Sequence[Any],
    sensitive: str | Path | Lexicon,
    *,
    held_out: float = 0.3,
    settings: TextSettings | None = None,
    **options: Unpack[TextOptions],
) -> TextRepair:
    """Add the twins of the training texts to them, fit the model again, and audit it before and after.

    `fit` takes texts and labels and returns a new model. Each twin gets the label of its original. A share `held_out`
    of the texts is kept apart, together with their twins, and both models are audited on it.

    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> def fit(texts, labels):
    ...     return make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, labels)
    >>> texts = [f"{who} sold {what} {day}" for who, what in (("she", "tea"), ("he", "ink")) for day in range(30)]
    >>> labels = [("sad", "glad")[text.startswith("he")] for text in texts]
    >>> repair_texts(fit, texts, labels, "gender")
    42 twins added to the training texts. On held-out texts: flip rate 61.1% → 0%, accuracy 100% → 100%
    """
    seed = (settings or TextSettings()).seed
    lexicon = sensitive if isinstance(sensitive, Lexicon) else read_lexicon(sensitive)
    text_column = TextColumn.of(texts, labels)
    train, test = domains.split_labelled(
        dict(zip(text_column.texts, text_column.labels or [], strict=True)), lexicon, held_out, seed
    )
    audits, accuracies, augmented = [], [], domains.with_twins(train, lexicon)
    for part in (train, augmented):
        model, (texts, labels) = fit(list(part), list(part.values())), (list(test), list(test.values()))
        audits.append(audit_texts(model, texts, lexicon, labels=labels, settings=settings, **options))
        text_model = open_text_model(model, texts, classes=text_column.classes, tokenizer=options.get("preprocess"))
        accuracies.append(text_model.accuracy(texts, labels))
    return TextRepair(model, audits[0], audits[1], accuracies[0], accuracies[1], len(augmented) - len(train))


def _add_near_words(domain: TextDomain, model: TextModel, texts: Sequence[str]) -> TextDomain:
    """Return the domain with the near words of the model's own embedding as further replacements."""
    if model.tokens is None or domain.replacements is None:
        raise DataError(
            f"replacements '{EMBEDDING}' are the near words of a model's own embedding, but {model.source} is a black "
            "box. Give a torch module with its tokenizer, a Hugging Face folder, or a CSV file of words"
        )
    near_words = model.tokens.find_near_words(WordClasses(texts, domain.lexicon))
    return replace(domain, replacements=replace(domain.replacements, near_words=near_words))


def check_texts(
    model: Any,
    texts: Sequence[Any],
    sensitive: str | Path | Lexicon,
    *,
    max_rate: float = 0.01,
    labels: Sequence[Any] | None = None,
    settings: TextSettings | None = None,
    **options: Unpack[TextOptions],
) -> TextAudit:
    """Fail if the decision flips for more than `max_rate` of the texts that mention an identity; no search is made.

    This is `fairness.check_texts` of the pytest plugin. Arguments are those of `audit_texts`; the upper confidence
    bound of the flip rate must not exceed `max_rate`. A model that gives all texts the same decision is an error.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test
    if not 0 < max_rate < 1:
        raise NeuronFairError(f"max_rate must lie between 0 and 1, got {max_rate}: no sample can show a rate of 0")
    options["fail_if"] = [f"flip_rate > {exact_number(max_rate)}", *options.get("fail_if", ())]
    audit = audit_texts(model, texts, sensitive, labels=labels, settings=settings or TextSettings(steps=0), **options)
    gate, pairs = audit.report.gate, audit.report.worst
    if gate is None:
        raise audit.failure or NeuronFairError("the audit was interrupted")
    if not gate.passed:
        worst = [f"{pairs[0].decision}: {pairs[0].text}", f"{pairs[0].twin_decision}: {pairs[0].twin}"] if pairs else []
        problems = [check.explained for check in gate.checks if check.fired]
        raise AssertionError("\n".join(map(printable, [*problems, *worst])))
    return audit


def _find_favourable(model: TextModel, favourable: str | None) -> int:
    """Return the number of the favourable class: the one that is named, or the last one."""
    if favourable is None:
        return len(model.classes) - 1
    if favourable not in model.classes:
        raise DataError(f"--favourable {favourable}: no class of the model. {did_you_mean(favourable, model.classes)}")
    return model.classes.index(favourable)


# The folder


def _write_manifest(settings: TextSettings, lexicon: Lexicon, texts: Sequence[Any]) -> dict[str, object]:
    return {
        "audit": "texts",
        **versions(),
        "rows": digest_values(*map(str, texts)),
        "sensitive": [lexicon.name, digest_values(lexicon.concepts, lexicon.groups)],
        "settings": {"seed": settings.seed},
    }


def write_results(folder: Path, audit: TextAudit) -> None:
    """Write figures, page and all findings of an audit."""
    write_text(folder / REPORT_FILE, audit.report.to_json())
    write_text(folder / PAGE, audit.to_html())
    with replace_file(folder / FINDINGS) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["found_by", "text", "twin", "group", "other"])
        groups = audit.domain.lexicon.groups
        for search in audit.searches:
            rows, twins = search.findings.rows, search.findings.twins(audit.domain)
            texts, others = audit.domain.write(rows), audit.domain.write(twins)
            pairs = zip(texts, others, rows[:, GROUP].tolist(), twins[:, GROUP].tolist(), strict=True)
            for text, twin, group, other in pairs:
                writer.writerow([search.method, disarm(text), disarm(twin), groups[group], groups[other]])


# The report


def assemble(
    text_column: TextColumn, count_by_reason: dict[Reason, int], stages: TextStages, column: str
) -> TextReport:
    """Return the report of an audit, without its thresholds and its time."""
    text_model, domain, pairs = stages.model, stages.domain, stages.pairs
    graded = text_model.graded and len(pairs.text) > 0
    changes = measure.bootstrap_mean(measure.score_changes(pairs), stages.settings.seed) if graded else None
    model = reports.TextModelReport(
        text_model.source,
        text_model.kind,
        text_model.classes,
        text_model.white_box,
        text_model.fingerprint,
        stages.measure_accuracy(text_column),
        None if text_model.white_box else text_model.service.spent,
        pairs.unanswered,
    )
    counts = len(text_column.texts), len(domain.texts), pairs.measured
    texts = reports.TextsReport(domain.name, column, *counts, count_by_reason, text_column.empty)
    return TextReport(
        neuronfair=__version__,
        attribute=domain.lexicon.name,
        groups=domain.lexicon.groups,
        favourable=text_model.classes[stages.favourable],
        model=model,
        texts=texts,
        flip_rate=pairs.flip_rate,
        score_change=changes,
        largest_change=float(np.abs(pairs.twin_score - pairs.score).max()) if graded else None,
        pairs=tuple(measure.count_by_group_pair(pairs, domain.lexicon.groups, stages.favourable)),
        baseline=stages.baseline,
        worst=tuple(_choose_worst(stages, pairs)),
        searches=tuple(map(_report_search, stages.searches)),
        interpretation=stages.interpretation,
        topics=tuple(stages.topics),
        notes=tuple(_write_notes(text_column, stages, pairs)),
        seed=stages.settings.seed,
        interrupted=stages.interrupted or stages.calls_spent,
        calls_spent=stages.calls_spent,
    )


def _report_search(search: TextSearch) -> reports.TextSearchReport:
    count, controls = search.count, (search.random, search.random_direction)
    rates = (None if control is None else control.success_rate for control in controls)
    return reports.TextSearchReport(search.method, count.findings, count.tried, count.success_rate, *rates)


def _choose_worst(stages: TextStages, pairs: measure.TextPairs) -> list[reports.TextFinding]:
    """Return the pairs of the data set with the widest change of score, then those of the searches."""
    flips = np.flatnonzero(pairs.flips)
    order = flips[np.argsort(-np.abs(pairs.twin_score - pairs.score)[flips], kind="stable")]
    first = list({int(pairs.text[pair_index]): pair_index for pair_index in reversed(order)}.values())[::-1]
    chosen = sorted(first, key=order.tolist().index)[:SHOWN_PAIRS]
    rows = stages.domain.rows[pairs.text[chosen]]
    twins = rows.clone()
    twins[:, GROUP] = torch.from_numpy(pairs.other[chosen])
    findings = _describe_findings(stages, rows, twins, "data set")
    for search in stages.searches:  # of each, what is no text of the data set, one for each text that it started from
        rows, twins = search.findings.rows, search.findings.twins(stages.domain)
        changed = (rows[:, GROUP + 1 :] > 0).any(1).nonzero()[:, 0].tolist()
        first = list({int(rows[i, SAMPLE]): i for i in reversed(changed)}.values())[::-1][:SHOWN_PAIRS]
        findings += _describe_findings(stages, rows[first], twins[first], search.method)
    return findings


def _describe_findings(stages: TextStages, rows: Tensor, twins: Tensor, found_by: str) -> list[reports.TextFinding]:
    """Return rows and twins with different decisions as pairs of texts."""
    if not len(rows):
        return []
    domain, model = stages.domain, stages.model
    groups, classes, numbers = domain.lexicon.groups, model.classes, rows[:, SAMPLE].tolist()
    columns = []
    for side in (rows, twins):
        texts = domain.write(side)
        answers = model.answer(texts)
        scores = model.score_of(answers, stages.favourable).tolist()
        columns.append(list(zip(texts, side[:, GROUP].tolist(), answers.decisions.tolist(), scores, strict=True)))
    return [
        reports.TextFinding(
            text,
            twin,
            groups[group],
            groups[other],
            classes[decision],
            classes[twin_decision],
            score,
            twin_score,
            found_by,
            None if found_by == "data set" else domain.texts[number].text,
        )
        for number, (text, group, decision, score), (twin, other, twin_decision, twin_score) in zip(
            numbers, *columns, strict=True
        )
        if decision != twin_decision
    ]


def _write_notes(text_column: TextColumn, stages: TextStages, pairs: measure.TextPairs) -> list[str]:
    """Return what may mislead."""
    notes = []
    if pairs.is_constant:
        notes.append("The model gave the same decision for every text, so it cannot be assessed.")
    if stages.calls_spent:
        notes.append(
            f"All {stages.settings.max_calls:,} calls were spent after {pairs.measured:,} of "
            f"{len(stages.domain.texts):,} texts, a random sample. Raise --max-calls to measure more."
        )
    if pairs.unanswered:
        notes.append(f"{pluralise(pairs.unanswered, 'pair')} of texts without an answer of the model left out.")
    if stages.padding_changes:
        notes.append(
            f"The decision for {stages.padding_changes:,} texts changes if they are padded: the model reads its "
            "padding. Flip rates are those of unpadded texts; neurons and searches are measured on padded ones."
        )
    if stages.equal_twins:
        notes.append(
            f"{pluralise(stages.equal_twins, 'text')} cannot flip: the tokenizer reads a text and its twin as the same "
            "tokens. It does not know the identity terms, or cuts them off."
        )
    if stages.model.service.unchecked:
        notes.append("Kept answers were not compared with the model again, since no call was left.")
    if text_column.shortened:
        notes.append(f"{pluralise(text_column.shortened, 'text')} cut off after {MAX_TEXT_LENGTH:,} characters.")
    if len(pairs.by_text[0]) < 30:
        notes.append("Fewer than 30 texts were compared: the confidence intervals are wide.")
    return notes
