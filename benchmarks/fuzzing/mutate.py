"""Damage to bytes, texts, trees of values and archives; the same for the same dice. The tests use it, too."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Files = dict[str, bytes]  # by name, seen from the folder that they lie in

# In every name and every piece of code that is planted: whoever runs, imports or writes it is found out by it.
MARK = "nf_fuzz_mark"
MARKER = Path(tempfile.gettempdir()) / MARK
CANARY = "../canary.h5"  # seen from a try: a file that nobody may open

# What readers stumble over: values at the ends of types, and the marks of the formats.
NUMBERS = b"-1 0 1 2 0.5 100000000 9223372036854775807 1e30 9223372036854775808 -1e308 1e18 1e-300 inf".split()
TOKENS = [
    *NUMBERS,
    *b"1e999 nan null true".split(),
    *(b'[] {} "" \' \\ \x00 \xff , ; \t \n \r\n = : # | . [[ ]] { } " \xef\xbb\xbf PK\x03\x04 \x80\x04 \x1f\x8b').split(
        b" "
    ),
    "é".encode(),
    "\u202e".encode(),
    b"../../x",
    b"/dev/zero",
    b"9" * 5000,
]
ENDS = [-1, 0, 1, 2, 3, 127, 255, 256, 45_000, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**53 + 1, 2**63 - 1, 2**63, 2**64]
VALUES: list[Any] = [*ENDS, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e-300, 1e308, float("inf"), float("nan"), True, None]
CODE = [
    f"__import__('pathlib').Path('../{MARK}').touch()",
    f"open({str(MARKER)!r}, 'w').close()",
    f"[c for c in ().__class__.__base__.__subclasses__() if '{MARK}'][0].__init__.__globals__",
]
CONTROLS = ["\x1b[31m\x1b]0;owned\x07", "a\nb", "a\r\x08b", "\x00", "\x9b2J", "\u202etxt", "a\u2028b", "\ud800"]
WORDS = [
    *CODE,
    *CONTROLS,
    *("", ".", "..", "-1", "nan", "1e999", "9" * 5000, "x" * 70_000, "é" * 300, "{0.__class__}", "%s%n", "[[", "a b"),
    *("__class__", "__globals__", "__reduce__", "__getattr__", "__getattribute__", "__builtins__", "__init__"),
    *("builtins.eval", "os.system", "posix.system", "subprocess.Popen", "_operator.getitem", "eval", "exec", "getattr"),
    *("torch.ops.aten.save.default", "torch.ops.aten._print.default", "torch.ops.aten.from_file.default"),
    *("torch.ops.aten.__getattr__.__getattribute__", "torch.ops.aten.resize_.default", "torch.load"),
    *(CANARY, "../../x", "/etc/passwd", "/dev/zero", f"/{MARK}", f"../{MARK}", str(MARKER), f"{MARK}.module:{MARK}"),
    *(f"file://{MARKER}", f"http://127.0.0.1:9/{MARK}", f"\\\\127.0.0.1\\{MARK}", "C:\\x", "con", "a/../.."),
]
_TWICE, _DEEP = "\x02twice", "\x02deep"


def damaged(valid: bytes, dice: random.Random) -> bytes:
    """A valid file after a few accidents: bytes changed, cut out, doubled, put in; or the end missing."""
    content = valid
    for _ in range(dice.randint(1, 4)):
        at, span = dice.randint(0, len(content)), dice.randint(0, 40)
        part = content[at : at + span]
        put = dice.choice([dice.choice(TOKENS), dice.randbytes(dice.randint(0, 8)), b"", part + part])
        content = content[:at] + put + content[at + span :]
    return content[: dice.randint(0, len(content))] if dice.random() < 0.12 else content


def flipped(valid: bytes, dice: random.Random) -> bytes:
    """A valid file of the same length with a few other bytes, half of the time near its end, where footers are."""
    content = bytearray(valid)
    first = max(0, len(content) - 600) if dice.random() < 0.5 else 0
    for _ in range(dice.choice((1, 1, 2, 5)) if content else 0):
        content[dice.randrange(first, len(content))] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))
    return bytes(content)


def swapped(valid: bytes, dice: random.Random) -> bytes:
    """A valid text with some of its numbers or words replaced by a token or by another one of them."""
    content = valid
    for _ in range(dice.randint(1, 3)):
        words = list(re.finditer(rb"[\w.+-]+", content))
        if not words:
            break
        one, other = dice.choice(words), dice.choice(words)
        # A number for a number is often still a file that can be read, and so gets further.
        put = dice.choice(NUMBERS if one.group()[:1].isdigit() else [*TOKENS, other.group()])
        content = content[: one.start()] + put + content[one.end() :]
    return content


def wreck(valid: bytes, seed: int, *, text: bool = True) -> bytes:
    """Random bytes, or a valid file after an accident; the same for the same seed."""
    dice = random.Random(seed)
    kind = dice.randrange(6)
    if kind == 0:
        return dice.randbytes(dice.randint(0, 200))
    return swapped(valid, dice) if text and kind > 1 else damaged(valid, dice)


def bent(tree: Any, dice: random.Random, grafts: Sequence[Any] = ()) -> Any:
    """A tree of values with a few of them replaced, removed, doubled, exchanged, renamed or put deeper.

    `grafts` are branches that a format knows, such as a layer that holds code; they may replace any other branch.
    """
    tree = copy.deepcopy(tree)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if not isinstance(tree, (dict, list)) or not tree:
            return _other(tree, dice)
        (here, key), (there, other) = _place(tree, dice), _place(tree, dice)
        act = dice.random()
        if grafts and act < 0.2:
            here[key] = copy.deepcopy(dice.choice(grafts))
        elif act < 0.6:
            here[key] = _other(here[key], dice)
        elif act < 0.7:
            del here[key]
        elif act < 0.78:  # of two words that are both known, the wrong one
            here[key] = copy.deepcopy(there[other])
        elif act < 0.86:
            depth = dice.choice((1, 1, 2, 60))
            here[key] = _DEEP if dice.random() < 0.1 else _deeper(here[key], depth, dice)
        elif isinstance(here, list):
            here[:] = here * dice.choice((2, 2, 100)) if dice.random() < 0.3 else [*here, copy.deepcopy(here[key])]
        elif act < 0.92:
            here[f"{key}{_TWICE}"] = _other(here[key], dice)
        else:
            here[dice.choice([*here, *WORDS])] = here.pop(key)
    return tree


def _place(tree: Any, dice: random.Random) -> tuple[Any, Any]:
    while True:
        key = dice.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        child = tree[key]
        if not isinstance(child, (dict, list)) or not child or dice.random() < 0.15:
            return tree, key
        tree = child


def _other(value: Any, dice: random.Random) -> Any:
    """Something else in the place of a value, most often of its own kind."""
    kind: type = type(value) if dice.random() < 0.75 else dice.choice((int, str, list, dict))
    if kind in (bool, int, float):
        return dice.choice(VALUES)
    if kind is str:
        return dice.choice([*WORDS, *CODE]) if dice.random() < 0.8 else str(dice.choice(VALUES[:-6]))
    return dice.choice(([], {}, [[]], [dice.choice(VALUES)], {dice.choice(WORDS): dice.choice(VALUES)}))


def _deeper(value: Any, depth: int, dice: random.Random) -> Any:
    for _ in range(depth):
        value = dice.choice(([value], {"x": value}))
    return value


def as_json(tree: Any) -> bytes:
    """A bent tree as JSON, with its keys that occur twice and its very deep branch."""
    text = json.dumps(tree).replace(json.dumps(_TWICE)[1:-1], "")
    return text.replace(json.dumps(_DEEP), "[" * 100_000 + "]" * 100_000).encode()


def bent_json(valid: bytes, dice: random.Random, grafts: Sequence[Any] = ()) -> bytes:
    """A JSON file bent at its fields."""
    return as_json(bent(json.loads(valid), dice, grafts))


def bent_lines(valid: bytes, dice: random.Random) -> bytes:
    """A file with a JSON value on each line: one line bent, doubled, moved or left out."""
    lines = valid.splitlines()
    at = dice.randrange(len(lines))
    act = dice.random()
    if act < 0.7:
        lines[at] = bent_json(lines[at], dice)
    elif act < 0.8:
        lines.insert(dice.randrange(len(lines)), lines[at])
    elif act < 0.9:
        dice.shuffle(lines)
    else:
        del lines[at]
    return b"\n".join(lines) + b"\n"


def as_toml(tree: dict[str, Any]) -> bytes:
    """A bent tree as TOML, without sections."""
    lines = [f"{_toml(key)} = {_toml(value)}" for key, value in tree.items()]
    return "\n".join(lines).encode(errors="surrogatepass")


def _toml(value: Any) -> str:
    if value == _DEEP:
        return "[" * 5000 + "]" * 5000
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value.removesuffix(_TWICE))
    return "[]" if value is None else str(value).lower()


def unzipped(content: bytes) -> list[tuple[str, bytes]]:
    """The members of an archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def zipped(members: Sequence[tuple[str, bytes]], *, method: int = zipfile.ZIP_STORED) -> bytes:
    """An archive with these members, in this order and with no time of its own."""
    place = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(place, "w", method) as archive:
        warnings.simplefilter("ignore")  # a name may occur twice
        for number, (name, content) in enumerate(members):
            entry = zipfile.ZipInfo(f"{number:08d}")
            entry.compress_type = method
            entry.filename = name  # the class would cut it at a NUL
            archive.writestr(entry, content)
    return place.getvalue()


