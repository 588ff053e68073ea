"""The table of a command: a data set of the paper, or a user's own, with columns of a file beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from neuronfair.cli import options
from neuronfair.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from neuronfair.audits.inputs import AuditInput
    from neuronfair.domain.table import TableDomain
    from neuronfair.domain.tables.files import Sheet

AttributesFileOption = Annotated[
    Path | None,
    typer.Option(help="A table with sensitive columns that stand beside the data, never an input of the model."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="The column by which --attributes-file and the data belong together. Default: row by row."),
]


@dataclass(frozen=True)
class JoinOptions:
    """What --attributes-file and --key say."""

    file: Path
    key: str | None

    @staticmethod
    def of(file: Path | None, key: str | None) -> JoinOptions | None:
        """Return a file beside the table, if there is one."""
        if file is None and key is not None:
            raise DataError(f"--key {key}: belongs to an --attributes-file")
        return None if file is None else JoinOptions(file, key)

    @property
    def words(self) -> tuple[str, ...]:
        """The options again."""
        return ("--attributes-file", str(self.file), *(() if self.key is None else ("--key", self.key)))

    def joined(self, table: Path, sensitive: Sequence[str] | None, domain: Path | TableDomain | None = None) -> Sheet:
        """Return the table with the sensitive columns of the file, and those that the domain has as no input."""
        from neuronfair.domain.schema.toml import read_domain
        from neuronfair.domain.tables.files import read_sheet
        from neuronfair.domain.tables.sensitive_join import beside

        known = read_domain(domain) if isinstance(domain, Path) else domain
        wanted = [*(sensitive or ()), *(known.sensitive if known is not None and not sensitive else ())]
        wanted += [attribute.name for attribute in known.attributes if not attribute.given] if known is not None else []
        return beside(read_sheet(table), read_sheet(self.file), list(dict.fromkeys(wanted)), self.key)


def check_described(
    name: str, encoding: str, domain: Path | None, sensitive: str | None, target: str | None, beside: JoinOptions | None
) -> None:
    """Refuse a table that is not there, or of which too much or too little is said."""
    from neuronfair.domain.tables.dataset import DATASETS
    from neuronfair.domain.tables.files import table_file

    if name in DATASETS:
        if domain is not None or target is not None:
            raise DataError(f"{name}: has its own domain and target; --domain and --target are for tables of your own")
        if beside is not None:
            raise DataError(f"{name}: has all its columns; --attributes-file is for tables of your own")
        return
    if not table_file(name)[0].exists():
        raise DataError(f"{name}: neither a file nor a data set. {did_you_mean(name, DATASETS)}")
    if encoding != "default":
        raise DataError(
            f"--encoding {encoding}: for the data sets of the paper only. Say encode = … in a --domain file"
        )
    if domain is not None and target is not None:
        raise DataError(f"--target {target}: the domain file {domain} names the target. Leave one of the two out")
    if domain is None and not options.names(sensitive):
        raise DataError(f"{name}: name a --domain file, or --sensitive and --target so that one can be inferred")


def load_data(
    name: str,
    encoding: str,
    domain: Path | None,
    sensitive: str | None,
    target: str | None,
    source: options.ModelOptions | None = None,
    take_rules: Literal["none", "free", "all"] = "none",
    beside: JoinOptions | None = None,
) -> AuditInput:
    """Return a data set of the paper, or a user's table, with the columns that the model reads.

    The model decides how a domain is inferred: a tolerance is for quantities, and a model that reads an empty cell
    among numbers, as trees do, is given empty cells and not the median.
    """
    from neuronfair.audits.inputs import read_input
    from neuronfair.domain.tables.dataset import DATASETS, load_dataset

    check_described(name, encoding, domain, sensitive, target, beside)
    chosen, path = options.names(sensitive), Path(name)
    source = source or options.ModelOptions()
    if source.model is None and domain is None and target is None and name not in DATASETS:
        raise DataError(f"{name}: without --target there are no labels to train on. Name it, or a --model")
    if name in DATASETS:
        if source.columns is not None:
            raise DataError(f"--columns {source.columns}: for tables of your own; the domain of {name} says the order")
        return read_input(load_dataset(name, encoding, sensitive=chosen), source.source, take_rules=take_rules)
    return read_input(
        path if beside is None else beside.joined(path, chosen, domain),
        source.source,
        domain=domain,
        sensitive=chosen,
        target=target,
        take_rules=take_rules,
    )
