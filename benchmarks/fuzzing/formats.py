"""What is fuzzed: for every format its specimens, how they are damaged, and what reads them."""

from __future__ import annotations

import csv
import io
import json
import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from . import fields, models, readings, seals, specimens
from .mutate import (
    CONTROLS,
    MARK,
    WORDS,
    Files,
    as_toml,
    bent,
    bent_json,
    bent_lines,
    damaged,
    flipped,
    repacked,
    swapped,
)
from .ubj import ubj

Change = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Format:
    """One kind of file or folder.

    `weight` is its share of the tries. Every function of `reads` is given the folder with the damaged files.
    `libraries` are what makes and reads them. Files whose names are `kept` are not damaged. The first specimen is
    accepted as it is, unless the format is not `sound`.
    """

    name: str
    weight: float
    specimens: Callable[[], list[Files]]
    reads: tuple[Callable[[Path], object], ...]
    libraries: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    sound: bool = True
    mutate: Callable[[Files, random.Random], Files] | None = None

    def damage(self, valid: list[Files], seed: int, number: int) -> Files:
        """The files of a try: always the same for a seed and a number; those of try -1 are whole."""
        if number < 0:
            return valid[0]
        dice = random.Random(f"{seed}:{self.name}:{number}")
        files = dice.choice(valid)
        if self.mutate is not None:
            return self.mutate(files, dice)
        name = dice.choice([name for name in files if name not in self.kept])
        if dice.random() < 0.2:
            return files | {name: changed(name, files[name], dice)}
        return seals.set_right(files, files | {name: changed(name, seals.opened(name, files[name]), dice)})


def changed(name: str, content: bytes, dice: random.Random) -> bytes:
    """A file damaged anywhere, or at its fields, as the end of its name says."""
    act = dice.random()
    if act < 0.12:
        return damaged(content, dice)
    if act < 0.2:
        return flipped(content, dice)
    return CHANGES.get(Path(name).suffix, damaged)(content, dice)


def _archive(described: Change = bent_json) -> Change:
    """Return how to damage an archive, given how to damage the JSON in it."""

    def change(name: str, content: bytes, dice: random.Random) -> bytes:
        if name.endswith((".json", ".h5")) and dice.random() < 0.9:
            return described(content, dice) if name.endswith(".json") else fields.h5(content, dice)
        return changed(name, content, dice)

    return lambda content, dice: repacked(content, dice, change)


def _toml(content: bytes, dice: random.Random) -> bytes:
    return swapped(content, dice) if dice.random() < 0.4 else as_toml(bent(tomllib.loads(content.decode()), dice))


def _table(content: bytes, dice: random.Random) -> bytes:
    """A CSV file with other cells, names, lines or columns."""
    if dice.random() < 0.4:
        return swapped(content, dice)
    if dice.random() < 0.005:
        return b",".join(b"c%d" % i for i in range(20_000)) + b"\n" + b"1," * 19_999 + b"1\n"
    table = bent([line.split(",") for line in content.decode().splitlines()], dice)
    lines = [line if isinstance(line, list) else [line] for line in table] if isinstance(table, list) else [[table]]
    place = io.StringIO(newline="")
    csv.writer(place, delimiter=dice.choice(",,,;\t|")).writerows(lines)
    return place.getvalue().encode(errors="surrogatepass" if dice.random() < 0.1 else "replace")


def _layer(home: str, kind: str, **config: Any) -> dict[str, Any]:
    return {"module": home, "class_name": kind, "config": {"name": "x", **config}, "registered_name": None}