def repacked(valid: bytes, dice: random.Random, change: Callable[[str, bytes, random.Random], bytes]) -> bytes:
    """An archive with one member changed, and now and then with odd names, odd lengths or a bomb."""
    members = unzipped(valid)
    act = dice.random()
    # A description says what is done with all the others, which are many.
    weights = [8 if name.endswith((".json", ".h5")) else 1 for name, _ in members]
    (at,) = dice.choices(range(len(members)), weights)
    name, content = members[at]
    if act < 0.8:
        members[at] = (name, change(name, content, dice))
    elif act < 0.84:
        members.append((name, change(name, content, dice)))
    elif act < 0.88:
        members[at] = (dice.choice(WORDS).encode(errors="replace").decode()[:60_000], content)
    elif act < 0.9:
        del members[at]
    elif act < 0.91:
        members[at] = (name, content + bytes(BOMB))
    packed = zipped(members, method=dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))
    return _other_directory(packed, dice) if act > 0.91 else packed


BOMB = 200_000_000  # zeros, packed to a thousandth: four times what a try allows a file to take


def _other_directory(packed: bytes, dice: random.Random) -> bytes:
    """An archive whose directory says something else about a member: its flags, packing, checksum, lengths or place."""
    entries = [match.start() for match in re.finditer(b"PK\x01\x02", packed)]
    offset, kind = dice.choice(((8, "<H"), (10, "<H"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<H"), (42, "<I")))
    content = bytearray(packed)
    value = dice.choice([end for end in ENDS if 0 <= end < 256 ** struct.calcsize(kind)])
    struct.pack_into(kind, content, dice.choice(entries) + offset, value)
    return bytes(content)
