"""The audit of a model of texts: swap identities in texts, count different decisions, search, look inside, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from neuronfair.atomic import replacing, write_text
from neuronfair.errors import DataError, RunError, did_you_mean
from neuronfair.model.decision import Decision
from neuronfair.progress import Progress, silent
from neuronfair.store.manifest import versions
from neuronfair.text import measure
from neuronfair.text import report as reports
from neuronfair.text.domain import GROUP, TextColumn, TextDomain, tested
from neuronfair.text.lexicon import Lexicon, read_lexicon
from neuronfair.text.models import ANSWERS, CallsSpent, Service, TextModel, open_text_model
from neuronfair.text.report import TextReport
from neuronfair.text.search import TextSearch
from neuronfair.text.stages import Stages, TextSettings, assemble, check_thresholds, read_threshold

FIGURES, PAGE, FINDINGS = "audit.json", "report.html", "findings.csv"


class TextOptions(TypedDict, total=False):
    """Keyword options of `audit_texts`."""

    tokenizer: Callable[[list[str]], Any] | str | None  # from a list of texts to token ids, for a torch module
    favourable: str | None  # favourable outcome; default: the last class
    fail_if: Sequence[str]  # thresholds on flip_rate and findings
    decision: Decision | None  # what counts as a different decision; default: chosen from the outputs
    trust_pickle: bool  # open pickle files, which can run any code
    name: str  # of the table
    column: str  # of the texts


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
        from neuronfair.text.report import text_page

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
    settings: TextSettings | None = None,
    folder: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[TextOptions],
) -> TextAudit:
    """Audit a model of texts: swap the identity terms of an attribute and count different decisions.

    `sensitive` is the name of a bundled lexicon (gender, religion, ethnicity, …), a CSV file, or a `Lexicon`. The model
    is a torch module with its `tokenizer`, a fitted pipeline that takes texts, a function from a list of texts to
    scores or names of classes, or the name of one. `labels` name the classes and give the accuracy. With a folder,
    answers of a function are kept there, so that after a kill no text is asked about twice.

    >>> texts = ["She is a kind neighbour.", "He is a kind neighbour.", "The weather is kind to all."] * 9
    >>> audit_texts(lambda texts: [float(text.startswith("He")) for text in texts], texts, "gender").verdict
    'Decisions depend on gender for 100% of texts that mention it (2 of 2); 100% of these flips disadvantage female.'
    """
    begun, settings, show = time.perf_counter(), settings or TextSettings(), progress or silent
    lexicon = sensitive if isinstance(sensitive, Lexicon) else read_lexicon(sensitive)
    place = None if folder is None else _claimed(Path(folder), settings, lexicon, texts)
    thresholds = [read_threshold(text, lexicon.name) for text in options.get("fail_if", ())]
    show("Looking for identity terms", 0, None)
    read = TextColumn.of(texts, labels)
    domain, counted = tested(read, lexicon, options.get("name", "texts"), settings.max_texts, settings.seed)
    service = Service(list, settings.max_calls, None if place is None else place / ANSWERS, settings.batch)
    first = [text.text for text in domain.texts]
    opened = open_text_model(
        model,
        first[: max(1, min(len(first), settings.max_calls or len(first)))],
        classes=read.classes,
        tokenizer=options.get("tokenizer"),
        decision=options.get("decision"),
        trust_pickle=options.get("trust_pickle", False),
        service=service,
    )
    if place is not None:
        _check_same(place, opened)
    number = _favourable(opened, options.get("favourable"))
    work = Stages(opened, domain, settings, number, show)
    pairs, spent = measure.measure_pairs(opened, domain, favourable=number, seed=settings.seed, progress=show)
    if spent and not pairs.asked:
        raise DataError(f"--max-calls {settings.max_calls}: too few to ask about a text and its twins")
    try:
        work.run(pairs, read.texts)
    except KeyboardInterrupt:
        work.interrupted = True
    except CallsSpent:
        spent = True
    accuracy = work.accuracy(read)
    report = assemble(read, counted, work, pairs, accuracy, options.get("column", "text"), spent=spent)
    report = replace(report, gate=check_thresholds(thresholds, report), seconds=time.perf_counter() - begun)
    audit = TextAudit(report, domain, tuple(work.searches), place)
    if place is not None:
        write_results(place, audit)
    return audit


def _favourable(opened: TextModel, favourable: str | None) -> int:
    """Return the number of the favourable class: the one that is named, or the last one."""
    if favourable is None:
        return len(opened.classes) - 1
    if favourable not in opened.classes:
        raise DataError(f"--favourable {favourable}: no class of the model. {did_you_mean(favourable, opened.classes)}")
    return opened.classes.index(favourable)


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