_LAMBDA = {"class_name": "__lambda__", "config": {"value": "4wEAAAA=", "defaults": None, "closure": None}}
_FETCH = {"url": f"http://127.0.0.1:9/{MARK}", "fname": f"../{MARK}"}
LAYERS: list[Any] = [
    _layer("keras.layers", "Lambda", function=_LAMBDA, arguments={}),
    _layer("builtins", "eval", source=f"open('../{MARK}', 'w')"),
    _layer(MARK, "Dense", units=3),
    _layer("keras.layers", "TorchModuleWrapper", module="gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg=="),
    _layer("keras.layers", "StringLookup", vocabulary="../canary.h5"),
    _layer("keras.layers", "TextVectorization", vocabulary="../canary.h5"),
    _layer("keras.layers", "TFSMLayer", filepath=f"../{MARK}"),
    _layer("keras.layers", "Dense", units=10**9),
    _layer("keras.layers", "Dropout", rate=0.9),
    _layer("keras.utils", "get_file", **_FETCH),
    {"module": "keras.config", "class_name": "enable_unsafe_deserialization", "config": {}, "registered_name": None},
    {"class_name": "function", "config": "os.system", "module": "os", "registered_name": "system"},
]
TYPES: list[Any] = [
    {"__class__": kind, "__module__": module, "__loader__": f"{loader}Node", "__id__": 1, "content": f"../{MARK}"}
    for module, kind, loader in (
        *(("os", "system", "Function"), ("builtins", "eval", "Type"), (MARK, "Model", "Object")),
        *(("functools", "partial", "Partial"), ("operator", "methodcaller", "OperatorFunc"), ("re", "x", "Method")),
    )
]
CHANGES: dict[str, Change] = {
    ".csv": _table,
    ".gz": lambda content, dice: fields.packed(_table(specimens.TABLE.encode(), dice), dice),
    ".parquet": fields.parquet,
    ".toml": _toml,
    ".txt": swapped,
    ".json": bent_json,
    ".jsonl": bent_lines,
    ".npy": fields.npy,
    ".npz": _archive(),
    ".safetensors": fields.safetensors,
    ".onnx": fields.onnx,
    ".skops": _archive(partial(bent_json, grafts=TYPES)),
    ".keras": _archive(partial(bent_json, grafts=LAYERS)),
    ".h5": partial(fields.h5, grafts=LAYERS),
    ".ubj": ubj,
    ".cbm": flipped,
    ".png": fields.picture,
    ".jpg": fields.picture,
    ".zip": _archive(),
}


def _named(files: Files, dice: random.Random) -> Files:
    """A table and its domain with an odd name in the place of a usual one, and in the names of the files."""
    odd = dice.choice(WORDS if dice.random() < 0.3 else CONTROLS)
    word = dice.choice(("age", "sex", "race", "income", "low", "A", "x", "people", "r", "F"))
    text = files["domain.toml"].decode()
    quoted = json.dumps(odd)
    for was in (f'"{word}"', f"\n{word} =", f"{{ {word} ="):
        text = text.replace(was, was.replace(was.strip("\n{ ="), quoted))
    cells = [
        [odd if cell == word else cell for cell in line.split(",")] for line in files["table.csv"].decode().split()
    ]
    if dice.random() < 0.6:
        line = dice.choice(cells)
        line[dice.randrange(len(line))] = dice.choice(CONTROLS)
    place = io.StringIO(newline="")
    csv.writer(place).writerows(cells)
    stem = "".join(letter for letter in odd if letter not in "/\0\ud800")[:80] or "odd"
    return {f"{stem}.toml": text.encode(), f"{stem}.csv": place.getvalue().encode(errors="replace")}


BY_NAME = {
    each.name: each
    for each in (
        Format("csv", 8, specimens.csv, (readings.table, readings.draft)),
        Format("csv.gz", 5, specimens.csv_gz, (readings.table, readings.draft)),
        Format("parquet", 6, specimens.parquet, (readings.table, readings.draft), ("pyarrow.parquet",)),
        Format("feather", 6, specimens.feather, (readings.table, readings.draft), ("pyarrow.feather",)),
        Format("toml", 8, specimens.toml, (readings.domain,)),
        Format("names", 6, specimens.names, (readings.names,), mutate=_named),
        Format("npz", 6, models.npz, (readings.model,)),
        Format("safetensors", 6, models.safetensors, (readings.model,)),
        Format("onnx", 7, models.onnx, (readings.model,), ("onnx", "onnxruntime")),
        Format("skops", 6, models.skops, (readings.model,), ("skops.io", "sklearn.pipeline", "sklearn.neural_network")),
        Format("joblib", 2, models.joblib, (readings.model,), ("sklearn.neural_network",), sound=False),
        Format("ubj", 3.5, models.ubj, (readings.model,), ("xgboost", "pandas")),
        Format("xgboost", 3.5, models.xgboost_json, (readings.model,), ("xgboost", "pandas")),
        Format("lightgbm", 3.5, models.lightgbm, (readings.model,), ("lightgbm", "pandas")),
        Format("catboost", 3.5, models.catboost, (readings.model,), ("catboost", "pandas")),
        Format("h5", 3.5, models.h5, (readings.model,), ("keras", "h5py")),
        Format("keras", 3.5, models.keras, (readings.model,), ("keras", "h5py")),
        Format("pictures", 5, specimens.pictures, (readings.pictures,)),
        Format("run", 7, specimens.run, (readings.run,)),
        Format("audit", 4, specimens.audit, (readings.audit,)),
        Format("baseline", 5, specimens.baseline, (readings.baseline,), kept=("now.json",)),
        Format("regression_set", 5, specimens.regression_set, (readings.regression_set,)),
        Format("gate", 4, specimens.gate, (readings.gate,), kept=("now.json",)),
    )
}
