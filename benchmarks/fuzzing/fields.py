"""Damage to binary formats at their fields: lengths, shapes, types, links and names that are well-formed and wrong."""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from .mutate import BOMB, CANARY, ENDS, MARK, VALUES, WORDS, as_json, bent, bent_json, damaged, flipped, swapped

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (3, 1), (2**31,), (10**5, 10**5), (2**62, 4), (1,) * 40, (300, 10**6)]


def npy(valid: bytes, dice: random.Random) -> bytes:
    """An array of numpy whose header says another shape or type, or is no header."""
    start = 10 if valid[6] == 1 else 12
    length = int.from_bytes(valid[8:start], "little")
    header, data = valid[start : start + length].decode("latin1"), valid[start + length :]
    kinds = [
        "'|O'",
        "'<U99999999'",
        "'<f2'",
        "'>f8'",
        "'<i8'",
        "'|V0'",
        "'<M8[s]'",
        "[('a', '<f4'), ('b', '|O')]",
        "''",
    ]
    act = dice.random()
    if act < 0.4:
        header = re.sub(r"\(.*\)", str(dice.choice(SHAPES)), header)
    elif act < 0.7:
        header = re.sub(r"'[<>|=].*?'", lambda _: dice.choice(kinds), header, count=1)
    elif act < 0.9:
        header = swapped(header.encode("latin1"), dice).decode("latin1")
    else:
        header = dice.choice(WORDS).encode(errors="replace").decode("latin1")
    if dice.random() < 0.01:
        header, data = str({"descr": "<f8", "fortran_order": False, "shape": (5000, 5000)}), bytes(BOMB)
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + data


def safetensors(valid: bytes, dice: random.Random) -> bytes:
    """Tensors whose header, or the card in it, is bent."""
    length = int.from_bytes(valid[:8], "little")
    header, data = json.loads(valid[8 : 8 + length]), valid[8 + length :]
    about = header.get("__metadata__") or {}
    if about and dice.random() < 0.5:
        key = dice.choice(list(about))
        about[key] = bent_json(about[key].encode(), dice).decode()
        text = json.dumps(header).encode()
    else:
        text = as_json(bent(header, dice))
    said = len(text) if dice.random() < 0.9 else dice.choice(ENDS) % 2**64
    return said.to_bytes(8, "little") + text + data


