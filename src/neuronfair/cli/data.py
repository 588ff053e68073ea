"""Commands for data sets and domain files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from neuronfair.cli import options
from neuronfair.cli.app import command, data_app, domain_app, option
from neuronfair.errors import DataError
from neuronfair.formatting import printable
from neuronfair.parameters import INPUT, OUTPUT

NameArgument = Annotated[str, option("A name from 'neuronfair data list'.", metavar="NAME", positional=True)]


@command(data_app, "list")
def data_list() -> None:
    """List the data sets, whether they are downloaded, their sensitive attributes and licences."""
    from rich.table import Table
    from rich.text import Text

    from neuronfair.domain.tables.dataset import DATASETS, catalog_domain
    from neuronfair.domain.tables.sources import find_local_files, find_source
    from neuronfair.render.terminal import make_console

    table = Table.grid("name", "available", "sensitive", "licence", padding=(0, 2))
    table.columns[3].overflow = "fold"
    for name in DATASETS:
        available = "available" if find_local_files(name) else "not downloaded"
        sensitive = ", ".join(catalog_domain(name).sensitive)
        table.add_row(
            name, available, f"sensitive: {sensitive}", Text(f"{find_source(name).licence}\n{find_source(name).page}")
        )
    make_console().print(table, "Download a data set: neuronfair data get NAME", sep="\n")


@command(data_app, "get")
def data_get(name: NameArgument, quiet: options.QuietOption = False) -> None:
    """Download a data set into the user cache, checked against its checksum."""
    from neuronfair.domain.tables.sources import get_files
    from neuronfair.render.terminal import progress_bar

    with progress_bar(f"Fetching {name}", quiet=quiet) as show:
        paths = get_files(name, progress=show)
    for path in paths:
        print(printable(str(path)))


@command(data_app, "where")
def data_where(name: NameArgument) -> None:
    """Print the paths of the files of a data set."""
    from neuronfair.domain.tables.sources import find_local_files

    paths = find_local_files(name)
    if paths is None:
        raise DataError(f"{name} is not downloaded. Download it: neuronfair data get {name}")
    for path in paths:
        print(printable(str(path)))


@command(domain_app, "infer", omit=("data", "sensitive", "target", "domain", "encoding"))
def domain_infer(
    file: Annotated[Path, option("CSV, Parquet or Feather file with a header.", metavar="FILE", positional=True)],
    table: options.TableOptions,
    sensitive: Annotated[str, option("Sensitive attributes, such as sex or sex,race.", panel=INPUT)],
    target: Annotated[str, option("Column to predict.", panel=INPUT)],
    favourable: options.FavourableOption = None,
    take_rules: Annotated[Literal["none", "free", "all"], option("Rules suggested by the data to adopt.")] = "none",
    out: Annotated[Path | None, option("File to write; '-' prints it. Default: FILE with .toml.", panel=OUTPUT)] = None,
    force: Annotated[bool, option("Overwrite an existing file.", "--force", panel=OUTPUT)] = False,
) -> None:
    """Draft the input schema (domain file) of a table, for you to correct."""
    from neuronfair.domain.schema.infer import InferenceSettings, draft_domain
    from neuronfair.domain.schema.toml import parse_domain, with_favourable

    if file.is_dir():
        raise DataError(f"{file}: is a folder. Name the file of a table")
    out = out or file.with_suffix(".toml")
    options.check_out(out, or_stdout=True)
    if not options.is_stdout(out) and out.exists() and not force:
        raise DataError(f"{out} exists. Choose another --out, or overwrite it with --force")
    sheet = replace(table, sensitive=sensitive).join_attributes(file)
    settings = InferenceSettings(take_rules=take_rules)
    draft = draft_domain(sheet, sensitive=options.split_names(sensitive) or [], target=target, settings=settings)
    text = draft.text if favourable is None else with_favourable(draft.text, favourable)
    parse_domain(text)
    if options.is_stdout(out):
        print(printable(text, keep="\n"), end="")  # its strings keep their meaning
        return
    options.write_file(out, text)
    left_out = [f"{exclusion.column} ({exclusion.reason})" for exclusion in draft.left_out]
    for line in [*([f"Left out: {', '.join(left_out)}"] if left_out else []), *draft.remarks]:
        print(printable(line))
    print(printable(f"Wrote {out}. Please read it: kinds, bounds and rules decide what is tested."))
