"""What a person reads on the terminal: the verdict, short tables, progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from neuronfair.audits.report.attribute import AttributeReport, measured_populations, notes_of, omissions, worst_cases
from neuronfair.audits.report.report import Report, Tone
from neuronfair.domain.table import TableDomain
from neuronfair.formatting import UNKNOWN, listed, percent, spanned, times, visible
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.measure.neurons import Ablation
from neuronfair.render.proof import KEY, strip_line
from neuronfair.render.tables import (
    GROUPS_HEADS,
    TITLE,
    counterpart_lines,
    counterpart_sentences,
    group_lines,
    hurt_sentences,
    left_out,
)
from neuronfair.render.tables import HEADS as COUNTERPART_HEADS


class _Console(Console):
    """A console that shows every text as it is: no name in it can colour, move or rename the terminal.

    A string is one line. Where we break lines ourselves, a `Text` does it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # before it is measured, so that tables stay straight
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=visible(part.text, keep="\n"))


def make_console(*, quiet: bool = False) -> Console:
    """Return the console for results: standard output, names and paths shown as they are."""
    return _Console(quiet=quiet)


@contextmanager
def progress_bar(what: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar while a block runs; call the value it gives with (done, total) and, if known, a note.

    It goes to standard error, and only if that is a terminal, or to the output of a notebook's cell: results and logs
    stay clean.
    """
    console = _Console(stderr=True)
    if console.is_jupyter and not quiet:
        from neuronfair.render.notebook import notebook_bar

        with notebook_bar(what) as show_there:
            yield show_there
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(visible(what), total=None, note="")

        def show(done: int, total: int | None, note: str = "", what: str = what) -> None:
            bar.update(task, completed=done, total=total, note=visible(note), description=visible(what))

        yield show


def layer_table(profile: BiasProfile, domain: TableDomain) -> Table:
    """Return the reaction of every layer as a table, the most biased one marked."""
    table = Table(title=f"Reaction to {listed(domain.sensitive)}, layer by layer")
    for heading in ("layer", "neurons", "AUC", "cut", "biased", "strongest"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for layer in profile.layers:
        worst = layer is profile.worst
        biased = (
            f"{len(layer.biased)} ({percent(len(layer.biased) / len(layer.act_diff))})"
            if layer.reacts
            else "none reacts"
        )
        strongest = f"{float(layer.reaction.max()):.3f} (#{int(layer.reaction.argmax())})"
        cells = (f"{layer.auc:.4f}", f"{layer.cut:.3f}", biased, strongest)
        name = f"{layer.name}  ◀ most biased" if worst else layer.name
        table.add_row(name, str(len(layer.act_diff)), *cells, style="bold" if worst else None)
    return table


def verdict(profile: BiasProfile, ablation: Ablation | None, domain: TableDomain) -> str:
    """Return in plain words what the interpretation found; nothing about an accuracy that is not known."""
    worst, sensitive = profile.worst, listed(domain.sensitive)
    if not worst.reacts:
        return f"No neuron of this network reacts to {sensitive}: its decisions cannot depend on it."
    count = len(worst.biased)
    sentences = [
        f"Most biased layer: {worst.name}. {count} of its {len(worst.act_diff)} neurons "
        f"{'reacts' if count == 1 else 'react'} strongly to {sensitive} (area under the AS curve {worst.auc:.3f})."
    ]
    if ablation is not None:
        before, after, chance = ablation.before, ablation.after, ablation.random_mean
        at = ["" if o.accuracy is None else f"at an accuracy of {percent(o.accuracy)}" for o in (before, after, chance)]
        sentences.append(
            f"The decision flips with {sensitive} for {percent(before.rate)} of the people in the table"
            f"{', ' if at[0] else ''}{at[0]}."
        )
        off, drawn = ("this neuron", "a random one") if count == 1 else (f"these {count}", f"{count} random ones")
        sentences.append(
            f"With {off} switched off it is {' '.join(filter(None, (percent(after.rate), at[1])))}; with {drawn} of "
            f"the same layer instead, {' '.join(filter(None, (percent(chance.rate), at[2])))} (mean of "
            f"{len(ablation.random)} draws)."
        )
    return " ".join(sentences)


def interpretation_json(profile: BiasProfile, ablation: Ablation | None) -> dict[str, Any]:
    """Return an interpretation as plain values: `layers`, `worst`, and what switching neurons off did."""
    result: dict[str, Any] = {
        "worst": profile.worst.name,
        "pairs": profile.pairs,
        "layers": [
            {
                "name": layer.name,
                "neurons": len(layer.act_diff),
                "auc": layer.auc,
                "cut": layer.cut,
                "biased": list(layer.biased),
                "reacts": layer.reacts,
            }
            for layer in profile.layers
        ],
    }
    if ablation is not None:
        result["ablation"] = {
            "layer": ablation.layer,
            "neurons": len(ablation.neurons),
            "before": asdict(ablation.before),
            "after": asdict(ablation.after),
            "random": {"draws": len(ablation.random), **asdict(ablation.random_mean)},
        }
    return result


WORST = 3  # findings told
COLUMNS = 8  # left out and named
_STYLE: dict[Tone, str] = {"alarm": "bold red", "caution": "bold yellow", "calm": "bold green", "neutral": "bold"}


def audit_report(report: Report) -> RenderableType:
    """Return the verdict first, then the figures of each attribute, the worst findings and what could be done."""
    attributes, verdict = report.attributes, report.verdict
    lead = Text(visible(f"{verdict.level.capitalize()}: {verdict.headline}"), style=_STYLE[verdict.tone])
    lines: list[RenderableType] = [lead, *filter(None, (verdict.details, verdict.threshold_text))]
    if report.feeding is not None and report.feeding.accuracy is None:
        lines.append(report.feeding.text)
    lines += [_table(attributes), *omissions(attributes), *_counterparts(attributes)]
    lines += _usual(report)
    lines += _proofs(attributes)
    lines += [f"Whom it hurts: {sentence}" for sentence in hurt_sentences(attributes)]
    lines += _groups(attributes)
    for finding in worst_cases(attributes, WORST):
        lines.append(f"• {finding.sentence} {finding.how_usual}".rstrip())
        if finding.replay:
            lines.append(Text(visible(f"  {finding.replay}"), style="dim", overflow="fold"))
    lines += [f"• {group.sentence}" for one in attributes for group in one.subgroups[:1]]
    lines += [f"Note: {note}" for note in notes_of(attributes)]
    lines.append(report.model.note)
    lines += _left_out(report)
    return Group(*lines, *_afterwards(report))


def _left_out(report: Report) -> list[str]:
    """Return which columns nobody looked at, and why."""
    reasons: dict[str, list[str]] = {}
    for one in report.data.left_out:
        reasons.setdefault(one.reason, []).append(one.column)
    more = {reason: f", … ({len(names)} in all)" if len(names) > COLUMNS else "" for reason, names in reasons.items()}
    return [f"Left out: {', '.join(names[:COLUMNS])}{more[why]}: {why}." for why, names in reasons.items()]


def _table(attributes: tuple[AttributeReport, ...]) -> Table:
    # Four rates and a search must fit into 80 columns: then the intervals stand below the rates, and all is close.
    populations = measured_populations(attributes)
    close = len(populations) > 2
    searched = ("search", "found") if len(populations) > 3 else ("search", "found", "lift")
    table = Table(
        title="How often the decision flips", box=SIMPLE_HEAD, padding=(0, 0, 0, 0 if close else 1), show_edge=False
    )
    for heading in ("attribute", *populations, *searched):
        justify: JustifyMethod = "left" if heading in ("attribute", "search") else "right"
        width = len("(0.461–0.673)") if close and heading in populations else None
        table.add_column(heading, justify=justify, width=width, no_wrap=heading in searched)
    for one in attributes:
        rates = [getattr(one.rates, population) for population in populations]
        cells = [one.name, *(UNKNOWN if rate is None else spanned(rate.rate, rate.low, rate.high) for rate in rates)]
        for search in one.searches:
            lift = "" if search.lift is None else times(search.lift)
            table.add_row(*cells, *(search.method, f"{search.findings:,}", lift)[: len(searched)])
            cells = [""] * len(cells)
        if not one.searches:
            table.add_row(*cells, "none")
    return table


def _counterparts(attributes: tuple[AttributeReport, ...]) -> list[RenderableType]:
    lines = counterpart_lines(attributes)
    if not lines:
        return []
    table = Table(title=TITLE, box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False)
    for heading in COUNTERPART_HEADS:
        table.add_column(heading, justify="left" if heading == "attribute" else "right")
    for cells in lines:
        table.add_row(*cells)
    return [table, *counterpart_sentences(attributes)]


def _usual(report: Report) -> list[str]:
    """Return what plausible people are, and how many of the findings are such."""
    known = [
        (search.plausible_share, f"{percent(search.plausible_share)} by {search.method} ({one.name})")
        for one in report.attributes
        for search in one.searches
        if search.plausible_share is not None
    ]
    shares = f" Of the findings these are plausible: {listed([told for _, told in known])}." if known else ""
    if known and all(share == 1 for share, _ in known):
        shares = " All findings are plausible."
    if known:
        shares += " Plausible: at or above the 1st likelihood percentile of your data."
    return [] if report.data.population is None else [report.data.population.text + shares]


def _proofs(attributes: tuple[AttributeReport, ...]) -> list[RenderableType]:
    """Return what is proved, a line for each attribute; what cannot be proved is said once."""
    proofs = [(one, one.proved) for one in attributes if one.proved is not None]
    key = [Text(KEY, style="dim")] if any(proved.method for _, proved in proofs) else []
    return [*dict.fromkeys(strip_line(*proof) for proof in proofs), *key]


def _groups(attributes: tuple[AttributeReport, ...]) -> list[RenderableType]:
    lines = group_lines(attributes)
    if not lines:
        return []
    table = Table(title="How the groups of the table fare")
    for heading in GROUPS_HEADS:
        table.add_column(heading, overflow="fold")
    for cells in lines:
        table.add_row(*cells)
    return [table, *(f"Note: {sentence}" for sentence in left_out(attributes))]


def _afterwards(report: Report) -> list[RenderableType]:
    """Return what is said of a repair, the corpus, an earlier audit and the gate, where there are such."""
    lines: list[RenderableType] = []
    if report.repair is not None:
        longer = f" {report.repair.lead} {report.repair.command}" if report.repair.command else ""
        lines.append(f"Repair: {report.repair.text}{longer}")
    if report.corpus is not None:
        corpus = report.corpus
        lines.append(
            f"Corpus: {corpus.still_flips:,} of {corpus.replayed:,} past counterexamples still flip; "
            f"{corpus.added:,} added to {corpus.file}."
        )
    if report.baseline is not None:
        lines.append(f"Since {report.baseline.file}: {report.baseline.text}")
    for check in report.gate.checks if report.gate is not None else ():
        mark, style = ("FAILED", "bold red") if check.fired else ("passed", "green")
        lines.append(Text.assemble((mark, style), visible(f" {check.expression}: {check.text}")))
    return lines
