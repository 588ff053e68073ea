"""The command that audits many models, tables and attributes, which a file names."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronfair.cli import options
from neuronfair.cli.app import INTERNAL, app, complain
from neuronfair.cli.audit import FIRED, INTERRUPTED
from neuronfair.cli.options import RayOption, pool_of
from neuronfair.errors import DataError, NeuronFairError
from neuronfair.formatting import plural, some

if TYPE_CHECKING:
    from neuronfair.scale.pool import Pool

FAILED = 2


@app.command()
def audit_all(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="TOML: [defaults] and [[audit]], with the words of 'neuronfair audit'."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to make, or to go on with; each audit has a folder in it.")] = Path(
        "neuronfair-audits"
    ),
    force: Annotated[bool, typer.Option("--force", help="Throw away the audits in --out, and begin anew.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="So many processes of one core each, side by side.")] = 1,
    ray: RayOption = None,
    json_file: options.JsonOption = None,
    junit: Annotated[Path | None, typer.Option(help="Write the results of all as JUnit XML.")] = None,
    quiet: options.QuietOption = False,
) -> None:
    """Audit many models, tables and attributes: all that a file names, each with its page, and one index of all.

    In each [[audit]] of the file, lists of data, model and sensitive multiply out: two tables, three models and two
    attributes are twelve audits. Paths are relative to the file. All that is wrong with it is said before any work is
    done; an audit that fails does not end the others. The same command goes on after Ctrl-C, and does again what has
    changed only. Exit status: 0, 1 if a limit holds in any audit, 2 if one ended in an error, 3 after an
    internal error, 130 after Ctrl-C.

    Examples:

    `neuronfair audit-all audits.toml --out audits`

    `neuronfair audit-all audits.toml --workers 8 --junit audits.xml`

    `neuronfair audit-all audits.toml --ray head:6379`
    """
    from neuronfair.audits.report.report import as_json
    from neuronfair.cli.audit_batch import INDEX, BatchFolder, Many
    from neuronfair.cli.audit_file import Orders
    from neuronfair.render.index import index_table
    from neuronfair.render.junit import junit_of_all
    from neuronfair.render.terminal import make_console, progress_bar

    if workers > 1 and ray is not None:
        raise NeuronFairError("--workers: for processes of this machine, and --ray for a cluster. Name one of the two")
    options.check_out(junit)
    options.check_out(json_file, or_stdout=True)
    if not file.is_file():
        raise DataError(f"{file}: there is no such file. Expected TOML with [[audit]] tables")
    place = BatchFolder(file.absolute().parent, out.absolute(), force)
    with chdir(place.folder):
        orders = Orders.read(file.name)
    if orders.problems:
        for problem in orders.problems:
            complain(f"{file}: {problem}")
        raise DataError(
            f"{file}: {plural(len(orders.problems), 'thing is', 'things are')} wrong in it. Nothing was done"
        )
    place.check()
    console = make_console(quiet=quiet or options.is_stdout(json_file))
    many = Many(file.name, orders.audits, place)
    missing = many.missing()
    before, names = len(many.audits) - len(missing), [audit.name for audit in missing]
    with progress_bar("Auditing", quiet=console.quiet) as show, _pool(workers, ray) as pool:

        def note(lines: Sequence[tuple[int, int, int]]) -> None:
            running = [name for name, (done, total, _) in zip(names, lines, strict=True) if done < total]
            show(before + sum(done for done, _, _ in lines), len(many.audits), some(running))

        interrupted = many.run(pool, note, missing)
    index = many.index
    many.write()
    if junit is not None:
        options.write_file(junit, junit_of_all(index, many.reports))
    if json_file is not None and options.is_stdout(json_file):
        typer.echo(as_json(index), nl=False)
    elif json_file is not None:
        options.write_file(json_file, as_json(index))
    console.print(index_table(index))
    console.print(f"Index: {out / INDEX}", soft_wrap=True)
    for line in index.audits:
        for why in (line.error, *line.fired) if line.state in ("failed", "error") and quiet else ():
            if why is not None:
                complain(f"{line.name}: {why}")
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if many.internal:
        raise typer.Exit(INTERNAL)
    if index.count("error", "not finished"):
        raise typer.Exit(FAILED)
    if index.count("failed"):
        raise typer.Exit(FIRED)


def _pool(workers: int, ray: str | None) -> AbstractContextManager[Pool]:
    if workers == 1:
        return pool_of(ray)
    from neuronfair.scale.pool import Processes

    return nullcontext(Processes(workers))
