"""Tables in memory, read as columns of text as a file is: pandas, Polars, Arrow, or a mapping of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from numbers import Number
from pathlib import Path
from typing import Any

from neuronfair.domain.tables.files import ColumnType, Sheet
from neuronfair.errors import DataError, one_line, repeated

NAME = Path("table")  # what a table is called that has no file


def sheet_of(table: Any) -> Sheet:
    """Return a table as columns of text: NaN, NA and None as empty cells, whole numbers without a point.

    >>> sheet_of({"age": [39, None], "score": [0.5, float("nan")], "smokes": [True, False]}).columns
    {'age': ['39', ''], 'score': ['0.5', ''], 'smokes': ['True', 'False']}
    """
    labels, columns = zip(*_columns(table), strict=True) if _is_wide(table) else ((), ())
    names = tuple(map(str, labels))
    twice = repeated(names)
    if twice is not None:
        raise DataError(f"{NAME}: has two columns named '{twice}'. Rename one of them")
    lengths = {len(column) for column in columns}
    if len(lengths) > 1:
        raise DataError(f"{NAME}: its columns have different lengths: {', '.join(map(str, sorted(lengths)))}")
    if not lengths or lengths == {0}:
        raise DataError(f"{NAME}: no rows ({', '.join(names[:8])})")
    texts, types = dict[str, list[str]](), dict[str, ColumnType]()
    for name, label, column in zip(names, labels, columns, strict=True):
        texts[name], cells = _texts(column)
        types[name] = ColumnType(label, getattr(column, "dtype", None), cells)
    frame = table if hasattr(table, "iloc") else None
    spans = [name for name, column in types.items() if getattr(column.dtype, "kind", "") == "m"]
    remarks = tuple(f"'{name}' holds durations, read as seconds" for name in spans)
    return Sheet(NAME, texts, range(1, lengths.pop() + 1), unit="row", remarks=remarks, types=types, frame=frame)


def _is_wide(table: Any) -> bool:
    """Return whether a table has columns; refuse what is none."""
    if isinstance(table, Mapping) or hasattr(table, "__arrow_c_stream__") or hasattr(table, "__dataframe__"):
        return bool(len(table.columns if hasattr(table, "columns") else table))
    raise DataError(
        f"expected a file, a DataFrame (pandas, Polars), an Arrow table or a mapping of columns, got "
        f"{type(table).__name__}"
    )


def _columns(table: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a table's columns are called, which need not be text, and what is in them."""
    import pyarrow

    if isinstance(table, Mapping):
        yield from ((name, list(column)) for name, column in table.items())
    elif hasattr(table, "iloc"):  # pandas: column by column, since one of mixed objects cannot become an Arrow table
        yield from ((name, table.iloc[:, place]) for place, name in enumerate(table.columns))
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


def _texts(column: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the cells of a column as text, and what each text stood for where that is no number.

    Each different value becomes a text once.
    """
    import pyarrow

    if hasattr(column, "cat"):  # categories of pandas may be intervals and other things that Arrow would take apart
        values = column.cat.categories.tolist()
        texts = [*map(_text, values), ""]  # the code of an empty cell is -1
        return [texts[code] for code in column.cat.codes.tolist()], _stood_for(texts[:-1], values)
    try:
        array = column if isinstance(column, pyarrow.ChunkedArray) else pyarrow.array(column, from_pandas=True)
        array = array.combine_chunks() if isinstance(array, pyarrow.ChunkedArray) else array
        coded = array if pyarrow.types.is_dictionary(array.type) else array.dictionary_encode()
        values, codes = coded.dictionary.to_pylist(), coded.indices.to_pylist()
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError):  # objects of several kinds, periods, …
        values, codes = list(column), range(len(column))
    days = all(isinstance(value, datetime) and value.time() == time.min for value in values)
    texts = [str(value.date()) if days else _text(value) for value in values]
    return ["" if code is None else texts[code] for code in codes], _stood_for(texts, values)


def _stood_for(texts: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Return the value that each text was made of; nothing for numbers, which a dtype describes."""
    if all(isinstance(value, (Number, timedelta)) and not isinstance(value, bool) for value in values):
        return {}
    return {text: value for text, value in zip(texts, values, strict=True) if text}


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    text = str(value).strip()
    if value is None or text in ("nan", "NaT", "<NA>"):
        return ""
    return text if isinstance(value, str) else text.removesuffix(".0")
