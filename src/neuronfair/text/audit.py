"""The audit of a model of texts: swap identities in texts, count different decisions, search, look inside, report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neuronfair import __version__
from neuronfair.atomic import replacing, write_text
from neuronfair.audits.gate.thresholds import METRICS, Threshold, read_expressions, refusal
from neuronfair.audits.report.report import Gate, GateCheck
from neuronfair.errors import DataError, RunError, did_you_mean
from neuronfair.formatting import percent
from neuronfair.interpretation.profile import BiasProfile, interpret
from neuronfair.model.blackbox import Model
from neuronfair.model.network import Network
from neuronfair.progress import Progress, silent
from neuronfair.searches.methods import check_method
from neuronfair.store.manifest import versions
from neuronfair.text import measure
from neuronfair.text import report as reports
from neuronfair.text.domain import GROUP, TEXT, TextDomain
from neuronfair.text.lexicon import Lexicon, read_lexicon
from neuronfair.text.mentions import REASONS, Reason, examine
from neuronfair.text.models import NO_ANSWER, TextModel, open_text_model
from neuronfair.text.replacements import read_replacements
from neuronfair.text.report import TextReport
from neuronfair.text.search import TextSearch, rows_model, search_texts
from neuronfair.text.service import ANSWERS, CallsSpent, Service

WHITE, BLACK = ("frontier", "neuronfair-plus"), ("aequitas",)
WORST = 10
ABLATIONS = 5  # random sets of neurons that are silenced for comparison
MAX_TEXT = 100_000  # characters; longer ones are cut off
FIGURES, PAGE, FINDINGS = "audit.json", "report.html", "findings.csv"


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


@dataclass(frozen=True, eq=False)
class TextAudit:
    """The result of an audit of texts; `report` holds all figures."""

    report: TextReport
    domain: TextDomain
    searches: tuple[TextSearch, ...] = ()
    folder: Path | None = None

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
        from neuronfair.text.page import text_page

        return text_page(self.report)

    def to_frame(self) -> Any:
        """Return the figures of every pair of groups, a line each, as a DataFrame of pandas."""
        from neuronfair.errors import needs

        lines = [
            {"group": p.group, "other": p.other, "pairs": p.flips.of, "flips": p.flips.count, "rate": p.flips.value}
            | {"low": p.flips.low, "high": p.flips.high, "lost": p.lost, "gained": p.gained, "shift": p.shift}
            for p in self.report.pairs
        ]
        return needs("pandas", "sklearn", "to_frame()").DataFrame(lines)

    def save(self, path: str | Path) -> Path:
        """Write the report (.html) or all figures (.json) and return where."""
        path = Path(path)
        forms: dict[str, Callable[[], str]] = {".html": self.to_html, ".json": self.report.to_json}
        if path.suffix.lower() not in forms:
            raise DataError(f"{path}: expected a name that ends in {' or '.join(forms)}")
        write_text(path.resolve(), forms[path.suffix.lower()]())
        return path

    def __repr__(self) -> str:
        return "\n".join(reports.lines(self.report)[:10])

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(repr(self))}</pre>"


def audit_texts(
    model: Any,
    texts: Sequence[Any],
    sensitive: str | Path | Lexicon,
    *,
    labels: Sequence[Any] | None = None,
    favourable: str | None = None,
    tokenizer: Callable[[list[str]], Any] | str | None = None,
    settings: TextSettings | None = None,
    fail_if: Sequence[str] = (),
    folder: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> TextAudit:
    """Audit a model of texts: swap the identity terms of an attribute and count different decisions.

    `sensitive` is the name of a bundled lexicon (gender, religion, ethnicity, …), a CSV file, or a `Lexicon`. The model
    is a torch module with its `tokenizer`, a fitted pipeline that takes texts, a function from a list of texts to
    scores or names of classes, or the name of one. `labels` name the classes and give the accuracy. With a folder,
    answers of a function are kept there, so that after a kill no text is asked about twice.

    >>> texts = ["She is a kind neighbour.", "He is a kind neighbour.", "The weather is kind to all."] * 9
    >>> audit_texts(lambda texts: [float("he " in f" {t.lower()}") for t in texts], texts, "gender").verdict
    'Decisions depend on gender for 100% of texts that mention it (2 of 2); 100% of these flips disadvantage female.'
    """
    begun, settings, show = time.perf_counter(), settings or TextSettings(), progress or silent
    lexicon = sensitive if isinstance(sensitive, Lexicon) else read_lexicon(sensitive)
    place = None if folder is None else _claimed(Path(folder), settings, lexicon, texts)
    thresholds = [_threshold(text, lexicon.name) for text in fail_if]
    show("Looking for identity terms", 0, None)
    read = _Texts.of(texts, labels)
    domain, counted = _domain(read, lexicon, settings, str(options.pop("name", "texts")))
    service = Service(list, settings.max_calls, None if place is None else place / ANSWERS, settings.batch)
    first = [text.text for text in domain.texts]
    opened = open_text_model(model, first, classes=read.classes, tokenizer=tokenizer, service=service, **options)
    if place is not None:
        _check_same(place, opened)
    number = _favourable(opened, favourable)
    work = _Work(opened, domain, settings, number, show)
    pairs, spent = measure.measure_pairs(opened, domain, favourable=number, seed=settings.seed, progress=show)
    try:
        work.run(pairs, read.texts)
    except KeyboardInterrupt:
        work.interrupted = True
    except CallsSpent:
        spent = True
    accuracy = work.accuracy(read)
    report = _report(read, counted, work, pairs, accuracy, str(options.get("column", "text")), spent=spent)
    report = replace(report, gate=_gate(thresholds, report), seconds=time.perf_counter() - begun)
    audit = TextAudit(report, domain, tuple(work.searches), place)
    if place is not None:
        write_results(place, audit)
    return audit


@dataclass(frozen=True)
class _Texts:
    """The different texts of a column, with their labels."""

    texts: list[str]
    labels: list[str] | None
    empty: int
    shortened: int

    @staticmethod
    def of(texts: Sequence[Any], labels: Sequence[Any] | None) -> _Texts:
        """Read a column: empty cells and doubles are left out."""
        if labels is not None and len(labels) != len(texts):
            raise DataError(f"{len(texts):,} texts but {len(labels):,} labels")
        seen: dict[str, str] = {}
        empty = shortened = 0
        for number, cell in enumerate(texts):
            text = cell if isinstance(cell, str) else "" if cell is None or cell != cell else str(cell)
            if not any(map(str.isalpha, text)):
                empty += 1
                continue
            if len(text) > MAX_TEXT:
                text, shortened = text[:MAX_TEXT], shortened + 1
            label = "" if labels is None else str(labels[number])
            seen.setdefault(text, label)
        if not seen:
            raise DataError("no text has a letter: all cells of the column are empty")
        return _Texts(list(seen), None if labels is None else list(seen.values()), empty, shortened)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels, sorted."""
        return () if self.labels is None else tuple(sorted(set(self.labels)))


