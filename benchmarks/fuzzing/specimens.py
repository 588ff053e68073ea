"""Small valid files of every kind that can be read, made on the spot: what is damaged later.

They hold no time and no chance, so that a try means the same file tomorrow.
"""

from __future__ import annotations

import gzip
import io
import re
import tempfile
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from neuronfair.domain.schema.toml import parse_domain
from neuronfair.domain.table import TableDomain
from neuronfair.domain.tables.dataset import Dataset
from neuronfair.model.weights import Card, fingerprint, fully_connected

import numpy as np
import torch

from . import seals
from .mutate import Files, zipped

DOMAIN = """name = "people"
sensitive = ["sex"]
outside = "keep"
encode = "raw"
target = { column = "income", classes = ["low", "high"] }
[attributes]
age = { kind = "ordinal", low = 17, high = 90, center = 40, scale = 10 }
sex = { kind = "flag", values = ["F", "M"] }
race = { kind = "nominal", values = ["A", "B", "C"], encode = "onehot" }
gain = { kind = "continuous", low = 0, high = 50, step = 0.5, missing = 3 }
job = { kind = "nominal", values = ["x", "y"], missing = 7, extra = { "z" = 9 } }
[[rules]]
name = "r"
if = { race = ["A", "B"], gain = 5 }
then = { job = "x" }
[[rules]]
forbid = { gain = { min = 0.5 }, age = { max = 20 } }
"""
TABLE = """age,sex,race,gain,job,income
39,F,A,0.5,x,low
17,M,B,,,high
90,F,C,50,z,low
"""


def domain() -> TableDomain:
    """The people whom all specimens are about."""
    return parse_domain(DOMAIN)


def people(n: int = 40) -> Dataset:
    """Some of them, with labels that depend on their age."""
    rows = domain().sample(n, torch.Generator().manual_seed(0))
    return Dataset("people", domain(), rows, (rows[:, 0] > 30).long())


def network() -> tuple[Any, Any]:
    """A small network that reads the sex, and its card."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = fully_connected(7, (4,), 2)
        module.layer1[0].weight[:, 1] *= 20  # sex matters, so that somebody is found
    sizes, classes = (7, (4,), 2), ("low", "high")
    return module, Card("people", "default", domain().input_fingerprint, *sizes, classes, {}, 0, fingerprint(module))


def csv() -> list[Files]:
    wide = ",".join(f"c{i}" for i in range(40))
    return [
        {"table.csv": TABLE.encode()},
        {"table.csv": f"{TABLE[:28]},{wide}\n39,F,A,0.5,x,low{',1' * 40}\n".encode()},
    ]


def csv_gz() -> list[Files]:
    return [{"table.csv.gz": gzip.compress(TABLE.encode(), mtime=0)}]


def parquet() -> list[Files]:
    import pyarrow.parquet as pq

    return [{"table.parquet": written(lambda path, t=t: pq.write_table(t, path))} for t in _tables()]


def feather() -> list[Files]:
    import pyarrow.feather as pf

    packings = ("uncompressed", "zstd")
    return [
        {"table.feather": written(lambda path, t=t, c=c: pf.write_feather(t, str(path), compression=c))}
        for t in _tables()
        if len(set(t.column_names)) == t.num_columns  # it writes no name twice
        for c in packings
    ]


def _tables() -> list[Any]:
    import pyarrow as pa

    cells = {"age": [39, 17], "sex": ["F", "M"], "race": ["A", "B"], "gain": [0.5, None], "job": ["x", None]}
    table = pa.table(cells | {"income": ["low", "high"]})
    return [
        table,
        table.set_column(1, "sex", table["sex"].dictionary_encode()),
        table.append_column("sex", table["race"]),  # a name twice
        table.set_column(0, "age", pa.array([[1], [2, 3]])),
        table.set_column(0, "age", pa.array([b"\xff", b"39"])),
        table.set_column(0, "age", pa.array([10**17, None], pa.timestamp("ns"))),
        table.set_column(3, "gain", pa.array([float("inf"), float("nan")])),
        table.set_column(3, "gain", pa.nulls(2)),
        table.append_column("\x1b[31m", pa.array([{"a": 1}, None])),
    ]


def toml() -> list[Files]:
    return [{"domain.toml": DOMAIN.encode()}]


def pictures() -> list[Files]:
    from PIL import Image

    def drawn(kind: str, mode: str, **more: Any) -> bytes:
        pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
        place = io.BytesIO()
        Image.fromarray(pixels).convert(mode).save(place, kind, **more)
        return place.getvalue()

    members = [("a.png", drawn("PNG", "RGB")), ("b/c.png", drawn("PNG", "P")), ("d.jpg", drawn("JPEG", "RGB"))]
    labels = b"file,gender,is_face\na.png,f,1\nb/c.png,m,1\nd.jpg,f,0\n"
    return [{"faces.zip": zipped(members), "faces.csv": labels}]


@cache
def audit() -> list[Files]:
    """The folder of a small audit; its searches are run folders."""
    from neuronfair.api import audit as begin
    from neuronfair.audits.settings import AuditSettings

    with tempfile.TemporaryDirectory() as name, ExitStack() as stopped:
        for clock in ("perf_counter", "monotonic", "time"):
            stopped.enter_context(patch(f"time.{clock}", return_value=1.0))
        stopped.enter_context(patch("time.strftime", return_value="2030-01-01T00:00:00+0000"))
        out = Path(name) / "audit"
        begin(network()[0], people(60), settings=AuditSettings.quick(seeds=8, steps=4), folder=out)
        files = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    # This one was begun before the clocks stood still.
    figures = re.sub(rb'("total": )[\d.-]+', rb"\g<1>1.0", files["audit.json"])
    return [seals.set_right(files, files | {"audit.json": figures})]


def run() -> list[Files]:
    """The run folders of that audit."""
    (files,) = audit()
    folders = sorted({name.rpartition("/")[0] for name in files if name.endswith("/journal.jsonl")})
    return [{n.removeprefix(f"{f}/"): part for n, part in files.items() if n.startswith(f"{f}/")} for f in folders]


def baseline() -> list[Files]:
    """The figures of that audit, twice: one is damaged, the other is what it is compared with."""
    figures = audit()[0]["audit.json"]
    return [{"audit.json": figures, "now.json": figures}]


def gate() -> list[Files]:
    figures = audit()[0]["audit.json"]
    limits = (b"sex.rate.table >= 1.5e1%", b"gsr.frontier < 0.5", b"rate > 5%", b"accuracy.test<1")
    return [{"limit.txt": limit, "now.json": figures} for limit in limits]


def names() -> list[Files]:
    """A table and its domain, one of whose words is replaced wherever it stands."""
    return [{"table.csv": TABLE.encode(), "domain.toml": DOMAIN.encode()}]


def regression_set() -> list[Files]:
    from neuronfair.audits.gate.regression_set import extend, read_regression_set
    from neuronfair.audits.report import Report

    report = Report.from_json(audit()[0]["audit.json"])
    return [
        {"regression_set.jsonl": written(lambda path: extend(read_regression_set(path, domain()), report), ".jsonl")}
    ]


def written(write: Callable[[Any], object], suffix: str = "") -> bytes:
    """What a function writes to the file that it is given the name of."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = f"{name}/model{suffix}"
        write(Path(path) if suffix != ".keras" else path)
        return Path(path).read_bytes()
