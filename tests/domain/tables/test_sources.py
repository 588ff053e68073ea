"""Where raw files come from, and what happens when they are missing, damaged or out of reach."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from neuronfair.domain.tables import sources
from neuronfair.domain.tables.sources import Source, SourceFile
from neuronfair.errors import DataError
from neuronfair.limits import TooLargeError
from tests.bombs import zipped as packed

CONTENT = b"a,b\n1,2\n3,4\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return packed.getvalue()


PAGES = {
    "/good.csv": CONTENT,
    "/wrong.csv": b"something else",
    "/short.csv": CONTENT,
    "/outer.zip": zipped(inner_zip=zipped(table_csv=CONTENT)),
    "/large.csv": bytes(200_000),
    "/large.zip": packed({"large.csv": bytes(200_000)}),
}


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = PAGES.get(self.path)
        if page is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(page) + (7 if self.path == "/short.csv" else 0)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(sources, "cache_folder", lambda: folder)
    monkeypatch.delenv("NEURONFAIR_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return folder


def declare(monkeypatch: pytest.MonkeyPatch, *urls: str, rows_only: bool = False, digest: str = DIGEST) -> None:
    file = SourceFile("table.csv", (digest,), urls, rows_only)
    monkeypatch.setitem(sources.SOURCES, "toy", Source("toy", (file,), page="", licence="", citation=""))


def nothing_left(folder: Path) -> bool:
    return not folder.exists() or not list(folder.iterdir())


def test_bundled_files_are_read_without_any_setting():
    train, test = sources.read_texts("adult")
    assert train.startswith("39, State-gov")
    assert test.startswith("|1x3 Cross validator")
    assert len(sources.read_texts("german")[0].splitlines()) == 1000


def test_bundled_gzip_files_hold_no_name_and_no_time():
    for path in sources.CATALOG.glob("*.gz"):
        head = path.read_bytes()[:10]
        assert head[3] == 0, f"{path.name} stores a name"
        assert head[4:8] == b"\0\0\0\0", f"{path.name} stores a time"


def test_every_source_says_whom_to_cite_and_how_to_get_it():
    for source in sources.SOURCES.values():
        assert source.licence
        assert source.citation
        assert source.page.startswith("https://")
        assert all(file.urls or source.bundled for file in source.files)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(DataError, match="Did you mean 'compas'"):
        sources.read_texts("compass")


@pytest.mark.parametrize("place", ["table.csv", "table.csv.gz", "structured/table.csv.gz"])
def test_own_folder_plain_or_packed(monkeypatch, tmp_path, place):
    declare(monkeypatch)
    path = tmp_path / "own" / place
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(CONTENT) if place.endswith("gz") else CONTENT)
    monkeypatch.setenv("NEURONFAIR_DATA", str(tmp_path / "own"))
    assert sources.find_local_files("toy") == (path,)
    assert sources.read_texts("toy") == (CONTENT.decode(),)


def test_missing_file_says_how_to_get_it():
    assert sources.find_local_files("bank") is None
    with pytest.raises(DataError, match="neuronfair data get bank"):
        sources.read_texts("bank")


@pytest.mark.parametrize("content", [b"a,b\n1,2\n3,5\n", gzip.compress(CONTENT, mtime=0)[:-9]])
def test_damaged_file_is_refused(monkeypatch, cache, content):
    declare(monkeypatch)
    cache.mkdir()
    (cache / "table.csv").write_bytes(content)
    with pytest.raises(DataError, match=r"table\.csv: (damaged.*expected sha256 .*got|cannot be read)"):
        sources.read_texts("toy")


def test_download_is_checked_kept_and_not_repeated(monkeypatch, cache, address):
    declare(monkeypatch, f"{address}/good.csv")
    seen: list[tuple[int, int | None]] = []
    assert sources.get_files("toy", progress=lambda done, total: seen.append((done, total))) == (cache / "table.csv",)
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert sources.read_texts("toy") == (CONTENT.decode(),)
    declare(monkeypatch, f"{address}/gone.csv")
    assert sources.get_files("toy") == (cache / "table.csv",)


def test_download_from_a_zip_inside_a_zip(monkeypatch, address):
    declare(monkeypatch, f"{address}/outer.zip#inner.zip#table.csv")
    sources.get_files("toy")
    assert sources.read_texts("toy") == (CONTENT.decode(),)


def test_second_address_is_tried(monkeypatch, address):
    declare(monkeypatch, f"{address}/gone.csv", f"{address}/good.csv")
    sources.get_files("toy")
    assert sources.find_local_files("toy") is not None


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("/gone.csv", "404"),
        ("/wrong.csv", f"expected sha256 {DIGEST}, got"),
        ("/short.csv", "closed after"),
        ("/good.csv#table.csv", "zip"),
        ("/outer.zip#other.csv", "other.csv"),
    ],
)
def test_failed_download_is_one_line_and_leaves_nothing(monkeypatch, cache, address, page, reason):
    declare(monkeypatch, address + page)
    with pytest.raises(DataError, match="could not be downloaded") as caught:
        sources.get_files("toy")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert nothing_left(cache)


def test_no_network(monkeypatch, cache):
    declare(monkeypatch, "http://127.0.0.1:9/table.csv")
    with pytest.raises(DataError, match="Check the network"):
        sources.get_files("toy")
    assert nothing_left(cache)


def test_full_disk(monkeypatch, cache, address):
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    declare(monkeypatch, f"{address}/good.csv")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DataError, match=r"cannot be written: .*No space left"):
        sources.get_files("toy")
    assert nothing_left(cache)


def test_rows_only_digest_ignores_header_and_line_ends(monkeypatch, cache):
    declare(monkeypatch, rows_only=True, digest=hashlib.sha256(b"1,2\n3,4").hexdigest())
    cache.mkdir()
    (cache / "table.csv").write_bytes(b"x,label\r\n1,2\r\n3,4\r\n")
    assert sources.read_texts("toy")
    (cache / "table.csv").write_bytes(b"a,b\n1,2\n3,5\n")
    with pytest.raises(DataError, match="damaged"):
        sources.read_texts("toy")


@pytest.mark.parametrize("page", ["/large.csv", "/large.zip#large.csv"])
def test_a_download_ends_at_the_limit(monkeypatch, cache, address, page):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "100000")
    declare(monkeypatch, address + page)
    with pytest.raises(DataError, match=r"could not be downloaded .*would take about"):
        sources.get_files("toy")
    assert nothing_left(cache)


def test_a_packed_file_is_unpacked_up_to_the_limit_only(monkeypatch, cache):
    monkeypatch.setenv("NEURONFAIR_MAX_BYTES", "100000")
    declare(monkeypatch)
    cache.mkdir()
    (cache / "table.csv").write_bytes(gzip.compress(bytes(10_000_000)))
    with pytest.raises(TooLargeError, match=r"table\.csv"):
        sources.read_texts("toy")