def picture(valid: bytes, dice: random.Random) -> bytes:
    """A PNG whose chunks are changed, with right checksums, or a JPEG that says another size."""
    if valid[:2] == b"\xff\xd8":
        at = valid.index(b"\xff\xc0") + 5
        return valid[:at] + struct.pack(">HH", *dice.choices((0, 1, 9, 12_000, 65_535), k=2)) + valid[at + 4 :]
    chunks, at = [], 8
    while at < len(valid):
        length = int.from_bytes(valid[at : at + 4], "big")
        chunks.append((valid[at + 4 : at + 8], valid[at + 8 : at + 8 + length]))
        at += length + 12
    act, which = dice.random(), dice.randrange(len(chunks))
    if act < 0.5:
        sizes = [dice.choice((0, 1, 64, 9_000, 12_000, 100_000, 2**31 - 1, 2**32 - 1)) for _ in range(2)]
        chunks[0] = (
            b"IHDR",
            struct.pack(">II", *sizes) + (chunks[0][1][8:] if dice.random() < 0.8 else b"\x10\6\0\0\1"),
        )
    elif act < 0.65:
        text = zlib.compress(bytes(BOMB // 10)) if dice.random() < 0.3 else dice.randbytes(9)
        kind = dice.choice((b"zTXt", b"iCCP", b"tEXt", b"acTL", b"fdAT", b"PLTE", b"tRNS", b"eXIf"))
        chunks.insert(dice.randint(1, len(chunks)), (kind, b"x\0\0" + text))
    elif act < 0.8:
        chunks[which] = (chunks[which][0], damaged(chunks[which][1], dice))
    elif act < 0.9:
        chunks.insert(which, chunks[which])
    else:
        del chunks[which]
    body = [struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks]
    return valid[:8] + b"".join(body)


@cache
def _many_rows() -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"age": 39, "sex": "F", "race": "A", "gain": 0.5, "job": "x", "income": "low"}
    place = io.BytesIO()
    pq.write_table(pa.table({name: pa.repeat(cell, 3_000_000) for name, cell in row.items()}), place)
    return place.getvalue()


def parquet(valid: bytes, dice: random.Random) -> bytes:
    """A Parquet file with other bytes, or with millions of rows in a few thousand bytes."""
    return _many_rows() if dice.random() < 0.005 else flipped(valid, dice)


@cache
def _bomb(kind: str) -> bytes:
    lines = {"field": b"x" * BOMB, "lines": b"39,F,A,0.5,x,low\n" * (BOMB // 17), "columns": b"a," * 50_000}
    return gzip.compress(b"age,sex,race,gain,job,income\n" * (kind != "columns") + lines[kind], 1, mtime=0)


def packed(text: bytes, dice: random.Random) -> bytes:
    """A gzip file of a text: whole, in several members, damaged, or a bomb."""
    act = dice.random()
    if act < 0.01:
        return _bomb(dice.choice(("field", "lines", "columns")))
    if act < 0.1:
        return b"".join(gzip.compress(part, mtime=0) for part in (text[:20], b"", text[20:])) + b"\0" * dice.choice(
            (0, 9)
        )
    content = gzip.compress(text, mtime=0)
    return content if act < 0.7 else damaged(content, dice)


def h5(valid: bytes, dice: random.Random, grafts: list[Any] | None = None) -> bytes:
    """An HDF5 file with other attributes, links, shapes, types or places of its data."""
    import h5py

    place = io.BytesIO(valid)
    with h5py.File(place, "r+") as file:
        paths: list[str] = []
        file.visit(paths.append)
        path = dice.choice(paths)
        home, name = file[path].parent, path.rpartition("/")[2]
        item = dice.choice((file, file[path]))
        act = dice.random()
        if act < 0.45 and len(item.attrs):
            _attribute(item, dice.choice(sorted(item.attrs)), dice, grafts or [])
        elif act < 0.55:
            home.move(name, dice.choice([new for new in ("x", "kernel", "bias:0", "0", "é") if new not in home]))
        else:
            del home[name]
            act = dice.random()
            if act < 0.35:
                where = dice.choice((f"/{path}", "/", "/none", dice.choice(paths)))
                home[name] = dice.choice((h5py.SoftLink(where), h5py.ExternalLink(CANARY, "/x"), file))
            elif act < 0.45:
                home.create_dataset(name, (4, 4), "f", external=[(CANARY, 0, 64)])
            elif act < 0.75:
                shape = dice.choice([shape for shape in SHAPES if len(shape) < 32])
                home.create_dataset(name, shape, "f", chunks=(1,) * len(shape) if shape and 0 not in shape else None)
            elif act < 0.9:
                data = dice.choice((b"x", ["a", MARK], 1.5, np.zeros(2, "f2"), np.zeros(2, [("a", "f"), ("b", "i8")])))
                home.create_dataset(name, data=data)
            elif act < 0.95:
                home.create_dataset(name, (2,), h5py.ref_dtype)
    return place.getvalue()


def _attribute(item: Any, name: str, dice: random.Random, grafts: list[Any]) -> None:
    value = item.attrs[name]
    act = dice.random()
    if act < 0.1:
        del item.attrs[name]
    elif act < 0.7 and isinstance(value, str) and value[:1] == "{":
        item.attrs[name] = as_json(bent(json.loads(value), dice, grafts))[:60_000].decode()
    elif act < 0.8:
        item.attrs[name] = dice.choice((1, -1.5, np.zeros((3, 9)), np.zeros(0), b"\xff"))
    else:
        word = dice.choice(WORDS).replace("\0", "").encode(errors="replace")[:60_000]
        item.attrs[name] = word if dice.random() < 0.5 else np.array([word, word])


OPERATORS = (
    *(
        "Loop",
        "If",
        "Scan",
        "ConstantOfShape",
        "Range",
        "Expand",
        "Tile",
        "Pad",
        "Resize",
        "ArgMax",
        "ZipMap",
        "Reshape",
    ),
    *("Constant", "Shape", "Conv", "RandomNormal", "Dropout", "Cast", "Gather", "Slice", "Concat", "MatMul", "Softmax"),
    *("Einsum", "Unsqueeze", "BatchNormalization", "Clip", "TopK", "NonZero", "Flatten", "eval", "__class__", MARK),
)


def onnx(valid: bytes, dice: random.Random) -> bytes:
    """An ONNX graph with other operators, attributes, sizes, names or places of its weights."""
    import onnx as library

    model = library.ModelProto.FromString(valid)
    if dice.random() < 0.05:
        _costly(library.helper, model.graph, endless=dice.random() < 0.3)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        message = dice.choice(list(_messages(model)))
        set_fields = [field for field, _ in message.ListFields()]
        field = dice.choice(set_fields if set_fields and dice.random() < 0.85 else list(message.DESCRIPTOR.fields))
        _set(message, field, dice)
    return bytes(model.SerializeToString())


def _costly(helper: Any, graph: Any, *, endless: bool) -> None:
    """Put before a graph what never ends, or takes all memory."""
    before, after = graph.input[0].name, "costly"
    for node in graph.node:
        node.input[:] = [after if name == before else name for name in node.input]
    if endless:
        body = helper.make_graph(
            [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Add", ["v", "v"], ["w"])],
            "body",
            [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, []), ("c", 9, []), ("v", 1, ["n", 7]))],
            [helper.make_tensor_value_info(n, t, s) for n, t, s in (("d", 9, []), ("w", 1, ["n", 7]))],
        )
        nodes = [
            helper.make_node("Constant", [], ["M"], value=helper.make_tensor("t", 7, [], [2**62])),
            helper.make_node("Loop", ["M", "", before], [after], body=body),
        ]
    else:
        nodes = [
            helper.make_node("Constant", [], ["shape"], value=helper.make_tensor("t", 7, [2], [45_000, 45_000])),
            helper.make_node("ConstantOfShape", ["shape"], ["large"]),
            helper.make_node("ReduceMax", ["large"], ["largest"], keepdims=0),
            helper.make_node("Add", [before, "largest"], [after]),
        ]
    for node in reversed(nodes):
        graph.node.insert(0, node)


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if hasattr(value, "append") else [value]:
                yield from _messages(part)


def _set(message: Any, field: Any, dice: random.Random) -> None:
    """Give a field another value of its type; in a list, also leave one out, double it or change the order."""
    value = getattr(message, field.name)
    many = hasattr(value, "append")
    act = dice.random()
    if many and len(value) and act < 0.4:
        at = dice.randrange(len(value))
        if act < 0.15:
            del value[at]
        elif act < 0.3:
            value.extend([value[at]] * dice.choice((1, 1, 50)))
        else:
            value.MergeFrom(list(value)[:at])
    elif field.message_type is not None:
        if not many:
            message.ClearField(field.name)
    else:
        word = dice.choice(OPERATORS if field.name == "op_type" else WORDS).encode(errors="replace")
        number = dice.choice([v for v in VALUES if isinstance(v, int) and abs(v) < 2**63])
        for new in dice.sample([number, number % 20, float(dice.choice(ENDS)), word, word.decode()], 5):
            try:
                if many and len(value):
                    value[dice.randrange(len(value))] = new
                elif many:
                    value.append(new)
                else:
                    setattr(message, field.name, new)
            except (TypeError, ValueError):  # not of this field's type
                continue
            return
