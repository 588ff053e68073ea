"""The terminal: the summary of an audit, of a certification and of an interpretation, tables, progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from neuronfair import progress
from neuronfair.audits.report import AuditIndex, Report, Tone, find_worst_attribute
from neuronfair.audits.report.attribute import AttributeReport
from neuronfair.audits.wording import summary
from neuronfair.audits.wording.summary import (
    describe_certificate,
    describe_pair,
    list_limits,
    metrics,
    propose_steps,
    select_realistic_pairs,
    status,
)
from neuronfair.domain.table import TableDomain
from neuronfair.formatting import duration, join_words, percent, pluralise, printable
from neuronfair.measure.rate import Ablation, AblationOutcome
from neuronfair.model.profile import BiasProfile
from neuronfair.proof.certificate import ProofReport, Region
from neuronfair.render.tables import TextTable, list_disadvantaged, tabulate_overview, tabulate_report


class _Console(Console):
    """A console that shows every text as it is: no name in it can colour, move or rename the terminal.

    A string is one line. Where we break lines ourselves, a `Text` does it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # before it is measured, so that tables stay straight
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text, keep="\n"))


def make_console(*, quiet: bool = False) -> Console:
    """Return the console for results: standard output, names and paths shown as they are."""
    return _Console(quiet=quiet)