def _domain(read: _Texts, lexicon: Lexicon, settings: TextSettings, name: str) -> tuple[TextDomain, dict[Reason, int]]:
    """Return the texts whose identity can be swapped, and how many others there are by reason."""
    counts: Counter[Reason] = Counter()
    found = []
    for text in read.texts:
        one = examine(text, lexicon)
        if isinstance(one, str):
            counts[one] += 1
        else:
            found.append(one)
    counted = {reason: counts[reason] for reason in REASONS if counts[reason]}
    if not found:
        why = ", ".join(f"{count:,} {reports.REASON_TEXT[reason]}" for reason, count in counted.items())
        raise DataError(
            f"no text mentions {lexicon.name} so that it can be swapped ({why}). Try another attribute, or a lexicon "
            "of your own: a CSV file with concept,use,GROUP,…"
        )
    if len(found) > settings.max_texts:
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(settings.seed))
        found = [found[i] for i in sorted(order[: settings.max_texts].tolist())]
    return TextDomain(name, tuple(found), lexicon, read_replacements()), counted


class _Work:
    """The stages after the flip rate, and their results so far: Ctrl-C may end them anywhere."""

    def __init__(
        self, opened: TextModel, domain: TextDomain, settings: TextSettings, favourable: int, show: Progress
    ) -> None:
        self.opened, self.domain, self.settings, self.favourable, self._show = (
            opened,
            domain,
            settings,
            favourable,
            show,
        )
        self.baseline: measure.Baseline | None = None
        self.topics: list[measure.Topic] = []
        self.interpretation: reports.TextInterpretation | None = None
        self.searches: list[TextSearch] = []
        self.unanswered_findings = 0
        self.interrupted = False

    def run(self, pairs: measure.Pairs, texts: Sequence[str]) -> None:
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
        parts = torch.split(rows, network.encoding.rows_per_pass)
        return self.opened.decision.chosen(torch.cat([network.scores(part) for part in parts]))

    def _search(self, model: Model, profile: BiasProfile | None, pairs: measure.Pairs) -> None:
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
            found = search_texts(
                model, self.domain, method, seeds, steps=self.settings.steps, decision=self.opened.decision,
                seed=self.settings.seed, profile=profile, progress=self._show,
            )  # fmt: skip
            self.searches.append(self._answered(found))
            if found.interrupted:
                raise KeyboardInterrupt

    def _answered(self, search: TextSearch) -> TextSearch:
        """Return a search without the findings in which one of the two texts has no answer."""
        if self.opened.white_box or not len(search.findings):
            return search
        both = (search.findings.rows, search.findings.twins(self.domain))
        known = [self.opened.answer(self.domain.write(rows)).decisions != NO_ANSWER for rows in both]
        findings = search.findings[torch.from_numpy(known[0] & known[1])]
        return replace(search, findings=findings, own=replace(search.own, findings=len(findings)))

    def accuracy(self, read: _Texts) -> float | None:
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


