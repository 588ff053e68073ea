"""The data sets of the catalog: the origin of their raw files, and recipes that turn them into columns.

A file comes from the package, a folder of yours, the cache, or a download. A recipe takes the text of the raw files
and returns columns by name, the target column among them. The `default` recipes keep the readable values; the `paper`
recipes repeat the published preparation, so that the codes of their domain are the inputs of the published models.
"""

from __future__ import annotations

import csv
import hashlib
import http.client
import os
import tomllib
import urllib.request
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuronfair import limits
from neuronfair.atomic import replace_file
from neuronfair.errors import DataError, NeuronFairError, did_you_mean, one_line

CATALOG = Path(__file__).parent / "catalog"
TIMEOUT_SECONDS = 30.0
_CHUNK_BYTES = 1 << 16

DownloadProgress = Callable[[int, int | None], None]
"""Called with the bytes received so far and, where the server says, the bytes in all."""


@dataclass(frozen=True)
class SourceFile:
    """One raw file: its name, the digests it may have, and the addresses to fetch it from.

    An address may end in `#member` to name a file inside a zip archive (`#inner.zip#member` for a nested one).
    With `rows_only` the digest is that of the lines below the header, with normalised line ends: copies of such a file
    agree in every row but not in the name of the last column.
    """

    name: str
    sha256: Sequence[str]
    urls: Sequence[str] = ()
    rows_only: bool = False


@dataclass(frozen=True)
class Source:
    """The origin of one data set: files, page, licence and citation."""

    name: str
    files: tuple[SourceFile, ...]
    page: str
    licence: str
    citation: str
    bundled: bool = False


def _catalog_file(name: str) -> Any:
    return tomllib.loads((CATALOG / name).read_text(encoding="utf-8"))


SOURCES = {
    name: Source(name, **{**entry, "files": tuple(SourceFile(**file) for file in entry["files"])})
    for name, entry in _catalog_file("sources.toml").items()
}


def find_source(name: str) -> Source:
    """Return the origin of a data set by its name."""
    if name not in SOURCES:
        raise DataError(f"no data set '{name}'. {did_you_mean(name, SOURCES)}")
    return SOURCES[name]


def cache_folder() -> Path:
    """Return the folder that downloads are kept in."""
    import platformdirs  # not needed for bundled data

    return platformdirs.user_cache_path("neuronfair")


def find_local_files(name: str) -> tuple[Path, ...] | None:
    """Return the files of a data set, or None if one of them is not on this machine."""
    files = find_source(name).files
    present = tuple(path for path in (_find_file(file, find_source(name)) for file in files) if path is not None)
    return present if len(present) == len(files) else None


def read_texts(name: str) -> tuple[str, ...]:
    """Return the text of each file of a data set after checking its checksum."""
    texts = []
    for file in find_source(name).files:
        path = _find_file(file, find_source(name))
        if path is None:
            raise DataError(
                f"{name}: {file.name} is not on this machine. Run `neuronfair data get {name}`, "
                f"or set NEURONFAIR_DATA to the folder that holds it"
            )
        content = read_bytes(path)
        _check_digest(content, file, str(path))
        texts.append(content.decode("utf-8"))
    return tuple(texts)


