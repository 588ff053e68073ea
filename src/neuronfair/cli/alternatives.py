"""The command that searches for less discriminatory alternatives to a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from neuronfair.alternative_models.settings import AlternativesSettings
from neuronfair.cli import options
from neuronfair.cli.app import AUDIT, INTERRUPTED, app, command, option
from neuronfair.cli.options import FavourableOption, ForceOption, OutputOptions, TableOptions, names
from neuronfair.errors import DataError, NeuronFairError
from neuronfair.parameters import INPUT, OUTPUT

PAGE, PARAGRAPH = "report.html", "regulator.md"


@command(app, panel=AUDIT, omit=("encoding", "attributes_file", "key"))
def alternatives(
    table: TableOptions,
    settings: AlternativesSettings,
    output: OutputOptions,
    model: Annotated[
        Path | None, option("A fitted model (.skops, .joblib, .safetensors), cloned with its parameters.", panel=INPUT)
    ] = None,
    estimator: Annotated[
        str | None,
        option("What is fitted: logistic, boosting, forest, lightgbm, network or package.module:make.", panel=INPUT),
    ] = None,
    favourable: FavourableOption = None,
    trust_pickle: Annotated[
        bool, option("Open pickles, which can run any program hidden in them.", "--trust-pickle", panel=INPUT)
    ] = False,
    out: Annotated[Path, option("Folder to make, or to resume after an interruption.", panel=OUTPUT)] = Path(
        "neuronfair-alternatives"
    ),
    audit: Annotated[
        Literal["none", "chosen"], option("Audit the baseline and the chosen model by the test part.", panel=OUTPUT)
    ] = "none",
    force: ForceOption = False,
) -> None:
    """Search for a model that is as good for its purpose and less discriminatory.

    Candidates are fitted to one part of the table, chosen by another, and a few are measured on a third part, once. The
    folder has the models, the report, every fit of the search and a paragraph for the file of a regulator.

    Examples:

    `neuronfair alternatives loans.csv --target paid --sensitive sex --favourable yes --model m.skops --out run`

    `neuronfair alternatives adult --sensitive sex --estimator lightgbm --budget 60 --workers 2 --out run`
    """
    if (model is None) == (estimator is None):
        raise DataError("name one of the two: the --model that is in use, or an --estimator to fit")
    table.check()
    output.check()
    _check_folder(out, force)
    from neuronfair.alternative_models.session import alternatives as search
    from neuronfair.domain.tables.dataset import DATASETS, load_dataset
    from neuronfair.render.alternatives import alternatives_page, alternatives_report, regulator_text
    from neuronfair.render.page import audit_page
    from neuronfair.render.terminal import stage_progress

    console, sensitive = output.console(), names(table.sensitive)
    own = table.data in DATASETS
    with stage_progress("Searching for alternatives", quiet=console.quiet) as progress:
        found = search(
            str(model) if model is not None else estimator,
            load_dataset(table.data, sensitive=sensitive) if own else Path(table.data),
            sensitive=None if own else sensitive,
            target=table.target,
            domain=table.domain,
            favourable=favourable,
            settings=settings,
            out=out,
            progress=progress,
            trust_pickle=trust_pickle,
        )
        report = found.report
        options.write_file(out / PAGE, alternatives_page(report))
        options.write_file(out / PARAGRAPH, regulator_text(report))
        if audit == "chosen" and report.chosen is not None:
            before, after = (found.audit(name, progress) for name in ("baseline", report.chosen))
            options.write_file(out / "before.html", audit_page(before))
            options.write_file(out / "after.html", audit_page(after))
    console.print(alternatives_report(report))
    console.print(f"Report: {out / PAGE}", soft_wrap=True)
    if report.chosen is not None:
        console.print(f"Model: {out / report.files[report.chosen]}", soft_wrap=True)
    output.write(json.loads(report.to_json()))
    if report.conclusion == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _check_folder(out: Path, force: bool) -> None:
    """Refuse a folder that is not one of a search; with `force`, delete the files of an earlier search."""
    from neuronfair.alternative_models.journal import FILE

    if out.exists() and not out.is_dir():
        raise DataError(f"--out {out}: is no folder. Choose another name")
    present = [path.name for path in out.iterdir()] if out.is_dir() else []
    if present and FILE not in present:
        raise NeuronFairError(f"--out {out}: holds other files. Choose an empty folder, or one of an earlier search")
    if force and FILE in present:
        for name in (FILE, "alternatives.json"):
            (out / name).unlink(missing_ok=True)