def _favourable(opened: TextModel, favourable: str | None) -> int:
    """Return the number of the favourable class: the one that is named, or the last one."""
    if favourable is None:
        return len(opened.classes) - 1
    if favourable not in opened.classes:
        raise DataError(f"--favourable {favourable}: no class of the model. {did_you_mean(favourable, opened.classes)}")
    return opened.classes.index(favourable)


def _report(
    read: _Texts,
    counted: dict[Reason, int],
    work: _Work,
    pairs: measure.Pairs,
    accuracy: float | None,
    column: str,
    *,
    spent: bool,
) -> TextReport:
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
        score_change=None if changes is None else reports.Mean(changes.value, changes.low, changes.high),
        largest_change=float(np.abs(pairs.twin_score - pairs.score).max()) if graded else None,
        pairs=_pairs(domain.lexicon, pairs, work.favourable),
        baseline=None if work.baseline is None else _baseline(work.baseline),
        worst=tuple(_worst(work, pairs)),
        searches=tuple(_search(one) for one in work.searches),
        interpretation=work.interpretation,
        topics=tuple(reports.TopicReport(t.word, t.texts, t.flips, t.p_value) for t in work.topics),
        notes=tuple(_notes(read, work, pairs, spent=spent)),
        seed=work.settings.seed,
        interrupted=work.interrupted or spent,
    )


def _share(found: int, of: int) -> reports.Share:
    from neuronfair.measure.rate import Rate

    rate = Rate(found, of, "table")
    return reports.Share(found, of, rate.rate, *rate.interval)