def get_files(name: str, progress: DownloadProgress | None = None) -> tuple[Path, ...]:
    """Return the files of a data set, downloading missing ones to the cache.

    A download is kept only if its checksum is right.
    """
    return tuple(
        _find_file(file, find_source(name)) or _download(file, name, progress) for file in find_source(name).files
    )


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is a gzip file."""
    try:
        content = limits.read_bytes(path)
        return limits.unpack_gzip(content, path) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {one_line(error)}") from None


def _find_file(file: SourceFile, origin: Source) -> Path | None:
    paths = [CATALOG / f"{file.name}.gz"] if origin.bundled else [cache_folder() / file.name]
    if not origin.bundled and (folder := os.environ.get("NEURONFAIR_DATA")):
        folders = (Path(folder), Path(folder) / "structured")
        paths = [data_folder / f"{file.name}{end}" for data_folder in folders for end in ("", ".gz")] + paths
    return next((path for path in paths if path.is_file()), None)


def _check_digest(content: bytes, file: SourceFile, label: str) -> None:
    checked_bytes = b"\n".join(content.splitlines()[1:]) if file.rows_only else content
    digest = hashlib.sha256(checked_bytes).hexdigest()
    if digest not in file.sha256:
        expected = " or ".join(file.sha256)
        raise DataError(
            f"{label}: damaged, or not {file.name}: expected sha256 {expected}, got {digest}. Delete it and get it anew"
        )


def _download(file: SourceFile, name: str, progress: DownloadProgress | None) -> Path:
    failures = []
    for url in file.urls:
        try:
            content = _fetch(url, progress)
            _check_digest(content, file, url)
        # A server can fail in many ways; each is one line of the message, and the next address is tried.
        except (OSError, http.client.HTTPException, ValueError, KeyError, zipfile.BadZipFile, NeuronFairError) as error:
            failures.append(str(error) if isinstance(error, NeuronFairError) else f"{url}: {one_line(error)}")
        else:
            return _cache_file(content, cache_folder() / file.name)
    raise DataError(
        f"{name}: {file.name} could not be downloaded ({'; '.join(failures) or 'no address is known'}). "
        f"Check the network, or set NEURONFAIR_DATA to a folder that holds the file"
    )


def _fetch(url: str, progress: DownloadProgress | None) -> bytes:
    address, *members = url.split("#")
    received = bytearray()
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as reply:
        length = reply.headers.get("Content-Length")
        total = int(length) if length else None
        while chunk := reply.read(_CHUNK_BYTES):
            received += chunk
            limits.check_size(len(received), address)
            if progress:
                progress(len(received), total)
    if total is not None and len(received) < total:
        raise OSError(f"connection closed after {len(received)} of {total} bytes")
    content = bytes(received)
    for member in members:
        with limits.open_archive(content, address) as archive:
            content = limits.read_member(archive, member)
    return content


def _cache_file(content: bytes, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written: {one_line(error)}. Free some space or set NEURONFAIR_DATA"
        ) from None
    return path


YES_NO = {"0": "no", "1": "yes"}
VISITS = {"0": "under 10 visits", "1": "10 visits or more"}
RawColumns = Mapping[str, Sequence[str | int]]

_ADULT_COLUMNS = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex "
    "capital_gain capital_loss hours_per_week native_country income"
)


def _make_columns(names: Sequence[str], rows: Iterable[Sequence[str]]) -> dict[str, list[str]]:
    return {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _floor(column: Sequence[str], divisor: int, low: int = -(2**63), high: int = 2**63) -> list[int]:
    """Return the numbers of a column in steps of `divisor`, held between `low` and `high`."""
    return [min(max(int(cell) // divisor, low), high) for cell in column]


def _floor_cells(table: Mapping[str, list[str]], **divisors: int) -> RawColumns:
    return {name: _floor(column, divisors[name]) if name in divisors else column for name, column in table.items()}


def _rename_cells(column: Sequence[str], names: Mapping[str, str]) -> list[str]:
    return [names[cell] for cell in column]


def _read_adult(*texts: str) -> dict[str, list[str]]:
    lines = (line for text in texts for line in text.splitlines())
    # The test file begins with a comment line and ends its labels in a full stop.
    return _make_columns(
        _ADULT_COLUMNS.split(), [line.rstrip(".").split(", ") for line in lines if line and not line.startswith("|")]
    )


def adult_default(train: str, test: str) -> RawColumns:
    """Return all 48,842 people of Adult, without the weight of the census and the number that repeats the education.

    `fnlwgt` is the sampling weight of a record; `education_num` is the rank of its education.
    """
    return {k: column for k, column in _read_adult(train, test).items() if k not in ("fnlwgt", "education_num")}


def adult_paper(train: str, test: str) -> RawColumns:
    """Return the 32,561 training rows of Adult with the published coarser numbers."""
    table = _read_adult(train)
    del table["education_num"]
    return _floor_cells(table, age=10, fnlwgt=20_000, capital_gain=1_000, capital_loss=100)


_GERMAN_COLUMNS = (
    "checking_status duration credit_history purpose credit_amount savings_status employment installment_commitment "
    "sex other_parties residence property_magnitude age other_payment_plans housing existing_credits job "
    "num_dependents own_telephone foreign_worker credit"
)


def german_default(text: str) -> dict[str, list[str]]:
    """Return the 1,000 applicants of German credit in words."""
    table = _make_columns(_GERMAN_COLUMNS.split(), [line.split() for line in text.splitlines()])
    words = _catalog_file("german.words.toml")["words"]
    spelled = {name: [words.get(cell, cell) for cell in column] for name, column in table.items()}
    return spelled | {"credit": _rename_cells(table["credit"], {"1": "good", "2": "bad"})}


def german_paper(text: str) -> RawColumns:
    """Return the published balanced sample of 600 applicants with its coarser numbers."""
    chosen = _catalog_file("german.words.toml")["sample"]["rows"]
    sample = {name: [column[i] for i in chosen] for name, column in german_default(text).items()}
    return _floor_cells(sample, credit_amount=100, age=10)


def bank_default(text: str) -> dict[str, list[str]]:
    """Return the 45,211 clients of Bank marketing as recorded.

    `duration`, the length of the call, is known only after the call; it is kept because the paper's models use it.
    """
    header, *rows = csv.reader(text.splitlines(), delimiter=";")
    return _make_columns(header, rows)


def bank_paper(text: str) -> RawColumns:
    """Return Bank marketing with the published coarser numbers; `pdays` is 1 for clients without an earlier call."""
    table = bank_default(text)
    return table | {
        "age": _floor(table["age"], 10, 1, 9),
        "balance": _floor(table["balance"], 50, -20, 179),
        "duration": _floor(table["duration"], 10, 0, 99),
        "pdays": [int(cell == "-1") for cell in table["pdays"]],
        "previous": _floor(table["previous"], 1, 0, 1),
    }


_COMPAS_COLUMNS = (
    "sex age race juv_fel_count juv_misd_count juv_other_count priors_count "
    "age_cat c_charge_degree c_charge_desc two_year_recid"
)
_MIN_CHARGES = 20


def _read_compas(text: str) -> dict[str, list[str]]:
    """Return the rows and columns of COMPAS that AIF360 keeps."""
    names = _COMPAS_COLUMNS.split()
    header, *rows = csv.reader(text.splitlines())
    # Some names stand twice in the published header; the first one is meant.
    column_index = {name: header.index(name) for name in header}

    def is_kept(row: Sequence[str]) -> bool:
        days = row[column_index["days_b_screening_arrest"]]
        return (
            days != ""
            and abs(float(days)) <= 30
            and row[column_index["is_recid"]] != "-1"
            and row[column_index["c_charge_degree"]] != "O"
            and row[column_index["score_text"]] != "N/A"
            and all(row[column_index[name]] != "" for name in names)
        )

    return _make_columns(names, [[row[column_index[name]] for name in names] for row in rows if is_kept(row)])


def compas_default(text: str) -> RawColumns:
    """Return the 6,167 defendants of COMPAS in words.

    `age_cat` repeats `age` and is left out. Charges are compared in lower case (some are spelt in two ways), and those
    with fewer than 20 defendants are called "other".
    """
    table = _read_compas(text)
    del table["age_cat"]
    charges = [charge.lower() for charge in table["c_charge_desc"]]
    often = Counter(charges)
    return table | {
        "c_charge_degree": _rename_cells(table["c_charge_degree"], {"F": "felony", "M": "misdemeanor"}),
        "c_charge_desc": [charge if often[charge] >= _MIN_CHARGES else "other" for charge in charges],
        "two_year_recid": _rename_cells(table["two_year_recid"], YES_NO),
    }


def compas_paper(text: str) -> RawColumns:
    """Return COMPAS as AIF360 encodes it: 7 numbers and 394 flags, which know nothing of each other."""
    table = _read_compas(text)
    columns: dict[str, Sequence[str | int]] = {name: table[name] for name in list(table)[:7]}
    columns["race"] = ["Caucasian" if cell == "Caucasian" else "not Caucasian" for cell in table["race"]]
    for name in ("age_cat", "c_charge_degree", "c_charge_desc"):
        columns |= _make_flags(name, table[name], sorted(set(table[name])))
    return columns | {"two_year_recid": _rename_cells(table["two_year_recid"], YES_NO)}


def _make_flags(name: str, column: Sequence[str], values: Sequence[str]) -> dict[str, list[int]]:
    return {f"{name}={value}": [int(cell == value) for cell in column] for value in values}


def _read_meps(text: str) -> tuple[dict[str, list[str]], Any]:
    """Return the table of MEPS in code-book values, and what is known of its columns."""
    code_book = _catalog_file("meps.words.toml")
    table = _make_columns([*code_book, "UTILIZATION"], list(csv.reader(text.splitlines()))[1:])
    for name, column in code_book.items():
        if "codes" in column:
            table[name] = [column["codes"][int(cell)] for cell in table[name]]
    return table, code_book


def meps_default(text: str) -> RawColumns:
    """Return the 15,675 people of MEPS panel 21 in the words of its code book."""
    table, code_book = _read_meps(text)
    columns = {c["name"]: [c.get("words", {}).get(v, v) for v in table[name]] for name, c in code_book.items()}
    return columns | {"utilization": _rename_cells(table["UTILIZATION"], VISITS)}


def meps_paper(text: str) -> RawColumns:
    """Return MEPS as AIF360 encodes it: 5 numbers, then flags, less `SEX=2`, which the paper takes out.

    The source has no HIBPDX, so these are 134 columns where the published model takes 137.
    """
    table, code_book = _read_meps(text)
    numbers = ("AGE", "RACE", "PCS42", "MCS42", "K6SUM42")
    columns: dict[str, Sequence[str | int]] = {name: table[name] for name in numbers}
    for name in code_book:
        if name not in numbers:
            columns |= _make_flags(name, table[name], sorted(set(table[name]), key=int))
    del columns["SEX=2"]
    return columns | {"UTILIZATION": _rename_cells(table["UTILIZATION"], VISITS)}


RECIPES: dict[tuple[str, str], Callable[..., RawColumns]] = {
    ("adult", "default"): adult_default,
    ("adult", "paper"): adult_paper,
    ("german", "default"): german_default,
    ("german", "paper"): german_paper,
    ("bank", "default"): bank_default,
    ("bank", "paper"): bank_paper,
    ("compas", "default"): compas_default,
    ("compas", "paper"): compas_paper,
    ("meps", "default"): meps_default,
    ("meps", "paper"): meps_paper,
}