@contextmanager
def progress_bar(activity: str, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show a progress bar while a block runs; call the value it gives with (done, total) and, if known, a note.

    It goes to standard error, and only if that is a terminal, or below the cell of a notebook: results and logs stay
    clean.
    """
    console = _Console(stderr=True)
    is_shown = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not is_shown) as bar:
        task = bar.add_task(printable(activity), total=None, note="")

        def show(completed: int, total: int | None, note: str = "", activity: str = activity) -> None:
            bar.update(task, completed=completed, total=total, note=printable(note), description=printable(activity))

        yield show


@contextmanager
def stage_progress(activity: str, *, quiet: bool = False) -> Iterator[progress.Progress]:
    """Show a progress bar for work in several stages, whose description changes with the stage."""
    with progress_bar(activity, quiet=quiet) as show:
        yield lambda activity, completed, total, note="": show(completed, total, note, activity=activity)


def make_layer_table(profile: BiasProfile, domain: TableDomain) -> Table:
    """Return the reaction of every layer as a table, the most biased one marked."""
    table = Table(title=f"Reaction to {join_words(domain.sensitive)}, layer by layer")
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


def describe_profile(profile: BiasProfile, ablation: Ablation | None, domain: TableDomain) -> str:
    """Return in plain words what the interpretation found; nothing about an accuracy that is not known."""
    worst, sensitive = profile.worst, join_words(domain.sensitive)
    if not worst.reacts:
        return f"No neuron reacted to {sensitive} in {profile.pairs:,} pairs of a record and a twin."
    count = len(worst.biased)
    sentences = [
        f"Most biased layer: {worst.name}. {count} of its {len(worst.act_diff)} neurons "
        f"{'reacts' if count == 1 else 'react'} strongly to {sensitive} (AS-AUC {worst.auc:.3f})."
    ]
    if ablation is not None:
        silenced, others = ("this neuron", "a random one") if count == 1 else (f"these {count}", f"{count} random ones")
        sentences += [
            f"Flip rate in the data set: {_format_outcome(ablation.before)}.",
            f"With {silenced} switched off: {_format_outcome(ablation.after)}.",
            f"With {others} of the same layer instead: {_format_outcome(ablation.random_mean)}, mean of "
            f"{len(ablation.random)} draws.",
        ]
    return " ".join(sentences)


def _format_outcome(outcome: AblationOutcome) -> str:
    accuracy = "" if outcome.accuracy is None else f" at an accuracy of {percent(outcome.accuracy)}"
    return f"{percent(outcome.rate)}{accuracy}"


def list_interpretation(profile: BiasProfile, ablation: Ablation | None) -> dict[str, object]:
    """Return an interpretation as plain values: `layers`, `worst`, and what switching neurons off did."""
    result: dict[str, object] = {
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


MAX_PAIRS = 3  # pairs shown with --verbose
MAX_COLUMNS = 8  # left out and named
_TONE_STYLES: dict[Tone, str] = {"alarm": "bold red", "caution": "bold yellow", "calm": "bold green", "neutral": "bold"}


def print_audit(console: Console, report: Report, page: Path | None = None, *, verbose: bool = False) -> None:
    """Print an audit: one screen, or everything if `verbose`; then the next command and where the report is."""
    console.print(compose_audit(report, verbose=verbose))
    for step in propose_steps(report)[:1]:
        console.print(f"Next: {step.text}", *([f"  {step.command}"] if step.command else []), sep="\n", soft_wrap=True)
    if page is not None:
        console.print(f"Report: {page}", soft_wrap=True)


def compose_audit(report: Report, *, verbose: bool = False) -> RenderableType:
    """Return headline, status, metrics, the worst realistic pair and the thresholds; all tables if `verbose`."""
    attributes, gate = report.attributes, _list_checks(report, verbose=verbose)
    statuses = [] if len(gate) == 1 and report.verdict.thresholds == "failed" else [status(report)]  # the line says it
    style = _TONE_STYLES[report.verdict.tone]
    headline = f"{report.verdict.headline} {summary.explain_twin(attributes)}".rstrip()
    lines: list[RenderableType] = [headline, *(Text(printable(line), style=style) for line in statuses), *gate]
    if attributes:
        lines += ["", _make_metric_table(find_worst_attribute(attributes))]
    if len(attributes) > 1:
        lines += ["", _make_table(tabulate_overview(attributes))]
    lines += [""] if verbose or len(attributes) > 1 else []
    if verbose:
        lines += [*report.verdict.details, *list_disadvantaged(attributes), ""]
        for table in tabulate_report(report):
            lines += [_make_table(table), *table.notes, ""]
    pairs = select_realistic_pairs(attributes, MAX_PAIRS if verbose else 1)
    for pair in pairs:
        lines.append(f"{'• ' if verbose else 'Worst pair, '}{describe_pair(pair)}")
        if pair.replay and verbose:
            lines.append(Text(printable(f"  {pair.replay}"), style="dim", overflow="fold"))
    if verbose:
        lines += [f"• {group.sentence}" for attribute in attributes for group in attribute.subgroups[:1]]
    lines += _list_comparisons(report)
    notes = list_limits(report)
    if verbose:
        lines += [*(f"Note: {note}" for note in notes), report.model.note, *_list_left_out(report)]
    elif notes:
        suffix = f" ({len(notes) - 1:,} more: --verbose)" if len(notes) > 1 else ""
        lines.append(f"Note: {notes[0]}{suffix}")
    return Group(*lines)


def _make_metric_table(attribute: AttributeReport) -> Table:
    """Return the four metrics, a short paragraph each."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for metric in metrics(attribute):
        table.add_row(Text(metric.name, style="bold"), metric.text)
    return table


def _make_table(table: TextTable) -> Table:
    grid = Table(
        title=table.title, title_justify="left", title_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for heading in table.heads:
        grid.add_column(heading, overflow="fold", header_style="dim", min_width=max(map(len, heading.split())))
    for cells in table.rows:
        grid.add_row(*cells)
    return grid


def _list_left_out(report: Report) -> list[str]:
    """Return which columns were left out, and why."""
    reasons: dict[str, list[str]] = {}
    for column in report.data.left_out:
        reasons.setdefault(column.reason, []).append(column.column)
    lines = []
    for reason, names in reasons.items():
        suffix = f", … ({len(names)} in all)" if len(names) > MAX_COLUMNS else ""
        lines.append(f"Left out: {', '.join(names[:MAX_COLUMNS])}{suffix}: {reason}.")
    return lines


def _list_checks(report: Report, *, verbose: bool) -> list[RenderableType]:
    """Return the thresholds that failed, and with `verbose` those that passed."""
    lines: list[RenderableType] = []
    for check in report.gate.checks if report.gate is not None else ():
        if check.fired or verbose:
            mark, style = ("FAILED", "bold red") if check.fired else ("passed", "green")
            text = printable(f" {check.expression}: {check.explained if verbose else check.text}")
            lines.append(Text.assemble((mark, style), text))
    return lines


def _list_comparisons(report: Report) -> list[str]:
    """Return the results of the regression set and of the comparison with an earlier audit."""
    lines = []
    if (past := report.regression_set) is not None:
        unfit = f"{past.unfit:,} no longer fit the input schema; " if past.unfit else ""
        lines.append(
            f"Regression set: {past.still_flips:,} of {past.replayed:,} past counterexamples still flip; {unfit}"
            f"{past.added:,} added to {past.file}."
        )
    if report.baseline is not None:
        lines.append(f"Since {report.baseline.file}: {report.baseline.text}")
    return lines


_STATE_STYLES = {"failed": "bold red", "error": "bold red", "not finished": "bold yellow", "passed": "green"}


def compose_index(index: AuditIndex) -> RenderableType:
    """Return a line for each audit, then what failed and why, and how many are in which state."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("audit", overflow="fold")
    for heading in ("thresholds", "result"):
        table.add_column(heading)
    for heading in ("flip\nrate", "synthetic", "proxy\nexcess", "time"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for line in index.audits:
        shares = [None if rate is None else rate.rate for rate in (line.rate, line.random, line.counterfactual)]
        table.add_row(
            line.name,
            Text(line.state, style=_STATE_STYLES.get(line.state, "")),
            line.level or "–",
            *("–" if share is None else percent(share) for share in shares),
            duration(line.seconds) if line.level else "–",
        )
    remarks = [
        Text(printable(f"{line.name}: {reason}"))
        for line in index.audits
        for reason in ((line.error,) if line.error is not None else line.fired)
    ]
    states = dict.fromkeys(line.state for line in index.audits)
    counts = join_words([f"{index.count(state):,} {state.replace('no ', 'without ')}" for state in states])
    return Group(table, *remarks, f"{pluralise(len(index.audits), 'audit')}: {counts}.")


# What a certification has proved: a bar of characters and a few sentences

BAR_WIDTH = 60  # letters of the bar
SHARE_NAMES = ("certified", "undecided", "certified to depend")
SHARE_STYLES, SHARE_LETTERS = ("green", "dim", "bold red"), ("█", "░", "▓")


def compose_proof(report: ProofReport) -> RenderableType:
    """Return a certification as a bar of its three shares, and what they mean."""
    shares = _find_shares(report)
    bar, legend = Text(), Text()
    parts = zip(SHARE_NAMES, shares, SHARE_STYLES, SHARE_LETTERS, _find_widths(shares), strict=True)
    for name, share, style, letter, width in parts:
        bar.append(width * letter, style)
        legend.append(f"{letter} ", style).append(f"{name} {percent(share)}   ")
    return Group(bar, legend, *describe_proof(report))


def _find_shares(report: ProofReport) -> tuple[float, float, float]:
    """Return the three shares of the data set, or of the input space without one."""
    if (rows := report.data_set) is not None:
        return rows.certified_fair.share, rows.undecided.share, rows.certified_discriminatory.share
    return report.proved_fair.share, report.undecided.share, report.proved_discriminatory.share


def describe_proof(report: ProofReport) -> list[str]:
    """Return what is certified, what is not, and for which records, in plain words."""
    lines, by_name, rows = describe_certificate(report), join_words(report.sensitive), report.data_set
    if rows is not None:
        without = f" ({rows.without_twin:,} without an allowed twin)" if rows.without_twin else ""
        lines.append(
            f"In the data set: {rows.certified_fair.count:,} certified{without}, "
            f"{rows.certified_discriminatory.count:,} certified to depend, {rows.undecided.count:,} undecided."
        )
    if rows is not None and rows.outside_domain:
        lines.append(
            f"{rows.outside_domain:,} of the undecided break a rule of the domain, or have a cell between its values "
            "or an empty one that the model reads as such."
        )
    if not report.complete:
        lines.append("A higher --seconds may decide more.")
    elif (count := int(report.proved_discriminatory.count)) > 0:
        lines.append(f"Nothing is undecided: the decision depends on {by_name} for exactly {count:,}.")
    if report.decision.kind == "tolerance":
        lines.append(
            f"Two decisions differ if their scores are more than {report.decision.value:g} apart (--decision)."
        )
    size = f"{pluralise(int(report.people.count), 'record')} in {pluralise(report.boxes, 'box', 'boxes')}"
    lines.append(f"{size}, {duration(report.seconds)}; {report.method}.")
    lines += [f"Certified region: {describe_region(region)}" for region in report.regions]
    if report.interrupted:
        lines.append("Interrupted: what was certified is kept. The same command resumes from here.")
    return lines


def describe_region(region: Region | None) -> str:
    """Return a region in words: its rule, its size, and how many records it holds."""
    if region is None:
        return "nothing is proved, not even for the record alone."
    size = f"{pluralise(int(region.size.count), 'record')} of the input space"
    if region.rows is not None:
        size += f", {region.rows.count:,} of the data set ({percent(region.rows.share)})"
    if region.fresh is not None:
        size += f", {percent(region.fresh.share)} of realistic synthetic records"
    depends = "every decision depends" if region.depends else "no decision depends"
    return f"{depends} on the attribute where {region.rule or 'anything'} ({size})."


def _find_widths(shares: Sequence[float]) -> list[int]:
    """Return how many letters of the bar each share gets: one at least if it is not 0."""
    widths = [max(round(share * BAR_WIDTH), int(share > 0)) for share in shares]
    widths[widths.index(max(widths))] += BAR_WIDTH - sum(widths)
    return widths