def _pairs(lexicon: Lexicon, pairs: measure.Pairs, favourable: int) -> tuple[reports.GroupPairReport, ...]:
    groups = lexicon.groups
    return tuple(
        reports.GroupPairReport(
            groups[one.own], groups[one.other], _share(one.flips, one.pairs), one.lost, one.gained, one.shift
        )
        for one in measure.group_pairs(pairs, len(groups), favourable)
    )


def _baseline(one: measure.Baseline) -> reports.BaselineReport:
    identity, neutral, excess = (reports.Mean(m.value, m.low, m.high) for m in (one.identity, one.neutral, one.excess))
    return reports.BaselineReport(
        one.texts, identity, neutral, excess, one.score_identity, one.score_neutral, one.is_claimed
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


def _worst(work: _Work, pairs: measure.Pairs) -> list[reports.TextFinding]:
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


def _found_by(work: _Work, search: TextSearch) -> list[reports.TextFinding]:
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


def _notes(read: _Texts, work: _Work, pairs: measure.Pairs, *, spent: bool) -> list[str]:
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
    if read.shortened:
        notes.append(f"{read.shortened:,} texts were cut off after {MAX_TEXT:,} characters.")
    if len(pairs.by_text[0]) < 30:
        notes.append("Fewer than 30 texts were compared: the confidence intervals are wide.")
    return notes


# Thresholds


def _threshold(text: str, attribute: str) -> Threshold:
    limit = read_expressions([text], [attribute], [])[0]
    if limit.figure not in ("flip_rate", "findings"):
        raise refusal(text, "for texts there are flip_rate and findings")
    return limit


def _gate(thresholds: Sequence[Threshold], report: TextReport) -> Gate | None:
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
            shown += f"; the {'upper' if limit.looks_up else 'lower'} confidence bound"
        number = METRICS[limit.figure].shown(limit.number)
        text = (
            f"{limit.figure} of {report.attribute}: {shown} {'fails' if fired else 'passes'} {limit.compare} {number}"
        )
        checks.append(GateCheck(limit.expression, report.attribute, value, low, high, which, fired, text, limit.figure))
    return Gate(not any(c.fired for c in checks), tuple(checks))


# The folder


def _claimed(folder: Path, settings: TextSettings, lexicon: Lexicon, texts: Sequence[Any]) -> Path:
    from neuronfair.audits.folder import claim
    from neuronfair.domain.twins import digest

    manifest = {
        "audit": "texts",
        **versions(),
        "rows": digest(*map(str, texts)),
        "sensitive": [lexicon.name, digest(lexicon.concepts, lexicon.groups)],
        "settings": {"seed": settings.seed},
    }
    claim(folder, manifest)
    return folder


def _check_same(folder: Path, opened: TextModel) -> None:
    """Refuse answers of another model: they are kept next to its fingerprint."""
    path = folder / "model.txt"
    if path.exists() and path.read_text(encoding="utf-8", errors="replace").strip() != opened.fingerprint:
        raise RunError(f"{folder}: this audit was begun with another model. Choose another --out, or --force")
    write_text(path, opened.fingerprint + "\n")


def write_results(folder: Path, audit: TextAudit) -> None:
    """Write figures, page and all findings of an audit."""
    import csv

    write_text(folder / FIGURES, audit.report.to_json())
    write_text(folder / PAGE, audit.to_html())
    with replacing(folder / FINDINGS) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["found_by", "text", "twin", "group", "other"])
        for search in audit.searches:
            rows, twins = search.findings.rows, search.findings.twins(audit.domain)
            groups = audit.domain.lexicon.groups
            for line in zip(
                audit.domain.write(rows),
                audit.domain.write(twins),
                rows[:, GROUP].tolist(),
                twins[:, GROUP].tolist(),
                strict=True,
            ):
                writer.writerow([search.method, _cell(line[0]), _cell(line[1]), groups[line[2]], groups[line[3]]])


def _cell(text: str) -> str:
    """Return a text for a spreadsheet, which must not take it for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
