"""The command that takes findings and a model card out of the folder of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from neuronfair.cli import options
from neuronfair.cli.app import app
from neuronfair.errors import RunError

CARD = ".md"


@app.command()
def export(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of 'neuronfair audit', or a run folder of a search.")
    ],
    out: Annotated[
        Path, typer.Option(help="A table (.csv, .xlsx, .parquet) of all findings, or a model card (.md) of an audit.")
    ],
) -> None:
    """Write all findings as one table, each person beside the twin, or an audit as a model card.

    In CSV and Excel, texts that a spreadsheet would take for formulas begin with an apostrophe.

    Examples:

    `neuronfair export run --out findings.xlsx`

    `neuronfair export run --out card.md`
    """
    from neuronfair.audits.folder import FIGURES
    from neuronfair.audits.report.report import Report
    from neuronfair.formatting import plural
    from neuronfair.limits import TREE, read_bytes
    from neuronfair.render.card import model_card
    from neuronfair.render.export import FORMATS, export_findings
    from neuronfair.render.terminal import make_console

    options.check_out(out, (*FORMATS, CARD))
    if out.suffix.lower() != CARD:
        count = export_findings(folder, out)
        make_console().print(f"{plural(count, 'finding')}: {out}", soft_wrap=True)
        return
    figures = folder / FIGURES
    if not figures.is_file():
        raise RunError(f"{folder}: has no {FIGURES}. A model card is made of an audit that has ended")
    options.write_file(out, model_card(Report.from_json(read_bytes(figures, times=TREE), figures)))
    make_console().print(f"Model card: {out}", soft_wrap=True)
