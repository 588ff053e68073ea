"""What a person reads on the terminal: tables, progress bars, and one sentence that says what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from neuronfair.domain.table import TableDomain
from neuronfair.interpretation.profile import BiasProfile
from neuronfair.measure.ablate import Ablation
from neuronfair.shown import visible
from neuronfair.words import listed, percent


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
