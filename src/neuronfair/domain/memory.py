"""Tables in memory, read as columns of text as a file is: pandas, Polars, Arrow, or a mapping of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, time
from pathlib import Path
from typing import Any

from neuronfair.domain.files import Sheet
from neuronfair.errors import DataError, one_line, repeated

NAME = Path("table")  # what a table is called that has no file


def sheet_of(table: Any) -> Sheet:
    """Return a table as columns of text: NaN, NA and None as empty cells, whole numbers without a point.

    >>> sheet_of({"age": [39, None], "score": [0.5, float("nan")], "smokes": [True, False]}).columns
    {'age': ['39', ''], 'score': ['0.5', ''], 'smokes': ['True', 'False']}
    """
    names, columns = zip(*_columns(table), strict=True) if _is_wide(table) else ((), ())
    twice = repeated(names)
    if twice is not None:
        raise DataError(f"{NAME}: has two columns named '{twice}'. Rename one of them")
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise DataError(f"{NAME}: its columns have different lengths: {', '.join(map(str, sorted(lengths)))}")
    if not lengths or lengths == {0}:
        raise DataError(f"{NAME}: no rows ({', '.join(names[:8])})")
    texts = {name: _texts(column) for name, column in zip(names, columns, strict=True)}
    return Sheet(NAME, texts, range(1, lengths.pop() + 1), unit="row")


def _is_wide(table: Any) -> bool:
    """Return whether a table has columns; refuse what is none."""
    if isinstance(table, Mapping) or hasattr(table, "__arrow_c_stream__") or hasattr(table, "__dataframe__"):
        return bool(len(table.columns if hasattr(table, "columns") else table))
    raise DataError(
        f"expected a file, a DataFrame (pandas, Polars), an Arrow table or a mapping of columns, got "
        f"{type(table).__name__}"
    )


def _columns(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of a table's columns and what is in them."""
    import pyarrow

    if isinstance(table, Mapping):
        yield from ((str(name), list(column)) for name, column in table.items())
    elif hasattr(table, "iloc"):  # pandas: column by column, since one of mixed objects cannot become an Arrow table
        yield from ((str(name), table.iloc[:, place]) for place, name in enumerate(table.columns))
    else:
        try:
            if hasattr(table, "__arrow_c_stream__"):
                arrow = pyarrow.table(table)
            else:
                from pyarrow.interchange import from_dataframe

                arrow = from_dataframe(table)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"{NAME}: cannot be read as an Arrow table ({one_line(error)})") from error
        yield from zip(arrow.column_names, arrow.columns, strict=True)


def _texts(column: Any) -> list[str]:
    """Return the cells of a column as text; each different value becomes one once."""
    import pyarrow

    if hasattr(column, "cat"):  # categories of pandas may be intervals and other things that Arrow would take apart
        texts = [*map(_text, column.cat.categories), ""]  # the code of an empty cell is -1
        return [texts[code] for code in column.cat.codes.tolist()]
    try:
        array = column if isinstance(column, pyarrow.ChunkedArray) else pyarrow.array(column, from_pandas=True)
        array = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
        coded = array if pyarrow.types.is_dictionary(array.type) else array.dictionary_encode()
        values, codes = coded.dictionary.to_pylist(), coded.indices.to_pylist()
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):  # objects of several kinds, periods, …
        values, codes = list(column), range(len(column))
    days = all(isinstance(value, datetime) and value.time() == time.min for value in values)
    texts = [str(value.date()) if days else _text(value) for value in values]
    return ["" if code is None else texts[code] for code in codes]


def _text(value: Any) -> str:
    text = str(value).strip()
    if value is None or text in ("nan", "NaT", "<NA>"):
        return ""
    return text if isinstance(value, str) else text.removesuffix(".0")
