"""What a person reads on the terminal: tables, progress bars, and one sentence that says what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from neuronfair.domain.table import TableDomain
from neuronfair.interpretation.ablate import Ablation
from neuronfair.interpretation.profile import BiasProfile


def make_console(*, quiet: bool) -> Console:
    """Return the console for messages: standard error, so that standard output stays free for JSON."""
    return Console(stderr=True, quiet=quiet, highlight=False)


@contextmanager
def progress_bar(console: Console, what: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar while a block runs; call the value it gives with (done, total) and, if known, a note."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=console.quiet) as bar:
        task = bar.add_task(what, total=None, note="")

        def show(done: int, total: int | None, note: str = "") -> None:
            bar.update(task, completed=done, total=total, note=note)

        yield show


def layer_table(profile: BiasProfile, domain: TableDomain) -> Table:
    """Return the reaction of every layer as a table, the most biased one marked."""
    table = Table(title=f"Reaction to {' and '.join(domain.sensitive)}, layer by layer")
    for heading in ("layer", "neurons", "AUC", "cut", "biased", "strongest"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for layer in profile.layers:
        worst = layer is profile.worst
        biased = (
            f"{len(layer.biased)} ({len(layer.biased) / len(layer.act_diff):.0%})" if layer.reacts else "none reacts"
        )
        strongest = f"{float(layer.reaction.max()):.3f} (#{int(layer.reaction.argmax())})"
        cells = (f"{layer.auc:.4f}", f"{layer.cut:.3f}", biased, strongest)
        name = f"{layer.name}  ◀ most biased" if worst else layer.name
        table.add_row(name, str(len(layer.act_diff)), *cells, style="bold" if worst else None)
    return table


def verdict(profile: BiasProfile, ablation: Ablation | None, domain: TableDomain) -> str:
    """Return in plain words what the interpretation found."""
    worst, sensitive = profile.worst, " and ".join(domain.sensitive)
    if not worst.reacts:
        return f"No neuron of this network reacts to {sensitive}: its decisions cannot depend on it."
    sentences = [
        f"Layer {worst.name} reacts most to {sensitive}: {len(worst.biased)} of its {len(worst.act_diff)} neurons "
        f"stand out (area under the AS curve {worst.auc:.3f})."
    ]
    if ablation is not None:
        before, after, chance = ablation.before, ablation.after, ablation.random_mean
        sentences.append(
            f"{before.rate:.1%} of the people in the table are decided otherwise when only their {sensitive} changes."
        )
        sentences.append(
            f"With these neurons switched off it is {after.rate:.1%}, at an accuracy of {after.accuracy:.1%} instead "
            f"of {before.accuracy:.1%}; with as many random ones it is {chance.rate:.1%} at {chance.accuracy:.1%}."
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
            "before": vars(ablation.before),
            "after": vars(ablation.after),
            "random": {"draws": len(ablation.random), **vars(ablation.random_mean)},
        }
    return result
